"""Span index: the offsets of the records of a file in a small file, so that the walk is done once.

Layout   a file index (`fileindex.py`) of int64: for each record the byte where it begins, and where
         the last one ends, little-endian.
Trust    that of a file index. A reader compares each record with its bounds, as far as its format
         says where it ends.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpuload.sources import fileindex
from gpuload.storage.files import Files

Int64s = NDArray[np.int64]


def load_or_walk(
    files: Files,
    number: int,
    kind: str,
    make: Callable[[], Int64s],
    waits: Callable[[], None],
    first: int = 0,
) -> Int64s:
    """Return the offsets of a file's records and the end of the last, int64 ``[num_records + 1]``,
    from its index.

    Args:
        files: the files.
        number: of the file.
        kind: of the records, ``"tfrecord"`` say.
        make: walks through the file and returns the offsets.
        waits: called again and again while another process makes the index.
        first: the byte where the first record begins.

    Raises:
        ChangedFileError: the file is an unpacked copy, and damaged.
        FileError: the file cannot be read. If no index can be written anywhere, a warning is
            logged.
    """
    size = int(files.sizes[number])

    def unpack(content: bytes) -> Int64s | None:
        if len(content) % 8:
            return None
        offsets = np.frombuffer(content, "<i8").astype(np.int64, copy=False)
        if offsets.size and offsets[0] == first and offsets[-1] == size:
            return offsets
        return None

    return fileindex.load_or_walk(
        files, number, kind, make, lambda offsets: offsets.astype("<i8").tobytes(), unpack, waits
    )

"""Index files of DALI's ``tfrecord2idx``: a line with offset and size of each record; they must
leave no gap."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import FormatError
from gpuload.formats.tfrecord.framing import FRAME_BYTES
from gpuload.storage.files import Files
from gpuload.storage.handles import read_bytes

LONGEST_LINE_BYTES = 42  # two numbers of at most 20 digits, a space, a line's end

Int64s = NDArray[np.int64]


def of_dali(files: Files, number: int, name: str, path: str) -> Int64s:
    """Return the offsets of records from an index of DALI's ``tfrecord2idx``, checked against the
    size of the file.

    Args:
        files: the TFRecord files.
        number: of the file.
        name: of the file in errors.
        path: of the index.

    Raises:
        FileError: the index cannot be read.
        FormatError: it is none, or is of another file.
    """
    size = int(files.sizes[number])
    # More lines than the file can have records are not even read: the path may name a large file of
    # another kind.
    max_bytes = (size // FRAME_BYTES + 1) * LONGEST_LINE_BYTES
    remedy = f"make it anew (tfrecord2idx {name} {os.path.basename(path)}), or leave index= out: none is needed"
    text = read_bytes(path, max_bytes + 1)
    words = text.split()
    if (
        len(text) > max_bytes
        or len(words) % 2
        or not all(word.isdigit() and len(word) < 19 for word in words)
    ):
        raise FormatError(
            f"{path} is no index of {name}",
            cause="each line has two numbers, the offset and the size of a record, with a space "
            "between",
            remedy=remedy,
        )
    if words:
        offsets, sizes = np.array(words, "S").astype(np.int64).reshape(-1, 2).T
    else:
        offsets, sizes = np.zeros((2, 0), np.int64)
    # Sums may overflow here; a size above that of the file is found below, and named before any sum
    # is used.
    ends = np.cumsum(sizes)
    bad = np.flatnonzero((sizes < FRAME_BYTES) | (sizes > size) | (offsets != ends - sizes))
    if bad.size:
        record = int(bad[0])
        raise FormatError(
            f"{path}, line {record + 1}: {int(sizes[record])} bytes at byte {int(offsets[record])}",
            cause=f"a record has at least {FRAME_BYTES} bytes, and begins where the one before it "
            "ends, at byte "
            f"{int(ends[record] - sizes[record])}",
            remedy=remedy,
        )
    end = 0
    if sizes.size:
        end = int(ends[-1])
    if end != size:
        raise FormatError(
            f"{path} is the index of another file than {name}",
            cause=f"its {sizes.size} records end at byte {end}, the file has {size} bytes",
            remedy=remedy,
        )
    return np.append(offsets, size)

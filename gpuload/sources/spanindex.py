"""Span index: the offsets of the records of a file in a small file, so that the walk is done once.

Place    ``.NAME.gpuload-index`` beside the file (hidden, so that no wildcard for the records means it), or in the cache
         folder if nothing can be written there, and for an object of a store; see `storage/derivedfiles.py`.
         Files below SMALL_BYTES have none: they
         are read as fast.
Layout   a kept file (`storage/keptfile.py`): the kind of its records, in 64 bytes, then int64 for each record the byte
         where it begins, and where the last one ends, little-endian. Its origin is the size, the time and the first
         HEAD_BYTES of the file.
Trust    none without a look: all bytes have checksums, and the index must be of the file as it is now. An index beside
         the file may also belong to the owner of that file. A reader compares each record with its bounds, as far as
         its format says where it ends.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import FileError
from gpuload.storage import derivedfiles, keptfile
from gpuload.storage.files import Files, read_bytes
from gpuload.storage.keptfile import Writer
from gpuload.storage.stores import is_remote

HEAD_BYTES = 1 << 12
SMALL_BYTES = 1 << 20

Int64s = NDArray[np.int64]
log = logging.getLogger("gpuload")


def load_or_walk(
    files: Files, number: int, kind: str, make: Callable[[], Int64s], waits: Callable[[], None], first: int = 0
) -> Int64s:
    """Return the offsets of a file's records and the end of the last, int64 ``[num_records + 1]``, from its index.

    An index that is missing or not of this file is made first.

    Args:
        files: the files.
        number: of the file.
        kind: of the records, ``"tfrecord"`` say.
        make: walks through the file and returns the offsets.
        waits: called again and again while another process makes the index.
        first: the byte where the first record begins.

    Raises:
        ChangedFileError: the file is an unpacked copy, and damaged.
        FileError: the file cannot be read. If no index can be written anywhere, a warning is logged.
    """
    path = files.paths[number]

    def walk() -> Int64s:
        keptfile.check_content(files, number)  # a damaged copy must not become a wrong index
        return make()

    if int(files.sizes[number]) < SMALL_BYTES:
        return walk()
    offsets: list[Int64s] = []
    walk_errors: list[BaseException] = []

    def write(to: str) -> None:
        try:
            offsets[:] = offsets or [walk()]
        except BaseException as error:
            walk_errors.append(error)
            raise
        # Each user that may read the file may read an index beside it; the cache folder is closed to others.
        mode = 0o600 if is_remote(path) else 0o600 | os.stat(path).st_mode & 0o044
        with Writer(to, made_of(files, number), mode) as writer:
            writer.write(head_of(kind))
            writer.write(offsets[0].astype("<i8").tobytes())
            writer.end()

    folder, name = os.path.split(path)
    beside = [] if is_remote(path) else [os.path.join(folder, f".{name}.gpuload-index")]
    for place in beside:
        if (offsets_beside := _load(files, number, kind, first, place)) is not None:
            return offsets_beside
    elsewhere = derivedfiles.cache_path(f"{derivedfiles.key_of(files, number, f'{kind} index', 2)}.gpuload-index")

    def load(place: str) -> Int64s | None:
        return offsets[0] if offsets else _load(files, number, kind, first, place)

    try:
        is_ours = partial(_is_index, kind)
        return derivedfiles.load_or_make([*beside, elsewhere], load, write, waits, is_ours)
    except FileError as error:
        if walk_errors:
            raise
        log.warning(
            "%s; cause: %s; remedy: %s; records are looked for anew each time", error.what, error.cause, error.remedy
        )
        return offsets[0] if offsets else walk()


def head_of(kind: str) -> bytes:
    """Return the bytes with which an index begins."""
    return (_mark(kind) + b"2\n").ljust(64, b"\0")


def _mark(kind: str) -> bytes:
    """Return the bytes with which the indexes of all versions begin."""
    return f"gpuload {kind} index ".encode()


def _is_index(kind: str, place: str) -> bool:
    return keptfile.is_ours(place, _mark(kind))


def made_of(files: Files, number: int) -> list[int]:
    """Return the origin of an index of a file."""
    size, mtime_ns, _ = files.stamp(number)  # not the inode: a copy of the folder keeps its indexes
    return [size, mtime_ns, zlib.crc32(read_bytes(files.paths[number], HEAD_BYTES))]


def _load(files: Files, number: int, kind: str, first: int, place: str) -> Int64s | None:
    """Return the offsets that an index has; None if it is not there, or is not one of this file as it is now."""
    if not os.path.lexists(place):
        return None
    path, size = files.paths[number], int(files.sizes[number])
    owners = (os.stat(path).st_uid,) if os.path.dirname(place) == os.path.dirname(path) else ()
    content = keptfile.read_kept_file(place, made_of(files, number), owners)
    if content is None or not content.startswith(head_of(kind)) or len(content) % 8:
        return None
    offsets = np.frombuffer(content, "<i8", offset=len(head_of(kind))).astype(np.int64, copy=False)
    return offsets if offsets.size and offsets[0] == first and offsets[-1] == size else None

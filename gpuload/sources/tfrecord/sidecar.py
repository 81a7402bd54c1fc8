"""Sidecars: where the records of a TFRecord file begin, kept in a small file, so that the walk is done once.

Place    ``.NAME.gpuload-index`` beside the file (hidden, so that no wildcard for the records means it), or in the cache
         folder if nothing can be written there; see `storage/derived.py`. Files below SMALL_BYTES have none: they are
         read as fast.
Layout   a header of 64 bytes: magic, size and time of the file, checksum of its first HEAD_BYTES, checksum of the
         offsets, number of records; then for each record the byte where it begins, and where the last one ends. All
         numbers are little-endian.
Trust    none without a look: size, time and head must be those of the file, the offsets must have their checksum. Who
         reads a record compares its header with its length, so that a wrong offset is an error, never a wrong record.
Other    the ``.idx`` of DALI's ``tfrecord2idx``, a line with offset and size of each record, if it is named; it must
         cover the file without a gap.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import FileError, FormatError
from gpuload.sources.tfrecord import checksums
from gpuload.sources.tfrecord.framing import FRAME_BYTES
from gpuload.storage import derived
from gpuload.storage.files import Files, read_bytes

MAGIC = b"gpuload tfrecord index 1\n"
HEADER = struct.Struct("<25sxxxqqIIq")  # magic, size, time, head, offsets, count
HEADER_BYTES = 64
HEAD_BYTES = 1 << 12
SMALL_BYTES = 1 << 20
LONGEST_LINE_BYTES = 42  # of an .idx: two numbers of at most 20 digits, a space, a line's end

Int64s = NDArray[np.int64]
log = logging.getLogger("gpuload")


def kept(files: Files, number: int, make: Callable[[], Int64s], waits: Callable[[], None]) -> Int64s:
    """Return where a file's records begin and the last one ends, from its sidecar; if none is right it is made first.

    Args:
        files: the files.
        number: which of them.
        make: finds it out.
        waits: called again and again while another process makes it.

    Raises:
        FileError: the file cannot be read. That no sidecar can be written anywhere is a warning in the log.
    """
    path = files.paths[number]
    if int(files.sizes[number]) < SMALL_BYTES:
        return make()
    made: list[Int64s] = []
    failed: list[BaseException] = []

    def write(to: str) -> None:
        try:
            made[:] = made or [make()]
        except BaseException as error:
            failed.append(error)
            raise
        with open(to, "xb") as file:
            file.write(_packed(files, number, made[0]))

    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.gpuload-index")
    found = _load(files, number, beside)
    if found is not None:
        return found
    elsewhere = derived.cached(f"{derived.key_of(files, number, 'tfrecord index', 1)}.gpuload-index")

    def load(place: str) -> Int64s | None:
        return made[0] if made else _load(files, number, place)

    try:
        return derived.kept([beside, elsewhere], load, write, waits)
    except FileError as error:
        if failed:
            raise
        log.warning(
            "%s; cause: %s; remedy: %s; records are looked for anew each time", error.what, error.cause, error.remedy
        )
        return made[0] if made else make()


def _packed(files: Files, number: int, offsets: Int64s) -> bytes:
    data = offsets.astype("<i8").tobytes()
    size, mtime_ns, _ = files.stamp(number)  # not the inode: a copy of the folder keeps its sidecars
    head = zlib.crc32(read_bytes(files.paths[number], HEAD_BYTES))
    header = HEADER.pack(MAGIC, size, mtime_ns, head, checksums.quick(data), offsets.size - 1)
    return header.ljust(HEADER_BYTES, b"\0") + data


def _load(files: Files, number: int, place: str) -> Int64s | None:
    """Return the offsets that a sidecar has; None if it is not there, or is not one of this file as it is now."""
    size, mtime_ns, _ = files.stamp(number)
    try:
        with open(place, "rb", 0) as file:
            header = file.read(HEADER_BYTES)
            if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
                return None
            _, its_size, its_time, head, checksum, count = HEADER.unpack_from(header)
            if (its_size, its_time) != (size, mtime_ns) or not 0 <= count <= size // FRAME_BYTES:
                return None
            data = file.read(8 * (count + 1) + 1)
    except OSError:  # it is not there, or may not be read: another one is made, or the error is met there
        return None
    if len(data) != 8 * (count + 1) or checksums.quick(data) != checksum:
        return None
    if zlib.crc32(read_bytes(files.paths[number], HEAD_BYTES)) != head:
        return None
    offsets = np.frombuffer(data, "<i8").astype(np.int64, copy=False)
    return offsets if offsets[0] == 0 and offsets[-1] == size else None


def of_dali(files: Files, number: int, name: str, path: str) -> Int64s:
    """Return where records begin by an index of DALI's ``tfrecord2idx``, checked against the size of the file.

    Args:
        files: the TFRecord files.
        number: which of them.
        name: what it is called in errors.
        path: of the index.

    Raises:
        FileError: the index cannot be read.
        FormatError: it is none, or is of another file.
    """
    size = int(files.sizes[number])
    most = (size // FRAME_BYTES + 1) * LONGEST_LINE_BYTES
    remedy = f"make it anew (tfrecord2idx {name} {os.path.basename(path)}), or leave index= out: none is needed"
    text = read_bytes(path, most + 1)
    words = text.split()
    if len(text) > most or len(words) % 2 or not all(word.isdigit() and len(word) < 19 for word in words):
        raise FormatError(
            f"{path} is no index of {name}",
            cause="each line has two numbers, the offset and the size of a record, with a space between",
            remedy=remedy,
        )
    offsets, sizes = np.array(words, "S").astype(np.int64).reshape(-1, 2).T if words else np.zeros((2, 0), np.int64)
    ends = np.cumsum(sizes)
    bad = np.flatnonzero((sizes < FRAME_BYTES) | (sizes > size) | (offsets != ends - sizes))
    if bad.size:
        record = int(bad[0])
        raise FormatError(
            f"{path}, line {record + 1}: {int(sizes[record])} bytes at byte {int(offsets[record])}",
            cause=f"a record has at least {FRAME_BYTES} bytes, and begins where the one before it ends, at byte "
            f"{int(ends[record] - sizes[record])}",
            remedy=remedy,
        )
    end = int(ends[-1]) if sizes.size else 0
    if end != size:
        raise FormatError(
            f"{path} is the index of another file than {name}",
            cause=f"its {sizes.size} records end at byte {end}, the file has {size} bytes",
            remedy=remedy,
        )
    return np.append(offsets, size)

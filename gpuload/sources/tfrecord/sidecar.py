"""Sidecars: where the records of a TFRecord file begin, kept in a small file, so that the walk is done once.

Place    ``.NAME.gpuload-index`` beside the file (hidden, so that no wildcard for the records means it), or in the cache
         folder if nothing can be written there; see `storage/derived.py`. Files below SMALL_BYTES have none: they are
         read as fast.
Layout   a kept file (`storage/kept.py`): HEAD, then int64 for each record the byte where it begins, and where the last
         one ends, little-endian. It is made of the size, the time and the first HEAD_BYTES of the file.
Trust    none without a look: all bytes have checksums, and the index must be of the file as it is now. An index beside
         the file may also belong to the owner of that file. Who reads a record compares its header with its length, so
         that a wrong offset is an error, never a wrong record.
Other    the ``.idx`` of DALI's ``tfrecord2idx``, a line with offset and size of each record, if it is named; it must
         cover the file without a gap.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import FileError, FormatError
from gpuload.sources.tfrecord.framing import FRAME_BYTES
from gpuload.storage import derived, kept
from gpuload.storage.files import Files, read_bytes
from gpuload.storage.kept import Writer

MARK = b"gpuload tfrecord index "  # what all versions begin with
HEAD = (MARK + b"2\n").ljust(64, b"\0")
HEAD_BYTES = 1 << 12
SMALL_BYTES = 1 << 20
LONGEST_LINE_BYTES = 42  # of an .idx: two numbers of at most 20 digits, a space, a line's end

Int64s = NDArray[np.int64]
log = logging.getLogger("gpuload")


def load_or_walk(files: Files, number: int, make: Callable[[], Int64s], waits: Callable[[], None]) -> Int64s:
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
    offsets: list[Int64s] = []
    failed: list[BaseException] = []

    def write(to: str) -> None:
        try:
            offsets[:] = offsets or [make()]
        except BaseException as error:
            failed.append(error)
            raise
        # Who may read the file may read an index beside it; in the cache folder nobody else can.
        mode = 0o600 | os.stat(path).st_mode & 0o044
        with Writer(to, _made_of(files, number), mode) as writer:
            writer.write(HEAD)
            writer.write(offsets[0].astype("<i8").tobytes())
            writer.end()

    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.gpuload-index")
    kept_offsets = _load(files, number, beside)
    if kept_offsets is not None:
        return kept_offsets
    elsewhere = derived.cached(f"{derived.key_of(files, number, 'tfrecord index', 2)}.gpuload-index")

    def load(place: str) -> Int64s | None:
        return offsets[0] if offsets else _load(files, number, place)

    try:
        return derived.load_or_make([beside, elsewhere], load, write, waits, lambda place: kept.is_ours(place, MARK))
    except FileError as error:
        if failed:
            raise
        log.warning(
            "%s; cause: %s; remedy: %s; records are looked for anew each time", error.what, error.cause, error.remedy
        )
        return offsets[0] if offsets else make()


def _made_of(files: Files, number: int) -> list[int]:
    size, mtime_ns, _ = files.stamp(number)  # not the inode: a copy of the folder keeps its sidecars
    return [size, mtime_ns, zlib.crc32(read_bytes(files.paths[number], HEAD_BYTES))]


def _load(files: Files, number: int, place: str) -> Int64s | None:
    """Return the offsets that a sidecar has; None if it is not there, or is not one of this file as it is now."""
    if not os.path.lexists(place):
        return None
    path, size = files.paths[number], int(files.sizes[number])
    owners = (os.stat(path).st_uid,) if os.path.dirname(place) == os.path.dirname(path) else ()
    content = kept.read_kept(place, _made_of(files, number), owners)
    if content is None or not content.startswith(HEAD) or len(content) % 8:
        return None
    offsets = np.frombuffer(content, "<i8", offset=len(HEAD)).astype(np.int64, copy=False)
    return offsets if offsets.size and offsets[0] == 0 and offsets[-1] == size else None


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

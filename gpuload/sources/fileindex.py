"""File index: the results of a walk through a file, in a small file, so that the walk is done once.

Place    ``.NAME.gpuload-index`` beside the file (hidden, so that no wildcard for the records means
         it), or in the cache folder if nothing can be written there, and for an object of a store;
         see `storage/derivedfiles.py`. Files below SMALL_BYTES have none: they are read as fast.
Layout   a kept file (`storage/keptfile.py`): the kind of the index, in 64 bytes, then the bytes of
         the format. Its origin is the size, the time and the first HEAD_BYTES of the file.
Trust    none without a look: all bytes have checksums, and the index must be of the file as it is
         now. An index beside the file may also belong to the owner of that file. The format checks
         what it unpacks.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from gpuload.errors import FileError
from gpuload.storage import derivedfiles, keptfile
from gpuload.storage.files import Files
from gpuload.storage.handles import read_bytes
from gpuload.storage.keptfile import KeptWriter
from gpuload.storage.stores import is_remote

Result = TypeVar("Result")

HEAD_BYTES = 1 << 12
SMALL_BYTES = 1 << 20
log = logging.getLogger("gpuload")


def load_or_walk(
    files: Files,
    number: int,
    kind: str,
    walk: Callable[[], Result],
    pack: Callable[[Result], bytes],
    unpack: Callable[[bytes], Result | None],
    waits: Callable[[], None],
) -> Result:
    """Return the results of a walk through a file, from its index. An index that is missing or not
    of this file is made first.

    Args:
        files: the files.
        number: of the file.
        kind: of the index, ``"tfrecord"`` say.
        walk: walks through the file.
        pack: returns the bytes of a result.
        unpack: returns the result of such bytes; None if they cannot be of this file.
        waits: called again and again while another process makes the index.

    Raises:
        ChangedFileError: the file is an unpacked copy, and damaged.
        FileError: the file cannot be read. If no index can be written anywhere, a warning is
            logged.
    """
    path = files.paths[number]

    def walk_whole() -> Result:
        keptfile.check_content(files, number)  # a damaged copy must not become a wrong index
        return walk()

    if int(files.sizes[number]) < SMALL_BYTES:
        return walk_whole()
    results: list[Result] = []
    walk_errors: list[BaseException] = []

    def write(to: str) -> None:
        try:
            results[:] = results or [walk_whole()]
        except BaseException as error:
            walk_errors.append(error)
            raise
        # Each user that may read the file may read an index beside it; the cache folder is closed
        # to others.
        if is_remote(path):
            mode = 0o600
        else:
            mode = 0o600 | os.stat(path).st_mode & 0o044
        with KeptWriter(to, made_of(files, number), mode) as writer:
            writer.write(head_of(kind))
            writer.write(pack(results[0]))
            writer.end()

    folder, name = os.path.split(path)
    if is_remote(path):
        beside = []
    else:
        beside = [os.path.join(folder, f".{name}.gpuload-index")]
    for place in beside:
        if (result_beside := _load(files, number, kind, unpack, place)) is not None:
            return result_beside
    elsewhere = derivedfiles.cache_path(
        f"{derivedfiles.key_of(files, number, f'{kind} index', 2)}.gpuload-index"
    )

    def load(place: str) -> Result | None:
        if results:
            return results[0]
        return _load(files, number, kind, unpack, place)

    try:
        is_ours = partial(_is_index, kind)
        return derivedfiles.load_or_make([*beside, elsewhere], load, write, waits, is_ours)
    except FileError as error:
        # The walk itself failed: that is the user's file, and no matter of where an index can be
        # written.
        if walk_errors:
            raise
        log.warning(
            "%s; cause: %s; remedy: %s; records are looked for anew each time",
            error.what,
            error.cause,
            error.remedy,
        )
        if results:
            return results[0]
        return walk_whole()


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


def _load(
    files: Files, number: int, kind: str, unpack: Callable[[bytes], Result | None], place: str
) -> Result | None:
    """Return the content of an index; None if it is not there, or is not one of this file as it is
    now."""
    if not os.path.lexists(place):
        return None
    path = files.paths[number]
    owners = (os.stat(path).st_uid,) if os.path.dirname(place) == os.path.dirname(path) else ()
    content = keptfile.read_kept_file(place, made_of(files, number), owners)
    if content is None or not content.startswith(head_of(kind)):
        return None
    return unpack(content[len(head_of(kind)) :])

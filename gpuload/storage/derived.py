"""Derived files: what was made once of the user's files and is kept, an index say, or an unpacked copy.

    key = key_of(files, number, "unpacked", 1)             of the file as it is now, and of what is made of it
    path = kept([cached(f"{key}-train.bin")], load, make)  made by the first who asks, found by all others

Where    Small ones stand beside the file, if its folder can be written; others in the cache folder: ``GPULOAD_CACHE``,
         ``XDG_CACHE_HOME/gpuload``, or the user's usual one. The log says what was made, where, and how large it is.
Name     In the cache folder it begins with a digest of path, size, time and beginning of the file, and of all that the
         derived file depends on besides: of a changed file another one is made, and an old one is never believed.
Whole    It is written under another name, flushed to the disk, and renamed: nobody sees half of one.
Once     One process makes it while the others wait, where the system has locks of files; elsewhere the last one stays.
Trust    Whoever reads one checks it like any file; nothing in it is ever run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gpuload.errors import FileError
from gpuload.storage.files import Files, open_error, read_bytes

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Loaded = TypeVar("Loaded")

FOLDER = "GPULOAD_CACHE"
HEAD_BYTES = 1 << 16  # of a file, that its key depends on
PART = ".part"  # what is being written ends in this, and a number
LOCK = ".lock"
STALE_S = 3600.0  # nobody writes a file for so long without a byte
FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
NOT_HERE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
log = logging.getLogger("gpuload")


def folder() -> str:
    """Return the cache folder, as an absolute path; it may not be there yet.

    Raises:
        FileError: there is no home folder, and no variable says where else.
    """
    named = os.environ.get(FOLDER, "")
    if named:
        return os.path.abspath(os.path.expanduser(named))
    if sys.platform == "win32":
        usual = os.environ.get("LOCALAPPDATA", "~")
    elif sys.platform == "darwin":
        usual = "~/Library/Caches"
    else:
        usual = os.environ.get("XDG_CACHE_HOME", "")
        usual = usual if os.path.isabs(usual) else "~/.cache"  # a relative one is to be ignored, its specification says
    expanded = os.path.expanduser(usual)
    if not os.path.isabs(expanded):
        raise FileError(
            "there is no cache folder", cause="no home folder is known", remedy=f"set {FOLDER} to a folder to write to"
        )
    return os.path.join(expanded, "gpuload")


def cached(name: str) -> str:
    """Return the path of a file of the cache folder."""
    return os.path.join(folder(), name)


def key_of(files: Files, number: int, *more: object) -> str:
    """Return the digest of a file as it was when it was opened, and of ``more``, which `repr` must tell apart.

    Raises:
        ChangedFileError, FileError: the file is another one now, or cannot be read.
    """
    path = files.paths[number]
    head = read_bytes(path, HEAD_BYTES)
    files.check(number)
    size, mtime_ns, _ = files.stamp(number)  # not the inode: a copy of the folder keeps its derived files
    text = hashlib.sha256(repr((path, size, mtime_ns, more)).encode("utf-8", "surrogateescape"))
    text.update(head)
    return text.hexdigest()[:32]


def kept(places: Sequence[str], load: Callable[[str], Loaded | None], make: Callable[[str], None]) -> Loaded:
    """Return what ``load`` makes of a derived file, which is made first if it is in none of its places.

    Args:
        places: absolute paths where it may be, the best first.
        load: returns None for a file that is another one, or none at all; called with a path that may not be there.
        make: writes the file to the path that it is given, a temporary one in the same folder. What it raises goes on,
            and nothing is left behind.

    Raises:
        FileError: no place can be written to; there is no space.
    """
    for place in places:
        if (found := load(place)) is not None:
            return found
    refused: list[str] = []
    for place in places:
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            lock = _locked(place)
        except OSError as error:
            if error.errno not in NOT_HERE:
                raise _unwritten(place, error) from None
            refused.append(f"{os.path.dirname(place)} ({error.strerror})")
            continue
        with lock:
            if (found := load(place)) is not None:  # another process made it meanwhile
                return found
            _write(place, make)
        if (found := load(place)) is None:
            raise FileError(
                f"{place} is not what was written to it",
                cause="something else changed it at once, or the disk is faulty",
                remedy=f"check the disk (dmesg); set {FOLDER} to another folder",
            )
        return found
    raise FileError(
        "there is no place for a file that has to be kept",
        cause=f"nothing can be written to {', nor to '.join(refused)}",
        remedy=f"set {FOLDER} to a folder that can be written to",
    )


@contextlib.contextmanager
def _unlocked(descriptor: int, path: str) -> Iterator[None]:
    """Let go of a lock in the end. Its file goes before the lock does: who waits for it looks whether it is there."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(descriptor)


def _locked(place: str) -> contextlib.AbstractContextManager[None]:
    """Wait until no other process makes this file, and keep them out."""
    path = place + LOCK
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if fcntl is None:
                return _unlocked(descriptor, path)
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return _unlocked(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # that of a process which is done: a new one has to be locked


def _write(place: str, make: Callable[[str], None]) -> None:
    """Make a file: under another name, flushed, renamed. Whoever calls it holds the lock."""
    _remove_parts(place)
    part = f"{place}{PART}{os.getpid()}"
    try:
        make(part)
        descriptor = os.open(part, os.O_RDWR)
        try:
            os.fsync(descriptor)
            num_bytes = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        os.replace(part, place)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise _unwritten(place, error) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
    log.info("wrote %s, %d bytes", place, num_bytes)


def _remove_parts(place: str) -> None:
    """Remove what processes left that were killed while they wrote this file.

    Where there are no locks another process may be writing now, so what was written to lately stays.
    """
    home, name = os.path.split(place)
    with contextlib.suppress(OSError):
        for entry in os.scandir(home):
            if entry.name.startswith(name + PART) and time.time() - entry.stat().st_mtime > STALE_S:
                os.unlink(entry.path)


def _unwritten(place: str, error: OSError) -> FileError:
    if error.errno in FULL:
        return FileError(
            f"{place} cannot be written",
            cause=str(error.strerror),
            remedy=f"make room ({folder()} may be removed at any time), or set {FOLDER} to a folder with room",
        )
    return open_error(place, error)

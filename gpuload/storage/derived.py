"""Derived files: what was made once of the user's files and is kept, an index say, or an unpacked copy.

    key = key_of(files, number, "unpacked", 1)             of the file as it is now, and of what is made of it
    path = kept([cached(f"{key}-train.bin")], load, make)  made by the first who asks, found by all others

Where    Small ones stand beside the file, if its folder can be written; others in the cache folder: ``GPULOAD_CACHE``,
         ``XDG_CACHE_HOME/gpuload``, or the user's usual one. The log says what was made, where, and how large it is.
Name     In the cache folder it begins with a digest of path, size, time and beginning of the file, and of all that the
         derived file depends on besides: of a changed file another one is made, and an old one is never believed.
Whole    It is written under another name, flushed to the disk, and renamed: nobody sees half of one.
Once     One process makes it while the others wait, where the system has locks of files; elsewhere the last one stays.
Killed   What a process had written when it was killed is removed by the next one that makes the same file.
Trust    Whoever reads one checks it like any file; nothing in it is ever run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import platform
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gpuload.errors import FileError
from gpuload.progress import Progress
from gpuload.storage.files import REMEDIES, Files, read_bytes

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Loaded = TypeVar("Loaded")

FOLDER = "GPULOAD_CACHE"
HEAD_BYTES = 1 << 16  # of a file, that its key depends on
PART = ".part-"  # what is being written ends in this, this machine, and a number of its own
LOCK = ".lock"
LOOK_S = 0.02  # a process that waits for another one looks so often
STALE_S = 3600.0  # nobody writes a file for so long without a byte
FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
NOT_HERE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}
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


def kept(
    places: Sequence[str],
    load: Callable[[str], Loaded | None],
    make: Callable[[str], None],
    waits: Callable[[], None] = lambda: None,
) -> Loaded:
    """Return what ``load`` makes of a derived file, which is made first if it is in none of its places.

    Args:
        places: absolute paths where it may be, the best first. One whose folder cannot be written to, or has no space,
            is passed over for the next.
        load: returns None for a file that is another one, or none at all; called with a path that may not be there.
        make: writes the file to the path that it is given, a temporary one in the same folder. What it raises goes on,
            but for an ``OSError`` that is none of ours, which is taken for one of writing; nothing is left behind.
        waits: called again and again while another process makes the file; what it raises ends the waiting.

    Raises:
        FileError: no place can be written to; there is no space.
    """
    for place in places:
        if (found := load(place)) is not None:
            return found
    refused: list[tuple[str, OSError]] = []
    for place in places:
        try:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with _locked(place, waits) as is_alone:
                if (found := load(place)) is not None:  # another process made it meanwhile
                    return found
                _write(place, make, is_alone=is_alone)
        except OSError as error:
            if isinstance(error, FileError):
                raise
            if error.errno not in NOT_HERE | FULL:
                raise _unwritten(place, error) from None
            refused.append((place, error))
            continue
        if (found := load(place)) is None:
            raise FileError(
                f"{place} is not what was written to it",
                cause="something else changed it at once, or the disk is faulty",
                remedy=f"check the disk (dmesg); set {FOLDER} to another folder",
            )
        return found
    raise _nowhere(refused)


@contextlib.contextmanager
def _locked(place: str, waits: Callable[[], None]) -> Iterator[bool]:
    """Wait until no other process makes this file, and keep them out; gives False where the system has no such locks.

    The file of the lock goes before the lock does: who waited for it looks whether it is still there. A child that was
    forked meanwhile shares the lock, so it is given up in words, and not just by closing the file.
    """
    path = place + LOCK
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            is_alone = _waited_for(descriptor, place, waits)
            if is_alone and not _is_there(descriptor, path):
                continue  # that of a process which is done: a new one has to be locked
            try:
                yield is_alone
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                if is_alone:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            return
        finally:
            os.close(descriptor)


def _waited_for(descriptor: int, place: str, waits: Callable[[], None]) -> bool:
    """Return True when nobody else has the lock, False if there are no locks here."""
    if fcntl is None:
        return False
    with Progress(f"waiting for another process that makes {os.path.basename(place)}") as progress:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                progress.show()
                waits()
                time.sleep(LOOK_S)
            except OSError:  # some network file systems have none
                return False


def _is_there(descriptor: int, path: str) -> bool:
    """Return True if a path still means the file that was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _write(place: str, make: Callable[[str], None], *, is_alone: bool) -> None:
    """Make a file: under another name, flushed, renamed. Whoever calls it holds the lock, if there are locks."""
    _remove_parts(place, f"{PART}{machine()}" if is_alone else None)
    part = f"{place}{PART}{machine()}-{secrets.token_hex(4)}"
    try:
        make(part)
        descriptor = os.open(part, os.O_RDWR)
        try:
            os.fsync(descriptor)
            num_bytes = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        os.replace(part, place)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
    log.info("wrote %s, %d bytes", place, num_bytes)


def machine() -> str:
    """Return what this machine is called in the names of unfinished files: eight hexadecimal digits."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def is_left(path: str | os.PathLike[str], of_machine: str | None, process: str) -> bool:
    """Return True if a process left this unfinished file or folder and will not go on with it.

    That process was one of this machine and is gone, or had the number of this process; or nothing was written to it
    for STALE_S.

    Args:
        path: of a file, or of a folder of files.
        of_machine: what `machine` returned there; None if it is not known.
        process: the number of the process, as it stands in the name.
    """
    if of_machine == machine() and os.name == "posix":
        try:
            os.kill(int(process), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:  # another user's process
            pass
        return int(process) == os.getpid()
    with contextlib.suppress(OSError):
        entries = [entry.path for entry in os.scandir(path)] if os.path.isdir(path) else []
        return time.time() - max(os.lstat(entry).st_mtime for entry in [os.fspath(path), *entries]) > STALE_S
    return False


def _remove_parts(place: str, own: str | None) -> None:
    """Remove what processes left that were killed while they wrote this file.

    A lock keeps out the other processes of this machine, whose parts are named ``own``, but not everywhere those of
    others that share the folder: what was written to lately by them stays.
    """
    home, name = os.path.split(place)
    with contextlib.suppress(OSError):
        for entry in os.scandir(home):
            is_own = own is not None and entry.name.startswith(name + own)
            is_part = entry.name.startswith(name + PART)
            if is_own or (is_part and time.time() - entry.stat().st_mtime > STALE_S):
                os.unlink(entry.path)


def _nowhere(refused: Sequence[tuple[str, OSError]]) -> FileError:
    """Return the error for a file that could be kept in none of its places."""
    if len(refused) == 1 and refused[0][1].errno in FULL:
        return _unwritten(*refused[0])
    told = [f"{os.path.dirname(place)} ({error.strerror})" for place, error in refused]
    return FileError(
        "there is no place for a file that has to be kept",
        cause=f"nothing can be written to {', nor to '.join(told)}",
        remedy=f"set {FOLDER} to a folder that can be written to, with room",
    )


def _unwritten(place: str, error: OSError) -> FileError:
    remedy = REMEDIES.get(error.errno or 0, f"check the disk (dmesg); set {FOLDER} to another folder")
    if error.errno in FULL:
        remedy = f"make room ({folder()} may be removed at any time), or set {FOLDER} to a folder with room"
    elif error.errno == errno.EFBIG:
        remedy = f"allow larger files (ulimit -f unlimited), or set {FOLDER} to a folder whose disk has no such limit"
    return FileError(f"{place} cannot be written", cause=str(error.strerror or error), remedy=remedy)

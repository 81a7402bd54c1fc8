"""Derived files: indexes, unpacked copies and others that are made once of the user's files, and
stored.

    key = key_of(files, number, "unpacked", 1)                        of the file as it is now, and of these words
    copy = load_or_make([cache_path(f"{key}-train.bin")], load, make) the first process makes it, all others find it

Where    Small ones stand beside the file, if its folder can be written; others in the cache folder:
         ``GPULOAD_CACHE``, ``XDG_CACHE_HOME/gpuload``, or the user's usual one. The log names each
         file that is written, and its size.
Private  `privatefiles.py`: only this user may read and write them.
Name     In the cache folder it begins with a digest of path, size, time and beginning of the file,
         and of all that the derived file depends on besides: of a changed file another one is made,
         and an old one is never believed.
Whole    It is written under another name, flushed to the disk, and renamed: no reader sees half of
         one.
Once     One process makes it while the others wait, where the system has locks of files; elsewhere
         the last one stays.
Killed   The unfinished file of a process that was killed is removed by the next process that makes
         the same file.
Trust    `keptfile.py` is the form of these files: checked before anything in them is used. Nothing
         in them is ever run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gpuload import signalsafe
from gpuload.errors import FileError
from gpuload.progress import Progress
from gpuload.storage.fileerrors import REMEDIES
from gpuload.storage.files import Files
from gpuload.storage.handles import read_bytes
from gpuload.storage.privatefiles import (
    NO_LINKS,
    STALE_S,
    check_private,
    machine,
    make_folder,
    own_folder,
)
from gpuload.storage.stores import path_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Result = TypeVar("Result")

FOLDER = "GPULOAD_CACHE"
HEAD_BYTES = 1 << 16  # of a file, that its key depends on
PART = ".part-"  # the name of an unfinished file ends in this, the machine, and a random number
LOCK = ".lock"
LOOK_S = 0.02  # a process that waits for another one looks so often
FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
PLACE_ERRORS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
}
log = logging.getLogger("gpuload")


def folder() -> str:
    """Return the folder that derived files go to, as an absolute path; it may not be there yet.

    Raises:
        FileError: there is no home folder, and no variable names another one.
    """
    return own_folder(_cache_folder())


def _cache_folder() -> str:
    value = os.environ.get(FOLDER, "")
    if value:
        return os.path.abspath(os.path.expanduser(value))
    if sys.platform == "win32":
        usual = os.environ.get("LOCALAPPDATA", "~")
    elif sys.platform == "darwin":
        usual = "~/Library/Caches"
    else:
        usual = os.environ.get("XDG_CACHE_HOME", "")
        # a relative one is to be ignored, its specification says
        if not os.path.isabs(usual):
            usual = "~/.cache"
    expanded = os.path.expanduser(usual)
    if not os.path.isabs(expanded):
        raise FileError(
            "there is no cache folder",
            cause="no home folder is known",
            remedy=f"set {FOLDER} to a folder to write to",
        )
    return os.path.join(expanded, "gpuload")


def cache_path(name: str) -> str:
    """Return the path of a file of the cache folder."""
    return os.path.join(folder(), name)


def key_of(files: Files, number: int, *details: object) -> str:
    """Return the digest of a file as it was when it was opened, and of ``details``, which `repr`
    must tell apart.

    Raises:
        ChangedFileError, FileError: the file is another one now, or cannot be read.
    """
    path = files.paths[number]
    head = read_bytes(path, HEAD_BYTES)
    path = path_of(path)  # two links to one object, of two days, are one file
    # Behind the reading: the head belongs to the file that has the stamp in the digest.
    files.check(number)
    # not the inode: a copy of the folder keeps its derived files
    size, mtime_ns, _ = files.stamp(number)
    text = hashlib.sha256(repr((path, size, mtime_ns, details)).encode("utf-8", "surrogateescape"))
    text.update(head)
    return text.hexdigest()[:32]


def load_or_make(
    places: Sequence[str],
    load: Callable[[str], Result | None],
    make: Callable[[str], None],
    waits: Callable[[], None] = lambda: None,
    is_ours: Callable[[str], bool] = lambda path: False,
) -> Result:
    """Return the result of ``load`` for a derived file; a file that is in none of its places is
    made first.

    Args:
        places: absolute paths where it may be, the best first. A place is passed over for the next
            if its folder cannot be written to or has no space, or if something else stands there.
        load: returns None for a wrong or a missing file; called with a path.
        make: writes the file to a path, a temporary one in the same folder. Its exceptions are not
            caught, but an ``OSError`` of Python's own counts as an error of writing; nothing is
            left behind.
        waits: called again and again while another process makes the file; an exception of it ends
            the waiting.
        is_ours: returns True for a file that gpuload wrote; outside of the cache folder no other
            file is replaced.

    Raises:
        FileError: no place can be written to; there is no space.
    """
    for place in places:
        if (result := load(place)) is not None:
            return result
    failures: list[tuple[str, OSError]] = []
    for place in places:
        try:
            _make_home(place)
            with _locked(place, waits) as is_alone:
                if (result := load(place)) is not None:  # another process made it meanwhile
                    return result
                _check_replaceable(place, is_ours)
                with whole(place, is_alone=is_alone) as part:
                    make(part)
        except OSError as error:
            # It is an OSError, too: one of ours, which has its cause and remedy already.
            if isinstance(error, FileError):
                raise
            if error.errno not in PLACE_ERRORS | FULL:
                raise _write_error(place, error) from None
            failures.append((place, error))
            continue
        if (result := load(place)) is None:
            raise FileError(
                f"{place} does not hold the bytes that were written to it",
                cause="something else changed it at once, or the disk is faulty",
                remedy=f"check the disk (dmesg); set {FOLDER} to another folder",
            )
        return result
    raise _nowhere(failures)


def _make_home(place: str) -> None:
    home = os.path.dirname(place)
    make_folder(home)
    # Another user may have made our folder in a shared one before we did.
    if home == folder() != _cache_folder():
        check_private(home)


def _check_replaceable(place: str, is_ours: Callable[[str], bool]) -> None:
    """Raise ``FileExistsError`` if something stands in the place of a derived file that gpuload did
    not write."""
    if os.path.lexists(place) and os.path.dirname(place) != folder() and not is_ours(place):
        raise FileExistsError(errno.EEXIST, "a file that gpuload did not write stands there", place)


@contextlib.contextmanager
def _locked(place: str, waits: Callable[[], None]) -> Iterator[bool]:
    """Wait until no other process makes this file, and keep them out; gives False where the system
    has no such locks.

    The file of the lock is removed before the lock is released: a process that waited checks that
    the file is still there. A child that was forked meanwhile shares the lock, so it is released by
    a call of its own, and not just by closing the file.
    """
    path = place + LOCK
    while True:
        descriptor = _open_lock(path)
        if descriptor is None:
            yield False
            return
        try:
            is_alone = _waited_for(descriptor, place, waits)
            if is_alone and not _is_there(descriptor, path):
                # Another process removed this file when it was done: the lock of a new file counts
                continue
            try:
                yield is_alone
            finally:
                with signalsafe.suppress(OSError):
                    os.unlink(path)
                if is_alone:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            return
        finally:
            os.close(descriptor)


def _open_lock(path: str) -> int | None:
    """Return a descriptor of the file of a lock; None if it belongs to another user, and cannot be
    opened."""
    flags = os.O_CREAT | NO_LINKS | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, os.O_RDWR | flags, 0o666)
    except PermissionError:
        if not os.path.lexists(path):
            raise
    try:
        # Enough for flock on a local disk; and a pipe in its place must not wait for its writer.
        return os.open(path, os.O_RDONLY | NO_LINKS | getattr(os, "O_NONBLOCK", 0))
    except PermissionError:
        return None


def _waited_for(descriptor: int, place: str, waits: Callable[[], None]) -> bool:
    """Wait for the lock; return True when this process has it, False if there are no locks here."""
    if fcntl is None:
        return False
    with Progress(f"waiting for another process that makes {os.path.basename(place)}") as progress:
        while True:
            try:
                # Asked again and again, not waited for: Ctrl-C, Python's end and the progress are
                # heard in between.
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


@contextlib.contextmanager
def whole(place: str, *, is_alone: bool) -> Iterator[str]:
    """Yield the path of a new file; behind the block it is flushed and gets its name. An error
    leaves nothing of it.

    Args:
        place: its name.
        is_alone: True if the caller holds the lock.
    """
    # Without the lock another process of this machine may be writing its part now: then only old
    # parts go.
    _remove_parts(place, f"{PART}{machine()}" if is_alone else None)
    part = f"{place}{PART}{machine()}-{os.urandom(4).hex()}"
    try:
        yield part
        descriptor = os.open(part, os.O_RDWR | NO_LINKS)
        try:
            # before the rename: after a crash the name means a whole file or none
            os.fsync(descriptor)
            num_bytes = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        # Atomic on one disk: others see the old file or the new one, and a file that is open stays
        # as it is.
        os.replace(part, place)
    finally:
        with signalsafe.suppress(OSError):
            os.unlink(part)
    log.info("wrote %s, %d bytes", place, num_bytes)


def _remove_parts(place: str, own_suffix: str | None) -> None:
    """Remove the parts of processes that were killed while they wrote this file.

    A lock keeps out the other processes of this machine (their parts end in ``own_suffix``), but
    not everywhere those of other machines that share the folder: parts that grew lately stay.
    """
    home, name = os.path.split(place)
    part = re.compile(re.escape(name + PART) + "[0-9a-f]{8}-[0-9a-f]{8}")
    with signalsafe.suppress(OSError):
        for entry in os.scandir(home):
            if not part.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            is_own = own_suffix is not None and entry.name.startswith(name + own_suffix)
            if is_own or abs(time.time() - entry.stat().st_mtime) > STALE_S:
                os.unlink(entry.path)


def _nowhere(failures: Sequence[tuple[str, OSError]]) -> FileError:
    """Return the error for a file that could be written to none of its places."""
    if len(failures) == 1 and failures[0][1].errno in FULL:
        return _write_error(*failures[0])
    if len(failures) == 1 and failures[0][1].errno == errno.EEXIST:
        return FileError(
            f"{failures[0][0]} is there already",
            cause="gpuload did not write it, or it is damaged; nothing of others is replaced",
            remedy="move it away, or choose another path",
        )
    texts = [f"{os.path.dirname(place)} ({error.strerror})" for place, error in failures]
    return FileError(
        "there is no place for a file that has to be kept",
        cause=f"nothing can be written to {', nor to '.join(texts)}",
        remedy=f"set {FOLDER} to a folder that can be written to, with room",
    )


def _write_error(place: str, error: OSError) -> FileError:
    remedy = REMEDIES.get(
        error.errno or 0, f"check the disk (dmesg); set {FOLDER} to another folder"
    )
    if error.errno in FULL:
        remedy = f"make room ({folder()} may be removed at any time), or set {FOLDER} to a folder with room"
    elif error.errno == errno.EFBIG:
        remedy = f"allow larger files (ulimit -f unlimited), or set {FOLDER} to a folder whose disk has no such limit"
    return FileError(
        f"{place} cannot be written", cause=str(error.strerror or error), remedy=remedy
    )

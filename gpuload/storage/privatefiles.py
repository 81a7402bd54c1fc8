"""Private files: folders and files that gpuload writes for this user alone, and the files that a
killed process left.

Private  Folders have the mode 0700 and files 0600. Where other users may write to the folder that
         is named, a folder in it that belongs to this user alone is used, ``user-1000``.
         ``GPULOAD_CACHE_SHARED=1`` says that these users are
         trusted: then all of them use the same files.
Left     The name of an unfinished file has the machine and the process that write it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import time
from collections.abc import Sequence

from gpuload import signalsafe
from gpuload.errors import FileError

SHARED = "GPULOAD_CACHE_SHARED"
# for files that gpuload writes: a link at their name is not followed
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
NO_PLACE = " is no place for files that gpuload keeps"
STALE_S = 3600.0  # a file that did not grow for so long has no writer any more


def own_folder(base: str) -> str:
    """Return a folder, or the folder in it that belongs to this user alone where other users may
    write to it."""
    try:
        is_open = bool(distrust(os.stat(base)))
    except OSError:  # it is not there, or cannot be used: `make_folder` raises the error
        is_open = False
    if is_open:
        return os.path.join(base, f"user-{os.geteuid()}")
    return base


def is_shared() -> bool:
    """Return True if ``GPULOAD_CACHE_SHARED`` is set: all users with write access to the cache
    folder are trusted."""
    return os.environ.get(SHARED, "") not in ("", "0")


def distrust(status: os.stat_result, owners: Sequence[int] = ()) -> str:
    """Return the reason why another user may have written to a file or folder; "" if only this user
    may.

    A group with the number of its owner is the group of that user alone, as Linux
    distributions have it.

    Args:
        status: of the file or folder.
        owners: trusted users beside this user and root.
    """
    if is_shared() or os.name != "posix":
        return ""
    if status.st_uid not in (os.geteuid(), 0, *owners):
        return f"it belongs to the user {status.st_uid}"
    if status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and status.st_gid != status.st_uid
    ):
        return (
            f"its mode is {stat.S_IMODE(status.st_mode):04o}, so that other users may write to it"
        )
    return ""


def check_private(path: str) -> None:
    """Refuse a folder that other users may write to.

    Raises:
        FileError: they may, or it is a link, or no folder.
    """
    # Of the folder itself: a link could lead to a folder of another user at the next use.
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode):
        reason = distrust(status)
    else:
        reason = "it is no folder"
    if reason:
        raise FileError(
            f"{path}{NO_PLACE}",
            cause=f"{reason}, and files of other users must not become your data",
            remedy="name a folder that is not there yet, or one of your own (chmod 700); "
            f"{SHARED}=1 trusts all users that may write there",
        )


def make_folder(path: str) -> None:
    """Make a folder that belongs to this user alone, with the folders above it."""
    os.makedirs(path, mode=0o777 if is_shared() else 0o700, exist_ok=True)


def open_new(path: str, mode: int = 0o600) -> int:
    """Return a descriptor of a new file to write to; only this user may read it, unless ``mode``
    says more."""
    mode = 0o666 if is_shared() else mode
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), mode)


def machine() -> str:
    """Return a digest of this machine's name, for the names of unfinished files: eight hexadecimal
    digits."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def is_left(path: str | os.PathLike[str], of_machine: str | None, process: str) -> bool:
    """Return True if a process left this unfinished file or folder and will not go on with it.

    That process was one of this machine and is gone, or had the number of this process; or nothing
    was written to it for STALE_S.

    Args:
        path: of a file, or of a folder of files.
        of_machine: the result of `machine` there; None if it is not known.
        process: the number of the process, as it stands in the name.
    """
    if of_machine == machine() and os.name == "posix":
        try:
            # Signal 0 reaches no process; the call only fails where there is none.
            os.kill(int(process), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:  # another user's process
            pass
        # The name is older than this process, which has not written it: numbers are used again, in
        # containers above all.
        return int(process) == os.getpid()
    with signalsafe.suppress(OSError):
        if os.path.isdir(path):
            entries = [entry.path for entry in os.scandir(path)]
        else:
            entries = []
        # A date in the future is of a wrong clock.
        return (
            abs(
                time.time() - max(os.lstat(entry).st_mtime for entry in [os.fspath(path), *entries])
            )
            > STALE_S
        )
    return False

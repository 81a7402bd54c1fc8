"""Where the files of tests lie: in memory where there is room, because a disk takes 2 ms for each folder that goes.

A run makes ten thousand folders. They go at its end, but not if a test failed: then the next run removes them, if it
begins an hour later. So does it with those of a run that was killed.

Files of tests that ask for ``disk_path``, as all in ``tests/storage`` do, lie on a disk: they are about pages that are
not in memory, or about files that take the place, and the inode, of others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

MEMORY = Path("/dev/shm")
LEAST_BYTES = 8 << 30  # of the file system in memory, and of memory that processes could have; a run takes 1 GB
PREFIX = "gpuload-tests-"
LEFT_S = 3600  # so long the files of a run stay that is over


def new_folder_in_memory() -> Path | None:
    """Return a folder for the files of this run, which is not there yet; None where memory is short."""
    if not _has_room():
        return None
    for folder in MEMORY.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another run removes it, too
            if _is_over(folder):
                shutil.rmtree(folder, ignore_errors=True)
    return MEMORY / f"{PREFIX}{os.getpid()}"


def new_folder_on_disk() -> Path:
    """Return a new folder for the files of those tests that are about a disk."""
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def _has_room() -> bool:
    try:
        system = os.statvfs(MEMORY)
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except (AttributeError, OSError):
        return False
    available = int(text.partition("MemAvailable:")[2].split()[0]) << 10
    may_execute = not system.f_flag & os.ST_NOEXEC  # tests start what they install
    return may_execute and min(system.f_bavail * system.f_frsize, available) >= LEAST_BYTES


def _is_over(folder: Path) -> bool:
    process = Path("/proc") / folder.name.removeprefix(PREFIX)
    return not process.exists() and time.time() - folder.stat().st_mtime > LEFT_S

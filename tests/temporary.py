"""Where the files of tests lie: in memory where there is room, because a disk takes 2 ms for each
folder that goes.

A run makes ten thousand folders. They go at its end, but not if a test failed. Of the runs that are
over, the last one that left its files keeps them; those of others go when a run begins.

Files of tests that ask for ``disk_path``, as all in ``tests/storage`` do, lie on a disk: they are
about pages that are not in memory, or about files that take the place, and the inode, of others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from gpuload.storage.memory import cache_bytes

MEMORY = Path("/dev/shm")
LEAST_BYTES = 4 << 30  # that files may fill; a run takes 1 or 2 GB
PREFIX = "gpuload-tests-"


def new_folders() -> list[Path]:
    """Return two folders for the files of this run, in memory and on a disk; none where memory is
    short.

    That on the disk is made here, and the other one by pytest.
    """
    if not _has_room():
        return []
    in_memory, on_disk = (
        place / f"{PREFIX}{os.getpid()}" for place in (MEMORY, Path(tempfile.gettempdir()))
    )
    for place in (in_memory.parent, on_disk.parent):
        for folder in _left_folders(place)[:-1]:
            shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(on_disk, ignore_errors=True)  # of a run whose process had this number
    on_disk.mkdir(mode=0o700)
    return [in_memory, on_disk]


def _has_room() -> bool:
    try:
        system = os.statvfs(MEMORY)
    except (AttributeError, OSError):
        return False
    may_execute = not system.f_flag & os.ST_NOEXEC  # tests start what they install
    # Files in memory count for the control group of a container, whose limit may be far below what
    # the system has.
    return may_execute and min(system.f_bavail * system.f_frsize, cache_bytes()) >= LEAST_BYTES


def _left_folders(place: Path) -> list[Path]:
    """Return the folders of runs that are over, that of the last one last."""
    folders = []
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another run that begins removes it, too
            if not (Path("/proc") / folder.name.removeprefix(PREFIX)).exists():
                folders.append((folder.stat().st_mtime_ns, folder))
    return [folder for _, folder in sorted(folders)]

"""Memory that the system may use to keep files in, once they were read.

Sources  proc(5): MemAvailable of /proc/meminfo, the control groups of /proc/self/cgroup; the
         kernel's Documentation/admin-guide/cgroup-v2 (memory.max) and cgroup-v1/memory
         (memory.limit_in_bytes).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from gpuload import signalsafe

CACHED_PART = 0.5  # of the free memory, that files may fill as the system caches them
MEMINFO, OWN_GROUPS, GROUPS = "/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"


def cache_bytes() -> int:
    """Return how many bytes of files will stay in memory once they were read, by a careful guess; 0
    if unknown."""
    return int(min([_available(), *_limits()]) * CACHED_PART)


def limit_bytes() -> float:
    """Return the bytes that control groups allow this process, infinity where they limit
    nothing."""
    return min(_limits(), default=math.inf)


def _available() -> float:
    """Return the bytes that the system can give without swapping."""
    with signalsafe.suppress(OSError, ValueError, StopIteration), open(MEMINFO) as file:
        return 1024.0 * next(
            int(line.split()[1]) for line in file if line.startswith("MemAvailable")
        )
    return 0.0


def _limits() -> Iterator[float]:
    """Yield the limits in bytes of this process's control group and of those that it lies in.

    A container often sees its own group as the root, although it is told another path.
    """
    for root, group, name in _groups():
        parts = [part for part in group.split("/") if part]
        for length in range(len(parts) + 1):
            path = os.path.join(root, *parts[:length], name)
            with signalsafe.suppress(OSError, ValueError), open(path) as file:
                yield float(file.read())  # "max" is no number


def _groups() -> Iterator[tuple[str, str, str]]:
    """Yield folder, group and file name of each hierarchy that may limit memory."""
    with signalsafe.suppress(OSError, ValueError), open(OWN_GROUPS) as file:
        for line in file:
            _, controllers, group = line.rstrip("\n").split(":", 2)
            if not controllers:
                yield GROUPS, group, "memory.max"
            elif "memory" in controllers.split(","):
                yield os.path.join(GROUPS, "memory"), group, "memory.limit_in_bytes"

"""Table: what `extents` and those who call it know about files, as numbers; without Numba.

Table     int64 ``[num_files, ROW_WORDS]``, a row (a cache line) a file: the address of its map, or UNTRIED or REFUSED;
          the guard's slot; where its path begins in ``paths``; its size, time of modification (ns) and inode.
Mapping   a file is mapped when less than ``1 / MAP_PARTS`` of it is asked for and it has MAP_BYTES: who reads most of
          a file at once will seldom come back, and one read is faster than map, page faults and unmap together.
Result    DONE, or ``8 * number + reason``, where the number is that of an extent for OUTSIDE, of a file otherwise.
"""

from __future__ import annotations

import ctypes
import platform
import signal
import sys
from functools import cache

ADDRESS, SLOT, PATH, SIZE, MTIME_NS, INODE = range(6)  # columns of the table
ROW_WORDS = 8
UNTRIED, REFUSED = 0, -1  # in place of an address
DONE = -1
CHANGED, FAILED, WANTS_MAP, UNGUARDED, OUTSIDE = range(5)
MAP_PARTS, MAP_BYTES = 8, 1 << 14  # measured: rows of files of 24 KB are read 3 times as fast; maps cost 22 us a file

SIGBUS = int(getattr(signal, "SIGBUS", 0))  # Windows has none; there the guard is not supported
AT_FDCWD, STATX_SIZE = -100, 0x200


@cache
def supported() -> bool:
    """Return True where files are mapped with a guard: handler and checks are written for these systems only."""
    known = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") and sys.maxsize > 2**32
    if not known or not SIGBUS:
        return False
    system = ctypes.CDLL(None)
    if not hasattr(system, "statx"):
        return False
    status = ctypes.create_string_buffer(256)
    return bool(system.statx(AT_FDCWD, b"/", 0, STATX_SIZE, status) == 0)  # a sandbox may refuse the call

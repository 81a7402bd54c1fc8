"""Semaphores and clocks of the C library, for threads that wait for one another without the interpreter's lock.

Source  sem_wait(3), sem_timedwait(3), clock_gettime(2): a sem_t has at most four words, a timespec two.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numba import types
from numpy.typing import NDArray

from gpuload.kernels.compile import kernel, libc

Int64s = NDArray[np.int64]
WAIT_NS = 50_000_000  # after which who waits asks Python for signals
CLOCK_REALTIME, CLOCK_MONOTONIC, SECOND_NS = 0, 1, 1_000_000_000

post = libc("sem_post", types.int32, types.int64)
take = libc("sem_wait", types.int32, types.int64)
try_take = libc("sem_trywait", types.int32, types.int64)
_timed_take = libc("sem_timedwait", types.int32, types.int64, types.int64)
_clock_gettime = libc("clock_gettime", types.int32, types.int32, types.int64)


def create(address: int) -> None:
    """Make a semaphore that counts from 0 at an address. Not a kernel: each takes milliseconds to load."""
    ctypes.CDLL(None).sem_init(ctypes.c_void_p(address), 0, 0)


@kernel
def now(clock: int, time: Int64s) -> int:
    """Return the nanoseconds of a clock; ``time`` is scratch, int64 ``[2]``."""
    _clock_gettime(clock, time.ctypes.data)
    return int(time[0] * SECOND_NS + time[1])


@kernel
def wait_until(semaphore: int, until: int, time: Int64s) -> int:
    """Take from the semaphore at an address; not 0 if ``until`` (ns, CLOCK_REALTIME) passed, or a signal came."""
    time[0], time[1] = until // SECOND_NS, until % SECOND_NS
    return int(_timed_take(semaphore, time.ctypes.data))

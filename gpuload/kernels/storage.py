"""Storage: runs of pages of memory maps, read from it before somebody copies them.

    runs       int64 ``[n, 3]``, a line a run: the address where it begins; where it ends; how many of the records that
               were asked for lie before that end
    progress   int64 ``[2, 8]``: a semaphore (MOVED) that is posted whenever more is there; then (STATE) how many
               records are (COUNT), and whether to stop after the piece that is waited for (STOP)

Source  madvise(2), mincore(2).
"""

from __future__ import annotations

import mmap

import numpy as np
from numba import types
from numpy.typing import NDArray

from gpuload.kernels import semaphore
from gpuload.kernels.compile import kernel, libc
from gpuload.kernels.memory import address_of, load_word, store_word

Int64s = NDArray[np.int64]
BEGIN, END, BEFORE_END = range(3)  # columns of runs
MOVED, STATE = range(2)  # lines of a progress
COUNT, STOP = range(2)  # words of a STATE
PAGE_BYTES = mmap.PAGESIZE
MADV_WILLNEED, MADV_POPULATE_READ = 3, 22  # the latter since Linux 5.14
LONGEST_ASKED = 1 << 17  # of a longer piece the system may read the beginning only
LEAST_WAITED = 1 << 23  # bytes of a run that is waited for: where one waits, systems read on for up to as much
WAITED_BYTES = 1 << 20  # waited for at once; measured: longer pieces are no faster, and are noticed later

madvise = libc("madvise", types.int32, types.int64, types.int64, types.int32)
_mincore = libc("mincore", types.int32, types.int64, types.int64, types.int64)


def progress() -> Int64s:
    """Return a progress of no records."""
    words = np.zeros((2, 8), np.int64)
    semaphore.create(words[MOVED].ctypes.data)
    return words


@kernel
def resident(runs: Int64s) -> bool:
    """Return True if the first and the last byte of each run are in memory, or the system won't say."""
    told = np.zeros(1, np.int64)
    for i in range(runs.shape[0]):
        for place in (runs[i, BEGIN], runs[i, END] - 1):
            if _mincore(place - place % PAGE_BYTES, 1, told.ctypes.data) == 0 and told[0] & 1 == 0:
                return False
    return True


@kernel
def fetch(runs: Int64s, num_records: int, progress: Int64s) -> None:
    """Have storage read runs one after the other, and note how many of their ``num_records`` records are there.

    Long runs are waited for, and are mapped then: what the system reads for who waits goes into large pages, which
    costs less than the many small ones of what is only asked for. Short runs, and all where the system cannot wait,
    are noted when they were asked for. So is what cannot be read: who copies it meets the error.
    """
    before, done = load_word(address_of(progress, STATE, COUNT)), 0
    for i in range(runs.shape[0]):
        begin, end, records = runs[i, BEGIN], runs[i, END], runs[i, BEFORE_END] - done
        place = begin - begin % PAGE_BYTES
        waits = end - place >= LEAST_WAITED
        while place < end:
            if load_word(address_of(progress, STATE, STOP)) != 0:
                return
            if waits and madvise(place, min(end - place, WAITED_BYTES), MADV_POPULATE_READ) == 0:
                place += WAITED_BYTES
                _note(progress, before + done + records * (min(place, end) - begin) // (end - begin))
            else:
                waits = False
                madvise(place, min(end - place, LONGEST_ASKED), MADV_WILLNEED)
                place += LONGEST_ASKED
        done += records
    _note(progress, before + num_records)


@kernel
def wait(progress: Int64s, count: int) -> None:
    """Wait until so many records are there, a signal came, or WAIT_NS have passed."""
    time, result = np.empty(2, np.int64), 0
    until = semaphore.now(semaphore.CLOCK_REALTIME, time) + semaphore.WAIT_NS
    while result == 0 and load_word(address_of(progress, STATE, COUNT)) < count:
        result = semaphore.wait_until(address_of(progress, MOVED, 0), until, time)


@kernel
def _note(progress: Int64s, count: int) -> None:
    store_word(address_of(progress, STATE, COUNT), count)
    semaphore.post(address_of(progress, MOVED, 0))

"""Fetching: a thread that waits for storage, so that those who copy records do not.

What the system reads for who waits it reads into large pages and maps at once; what is only asked for ahead goes into
small ones, each of which costs a fault more when it is copied. Disks are also fastest at what is read in order: who
copies should not disturb it, hence wait until records are there. The thread stays in a compiled loop for each list
of places (`kernels/storage.py`), since whoever holds the interpreter's lock would keep the disk waiting.
"""

from __future__ import annotations

import math
import time
import weakref
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from gpuload import kernels
from gpuload.reading import Workers, join, started
from gpuload.sources.places import Places

Queue = SimpleQueue[tuple[Places, int] | None]


def resident(places: Places) -> bool:
    """Return True if records are in memory, as far as a look at where they begin and end tells, or are not mapped."""
    return not places.owners or bool(_storage().resident(places.runs))


class Fetcher:
    """A thread that has storage read places, one after the other.

    It ends when it is closed, or when nobody refers to the fetcher any more. What cannot be read counts as read; who
    copies it meets the error.
    """

    def __init__(self) -> None:
        self._queue: Queue = SimpleQueue()
        self._progress = _storage().progress()
        self._threads = started(1, _work, self._queue, self._progress)
        self._finalizer = weakref.finalize(self, _stop, self._queue, self._progress, self._threads)
        self._finalizer.atexit = False  # who reads closes it before daemon threads are frozen

    def ask(self, places: Places, num_records: int) -> None:
        """Have records fetched after those that were asked for before."""
        self._queue.put((places, num_records))

    def fetched(self, count: int) -> bool:
        """Return True if the first ``count`` of all records that were asked for are there."""
        return bool(self._progress[_storage().STATE, _storage().COUNT] >= count)

    def wait(self, count: int, until: float = math.inf) -> None:
        """Wait until the first ``count`` of all records that were asked for are there, or the thread has ended.

        Args:
            count: of records.
            until: when to wait no longer, in seconds of ``time.monotonic``.
        """
        while not self.fetched(count) and self._threads[0].is_alive():  # in a fork of this process it never is
            if time.monotonic() >= until:
                break
            _storage().wait(self._progress, count)  # for so short a time that Python looks at signals

    def close(self) -> None:
        """End the thread, after the piece that it waits for."""
        self._finalizer()


def _work(queue: Queue, progress: Any) -> None:
    while (asked := queue.get()) is not None:
        places, num_records = asked
        _storage().fetch(places.runs, num_records, progress)
        del asked, places  # a thread that waits must not keep maps alive


def _stop(queue: Queue, progress: Any, threads: Workers) -> None:
    progress[_storage().STATE, _storage().STOP] = 1
    queue.put(None)
    join(threads)


def _storage() -> ModuleType:
    return kernels.require("storage")  # without Numba there are no places

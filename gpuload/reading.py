"""Reading: threads that work ahead, a bounded number of steps, and hand the results over in order.

A ``Reading`` takes the steps of one epoch. A step is cut into parts that the threads work on side by side; at most
``ahead`` steps are begun and not yet taken. An exception in a thread reaches the caller as itself, at the step where it
belongs. Closing, dropping the last reference, and the end of the interpreter stop the threads; a thread refers to its
queue only, never to the ``Reading``, so that garbage collection works.

This is the only module that starts threads for work ahead. Queues and locks of C are used because a future or condition
of Python costs some 20 microseconds a step, as much as reading a small batch.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from gpuload.stats import Counters


class Step(Protocol):
    """The work of one step: prepared once, then done in parts, from any thread."""

    num_parts: int

    def prepare(self) -> None:
        """Do what comes before the first part."""

    def do(self, part: int) -> None:
        """Do one part."""


S = TypeVar("S", bound=Step)


class _Job(Generic[S]):
    """A step on its way through the threads."""

    def __init__(self, step: S) -> None:
        self.step = step
        self.errors: dict[int, BaseException] = {}
        self.ready = threading.Lock()  # held until the last part is done
        self.ready.acquire()
        self._preparing = threading.Lock()
        self._prepared = False
        self._done = itertools.count(1)  # next() is one C call: each part gets a number of its own

    def work(self, part: int) -> None:
        try:
            with self._preparing:
                if not self._prepared and not self.errors:
                    self.step.prepare()
                    self._prepared = True
            if self._prepared:
                self.step.do(part)
        except BaseException as error:
            self.errors[part] = error
        finally:
            if next(self._done) == self.step.num_parts:
                self.ready.release()

    def wait(self) -> S:
        self.ready.acquire()
        if self.errors:
            raise self.errors[min(self.errors)]
        return self.step


class Reading(Generic[S]):
    """The steps of an epoch, worked on ahead by threads.

    Args:
        steps: what to do, in order; taken from as steps are begun.
        num_threads: how many threads work.
        ahead: how many steps are begun and not yet taken, at most.
        counters: ``wait_s`` is added to.
    """

    def __init__(self, steps: Iterator[S], *, num_threads: int, ahead: int, counters: Counters) -> None:
        self._steps = steps
        self._jobs: deque[_Job[S]] = deque()
        self._queue: SimpleQueue[tuple[_Job[S], int] | None] = SimpleQueue()
        self._counters = counters
        self.taken: S | None = None  # the step of the last take, also if that raised
        self._threads = [
            threading.Thread(target=_work, args=(self._queue,), name=f"gpuload-{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()
        self._finalizer = weakref.finalize(self, _stop, self._queue, self._threads)
        self._finalizer.atexit = False  # _stop_all does that, before daemon threads are frozen
        _alive.add(self)
        for _ in range(ahead):
            self.begin()

    def begin(self) -> None:
        """Begin one more step, if there is one."""
        step = next(self._steps, None)
        if step is None:
            return
        job = _Job(step)
        self._jobs.append(job)
        for part in range(step.num_parts):
            self._queue.put((job, part))

    def take(self, *, begin: bool = True) -> S | None:
        """Return the next step when its work is done, None after the last.

        Args:
            begin: begin another in its place; without that it is for the caller to call ``begin`` later.

        Raises:
            Exception: what the work of this step raised; the step counts as taken.
        """
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        self.taken = job.step
        if not job.ready.acquire(blocking=False):
            began = time.perf_counter()
            job.ready.acquire()
            self._counters.add(wait_s=time.perf_counter() - began)
        job.ready.release()
        if begin:
            self.begin()
        return job.wait()

    def close(self) -> None:
        """Stop the threads and forget what was begun; waits for the parts that are being done."""
        self._jobs.clear()
        self._finalizer()


_alive: weakref.WeakSet[Reading[Any]] = weakref.WeakSet()


def _work(queue: SimpleQueue[tuple[_Job[S], int] | None]) -> None:
    while (task := queue.get()) is not None:
        job, part = task
        job.work(part)
        del task, job  # a thread that waits must not keep a batch alive


def _stop(queue: SimpleQueue[tuple[_Job[S], int] | None], threads: list[threading.Thread]) -> None:
    while not queue.empty():  # what nobody will take need not be done
        try:
            queue.get_nowait()
        except Empty:  # another thread was faster
            break
    for _ in threads:
        queue.put(None)
    for thread in threads:
        if thread is not threading.current_thread():  # the collector may run in one of them
            thread.join()


def run(step: S) -> S:
    """Do a whole step in the calling thread and return it."""
    step.prepare()
    for part in range(step.num_parts):
        step.do(part)
    return step


def _stop_all() -> None:
    for reading in list(_alive):
        reading.close()


atexit.register(_stop_all)

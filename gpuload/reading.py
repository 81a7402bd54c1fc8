"""Reading: works ahead, a bounded number of steps, and hands the results over in order.

A ``Reading`` takes the steps of one epoch and gives them to a pool of threads; at most ``ahead`` steps are begun and
not yet taken. An exception in a thread reaches the caller as itself, at the step where it belongs. Closing, dropping
the last reference, and the end of the interpreter stop the threads; a thread never refers to the ``Reading``, so that
garbage collection works.

Pools   ``Threads`` here cut a step into parts that threads of Python work on side by side; ``CopyPool`` of `copying.py`
        is for steps that are nothing but copies of records.

Queues and locks of C are used because a future or condition of Python costs some 20 microseconds a step, as much as
reading a small batch.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
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
S_co = TypeVar("S_co", bound=Step, covariant=True)
S_contra = TypeVar("S_contra", bound=Step, contravariant=True)


class Steps(Protocol[S_co]):
    """Steps in order; an exception, Ctrl-C too, leaves them where they are."""

    def __next__(self) -> S_co:
        """Return the next step, after having waited for what it needs."""

    def ready(self) -> bool:
        """Return False if the next step would have to be waited for."""

    def close(self) -> None:
        """End what works for them."""


class Job(Protocol):
    """A step on its way through a pool."""

    @property
    def finished(self) -> bool:
        """True once there is nothing to wait for."""

    def wait(self) -> None:
        """Wait until the step is finished."""

    def settle(self) -> BaseException | None:
        """Return what the work of the finished step raised."""


class Pool(Protocol[S_contra]):
    """Threads that do steps."""

    def begin(self, step: S_contra) -> Job:
        """Begin a step; whatever it raises comes from its job."""

    def stop(self) -> None:
        """Wait for the parts that are being done, forget the others and end the threads."""


class Reading(Generic[S]):
    """The steps of an epoch, worked on ahead.

    Args:
        steps: what to do, in order; taken from as steps are begun, and closed when the reading is.
        pool: does them; stopped when the reading is closed. Neither must refer to the reading.
        ahead: how many steps are begun and not yet taken, at most.
        counters: ``wait_s`` is added to.
    """

    def __init__(self, steps: Steps[S], pool: Pool[S], *, ahead: int, counters: Counters) -> None:
        self._steps, self._pool, self._ahead, self._counters = steps, pool, ahead, counters
        self._jobs: deque[tuple[S, Job]] = deque()
        self._next: S | None = None  # taken from the steps and not begun: Ctrl-C came
        self.taken: S | None = None  # the step of the last take, also if that raised
        self._finalizer = weakref.finalize(self, _stop, steps, pool)
        self._finalizer.atexit = False  # _stop_all does that, before daemon threads are frozen
        _alive.add(self)
        self.begin()

    def begin(self, *, num_done: int = 0) -> None:
        """Begin as many steps as may be begun besides ``num_done`` that are; wait only where none is begun."""
        while len(self._jobs) < self._ahead + num_done and (not self._jobs or self._steps.ready()):
            if self._next is None:
                self._next = next(self._steps, None)
            if self._next is None:
                break
            self._jobs.append((self._next, self._pool.begin(self._next)))
            self._next = None

    def take(self, *, begin: bool = True) -> S | None:
        """Return the next step when its work is done, None after the last.

        Args:
            begin: begin another in its place; without that it is for the caller to call ``begin`` later.

        Raises:
            Exception: what the work of this step raised; the step counts as taken.
        """
        if not self._jobs or not self._jobs[0][1].finished:
            began = time.perf_counter()
            self._wait()
            self._counters.add(wait_s=time.perf_counter() - began)
        if not self._jobs:
            return None
        step, job = self._jobs[0]
        if begin:
            self.begin(num_done=1)
        error = job.settle()
        self._jobs.popleft()  # only now, so that no step is lost where Ctrl-C comes
        self.taken = step
        if error is not None:
            raise error
        return step

    def _wait(self) -> None:
        """Wait for the first of the steps that are begun, if there is one."""
        if not self._jobs:
            self.begin()
        if self._jobs:
            self._jobs[0][1].wait()

    def close(self) -> None:
        """Stop the threads and forget what was begun; waits for the parts that are being done."""
        self._finalizer()
        self._jobs.clear()


class Threads(Generic[S]):
    """A pool of Python's threads, which do the parts of steps side by side.

    Args:
        num_threads: how many threads.
        helped: True if the caller is one of them while it waits: for short parts, which take no longer than to be woken
            when a thread has done one.
    """

    def __init__(self, num_threads: int, *, helped: bool = False) -> None:
        self._queue: Queue[S] = SimpleQueue()
        self._helped = helped
        self._threads = started(max(1, num_threads - helped), _work, self._queue)

    def begin(self, step: S) -> _PartsJob[S]:
        """Begin a step."""
        job = _PartsJob(step, self._queue if self._helped else None)
        for part in range(step.num_parts):
            self._queue.put((job, part))
        return job

    def stop(self) -> None:
        """Wait for the parts that are being done, forget the others and end the threads."""
        while not self._queue.empty():
            try:
                self._queue.get_nowait()
            except Empty:  # another thread was faster
                break
        for _ in self._threads:
            self._queue.put(None)
        join(self._threads)


class _PartsJob(Generic[S]):
    """A step on its way through the threads."""

    def __init__(self, step: S, queue: Queue[S] | None) -> None:
        self.step, self._queue = step, queue
        self.errors: dict[int, BaseException] = {}
        self._ready = threading.Lock()  # held until the last part is done
        self._ready.acquire()
        self._preparing = threading.Lock()
        self._prepared = False
        self._done = itertools.count(1)  # next() is one C call: each part gets a number of its own

    def work(self, part: int) -> None:
        """Do a part; an exception is kept, but not the one that asks the caller's thread to end."""
        try:
            with self._preparing:
                if not self._prepared and not self.errors:
                    self.step.prepare()
                    self._prepared = True
            if self._prepared:
                self.step.do(part)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.errors[part] = error
        if next(self._done) == self.step.num_parts:
            self._ready.release()

    @property
    def finished(self) -> bool:
        return not self._ready.locked()

    def wait(self) -> None:
        while self._queue is not None and not self.finished and _help(self._queue):
            pass
        with self._ready:
            pass

    def settle(self) -> BaseException | None:
        return self.errors[min(self.errors)] if self.errors else None


Queue = SimpleQueue[tuple[_PartsJob[S], int] | None]


def _help(queue: Queue[S]) -> bool:
    """Do a part in the caller, if one is queued; one that Ctrl-C broke off is queued again."""
    try:
        task = queue.get_nowait()
    except Empty:
        return False
    try:
        if task is not None:
            task[0].work(task[1])
    except KeyboardInterrupt:
        queue.put(task)
        raise
    return task is not None


def _work(queue: Queue[S]) -> None:
    while (task := queue.get()) is not None:
        job, part = task
        job.work(part)
        del task, job  # a thread that waits must not keep a batch alive


Workers = list[threading.Thread]


def started(count: int, target: Callable[..., None], *arguments: Any) -> Workers:
    """Return threads that run a function, started; the end of the interpreter does not wait for them."""
    threads = [threading.Thread(target=target, args=arguments, name=f"gpuload-{i}", daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads


def join(threads: Workers) -> None:
    """Wait until threads have ended."""
    for thread in threads:
        if thread is not threading.current_thread():  # the collector may run in one of them
            thread.join()


def _stop(steps: Steps[S], pool: Pool[S]) -> None:
    steps.close()
    pool.stop()


def run(step: S) -> S:
    """Do a whole step in the calling thread and return it."""
    step.prepare()
    for part in range(step.num_parts):
        step.do(part)
    return step


_alive: weakref.WeakSet[Reading[Any]] = weakref.WeakSet()


def _stop_all() -> None:
    for reading in list(_alive):
        reading.close()


atexit.register(_stop_all)

"""Making: kernels are imported and compiled in a thread of their own, beside those who already work without them.

Numba takes 0.3 to 1 s to import and 1 to 20 s to compile a kernel; what is in the cache is loaded in milliseconds.
Nobody waits for that: who needs what is not there yet asks for it here and takes the NumPy form, which is equal bit for
bit. One thread makes what was asked for, in the order of asking, and ends when nothing is left.

Start         The thread begins with the import of Numba DELAY_S late. Importing and compiling hold the GIL for half of
              their time; without the delay they would do so while the first batch is made.
Patient       ``with patient():`` is for those who want the compiled form from the first call on: it is made in the
              call, by `aside` (tests, benchmarks, the build of a container image).
Errors        of the work reach the next who asks for the same, as themselves; after that it is tried again.
Telling       The line on a terminal and the log (`progress`) hear of it at each pass of the compiler, so none of them
              hears of kernels that are loaded from the cache. Who waits sees how far it is; beside those who do not, it
              is told once.
Signals       Python runs signal handlers in the main thread, so none of them breaks off the work. An exception that
              breaks off ``ask`` or ``wait`` loses nothing: who needs a kernel asks at each call until it is there.
Stopping      Compiling one kernel can take 20 s, in hundreds of passes of at most about 2 s each. Numba says when it
              begins a pass (`compile` listens), and there ``leave`` ends the work. What is complete of it is kept, also
              in the cache.
Python's end  stops the thread so (`threads`), and nothing is made after it.
Fork          stops the thread, too, for it holds locks of Numba and LLVM, which would stay locked in the child for
              ever. The parent goes on afterwards, the child when it asks.
Locks         none: each operation on ``_wanted`` and ``_serving`` is one step of the interpreter. Who asks says first
              what is wanted, then looks whether a thread serves. A thread says first that it serves no more, then looks
              whether something is wanted. So one of the two sees the other. Two who ask at the same moment may both
              start a thread; then both do the same, and Numba's own lock has them do it in turn.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from queue import Empty, SimpleQueue

from gpuload import progress
from gpuload.errors import GpuloadError
from gpuload.kernels import threads

NAME = "gpuload-making"
DELAY_S = 1.0  # by then a first batch is out, made by NumPy: rows take 0.1 s, 64 JPEGs 0.4 s on two cores

_wanted: dict[Hashable, Callable[[], object]] = {}  # what was asked for and is not made yet, in the order of asking
_failed: dict[Hashable, BaseException] = {}
_hurry: SimpleQueue[None] = SimpleQueue()  # ends the delay
_serving: dict[int, list[None]] = {}  # of each thread that serves, what tells it that it was stopped
_patient: list[None] = []  # an item for each ``with patient()`` that is entered
_waiting: list[None] = []  # an item for each caller of ``wait``
_forking: list[None] = []
_local = threading.local()


class NotReady(Exception):
    """The kernel is being made: whoever called it takes the NumPy form. It never reaches a user."""


def ask(key: Hashable, make: Callable[[], object]) -> None:
    """Have something made soon, and return.

    Args:
        key: what it is; what is wanted already is not asked for twice.
        make: makes it, in another thread.

    Raises:
        BaseException: what was raised when it was made the last time.
    """
    error = _failed.pop(key, None)
    if error is not None:
        raise error
    _local.num_missed = num_missed() + 1
    _wanted.setdefault(key, make)
    if not _serving:
        _start()


def num_missed() -> int:
    """Return how often this thread has asked for what was not there, and so has taken a NumPy form."""
    return getattr(_local, "num_missed", 0)


def is_under_way() -> bool:
    """Return True if something that was asked for is not made yet."""
    return bool(_wanted)


def wait() -> None:
    """Wait until all that was asked for is made; see ``kernels.wait``."""
    _waiting.append(None)
    try:
        while _wanted and not threads.ended():
            if not _serving:
                _start()
            _hurry.put(None)
            for thread in threads.running(NAME):
                if thread.ident is None:  # another thread is just about to start it
                    time.sleep(threads.SHORT_S)
                else:
                    threads.join([thread])
    finally:
        _waiting.pop()
        progress.wipe()


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Have all calls of kernels, in all threads, wait for the compiler; see ``kernels.patient``."""
    _patient.append(None)
    try:
        yield
    finally:
        _patient.pop()


def is_patient() -> bool:
    """Return True where kernels are made in the call that needs them."""
    return bool(_patient)


@contextlib.contextmanager
def telling(what: str) -> Iterator[progress.Progress]:
    """Have this thread tell what it makes, each time that it calls ``tell``."""
    with progress.Progress(f"compiling {what}") as work:
        _local.work, _local.num_made = work, 0
        try:
            yield work
        finally:
            _local.work = None


def tell() -> None:
    """Tell what this thread makes; for a place that is passed often while a kernel is compiled, and only then."""
    work = getattr(_local, "work", None)
    if work is None:  # what is compiled is the user's own
        return
    if _waiting:
        work.show(_local.num_made, _local.num_made + len(_wanted))
    elif is_patient():
        work.show()
    else:
        work.show_beside("the first steps are slower until that is done")


def leave() -> None:
    """End the work of this thread here if it was stopped; for a place where what is half done may be dropped."""
    if _is_stopped():
        raise _Stopped


class _Stopped(BaseException):
    """The thread was asked to end; no ``except Exception`` of a compiler takes this for its own."""


def _start() -> None:
    if _forking or threads.ended():
        return
    stopped: list[None] = []

    def stop() -> None:
        stopped.append(None)
        _hurry.put(None)

    _serving[id(stopped)] = stopped
    try:
        threads.start(1, _serve, stopped, name=NAME, stop=stop)
    except BaseException as error:
        _serving.pop(id(stopped), None)
        if not isinstance(error, GpuloadError):
            raise
        for key in list(_wanted):  # the system gives no thread; the caller does it, and finds it at the next call
            _make(key)


def _serve(stopped: list[None]) -> None:
    """Be the thread."""
    _local.stopped = stopped
    if "numba" not in sys.modules:
        with contextlib.suppress(Empty):
            _hurry.get(timeout=DELAY_S)
    try:
        with telling("kernels") as work:
            while wanted := _still_wanted(stopped):
                for key in wanted:
                    leave()
                    _make(key)
                    _local.num_made += work.has_begun  # an import, which comes before them, is no kernel
    except _Stopped:
        return
    finally:
        _serving.pop(id(stopped), None)


def _still_wanted(stopped: list[None]) -> list[Hashable]:
    """Return what to make; nothing if the thread may end, which is then no longer on the list."""
    wanted = list(_wanted)
    if not wanted:
        _serving.pop(id(stopped), None)
        wanted = list(_wanted)
        if wanted:
            _serving[id(stopped)] = stopped
    return wanted


def _make(key: Hashable) -> None:
    make = _wanted.get(key)
    if make is None:  # another thread was faster
        return
    try:
        make()
    except _Stopped:  # it stays wanted
        raise
    except BaseException as error:
        _failed[key] = error
    _wanted.pop(key, None)


def _is_stopped() -> bool:
    return bool(getattr(_local, "stopped", None)) or (bool(_forking) and hasattr(_local, "stopped"))


def _before_fork() -> None:
    """Stop the thread, and wait until it has left. A thread that is not quite started holds no lock yet."""
    _forking.append(None)
    _hurry.put(None)
    here = threading.current_thread()
    while any(thread.ident is not None and thread is not here for thread in threads.running(NAME)):
        time.sleep(threads.SHORT_S)


def _after_in_parent() -> None:
    _forking.clear()
    if _wanted:
        _start()


def _after_in_child() -> None:
    global _hurry
    _hurry = SimpleQueue()  # the thread, which is in the parent, may have waited for the old one
    _wanted.clear()
    _serving.clear()
    _waiting.clear()
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)

"""Threads: the one place where they start, so that none of them runs when Python ends, and the
cores they may use.

Threads are daemons: Python's end does not wait for them by itself, it freezes them where they are.
A thread that is in compiled code at that moment ends by unwinding its stack through frames of C++,
which aborts the process. So this module keeps all threads that live, and its one `atexit` hook,
which runs while threads still run, asks all of them to end and waits until they have, END_S at
most. `weakref.finalize` must play no part in that: it registers its own hook at its first use,
wherever that is, and once its hook has run it calls nothing any more.

Signals         Python runs signal handlers in the main thread alone. So another thread starts the
                threads of the main thread (`_Starter`), and none of them is half started when a
                handler raises.
Ownership       A thread refers to the objects that it works on, and this module refers to the
                threads and to their ``stop`` as long as they live. So neither the arguments nor
                ``stop`` may refer to an object that is to end the threads when it is garbage.
Finalizers      run in any thread, wherever Python allocates memory, also while that thread holds a
                lock. They may call ``stop``, which takes no lock and waits for nothing. Only an
                explicit close joins threads; a finalizer never does.
Fork            The child has no threads but its own, and none of those here; it keeps an empty
                list. `signalsafe` has a fork wait for its threads. Python calls the functions
                registered for a fork in reverse order, and two of its modules register functions
                that take a lock: ``logging`` and ``concurrent.futures.thread``. They are imported
                here, so that they register first and are called last: otherwise the fork would hold
                a lock that the thread it waits for may need.

Sources  sched_getaffinity(2); proc(5): /proc/self/cgroup; the kernel's
         Documentation/admin-guide/cgroup-v2 (cpu.max) and scheduler/sched-bwc (cpu.cfs_quota_us,
         cpu.cfs_period_us); OpenMP 5.2 (OMP_NUM_THREADS).
"""

from __future__ import annotations

import _thread
import atexit
import concurrent.futures.thread  # noqa: F401  # as logging, registers for forks before us
import contextlib
import itertools
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

from gpuload.errors import GpuloadError

Stop = Callable[[], None]
Thread = threading.Thread
T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger("gpuload")

OWN_GROUPS, GROUPS = "/proc/self/cgroup", "/sys/fs/cgroup"
# How many processes a launcher started on this machine: torchrun, and those that give each process
# cores of its own.
RANKS_OF_TORCHRUN = "LOCAL_WORLD_SIZE"
RANKS_OF_BINDERS = (
    *(
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MPI_LOCALNRANKS",
        "MV2_COMM_WORLD_LOCAL_SIZE",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
)

SHORT_S, LOOK_AGAIN_S = 0.001, 0.5
MOST_NAMES = 8  # of threads, in a message
END_S = 30.0  # the longest wait at Python's end; a thread looks every 2 s whether it was stopped

# Where threads stand that import something, or wait to (CPython 3.10 to 3.14).
IMPORTLIB, FIND_AND_LOAD = "<frozen importlib._bootstrap>", "_find_and_load"
LOCKS_OF_IMPORTS = ("acquire", "_get_module_lock", "_lock_unlock_module")

_running: dict[
    threading.Thread, Stop
] = {}  # each operation on it is one step of the interpreter; there is no lock
_is_ending = False


def start(
    count: int, target: Callable[..., None], *arguments: Any, name: str = "gpuload", stop: Stop
) -> list[threading.Thread]:
    """Start threads that call ``target(*arguments)``, and return them.

    Args:
        count: how many threads.
        target: called in each thread; it must handle its own exceptions, which reach no caller.
        arguments: of the target.
        name: of the threads, a number follows.
        stop: lets all of these threads return soon, wherever they wait. Python's end calls it, and
            so may garbage collection, in any thread and more than once: it sets flags and puts into
            a ``SimpleQueue``, and nothing else. It takes no lock and joins no thread.

    Raises:
        GpuloadError: the system gives no more threads, or Python has ended; none of these threads
            goes on, and ``stop`` was called if one of them had begun.
    """
    if _is_ending:
        raise GpuloadError(
            f"threads {name!r} cannot start",
            cause="Python is ending and has stopped all threads of gpuload",
            remedy="read batches before the script ends, or in a function given to atexit after "
            "gpuload was imported",
        )
    threads = [
        # Daemons: Python joins all others before it calls `atexit` hooks, and `_end` could not ask
        # them to end.
        threading.Thread(
            target=_run, args=(target, arguments), name=f"{name}-{number}", daemon=True
        )
        for number in range(count)
    ]
    starter = _Starter(threads)
    try:
        for thread in threads:
            _running[thread] = stop  # before it runs, so that the hook never misses one
        if in_main():
            starter.run_aside()
        else:
            starter.run()
    except BaseException:  # of a signal handler
        starter.withdraw()
        stop()
        raise
    if starter.error is not None:
        # If none has begun, ``stop`` is not called: its owner may go on with threads of an earlier
        # call (`pipeline.workers`).
        if any(thread.ident is not None for thread in threads):
            stop()
        join(threads)
        origin = starter.error
        # Thread.start answers an exception inside it by a KeyError of its own
        while origin.__context__ is not None:
            origin = origin.__context__
        if isinstance(origin, RuntimeError):
            raise GpuloadError(
                f"{count} threads {name!r} cannot start",
                cause=str(origin),
                remedy="pass a smaller num_threads, or raise the limit on processes (ulimit -u, "
                "pids.max)",
            ) from origin
        raise origin
    return threads


class _Starter:
    """Starts threads, for the main thread in a thread of its own.

    ``Thread.start`` is Python code. An exception of a signal handler in the middle of it leaves a lock locked that the
    new thread waits for for ever, or has CPython raise a KeyError in its place (3.11: ``del
    _limbo[self]``). Python runs signal handlers in the main thread alone, so another thread calls
    it. To start that thread is one call of C.

    Attributes:
        error: the exception of ``Thread.start``, None if there was none.
    """

    def __init__(self, threads: Sequence[threading.Thread]) -> None:
        self.error: BaseException | None = None
        self._threads = threads
        # The thread that pops this one entry starts the threads, or forgets them. It can be one
        # alone: ``list.pop`` is one step of the interpreter, so no lock is needed, and none can be
        # left locked by a signal handler.
        self._turn: list[None] = [None]
        self._is_withdrawn = False
        self._end_of_start = threading.Lock()
        self._end_of_start.acquire()

    def run_aside(self) -> None:
        """Start the threads from another thread, and wait until it has done so."""
        process = os.getpid()
        try:
            _thread.start_new_thread(self.run, ())
        except RuntimeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # a signal handler's: it has a frame of its own, which the call of C has not
            self.error = error
            self.withdraw()
            return
        while not self._end_of_start.acquire(timeout=LOOK_AGAIN_S):
            # a signal handler has forked, and the starting thread is in the parent
            if os.getpid() != process:
                raise GpuloadError(
                    "threads cannot start in a process that was forked while they did",
                    cause="a signal handler called fork",
                    remedy="start processes outside of signal handlers",
                )

    def run(self) -> None:
        """Start the threads, in the thread that calls this."""
        if not self._claim():
            return
        try:
            for thread in self._threads:
                if self._is_withdrawn:
                    break
                thread.start()
        # Any exception is raised in the thread that waits for the start.
        except BaseException as error:
            self.error = error
        finally:
            self._forget()
            self._end_of_start.release()

    def withdraw(self) -> None:
        """Have no more of the threads started."""
        # The flag first: a starting thread that was faster to claim sees it before it starts the
        # next thread.
        self._is_withdrawn = True
        if self._claim():  # the starting thread has not begun, and now it never will
            self._forget()

    def _claim(self) -> bool:
        try:
            self._turn.pop()
        except IndexError:
            return False
        return True

    def _forget(self) -> None:
        """Take threads that were not started off the list of those that run."""
        for thread in self._threads:
            if thread.ident is None:
                _running.pop(thread, None)


def is_ending() -> bool:
    """Return True once Python is ending: no thread starts any more."""
    return _is_ending


def in_main() -> bool:
    """Return True in the main thread, the one in which Python runs signal handlers."""
    return threading.get_ident() == threading.main_thread().ident


def join(threads: Sequence[threading.Thread], limit_s: float = math.inf) -> bool:
    """Wait until threads have ended, for an explicit close; never call it from a finalizer.

    Args:
        threads: that `start` returned.
        limit_s: wait no longer than this, seconds.

    Returns:
        True if all have ended, False if the time was over before.

    Raises:
        GpuloadError: one of them will never end, see `check_imports`.
    """
    end = time.monotonic() + limit_s
    for thread in threads:
        if thread is threading.current_thread():
            continue
        # In pieces of LOOK_AGAIN_S: between them, `check_imports` looks whether the thread can end
        # at all.
        while not _has_ended(thread):
            left = end - time.monotonic()
            if left <= 0:
                return False
            if thread.is_alive():
                thread.join(min(left, LOOK_AGAIN_S))
                if thread.is_alive():
                    check_imports()
            else:
                time.sleep(SHORT_S)
        # it is there still where the thread ended before it ran anything of ours
        _running.pop(thread, None)
    return True


def _has_ended(thread: threading.Thread) -> bool:
    """Return True if a thread has ended, or was never started and never will be.

    An interrupted ``Thread.join`` may take a thread for ended from then on (CPython 3.11,
    ``_wait_for_tstate_lock``), so the interpreter's list of frames decides: a thread has a frame in
    it as long as it runs.
    """
    if thread.is_alive():
        return False
    # A thread takes itself off `_running` as the last thing it does in Python (`_run`).
    return thread not in _running or (
        thread.ident is not None and thread.ident not in sys._current_frames()
    )


def check_imports() -> None:
    """Raise an error if a thread of ours waits for an import that no thread does; called by all
    that waits for threads.

    An exception of a signal handler that breaks off an import in the main thread may leave a lock
    of Python's imports locked for ever (CPython 3.11: between two lines of
    ``importlib._bootstrap._get_module_lock``). gpuload imports packages where that cannot happen
    (`signalsafe`), but the program may import others.

    Raises:
        GpuloadError: a thread waits so, and did half a second ago.
    """
    if not _is_import_deadlock():
        return
    # a lock that was just released may not have woken the waiting thread yet
    time.sleep(LOOK_AGAIN_S)
    if _is_import_deadlock():
        raise GpuloadError(
            "a thread of gpuload waits for an import that will never end",
            cause="an exception of a signal handler (Ctrl-C) broke off an import and left "
            "Python's lock locked",
            remedy="start the process anew; import packages before signal handlers may raise",
        )


def _is_import_deadlock() -> bool:
    """Return True if a thread of ours waits for a lock of imports, and each thread that imports
    something does."""
    frames = sys._current_frames()
    try:
        waiting = {ident for ident, frame in frames.items() if _is_lock_of_imports(frame)}
        # Stacks are walked only where it matters: threads that do so again and again keep others
        # from running.
        if not waiting.intersection(thread.ident for thread in list(_running)):
            return False
        for ident in frames.keys() - waiting:
            frame: FrameType | None = frames[ident]
            while frame is not None:
                if is_import(frame):
                    return False
                frame = frame.f_back
        return True
    finally:
        frames.clear()  # it holds this very frame: a cycle with the objects of all threads


def _is_lock_of_imports(frame: FrameType) -> bool:
    return frame.f_code.co_filename == IMPORTLIB and frame.f_code.co_name in LOCKS_OF_IMPORTS


def is_import(frame: FrameType) -> bool:
    """Return True for a frame of Python's import of a module; Python keeps no list of the imports
    under way."""
    return frame.f_code.co_filename == IMPORTLIB and frame.f_code.co_name == FIND_AND_LOAD


def running(name: str) -> list[threading.Thread]:
    """Return the threads that were started with this name and have not ended; some may be about to
    start."""
    return [thread for thread in list(_running) if thread.name.startswith(f"{name}-")]


def parallel_map(
    function: Callable[[T], R], items: Sequence[T], num_threads: int, stop_now: Stop = lambda: None
) -> list[R]:
    """Return ``[function(item) for item in items]``, called in several threads.

    As in the plain loop, the first item that fails, in the order of the items, gives its exception.
    No item is begun after one has failed, and none is worked on any more when this returns or
    raises.

    Args:
        function: called with each item.
        items: its arguments.
        num_threads: the most threads that call it; the caller waits.
        stop_now: for items that take long: called at Ctrl-C and at Python's end, so that
            ``function`` can break off. It sets a flag and nothing else (see ``start``).
    """
    if num_threads <= 1 or len(items) <= 1:
        return [function(item) for item in items]
    results: list[Any] = [None] * len(items)
    errors: dict[int, BaseException] = {}
    # next() is one step of the interpreter: each thread gets numbers of its own
    numbers = itertools.count()
    stop_flags: list[bool] = []

    def work() -> None:
        # Numbers are given out in order, and an item that was begun is finished. So when item i has
        # failed, all items before it have been done or will be, and the first error of all is known
        # at the end.
        while not stop_flags and (number := next(numbers)) < len(items):
            try:
                results[number] = function(items[number])
            except BaseException as error:
                errors[number] = error
                stop_flags.append(True)

    def stop() -> None:
        stop_flags.append(True)
        stop_now()

    try:
        join(start(min(num_threads, len(items)), work, name="gpuload-map", stop=stop))
    except BaseException:  # Ctrl-C while they start, or while it waits
        stop()
        # ``start`` may have been broken off before it returned its threads; ``stop`` belongs to
        # this call alone.
        join([thread for thread, its_stop in list(_running.items()) if its_stop is stop])
        raise
    if errors:
        first = errors[min(errors)]
        errors.clear()
        try:
            raise first
        finally:
            del first  # or the error and this call would keep each other alive
    return results


async def aside(function: Callable[..., R], *arguments: Any) -> R:
    """Return the result of a function that a thread of the running event loop calls, while the loop
    goes on.

    For libraries that ask by coroutines, in event loops of their own; gpuload has none.
    """
    import asyncio  # the loop has imported it, and no signal handler runs in its thread

    return await asyncio.to_thread(function, *arguments)


def num_cores() -> int:
    """Return how many cores this process may use, at least 1: the least of these limits.

    They are the cores it may run on (affinity), the processor time that its control groups allow
    (containers, Slurm, systemd), rounded up, and ``OMP_NUM_THREADS``, which launchers set where
    several processes share a machine (torchrun sets it to 1, unless it is set).
    """
    limits = [_num_allowed(), *(max(1, math.ceil(cores)) for cores in _quotas())]
    # A wrong value is passed over: it is set for other libraries, and is no argument of ours.
    # a list is for nested teams
    omp_threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if omp_threads.isdecimal() and int(omp_threads) > 0:
        limits.append(int(omp_threads))
    return min(limits)


def num_cores_for_gpu(num_gpus: int) -> int:
    """Return how many cores there are for a GPU that this process trains on, at least 1.

    The cores that affinity and control groups allow are shared by the processes that a launcher
    started on this machine, a GPU each; without a launcher by the GPUs. Slurm and MPI give each
    process cores of its own, unless it may run on all of the machine. ``OMP_NUM_THREADS`` says
    nothing here: torchrun sets it to 1.

    Args:
        num_gpus: that this process sees.
    """
    num_cores = min([_num_allowed(), *(max(1, math.ceil(cores)) for cores in _quotas())])
    num_ranks = _num_ranks(RANKS_OF_TORCHRUN)
    if not num_ranks:
        num_ranks = next(filter(None, map(_num_ranks, RANKS_OF_BINDERS)), 0)
        is_bound = num_ranks and _num_allowed() < (os.cpu_count() or 1)
        num_ranks = 1 if is_bound else num_ranks
    return max(1, num_cores // (num_ranks or max(1, num_gpus)))


def _num_ranks(variable: str) -> int:
    """Return the number at the beginning of an environment variable, as of ``8(x2)``; 0 if there is
    none."""
    digits = os.environ.get(variable, "").partition("(")[0].partition(",")[0].strip()
    return int(digits) if digits.isdecimal() else 0


def _num_allowed() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(OSError):
            return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas() -> Iterator[float]:
    """Yield the cores that this process's control group may keep busy, and those that it lies in.

    A container often sees its own group as the root, although it is told another path.
    """
    for root, group, read in _groups():
        parts = [part for part in group.split("/") if part]
        # A group above may allow less than the own one: each of them counts.
        for length in range(len(parts) + 1):
            with contextlib.suppress(OSError, ValueError):
                quota, period = read(os.path.join(root, *parts[:length]))
                if quota > 0 and period > 0:
                    yield quota / period


def _groups() -> Iterator[tuple[str, str, Callable[[str], tuple[int, int]]]]:
    """Yield folder and group of each hierarchy that may limit processor time, and a reader of quota
    and period."""
    with contextlib.suppress(OSError, ValueError), open(OWN_GROUPS) as file:
        for line in file:
            _, controllers, group = line.rstrip("\n").split(":", 2)
            if not controllers:
                yield GROUPS, group, _read_v2
            elif "cpu" in controllers.split(","):
                yield os.path.join(GROUPS, "cpu"), group, _read_v1


def _read_v2(folder: str) -> tuple[int, int]:
    with open(os.path.join(folder, "cpu.max")) as file:
        quota, period = file.read().split()
    return int(quota), int(period)  # "max" is no number


def _read_v1(folder: str) -> tuple[int, int]:
    with (
        open(os.path.join(folder, "cpu.cfs_quota_us")) as quota,
        open(os.path.join(folder, "cpu.cfs_period_us")) as period,
    ):
        return int(quota.read()), int(period.read())  # -1 is no limit


def _run(target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Run a thread: unblock SIGBUS in it, as every thread of gpuload needs it, then call its
    target."""
    try:
        if hasattr(signal, "pthread_sigmask") and hasattr(signal, "SIGBUS"):
            # A thread inherits blocked signals from the thread that started it. A mapped file that
            # was cut short raises SIGBUS in the thread that reads it; if SIGBUS is blocked there,
            # the kernel ends the process at once.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGBUS})
        target(*arguments)
    finally:
        _running.pop(threading.current_thread(), None)


def _end() -> None:
    """End all threads, when Python ends: all are asked before any is waited for, so that they end
    side by side.

    A thread leaves the list by itself. One that another thread is just about to start is asked
    again until it has. A thread that does not end would keep the process for ever, so the wait has
    a limit.
    """
    global _is_ending
    _is_ending = True
    end = time.monotonic() + END_S
    while running := list(_running.items()):
        # Once for the threads of one call: each ``stop`` lets all of these end.
        for stop in {id(stop): stop for _, stop in running}.values():
            stop()
        try:
            if join([thread for thread, _ in running], end - time.monotonic()):
                continue
            problem = f"they have not ended within {END_S:.0f} s"
        except GpuloadError as error:
            problem = str(error)
        names = [thread.name for thread in list(_running)]
        if len(names) > MOST_NAMES:
            rest = f" and {len(names) - MOST_NAMES} more"
        else:
            rest = ""
        log.warning(
            "Python ends without waiting for the threads %s%s; cause: %s",
            ", ".join(names[:MOST_NAMES]),
            rest,
            problem,
        )
        return


def end_first() -> None:
    """Have threads end before the modules that they use, and that registered with `atexit` up to
    now, shut down."""
    # Python calls the hooks in reverse order, so the one that is registered last runs first.
    atexit.unregister(_end)
    atexit.register(_end)


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)

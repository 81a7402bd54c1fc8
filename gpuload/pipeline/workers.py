"""Workers: the threads that do steps ahead of the consumer, a bounded number.

Roles. Only workers create, do and finish steps. Python never runs a signal handler in a worker, so
no exception of a handler can break one off. The consumer allows steps up to an absolute number; if
it is broken off anywhere and called again, it says the same once more. So no step can be lost, done
twice or mixed up, wherever an exception comes (`tray.py` has the other half of the argument).

Copying. Steps that are only copied from files go to a queue of the core. The workers serve it
without the interpreter's lock, and come back to Python when there is a step to prepare. Such a step
lies on the tray as soon as it is prepared. ``wait`` copies, too, until the step that is taken next
is there.

Setting. How many threads there are, and how many steps are ahead, may change while they work
(`tuning.py`). A worker that was called looks at the setting. If threads are missing, it starts
them: in a worker no signal handler can break that off. If there are too many, each worker looks
whether it should end before it waits for the next call, and behind the work of the last one: so no
call is lost with a thread. Threads are counted before they start, and a new one looks whether all
were stopped before it waits. ``stop`` first says that and then reads the count, so it ends each of
them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue

from gpuload import threads
from gpuload.core import face
from gpuload.core.face import Copies, Queue
from gpuload.errors import GpuloadError
from gpuload.pipeline.board import Board, run_thread
from gpuload.pipeline.settings import Setting
from gpuload.pipeline.step import Step
from gpuload.stats import STATES, Counters, Trace

log = logging.getLogger("gpuload")
TIMES = ("seconds", "sampled", *STATES)  # as `Copies.times` has them


class Workers:
    """Threads that do the steps of an epoch in order, some ahead.

    Args:
        make: returns step 0, 1, 2, ..., not done yet, and None behind the last; called in order, by
            one worker at a time.
        num_steps: how many steps there are, at most.
        setting: how many threads, that of the caller included if there is a queue; how many steps
            are begun beyond the one that is being taken, at most.
        look: called by workers: returns the setting to follow; None: it stays as it is.
        counters: of the loader.
        hands_out: True if the caller of the loader takes the steps, so that ``take`` adds to
            ``wait_s``.
        on_end: called by the last of the threads when it ends.
        queue: its work is done by the threads, besides; None where there is none.
    """

    def __init__(
        self,
        make: Callable[[int], Step | None],
        *,
        num_steps: int,
        setting: Setting,
        counters: Counters | None,
        look: Callable[[], Setting] | None = None,
        hands_out: bool = True,
        on_end: Callable[[], None] | None = None,
        queue: Queue | None = None,
    ) -> None:
        self._board = board = WorkerBoard(
            make,
            num_steps=num_steps,
            setting=setting,
            look=look or (lambda: setting),
            counters=counters,
            hands_out=hands_out,
            on_end=on_end,
            queue=queue,
        )
        self._horizon, self._queue = board.num_ahead, queue
        self._counters = counters if hands_out else None
        num_threads = board.num_threads
        self._threads = board.start(self, board.calls.end, num_threads)
        board.calls.call(self._horizon, num_threads)

    def take(self, number: int) -> Step | None:
        """Return a step once it is done; it is kept until ``forget``. See ``Tray.take``."""
        # A step of the queue lies on the tray before it is copied. The next group is begun in
        # ``wait``, when the memory of the group before is back; a step that is done in Python's
        # threads is whole, and the next is begun now.
        self._allow(number + self._board.num_ahead + (self._queue is None))
        step = self._board.tray.take(number, self._counters)
        # Done in Python's threads: its memory comes back only when the batch is dropped, so there
        # is nothing to wait for.
        if step is not None and step.copies is None:
            self._allow(number + 1 + self._board.num_ahead)
        return step

    def _allow(self, until: int) -> None:
        """Let the workers go on to step ``until``, exclusive."""
        if until > self._horizon:
            # Said twice, by a consumer that was broken off, it changes nothing.
            self._board.calls.call(until, self._board.num_parts * (until - self._horizon))
            self._horizon = until

    def num_ready(self) -> int:
        """Return how many are finished."""
        return sum(step.num_done for step in self._board.tray.items())

    def wait(self, number: int, group: Step, copies: Copies, step: int) -> bool:
        """Wait until a step is copied, and copy, too; returns False if it has to be done again.

        At the second step of a group the caller has dropped the batches of the group before, unless
        it keeps them. The next group is begun then: it gets their memory, so that two groups are in
        memory and not three.

        Args:
            number: of the group, which was taken.
            group: which that is.
            copies: of the group.
            step: one of the group's.

        Raises:
            ClosedError: the threads were stopped.
        """
        place = step - group.position.step
        if place or group.num_steps == 1:
            self._allow(number + 1 + self._board.num_ahead)
        # It comes back after 20 ms at most, so that Ctrl-C and the error of a worker are not held
        # up by a slow disk.
        while (state := copies.wait(place)) == face.NOT_DONE:
            self._board.tray.check()
        return state == face.DONE

    def forget(self, number: int) -> None:
        """Let go of a step that was taken; a worker drops it, which takes longer than the caller
        should wait."""
        step = self._board.tray.forget(number)
        if step is not None and not self._board.tray.is_stopped:
            self._board.past.append(step)

    def stop(self) -> None:
        """Let each thread end after its current part."""
        self._board.stop()

    def close(self) -> None:
        """Stop the threads and wait for the current part of each."""
        self._board.stop()
        threads.join(self._threads)
        previous: list[threads.Thread] = []
        while (
            later := self._board.later
        ) is not previous:  # a worker that starts others replaces it before it ends
            threads.join(later)
            previous = later


class Calls:
    """Brings threads back to Python: `core.face.Queue` where there is no work but Python's.

    Attributes:
        end: called with anything, as a weak reference calls back, lets one thread end; a method of
            C.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[object] = SimpleQueue()
        self._waits: deque[float] = (
            deque()
        )  # seconds; each operation is one step of the interpreter
        self.end = self._calls.put

    def serve(self) -> int:
        """Wait for a call; returns the number that it allows, -1 to end."""
        start_time = time.perf_counter()
        until = self._calls.get()
        # Counted only after a wait has ended: a thread that still waits when the counters are read
        # appears one call later.
        self._waits.append(time.perf_counter() - start_time)
        if isinstance(until, int):
            return until
        return -1

    def leave(self) -> None:
        """Say that a thread which was called does not come back."""

    def take_idle_s(self) -> float:
        """Return the seconds that threads waited in ``serve`` since the last call."""
        idle_s = 0.0
        with contextlib.suppress(IndexError):
            while True:
                idle_s += self._waits.popleft()
        return idle_s

    def call(self, until: int, num_threads: int) -> None:
        """Call threads out of ``serve``, and allow a number."""
        for _ in range(num_threads):
            self._calls.put(until)


class WorkerBoard(Board[Step]):
    """The state that the threads share.

    Args:
        make, num_steps, setting, look, counters, hands_out, on_end, queue: as of ``Workers``.

    Attributes:
        past: the steps that were taken and forgotten; the next worker that is called drops them.
        calls: workers wait for one: how far they may go, or anything else to end.
        num_parts: of a step: so many workers are called for one more.
        later: the threads that workers have started; replaced by another list, never changed.
        num_threads, num_ahead: the present setting; the thread that waits for steps is not counted.
    """

    def __init__(
        self,
        make: Callable[[int], Step | None],
        *,
        num_steps: int,
        setting: Setting,
        look: Callable[[], Setting],
        counters: Counters | None,
        hands_out: bool,
        on_end: Callable[[], None] | None,
        queue: Queue | None,
    ) -> None:
        super().__init__()
        self.past: deque[Step] = deque()
        self._sampled_s = self._waited_s = 0.0  # of threads of the core that do ops while they read
        self.num_parts = 1
        self.later: list[threads.Thread] = []
        self._make, self._num_steps = make, num_steps
        self._counters, self._hands_out, self._on_end = counters, hands_out, on_end
        self._look, self._setting = look, setting
        # The thread that waits for steps does those of a queue, too.
        self._num_waiters = int(queue is not None)
        num_threads = max(1, setting.num_threads - self._num_waiters)
        self.num_threads, self.num_ahead = num_threads, setting.num_ahead
        # Threads that have not ended; those of them that should go on, and those that should end
        # and have not seen it.
        self._num_alive, self._num_staying, self._num_surplus = num_threads, num_threads, 0
        self.calls: Calls | Queue = queue or Calls()
        # Taken by workers alone, in which no signal handler runs that could leave it locked.
        self._lock = threading.Lock()
        self._step: Step | None = None  # the latest that was begun and of which parts are left,
        self._number = self._part = 0  # its number, and which part is the next
        self._next = self._allowed = 0

    def stop(self) -> None:
        """Let each thread end after its current part; takes no lock, so that it may be called
        anywhere."""
        self.tray.stop()
        # The flag is set before the count is read: `_follow` starts no thread after it, and a new
        # one looks at it first.
        for _ in range(self._num_alive):
            self.calls.end(None)

    def serve(self) -> None:
        """Be a worker: do parts of steps until there is nothing more that may be begun; then wait
        for a call."""
        # The flag is read before each wait: a thread that was counted after `stop` has read the
        # count gets no call to end.
        while not self.tray.is_stopped and (until := self.calls.serve()) >= 0:
            self._drop_past()
            # Read without the lock, as each call passes here; `_follow` looks again with it.
            if (setting := self._look()) is not self._setting:
                self._follow(setting, until)
            while not self.tray.is_stopped and (task := self._claim(until)) is not None:
                number, step, part = task
                if step.work(part):
                    self.tray.put(number, step)
                del task, step  # a worker that waits must not keep a batch alive
            # Only here, behind the work that it was called for: a worker that ended before would
            # take its call with it.
            if self._num_surplus and self._is_surplus():
                self.calls.leave()
                return
        if not self.tray.is_stopped:
            self.stop()  # this worker alone got the call of ``owner_ref``; the others end by this

    def _follow(self, setting: Setting, until: int) -> None:
        """Have as many threads, and as many steps ahead, as a setting says; new threads begin with
        step ``until``."""
        with self._lock:
            if setting is self._setting or self.tray.is_stopped:
                return
            # Another worker may have followed the same setting between the look of this one and its
            # lock.
            self._setting = setting
            self.num_threads = max(1, setting.num_threads - self._num_waiters)
            self.num_ahead = setting.num_ahead
            missing, self._num_staying = self.num_threads - self._num_staying, self.num_threads
            num_new = max(0, missing - self._num_surplus)
            self._num_surplus = max(0, self._num_surplus - missing)
            # Counted before they start, so `stop` never sends fewer calls to end than there are
            # threads.
            self._num_alive += num_new
        # Without the lock: the other workers claim steps while the system makes threads.
        new_threads: list[threads.Thread] = []
        try:
            while len(new_threads) < num_new:
                # One at a time: where the system gives no more, `start` drops all threads of its
                # call, and those before stay.
                new_threads += threads.start(1, run_thread, self, stop=self.stop)
        except (GpuloadError, MemoryError) as error:  # the threads that there are do the work
            if not threads.is_ending():
                log.warning(
                    "%d of %d threads more were started; cause: %s",
                    len(new_threads),
                    num_new,
                    error,
                )
        num_failures = num_new - len(new_threads)
        with self._lock:
            self._num_alive -= num_failures
            self._num_staying -= num_failures
            self.later = [*(thread for thread in self.later if thread.is_alive()), *new_threads]
        self.calls.call(until, len(new_threads))

    def _is_surplus(self) -> bool:
        """Return True if the calling worker should end, which then is one surplus worker less."""
        with self._lock:
            is_surplus = self._num_surplus > 0
            self._num_surplus -= is_surplus
        return is_surplus

    def _drop_past(self) -> None:
        """Drop the steps that were let go of, and count the time of threads of the core: on them,
        and without work."""
        if self._counters is None:
            self.past.clear()
            return
        amounts = defaultdict(float, idle_s=self.calls.take_idle_s())
        with contextlib.suppress(IndexError):  # another worker was faster
            while self.past:
                step = self.past.popleft()
                if (copies := step.copies) is None:
                    continue
                self._count_copies(step, dict(zip(TIMES, copies.times(), strict=True)), amounts)
                if self._hands_out:
                    amounts["wait_s"] += copies.wait_s
                if (trace := self._counters.trace) is not None:
                    _trace_copies(trace, step, copies)
        self._counters.add(**amounts)

    def _count_copies(
        self, step: Step, times: Mapping[str, float], amounts: dict[str, float]
    ) -> None:
        """Add the times of threads of the core, and bytes, to those of stages.

        Where ops are done while records are read, waiting for storage is reading, and the rest is
        ops.
        """
        amounts["read.bytes"] += step.recipe.record_bytes * step.rows.records.size
        if not step.recipe.graph.ops:
            for name, amount in times.items():
                amounts[f"read.{name}"] += amount
            return
        amounts["ops.bytes"] += step.rows.num_bytes
        waits = {name: times[name] for name in ("blocked", "off_core")}
        self._sampled_s += times["sampled"]
        self._waited_s += sum(waits.values())
        # The share of all samples so far: most groups of steps have none.
        share = min(1.0, self._waited_s / max(self._sampled_s, 1e-9))
        amounts["read.seconds"] += share * times["seconds"]
        amounts["ops.seconds"] += (1 - share) * times["seconds"]
        amounts["read.sampled"] += sum(waits.values())
        amounts["ops.sampled"] += times["sampled"] - sum(waits.values())
        amounts["ops.starved"] += times["starved"]
        for name, amount in waits.items():
            amounts[f"read.{name}"] += amount

    def end(self) -> None:
        """Be the end of a worker."""
        self._drop_past()
        with self._lock:
            self._num_alive -= 1
            is_last = not self._num_alive
        if is_last and self._on_end is not None:
            self._on_end()

    def _claim(self, until: int) -> tuple[int, Step, int] | None:
        """Return the number of the next step, the step, and which part of it to do; None if all may
        wait."""
        with self._lock:
            # Workers were called with different numbers and come here in any order: the furthest
            # counts.
            self._allowed = max(self._allowed, min(until, self._num_steps))
            if self._step is None:
                if self._next >= self._allowed:
                    return None
                self._step, self._number, self._part = self._make(self._next), self._next, 0
                if self._step is None:
                    # `_make` was called behind the last step: with the lower bound no worker calls
                    # it again.
                    self._num_steps = self._allowed = self._next
                    return None
                self.num_parts = min(self._step.num_parts, self.num_threads)
                self._next += 1
            step, part = self._step, self._part
            self._part += 1
            if self._part == step.num_parts:
                self._step = None
            return self._number, step, part


def _trace_copies(trace: Trace, step: Step, copies: Copies) -> None:
    """Note in the trace when threads of the core did a step."""
    name, first = "read", step.position
    if step.recipe.graph.ops:
        name = "ops"
    for place, begin_s, end_s, thread in copies.spans():
        words = {"epoch": first.epoch, "step": first.step + place, "thread": thread}
        trace.add(name, begin_s, end_s, **words)

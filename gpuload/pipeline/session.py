"""Session: the resources of one loader while it lives: recipe, memory, executors, counters.
Iterators come and go.

An executor of whole batches runs one batch after the other and belongs to one iterator at a time;
the executor that an iterator gives back serves the next one. The executor on rows is shared by all.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuload import core, signalsafe
from gpuload import device as devices
from gpuload.core.face import Queue
from gpuload.errors import ClosedError, GpuloadError, RowError
from gpuload.executors.base import BatchExecutor, RowExecutor
from gpuload.order import Blocks, Position
from gpuload.pipeline.batches import Batches
from gpuload.pipeline.card import caches_of
from gpuload.pipeline.damage import Damage
from gpuload.pipeline.joining import Joining, StepTime
from gpuload.pipeline.outcome import Outcome, mend_step, run_step
from gpuload.pipeline.recipe import Recipe
from gpuload.pipeline.ring import Ring
from gpuload.pipeline.settings import Setting
from gpuload.pipeline.step import Step
from gpuload.pipeline.stretch import Stretch
from gpuload.pipeline.tuning import Tuning
from gpuload.pipeline.workers import Workers
from gpuload.stats import Counters
from gpuload.storage.memory import cache_bytes

if TYPE_CHECKING:
    from gpuload.pipeline.audit import Auditor, Audits

# The errors of a source or op about its records: ours, and those of Python and NumPy about values
# that do not fit.
EXPECTED = (GpuloadError, RowError, ValueError, TypeError, LookupError, ArithmeticError, OSError)
# Of a GPU's memory for each batch: memory that the caller dropped comes back with the next one, and
# CuPy cuts what is free.
ROOM = 2
KEPT_BYTES = (
    1 << 26
)  # of short steps that were done together: a caller that keeps more of them gets copies

# The last of these stands for this process. To ask the system for its number takes longer, at each
# batch.
_processes = [object()]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _processes.append(object()))


class Session:
    """The resources that the iterators of one loader share.

    Args:
        recipe: how steps become batches.
        executor: the first executor of whole batches; None where there are no ops, or they are run
            on rows.
        make_executor: makes another, for a second iterator at the same time.
        num_threads: workers of an iterator, to begin with.
        prefetch: batches that are begun before the first of them is taken, where an executor runs
            whole batches.
        counters: of the loader.
        names: the fields of a batch, where these are not those of the recipe: the ops run
            elsewhere.
        damage: the treatment of damaged records; None to raise an error for each.
        tunes_threads: True if the number of workers may change.
        tunes_ahead: True if the number of steps that workers begin ahead may change.
        auditor: audits batches before they are handed out; None to audit none.

    Attributes:
        tuning: has the number of workers, and of steps ahead, now.
        successor: the session of the loader from now on, where this one was replaced; else None.
        card_caches: the rows on the GPU that its steps use.
    """

    def __init__(
        self,
        recipe: Recipe,
        executor: BatchExecutor | None,
        make_executor: Callable[[], RowExecutor | BatchExecutor],
        *,
        num_threads: int,
        prefetch: int,
        counters: Counters,
        names: tuple[str, ...] | None = None,
        damage: Damage | None = None,
        tunes_threads: bool = False,
        tunes_ahead: bool = False,
        auditor: Auditor | None = None,
    ) -> None:
        self.recipe, self.names, self.counters = recipe, recipe.names, counters
        if names is not None:
            self.names = names
        self.num_threads, self.prefetch = num_threads, prefetch
        self.closed, self.damage, self._auditor = False, damage, auditor
        self.successor: Session | None = None
        self.card_caches = caches_of(recipe)
        for cache in self.card_caches:
            cache.join(self, self._bytes_on_card())
        self._make_executor, self._process = make_executor, _processes[-1]
        self.lane: devices.Lane | None = None
        allocate: Callable[[int], NDArray[np.uint8]] = devices.page_aligned
        offer: Callable[[NDArray[np.uint8]], bool] | None = devices.offer
        if recipe.device != "cpu":
            self.lane = devices.Lane(recipe.device)
            allocate, offer = devices.pinned, None
        if auditor is not None:
            allocate = auditor.fill(allocate)
        self.ring = Ring(
            idle_bytes=0, crowded_bytes=0, allocate=allocate, offer=offer, counters=counters
        )
        self.tuning = Tuning(
            recipe,
            num_threads,
            tunes_threads=tunes_threads,
            tunes_ahead=tunes_ahead,
            counters=counters,
            apply=partial(_apply, recipe, prefetch, auditor is not None, self.ring, counters),
        )
        self._idle: list[BatchExecutor] = []
        if executor is not None:
            self._idle.append(executor)
        self._has_executor, self._step_time = executor is not None, StepTime()
        self._windows = windows_of(recipe)
        # Weak: an iterator that its loop has dropped ends by its own finalizer, and nothing here
        # keeps it alive.
        self._running: list[weakref.ref[Workers | Batches | Audits]] = []

    def _bytes_on_card(self) -> int:
        """Return the bytes of a GPU's memory for batches: those ahead, the one that is taken and
        that of the caller."""
        recipe, num_groups = self.recipe, self.prefetch + 2 + (self._auditor is not None)
        return ROOM * num_groups * (recipe.slot_bytes + recipe.num_joined * recipe.batch_bytes)

    def begin(self, position: Position) -> tuple[Workers | Batches | Audits, Joining]:
        """Begin to make the steps of an epoch from a position on; number 0 is the first group.

        Returns:
            The threads that make the groups, and which steps are in a group.
        """
        self.check()
        recipe, queue, auditor = self.recipe, None, None
        # Threads of the core share a group, and each of its steps is taken when it is done: no time
        # has to be known.
        num_first = 1
        if recipe.graph.ops:
            num_first = self.num_threads
        if recipe.is_copied:
            num_first = 0
            if core.native is not None:
                queue = core.native.Queue()
        joining = Joining(recipe.plan.end(position) - position.step, recipe.num_joined, num_first)
        if self._auditor is not None and self._auditor.is_active:
            auditor = self._auditor
        self.ring.begin()
        workers = Workers(
            self._maker(position, joining, queue),
            num_steps=joining.most_groups,
            setting=self.tuning.setting,
            look=self.tuning.look,
            counters=self.counters,
            hands_out=recipe.on_rows and auditor is None,
            on_end=self.ring.end,
            queue=queue,
        )
        batches: Workers | Batches = workers
        if not recipe.on_rows:
            batches = Batches(
                workers,
                self._executor(),
                self.lane,
                joining=joining,
                num_ahead=self.prefetch,
                give_back=self._give_back,
                counters=self.counters,
                hands_out=auditor is None,
            )
        if auditor is not None and self.lane is not None:
            auditor.fill_lane(self.lane)
        first: Workers | Batches | Audits = batches
        if auditor is not None:
            first = auditor.guard(batches, joining)
        self._running = [*(ref for ref in self._running if ref() is not None), weakref.ref(first)]
        return first, joining

    def at(self, position: Position) -> Outcome:
        """Make one step, without anything else being touched.

        A thread in which no signal handler runs makes it: the exception of a handler would be taken
        for an error of the step, or of the user's function in it, and a record for damaged.
        """
        self.check()
        return signalsafe.call(lambda: self._outcome(position))

    def _outcome(self, position: Position) -> Outcome:
        step = Step(self.recipe, self.ring, self.counters, position, damage=self.damage).run()
        if step.singles:
            (step,) = step.singles
        if step.error is not None:
            raise step.error
        if self.recipe.on_rows:
            outcome = Outcome(step, step.fields)
        else:
            outcome = self._run_batch(step)
        if self._auditor is not None:
            outcome = self._auditor.audit(outcome)
            self._auditor.close()
            if outcome.error is not None:
                raise outcome.error
        return outcome

    def _run_batch(self, step: Step) -> Outcome:
        """Return the outcome of a step in an executor of whole batches."""
        executor = self._executor()
        try:
            outcome = run_step(step, executor, self.lane)
        except RowError as error:
            outcome = mend_step(step, error, executor, self.lane)
            if outcome.error is not None:
                self._give_back(executor)
                raise outcome.error from None
        except BaseException:  # the executor may hold a part of the batch
            if executor is not None:
                executor.close()
            raise
        self._give_back(executor)
        return outcome

    @property
    def num_ahead(self) -> int:
        """How many groups of steps may be begun before the first of them is taken."""
        if self.recipe.on_rows:
            return self.tuning.setting.num_ahead
        return self.prefetch

    def check(self) -> None:
        """Raise ``ClosedError`` if the loader was closed, or belongs to the process that this one
        was forked from."""
        if self.closed:
            raise ClosedError(
                "the loader is closed", cause="close() was called", remedy="make a new one"
            )
        if self._process is not _processes[-1]:
            raise ClosedError(
                "the loader was made before this process was forked",
                cause="its threads, and their memory, are in the other process",
                remedy="make a loader in this process, or start processes by "
                'multiprocessing.get_context("spawn")',
            )

    def replace(self, successor: Session) -> None:
        """Have iterators go on in another session once a state was loaded; those that are there may
        go on here."""
        self.successor = successor
        while self._idle:
            self._idle.pop().close()
        self.ring.trim(0)

    def close(self) -> None:
        """Stop the threads of all iterators and free memory and executors. Twice is allowed."""
        self.closed = True
        if (
            self._process is not _processes[-1]
        ):  # threads and memory are the parent's, and none of them is here
            return
        # Iterators first: their threads work in the memory, and on the lane, that are freed behind
        # them.
        for ref in self._running:
            if (batches := ref()) is not None:
                batches.close()
        while self._idle:
            self._idle.pop().close()
        self.ring.trim(0)
        if self.lane is not None:
            self._leave_caches()
            self.lane.close()

    def _leave_caches(self) -> None:
        """Let go of the rows on the GPU; the last loader that uses them frees them."""
        if self.lane is not None and self.card_caches:
            with contextlib.suppress(Exception):  # a GPU that was lost reads nothing any more
                self.lane.stream.synchronize()
        for cache in self.card_caches:
            cache.leave(self)
        self.card_caches = ()

    def _maker(
        self, position: Position, joining: Joining, queue: Queue | None
    ) -> Callable[[int], Step | None]:
        """Return the function that makes groups 0, 1, 2, ... of an epoch; it refers to no
        iterator."""
        recipe, ring, counters, damage = self.recipe, self.ring, self.counters, self.damage
        plan, tuning, windows, step_time = recipe.plan, self.tuning, self._windows, self._step_time
        end, stretch_end = plan.end(position), position.step  # the steps behind epoch and stretch
        stretch: Stretch | None = None
        first_steps: list[Step] = []

        def make(number: int) -> Step | None:
            nonlocal stretch, stretch_end
            if first_steps and number == joining.num_first:
                # Steps without ops are joined however long reads take: requests to a store are sent
                # side by side.
                times = [step.ops_s for step in first_steps if step.ops_s]
                joining.settle(step_time.note(min(times, default=inf if recipe.graph.ops else 0.0)))
                first_steps.clear()
            first, num_steps = joining.steps(number)
            if not num_steps:
                return None
            first += position.step
            start = plan.later(position, first)
            if first + num_steps > stretch_end:
                # The first one is short: its batches are waited for.
                num_groups = 1
                if number:
                    num_groups = recipe.num_stretched
                stretch_end = min(first + recipe.num_joined * num_groups, end)
                with counters.watch() as watch:
                    watch.enter("draw")
                    # An error of sources and ops is left to the steps: a step without a stretch
                    # finds its own records, places and draws, and one of them raises it again.
                    # Any other error ends the epoch here, as itself.
                    stretch = None
                    with contextlib.suppress(*EXPECTED):
                        stretch = Stretch(recipe, start, stretch_end - first)
                words = {"epoch": position.epoch, "num_steps": stretch_end - first}
                counters.trace_watch(watch, step=first, **words)
            if windows is not None:
                windows.ask(position, first, num_steps)
            tuning.num_begun += 1
            step = Step(
                tuning.recipe, ring, counters, start, num_steps, stretch, damage=damage, queue=queue
            )
            if number < joining.num_first:
                first_steps.append(step)
            return step

        return make

    def _executor(self) -> BatchExecutor | None:
        if not self._has_executor:
            return None
        # Iterators of several threads share the list without a lock: pop and append are one step of
        # the interpreter.
        try:
            return self._idle.pop()
        except IndexError:
            executor = self._make_executor()
            if executor.kind == "batches":
                return executor
            return None

    def _give_back(self, executor: BatchExecutor | None) -> None:
        if executor is None:
            return
        executor.reset()
        if self.closed:
            executor.close()
        else:
            self._idle.append(executor)


def _apply(
    recipe: Recipe,
    prefetch: int,
    is_audited: bool,
    ring: Ring,
    counters: Counters,
    setting: Setting,
) -> None:
    """Have the bounds of the memory follow a setting, and show it in the stats. It refers to no
    session."""
    num_ahead = setting.num_ahead
    in_flight = num_ahead + 3 + is_audited
    if not recipe.on_rows:
        num_ahead, in_flight = prefetch, in_flight + prefetch
    ring.resize(
        idle_bytes=in_flight * (recipe.slot_bytes + KEPT_BYTES // 8),
        crowded_bytes=in_flight * recipe.slot_bytes + KEPT_BYTES,
        num_steps=in_flight,
    )
    counters.gauges.update(num_threads=setting.num_threads, prefetch=num_ahead * recipe.num_joined)


def windows_of(recipe: Recipe) -> Windows | None:
    """Return the windows of ``gl.Blocks``; None where two would not stay in memory until they are
    taken."""
    groups, shuffle = recipe.source.groups, recipe.plan.shuffle
    sizes = [group.layout.record_bytes for group in groups if group.layout is not None]
    if not isinstance(shuffle, Blocks):
        return None
    num_bytes = 2 * shuffle.window_records * max(sum(sizes), 1)
    if num_bytes <= cache_bytes():
        return Windows(recipe)
    return None


class Windows:
    """Asks storage for the windows of ``gl.Blocks`` before the steps that take them: each in one
    call."""

    def __init__(self, recipe: Recipe) -> None:
        self._plan, self._source, self._numbered = recipe.plan, recipe.source, recipe.numbered

    def ask(self, start: Position, first: int, num_steps: int) -> None:
        """Ask for the windows of the steps from ``first`` on, which are begun now, in an epoch
        begun at ``start``."""
        records = self._plan.ahead(start, first, num_steps=num_steps)
        if not records.size:
            return
        # Errors here are left to the step that reads the same records: it raises them again and
        # names the record.
        with contextlib.suppress(*EXPECTED):
            for share in self._source.resolve(self._numbered(records, start.epoch)):
                share.leaf.advise(share.numbers)

"""Tuning: measures the loops over the batches of one loader, and applies the setting that
`settings.py` chooses.

Numbers of threads and of steps ahead that the user has passed stay as they are. Batches do not
depend on either.

Threads   Workers call ``look`` when they begin a step; no signal handler runs in them. It reads the
          clock, and the counters ten times a second. One thread measures at a time, by a lock for
          which none waits. Workers of all iterators of the loader then follow the new setting.
Windows   of WINDOW_S at least, and of so many steps that each thread has done some. Steps that were
          begun with the setting before belong to no window. Windows do not end with an epoch: the
          counters leave the time between two epochs out. A window in which training paused, for a
          validation or a checkpoint, is begun anew: beside it any other setting would look faster,
          or slower.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from math import nan
from time import perf_counter

import numpy as np

from gpuload.pipeline.recipe import Recipe
from gpuload.pipeline.settings import Bounds, Chooser, LoopWindow, Setting
from gpuload.stats import STAGES, Counters
from gpuload.storage.memory import limit_bytes

LOOK_S, WINDOW_S = 0.1, 0.5
WINDOW_STEPS = 6  # steps, or groups of short ones
PAUSE_S, PAUSE_STEPS = (
    0.1,
    4,
)  # a training pauses: between two looks it takes so much longer than its usual steps
MOST_PAUSES = (
    8  # windows that are begun anew, one after another; then these are no pauses, but the training
)
THREADS_PER_CORE, MANY_THREADS = (
    4,
    32,
)  # of a store that answers in 20 ms, 4 a core got 5 times the records of one
AHEAD_BYTES, MEMORY_PART = (
    1 << 30,
    8,
)  # for steps ahead: so many bytes, and such a part of the memory of the process
LATE_STAGES = (
    "ops",
    "upload",
)  # the thread that runs whole batches does them, and waits for a GPU there
log = logging.getLogger("gpuload")


class Tuning:
    """The setting of the workers of one session.

    Args:
        recipe: divided for the first setting.
        num_threads: of the first setting; where it may change, as many as there are cores.
        tunes_threads: True if their number may change.
        tunes_ahead: True if the number of steps ahead may change.
        counters: of the loader.
        apply: called with each setting, the first one too, before a step is begun with it.

    Attributes:
        setting: the present one.
        recipe: divided for it; the batches of all these recipes are the same.
        num_begun: the steps, or groups of short ones, that were begun; the function that makes them
            counts.
        finding: a sentence about the setting; empty as long as it is the first, and others may be
            tried.
    """

    def __init__(
        self, recipe: Recipe, num_threads: int, *, tunes_threads: bool, tunes_ahead: bool,
        counters: Counters, apply: Callable[[Setting], None],
    ) -> None:  # fmt: skip
        self.setting, self.recipe, self.num_begun = (
            Setting(num_threads, recipe.num_ahead),
            recipe,
            0,
        )
        self._tunes_threads = tunes_threads
        self._tunes_ahead = (
            tunes_ahead and not recipe.is_copied
        )  # copies should stay in the cache until they are taken
        self._tunes, self.finding = tunes_threads or self._tunes_ahead, ""
        self._counters, self._apply = counters, apply
        self._lock = (
            threading.Lock()
        )  # taken by workers alone, where no signal handler runs that could leave it locked
        self._look_s = 0.0
        self._first: Mapping[str, float] | None = (
            None  # the counters at the beginning of the window
        )
        self._last: Mapping[str, float] = {}  # the counters at the last look
        self._usual_s, self._num_pauses = (
            nan,
            0,
        )  # of a training step, in the last window; since that window
        self._begin_item: float = self._num_settling()
        apply(self.setting)

    @cached_property
    def _chooser(self) -> Chooser:
        """Made when the first window ends: to ask the system for the limits of memory takes a part
        of a millisecond."""
        num_threads, recipe = self.setting.num_threads, self.recipe
        most_threads = most_bytes = 0
        if self._tunes_threads:
            most_threads = max(THREADS_PER_CORE * num_threads, MANY_THREADS)
        if self._tunes_ahead:
            most_bytes = int(min(AHEAD_BYTES, limit_bytes() / MEMORY_PART))
        bounds = Bounds(
            num_cores=num_threads,
            most_threads=most_threads,
            most_bytes=most_bytes,
            is_shared=recipe.is_shared,
            num_joined=recipe.num_joined,
            reads_in_python=any(
                share.leaf.calls_python for share in recipe.source.resolve(np.zeros(1, np.int64))
            ),
        )
        return Chooser(self.setting, bounds)

    def look(self) -> Setting:
        """Return the setting that workers should follow; measure, if it is time for that."""
        # The second thread goes on: the first one measures. The next look is put off before the
        # lock is free.
        if self._tunes and perf_counter() >= self._look_s and self._lock.acquire(blocking=False):
            try:
                self._measure()
            finally:
                self._look_s = perf_counter() + LOOK_S
                self._lock.release()
        return self.setting

    def use(self, setting: Setting) -> None:
        """Change the setting; workers follow it when they are called next."""
        # Memory first: a worker that sees the new setting may begin more steps than the ring would
        # keep slots for.
        self._apply(setting)
        self.recipe, self.setting = self.recipe.divided(*setting), setting

    def _measure(self) -> None:
        """Go on with the window; at its end follow the chooser."""
        counts: dict[str, float] = {**self._counters.stats(), "items": self.num_begun}
        if self.recipe.is_copied:
            counts["items"] = counts[
                "batches"
            ]  # threads share a group of steps, and copy a step or less at a time
        # Steps that were begun with the setting before are still being taken: they would be counted
        # for the new one.
        if self._first is None:
            if counts["items"] >= self._begin_item:
                self._first = self._last = counts
            return
        first, last, self._last = self._first, self._last, counts
        if self._num_pauses < MOST_PAUSES and self._is_pause(first, last, counts):
            # The window begins anew here; the part before the pause is dropped, as it is too short
            # to judge by.
            self._first, self._num_pauses = counts, self._num_pauses + 1
            return
        num_items, loop_s = counts["items"] - first["items"], counts["loop_s"] - first["loop_s"]
        if loop_s < WINDOW_S or num_items < max(WINDOW_STEPS, 2 * self._num_side_by_side()):
            return
        self._first, self._num_pauses = counts, 0
        self._usual_s = _training_s(first, counts) / max(counts["batches"] - first["batches"], 1.0)
        setting = self._chooser.next(self._window(first, counts))
        if self._chooser.finding != self.finding:
            self.finding = self._chooser.finding
            log.info("%s", self.finding)
        if setting == self.setting:
            return
        num_before = self._num_settling()
        self.use(setting)
        # The larger number: steps of either setting may be under way now.
        self._first, self._begin_item = (
            None,
            counts["items"] + max(num_before, self._num_settling()),
        )
        log.info("%s", self._chooser.event)

    def _is_pause(
        self, first: Mapping[str, float], last: Mapping[str, float], now: Mapping[str, float]
    ) -> bool:
        """Return True if training took much longer since the last look than before it in this
        window, or the last."""
        if (
            self.recipe.is_copied
        ):  # waiting is added once a group of steps, and looks like training until then
            return False
        num_batches = last["batches"] - first["batches"]
        if num_batches:
            usual_s = _training_s(first, last) / num_batches
        else:
            usual_s = self._usual_s
        more_s = _training_s(last, now) - (now["batches"] - last["batches"]) * usual_s
        return (
            more_s > PAUSE_S and more_s > PAUSE_STEPS * usual_s
        )  # False where nothing is usual yet

    def _window(self, first: Mapping[str, float], last: Mapping[str, float]) -> LoopWindow:
        """Return the measurements between two states of the counters."""
        spent = {name: last[name] - first.get(name, 0.0) for name in last}
        recipe, num_batches = self.recipe, max(spent["batches"], 1.0)
        names = [name for name in STAGES if recipe.on_rows or name not in LATE_STAGES]
        waits = {
            name: spent.get(f"{name}.blocked", 0.0) + spent.get(f"{name}.off_core", 0.0)
            for name in names
        }
        work_s = sum(
            spent.get(f"{name}.sampled", 0.0) - spent.get(f"{name}.starved", 0.0) for name in names
        )
        read_share = lock_share = nan
        if work_s > 0:
            read_share = waits["read"] / work_s
            lock_share = (sum(waits.values()) - waits["read"]) / work_s
        batch_bytes = spent["bytes"] / num_batches
        return LoopWindow(
            step_s=spent["loop_s"] / num_batches,
            # For copies it is added once a group.
            wait_s=min(spent["wait_s"], spent["loop_s"]) / num_batches,
            idle_share=min(1.0, spent["idle_s"] / (spent["loop_s"] * self.setting.num_threads)),
            read_share=read_share,
            lock_share=lock_share,
            ahead_bytes=max(recipe.slot_bytes, batch_bytes * recipe.num_joined),
        )

    def _num_side_by_side(self) -> int:
        """Return how many steps, or groups, the threads work on at a time."""
        if self.recipe.is_shared:
            return 1
        return self.setting.num_threads

    def _num_settling(self) -> int:
        """Return how many steps, or groups, are begun until those before are taken that were under
        way."""
        if self.recipe.is_copied:
            return self.setting.num_threads
        return self.setting.num_ahead + 1


def _training_s(first: Mapping[str, float], last: Mapping[str, float]) -> float:
    """Return the seconds between two states of the counters in which the caller of the loader did
    not wait for it."""
    return last["loop_s"] - first["loop_s"] - (last["wait_s"] - first["wait_s"])

"""Settings: how many threads do the steps of a loader and how many steps are ahead, chosen by measurements. Pure.

A loop over batches is measured in windows. A `Chooser` answers each window with the setting for the next one. Where
training hardly waits, no setting can gain anything. Else the reason of the waiting names another setting to try:

    reading waits for storage                twice as many threads: they wait side by side
    other stages wait, for Python's lock     a quarter of the threads
    a Python reader waits                    twice as many threads, as for storage; if they are no faster, a quarter
    threads are without work                 twice as many steps ahead: batches do not all take the same time
    threads wait for nothing                 one thread for each core, where there are more (the files are in memory by
                                             now), or fewer (less of the work is Python's)

Trial   of another setting, for one window. The setting stays if batches come clearly faster, and the next trial follows
        at once. Else the setting before comes back, and the next trial begins 1, 2, 4, ... MOST_REST windows later.
        Each setting that stays is faster than the one before, or has fewer threads and is as fast. So while machine and
        data do not change, the settings do not go in circles, and trials cost less and less.
Memory  Steps ahead are in memory. No setting has more of them than the first one, or than fit into the bytes allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import NamedTuple

SMALL_WAIT = 0.1  # of the loop: a faster loader gains no more
MOSTLY = 0.5  # of the threads' work
HARDLY = 0.25
IDLE = 0.1  # of the threads' time
LEAST_GAIN, WAIT_GAIN = 0.05, 0.15  # a setting is clearly faster: by so much of a batch's time, and of its waiting
SLOWER = 1.05  # times a batch's time: fewer threads that are no slower than that are preferred
MOST_REST = 64  # windows
MOST_DEPTH = 8  # times as many steps ahead as at first, and no more by chance on a machine on which nothing is steady


class Setting(NamedTuple):
    """How a loader works.

    Attributes:
        num_threads: threads that do steps.
        num_ahead: steps (of short ones: groups) that are begun before the first of them is taken.
    """

    num_threads: int
    num_ahead: int


@dataclass(frozen=True)
class Window:
    """Measurements of a loop over batches, while one setting was used.

    Attributes:
        step_s: seconds for each batch.
        wait_s: those of them in which the caller waited.
        idle_share: the share of the threads' time without work, 0 to 1.
        read_share: the share of the threads' work in which reading waited, for storage, 0 to 1; NaN if it is not known.
        lock_share: the share in which other stages waited, for Python's lock above all; NaN if it is not known.
        ahead_bytes: memory of a step, or of a group of short ones.
    """

    step_s: float
    wait_s: float
    idle_share: float = 0.0
    read_share: float = nan
    lock_share: float = nan
    ahead_bytes: float = 0.0


@dataclass(frozen=True)
class Bounds:
    """The settings that are allowed.

    Attributes:
        num_cores: that this process may use.
        most_threads: the most threads; 0: their number stays as it is.
        most_bytes: of memory for the steps ahead; 0: the number of steps ahead stays as it is.
        is_shared: True if all threads work on the same step; else more threads need more steps ahead.
        num_joined: short steps that are done together, for words.
        reads_in_python: True if a function of the user reads records.
    """

    num_cores: int
    most_threads: int
    most_bytes: int
    is_shared: bool
    num_joined: int = 1
    reads_in_python: bool = False


class _Trial(NamedTuple):
    """A setting to try: threads, the factor of the steps ahead, the slowest batch with which it stays, and why."""

    num_threads: int
    depth: int
    slowest_s: float
    reason: str


class Chooser:
    """Answers each window with the setting for the next.

    Args:
        first: the setting to begin with.
        bounds: of the others.

    Attributes:
        setting: the present one.
        event: a sentence about the latest change; empty before the first.
        finding: a sentence about the latest change that stayed; empty before the first.
    """

    def __init__(self, first: Setting, bounds: Bounds) -> None:
        self.setting, self.event, self.finding = first, "", ""
        self._first, self._bounds = first, bounds
        self._num_threads, self._depth = first.num_threads, 1  # of the setting that stays
        self._ahead_bytes = 0.0  # the most that any window has said
        self._trial: _Trial | None = None
        self._later: list[_Trial] = []  # other trials for the same window
        self._step_s = 0.0  # of that window
        self._rest, self._next_rest = 0, 1  # windows without trials

    def next(self, window: Window) -> Setting:
        """Return the setting for the next window.

        Args:
            window: measured with ``setting``.
        """
        self._ahead_bytes = max(self._ahead_bytes, window.ahead_bytes)
        trial = self._trial
        if trial is not None and window.step_s > trial.slowest_s:
            return self._after_failure(trial, window)
        if trial is not None:
            self._trial, self._rest, self._next_rest = None, 0, 1
            self._num_threads, self._depth = trial.num_threads, trial.depth
            before = (
                "again" if self.setting == self._first else f"where the first setting was {self._words(self._first)}"
            )
            self.event = self.finding = (
                f"{self._words(self.setting)}, {before}: {trial.reason}; a batch came in "
                f"{_milliseconds(window.step_s)} in place of {_milliseconds(self._step_s)}"
            )
        elif self._rest:
            self._rest -= 1
            return self.setting
        # Behind a trial that stayed, too: its window is measured with the setting that is compared with next.
        self._later, self._step_s = self._trials(window), window.step_s
        return self._begin() if self._later else self.setting

    def _begin(self) -> Setting:
        """Begin the next trial."""
        self._trial = trial = self._later.pop(0)
        before, self.setting = self.setting, self._setting_of(trial.num_threads, trial.depth)
        self.event = f"{self._words(self.setting)} are tried in place of {self._words(before)}: {trial.reason}"
        return self.setting

    def _after_failure(self, trial: _Trial, window: Window) -> Setting:
        """Go on with the next trial, or go back to the setting before."""
        # The others answer the same window as the trial that failed: nothing has to be measured in between.
        if self._later:
            return self._begin()
        self._trial, self._rest = None, self._next_rest
        self._next_rest = min(2 * self._next_rest, MOST_REST)
        self.setting = self._setting_of(self._num_threads, self._depth)
        self.event = (
            f"{self._words(self.setting)} again: with the setting that was tried a batch came in "
            f"{_milliseconds(window.step_s)}, before in {_milliseconds(self._step_s)}"
        )
        return self.setting

    def _trials(self, window: Window) -> list[_Trial]:
        """Return the settings that may be better, the most likely one first. Comparisons with NaN are false."""
        num_threads, depth, cores = self._num_threads, self._depth, self._bounds.num_cores
        is_slow = window.wait_s >= SMALL_WAIT * window.step_s
        faster_s = window.step_s - max(LEAST_GAIN * window.step_s, WAIT_GAIN * window.wait_s)
        trials = []
        if num_threads > cores and window.read_share + window.lock_share < HARDLY:
            reason = "the threads do not wait for storage any more"
            trials.append(_Trial(cores, depth, SLOWER * window.step_s, reason))
        if is_slow and num_threads < cores and window.read_share + window.lock_share < MOSTLY:
            reason = "the threads wait neither for storage nor for Python's lock"
            trials.append(_Trial(cores, depth, faster_s, reason))
        if is_slow and window.idle_share >= IDLE and depth < MOST_DEPTH:
            reason = f"training waits although threads are without work for {window.idle_share:.0%} of their time"
            trials.append(_Trial(num_threads, 2 * depth, faster_s, reason))
        if is_slow and window.read_share >= MOSTLY:
            reason = f"{window.read_share:.0%} of the threads' work is waiting for storage"
            trials.append(_Trial(2 * num_threads, depth, faster_s, reason))
        fewer = max(1, num_threads // 4)
        if is_slow and window.lock_share >= MOSTLY:
            reason = f"{window.lock_share:.0%} of the threads' work is waiting for Python's lock"
            trials.append(_Trial(fewer, depth, faster_s, reason))
        elif is_slow and self._bounds.reads_in_python and num_threads <= cores and window.read_share >= MOSTLY:
            reason = (
                f"{window.read_share:.0%} of the threads' work is waiting in a Python reader, maybe for Python's lock"
            )
            trials.append(_Trial(fewer, depth, faster_s, reason))
        return [trial for trial in map(self._bounded, trials) if self._is_new(trial)]

    def _bounded(self, trial: _Trial) -> _Trial:
        """Return a trial with no more threads than are allowed."""
        limit = self._bounds.most_threads
        return trial._replace(num_threads=min(trial.num_threads, limit) if limit else self._num_threads)

    def _is_new(self, trial: _Trial) -> bool:
        return self._setting_of(trial.num_threads, trial.depth) != self.setting

    def _setting_of(self, num_threads: int, depth: int) -> Setting:
        """Return a setting whose steps ahead fit into memory."""
        bounds, first = self._bounds, self._first
        if not bounds.most_bytes:
            return Setting(num_threads, first.num_ahead)
        # A thread that does whole steps needs one of its own to work on, and one more waits to be taken.
        natural = first.num_ahead if bounds.is_shared else num_threads + 1
        most_ahead = max(first.num_ahead, int(bounds.most_bytes / max(self._ahead_bytes, 1.0)))
        return Setting(num_threads, min(depth * natural, most_ahead))

    def _words(self, setting: Setting) -> str:
        num_threads, num_steps = setting.num_threads, setting.num_ahead * self._bounds.num_joined
        return f"{num_threads} thread{'s' * (num_threads != 1)} and {num_steps} step{'s' * (num_steps != 1)} ahead"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"

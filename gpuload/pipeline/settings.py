"""Settings: how many threads do the steps of a loader and how many steps are ahead, chosen by
measurements. Pure.

A loop over batches is measured in windows. A `Chooser` answers each window with the setting for the
next one. Where training hardly waits, no setting can gain anything. Else the reason of the waiting
names another setting to try:

    reading waits for storage                twice as many threads: they wait side by side
    other stages wait, for Python's lock     a quarter of the threads
    a Python reader waits                    twice as many threads, as for storage; if they are no
                                             faster, a quarter
    threads are without work                 twice as many steps ahead: batches do not all take the
                                             same time
    threads wait for nothing                 one thread for each core, where there are more (the
                                             files are in memory by now), or fewer (less of the work
                                             is Python's)

Trial   of another setting, for one window. If batches come clearly faster, a control follows: a
        window with the setting before, and one more with the other. It stays if batches came
        clearly faster in both of its windows than in both windows without it, and the next trial
        follows at once. Else the setting before comes back, and the next trial begins 1, 2, 4, ...
        MOST_REST windows later. So a neighbour on the machine that comes or goes in between does
        not decide, as he would change the windows of one setting only if he came and went with it,
        twice.
End     After MOST_REFUSALS such waits in a row, or MOST_TRIALS trials in all, the setting stays for
        good. One that comes back does not begin the count anew: otherwise two settings could take
        turns for ever.
Memory  Steps ahead are in memory. No setting has more of them than the first one, or than fit into
        the bytes allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import NamedTuple

SMALL_WAIT = 0.1  # of the loop: a faster loader gains no more
MOSTLY = 0.5  # of the threads' work
HARDLY = 0.25
IDLE = 0.1  # of the threads' time
LEAST_GAIN, WAIT_GAIN = (
    0.05,
    0.15,
)  # a setting is clearly faster: by so much of a batch's time, and of its waiting
SLOWER = 1.05  # times a batch's time: fewer threads that are no slower than that are preferred
MOST_REST = 64  # windows
MOST_REFUSALS = (
    10  # one after another: 319 windows of rest, some minutes in which nothing was gained
)
MOST_TRIALS = 100
NUM_WINDOWS = 2  # with each of the two settings, in turns, before the new one stays
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
class LoopWindow:
    """Measurements of a loop over batches, while one setting was used.

    Attributes:
        step_s: seconds for each batch.
        wait_s: those of them in which the caller waited.
        idle_share: the share of the threads' time without work, 0 to 1.
        read_share: the share of the threads' work in which reading waited, for storage, 0 to 1; NaN
            if it is not known.
        lock_share: the share in which other stages waited, for Python's lock above all; NaN if it
            is not known.
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
        is_shared: True if all threads work on the same step; else more threads need more steps
            ahead.
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
    """A setting to try: threads, the factor of the steps ahead, whether it has to be faster or as
    fast, and why."""

    num_threads: int
    depth: int
    is_for_speed: bool
    reason: str

    def slowest_s(self, before: LoopWindow) -> float:
        """Return how long a batch may take, where it took the time of this window before."""
        if not self.is_for_speed:
            return SLOWER * before.step_s
        return before.step_s - max(LEAST_GAIN * before.step_s, WAIT_GAIN * before.wait_s)


class Chooser:
    """Answers each window with the setting for the next. It depends on the windows alone, and on no
    clock.

    Args:
        first: the setting to begin with.
        bounds: of the others.

    Attributes:
        setting: the present one.
        event: a sentence about the latest change; empty before the first.
        finding: a sentence about the latest change that stayed, or about the end; empty before.
        is_over: True once the setting stays for good.
        num_trials: that were begun.
        num_changes: how many of their settings stayed.
    """

    def __init__(self, first: Setting, bounds: Bounds) -> None:
        self.setting, self.event, self.finding = first, "", ""
        self.is_over, self.num_trials, self.num_changes = False, 0, 0
        self._first, self._bounds = first, bounds
        self._num_threads, self._depth = first.num_threads, 1  # of the setting that stays
        self._past = {first}  # the settings that stayed once
        self._ahead_bytes = 0.0  # the most that any window has said
        self._trial: _Trial | None = None
        self._later: list[_Trial] = []  # other trials for the same window
        self._without: list[LoopWindow] = []  # of the trial: those with the setting before,
        self._with: list[LoopWindow] = []  # and those with its own
        self._is_control = False  # the present window has the setting before
        self._rest, self._next_rest, self._num_refusals = 0, 1, 0  # windows without trials

    def next(self, window: LoopWindow) -> Setting:
        """Return the setting for the next window.

        Args:
            window: measured with ``setting``.
        """
        self._ahead_bytes = max(self._ahead_bytes, window.ahead_bytes)
        if (trial := self._trial) is not None:
            (self._without if self._is_control else self._with).append(window)
            if not self._is_better(trial):
                return self._refuse(trial)
            if len(self._with) < NUM_WINDOWS:
                return self._take_turns(trial)
            self._keep(trial)
        elif self.is_over or self._rest:
            self._rest -= not self.is_over
            return self._stay()
        # Behind a trial that stayed, too: its window is measured with the setting that is compared
        # with next.
        self._later, self._without = self._trials(window), [window]
        if self._later:
            return self._begin()
        return self._stay()

    @property
    def _base(self) -> Setting:
        """The setting that stays."""
        return self._setting_of(self._num_threads, self._depth)

    def _stay(self) -> Setting:
        """Go on with the same setting; with fewer steps ahead, if these take more memory than any
        did before."""
        if self.setting != self._base:
            self.event = (
                f"{self._words(self._base)} from now on: a step takes more memory than those before"
            )
        self.setting = self._base
        return self.setting

    def _begin(self) -> Setting:
        """Begin the next trial; behind MOST_TRIALS of them, end."""
        if self.num_trials == MOST_TRIALS:
            return self._end()
        self._trial = trial = self._later.pop(0)
        self._with, self._is_control = [], False
        self.num_trials += 1
        self.setting = self._setting_of(trial.num_threads, trial.depth)
        self.event = f"{self._words(self.setting)} are tried in place of {self._words(self._base)}: {trial.reason}"
        return self.setting

    def _is_better(self, trial: _Trial) -> bool:
        """Return True if each window with a trial's setting is as fast as it has to be, beside each
        without it."""
        return max(window.step_s for window in self._with) <= min(
            map(trial.slowest_s, self._without)
        )

    def _take_turns(self, trial: _Trial) -> Setting:
        """Go on with the other setting of the two that are compared."""
        self._is_control = not self._is_control
        before = self.setting
        if self._is_control:
            self.setting = self._base
        else:
            self.setting = self._setting_of(trial.num_threads, trial.depth)
        latest = (self._with if self._is_control else self._without)[-1]
        self.event = (
            f"{self._words(self.setting)} once more, to compare: with {self._words(before)} a "
            f"batch came in {_milliseconds(latest.step_s)}"
        )
        return self.setting

    def _keep(self, trial: _Trial) -> None:
        """Stay with the setting of a trial."""
        self._trial, self._rest, self.num_changes = None, 0, self.num_changes + 1
        self._num_threads, self._depth = trial.num_threads, trial.depth
        if self.setting not in self._past:
            self._next_rest, self._num_refusals = 1, 0
            self._past.add(self.setting)
        is_first = self.setting == self._first
        if is_first:
            before = "again"
        else:
            before = f"where the first setting was {self._words(self._first)}"
        self.finding = (
            f"{self._words(self.setting)}, {before}: {trial.reason}; {NUM_WINDOWS} times in turns "
            f"a batch came in {_range(self._with)} in place of {_range(self._without)}"
        )

    def _refuse(self, trial: _Trial) -> Setting:
        """Go on with the next trial, or go back to the setting before."""
        # The others answer the same window as the trial that failed: nothing has to be measured in
        # between.
        if self._later:
            return self._begin()
        tried = self._words(self._setting_of(trial.num_threads, trial.depth))
        self._trial, self._rest = None, self._next_rest
        self._next_rest, self._num_refusals = (
            min(2 * self._next_rest, MOST_REST),
            self._num_refusals + 1,
        )
        self.setting = self._base
        self.event = (
            f"{self._words(self.setting)} again: with {tried} a batch came in "
            f"{_range(self._with)}, without in {_range(self._without)}"
        )
        if self._num_refusals < MOST_REFUSALS:
            return self.setting
        return self._end()

    def _end(self) -> Setting:
        """Stay with the setting for good."""
        self.is_over, self._trial, self._later = True, None, []
        self.setting = self._base
        choice = self.finding or f"{self._words(self.setting)}, as at first"
        self.finding = (
            f"{choice}; they stay, as of {self.num_trials} trials of other settings "
            f"{self.num_changes or 'none'} showed clearly faster batches"
        )
        return self.setting

    def _trials(self, window: LoopWindow) -> list[_Trial]:
        """Return the settings that may be better, the most likely one first. Comparisons with NaN
        are false."""
        num_threads, depth, cores = self._num_threads, self._depth, self._bounds.num_cores
        is_slow = window.wait_s >= SMALL_WAIT * window.step_s
        trials = []
        if num_threads > cores and window.read_share + window.lock_share < HARDLY:
            reason = "the threads do not wait for storage any more"
            trials.append(_Trial(cores, depth, False, reason))
        if is_slow and num_threads < cores and window.read_share + window.lock_share < MOSTLY:
            reason = "the threads wait neither for storage nor for Python's lock"
            trials.append(_Trial(cores, depth, True, reason))
        if is_slow and window.idle_share >= IDLE and depth < MOST_DEPTH:
            reason = f"training waits although threads are without work for {window.idle_share:.0%} of their time"
            trials.append(_Trial(num_threads, 2 * depth, True, reason))
        if is_slow and window.read_share >= MOSTLY:
            reason = f"{window.read_share:.0%} of the threads' work is waiting for storage"
            trials.append(_Trial(2 * num_threads, depth, True, reason))
        fewer = max(1, num_threads // 4)
        if is_slow and window.lock_share >= MOSTLY:
            reason = f"{window.lock_share:.0%} of the threads' work is waiting for Python's lock"
            trials.append(_Trial(fewer, depth, True, reason))
        elif (
            is_slow
            and self._bounds.reads_in_python
            and num_threads <= cores
            and window.read_share >= MOSTLY
        ):
            reason = (
                f"{window.read_share:.0%} of the threads' work is waiting in a Python reader, "
                "maybe for Python's lock"
            )
            trials.append(_Trial(fewer, depth, True, reason))
        return [trial for trial in map(self._bounded, trials) if self._is_new(trial)]

    def _bounded(self, trial: _Trial) -> _Trial:
        """Return a trial with no more threads than are allowed."""
        limit = self._bounds.most_threads
        return trial._replace(
            num_threads=min(trial.num_threads, limit) if limit else self._num_threads
        )

    def _is_new(self, trial: _Trial) -> bool:
        return self._setting_of(trial.num_threads, trial.depth) != self._base

    def _setting_of(self, num_threads: int, depth: int) -> Setting:
        """Return a setting with steps ahead that fit into memory."""
        bounds, first = self._bounds, self._first
        if not bounds.most_bytes:
            return Setting(num_threads, first.num_ahead)
        # A thread that does whole steps needs one of its own to work on, and one more waits to be
        # taken.
        if bounds.is_shared:
            natural = first.num_ahead
        else:
            natural = num_threads + 1
        most_ahead = max(first.num_ahead, int(bounds.most_bytes / max(self._ahead_bytes, 1.0)))
        return Setting(num_threads, min(depth * natural, most_ahead))

    def _words(self, setting: Setting) -> str:
        num_threads, num_steps = setting.num_threads, setting.num_ahead * self._bounds.num_joined
        return f"{num_threads} thread{'s' * (num_threads != 1)} and {num_steps} step{'s' * (num_steps != 1)} ahead"


def _range(windows: list[LoopWindow]) -> str:
    """Return the time of a batch in windows, in words."""
    times = [
        _milliseconds(min(window.step_s for window in windows)),
        _milliseconds(max(window.step_s for window in windows)),
    ]
    if times[0] == times[1]:
        return times[0]
    return " to ".join(times)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"

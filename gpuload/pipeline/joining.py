"""Joining: how many short steps workers do together. The first steps of an epoch measure the time
of the ops.

    steps       0  1  2 | 3  4  5  6 | 7  8  9 10 | ...
    groups      0  1  2 |     3      |     4      | ...        3 first steps, then groups of 4

It is not known beforehand how long an op takes, a Python function above all. A group of slow steps
would go to one thread, and its first batch would come after the work of all of them. So where
Python's threads do the ops, the first steps of each epoch are groups of one, and the time of their
ops decides the size of the groups behind them (not that of reading: the first records may come from
a cold disk). It is the least time of the last epochs, since any disturbance of a step makes it
longer, above all a wait for Python's lock. Without ops the first step is a group of one, too, since
its batch is waited for. Batches do not depend on it.

Roles: workers settle the size, one at a time, before they begin the first group that has it. The
consumer asks for a later group only after that group was done.
"""

from __future__ import annotations

from collections import deque
from math import inf

GROUP_S = 0.02  # that a group takes at most; joining saves less than a tenth of steps that take longer than 1.3 ms
NUM_EPOCHS = 8  # their steps are remembered; an op may do more work in later epochs


class StepTime:
    """The time that the ops of a step take: the least of the last epochs."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=NUM_EPOCHS)

    def note(self, seconds: float) -> float:
        """Note the time of the fastest of some steps of an epoch, infinity if there is none, and
        return the least."""
        self._seconds.append(seconds)
        return min(self._seconds)


class Joining:
    """The groups of the steps of an epoch, from a position on; steps are counted from there.

    Args:
        num_steps: how many steps there are.
        max_size: of a group, steps.
        num_first: the steps that are timed; 0 where every group has ``max_size``.
    """

    def __init__(self, num_steps: int, max_size: int, num_first: int) -> None:
        self._num_steps, self._max_size = num_steps, max_size
        if max_size > 1:
            self.num_first = num_first
        else:
            self.num_first = 0
        self._size = 1 if self.num_first else max_size

    @property
    def most_groups(self) -> int:
        """How many groups there are; until the size is settled, how many there may be."""
        return min(self.num_first, self._num_steps) + -(
            -max(self._num_steps - self.num_first, 0) // self._size
        )

    def settle(self, step_s: float = inf) -> None:
        """Choose the size of the groups behind the first steps; the ops of one of them took
        ``step_s`` seconds."""
        # Infinity: no first step had a time (all of them failed, say), so nothing is known and
        # nothing is joined.
        if step_s < inf:
            self._size = max(1, min(self._max_size, int(GROUP_S / max(step_s, 1e-9))))
        else:
            self._size = 1

    def group(self, step: int) -> int:
        """Return the number of the group that holds a step."""
        return min(step, self.num_first) + max(step - self.num_first, 0) // self._size

    def steps(self, group: int) -> tuple[int, int]:
        """Return the first step of a group, and how many steps it has: 0 behind the last group."""
        behind = group - self.num_first
        if behind < 0:
            first, size = (group, 1)
        else:
            first, size = (self.num_first + behind * self._size, self._size)
        return first, max(0, min(size, self._num_steps - first))

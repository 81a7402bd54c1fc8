"""Places: where records lie in memory maps, so that storage can be asked for them before they are copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Runs = NDArray[np.int64]
BEFORE_END = 2


def _no_runs() -> Runs:
    return np.zeros((0, 3), np.int64)


@dataclass(frozen=True)
class Places:
    """Where some records lie.

    Attributes:
        runs: int64 ``[n, 3]``, in the order in which they should be read: the address where a run begins, where it
            ends, and how many of the records, from the first on, can be copied once all up to there was read.
        owners: what keeps the maps; there is none where the records are not mapped.
    """

    runs: Runs = field(default_factory=_no_runs)
    owners: tuple[object, ...] = ()

    def after(self, count: int) -> Places:
        """Return the places with ``count`` records before those."""
        runs = self.runs.copy()
        runs[:, BEFORE_END] += count
        return replace(self, runs=runs)

    def at_last(self) -> Places:
        """Return the places where no record can be copied before what follows was read, too."""
        runs = self.runs.copy()
        runs[:, BEFORE_END] = 0
        return replace(self, runs=runs)


def joined(places: Sequence[Places]) -> Places:
    """Return some places one after the other."""
    owners = tuple(owner for one in places for owner in one.owners)
    return Places(np.concatenate([_no_runs(), *(one.runs for one in places)]), owners)

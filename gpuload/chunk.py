"""Chunks: what is found out about many steps at once, before their records are read."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.order import MOST_EXPECTED, Start
from gpuload.sources.memory import cache_bytes

if TYPE_CHECKING:
    from gpuload.stage import Stage

FETCH_SECONDS = 1.0  # that an epoch may begin later for what is read in order
FETCH_BYTES = 1 << 26  # asked for at once
ENOUGH = 0.5  # the part of a source that an epoch must take


class Chunk:
    """What is known of steps before their records are read; of many at once, for it costs the less for each.

    Attributes:
        steps: the steps.
        records, valid: of all of them; see ``Plan.span``.
        planned: what the executor makes of the draws; None where each part draws with its records at hand.
    """

    def __init__(self, stage: Stage, steps: range, epoch: int, start: Start) -> None:
        self.steps = steps
        self.records, self.valid, self._counts = stage.plan.span(steps, epoch, start)
        self.planned: Any = None

    def draw(self, stage: Stage, epoch: int) -> None:
        """Draw for all steps at once, where an executor runs on rows; what fails each step meets again, at its turn."""
        with contextlib.suppress(Exception):
            if stage.graph.ops and stage.executor is not None:
                self.planned = stage.executor.plan(stage.draw(self.records, epoch), self.records.size)

    def rows(self, steps: range) -> slice:
        """Return the rows of some of the steps."""
        begin, end = steps.start - self.steps.start, steps.stop - self.steps.start
        first = sum(self._counts[:begin])
        return slice(first, first + sum(self._counts[begin:end]))

    def expect(self, stage: Stage, epoch: int, start: Start) -> None:
        """Have storage begin with what later steps will read; what fails each step meets again, at its turn."""
        with contextlib.suppress(Exception):
            records = stage.plan.expected(self.steps, epoch, start)
            if records.size:
                stage.source.expect(records)


def fetch(stage: Stage, start: Start) -> None:
    """Have storage read a source in order for an epoch that will take it in random order, if it fits into memory.

    Random reads of what lies in pieces all over a disk take longer, even where each brings its surroundings (measured:
    1.4 times as long). Nothing is asked for that is in memory, and after a second the epoch begins whatever is missing.
    """
    plan, record_bytes = stage.plan, sum(layout.record_bytes for layout in stage.source.blocks)
    taken = (plan.end(start) - start.step) * plan.batch_size
    if plan.shuffle is not True or taken < ENOUGH * plan.length or plan.length * record_bytes > cache_bytes():
        return
    many, until = max(1, min(FETCH_BYTES // max(record_bytes, 1), MOST_EXPECTED)), time.perf_counter() + FETCH_SECONDS
    with contextlib.suppress(Exception):  # what fails each step meets again, at its turn
        for first in range(0, plan.length, many):
            stage.source.expect(np.arange(first, min(first + many, plan.length), dtype=np.int64))
            if time.perf_counter() > until:
                return

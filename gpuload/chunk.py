"""Chunks: what is found out about many steps at once, before their records are read."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gpuload.order import Start

if TYPE_CHECKING:
    from gpuload.stage import Stage


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

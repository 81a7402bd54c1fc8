"""Stretch: the part of the work that is done for many steps at once, before they are read, as it
costs each less.

The records of the steps, their places, and the draws for them, as far as these do not depend on the
content of the records. A batch does not depend on the length of its stretch: records, places and
draws are those of each record alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.core.face import Copies, CopyPlan, Queue
from gpuload.errors import RowError
from gpuload.graph.graph import Graph, image_sizes
from gpuload.ops.base import Draw
from gpuload.order import Position
from gpuload.pipeline.recipe import Recipe
from gpuload.sources.leaf import Share
from gpuload.sources.reading import record_error
from gpuload.sources.shares import add_to
from gpuload.spec import Layout


class Stretch:
    """Some steps that follow one another.

    Args:
        recipe: how steps become batches.
        position: of the first.
        num_steps: how many there are.

    Attributes:
        records: int64 ``[n]``, the records of all of them.
        valid: bool ``[n]``, False where a record only pads a batch, or is there as a partner alone.
        starts: for each step, and for the end, the row where it begins.
        partners: int32 ``[n, ...]``, see ``order.Groups``; None where no op mixes records.
    """

    def __init__(self, recipe: Recipe, position: Position, num_steps: int) -> None:
        self.partners: NDArray[np.int32] | None = None
        self._batches: tuple[tuple[int, int, int], ...] | None = None
        if recipe.graph.mixes:
            records, valid, self._batches, self.partners = recipe.plan.span_of_groups(
                position, recipe.graph.group, num_steps
            )
            counts = tuple(map(sum, self._batches))
        else:
            records, valid, counts = recipe.plan.span(position, num_steps)
        self._find_out(recipe, position, recipe.numbered(records, position.epoch), valid, counts)

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        position: Position,
        records: NDArray[np.int64],
        partners: NDArray[np.int32] | None,
    ) -> Stretch:
        """Return a stretch of one step that holds these records and partners, without asking the
        plan."""
        stretch = cls.__new__(cls)
        stretch._batches, stretch.partners = None, partners
        stretch._find_out(
            recipe, position, records, np.ones(records.size, np.bool_), (records.size,)
        )
        return stretch

    def _find_out(
        self, recipe: Recipe, position: Position, records: NDArray[np.int64], valid: NDArray[np.bool_],
        counts: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.first = position.step
        self.records, self.valid = records, valid
        self.starts = tuple(accumulate(counts, initial=0))
        self._shares = recipe.source.resolve(self.records)
        self._draws: list[Draw] | None = None
        try:
            if recipe.draws_ahead:
                self._draws = draw(
                    recipe.graph, recipe, position.epoch, self.records, {}, self.partners
                )
            self._piece_rows, self._plan = recipe.piece_rows, self._copy_plan(recipe)
        except RowError as error:
            raise record_error(recipe.source, int(self.records[error.row]), error) from None

    def _copy_plan(self, recipe: Recipe) -> CopyPlan | None:
        """Return where the records lie, for threads of the core; None if these cannot read them."""
        if core.native is None or not recipe.is_copied:
            return None
        plan, count = core.native.CopyPlan(np.array(self.starts[1:], np.int64)), self.records.size
        if recipe.executor is not None:
            makers = recipe.executor.makers(self._draws or (), count)
        else:
            makers = {}
        blocks = {name: number for number, name in enumerate(recipe.regions)}
        # All or none: a step of which a part cannot be copied by the core goes the way through
        # Python as a whole.
        for route in recipe.routes:
            parts = [
                (begin, num_bytes, blocks[name], makers.get(name))
                for begin, num_bytes, name in recipe.copied_parts[route.group]
            ]
            if not add_to(
                plan, self._shares, route.group, cast(Layout, route.layout), count, parts
            ):
                return None
        return plan

    def copies(
        self, queue: Queue, step: int, num_steps: int, blocks: Sequence[NDArray[np.uint8]]
    ) -> Copies | None:
        """Have a queue copy the records of some of the steps; None if the files cannot be read by
        it.

        Args:
            queue: its threads do it.
            step: the first of the steps.
            num_steps: how many.
            blocks: uint8 ``[n]``, the memory of each region.
        """
        if core.native is None or self._plan is None:
            return None
        return core.native.Copies(
            queue, self._plan, step - self.first, num_steps, self._piece_rows, blocks
        )

    def rows(self, step: int, num_steps: int = 1) -> tuple[int, int]:
        """Return where some of the steps begin and end."""
        return self.starts[step - self.first], self.starts[step - self.first + num_steps]

    def batch(self, step: int) -> tuple[int, int]:
        """Return where the batch of a step begins and ends: its rows without those that are
        partners alone."""
        begin, end = self.rows(step)
        if self._batches is None:
            return begin, end
        front, _, behind = self._batches[step - self.first]
        return begin + front, end - behind

    def shares(self, begin: int, end: int) -> list[Share]:
        """Return which leaf holds which of some rows, counted from the first of these."""
        if (begin, end) == (0, self.records.size):
            return self._shares
        return [
            part for share in self._shares if (part := _share_part(share, begin, end)).numbers.size
        ]

    def draws(self, begin: int, end: int) -> list[Draw] | None:
        """Return the draws of every op for some rows; None where they depend on the records'
        content."""
        if self._draws is None:
            return None
        return [
            {name: values[begin:end] for name, values in op_draw.items()} for op_draw in self._draws
        ]


def draw(
    graph: Graph,
    recipe: Recipe,
    epoch: int,
    records: NDArray[np.int64],
    field_values: Mapping[str, Any],
    partners: NDArray[np.int32] | None,
) -> list[Draw]:
    """Return the draws of every op for some records.

    Args:
        graph: that of the recipe, with regions or without.
        recipe: how steps become batches.
        epoch: the epoch.
        records: int64 ``[n]``.
        field_values: the values of fields of varying sizes, and of those that draws depend on.
        partners: of the records, where an op mixes them; see ``order.Groups``.
    """
    sizes = {
        name: image_sizes(graph.spec_in[name], field_values.get(name), records.size)
        for name in graph.touched
    }
    boxes = {name: field_values[name] for name in graph.fields_to_draw}
    words = {"seed": recipe.plan.seed, "epoch": epoch}
    return graph.draw(**words, records=records, sizes=sizes, partners=partners, values=boxes)


def _share_part(share: Share, begin: int, end: int) -> Share:
    """Return the part of a share that some rows have; its rows are in ascending order."""
    if share.rows is None:
        return replace(share, numbers=share.numbers[begin:end])
    # Rows ascend, so the part is one slice, without a copy or a mask.
    first, after = np.searchsorted(share.rows, [begin, end]).tolist()
    return replace(share, numbers=share.numbers[first:after], rows=share.rows[first:after] - begin)

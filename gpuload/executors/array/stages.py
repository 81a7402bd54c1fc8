"""Stages: the ops of one field, cut into the passes that are made over a tile of rows.

    walk      a run of ops that crop, mirror, reorder and normalise, in one pass of the core
    kernel    one op in the core, for single records, as resizing
    array     one op in its array form, equal bit for bit to the others: all of them where there is no core

What an op offers decides (``Op.fold``, ``Op.row_form``, ``Op.array``); which op it is, nobody here asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.errors import SpecError
from gpuload.executors.array.scratch import scratch
from gpuload.executors.base import Values
from gpuload.executors.checks import Checks
from gpuload.ops import walk
from gpuload.ops.base import Draw, Op, RowForm, Sizes
from gpuload.ops.graph import Graph
from gpuload.ops.walk import Memory, Walk, Walker
from gpuload.ragged import Ragged
from gpuload.spec import Field

Array = NDArray[Any]


@dataclass(frozen=True)
class Stage(ABC):
    """Some ops that follow one another on a field.

    Attributes:
        ops: the ops.
        places: their places in the graph, for their draws.
        before, after: the field before the first op and after the last.
    """

    word: ClassVar[str]
    writes: ClassVar[bool] = True
    """True if the result is written to memory that is given; else it comes in memory of its own, or as a view."""

    ops: tuple[Op, ...]
    places: tuple[int, ...]
    before: Field
    after: Field

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """Return what can be found out once for all rows of a call; ``draws`` are those of the ops."""
        return draws

    @abstractmethod
    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """Return a tile after the ops.

        Args:
            x: an array ``[n, ...]``, or a ``Ragged`` of n values where all ops of the field are elementwise.
            plan: what ``plan`` returned.
            rows: which n of the planned rows they are.
            memory: gives memory for the result.
        """

    def __str__(self) -> str:
        return f"{self.word} of {' '.join(type(op).__name__ for op in self.ops)}"


class WalkStage(Stage):
    """All ops in one pass."""

    word = "walk"

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """See ``Stage``: the walk over all images if they have one size, else the draws."""
        return Walker(_folded(walk.begin(self.before, count), self.ops, draws)) if self.before.uniform else draws

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``."""
        if self.before.uniform:
            out = memory((len(x), *self.after.fixed_shape), self.after.dtype)
            plan(x, out, rows, _walk_memory)
            return out
        one = _folded(walk.begin(self.before, len(x), x.shape[1:]), self.ops, _rows(plan, rows))
        out = memory((len(x), *one.out_shape), one.dtype)
        Walker(one)(x, out, memory=_walk_memory)
        return out


@dataclass(frozen=True)
class KernelStage(Stage):
    """One op, record by record, in its compiled form."""

    word = "kernel"

    form: RowForm

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``."""
        draw = _rows(plan, rows)[0]
        out = memory((len(x), *self._shape_after(x, draw)), self.after.dtype)
        for row in range(len(x)):
            self.form(np.ascontiguousarray(x[row]), {name: values[row] for name, values in draw.items()}, out[row])
        return out

    def _shape_after(self, x: Array, draw: Draw) -> tuple[int, ...]:
        if self.after.uniform:
            return self.after.fixed_shape
        size: Sizes = np.array([one.shape[:2] for one in x], np.int32)
        height, width = self.ops[0].size_after(size, draw)[0].tolist()
        return height, width, x.shape[3]


class ArrayStage(Stage):
    """One op in its array form."""

    word = "array"
    writes = False

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``."""
        (op,), (draw,) = self.ops, _rows(plan, rows)
        if op.checks:
            checks = Checks(np)
            checks.ask(op, x)
            checks.answer()
        if len(x) == 1 and not isinstance(x, Ragged):  # may be a view, where the form for many makes a copy
            made = np.asarray(op.array(np, x[0], {name: values[0] for name, values in draw.items()}))[None]
        else:
            made = op.array_batch(np, x, draw)
        if made.dtype != self.after.dtype or (self.after.uniform and made.shape[1:] != self.after.fixed_shape):
            raise SpecError(
                f"{op}: array() makes {made.dtype} {made.shape[1:]}",
                cause=f"its field_after() says {self.after}",
                remedy="the two must agree",
            )
        return made


def make_stages(graph: Graph, name: str, places: Sequence[int] | None = None) -> tuple[Stage, ...]:
    """Return the stages of a field of a graph: of all ops that act on it, or of those at some places, in a row."""
    places = [place for place, on in enumerate(graph.targets) if name in on] if places is None else places
    fields = [graph.before(places[0])[name], *(graph.specs[place][name] for place in places)]
    ops, draws = [graph.op_on(place, name) for place in places], [graph.empty_draws[place] for place in places]
    stages: list[Stage] = []
    begin = 0
    while begin < len(ops):
        folding = _num_folding(ops[begin:], draws[begin:], fields[begin]) if core.native is not None else 0
        end = begin + max(folding, 1)
        some = (tuple(ops[begin:end]), tuple(places[begin:end]), fields[begin], fields[end])
        form = ops[begin].row_form(fields[begin])
        if folding:
            stages.append(WalkStage(*some))
        else:
            stages.append(ArrayStage(*some) if form is None else KernelStage(*some, form))
        begin = end
    return tuple(stages)


def as_values(xp: Any, field: Field, x: Any) -> Values:
    """Return a batch as a field's values are: an array, a ``Ragged`` or a list."""
    if field.uniform:
        if isinstance(x, list):
            return xp.stack(x) if x else xp.empty((0, *field.fixed_shape), field.dtype)
        return x
    if field.ragged and not isinstance(x, Ragged):
        return Ragged.of(list(x), field.dtype, tuple(length or 0 for length in (field.shape or ())[1:]))
    return x if field.ragged else list(x)


def run_joint(graph: Graph, place: int, xp: Any, fields: dict[str, Any], draw: Draw) -> dict[str, Any]:
    """Return the fields that a joint op makes of some records, as the spec after it says."""
    op, after = graph.ops[place], graph.specs[place].only(graph.outputs[place])
    made = op.array_fields(xp, {name: fields[name] for name in graph.targets[place]}, draw, after)
    return {name: as_values(xp, after[name], values) for name, values in made.items()}


def _num_folding(ops: Sequence[Op], draws: Sequence[Draw], field: Field) -> int:
    """Return how many of the ops, from the first on, fold into one walk over the images of a field."""
    now, count = walk.begin(field, 0), 0
    while now is not None and count < len(ops):
        now = _fold(now, ops[count], draws[count])
        count += now is not None
    return count


def _folded(now: Walk | None, ops: Sequence[Op], draws: Sequence[Draw]) -> Walk:
    """Return the walk of ops of which ``_num_folding`` said that they fold."""
    for op, draw in zip(ops, draws, strict=True):
        now = _fold(now, op, draw) if now is not None else None
    if now is None:
        raise RuntimeError(f"{list(ops)} folded without records and do not with them")
    return now


def _fold(now: Walk, op: Op, draw: Draw) -> Walk | None:
    longer = op.fold(now, draw)
    return None if longer is not None and now.in_dtype == np.uint8 and longer.fill not in range(256) else longer


def _rows(draws: Sequence[Draw], rows: slice) -> list[Draw]:
    return [{name: values[rows] for name, values in draw.items()} for draw in draws]


def _walk_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return scratch("walk", shape, dtype)

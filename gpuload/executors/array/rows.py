"""Array executor on a CPU: runs the ops on any rows of a step; called by many threads at once.

Visit    A field's rows are taken in tiles that fit into the second-level cache, and each tile goes through all stages
         before the next one is begun. So an op that has only an array form costs little more than its arithmetic
         (measured, crop to 224 x 224, flip, normalise: 49 us an image; 61 us with ``255 - x`` in between, which takes
         5 us by itself; 128 us if the whole batch goes through stage by stage). Images of different sizes are a tile
         each; where one compiled walk is all there is to do, all rows are one tile.
Rows     A row's result depends on nothing but the row and its draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuload import kernels
from gpuload.executors.array.scratch import scratch
from gpuload.executors.array.stages import as_values, make_stages
from gpuload.executors.base import Fields, Values
from gpuload.ops.base import Draw, RowError
from gpuload.ops.graph import Graph
from gpuload.ops.walk import Memory
from gpuload.ragged import Ragged, joined
from gpuload.spec import Field

Array = NDArray[Any]
TILE_BYTES = 1 << 19  # of the largest result on the way; measured: half of the second-level cache


class ArrayRowExecutor:
    """Runs a graph in array code on NumPy, in compiled kernels where there are some; a ``RowExecutor``.

    Args:
        graph: what it runs.
    """

    kind: Literal["rows"] = "rows"
    name = "array"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._fields = {name: _FieldRun(graph, name) for name in graph.spec_in.names if name in graph.touched}

    def run(self, fields: Fields, draws: Sequence[Draw], out: Mapping[str, Any]) -> Fields:
        """Return the fields of ``graph.touched`` after all ops; see ``RowExecutor``."""
        return {name: field.run(fields[name], draws, out.get(name)) for name, field in self._fields.items()}

    def describe(self) -> dict[str, str]:
        """Return what was chosen, a line each."""
        missing = ": Numba is not installed or is switched off; with it this is many times faster"
        return {
            "executor": "array, compiled kernels" if kernels.compiled() else f"array, numpy{missing}",
            "device": "cpu",
            "stages": "; ".join(f"{name}: {field}" for name, field in self._fields.items()) or "none: there are no ops",
        }

    def close(self) -> None:
        """Give back memory: that of a thread ends with the thread."""


class _FieldRun:
    """The stages of one field, and how many rows go through them at a time."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.stages = make_stages(graph, name)
        self.before, self.after = graph.spec_in[name], self.stages[-1].after
        self._uniform = self.before.uniform and all(stage.after.uniform for stage in self.stages)
        elementwise = all(op.elementwise and not stage.writes for stage in self.stages for op in stage.ops)
        self._ragged = self.before.ragged and elementwise  # a tile is a Ragged; else it is an array
        self._memory: list[Memory] = [partial(scratch, f"stage {number}") for number in range(len(self.stages))]
        on_the_way = [stage.after for stage in self.stages if stage is not self.stages[-1] or not stage.writes]
        self._row_bytes = max(map(_row_bytes, on_the_way), default=0) if self._uniform else 0

    def run(self, x: Values, draws: Sequence[Draw], out: Array | None) -> Values:
        """Return the field after all ops, in ``out`` if that is given."""
        count = len(x)
        if self.after.uniform and out is None:
            out = np.empty((count, *self.after.fixed_shape), self.after.dtype)
        if count == 0:
            return as_values(np, self.after, []) if out is None else out
        if self._ragged:
            x = as_values(np, self.before, x)
        plans = [stage.plan([draws[place] for place in stage.places], count) for stage in self.stages]
        size, tiles = self._tile_rows(x), []
        for begin in range(0, count, size):
            rows = slice(begin, min(begin + size, count))
            tile = x[rows] if self._uniform or self._ragged else np.asarray(x[begin])[None]
            try:
                made = self._tile(tile, plans, rows, None if out is None else out[rows])
            except RowError as error:
                raise error.moved(begin) from None
            if out is None:
                tiles.append(_unshared(made, tile))
        if out is not None:
            return out
        return joined(tiles) if self._ragged else as_values(np, self.after, [tile[0] for tile in tiles])

    def _tile_rows(self, x: Values) -> int:
        """Return how many rows go through the stages at a time."""
        if self._uniform:
            return TILE_BYTES // self._row_bytes or 1 if self._row_bytes else len(x)
        return TILE_BYTES * len(x) // max(x.nbytes, 1) or 1 if self._ragged and isinstance(x, Ragged) else 1

    def _tile(self, x: Any, plans: Sequence[Any], rows: slice, out: Array | None) -> Any:
        """Return some rows after all stages; in ``out`` if that is given."""
        for number, (stage, plan) in enumerate(zip(self.stages, plans, strict=True)):
            is_last = stage is self.stages[-1]
            if out is None:  # the result is kept, and may be a view of what was made on the way
                memory: Memory = np.empty
            elif is_last and stage.writes and out.flags.c_contiguous:
                memory = partial(_given, out)
            else:
                memory = self._memory[number]
            x = stage.run(x, plan, rows, memory)
        if out is not None and x is not out:
            np.copyto(out, x)
        return x

    def __str__(self) -> str:
        return ", ".join(map(str, self.stages))


def _given(out: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return the memory that is there, if it is what is needed."""
    return out if (out.shape, out.dtype) == (shape, dtype) else np.empty(shape, dtype)


def _unshared(made: Any, given: Any) -> Any:
    """Return a result that shares no memory with the rows that it was made of, and lies in C order."""
    if isinstance(made, Ragged):
        return made.with_payload(made.flat.copy()) if np.may_share_memory(made.payload, given.payload) else made
    return made.copy(order="C") if np.may_share_memory(made, given) else np.ascontiguousarray(made)


def _row_bytes(field: Field) -> int:
    return prod(field.fixed_shape) * field.dtype.itemsize

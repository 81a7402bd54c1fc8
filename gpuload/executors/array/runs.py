"""Runs: the parts of a graph on rows: the stages of a field, up to an op that makes several fields
together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, cast

import numpy as np

from gpuload import stats
from gpuload.core.face import Maker
from gpuload.errors import RowError
from gpuload.executors.array.assembly import make_stages
from gpuload.executors.array.groups import field_runs, last_outputs
from gpuload.executors.array.imagestage import count_images
from gpuload.executors.array.scratch import scratch
from gpuload.executors.array.sharing import unshare, unshare_values
from gpuload.executors.array.stage import EVERY_ROW, Array
from gpuload.executors.array.values import as_values, run_joint
from gpuload.executors.base import Fields, Values
from gpuload.graph.graph import Graph
from gpuload.kernels.walk import Memory
from gpuload.ops.base import Draw
from gpuload.ragged import Ragged, concatenate
from gpuload.spec import Field

REUSED_BYTES, REUSED_IMAGES = (
    1 << 22,
    16,
)  # of an image whose memory is used again, and of these; see `_image_memory`
DECODED_ROWS = (
    8  # files that are decoded in one call of the core, where their images have sizes of their own
)
TILE_BYTES = 1 << 19  # of the largest result on the way; measured: half of the second-level cache


def make_runs(graph: Graph) -> list[FieldRun | JointRun]:
    """Return the runs in their order; see ``field_runs``."""
    last = last_outputs(graph)
    runs: list[FieldRun | JointRun] = []
    for run in field_runs(graph):
        if isinstance(run, int):
            runs.append(JointRun(graph, run, last[run]))
        else:
            name, places, is_last = run
            runs.append(FieldRun(graph, name, places, is_last=is_last))
    return runs


class JointRun:
    """An op that makes several fields together, for all rows of a call.

    Args:
        graph: the graph.
        place: of the op.
        last: the fields that no later op acts on.
    """

    def __init__(self, graph: Graph, place: int, last: Collection[str]) -> None:
        self._graph, self._place, self._last = graph, place, last
        self._label = "python_ops" if graph.ops[place].calls_python else "ops"
        before = {
            name: op
            for op, names in zip(graph.ops[:place], graph.outputs, strict=False)
            for name in names
        }
        self._private_names = {
            name for name in graph.targets[place] if name in before and not before[name].joint
        }

    def run(
        self,
        now: Fields,
        draws: Sequence[Draw],
        out: Mapping[str, Any],
        result_names: Collection[str],
        memory: Memory | None,
    ) -> None:
        """Bring the fields from before the op to behind it.

        Fields that no later op acts on get memory of their own. Other results may share theirs: no
        op writes to its fields.
        """
        on = self._graph.targets[self._place]
        before = {name: now[name] for name in on}
        stats.watch().enter(self._label)
        now |= run_joint(self._graph, self._place, np, before, draws[self._place])
        for name in self._last:
            if name in out:
                np.copyto(out[name], cast(Array, now[name]))
                now[name] = out[name]
            # The same object as before the op is safe only if ops made it: what was read is the
            # caller's memory.
            elif now[name] is not before.get(name) or name not in self._private_names:
                now[name] = unshare_values(now[name], before.values())

    def __str__(self) -> str:
        op = self._graph.ops[self._place]
        return f"{', '.join(self._graph.outputs[self._place])}: together by {type(op).__name__}"


class FieldRun:
    """The stages of one field between two ops that make several fields.

    The rows are taken in tiles, and each tile goes through all stages before the next one is begun.

    Args:
        graph: the graph.
        name: of the field.
        places: of the ops.
        is_last: True if no later op acts on the field.
    """

    def __init__(self, graph: Graph, name: str, places: Sequence[int], *, is_last: bool) -> None:
        self.name, self._is_last = name, is_last
        self.stages = make_stages(graph, name, places)
        self.before, self.after = self.stages[0].before, self.stages[-1].after
        uniform = self.before.uniform and all(stage.after.uniform for stage in self.stages)
        ragged = [stage for stage in self.stages if stage.before.ragged]
        whole = all(
            not stage.writes and (op.elementwise or op.takes_ragged)
            for stage in ragged
            for op in stage.ops
        )
        self._ragged = self.before.ragged and whole  # a tile is a Ragged; else it is an array
        self._memory: list[Memory] = [
            partial(scratch, f"stage {number}") for number in range(len(self.stages))
        ]
        takes_list = self.stages[0].takes_list  # and all behind the first stage has one size
        self._makes_list = takes_list and not self.after.uniform
        self._joins_rows = uniform or takes_list or self._ragged
        self._tile_rows: int | None = None
        """The rows of a tile; 0: all of them. None: it depends on the values, see `_num_rows`."""
        if self._makes_list:
            self._tile_rows = DECODED_ROWS
        elif uniform or takes_list:
            on_the_way = [
                stage.after
                for stage in self.stages
                if stage is not self.stages[-1] or not stage.writes
            ]
            row_bytes = max(map(_row_bytes, on_the_way), default=0)
            self._tile_rows = max(TILE_BYTES // row_bytes, 1) if row_bytes else 0
        self._writes_results = is_last and len(self.stages) == 1 and not self._ragged

    @property
    def has_maker(self) -> bool:
        """True if ``maker`` can be called."""
        return len(self.stages) == 1 and self.stages[0].has_maker

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """Return what makes the field of its bytes; ``draws`` are of every op, for ``count``
        rows."""
        (stage,) = self.stages
        return stage.maker([draws[place] for place in stage.places], count)

    def run(
        self,
        now: Fields,
        draws: Sequence[Draw],
        out: Mapping[str, Any],
        result_names: Collection[str],
        memory: Memory | None,
    ) -> None:
        """Bring the field from before the ops to behind them; ``memory`` is for images that are
        results."""
        x, count = now[self.name], len(now[self.name])
        result = out.get(self.name) if self._is_last else None
        if result is None and self.after.uniform:
            result = np.empty((count, *self.after.fixed_shape), self.after.dtype)
        if count == 0:
            now[self.name] = as_values(np, self.after, []) if result is None else result
            return
        if self._ragged:
            x = as_values(np, self.before, x)
        is_result = self.name in result_names
        if memory is None or not (is_result and self._writes_results):
            memory = np.empty
        plans = [
            stage.plan([draws[place] for place in stage.places], count) for stage in self.stages
        ]
        size = self._num_rows(x) if self._tile_rows is None else self._tile_rows or count
        joins_rows = self._joins_rows or isinstance(x, np.ndarray)
        tiles: list[Any] = []
        for begin in range(0, count, size):
            rows = slice(begin, begin + size) if size < count else EVERY_ROW
            tile = x[rows] if joins_rows else np.asarray(x[begin])[None]
            # Memory that this thread uses again must not be handed out: so not for a field that is
            # a result.
            if self._makes_list and not is_result:
                memory = _image_memory(self.name, begin)
            try:
                tile_after = self._run_stages(
                    tile, plans, rows, None if result is None else result[rows], memory
                )
            except RowError as error:
                raise error.shift_rows(begin) from None
            if self._makes_list:
                tiles += tile_after
            elif result is None:
                # Array forms may return a view of their input, as a crop does: the caller may
                # change or drop that.
                tiles.append(unshare(tile_after, tile))
        now[self.name] = self._values(tiles) if result is None else result

    def _num_rows(self, x: Values) -> int:
        """Return how many rows of varying size are a tile: of a ``Ragged`` about ``TILE_BYTES``,
        else one."""
        if self._ragged and isinstance(x, Ragged):
            return TILE_BYTES * len(x) // max(x.nbytes, 1) or 1
        return 1

    def _run_stages(
        self, x: Any, plans: Sequence[Any], rows: slice, out: Array | None, memory: Memory
    ) -> Any:
        """Return a tile after all stages; in ``out`` if that is given."""
        watch = stats.watch()
        # The core writes in C order alone; rows of a caller's array may have gaps between them.
        writes_out = out is not None and out.flags.c_contiguous and self.stages[-1].writes
        for number, (stage, plan) in enumerate(zip(self.stages, plans, strict=True)):
            watch.enter(stage.label)
            if out is None:  # the result is kept, and may be a view of an array on the way to it
                x = stage.run(x, plan, rows, None, memory)
            else:
                is_last = number == len(self.stages) - 1
                x = stage.run(
                    x, plan, rows, out if is_last and writes_out else None, self._memory[number]
                )
            if stage.label == "decode_images":
                count_images(watch, [image.shape[:2] for image in x])
        if out is not None and x is not out:
            np.copyto(out, x)
        return x

    def _values(self, tiles: list[Any]) -> Values:
        """Return the values of all rows, of which tiles are in their order, or the images of a
        list."""
        if self._ragged:
            return concatenate(tiles)
        return as_values(np, self.after, tiles if self._makes_list else [tile[0] for tile in tiles])

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(map(str, self.stages))}"


def _image_memory(name: str, begin: int) -> Memory:
    """Return memory for the images of a field, of rows from ``begin`` on, which this thread uses
    again later.

    It is for images that are not handed out: results of ops on them are copied where they share
    their memory. New memory costs a thread some microseconds for each 4 KB, which the system fills
    with zeros.
    """
    rows = itertools.count(begin)

    def memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        row = next(rows)
        is_usual = row < REUSED_IMAGES and prod(shape) * dtype.itemsize <= REUSED_BYTES
        return (
            scratch(f"image {row} of {name}", shape, dtype) if is_usual else np.empty(shape, dtype)
        )

    return memory


def _row_bytes(field: Field) -> int:
    return prod(field.fixed_shape) * field.dtype.itemsize

"""Runs: the parts of a graph on rows: the stages of a field, up to an op that makes several fields
together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from gpuload.executors.array.sharing import unshare
from gpuload.executors.array.stage import EVERY_ROW, Array, FieldStage
from gpuload.executors.array.values import as_values, run_joint
from gpuload.executors.base import Fields, Values
from gpuload.graph.graph import Graph
from gpuload.kernels.walk import Memory
from gpuload.ops.base import Draw, calls_python
from gpuload.ragged import Ragged, concatenate

# Of an image with memory that is used again, and of these: see `_image_memory`.
REUSED_BYTES, REUSED_IMAGES = 1 << 22, 16
DECODED_ROWS = 8  # files that the core decodes in one call to images of sizes of their own
TILE_BYTES = 1 << 19  # of the largest result on the way; measured: half of the second-level cache


def make_runs(graph: Graph) -> list[StageRun | JointRun]:
    """Return the runs in their order; see ``field_runs``."""
    last = last_outputs(graph)
    runs: list[StageRun | JointRun] = []
    for run in field_runs(graph):
        if isinstance(run, int):
            runs.append(JointRun(graph, run, last[run]))
        else:
            name, places, is_last = run
            runs.append(StageRun(graph, name, places, is_last=is_last))
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
        self._label = "python_ops" if calls_python(graph.ops[place]) else "ops"
        before = {
            name: op
            for op, names in zip(graph.ops[:place], graph.outputs, strict=False)
            for name in names
        }
        self._private_names = {
            name
            for name in graph.targets[place]
            if name in before and not before[name].traits.joint
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
            # The same object as before the op is safe only if ops made it: memory that was read is
            # the caller's memory.
            elif now[name] is not before.get(name) or name not in self._private_names:
                now[name] = unshare(now[name], before.values())

    def __str__(self) -> str:
        op = self._graph.ops[self._place]
        return f"{', '.join(self._graph.outputs[self._place])}: together by {type(op).__name__}"


class StageRun:
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
        takes_list = self.stages[0].takes_list  # and all behind the first stage has one size
        self._makes_list = takes_list and not self.after.uniform
        self._ragged = self.before.ragged and _take_ragged(self.stages)  # else a tile is an array
        self._memory: list[Memory] = [
            partial(scratch, f"stage {number}") for number in range(len(self.stages))
        ]
        self._joins_rows = uniform or takes_list or self._ragged
        self._row_bytes: int | None = None  # of the largest result on the way; None: they vary
        if uniform or takes_list:
            self._row_bytes = _row_bytes(self.stages)
        self._writes_results = is_last and len(self.stages) == 1 and not self._ragged

    @property
    def has_maker(self) -> bool:
        """True if ``maker`` can be called."""
        return len(self.stages) == 1 and self.stages[0].has_maker

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """Return the form that makes the field of its bytes; ``draws`` are of every op, for
        ``count`` rows."""
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
            if result is None:
                result = as_values(np, self.after, [])
            now[self.name] = result
            return
        if self._ragged:
            x = as_values(np, self.before, x)
        is_result = self.name in result_names
        if memory is None or not (is_result and self._writes_results):
            memory = np.empty
        plans = [
            stage.plan([draws[place] for place in stage.places], count) for stage in self.stages
        ]
        tiles: list[Any] = []
        for begin, rows, tile in self._tiles(x):
            tile_out = None if result is None else result[rows]
            # Memory that this thread uses again must not be handed out: so not for a field that is
            # a result.
            if self._makes_list and not is_result:
                memory = _image_memory(self.name, begin)
            try:
                tile_after = self._run_stages(tile, plans, rows, tile_out, memory)
            except RowError as error:
                raise error.shift_rows(begin) from None
            if self._makes_list:
                tiles += tile_after
            elif result is None:
                # Array forms may return a view of their input, as a crop does: the caller may
                # change or drop that.
                tiles.append(unshare(tile_after, [tile]))
        if result is None:
            result = self._values(tiles)
        now[self.name] = result

    def _tiles(self, x: Values) -> Iterator[tuple[int, slice, Any]]:
        """Yield where each tile begins, which rows it has, and their values."""
        size = self._tile_rows(x)
        if size >= len(x) and self._joins_rows:
            yield 0, EVERY_ROW, x
            return
        joins_rows = self._joins_rows or isinstance(x, np.ndarray)
        for begin in range(0, len(x), size):
            rows = slice(begin, begin + size)
            if joins_rows:
                yield begin, rows, x[rows]
            else:
                yield begin, rows, np.asarray(x[begin])[None]

    def _tile_rows(self, x: Values) -> int:
        """Return how many rows are a tile, at least 1: about ``TILE_BYTES`` of values.

        The bytes of a row are known where all rows have one size, and are the mean of ``x`` where
        it is a ``Ragged``. Files that become images of sizes of their own are taken some at a time;
        all other rows, images of different sizes, go one by one.
        """
        if self._makes_list:
            return DECODED_ROWS
        if self._row_bytes == 0:
            return len(x)
        if self._row_bytes is not None:
            return max(TILE_BYTES // self._row_bytes, 1)
        if self._ragged and isinstance(x, Ragged):
            return max(TILE_BYTES * len(x) // max(x.nbytes, 1), 1)
        return 1

    def _run_stages(
        self, x: Any, plans: Sequence[Any], rows: slice, out: Array | None, memory: Memory
    ) -> Any:
        """Return a tile after all stages; in ``out`` if that is given."""
        watch = stats.watch()
        # The core writes in C order alone; rows of a caller's array may have gaps between them.
        writes_out = out is not None and out.flags.c_contiguous and self.stages[-1].writes
        for stage, plan, tile_memory in zip(self.stages, plans, self._memory, strict=True):
            watch.enter(stage.label)
            if out is None:  # the result is kept, and may be a view of an array on the way to it
                x = stage.run(x, plan, rows, None, memory)
            elif writes_out and stage is self.stages[-1]:
                x = stage.run(x, plan, rows, out, tile_memory)
            else:
                x = stage.run(x, plan, rows, None, tile_memory)
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
        if not self._makes_list:
            tiles = [tile[0] for tile in tiles]
        return as_values(np, self.after, tiles)

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
        if is_usual:
            return scratch(f"image {row} of {name}", shape, dtype)
        return np.empty(shape, dtype)

    return memory


def _take_ragged(stages: Sequence[FieldStage]) -> bool:
    """Return True if all stages of a ragged field can be made over many values at once."""
    stages = [stage for stage in stages if stage.before.ragged]
    ops = [op for stage in stages for op in stage.ops]
    if any(stage.writes for stage in stages):
        return False
    numbers = [op.traits.arithmetic for op in ops]
    return all(number.elementwise or number.takes_ragged for number in numbers)


def _row_bytes(stages: Sequence[FieldStage]) -> int:
    """Return the bytes of a row of the largest result that is not written to its place at once."""
    fields = [stage.after for stage in stages[:-1]]
    if not stages[-1].writes:
        fields.append(stages[-1].after)
    return max((prod(field.fixed_shape) * field.dtype.itemsize for field in fields), default=0)

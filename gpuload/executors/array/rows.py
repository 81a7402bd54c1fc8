"""Array executor on the host: runs the ops on any rows of a step; called by many threads at once.

Visit    A field's rows are taken in tiles that fit into the second-level cache, and each tile goes
         through all stages before the next one is begun. So an op that has only an array form costs
         little more than its arithmetic (measured, crop to 224 x 224, flip, normalise: 49 us an
         image; 61 us with ``255 - x`` in between, which takes 5 us by itself; 128 us if the whole
         batch goes through stage by stage). Images of different sizes are a tile each; where one
         compiled walk is all there is to do, all rows are one tile.
Rows     A row's result depends on nothing but the row and its draws.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from math import prod
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from gpuload import core, stats
from gpuload.core.face import Maker
from gpuload.executors.array.scratch import scratch
from gpuload.executors.array.stages import (
    as_values,
    count_images,
    field_runs,
    last_outputs,
    make_stages,
    run_joint,
)
from gpuload.executors.base import Fields, Values
from gpuload.graph.graph import Graph
from gpuload.images import native
from gpuload.kernels.walk import Memory
from gpuload.ops.base import Draw, RowError, calls_python, original
from gpuload.ragged import Ragged, concatenate
from gpuload.spec import Field
from gpuload.stats import Watch

Array = NDArray[Any]
# Where images become several views, few are in memory at a time: those of rows that have so many
# bytes when read.
COPIED_BYTES, COPIED_ROWS, MOST_COPIED_ROWS = 1 << 21, 4, 16
REUSED_BYTES = 1 << 22  # of an image whose memory is used again, see `_image_memory`
DECODED_ROWS = (
    8  # files that are decoded in one call of the core, where their images have sizes of their own
)
TILE_BYTES = 1 << 19  # of the largest result on the way; measured: half of the second-level cache


class ArrayRowExecutor:
    """Runs a graph in array code on NumPy, in the compiled core where it is there; a
    ``RowExecutor``.

    Args:
        graph: the ops.
    """

    kind: Literal["rows"] = "rows"
    name = "array"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._runs = _runs(graph)
        self._copies_images = (
            _copies_images(graph) and not graph.mixes
        )  # which takes rows from one another

    def run(
        self, fields: Fields, draws: Sequence[Draw], out: Mapping[str, Any], names: Collection[str] | None = None,
        memory: Memory | None = None,
    ) -> Fields:  # fmt: skip
        """Return the fields of ``graph.results`` after all ops; see ``RowExecutor``."""
        if names is None:
            result_names = self.graph.results
        else:
            result_names = self.graph.results.intersection((*names, *out))
        count = len(next(iter(fields.values()), ()))
        if self._copies_images:
            size = _copied_rows(fields, count)
        else:
            size = count
        if count <= size:
            return self._run(fields, draws, out, result_names, memory)
        pieces = []
        for begin in range(0, count, size):
            rows = slice(begin, min(begin + size, count))
            row_draws = [{name: values[rows] for name, values in draw.items()} for draw in draws]
            parts = {name: values[rows] for name, values in out.items()}
            try:
                row_fields = {name: values[rows] for name, values in fields.items()}
                pieces.append(self._run(row_fields, row_draws, parts, result_names, memory))
            except RowError as error:
                raise error.shift_rows(begin) from None
        return {
            name: out[name] if name in out else _concatenate([piece[name] for piece in pieces])
            for name in pieces[0]
        }

    def _run(
        self, fields: Fields, draws: Sequence[Draw], out: Mapping[str, Any], result_names: Collection[str],
        memory: Memory | None,
    ) -> Fields:  # fmt: skip
        """Return the fields of these names after all ops, for all rows at once."""
        now = dict(fields)
        for run in self._runs:
            run.run(now, draws, out, result_names, memory)
        return {name: now[name] for name in now if name in result_names}

    @cached_property
    def has_makers(self) -> bool:
        """See ``RowExecutor``: each field goes through one stage, that can read."""
        return all(isinstance(run, _FieldRun) and run.has_maker for run in self._runs)

    def makers(self, draws: Sequence[Draw], count: int) -> dict[str, Maker]:
        """See ``RowExecutor``."""
        runs = [run for run in self._runs if isinstance(run, _FieldRun)]
        return {run.name: run.maker(draws, count) for run in runs}

    def describe(self) -> dict[str, str]:
        """Return each choice, a line each."""
        decoding = self._decoding
        return {
            "executor": f"array, {'compiled' if core.native is not None else 'NumPy'}",
            "device": "cpu",
            "stages": "; ".join(map(str, self._runs)) or "none: there are no ops",
            **({"codec": native.how(takes_files=all(decoding))} if decoding else {}),
        }

    @property
    def decoder(self) -> str:
        """``"core"`` or ``"Python"``, which calls the codec; "" where no op decodes images."""
        if not self._decoding:
            return ""
        if native.codec() is not None and all(self._decoding):
            return "core"
        return "Python"

    @cached_property
    def _decoding(self) -> list[bool]:
        """Whether the core takes the files, for each stage that decodes."""
        stages = [stage for run in self._runs if isinstance(run, _FieldRun) for stage in run.stages]
        return [stage.calls_codec for stage in stages if any(op.traits.codec for op in stage.ops)]

    def close(self) -> None:
        """Give back memory: that of a thread ends with the thread."""


def _runs(graph: Graph) -> list[_FieldRun | _JointRun]:
    """Return the runs in their order; see ``field_runs``."""
    last = last_outputs(graph)
    runs: list[_FieldRun | _JointRun] = []
    for run in field_runs(graph):
        if isinstance(run, int):
            runs.append(_JointRun(graph, run, last[run]))
        else:
            name, places, is_last = run
            runs.append(_FieldRun(graph, name, places, is_last=is_last))
    return runs


class _JointRun:
    """An op that makes several fields together, for all rows of a call.

    Args:
        graph: the graph.
        place: of the op.
        last: the fields that no later op acts on.
    """

    def __init__(self, graph: Graph, place: int, last: Collection[str]) -> None:
        self._graph, self._place, self._last = graph, place, last
        if calls_python(graph.ops[place]):
            self._label = "python_ops"
        else:
            self._label = "ops"
        before = {
            name: op
            for op, names in zip(graph.ops[:place], graph.outputs, strict=False)
            for name in names
        }
        self._private_names = {
            name
            for name in graph.targets[place]
            if name in before and before[name].traits.joint is None
        }

    def run(
        self, now: Fields, draws: Sequence[Draw], out: Mapping[str, Any], result_names: Collection[str],
        memory: Memory | None,
    ) -> None:  # fmt: skip
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
                now[name] = _copy_shared(now[name], before.values())

    def __str__(self) -> str:
        op = self._graph.ops[self._place]
        return f"{', '.join(self._graph.outputs[self._place])}: together by {type(op).__name__}"


class _FieldRun:
    """The stages of one field between two ops that make several fields, and how many rows go
    through them at a time.

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
        self._uniform = self.before.uniform and all(stage.after.uniform for stage in self.stages)
        ragged = [stage for stage in self.stages if stage.before.ragged]
        whole = all(
            not stage.writes
            and (op.traits.arithmetic.elementwise or op.traits.arithmetic.takes_ragged)
            for stage in ragged
            for op in stage.ops
        )
        self._ragged = self.before.ragged and whole  # a tile is a Ragged; else it is an array
        self._memory: list[Memory] = [
            partial(scratch, f"stage {number}") for number in range(len(self.stages))
        ]
        on_the_way = [
            stage.after for stage in self.stages if stage is not self.stages[-1] or not stage.writes
        ]
        self._takes_list = self.stages[0].takes_list  # and all behind the first stage has one size
        self._makes_list = self._takes_list and not self.after.uniform
        if self._uniform or self._takes_list:
            self._row_bytes = max(map(_row_bytes, on_the_way), default=0)
        else:
            self._row_bytes = 0

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
        self, now: Fields, draws: Sequence[Draw], out: Mapping[str, Any], result_names: Collection[str],
        memory: Memory | None,
    ) -> None:  # fmt: skip
        """Bring the field from before the ops to behind them; ``memory`` is for images that are
        results."""
        if self._is_last:
            result = out.get(self.name)
        else:
            result = None
        # Memory that this thread uses again must not be handed out: so not for a field that is a
        # result.
        is_result = self.name in result_names
        writes_results = is_result and self._is_last and len(self.stages) == 1 and not self._ragged
        memory = memory if writes_results else None
        now[self.name] = self._run_tiles(
            now[self.name], draws, result, memory, reuses=not is_result
        )

    def _run_tiles(
        self,
        x: Values,
        draws: Sequence[Draw],
        out: Array | None,
        new_memory: Memory | None,
        *,
        reuses: bool,
    ) -> Values:
        """Return the field after all ops, in ``out`` if that is given; ``reuses`` as of
        ``_image_memory``.

        ``new_memory``: gives that of images of sizes of their own; None: new memory.
        """
        count = len(x)
        if self.after.uniform and out is None:
            out = np.empty((count, *self.after.fixed_shape), self.after.dtype)
        if count == 0:
            if out is None:
                return as_values(np, self.after, [])
            return out
        if self._ragged:
            x = as_values(np, self.before, x)
        plans = [
            stage.plan([draws[place] for place in stage.places], count) for stage in self.stages
        ]
        size, tiles, watch = self._tile_rows(x), [], stats.watch()
        for begin in range(0, count, size):
            rows = slice(begin, min(begin + size, count))
            joined_rows = (
                self._uniform or self._ragged or self._takes_list or isinstance(x, np.ndarray)
            )
            if joined_rows:
                tile = x[rows]
            else:
                tile = np.asarray(x[begin])[None]
            try:
                memory = new_memory or np.empty
                if self._makes_list and reuses:
                    memory = _image_memory(self.name, begin)
                result = self._tile(
                    tile, plans, rows, None if out is None else out[rows], memory, watch
                )
            except RowError as error:
                raise error.shift_rows(begin) from None
            if self._makes_list:
                tiles += result
            elif out is None:
                # Array forms may return a view of their input, as a crop does: the caller may
                # change or drop that.
                tiles.append(_unshare(result, tile))
        if out is not None:
            return out
        if self._ragged:
            return concatenate(tiles)
        return as_values(np, self.after, tiles if self._makes_list else [tile[0] for tile in tiles])

    def _tile_rows(self, x: Values) -> int:
        """Return how many rows go through the stages at a time, at least 1: about ``TILE_BYTES`` of
        values.

        The bytes of a row are known where all rows have one size, and are the mean of ``x`` where
        it is a ``Ragged``. Files that become images of sizes of their own are taken some at a time;
        all other rows, images of different sizes, go one by one.
        """
        if self._makes_list:
            return DECODED_ROWS
        if self._uniform or self._takes_list:
            if self._row_bytes:
                return TILE_BYTES // self._row_bytes or 1
            return len(x)
        if self._ragged and isinstance(x, Ragged):
            return TILE_BYTES * len(x) // max(x.nbytes, 1) or 1
        return 1

    def _tile(
        self,
        x: Any,
        plans: Sequence[Any],
        rows: slice,
        out: Array | None,
        new_memory: Memory,
        watch: Watch,
    ) -> Any:
        """Return some rows after all stages; in ``out`` if that is given."""
        for number, (stage, plan) in enumerate(zip(self.stages, plans, strict=True)):
            is_last = stage is self.stages[-1]
            if out is None:  # the result is kept, and may be a view of an array on the way to it
                memory = new_memory
            # The core writes in C order alone; rows of a caller's array may have gaps between them.
            elif is_last and stage.writes and out.flags.c_contiguous:
                memory = partial(_fitting_memory, out)
            else:
                memory = self._memory[number]
            watch.enter(stage.label)
            x = stage.run(x, plan, rows, memory)
            if stage.label == "decode_images":
                count_images(watch, [image.shape[:2] for image in x])
        if out is not None and x is not out:
            np.copyto(out, x)
        return x

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(map(str, self.stages))}"


def _copies_images(graph: Graph) -> bool:
    """Return True if an op gives images of varying size to several fields, so that all ops of one
    come first."""
    steps = enumerate(zip(graph.ops, graph.targets, graph.outputs, strict=True))
    copies = [
        (place, on)
        for place, (op, on, names) in steps
        if any(original(op, name, on) != name for name in names)
    ]
    return any(not graph.before(place)[name].uniform for place, on in copies for name in on)


def _copied_rows(fields: Fields, count: int) -> int:
    """Return how many of the rows are done at a time, where their images become several views.

    Few, for they are in memory together; not fewer than it takes to make the work between calls of
    the core small.
    """
    columns = (values if isinstance(values, list) else [values] for values in fields.values())
    num_bytes = sum(part.nbytes for column in columns for part in column)
    return min(max(COPIED_BYTES * count // max(num_bytes, 1), COPIED_ROWS), MOST_COPIED_ROWS)


def _concatenate(pieces: list[Any]) -> Values:
    """Return the values of a field for all rows."""
    if isinstance(pieces[0], Ragged):
        return concatenate(pieces)
    if isinstance(pieces[0], list):
        return [value for piece in pieces for value in piece]
    return np.concatenate(pieces)


def _image_memory(name: str, begin: int) -> Memory:
    """Return memory for the images of a field, of rows from ``begin`` on, which this thread uses
    again later.

    It is for images that are not handed out: what ops make of them is copied where it shares their
    memory. New memory costs a thread some microseconds for each 4 KB, which the system fills with
    zeros.
    """
    rows = itertools.count(begin)

    def memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        row = next(rows)
        is_usual = row < MOST_COPIED_ROWS and prod(shape) * dtype.itemsize <= REUSED_BYTES
        if is_usual:
            return scratch(f"image {row} of {name}", shape, dtype)
        return np.empty(shape, dtype)

    return memory


def _fitting_memory(out: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return ``out`` if it has the shape and dtype, else new memory."""
    if (out.shape, out.dtype) == (shape, dtype):
        return out
    return np.empty(shape, dtype)


def _unshare(result: Any, rows: Any) -> Any:
    """Return a result that shares no memory with the rows that it was made of, and lies in C
    order."""
    if isinstance(result, Ragged):
        if np.may_share_memory(result.payload, rows.payload):
            return result.with_payload(result.flat.copy())
        return result
    if np.may_share_memory(result, rows):
        return result.copy(order="C")
    return np.ascontiguousarray(result)


def _copy_shared(result: Values, inputs: Collection[Values]) -> Values:
    """Return values that share no memory with those that they were made of."""
    if isinstance(result, list):
        return [
            _copy_shared(value, [values[row] for values in inputs])
            for row, value in enumerate(result)
        ]
    if isinstance(result, Ragged):
        return result.with_payload(_copy_shared(result.flat, inputs))
    memory = [values.payload if isinstance(values, Ragged) else values for values in inputs]
    shares = any(
        np.may_share_memory(result, array) for array in memory if not isinstance(array, list)
    )
    if shares:
        return result.copy(order="C")
    return np.ascontiguousarray(result)


def _row_bytes(field: Field) -> int:
    return prod(field.fixed_shape) * field.dtype.itemsize

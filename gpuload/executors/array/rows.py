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

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from gpuload import core
from gpuload.core.face import Maker
from gpuload.errors import RowError
from gpuload.executors.array.runs import StageRun, make_runs
from gpuload.executors.array.stage import rows_of
from gpuload.executors.base import Fields, Values
from gpuload.graph.graph import Graph
from gpuload.images import native
from gpuload.kernels.walk import Memory
from gpuload.ops.base import Draw, original
from gpuload.ragged import Ragged, concatenate

# Where images become several views, few are in memory at a time: those of rows that have so many
# bytes when read.
COPIED_BYTES, COPIED_ROWS, MOST_COPIED_ROWS = 1 << 21, 4, 16


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
        self._runs = make_runs(graph)
        self._copies_images = (
            _copies_images(graph) and not graph.mixes
        )  # which takes rows from one another

    def run(
        self,
        fields: Fields,
        draws: Sequence[Draw],
        out: Mapping[str, Any],
        names: Collection[str] | None = None,
        memory: Memory | None = None,
    ) -> Fields:
        """Return the fields of ``graph.results`` after all ops; see ``RowExecutor``."""
        if self._copies_images:
            count = len(next(iter(fields.values()), ()))
            if (size := _copied_rows(fields, count)) < count:
                return self._run_parts(fields, draws, out, names, memory, size)
        result_names = self.graph.results
        if names is not None:
            result_names = result_names.intersection((*names, *out))
        now = dict(fields)
        for run in self._runs:
            run.run(now, draws, out, result_names, memory)
        return {name: now[name] for name in now if name in result_names}

    def _run_parts(
        self,
        fields: Fields,
        draws: Sequence[Draw],
        out: Mapping[str, Any],
        names: Collection[str] | None,
        memory: Memory | None,
        size: int,
    ) -> Fields:
        """Return the same as ``run``, made of ``size`` rows at a time."""
        parts = []
        for begin in range(0, len(next(iter(fields.values()))), size):
            rows = slice(begin, begin + size)
            part = {name: values[rows] for name, values in fields.items()}
            part_out = {name: values[rows] for name, values in out.items()}
            try:
                parts.append(self.run(part, rows_of(draws, rows), part_out, names, memory))
            except RowError as error:
                raise error.shift_rows(begin) from None
        results = {name: out[name] for name in parts[0] if name in out}
        for name in parts[0].keys() - out.keys():
            results[name] = _concatenate([part[name] for part in parts])
        return results

    @cached_property
    def has_makers(self) -> bool:
        """True if each field goes through one stage, that can read."""
        return all(isinstance(run, StageRun) and run.has_maker for run in self._runs)

    def makers(self, draws: Sequence[Draw], count: int) -> dict[str, Maker]:
        """Return for each field the form that makes its result of bytes; see ``RowExecutor``."""
        runs = [run for run in self._runs if isinstance(run, StageRun)]
        return {run.name: run.maker(draws, count) for run in runs}

    def describe(self) -> dict[str, str]:
        """Return each choice, a line each."""
        lines = {
            "executor": "array, NumPy" if core.native is None else "array, compiled",
            "device": "cpu",
            "stages": "; ".join(map(str, self._runs)) or "none: there are no ops",
        }
        if decoding := self._decoding:
            lines["codec"] = native.how(takes_files=all(decoding))
        return lines

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
        stages = [stage for run in self._runs if isinstance(run, StageRun) for stage in run.stages]
        return [stage.calls_codec for stage in stages if any(op.traits.codec for op in stage.ops)]

    def close(self) -> None:
        """Give back memory: that of a thread ends with the thread."""


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


def _concatenate(parts: list[Any]) -> Values:
    """Return the values of a field for all rows."""
    if isinstance(parts[0], Ragged):
        return concatenate(parts)
    if isinstance(parts[0], list):
        return [value for part in parts for value in part]
    return np.concatenate(parts)

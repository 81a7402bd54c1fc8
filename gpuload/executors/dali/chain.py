"""Chain: a graph with ops that run in DALI, and others that run in their array forms, beside
DALI and behind it.

Beside  ops on fields that DALI has no part in, labels say: they are queued when a batch is started.
Behind  ops on results of DALI: queued when these results are asked for. On a GPU CuPy reads them on
        the same stream; they never come to the host, and the host waits only where an op behind
        DALI checks values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from gpuload import device as devices
from gpuload.executors.array import ArrayBatchExecutor
from gpuload.executors.base import Fields, find_row_error, one_row
from gpuload.executors.dali.executor import DaliExecutor
from gpuload.executors.dali.program import Reads
from gpuload.graph.graph import Graph
from gpuload.ops.base import Draw, RowError
from gpuload.ragged import Ragged


class Chain:
    """Runs a graph in two executors; a ``BatchExecutor``.

    Args:
        graph: the ops.
        places: of the ops that DALI runs; no other op comes before them on their fields.
        device: ``"cpu"`` or ``"gpu:N"``.
        batch_size: the largest batch.
        num_threads: DALI's worker threads.

    Raises:
        MissingPackageError, DeviceError, SpecError: see ``DaliExecutor``.
    """

    kind: Literal["batches"] = "batches"
    name = "dali"
    any_length = bundles = False

    def __init__(
        self, graph: Graph, places: Sequence[int], *, device: str, batch_size: int, num_threads: int
    ) -> None:
        self.graph = graph
        self._places = tuple(places), *_around(graph, places)
        of_dali, beside = (graph.part(part_places) for part_places in self._places[:2])
        self._dali = DaliExecutor(
            of_dali, device=device, batch_size=batch_size, num_threads=num_threads
        )
        self.device = self._dali.device
        self._beside = ArrayBatchExecutor(beside, device=self.device)
        before = graph.part(sorted(self._places[0] + self._places[1])).spec_out
        self._behind = ArrayBatchExecutor(graph.part(self._places[2], before), device=self.device)
        self._executors = (self._dali, self._beside, self._behind)
        self._waiting: deque[tuple[Fields, list[Draw]]] = (
            deque()
        )  # for the ops behind, of no op before
        self._reads = Reads()

    def start(self, fields: Fields, draws: Sequence[Draw]) -> None:
        """Queue a batch; see ``BatchExecutor``."""
        self._beside.start(*self._inputs(self._beside, fields, draws))
        try:
            self._dali.start(*self._inputs(self._dali, fields, draws))
        except BaseException:
            # A batch is started in both or in neither: else the results of later batches would be
            # joined with wrong ones.
            self._beside.cancel()
            raise
        # Fields that DALI or the ops beside it make come from there in ``finish``; the others are
        # kept until then.
        results = self._dali.graph.results | self._beside.graph.results
        rest = {name: values for name, values in fields.items() if name not in results}
        self._waiting.append(self._inputs(self._behind, rest, draws))

    def finish(self) -> Fields:
        """Return the fields of the oldest batch that was started; see ``BatchExecutor``."""
        try:
            fields = self._dali.finish()  # an error where nothing was started
        except Exception:
            if self._waiting:
                self._waiting.popleft()
                # The part of the same batch must go, too; of its two errors, DALI's is raised.
                with suppress(RowError):
                    self._beside.finish()
            raise
        inputs, draws = self._waiting.popleft()
        return self._finish({**inputs, **fields, **self._beside.finish()}, draws)

    def row_error(self, fields: Fields, draws: Sequence[Draw], row: int) -> RowError | None:
        """Return why a row of a batch cannot be used; see ``BatchExecutor``."""
        return find_row_error(lambda: self._run_row(fields, draws, row))

    def _run_row(self, fields: Fields, draws: Sequence[Draw], row: int) -> None:
        result = self._beside.run_row(*self._inputs(self._beside, fields, draws), row)
        result |= self._dali.run_row(*self._inputs(self._dali, fields, draws), row)
        inputs, row_draws = one_row(*self._inputs(self._behind, fields, draws), row)
        self._finish({**inputs, **result}, row_draws)

    def reset(self) -> None:
        """Forget the batches that were started and not finished."""
        self._dali.reset()
        self._beside.reset()
        self._waiting.clear()

    def describe(self) -> dict[str, str]:
        """Return each choice, a line each."""
        lines, behind = self._dali.describe(), self._behind.describe()
        parts = [f"DALI runs {' '.join(type(op).__name__ for op in self._dali.graph.ops)}"]
        if self._beside.graph.ops:
            parts.append(f"beside it {self._beside.describe()['stages']}")
        if self._behind.graph.ops:
            if self.device == "cpu":
                stream_note = ""
            else:
                stream_note = ", on the same stream"
            parts.append(f"behind it{stream_note} {behind['stages']}")
        return {
            **lines,
            "executor": f"{lines['executor']}, and {behind['executor']}",
            "cut": "; ".join(parts),
        }

    def close(self) -> None:
        """Give back threads and memory; results that were returned stay valid."""
        self.reset()
        self._reads.close()
        for executor in self._executors:
            executor.close()

    def _inputs(
        self, executor: DaliExecutor | ArrayBatchExecutor, fields: Fields, draws: Sequence[Draw]
    ) -> tuple[Fields, list[Draw]]:
        """Return the fields of a batch that an executor acts on, and its draws."""
        names, places = executor.graph.touched, self._places[self._executors.index(executor)]
        return {name: fields[name] for name in names if name in fields}, [
            draws[place] for place in places
        ]

    def _finish(self, fields: Fields, draws: list[Draw]) -> Fields:
        """Return all fields, once the ops behind DALI are done (on a GPU: queued).

        Args:
            fields: the results of DALI and of the ops beside it, and the other fields of the ops
                behind them.
            draws: of the ops behind them.
        """
        if not self._behind.graph.ops:
            return fields
        touched = {name: fields[name] for name in self._behind.graph.touched}
        try:
            self._behind.start(touched, draws)
        finally:
            if (
                self.device != "cpu"
            ):  # DALI uses memory again once it is dropped, and the kernels may read it later
                self._reads.add(_arrays(touched), devices.cupy().cuda.get_current_stream())
        return {**fields, **self._behind.finish()}


def _around(graph: Graph, places: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of the ops on fields that DALI does not touch, and of those behind DALI on
    its results."""
    beside, behind = [], []
    fields = {name for place in places for name in graph.outputs[place]}
    for place in sorted(set(range(len(graph.ops))).difference(places)):
        if fields.isdisjoint(graph.outputs[place]):
            beside.append(place)
        else:
            behind.append(place)
            fields.update(graph.outputs[place])
    return tuple(beside), tuple(behind)


def _arrays(fields: Fields) -> list[Any]:
    """Return the arrays of some fields."""
    arrays: list[Any] = []
    for values in fields.values():
        if isinstance(values, Ragged):
            arrays += [values.payload]
        elif isinstance(values, list):
            arrays += values
        else:
            arrays += [values]
    return arrays

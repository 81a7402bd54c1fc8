"""Chain: a graph whose first ops run in DALI, and whose other ops run in their array forms behind them.

An op needs its array form alone: where it has none for DALI, the graph is cut before it. Batches stay on the device:
CuPy reads what DALI made, on the same stream, and the host waits for nothing in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from gpuload import device as devices
from gpuload.executors.array import ArrayBatchExecutor
from gpuload.executors.base import Fields, one_row
from gpuload.executors.dali.executor import DaliExecutor
from gpuload.executors.dali.program import Reads
from gpuload.ops.base import Draw, RowError
from gpuload.ops.graph import Graph
from gpuload.ragged import Ragged


class Chain:
    """Runs a graph in two executors; a ``BatchExecutor``.

    Args:
        graph: what it runs.
        places: of the ops that DALI runs; no other op comes before them on their fields.
        device: ``"cpu"`` or ``"gpu:N"``.
        batch_size: the largest batch.
        num_threads: DALI's worker threads.

    Raises:
        MissingPackageError, DeviceError, SpecError: see ``DaliExecutor``.
    """

    kind: Literal["batches"] = "batches"
    name = "dali"
    any_length = False

    def __init__(self, graph: Graph, places: Sequence[int], *, device: str, batch_size: int, num_threads: int) -> None:
        self.graph = graph
        self._places = tuple(places), tuple(place for place in range(len(graph.ops)) if place not in places)
        first = graph.part(self._places[0])
        self._dali = DaliExecutor(first, device=device, batch_size=batch_size, num_threads=num_threads)
        self.device = self._dali.device
        self._array = ArrayBatchExecutor(graph.part(self._places[1], first.spec_out), device=self.device)
        self._waiting: deque[tuple[Fields, list[Draw]]] = deque()  # fields that DALI does not touch, and draws
        self._reads = Reads()

    def start(self, fields: Fields, draws: Sequence[Draw]) -> None:
        """Queue a batch; see ``BatchExecutor``."""
        self._dali.start(*self._first(fields, draws))
        self._waiting.append(self._second(fields, draws))

    def finish(self) -> Fields:
        """Return the fields of the oldest batch that was started; see ``BatchExecutor``."""
        second = self._waiting.popleft() if self._waiting else None
        fields = self._dali.finish()  # an error where nothing was started
        return fields if second is None else self._behind(fields, *second)

    def refused(self, fields: Fields, draws: Sequence[Draw], row: int) -> RowError | None:
        """Return why a row of a batch cannot be used; see ``BatchExecutor``."""
        try:
            now = self._dali.run_row(*self._first(fields, draws), row)
            beside, drawn = one_row(*self._second(fields, draws), row)
            self._behind(now, beside, drawn)
        except RowError as error:
            return error
        return None

    def reset(self) -> None:
        """Forget the batches that were started and not finished."""
        self._dali.reset()
        self._waiting.clear()

    def describe(self) -> dict[str, str]:
        """Return what was chosen, a line each."""
        lines, behind = self._dali.describe(), self._array.describe()
        where = "on the host" if self.device == "cpu" else "on the same stream"
        ops = " ".join(type(op).__name__ for op in self._dali.graph.ops)
        executor = f"{lines['executor']}, and behind it {behind['executor']}"
        return {**lines, "executor": executor, "cut": f"DALI runs {ops}; behind it, {where}: {behind['stages']}"}

    def close(self) -> None:
        """Give back threads and memory; what was returned stays valid."""
        self.reset()
        self._reads.close()
        self._dali.close()
        self._array.close()

    def _first(self, fields: Fields, draws: Sequence[Draw]) -> tuple[Fields, list[Draw]]:
        """Return the fields and draws for DALI."""
        touched = {name: values for name, values in fields.items() if name in self._dali.graph.touched}
        return touched, [draws[place] for place in self._places[0]]

    def _second(self, fields: Fields, draws: Sequence[Draw]) -> tuple[Fields, list[Draw]]:
        """Return the fields that do not come from DALI, and the draws, for the ops behind it."""
        names = self._array.graph.touched - self._dali.graph.results
        return {name: fields[name] for name in names if name in fields}, [draws[place] for place in self._places[1]]

    def _behind(self, made: Fields, beside: Fields, draws: list[Draw]) -> Fields:
        """Return all fields, once the ops behind DALI are done (on a GPU: queued)."""
        touched = {name: values for name, values in made.items() if name in self._array.graph.touched}
        try:
            self._array.start({**touched, **beside}, draws)
        finally:
            if self.device != "cpu":  # DALI uses memory again once it is dropped, and the kernels may read it later
                self._reads.add(_arrays(touched), devices.cupy().cuda.get_current_stream())
        return {**made, **self._array.finish()}


def _arrays(fields: Fields) -> list[Any]:
    """Return the arrays of some fields."""
    arrays: list[Any] = []
    for values in fields.values():
        arrays += [values.payload] if isinstance(values, Ragged) else values if isinstance(values, list) else [values]
    return arrays

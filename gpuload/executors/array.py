"""Array executor: the array forms of the ops, on NumPy or on CuPy; on the CPU in compiled kernels where they are.

The chain of ops of each field is cut once into stages:

    images   decode and resize one image after the other and walk over it while it is in the cache
    walk     crop, mirror, reorder, normalise a batch in one pass
    arrays   one op after the other in its array form; without Numba, and on a GPU, every stage but decoding is this

On the CPU ``run`` is called by many threads at once, each with some rows of a step: a row's result depends on nothing
but the row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from gpuload import device as devices
from gpuload import kernels
from gpuload.errors import DeviceError
from gpuload.executors.base import Fields, Graph
from gpuload.executors.chain import Chain, make_chain
from gpuload.ops.base import Draw


class ArrayExecutor:
    """Runs a graph in array code; an ``Executor``, and with ``run`` callable from any number of threads at once.

    Args:
        graph: what it runs.
        device: ``"cpu"`` or ``"gpu:N"``.

    Raises:
        DeviceError: an op decodes images and the device is a GPU.
    """

    name = "array"
    depth = 1

    def __init__(self, graph: Graph, *, device: str = "cpu") -> None:
        self.graph, self.device = graph, devices.choose(device)[0]
        if self.device != "cpu" and any(op.codec for op in graph.ops):
            raise DeviceError(
                f'executor="array" on {self.device}',
                cause="CuPy does not decode images",
                remedy='use executor="dali", or device="cpu"',
            )
        self._xp = devices.xp(self.device)
        self._compiled = self.device == "cpu" and kernels.compiled()
        touched = [name for name in graph.spec_in.names if name in graph.touched]
        self._chains: dict[str, Chain] = {name: make_chain(graph, name, self._compiled) for name in touched}
        self._done: deque[Fields] = deque()

    def run(self, fields: Fields, draws: Sequence[Draw], out: Mapping[str, Any] | None = None) -> Fields:
        """Return the fields of ``graph.touched`` after all ops.

        Args:
            fields: for each touched field its rows: an array ``[N, ...]``, or a list of arrays where shapes vary.
            draws: of every op, for these rows.
            out: arrays of ``spec_out``'s dtype and shape, C-contiguous, into which results of these names are written.

        Raises:
            RowError: a row cannot be decoded, or an op cannot take its values.
        """
        count = max((len(values) for values in fields.values()), default=0)
        return self.run_rows(fields, self.plan(draws, count), slice(0, count), out)

    def plan(self, draws: Sequence[Draw], count: int) -> dict[str, list[Any]]:
        """Return what the ops make of the draws of ``count`` rows; ``run_rows`` may then do them bit by bit."""
        return {name: chain.plan(draws, count) for name, chain in self._chains.items()}

    def run_rows(
        self, fields: Fields, plan: Mapping[str, list[Any]], rows: slice, out: Mapping[str, Any] | None = None
    ) -> Fields:
        """The same as ``run`` for some of the rows that were planned; ``fields`` and ``out`` have just these."""
        with self._on_device():
            return {
                name: chain.run_rows(self._xp, fields[name], plan[name], rows, (out or {}).get(name))
                for name, chain in self._chains.items()
            }

    def start(self, fields: Fields, draws: Sequence[Draw]) -> None:
        """Run a batch; see ``Executor``."""
        self._done.append(self.run(fields, draws))

    def finish(self) -> Fields:
        """Return the fields of the oldest batch that was started; see ``Executor``."""
        return self._done.popleft()

    def reset(self) -> None:
        """Forget the batches that were started and not finished."""
        self._done.clear()

    def describe(self) -> dict[str, str]:
        """Return what was chosen, a line each."""
        forms = "compiled kernels" if self._compiled else self._xp.__name__
        missing = self.device == "cpu" and not self._compiled
        stages = "; ".join(f"{name}: {chain}" for name, chain in self._chains.items())
        return {
            "executor": f"array, {forms}" + (": Numba is not installed, which makes it many times faster" * missing),
            "device": self.device,
            "stages": stages or "none: there are no ops",
        }

    def close(self) -> None:
        """Give back memory."""
        self.reset()

    def _on_device(self) -> Any:
        return nullcontext() if self._xp is np else self._xp.cuda.Device(devices.number(self.device))

"""Feed: a graph with a DALI pipeline that runs elsewhere, in TensorFlow's plugin; the input is made
here.

A batch is packed into one array of bytes, and the pipeline takes it apart again. So the pipeline's
runner reads one stream, for any number of fields and draws, and nothing can get out of step.

Layout   uint8 ``[n, width]``, a row for each record: first the inputs of fixed size that belong on
         the host (draws); then, for each input of varying size, where its bytes begin, how many
         they are, and its shape, all int32; then the inputs of fixed size that belong on the device
         (fields); then the bytes of the others. Rows are padded to the longest of the batch.
GPU      The plugin (2.4) takes inputs from the GPU alone, and DALI wants encoded images and draws
         on the host. So they come back, by one copy for all: of the whole rows where there are
         images, else of the first part of each.
Plugin   DALI 2.4 hands out garbage where an operator that changes no byte (reshape, reinterpret)
         gets an input of the plugin itself. Here each input goes through a slice, which copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.executors.base import Fields, find_row_error, one_row
from gpuload.executors.dali.executor import load
from gpuload.executors.dali.program import DALI_DTYPES, Input, PendingBatch, Program
from gpuload.graph.graph import Graph
from gpuload.ops.base import Draw, RowError

INPUT_NAME = "packed"  # the name of the input
INT32_BYTES = 4


class Feed:
    """The input of a pipeline, and the pipeline.

    Args:
        graph: the ops of the pipeline.
        names: the fields that it puts out, in this order; one may come more than once.
        device: ``"cpu"`` or ``"gpu:N"``, where it will run.
        batch_size: the largest batch.

    Raises:
        SpecError: an op has no DALI form, a field has a dtype that DALI has not, or values that are
            made on the way would have to be checked, which is impossible there.
    """

    def __init__(self, graph: Graph, names: Sequence[str], *, device: str, batch_size: int) -> None:
        dali = load(device)
        self.names, self.batch_size = tuple(names), batch_size
        device_id = None if device == "cpu" else int(device.partition(":")[2])
        self._program = Program(dali, graph, device_id)
        if self._program.checks_on_the_way:
            op, name = self._program.checks_on_the_way[0]
            raise SpecError(
                f"{op} on field {name!r}, in a pipeline that runs outside of gpuload",
                cause="it checks values that another op has made, and there is no error for that "
                "there",
                remedy=f"put {type(op).__name__} before the ops that change {name!r}, or do not "
                "use the plugin",
            )
        passthrough = [name for name in dict.fromkeys(names) if name not in graph.results]
        self._passthrough = {
            name: self._program.field_input(graph.spec_in[name]) for name in passthrough
        }
        inputs = [*self._program.inputs, *self._passthrough.values()]
        fixed = [source for source in inputs if None not in source.shape]
        self._fixed_on_host = [source for source in fixed if source.device == "cpu"]
        self._fixed_on_device = [source for source in fixed if source.device != "cpu"]
        self._varying = [source for source in inputs if None in source.shape]
        self.inputs = tuple(source.name for source in inputs)

    def pipeline(self, num_threads: int) -> Any:
        """Return a pipeline with one input, `INPUT_NAME`, and with outputs that are the
        fields of ``names``."""
        return self._program.build(self.batch_size, num_threads, outputs=self._outputs)

    def executor(self) -> Feeding:
        """Return the object in the place of an executor where batches are made ready."""
        return Feeding(self._program, self.batch_size)

    def pack(self, values: Mapping[str, Any]) -> NDArray[np.uint8]:
        """Return a batch of inputs as one array; see above."""
        count = len(next(iter(values.values())))
        on_host = [_bytes(values[source.name], count) for source in self._fixed_on_host]
        on_device = [_bytes(values[source.name], count) for source in self._fixed_on_device]
        heads, payloads = [], []
        begin = np.full(
            count,
            sum(part.shape[1] for part in [*on_host, *on_device]) + self._heads_bytes,
            np.int64,
        )
        for source in self._varying:
            rows = [np.ascontiguousarray(row) for row in values[source.name]]
            sizes = np.array([row.nbytes for row in rows], np.int64)
            heads.append(
                np.column_stack([begin, sizes, *(np.array([row.shape for row in rows]).T)])
            )
            payloads.append((begin, rows))
            begin = begin + sizes
        # Places in a row are int32, the type of DALI's arguments ``start`` and ``shape``.
        if begin.max(initial=0) > np.iinfo(np.int32).max:
            raise SpecError(
                f"a record of {begin.max()} bytes",
                cause="DALI's plugin is fed 2 GiB at most",
                remedy="cut it up",
            )
        # Zeros: shorter rows are padded, without the bytes that were in this memory before.
        matrix = np.zeros((count, int(begin.max(initial=0))), np.uint8)
        place = 0
        for part in [
            *on_host,
            *(_bytes(head.astype(np.int32), count) for head in heads),
            *on_device,
        ]:
            matrix[:, place : place + part.shape[1]] = part
            place += part.shape[1]
        for begins, rows in payloads:
            for number, (first, row) in enumerate(zip(begins.tolist(), rows, strict=True)):
                matrix[number, first : first + row.nbytes] = row.reshape(-1).view(np.uint8)
        return matrix

    @property
    def _heads_bytes(self) -> int:
        """The bytes that say where inputs of varying size lie in a row."""
        return sum(INT32_BYTES * (2 + len(source.shape)) for source in self._varying)

    def _outputs(self) -> list[Any]:
        """Return the nodes of the outputs."""
        dali, on_gpu = self._program.dali, self._program.device_id is not None
        device = "gpu" if on_gpu else "cpu"
        batch_bytes = dali.fn.external_source(
            name=INPUT_NAME, device=device, dtype=dali.types.UINT8, ndim=1, batch=True, layout="X"
        )

        first_bytes = sum(source.row_bytes for source in self._fixed_on_host) + self._heads_bytes
        host = self._on_host(batch_bytes, first_bytes)

        def slice_rows(begin: Any, size: Any, side: str, *, first: bool = False) -> Any:
            if side == "cpu" and (first or self._program.decodes):
                return dali.fn.slice(host, start=begin, shape=size, axes=[0])
            part = dali.fn.slice(batch_bytes, start=begin, shape=size, axes=[0])
            if side == device:
                return part
            return part.cpu()

        def to_type(raw: Any, source: Input, shape: Any) -> Any:
            if len(source.layout) == len(source.shape) > 0:
                layout = {"layout": source.layout}
            else:
                layout = {}
            dtype = getattr(dali.types, DALI_DTYPES[source.dtype.name])
            if not source.shape:
                return dali.fn.squeeze(dali.fn.reinterpret(raw, dtype=dtype, shape=[1]), axes=[0])
            return dali.fn.reinterpret(raw, dtype=dtype, shape=shape, **layout)

        nodes, place, heads = {}, 0, {}
        for source in self._fixed_on_host:
            nodes[source.name] = to_type(
                slice_rows([place], [source.row_bytes], "cpu", first=True),
                source,
                list(source.shape),
            )
            place += source.row_bytes
        for source in self._varying:
            length = 2 + len(source.shape)
            head = slice_rows([place], [INT32_BYTES * length], "cpu", first=True)
            heads[source.name] = dali.fn.reinterpret(head, dtype=dali.types.INT32, shape=[length])
            place += INT32_BYTES * length
        for source in self._fixed_on_device:
            nodes[source.name] = to_type(
                slice_rows([place], [source.row_bytes], source.device), source, list(source.shape)
            )
            place += source.row_bytes
        for source in self._varying:
            head = heads[source.name]
            nodes[source.name] = to_type(
                slice_rows(head[0:1], head[1:2], source.device), source, head[2:]
            )
        results = self._program.nodes(nodes)
        outputs: list[Any] = []
        for place, name in enumerate(self.names):
            node = results[name] if name in results else nodes[name]
            if name in self.names[:place]:  # DALI puts out a node once
                node = dali.fn.copy(node)
            outputs.append(node)
        if on_gpu:
            return [node.gpu() for node in outputs]
        return outputs

    def _on_host(self, batch_bytes: Any, first_bytes: int) -> Any:
        """Return the node of the rows on the host; on a GPU of their first bytes, where that is all
        that is needed."""
        if self._program.device_id is None or not (first_bytes or self._program.decodes):
            return batch_bytes
        if self._program.decodes:
            rows = batch_bytes
        else:
            rows = self._program.dali.fn.slice(
                batch_bytes, start=[0], shape=[first_bytes], axes=[0]
            )
        return rows.cpu()


class Feeding:
    """A ``BatchExecutor`` that runs nothing: it returns the inputs of a pipeline elsewhere."""

    kind: Literal["batches"] = "batches"
    name, device, any_length, bundles = "dali", "cpu", False, False

    def __init__(self, program: Program, batch_size: int) -> None:
        self._program, self._batch_size, self.graph = program, batch_size, program.graph
        self._pending: deque[PendingBatch] = deque()

    def start(self, fields: Fields, draws: Sequence[Draw]) -> None:
        """Check a batch; see ``BatchExecutor``."""
        self._pending.append(self._program.check(fields, draws, self._batch_size))

    def finish(self) -> Fields:
        """Return the inputs of the oldest batch; see ``BatchExecutor``."""
        batch = self._pending.popleft()
        batch.checks.answer()
        return batch.inputs

    def row_error(self, fields: Fields, draws: Sequence[Draw], row: int) -> RowError | None:
        """Return why a row of a batch cannot be used, as far as that is known before the pipeline
        runs."""
        inputs = one_row(fields, draws, row)
        return find_row_error(
            lambda: self._program.check(*inputs, self._batch_size).checks.answer()
        )

    def reset(self) -> None:
        """Forget the batches that were started and not finished."""
        self._pending.clear()

    def describe(self) -> dict[str, str]:
        """Return each choice, a line each."""
        return {"executor": "none here: the pipeline runs elsewhere"}

    def close(self) -> None:
        """There is nothing to give back."""


def _bytes(values: NDArray[Any], count: int) -> NDArray[np.uint8]:
    """Return the rows of an array as bytes, ``[count, row bytes]``."""
    return np.ascontiguousarray(values).reshape(count, -1).view(np.uint8).reshape(count, -1)

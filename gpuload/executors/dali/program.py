"""A graph in terms of DALI: its inputs and outputs, and the pipeline between them. It is given the
module nvidia.dali.

Inputs    an external source for each field that an op acts on and for each argument of a draw. They
          are checked here, because DALI takes a wrong byte order or a complex number silently, and
          one wrong input ends a pipeline.
Outputs   DALI's memory without a copy: NumPy arrays on the CPU, CuPy arrays on a GPU. Ragged fields
          are copied into one payload, for DALI need not have its rows side by side.
Checks    DALI has no error for values. Those of an input are checked when it is fed; values made on
          the way become an output as well and are checked when it comes.
"""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload.errors import DeviceError, GpuloadError, SpecError, UnknownFieldError
from gpuload.executors.base import Array, Fields, Values
from gpuload.executors.checks import Checks
from gpuload.graph.graph import Graph
from gpuload.images import head
from gpuload.ops.base import HEADS, Draw, Op, RowError
from gpuload.ops.value.decode import Decode
from gpuload.ragged import Ragged
from gpuload.spec import Field, Shape

# NumPy's name of a dtype and DALI's; DALI has no others (complex, text, datetimes, longdouble).
DALI_DTYPES = {name: name.upper() for name in ("bool", "int8", "int16", "int32", "int64")}
DALI_DTYPES |= {
    name: name.upper() for name in ("uint8", "uint16", "uint32", "uint64", "float16", "float64")
}
DALI_DTYPES |= {"float32": "FLOAT"}
DRAW_DTYPES = ("int32", "float32")
CODEC_STATUS = {
    "3": "its bytes are damaged",
    "4": "it is no image that DALI can decode",
}  # of nvImageCodec


class Program:
    """A graph in terms of DALI: its inputs, and how to build a pipeline of it."""

    def __init__(self, dali: ModuleType, graph: Graph, device_id: int | None) -> None:
        self.dali, self.graph, self.device_id = dali, graph, device_id
        self.names = tuple(name for name in graph.spec_out.names if name in graph.results)
        fields = [field for field in graph.spec_in if field.name in graph.touched]
        self.decodes = any(field.encoded for field in fields)
        self.is_only = any(op.traits.execution.needs_dali for op in graph.ops)
        self.fields = {field.name: self.field_input(field) for field in fields}
        checks = [
            (place, name)
            for place, op in enumerate(graph.ops)
            if op.traits.check
            for name in graph.targets[place]
        ]
        self._checked_inputs = [
            (place, name) for place, name in checks if not self._is_made(place, name)
        ]
        self._checked_outputs = [
            (place, name) for place, name in checks if self._is_made(place, name)
        ]
        self._mirrors = self._mirror_places()
        self._seen_files: set[str] = set()  # fields of files of which one batch was looked at
        self.draws = [
            self._draw_inputs(place, draw) for place, draw in enumerate(graph.empty_draws)
        ]

    @property
    def inputs(self) -> list[Input]:
        """All inputs: of the fields, then of the draws."""
        return [
            *self.fields.values(),
            *(source for sources in self.draws for source in sources.values()),
        ]

    @property
    def checks_on_the_way(self) -> list[tuple[Op, str]]:
        """The ops that check values which other ops have made, each with the field."""
        return [(self.graph.ops[place], name) for place, name in self._checked_outputs]

    def build(
        self, batch_size: int, num_threads: int, outputs: Callable[[], list[Any]] | None = None
    ) -> Any:
        """Return a built pipeline.

        Args:
            batch_size: the largest batch.
            num_threads: DALI's workers.
            outputs: makes its outputs, in place of those that `values` understands.

        Raises:
            SpecError: DALI refuses an op.
            DeviceError: DALI cannot use the GPU.
        """
        # exec_dynamic: for ``outputs(cuda_stream=)``. Depth 1: batches in flight are counted in
        # `executor.py`.
        pipeline = self.dali.pipeline.Pipeline(
            batch_size, num_threads, self.device_id, exec_dynamic=True, prefetch_queue_depth=1
        )
        # Before it is built: a fork while DALI builds it would leave the child a pipeline that
        # `_abandon` does not know.
        _pipelines.add(pipeline)
        try:
            with pipeline:
                pipeline.set_outputs(*(outputs or self._outputs)())
            pipeline.build()
        except GpuloadError:
            raise
        except Exception as error:  # DALI's C++ may throw any
            subject = f"DALI makes no pipeline of {list(self.graph.ops)}"
            raise refusal(subject, error, only=self.is_only) from error.with_traceback(None)
        return pipeline

    def check(self, fields: Fields, draws: Sequence[Draw], batch_size: int) -> PendingBatch:
        """Return a batch to feed; raises ``SpecError`` or ``UnknownFieldError`` where it does not
        fit the graph."""
        values: dict[str, tuple[Input, Any]] = {}
        for name, source in self.fields.items():
            if name not in fields:
                raise UnknownFieldError(
                    f"no field {name!r}", cause=f"given: {list(fields)}", remedy="give it"
                )
            if self.graph.spec_in[name].encoded:
                _check_formats(fields[name], self._heads(name, draws))
                self._tell_losses(name, fields[name])
            values[source.name] = source, fields[name]
        for sources, draw in zip(self.draws, draws, strict=True):
            values |= {source.name: (source, draw[key]) for key, source in sources.items()}
        inputs = {name: source.prepare(array) for name, (source, array) in values.items()}
        # Compared here, before anything is fed: DALI ends the pipeline where its inputs differ in
        # length (2.4).
        counts = {name: len(array) for name, array in inputs.items()}
        count = next(iter(counts.values()), 0)
        if inputs and (set(counts.values()) != {count} or not 0 < count <= batch_size):
            raise SpecError(
                f"a batch of {counts} rows",
                cause=f"all must have one length, from 1 to {batch_size}",
                remedy="give one row per record, and make the executor with the largest batch_size",
            )
        checks = Checks(self._xp)
        for place, name in self._checked_inputs:
            checks.ask(self.graph.ops[place], fields[name])
        checks.send()
        return PendingBatch(count, inputs, checks)

    def values(self, outputs: Any, reads: Reads) -> Fields:
        """Return DALI's outputs as values of the fields; ``reads`` takes the rows that queued
        copies still read.

        Raises:
            RowError: an op cannot take the values of a row.
            SpecError: the DALI form of an op makes a result that does not fit its spec.
        """
        checks = Checks(self._xp)
        for (place, name), output in zip(
            self._checked_outputs, outputs[len(self.names) :], strict=True
        ):
            checks.ask(
                self.graph.ops[place],
                _values(self._xp, self.graph.before(place)[name], output, reads),
            )
        checks.send()
        checks.answer()
        return {
            name: _values(self._xp, self.graph.spec_out[name], output, reads)
            for name, output in zip(self.names, outputs[: len(self.names)], strict=True)
        }

    def _tell_losses(self, name: str, files: Any) -> None:
        """Have the op that decodes a field look at its first batch, once, and tell which rows it
        leaves out of images."""
        if name in self._seen_files:
            return
        self._seen_files.add(name)
        for op, on in zip(self.graph.ops, self.graph.targets, strict=True):
            if not isinstance(op, Decode) or name not in on:
                continue
            for file in files:
                with suppress(head.HeadError):  # DALI names the fault
                    op.tell_losses(file, head.read(file))

    def _heads(self, name: str, draws: Sequence[Draw]) -> NDArray[np.int32] | None:
        """Return the heads of the images of a field, where they were read to draw; see
        ``read_heads``."""
        targets = zip(self.graph.targets, draws, strict=True)
        return next((draw[HEADS] for on, draw in targets if name in on and HEADS in draw), None)

    @property
    def _xp(self) -> ModuleType:
        if self.device_id is None:
            return np
        return devices.cupy()

    def _is_made(self, place: int, name: str) -> bool:
        """Return True if an op before the one at a place acts on the field."""
        return any(name in names for names in self.graph.outputs[:place])

    def nodes(
        self, inputs: Mapping[str, Any], check_nodes: list[Any] | None = None
    ) -> dict[str, Any]:
        """Return the nodes of the fields after all ops; called while a pipeline is being defined.

        Args:
            inputs: the nodes of the inputs, by the names of these.
            check_nodes: nodes of values that are to be checked are appended to it.
        """
        if self.device_id is None:
            device = "cpu"
        else:
            device = "gpu"
        nodes = {name: inputs[source.name] for name, source in self.fields.items()}
        for place, on in enumerate(self.graph.targets):
            draw = {key: inputs[source.name] for key, source in self.draws[place].items()}
            if self.graph.ops[place].traits.joint:
                after = self.graph.specs[place].only(self.graph.outputs[place])
                inputs_of_op = {name: nodes[name] for name in on}
                joint = self.graph.ops[place].traits.joint
                if joint is None or joint.lower_fields is None:
                    raise RuntimeError(f"{self.graph.ops[place]} has no form for DALI")
                nodes |= joint.lower_fields(self.dali, inputs_of_op, draw, after)
                continue
            for name in on:
                if check_nodes is not None and (place, name) in self._checked_outputs:
                    check_nodes.append(nodes[name])
                if (place, name) in self._mirrors.values():
                    continue  # the next op on the field does it
                op, field = self.graph.op_on(place, name), self.graph.before(place)[name]
                lower_mirror = op.traits.execution.lower_mirror
                if (place, name) in self._mirrors and lower_mirror is not None:
                    mirror = inputs[self._mirror_input(self._mirrors[place, name][0]).name]
                    nodes[name] = lower_mirror(
                        self.dali, nodes[name], mirror, draw, field=field, device=device
                    )
                else:
                    nodes[name] = op.lower(self.dali, nodes[name], draw, field=field, device=device)
        return nodes

    def _mirror_places(self) -> dict[tuple[int, str], tuple[int, str]]:
        """Return where an op mirrors images with its own work: its place and field, and those of
        the op that is meant.

        Where an op mirrors several fields, it is done so for all of them or for none: DALI has no
        input that no operator uses.
        """
        mirrors: dict[tuple[int, str], tuple[int, str]] = {}
        for place, (op, on) in enumerate(zip(self.graph.ops, self.graph.targets, strict=True)):
            if op.traits.execution.mirror is not None:
                following = [self._next_place(place, name) for name in on]
            else:
                following = []
            if following and all(
                self._takes_mirror(at, name) for at, name in zip(following, on, strict=True)
            ):
                mirrors |= {
                    (at, name): (place, name)
                    for at, name in zip(following, on, strict=True)
                    if at is not None
                }
        return mirrors

    def _next_place(self, place: int, name: str) -> int | None:
        """Return the place of the next op that acts on a field."""
        return next(
            (at for at in range(place + 1, len(self.graph.ops)) if name in self.graph.targets[at]),
            None,
        )

    def _takes_mirror(self, place: int | None, name: str) -> bool:
        """Return True if the op at a place can mirror the images of a field, and no value is
        checked before it."""
        if place is None or (place, name) in self._checked_outputs:
            return False
        has_form = self.graph.op_on(place, name).traits.execution.lower_mirror is not None
        return has_form and not self.graph.before(place)[name].is_volume

    def _mirror_input(self, place: int) -> Input:
        return self.draws[place][str(self.graph.ops[place].traits.execution.mirror)]

    def _outputs(self) -> list[Any]:
        check_nodes: list[Any] = []
        nodes = self.nodes(
            {source.name: source.node(self.dali) for source in self.inputs}, check_nodes
        )
        outputs: list[Any] = []
        for node in [*(nodes[name] for name in self.names), *check_nodes]:
            if any(node is output for output in outputs):  # DALI puts out a node once
                node = self.dali.fn.copy(node)
            outputs.append(node)
        if self.device_id is None:
            return outputs
        return [node.gpu() for node in outputs]

    def field_input(self, field: Field) -> Input:
        """Return the input of a field; raises ``SpecError`` where DALI has no such dtype or
        rank."""
        if field.dtype.name not in DALI_DTYPES or field.shape is None:
            raise SpecError(
                f"field {field.name!r} is {field.dtype} {field.shape}",
                cause="DALI has boolean, integer and float (16, 32, 64) arrays of one rank",
                remedy='executor="array" has no such limit',
            )
        on_gpu = self.device_id is not None and not field.encoded
        device = "gpu" if on_gpu else "cpu"
        return Input(field.name, field.dtype, field.shape, field.axes, device)

    def _draw_inputs(self, place: int, draw: Draw) -> dict[str, Input]:
        """Return the inputs of the pipeline for the draw of an op; of a mirror that a crop does,
        its draw alone."""
        if place in (mirror_place for mirror_place, _ in self._mirrors.values()):
            # DALI leaves an input out that no operator uses, and to feed it is an error then (2.4).
            draw = {
                key: values
                for key, values in draw.items()
                if key == self.graph.ops[place].traits.execution.mirror
            }
        for key, values in draw.items():
            if values.dtype.name not in DRAW_DTYPES:
                raise SpecError(
                    f"ops[{place}]: {self.graph.ops[place]} draws {key!r} as {values.dtype}",
                    cause="DALI's arguments are int32 or float32",
                    remedy="let draw() return one of these",
                )
        # The rows of a draw may have any length along their axes: the number of erased boxes, say.
        return {
            key: Input(f"op{place}_{key}", values.dtype, (None,) * (values.ndim - 1), "", "cpu")
            for key, values in draw.items()
        }


@dataclass(frozen=True)
class Input:
    """One external source."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape  # of a row; None where it varies
    layout: str
    device: str

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of constant shape."""
        return self.dtype.itemsize * prod(length or 0 for length in self.shape)

    def node(self, dali: ModuleType) -> Any:
        """Return the DataNode; a GPU copies its inputs (it cannot share host memory), the CPU does
        not."""
        if len(self.layout) == len(self.shape) > 0:
            layout = {"layout": self.layout}
        else:
            layout = {}
        dtype = getattr(dali.types, DALI_DTYPES[self.dtype.name])
        return dali.fn.external_source(
            name=self.name,
            device=self.device,
            dtype=dtype,
            ndim=len(self.shape),
            no_copy=self.device == "cpu",
            **layout,
        )

    def prepare(self, values: Any) -> Any:
        """Return the rows of a batch as DALI may have them, copied only where they are not
        contiguous."""
        if isinstance(values, list):
            for value in values:
                self._check(value, value.shape)
            return [_contiguous(value) for value in values]
        if isinstance(values, Ragged):
            self._check(values.payload, (None, *values.payload.shape[1:]))
            if values.payload.flags.c_contiguous:
                return values
            return values.with_payload(_contiguous(values.flat))
        self._check(values, values.shape[1:])
        return _contiguous(values)

    def _check(self, values: Any, shape: Shape) -> None:
        # ValueCheck here: DALI takes a wrong byte order without a word, and one wrong input ends the
        # pipeline.
        fits = len(shape) == len(self.shape) and all(
            want in (None, have) for want, have in zip(self.shape, shape, strict=True)
        )
        on_gpu = not isinstance(values, np.ndarray)
        if values.dtype != self.dtype or not fits or (on_gpu and self.device == "cpu"):
            suffix = " on a GPU" if on_gpu else ""
            raise SpecError(
                f"{self.name!r} holds {values.dtype.str} {shape}{suffix}",
                cause=f"DALI was told {self.dtype.str} {self.shape} on the {self.device}",
                remedy="give the batch as the graph's spec says it",
            )


@dataclass(frozen=True)
class PendingBatch:
    """A batch that was started: its inputs, kept until its outputs were taken, and the checks of
    their values."""

    count: int
    inputs: dict[str, Any]
    checks: Checks


def _check_formats(files: Any, heads: NDArray[np.int32] | None) -> None:
    """Raise ``RowError`` for the first image file of a format that DALI has no codec for; it would
    not say which.

    Args:
        files: of a batch.
        heads: from `head.read_heads`, by which JPEGs are known; None where they were not read.
    """
    rows: Sequence[int] = range(len(files))
    if heads is not None:
        rows = np.flatnonzero(~head.are_jpegs(heads)).tolist()
    for row in rows:
        if title := head.foreign_to_dali(files[row], may_be_jpeg=heads is None):
            raise RowError(
                row,
                f"it is of the format {title}",
                cause=f"DALI has no codec for {title}; the core, or Pillow, decodes it on the host",
                remedy='make the loader with decode="host", or store the image as PNG',
            )


def feedable(dali: ModuleType, values: Any) -> Any:
    """Return the rows of a batch as ``feed_input`` takes them at once; it works through a list in
    Python."""
    if not isinstance(values, (list, Ragged)):
        return values
    rows = list(values)
    if not isinstance(rows[0], np.ndarray):
        return rows  # on a GPU
    # Not contiguous: the rows stay where they are, one copy of a batch of files less.
    return dali.tensors.TensorListCPU(
        [dali.tensors.TensorCPU(row) for row in rows], contiguous=False
    )


def _contiguous(values: Array) -> Array:
    if values.flags.c_contiguous:
        return values
    return values.copy(order="C")


class Reads:
    """Rows in DALI's memory on a GPU that queued copies still read, kept until an event behind the
    copies has passed.

    DALI uses memory again as soon as no object refers to it, which is earlier than the copy on our
    stream runs.
    """

    def __init__(self) -> None:
        self._rows: deque[tuple[Any, list[Any]]] = deque()

    def add(self, rows: list[Any], stream: Any) -> None:
        """Keep rows until the work queued on a stream up to now has run; let go of those for which
        it has."""
        while self._rows and self._rows[0][0].done:
            self._rows.popleft()
        self._rows.append((stream.record(), rows))

    def close(self) -> None:
        """Wait for the copies, and let go of all rows."""
        while self._rows:
            self._rows[0][0].synchronize()
            self._rows.popleft()


def _values(xp: ModuleType, field: Field, output: Any, reads: Reads) -> Values:
    """Return an output of DALI as values of a field, in arrays of NumPy or CuPy."""
    # that waits on CuPy's current stream, the host does not
    if xp is np:
        convert = np.asarray
    else:
        convert = xp.from_dlpack
    if field.uniform and output.is_dense_tensor():
        array = convert(output.as_tensor())
        form = array.dtype, array.shape[1:]
        if form == (field.dtype, field.shape):
            return array
    else:
        rows = [convert(output[row]) for row in range(len(output))]
        form = rows[0].dtype, rows[0].shape
        if form[0] == field.dtype and not field.uniform:
            if not field.ragged:
                return rows
            ragged = Ragged.of(rows, field.dtype)
            if xp is not np:
                reads.add(rows, xp.cuda.get_current_stream())
            return ragged
    raise SpecError(
        f"field {field.name!r}: DALI makes {form[0]} {form[1]}",
        cause=f"the graph's spec says {field.dtype} {field.shape}",
        remedy="the op's lower() and its field_after() must agree",
    )


def refusal(subject: str, error: Exception, *, only: bool = False) -> GpuloadError:
    """Return the error for a refusal of DALI's, of the device or of the ops; ``only`` DALI may be
    able to run these."""
    message = reason(error)
    if isinstance(error, MemoryError) or "CUDA" in message:
        remedy = "a smaller batch_size, if memory ran out; else nvidia-smi says how the GPU is"
        return DeviceError(subject, cause=message, remedy=remedy)
    remedy = 'executor="array" runs the same ops without DALI'
    if only:
        remedy = (
            "look at the arguments of gl.ops.Dali, and at the dtype and shape of the field "
            "before it"
        )
    return SpecError(subject, cause=message, remedy=remedy)


def reason(error: Exception) -> str:
    """Return DALI's own message in one line, without the traceback and the frame around it."""
    text = str(error)
    status = re.search(r"nvImageCodec failure: '#(\d+)'", text)
    if status and status[1] in CODEC_STATUS:
        return f"the image cannot be decoded: {CODEC_STATUS[status[1]]}"
    if "Failed to decode sample" in text:
        return "the image cannot be decoded: its data is damaged or ends early"
    operator = re.search(r"`nvidia\.dali\.fn\.([\w.]+)`", text)
    lines = (line.strip() for line in (text.partition("encountered:")[2] or text).splitlines())
    message = next(
        (
            line
            for line in lines
            if line and not line.startswith(("Critical error", "Current pipeline"))
        ),
        text,
    )
    if operator:
        return f"{operator[1]}: {message}"
    return message


_pipelines: weakref.WeakSet[Any] = weakref.WeakSet()


def _abandon() -> None:
    """In a child of fork: never end the pipelines of the parent: their threads are not here.

    DALI 2.4 would end them at the exit of the child, wait for these threads, and end the process by
    a signal. Their memory is shared with the parent; it is never freed here, which one reference
    too many sees to.
    """
    for pipeline in list(_pipelines):
        inner, pipeline._pipe = pipeline._pipe, None
        if inner is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(inner))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)

"""A graph in terms of DALI: its inputs and outputs, and the pipeline between them. It is given the module nvidia.dali.

Inputs    an external source for each field that an op acts on and for each argument of a draw. They are checked here,
          because DALI takes a wrong byte order or a complex number silently, and one wrong input ends a pipeline.
Outputs   DALI's memory without a copy: NumPy arrays on the CPU, CuPy arrays on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from gpuload import device as devices
from gpuload.errors import DeviceError, GpuloadError, SpecError, UnknownFieldError
from gpuload.executors.base import Array, Fields, Graph, RowError
from gpuload.ops import images
from gpuload.ops.base import Draw, Op, Sizes
from gpuload.spec import Field, Shape, Spec

# NumPy's name of a dtype and DALI's; what is not here (complex, text, datetimes, longdouble) DALI has not.
DALI_DTYPES = {name: name.upper() for name in ("bool", "int8", "int16", "int32", "int64")}
DALI_DTYPES |= {name: name.upper() for name in ("uint8", "uint16", "uint32", "uint64", "float16", "float64")}
DALI_DTYPES |= {"float32": "FLOAT"}
DRAW_DTYPES = ("int32", "float32")
PROBE_PIXELS = 1 << 14  # sides of an image of unknown size, in the draw that is made to learn names, dtypes and ranks
CODEC_STATUS = {"3": "its bytes are damaged", "4": "it is no image that DALI can decode"}  # of nvImageCodec


class Program:
    """A graph in terms of DALI: its inputs, and how to build a pipeline of it."""

    def __init__(self, dali: ModuleType, graph: Graph, device_id: int | None) -> None:
        self.dali, self.graph, self.device_id = dali, graph, device_id
        self.names = tuple(name for name in graph.spec_in.names if name in graph.touched)
        fields = [graph.spec_in[name] for name in self.names]
        self.decodes = any(field.encoded for field in fields)
        self.fields = {field.name: self._field_input(field) for field in fields}
        self.draws = [self._draw_inputs(place, draw) for place, draw in enumerate(_probe(graph, fields))]
        # Where an op must see values before it runs, they become outputs too: DALI has no error for values.
        self.checked = [
            (place, name)
            for place, op in enumerate(graph.ops)
            for name in graph.targets[place]
            if type(op).check is not Op.check
        ]

    def build(self, batch_size: int, num_threads: int) -> Any:
        """Return a built pipeline.

        Raises:
            SpecError: DALI refuses an op.
            DeviceError: DALI cannot use the GPU.
        """
        pipeline = self.dali.pipeline.Pipeline(
            batch_size, num_threads, self.device_id, exec_dynamic=True, prefetch_queue_depth=1
        )
        try:
            with pipeline:
                pipeline.set_outputs(*self._outputs())
            pipeline.build()
        except GpuloadError:
            raise
        except Exception as error:  # DALI raises whatever its C++ threw
            raise refusal(f"DALI makes no pipeline of {list(self.graph.ops)}", error) from error.with_traceback(None)
        return pipeline

    def check(self, fields: Fields, draws: Sequence[Draw], batch_size: int) -> Started:
        """Return a batch to feed; raises ``SpecError`` or ``UnknownFieldError`` where it does not fit the graph."""
        values: dict[str, tuple[_Input, Any]] = {}
        for name, source in self.fields.items():
            if name not in fields:
                raise UnknownFieldError(f"no field {name!r}", cause=f"given: {list(fields)}", remedy="give it")
            values[source.name] = source, fields[name]
        for sources, draw in zip(self.draws, draws, strict=True):
            values |= {source.name: (source, draw[key]) for key, source in sources.items()}
        inputs = {name: source.checked(given) for name, (source, given) in values.items()}
        counts = {name: len(given) for name, given in inputs.items()}
        count = next(iter(counts.values()), 0)
        if inputs and (set(counts.values()) != {count} or not 0 < count <= batch_size):
            raise SpecError(
                f"a batch of {counts} rows",
                cause=f"all must have one length, from 1 to {batch_size}",
                remedy="give one row per record, and make the executor with the largest batch_size",
            )
        return Started(count, inputs)

    def arrays(self, outputs: Any) -> Fields:
        """Return DALI's outputs as arrays.

        Raises:
            RowError: an op cannot take the values of a row.
            SpecError: the DALI form of an op makes what its spec does not say.
        """
        xp = np if self.device_id is None else devices.cupy()
        for (place, name), output in zip(self.checked, outputs[len(self.names) :], strict=True):
            found = self.graph.ops[place].check(xp, _arrays(xp, self._before(place)[name], output))
            if found:
                raise RowError(*found)
        return {
            name: _arrays(xp, self.graph.spec_out[name], output)
            for name, output in zip(self.names, outputs[: len(self.names)], strict=True)
        }

    def _outputs(self) -> list[Any]:
        device = "cpu" if self.device_id is None else "gpu"
        nodes = {name: source.node(self.dali) for name, source in self.fields.items()}
        seen = []
        for place, op in enumerate(self.graph.ops):
            draw = {key: source.node(self.dali) for key, source in self.draws[place].items()}
            for name in self.graph.targets[place]:
                if (place, name) in self.checked:
                    seen.append(nodes[name])
                field = self._before(place)[name]
                nodes[name] = op.lower(self.dali, nodes[name], draw, field=field, device=device)
        outputs = [nodes[name] for name in self.names] + seen
        return outputs if device == "cpu" else [node.gpu() for node in outputs]

    def _before(self, place: int) -> Spec:
        return self.graph.specs[place - 1] if place else self.graph.spec_in

    def _field_input(self, field: Field) -> _Input:
        if field.dtype.name not in DALI_DTYPES or field.shape is None:
            raise SpecError(
                f"field {field.name!r} is {field.dtype} {field.shape}",
                cause="DALI has boolean, integer and float (16, 32, 64) arrays of one rank",
                remedy='executor="array" has no such limit',
            )
        on_gpu = self.device_id is not None and not field.encoded
        return _Input(field.name, field.dtype, field.shape, field.axes, "gpu" if on_gpu else "cpu")

    def _draw_inputs(self, place: int, draw: Draw) -> dict[str, _Input]:
        for key, values in draw.items():
            if values.dtype.name not in DRAW_DTYPES:
                raise SpecError(
                    f"ops[{place}]: {self.graph.ops[place]} draws {key!r} as {values.dtype}",
                    cause="DALI's arguments are int32 or float32",
                    remedy="let draw() return one of these",
                )
        # The rows of a draw may have any length along their axes: the number of erased boxes, say.
        return {
            key: _Input(f"op{place}_{key}", values.dtype, (None,) * (values.ndim - 1), "", "cpu")
            for key, values in draw.items()
        }


@dataclass(frozen=True)
class _Input:
    """One external source."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape  # of a row; None where it varies
    layout: str
    device: str

    def node(self, dali: ModuleType) -> Any:
        """Return the DataNode; a GPU copies its inputs (it cannot share host memory), the CPU does not."""
        layout = {"layout": self.layout} if len(self.layout) == len(self.shape) > 0 else {}
        dtype = getattr(dali.types, DALI_DTYPES[self.dtype.name])
        return dali.fn.external_source(
            name=self.name,
            device=self.device,
            dtype=dtype,
            ndim=len(self.shape),
            no_copy=self.device == "cpu",
            **layout,
        )

    def checked(self, values: Any) -> Any:
        """Return the rows of a batch as DALI may have them, copied only where they are not contiguous."""
        if not isinstance(values, list):
            self._check(values, values.shape[1:])
            return _contiguous(values)
        for value in values:
            self._check(value, value.shape)
        return [_contiguous(value) for value in values]

    def _check(self, values: Any, shape: tuple[int, ...]) -> None:
        fits = len(shape) == len(self.shape) and all(
            want in (None, have) for want, have in zip(self.shape, shape, strict=True)
        )
        on_gpu = not isinstance(values, np.ndarray)
        if values.dtype != self.dtype or not fits or (on_gpu and self.device == "cpu"):
            where = " on a GPU" if on_gpu else ""
            raise SpecError(
                f"{self.name!r} holds {values.dtype.str} {shape}{where}",
                cause=f"DALI was told {self.dtype.str} {self.shape} on the {self.device}",
                remedy="give the batch as the graph's spec says it",
            )


@dataclass(frozen=True)
class Started:
    """A batch that was started: its inputs, kept until its outputs were taken."""

    count: int
    inputs: dict[str, Any]


def _probe(graph: Graph, fields: Sequence[Field]) -> list[Draw]:
    """Return the draws for one made-up record, to learn their names, dtypes and ranks before the first batch."""
    sizes = {}
    for field in fields:
        is_image = field.encoded or len(field.shape or ()) == 3
        sizes[field.name] = _probe_size(field, np.full((1, 2), PROBE_PIXELS if is_image else 0, np.int32))
    draws = []
    for op, on, spec in zip(graph.ops, graph.targets, graph.specs, strict=True):
        size = np.minimum.reduce([sizes[name] for name in on])  # fields that share a draw have one size
        draws.append(op.draw(np.full((1, op.num_uniforms), 0.5), size))
        after = op.size_after(size, draws[-1])
        sizes.update({name: _probe_size(spec[name], after) for name in on})
    return draws


def _probe_size(field: Field, otherwise: Sizes) -> Sizes:
    """Return height and width as far as the field's shape says them, int32 ``[1, 2]``."""
    if field.encoded or field.shape is None or len(field.shape) != 3:
        return otherwise
    sides = field.shape[1:] if images.channels_first(field) else field.shape[:2]
    return np.array([[side or other for side, other in zip(sides, otherwise[0], strict=True)]], np.int32)


def _contiguous(values: Array) -> Array:
    return values if values.flags.c_contiguous else values.copy(order="C")


def _arrays(xp: ModuleType, field: Field, output: Any) -> Array | list[Array]:
    """Return an output of DALI as the arrays of a field, of NumPy or CuPy, without a copy."""
    convert = np.asarray if xp is np else xp.from_dlpack
    if field.uniform and output.is_dense_tensor():
        array = convert(output.as_tensor())
        made = array.dtype, array.shape[1:]
        if made == (field.dtype, field.shape):
            return array
    else:
        rows = [convert(output[row]) for row in range(len(output))]
        made = rows[0].dtype, rows[0].shape
        if made[0] == field.dtype and not field.uniform:
            return rows
    raise SpecError(
        f"field {field.name!r}: DALI makes {made[0]} {made[1]}",
        cause=f"the graph's spec says {field.dtype} {field.shape}",
        remedy="the op's lower() and its field_after() must agree",
    )


def refusal(what: str, error: Exception) -> GpuloadError:
    """Return the error for what DALI refused, of the device or of the ops."""
    said = reason(error)
    if isinstance(error, MemoryError) or "CUDA" in said:
        remedy = "a smaller batch_size, if memory ran out; else nvidia-smi says how the GPU is"
        return DeviceError(what, cause=said, remedy=remedy)
    return SpecError(what, cause=said, remedy='executor="array" runs the same ops without DALI')


def reason(error: Exception) -> str:
    """Return what DALI says went wrong, in one line: its message without the traceback and the frame around it."""
    text = str(error)
    status = re.search(r"nvImageCodec failure: '#(\d+)'", text)
    if status and status[1] in CODEC_STATUS:
        return f"the image cannot be decoded: {CODEC_STATUS[status[1]]}"
    if "Failed to decode sample" in text:
        return "the image cannot be decoded: its data is damaged or ends early"
    operator = re.search(r"`nvidia\.dali\.fn\.([\w.]+)`", text)
    lines = (line.strip() for line in (text.partition("encountered:")[2] or text).splitlines())
    said = next((line for line in lines if line and not line.startswith(("Critical error", "Current pipeline"))), text)
    return f"{operator[1]}: {said}" if operator else said

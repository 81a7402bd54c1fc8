"""Columns: the fields and draws of a batch, one after the other as DALI gets them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload import rng
from gpuload.batch import names_in
from gpuload.bridges import common
from gpuload.errors import RowError, SpecError
from gpuload.executors.dali.program import DALI_DTYPES, Input
from gpuload.graph.graph import Graph, compile_ops, image_sizes
from gpuload.ops.base import Op
from gpuload.ops.value.numbers import Numbers
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec

if TYPE_CHECKING:
    from gpuload.batch import Batch
    from gpuload.loader import Loader


class Columns:
    """The fields and draws of a batch, one after the other as DALI gets them.

    Attributes:
        inputs: name, dtype, shape and device of each column.
    """

    def __init__(self, loader: Loader, draws: Mapping[str, Op | Numbers] | None) -> None:
        self._loader = loader
        self._names = names_in(loader.output, loader.spec_out)
        self._draws = _checked_draws(draws)
        ops = [item for item in self._draws.values() if isinstance(item, Op)]
        self._graph = _graph(loader, ops)
        empty = iter(self._graph.empty_draws)
        self.inputs = [_field_input(loader.spec_out[name], loader.device) for name in self._names]
        self._keys: list[
            tuple[str, ...] | None
        ] = []  # of each draw: the names of an op's draws, None for numbers
        for name, item in self._draws.items():
            if isinstance(item, Op):
                outputs = next(empty)
            else:
                outputs = {"": item.of(np.empty((0, math.prod(item.shape))))}
            self._keys.append(tuple(outputs) if isinstance(item, Op) else None)
            if not outputs:
                raise SpecError(
                    f"draws[{name!r}] = {item}",
                    cause="this op draws nothing",
                    remedy="call DALI's operator as it is",
                )
            self.inputs += [
                Input(f"{name} {key}".strip(), values.dtype, (None,) * (values.ndim - 1), "", "cpu")
                for key, values in outputs.items()
            ]

    def values(self, batch: Batch) -> list[Any]:
        """Return the columns of a batch: arrays or lists of arrays.

        Raises:
            RecordError: an op cannot draw for a record's image.
        """
        fields = [batch[name] for name in self._names]
        columns = [
            column.prepare(_of_cupy(values))
            for column, values in zip(self.inputs, fields, strict=False)
        ]
        return [
            *(list(rows) if isinstance(rows, Ragged) else rows for rows in columns),
            *self._draw_columns(batch),
        ]

    def _draw_columns(self, batch: Batch) -> list[NDArray[Any]]:
        words: dict[str, Any] = {
            "seed": self._loader.seed,
            "epoch": batch.epoch,
            "records": batch.records,
        }
        spec, count = self._loader.spec_out, batch.records.size
        try:
            sizes = {
                name: image_sizes(spec[name], batch[name], count)
                for name in sorted(self._graph.touched)
            }
            of_ops = iter(self._graph.draw(**words, sizes=sizes))
        except RowError as error:
            raise error.of_record(
                self._loader.source.where(int(batch.records[error.row]))
            ) from None
        columns: list[NDArray[Any]] = []
        for (name, item), keys in zip(self._draws.items(), self._keys, strict=True):
            if isinstance(item, Op):
                draw = next(of_ops)
                columns += [draw[key] for key in keys or ()]
            else:
                columns.append(
                    item.of(rng.uniform(math.prod(item.shape), **words, stream=_stream(name)))
                )
        return columns

    def arranged(self, nodes: Sequence[Any]) -> Any:
        """Return the DataNodes of all columns as `reader` gives them."""
        parts, rest = list(nodes[: len(self._names)]), iter(nodes[len(self._names) :])
        for keys in self._keys:
            parts.append(next(rest) if keys is None else {key: next(rest) for key in keys})
        if len(parts) == 1:
            return parts[0]
        return tuple(parts)


def layout_of(column: Input) -> str:
    """Return the layout of a column as DALI is told it, empty where it has none."""
    if len(column.layout) == len(column.shape):
        return column.layout
    return ""


def _field_input(field: Field, device: str) -> Input:
    """Return the input of a field; raises ``SpecError`` where DALI has none."""
    if field.dtype.name not in DALI_DTYPES:
        common.refuse(
            field,
            "a DataNode",
            "DALI has boolean, integer and float (16, 32, 64) arrays",
            "name the other fields in output=, or put gl.ops.Cast into ops=",
        )
    if field.shape is None:
        common.refuse(
            field,
            "a DataNode",
            "its rank varies from record to record",
            "leave it out with output=",
        )
    if device == "cpu" or field.encoded or field.host_only:
        place = "cpu"
    else:
        place = "gpu"
    return Input(field.name, field.dtype, field.shape, field.axes, place)


def _checked_draws(draws: Mapping[str, Op | Numbers] | None) -> dict[str, Op | Numbers]:
    if draws is not None and not isinstance(draws, Mapping):
        raise SpecError(
            f"draws = {draws!r}",
            cause="draws have names, which belong to the key of the random numbers",
            remedy='write draws={"angle": uniform(-10, 10)}, say',
        )
    for name, item in (draws or {}).items():
        if not isinstance(name, str) or not isinstance(item, (Op, Numbers)):
            raise SpecError(
                f"draws[{name!r}] = {item!r}",
                cause="it is neither numbers nor an op that draws",
                remedy="use uniform(-10, 10), integers(0, 5), coin_flip(0.5) of this module, or "
                "gl.ops.RandomFlip()",
            )
    return dict(draws or {})


def _graph(loader: Loader, ops: Sequence[Op]) -> Graph:
    """Return the graph of the draws of the ops behind the loader's own; encoded images
    count as decoded."""
    fields = [
        (
            field.with_(shape=(None, None, 3), axes="HWC", encoded=False)
            if field.encoded
            else field
        ).unmarked
        for field in loader.spec_out
    ]
    return compile_ops(Spec(tuple(fields)), ops, before=loader.ops)


def _stream(name: str) -> int:
    """Return the random stream of numbers; those of ops are hashes of texts without a colon."""
    return int.from_bytes(hashlib.sha256(f"draw:{name}".encode()).digest()[:8], "little")


def _of_cupy(values: Any) -> Any:
    """Return the values, those on a GPU as plain arrays of CuPy.

    DALI knows CuPy's arrays by the name of their class, and has its copy wait for CuPy's current
    stream, which waits for the batch. The array that the loader lends is of a class derived from
    CuPy's; the plain one is a view of it, so that its memory comes back behind the copy on that
    stream, as it does behind the work of CuPy itself.
    """
    if not isinstance(values, np.ndarray) and hasattr(values, "__cuda_array_interface__"):
        plain = devices.cupy().ndarray
        return plain(values.shape, values.dtype, values.data, values.strides)
    if isinstance(values, np.ndarray):
        return values
    return [_of_cupy(value) for value in values]

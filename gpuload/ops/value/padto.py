"""PadTo: sequences of varying length, filled up to one length."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from gpuload import device
from gpuload.errors import SpecError
from gpuload.kernels import pixels
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Op, RowError
from gpuload.ops.traits import Arithmetic, Traits, ValueCheck, once
from gpuload.ragged import Ragged, dense, holds
from gpuload.spec import Field

EXACT_IN_FLOAT = 1 << 24  # integers up to this size; DALI takes the value as a float32


@dataclass(frozen=True)
class PadTo(Op):
    """Bring the first axis of a field to one length, by filling it up behind; any dtype, and text.

    So a batch of sequences is one array, for every framework. ``Ragged.to_dense`` does the same to
    a batch, up to its longest value. `Pad` is for images.

    Example:
        ``gl.ops.PadTo(50, value=0)``

    Args:
        length: elements along the first axis of the result.
        value: stands behind the elements of a shorter record; for text ``""``.
        truncate: cut off longer records; else a longer record is an error.
    """

    length: int
    value: Any = 0
    truncate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self,
            length=arguments.whole(self, "length", self.length),
            truncate=arguments.flag(self, "truncate", self.truncate),
        )
        if isinstance(self.value, np.generic):
            arguments.keep(self, value=self.value.item())
        if not isinstance(self.value, (bool, int, float, str, bytes)):
            raise arguments.refuse(
                self, "value", self.value, "a number, or a text", "write value=0, say"
            )

    @property
    @once
    def traits(self) -> Traits:
        """It checks lengths."""
        return Traits(
            arithmetic=Arithmetic(takes_ragged=True), check=ValueCheck(self._find_long, self._error)
        )

    def field_after(self, field: Field) -> Field:
        """The first axis gets ``length`` elements."""
        shape = field.shape
        if field.encoded or not shape or None in shape[1:]:
            raise SpecError(
                f"{self}: field {field.name!r} is {field}",
                cause="it pads values of which the first axis alone may vary, numbers or text",
                remedy="name such a field with on=; gl.ops.Decode and gl.ops.Resize are for images",
            )
        if not holds(field.dtype, self.value):
            empty = {"U": "''", "O": "''", "S": "b''"}.get(field.dtype.kind, "0")
            raise SpecError(
                f"{self}: field {field.name!r} is {field.dtype}",
                cause=f"the dtype does not hold the value {self.value!r}",
                remedy=f"write value={empty}, say",
            )
        return field.with_(shape=(self.length, *shape[1:]), axes="")

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one record, filled up."""
        if len(x) > self.length and not self.truncate:
            raise self._error(x)
        head = x[: self.length]
        result = xp.full((self.length, *x.shape[1:]), self.value, dtype=x.dtype)
        result[: len(head)] = head
        return result

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The records of a batch at once, where they are a ``Ragged``; on a GPU by a kernel."""
        if not isinstance(x, Ragged):
            return super().array_batch(xp, x, draw)
        if not self.truncate and (x.lengths > self.length).any():
            row = int((x.lengths > self.length).argmax())
            raise self._error(x[row]).shift_rows(row)
        payload = x.payload
        if device.compiles(xp) and payload.size and self.length and payload.flags.c_contiguous:
            # Each element is a row of an image to the kernel.
            images = Ragged(payload.reshape(len(payload), -1, 1), x.offsets)
            size = np.broadcast_to(
                np.array([self.length, images.payload.shape[1]], np.int32), (len(x), 2)
            )
            if pixels.reads(xp, images):
                result = pixels.move(xp, images, size=size, fill=self.value)
                return result.reshape(len(x), self.length, *payload.shape[1:])
        device.settle()
        return dense(xp, x, self.length, self.value)

    @device.waits
    def _find_long(self, xp: ModuleType, x: Any) -> Any:
        """Return which records are too long."""
        if isinstance(x, Ragged):
            lengths = x.lengths
        else:
            lengths = np.array([len(record) for record in x], np.int64)
        return (lengths > self.length) & (not self.truncate)

    def _error(self, value: Any) -> RowError:
        """Return the error for a record that is too long."""
        return RowError(
            0,
            f"{self}: it has {len(value)} elements",
            cause=f"that is more than {self.length}, and the others would be lost",
            remedy=f"write gl.ops.PadTo({len(value)}), or gl.ops.PadTo({self.length}, truncate=True)",
        )

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``slice`` of the first ``length`` elements, which are filled in where there are none."""
        whole = field.dtype.kind in "iu"
        if whole and abs(self.value) > EXACT_IN_FLOAT:
            raise SpecError(
                f"{self}: value={self.value}",
                cause="DALI fills in float32 numbers, which do not hold it",
                remedy=f"use a value up to {EXACT_IN_FLOAT}, or executor='array'",
            )
        window = {"start": [0], "shape": [self.length], "axes": [0]}
        outside = {"out_of_bounds_policy": "pad", "fill_values": [float(self.value)]}
        return images.move_pixels(
            dali, field.dtype, ("bool",), lambda raw: dali.fn.slice(raw, **window, **outside), x
        )

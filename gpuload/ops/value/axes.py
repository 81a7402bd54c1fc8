"""Reshape and Transpose: the same numbers under other axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gpuload import device
from gpuload.errors import SpecError
from gpuload.kernels.walk import Walk
from gpuload.ops import arguments, images
from gpuload.ops.base import VARYING, Draw, Op
from gpuload.ops.forms import Forms
from gpuload.spec import MOST_CHANNELS, Field

ORDERS = {"HWC": (1, 2, 0), "CHW": (2, 0, 1)}  # to each from the other


@dataclass(frozen=True)
class Reshape(Op):
    """Give each record another shape with the same number of elements, in C order.

    Example:
        ``gl.ops.Reshape((-1,))``

    Args:
        shape: the new shape; one length may be -1, which is found from the others.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.shape, (tuple, list)):
            shape = self.shape
        else:
            shape = (self.shape,)
        lengths = tuple(arguments.whole(self, "shape", length, least=-1) for length in shape)
        arguments.keep(self, shape=lengths)
        if lengths.count(-1) > 1 or 0 in lengths:
            raise arguments.refuse(
                self, "shape", lengths, "lengths greater than zero, one of them -1 at most"
            )

    def field_after(self, field: Field) -> Field:
        """The shape becomes ``shape``; the axes are no longer known."""
        images.numeric(self, field)
        count, product = (
            math.prod(field.fixed_shape),
            math.prod(length for length in self.shape if length != -1),
        )
        if count % product or (count != product and -1 not in self.shape):
            raise SpecError(
                f"{self}: field {field.name!r} has shape {field.shape}, {count} elements",
                cause=f"they do not fill the shape {self.shape}",
                remedy="use a shape of as many elements, or -1 for one of its lengths",
            )
        return field.with_(
            shape=tuple(count // product if length == -1 else length for length in self.shape),
            axes="",
        )

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one record in the new shape."""
        return x.reshape(self.shape)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once."""
        if isinstance(x, VARYING):
            return super().array_batch(xp, x, draw)
        if not x.flags.c_contiguous:
            device.settle()  # it is copied
        return x.reshape(len(x), *self.field_shape(x.shape[1:]))

    def field_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the new shape of a record of this shape, with -1 resolved."""
        product = math.prod(length for length in self.shape if length != -1)
        return tuple(
            math.prod(shape) // product if length == -1 else length for length in self.shape
        )

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``reshape``, without a layout."""
        return dali.fn.reshape(x, shape=list(self.field_shape(field.fixed_shape)), layout="")


@dataclass(frozen=True)
class Transpose(Op):
    """Reorder the axes of each record.

    Example:
        ``gl.ops.Transpose("CHW")``

    Args:
        axes: ``"HWC"`` or ``"CHW"`` for images in the other of the two orders; or the old axis
            numbers in their new order.
    """

    axes: str | tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.axes, str):
            arguments.choice(self, "axes", self.axes, ORDERS)
            return
        if isinstance(self.axes, (tuple, list)):
            numbers = self.axes
        else:
            numbers = ()
        axes = tuple(arguments.whole(self, "axes", axis, least=0) for axis in numbers)
        if not axes or sorted(axes) != list(range(len(axes))):
            raise arguments.refuse(
                self, "axes", self.axes, "'HWC', 'CHW' or each axis number from 0 once"
            )
        arguments.keep(self, axes=axes)

    def forms(self, field: Field) -> Forms:
        """It is a part of a walk."""
        return Forms(fold=self._fold)

    @property
    def order(self) -> tuple[int, ...]:
        """The old axis numbers in their new order."""
        if isinstance(self.axes, str):
            return ORDERS[self.axes]
        return self.axes

    def field_after(self, field: Field) -> Field:
        """The shape in the new order."""
        images.numeric(self, field)
        shape = field.shape
        subject = f"{self}: field {field.name!r} has shape {shape}"
        if field.axes:
            subject += f" in {field.axes} order"
        if shape is None or len(shape) != len(self.order):
            remedy = "name other axes or fields, or give it other axes by gl.ops.Reshape before it"
            is_flat = shape is not None and len(shape) == 2 and None not in shape
            if isinstance(self.axes, str) and shape is not None and is_flat:
                remedy = f"put gl.ops.Reshape({(*shape, 1)}) in its place, or Reshape({(1, *shape)}) before it"
            raise SpecError(subject, cause=f"it has not {len(self.order)} axes", remedy=remedy)
        if self.axes == (field.axes or _likely_order(field)):
            cause, remedy = "it has that order already", "leave Transpose out"
            if self.axes == "HWC":
                remedy += "; of a recipe with images='CHW', write images='HWC'"
            if not field.axes:
                cause += ", by the number of its channels"
                remedy += f"; if these are no channels, write Transpose({self.order})"
            raise SpecError(subject, cause=cause, remedy=remedy)
        axes = ""
        if isinstance(self.axes, str):
            axes = self.axes
        elif field.axes:
            axes = "".join(field.axes[axis] for axis in self.order)
        return field.with_(shape=tuple(shape[axis] for axis in self.order), axes=axes)

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one record in the new order (a view)."""
        return x.transpose(self.order)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once."""
        if isinstance(x, VARYING):
            return self._rows(xp, x, draw)
        return x.transpose(0, *(axis + 1 for axis in self.order))

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``transpose``; DALI's layout is set to the axes of the op."""
        if isinstance(self.axes, str):
            layout = {"output_layout": self.axes}
        else:
            layout = {}
        x = dali.fn.reshape(x, layout="")
        return dali.fn.transpose(x, perm=list(self.order), transpose_layout=False, **layout)

    def _fold(self, walk: Walk, draw: Draw) -> Walk | None:
        """The walk's way of writing."""
        if isinstance(self.axes, str) and self.axes != walk.out_axes:
            return walk.with_(out_axes=self.axes)
        return None


def _likely_order(field: Field) -> str:
    """Return ``"HWC"`` or ``"CHW"`` where the first or the last axis alone can be that of channels,
    else ""."""
    if field.is_channels_first:
        return "CHW"
    if field.shape is not None and len(field.shape) == 3:
        first, _, last = field.shape
    else:
        first, _, last = (None, None, None)
    has_few = last is not None and last <= MOST_CHANNELS
    if has_few and (first is None or first > MOST_CHANNELS):
        return "HWC"
    return ""

"""Window: the pixels of an image from a drawn place on, with a value where they lie outside of it.

The base of ``RandomCrop``, ``CenterCrop`` and ``Pad``: their array form, their DALI form and their
part in a walk. They differ in the window's size, and in where it begins. In volumes, ``DHWC`` or
``DHW``, a window has slices, too: sizes and places have three numbers then, height or top, width or
left, and slices or the first of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import SpecError
from gpuload.kernels import pixels
from gpuload.kernels.walk import Walk, sizes
from gpuload.ops import arguments, images
from gpuload.ops.base import VARYING, Draw, Op, Points, Sizes
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Geometric, Traits, once
from gpuload.spec import Field

Color = float | tuple[float, ...]  # of all channels, or of each
Fill = Color | dict[str, Color]  # one for all fields, or by the names of fields
AXES = (1, 2)  # of height and width, in a batch of images
VOLUME_AXES = (2, 3, 1)  # of height, width and slices, in a batch of volumes


@dataclass(frozen=True)
class Window(Op):
    """Take the pixels from ``start`` on: int32 ``[N, 2]``, top and left in pixels, drawn by the
    subclass.

    Where the window's size depends on the image's, and of volumes, the draw also has ``shape``:
    int32 ``[N, 2]``, height and width. Of volumes both are ``[N, 3]``.
    """

    @property
    @once
    def traits(self) -> Traits:
        """It moves pixels."""
        return Traits(geometric=Geometric(self._move_points))

    def forms(self, field: Field) -> Forms:
        """It is a part of a walk."""
        return Forms(fold=self._fold)

    def window_of(self, size: Sizes) -> Sizes:
        """Return the size of the window of images of these sizes, int32 ``[..., 2]``, of volumes
        ``[..., 3]``."""
        raise NotImplementedError

    @property
    def border(self) -> Color | None:
        """The colour outside the image, of an op as it acts on one field; None if the window lies
        inside."""
        return None

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the window's size for each image."""
        return self.window_of(size)

    def _move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """They are counted from the place where the window begins."""
        return points - draw["start"][::-1]

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the window of one image, the border's value where it lies outside."""
        return self.array_batch(xp, x[None], {"start": draw["start"][None]})[0]

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The windows of a batch of one size, taken by index; on a GPU by a kernel, of images of
        any sizes."""
        if draw["start"].shape[1] == len(AXES) and pixels.reads(xp, x):
            size = np.broadcast_to(self.window_of(sizes(x)), (len(x), 2))
            return pixels.move(xp, x, start=draw["start"], size=size, fill=self.border or 0)
        if isinstance(x, VARYING):
            return super().array_batch(xp, x, draw)
        device.settle()
        axes = AXES if draw["start"].shape[1] == len(AXES) else VOLUME_AXES
        lengths = self._of(tuple(x.shape[axis] for axis in axes))
        start, inside = xp.asarray(draw["start"]), None
        places = {0: xp.arange(len(x)).reshape(-1, *[1] * len(axes))}
        for number, (axis, length) in enumerate(zip(axes, lengths, strict=True)):
            shape = [length if at == axis else 1 for at in sorted(axes)]
            place = (start[:, number, None] + xp.arange(length)).reshape(-1, *shape)
            is_inside = (place >= 0) & (place < x.shape[axis])
            if inside is None:
                inside = is_inside
            else:
                inside = inside & is_inside
            places[axis] = place.clip(0, x.shape[axis] - 1)
        window = x[tuple(places[axis] for axis in sorted(places))]
        if self.border is None or inside is None:
            return window
        inside = inside.reshape(*inside.shape, *[1] * (window.ndim - inside.ndim))
        return xp.where(inside, window, xp.asarray(self.border, x.dtype))

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``slice``; out of the image only if there is a border."""
        axes = VOLUME_AXES if field.is_volume else AXES
        settings: dict[str, Any] = {"start": draw["start"], "axes": [axis - 1 for axis in axes]}
        if "shape" in draw:
            settings["shape"] = draw["shape"]
        else:
            settings["shape"] = list(self._of((0, 0)))
        if self.border is not None:
            settings.update(out_of_bounds_policy="pad", fill_values=self.border)
        return images.move_pixels(
            dali, field.dtype, ("bool",), lambda raw: dali.fn.slice(raw, **settings), x
        )

    def _fold(self, walk: Walk, draw: Draw) -> Walk | None:
        """A window of the walk's window: it moves, and moves the other way where the walk
        mirrors."""
        if draw["start"].shape[1] != len(AXES):
            return None
        whole = walk.window == (walk.height, walk.width) and not walk.is_padded
        border = self.border
        if border is not None and (walk.mean is not None or not whole):
            return None  # the border's value would have other units, or lie inside the image
        if isinstance(border, tuple):
            if walk.colours is None:
                return None
            walk, border = walk.with_(colours=border), 0
        start, (height, width) = draw["start"], self._of(walk.window)
        window = height, width
        if walk.mirror.any():
            rest = np.array([walk.window[0] - window[0], walk.window[1] - window[1]], np.int32)
            start = np.where(walk.mirror == 1, rest - start, start)
        walk = walk.with_(start=walk.start + start, window=window)
        if border is None:
            return walk
        return walk.with_(fill=border, is_padded=True)

    def _of(self, size: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.window_of(np.array(size, np.int32)).tolist())


def fixed(window: tuple[int, int], depth: int | None, size: Sizes) -> Sizes:
    """Return the size of a window for each image or volume.

    Args:
        window: height and width, pixels.
        depth: slices of a window of a volume; None for all slices of each volume.
        size: int32 ``[N, 2 or 3]``, of the images or volumes.
    """
    lengths = np.array(window, np.int32)
    if size.shape[-1] == len(window):
        return np.broadcast_to(lengths, size.shape)
    if depth is None:
        slices = size[..., 2:]
    else:
        slices = np.full_like(size[..., 2:], depth)
    return np.concatenate(
        [np.broadcast_to(lengths, (*size.shape[:-1], 2)), slices], axis=-1
    ).astype(np.int32)


def with_shape(start: NDArray[np.int32], window: Sizes) -> Draw:
    """Return the draw of windows: of volumes with their shapes, for the number of slices may
    differ."""
    if start.shape[1] == len(AXES):
        return {"start": start}
    return {"start": start, "shape": window}


def region(start: NDArray[np.int32], window: Sizes, size: Sizes) -> Draw:
    """Return the part of each image that lies in its window; where none does, a pixel of the
    image's edge."""
    first = start.clip(0, size - 1)
    after = np.maximum((start + window).clip(0, size), first + 1)
    return {"start": first.astype(np.int32), "shape": (after - first).astype(np.int32)}


def check_fill(op: Any, fill: Any) -> Fill:
    """Return the argument ``fill``: a colour, or colours by the names of fields."""
    checked_value: Fill = arguments.by_field(op, "fill", fill, arguments.numbers, 0)
    return checked_value


def one_fill(op: Any, fill: Fill) -> Color:
    """Return the fill of an op as it acts on one field."""
    if isinstance(fill, dict):
        raise RuntimeError(f"{op} is asked for one field without op.of(name)")
    return fill


def check_holds(op: Any, field: Field, value: Any) -> None:
    """Raise ``SpecError`` if a field's dtype cannot hold the value of its border."""
    if field.dtype.kind not in "bui":
        return
    if field.dtype.kind == "b":
        limits = (0, 1)
    else:
        limits = (np.iinfo(field.dtype).min, np.iinfo(field.dtype).max)
    if value != int(value) or not limits[0] <= value <= limits[1]:
        raise SpecError(
            f"{op}: fill is {value}, field {field.name!r} is {field.dtype}",
            cause=f"{field.dtype} cannot hold this value",
            remedy=f"use a whole number from {limits[0]} to {limits[1]}; fill={{{field.name!r}: 0}} is for this field",
        )


def check_colors(op: Any, field: Field, fill: Color, channels: int | None) -> None:
    """Raise ``SpecError`` if a field cannot hold a colour: a number, or one for each channel."""
    if isinstance(fill, tuple):
        numbers = fill
    else:
        numbers = (fill,)
    for number in numbers:
        check_holds(op, field, number)
    if len(numbers) > 1 and channels is not None and len(numbers) != channels:
        raise SpecError(
            f"{op}: fill has {len(numbers)} numbers, field {field.name!r} {channels} channels",
            cause="the fill is one number, or one for each channel",
            remedy="write fill=0, say",
        )

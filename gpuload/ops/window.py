"""Window: the pixels of an image from a drawn place on, with a value where they lie outside of it.

The base of ``RandomCrop``, ``CenterCrop`` and ``Pad``: their array form, their DALI form and their part in a walk. They
differ in the window's size, and in where it begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.ops import arguments, images, pixels
from gpuload.ops.base import VARYING, Draw, Op, Points, Sizes
from gpuload.ops.walk import Walk
from gpuload.spec import Field

Color = float | tuple[float, ...]  # of all channels, or of each
Fill = Color | dict[str, Color]  # one for all fields, or by the names of fields


@dataclass(frozen=True)
class Window(Op):
    """Take the pixels from ``start`` on: int32 ``[N, 2]``, top and left in pixels, drawn by the subclass.

    Where the window's size depends on the image's, the draw also has ``shape``: int32 ``[N, 2]``, height and width.
    """

    moves_pixels: ClassVar[bool] = True

    def window_of(self, size: Sizes) -> Sizes:
        """Return the size of the window of images of these sizes, int32 ``[..., 2]``, height and width in pixels."""
        raise NotImplementedError

    @property
    def border(self) -> Color | None:
        """The colour outside the image, of an op as it acts on one field; None if the window lies inside."""
        return None

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the window's size for each image."""
        return self.window_of(size)

    def move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """They are counted from the place where the window begins."""
        return points - draw["start"][::-1]

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the window of one image, the border's value where it lies outside."""
        return self.array_batch(xp, x[None], {"start": draw["start"][None]})[0]

    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The windows of a batch of one size, taken by index; on a GPU by a kernel, of images of any sizes."""
        if pixels.reads(xp, x):
            shapes = [image.shape[:2] for image in x] if isinstance(x, VARYING) else [x.shape[1:3]]
            size = np.broadcast_to(self.window_of(np.array(shapes, np.int32)), (len(x), 2))
            return pixels.move(xp, x, start=draw["start"], size=size, fill=self.border or 0)
        if isinstance(x, VARYING):
            return super().array_batch(xp, x, draw)
        height, width = self._of(x.shape[1:3])
        start = xp.asarray(draw["start"])
        rows = start[:, 0, None] + xp.arange(height)
        columns = start[:, 1, None] + xp.arange(width)
        inside = ((rows >= 0) & (rows < x.shape[1]))[:, :, None] & ((columns >= 0) & (columns < x.shape[2]))[:, None]
        rows, columns = rows.clip(0, x.shape[1] - 1), columns.clip(0, x.shape[2] - 1)
        window = x[xp.arange(len(x))[:, None, None], rows[:, :, None], columns[:, None]]
        return window if self.border is None else xp.where(inside[..., None], window, xp.asarray(self.border, x.dtype))

    def lower(self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str) -> Any:
        """``slice``; out of the image only if there is a border."""
        settings: dict[str, Any] = {"start": draw["start"], "axes": [0, 1]}
        settings["shape"] = draw["shape"] if "shape" in draw else list(self._of((0, 0)))
        if self.border is not None:
            settings.update(out_of_bounds_policy="pad", fill_values=self.border)
        return images.move_pixels(dali, field.dtype, ("bool",), lambda raw: dali.fn.slice(raw, **settings), x)

    def fold(self, walk: Walk, draw: Draw) -> Walk | None:
        """A window of the walk's window: it moves, and moves the other way where the walk mirrors."""
        whole = walk.window == (walk.height, walk.width) and not walk.is_padded
        border = self.border
        if isinstance(border, tuple) or (border is not None and (walk.mean is not None or not whole)):
            return None  # a walk has one value; the border's would have other units, or lie inside the image
        start, window = draw["start"], self._of(walk.window)
        if walk.mirror.any():
            rest = np.array([walk.window[0] - window[0], walk.window[1] - window[1]], np.int32)
            start = np.where(walk.mirror == 1, rest - start, start)
        return walk.with_(
            start=walk.start + start,
            window=window,
            fill=walk.fill if border is None else border,
            is_padded=walk.is_padded or border is not None,
        )

    def _of(self, size: tuple[int, ...]) -> tuple[int, int]:
        height, width = self.window_of(np.array(size, np.int32)).tolist()
        return height, width


def fixed(window: tuple[int, int], size: Sizes) -> Sizes:
    """Return a window's size for each image."""
    return np.broadcast_to(np.array(window, np.int32), size.shape)


def region(start: NDArray[np.int32], window: Sizes, size: Sizes) -> Draw:
    """Return the part of each image that lies in its window; where none does, a pixel of the image's edge."""
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
    limits = (0, 1) if field.dtype.kind == "b" else (np.iinfo(field.dtype).min, np.iinfo(field.dtype).max)
    if value != int(value) or not limits[0] <= value <= limits[1]:
        raise SpecError(
            f"{op}: fill is {value}, field {field.name!r} is {field.dtype}",
            cause=f"{field.dtype} cannot hold this value",
            remedy=f"use a whole number from {limits[0]} to {limits[1]}; fill={{{field.name!r}: 0}} is for this field",
        )


def check_colors(op: Any, field: Field, fill: Color, channels: int | None) -> None:
    """Raise ``SpecError`` if a field cannot hold a colour: a number, or one for each channel."""
    numbers = fill if isinstance(fill, tuple) else (fill,)
    for number in numbers:
        check_holds(op, field, number)
    if len(numbers) > 1 and channels is not None and len(numbers) != channels:
        raise SpecError(
            f"{op}: fill has {len(numbers)} numbers, field {field.name!r} {channels} channels",
            cause="the fill is one number, or one for each channel",
            remedy="write fill=0, say",
        )

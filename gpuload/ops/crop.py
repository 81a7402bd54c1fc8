"""RandomCrop: a window at a random place."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.ops import arguments, images
from gpuload.ops.base import VARYING, Draw, Op, RowError, Sizes
from gpuload.ops.walk import Walk
from gpuload.spec import Field


@dataclass(frozen=True)
class RandomCrop(Op):
    """Cut ``height`` x ``width`` pixels at a random place; HWC, any dtype.

    Every whole-pixel place at which the window lies inside the padded image is equally likely.

    Args:
        height: pixels.
        width: pixels; ``height`` if left out.
        pad: pixels that are added on each of the four sides first.
        fill: value of the added pixels.
    """

    height: int
    width: int | None = None
    pad: int = 0
    fill: float = 0

    num_uniforms: ClassVar[int] = 2
    gives_region: ClassVar[bool] = True

    def __post_init__(self) -> None:
        height = arguments.whole(self, "height", self.height)
        arguments.keep(
            self,
            height=height,
            width=height if self.width is None else arguments.whole(self, "width", self.width),
            pad=arguments.whole(self, "pad", self.pad, least=0),
            fill=arguments.number(self, "fill", self.fill),
        )

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the window, pixels."""
        return self.height, int(self.width or self.height)

    def field_after(self, field: Field) -> Field:
        """Height and width become the window's."""
        height, width, channels = images.image(self, field)
        smallest = (height or self.height, width or self.window[1])
        if smallest[0] + 2 * self.pad < self.height or smallest[1] + 2 * self.pad < self.window[1]:
            raise self._does_not_fit(f"field {field.name!r} has images of", np.array(smallest))
        if field.dtype.kind in "bui" and not _holds(field.dtype, self.fill):
            raise SpecError(
                f"{self}: fill is {self.fill}, field {field.name!r} is {field.dtype}",
                cause=f"{field.dtype} cannot hold this value",
                remedy="use a fill that it can hold",
            )
        return field.with_(shape=(*self.window, channels), axes="HWC")

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the window's size for every image."""
        return np.broadcast_to(np.array(self.window, np.int32), size.shape)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``start``: top and left of each window, int32 ``[N, 2]``, pixels; negative in the added border."""
        places = size.astype(np.int64) + (2 * self.pad + 1) - self.window
        if places.size and places.min() < 1:
            row = int(places.min(axis=1).argmin())
            error = self._does_not_fit("it has", size[row])
            raise RowError(row, error.what, cause=error.cause, remedy=error.remedy)
        return {"start": ((u * places).astype(np.int32) - np.int32(self.pad)).astype(np.int32)}

    def region(self, draw: Draw, size: Sizes) -> Draw:
        """Return the part of each image that lies in the window; where none does, a pixel of the image's edge."""
        start = draw["start"]
        first = start.clip(0, size - 1)
        after = np.maximum((start + self.window).clip(0, size), first + 1)
        return {"start": first.astype(np.int32), "shape": (after - first).astype(np.int32)}

    def within(self, draw: Draw, region: Draw) -> Draw:
        """Return where each window begins in its region."""
        return {"start": draw["start"] - region["start"]}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the window of one image, ``fill`` where it lies outside."""
        return self.array_batch(xp, x[None], {"start": draw["start"][None]})[0]

    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The windows of a batch of one size, taken by index."""
        if isinstance(x, VARYING):
            return super().array_batch(xp, x, draw)
        start = xp.asarray(draw["start"])
        rows = start[:, 0, None] + xp.arange(self.window[0])
        columns = start[:, 1, None] + xp.arange(self.window[1])
        inside = ((rows >= 0) & (rows < x.shape[1]))[:, :, None] & ((columns >= 0) & (columns < x.shape[2]))[:, None]
        rows, columns = rows.clip(0, x.shape[1] - 1), columns.clip(0, x.shape[2] - 1)
        window = x[xp.arange(len(x))[:, None, None], rows[:, :, None], columns[:, None]]
        return xp.where(inside[..., None], window, xp.asarray(self.fill, x.dtype)) if self.pad else window

    def lower(self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str) -> Any:
        """``slice``; out of the image only if there is a border."""
        settings: dict[str, Any] = {"out_of_bounds_policy": "pad", "fill_values": self.fill} if self.pad else {}
        settings.update(start=draw["start"], shape=list(self.window), axes=[0, 1])
        return images.moved(dali, field.dtype, ("bool",), lambda raw: dali.fn.slice(raw, **settings), x)

    def fold(self, walk: Walk, draw: Draw) -> Walk | None:
        """A window of the walk's window: it moves, and moves the other way where the walk mirrors."""
        whole = walk.window == (walk.height, walk.width) and not walk.padded
        if self.pad and (walk.mean is not None or not whole):  # `fill` would have other units, or lie inside the image
            return None
        start = draw["start"]
        if walk.mirror.any():
            rest = np.array([walk.window[0] - self.window[0], walk.window[1] - self.window[1]], np.int32)
            start = np.where(walk.mirror == 1, rest - start, start)
        return walk.with_(
            start=walk.start + start,
            window=self.window,
            fill=self.fill if self.pad else walk.fill,
            padded=walk.padded or self.pad > 0,
        )

    def _does_not_fit(self, whose: str, size: NDArray[Any]) -> SpecError:
        return SpecError(
            f"{self}: {whose} {size[0]} x {size[1]} pixels",
            cause=f"the window of {self.window[0]} x {self.window[1]} pixels does not fit into it",
            remedy=f"put gl.ops.Resize(shorter={max(self.window)}) before it, or use pad=",
        )


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    if dtype.kind == "b":
        return value in (0, 1)
    limits = np.iinfo(dtype)
    return value == int(value) and limits.min <= value <= limits.max

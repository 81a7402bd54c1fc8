"""RandomCrop and CenterCrop: a window of the image, at a random place or in the middle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.ops import arguments, images, window
from gpuload.ops.base import Draw, RowError, Sizes
from gpuload.ops.window import Color, Fill, Window
from gpuload.spec import Field


@dataclass(frozen=True)
class _Crop(Window):
    """The base of both crops: the size of the window, and that only a part of the image is used."""

    height: int
    width: int | None = None

    gives_region: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        height = arguments.whole(self, "height", self.height)
        width = height if self.width is None else arguments.whole(self, "width", self.width)
        arguments.keep(self, height=height, width=width)

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the window, pixels."""
        return self.height, int(self.width or self.height)

    def window_of(self, size: Sizes) -> Sizes:
        """Return the window's size for every image."""
        return window.fixed(self.window, size)

    def region(self, draw: Draw, size: Sizes) -> Draw:
        """Return the part of each image that lies in the window."""
        return window.region(draw["start"], self.window_of(size), size)

    def within(self, draw: Draw, region: Draw) -> Draw:
        """Return where each window begins in its region."""
        return {"start": draw["start"] - region["start"]}

    def _cropped(self, field: Field, pad: int) -> Field:
        """Return the field of windows; raises ``SpecError`` where they are known not to fit."""
        height, width, channels = images.image(self, field)
        smallest = (height or self.window[0], width or self.window[1])
        if min(smallest[0] + 2 * pad - self.window[0], smallest[1] + 2 * pad - self.window[1]) < 0:
            raise self._does_not_fit(f"field {field.name!r} has images of", np.array(smallest))
        return field.with_(shape=(*self.window, channels), axes="HWC")

    def _places(self, size: Sizes, pad: Any) -> NDArray[np.int64]:
        """Return the number of places for each window, ``[N, 2]``; raises ``RowError`` where there is none."""
        places: NDArray[np.int64] = np.asarray(size.astype(np.int64) + (2 * pad + 1) - self.window)
        if places.size and places.min() < 1:
            row = int(places.min(axis=1).argmin())
            error = self._does_not_fit("it has", size[row])
            raise RowError(row, error.what, cause=error.cause, remedy=error.remedy)
        return places

    def _does_not_fit(self, subject: str, size: NDArray[Any]) -> SpecError:
        return SpecError(
            f"{self}: {subject} {size[0]} x {size[1]} pixels",
            cause=f"the window of {self.window[0]} x {self.window[1]} pixels does not fit into it",
            remedy=f"put gl.ops.Resize(shorter={max(self.window)}) before it",
        )


@dataclass(frozen=True)
class RandomCrop(_Crop):
    """Cut ``height`` x ``width`` pixels at a random place; HWC, any dtype.

    Every whole-pixel place at which the window lies inside the padded image is equally likely.

    Example:
        ``gl.ops.RandomCrop(32, 32, pad=4)``

    Args:
        height: pixels.
        width: pixels; ``height`` if left out.
        pad: pixels that are added on each of the four sides first.
        fill: colour of the added pixels, a number or one for each channel; or a dict from field names to these,
            ``{"mask": 255}``, the others being 0.
        pad_if_needed: have pixels added where an image is smaller than the window, as torchvision does: then it lies at
            a random place of the window.
    """

    pad: int = 0
    fill: Fill = field(default=0, hash=False)
    pad_if_needed: bool = field(default=False, kw_only=True)

    per_field: ClassVar[tuple[str, ...]] = ("fill",)
    num_uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self, pad=arguments.whole(self, "pad", self.pad, least=0), fill=window.check_fill(self, self.fill)
        )
        arguments.keep(self, pad_if_needed=arguments.flag(self, "pad_if_needed", self.pad_if_needed))

    def field_after(self, field: Field) -> Field:
        """Height and width become the window's."""
        after = self._cropped(field, max(self.window) if self.pad_if_needed else self.pad)
        window.check_colors(self, field, window.one_fill(self, self.fill), images.image(self, field)[2])
        return after

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``start``: top and left of each window, int32 ``[N, 2]``, pixels; negative in the added border."""
        pad: Any = np.int32(self.pad)
        if self.pad_if_needed:
            pad = pad + np.maximum(self.window - (size + 2 * pad), 0)
        start = (u * self._places(size, pad)).astype(np.int32) - pad
        return {"start": start.astype(np.int32)}

    @property
    def border(self) -> Color | None:
        """The colour of the added pixels."""
        return window.one_fill(self, self.fill) if self.pad or self.pad_if_needed else None


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """Cut ``height`` x ``width`` pixels out of the middle; HWC, any dtype.

    Of an odd number of pixels that are left over, the one more is cut off at the bottom and right, as in
    ``tf.image.resize_with_crop_or_pad`` and Keras. With ``rounding="even"`` an even number is cut off at the top and
    left then, as torchvision and timm do.

    Example:
        ``gl.ops.CenterCrop(28, 28)``

    Args:
        height: pixels.
        width: pixels; ``height`` if left out.
        rounding: of half of what is left over: ``"down"`` or ``"even"``.
    """

    rounding: str = field(default="down", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.choice(self, "rounding", self.rounding, ("down", "even"))

    def field_after(self, field: Field) -> Field:
        """Height and width become the window's."""
        return self._cropped(field, 0)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``start``: top and left of each window, int32 ``[N, 2]``, pixels."""
        left_over = self._places(size, 0) - 1
        start = left_over // 2 if self.rounding == "down" else np.rint(left_over / 2)
        return {"start": start.astype(np.int32)}

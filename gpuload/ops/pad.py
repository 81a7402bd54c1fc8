"""Pad: pixels around the image, up to a size or by a margin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.ops import arguments, images, window
from gpuload.ops.base import Draw, RowError, Sizes
from gpuload.ops.window import Color, Fill, Window
from gpuload.spec import Field

Margin = int | tuple[int, int, int, int]


@dataclass(frozen=True)
class Pad(Window):
    """Add pixels on all sides, so that images have ``height`` x ``width`` pixels, or by a margin; HWC, any dtype.

    Up to a size the image comes to lie in the middle, and of an odd number of pixels the one more is at the bottom and
    right, as in ``tf.image.resize_with_crop_or_pad``. An image that is larger is an error: crop or resize it first.
    By a margin it is torchvision's ``Pad``.

    Example:
        ``gl.ops.Pad(40, 40, fill=0)``

    Args:
        height: pixels of the result.
        width: pixels of the result; ``height`` if left out.
        margin: in place of the size: pixels for each side, or four numbers for left, top, right and bottom.
        fill: colour of the added pixels, a number or one for each channel; or a dict from field names to these,
            ``{"mask": 255}``, the others being 0.
    """

    height: int | None = None
    width: int | None = None
    margin: Margin | None = field(default=None, kw_only=True)
    fill: Fill = field(default=0, hash=False)

    per_field: ClassVar[tuple[str, ...]] = ("fill",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.height is None) == (self.margin is None) or (self.height is None and self.width is not None):
            raise SpecError(
                f"{self}",
                cause="the new size is height and width, or the old one and a margin",
                remedy="write gl.ops.Pad(224, 224) or gl.ops.Pad(margin=4)",
            )
        if self.height is not None:
            height = arguments.whole(self, "height", self.height)
            width = height if self.width is None else arguments.whole(self, "width", self.width)
            arguments.keep(self, height=height, width=width)
        else:
            arguments.keep(self, margin=self._checked_margin())
        arguments.keep(self, fill=window.check_fill(self, self.fill))

    def _checked_margin(self) -> Margin:
        if not isinstance(self.margin, (tuple, list)):
            return arguments.whole(self, "margin", self.margin, least=0)
        if len(self.margin) != 4:
            raise arguments.refuse(self, "margin", self.margin, "one number, or four: left, top, right, bottom")
        left, top, right, bottom = (arguments.whole(self, "margin", side, least=0) for side in self.margin)
        return left, top, right, bottom

    @property
    def _sides(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the pixels that the margin adds before the image (top, left) and after it (bottom, right)."""
        margins = self.margin if isinstance(self.margin, tuple) else (self.margin or 0,) * 4
        left, top, right, bottom = margins
        return np.array([top, left], np.int32), np.array([bottom, right], np.int32)

    def window_of(self, size: Sizes) -> Sizes:
        """Return the sizes of padded images."""
        if self.height is not None:
            return window.fixed((self.height, int(self.width or self.height)), size)
        before, after = self._sides
        return np.asarray(size + (before + after), np.int32)

    def field_after(self, field: Field) -> Field:
        """Height and width become the new ones."""
        height, width, channels = images.image(self, field)
        window.check_colors(self, field, window.one_fill(self, self.fill), images.image(self, field)[2])
        before: Sizes = np.array([height or 1, width or 1], np.int32)
        after = self.window_of(before).tolist()
        if (after < before).any():
            raise self._too_large(f"field {field.name!r} has images of", before.tolist())
        are_fixed = [self.height is not None or length is not None for length in (height, width)]
        new = [length if fixed else None for length, fixed in zip(after, are_fixed, strict=True)]
        return field.with_(shape=(*new, channels), axes="HWC")

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``start``: where each padded image begins, int32 ``[N, 2]``, pixels, not positive; and its ``shape``.

        The shape is left out where it is the same for all.
        """
        after = self.window_of(size)
        if (after < size).any():
            row = int((after < size).any(axis=1).argmax())
            error = self._too_large("it has", size[row].tolist())
            raise RowError(row, error.what, cause=error.cause, remedy=error.remedy)
        if self.height is not None:
            return {"start": -((after - size) // 2)}
        return {"start": np.broadcast_to(-self._sides[0], size.shape), "shape": after}

    @property
    def border(self) -> Color | None:
        """The colour of the added pixels."""
        return window.one_fill(self, self.fill)

    def _too_large(self, subject: str, size: list[int]) -> SpecError:
        return SpecError(
            f"{self}: {subject} {size[0]} x {size[1]} pixels",
            cause=f"that is larger than the {self.height} x {self.width} pixels that it is padded to",
            remedy=f"put gl.ops.Resize({self.height}, {self.width}) before it, or gl.ops.CenterCrop or RandomCrop",
        )

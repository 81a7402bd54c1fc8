"""Pad: pixels around the image, up to a size or by a margin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, RowError, Sizes
from gpuload.ops.crop import window
from gpuload.ops.crop.window import Color, Fill, Window
from gpuload.spec import Field

Margin = int | tuple[int, int, int, int]


@dataclass(frozen=True)
class Pad(Window):
    """Add pixels on all sides, so that images have ``height`` x ``width`` pixels, or by a margin.

    HWC or volumes DHWC, any dtype.

    Up to a size the image comes to lie in the middle, and of an odd number of pixels the one more
    is at the bottom and right, as in ``tf.image.resize_with_crop_or_pad``. An image that is larger
    is an error: crop or resize it first. By a margin it is torchvision's ``Pad``. Albumentations'
    PadIfNeeded leaves a larger image as it is, DALI's pad adds below and right alone; torchvision
    and Albumentations can also mirror or repeat the border, timm can for its RandomCropOrPad; Keras
    pads in its Resizing alone.

    Example:
        ``gl.ops.Pad(40, 40, fill=0)``

    Args:
        height: pixels of the result.
        width: pixels of the result; ``height`` if left out.
        margin: in place of the size: pixels for each side, or four numbers for left, top, right and
            bottom.
        fill: colour of the added pixels, a number or one for each channel; or a dict from field
            names to these, ``{"mask": 255}``, the others being 0.
        depth: slices of the result, of volumes (``DHWC`` or ``DHW``), beside ``height``; as many as
            there are if left out, and with a margin.
    """

    height: int | None = None
    width: int | None = None
    margin: Margin | None = field(default=None, kw_only=True)
    fill: Fill = field(default=0, hash=False)
    depth: int | None = field(default=None, kw_only=True)

    per_field: ClassVar[tuple[str, ...]] = ("fill",)

    def __post_init__(self) -> None:
        super().__post_init__()
        beside_height = self.width is not None or self.depth is not None
        if (self.height is None) == (self.margin is None) or (
            self.height is None and beside_height
        ):
            raise SpecError(
                f"{self}",
                cause="the new size is height and width, or the old one and a margin",
                remedy="write gl.ops.Pad(224, 224) or gl.ops.Pad(margin=4)",
            )
        if self.height is not None:
            height = arguments.side(self, "height", self.height)
            if self.width is None:
                width = height
            else:
                width = arguments.side(self, "width", self.width)
            if self.depth is None:
                depth = None
            else:
                depth = arguments.side(self, "depth", self.depth)
            arguments.keep(self, height=height, width=width, depth=depth)
        else:
            arguments.keep(self, margin=self._checked_margin())
        arguments.keep(self, fill=window.check_fill(self, self.fill))

    def _checked_margin(self) -> Margin:
        if not isinstance(self.margin, (tuple, list)):
            return arguments.side(self, "margin", self.margin, least=0)
        if len(self.margin) != 4:
            raise arguments.refuse(
                self, "margin", self.margin, "one number, or four: left, top, right, bottom"
            )
        left, top, right, bottom = (
            arguments.side(self, "margin", side, least=0) for side in self.margin
        )
        return left, top, right, bottom

    def _margins(self, num_axes: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the pixels that the margin adds before the image (top, left) and after it (bottom,
        right)."""
        if isinstance(self.margin, tuple):
            margins = self.margin
        else:
            margins = (self.margin or 0,) * 4
        left, top, right, bottom = margins
        before, after = (top, left, 0), (bottom, right, 0)
        return np.array(before[:num_axes], np.int32), np.array(after[:num_axes], np.int32)

    def window_of(self, size: Sizes) -> Sizes:
        """Return the sizes of padded images."""
        if self.height is not None:
            return window.fixed((self.height, int(self.width or self.height)), self.depth, size)
        before, after = self._margins(size.shape[-1])
        return np.asarray(size + (before + after), np.int32)

    def field_after(self, field: Field) -> Field:
        """Height and width become the new ones."""
        if self.depth is not None:
            images.check_volume(self, field, "depth")
        sides = images.sides(self, field)
        window.check_colors(
            self, field, window.one_fill(self, self.fill), images.num_channels(field)
        )
        before: Sizes = np.array([length or 1 for length in sides], np.int32)
        after = self.window_of(before).tolist()
        if (after < before).any():
            raise self._too_large(f"field {field.name!r} has images of", before.tolist())
        is_given = (self.height is not None, self.height is not None, self.depth is not None)
        are_fixed = [
            is_set or length is not None for is_set, length in zip(is_given, sides, strict=False)
        ]
        return images.with_sides(
            field,
            [
                length if is_fixed else None
                for length, is_fixed in zip(after, are_fixed, strict=True)
            ],
        )

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``start``: where each padded image begins, int32 ``[N, 2]``, pixels, not positive;
        and its ``shape``.

        The shape is left out where it is the same for all. Of volumes both are ``[N, 3]``.
        """
        after = self.window_of(size)
        if (after < size).any():
            row = int((after < size).any(axis=1).argmax())
            error = self._too_large("it has", size[row].tolist())
            raise RowError(row, error.what, cause=error.cause, remedy=error.remedy)
        if self.height is not None:
            return window.with_shape(-((after - size) // 2), after)
        return {
            "start": np.broadcast_to(-self._margins(size.shape[1])[0], size.shape),
            "shape": after,
        }

    @property
    def border(self) -> Color | None:
        """The colour of the added pixels."""
        return window.one_fill(self, self.fill)

    def _too_large(self, subject: str, size: list[int]) -> SpecError:
        if len(size) > 2 and self.depth:
            slices = (f" in {size[2]} slices", f" in {self.depth} slices")
        else:
            slices = ("", "")
        if len(size) == 2:
            resize = f"gl.ops.Resize({self.height}, {self.width}), "
        else:
            resize = ""
        smaller = f"{resize}gl.ops.CenterCrop or RandomCrop"
        is_number = (
            self.height == self.width and self.depth is None
        )  # as in Pad(4), which is a margin in torchvision
        if is_number:
            margin = f"; Pad(margin={self.height}) adds so many pixels on each side"
        else:
            margin = ""
        return SpecError(
            f"{self}: {subject} {size[0]} x {size[1]} pixels{slices[0]}",
            cause=f"that is larger than the {self.height} x {self.width} pixels{slices[1]} that it is padded to",
            remedy=f"put {smaller} before it{margin}",
        )

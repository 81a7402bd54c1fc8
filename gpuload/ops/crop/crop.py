"""RandomCrop and CenterCrop: a window of the image, at a random place or in the middle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, RowError, Sizes
from gpuload.ops.crop import window
from gpuload.ops.crop.window import Color, Fill, Window
from gpuload.ops.traits import Regional, Traits, once
from gpuload.spec import Field


@dataclass(frozen=True)
class _Crop(Window):
    """The base of both crops: the size of the window, and that only a part of the image is used."""

    height: int
    width: int | None = None
    depth: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
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

    @property
    @once
    def traits(self) -> Traits:
        """It uses the window of each image alone."""
        return super().traits._replace(regional=Regional(self._region, self._within))

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the window, pixels."""
        return self.height, int(self.width or self.height)

    def window_of(self, size: Sizes) -> Sizes:
        """Return the window's size for every image."""
        return window.fixed(self.window, self.depth, size)

    def _region(self, draw: Draw, size: Sizes) -> Draw:
        """Return the part of each image that lies in the window."""
        return window.region(draw["start"], self.window_of(size), size)

    def _within(self, draw: Draw, region: Draw) -> Draw:
        """Return where each window begins in its region."""
        return {"start": draw["start"] - region["start"]}

    def _cropped(self, field: Field, pads: tuple[int, int]) -> Field:
        """Return the field of windows; raises ``SpecError`` where they are known not to fit.

        Args:
            field: of images or volumes.
            pads: pixels that are added before height and width begin and behind their ends, and
                slices likewise.
        """
        if self.depth is not None:
            images.check_volume(self, field, "depth")
        sides, across = images.sides(self, field), pads[0]
        windows: tuple[int | None, ...] = self.window
        if len(sides) > 2:
            windows = (*windows, self.depth or sides[2])
        smallest = [side or length or 1 for side, length in zip(sides, windows, strict=True)]
        rests = [side - (length or side) for side, length in zip(smallest, windows, strict=True)]
        if min(rest + 2 * pad for rest, pad in zip(rests, (across, *pads), strict=False)) < 0:
            error = self._does_not_fit(f"field {field.name!r} has images of", np.array(smallest))
            if hint := images.slices_hint(field):
                error.remedy = f"if {field.name!r} are slices, write {hint}; else {error.remedy}"
            raise error
        return images.with_sides(field, windows)

    def _places(self, size: Sizes, pad: Any) -> NDArray[np.int64]:
        """Return the number of places for each window, ``[N, 2]``; raises ``RowError`` where there
        is none."""
        places: NDArray[np.int64] = np.asarray(
            size.astype(np.int64) + (2 * pad + 1) - self.window_of(size)
        )
        if places.size and places.min() < 1:
            row = int(places.min(axis=1).argmin())
            error = self._does_not_fit("it has", size[row])
            raise RowError(row, error.what, cause=error.cause, remedy=error.remedy)
        return places

    def _does_not_fit(self, subject: str, size: NDArray[Any]) -> SpecError:
        if len(size) > 2 and self.depth:
            slices = (f" in {size[2]} slices", f" in {self.depth} slices")
        else:
            slices = ("", "")
        remedy = f"put gl.ops.Resize(shorter={max(self.window)}) before it"
        if len(size) > 2:
            remedy = "take a smaller window, or gl.ops.RandomCrop with pad_if_needed=True"
        return SpecError(
            f"{self}: {subject} {size[0]} x {size[1]} pixels{slices[0]}",
            cause=f"the window of {self.window[0]} x {self.window[1]} pixels{slices[1]} does not fit into it",
            remedy=remedy,
        )


@dataclass(frozen=True)
class RandomCrop(_Crop):
    """Cut ``height`` x ``width`` pixels at a random place; HWC or volumes DHWC, any dtype.

    Every whole-pixel place at which the window lies inside the padded image is equally likely. Of a
    volume all slices are cut at one place, ``depth`` of them. torchvision's and timm's are the
    same. Keras' cuts all images of a batch at one place; Albumentations' puts an image that is
    smaller into the middle; DALI's crop takes a place that is drawn elsewhere, and rounds it.

    Example:
        ``gl.ops.RandomCrop(32, 32, pad=4)``

    Args:
        height: pixels.
        width: pixels; ``height`` if left out.
        pad: pixels that are added on each of the four sides first.
        fill: colour of the added pixels, a number or one for each channel; or a dict from field
            names to these, ``{"mask": 255}``, the others being 0.
        pad_if_needed: have pixels added where an image is smaller than the window, as torchvision
            does: then it lies at a random place of the window.
        depth: slices of the window, of volumes (``DHWC`` or ``DHW``); all if left out. ``pad`` adds
            no slices.
    """

    pad: int = 0
    fill: Fill = field(default=0, hash=False)
    pad_if_needed: bool = field(default=False, kw_only=True)

    per_field: ClassVar[tuple[str, ...]] = ("fill",)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self,
            pad=arguments.side(self, "pad", self.pad, least=0),
            fill=window.check_fill(self, self.fill),
        )
        arguments.keep(
            self, pad_if_needed=arguments.flag(self, "pad_if_needed", self.pad_if_needed)
        )

    def field_after(self, field: Field) -> Field:
        """Height and width become the window's."""
        largest = max(*self.window, self.depth or 0)
        room = (self.pad, 0)
        if self.pad_if_needed:
            room = (largest, largest)
        after = self._cropped(field, room)
        window.check_colors(
            self, field, window.one_fill(self, self.fill), images.num_channels(field)
        )
        return after

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``start``: top and left of each window, int32 ``[N, 2]``, pixels; negative in the
        added border.

        Of volumes ``[N, 3]``, with the first slice; and ``shape``.
        """
        lengths, numbers = self.window_of(size), np.zeros(size.shape)
        pad: Any = np.array([self.pad, self.pad, 0][: size.shape[1]], np.int32)
        if self.pad_if_needed:
            # As torchvision: lacking pixels are added on both sides, so that the image lies
            # anywhere in the window.
            pad = pad + np.maximum(lengths - (size + 2 * pad), 0)
        numbers[:, : u.shape[1]] = u[:, : size.shape[1]]
        start = (numbers * self._places(size, pad)).astype(np.int32) - pad
        return window.with_shape(start.astype(np.int32), lengths)

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """One for each axis that a place is drawn on."""
        return 2 if self.depth is None else 3

    @property
    def border(self) -> Color | None:
        """The colour of the added pixels."""
        if self.pad or self.pad_if_needed:
            return window.one_fill(self, self.fill)
        return None


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """Cut ``height`` x ``width`` pixels out of the middle; HWC or volumes DHWC, any dtype.

    Of an odd number of pixels that are left over, the one more is cut off at the bottom and right,
    as in ``tf.image.resize_with_crop_or_pad`` and Keras. With ``rounding="even"`` an even number is
    cut off at the top and left then, as torchvision and timm do. Albumentations rounds down, too,
    DALI's crop rounds the place to nearest. Keras resizes an image that is smaller than the window,
    torchvision and timm fill it up; here it is an error.

    Example:
        ``gl.ops.CenterCrop(28, 28)``

    Args:
        height: pixels.
        width: pixels; ``height`` if left out.
        depth: slices of the window, of volumes (``DHWC`` or ``DHW``); all if left out.
        rounding: how half of the pixels that are left over is rounded: ``"down"`` or ``"even"``.
    """

    rounding: str = field(default="down", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.choice(self, "rounding", self.rounding, ("down", "even"))

    def field_after(self, field: Field) -> Field:
        """Height and width become the window's."""
        return self._cropped(field, (0, 0))

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``start``: top and left of each window, int32 ``[N, 2]``, pixels; of volumes as
        `RandomCrop`."""
        left_over = self._places(size, 0) - 1
        # torchvision takes Python's round(), and np.rint rounds halves to even as that does.
        if self.rounding == "down":
            start = left_over // 2
        else:
            start = np.rint(left_over / 2)
        return window.with_shape(start.astype(np.int32), self.window_of(size))

"""Grayscale, ChannelShuffle and ColorSpace: other channels."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.errors import SpecError
from gpuload.kernels import colour, colour_cuda, colour_pillow, edits
from gpuload.kernels.edits import Edits
from gpuload.kernels.pixels import Pixels
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, RowForm, Sizes
from gpuload.ops.colour.adjust import RGB_OR_GRAY, ColourOp
from gpuload.ops.colour.tones import Chance
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Traits, once
from gpuload.spec import Field

SPACES = ("BGR", "GRAY", "YCBCR", "HSV")
MOST_CHANNELS = 16  # of an image that is shuffled
PILLOW = {
    "YCBCR": colour_cuda.PILLOW_YCBCR,
    "HSV": colour_cuda.PILLOW_HSV,
}  # the kernels of spaces that are Pillow's


@dataclass(frozen=True)
class Grayscale(Chance):
    """Make images gray; uint8 or float32, HWC.

    As ``torchvision.transforms.v2.functional.rgb_to_grayscale``:
    ``0.2989 * red + 0.587 * green + 0.114 * blue``, cut off to whole numbers for uint8, so that
    white becomes 254. Pillow, timm, Albumentations and DALI's ``color_space_conversion`` weigh red
    by 0.299 and round; Keras has torchvision's weights.

    Example:
        ``gl.ops.Grayscale(p=0.1)``

    Args:
        channels: of the result, 1 or 3; as many as there are if left out. torchvision's
            ``Grayscale()`` is ``Grayscale(1)``.
        p: the probability that an image is changed; torchvision's ``RandomGrayscale()`` is
            ``Grayscale(p=0.1)``.
    """

    channels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels is not None:
            channels = arguments.whole(self, "channels", self.channels)
            if channels not in RGB_OR_GRAY:
                raise arguments.refuse(self, "channels", channels, "1 or 3")
            arguments.keep(self, channels=channels)

    @property
    @once
    def traits(self) -> Traits:
        """It adds values up, of any black and white."""
        return super().traits.with_arithmetic(takes_parts=False)

    def forms(self, field: Field) -> Forms:
        """It is an edit where the channels stay, and else has a form in the core."""
        return Forms(edits=self._edits, row=self._row_form(field))

    @property
    def known_channels(self) -> tuple[int, ...]:
        """How many channels an image may have; empty for any number."""
        return RGB_OR_GRAY

    def field_after(self, field: Field) -> Field:
        """The channels become as many as there shall be."""
        after = super().field_after(field)
        height, width, channels = images.image(self, after)
        if self.channels in (None, channels):
            return after
        if self.p < 1:
            raise SpecError(
                f"{self}: field {field.name!r} has shape {field.shape}",
                cause=f"some images would have {channels} channels, and others {self.channels}",
                remedy="leave channels out, or p, so that all images have the same",
            )
        return after.with_(shape=(height, width, self.channels))

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.grayscale(xp, x, self.channels or x.shape[-1])

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        return Pixels(xp, x, draw["apply"]).change(colour_cuda.GRAYSCALE, channels=self.channels)

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of the images where the channels stay; else None."""
        if self.channels not in (None, channels):
            return None
        return edits.keep_rows(edits.of(len(size), edits.GRAY), draw["apply"])

    def _row_form(self, field: Field) -> RowForm | None:
        """In the core, for uint8 images of one size; those that keep their channels are edited."""
        is_compiled = core.native is not None and field.dtype == np.uint8 and field.uniform
        if is_compiled and self.channels not in (None, images.image(self, field)[2]):
            return _gray_into
        return None


@dataclass(frozen=True)
class ChannelShuffle(ColourOp):
    """Put the channels of each image into a random order; uint8 or float32, HWC.

    As ``torchvision.transforms.v2.RandomChannelPermutation``: all orders are equally likely, that
    of the image too. Albumentations' ``ChannelShuffle`` is the same; DALI has no such operator.
    Keras and timm have none.

    Example:
        ``gl.ops.ChannelShuffle()``
    """

    num_uniforms: ClassVar[int] = MOST_CHANNELS

    @property
    @once
    def traits(self) -> Traits:
        """It moves values or adds them up, whatever black and white are."""
        return super().traits.with_arithmetic(takes_parts=False)

    @property
    def known_channels(self) -> tuple[int, ...]:
        """Any number, but not more than are drawn for."""
        return tuple(range(1, MOST_CHANNELS + 1))

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``keys``, float32 ``[N, 16]``: the order of the channels is that of their keys."""
        return {"keys": u.astype(np.float32)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image."""
        return x[..., xp.asarray(_orders(draw["keys"], x.shape[-1]))]

    def change_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the values taken by index."""
        count, height, width, channels = x.shape
        order = xp.asarray(_orders(draw["keys"], channels))[:, None, None]
        rows, columns = xp.arange(height)[:, None, None], xp.arange(width)[:, None]
        return x[xp.arange(count)[:, None, None, None], rows, columns, order]

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        return Pixels(xp, x, _orders(draw["keys"], x[0].shape[2]), raw=True).change(
            colour_cuda.REORDER
        )


@dataclass(frozen=True)
class ColorSpace(ColourOp):
    """Turn red, green and blue into another colour space; uint8, or float32 for BGR and GRAY, HWC.

    ``"YCBCR"`` and ``"HSV"`` as Pillow's ``convert`` makes them, in 8 bits: JPEG's YCbCr of the
    full range, and a hue from 0 to 255. ``"GRAY"`` is `Grayscale` with 1 channel. DALI's YCbCr goes
    from 16 to 235; OpenCV, and Albumentations with it, has the order Y, Cr, Cb, and a hue from 0 to
    179. torchvision, Keras and timm have gray alone.

    Example:
        ``gl.ops.ColorSpace("BGR")``

    Args:
        space: ``"BGR"``, ``"GRAY"``, ``"YCBCR"`` or ``"HSV"``.
    """

    space: str

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(self, space=arguments.choice(self, "space", self.space, SPACES))

    @property
    @once
    def traits(self) -> Traits:
        """It moves values or adds them up, whatever black and white are."""
        return super().traits.with_arithmetic(takes_parts=False)

    @property
    def known_channels(self) -> tuple[int, ...]:
        """How many channels an image may have; empty for any number."""
        return (3,)

    def field_after(self, field: Field) -> Field:
        """The shape and the dtype stay, but for the channels of ``"GRAY"``."""
        after = super().field_after(field)
        if self.space in ("YCBCR", "HSV") and field.dtype != np.uint8:
            raise SpecError(
                f"{self}: field {field.name!r} has dtype {field.dtype}",
                cause=f"{self.space} is made of uint8",
                remedy=f"put gl.ops.Cast('uint8', on={field.name!r}) before it, for values from 0 to 255",
            )
        if self.space != "GRAY":
            return after
        return after.with_(shape=(*images.image(self, after)[:2], 1))

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        if self.space == "BGR":
            return xp.ascontiguousarray(x[..., ::-1])
        if self.space == "GRAY":
            return colour.grayscale(xp, x, 1)
        if self.space == "YCBCR":
            return colour_pillow.ycbcr(xp, x)
        return colour_pillow.hsv(xp, x)

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        if self.space in PILLOW:
            return Pixels(xp, x).change(PILLOW[self.space])
        if self.space == "GRAY":
            return Pixels(xp, x, np.ones(len(x), np.int32)).change(
                colour_cuda.GRAYSCALE, channels=1
            )
        order = np.broadcast_to(np.arange(2, -1, -1, dtype=np.int32), (len(x), 3))
        return Pixels(xp, x, order, raw=True).change(colour_cuda.REORDER)


def _gray_into(x: NDArray[Any], draw: Draw, out: NDArray[Any]) -> None:
    """Write the gray of an image of 3 channels to 1, or that of 1 to 3."""
    if core.native is None:
        raise RuntimeError(f"gray: {core.problem}")
    if x.shape[2] == 1:
        np.copyto(out, x)
    else:
        core.native.make_gray(x, out)


def _orders(keys: NDArray[np.float32], channels: int) -> NDArray[np.int32]:
    # As float32 two keys can be equal, which a sort that is not stable puts in any order.
    return np.asarray(keys[..., :channels].argsort(axis=-1, kind="stable"), np.int32)

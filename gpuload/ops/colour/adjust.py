"""Brightness, Contrast, Saturation, Hue, Gamma and Sharpness: a random number for each image, from
low to high.

`gpuload.kernels.colour` has torchvision's formulas, and says which are exact. DALI's
``color_twist`` rounds where these cut off, turns the hue by a linear transform of red, green and
blue, and moves the contrast about a constant gray: so DALI runs `Brightness`, by arithmetic, and
`Contrast` with a center; the others run in their array forms behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import SpecError
from gpuload.kernels import colour, colour_cuda, edits, pixels
from gpuload.kernels.edits import Edits
from gpuload.ops import arguments, images
from gpuload.ops.base import VARYING, Draw, Op, Sizes
from gpuload.ops.bounds import FLOATS, FUSED_BYTES
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Arithmetic, Execution, Traits, once
from gpuload.spec import Field

RGB_OR_GRAY = (1, 3)


@dataclass(frozen=True)
class ColourOp(Op):
    """An op on colours: it takes uint8 or float32 images in HWC order, and keeps their shape
    and dtype."""

    @property
    @once
    def traits(self) -> Traits:
        """It takes 0 for black and 1 for white of floating-point numbers."""
        return Traits(
            arithmetic=Arithmetic(any_size=True, takes_parts=True), bounds={"gpu": FLOATS}
        )

    @property
    def known_channels(self) -> tuple[int, ...]:
        """How many channels an image may have: any number (empty) if each value is changed by
        itself, else 1 or 3."""
        return () if self.traits.arithmetic.pointwise else RGB_OR_GRAY

    def field_after(self, field: Field) -> Field:
        """The shape and the dtype stay."""
        images.bytes_or_floats(self, field, "colours are changed in uint8 or float32 images")
        shape = images.image(self, field)
        if self.known_channels and shape[2] not in self.known_channels:
            raise SpecError(
                f"{self}: field {field.name!r} has shape {field.shape}",
                cause=f"it acts on images of {_list(self.known_channels)} channels",
                remedy=images.without_alpha(
                    field,
                    "gl.ops.Decode() makes images of 3 channels; name the field that is for it with on=",
                ),
            )
        return field.with_(shape=shape, axes="HWC")

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image."""
        return self.change(xp, x, draw)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once, on a GPU by at most three kernels."""
        has_kernels = type(self).change_on_device is not ColourOp.change_on_device
        if has_kernels and pixels.reads(xp, x):
            return self.change_on_device(xp, x, draw)
        device.settle()
        if isinstance(x, VARYING):
            return super().array_batch(xp, x, draw)
        return self.change_batch(xp, x, draw)

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size with the draws of all of its images."""
        raise NotImplementedError

    def change_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return a batch of one size."""
        return self.change(xp, x, draw)

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images of any sizes for which `pixels.reads` is True, by kernels; an op without
        this has none."""
        raise NotImplementedError


def uniform(u: NDArray[np.float64], low: float, high: float) -> NDArray[np.float32]:
    """Return uniform numbers from 0 to 1 as numbers from low to high."""
    return np.asarray(low + u * (high - low), np.float32)


@dataclass(frozen=True)
class _Factor(ColourOp):
    """An op with a factor, which is drawn uniformly from low to high."""

    low: float
    high: float

    num_uniforms: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = arguments.low_and_high(self, self.low, self.high)
        arguments.keep(self, low=low, high=high)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``factor``, float32 ``[N]``."""
        return {"factor": uniform(u[:, 0], self.low, self.high)}


@dataclass(frozen=True)
class Brightness(_Factor):
    """Multiply each image by a random factor from `low` to `high`; uint8 or float32, HWC.

    As ``torchvision.transforms.v2.functional.adjust_brightness``: ``x * factor``, bounded by 0 and
    255, for float32 by 0 and 1; uint8 is cut off to whole numbers. Pillow and timm are the same;
    DALI rounds; Keras and Albumentations' ``RandomBrightnessContrast`` add instead.

    Example:
        ``gl.ops.Brightness(0.8, 1.2)``

    Args:
        low: the least factor, at least 0; 1 changes nothing. torchvision's ``brightness=0.4`` is
            0.6 to 1.4.
        high: the greatest.
    """

    @property
    @once
    def traits(self) -> Traits:
        """It changes each value by itself."""
        return super().traits.with_arithmetic(pointwise=True)._replace(meaning=2)

    def forms(self, field: Field) -> Forms:
        """It is an edit."""
        return Forms(edits=self._edits)

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.brightness(xp, x, draw["factor"])

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        return colour_cuda.take_step(xp, x, colour_cuda.BRIGHTNESS, draw["factor"])

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of the images, one row for each."""
        return edits.of(len(size), edits.BRIGHTNESS, draw["factor"])

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """Arithmetic: ``brightness_contrast`` rounds."""
        math, types = dali.math, dali.types
        factor = draw["factor"]
        if device == "gpu":
            factor = factor.gpu()
        product = x * factor
        if field.dtype == np.float32:
            return math.clamp(product, 0.0, 1.0)
        return dali.fn.cast(math.floor(math.clamp(product, 0.0, 255.0)), dtype=types.UINT8)


@dataclass(frozen=True)
class Contrast(_Factor):
    """Move the pixels of each image away from its mean, or towards it, by a random factor; uint8 or
    float32, HWC.

    As ``torchvision.transforms.v2.functional.adjust_contrast``:
    ``x * factor + mean * (1 - factor)``, bounded and cut off as `Brightness`. The mean is that of
    the image's gray, ``0.2989 * red + 0.587 * green + 0.114 * blue``, which for uint8 is cut off to
    whole numbers first. 1 or 3 channels. Pillow and timm round the mean and the gray; Keras takes
    the mean of each channel; DALI and Albumentations' ``RandomBrightnessContrast`` a constant.

    Example:
        ``gl.ops.Contrast(0.8, 1.2)``

    Args:
        low: the least factor, at least 0; 0 makes the image gray, 1 changes nothing. torchvision's
            ``contrast=0.4`` is 0.6 to 1.4.
        high: the greatest.
        center: a constant gray instead of the mean, in units of the pixels, for images of any
            number of channels: ``x * factor + (center - factor * center)``; uint8 is rounded,
            halves up, and float32 is not bounded. DALI's ``brightness_contrast`` is that.
    """

    center: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.center is not None:
            arguments.keep(self, center=arguments.number(self, "center", self.center))

    @property
    @once
    def traits(self) -> Traits:
        """With a center it changes each value by itself, and DALI has it."""
        has_center = self.center is not None
        return (
            super()
            .traits.with_arithmetic(pointwise=has_center)
            ._replace(
                bounds={"gpu": FLOATS, "dali on gpu": FUSED_BYTES},
                execution=Execution(has_dali_form=has_center),
                meaning=2 - has_center,
            )
        )

    def forms(self, field: Field) -> Forms:
        """It is an edit; with a center a look-up."""
        if self.center is not None:
            return super().forms(field)
        return Forms(edits=self._edits)

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        if self.center is None:
            return colour.contrast(xp, x, draw["factor"])
        return colour.contrast_about(xp, x, draw["factor"], self.center)

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        factor = draw["factor"]
        if self.center is None:
            return colour_cuda.take_step(xp, x, colour_cuda.CONTRAST, factor)
        center = pixels.constants(len(x), self.center)
        return colour_cuda.tone(xp, x, colour_cuda.CONTRAST_ABOUT, np.ones(len(x)), factor, center)

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of the images, one row for each."""
        return edits.of(len(size), edits.CONTRAST, draw["factor"], colour.weight(draw["factor"]))

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``brightness_contrast``."""
        if field.dtype == np.uint8:
            dtype = dali.types.UINT8
        else:
            dtype = dali.types.FLOAT
        return dali.fn.brightness_contrast(
            x, dtype=dtype, contrast=draw["factor"], contrast_center=self.center
        )


@dataclass(frozen=True)
class Saturation(_Factor):
    """Move the colours of each image away from its gray, or towards it, by a random factor; uint8
    or float32, HWC.

    As ``torchvision.transforms.v2.functional.adjust_saturation``:
    ``x * factor + gray * (1 - factor)``, bounded and cut off as `Brightness`, with the gray of
    `Contrast`. Images of 1 channel stay as they are. Pillow's ``Color`` and timm round the gray;
    Keras and TensorFlow multiply the saturation of HSV; DALI transforms the colours linearly and
    rounds. Albumentations' ``ColorJitter`` blends with gray, too, and rounds.

    Example:
        ``gl.ops.Saturation(0.8, 1.2)``

    Args:
        low: the least factor, at least 0; 0 makes the image gray, 1 changes nothing. torchvision's
            ``saturation=0.4`` is 0.6 to 1.4.
        high: the greatest.
    """

    def forms(self, field: Field) -> Forms:
        """It is an edit."""
        return Forms(edits=self._edits)

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.saturation(xp, x, draw["factor"])

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        return colour_cuda.take_step(xp, x, colour_cuda.SATURATION, draw["factor"])

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of the images, one row for each."""
        return edits.of(len(size), edits.SATURATION, draw["factor"], colour.weight(draw["factor"]))


@dataclass(frozen=True)
class Hue(ColourOp):
    """Turn the hue of each image by a random part of a full turn; uint8 or float32, HWC.

    As ``torchvision.transforms.v2.functional.adjust_hue`` of tensors: to HSV and back in float32,
    uint8 by way of 0 to 1 and cut off to whole numbers. Images of 1 channel stay as they are.
    Pillow's HSV, which torchvision has for images of Pillow, is of 8 bits; Albumentations' hue of
    180 levels; Keras and TensorFlow are the same but for rounding; DALI transforms red, green and
    blue linearly, which gives other colours. timm has torchvision's, on images of Pillow.

    Example:
        ``gl.ops.Hue(-0.1, 0.1)``

    Args:
        low: the least part of a turn, -0.5 to 0.5; 0 changes nothing. torchvision's ``hue=0.1`` is
            -0.1 to 0.1.
        high: the greatest.
    """

    low: float
    high: float

    num_uniforms: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = _turns(self, self.low, self.high)
        arguments.keep(self, low=low, high=high)

    def forms(self, field: Field) -> Forms:
        """It is an edit."""
        return Forms(edits=self._edits)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``shift``, float32 ``[N]``."""
        return {"shift": uniform(u[:, 0], self.low, self.high)}

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.hue(xp, x, draw["shift"])

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        return colour_cuda.take_step(xp, x, colour_cuda.HUE, draw["shift"])

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of the images, one row for each."""
        return edits.of(len(size), edits.HUE, draw["shift"])


@dataclass(frozen=True)
class Gamma(_Factor):
    """Raise the values of each image, from 0 to 1, to a random power; uint8 or float32, HWC.

    As ``torchvision.transforms.v2.functional.adjust_gamma``: ``gain * x ** gamma``, bounded where
    the gain is not 1; uint8 goes by 0 to 1 and is cut off to whole numbers. Albumentations'
    ``RandomGamma`` counts in hundredths and rounds; DALI and Keras have no such operator. timm has
    none.

    Example:
        ``gl.ops.Gamma(0.8, 1.25)``

    Args:
        low: the least power, at least 0; below 1 images become brighter, above 1 darker.
        high: the greatest.
        gain: the result is multiplied by it.
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        gain = arguments.number(self, "gain", self.gain)
        if gain < 0:
            raise arguments.refuse(self, "gain", self.gain, "at least 0")
        arguments.keep(self, gain=gain)

    @property
    @once
    def traits(self) -> Traits:
        """It changes each value by itself."""
        return super().traits.with_arithmetic(pointwise=True)

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.gamma(xp, x, draw["factor"], self.gain)

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        return colour_cuda.gamma(xp, x, draw["factor"], self.gain)


@dataclass(frozen=True)
class Sharpness(_Factor):
    """Sharpen or smooth each image by a random factor; uint8 or float32, HWC.

    As ``torchvision.transforms.v2.functional.adjust_sharpness``:
    ``x * factor + smooth * (1 - factor)``, bounded and cut off as `Brightness`. Smooth is the mean
    of 3 x 3 pixels with weight 5 in the middle (a sum over 13), rounded for uint8. The pixels at
    the edge stay as they are, and so does an image of fewer than 3 in a direction. 1 or 3 channels.
    Pillow and timm are the same but for the rounding; Albumentations' ``Sharpen`` has another
    kernel. Keras' RandomSharpness counts from 0 to 1, of which 0.5 changes nothing; DALI has none.

    Example:
        ``gl.ops.Sharpness(0, 2)``

    Args:
        low: the least factor, at least 0; 0 smooths, 1 changes nothing, 2 sharpens as much as 0
            smooths.
        high: the greatest.
        p: the probability that an image is changed; torchvision's ``RandomAdjustSharpness(2)`` is
            ``Sharpness(2, 2, p=0.5)``.
    """

    p: float = field(default=1.0, kw_only=True)

    num_uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(self, p=arguments.probability(self, "p", self.p))

    def forms(self, field: Field) -> Forms:
        """It is an edit."""
        return Forms(edits=self._edits)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``factor``, float32 ``[N]``: 1 where an image stays as it is."""
        draw = super().draw(u, size)
        return {"factor": np.where(u[:, 1] < self.p, draw["factor"], np.float32(1))}

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.sharpness(xp, x, draw["factor"])

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        return colour_cuda.sharpness(xp, x, draw["factor"])

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of the images, one row for each."""
        factor = draw["factor"]
        return edits.keep_rows(
            edits.of(len(size), edits.SHARPNESS, colour.weight(factor)), factor != 1
        )


def _list(counts: tuple[int, ...]) -> str:
    """Return numbers of channels as text: ``1 or 3``, ``1 to 16``."""
    if len(counts) > 2:
        return f"{counts[0]} to {counts[-1]}"
    return " or ".join(map(str, counts))


def _turns(op: Hue, low: Any, high: Any) -> tuple[float, float]:
    """Return the arguments ``low`` and ``high`` with -0.5 <= low <= high <= 0.5."""
    pair = arguments.number(op, "low", low), arguments.number(op, "high", high)
    for name, value in zip(("low", "high"), pair, strict=True):
        if not -0.5 <= value <= 0.5:
            raise arguments.refuse(op, name, value, "a part of a turn, -0.5 to 0.5")
    if pair[1] < pair[0]:
        raise arguments.refuse(op, "high", high, f"at least low, which is {pair[0]}")
    return pair

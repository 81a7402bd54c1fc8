"""Invert, Posterize, Solarize, AutoContrast and Equalize: other tones, each channel by itself.

`gpuload.kernels.colour` has the formulas, which are torchvision's, and says which are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.kernels import colour, colour_cuda, edits, pixels
from gpuload.kernels.edits import Edits
from gpuload.ops import arguments
from gpuload.ops.base import Draw, Sizes
from gpuload.ops.colour.adjust import ColourOp
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Traits, once
from gpuload.spec import Field


@dataclass(frozen=True)
class Chance(ColourOp):
    """An op that is applied to an image with a probability.

    Args:
        p: the probability that an image is changed.
    """

    p: float = field(default=1.0, kw_only=True)

    num_uniforms: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(self, p=arguments.probability(self, "p", self.p))

    @property
    @once
    def traits(self) -> Traits:
        """It is not random where all images are changed, or none."""
        return super().traits._replace(is_random=0 < self.p < 1)

    @property
    def known_channels(self) -> tuple[int, ...]:
        """Any number."""
        return ()

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``apply``, int32 ``[N]``: 1 where an image is changed."""
        return {"apply": (u[:, 0] < self.p).astype(np.int32)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image."""
        if draw["apply"]:
            return self.change(xp, x, draw)
        return x

    def change_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return a batch of one size."""
        apply = draw["apply"].astype(np.bool_)
        if not apply.any():
            return x
        result = self.change(xp, x, draw)
        if apply.all():
            return result
        return xp.where(xp.asarray(apply.reshape(-1, 1, 1, 1)), result, x)


@dataclass(frozen=True)
class Invert(Chance):
    """Turn each value ``x`` of an image into ``255 - x``, of float32 into ``1 - x``; uint8 or
    float32, HWC.

    As ``torchvision.transforms.v2.functional.invert`` and ``PIL.ImageOps.invert``. Keras'
    ``RandomInvert``, timm and Albumentations are the same; DALI has no such operator.

    Example:
        ``gl.ops.Invert(p=0.5)``

    Args:
        p: the probability that an image is changed.
    """

    @property
    @once
    def traits(self) -> Traits:
        """It changes each value by itself."""
        return super().traits.with_arithmetic(pointwise=True)

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.invert(xp, x)

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        return colour_cuda.tone(xp, x, colour_cuda.INVERT, draw["apply"])


@dataclass(frozen=True)
class Posterize(Chance):
    """Keep the first bits of each value of an image; uint8 or float32, HWC.

    As ``torchvision.transforms.v2.functional.posterize`` and ``PIL.ImageOps.posterize``:
    ``x & ~(2 ** (8 - bits) - 1)``, of float32 ``floor(x * 2 ** bits) / 2 ** bits``. timm has three
    scales from a level to bits (``Posterize``, ``PosterizeIncreasing``, ``PosterizeOriginal``),
    Keras one from 0 to 1; these are bits. DALI has no such operator. Albumentations' draws the
    bits.

    Example:
        ``gl.ops.Posterize(4, p=0.5)``

    Args:
        bits: how many stay, 0 to 8; 8 changes nothing, 0 leaves a black image (Pillow refuses it).
        p: the probability that an image is changed.
    """

    bits: int

    def __post_init__(self) -> None:
        super().__post_init__()
        bits = arguments.whole(self, "bits", self.bits, least=0)
        if bits > 8:
            raise arguments.refuse(self, "bits", bits, "a whole number of at most 8")
        arguments.keep(self, bits=bits)

    @property
    @once
    def traits(self) -> Traits:
        """It changes each value by itself."""
        return super().traits.with_arithmetic(pointwise=True)

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.posterize(xp, x, self.bits)

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        levels = 1 << self.bits
        # 1 / levels is a power of two, hence exact: the kernel multiplies by it, and gets the
        # quotient.
        words = pixels.constants(len(x), levels, 1 / levels)
        return colour_cuda.tone(xp, x, colour_cuda.POSTERIZE, draw["apply"], words)


@dataclass(frozen=True)
class Solarize(Chance):
    """Invert the values of an image that reach a threshold; uint8 or float32, HWC.

    As ``torchvision.transforms.v2.functional.solarize`` and ``PIL.ImageOps.solarize``: ``255 - x``
    where ``x >= threshold``. Albumentations is the same; Keras can add before; DALI has no such
    operator. timm's is Pillow's, with a threshold from a level.

    Example:
        ``gl.ops.Solarize(128, p=0.5)``

    Args:
        threshold: the least value that is inverted: 0 to 256 for uint8, where 256 inverts nothing,
            and 0 to 1 for float32.
        p: the probability that an image is changed.
    """

    threshold: float

    def __post_init__(self) -> None:
        super().__post_init__()
        threshold = arguments.number(self, "threshold", self.threshold)
        if not 0 <= threshold <= 256:
            raise arguments.refuse(self, "threshold", self.threshold, "a number from 0 to 256")
        arguments.keep(self, threshold=threshold)

    @property
    @once
    def traits(self) -> Traits:
        """It changes each value by itself."""
        return super().traits.with_arithmetic(pointwise=True)._replace(advice=self._advice)

    def field_after(self, field: Field) -> Field:
        """The shape and the dtype stay."""
        after = super().field_after(field)
        if after.dtype == np.float32 and self.threshold > 1:
            raise SpecError(
                f"{self}: field {field.name!r} has dtype float32",
                cause="its values go from 0 to 1, and the threshold lies above",
                remedy=f"write gl.ops.Solarize({self.threshold / 256}), or put it before the op that makes float32",
            )
        return after

    def _advice(self, field: Field) -> str | None:
        """Warn of a threshold for images from 0 to 1, as Albumentations has it, beside bytes."""
        if field.dtype != np.uint8 or not 0 < self.threshold < 1:
            return None
        return (
            f"{self} of field {field.name!r}, uint8; cause: the threshold is a level, 0 to 256, and this one inverts "
            f"all but black; remedy: gl.ops.Solarize({round(self.threshold * 256)})"
        )

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.solarize(xp, x, self.threshold)

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        threshold = pixels.constants(len(x), self.threshold)
        return colour_cuda.tone(xp, x, colour_cuda.SOLARIZE, draw["apply"], threshold)


@dataclass(frozen=True)
class AutoContrast(Chance):
    """Stretch each channel of an image from its least and largest value to the whole range; uint8
    or float32, HWC.

    As ``torchvision.transforms.v2.functional.autocontrast`` of tensors:
    ``(x - low) / ((high - low) / 255)`` in float32, cut off to whole numbers for uint8; a channel
    of one value stays. Pillow, and timm with it, computes in float64, which is one level more or
    less for some 3 % of values. DALI has no such operator. Keras' AutoContrast is the same in
    floating point; Albumentations' goes by the cumulated histogram unless told ``method="pil"``.

    Example:
        ``gl.ops.AutoContrast(p=0.5)``

    Args:
        p: the probability that an image is changed.
    """

    def forms(self, field: Field) -> Forms:
        """It is an edit."""
        return Forms(edits=self._edits)

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.autocontrast(xp, x)

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        return colour_cuda.autocontrast(xp, x, draw["apply"])

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of the images, one row for each."""
        return edits.keep_rows(edits.of(len(size), edits.AUTOCONTRAST), draw["apply"])


@dataclass(frozen=True)
class Equalize(Chance):
    """Make the histogram of each channel of an image even; uint8 or float32, HWC.

    As ``torchvision.transforms.v2.functional.equalize`` and ``PIL.ImageOps.equalize``, bit for bit:
    value k becomes ``(values below k + step // 2) // step``, where ``255 * step`` is the number of
    values below the largest. float32 is brought to 256 levels first. OpenCV, DALI's equalize and
    Albumentations by default scale otherwise; timm's is Pillow's; Keras' Equalization computes in
    floating point.

    Example:
        ``gl.ops.Equalize(p=0.5)``

    Args:
        p: the probability that an image is changed.
    """

    def forms(self, field: Field) -> Forms:
        """It is an edit."""
        return Forms(edits=self._edits)

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        return colour.equalize(xp, x)

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        return colour_cuda.equalize(xp, x, draw["apply"])

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of the images, one row for each."""
        return edits.keep_rows(edits.of(len(size), edits.EQUALIZE), draw["apply"])

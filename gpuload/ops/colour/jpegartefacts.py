"""JpegArtefacts: the artefacts of JPEG compression, in a random quality."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import RowError, SpecError
from gpuload.images.recompress import LARGEST_SIDE, pillow, recompress
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Op, Sizes
from gpuload.ops.traits import Arithmetic, Execution, Traits, once
from gpuload.spec import Field


@dataclass(frozen=True)
class JpegArtefacts(Op):
    """Compress images as JPEG of a random quality, and decode them again; uint8, HWC, one channel
    or three.

    On the host, by Pillow, before ops of any executor: see `images.recompress`. It is torchvision's
    ``JPEG``, and Albumentations' ImageCompression by OpenCV; DALI's jpeg_compression_distortion
    only computes the losses of a file. Keras and timm have none.

    Example:
        ``gl.ops.JpegArtefacts((40, 90))``

    Args:
        quality: least and greatest quality, 1 to 100, each as likely as the others; one number is
            both.
        p: probability.
    """

    quality: int | tuple[int, int]
    p: float = 1.0

    num_uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.quality, (tuple, list)):
            pair = self.quality
        else:
            pair = (self.quality, self.quality)
        quality = tuple(arguments.whole(self, "quality", number) for number in pair)
        if len(quality) != 2 or not quality[0] <= quality[1] <= 100:
            raise arguments.refuse(
                self, "quality", self.quality, "whole numbers, low and high, 1 to 100"
            )
        arguments.keep(self, quality=quality, p=arguments.probability(self, "p", self.p))

    @property
    @once
    def traits(self) -> Traits:
        """NumPy alone runs it."""
        return Traits(arithmetic=Arithmetic(any_size=True), execution=Execution(needs_numpy=True))

    def field_after(self, field: Field) -> Field:
        """Shape and dtype stay."""
        height, width, channels = images.image(self, field)
        if field.dtype != np.uint8 or channels not in (None, 1, 3):
            remedy = "put the op behind gl.ops.Decode() and before gl.ops.Normalize(...)"
            if field.dtype == np.uint8:
                remedy = images.without_alpha(field, remedy)
            raise SpecError(
                f"{self}: field {field.name!r} is {field.dtype} with {channels} channels",
                cause="JPEG holds bytes of one channel or of three",
                remedy=remedy,
            )
        if max(height or 1, width or 1) > LARGEST_SIDE:
            raise SpecError(
                f"{self}: field {field.name!r} has images of {height} x {width} pixels",
                cause=f"libjpeg writes at most {LARGEST_SIDE} on a side",
                remedy="put gl.ops.Resize or a crop before it",
            )
        pillow()  # where it is not installed, that is said now
        return field.with_(shape=(height, width, channels), axes="HWC")

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``quality``, int32 ``[N]``; 0 for an image that stays as it is."""
        if isinstance(self.quality, tuple):
            low, high = self.quality
        else:
            low, high = (self.quality, self.quality)
        quality = low + np.floor(u[:, 1] * (high - low + 1))
        return {"quality": np.where(u[:, 0] < self.p, quality, 0).astype(np.int32)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, compressed and decoded."""
        quality = int(draw["quality"])
        if not quality:
            return x
        if max(x.shape) > LARGEST_SIDE or x.shape[2] not in (1, 3):
            raise RowError(
                0,
                f"{self}: the image is {x.shape}",
                cause=f"libjpeg writes one channel or three, and at most {LARGEST_SIDE} pixels on a side",
                remedy="put gl.ops.Resize or a crop before it",
            )
        return recompress(np.ascontiguousarray(x), quality)

"""Brightness and Contrast: a random factor for each image.

Formula  DALI's ``brightness_contrast``: ``x * factor`` for the brightness, ``x * factor + (center - factor * center)``
         for the contrast, each step rounded to float32. uint8 results are rounded to nearest, halves up, and bounded;
         float results are not bounded.
Others   torchvision's ``ColorJitter(brightness=)`` multiplies too, and cuts off where this rounds (1 level less on half
         of the pixels); ``tf.image.random_brightness`` adds. For the contrast both move the pixels away from the
         image's own mean, DALI and this away from a constant gray.
Source   https://docs.nvidia.com/deeplearning/dali/user-guide/docs/operations/nvidia.dali.fn.brightness_contrast.html
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.ops import arguments, images
from gpuload.ops.base import VARYING, Draw, Op, Sizes
from gpuload.ops.cast import ALMOST_HALF
from gpuload.spec import Field

MIDDLE = 128.0  # of uint8, as DALI has it


@dataclass(frozen=True)
class _Factor(Op):
    """What the two have in common: the factor, uniform from low to high, and how it is applied."""

    low: float
    high: float

    num_uniforms: ClassVar[int] = 1
    any_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = arguments.low_and_high(self, self.low, self.high)
        arguments.keep(self, low=low, high=high)

    @property
    def gray(self) -> float:
        """The value that stays what it is, whatever the factor."""
        return 0.0

    def field_after(self, field: Field) -> Field:
        """The shape and the dtype stay."""
        images.bytes_or_floats(self, field, "colours are changed in uint8 or float32 images")
        return field.with_(shape=images.image(self, field), axes="HWC")

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``factor``, float32 ``[N]``."""
        return {"factor": (self.low + u[:, 0] * (self.high - self.low)).astype(np.float32)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image."""
        if x.dtype == np.uint8:
            return xp.asarray(self._bytes(draw["factor"])).take(x)
        return self._changed(x.astype(xp.float32), draw["factor"])

    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once."""
        if isinstance(x, VARYING):
            return super().array_batch(xp, x, draw)
        if x.dtype == np.uint8:
            tables = xp.asarray(self._bytes(draw["factor"][:, None]))
            return tables[xp.arange(len(x))[:, None, None, None], x]
        return self._changed(x.astype(xp.float32), xp.asarray(draw["factor"])[:, None, None, None])

    def _bytes(self, factor: Any) -> NDArray[np.uint8]:
        """Return what becomes of the values 0 to 255: to look them up is three times faster than to compute each."""
        made = self._changed(np.arange(256, dtype=np.float32), factor)
        return np.asarray(np.floor(made.clip(0, 255) + np.float32(ALMOST_HALF)), np.uint8)

    def _changed(self, x: Any, factor: Any) -> Any:
        gray = np.float32(self.gray)
        return x * factor + (gray - factor * gray)


@dataclass(frozen=True)
class Brightness(_Factor):
    """Multiply each image by a random factor from ``low`` to ``high``; uint8 or float32, HWC.

    Example:
        ``gl.ops.Brightness(0.8, 1.2)``

    Args:
        low: the least factor, at least 0; 1 changes nothing.
        high: the greatest.
    """

    def lower(self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str) -> Any:
        """``brightness_contrast``."""
        dtype = dali.types.UINT8 if field.dtype == np.uint8 else dali.types.FLOAT
        return dali.fn.brightness_contrast(x, brightness=draw["factor"], dtype=dtype)


@dataclass(frozen=True)
class Contrast(_Factor):
    """Move the pixels of each image away from a gray, or towards it, by a random factor; uint8 or float32, HWC.

    Example:
        ``gl.ops.Contrast(0.8, 1.2)``

    Args:
        low: the least factor, at least 0; 0 makes the image gray, 1 changes nothing.
        high: the greatest.
        center: the gray. 128 if left out, which is for uint8; float32 images need it, for nothing tells whether their
            pixels go to 1 or to 255.
    """

    center: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.center is not None:
            arguments.keep(self, center=arguments.number(self, "center", self.center))

    @property
    def gray(self) -> float:
        """The center."""
        return MIDDLE if self.center is None else self.center

    def field_after(self, field: Field) -> Field:
        """The shape and the dtype stay."""
        made = super().field_after(field)
        if self.center is None and field.dtype != np.uint8:
            raise SpecError(
                f"{self}: field {field.name!r} has dtype {field.dtype}",
                cause="nothing tells which gray is in the middle of its range",
                remedy=f"write gl.ops.Contrast({self.low}, {self.high}, center=0.5) for pixels from 0 to 1, "
                f"or gl.ops.Contrast({self.low}, {self.high}, center=128) for pixels from 0 to 255",
            )
        return made

    def lower(self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str) -> Any:
        """``brightness_contrast``."""
        dtype = dali.types.UINT8 if field.dtype == np.uint8 else dali.types.FLOAT
        settings = {"contrast": draw["factor"], "contrast_center": self.gray}
        return dali.fn.brightness_contrast(x, dtype=dtype, **settings)

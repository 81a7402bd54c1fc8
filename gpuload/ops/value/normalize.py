"""Normalize: subtract a mean and divide by a standard deviation, both given.

Formula  ``(float32(x) - float32(mean)) * (float32(1) / float32(std))``, each step rounded to
         float32 (the product with the reciprocal, not the quotient: that is DALI's
         ``crop_mirror_normalize``), then rounded to ``dtype``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import SpecError
from gpuload.kernels import pixels
from gpuload.kernels.walk import Walk
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Op
from gpuload.ops.bounds import NORMALIZING
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Arithmetic, Execution, Traits, once
from gpuload.spec import Field

DTYPES = ("float32", "float16")
FUSED = (
    "uint8",
    "int16",
    "uint16",
    "int32",
    "float16",
    "float32",
)  # the dtypes that crop_mirror_normalize takes
# `words` has the means and the scales.
NORMALIZE = """
typedef int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    for (int channel = 0; channel < CHANNELS; ++channel) {
        float difference = (float)at(image, y, x, channel) - number(words[channel]);
        store(to + channel, difference * number(words[CHANNELS + channel]));
    }
}
"""


@dataclass(frozen=True)
class Normalize(Op):
    """Return ``(x - mean) / std`` as floating-point numbers.

    torchvision's and timm's images are from 0 to 1, Albumentations multiplies mean and std by
    ``max_pixel_value``, Keras' Normalization takes the variance; DALI's crop_mirror_normalize is in
    units of the pixels, as here.

    Example:
        ``gl.ops.Normalize(mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))``

    Args:
        mean: one number, or one for each channel; in units of the pixels (0 to 255 for uint8).
            torchvision's, for images from 0 to 1, times 255: there is no ``ToDtype(scale=True)``
            before it. A loader warns of such as (0.485, 0.456, 0.406) beside bytes.
        std: likewise; not zero.
        dtype: ``"float32"`` or ``"float16"``.
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        mean, std = (
            arguments.numbers(self, "mean", self.mean),
            arguments.numbers(self, "std", self.std),
        )
        arguments.keep(
            self, mean=mean, std=std, dtype=arguments.dtype_name(self, "dtype", self.dtype, DTYPES)
        )
        if not (np.asarray(std, np.float32) > 0).all():
            raise arguments.refuse(self, "std", std, "more than zero")
        if np.ndim(mean) and np.ndim(std) and np.shape(mean) != np.shape(std):
            raise arguments.refuse(
                self, "std", std, f"as many numbers as mean, {len(np.atleast_1d(mean))}"
            )

    @property
    @once
    def traits(self) -> Traits:
        """It changes each channel by itself, and centers values with a mean other than 0."""
        return Traits(
            arithmetic=Arithmetic(
                elementwise=True, centers=bool(np.any(np.asarray(self.mean) != 0))
            ),
            execution=Execution(lower_mirror=self._lower_mirror),
            bounds={"gpu": NORMALIZING},
            advice=self._advice,
        )

    def forms(self, field: Field) -> Forms:
        """It is a part of a walk."""
        return Forms(fold=self._fold)

    def field_after(self, field: Field) -> Field:
        """The dtype becomes ``dtype``."""
        images.numeric(self, field)
        if np.ndim(self.mean) or np.ndim(self.std):
            self._check_channels(field)
        return field.with_(dtype=np.dtype(self.dtype))

    def _advice(self, field: Field) -> str | None:
        """Warn of statistics for images from 0 to 1, as torchvision has them, beside images of
        whole numbers."""
        mean, std = (
            np.atleast_1d(np.asarray(numbers, np.float64)) for numbers in (self.mean, self.std)
        )
        white = {"uint8": 255, "uint16": 65535}.get(field.dtype.name)
        is_for_parts = bool(((mean >= 0) & (mean <= 1)).all() and (std < 1).all())
        if white is None or field.is_marked or len(field.shape or ()) < 2 or not is_for_parts:
            return None
        texts = (
            ", ".join(f"{number * white:.6g}" for number in numbers) for numbers in (mean, std)
        )
        return (
            f"{self} of field {field.name!r}, {field.dtype}; cause: mean and std are in units of the pixels, 0 to "
            f"{white}, and these look like those of images from 0 to 1; remedy: {white} times as much, "
            "gl.ops.Normalize(mean=({}), std=({}))".format(*texts)
        )

    @property
    def constants(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and scale (the reciprocal of std), float32, one number or one for each channel."""
        return np.asarray(self.mean, np.float32), np.float32(1) / np.asarray(self.std, np.float32)

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one record, normalised."""
        mean, scale = (xp.asarray(constant) for constant in self.constants)
        with np.errstate(over="ignore"):  # too large for float16 is infinite, as in DALI
            return ((x.astype(xp.float32) - mean) * scale).astype(self.dtype)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch, of images on a GPU by a kernel."""
        if not len(x) or x[0].ndim != 3 or not pixels.reads(xp, x):
            return super().array_batch(xp, x, draw)
        numbers = [np.broadcast_to(constant, x[0].shape[2]).tolist() for constant in self.constants]
        words = pixels.constants(len(x), *numbers[0], *numbers[1])
        return pixels.Pixels(xp, x, words).change(NORMALIZE, dtype=self.dtype)

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``crop_mirror_normalize`` for images, arithmetic for other fields."""
        return self._lower(dali, x, field, device)

    def _lower_mirror(
        self,
        dali: ModuleType,
        x: Any,
        mirror: Any,
        draw: dict[str, Any],
        *,
        field: Field,
        device: str,
    ) -> Any:
        """``crop_mirror_normalize``, which mirrors, too."""
        return self._lower(dali, x, field, device, mirror=mirror)

    def _lower(self, dali: ModuleType, x: Any, field: Field, device: str, **mirror: Any) -> Any:
        fn, types = dali.fn, dali.types
        if field.dtype.name not in FUSED:
            x = fn.cast(x, dtype=types.FLOAT)
        if field.shape is not None and len(field.shape) == 3 and not field.is_volume:
            settings = {
                "dtype": types.FLOAT,
                "output_layout": "HWC",
                "mean": self.mean,
                "std": self.std,
            }
            result = fn.crop_mirror_normalize(fn.reshape(x, layout="HWC"), **settings, **mirror)
        else:
            mean, scale = (
                types.Constant(constant) if constant.ndim else float(constant)
                for constant in self.constants
            )
            result = (fn.cast(x, dtype=types.FLOAT) - mean) * scale
        if self.dtype == "float16":
            return images.to_float16(dali, result, device)
        return result

    def _fold(self, walk: Walk, draw: Draw) -> Walk | None:
        """The walk's last step, once."""
        if walk.mean is not None or walk.out_axes != "HWC" or walk.dtype == np.float16:
            return None
        mean, scale = _for_channels(self, walk.channels)
        return walk.with_(mean=mean, scale=scale, dtype=np.dtype(self.dtype))

    def _check_channels(self, field: Field) -> None:
        shape = field.shape
        if field.axes == "DHW":
            shape = ()
        elif shape is not None and len(shape) == 3:
            shape = images.image(self, field)
        count = max(len(np.atleast_1d(self.mean)), len(np.atleast_1d(self.std)))
        if not shape or (count != 1 and shape[-1] != count):
            raise SpecError(
                f"{self}: field {field.name!r} has shape {shape}",
                cause=f"its last axis, the channels, is not {count} long",
                remedy="give one number, or one for each channel",
            )


@lru_cache(maxsize=64)
def _for_channels(op: Normalize, channels: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    mean, scale = op.constants
    return np.broadcast_to(mean, channels).copy(), np.broadcast_to(scale, channels).copy()

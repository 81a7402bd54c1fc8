"""PerImageStandardization: each image by its own mean and standard deviation.

Formula  ``(x - mean) / max(std, 1 / sqrt(N))`` in float32, over all N values of the image, the
         channels together; the mean and the standard deviation are summed in float64.
Source   ``tf.image.per_image_standardization``,
         https://www.tensorflow.org/api_docs/python/tf/image/per_image_standardization
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import SpecError
from gpuload.kernels import cuda
from gpuload.kernels.pixels import Pixels, reads
from gpuload.ops import images
from gpuload.ops.base import VARYING, Draw, Op, Sizes
from gpuload.ops.bounds import STATISTICS
from gpuload.ops.traits import Arithmetic, Traits, once
from gpuload.spec import Field

SUMS_BYTES = 16  # of Stats
# `mean` is known from the second sum on, which is of squares.
SUMS = """
struct Stats { double total; float mean; };
__device__ inline void merge(Stats& sum, const Stats& part) { sum.total += part.total; }
"""
VALUES = f"""{SUMS}
__device__ inline Stats start(const Image& image, const Stats* before) {{ return {{0.0, 0.0f}}; }}
__device__ inline void add(Stats& sum, const Image& image, int y, int x, const int* words) {{
    for (int channel = 0; channel < CHANNELS; ++channel) sum.total += (double)(float)at(image, y, x, channel);
}}
"""
MEAN = """
#include "whole.cuh"
__device__ inline double mean(const Image& image, const Stats* stats) {
    return whole(stats).total / ((double)image.height * image.width * CHANNELS);
}
"""
SQUARES = f"""{SUMS}{MEAN}
__device__ inline Stats start(const Image& image, const Stats* before) {{ return {{0.0, (float)mean(image, before)}}; }}
__device__ inline void add(Stats& sum, const Image& image, int y, int x, const int* words) {{
    for (int channel = 0; channel < CHANNELS; ++channel) {{
        float centred = (float)at(image, y, x, channel) - sum.mean;
        sum.total += (double)(centred * centred);
    }}
}}
"""
STANDARDIZE = f"""{SUMS}{MEAN}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    float deviation = (float)sqrt(mean(image, stats)), least = number(words[0]);
    for (int channel = 0; channel < CHANNELS; ++channel)
        to[channel] = ((float)at(image, y, x, channel) - stats->mean) / (deviation > least ? deviation : least);
}}
"""


@dataclass(frozen=True)
class PerImageStandardization(Op):
    """Bring each image to mean 0 and standard deviation 1; HWC, any dtype, which is taken as
    float32.

    An image of which all values are equal becomes zeros.

    Example:
        ``gl.ops.PerImageStandardization()``
    """

    @property
    @once
    def traits(self) -> Traits:
        """It makes values about 0."""
        return Traits(
            arithmetic=Arithmetic(centers=True), bounds={"dali": STATISTICS, "gpu": STATISTICS}
        )

    def field_after(self, field: Field) -> Field:
        """The dtype becomes float32."""
        height, width, channels = images.image(self, field)
        if channels is None:
            raise SpecError(
                f"{self}: field {field.name!r} has shape {field.shape}",
                cause="the number of its channels varies",
                remedy="decode or convert all images to one number of channels first",
            )
        return field.with_(shape=(height, width, channels), dtype=np.dtype(np.float32), axes="HWC")

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``least``: ``1 / sqrt(height * width)`` of each image, float32 ``[N]``; nothing
        here is random."""
        pixels = size.astype(np.float64).prod(axis=1)
        return {"least": (1 / np.sqrt(pixels.clip(1))).astype(np.float32)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, standardised."""
        return self.array_batch(xp, x[None], {"least": draw["least"][None]})[0]

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once, on a GPU by three kernels."""
        if reads(xp, x):
            channels = x[0].shape[2]
            pixels = Pixels(xp, x, draw["least"] * _of_channels(channels))
            squares = pixels.gather(SQUARES, SUMS_BYTES, pixels.gather(VALUES, SUMS_BYTES))
            return pixels.change(STANDARDIZE, stats=squares, step=cuda.PARTS, dtype=np.float32)
        if isinstance(x, VARYING):
            return super().array_batch(xp, x, draw)
        device.settle()
        x = x.astype(xp.float32)
        with np.errstate(invalid="ignore", over="ignore"):  # of images that hold infinity
            centred = x - _mean(xp, x).astype(xp.float32)
            std = xp.sqrt(_mean(xp, centred * centred)).astype(xp.float32)
        least = xp.asarray(draw["least"]).reshape(-1, 1, 1, 1) * _of_channels(x.shape[3])
        return centred / xp.maximum(std, least)

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``reductions.mean`` and ``std_dev``, and arithmetic."""
        fn = dali.fn
        x = fn.cast(x, dtype=dali.types.FLOAT)
        mean = fn.reductions.mean(x, axes=[0, 1, 2])
        std = fn.reductions.std_dev(x, mean, axes=[0, 1, 2])
        least = draw["least"] * float(_of_channels(images.image(self, field)[2]))
        if device == "gpu":
            least = least.gpu()
        return (x - mean) / dali.math.max(std, least)


def _mean(xp: ModuleType, x: Any) -> Any:
    """Return the mean of each image, float64 ``[N, 1, 1, 1]``."""
    return x.astype(xp.float64).mean(axis=(1, 2, 3), keepdims=True)


def _of_channels(channels: int | None) -> np.float32:
    return np.float32(1 / math.sqrt(channels or 1))

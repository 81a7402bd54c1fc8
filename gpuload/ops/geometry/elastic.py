"""Elastic: each pixel taken from a place beside it, which smooth noise says.

Formula  A displacement for each pixel and axis: uniform numbers from -1 to 1, blurred by
         `ops.colour.blur` with ``sigma`` and a window of ``8 sigma + 1`` pixels, odd, times
         ``alpha`` over the image's width or height. A pixel is taken where it lies plus half of the
         width or height times its displacement; from there on it is `ops.geometry.warp`.
Noise    of `ops.colour.noise`: word ``i`` is for pixel ``i`` along x, the words behind are for y;
         24 bits of each.
Source   torchvision 0.28, `ElasticTransform` and `transforms.v2.functional.elastic`. Simard,
         Steinkraus and Platt, "Best Practices for Convolutional Neural Networks Applied to Visual
         Document Analysis", 2003.
Others   Albumentations' ElasticTransform draws normal numbers, and its alpha counts pixels. Keras'
         has another window. DALI has no such operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import core, device
from gpuload.errors import SpecError
from gpuload.kernels import pixels
from gpuload.ops import arguments
from gpuload.ops.base import Draw, Points, RowError, Sizes
from gpuload.ops.colour import noise
from gpuload.ops.colour.blur import blur, blur_into, taps, weights
from gpuload.ops.forms import Forms
from gpuload.ops.geometry.warp import Interpolation, Warp, sample, sample_into
from gpuload.spec import Field

STEPS = 20  # each brings a point some two times nearer to its place, where the sheet is not folded

f32 = np.float32

# Down the columns the noise is blurred, a number for each axis; `words` has the number of weights
# and these.
NOISE_DOWN = """
typedef unsigned int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    int taps = words[0];
    for (int axis = 0; axis < 2; ++axis) {
        float total = 0.0f;
        for (int tap = 0; tap < taps; ++tap) {
            int row = axis * image.height + mirrored(y + tap - taps / 2, image.height);
            float noise = (float)(stats[(Long)row * image.width + x] >> 8) * 1.1920928955078125e-07f - 1.0f;
            float part = noise * number(words[1 + tap]);
            total = tap ? total + part : part;
        }
        to[axis] = total;
    }
}
"""
# Along the rows, too; then a pixel is taken from its place. Behind the weights `words` has alpha, a
# zero and the fill.
DISTORT = """
#include "sample.cuh"
typedef float Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    int taps = words[0], lengths[] = {image.width, image.height}, offsets[] = {x, y};
    const Stats* row = stats + 2 * (image.out + (Long)y * image.width);
    float places[2];
    for (int axis = 0; axis < 2; ++axis) {
        float total = 0.0f, length = (float)lengths[axis];
        for (int tap = 0; tap < taps; ++tap) {
            float part = row[2 * mirrored(x + tap - taps / 2, image.width) + axis] * number(words[1 + tap]);
            total = tap ? total + part : part;
        }
        float grid = (float)(2 * offsets[axis] + 1 - lengths[axis]) / length;
        float place = total * number(words[1 + taps]) / length + grid;
        places[axis] = to_pixels(place, (double)length / 2);
    }
    for (int channel = 0; channel < CHANNELS; ++channel) {
        const In* pixels = (const In*)image.address + channel * image.deep;
        TAKE
    }
}
"""
TAKE = {
    "nearest": """const Out* fill = (const Out*)(words + 3 + taps + 2 * channel);
        to[channel] = nearest(image, pixels, places[0], places[1], *fill);""",
    "linear": "store(to + channel, linear(image, pixels, places[0], places[1], number(words[3 + taps + channel])));",
}
KERNELS = {name: DISTORT.replace("TAKE", text) for name, text in TAKE.items()}


@dataclass(frozen=True)
class Elastic(Warp):
    """Distort images as a rubber sheet; HWC, any number of channels.

    The same as torchvision's ``ElasticTransform`` but for the numbers that are drawn: each pixel is
    taken beside its place, by ``alpha`` times uniform numbers from -1 to 1 that are blurred, see
    `ops.geometry.elastic`. Albumentations' draws normal numbers, and its alpha counts pixels;
    Keras' derives alpha and sigma from one scale and the image's size; DALI and timm have none.

    Example:
        ``gl.ops.Elastic(50, sigma=2)``

    Args:
        alpha: how far pixels move.
        sigma: standard deviation of the blur, pixels, more than 0: how smooth it is. Its window,
            ``8 sigma + 1`` pixels, is less than twice as long as the image.
        interpolation: ``"linear"`` for uint8, uint16 and float32, or ``"nearest"``; or a dict from
            fields to these.
        fill: the value outside of the image: a number, or one for each channel; or a dict from
            field names to these.
    """

    alpha: float = 50.0
    sigma: float = 5.0
    interpolation: Interpolation = field(default="linear", hash=False, kw_only=True)

    num_uniforms: ClassVar[int] = noise.KEY_WORDS

    def __post_init__(self) -> None:
        super().__post_init__()
        alpha, sigma = (
            arguments.number(self, "alpha", self.alpha),
            arguments.number(self, "sigma", self.sigma),
        )
        if alpha < 0:
            raise arguments.refuse(self, "alpha", self.alpha, "at least 0")
        if not 0 < sigma <= 1000:
            raise arguments.refuse(self, "sigma", self.sigma, "more than 0 and at most 1000")
        arguments.keep(self, alpha=alpha, sigma=sigma)

    def forms(self, field: Field) -> Forms:
        """A form for single records is in the core."""
        if core.native is None:
            return Forms()
        return Forms(row=self._distort_into)

    @property
    def _side(self) -> int:
        """Of the blur's window, pixels."""
        side = int(8 * self.sigma + 1)
        return side + 1 - side % 2

    def field_after(self, field: Field) -> Field:
        """Shape and dtype stay."""
        after = super().field_after(field)
        sides = [self._side if length is None else length for length in (after.shape or ())[:2]]
        if min(sides) <= self._side // 2:
            raise self._too_small(f"field {field.name!r} has images of", sides)
        return after

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``key`` of the noise, int32 ``[N, 4]``."""
        is_small = (size <= self._side // 2).any(axis=1)
        if is_small.any():
            row = int(is_small.argmax())
            error = self._too_small("it has", size[row].tolist())
            raise RowError(row, error.what, cause=error.cause, remedy=error.remedy)
        return {"key": noise.keys(u)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image."""
        return sample(xp, x, *self._places(xp, draw, x.shape[:2]), *self._sampling)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once, on a GPU by three kernels; else image by image: the noise
        of each is as large."""
        if not pixels.reads(xp, x):
            return super(Warp, self).array_batch(xp, x, draw)
        interpolation, fill = self._sampling
        dtype, channels, is_nearest = x[0].dtype, x[0].shape[2], interpolation == "nearest"
        line = taps(
            np.broadcast_to(weights(np.array([self.sigma]), self._side), (len(x), self._side))
        )
        fills = pixels.colors(fill, dtype, channels, len(x))
        if not is_nearest:
            fills = pixels.constants(
                len(x), *np.broadcast_to(np.asarray(fill, f32), channels).tolist()
            )
        images = pixels.Pixels(
            xp, x, *line, pixels.constants(len(x), self.alpha, 0), fills, raw=is_nearest
        )
        words = noise.word_blocks(xp, draw["key"], int(images.sizes.max()))
        smooth = images.change(
            NOISE_DOWN, stats=words, step=2 * words.shape[1], channels=2, dtype=f32
        )
        return images.change(KERNELS[interpolation], stats=smooth[0])

    def _distort_into(self, x: NDArray[Any], draw: Draw, out: NDArray[Any]) -> None:
        sample_into(x, *self._places(np, draw, x.shape[:2]), *self._sampling, out)

    def _move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """To the place that is taken from them, which is looked for step by step; torchvision takes
        the first step."""
        height, width = size.tolist()
        y, x = np.indices((height, width))
        columns, rows = self._places(np, draw, (height, width))
        displacement = np.stack([columns - x, rows - y], axis=2)
        places = points
        for _ in range(STEPS):
            places = points - _between_pixels(displacement, places)
        return places

    def _places(self, xp: ModuleType, draw: Draw, size: tuple[int, int]) -> tuple[Any, Any]:
        """Return the columns and the rows at which pixels are taken, float32 ``[H, W]``."""
        height, width = size
        count = height * width
        words = noise.words(xp, draw["key"][None], count).view(xp.uint32)[0, : 2 * count]
        # 24 bits, which float32 holds exactly: no executor rounds them otherwise.
        numbers = (words >> xp.uint32(8)).astype(f32) * f32(2.0**-23) - f32(1)
        line = weights(np.array([self.sigma]), self._side)[0]
        displacements = []
        for axis, length in enumerate((width, height)):
            noisy = numbers[axis * count : (axis + 1) * count].reshape(height, width, 1)
            if xp is np and core.native is not None:
                smooth = np.empty((height, width, 1), f32)
                blur_into(np.ascontiguousarray(noisy), line, line, smooth)
            else:
                smooth = blur(xp, noisy, line, line)
            displacements.append(smooth[..., 0] * f32(self.alpha) / f32(length))
        return places(xp, displacements)

    def _too_small(self, subject: str, size: list[int]) -> SpecError:
        return SpecError(
            f"{self}: {subject} {size[0]} x {size[1]} pixels",
            cause=f"the noise is blurred by a window of {self._side} pixels, half of which must fit into the image",
            remedy="take a smaller sigma, or larger images",
        )


def places(xp: ModuleType, displacements: Sequence[Any]) -> tuple[Any, Any]:
    """Return the columns and the rows at which pixels are taken, float32 ``[H, W]``.

    Args:
        xp: NumPy or CuPy.
        displacements: along x and y, float32 ``[H, W]`` each, in halves of width and height.
    """
    height, width = displacements[0].shape
    across, down = (
        (2 * xp.arange(length, dtype=f32) + f32(1 - length)) / f32(length)
        for length in (width, height)
    )
    columns, rows = displacements[0] + across, displacements[1] + down[:, None]
    return _to_pixels(columns, width), _to_pixels(rows, height)


def _to_pixels(grid: Any, length: int) -> Any:
    return ((grid + f32(1)).astype(np.float64) * (length / 2) - 0.5).astype(f32)


def _between_pixels(field: NDArray[np.float64], points: Points) -> Points:
    """Return the values of a field ``[H, W, 2]`` at points, blended of those of four pixels."""
    last = np.array(field.shape[1::-1]) - 1
    place = np.nan_to_num(points - 0.5).clip(0, last)  # a point of nan goes nowhere, and stays nan
    x, y = place.astype(np.int64).T
    right, low = np.minimum(x + 1, last[0]), np.minimum(y + 1, last[1])
    across, down = (place - np.floor(place)).T[:, :, None]
    upper = field[y, x] * (1 - across) + field[y, right] * across
    lower = field[low, x] * (1 - across) + field[low, right] * across
    return np.asarray(upper * (1 - down) + lower * down)

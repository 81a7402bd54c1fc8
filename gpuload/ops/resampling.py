"""Resampling: DALI's ``fn.resize`` as arithmetic, so that every executor gives the same pixels.

Formula  Two passes, down the columns and along the rows, each a sum of ``support`` pixels times coefficients; float32
         between the passes. Output pixel ``i`` is centred on ``(i + 0.5) * n_in / n_out - 0.5``; pixels outside the
         image are those of its edge. The filter is a table with linear interpolation between its entries (3 entries for
         linear, 129 for cubic with a = -0.5), its coefficients divided by their sum. With ``antialias`` it is as many
         times wider as the image becomes smaller. uint8 results are rounded to nearest, halves to even.
Passes   The order is the one with the smaller cost of DALI 2.4, because the sums are rounded in between:
         3 per intermediate pixel, 1 per vertical and 1.4 per horizontal product; horizontal first where they are
         equal.
Nearest  Source row floor of 0.5 s + s + s + ... (float32 sums), source column floor of (i + 0.5) * s, with
         s = n_in / n_out: DALI's CPU form.
Source   Read in DALI (Apache-2.0), dali/kernels/imgproc/resample/: resampling_setup.cc, resampling_impl_cpu.{h,cc},
         resampling_filters.cu, and written anew; the weight 1.4 was found by measurement with DALI 2.4.
Equals   DALI's CPU float32 results bit for bit, and its uint8 results but for exact halves in the last few pixels of a
         row, which DALI rounds away from zero: one level, on up to 0.006 % of the values of noise, and on up to 0.02 %
         of smooth images, which have more of these halves (measured with DALI 2.4, images of 120 x 160 and JPEGs).
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.errors import SpecError

Taps = tuple[NDArray[np.int32], NDArray[np.float32]]  # first source pixel and coefficients of each output pixel
Box = tuple[int, int, int, int]  # top, left, height, width

f32 = np.float32
HORIZONTAL_WEIGHT = float(f32(1.4))
SIZE_WEIGHT = 3.0
KEPT_TAPS, KEPT_NUMBERS = 2048, 1 << 13  # so many tables of at most so many numbers: 67 MB; 224 pixels take 1,000


def _cubic(entries: int = 129) -> NDArray[np.float32]:
    x = np.abs(f32(4) * (np.arange(entries, dtype=f32) - f32((entries - 1) * 0.5)) / f32(entries - 1))
    square = x * x
    cube = square * x
    outer = f32(-0.5) * cube + f32(2.5) * square - f32(4) * x + f32(2)
    inner = f32(1.5) * cube - f32(2.5) * square + f32(1)
    return np.where(x >= 2, f32(0), np.where(x > 1, outer, inner)).astype(f32)


TABLES: dict[str, NDArray[np.float32]] = {"linear": np.array([0, 1, 0], f32), "cubic": _cubic()}
WIDTHS = {"linear": 2.0, "cubic": 4.0}  # of the filter, in source pixels, where the image does not become smaller


def filter_of(n_in: int, n_out: int, interpolation: str, antialias: bool) -> tuple[np.float32, np.float32, int]:
    """Return the filter's scale (table entries per pixel), its anchor (pixels) and its support (pixels)."""
    shrink = f32(n_in) / f32(n_out) if antialias and n_in > n_out else f32(1)
    size = f32(max(f32(1), f32(f32(WIDTHS[interpolation]) * shrink)))
    entries = f32(len(TABLES[interpolation]) - 1)
    scale = f32(entries / size)
    return scale, f32(f32(entries * f32(0.5)) / scale), int(np.ceil(f32(entries / scale)))


def taps(n_in: int, n_out: int, interpolation: str, antialias: bool) -> Taps:
    """Return for each output pixel its first source pixel ``[n_out]`` and its coefficients ``[n_out, support]``."""
    scale, anchor, support = filter_of(n_in, n_out, interpolation, antialias)
    table = TABLES[interpolation]
    step = f32(n_in) / f32(n_out)
    position = np.arange(n_out, dtype=f32) * step + (f32(0.5) * step - f32(0.5) - anchor)
    first = np.ceil(position).astype(np.int32)
    place = ((first.astype(f32) - position)[:, None] + np.arange(support, dtype=f32)) * scale
    below = np.floor(place).astype(np.int32)
    padded = np.concatenate([[f32(0)], table, [f32(0), f32(0)]])  # entries -1 to len(table) + 1
    at = (below + 1).clip(0, len(table) + 1)
    coefficients = padded[at] + (place - below.astype(f32)) * (padded[at + 1] - padded[at])
    coefficients = np.where((place > -1) & (place < len(table)), coefficients, f32(0))
    total = np.zeros(n_out, f32)
    for k in range(support):
        total += coefficients[:, k]
    return first, np.asarray(coefficients / np.where(total == 0, f32(1), total)[:, None], f32)


def vertical_first(size: tuple[int, int], new: tuple[int, int], supports: tuple[int, int]) -> bool:
    """Return True if the vertical pass comes first; sizes and supports are (vertical, horizontal)."""
    vertical, horizontal, area = new[0] * size[1], size[0] * new[1], new[0] * new[1]
    cost_vertical = SIZE_WEIGHT * vertical + vertical * supports[0] + HORIZONTAL_WEIGHT * area * supports[1]
    cost_horizontal = SIZE_WEIGHT * horizontal + HORIZONTAL_WEIGHT * horizontal * supports[1] + area * supports[0]
    return cost_vertical < cost_horizontal


def nearest(n_in: int, n_out: int, axis: int) -> NDArray[np.int32]:
    """Return the source row (axis 0) or column (axis 1) of each output one."""
    step = f32(n_in) / f32(n_out)
    if axis == 0:
        steps = np.full(n_out, step, f32)
        steps[0] = f32(0.5) * step
        position = np.add.accumulate(steps, dtype=f32)
    else:
        position = (np.arange(n_out, dtype=f32) + f32(0.5)) * step
    return np.floor(position).astype(np.int32).clip(0, n_in - 1)


def resize(xp: ModuleType, image: Any, new: tuple[int, int], interpolation: str, antialias: bool) -> Any:
    """Return an image ``[height, width, channels]``, uint8 or float32, resized to ``new`` (height, width)."""
    size = image.shape[:2]
    if interpolation == "nearest":
        rows, columns = (xp.asarray(nearest(size[axis], new[axis], axis)) for axis in (0, 1))
        return image[rows[:, None], columns]
    both = [_taps(size[axis], new[axis], interpolation, antialias) for axis in (0, 1)]
    supports = (both[0][1].shape[1], both[1][1].shape[1])
    result = image.astype(xp.float32)
    for axis in (0, 1) if vertical_first(size, new, supports) else (1, 0):
        result = _pass(xp, result, axis, *both[axis])
    return to_uint8(xp, result) if image.dtype == np.uint8 else result


def to_uint8(xp: ModuleType, x: Any) -> Any:
    """Round float32 to uint8, halves to even, and bound it."""
    return xp.rint(x).clip(0, 255).astype(xp.uint8)


def _pass(xp: ModuleType, x: Any, axis: int, first: NDArray[np.int32], coefficients: NDArray[np.float32]) -> Any:
    total: Any = None
    for k in range(coefficients.shape[1]):
        source = xp.asarray((first + k).clip(0, x.shape[axis] - 1))
        weight = xp.asarray(coefficients[:, k]).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        product = weight * x.take(source, axis=axis)
        total = product if total is None else total + product
    return total


def resize_into(image: NDArray[Any], box: Box, interpolation: str, antialias: bool, out: NDArray[Any]) -> None:
    """Write a box of an image, resized, to ``out``, by the core: the same as ``resize``, not for nearest.

    Args:
        image: uint8 or float32 ``[height, width, channels]``, C-contiguous.
        box: the part of the image that is resized; pixels outside of it are not used.
        interpolation: ``"linear"`` or ``"cubic"``.
        antialias: see ``filter_of``.
        out: of the image's dtype, ``[new height, new width, channels]``, C-contiguous.

    Raises:
        SpecError: the box does not lie in the image, or the arrays are not what they must be.
        RuntimeError: there is no core.
    """
    _check(image, box, out)
    if core.native is None:
        raise RuntimeError(f"resize_into: {core.problem}")
    (top, left, height, width), (new_height, new_width, channels) = box, out.shape
    stride = image.shape[1] * channels
    vertical = _taps(height, new_height, interpolation, antialias, side_by_side=True)
    horizontal = _taps(width, new_width, interpolation, antialias, side_by_side=True)
    supports = (len(vertical[1]), len(horizontal[1]))
    first = vertical_first((height, width), (new_height, new_width), supports)
    core.native.resize(
        image.reshape(-1), top * stride + left * channels, stride, height, width, channels, *vertical, *horizontal,
        first, out.reshape(-1), new_width,
    )  # fmt: skip


def _check(image: NDArray[Any], box: Box, out: NDArray[Any]) -> None:
    top, left, height, width = box
    inside = (
        image.ndim == 3 and 0 <= top < top + height <= image.shape[0] and 0 <= left < left + width <= image.shape[1]
    )
    fits = image.dtype == out.dtype and image.dtype in (np.uint8, np.float32)
    fits = fits and out.ndim == 3 and out.size > 0 and image.shape[-1] == out.shape[-1]
    if not (inside and fits and image.flags.c_contiguous and out.flags.c_contiguous):
        raise SpecError(
            f"resize {height} x {width} pixels at {top}, {left} of an image {image.dtype} {image.shape} "
            f"to {out.dtype} {out.shape}",
            cause="the pixels do not lie in the image, or the two are not C-contiguous images of one kind",
            remedy="give a draw that was made for images of this size",
        )


def _taps(n_in: int, n_out: int, interpolation: str, antialias: bool, *, side_by_side: bool = False) -> Taps:
    """Return ``taps``, cached for the next call unless they are large.

    ``side_by_side``: the coefficients of one tap lie side by side, as the core takes them: ``[support, n_out]``.
    """
    numbers = n_out * (WIDTHS[interpolation] * max(1.0, n_in / n_out) + 2)  # a few more than there are
    make = _cached_taps if numbers <= KEPT_NUMBERS else _cached_taps.__wrapped__
    return make(n_in, n_out, interpolation, antialias, side_by_side)


@lru_cache(maxsize=KEPT_TAPS)
def _cached_taps(n_in: int, n_out: int, interpolation: str, antialias: bool, side_by_side: bool) -> Taps:
    first, coefficients = taps(n_in, n_out, interpolation, antialias)
    return first, np.ascontiguousarray(coefficients.T) if side_by_side else coefficients

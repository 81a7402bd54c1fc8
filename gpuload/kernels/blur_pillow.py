"""Pillow's ``ImageFilter.GaussianBlur`` as arithmetic: three passes of a box along each axis.

Formula  A box of ``2 r + 1`` pixels, r a float32: its whole pixels weigh ``w``, and the two next to
         them what is left to 1, all in whole numbers of 2**-24. The image goes on beyond its border
         as its last pixel. Each pass ends in bytes, rounded to nearest, halves up. The three passes
         along the rows come first.
Source   Pillow 13 (MIT-CMU), src/libImaging/BoxBlur.c, written anew; Gwosdek et al., "Theoretical
         Foundations of Gaussian Convolution by Extended Box Filtering" (2011), equations 7, 11 and
         14.
Equals   Pillow's results on x86-64, every value (`tests/ops/test_blur_pillow.py`).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

PASSES = 3
BITS = 24  # of the fraction of a weight
# Whole pixels: the radius of a box of sigma 2, timm's largest; edits have no larger one
# (shared/pillow.hpp).
MOST_BOX = 1
f32 = np.float32
Weights = NDArray[np.int64]


def gaussian_blur(xp: ModuleType, x: Any, sigma: float) -> Any:
    """Return an image, blurred.

    Args:
        xp: NumPy or CuPy.
        x: uint8 ``[H, W, C]``.
        sigma: Pillow's ``radius``, pixels.
    """
    whole, weight, edge_weight = box(sigma)
    if weight == 1 << BITS:
        return x
    for axis in (1, 0):
        for _ in range(PASSES):
            x = _box(xp, x, axis, whole, weight, edge_weight)
    return x


def box(sigma: float) -> tuple[int, int, int]:
    """Return the box of a blur: its radius in whole pixels, their weight, and that of the two
    pixels next to them.

    Weights are whole numbers of 2**-24. A box of which the middle pixel has all the weight changes
    nothing.
    """
    whole, weight, edge_weight = (
        int(numbers[0]) for numbers in boxes(np.array([sigma], np.float64))
    )
    return whole, weight, edge_weight


def boxes(sigmas: NDArray[np.float64]) -> tuple[Weights, Weights, Weights]:
    """Return the boxes of blurs as ``box`` does, int64 ``[N]`` each."""
    radius = box_radii(sigmas)
    whole = np.trunc(radius).astype(np.int64)
    weight = (f32(1 << BITS) / (radius * f32(2) + f32(1))).astype(np.int64)
    return whole, weight, ((1 << BITS) - (2 * whole + 1) * weight) // 2


def box_radii(sigmas: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the radii of boxes of which three passes have the standard deviations ``sigmas``,
    float32 ``[N]``."""
    variance = sigmas.astype(f32) * sigmas.astype(f32) / f32(PASSES)
    length = np.sqrt(12.0 * variance.astype(np.float64) + 1.0).astype(f32)
    whole = np.floor((length.astype(np.float64) - 1.0) / 2.0).astype(f32)
    part = (f32(2) * whole + f32(1)) * (whole * (whole + f32(1)) - f32(3) * variance)
    part = part / (f32(6) * (variance - (whole + f32(1)) * (whole + f32(1))))
    return np.asarray(whole + part, f32)


def _box(xp: ModuleType, x: Any, axis: int, whole: int, weight: int, edge_weight: int) -> Any:
    """Return one pass along an axis: ``whole`` pixels on each side weigh ``weight``, the next ones
    ``edge_weight``."""
    count, reach = x.shape[axis], whole + 1
    padding = [(reach, reach) if number == axis else (0, 0) for number in range(x.ndim)]
    line = xp.moveaxis(xp.pad(x, padding, mode="edge"), axis, 0).astype(np.int64)
    sums = _running_sums(xp, line)
    total = sums[2 * whole + 1 : 2 * whole + 1 + count] - sums[:count]
    edges = line[:count] + line[2 * reach : 2 * reach + count]
    result = (total * weight + edges * edge_weight + (1 << (BITS - 1))) >> BITS
    return xp.moveaxis(result.astype(np.uint8), 0, axis)


def _running_sums(xp: ModuleType, line: Any) -> Any:
    """Return the sums of the first 1, 2, ... numbers along the first axis; on a GPU of 2, 4, 8, ...
    neighbours."""
    if xp is np:
        return np.cumsum(line, axis=0)
    step = 1
    while step < len(line):
        line = line + xp.concatenate([line[:step] * 0, line[:-step]])
        step *= 2
    return line

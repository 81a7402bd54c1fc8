"""Pillow's ``Image.transform`` by an affine matrix, and ``Image.rotate``, as arithmetic: the meaning of policies.

Formula  Pixel ``(x, y)`` of the result is taken at ``(a x' + b y' + c, d x' + e y' + f)`` of the image,
         ``x' = x + 0.5``, ``y' = y + 0.5``; where that lies outside, it is the fill.
Nearest  The pixel in which the point lies. Pillow adds up columns and rows: in whole numbers of 1/65536 where the
         matrix turns or shears, in float64 where ``b`` and ``d`` are 0.
Linear   float64: ``v + (w - v) * t`` along the row, then down the column; pixels outside are those of the edge. The
         fraction is cut off.
Cubic    float64, four pixels and a = -1; bounded to 0 and 255, and the fraction is cut off.
Source   Read in Pillow 13 (MIT-CMU), src/libImaging/Geometry.c and Image.py, and written anew.
Equals   Pillow's results on x86-64, every value (`tests/ops/test_pillow.py`).
Others   torchvision's functions on tensors, which `ops.warp` equals, have other borders and round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = tuple[float, float, float, float, float, float]
UNIT = 65536  # of Pillow's fixed-point numbers
LIMIT = 32768  # pixels: points beyond are not in its fixed-point numbers


def rotation(angle: float, size: tuple[int, int]) -> Matrix:
    """Return the matrix by which ``Image.rotate`` turns an image.

    Args:
        angle: degrees, counter-clockwise.
        size: height and width, pixels.
    """
    turn = -math.radians(angle % 360)
    cos, sin = round(math.cos(turn), 15), round(math.sin(turn), 15)
    x, y = size[1] / 2, size[0] / 2
    return cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y


def rotate(xp: ModuleType, x: Any, angle: float, interpolation: str = "nearest", fill: Any = 0) -> Any:
    """Return what ``Image.rotate(angle, resample, fillcolor=fill)`` returns for an image ``[H, W, C]`` of uint8."""
    angle = angle % 360
    if angle in (0, 180) or (angle in (90, 270) and x.shape[0] == x.shape[1]):
        return xp.rot90(x, int(angle) // 90)
    return affine(xp, x, rotation(angle, x.shape[:2]), interpolation, fill)


def affine(xp: ModuleType, x: Any, matrix: Sequence[float], interpolation: str = "nearest", fill: Any = 0) -> Any:
    """Return what ``Image.transform(size, AFFINE, matrix, resample, fillcolor=fill)`` returns.

    Args:
        xp: NumPy or CuPy.
        x: uint8 ``[H, W, C]``, any number of channels; any dtype where pixels are only moved, by nearest.
        matrix: a, b, c, d, e, f, from the result to the image.
        interpolation: ``"nearest"``, ``"linear"`` or ``"cubic"``.
        fill: a number, or one for each channel.
    """
    border = xp.asarray(fill, x.dtype)
    if interpolation == "nearest":
        rows, columns, inside = _nearest(xp, x.shape[:2], [float(number) for number in matrix])
        return xp.where(inside[..., None], x[rows, columns], border)
    a, b, c, d, e, f = (float(number) for number in matrix)
    height, width = x.shape[:2]
    across, down = xp.arange(width) + 0.5, (xp.arange(height) + 0.5)[:, None]
    at_x, at_y = a * across + b * down + c, d * across + e * down + f
    inside = (at_x >= 0) & (at_x < width) & (at_y >= 0) & (at_y < height)
    # A point outside takes no pixel; it is put into the image so that its number fits into an integer.
    at_x, at_y = xp.where(inside, at_x, 0.5) - 0.5, xp.where(inside, at_y, 0.5) - 0.5
    mix: Callable[..., Any] = _linear if interpolation == "linear" else _cubic
    taps = (0, 1) if interpolation == "linear" else (-1, 0, 1, 2)
    left, top = xp.floor(at_x).astype(xp.int64), xp.floor(at_y).astype(xp.int64)
    fraction_x, fraction_y = (at_x - left)[..., None], (at_y - top)[..., None]
    lines = []
    for row in taps:
        line = (top + row).clip(0, height - 1)
        lines.append(
            mix(*(x[line, (left + column).clip(0, width - 1)].astype(xp.float64) for column in taps), fraction_x)
        )
    value = mix(*lines, fraction_y).clip(0, 255)
    return xp.where(inside[..., None], value.astype(x.dtype), border)


def _linear(first: Any, second: Any, place: Any) -> Any:
    return first + (second - first) * place


def _cubic(first: Any, second: Any, third: Any, fourth: Any, place: Any) -> Any:
    linear = -first + third
    square = 2 * (first - second) + third - fourth
    cube = -first + second - third + fourth
    return second + place * (linear + place * (square + place * cube))


def _nearest(xp: ModuleType, size: tuple[int, int], matrix: Sequence[float]) -> tuple[Any, Any, Any]:
    """Return for each pixel its row and its column in the image, and whether they lie in it."""
    a, b, c, d, e, f = matrix
    height, width = size
    if b == 0 and d == 0:
        columns = xp.asarray(_pixels(_steps(c + a * 0.5, a, width), width))[None]
        rows = xp.asarray(_pixels(_steps(f + e * 0.5, e, height), height))[:, None]
    else:
        corners = [(x, y) for x in (0, width) for y in (0, height)]
        across, down = xp.arange(width)[None], xp.arange(height)[:, None]
        if all(_is_fixed(matrix, x, y) for x, y in corners):
            fixed = [math.floor(number * UNIT + 0.5) for number in (a, b, d, e)]
            x, y = (math.floor(number * UNIT + 0.5) for number in (c + a * 0.5 + b * 0.5, f + d * 0.5 + e * 0.5))
            columns = (x + down * fixed[1] + across * fixed[0]) >> 16
            rows = (y + down * fixed[3] + across * fixed[2]) >> 16
        else:
            columns, rows = (xp.asarray(_sums(size, *numbers)) for numbers in ((c, a, b), (f, d, e)))
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    return rows.clip(0, height - 1), columns.clip(0, width - 1), inside


def _is_fixed(matrix: Sequence[float], x: int, y: int) -> bool:
    """Return True if Pillow's fixed-point numbers have the point that a pixel is taken from."""
    a, b, c, d, e, f = matrix
    return abs(x * a + y * b + c) < LIMIT and abs(x * d + y * e + f) < LIMIT


def _steps(begin: float, step: float, count: int) -> NDArray[np.float64]:
    """Return ``begin``, ``begin + step``, ...: each is the one before plus the step, rounded to float64."""
    numbers = np.full(count, step)
    numbers[0] = begin
    return np.add.accumulate(numbers)


def _sums(size: tuple[int, int], begin: float, across: float, down: float) -> NDArray[np.int64]:
    height, width = size
    rows = _steps(begin + across * 0.5 + down * 0.5, down, height)
    table = np.full((height, width), across)
    table[:, 0] = rows
    return _pixels(np.add.accumulate(table, axis=1), LIMIT)


def _pixels(points: NDArray[np.float64], length: int) -> NDArray[np.int64]:
    """Return the pixels in which points lie, -1 for those before the first one."""
    return np.where(points < 0, -1, points.clip(-1, length)).astype(np.int64)

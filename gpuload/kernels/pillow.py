"""Pillow's ``Image.transform`` by an affine matrix, and ``Image.rotate``, as arithmetic: the
meaning of policies; and ``Image.resize``.

Formula  Pixel ``(x, y)`` of the result is taken at ``(a x' + b y' + c, d x' + e y' + f)`` of the
         image, ``x' = x + 0.5``, ``y' = y + 0.5``; where that lies outside, it is the fill.
Nearest  The pixel in which the point lies. Pillow adds up columns and rows: in whole numbers of
         1/65536 where the matrix turns or shears, in float64 where ``b`` and ``d`` are 0.
Linear   float64: ``v + (w - v) * t`` along the row, then down the column; pixels outside are those
         of the edge. The fraction is cut off.
Cubic    float64, four pixels and a = -1; bounded to 0 and 255, and the fraction is cut off.
Resize   A filter over all source pixels, as wide as the image becomes smaller; along the rows
         first, then down the columns. Of bytes the weights are whole numbers of 2**-22, and each
         pass ends in bytes.
Source   Read in Pillow 13 (MIT-CMU), src/libImaging/Geometry.c, Resample.c and Image.py, and
         written anew.
Equals   Pillow's results on x86-64, every value (`tests/ops/test_pillow.py`); of ``resize`` those
         of Pillow up to 12. Pillow 13 sums down the columns first where the height shrinks more
         than the width, as of tall images; of noise a third of all sizes have other values so, by
         up to 38 where an image also becomes wider.
Others   torchvision's functions on tensors, which `ops.geometry.warp` equals, have other borders
         and round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import core, device
from gpuload.kernels.pixels import Boxes, Pixels

Matrix = tuple[float, float, float, float, float, float]
UNIT = 65536  # of Pillow's fixed-point numbers
SUPPORTS = {
    "linear": 1,
    "cubic": 2,
    "lanczos": 3,
}  # pixels on each side, where the image does not become smaller
BITS = 22  # of the fraction of a weight for bytes
LIMIT = 32768  # pixels: points beyond are not in its fixed-point numbers

RESIZE = '#include "pillow_resize.cuh"\n'
RESIZE_FLOATS = f"#define FLOATS\n{RESIZE}"


def rotation(angle: float, size: tuple[int, int]) -> Matrix:
    """Return the matrix by which ``Image.rotate`` turns an image.

    Args:
        angle: degrees, counter-clockwise.
        size: height and width, pixels.
    """
    a, b, c, d, e, f = rotations(np.array([angle], np.float64), np.array([size]))[0].tolist()
    return a, b, c, d, e, f


def rotations(angles: NDArray[np.float64], size: NDArray[Any]) -> NDArray[np.float64]:
    """Return the matrices by which ``Image.rotate`` turns images, float64 ``[N, 6]``.

    Args:
        angles: degrees, counter-clockwise, ``[N]``.
        size: height and width, pixels, ``[N, 2]``.
    """
    cos, sin = np.array([_turn(angle) for angle in angles.tolist()]).reshape(-1, 2).T
    x, y = size[:, 1] / 2, size[:, 0] / 2
    across, down = cos * -x + sin * -y + x, -sin * -x + cos * -y + y
    return np.stack([cos, sin, across, -sin, cos, down], axis=1)


@lru_cache(maxsize=1024)
def _turn(angle: float) -> tuple[float, float]:
    """Return cosine and sine by Python's functions, as Pillow: NumPy's may have other last bits."""
    turn = -math.radians(angle % 360)
    return round(math.cos(turn), 15), round(math.sin(turn), 15)


def rotate(
    xp: ModuleType, x: Any, angle: float, interpolation: str = "nearest", fill: Any = 0
) -> Any:
    """Return the result of ``Image.rotate(angle, resample, fillcolor=fill)`` for an image
    ``[H, W, C]`` of uint8."""
    turn = quarters(angle, x.shape)
    if turn is not None:
        return xp.rot90(x, turn)
    return affine(xp, x, rotation(angle, x.shape[:2]), interpolation, fill)


def quarters(angle: float, shape: tuple[int, ...]) -> int | None:
    """Return by how many quarters ``Image.rotate`` turns an image without a matrix; None where it
    needs one."""
    is_turn = are_quarters(np.array([angle], np.float64), np.array([shape[:2]]))[0]
    return int(angle % 360) // 90 if is_turn else None


def are_quarters(angles: NDArray[np.float64], size: NDArray[Any]) -> NDArray[np.bool_]:
    """Return True where ``quarters`` is a number: bool ``[N]``, for angles ``[N]`` and sizes
    ``[N, 2]``."""
    turns = np.mod(angles, 360)
    is_square = size[:, 0] == size[:, 1]
    return np.asarray(
        (turns == 0) | (turns == 180) | (is_square & ((turns == 90) | (turns == 270)))
    )


def affine(
    xp: ModuleType, x: Any, matrix: Sequence[float], interpolation: str = "nearest", fill: Any = 0
) -> Any:
    """Return the result of ``Image.transform(size, AFFINE, matrix, resample, fillcolor=fill)``.

    Args:
        xp: NumPy or CuPy.
        x: uint8 ``[H, W, C]``, any number of channels; any dtype where pixels are only moved, by
            nearest.
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
    # A point outside takes no pixel; it is put into the image so that its number fits into an
    # integer.
    at_x, at_y = xp.where(inside, at_x, 0.5) - 0.5, xp.where(inside, at_y, 0.5) - 0.5
    if interpolation == "linear":
        mix: Callable[..., Any] = _linear
    else:
        mix = _cubic
    taps = (0, 1) if interpolation == "linear" else (-1, 0, 1, 2)
    left, top = xp.floor(at_x).astype(xp.int64), xp.floor(at_y).astype(xp.int64)
    fraction_x, fraction_y = (at_x - left)[..., None], (at_y - top)[..., None]
    lines = []
    for row in taps:
        line = (top + row).clip(0, height - 1)
        lines.append(
            mix(
                *(
                    x[line, (left + column).clip(0, width - 1)].astype(xp.float64)
                    for column in taps
                ),
                fraction_x,
            )
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


def _nearest(
    xp: ModuleType, size: tuple[int, int], matrix: Sequence[float]
) -> tuple[Any, Any, Any]:
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
            x, y = (
                math.floor(number * UNIT + 0.5)
                for number in (c + a * 0.5 + b * 0.5, f + d * 0.5 + e * 0.5)
            )
            columns = (x + down * fixed[1] + across * fixed[0]) >> 16
            rows = (y + down * fixed[3] + across * fixed[2]) >> 16
        else:
            numbers = ((width, c, a, b), (height, f, d, e))
            columns, rows = (xp.asarray(_sums(size, *axis)) for axis in numbers)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    return rows.clip(0, height - 1), columns.clip(0, width - 1), inside


def _is_fixed(matrix: Sequence[float], x: int, y: int) -> bool:
    """Return True if Pillow's fixed-point numbers have the point that a pixel is taken from."""
    a, b, c, d, e, f = matrix
    return abs(x * a + y * b + c) < LIMIT and abs(x * d + y * e + f) < LIMIT


def _steps(begin: float, step: float, count: int) -> NDArray[np.float64]:
    """Return ``begin``, ``begin + step``, ...: each is the one before plus the step, rounded to
    float64."""
    numbers = np.full(count, step)
    numbers[0] = begin
    return np.add.accumulate(numbers)


def _sums(
    size: tuple[int, int], length: int, begin: float, across: float, down: float
) -> NDArray[np.int64]:
    height, width = size
    rows = _steps(begin + across * 0.5 + down * 0.5, down, height)
    table = np.full((height, width), across)
    table[:, 0] = rows
    return _pixels(np.add.accumulate(table, axis=1), length)


def _pixels(points: NDArray[np.float64], length: int) -> NDArray[np.int64]:
    """Return the pixels in which points lie, -1 for those before the first one."""
    return np.where(points < 0, -1, points.clip(-1, length)).astype(np.int64)


def resize(xp: ModuleType, x: Any, new: tuple[int, int], interpolation: str) -> Any:
    """Return the result of ``Image.resize(new, resample)``: rows first, then columns, each pass in
    the image's dtype.

    Args:
        xp: NumPy or CuPy.
        x: ``[H, W, C]``, uint8 (sums in units of 2**-22) or float32 (sums in float64).
        new: height and width of the result.
        interpolation: ``"linear"``, ``"cubic"`` (a = -0.5) or ``"lanczos"``.
    """
    for axis in (1, 0):
        if x.shape[axis] != new[axis]:
            x = _resize_axis(xp, x, axis, steps(x.shape[axis], new[axis], interpolation))
    return x


def resize_batch(xp: ModuleType, x: Any, boxes: Boxes, new: Boxes, interpolation: str) -> Any:
    """Return boxes of images of any sizes, resized on a GPU by one kernel: the same as ``resize``
    of each.

    Args:
        xp: CuPy.
        x: images for which `pixels.reads` is True, uint8 or float32.
        boxes: int ``[N, 4]``, top, left, height and width of each box, pixels; inside its image.
        new: int ``[N, 2]``, height and width of each result.
        interpolation: as of ``resize``.

    Returns:
        An array where all results have one size, else a list of arrays.
    """
    is_bytes = x[0].dtype == np.uint8
    # The kernel finds the steps of an axis in one array, `tables`: for each pair of lengths the
    # first pixel of each step, then its weights. ``words`` say for each image where they begin and
    # how many weights a step has, down and across; 0 weights: this axis keeps its length. Images of
    # the same lengths share a table.
    text = RESIZE_FLOATS
    tables: list[NDArray[Any]] = [np.zeros(1, np.float64)]
    if is_bytes:
        text, tables = RESIZE, [np.zeros(1, np.int32)]
    words, places, end = np.zeros((len(x), 4), np.int32), {}, 1
    for row, lengths in enumerate(np.concatenate([boxes[:, 2:], new], axis=1).tolist()):
        for axis in (0, 1):
            before, after = lengths[axis], lengths[axis + 2]
            if before != after and (before, after) not in places:
                axis_steps = steps(before, after, interpolation)
                numbers = axis_steps.fixed if is_bytes else axis_steps.weights
                tables += [axis_steps.first.astype(numbers.dtype), numbers.reshape(-1)]
                places[before, after] = end, numbers.shape[1]
                end += after + numbers.size
            words[row, 2 * axis : 2 * axis + 2] = places.get((before, after), (0, 0))
    images = Pixels(xp, x, words, boxes=boxes, size=new)
    return images.change(text, stats=device.parameters(np.concatenate(tables)))


def resize_into(
    image: NDArray[Any], box: tuple[int, int, int, int], interpolation: str, out: NDArray[Any]
) -> None:
    """Write a box of an image, resized, to ``out``, by the core: the same as ``resize`` of the box;
    uint8.

    Args:
        image: uint8 ``[height, width, channels]``, C-contiguous.
        box: top, left, height and width, pixels; inside the image.
        interpolation: as of ``resize``.
        out: uint8 ``[new height, new width, channels]``, C-contiguous.
    """
    if core.native is None:
        raise RuntimeError(f"resize_into: {core.problem}")
    (top, left, height, width), (new_height, new_width, _) = box, out.shape
    if height != new_height:
        down = steps(height, new_height, interpolation)
    else:
        down = NO_STEPS
    if width != new_width:
        across = steps(width, new_width, interpolation)
    else:
        across = NO_STEPS
    pixels = image[top : top + height, left : left + width]
    core.native.resize_as_pillow(pixels, down, across, out)


class Steps(NamedTuple):
    """How an axis is resized.

    Attributes:
        first: the first source pixel of each output pixel, int32 ``[n]``.
        num_pixels: how many there are, int32 ``[n]``.
        weights: of each, float64 ``[n, support]``; 0 behind the last one.
        fixed: the same in units of 2**-22, int32.
    """

    first: NDArray[np.int32]
    num_pixels: NDArray[np.int32]
    weights: NDArray[np.float64]
    fixed: NDArray[np.int32]


NO_STEPS = Steps(
    *(
        np.zeros(shape, dtype)
        for shape, dtype in ((0, "i4"), (0, "i4"), ((0, 0), "f8"), ((0, 0), "i4"))
    )
)


@lru_cache(maxsize=256)
def steps(before: int, after: int, interpolation: str) -> Steps:
    """Return how an axis of ``before`` pixels is resized to ``after`` pixels."""
    scale = before / after
    stretch = max(scale, 1.0)
    support = SUPPORTS[interpolation] * stretch
    center = (np.arange(after) + 0.5) * scale
    first = np.maximum(
        (center - support + 0.5).astype(np.int64), 0
    )  # whole numbers towards 0, as C makes them
    count = np.minimum((center + support + 0.5).astype(np.int64), before) - first
    weights = np.zeros((after, math.ceil(support) * 2 + 1))
    total = np.zeros(after)
    # Added in Pillow's order, whose quotients are rounded to whole numbers below.
    for tap in range(weights.shape[1]):
        weight = _filter(interpolation, (tap + first - center + 0.5) * (1.0 / stretch))
        weights[:, tap] = np.where(tap < count, weight, 0.0)
        total = total + weights[:, tap]
    weights /= np.where(total == 0, 1.0, total)[:, None]
    fixed = np.trunc(weights * (1 << BITS) + np.where(weights < 0, -0.5, 0.5))
    return Steps(first.astype(np.int32), count.astype(np.int32), weights, fixed.astype(np.int32))


def _filter(interpolation: str, place: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of pixels so far from the centre, in pixels of the filter."""
    x = np.abs(place)
    if interpolation == "linear":
        return np.where(x < 1, 1 - x, 0.0)
    if interpolation == "cubic":
        outer = np.where(x < 2, (((x - 5) * x + 8) * x - 4) * -0.5, 0.0)
        return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, outer)
    return np.where((place >= -3) & (place < 3), _sinc(place) * _sinc(place / 3), 0.0)


def _sinc(place: NDArray[np.float64]) -> NDArray[np.float64]:
    angle = place * math.pi
    return np.where(angle == 0, 1.0, np.sin(angle) / np.where(angle == 0, 1.0, angle))


def _resize_axis(xp: ModuleType, x: Any, axis: int, axis_steps: Steps) -> Any:
    first, _, weights, fixed = axis_steps
    is_bytes = x.dtype == np.uint8
    total: Any
    kind: Any
    numbers: NDArray[Any]
    if is_bytes:
        kind, numbers = xp.int32, fixed
        total = kind(1 << (BITS - 1))
    else:
        kind, numbers = xp.float64, weights
        total = kind(0)
    shape = [1, 1, 1]
    shape[axis] = -1
    for tap in range(numbers.shape[1]):
        pixels = x.take(xp.asarray((first + tap).clip(0, x.shape[axis] - 1)), axis=axis)
        total = total + pixels.astype(kind) * xp.asarray(numbers[:, tap]).reshape(shape)
    if is_bytes:
        return (total >> BITS).clip(0, 255).astype(xp.uint8)
    return total.astype(x.dtype)

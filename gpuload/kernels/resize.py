"""Resize one image, as `ops.resampling` defines it and equal to it bit for bit: the same sums in the same order.

Vertical first    a row of the result is a sum of source rows, read as they are stored; then the sum along that row.
Horizontal first  each source row that is needed is summed along once, into a ring of ``support`` rows; then their sum.

All that is in work fits into the processor's second-level cache, whatever the size of the image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.kernels.compile import kernel
from gpuload.kernels.vectors import PIXELS, sum_of_taps

f32 = np.float32
at = np.uintp
Array = NDArray[Any]
Floats = NDArray[np.float32]
Box = tuple[int, int, int, int, int]  # where an image begins, elements from row to row, height, width, channels
Pass = tuple[NDArray[np.int32], Floats]  # first source pixel [n] and coefficients [support, n] of each output pixel
ROUND_UP = PIXELS - 1  # a row is made in whole vectors

sum_2, sum_3, sum_4, sum_5, sum_any = (sum_of_taps(support) for support in (2, 3, 4, 5, None))


@kernel
def resize(
    image: Array, box: Box, vertical: Pass, horizontal: Pass, vertical_first: bool, out: Array, width: int
) -> None:
    """Write the resized image to ``out``.

    Args:
        image: one-dimensional, uint8 or float32: the memory that holds the image.
        box: where the image is in it.
        vertical: its pass; as many output pixels as the result has rows.
        horizontal: its pass; the output pixels in whole vectors of 4: those beyond ``width`` are made and dropped.
        vertical_first: which pass is the first.
        out: one-dimensional, of the dtype of ``image``; height x width x channels.
        width: of the result.
    """
    columns, weights = horizontal
    left = right = 0
    for first in columns:  # Numba takes 1 s to compile min() and max() of arrays
        left, right = max(left, -first), max(right, first + weights.shape[0] - box[3])
    row = np.zeros((left + box[3] + right) * box[4] + 1, f32)
    if vertical_first:
        _vertical_first(image, box, vertical, horizontal, out, width, row, left)
    else:
        _horizontal_first(image, box, vertical, horizontal, out, width, row, left)


@kernel
def _vertical_first(
    image: Array, box: Box, vertical: Pass, horizontal: Pass, out: Array, width: int, row: Floats, left: int
) -> None:
    offset, stride, height, length, channels = box
    rows, weights = vertical
    line, made = np.empty((width + ROUND_UP) * channels, f32), width * channels
    total, sources = np.empty(length * channels, f32), np.empty(weights.shape[0], np.int64)
    for y in range(rows.size):
        for tap in range(sources.size):
            sources[tap] = offset + stride * min(max(rows[y] + tap, 0), height - 1)
        _down(row, left * channels, image, sources, weights, y, total)
        _replicate(row, left, length, channels)
        _along(line, 0, row, left, horizontal, channels)
        _emit(out, y * made, line, made)


@kernel
def _horizontal_first(
    image: Array, box: Box, vertical: Pass, horizontal: Pass, out: Array, width: int, row: Floats, left: int
) -> None:
    offset, stride, height, length, channels = box
    rows, weights = vertical
    support, begin = weights.shape[0], left * channels
    distance = (width + ROUND_UP) * channels
    ring, held = np.empty(support * distance, f32), np.full(support, -1, np.int64)
    total, sources = np.empty(width * channels, f32), np.empty(support, np.int64)
    for y in range(rows.size):
        for tap in range(support):
            number = min(max(rows[y] + tap, 0), height - 1)
            slot = number % support
            sources[tap] = slot * distance
            if held[slot] != number:
                source = offset + stride * number
                for i in range(length * channels):
                    row[at(begin + i)] = f32(image[at(source + i)])
                _replicate(row, left, length, channels)
                _along(ring, slot * distance, row, left, horizontal, channels)
                held[slot] = number
        _down(out, y * total.size, ring, sources, weights, y, total)


@kernel
def _byte(value: np.float32) -> np.uint8:
    return np.uint8(np.int32(min(max(np.rint(value), f32(0)), f32(255))))


@kernel
def _down(
    to: Array, begin: int, source: Array, places: NDArray[np.int64], weights: Floats, y: int, total: Floats
) -> None:
    """Sum rows of ``source`` that begin at ``places``, times the weights of output row ``y``; ``total`` is scratch."""
    if places.size == 2:
        _down_2(to, begin, source, places, weights[0, y], weights[1, y], total.size)
    elif places.size == 3:
        _down_3(to, begin, source, places, weights[0, y], weights[1, y], weights[2, y], total.size)
    else:
        _down_2(total, 0, source, places, weights[0, y], weights[1, y], total.size)
        for tap in range(2, places.size):
            place, weight = places[tap], weights[tap, y]
            for i in range(total.size):
                total[at(i)] += weight * f32(source[at(place + i)])
        _emit(to, begin, total, total.size)


@kernel
def _down_2(
    to: Array, begin: int, source: Array, places: NDArray[np.int64], weight_0: np.float32, weight_1: np.float32,
    count: int,
) -> None:  # fmt: skip
    a, b = places[0], places[1]
    if to.itemsize == 1:
        for i in range(count):
            to[at(begin + i)] = _byte(weight_0 * f32(source[at(a + i)]) + weight_1 * f32(source[at(b + i)]))
    else:
        for i in range(count):
            to[at(begin + i)] = weight_0 * f32(source[at(a + i)]) + weight_1 * f32(source[at(b + i)])


@kernel
def _down_3(
    to: Array, begin: int, source: Array, places: NDArray[np.int64], weight_0: np.float32, weight_1: np.float32,
    weight_2: np.float32, count: int,
) -> None:  # fmt: skip
    a, b, c = places[0], places[1], places[2]
    if to.itemsize == 1:
        for i in range(count):
            value = weight_0 * f32(source[at(a + i)]) + weight_1 * f32(source[at(b + i)])
            to[at(begin + i)] = _byte(value + weight_2 * f32(source[at(c + i)]))
    else:
        for i in range(count):
            value = weight_0 * f32(source[at(a + i)]) + weight_1 * f32(source[at(b + i)])
            to[at(begin + i)] = value + weight_2 * f32(source[at(c + i)])


@kernel
def _emit(to: Array, begin: int, line: Floats, count: int) -> None:
    if to.itemsize == 1:
        for i in range(count):
            to[at(begin + i)] = _byte(line[at(i)])
    else:
        for i in range(count):
            to[at(begin + i)] = line[at(i)]


@kernel
def _along(line: Floats, begin: int, row: Floats, left: int, horizontal: Pass, channels: int) -> None:
    """Sum along a row: ``line[x] = coefficients[0, x] * row[first[x]] + ...``, ``left`` pixels into the row."""
    if channels != 3:
        _along_any(line, begin, row, left, horizontal, channels)
        return
    first, weights = horizontal
    to, source = line.ctypes.data + 4 * begin, row.ctypes.data + 12 * left
    place, weight = first.ctypes.data, weights.ctypes.data
    support, count = weights.shape
    if support == 2:
        for x in range(0, count, PIXELS):
            sum_2(to + 12 * x, source, place + 4 * x, weight + 4 * x, count, support)
    elif support == 3:
        for x in range(0, count, PIXELS):
            sum_3(to + 12 * x, source, place + 4 * x, weight + 4 * x, count, support)
    elif support == 4:
        for x in range(0, count, PIXELS):
            sum_4(to + 12 * x, source, place + 4 * x, weight + 4 * x, count, support)
    elif support == 5:
        for x in range(0, count, PIXELS):
            sum_5(to + 12 * x, source, place + 4 * x, weight + 4 * x, count, support)
    else:
        for x in range(0, count, PIXELS):
            sum_any(to + 12 * x, source, place + 4 * x, weight + 4 * x, count, support)


@kernel
def _along_any(line: Floats, begin: int, row: Floats, left: int, horizontal: Pass, channels: int) -> None:
    """The same for any number of channels."""
    first, weights = horizontal
    for x in range(weights.shape[1]):
        source, to = (first[x] + left) * channels, begin + x * channels
        for channel in range(channels):
            total = weights[0, x] * row[at(source + channel)]
            for tap in range(1, weights.shape[0]):
                total += weights[tap, x] * row[at(source + tap * channels + channel)]
            line[at(to + channel)] = total


@kernel
def _replicate(row: Floats, left: int, length: int, channels: int) -> None:
    """Continue a row on both sides with the pixels of its edges."""
    begin, end = left * channels, (left + length) * channels
    for i in range(begin):
        row[i] = row[begin + i % channels]
    for i in range(end, row.size - 1):
        row[i] = row[end - channels + (i - end) % channels]

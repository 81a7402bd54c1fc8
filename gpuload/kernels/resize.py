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
Floats = NDArray[np.float32]
Pass = tuple[NDArray[np.int32], Floats]  # first source pixel [n] and coefficients [support, n] of each output pixel
ROUND_UP = PIXELS - 1  # a row is made in whole vectors

sum_2, sum_3, sum_4, sum_any = sum_of_taps(2), sum_of_taps(3), sum_of_taps(4), sum_of_taps(None)


@kernel
def resize(
    image: NDArray[Any],
    box: tuple[int, int, int, int, int],
    vertical: Pass,
    horizontal: Pass,
    vertical_first: bool,
    out: NDArray[Any],
    width: int,
) -> None:
    """Write the resized image to ``out``.

    Args:
        image: one-dimensional, uint8 or float32: the memory that holds the image.
        box: where the image begins in it, elements from row to row, height, width and channels.
        vertical: its pass; as many output pixels as the result has rows.
        horizontal: its pass; the output pixels in whole vectors of 4: those beyond ``width`` are made and dropped.
        vertical_first: which pass is the first.
        out: one-dimensional, of the dtype of ``image``; height x width x channels.
        width: of the result.
    """  # fmt: skip
    columns, weights = horizontal
    left = max(0, -columns.min())
    right = max(0, columns.max() + weights.shape[0] - box[3])
    row = np.zeros((left + box[3] + right) * box[4] + 1, f32)
    if vertical_first:
        _vertical_first(image, box, vertical, horizontal, out, width, row, left)
    else:
        _horizontal_first(image, box, vertical, horizontal, out, width, row, left)


@kernel
def _vertical_first(
    image: NDArray[Any], box: tuple[int, int, int, int, int], vertical: Pass, horizontal: Pass, out: NDArray[Any],
    width: int, row: Floats, left: int,
) -> None:  # fmt: skip
    offset, stride, height, length, channels = box
    rows, weights = vertical
    size, made = length * channels, width * channels
    line = np.empty((width + ROUND_UP) * channels, f32)
    middle = row[left * channels : left * channels + size]
    for y in range(rows.size):
        for tap in range(weights.shape[0]):
            source = offset + stride * min(max(rows[y] + tap, 0), height - 1)
            if tap == 0:
                _scale(middle, image[source : source + size], weights[0, y])
            else:
                _add(middle, image[source : source + size], weights[tap, y])
        _replicate(row, left, length, channels)
        _along(line, row, left, horizontal, channels)
        _round(out[y * made : (y + 1) * made], line)


@kernel
def _horizontal_first(
    image: NDArray[Any], box: tuple[int, int, int, int, int], vertical: Pass, horizontal: Pass, out: NDArray[Any],
    width: int, row: Floats, left: int,
) -> None:  # fmt: skip
    offset, stride, height, length, channels = box
    rows, weights = vertical
    support, size, made = weights.shape[0], length * channels, width * channels
    ring = np.empty((support, (width + ROUND_UP) * channels), f32)
    held = np.full(support, -1, np.int64)
    line = np.empty(made, f32)
    for y in range(rows.size):
        for tap in range(support):
            number = min(max(rows[y] + tap, 0), height - 1)
            slot = number % support
            if held[slot] != number:
                source = offset + stride * number
                _copy(row[left * channels : left * channels + size], image[source : source + size])
                _replicate(row, left, length, channels)
                _along(ring[slot], row, left, horizontal, channels)
                held[slot] = number
            if tap == 0:
                _scale(line, ring[slot], weights[0, y])
            else:
                _add(line, ring[slot], weights[tap, y])
        _round(out[y * made : (y + 1) * made], line)


@kernel
def _along(line: Floats, row: Floats, left: int, horizontal: Pass, channels: int) -> None:
    """Sum along a row: ``line[x] = coefficients[0, x] * row[first[x]] + ...``, ``left`` pixels into the row."""
    first, weights = horizontal
    if channels != 3:
        _along_any(line, row, left, horizontal, channels)
        return
    to, source = line.ctypes.data, row.ctypes.data + 12 * left
    place, weight = first.ctypes.data, weights.ctypes.data
    support, count = weights.shape
    if support == 2:
        for x in range(0, count, PIXELS):
            sum_2(to + 12 * x, source, place + 4 * x, weight + 4 * x, count, 2)
    elif support == 3:
        for x in range(0, count, PIXELS):
            sum_3(to + 12 * x, source, place + 4 * x, weight + 4 * x, count, 3)
    elif support == 4:
        for x in range(0, count, PIXELS):
            sum_4(to + 12 * x, source, place + 4 * x, weight + 4 * x, count, 4)
    else:
        for x in range(0, count, PIXELS):
            sum_any(to + 12 * x, source, place + 4 * x, weight + 4 * x, count, support)


@kernel
def _along_any(line: Floats, row: Floats, left: int, horizontal: Pass, channels: int) -> None:
    first, weights = horizontal
    for x in range(line.size // channels):
        begin = row[(first[x] + left) * channels :]
        for channel in range(channels):
            total = weights[0, x] * begin[channel]
            for tap in range(1, weights.shape[0]):
                total += weights[tap, x] * begin[tap * channels + channel]
            line[x * channels + channel] = total


@kernel
def _replicate(row: Floats, left: int, length: int, channels: int) -> None:
    """Continue a row on both sides with the pixels of its edges."""
    begin, end = left * channels, (left + length) * channels
    for i in range(begin):
        row[i] = row[begin + i % channels]
    for i in range(end, row.size - 1):
        row[i] = row[end - channels + (i - end) % channels]


@kernel
def _copy(to: Floats, source: NDArray[Any]) -> None:
    for i in range(to.size):
        to[i] = f32(source[i])


@kernel
def _scale(to: Floats, source: NDArray[Any], weight: np.float32) -> None:
    for i in range(to.size):
        to[i] = weight * f32(source[i])


@kernel
def _add(to: Floats, source: NDArray[Any], weight: np.float32) -> None:
    for i in range(to.size):
        to[i] += weight * f32(source[i])


@kernel
def _round(to: NDArray[Any], line: Floats) -> None:
    if to.itemsize == 4:
        for i in range(to.size):
            to[i] = line[i]
    else:
        for i in range(to.size):
            to[i] = np.uint8(np.int32(min(max(np.rint(line[i]), f32(0)), f32(255))))

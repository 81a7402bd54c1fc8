"""Walk over images: crop, mirror, reorder axes and normalise in one pass, as `ops.base.Walk` says.

Each row of a result is made from one row of an image: read as it lies where that will do, else gathered into a line in
the first-level cache first. Elements are found by unsigned offsets: with slices, or with indices that may be negative,
the compiler makes no vectors of these loops (measured: 5 times slower).

A ``Source`` is (memory, elements from image to image, height, width, channels), ``Moves`` is (start, mirror, fill) and
``Values`` is (mean, scale): ``out = (value - mean) * scale``, or the value itself where ``out`` is uint8. A window's
size is (height, width).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.kernels.compile import kernel
from gpuload.kernels.vectors import reverse_16

f32 = np.float32
at = np.uintp
Array = NDArray[Any]
Floats = NDArray[np.float32]
Source = tuple[Array, int, int, int, int]
Moves = tuple[NDArray[np.int32], NDArray[np.int32], np.float32]
Values = tuple[Floats, Floats]
Size = tuple[int, int]


@kernel
def pixels_to_pixels(source: Source, moves: Moves, values: Values, out: Array, size: Size) -> None:
    """Write the windows of a batch, HWC to HWC."""
    _pixels(source, 0, moves, values, out, (0, size[0] * size[1] * source[4]), size)


@kernel
def planes_to_planes(source: Source, moves: Moves, values: Values, out: Array, size: Size) -> None:
    """Write the windows of a batch, CHW to CHW: each channel as images of one channel."""
    images, stride, height, width, channels = source
    for c in range(channels):
        value = (values[0][c : c + 1], values[1][c : c + 1])
        places = (c * size[0] * size[1], channels * size[0] * size[1])
        _pixels((images, stride, height, width, 1), c * height * width, moves, value, out, places, size)


@kernel
def _pixels(
    source: Source, begin: int, moves: Moves, values: Values, out: Array, places: tuple[int, int], size: Size
) -> None:
    """Write windows of HWC images that begin at ``begin``; the results begin at ``places[0]``, ``places[1]`` apart."""
    images, stride, height, width, channels = source
    start, mirror, fill = moves
    length = size[1] * channels
    line = np.empty(length, images.dtype)
    means, scales = _repeated(values[0], size[1]), _repeated(values[1], size[1])
    edge = _edge(line, fill, out, means, scales)
    for i in range(start.shape[0]):
        first, last, column = _columns(start[i, 1], width, size[1], mirror[i, 1])
        line[:] = fill
        for y in range(size[0]):
            row = _row(start[i, 0], y, size[0], mirror[i, 0])
            to = places[0] + i * places[1] + y * length
            place = begin + i * stride + (row * width + column) * channels
            if row < 0 or row >= height:
                _copy(out, to, edge, length)
            elif last - first == size[1] and mirror[i, 1] == 0:
                _emit(out, to, images, place, means, scales)
            else:
                _gather(line, first * channels, images, place, last - first, channels, mirror[i, 1])
                _emit(out, to, line, 0, means, scales)


@kernel
def planes_to_pixels(source: Source, moves: Moves, values: Values, out: Array, size: Size) -> None:
    """Write the windows of a batch, CHW to HWC; three channels at once, others one by one."""
    images, stride, height, width, channels = source
    start, mirror, fill = moves
    plane, length = height * width, size[1] * channels
    line = np.empty(length, images.dtype)
    means, scales = _repeated(values[0], size[1]), _repeated(values[1], size[1])
    edge = _edge(line, fill, out, means, scales)
    address, line_address = images.ctypes.data, line.ctypes.data
    for i in range(start.shape[0]):
        first, last, column = _columns(start[i, 1], width, size[1], mirror[i, 1])
        for y in range(size[0]):
            row = _row(start[i, 0], y, size[0], mirror[i, 0])
            to, place = (i * size[0] + y) * length, i * stride + row * width + column
            inside = 0 <= row < height
            if not inside or last - first < size[1]:
                _copy(out, to, edge, length)
            if not inside:
                continue
            to += first * channels
            if channels != 3:
                _spread(out, to, images, (place, plane), last - first, channels, mirror[i, 1], values)
            elif mirror[i, 1] == 0:
                _interleave(out, to, images, place, plane, last - first, means, scales)
            else:
                for c in range(3):
                    if images.itemsize == 1 and last - first >= 16:
                        _reverse_bytes(line_address + c * size[1], address + place + c * plane, last - first)
                    else:
                        _reverse(line, c * size[1], images, place + c * plane, last - first)
                _interleave(out, to, line, 0, size[1], last - first, means, scales)


@kernel
def pixels_to_planes(source: Source, moves: Moves, values: Values, out: Array, size: Size) -> None:
    """Write the windows of a batch, HWC to CHW."""
    images, stride, height, width, channels = source
    start, mirror, fill = moves
    line = np.empty(size[1] * channels, images.dtype)
    for i in range(start.shape[0]):
        first, last, column = _columns(start[i, 1], width, size[1], mirror[i, 1])
        for y in range(size[0]):
            row = _row(start[i, 0], y, size[0], mirror[i, 0])
            if row < 0 or row >= height or last - first < size[1]:
                line[:] = fill
            if 0 <= row < height:
                place = i * stride + (row * width + column) * channels
                _gather(line, first * channels, images, place, last - first, channels, mirror[i, 1])
            for c in range(channels):
                to = ((i * channels + c) * size[0] + y) * size[1]
                _emit_channel(out, to, line, c, channels, size[1], values)


@kernel
def _row(top: int, y: int, height: int, mirrored: int) -> int:
    """Return the image's row for row ``y`` of a window."""
    return top + (height - 1 - y if mirrored == 1 else y)


@kernel
def _columns(left: int, width: int, window: int, mirrored: int) -> tuple[int, int, int]:
    """Return the window's columns that lie in the image, from and to, and the image's column where they begin."""
    first, last = min(window, max(0, -left)), min(window, width - left)
    last = max(first, last)
    if mirrored == 1:
        return window - last, window - first, max(0, left)
    return first, last, max(0, left)


@kernel
def _gather(to: Array, begin: int, images: Array, place: int, count: int, channels: int, mirrored: int) -> None:
    """Copy ``count`` pixels, the last first if they are mirrored."""
    if mirrored == 0:
        for j in range(count * channels):
            to[at(begin + j)] = images[at(place + j)]
    elif channels == 1:
        _reverse(to, begin, images, place, count)
    elif channels == 3:
        for x in range(count):
            source = place + 3 * (count - 1 - x)
            for c in range(3):
                to[at(begin + 3 * x + c)] = images[at(source + c)]
    else:
        for x in range(count):
            source = place + channels * (count - 1 - x)
            for c in range(channels):
                to[at(begin + channels * x + c)] = images[at(source + c)]


@kernel
def _reverse(to: Array, begin: int, images: Array, place: int, count: int) -> None:
    """Copy elements, the last first."""
    if to.itemsize == 1 and count >= 16:
        _reverse_bytes(to.ctypes.data + begin, images.ctypes.data + place, count)
    else:
        for x in range(count):
            to[at(begin + x)] = images[at(place + count - 1 - x)]


@kernel
def _reverse_bytes(to: int, source: int, count: int) -> None:
    """Copy 16 bytes or more, the last first: whole vectors, of which the last two overlap."""
    for x in range(0, count - 15, 16):
        reverse_16(to + x, source + count - 16 - x)
    reverse_16(to + count - 16, source)


@kernel
def _copy(out: Array, to: int, line: Array, count: int) -> None:
    for j in range(count):
        out[at(to + j)] = line[at(j)]


@kernel
def _edge(line: Array, fill: np.float32, out: Array, means: Floats, scales: Floats) -> Array:
    """Return a row of the result that lies outside the image."""
    line[:] = fill
    edge = np.empty(line.size, out.dtype)
    _emit(edge, 0, line, 0, means, scales)
    return edge


@kernel
def _repeated(channels: Floats, times: int) -> Floats:
    """Return the channels' numbers again and again, ``times`` pixels of them."""
    line = np.empty(channels.size * times, f32)
    for i in range(line.size):
        line[i] = channels[i % channels.size]
    return line


@kernel
def _emit(out: Array, to: int, line: Array, begin: int, means: Floats, scales: Floats) -> None:
    """Write a row of pixels; ``means`` and ``scales`` have a number for each of its elements."""
    if out.itemsize == 1:
        for j in range(means.size):
            out[at(to + j)] = line[at(begin + j)]
    else:
        for j in range(means.size):
            out[at(to + j)] = (f32(line[at(begin + j)]) - means[at(j)]) * scales[at(j)]


@kernel
def _emit_channel(out: Array, to: int, line: Array, channel: int, channels: int, count: int, values: Values) -> None:
    mean, scale = values[0][channel], values[1][channel]
    if out.itemsize == 1:
        for x in range(count):
            out[at(to + x)] = line[at(channel + x * channels)]
    else:
        for x in range(count):
            out[at(to + x)] = (f32(line[at(channel + x * channels)]) - mean) * scale


@kernel
def _interleave(
    out: Array, to: int, planes: Array, red: int, distance: int, count: int, means: Floats, scales: Floats
) -> None:
    """Write pixels of three channels, whose planes lie ``distance`` elements apart."""
    green, blue = red + distance, red + 2 * distance
    mean_0, mean_1, mean_2, scale_0, scale_1, scale_2 = means[0], means[1], means[2], scales[0], scales[1], scales[2]
    if out.itemsize == 1:
        for x in range(count):
            out[at(to + 3 * x)] = planes[at(red + x)]
            out[at(to + 3 * x + 1)] = planes[at(green + x)]
            out[at(to + 3 * x + 2)] = planes[at(blue + x)]
    else:
        for x in range(count):
            out[at(to + 3 * x)] = (f32(planes[at(red + x)]) - mean_0) * scale_0
            out[at(to + 3 * x + 1)] = (f32(planes[at(green + x)]) - mean_1) * scale_1
            out[at(to + 3 * x + 2)] = (f32(planes[at(blue + x)]) - mean_2) * scale_2


@kernel
def _spread(
    out: Array, to: int, planes: Array, places: tuple[int, int], count: int, channels: int, mirrored: int,
    values: Values,
) -> None:  # fmt: skip
    """Write pixels of any number of channels."""
    for c in range(channels):
        mean, scale = values[0][c], values[1][c]
        for x in range(count):
            value = planes[at(places[0] + c * places[1] + (count - 1 - x if mirrored == 1 else x))]
            out[at(to + x * channels + c)] = value if out.itemsize == 1 else (f32(value) - mean) * scale

"""Edits on a GPU: `ops.edits` as the core does them, bit for bit, for images of any sizes.

All images go through their first edit together, then through their second, and so on: each time at most three launches,
whatever the edits are. The first counts levels, the second makes tables of them, the third makes the pixels. The host
knows which of the three are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.ops import clahe_cuda, colour_cuda, colour_pillow, edits, lab
from gpuload.ops.base import Draw, Op
from gpuload.ops.blur import MEAN
from gpuload.ops.blur_pillow import BITS, MOST_BOX
from gpuload.ops.edits import Edits
from gpuload.ops.pillow import LIMIT, UNIT
from gpuload.ops.pixels import Pixels, reads

Numbers = NDArray[np.float64]
CODES = (
    "SKIP", "TABLE", "BRIGHTNESS", "CONTRAST", "SATURATION", "HUE", "SHARPNESS", "GRAY", "AUTOCONTRAST", "EQUALIZE",
    "BLUR", "PIL_CONTRAST", "PIL_SATURATION", "PIL_SHARPNESS", "PIL_AUTOCONTRAST", "PIL_AFFINE", "PIL_TURN",
    "PIL_MIX", "CLAHE", "PIL_BLUR",
)  # fmt: skip
COUNTING = (edits.CONTRAST, edits.AUTOCONTRAST, edits.EQUALIZE, edits.PIL_CONTRAST, edits.PIL_AUTOCONTRAST)
LOOK_UPS = (edits.TABLE, edits.BRIGHTNESS, *COUNTING)
RGB = 3  # channels

HEAD = f"""{colour_cuda.FUNCTIONS}
enum {{ {", ".join(f"{name} = {getattr(edits, name)}" for name in CODES)} }};

__device__ inline int pillow_gray(const float* color) {{
    if (CHANNELS == 1) return (int)color[0];
    return ((int)color[0] * {colour_pillow.GRAY[0]} + (int)color[1] * {colour_pillow.GRAY[1]}
        + (int)color[2] * {colour_pillow.GRAY[2]} + 32768) >> 16;
}}
__device__ inline float pillow_blend(float base, float value, float factor) {{
    return floorf(within(base + factor * (value - base)));
}}
"""
# Of each image that needs it, how many values each channel has of each level, and the gray, which comes last; of CLAHE
# how many each tile has, of L of Lab where there are three channels.
COUNT = f"""{HEAD}{clahe_cuda.FUNCTIONS}{clahe_cuda.LAB}typedef int Stats;
__device__ inline void count_tile(const Image& image, int y, int x, const double* numbers, const int* tables,
    int* counts)
{{
    Tiling tiles = tiling(image, (int)numbers[1], (int)numbers[2]);
    float color[NUMBERS];
    read(image, reflected(y, image.height), reflected(x, image.width), color);
    if (CHANNELS == {RGB}) color[0] = (float)to_lab(tables, color).lightness;
    for (int channel = 0; channel < (CHANNELS == {RGB} ? 1 : CHANNELS); ++channel) {{
        Long tile = (channel * tiles.rows + y / tiles.height) * tiles.columns + x / tiles.width;
        atomicAdd(counts + 256 * tile + (int)color[channel], 1);
    }}
}}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    int code = words[0], *counts = (int*)stats;
    if (code == CLAHE) return count_tile(image, y, x, (const double*)(words + 2), (const int*)table, counts);
    if ({" && ".join(f"code != {code}" for code in COUNTING)}) return;
    float color[NUMBERS];
    read(image, y, x, color);
    for (int channel = 0; channel < CHANNELS; ++channel) atomicAdd(counts + 256 * channel + (int)color[channel], 1);
    atomicAdd(counts + 256 * CHANNELS + (code == PIL_CONTRAST ? pillow_gray(color) : (int)gray(color)), 1);
}}
"""
# One pixel for each entry of a table: a row for each channel, of CLAHE for each tile of each channel.
TABLES = f"""{HEAD}{clahe_cuda.FUNCTIONS}typedef int Stats;
__device__ inline float tile_entry(const Image& image, int level, const double* numbers, const int* counts) {{
    Tiling tiles = tiling(image, (int)numbers[1], (int)numbers[2]);
    int limit = limit_of(tiles, numbers[0], 256), up_to = 0, excess = 0;
    for (int other = 0; other < 256; ++other) {{
        int count = counts[other] < limit ? counts[other] : limit;
        excess += counts[other] - count;
        up_to += other <= level ? count : 0;
    }}
    return curve_at(tiles, level, up_to, excess, 256);
}}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    const double* numbers = (const double*)(words + 2);
    const int *counts = stats + 256 * y, *grays = stats + 256 * CHANNELS;
    if (words[0] == CLAHE) {{
        *to = (Out)tile_entry(image, x, numbers, counts);
        return;
    }}
    if (y >= CHANNELS) return;
    float value = (float)x, factor = (float)numbers[0];
    int before = 0, total = 0, low = 255, high = 0;
    long long sum = 0;
    for (int level = 0; stats && level < 256; ++level) {{
        before += level < x ? counts[level] : 0;
        total += counts[level];
        if (counts[level]) low = level < low ? level : low, high = level;
        sum += (long long)level * grays[level];
    }}
    float result = value;
    switch (words[0]) {{
    case TABLE: result = (float)((const unsigned char*)numbers)[x]; break;
    case BRIGHTNESS: result = bounded(value * factor); break;
    case CONTRAST: result = blend(value, (float)(double)sum / (float)total, factor, (float)numbers[1]); break;
    case PIL_CONTRAST: result = pillow_blend((float)floor((double)sum / (double)total + 0.5), value, factor); break;
    case AUTOCONTRAST: {{
        float scale = (float)(high - low) * (float)(1.0 / 255);
        result = low == high ? bounded(value) : bounded((value - (float)low) / scale);
        break;
    }}
    case PIL_AUTOCONTRAST: {{
        double scale = 255.0 / (double)(high > low ? high - low : 1);
        double place = (double)value * scale + -(double)low * scale;
        result = low == high ? value : (float)floor(place < 0.0 ? 0.0 : place > 255.0 ? 255.0 : place);
        break;
    }}
    case EQUALIZE: {{
        int step = (total - counts[high]) / 255, place = step ? (before + step / 2) / step : x;
        result = (float)(place > 255 ? 255 : place);
    }}
    }}
    *to = (Out)result;
}}
"""
AFFINE = f"""
// The pixel in which a point lies, which Pillow finds by adding up steps.
__device__ inline int added_up(double begin, double first, int num_first, double second, int num_second, int length) {{
    double place = begin;
    for (int i = 0; i < num_first; ++i) place = place + first;
    for (int i = 0; i < num_second; ++i) place = place + second;
    return place < 0.0 ? -1 : place < (double)length ? (int)place : length;
}}
__device__ inline bool is_fixed(const double* m, int x, int y) {{
    return fabs((double)x * m[0] + (double)y * m[1] + m[2]) < {LIMIT}.0
        && fabs((double)x * m[3] + (double)y * m[4] + m[5]) < {LIMIT}.0;
}}
__device__ inline long long fixed(double number) {{ return (long long)floor(number * {UNIT}.0 + 0.5); }}

__device__ inline void nearest_place(const Image& image, const double* m, int y, int x, int* row, int* column) {{
    int width = image.width, height = image.height;
    if (m[1] == 0.0 && m[3] == 0.0) {{
        *column = added_up(m[2] + m[0] * 0.5, m[0], x, 0.0, 0, width);
        *row = added_up(m[5] + m[4] * 0.5, m[4], y, 0.0, 0, height);
    }} else if (is_fixed(m, 0, 0) && is_fixed(m, 0, height) && is_fixed(m, width, 0) && is_fixed(m, width, height)) {{
        *column = (int)((fixed(m[2] + m[0] * 0.5 + m[1] * 0.5) + y * fixed(m[1]) + x * fixed(m[0])) >> 16);
        *row = (int)((fixed(m[5] + m[3] * 0.5 + m[4] * 0.5) + y * fixed(m[4]) + x * fixed(m[3])) >> 16);
    }} else {{
        *column = added_up(m[2] + m[0] * 0.5 + m[1] * 0.5, m[1], y, m[0], x, width);
        *row = added_up(m[5] + m[3] * 0.5 + m[4] * 0.5, m[4], y, m[3], x, height);
    }}
}}
__device__ inline double cubic(double first, double second, double third, double fourth, double place) {{
    double linear = -first + third, square = 2.0 * (first - second) + third - fourth;
    double cube = -first + second - third + fourth;
    return second + place * (linear + place * (square + place * cube));
}}
__device__ inline double line(const Image& image, int row, int left, int channel, double place, bool by_cubic) {{
    double values[4];
    for (int tap = 0; tap < 4; ++tap)
        values[tap] = (double)at(image, clipped(row, image.height), clipped(left + tap - 1, image.width), channel);
    if (by_cubic) return cubic(values[0], values[1], values[2], values[3], place);
    return values[1] + (values[2] - values[1]) * place;
}}
__device__ inline void take_affine(const Image& image, const double* numbers, int y, int x, Out* to) {{
    const double *m = numbers + 1, *fill = numbers + 7;
    int kind = (int)numbers[0], row, column;
    if (kind == 0) {{
        nearest_place(image, m, y, x, &row, &column);
        bool inside = row >= 0 && row < image.height && column >= 0 && column < image.width;
        for (int channel = 0; channel < CHANNELS; ++channel)
            to[channel] = inside ? at(image, row, column, channel) : (Out)fill[channel];
        return;
    }}
    double across = (double)x + 0.5, down = (double)y + 0.5;
    double at_x = m[0] * across + m[1] * down + m[2], at_y = m[3] * across + m[4] * down + m[5];
    bool inside = at_x >= 0.0 && at_x < (double)image.width && at_y >= 0.0 && at_y < (double)image.height;
    at_x = at_x - 0.5, at_y = at_y - 0.5;
    for (int channel = 0; channel < CHANNELS; ++channel) {{
        if (!inside) {{
            to[channel] = (Out)fill[channel];
            continue;
        }}
        int left = (int)floor(at_x), top = (int)floor(at_y);
        double lines[4], part = at_y - (double)top;
        for (int tap = 0; tap < 4; ++tap)
            lines[tap] = line(image, top + tap - 1, left, channel, at_x - (double)left, kind == 2);
        double value = lines[1] + (lines[2] - lines[1]) * part;
        if (kind == 2) value = cubic(lines[0], lines[1], lines[2], lines[3], part);
        to[channel] = (Out)(value < 0.0 ? 0.0 : value > 255.0 ? 255.0 : value);
    }}
}}
"""
EDIT = f"""{HEAD}{colour_cuda.SMOOTH}{MEAN}{AFFINE}{clahe_cuda.FUNCTIONS}{clahe_cuda.LAB}typedef unsigned char Stats;
__device__ inline void blend_tiles(const Image& image, const double* numbers, int y, int x, const Stats* stats,
    const int* tables, Out* to)
{{
    int rows = (int)numbers[1], columns = (int)numbers[2];
    Tiling tiles = tiling(image, rows, columns);
    float color[NUMBERS];
    read(image, y, x, color);
    if (CHANNELS == {RGB}) {{
        Lab lab = to_lab(tables, color);
        lab.lightness = (int)blended(image, stats, rows, columns, 256, y, x, lab.lightness);
        from_lab(tables, lab, color);
    }}
    for (int channel = 0; channel < CHANNELS; ++channel) {{
        const Stats* curves = stats + (Long)channel * tiles.rows * tiles.columns * 256;
        if (CHANNELS != {RGB}) color[channel] = blended(image, curves, rows, columns, 256, y, x, (int)color[channel]);
        to[channel] = (Out)color[channel];
    }}
}}
__device__ inline float blurred(const Image& image, const double* numbers, int y, int x, int channel) {{
    int down = (int)numbers[0], across = (int)numbers[1];
    float total = 0.0f;
    for (int i = 0; i < across; ++i) {{
        int column = mirrored(x + i - across / 2, image.width);
        float sum = 0.0f;
        for (int j = 0; j < down; ++j) {{
            int row = mirrored(y + j - down / 2, image.height);
            float part = (float)at(image, row, column, channel) * (float)numbers[2 + j];
            sum = j ? sum + part : part;
        }}
        float part = sum * (float)numbers[2 + down + i];
        total = i ? total + part : part;
    }}
    return within(rintf(total));
}}
// A pass of Pillow's box. Both lines have the values about a place, so many on each side; the border is repeated.
__device__ inline void add_box(const int* from, int from_reach, int* to, int to_reach, int place, int length,
    const double* numbers)
{{
    int whole = (int)numbers[0], zero = from_reach - place;
    for (int i = -to_reach; i <= to_reach; ++i) {{
        int middle = clipped(place + i, length), first = clipped(middle - whole - 1, length);
        unsigned sum = 0, edges = from[zero + first] + from[zero + clipped(middle + whole + 1, length)];
        for (int j = middle - whole; j <= middle + whole; ++j) sum += from[zero + clipped(j, length)];
        sum = sum * (unsigned)numbers[1] + edges * (unsigned)numbers[2];
        to[to_reach + i] = (int)((sum + {1 << (BITS - 1)}u) >> {BITS});
    }}
}}
__device__ inline int three_boxes(const int* values, int place, int length, const double* numbers) {{
    int reach = (int)numbers[0] + 1, first[4 * {MOST_BOX} + 5], second[2 * {MOST_BOX} + 3], third;
    add_box(values, 3 * reach, first, 2 * reach, place, length, numbers);
    add_box(first, 2 * reach, second, reach, place, length, numbers);
    add_box(second, reach, &third, 0, place, length, numbers);
    return third;
}}
__device__ inline float pillow_blurred(const Image& image, const double* numbers, int y, int x, int channel) {{
    int reach = 3 * ((int)numbers[0] + 1), row[6 * {MOST_BOX} + 7], column[6 * {MOST_BOX} + 7];
    for (int j = -reach; j <= reach; ++j) {{
        for (int i = -reach; i <= reach; ++i)
            row[reach + i] = at(image, clipped(y + j, image.height), clipped(x + i, image.width), channel);
        column[reach + j] = three_boxes(row, x, image.width, numbers);
    }}
    return (float)three_boxes(column, y, image.height, numbers);
}}
// The sum of chains: behind their number and their weights are their addresses.
__device__ inline float mixed(const Image& image, const double* numbers, int y, int x, int channel) {{
    int count = (int)numbers[1];
    Long place = ((Long)y * image.width + x) * CHANNELS + channel;
    const Long* chains = (const Long*)(numbers + 2 + count);
    float total = 0.0f;
    for (int chain = 0; chain < count; ++chain)
        total = total + (float)((const unsigned char*)chains[chain])[place] * (float)numbers[2 + chain];
    return floorf(within(total));
}}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    const double* numbers = (const double*)(words + 2);
    int code = words[0];
    if (code == PIL_AFFINE) return take_affine(image, numbers, y, x, to);
    if (code == CLAHE) return blend_tiles(image, numbers, y, x, stats, (const int*)table, to);
    if (code == PIL_TURN) {{
        int turn = (int)numbers[0], row = turn == 1 ? x : turn == 2 ? image.height - 1 - y : image.height - 1 - x;
        int column = turn == 1 ? image.width - 1 - y : turn == 2 ? image.width - 1 - x : y;
        for (int channel = 0; channel < CHANNELS; ++channel) to[channel] = at(image, row, column, channel);
        return;
    }}
    float color[NUMBERS], factor = (float)numbers[0], base = 0.0f;
    read(image, y, x, color);
    if (code == HUE && CHANNELS == 3) turn_hue(color, factor);
    if (code == GRAY || code == SATURATION) base = gray(color);
    if (code == PIL_SATURATION) base = (float)pillow_gray(color);
    bool is_inside = image.height >= 3 && image.width >= 3 && !is_edge(image, y, x);
    for (int channel = 0; channel < CHANNELS; ++channel) {{
        float value = color[channel];
        if ({" || ".join(f"code == {code}" for code in LOOK_UPS)}) value = (float)stats[256 * channel + (int)value];
        if (code == GRAY) value = base;
        if (code == SATURATION && CHANNELS == 3) value = blend(value, base, factor, (float)numbers[1]);
        if (code == PIL_SATURATION && CHANNELS == 3) value = pillow_blend(base, value, factor);
        if (code == SHARPNESS) value = sharpened(image, y, x, channel, factor);
        if (code == PIL_SHARPNESS && is_inside) value = pillow_blend(smooth(image, y, x, channel), value, factor);
        if (code == BLUR) value = blurred(image, numbers, y, x, channel);
        if (code == PIL_BLUR) value = pillow_blurred(image, numbers, y, x, channel);
        if (code == PIL_MIX) value = pillow_blend(value, mixed(image, numbers, y, x, channel), factor);
        to[channel] = (Out)value;
    }}
}}
"""


def edit_batch(op: Op, xp: ModuleType, x: Any, draw: Draw) -> Any | None:
    """Return a batch behind an op by its edits; None if it has none, or a kernel cannot read the images.

    Args:
        op: the op.
        xp: NumPy or CuPy.
        x: the images, as of ``Op.array_batch``.
        draw: of the op.
    """
    if not reads(xp, x) or x[0].dtype != np.uint8:
        return None
    numbers = op.edit_form(draw, np.array([image.shape[:2] for image in x], np.int32), x[0].shape[2])
    return None if numbers is None else edit(xp, x, numbers)


def edit(xp: ModuleType, x: Any, numbers: Edits | Sequence[Numbers]) -> Any:
    """Return images behind their edits.

    Args:
        xp: CuPy.
        x: uint8 images of 1 or 3 channels for which `pixels.reads` is True.
        numbers: of each image.
    """
    rows = [_codes_and_arguments(row) for row in numbers]
    for turn in range(max(map(len, rows))):
        x = _edit_once(xp, x, [row[turn] if turn < len(row) else (edits.SKIP, np.empty(0)) for row in rows])
    return x


def _codes_and_arguments(row: Numbers) -> list[tuple[int, Numbers]]:
    """Return the codes of an image's edits and their arguments, without those that do nothing."""
    pairs, place = [], 0
    while place < len(row):
        code, length = int(row[place]), int(row[place + 1])
        if code != edits.SKIP:
            pairs.append((code, row[place + 2 : place + 2 + length]))
        place += 2 + length
    return pairs


def _edit_once(xp: ModuleType, x: Any, turn: list[tuple[int, Numbers]]) -> Any:
    """Return images behind one edit of each."""
    turn, chains = _with_chains(xp, x, turn)
    codes, arguments = np.zeros((len(turn), 2), np.int32), np.zeros((len(turn), max(1, *(len(row) for _, row in turn))))
    for row, (code, values) in enumerate(turn):
        codes[row, 0], arguments[row, : len(values)] = code, values
    images = Pixels(xp, x, codes, arguments)
    counts, tables, channels = 0, 0, images.channels
    tiled_size, num_tables = _tiles(x, codes[:, 0] == edits.CLAHE, arguments, channels)
    constants = 0 if tiled_size is None else device.constant(lab.join_tables)
    step = 256 * max(channels + 1, num_tables)
    if np.isin(codes[:, 0], (*COUNTING, edits.CLAHE)).any():
        counts = xp.zeros((len(turn), step), np.int32)
        larger_images = images if tiled_size is None else Pixels(xp, x, codes, arguments, size=tiled_size)
        larger_images.change(COUNT, stats=counts, step=step, table=constants)
    if np.isin(codes[:, 0], (*LOOK_UPS, edits.CLAHE)).any():
        size = np.broadcast_to(np.array([num_tables, 256]), (len(turn), 2))
        entries = Pixels(xp, x, codes, arguments, size=size)
        tables = entries.change(TABLES, stats=counts, step=step if np.ndim(counts) else 0, channels=1)
    result = images.change(EDIT, stats=tables, step=256 * num_tables, table=constants)
    del chains  # the kernel that reads them is queued
    return result


def _tiles(x: Any, has_tiles: NDArray[np.bool_], arguments: Numbers, channels: int) -> tuple[Any, int]:
    """Return the size of each image in whole tiles, int64 ``[N, 2]``, None if none has tiles; and the most tables."""
    if not has_tiles.any():
        return None, channels
    size = np.array([image.shape[:2] for image in x], np.int64)
    grid = arguments[has_tiles, 1:3].astype(np.int64)
    num_tiles = clahe_cuda.count_tiles(size[has_tiles], grid)
    size[has_tiles] = num_tiles * clahe_cuda.tile_sizes(size[has_tiles], grid)
    planes = 1 if channels == RGB else channels
    return size, max(channels, planes * int(num_tiles.prod(axis=1).max()))


def _with_chains(xp: ModuleType, x: Any, turn: list[tuple[int, Numbers]]) -> tuple[list[tuple[int, Numbers]], Any]:
    """Return the edits of a turn, with the addresses of the chains of those that mix; and the chains' images."""
    sources, numbers = [], []
    weights: dict[int, list[float]] = {}
    for row, (code, arguments) in enumerate(turn):
        if code != edits.PIL_MIX:
            continue
        place, weights[row] = 2, []
        for _ in range(int(arguments[1])):
            end = place + 2 + int(arguments[place + 1])
            weights[row].append(arguments[place])
            sources.append(x[row])
            numbers.append(arguments[place + 2 : end])
            place = end
    if not sources:
        return turn, None
    chains = edit(xp, sources, numbers)
    chains = [xp.ascontiguousarray(image) for image in chains]
    addresses = iter(np.array([image.data.ptr for image in chains], np.int64).view(np.float64).tolist())
    mixes = {
        row: np.array([turn[row][1][0], len(parts), *parts, *(next(addresses) for _ in parts)])
        for row, parts in weights.items()
    }
    return [(code, mixes.get(row, arguments)) for row, (code, arguments) in enumerate(turn)], chains

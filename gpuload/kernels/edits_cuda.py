"""Edits on a GPU: `kernels.edits` as the core does them, bit for bit, for images of any sizes.

All images go through their first edit together, then through their second, and so on: each time at
most three launches, whatever the edits are. The first counts levels, the second makes tables of
them, the third makes the pixels. The host knows which of the three are needed. Chains of edits that
are mixed go through theirs before.

Upload    One for a batch: the edits as they are, and for each turn where each image lies, where its
          result goes, and where its edit begins. The results of turns lie in memory that is there
          before, so that all this is known.
Counting  A block counts a part of an image, or a tile of it, in shared memory, and then adds what
          it counted to the image's counts: 4 sums of the device's memory for each 8 pixels at most,
          in place of one for each value.
Registers The kernel of pixels has all edits in it. Some loops are not unrolled, so that a thread
          takes no more than 56 registers: the more it takes, the fewer are at work at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import clahe_cuda, colour_cuda, colour_pillow, cuda, edits, lab
from gpuload.kernels.blur_pillow import BITS, MOST_BOX
from gpuload.kernels.edits import Edits
from gpuload.kernels.pillow import LIMIT, UNIT
from gpuload.kernels.pixels import IMAGE, Places, reads, views

Offsets = NDArray[np.int64]
EditForm = Callable[[NDArray[np.int32], int], Edits | None]
EDITED = np.dtype(
    [*((name, IMAGE[name]) for name in IMAGE.names or ()), ("edit", "i8"), ("chains", "i8")]
)
NO_EDIT = -1
COUNTED_PIXELS = 8192  # by a block
CODES = (
    "SKIP", "TABLE", "BRIGHTNESS", "CONTRAST", "SATURATION", "HUE", "SHARPNESS", "GRAY", "AUTOCONTRAST", "EQUALIZE",
    "BLUR", "PIL_CONTRAST", "PIL_SATURATION", "PIL_SHARPNESS", "PIL_AUTOCONTRAST", "PIL_AFFINE", "PIL_TURN",
    "PIL_MIX", "CLAHE", "PIL_BLUR",
)  # fmt: skip
COUNTING = (
    edits.CONTRAST,
    edits.AUTOCONTRAST,
    edits.EQUALIZE,
    edits.PIL_CONTRAST,
    edits.PIL_AUTOCONTRAST,
)
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
# An image in a turn: where its edit begins, less than 0 for none; and the images of its chains,
# side by side. The struct is the dtype `EDITED`.
FRAME = f"""{HEAD}
struct Edited : Image {{ Long edit; const unsigned char* chains; }};
"""
# Of each image that needs it, how many values each channel has of each level, and the gray, which
# comes last; of CLAHE how many each tile has, of L of Lab where there are three channels. So many
# blocks for each image take turns.
COUNT = f"""{FRAME}{clahe_cuda.FUNCTIONS}{clahe_cuda.LAB}
enum {{ TABLES = CHANNELS + 1, PLANES = CHANNELS == {RGB} ? 1 : CHANNELS }};

__device__ inline void count_tiles(const Edited& image, const double* numbers, const int* tables, int* sums,
    int* counts, int part, int blocks)
{{
    Tiling tiles = tiling(image, (int)numbers[1], (int)numbers[2]);
    int num_tiles = tiles.rows * tiles.columns, pixels = tiles.height * tiles.width;
    for (int tile = part; tile < num_tiles * PLANES; tile += blocks) {{
        int channel = tile / num_tiles, top = tile % num_tiles / tiles.columns * tiles.height;
        int left = tile % num_tiles % tiles.columns * tiles.width;
        sums[threadIdx.x] = 0;
        __syncthreads();
        for (int place = threadIdx.x; place < pixels; place += THREADS) {{
            float color[NUMBERS];
            int y = top + place / tiles.width, x = left + place % tiles.width;
            read(image, reflected(y, image.height), reflected(x, image.width), color);
            if (CHANNELS == {RGB}) color[0] = (float)to_lab(tables, color).lightness;
            atomicAdd(sums + (int)color[channel], 1);
        }}
        __syncthreads();
        counts[256 * tile + threadIdx.x] = sums[threadIdx.x];
    }}
}}
extern "C" __global__ void count(const Edited* images, const double* edits, const int* tables, int* counts,
    Long step, int blocks)
{{
    __shared__ int sums[256 * TABLES];
    Long row = blockIdx.x / blocks;
    const Edited& image = images[row];
    int part = blockIdx.x % blocks, code = image.edit < 0 ? SKIP : (int)edits[image.edit];
    counts += row * step;
    if (code == CLAHE) return count_tiles(image, edits + image.edit + 2, tables, sums, counts, part, blocks);
    if ({" && ".join(f"code != {code}" for code in COUNTING)}) return;
    for (int table = 0; table < TABLES; ++table) sums[256 * table + threadIdx.x] = 0;
    __syncthreads();
    unsigned size = (unsigned)image.height * image.width, length = (size + blocks - 1) / blocks;
    unsigned begin = part * length + threadIdx.x, end = (part + 1) * length < size ? (part + 1) * length : size;
    for (unsigned place = begin; place < end; place += THREADS) {{
        float color[NUMBERS];
        read(image, place / image.width, place % image.width, color);
        for (int channel = 0; channel < CHANNELS; ++channel) atomicAdd(sums + 256 * channel + (int)color[channel], 1);
        atomicAdd(sums + 256 * CHANNELS + (code == PIL_CONTRAST ? pillow_gray(color) : (int)gray(color)), 1);
    }}
    __syncthreads();
    for (int table = 0; table < TABLES; ++table) {{
        int place = 256 * table + threadIdx.x;
        if (sums[place]) atomicAdd(counts + place, sums[place]);
    }}
}}
"""
# One thread for each entry of a table: a table for each channel, of CLAHE for each tile of each
# channel.
TABLES = f"""{FRAME}{clahe_cuda.FUNCTIONS}
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
extern "C" __global__ void entries(const Edited* images, const double* edits, const int* all_counts, Long step,
    unsigned char* to, int num_tables)
{{
    Long row = blockIdx.x / num_tables;
    const Edited& image = images[row];
    int y = blockIdx.x % num_tables, x = threadIdx.x, code = image.edit < 0 ? SKIP : (int)edits[image.edit];
    const double* numbers = edits + image.edit + 2;
    const int* stats = all_counts ? all_counts + row * step : all_counts;
    const int *counts = stats + 256 * y, *grays = stats + 256 * CHANNELS;
    to += 256 * (Long)blockIdx.x + x;
    if (code == CLAHE) {{
        Tiling tiles = tiling(image, (int)numbers[1], (int)numbers[2]);
        if (y < tiles.rows * tiles.columns * (CHANNELS == {RGB} ? 1 : CHANNELS))
            *to = (unsigned char)tile_entry(image, x, numbers, counts);
        return;
    }}
    if (y >= CHANNELS || ({" && ".join(f"code != {code}" for code in LOOK_UPS)})) return;
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
    switch (code) {{
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
    *to = (unsigned char)result;
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
        #pragma unroll 1
        for (int tap = 0; tap < 4; ++tap)
            lines[tap] = line(image, top + tap - 1, left, channel, at_x - (double)left, kind == 2);
        double value = lines[1] + (lines[2] - lines[1]) * part;
        if (kind == 2) value = cubic(lines[0], lines[1], lines[2], lines[3], part);
        to[channel] = (Out)(value < 0.0 ? 0.0 : value > 255.0 ? 255.0 : value);
    }}
}}
"""
FUNCTIONS = f"{colour_cuda.SMOOTH}{cuda.MIRROR}{AFFINE}{clahe_cuda.FUNCTIONS}{clahe_cuda.LAB}"
EDIT = f"""{FRAME}{FUNCTIONS}typedef unsigned char Stats;
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
        #pragma unroll 1
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
__device__ inline void take_blur(const Image& image, int code, const double* numbers, int y, int x,
    Out* to)
{{
    #pragma unroll 1
    for (int channel = 0; channel < CHANNELS; ++channel) {{
        if (code == BLUR) to[channel] = (Out)blurred(image, numbers, y, x, channel);
        else to[channel] = (Out)pillow_blurred(image, numbers, y, x, channel);
    }}
}}
// The sum of chains: of each its weight, the count of its numbers, and these.
__device__ inline float mixed(const Edited& image, const double* numbers, int y, int x, int channel) {{
    int count = (int)numbers[1];
    Long size = (Long)image.height * image.width * CHANNELS, place = ((Long)y * image.width + x) * CHANNELS + channel;
    float total = 0.0f;
    numbers += 2;
    for (int chain = 0; chain < count; ++chain) {{
        total = total + (float)image.chains[chain * size + place] * (float)numbers[0];
        numbers += 2 + (int)numbers[1];
    }}
    return floorf(within(total));
}}
__device__ inline void pixel(const Edited& image, const double* edits, int y, int x, const Stats* stats,
    const int* table, Out* to)
{{
    int code = image.edit < 0 ? SKIP : (int)edits[image.edit];
    if (code == SKIP) {{
        for (int channel = 0; channel < CHANNELS; ++channel) to[channel] = at(image, y, x, channel);
        return;
    }}
    const double* numbers = edits + image.edit + 2;
    if (code == PIL_AFFINE) return take_affine(image, numbers, y, x, to);
    if (code == CLAHE) return blend_tiles(image, numbers, y, x, stats, table, to);
    if (code == PIL_TURN) {{
        int turn = (int)numbers[0], row = turn == 1 ? x : turn == 2 ? image.height - 1 - y : image.height - 1 - x;
        int column = turn == 1 ? image.width - 1 - y : turn == 2 ? image.width - 1 - x : y;
        for (int channel = 0; channel < CHANNELS; ++channel) to[channel] = at(image, row, column, channel);
        return;
    }}
    if (code == BLUR || code == PIL_BLUR) return take_blur(image, code, numbers, y, x, to);
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
        if (code == PIL_MIX) value = pillow_blend(value, mixed(image, numbers, y, x, channel), factor);
        to[channel] = (Out)value;
    }}
}}
extern "C" __global__ void edit(const Edited* images, const double* edits, const Stats* stats, Long step,
    const int* table, Out* out, int blocks)
{{
    Long row = blockIdx.x / blocks;
    const Edited& image = images[row];
    unsigned place = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (place >= (unsigned)image.new_height * image.new_width) return;
    pixel(image, edits, place / image.new_width, place % image.new_width, stats + row * step, table,
        out + (image.out + place) * CHANNELS);
}}
"""


def edit_batch(xp: ModuleType, x: Any, edit_form: EditForm) -> Any | None:
    """Return a batch behind an op by its edits; None if it has none, or a kernel cannot read the
    images.

    Args:
        xp: NumPy or CuPy.
        x: the images, as of ``Op.array_batch``.
        edit_form: returns the edits of the op for images of these sizes and channels, None if it
            has none.
    """
    if not reads(xp, x) or x[0].dtype != np.uint8:
        return None
    places = Places.of(x)
    numbers = edit_form(places.size.astype(np.int32), places.channels)
    if numbers is None:
        return None
    return edit(xp, x, numbers, places)


def edit(xp: ModuleType, x: Any, numbers: Edits, places: Places | None = None) -> Any:
    """Return images behind their edits.

    Args:
        xp: CuPy.
        x: uint8 images of 1 or 3 channels for which `pixels.reads` is True.
        numbers: of each image.
        places: where the images lie, if it is known.
    """
    places = Places.of(x) if places is None else places
    run = _EditBatch(xp, numbers, places.channels)
    bounds = np.arange(len(numbers) + 1, dtype=np.int64) * numbers.shape[1]
    out = run.add(places, bounds[:-1], bounds[1:])
    if out is None:
        return x
    run.launch()
    return views(out, places.shapes)


class _Turn(NamedTuple):
    """One edit of each image.

    Attributes:
        images: `EDITED` ``[N]``.
        codes: of the edits, int64 ``[N]``.
        grids: the tiles down and across of those that have tiles, int64 ``[N, 2]``.
        num_pixels: of the largest image.
        out: memory for the results.
    """

    images: NDArray[Any]
    codes: Offsets
    grids: Offsets
    num_pixels: int
    out: Any


class _EditBatch:
    """The turns of a batch: what is to be launched, and then the launches.

    Args:
        xp: CuPy.
        numbers: the edits of all images.
        channels: of each image.
    """

    def __init__(self, xp: ModuleType, numbers: Edits, channels: int) -> None:
        self._xp, self._numbers, self._channels = (
            xp,
            np.ascontiguousarray(numbers).reshape(-1),
            channels,
        )
        self._turns: list[_Turn] = []

    def add(self, places: Places, begins: Offsets, ends: Offsets) -> Any | None:
        """Add the turns of some images; return memory for the results, one after the other, or None
        without edits.

        Args:
            places: where the images lie.
            begins: where the numbers of each image begin, ``[N]``.
            ends: where they end.
        """
        codes, starts = self._parse(begins, ends)
        if len(codes):
            return self._add_turns(places, codes, starts)
        return None

    def _add_turns(self, places: Places, codes: Offsets, starts: Offsets) -> Any:
        """Add turns by the codes of edits and where they begin, ``[turns, N]``."""
        num_pixels, images = int(places.lengths.max()), places.table(EDITED)
        memory = [self._xp.empty(places.num_pixels * self._channels, np.uint8) for _ in codes[:2]]
        # Memory for two results is enough: one turn reads what the turn before wrote to the other.
        out = memory[0]
        for turn, (turn_codes, begin) in enumerate(zip(codes, starts, strict=True)):
            if turn:
                if turn > 1:
                    places = places
                else:
                    places = places.pack()
                images = places.table(EDITED)
                images["address"] += out.data.ptr
            out = memory[turn % 2]
            images["edit"] = np.where(turn_codes == edits.SKIP, NO_EDIT, begin)
            rows, grids = np.flatnonzero(turn_codes == edits.PIL_MIX), np.empty((0, 2), np.int64)
            if rows.size:
                images["chains"][rows] = self._add_chains(
                    places.at(images["address"], rows), begin[rows]
                )
            if (turn_codes == edits.CLAHE).any():
                grids = self._numbers[
                    np.minimum(begin[:, None] + [3, 4], self._numbers.size - 1)
                ].astype(np.int64)
            self._turns.append(_Turn(images, turn_codes, grids, num_pixels, out))
        return out

    def _add_chains(self, places: Places, begins: Offsets) -> Offsets:
        """Add the turns of the chains of edits that mix; return the address of the first chain's
        image of each.

        Args:
            places: where the images lie that are mixed with chains.
            begins: where the numbers of these edits begin.
        """
        counts = self._numbers[begins + 3].astype(np.int64)
        owners, firsts = np.repeat(np.arange(len(counts)), counts), np.cumsum(counts) - counts
        starts, ends, place = (
            np.zeros(len(owners), np.int64),
            np.zeros(len(owners), np.int64),
            begins + 4,
        )
        for chain in range(int(counts.max())):
            rows = np.flatnonzero(counts > chain)
            starts[firsts[rows] + chain] = place[rows] + 2
            place[rows] += 2 + self._numbers[place[rows] + 1].astype(np.int64)
            ends[firsts[rows] + chain] = place[rows]
        sources = places.at(places.address, owners)
        out = self.add(sources, starts, ends)
        if out is None:  # nothing is done in any chain: they are their image
            skips = np.full((1, len(owners)), edits.SKIP)
            out = self._add_turns(sources, skips, skips)
        return np.asarray(out.data.ptr + sources.pack().address[firsts])

    def _parse(self, begins: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
        """Return the codes of edits and where they begin, ``[turns, N]``: those that do something
        come first."""
        codes, starts, place, last = [], [], begins, len(self._numbers) - 2
        while (is_inside := place < ends).any():
            start = np.minimum(place, last)
            codes.append(np.where(is_inside, self._numbers[start].astype(np.int64), edits.SKIP))
            starts.append(start)
            place = np.where(
                is_inside, start + 2 + self._numbers[start + 1].astype(np.int64), place
            )
        all_codes, all_starts = (
            np.array(rows, np.int64).reshape(len(rows), len(begins)) for rows in (codes, starts)
        )
        is_skipped = all_codes == edits.SKIP
        if is_skipped.any():
            order = is_skipped.argsort(axis=0, kind="stable")[
                : int((~is_skipped).sum(axis=0).max())
            ]
            all_codes, all_starts = (
                np.take_along_axis(rows, order, axis=0) for rows in (all_codes, all_starts)
            )
        return all_codes, all_starts

    def launch(self) -> None:
        """Upload the edits and what the turns say, and queue the kernels."""
        parts = [self._numbers, *(turn.images for turn in self._turns)]
        # One copy to the GPU for all: each costs some microseconds, however few its bytes are.
        upload = device.parameters(np.concatenate([part.view(np.uint8) for part in parts]))
        begin = self._numbers.nbytes
        for turn in self._turns:
            self._launch(turn, upload[begin:], upload)
            begin += turn.images.nbytes

    def _launch(self, turn: _Turn, images: Any, numbers: Any) -> None:
        """Queue the kernels of one turn."""
        xp, count, (codes, channels) = (
            self._xp,
            len(turn.images),
            (np.bincount(turn.codes).tolist(), self._channels),
        )
        present = {code for code, number in enumerate(codes) if number}
        has_tiles, num_tiles = edits.CLAHE in present, 0
        if has_tiles:
            constants = device.constant(lab.join_tables)
        else:
            constants = 0
        if has_tiles:
            rows = turn.codes == edits.CLAHE
            size = np.stack(
                [turn.images["height"][rows], turn.images["width"][rows]], axis=1
            ).astype(np.int64)
            tiles = clahe_cuda.count_tiles(size, turn.grids[rows])
            num_tiles = (1 if channels == RGB else channels) * int(tiles.prod(axis=1).max())
        num_tables, tables, counts, step = (
            max(channels, num_tiles),
            0,
            0,
            256 * max(channels + 1, num_tiles),
        )
        if has_tiles or not present.isdisjoint(COUNTING):
            counts = device.zeros(count * step, np.int32)
            blocks = max(-(-turn.num_pixels // COUNTED_PIXELS), num_tiles)
            self._kernel(COUNT, "count")(
                (blocks * count,), (cuda.THREADS,),
                (images, numbers, constants, counts, np.int64(step), np.int32(blocks)),
            )  # fmt: skip
        if has_tiles or not present.isdisjoint(LOOK_UPS):
            tables = xp.empty(count * num_tables * 256, np.uint8)
            self._kernel(TABLES, "entries")(
                (num_tables * count,),
                (256,),
                (images, numbers, counts, np.int64(step), tables, np.int32(num_tables)),
            )
        blocks = -(-turn.num_pixels // cuda.THREADS)
        self._kernel(EDIT, "edit")(
            (blocks * count,), (cuda.THREADS,),
            (images, numbers, tables, np.int64(256 * num_tables), constants, turn.out, np.int32(blocks)),
        )  # fmt: skip

    def _kernel(self, text: str, name: str) -> Any:
        return device.kernel(
            cuda.pixels("unsigned char", "unsigned char", self._channels, text), name
        )

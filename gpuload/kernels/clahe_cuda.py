"""CLAHE on a GPU: functions of kernels for images of any sizes, and images of 16 bits; bit for bit
as `ops.colour.clahe`.

Images of 8 bits are edits: `kernels.edits_cuda` counts levels, makes a table of each tile, and
blends them, with these functions. Images of 16 bits have tables of 65536 levels, which a block of
threads makes in the memory of their counts.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import cuda, lab, walk
from gpuload.kernels.pixels import Pixels

LEVELS = 1 << 16
MOST_BYTES = 1 << 30  # of the tables of 16-bit images that are on the GPU at a time

# The tiles of an image, those left out that lie behind all of its pixels: `height` and `width` of a
# tile, and how many.
FUNCTIONS = """
struct Tiling { int height, width, rows, columns; };
struct Neighbours { int before, after; float share; };

// The two tiles about a pixel along an axis, and how much of the second.
__device__ inline Neighbours neighbours(int pixel, int tile, int tiles) {
    float place = (float)pixel * (1.0f / (float)tile) - 0.5f, first = floorf(place);
    int number = (int)first;
    return {number < 0 ? 0 : number, number + 1 < tiles ? number + 1 : tiles - 1, place - first};
}
__device__ inline Tiling tiling(const Image& image, int rows, int columns) {
    bool are_whole = image.height % rows == 0 && image.width % columns == 0;
    Long added_rows = are_whole ? 0 : rows - image.height % rows;
    Long added_columns = are_whole ? 0 : columns - image.width % columns;
    int height = (int)((image.height + added_rows) / rows), width = (int)((image.width + added_columns) / columns);
    return {height, width, neighbours(image.height - 1, height, rows).after + 1,
        neighbours(image.width - 1, width, columns).after + 1};
}
// The pixel that stands at a place, behind the last pixel those before it as in a mirror.
__device__ inline int reflected(int place, int length) {
    int period = length > 1 ? 2 * (length - 1) : 1, rest = place % period;
    return rest < length ? rest : period - rest;
}
// How many values a level may have in a tile.
__device__ inline int limit_of(const Tiling& tiles, double limit, int levels) {
    double pixels = (double)(tiles.height * tiles.width), share = limit * pixels / (double)levels;
    return (int)(share < 1.0 ? 1.0 : share > pixels ? pixels : share);
}
// What a level becomes: `up_to` values are at most it where each level has no more than the limit.
__device__ inline float curve_at(const Tiling& tiles, int level, int up_to, int excess, int levels) {
    int rest = excess % levels, step = levels / (rest ? rest : 1), ones = level / step + 1;
    int sum = up_to + excess / levels * (level + 1) + (ones < rest ? ones : rest);
    float value = rintf((float)sum * ((float)(levels - 1) / (float)(tiles.height * tiles.width)));
    return value > (float)(levels - 1) ? (float)(levels - 1) : value;
}
template <class Curve>
__device__ inline float blended(const Image& image, const Curve* curves, int rows, int columns, int levels, int y,
    int x, int value)
{
    Tiling tiles = tiling(image, rows, columns);
    Neighbours down = neighbours(y, tiles.height, rows), across = neighbours(x, tiles.width, columns);
    float values[4];
    for (int corner = 0; corner < 4; ++corner) {
        int row = corner / 2 ? down.after : down.before, column = corner % 2 ? across.after : across.before;
        values[corner] = (float)curves[(Long)(row * tiles.columns + column) * levels + value];
    }
    float left = 1.0f - across.share, upper = 1.0f - down.share;
    float above = values[0] * left + values[1] * across.share, below = values[2] * left + values[3] * across.share;
    float result = rintf(above * upper + below * down.share);
    return result > (float)(levels - 1) ? (float)(levels - 1) : result;
}
"""
# See `kernels.lab`; the tables lie one after the other, as in `lab.join_tables`.
LAB = f"""
struct Lab {{ int lightness, a, b; }};

__device__ inline int byte_of(int number) {{ return number < 0 ? 0 : number > 255 ? 255 : number; }}
__device__ inline int product(int x, int y, int z, const int* row, int bits) {{
    return (x * row[0] + y * row[1] + z * row[2] + (1 << (bits - 1))) >> bits;
}}
__device__ inline Lab to_lab(const int* tables, const float* color) {{
    const int *linear = tables + {lab.PLACES["linear"]}, *roots = tables + {lab.PLACES["roots"]};
    const int* matrix = tables + {lab.PLACES["to_xyz"]};
    int light[3], root[3];
    for (int channel = 0; channel < 3; ++channel) light[channel] = linear[(int)color[channel]];
    for (int row = 0; row < 3; ++row)
        root[row] = roots[product(light[0], light[1], light[2], matrix + 3 * row, {lab.MATRIX_BITS})];
    return {{byte_of(({lab.SCALE} * root[1] + {lab.ONE_ROOT // 2 - lab.SHIFT}) >> 15),
        byte_of((500 * (root[0] - root[1]) + {128 * lab.ONE_ROOT + lab.ONE_ROOT // 2}) >> 15),
        byte_of((200 * (root[1] - root[2]) + {128 * lab.ONE_ROOT + lab.ONE_ROOT // 2}) >> 15)}};
}}
__device__ inline void from_lab(const int* tables, const Lab& lab, float* color) {{
    const int *lights = tables + {lab.PLACES["lights"] - lab.LEAST_ROOT}, *matrix = tables + {lab.PLACES["from_xyz"]};
    int y = tables[{lab.PLACES["y"]} + lab.lightness], root = tables[{lab.PLACES["root_of_y"]} + lab.lightness];
    int x = lights[root + ((5 * lab.a * 53687 + 128) >> 13) - {128 * lab.ONE_LIGHT // 500}];
    int z = lights[root - ((lab.b * 41943 + 16) >> 9) + {128 * lab.ONE_LIGHT // 200 - 1}];
    for (int channel = 0; channel < 3; ++channel) {{
        int place = product(x, y, z, matrix + 3 * channel, {lab.MATRIX_BITS + 2});
        color[channel] = (float)tables[{lab.PLACES["values"]} + clipped(place, {lab.ONE_RESULT})];
    }}
}}
"""

# `words` has the tiles down and across, whether the image is changed, a word without use, and the
# limit.
COUNT = f"""{FUNCTIONS}typedef int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    if (!words[2]) return;
    Tiling tiles = tiling(image, words[0], words[1]);
    int row = reflected(y, image.height), column = reflected(x, image.width);
    for (int channel = 0; channel < CHANNELS; ++channel) {{
        Long tile = (channel * tiles.rows + y / tiles.height) * tiles.columns + x / tiles.width;
        atomicAdd((int*)stats + tile * {LEVELS} + at(image, row, column, channel), 1);
    }}
}}
"""
# A block for each table. The new values of the levels replace the counts.
CURVES = f"""{cuda.HEAD}
struct Image {{ int height, width, rows, columns; double limit; }};
{FUNCTIONS}
enum {{ THREADS = {cuda.THREADS}, PART = {LEVELS // cuda.THREADS} }};

extern "C" __global__ void curves(const Image* images, int* counts, int tables)
{{
    __shared__ int sums[THREADS], excesses[THREADS];
    const Image& image = images[blockIdx.x / tables];
    Tiling tiles = tiling(image, image.rows, image.columns);
    int* levels = counts + (Long)blockIdx.x * {LEVELS} + threadIdx.x * PART;
    int limit = limit_of(tiles, image.limit, {LEVELS}), sum = 0, excess = 0;
    for (int i = 0; i < PART; ++i) {{
        int count = levels[i] < limit ? levels[i] : limit;
        sum += count, excess += levels[i] - count;
    }}
    sums[threadIdx.x] = sum, excesses[threadIdx.x] = excess;
    __syncthreads();
    sum = excess = 0;
    for (int thread = 0; thread < THREADS; ++thread) {{
        sum += thread < (int)threadIdx.x ? sums[thread] : 0;
        excess += excesses[thread];
    }}
    for (int i = 0; i < PART; ++i) {{
        sum += levels[i] < limit ? levels[i] : limit;
        levels[i] = (int)curve_at(tiles, threadIdx.x * PART + i, sum, excess, {LEVELS});
    }}
}}
"""
BLEND = f"""{FUNCTIONS}typedef int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    Tiling tiles = tiling(image, words[0], words[1]);
    for (int channel = 0; channel < CHANNELS; ++channel) {{
        int value = at(image, y, x, channel);
        const Stats* curves = stats + (Long)channel * tiles.rows * tiles.columns * {LEVELS};
        to[channel] = words[2] ? (Out)blended(image, curves, words[0], words[1], {LEVELS}, y, x, value) : value;
    }}
}}
"""
IMAGE = np.dtype(
    [("height", "i4"), ("width", "i4"), ("rows", "i4"), ("columns", "i4"), ("limit", "f8")]
)


def equalize(
    xp: ModuleType, x: Any, apply: NDArray[np.int32], limit: NDArray[np.float32], grid: tuple[int, int]
) -> Any:  # fmt: skip
    """Return images of 16 bits whose tiles have even histograms, each channel by itself, where
    ``apply`` is 1.

    Three launches, and three more where the tables of all images take more than ``MOST_BYTES``.

    Args:
        xp: CuPy.
        x: uint16 images for which `pixels.reads` is True.
        apply: int32 ``[N]``.
        limit: float32 ``[N]``, on the host: see `CLAHE`.
        grid: tiles down and across.
    """
    sizes = np.broadcast_to(walk.sizes(x), (len(x), 2))
    num_tiles = count_tiles(sizes, grid)
    num_tables = int(x[0].shape[2]) * int(num_tiles.prod(axis=1).max())
    num_images = max(MOST_BYTES // (num_tables * LEVELS * 4), 1)
    if len(x) > num_images:
        groups = [slice(begin, begin + num_images) for begin in range(0, len(x), num_images)]
        parts = [equalize(xp, x[rows], apply[rows], limit[rows], grid) for rows in groups]
        has_lists = any(isinstance(part, walk.VARYING) for part in (x, *parts))
        device.settle()
        if has_lists:
            return [image for part in parts for image in part]
        return xp.concatenate(parts)
    words = np.zeros((len(x), 4), np.int32)
    words[:, :2], words[:, 2] = grid, apply
    counts = device.zeros((len(x), num_tables * LEVELS), np.int32)
    tiles = tile_sizes(sizes, grid)
    Pixels(xp, x, words, size=num_tiles * tiles).change(COUNT, stats=counts, step=counts.shape[1])
    images = np.zeros(len(x), IMAGE)
    images["height"], images["width"] = sizes.T
    images["rows"], images["columns"], images["limit"] = *grid, limit
    device.kernel(CURVES, "curves")(
        (len(x) * num_tables,), (cuda.THREADS,),
        (device.parameters(images.view(np.uint8)), counts, np.int32(num_tables)),
    )  # fmt: skip
    return Pixels(xp, x, words).change(BLEND, stats=counts, step=counts.shape[1])


def tile_sizes(
    sizes: NDArray[np.integer[Any]], grid: NDArray[Any] | tuple[int, int]
) -> NDArray[np.int64]:
    """Return height and width of the tiles of each image, int64 ``[N, 2]``, pixels.

    Args:
        sizes: ``[N, 2]``, height and width of each image.
        grid: tiles down and across; of all, or of each image, ``[N, 2]``.
    """
    length, tiles = sizes.astype(np.int64), np.broadcast_to(np.asarray(grid, np.int64), sizes.shape)
    are_whole = (length % tiles == 0).all(axis=1, keepdims=True)
    return np.where(are_whole, length, length + tiles - length % tiles) // tiles


def count_tiles(
    sizes: NDArray[np.integer[Any]], grid: NDArray[Any] | tuple[int, int]
) -> NDArray[np.int64]:
    """Return how many tiles down and across are about pixels of each image, int64 ``[N, 2]``; see
    `tile_sizes`."""
    part = np.float32(1) / tile_sizes(sizes, grid).astype(np.float32)
    place = (sizes - 1).astype(np.float32) * part - np.float32(0.5)
    return np.minimum(np.floor(place).astype(np.int64) + 2, np.asarray(grid, np.int64))

"""CUDA: the source of the kernels that ops launch on a GPU; `device.kernel` compiles it.

Bits     A kernel makes the numbers of the array form, bit for bit: float32 products and sums in the same order, none of
         them fused (``--fmad=false``).
Bounds   Kernels check nothing. Whoever launches one has checked sizes and draws; pixels outside of an image are never
         read, whatever a draw says.
Threads  Each thread makes one number of a result. The blocks of one image follow those of the one before in x, so that
         the number of images is not limited; within an image 32 bits count.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

THREADS = 256  # of a block
TYPES = {"uint8": "unsigned char", "float32": "float", "float16": "__half"}
RAW_TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}  # by bytes

HEAD = """
#include <cuda_fp16.h>
typedef long long Long;

__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(__half* to, float value) { *to = __float2half_rn(value); }
__device__ inline void store(unsigned char* to, float value) {
    float whole = rintf(value);
    *to = (unsigned char)(whole < 0.0f ? 0.0f : whole > 255.0f ? 255.0f : whole);
}
__device__ inline int clipped(int place, int length) { return place < 0 ? 0 : place < length ? place : length - 1; }
"""

# The window of image i begins at places[4 i] (top, left) and is mirrored where places[4 i + 2] is 1 (vertically,
# horizontally). For images of different sizes `images` has six numbers of each: its address, the elements from row to
# row, from column to column and from channel to channel, its height and its width. Else `images` is null.
WALK = """
extern "C" __global__ void walk(const In* first, Long next, Long down, Long across, Long deep, int height, int width,
    int channels, const Long* images, const int* places, float fill, const float* means, const float* scales,
    Out* out, int window_height, int window_width, int planes, int blocks)
{
    unsigned size = (unsigned)window_height * window_width * channels;
    unsigned number = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (number >= size) return;
    Long image = blockIdx.x / blocks;
    int channel, x, y;
    if (planes) {
        x = number % window_width;
        y = number / window_width % window_height;
        channel = number / window_width / window_height;
    } else {
        channel = number % channels;
        x = number / channels % window_width;
        y = number / channels / window_width;
    }
    const In* begin = first + image * next;
    if (images) {
        const Long* numbers = images + 6 * image;
        begin = (const In*)numbers[0];
        down = numbers[1], across = numbers[2], deep = numbers[3], height = (int)numbers[4], width = (int)numbers[5];
    }
    const int* place = places + 4 * image;
    int row = place[0] + (place[2] == 1 ? window_height - 1 - y : y);
    int column = place[1] + (place[3] == 1 ? window_width - 1 - x : x);
    bool inside = row >= 0 && row < height && column >= 0 && column < width;
    float value = inside ? (float)begin[row * down + column * across + channel * deep] : fill;
    store(out + image * size + number, means ? (value - means[channel]) * scales[channel] : value);
}
"""

# The structs are the dtypes `resampling.IMAGE` and `resampling.AXIS`.
RESIZE = """
struct Image { Long address, down, across, deep, out; int channels, vertical, horizontal, vertical_first; };
struct Axis { Long first, weights; int inside, outside, support, vertical; float step, base, scale; int unused; };

// One thread for each output pixel of each axis: its first source pixel, and its weights.
extern "C" __global__ void taps(const Axis* axes, int* first, float* weights, const float* table, int entries,
    int blocks)
{
    Axis axis = axes[blockIdx.x / blocks];
    int place = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (place >= axis.outside) return;
    if (!table) {
        float position = ((float)place + 0.5f) * axis.step;
        if (axis.vertical) {
            position = 0.5f * axis.step;
            for (int i = 0; i < place; ++i) position = position + axis.step;
        }
        first[axis.first + place] = clipped((int)floorf(position), axis.inside);
        return;
    }
    float position = (float)place * axis.step + axis.base, total = 0.0f;
    int begin = (int)ceilf(position);
    float distance = (float)begin - position;
    float* row = weights + axis.weights + (Long)place * axis.support;
    for (int k = 0; k < axis.support; ++k) {
        float at = (distance + (float)k) * axis.scale;
        int below = (int)floorf(at);
        const float* entry = table + clipped(below + 1, entries + 2);
        float weight = entry[0] + (at - (float)below) * (entry[1] - entry[0]);
        row[k] = at > -1.0f && at < (float)entries ? weight : 0.0f;
        total = total + row[k];
    }
    for (int k = 0; k < axis.support; ++k) row[k] = row[k] / (total == 0.0f ? 1.0f : total);
    first[axis.first + place] = begin;
}

// One thread for each number of a result. The sums along one axis are rounded to float32, and then summed along the
// other: each is made anew for every number that needs it, which are some two where the image becomes smaller.
extern "C" __global__ void resize(const Image* images, const Axis* axes, const int* first, const float* weights,
    Pixel* out, int blocks)
{
    Image image = images[blockIdx.x / blocks];
    Axis down = axes[image.vertical], across = axes[image.horizontal];
    unsigned number = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (number >= (unsigned)down.outside * across.outside * image.channels) return;
    int channel = number % image.channels, x = number / image.channels % across.outside;
    int y = number / image.channels / across.outside;
    const Pixel* pixels = (const Pixel*)image.address + channel * image.deep;
    int top = first[down.first + y], left = first[across.first + x];
    Pixel* to = out + image.out + number;
#ifdef NEAREST
    *to = pixels[top * image.down + left * image.across];
#else
    const float* rows = weights + down.weights + (Long)y * down.support;
    const float* columns = weights + across.weights + (Long)x * across.support;
    float total = 0.0f;
    if (image.vertical_first) {
        for (int j = 0; j < across.support; ++j) {
            const Pixel* column = pixels + clipped(left + j, across.inside) * image.across;
            float sum = rows[0] * (float)column[clipped(top, down.inside) * image.down];
            for (int i = 1; i < down.support; ++i)
                sum = sum + rows[i] * (float)column[clipped(top + i, down.inside) * image.down];
            total = j ? total + columns[j] * sum : columns[j] * sum;
        }
    } else {
        for (int i = 0; i < down.support; ++i) {
            const Pixel* row = pixels + clipped(top + i, down.inside) * image.down;
            float sum = columns[0] * (float)row[clipped(left, across.inside) * image.across];
            for (int j = 1; j < across.support; ++j)
                sum = sum + columns[j] * (float)row[clipped(left + j, across.inside) * image.across];
            total = i ? total + rows[i] * sum : rows[i] * sum;
        }
    }
    store(to, total);
#endif
}
"""


@cache
def walk(before: str, after: str) -> str:
    """Return the source of the walk from images of one dtype to another, by NumPy's names."""
    return f"{HEAD}typedef {TYPES[before]} In;\ntypedef {TYPES[after]} Out;\n{WALK}"


@cache
def resize(dtype: np.dtype[Any], *, nearest: bool) -> str:
    """Return the source of ``taps`` and ``resize`` for images of a dtype."""
    pixel = RAW_TYPES[dtype.itemsize] if nearest else TYPES[dtype.name]
    return f"{HEAD}{'#define NEAREST' if nearest else ''}\ntypedef {pixel} Pixel;\n{RESIZE}"

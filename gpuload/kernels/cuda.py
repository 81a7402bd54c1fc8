"""CUDA: the source of the kernels that ops launch on a GPU; `device.kernel` compiles it.

Bits     A kernel makes the numbers of the array form, bit for bit: float32 products and sums in the
         same order, none of them fused (``--fmad=false``).
Bounds   Kernels check nothing. Their callers have checked sizes and draws; pixels outside of an
         image are never read, by no draw.
Threads  Each thread makes one number of a result, of walks 16 bytes. The blocks of one image follow
         those of the one before in x, of which a card takes 2147483647; within an image 32 bits
         count. ``blocks`` refuses what is beyond.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gpuload.errors import SpecError

THREADS = 256  # of a block
MOST_NUMBERS, MOST_BLOCKS = (1 << 32) - 1, (1 << 31) - 1  # of an image, of a launch
PARTS = 8  # of an image, see GATHER
STRIP_BYTES = 16  # of the result, of each thread of WALK
MOST_CONSTANT = 4  # channels that a kernel is compiled for
TYPES = {
    "bool": "unsigned char", "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
    "uint64": "unsigned long long", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "float16": "__half", "float32": "float", "float64": "double",
}  # fmt: skip
RAW_TYPES = {
    1: "unsigned char",
    2: "unsigned short",
    4: "unsigned int",
    8: "unsigned long long",
}  # by bytes

HEAD = """
#include <cuda_fp16.h>
typedef long long Long;

__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(__half* to, float value) { *to = __float2half_rn(value); }
__device__ inline void store(unsigned char* to, float value) {
    float whole = rintf(value);
    *to = (unsigned char)(whole < 0.0f ? 0.0f : whole > 255.0f ? 255.0f : whole);
}
__device__ inline void store(unsigned short* to, float value) {
    float whole = rintf(value);
    *to = (unsigned short)(whole < 0.0f ? 0.0f : whole > 65535.0f ? 65535.0f : whole);
}
__device__ inline int clipped(int place, int length) { return place < 0 ? 0 : place < length ? place : length - 1; }
"""

# A division of numbers below 2**31 by multiplication: a factor, and by how many bits the product is
# shifted; `divisor` makes both. Larger numbers are divided.
DIVISION = """
__device__ inline unsigned quotient(unsigned number, unsigned length, unsigned factor, int shift) {
    return number >> 31 ? number / length : (unsigned)((unsigned long long)number * factor >> shift);
}
"""

# The window of image i begins at places[4 i] (top, left) and is mirrored where places[4 i + 2] is 1
# (vertically, horizontally). For images of different sizes `images` has six numbers of each: its
# address, the elements from row to row, from column to column and from channel to channel, its
# height and its width; for images of one size that lie anywhere, its address.
#  A thread makes the numbers of 16 bytes of the result, and stores them at once; those at the ends
# of an image, which may begin anywhere, one by one. Numbers of one row that lie inside the image
# are read where a pointer goes along, at once if they lie side by side. Others are found one by
# one.
#
#   CHANNELS      of all images, 0 if it is known by `channels` alone
#   WORDS         the numbers of each image in `images`: 6 or 1; 0: there are none
#   Place         a whole number that holds the elements from one number of an image to any other
#   PLANES        1: the result has planes of its channels
#   NORMALIZES    1: `means` and `scales` are of each channel
WALK = """
enum { STRIP = 16 / sizeof(Out), STRIP_BYTES = STRIP * sizeof(In) };
union Strip { unsigned words[4]; Out numbers[STRIP]; __device__ Strip() {} };

template <class A, class B> struct Same { enum { value = 0 }; };
template <class A> struct Same<A, A> { enum { value = 1 }; };

__device__ inline void make(Out* to, In from, int channel, const float* means, const float* scales) {
    if (NORMALIZES) store(to, ((float)from - means[channel]) * scales[channel]);
    else if (Same<In, Out>::value) *to = (Out)from;
    else store(to, (float)from);
}
__device__ inline void write_strip(Out* to, const Strip& strip) {
    const unsigned* words = strip.words;
#ifdef __CUDA_ARCH__  // the compiler makes four stores of one of a struct (NVRTC 13.0)
    asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};"
        : : "l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
#else
    *(uint4*)to = {words[0], words[1], words[2], words[3]};
#endif
}
__device__ inline void read_strip(const In* from, In* to) {
    size_t place = (size_t)from;
    if (STRIP_BYTES % 16 == 0 && place % 16 == 0) {
        #pragma unroll
        for (int k = 0; k < (STRIP_BYTES + 15) / 16; ++k) ((uint4*)to)[k] = ((const uint4*)from)[k];
    } else if (sizeof(In) < 4 && place % 4 == 0) {
        #pragma unroll
        for (int k = 0; k < (STRIP_BYTES + 3) / 4; ++k) ((unsigned*)to)[k] = ((const unsigned*)from)[k];
    } else {
        #pragma unroll
        for (int k = 0; k < STRIP; ++k) to[k] = from[k];
    }
}

extern "C" __global__ void walk(const In* first, Long next, Place down, Place across, Place deep, int height, int width,
    int all_channels, const Long* images, const int* places, float fill, const float* means, const float* scales,
    Out* out, int window_height, int window_width, unsigned inner_factor, int inner_shift,
    unsigned outer_factor, int outer_shift, unsigned blocks_factor, int blocks_shift, int blocks)
{
    unsigned image = (unsigned)((unsigned long long)blockIdx.x * blocks_factor >> blocks_shift);
    int channels = CHANNELS ? CHANNELS : all_channels;
    unsigned size = (unsigned)window_height * window_width * channels;
    Out* to = out + (Long)image * size;
    unsigned before = (unsigned)((size_t)to / sizeof(Out)) % STRIP;
    Long begin = (Long)((blockIdx.x - image * blocks) * blockDim.x + threadIdx.x) * STRIP - before;
    if (begin >= size) return;
    unsigned inner = PLANES ? window_width : channels, outer = PLANES ? window_height : window_width;
    unsigned number = begin < 0 ? 0 : (unsigned)begin, line = quotient(number, inner, inner_factor, inner_shift);
    unsigned most = quotient(line, outer, outer_factor, outer_shift), middle = line - most * outer;
    unsigned least = number - line * inner;

    const In* pixels = first + image * next;
    const Long* numbers = images + WORDS * (Long)image;
    if (WORDS) pixels = (const In*)numbers[0];
    if (WORDS > 1) {
        down = (Place)numbers[1], across = (Place)numbers[2], deep = (Place)numbers[3];
        height = (int)numbers[4], width = (int)numbers[5];
    }
    const int* place = places + 4 * (Long)image;
    bool is_upside_down = place[2] == 1;
    int top = place[0], left = place[1], step = 1;
    if (is_upside_down) top += window_height - 1;
    if (place[3] == 1) left += window_width - 1, step = -1;
    int last = PLANES ? (int)least + STRIP - 1 : (int)(middle + (least + STRIP - 1) / (unsigned)channels);
    int x = PLANES ? least : middle, y = PLANES ? middle : most, row = top + (is_upside_down ? -y : y);
    bool is_whole = begin >= 0 && begin + STRIP <= size;
    int one_end = left + step * x, other_end = left + step * last;
    bool is_inside = last < window_width && row >= 0 && row < height && one_end >= 0 && one_end < width
        && other_end >= 0 && other_end < width;

    Strip strip;
    if (is_whole && is_inside) {
        int channel = PLANES ? most : least;
        const In* from = pixels + (row * down + one_end * across + channel * deep);
        Place pixel_step = step * across;
        if (PLANES ? pixel_step == 1 : deep == 1 && pixel_step == channels) {
            alignas(16) In numbers[STRIP];
            read_strip(from, numbers);
            #pragma unroll
            for (int k = 0; k < STRIP; ++k) {
                make(strip.numbers + k, numbers[k], channel, means, scales);
                if (!PLANES) channel = channel + 1 == channels ? 0 : channel + 1;
            }
        } else {
            Place jump = pixel_step - (channels - 1) * deep;  // from the last channel to the next pixel's first
            #pragma unroll
            for (int k = 0; k < STRIP; ++k) {
                make(strip.numbers + k, *from, channel, means, scales);
                bool is_last = PLANES || channel + 1 == channels;
                from += PLANES ? pixel_step : is_last ? jump : deep;
                if (!PLANES) channel = is_last ? 0 : channel + 1;
            }
        }
        write_strip(to + begin, strip);
        return;
    }
    #pragma unroll
    for (int k = 0; k < STRIP; ++k) {
        if (begin + k < 0 || begin + k >= size) continue;
        int channel = PLANES ? most : least, column = left + step * (int)(PLANES ? least : middle);
        y = PLANES ? middle : most, row = top + (is_upside_down ? -y : y);
        float value = fill;
        if (row >= 0 && row < height && column >= 0 && column < width)
            value = (float)pixels[row * down + column * across + channel * deep];
        if (NORMALIZES) value = (value - means[channel]) * scales[channel];
        store(strip.numbers + k, value);
        if (!is_whole) to[begin + k] = strip.numbers[k];
        if (++least == inner) {
            least = 0;
            if (++middle == outer) middle = 0, ++most;
        }
    }
    if (is_whole) write_strip(to + begin, strip);
}
"""

# One thread for each word of each row: from `origins` to `targets`, or, where that is null, row
# after row to `out`.
ROWS = """
extern "C" __global__ void rows(const Long* origins, const Long* targets, Word* out, Long num_words, int blocks)
{
    Long row = blockIdx.x / blocks, place = (Long)(blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (place >= num_words) return;
    Word* to = targets ? (Word*)targets[row] : out + row * num_words;
    to[place] = ((const Word*)origins[row])[place];
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

// The pixels along an axis from which one of the result is made: their weights, the elements from one to the next, the
// first, how many, and how many the image has.
struct Line { const float* weights; Long step; int first, count, length; };

// Sums of sums; `CLIPS`: pixels beyond the image are those of its edge.
template <bool CLIPS>
__device__ inline float filtered(const Pixel* pixels, const Line& outer, const Line& inner) {
    float total = 0.0f;
    for (int j = 0; j < outer.count; ++j) {
        int place = CLIPS ? clipped(outer.first + j, outer.length) : outer.first + j;
        const Pixel* line = pixels + place * outer.step;
        const Pixel* at = line + (CLIPS ? clipped(inner.first, inner.length) : inner.first) * inner.step;
        float sum = inner.weights[0] * (float)*at;
        for (int i = 1; i < inner.count; ++i) {
            at = CLIPS ? line + clipped(inner.first + i, inner.length) * inner.step : at + inner.step;
            sum = sum + inner.weights[i] * (float)*at;
        }
        total = j ? total + outer.weights[j] * sum : outer.weights[j] * sum;
    }
    return total;
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
    Line rows = {weights + down.weights + (Long)y * down.support, image.down, top, down.support, down.inside};
    Line columns = {weights + across.weights + (Long)x * across.support, image.across, left, across.support,
        across.inside};
    bool clips = top < 0 || top + down.support > down.inside || left < 0 || left + across.support > across.inside;
    Line outer = rows, inner = columns;
    if (image.vertical_first) outer = columns, inner = rows;
    float total = clips ? filtered<true>(pixels, outer, inner) : filtered<false>(pixels, outer, inner);
    store(to, total);
#endif
}
"""

# The value of an image at a place between pixels, see `ops.geometry.warp`; `pixels` are those of
# one channel.
SAMPLE = """
__device__ inline float add_product(float a, float b, float sum) {
    return (float)((double)a * (double)b + (double)sum);
}

template <class Place, class Number>
__device__ inline Number nearest(const Place& image, const Number* pixels, float column, float row, Number fill) {
    column = rintf(column), row = rintf(row);
    bool inside = column >= 0.0f && column < (float)image.width && row >= 0.0f && row < (float)image.height;
    return inside ? pixels[(int)row * image.down + (int)column * image.across] : fill;
}

template <class Place, class Number>
__device__ inline float linear(const Place& image, const Number* pixels, float column, float row, float fill) {
    float total = 0.0f, weight = 0.0f;
    bool near = column > -1.0f && column < (float)image.width && row > -1.0f && row < (float)image.height;
    if (near) {
        float left = floorf(column), top = floorf(row), right_part = column - left, lower_part = row - top;
        for (int corner = 0; corner < 4; ++corner) {
            int i = (int)left + corner % 2, j = (int)top + corner / 2;
            float part = (corner % 2 ? right_part : 1.0f - right_part) * (corner / 2 ? lower_part : 1.0f - lower_part);
            bool inside = i >= 0 && i < image.width && j >= 0 && j < image.height;
            float value = inside ? (float)pixels[j * image.down + i * image.across] : 0.0f;
            total = corner ? add_product(value, part, total) : value * part;
            weight = weight + (inside ? part : 0.0f);
        }
    }
    return (total - fill) * weight + fill;
}
"""

# The struct is the dtype `warp.IMAGE`. Its arithmetic is told in `ops.geometry.warp`.
WARP = """
struct Image {
    Long address, down, across, deep, out;
    int height, width, new_height, new_width, channels, is_same;
    float matrix[8];
};

extern "C" __global__ void warp(const Image* images, const Fill* fills, Pixel* out, int is_affine, int blocks)
{
    const Image& image = images[blockIdx.x / blocks];
    unsigned number = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (number >= (unsigned)image.new_height * image.new_width * image.channels) return;
    int channel = number % image.channels, x = number / image.channels % image.new_width;
    int y = number / image.channels / image.new_width;
    const Pixel* pixels = (const Pixel*)image.address + channel * image.deep;
    Pixel* to = out + image.out + number;
    if (image.is_same) {
        *to = pixels[y * image.down + x * image.across];
        return;
    }
    float half[] = {(float)image.width * 0.5f, (float)image.height * 0.5f}, places[2];
    float across = (float)x + (is_affine ? (float)((1 - image.new_width) * 0.5) : 0.5f);
    float down = (float)y + (is_affine ? (float)((1 - image.new_height) * 0.5) : 0.5f);
    float divisor = is_affine ? 1.0f : add_product(down, image.matrix[7], across * image.matrix[6]) + 1.0f;
    for (int axis = 0; axis < 2; ++axis) {
        const float* line = image.matrix + 3 * axis;
        float place = add_product(down, line[1] / half[axis], across * (line[0] / half[axis])) + line[2] / half[axis];
        if (!is_affine) place = place / divisor - 1.0f;
        places[axis] = (float)((double)(place + 1.0f) * (double)half[axis] - 0.5);
    }
#ifdef NEAREST
    *to = nearest(image, pixels, places[0], places[1], fills[channel]);
#else
    store(to, linear(image, pixels, places[0], places[1], fills[channel]));
#endif
}
"""

# One thread for each block of four words of each record: Philox 4x64-10, see `rng.philox`.
WORDS = """
typedef unsigned long long Word;
extern "C" __global__ void words(const Word* keys, Word* out, int num_blocks, int blocks)
{
    int place = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (place >= num_blocks) return;
    long long record = blockIdx.x / blocks;
    Word c0 = place + 1, c1 = 0, c2 = 0, c3 = 0, k0 = keys[2 * record], k1 = keys[2 * record + 1];
    const Word m0 = 0xD2E7470EE14C6C93ULL, m1 = 0xCA5A826395121157ULL;
    for (int round = 0; round < 10; ++round) {
        Word high0 = __umul64hi(c0, m0), low0 = c0 * m0, high1 = __umul64hi(c2, m1), low1 = c2 * m1;
        c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9E3779B97F4A7C15ULL, k1 += 0xBB67AE8584CAA73BULL;
    }
    Word* to = out + (record * num_blocks + place) * 4;
    to[0] = c0, to[1] = c1, to[2] = c2, to[3] = c3;
}
"""


# Kernels over images of any sizes: `kernels.pixels` launches them. `pixel` is the text of an op.
#   In, Out               a number of an image, and of a result CHANNELS, OUT_CHANNELS
#   Stats                 the struct behind `stats`: of `gather`, or of another kernel; `step` from
#   image to image words, table          numbers of each image, in words of four bytes; numbers for
#   all images
PIXEL = """
struct Image { Long address, down, across, deep, out; int height, width, new_height, new_width; };

__device__ inline In at(const Image& image, int y, int x, int channel) {
    return ((const In*)image.address)[y * image.down + x * image.across + channel * image.deep];
}
__device__ inline float number(int word) { return __int_as_float(word); }
"""

# One thread for each pixel of a result, with all of its channels. The result is new memory: what
# describes an image is read once, and not again behind each number that is stored. `blocks` is
# divided by as in `quotient`.
CHANGE = """
extern "C" __global__ void change(const Image* __restrict__ images, const int* __restrict__ words, int num_words,
    const Stats* stats, Long step, const float* table, Out* __restrict__ out, unsigned blocks_factor, int blocks_shift,
    int blocks)
{
    Long row = (unsigned)((unsigned long long)blockIdx.x * blocks_factor >> blocks_shift);
    const Image& image = images[row];
    unsigned place = (blockIdx.x - (unsigned)row * blocks) * blockDim.x + threadIdx.x;
    if (place >= (unsigned)image.new_height * image.new_width) return;
    pixel(image, place / image.new_width, place % image.new_width, words + row * num_words, stats + row * step, table,
        out + (image.out + place) * OUT_CHANNELS);
}
"""

# A block sums up each of PARTS parts of an image. They depend on the size of the image alone: float
# sums are the same in any batch. `whole` adds the parts.
GATHER = """
extern "C" __global__ void gather(const Image* images, const int* words, int num_words, const Stats* before, Stats* out)
{
    __shared__ Stats sums[THREADS];
    Long row = blockIdx.x / PARTS;
    const Image& image = images[row];
    Stats sum = start(image, before + row * PARTS);
    unsigned begin = (blockIdx.x % PARTS) * THREADS + threadIdx.x, size = (unsigned)image.height * image.width;
    for (unsigned place = begin; place < size; place += PARTS * THREADS)
        add(sum, image, place / image.width, place % image.width, words + row * num_words);
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half; half /= 2) {
        if (threadIdx.x < half) merge(sums[threadIdx.x], sums[threadIdx.x + half]);
        __syncthreads();
    }
    if (!threadIdx.x) out[blockIdx.x] = sums[0];
}
"""
WHOLE = """
__device__ inline Stats whole(const Stats* stats) {
    Stats sum = stats[0];
    for (int part = 1; part < PARTS; ++part) merge(sum, stats[part]);
    return sum;
}
"""

# One thread for each pixel: it marks its image where `is_wrong` a number of it.
MARK = """
extern "C" __global__ void mark(const Image* images, const int* words, int num_words, bool* marks, int blocks)
{
    Long row = blockIdx.x / blocks;
    const Image& image = images[row];
    unsigned place = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (place >= (unsigned)image.height * image.width) return;
    for (int channel = 0; channel < CHANNELS; ++channel)
        if (is_wrong(at(image, place / image.width, place % image.width, channel), words + row * num_words))
            marks[row] = true;
}
"""

# One thread for each row of a batch: whether one is wrong.
FLAG = """
extern "C" __global__ void set_flag(const bool* wrong, bool* flag, int rows)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows && wrong[row]) *flag = true;
}
"""

# The struct is the dtype `mosaic.PIECE`: four pieces of each image of the result.
MOSAIC = """
struct Piece { Long address, down, across, deep; int top, left, bottom, right; };

extern "C" __global__ void mosaic(const Piece* pieces, const Pixel* fills, Pixel* out, int height, int width,
    int channels, int blocks)
{
    unsigned number = (blockIdx.x % blocks) * blockDim.x + threadIdx.x, size = (unsigned)height * width * channels;
    if (number >= size) return;
    Long image = blockIdx.x / blocks;
    int channel = number % channels, x = number / channels % width, y = number / channels / width;
    Pixel value = fills[channel];
    for (int k = 0; k < 4; ++k) {
        const Piece& piece = pieces[4 * image + k];
        if (y >= piece.top && y < piece.bottom && x >= piece.left && x < piece.right)
            value = ((const Pixel*)piece.address)[y * piece.down + x * piece.across + channel * piece.deep];
    }
    out[image * size + number] = value;
}
"""


def blocks(size: int, count: int) -> int:
    """Return how many blocks the threads of one image are.

    Args:
        size: the threads of the largest image.
        count: images, each of which gets as many blocks.

    Raises:
        SpecError: a kernel, or a card, cannot count as many.
    """
    result = -(-size // THREADS)
    if size > MOST_NUMBERS:
        raise SpecError(
            f"an image of {size} numbers on a GPU",
            cause=f"kernels count at most {MOST_NUMBERS} numbers of an image",
            remedy='write device="cpu"',
        )
    if result * count > MOST_BLOCKS:
        raise SpecError(
            f"{count} images of up to {size} numbers on a GPU",
            cause=f"as many blocks of {THREADS} threads an image are more than the {MOST_BLOCKS} of a launch",
            remedy=f"take a batch_size of at most {MOST_BLOCKS // result}",
        )
    return result


@cache
def walk(
    before: str,
    after: str,
    channels: int,
    *,
    planes: bool,
    normalizes: bool,
    words: int,
    wide: bool,
) -> str:
    """Return the source of the walk from images of one dtype to another, by NumPy's names.

    Args:
        before: the dtype of the images.
        after: of the result.
        channels: of the images.
        planes: True if the result has planes of its channels.
        normalizes: True if there are means and scales.
        words: the numbers of each image in `images`: 6, 1 or 0, see `WALK`.
        wide: True if numbers of an image may lie 2**31 elements apart.
    """
    constants = {
        "CHANNELS": channels if channels <= MOST_CONSTANT else 0,
        "PLANES": planes, "NORMALIZES": normalizes, "WORDS": words,
    }  # fmt: skip
    names = {"In": TYPES[before], "Out": TYPES[after], "Place": "Long" if wide else "int"}
    types = "".join(f"typedef {kind} {name};\n" for name, kind in names.items())
    types += f"enum {{ {', '.join(f'{name} = {int(number)}' for name, number in constants.items())} }};\n"
    return f"{HEAD}{types}{DIVISION}{WALK}"


def divisor(length: int) -> tuple[np.uint32, np.int32]:
    """Return the factor and the shift by which a kernel divides numbers below 2**31 by a length,
    see DIVISION.

    The factor has 32 bits: ``2**shift / length``, rounded up. Of numbers of 31 bits the product,
    divided by ``2**shift``, is too large by less than 1 / ``length``, so that the quotient is exact
    (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994).
    """
    if length == 1:
        return np.uint32(1), np.int32(0)
    shift = 31 + (length - 1).bit_length()
    return np.uint32((1 << shift) // length + 1), np.int32(shift)


def num_strips(out: Any) -> int:
    """Return how many threads `WALK` has for each image of a result, an array ``[N, ...]`` on a
    GPU."""
    num_bytes = int(out.nbytes) // len(out)
    are_aligned = num_bytes % STRIP_BYTES == 0 and out.data.ptr % STRIP_BYTES == 0
    num_ends = 0 if are_aligned else 2  # one begins before the image, and one ends behind it
    return num_bytes // STRIP_BYTES + num_ends


@cache
def rows(word_bytes: int) -> str:
    """Return the source of ``rows`` for words of so many bytes: 1, 2, 4 or 8."""
    return f"{HEAD}typedef {RAW_TYPES[word_bytes]} Word;\n{ROWS}"


@cache
def resize(dtype: np.dtype[Any], *, nearest: bool) -> str:
    """Return the source of ``taps`` and ``resize`` for images of a dtype."""
    if nearest:
        pixel = RAW_TYPES[dtype.itemsize]
    else:
        pixel = TYPES[dtype.name]
    return f"{HEAD}{'#define NEAREST' if nearest else ''}\ntypedef {pixel} Pixel;\n{RESIZE}"


@cache
def warp(dtype: np.dtype[Any], *, nearest: bool) -> str:
    """Return the source of ``warp`` for images of a dtype."""
    if nearest:
        pixel = RAW_TYPES[dtype.itemsize]
    else:
        pixel = TYPES[dtype.name]
    fill = pixel if nearest else "float"
    return f"{HEAD}{'#define NEAREST' if nearest else ''}\ntypedef {pixel} Pixel;\ntypedef {fill} Fill;\n{SAMPLE}{WARP}"


@cache
def mosaic(dtype: np.dtype[Any]) -> str:
    """Return the source of ``mosaic`` for images of a dtype."""
    return f"{HEAD}typedef {RAW_TYPES[dtype.itemsize]} Pixel;\n{MOSAIC}"


@cache
def change(before: str, after: str, channels: tuple[int, int], pixel: str) -> str:
    """Return the source of ``change``, where ``pixel`` is the text that makes a pixel.

    Args:
        before: the C type of a number of an image.
        after: of a result.
        channels: of an image and of a result.
        pixel: defines ``Stats``, and ``pixel(image, y, x, words, stats, table, to)``.
    """
    return f"{_pixel_head(before, after, channels)}{pixel}{CHANGE}"


@cache
def pixels(before: str, after: str, channels: int, text: str) -> str:
    """Return the source of kernels over images of any sizes that a text has; the types as of
    ``change``."""
    return f"{_pixel_head(before, after, (channels, channels))}{text}"


@cache
def gather(before: str, channels: int, sums: str) -> str:
    """Return the source of ``gather``, where ``sums`` is the text that sums up an image.

    Args:
        before: the C type of a number of an image.
        channels: of an image.
        sums: defines ``Stats``, ``start(image, before)``, ``add(sum, image, y, x, words)`` and
            ``merge(sum, part)``.
    """
    return f"{_pixel_head(before, before, (channels, channels))}{sums}{GATHER}"


@cache
def mark(before: str, channels: int, test: str) -> str:
    """Return the source of ``mark``, where ``test`` defines ``is_wrong(value, words)``.

    Args:
        before: the C type of a number of an image.
        channels: of an image.
        test: the text.
    """
    return f"{_pixel_head(before, before, (channels, channels))}{test}{MARK}"


def _pixel_head(before: str, after: str, channels: tuple[int, int]) -> str:
    counts = f"CHANNELS = {channels[0]}, OUT_CHANNELS = {channels[1]}, THREADS = {THREADS}, PARTS = {PARTS}"
    return f"{HEAD}typedef {before} In;\ntypedef {after} Out;\nenum {{ {counts} }};\n{PIXEL}"


# A place outside of a row or column, mirrored at its first and last element.
MIRROR = """
__device__ inline int mirrored(int place, int length) {
    place = place < 0 ? -place : place;
    return place < length ? place : 2 * (length - 1) - place;
}
"""

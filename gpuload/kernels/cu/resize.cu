// Resize: the taps of each axis, and one thread for each number of a result; see
// `kernels.resampling`, of which the structs are the dtypes `IMAGE` and `AXIS`. `Pixel` is a number
// of an image, with NEAREST one of any meaning.
#include "head.cuh"
#include "../../core/cpp/shared/places.hpp"

struct Image {
    Long address, down, across, deep, out;
    int channels, vertical, horizontal, vertical_first;
};
struct Axis {
    Long first, weights;
    int inside, outside, support, vertical;
    float step, base, scale;
    int unused;
};

// One thread for each output pixel of each axis: its first source pixel, and its weights.
extern "C" __global__ void taps(const Axis* axes, int* first, float* weights, const float* table,
    int entries, int blocks)
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
        const float* entry = table + clipped((int)floorf(at) + 1, entries + 2);
        row[k] = tap_weight(at, entry[0], entry[1], (float)entries);
        total = total + row[k];
    }
    for (int k = 0; k < axis.support; ++k) row[k] = row[k] / (total == 0.0f ? 1.0f : total);
    first[axis.first + place] = begin;
}

// The pixels along an axis from which one of the result is made: their weights, the elements from
// one to the next, the first, how many, and how many the image has.
struct Line { const float* weights; Long step; int first, count, length; };

// Sums of sums; `CLIPS`: pixels beyond the image are those of its edge.
template <bool CLIPS>
__device__ inline float filtered(const Pixel* pixels, const Line& outer, const Line& inner) {
    float total = 0.0f;
    for (int j = 0; j < outer.count; ++j) {
        int place = CLIPS ? clipped(outer.first + j, outer.length) : outer.first + j;
        const Pixel* line = pixels + place * outer.step;
        int begin = CLIPS ? clipped(inner.first, inner.length) : inner.first;
        const Pixel* at = line + begin * inner.step;
        float sum = inner.weights[0] * (float)*at;
        for (int i = 1; i < inner.count; ++i) {
            at = CLIPS ? line + clipped(inner.first + i, inner.length) * inner.step
                : at + inner.step;
            sum = sum + inner.weights[i] * (float)*at;
        }
        total = j ? total + outer.weights[j] * sum : outer.weights[j] * sum;
    }
    return total;
}

// One thread for each number of a result. The sums along one axis are rounded to float32, and then
// summed along the other: each is made anew for every number that needs it, which are some two
// where the image becomes smaller.
extern "C" __global__ void resize(const Image* images, const Axis* axes, const int* first,
    const float* weights, Pixel* out, int blocks)
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
    const float* row_weights = weights + down.weights + (Long)y * down.support;
    const float* column_weights = weights + across.weights + (Long)x * across.support;
    Line rows = {row_weights, image.down, top, down.support, down.inside};
    Line columns = {column_weights, image.across, left, across.support, across.inside};
    bool clips = top < 0 || top + down.support > down.inside || left < 0
        || left + across.support > across.inside;
    Line outer = rows, inner = columns;
    if (image.vertical_first) outer = columns, inner = rows;
    store(to, clips ? filtered<true>(pixels, outer, inner) : filtered<false>(pixels, outer, inner));
#endif
}

// Walk: windows of images, mirrored, normalised, with their channels side by side or in planes.
//
// The window of image i begins at places[4 i] (top, left) and is mirrored where places[4 i + 2] is
// 1 (vertically, horizontally). For images of different sizes `images` has six numbers of each: its
// address, the elements from row to row, from column to column and from channel to channel, its
// height and its width; for images of one size that lie anywhere, its address.
//
// A thread makes the numbers of 16 bytes of the result, and stores them at once; those at the ends
// of an image, which may begin anywhere, one by one. Numbers of one row that lie inside the image
// are read where a pointer goes along, at once if they lie side by side. Others are found one by
// one.
//
//   In, Out     a number of an image, and of the result
//   CHANNELS    of all images, 0 if it is known by `channels` alone
//   WORDS       the numbers of each image in `images`: 6 or 1; 0: there are none
//   Place       a whole number that holds the elements from one number of an image to any other
//   PLANES      1: the result has planes of its channels
//   NORMALIZES  1: `means` and `scales` are of each channel
#include "head.cuh"
#include "division.cuh"

enum { STRIP = 16 / sizeof(Out), STRIP_BYTES = STRIP * sizeof(In) };
union Strip { unsigned words[4]; Out numbers[STRIP]; __device__ Strip() {} };

template <class A, class B> struct Same { enum { value = 0 }; };
template <class A> struct Same<A, A> { enum { value = 1 }; };

__device__ inline void make(Out* to, In from, int channel, const float* means,
    const float* scales)
{
    if (NORMALIZES) store(to, normalized((float)from, means[channel], scales[channel]));
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
        for (int k = 0; k < (STRIP_BYTES + 3) / 4; ++k)
            ((unsigned*)to)[k] = ((const unsigned*)from)[k];
    } else {
        #pragma unroll
        for (int k = 0; k < STRIP; ++k) to[k] = from[k];
    }
}

extern "C" __global__ void walk(const In* first, Long next, Place down, Place across, Place deep,
    int height, int width, int all_channels, const Long* images, const int* places, float fill,
    const float* means, const float* scales, Out* out, int window_height, int window_width,
    unsigned inner_factor, int inner_shift,
    unsigned outer_factor, int outer_shift, unsigned blocks_factor, int blocks_shift, int blocks)
{
    unsigned image = (unsigned)((unsigned long long)blockIdx.x * blocks_factor >> blocks_shift);
    int channels = CHANNELS ? CHANNELS : all_channels;
    unsigned size = (unsigned)window_height * window_width * channels;
    Out* to = out + (Long)image * size;
    unsigned before = (unsigned)((size_t)to / sizeof(Out)) % STRIP;
    Long begin = (Long)((blockIdx.x - image * blocks) * blockDim.x + threadIdx.x) * STRIP - before;
    if (begin >= size) return;
    unsigned inner = PLANES ? window_width : channels;
    unsigned outer = PLANES ? window_height : window_width;
    unsigned number = begin < 0 ? 0 : (unsigned)begin;
    unsigned line = quotient(number, inner, inner_factor, inner_shift);
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
    int last = PLANES ? (int)least + STRIP - 1
        : (int)(middle + (least + STRIP - 1) / (unsigned)channels);
    int x = PLANES ? least : middle, y = PLANES ? middle : most;
    int row = top + (is_upside_down ? -y : y);
    bool is_whole = begin >= 0 && begin + STRIP <= size;
    int one_end = left + step * x, other_end = left + step * last;
    bool is_inside = last < window_width && row >= 0 && row < height && one_end >= 0
        && one_end < width && other_end >= 0 && other_end < width;

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
            // From the last channel to the first one of the next pixel.
            Place jump = pixel_step - (channels - 1) * deep;
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
        if (NORMALIZES) value = normalized(value, means[channel], scales[channel]);
        store(strip.numbers + k, value);
        if (!is_whole) to[begin + k] = strip.numbers[k];
        if (++least == inner) {
            least = 0;
            if (++middle == outer) middle = 0, ++most;
        }
    }
    if (is_whole) write_strip(to + begin, strip);
}

// Blocks: pixels of three channels taken apart, so that the compiler makes vector code of loops
// over them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "clones.hpp"
#include "planes.hpp"

namespace core {

constexpr int64_t BLOCK = 512;  // pixels

struct PixelBlock {
    float red[BLOCK], green[BLOCK], blue[BLOCK];
};

INLINE void split(const uint8_t* pixels, int64_t count, PixelBlock& to) {
    uint8_t planes[3 * BLOCK];
    split_bytes(planes, pixels, BLOCK, count);
    for (int64_t i = 0; i < count; ++i) {
        to.red[i] = planes[i];
        to.green[i] = planes[BLOCK + i];
        to.blue[i] = planes[2 * BLOCK + i];
    }
}

INLINE void join(const PixelBlock& from, int64_t count,
                 uint8_t* pixels) {  // cut off to whole numbers
    uint8_t planes[3 * BLOCK];
    for (int64_t i = 0; i < count; ++i) {
        planes[i] = uint8_t(int32_t(from.red[i]));
        planes[BLOCK + i] = uint8_t(int32_t(from.green[i]));
        planes[2 * BLOCK + i] = uint8_t(int32_t(from.blue[i]));
    }
    interleave<false>(pixels, planes, BLOCK, count);
}

// Takes an image through `change(block, count)`, which changes the first pixels of a block, into
// `out`. `out` may be the image.
template <class Change>
INLINE void change_blocks(const uint8_t* image, int64_t pixels, uint8_t* out,
                          const Change& change) {
    PixelBlock block;
    for (int64_t begin = 0; begin < pixels; begin += BLOCK) {
        const int64_t count = std::min(BLOCK, pixels - begin);
        split(image + 3 * begin, count, block);
        change(block, count);
        join(block, count, out + 3 * begin);
    }
}

// Returns the sum of `gray(block, i)` over the pixels of an image: a value of 0 to 255 for pixel i
// of a block.
template <class Gray>
INLINE int64_t sum_blocks(const uint8_t* image, int64_t pixels, const Gray& gray) {
    PixelBlock block;
    int64_t total = 0;
    for (int64_t begin = 0; begin < pixels; begin += BLOCK) {
        const int64_t count = std::min(BLOCK, pixels - begin);
        split(image + 3 * begin, count, block);
        int32_t sum = 0;  // of 512 pixels; the compiler makes vector code of it
        for (int64_t i = 0; i < count; ++i) sum += gray(block, i);
        total += sum;
    }
    return total;
}

}  // namespace core

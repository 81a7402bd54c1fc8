// Pixels: copied one by one from places of an image.
#pragma once

#include <cstdint>
#include <cstring>

#include "clones.hpp"

namespace core {

// Copies the pixel at each offset, and `fill` where that is -1. FIXED is the bytes of a pixel, 0
// for any number.
template <int FIXED>
INLINE void copy_pixels(const uint8_t* pixels, const int64_t* offsets, int64_t count,
                        int64_t channels, const uint8_t* fill, uint8_t* to) {
    const size_t size = FIXED ? size_t(FIXED) : size_t(channels);
    for (int64_t x = 0; x < count; ++x, to += size)
        std::memcpy(to, offsets[x] < 0 ? fill : pixels + offsets[x], size);
}

INLINE void copy_pixels(const uint8_t* pixels, const int64_t* offsets, int64_t count,
                        int64_t channels, const uint8_t* fill, uint8_t* to) {
    switch (channels) {
        case 1:
            return copy_pixels<1>(pixels, offsets, count, 1, fill, to);
        case 3:
            return copy_pixels<3>(pixels, offsets, count, 3, fill, to);
        case 4:
            return copy_pixels<4>(pixels, offsets, count, 4, fill, to);
        case 12:
            return copy_pixels<12>(pixels, offsets, count, 12, fill, to);
        default:
            copy_pixels<0>(pixels, offsets, count, channels, fill, to);
    }
}

}  // namespace core

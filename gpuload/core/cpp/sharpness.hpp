// Sharpness: the mean of the 3 x 3 pixels about each, mixed with it as a colour space's functions
// do it.
#pragma once

#include <cstdint>
#include <cstring>

#include "clones.hpp"
#include "shared/colour.hpp"

namespace core {

// Writes `mix(smooth, middle)` for each value that is not at the edge; the edge stays. At least 3 x
// 3 pixels, any number of channels; out is not the image.
template <class Mix>
INLINE void any_sharpen(const uint8_t* image, int64_t height, int64_t width, int64_t channels,
                        const Mix& mix, uint8_t* out) {
    const int64_t length = width * channels, c = channels;
    std::memcpy(out, image, size_t(length));
    std::memcpy(out + (height - 1) * length, image + (height - 1) * length, size_t(length));
    for (int64_t y = 1; y < height - 1; ++y) {
        const uint8_t *above = image + (y - 1) * length, *row = above + length,
                      *below = row + length;
        uint8_t* __restrict to = out + y * length;
        std::memcpy(to, row, size_t(c));
        for (int64_t i = c; i < length - c; ++i) {
            const auto sum =
                uint16_t(above[i - c] + above[i] + above[i + c] + row[i - c] + 5 * row[i] +
                         row[i + c] + below[i - c] + below[i] + below[i + c]);
            to[i] = uint8_t(int32_t(mix(float(smooth_of(sum)), float(row[i]))));
        }
        std::memcpy(to + length - c, row + length - c, size_t(c));
    }
}

}  // namespace core

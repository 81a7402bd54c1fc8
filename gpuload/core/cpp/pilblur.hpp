// Pillow's Gaussian blur of images of bytes, three boxes along each axis: `kernels.blur_pillow`,
// bit for bit.
#pragma once

#include <cstdint>

#include "resize.hpp"
#include "shared/pillow.hpp"

namespace core::pillow {

constexpr int64_t ONE_BOX = 1 << BOX_BITS;

// The weights of a box, in whole numbers of 2**-24, together at most 1: those of the pixels that
// are at most `reach` away, and those of the two behind them.
struct Box {
    int64_t reach, weight, edge_weight;
};

// The rows of `from` and of `to` lie side by side, and `to` is not the memory of `from`.
void blur(const Image<const uint8_t>& from, const Box& box, uint8_t* to);

}  // namespace core::pillow

// Resize one image of bytes as Pillow does: `kernels.pillow.resize`, bit for bit.
#pragma once

#include <cstdint>

#include "resize.hpp"

namespace core {

// The weights of an output pixel are at most this, the positive ones together and the negative ones
// together. So sums of 255 times a weight, and of the half that rounds, fit into 32 bits.
constexpr int64_t MOST_WEIGHT = (INT32_MAX - (1 << 21)) / 255;

struct Steps {  // of one axis: for each output pixel its first source pixel, how many there are,
                // and their weights
    const int32_t* first;
    const int32_t* count;
    const int32_t* weights;  // [outputs, support], in units of 2**-22
    int64_t support, outputs;
};

// Sums along the rows, rounds to bytes, then sums down the columns. An axis without outputs stays
// as it is.
void resize_as_pillow(const Image<const uint8_t>& from, const Steps& down, const Steps& across,
                      const Image<uint8_t>& to);

}  // namespace core

// Blur one image, as `ops.colour.blur` defines it and equal to it bit for bit.
#pragma once

#include <cstdint>

#include "resize.hpp"

namespace core {

struct Line {  // of weights along one axis: an odd number of them
    const float* weights;
    int64_t count;
};

// Sums down the columns, then along the rows. Half of the weights of an axis are fewer than its
// pixels.
void blur(const Image<const uint8_t>& from, const Line& down, const Line& across,
          const Image<uint8_t>& to);
void blur(const Image<const uint16_t>& from, const Line& down, const Line& across,
          const Image<uint16_t>& to);
void blur(const Image<const float>& from, const Line& down, const Line& across,
          const Image<float>& to);

}  // namespace core

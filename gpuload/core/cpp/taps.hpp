// Taps of a resize: which source pixels make each pixel of the result, with which coefficients. The
// same numbers as `kernels.resampling.taps`, bit for bit: the same operations on float in the same
// order.
#pragma once

#include <cstdint>
#include <vector>

#include "resize.hpp"

namespace core {

struct Filter {
    const float* table;  // of the filter, with linear interpolation between its entries
    int64_t entries;
    float width;  // in source pixels, where the image does not become smaller
    bool antialias;
};

struct Taps {
    std::vector<int32_t> first;
    std::vector<float> weights;  // [count, support]
    int64_t support = 0;

    // Computes those from so many pixels to so many, the last pixel of the result first if it is
    // mirrored.
    void compute(const Filter& filter, int64_t from, int64_t to, bool is_mirrored = false);
    Pass pass() const { return pass(0, int64_t(first.size())); }
    Pass pass(int64_t begin, int64_t count) const {  // of a part of the pixels
        return {first.data() + begin, weights.data() + begin * support, support, count};
    }
};

// Whether the vertical pass comes first (`kernels.resampling.vertical_first`).
bool is_vertical_first(int64_t height, int64_t width, const Taps& vertical, const Taps& horizontal);

}  // namespace core

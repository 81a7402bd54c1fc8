// Taps of a resize: see taps.hpp.
//
// Assumes: sides are at least 1, and the table has two entries or more; the Python face checked it.
#include "taps.hpp"

#include <algorithm>
#include <cmath>

#include "clones.hpp"
#include "shared/places.hpp"

namespace core {
namespace {

constexpr double HORIZONTAL_WEIGHT = double(1.4f), SIZE_WEIGHT = 3;  // of DALI's costs

// The table with a zero in front of it and two behind: entry -1 to `entries` + 1.
INLINE float entry_of(const Filter& filter, int64_t number) {
    return number < 0 || number >= filter.entries ? 0.0f : filter.table[number];
}

}  // namespace

// Writes the taps of each pixel. Rounding is one instruction in the clones, a call else.
CLONES void write_taps(const Filter& filter, float scale, float step, float shift, bool is_mirrored,
                       Taps& taps) {
    const int64_t support = taps.support;
    const auto count = int64_t(taps.first.size());
    for (int64_t x = 0; x < count; ++x) {
        const int64_t pixel = is_mirrored ? count - 1 - x : x;
        float* const weights = taps.weights.data() + pixel * support;
        const float position = float(x) * step + shift, begin = std::ceil(position);
        taps.first[size_t(pixel)] = int32_t(begin);
        float total = 0;
        for (int64_t tap = 0; tap < support; ++tap) {
            const float place = (begin - position + float(tap)) * scale, below = std::floor(place);
            const float low = entry_of(filter, int64_t(below)),
                        high = entry_of(filter, int64_t(below) + 1);
            weights[tap] = tap_weight(place, low, high, float(filter.entries));
            total += weights[tap];
        }
        for (int64_t tap = 0; tap < support; ++tap) weights[tap] /= total == 0 ? 1.0f : total;
    }
}

void Taps::compute(const Filter& filter, int64_t from, int64_t to, bool is_mirrored) {
    const float shrink = filter.antialias && from > to ? float(from) / float(to) : 1.0f;
    const float size = std::max(1.0f, filter.width * shrink), entries = float(filter.entries - 1);
    const float scale = entries / size, anchor = entries * 0.5f / scale;
    support = int64_t(std::ceil(entries / scale));
    const float step = float(from) / float(to), shift = 0.5f * step - 0.5f - anchor;
    first.resize(size_t(to));
    weights.resize(size_t(support * to));
    write_taps(filter, scale, step, shift, is_mirrored, *this);
}

bool is_vertical_first(int64_t height, int64_t width, const Taps& vertical,
                       const Taps& horizontal) {
    const auto new_height = int64_t(vertical.first.size()),
               new_width = int64_t(horizontal.first.size());
    const auto down = double(new_height * width), across = double(height * new_width),
               area = double(new_height * new_width);
    const auto rows = double(vertical.support), columns = double(horizontal.support);
    return SIZE_WEIGHT * down + down * rows + HORIZONTAL_WEIGHT * area * columns <
           SIZE_WEIGHT * across + HORIZONTAL_WEIGHT * across * columns + area * rows;
}

}  // namespace core

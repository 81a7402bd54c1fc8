// Blur: see blur.hpp.
//
// Assumes: images of one size, pixels side by side in a row, and weights that reach less far than the image; the Python face
// checked it.
#include "blur.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "clones.hpp"
#include "rounding.hpp"

namespace core {
namespace {

// The pixel that stands for one beyond the border: as in a mirror, the edge is not repeated.
INLINE int64_t mirrored(int64_t place, int64_t length) {
    const int64_t positive = place < 0 ? -place : place;
    return positive < length ? positive : 2 * (length - 1) - positive;
}

template <class T>
INLINE void first_product(float* __restrict total, const T* __restrict line, float weight, int64_t count) {
    for (int64_t i = 0; i < count; ++i) total[i] = float(line[i]) * weight;
}

template <class T>
INLINE void add_product(float* __restrict total, const T* __restrict line, float weight, int64_t count) {
    for (int64_t i = 0; i < count; ++i) total[i] += float(line[i]) * weight;
}

template <class T>
INLINE void any_blur(const Image<const T>& from, const Line& down, const Line& across, const Image<T>& to) {
    const int64_t channels = from.channels, size = from.width * channels;
    const int64_t reach = down.count / 2, margin = across.count / 2 * channels;
    std::vector<float> line(size_t(size + 2 * margin)), total(static_cast<size_t>(size));
    float* const row = line.data() + margin;
    for (int64_t y = 0; y < from.height; ++y) {
        for (int64_t tap = 0; tap < down.count; ++tap) {
            const T* source = from.pixels + mirrored(y + tap - reach, from.height) * from.stride;
            if (tap == 0)
                first_product(row, source, down.weights[tap], size);
            else
                add_product(row, source, down.weights[tap], size);
        }
        for (int64_t x = 1; x <= across.count / 2; ++x) {
            std::copy_n(row + mirrored(-x, from.width) * channels, channels, row - x * channels);
            std::copy_n(row + mirrored(from.width - 1 + x, from.width) * channels, channels, row + (from.width - 1 + x) * channels);
        }
        first_product(total.data(), line.data(), across.weights[0], size);
        for (int64_t tap = 1; tap < across.count; ++tap)
            add_product(total.data(), line.data() + tap * channels, across.weights[tap], size);
        T* __restrict target = to.pixels + y * to.stride;
        const float* __restrict sums = total.data();
        for (int64_t i = 0; i < size; ++i) target[i] = rounded<T>(sums[i]);
    }
}

}  // namespace

CLONES void blur(const Image<const uint8_t>& from, const Line& down, const Line& across, const Image<uint8_t>& to) {
    any_blur(from, down, across, to);
}
CLONES void blur(const Image<const uint16_t>& from, const Line& down, const Line& across, const Image<uint16_t>& to) {
    any_blur(from, down, across, to);
}
CLONES void blur(const Image<const float>& from, const Line& down, const Line& across, const Image<float>& to) {
    any_blur(from, down, across, to);
}

}  // namespace core

// Resize as Pillow: see pilresize.hpp.
//
// Assumes: each output pixel reads pixels of the image alone, and its weights are at most
// MOST_WEIGHT; the Python face checked it.
#include "pilresize.hpp"

#include <algorithm>
#include <vector>

#include "clones.hpp"
#include "shared/pillow.hpp"

namespace core {
namespace {

constexpr int32_t HALF = pillow::RESIZE_HALF;

INLINE uint8_t bounded(int32_t sum) { return uint8_t(pillow::resized(sum)); }

template <int FIXED>
INLINE void along(const uint8_t* row, const Steps& steps, int64_t channels, uint8_t* to) {
    const int64_t deep = FIXED ? FIXED : channels;
    for (int64_t x = 0; x < steps.outputs; ++x) {
        const uint8_t* pixels = row + steps.first[x] * deep;
        const int32_t* weights = steps.weights + x * steps.support;
        if constexpr (FIXED == 3) {
            int32_t a = HALF, b = HALF, c = HALF;
            for (int32_t tap = 0; tap < steps.count[x]; ++tap) {
                a += pixels[3 * tap] * weights[tap];
                b += pixels[3 * tap + 1] * weights[tap];
                c += pixels[3 * tap + 2] * weights[tap];
            }
            to[3 * x] = bounded(a), to[3 * x + 1] = bounded(b), to[3 * x + 2] = bounded(c);
        } else {
            for (int64_t c = 0; c < deep; ++c) {
                int32_t sum = HALF;
                for (int32_t tap = 0; tap < steps.count[x]; ++tap)
                    sum += pixels[tap * deep + c] * weights[tap];
                to[x * deep + c] = bounded(sum);
            }
        }
    }
}

INLINE void add_row(int32_t* __restrict total, const uint8_t* __restrict row, int32_t weight,
                    int64_t count) {
    for (int64_t i = 0; i < count; ++i) total[i] += row[i] * weight;
}

INLINE void emit(uint8_t* __restrict to, const int32_t* __restrict total, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = bounded(total[i]);
}

}  // namespace

CLONES void resize_as_pillow(const Image<const uint8_t>& from, const Steps& down,
                             const Steps& across, const Image<uint8_t>& to) {
    const int64_t channels = from.channels, length = to.width * channels;
    const uint8_t* source = from.pixels;
    int64_t stride = from.stride;
    std::vector<uint8_t> middle;
    if (across.outputs > 0) {
        middle.resize(size_t(from.height * length));
        for (int64_t y = 0; y < from.height; ++y) {
            uint8_t* line = middle.data() + y * length;
            if (channels == 3)
                along<3>(from.pixels + y * from.stride, across, 3, line);
            else
                along<0>(from.pixels + y * from.stride, across, channels, line);
        }
        source = middle.data();
        stride = length;
    }
    if (down.outputs == 0) {
        for (int64_t y = 0; y < to.height; ++y)
            std::copy_n(source + y * stride, length, to.pixels + y * to.stride);
        return;
    }
    std::vector<int32_t> total(static_cast<size_t>(length));
    for (int64_t y = 0; y < to.height; ++y) {
        std::fill(total.begin(), total.end(), HALF);
        for (int32_t tap = 0; tap < down.count[y]; ++tap)
            add_row(total.data(), source + (down.first[y] + tap) * stride,
                    down.weights[y * down.support + tap], length);
        emit(to.pixels + y * to.stride, total.data(), length);
    }
}

}  // namespace core

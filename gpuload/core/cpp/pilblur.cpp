// Pillow's blur: see pilblur.hpp.
//
// A pass adds up lines, each value its own: along the rows the same row from different pixels on,
// down the columns different rows.
#include "pilblur.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "clones.hpp"
#include "shared/pillow.hpp"

namespace core::pillow {
namespace {

constexpr int PASSES = 3, MOST_LINES = 2 * MOST_BOX + 3;

INLINE void add_lines(const uint8_t* const* lines, const Box& box, int64_t count,
                      uint8_t* __restrict to) {
    const auto weight = uint32_t(box.weight), edge_weight = uint32_t(box.edge_weight);
    const uint8_t *const first = lines[0], *const last = lines[2 * box.reach + 2],
                         *const middle = lines[box.reach + 1];
    if (box.reach == 0) {
        for (int64_t i = 0; i < count; ++i)
            to[i] = uint8_t(box_mean(middle[i], uint32_t(first[i] + last[i]), weight, edge_weight));
        return;
    }
    const uint8_t *const before = lines[1], *const after = lines[3];
    for (int64_t i = 0; i < count; ++i) {
        const auto sum = uint32_t(before[i] + middle[i] + after[i]);
        to[i] = uint8_t(box_mean(sum, uint32_t(first[i] + last[i]), weight, edge_weight));
    }
}

// Three passes along a row, in `line`, which has `margin` bytes more at both ends.
INLINE void blur_row(const Image<const uint8_t>& from, const Box& box, const uint8_t* row,
                     uint8_t* line, uint8_t* to) {
    const int64_t channels = from.channels, size = from.width * channels, reach = box.reach + 1;
    const uint8_t* lines[MOST_LINES];
    for (int64_t i = 0; i <= 2 * reach; ++i) lines[i] = line + i * channels;
    for (int pass = 0; pass < PASSES; ++pass) {
        const uint8_t* const values = pass == 0 ? row : to;
        std::memcpy(line + reach * channels, values, size_t(size));
        for (int64_t x = 0; x < reach; ++x) {
            std::memcpy(line + x * channels, values, size_t(channels));
            std::memcpy(line + (reach + x) * channels + size, values + size - channels,
                        size_t(channels));
        }
        add_lines(lines, box, size, to);
    }
}

INLINE void blur_columns(const uint8_t* from, const Box& box, int64_t height, int64_t size,
                         uint8_t* to) {
    const int64_t reach = box.reach + 1;
    const uint8_t* lines[MOST_LINES];
    for (int64_t y = 0; y < height; ++y) {
        for (int64_t i = 0; i <= 2 * reach; ++i)
            lines[i] = from + std::clamp(y - reach + i, int64_t(0), height - 1) * size;
        add_lines(lines, box, size, to + y * size);
    }
}

}  // namespace

CLONES void blur(const Image<const uint8_t>& from, const Box& box, uint8_t* to) {
    const int64_t size = from.width * from.channels, margin = (box.reach + 1) * from.channels;
    std::vector<uint8_t> line(size_t(size + 2 * margin)), image(size_t(from.height * size));
    for (int64_t y = 0; y < from.height; ++y)
        blur_row(from, box, from.pixels + y * from.stride, line.data(), image.data() + y * size);
    blur_columns(image.data(), box, from.height, size, to);
    blur_columns(to, box, from.height, size, image.data());
    blur_columns(image.data(), box, from.height, size, to);
}

}  // namespace core::pillow

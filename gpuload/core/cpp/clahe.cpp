// CLAHE: see clahe.hpp.
//
// The curve of a tile maps each level to its new level. Only the curves of two rows of tiles are in
// memory: those about the row of pixels that is written.
#include "clahe.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "clones.hpp"
#include "lab.hpp"
#include "rounding.hpp"
#include "shared/tiles.hpp"

namespace core {
namespace {

template <class T>
constexpr int64_t LEVELS = int64_t(std::numeric_limits<T>::max()) + 1;

// Cuts each count off at the limit and shares the excess: the same number for each level first,
// then 1 for every n-th level.
CLONES void clip(int32_t* counts, int32_t levels, int32_t limit) {
    int32_t excess = 0;
    for (int32_t level = 0; level < levels; ++level) {
        const int32_t count = std::min(counts[level], limit);
        excess += counts[level] - count;
        counts[level] = count;
    }
    const int32_t each = excess / levels, rest = excess % levels, step = levels / std::max(rest, 1);
    if (each > 0)
        for (int32_t level = 0; level < levels; ++level) counts[level] += each;
    for (int32_t i = 0; i < rest; ++i) ++counts[i * step];
}

template <class T>
INLINE void sum_up(const int32_t* counts, int32_t pixels, T* curve) {
    constexpr int64_t PART = 64;  // levels: their sums are whole numbers first, for the rest of the
                                  // loop to be vector code
    int32_t sum = 0, sums[PART];
    for (int64_t begin = 0; begin < LEVELS<T>; begin += PART) {
        for (int64_t i = 0; i < PART; ++i) sums[i] = sum += counts[begin + i];
        for (int64_t i = 0; i < PART; ++i)
            curve[begin + i] = T(int32_t(level_after(sums[i], pixels, int32_t(LEVELS<T>))));
    }
}

CLONES void make_curve(const int32_t* counts, int32_t pixels, uint8_t* curve) {
    sum_up(counts, pixels, curve);
}
CLONES void make_curve(const int32_t* counts, int32_t pixels, uint16_t* curve) {
    sum_up(counts, pixels, curve);
}

struct Curves {  // of the tiles above and below a row of pixels: where those of each pixel begin,
                 // and their weights
    const int64_t *before, *after;
    const float* share;
    float lower;
};

template <class T>
INLINE void blend(const T* pixels, int64_t count, int64_t step, const T* above, const T* below,
                  const Curves& curves, T* to) {
    for (int64_t x = 0; x < count; ++x) {
        const int64_t first = curves.before[x] + pixels[x * step],
                      second = curves.after[x] + pixels[x * step];
        const float values[] = {float(above[first]), float(above[second]), float(below[first]),
                                float(below[second])};
        to[x * step] =
            T(int32_t(between(values, curves.share[x], curves.lower, float(LEVELS<T> - 1))));
    }
}

CLONES void blend_row(const uint8_t* pixels, int64_t count, int64_t step, const uint8_t* above,
                      const uint8_t* below, const Curves& curves, uint8_t* to) {
    blend(pixels, count, step, above, below, curves, to);
}

CLONES void blend_row(const uint16_t* pixels, int64_t count, int64_t step, const uint16_t* above,
                      const uint16_t* below, const Curves& curves, uint16_t* to) {
    blend(pixels, count, step, above, below, curves, to);
}

}  // namespace

void TileEqualizer::Axis::divide(int64_t length, int64_t tiles, bool are_whole) {
    tile = tile_side(length, tiles, are_whole);
    before.resize(size_t(length));
    after.resize(size_t(length));
    share.resize(size_t(length));
    for (int64_t i = 0; i < length; ++i) {
        const Neighbours<int64_t> about = neighbours(i, tile, tiles);
        before[size_t(i)] = about.before;
        after[size_t(i)] = about.after;
        share[size_t(i)] = about.share;
    }
    num_tiles = after.back() + 1;
    sources.resize(size_t(num_tiles * tile));
    for (int64_t i = 0; i < num_tiles * tile; ++i) sources[size_t(i)] = reflected(i, length);
}

void TileEqualizer::divide(int64_t height, int64_t width, const Tiling& tiling) {
    const bool are_whole = height % tiling.rows == 0 && width % tiling.columns == 0;
    down_.divide(height, tiling.rows, are_whole);
    across_.divide(width, tiling.columns, are_whole);
}

// Writes the curves of a row of tiles of one channel, one after the other.
template <class T>
void TileEqualizer::make_curves(const T* plane, const Image<const T>& from, int64_t row,
                                double limit, T* curves) {
    const int64_t pixels = down_.tile * across_.tile, levels = LEVELS<T>;
    const int32_t most = limit_of(limit, int32_t(pixels), int32_t(levels));
    counts_.resize(size_t(levels));
    for (int64_t column = 0; column < across_.num_tiles; ++column, curves += levels) {
        std::fill(counts_.begin(), counts_.end(), 0);
        const int64_t* const columns = across_.sources.data() + column * across_.tile;
        for (int64_t y = row * down_.tile; y < (row + 1) * down_.tile; ++y) {
            const T* const line = plane + down_.sources[size_t(y)] * from.stride;
            for (int64_t x = 0; x < across_.tile; ++x) ++counts_[line[columns[x] * from.channels]];
        }
        clip(counts_.data(), int32_t(levels), most);
        make_curve(counts_.data(), int32_t(pixels), curves);
    }
}

template <class T>
void TileEqualizer::equalize_channels(const Image<const T>& from, const Tiling& tiling,
                                      const Image<T>& to) {
    divide(from.height, from.width, tiling);
    const auto times_levels = [](const std::vector<int64_t>& tiles, std::vector<int64_t>& begins) {
        begins.resize(tiles.size());
        std::transform(tiles.begin(), tiles.end(), begins.begin(),
                       [](int64_t tile) { return tile * LEVELS<T>; });
    };
    times_levels(across_.before, begin_before_);
    times_levels(across_.after, begin_after_);
    const auto size = size_t(across_.num_tiles * LEVELS<T> * int64_t(sizeof(T)) / 2);
    curves_.resize(std::max(curves_.size(), 2 * size));
    for (int64_t channel = 0; channel < from.channels; ++channel) {
        T *above = reinterpret_cast<T*>(curves_.data()),
          *below = reinterpret_cast<T*>(curves_.data() + size);
        const T* const plane = from.pixels + channel;
        int64_t num_rows = 0;  // of tiles whose curves were made; the last of them is `below`
        for (int64_t y = 0; y < from.height; ++y) {
            const int64_t top = down_.before[size_t(y)], bottom = down_.after[size_t(y)];
            for (; num_rows <= bottom; ++num_rows) {
                std::swap(above, below);
                make_curves(plane, from, num_rows, tiling.limit, below);
            }
            const Curves curves{begin_before_.data(), begin_after_.data(), across_.share.data(),
                                down_.share[size_t(y)]};
            blend_row(plane + y * from.stride, from.width, from.channels,
                      top == bottom ? below : above, below, curves,
                      to.pixels + y * to.stride + channel);
        }
    }
}

void TileEqualizer::equalize(const Image<const uint8_t>& from, const Tiling& tiling,
                             const Image<uint8_t>& to) {
    equalize_channels(from, tiling, to);
}

void TileEqualizer::equalize(const Image<const uint16_t>& from, const Tiling& tiling,
                             const Image<uint16_t>& to) {
    equalize_channels(from, tiling, to);
}

void TileEqualizer::equalize_lightness(const Image<const uint8_t>& from, const Tiling& tiling,
                                       const Image<uint8_t>& to) {
    const int64_t pixels = from.height * from.width, width = from.width;
    planes_.resize(std::max(planes_.size(), size_t(4 * pixels)));
    uint8_t *const lightness = planes_.data(), *const result = lightness + pixels,
                   *const a = result + pixels;
    for (int64_t y = 0; y < from.height; ++y)
        to_lab(from.pixels + y * from.stride, width, lightness + y * width, a + y * width,
               a + pixels + y * width);
    equalize(Image<const uint8_t>{lightness, width, from.height, width, 1}, tiling,
             Image<uint8_t>{result, width, from.height, width, 1});
    for (int64_t y = 0; y < from.height; ++y)
        from_lab(result + y * width, a + y * width, a + pixels + y * width, width,
                 to.pixels + y * to.stride);
}

}  // namespace core

// Colour: see colour.hpp.
//
// Assumes: images and results have the sizes that are said; the Python face checked it. A result
// may lie in the memory of its image, but for `sharpen`.
//
// Sums `a + b * c` have one rounding, by std::fma; `kernels.colour` says why, and how NumPy makes
// the same bits. On processors without such an instruction it is a function of the C library:
// slower, and the same bits.
#include "colour.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "blocks.hpp"
#include "shared/colour.hpp"
#include "sharpness.hpp"

namespace core {
namespace {

INLINE Colour colour_of(const PixelBlock& block, int64_t i) {
    return {block.red[i], block.green[i], block.blue[i]};
}

struct Gray {  // cut off
    INLINE_MEMBER int32_t operator()(const PixelBlock& block, int64_t i) const {
        return int32_t(gray_of(colour_of(block, i)));
    }
};

struct Saturate {
    float factor, weight;
    INLINE_MEMBER void operator()(PixelBlock& block, int64_t count) const {
        for (int64_t i = 0; i < count; ++i) {
            const float gray = std::floor(gray_of(colour_of(block, i)));
            block.red[i] = bounded(blended(block.red[i], gray, factor, weight), 255.0f);
            block.green[i] = bounded(blended(block.green[i], gray, factor, weight), 255.0f);
            block.blue[i] = bounded(blended(block.blue[i], gray, factor, weight), 255.0f);
        }
    }
};

struct TurnHue {
    float shift;
    INLINE_MEMBER void operator()(PixelBlock& block, int64_t count) const {
        for (int64_t i = 0; i < count; ++i)
            core::turn_hue(block.red[i], block.green[i], block.blue[i], shift, float(1.0 / 255),
                           255.999f);
    }
};

struct Sharper {
    float weight;
    INLINE_MEMBER float operator()(float smooth, float middle) const {
        return bounded(sharpened(middle, smooth, weight), 255.0f);
    }
};

typedef uint8_t Bytes32 __attribute__((vector_size(32)));

// Finds the least and the largest value of each channel of the first values, in as many vectors as
// make whole pixels. Returns how many values these are.
template <int FIXED>
INLINE int64_t bounds_of(const uint8_t* image, int64_t count, uint8_t* low, uint8_t* high) {
    constexpr auto WIDTH = int64_t(sizeof(Bytes32)), ROW = WIDTH * FIXED;
    Bytes32 lows[FIXED], highs[FIXED];
    std::memset(lows, 255, sizeof lows);
    std::memset(highs, 0, sizeof highs);
    int64_t begin = 0;
    for (; begin + ROW <= count; begin += ROW)
        for (int64_t n = 0; n < FIXED; ++n) {
            Bytes32 values;
            std::memcpy(&values, image + begin + WIDTH * n, size_t(WIDTH));
            lows[n] = values < lows[n] ? values : lows[n];
            highs[n] = values > highs[n] ? values : highs[n];
        }
    for (int64_t i = 0; i < ROW; ++i) {
        low[i % FIXED] = std::min(low[i % FIXED], uint8_t(lows[i / WIDTH][i % WIDTH]));
        high[i % FIXED] = std::max(high[i % FIXED], uint8_t(highs[i / WIDTH][i % WIDTH]));
    }
    return begin;
}

}  // namespace

// Two pixels that follow one another are counted in tables of their own: they often are equal, and
// a count waits for the one before it in its place.
void count_levels(const uint8_t* image, int64_t pixels, int64_t channels, int64_t* counts) {
    int64_t i = 0;
    if (channels == 3) {
        int64_t others[3 * 256] = {};
        for (; i + 2 <= pixels; i += 2, image += 6) {
            ++counts[image[0]];
            ++counts[256 + image[1]];
            ++counts[512 + image[2]];
            ++others[image[3]];
            ++others[256 + image[4]];
            ++others[512 + image[5]];
        }
        for (int64_t level = 0; level < 3 * 256; ++level) counts[level] += others[level];
    }
    for (; i < pixels; ++i, image += channels)
        for (int64_t c = 0; c < channels; ++c) ++counts[256 * c + image[c]];
}

CLONES void find_bounds(const uint8_t* image, int64_t pixels, int64_t channels, uint8_t* low,
                        uint8_t* high) {
    std::fill_n(low, channels, uint8_t(255));
    std::fill_n(high, channels, uint8_t(0));
    const int64_t count = pixels * channels;
    int64_t i = 0;
    if (channels == 3) i = bounds_of<3>(image, count, low, high);
    if (channels == 1) i = bounds_of<1>(image, count, low, high);
    for (; i < count; ++i) {
        low[i % channels] = std::min(low[i % channels], image[i]);
        high[i % channels] = std::max(high[i % channels], image[i]);
    }
}

void stretch_table(uint8_t low, uint8_t high, uint8_t* table) {
    for (int level = 0; level < 256; ++level)
        table[level] = uint8_t(int32_t(
            bounded(stretched(float(level), float(low), float(high), float(1.0 / 255)), 255.0f)));
}

void even_table(const int64_t* counts, uint8_t* table) {
    int64_t total = 0, last = 0, before = 0;
    for (int level = 0; level < 256; ++level) {
        total += counts[level];
        if (counts[level] > 0) last = counts[level];
    }
    const int64_t step = (total - last) / 255;  // of the values below the largest
    for (int level = 0; level < 256; ++level) {
        table[level] = uint8_t(evened(int64_t(level), before, step));
        before += counts[level];
    }
}

void brightness_table(float factor, uint8_t* table) {
    for (int level = 0; level < 256; ++level)
        table[level] = uint8_t(int32_t(bounded(float(level) * factor, 255.0f)));
}

void contrast_table(float mean, float factor, float weight, uint8_t* table) {
    for (int level = 0; level < 256; ++level)
        table[level] =
            uint8_t(int32_t(bounded(add_product(mean, weight, float(level) * factor), 255.0f)));
}

CLONES int64_t sum_grays(const uint8_t* image, int64_t pixels) {
    return sum_blocks(image, pixels, Gray{});
}

CLONES void make_gray(const uint8_t* image, int64_t pixels, int64_t out_channels, uint8_t* out) {
    PixelBlock block;
    uint8_t grays[BLOCK];
    for (int64_t begin = 0; begin < pixels; begin += BLOCK) {
        const int64_t count = std::min(BLOCK, pixels - begin);
        split(image + 3 * begin, count, block);
        for (int64_t i = 0; i < count; ++i) grays[i] = uint8_t(Gray{}(block, i));
        uint8_t* to = out + begin * out_channels;
        if (out_channels == 1)
            std::copy(grays, grays + count, to);
        else
            interleave<false>(to, grays, 0, count);
    }
}

CLONES void saturate(const uint8_t* image, int64_t pixels, float factor, float weight,
                     uint8_t* out) {
    change_blocks(image, pixels, out, Saturate{factor, weight});
}

CLONES void turn_hue(const uint8_t* image, int64_t pixels, float shift, uint8_t* out) {
    change_blocks(image, pixels, out, TurnHue{shift});
}

CLONES void sharpen(const uint8_t* image, int64_t height, int64_t width, int64_t channels,
                    float weight, uint8_t* out) {
    any_sharpen(image, height, width, channels, Sharper{weight}, out);
}

}  // namespace core

// Colour: see colour.hpp.
//
// Assumes: images and results have the sizes that are said; the Python face checked it. A result may lie in the memory of
// its image, but for `sharpen`.
//
// Sums `a + b * c` have one rounding, by std::fma; `ops.colour` says why, and how NumPy makes the same bits. On processors
// without such an instruction it is a function of the C library: slower, and the same bits.
//
// Pixels are taken apart into blocks of one channel each, which the compiler makes vector code of.
#include "colour.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "clones.hpp"

namespace core {
namespace {

constexpr int64_t BLOCK = 512;  // pixels
constexpr float RED = 0.2989f, GREEN = 0.587f, BLUE = 0.114f;

struct Block {
    float red[BLOCK], green[BLOCK], blue[BLOCK];
};

INLINE void split(const uint8_t* __restrict pixels, int64_t count, Block& to) {
    for (int64_t i = 0; i < count; ++i) {
        to.red[i] = pixels[3 * i];
        to.green[i] = pixels[3 * i + 1];
        to.blue[i] = pixels[3 * i + 2];
    }
}

INLINE void join(const Block& from, int64_t count, uint8_t* __restrict pixels) {  // cut off to whole numbers
    for (int64_t i = 0; i < count; ++i) {
        pixels[3 * i] = uint8_t(int32_t(from.red[i]));
        pixels[3 * i + 1] = uint8_t(int32_t(from.green[i]));
        pixels[3 * i + 2] = uint8_t(int32_t(from.blue[i]));
    }
}

INLINE float gray_of(float red, float green, float blue) {  // not cut off
    return std::fma(blue, BLUE, std::fma(green, GREEN, red * RED));
}

INLINE float bounded(float value, float limit) { return std::min(std::max(value, 0.0f), limit); }

INLINE void saturate_block(Block& block, int64_t count, float factor, float weight) {
    for (int64_t i = 0; i < count; ++i) {
        const float gray = std::floor(gray_of(block.red[i], block.green[i], block.blue[i]));
        block.red[i] = bounded(std::fma(gray, weight, block.red[i] * factor), 255.0f);
        block.green[i] = bounded(std::fma(gray, weight, block.green[i] * factor), 255.0f);
        block.blue[i] = bounded(std::fma(gray, weight, block.blue[i] * factor), 255.0f);
    }
}

INLINE void turn_block(Block& block, int64_t count, float shift) {
    constexpr float TO_UNIT = float(1.0 / 255), SIXTH = float(1.0 / 6), LEVELS = 255.999f;
    for (int64_t i = 0; i < count; ++i) {
        const float red = block.red[i] * TO_UNIT, green = block.green[i] * TO_UNIT, blue = block.blue[i] * TO_UNIT;
        const float high = std::max(red, std::max(green, blue)), low = std::min(red, std::min(green, blue));
        const bool is_gray = high == low;
        const float span = high - low, saturation = span / (is_gray ? 1.0f : high), divisor = is_gray ? 1.0f : span;
        const float reds = (high - red) / divisor, greens = (high - green) / divisor, blues = (high - blue) / divisor;
        const float of_red = blues - greens, of_green = (reds + 2.0f) - blues, of_blue = (greens + 4.0f) - reds;
        float turn = high == red ? of_red : high == green ? of_green : of_blue;
        turn = turn * SIXTH + 1.0f;
        turn -= std::floor(turn);  // which is not negative
        turn += shift;
        turn -= std::trunc(turn);
        turn = turn < 0.0f ? turn + 1.0f : turn;
        const float six = turn * 6.0f, sector = std::floor(six), rest = six - sector;
        const float ramp = saturation * rest, pale = 1.0f - saturation;
        const float falling = bounded((1.0f - ramp) * high, 1.0f), rising = bounded((ramp + pale) * high, 1.0f);
        const float least = bounded(pale * high, 1.0f);
        const bool first = sector == 0.0f || sector == 6.0f, second = sector == 1.0f, third = sector == 2.0f;
        const bool fourth = sector == 3.0f, fifth = sector == 4.0f;
        block.red[i] = LEVELS * (second ? falling : third || fourth ? least : fifth ? rising : high);
        block.green[i] = LEVELS * (first ? rising : second || third ? high : fourth ? falling : least);
        block.blue[i] = LEVELS * (first || second ? least : third ? rising : fourth || fifth ? high : falling);
    }
}

}  // namespace

void look_up(const uint8_t* image, int64_t pixels, int64_t channels, const uint8_t* tables, uint8_t* out) {
    if (channels == 1) {
        for (int64_t i = 0; i < pixels; ++i) out[i] = tables[image[i]];
    } else if (channels == 3) {
        for (int64_t i = 0; i < 3 * pixels; i += 3) {
            out[i] = tables[image[i]];
            out[i + 1] = tables[256 + image[i + 1]];
            out[i + 2] = tables[512 + image[i + 2]];
        }
    } else {
        for (int64_t i = 0; i < pixels; ++i)
            for (int64_t c = 0; c < channels; ++c) out[i * channels + c] = tables[256 * c + image[i * channels + c]];
    }
}

void count_levels(const uint8_t* image, int64_t pixels, int64_t channels, int64_t* counts) {
    for (int64_t i = 0; i < pixels; ++i)
        for (int64_t c = 0; c < channels; ++c) ++counts[256 * c + image[i * channels + c]];
}

CLONES int64_t sum_grays(const uint8_t* image, int64_t pixels) {
    Block block;
    int64_t total = 0;
    for (int64_t begin = 0; begin < pixels; begin += BLOCK) {
        const int64_t count = std::min(BLOCK, pixels - begin);
        split(image + 3 * begin, count, block);
        int32_t sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += int32_t(gray_of(block.red[i], block.green[i], block.blue[i]));
        total += sum;
    }
    return total;
}

CLONES void make_gray(const uint8_t* image, int64_t pixels, int64_t out_channels, uint8_t* out) {
    Block block;
    uint8_t grays[BLOCK];
    for (int64_t begin = 0; begin < pixels; begin += BLOCK) {
        const int64_t count = std::min(BLOCK, pixels - begin);
        split(image + 3 * begin, count, block);
        for (int64_t i = 0; i < count; ++i)
            grays[i] = uint8_t(int32_t(gray_of(block.red[i], block.green[i], block.blue[i])));
        uint8_t* to = out + begin * out_channels;
        if (out_channels == 1)
            std::copy(grays, grays + count, to);
        else
            for (int64_t i = 0; i < count; ++i) to[3 * i] = to[3 * i + 1] = to[3 * i + 2] = grays[i];
    }
}

CLONES void saturate(const uint8_t* image, int64_t pixels, float factor, float weight, uint8_t* out) {
    Block block;
    for (int64_t begin = 0; begin < pixels; begin += BLOCK) {
        const int64_t count = std::min(BLOCK, pixels - begin);
        split(image + 3 * begin, count, block);
        saturate_block(block, count, factor, weight);
        join(block, count, out + 3 * begin);
    }
}

CLONES void turn_hue(const uint8_t* image, int64_t pixels, float shift, uint8_t* out) {
    Block block;
    for (int64_t begin = 0; begin < pixels; begin += BLOCK) {
        const int64_t count = std::min(BLOCK, pixels - begin);
        split(image + 3 * begin, count, block);
        turn_block(block, count, shift);
        join(block, count, out + 3 * begin);
    }
}

CLONES void sharpen(const uint8_t* image, int64_t height, int64_t width, int64_t channels, float weight, uint8_t* out) {
    const int64_t length = width * channels, c = channels;
    std::memcpy(out, image, size_t(length));
    std::memcpy(out + (height - 1) * length, image + (height - 1) * length, size_t(length));
    for (int64_t y = 1; y < height - 1; ++y) {
        const uint8_t *above = image + (y - 1) * length, *row = above + length, *below = row + length;
        uint8_t* __restrict to = out + y * length;
        std::memcpy(to, row, size_t(c));
        for (int64_t i = c; i < length - c; ++i) {
            const int32_t sum = above[i - c] + above[i] + above[i + c] + row[i - c] + 5 * row[i] + row[i + c] + below[i - c] +
                                below[i] + below[i + c];
            const float smooth = float((2 * sum + 13) / 26), middle = row[i];
            to[i] = uint8_t(int32_t(bounded(std::fma(smooth - middle, weight, middle), 255.0f)));
        }
        std::memcpy(to + length - c, row + length - c, size_t(c));
    }
}

}  // namespace core

// Colour as Pillow: see pilcolour.hpp.
//
// Assumes: images and results have the sizes that are said; the Python face checked it. A result
// may lie in the memory of its image, but for `sharpen`.
#include "pilcolour.hpp"

#include "blocks.hpp"
#include "shared/pillow.hpp"
#include "sharpness.hpp"

namespace core::pillow {
namespace {

struct Gray {
    INLINE_MEMBER int32_t operator()(const PixelBlock& block, int64_t i) const {
        return gray_of(int32_t(block.red[i]), int32_t(block.green[i]), int32_t(block.blue[i]));
    }
};

struct Saturate {
    float factor;
    INLINE_MEMBER void operator()(PixelBlock& block, int64_t count) const {
        for (int64_t i = 0; i < count; ++i) {
            const auto gray = float(Gray{}(block, i));
            block.red[i] = mixed(gray, block.red[i], factor);
            block.green[i] = mixed(gray, block.green[i], factor);
            block.blue[i] = mixed(gray, block.blue[i], factor);
        }
    }
};

struct Sharper {
    float factor;
    INLINE_MEMBER float operator()(float smooth, float middle) const {
        return mixed(smooth, middle, factor);
    }
};

}  // namespace

void stretch_table(uint8_t low, uint8_t high, uint8_t* table) {
    for (int level = 0; level < 256; ++level) table[level] = uint8_t(stretched(level, low, high));
}

void contrast_table(float mean, float factor, uint8_t* table) {
    for (int level = 0; level < 256; ++level)
        table[level] = uint8_t(int32_t(mixed(mean, float(level), factor)));
}

CLONES int64_t sum_grays(const uint8_t* image, int64_t pixels) {
    return sum_blocks(image, pixels, Gray{});
}

CLONES void saturate(const uint8_t* image, int64_t pixels, float factor, uint8_t* out) {
    change_blocks(image, pixels, out, Saturate{factor});
}

CLONES void sharpen(const uint8_t* image, int64_t height, int64_t width, int64_t channels,
                    float factor, uint8_t* out) {
    any_sharpen(image, height, width, channels, Sharper{factor}, out);
}

CLONES void blend(const uint8_t* image, const uint8_t* second, int64_t count, float factor,
                  uint8_t* out) {
    for (int64_t i = 0; i < count; ++i)
        out[i] = uint8_t(int32_t(mixed(float(image[i]), float(second[i]), factor)));
}

}  // namespace core::pillow

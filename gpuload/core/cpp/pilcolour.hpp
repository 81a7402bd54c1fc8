// Colour as Pillow: uint8 images whose colours are changed as `kernels.colour_pillow` says, bit for
// bit; HWC.
#pragma once

#include <cstdint>

namespace core::pillow {

// Tables of 256: of autocontrast for a channel with such bounds, and of contrast for an image with
// such a mean.
void stretch_table(uint8_t low, uint8_t high, uint8_t* table);
void contrast_table(float mean, float factor, uint8_t* table);

// Red, green and blue.
int64_t sum_grays(const uint8_t* image, int64_t pixels);
void saturate(const uint8_t* image, int64_t pixels, float factor, uint8_t* out);

// Any number of channels, at least 3 x 3 pixels; out is not the image.
void sharpen(const uint8_t* image, int64_t height, int64_t width, int64_t channels, float factor,
             uint8_t* out);

// Mixes values with those of a second image: `value + factor * (second - value)`, bounded and cut
// off.
void blend(const uint8_t* image, const uint8_t* second, int64_t count, float factor, uint8_t* out);

}  // namespace core::pillow

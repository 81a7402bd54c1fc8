// Colour: uint8 images whose colours are changed, as `ops.colour` says; channels lie side by side (HWC).
#pragma once

#include <cstdint>

namespace core {

// Looks up each value in the table of its channel: tables [channels, 256].
void look_up(const uint8_t* image, int64_t pixels, int64_t channels, const uint8_t* tables, uint8_t* out);

// Adds how often each value occurs in each channel: counts [channels, 256].
void count_levels(const uint8_t* image, int64_t pixels, int64_t channels, int64_t* counts);

// The functions below are for red, green and blue. A weight is 1 - factor, rounded to float32.
int64_t sum_grays(const uint8_t* image, int64_t pixels);
void make_gray(const uint8_t* image, int64_t pixels, int64_t out_channels, uint8_t* out);
void saturate(const uint8_t* image, int64_t pixels, float factor, float weight, uint8_t* out);
void turn_hue(const uint8_t* image, int64_t pixels, float shift, uint8_t* out);

// Any number of channels, at least 3 x 3 pixels; out is not the image.
void sharpen(const uint8_t* image, int64_t height, int64_t width, int64_t channels, float weight, uint8_t* out);

}  // namespace core

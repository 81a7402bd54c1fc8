// Colour: uint8 images whose colours are changed, as `kernels.colour` says; channels lie side by
// side (HWC).
#pragma once

#include <cstdint>

namespace core {

// Adds how often each value occurs in each channel: counts [channels, 256].
void count_levels(const uint8_t* image, int64_t pixels, int64_t channels, int64_t* counts);

// Writes the least and the largest value of each channel; an image without pixels has 255 and 0.
void find_bounds(const uint8_t* image, int64_t pixels, int64_t channels, uint8_t* low,
                 uint8_t* high);

// Tables of 256: of autocontrast for a channel with such bounds, of equalize for one with such
// counts, of brightness, and of contrast for an image with such a mean. A weight is 1 - factor,
// rounded to float32, here and below.
void stretch_table(uint8_t low, uint8_t high, uint8_t* table);
void even_table(const int64_t* counts, uint8_t* table);
void brightness_table(float factor, uint8_t* table);
void contrast_table(float mean, float factor, float weight, uint8_t* table);

// The functions below are for red, green and blue.
int64_t sum_grays(const uint8_t* image, int64_t pixels);
void make_gray(const uint8_t* image, int64_t pixels, int64_t out_channels, uint8_t* out);
void saturate(const uint8_t* image, int64_t pixels, float factor, float weight, uint8_t* out);
void turn_hue(const uint8_t* image, int64_t pixels, float shift, uint8_t* out);

// Any number of channels, at least 3 x 3 pixels; out is not the image.
void sharpen(const uint8_t* image, int64_t height, int64_t width, int64_t channels, float weight,
             uint8_t* out);

}  // namespace core

// Lab: 8-bit red, green and blue to CIE L*a*b* and back, as `kernels.lab` defines it and equal to
// it value by value.
#pragma once

#include <cstdint>

namespace core {

// Writes L, a and b of pixels to planes of their own.
void to_lab(const uint8_t* image, int64_t pixels, uint8_t* lightness, uint8_t* a, uint8_t* b);

// Writes the pixels of these planes.
void from_lab(const uint8_t* lightness, const uint8_t* a, const uint8_t* b, int64_t pixels,
              uint8_t* image);

}  // namespace core

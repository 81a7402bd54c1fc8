// Affine transforms of images of bytes as Pillow makes them: `kernels.pillow.affine`, bit for bit.
#pragma once

#include <cstdint>

#include "resize.hpp"

namespace core::pillow {

enum class Interpolation { NEAREST, LINEAR, CUBIC };

// Takes pixel (x, y) of the result at (a x' + b y' + c, d x' + e y' + f) of the image, x' = x + 0.5
// and y' = y + 0.5, and `fill`, a byte for each channel, where that lies outside. The result is as
// large as the image, and not its memory; the six numbers are finite.
void affine(const Image<const uint8_t>& from, const double* matrix, Interpolation interpolation,
            const uint8_t* fill, uint8_t* out);

// Turns an image by so many quarters, counter-clockwise; by 1 and 3 of a square one alone.
void turn(const Image<const uint8_t>& from, int quarters, uint8_t* out);

}  // namespace core::pillow

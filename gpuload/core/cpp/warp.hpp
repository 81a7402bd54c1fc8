// Warp one image, as `ops.warp` defines it and equal to it bit for bit: pixels taken where a matrix says.
#pragma once

#include <cstdint>

#include "resize.hpp"

namespace core {

struct Matrix {  // six numbers of an affine map, or eight of a perspective
    const float* numbers;
    int64_t count;
};

// Takes the nearest pixels; a pixel is `channels` bytes, whatever they hold. `fill` has as many.
void warp_nearest(const Image<const uint8_t>& from, const Matrix& matrix, const uint8_t* fill, const Image<uint8_t>& to);

// Blends four pixels. `fill` has a number for each channel.
template <class T>
void warp_linear(const Image<const T>& from, const Matrix& matrix, const float* fill, const Image<T>& to);

struct Grid {  // the columns and the rows of the image at which the pixels of a result are taken, one after the other
    const float *columns, *rows;
};

// The same at places that are given.
void sample_nearest(const Image<const uint8_t>& from, const Grid& grid, const uint8_t* fill, const Image<uint8_t>& to);
template <class T>
void sample_linear(const Image<const T>& from, const Grid& grid, const float* fill, const Image<T>& to);

}  // namespace core

// Pillow: its functions of one value or one place; `kernels.pillow`, `kernels.colour_pillow` and
// `kernels.blur_pillow` say what they are.
#pragma once

#include "numbers.hpp"

namespace core {
namespace pillow {

constexpr int RESIZE_BITS = 22, RESIZE_HALF = 1 << (RESIZE_BITS - 1);  // Pillow's PRECISION_BITS
constexpr int BOX_BITS = 24;
constexpr int MOST_BOX = 1;  // the largest reach of a box: that of sigma 2, timm's largest

SHARED int gray_of(int red, int green, int blue) {
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16;
}

// Bounded, to be cut off.
SHARED float mixed(float base, float value, float factor) {
    return bounded(base + factor * (value - base), 255.0f);
}

// Autocontrast, to be cut off.
SHARED double stretched(int level, int low, int high) {
    if (low == high) return (double)level;
    const double scale = 255.0 / (double)(high > low ? high - low : 1);
    const double place = (double)level * scale + -(double)low * scale;
    return place < 0.0 ? 0.0 : place > 255.0 ? 255.0 : place;
}

// A box of a blur: the sum of its whole pixels and of the two at its ends, times their weights in
// whole numbers of 2**-24. Bytes times weights of which the sum is 2**24 stay below 2**32.
SHARED unsigned box_mean(unsigned sum, unsigned edges, unsigned weight, unsigned edge_weight) {
    return (sum * weight + edges * edge_weight + (1u << (BOX_BITS - 1))) >> BOX_BITS;
}

SHARED int resized(int total) { return byte_of(total >> RESIZE_BITS); }

// Whether a point is within reach of places in whole numbers of 1/65536, and such a number.
SHARED bool is_near(const double* matrix, double x, double y) {
    return fabs(x * matrix[0] + y * matrix[1] + matrix[2]) < 32768.0 &&
           fabs(x * matrix[3] + y * matrix[4] + matrix[5]) < 32768.0;
}

SHARED bool is_fixed(const double* matrix, double width, double height) {
    return is_near(matrix, 0.0, 0.0) && is_near(matrix, 0.0, height) &&
           is_near(matrix, width, 0.0) && is_near(matrix, width, height);
}

SHARED long long fixed(double number) { return (long long)floor(number * 65536.0 + 0.5); }

// A value between pixels: two, or four of which it lies in the middle.
SHARED double linear(double first, double second, double place) {
    return first + (second - first) * place;
}

SHARED double cubic(double first, double second, double third, double fourth, double place) {
    const double line = -first + third, square = 2 * (first - second) + third - fourth;
    const double cube = -first + second - third + fourth;
    return second + place * (line + place * (square + place * cube));
}

// The pixel of an image that a turn by quarters, 1 to 3, counter-clockwise, takes to a row and a
// column of the result.
template <class Int>
SHARED Int turned_row(int quarters, Int y, Int x, Int height) {
    return quarters == 1 ? x : quarters == 2 ? height - 1 - y : height - 1 - x;
}

template <class Int>
SHARED Int turned_column(int quarters, Int y, Int x, Int width) {
    return quarters == 2 ? width - 1 - x : quarters == 1 ? width - 1 - y : y;
}

}  // namespace pillow
}  // namespace core

// Places: where in an image a pixel of a result is taken from, and with which weights; see
// `ops.geometry.warp` and `kernels.resampling`.
#pragma once

#include "numbers.hpp"

namespace core {

// The coordinate of the first pixel of a result: of an affine map 0 is the middle of the result, of
// a perspective its border.
template <class Int>
SHARED float first_place(Int length, bool is_affine) {
    return is_affine ? (float)((double)(1 - length) * 0.5) : 0.5f;
}

// A line of a matrix, with the products of both coordinates.
SHARED float line_sum(float across, double down, float last) {
    return (float)((double)across + down) + last;
}

// A coordinate in halves of a side, -1 to 1, as pixels.
SHARED float to_pixels(float place, double half) {
    return (float)((double)(place + 1.0f) * half - 0.5);
}

struct Share {  // of a place between two pixels: of the first and of the second
    float first, second;
};

SHARED Share share_of(float place) {
    const float second = place - floorf(place);
    return {1.0f - second, second};
}

// The sum of the pixels about a place and the fill for those that lie outside, by the weights that
// lie inside.
SHARED float over_fill(float total, float weight, float fill) {
    return (total - fill) * weight + fill;
}

// The weight of a pixel by a filter's table, `place` entries behind its first, between two entries
// of which the others are 0.
SHARED float tap_weight(float place, float low, float high, float entries) {
    return place > -1.0f && place < entries ? low + (place - floorf(place)) * (high - low) : 0.0f;
}

}  // namespace core

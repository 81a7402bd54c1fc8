// Tiles: the arithmetic of CLAHE, see `ops.colour.clahe`.
#pragma once

#include "numbers.hpp"

namespace core {

template <class Int>
struct Neighbours {  // the two tiles about a pixel along an axis, and how much of the second
    Int before, after;
    float share;
};

template <class Int>
SHARED Neighbours<Int> neighbours(Int pixel, Int tile, Int tiles) {
    const float place = (float)pixel * (1.0f / (float)tile) - 0.5f, first = floorf(place);
    const Int number = (Int)first;
    return {clipped(number, tiles), number + 1 < tiles ? number + 1 : tiles - 1, place - first};
}

// The side of a tile of an axis that has so many. An image whose tiles are not whole is continued:
// the side becomes the next one, also along an axis that could be divided.
template <class Int>
SHARED Int tile_side(Int length, Int tiles, bool are_whole) {
    return length / tiles + (are_whole ? 0 : 1);
}

// How many values a level may have in a tile of so many pixels.
SHARED int limit_of(double limit, int pixels, int levels) {
    const double most = (double)pixels, share = limit * most / (double)levels;
    return (int)(share < 1.0 ? 1.0 : share > most ? most : share);
}

// What a level becomes, of which and below which a tile has so many values.
SHARED float level_after(int sum, int pixels, int levels) {
    const float most = (float)(levels - 1);
    return rounded_to((float)sum * (most / (float)pixels), most);
}

// The new value of a pixel: by the curves of the tiles above it and below it, before it and after
// it.
SHARED float between(const float* values, float right, float lower, float most) {
    const float left = 1.0f - right, upper = 1.0f - lower;
    const float above = values[0] * left + values[1] * right;
    const float below = values[2] * left + values[3] * right;
    return rounded_to(above * upper + below * lower, most);
}

}  // namespace core

// Colour: torchvision's functions of one colour or one value, see `kernels.colour`. Results of bytes
// are not bounded and not cut off here: callers do that.
#pragma once

#include "numbers.hpp"

namespace core {

struct Colour {
    float red, green, blue;
};

SHARED float gray_of(Colour colour) {
    const float total = multiply_add(colour.green, 0.587f, colour.red * 0.2989f);
    return multiply_add(colour.blue, 0.114f, total);
}

// A weight is 1 - factor, rounded to float.
SHARED float blended(float value, float base, float factor, float weight) {
    return multiply_add(base, weight, value * factor);
}

SHARED float sharpened(float middle, float smooth, float weight) {
    return multiply_add(smooth - middle, weight, middle);
}

// The mean of 3 x 3 bytes of which the middle one weighs 5, halves up, by their sum, at most 3315:
// (2 * sum + 13) / 26.
SHARED int smooth_of(unsigned sum) { return (int)(((2u * sum + 13u) * 40330u) >> 20); }

// Autocontrast; `unit` is 1 / the largest value.
SHARED float stretched(float value, float low, float high, float unit) {
    const bool is_flat = low == high;
    return (value - (is_flat ? 0.0f : low)) / (is_flat ? 1.0f : (high - low) * unit);
}

// Equalize: the new value of a level. So many values lie `before` it, and `step` is 1 / 255 of all
// values below the largest.
template <class Int>
SHARED Int evened(Int level, Int before, Int step) {
    const Int even = step == 0 ? level : (before + step / 2) / step;
    return even < 255 ? even : 255;
}

// Turns the hue of a colour by a part of a turn. Channels times `unit` are 0 to 1; results are
// times `levels`. They are written one by one, so that the core's compiler makes vector code of a
// loop over colours (g++ 12).
SHARED void turn_hue(float& red_at, float& green_at, float& blue_at, float shift, float unit,
                     float levels) {
    const float red = red_at * unit, green = green_at * unit, blue = blue_at * unit;
    const float high = larger(red, larger(green, blue)), low = smaller(red, smaller(green, blue));
    const bool is_gray = high == low, is_red = high == red, is_green = high == green;
    const float span = high - low, saturation = span / (is_gray ? 1.0f : high);
    const float divisor = is_gray ? 1.0f : span;
    // (above + offset) - below, where these are parts of the span by which two channels lie below
    // the highest one.
    const float above = (is_red ? high - blue : is_green ? high - red : high - green) / divisor;
    const float below = (is_red ? high - green : is_green ? high - blue : high - red) / divisor;
    float turn = (above + (is_red ? 0.0f : is_green ? 2.0f : 4.0f)) - below;
    turn = turn * (float)(1.0 / 6) + 1.0f;
    turn = turn - floorf(turn);
    turn = turn + shift;
    turn = turn - truncf(turn);
    turn = turn < 0.0f ? turn + 1.0f : turn;
    const float six = turn * 6.0f, sector = floorf(six);  // 0 to 6, of which 6 is as 0
    const float ramp = saturation * (six - sector), pale = 1.0f - saturation;
    const bool is_odd = floorf(sector * 0.5f) != sector * 0.5f;
    const float middle = bounded((is_odd ? 1.0f - ramp : ramp + pale) * high, 1.0f);
    const float least = bounded(pale * high, 1.0f);
    const bool is_red_least = six >= 2.0f && six < 4.0f, is_green_least = six >= 4.0f && six < 6.0f;
    const bool is_blue_least = six < 2.0f || six >= 6.0f;
    red_at = levels * (six < 1.0f || six >= 5.0f ? high : is_red_least ? least : middle);
    green_at = levels * (six >= 1.0f && six < 3.0f ? high : is_green_least ? least : middle);
    blue_at = levels * (six >= 3.0f && six < 5.0f ? high : is_blue_least ? least : middle);
}

}  // namespace core

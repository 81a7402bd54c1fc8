// Colour: the functions of one colour for images of bytes, whose results are cut off, or of floats.
#include "../../core/cpp/shared/colour.hpp"

enum { IS_BYTES = sizeof(In) == 1, NUMBERS = CHANNELS < 3 ? 3 : CHANNELS };

__device__ inline float cut(float value) { return IS_BYTES ? floorf(value) : value; }
__device__ inline float within(float value) { return bounded(value, IS_BYTES ? 255.0f : 1.0f); }
__device__ inline float blend(float value, float base, float factor, float weight) {
    return cut(within(blended(value, base, factor, weight)));
}
__device__ inline float gray(const float* color) {
    return CHANNELS == 1 ? color[0] : cut(gray_of({color[0], color[1], color[2]}));
}
__device__ inline void turn(float* color, float shift) {
    const float unit = IS_BYTES ? (float)(1.0 / 255) : 1.0f, levels = IS_BYTES ? 255.999f : 1.0f;
    turn_hue(color[0], color[1], color[2], shift, unit, levels);
    color[0] = cut(color[0]), color[1] = cut(color[1]), color[2] = cut(color[2]);
}
__device__ inline void read(const Image& image, int y, int x, float* color) {
    for (int channel = 0; channel < CHANNELS; ++channel)
        color[channel] = (float)at(image, y, x, channel);
}

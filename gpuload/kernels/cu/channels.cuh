// Channels: ops that make other channels of those of a pixel, one of those below.
#include "colour.cuh"

typedef int Stats;

#if defined(GRAYSCALE)

// Where `words` begins with 1.
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    float color[NUMBERS];
    read(image, y, x, color);
    for (int channel = 0; channel < OUT_CHANNELS; ++channel)
        to[channel] = (Out)(words[0] ? gray(color) : color[channel < CHANNELS ? channel : 0]);
}

#elif defined(REORDER)

// `words` has the channel of the image for each channel of the result.
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    for (int channel = 0; channel < OUT_CHANNELS; ++channel)
        to[channel] = at(image, y, x, words[channel]);
}

#elif defined(PILLOW_YCBCR)

// `YCBCR` are the weights, three for each channel of the result.
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    const double weights[] = YCBCR;
    for (int channel = 0; channel < 3; ++channel) {
        int total = 0;
        for (int other = 0; other < 3; ++other) {
            double part = weights[3 * channel + other] * (double)at(image, y, x, other);
            total += (int)(part * 64.0 + 0.5);
        }
        to[channel] = (Out)((total >> 6) + (channel ? 128 : 0));
    }
}

#elif defined(PILLOW_HSV)

__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    float color[NUMBERS];
    read(image, y, x, color);
    float high = fmaxf(color[0], fmaxf(color[1], color[2]));
    float low = fminf(color[0], fminf(color[1], color[2]));
    float span = fmaxf(high - low, 1.0f);
    double red = (high - color[0]) / span, green = (high - color[1]) / span;
    double blue = (high - color[2]) / span;
    float sextant = (float)(high == color[0] ? blue - green
        : high == color[1] ? 2.0 + red - blue : 4.0 + green - red);
    double turns = (double)sextant / 6.0 + 1.0;
    float hue = (float)(turns - floor(turns)), saturation = (high - low) / fmaxf(high, 1.0f);
    to[0] = (Out)((double)hue * 255.0), to[1] = (Out)((double)saturation * 255.0);
    to[2] = (Out)high;
}

#endif

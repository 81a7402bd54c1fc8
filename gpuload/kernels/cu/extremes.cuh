// Extremes: autocontrast by the least and the largest value of each channel.
#include "colour.cuh"

struct Stats { float low[CHANNELS], high[CHANNELS]; };

__device__ inline void merge(Stats& sum, const Stats& part) {
    for (int channel = 0; channel < CHANNELS; ++channel) {
        sum.low[channel] = fminf(sum.low[channel], part.low[channel]);
        sum.high[channel] = fmaxf(sum.high[channel], part.high[channel]);
    }
}
__device__ inline Stats values_at(const Image& image, int y, int x) {
    Stats values;
    for (int channel = 0; channel < CHANNELS; ++channel)
        values.low[channel] = values.high[channel] = (float)at(image, y, x, channel);
    return values;
}
__device__ inline Stats start(const Image& image, const Stats* before) {
    return values_at(image, 0, 0);
}
__device__ inline void add(Stats& sum, const Image& image, int y, int x, const int* words) {
    merge(sum, values_at(image, y, x));
}

#include "whole.cuh"

__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    const float unit = (float)(1.0 / (IS_BYTES ? 255 : 1));
    Stats sum = whole(stats);
    for (int channel = 0; channel < CHANNELS; ++channel) {
        float value = (float)at(image, y, x, channel);
        float result = cut(within(stretched(value, sum.low[channel], sum.high[channel], unit)));
        to[channel] = (Out)(words[0] ? result : value);
    }
}

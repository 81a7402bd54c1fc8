// Sharpen: `words` has the weight.
#include "smooth.cuh"

typedef int Stats;

__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    for (int channel = 0; channel < CHANNELS; ++channel)
        to[channel] = (Out)sharpened_at(image, y, x, channel, number(words[0]));
}

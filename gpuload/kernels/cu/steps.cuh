// Steps: up to MOST_STEPS of brightness, contrast, saturation and hue; `colour_cuda` has their
// numbers. `words` has the steps in order, the number of each, and 1 minus it where it is a factor.
#include "colour.cuh"

struct Stats { double total; };

__device__ inline void take_step(float* color, int step, float amount, float weight, float mean) {
    if (step == HUE) {
        if (CHANNELS == 3) turn(color, amount);
        return;
    }
    float base = step == CONTRAST ? mean : step == SATURATION ? gray(color) : 0.0f;
    for (int channel = 0; channel < CHANNELS; ++channel)
        if (step == BRIGHTNESS) color[channel] = cut(within(color[channel] * amount));
        else if (step == CONTRAST || (step == SATURATION && CHANNELS == 3))
            color[channel] = blend(color[channel], base, amount, weight);
}

// The sum of the grays behind the steps before a contrast.
__device__ inline Stats start(const Image& image, const Stats* before) { return {0.0}; }
__device__ inline void merge(Stats& sum, const Stats& part) { sum.total += part.total; }
__device__ inline void add(Stats& sum, const Image& image, int y, int x, const int* words) {
    const int *amounts = words + MOST_STEPS, *weights = amounts + MOST_STEPS;
    float color[NUMBERS];
    read(image, y, x, color);
    for (int turn = 0; turn < MOST_STEPS && words[turn] != CONTRAST; ++turn)
        take_step(color, words[turn], number(amounts[turn]), number(weights[turn]), 0.0f);
    sum.total += (double)gray(color);
}

#include "whole.cuh"

__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    const int *amounts = words + MOST_STEPS, *weights = amounts + MOST_STEPS;
    float color[NUMBERS], mean = 0.0f;
    if (stats) mean = (float)whole(stats).total / (float)(image.height * image.width);
    read(image, y, x, color);
    for (int turn = 0; turn < MOST_STEPS; ++turn)
        take_step(color, words[turn], number(amounts[turn]), number(weights[turn]), mean);
    for (int channel = 0; channel < CHANNELS; ++channel) to[channel] = (Out)color[channel];
}

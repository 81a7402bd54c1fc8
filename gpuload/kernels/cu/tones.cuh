// Tones: ops on each value by itself, one of those below. `words` begins with 1 where an image is
// changed; `changed` reads the words behind it.
#include "colour.cuh"

#ifdef EQUALIZE
typedef unsigned char Stats;
#else
typedef int Stats;
#endif

__device__ inline float inverse(float value) { return (IS_BYTES ? 255.0f : 1.0f) - value; }
__device__ inline int level_of(float value) {
    float levels = IS_BYTES ? value : value * 255.999f;
    return levels > 0.0f ? (int)(levels < 255.0f ? levels : 255.0f) : 0;
}

__device__ inline float changed(float value, int channel, const int* words, const Stats* stats) {
#if defined(INVERT)
    return inverse(value);
#elif defined(SOLARIZE)
    return value >= number(words[0]) ? inverse(value) : value;
#elif defined(POSTERIZE)
    float steps = number(words[0]);
    if (IS_BYTES) return (float)((int)value & (256 - 256 / (int)steps));
    float step = floorf(value * steps);
    step = step > 0.0f ? step : 0.0f;
    return (step < steps - 1.0f ? step : steps - 1.0f) * number(words[1]);
#elif defined(CONTRAST_ABOUT)
    float factor = number(words[0]), middle = number(words[1]);
    float result = value * factor + (middle - factor * middle);
    return IS_BYTES ? floorf(within(result) + ALMOST_HALF) : result;
#elif defined(POWER)
    float power = powf(value, number(words[0])), gain = number(words[1]);
    return gain == 1.0f ? power : bounded(power * gain, 1.0f);
#elif defined(LOOK_UP)
    return (float)((const unsigned char*)words)[(int)value];
#elif defined(EQUALIZE)
    float result = (float)stats[256 * channel + level_of(value)];
    return IS_BYTES ? result : result * (float)(1.0 / 255);
#else
    return value;
#endif
}

__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    for (int channel = 0; channel < CHANNELS; ++channel) {
        float value = (float)at(image, y, x, channel);
#ifdef COUNT_LEVELS
        atomicAdd((int*)stats + 256 * channel + level_of(value), 1);
#else
        to[channel] = (Out)(words[0] ? changed(value, channel, words + 1, stats) : value);
#endif
    }
}

// Resize as Pillow, see `kernels.pillow.resize`: each pass ends in a number of an image.
//
// One axis lies in the table as the first pixels, and then the weights of each. `words` has the
// place of an axis and the number of weights of a pixel: down the columns, then along the rows; 0
// where the axis stays. With FLOATS weights are float64, else whole numbers.
#include "../../core/cpp/shared/pillow.hpp"

#ifdef FLOATS
typedef double Stats;
enum { HALF = 0 };
#else
typedef int Stats;
enum { HALF = pillow::RESIZE_HALF };
#endif

__device__ inline In number_of(int total) { return (In)pillow::resized(total); }
__device__ inline In number_of(double total) { return (In)total; }

__device__ inline In across(const Image& image, int y, int x, int channel, const Stats* steps,
    int support)
{
    if (!support) return at(image, y, x, channel);
    const Stats* weights = steps + image.new_width + (Long)x * support;
    Stats total = HALF;
    for (int tap = 0; tap < support; ++tap) {
        int column = clipped((int)steps[x] + tap, image.width);
        total = total + (Stats)at(image, y, column, channel) * weights[tap];
    }
    return number_of(total);
}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    const Stats *down = stats + words[0], *steps = stats + words[2];
    const Stats* weights = down + image.new_height + (Long)y * words[1];
    for (int channel = 0; channel < CHANNELS; ++channel) {
        Stats total = HALF;
        for (int tap = 0; tap < words[1]; ++tap) {
            int row = clipped((int)down[y] + tap, image.height);
            total = total + (Stats)across(image, row, x, channel, steps, words[3]) * weights[tap];
        }
        to[channel] = words[1] ? number_of(total) : across(image, y, x, channel, steps, words[3]);
    }
}

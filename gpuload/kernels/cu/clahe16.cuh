// CLAHE of images of 16 bits, with COUNT the counts of their tiles. `words` has the tiles down and
// across, whether the image is changed, and a word without use.
#include "tiles.cuh"

typedef int Stats;

__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
#ifdef COUNT
    if (!words[2]) return;
#endif
    Tiling tiles = tiling(image, words[0], words[1]);
    for (int channel = 0; channel < CHANNELS; ++channel) {
#ifdef COUNT
        int row = reflected(y, image.height), column = reflected(x, image.width);
        Long tile = (channel * tiles.rows + y / tiles.height) * tiles.columns + x / tiles.width;
        atomicAdd((int*)stats + tile * LEVELS + at(image, row, column, channel), 1);
#else
        int value = at(image, y, x, channel);
        const Stats* curves = stats + (Long)channel * tiles.rows * tiles.columns * LEVELS;
        to[channel] = words[2]
            ? (Out)between_tiles(image, curves, words[0], words[1], LEVELS, y, x, value) : value;
#endif
    }
}

// Covers: the pixels of `ops.colour.erasing`. `words` has the numbers of the cover; behind them a
// colour, eight bytes a channel, or with NOISE the deviation and a mean for each channel.
//
//   BOXES      the number of boxes: top, left, height and width; 0: a grid: the side of a unit,
//              how much of it stays, and where a unit begins (top, left)
//   NOISE      1: boxes of noise; `stats` has its quantiles
//   OF_PIXELS  1: each pixel has noise of its own, else each box
#if NOISE
typedef unsigned short Stats;
#else
typedef int Stats;
#endif

__device__ inline bool is_in(const int* box, int y, int x) {
    return y >= box[0] && y < box[0] + box[2] && x >= box[1] && x < box[1] + box[3];
}

#if NOISE

__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    Long begin = 0, first = -1;
    for (int turn = 0; turn < BOXES; ++turn) {
        const int* box = words + 4 * turn;
        if (!box[2] || !box[3]) continue;
        Long size = OF_PIXELS ? (Long)box[2] * box[3] : 1;
        Long place = OF_PIXELS ? (Long)(y - box[0]) * box[3] + x - box[1] : 0;
        if (is_in(box, y, x)) first = begin + CHANNELS * place;
        begin += CHANNELS * size;
    }
    const int* numbers = words + 4 * BOXES;
    for (int channel = 0; channel < CHANNELS; ++channel)
        if (first < 0) to[channel] = (Out)at(image, y, x, channel);
        else store(to + channel,
            table[stats[first + channel]] * number(numbers[0]) + number(numbers[1 + channel]));
}

#else

__device__ inline bool is_covered(const int* words, int y, int x) {
#if BOXES
    for (int box = 0; box < BOXES; ++box)
        if (is_in(words + 4 * box, y, x)) return true;
    return false;
#else
    int unit = words[0], stays = words[1];
    return unit && (y + unit - words[2]) % unit >= stays && (x + unit - words[3]) % unit >= stays;
#endif
}

__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats,
    const float* table, Out* to)
{
    bool is_filled = is_covered(words, y, x);
    const int* fill = words + (BOXES ? 4 * BOXES : 4);
    for (int channel = 0; channel < CHANNELS; ++channel)
        to[channel] = is_filled ? *(const Out*)(fill + 2 * channel) : at(image, y, x, channel);
}

#endif

// One thread for each entry of a table: a table for each channel, of CLAHE for each tile of each
// channel.
#include "edits.cuh"

__device__ inline float tile_entry(const Tiling& tiles, int level, double most, const int* counts) {
    int limit = limit_of(most, num_pixels(tiles), 256), up_to = 0, excess = 0;
    for (int other = 0; other < 256; ++other) {
        int count = counts[other] < limit ? counts[other] : limit;
        excess += counts[other] - count;
        up_to += other <= level ? count : 0;
    }
    return curve_at(tiles, level, up_to, excess, 256);
}
extern "C" __global__ void entries(const Edited* images, const double* edits, const int* all_counts,
    Long step, unsigned char* to, int num_tables)
{
    Long row = blockIdx.x / num_tables;
    const Edited& image = images[row];
    int y = blockIdx.x % num_tables, x = threadIdx.x;
    Code code = code_of(image, edits);
    const double* numbers = edits + image.edit + 2;
    const int* stats = all_counts ? all_counts + row * step : all_counts;
    const int *counts = stats + 256 * y, *grays = stats + 256 * CHANNELS;
    to += 256 * (Long)blockIdx.x + x;
    if (code == Code::CLAHE) {
        Tiling tiles = tiling(image, numbers);
        if (y < tiles.rows * tiles.columns * (CHANNELS == RGB ? 1 : CHANNELS))
            *to = (unsigned char)tile_entry(tiles, x, numbers[0], counts);
        return;
    }
    if (y >= CHANNELS || !is_among(LOOK_UPS, code)) return;
    float value = (float)x, factor = (float)numbers[0];
    int before = 0, total = 0, low = 255, high = 0;
    long long sum = 0;
    for (int level = 0; stats && level < 256; ++level) {
        before += level < x ? counts[level] : 0;
        total += counts[level];
        if (counts[level]) low = level < low ? level : low, high = level;
        sum += (long long)level * grays[level];
    }
    float result = value;
    switch (code) {
    case Code::TABLE: result = (float)((const unsigned char*)numbers)[x]; break;
    case Code::BRIGHTNESS: result = cut(within(value * factor)); break;
    case Code::CONTRAST:
        result = blend(value, (float)(double)sum / (float)total, factor, (float)numbers[1]);
        break;
    case Code::PIL_CONTRAST:
        result = pillow_blend((float)floor((double)sum / (double)total + 0.5), value, factor);
        break;
    case Code::AUTOCONTRAST:
        result = cut(within(stretched(value, (float)low, (float)high, (float)(1.0 / 255))));
        break;
    case Code::PIL_AUTOCONTRAST: result = (float)floor(pillow::stretched(x, low, high)); break;
    case Code::EQUALIZE: result = (float)evened(x, before, (total - counts[high]) / 255); break;
    default: break;
    }
    *to = (unsigned char)result;
}

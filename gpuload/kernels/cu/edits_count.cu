// Of each image that needs it, how many values each channel has of each level, and the gray, which
// comes last; of CLAHE how many each tile has, of L of Lab where there are three channels. So many
// blocks for each image take turns.
#include "edits.cuh"

enum { TABLES = CHANNELS + 1, PLANES = CHANNELS == RGB ? 1 : CHANNELS };

__device__ inline void count_tiles(const Edited& image, const double* numbers,
    const LabTables* tables, int* sums, int* counts, int part, int blocks)
{
    Tiling tiles = tiling(image, numbers);
    int num_tiles = tiles.rows * tiles.columns, pixels = num_pixels(tiles);
    for (int tile = part; tile < num_tiles * PLANES; tile += blocks) {
        int channel = tile / num_tiles, top = tile % num_tiles / tiles.columns * tiles.height;
        int left = tile % num_tiles % tiles.columns * tiles.width;
        sums[threadIdx.x] = 0;
        __syncthreads();
        #pragma unroll 1
        for (int place = threadIdx.x; place < pixels; place += THREADS) {
            float color[NUMBERS];
            int y = top + place / tiles.width, x = left + place % tiles.width;
            read(image, reflected(y, image.height), reflected(x, image.width), color);
            int level = CHANNELS == RGB ? to_lab(*tables, levels_of(color)).lightness
                : (int)color[channel];
            atomicAdd(sums + level, 1);
        }
        __syncthreads();
        counts[256 * tile + threadIdx.x] = sums[threadIdx.x];
    }
}
extern "C" __global__ void count(const Edited* images, const double* edits,
    const LabTables* tables, int* counts, Long step, int blocks)
{
    __shared__ int sums[256 * TABLES];
    Long row = blockIdx.x / blocks;
    const Edited& image = images[row];
    int part = blockIdx.x % blocks;
    Code code = code_of(image, edits);
    counts += row * step;
    if (code == Code::CLAHE)
        return count_tiles(image, edits + image.edit + 2, tables, sums, counts, part, blocks);
    if (!is_among(COUNTING, code)) return;
    for (int table = 0; table < TABLES; ++table) sums[256 * table + threadIdx.x] = 0;
    __syncthreads();
    unsigned size = (unsigned)image.height * image.width, length = (size + blocks - 1) / blocks;
    unsigned begin = part * length + threadIdx.x, end = (part + 1) * length;
    if (end > size) end = size;
    for (unsigned place = begin; place < end; place += THREADS) {
        float color[NUMBERS];
        read(image, place / image.width, place % image.width, color);
        for (int channel = 0; channel < CHANNELS; ++channel)
            atomicAdd(sums + 256 * channel + (int)color[channel], 1);
        int level = code == Code::PIL_CONTRAST ? pillow_gray(color) : (int)gray(color);
        atomicAdd(sums + 256 * CHANNELS + level, 1);
    }
    __syncthreads();
    for (int table = 0; table < TABLES; ++table) {
        int place = 256 * table + threadIdx.x;
        if (sums[place]) atomicAdd(counts + place, sums[place]);
    }
}

// Curves: a block for each table of CLAHE of 16 bits. The new values of the levels replace the
// counts. The struct is the dtype `clahe_cuda.IMAGE`.
#include "head.cuh"

struct Image { int height, width, rows, columns; double limit; };

#include "tiles.cuh"

enum { PART = LEVELS / THREADS };

extern "C" __global__ void curves(const Image* images, int* counts, int tables)
{
    __shared__ int sums[THREADS], excesses[THREADS];
    const Image& image = images[blockIdx.x / tables];
    Tiling tiles = tiling(image, image.rows, image.columns);
    int* levels = counts + (Long)blockIdx.x * LEVELS + threadIdx.x * PART;
    int limit = limit_of(image.limit, num_pixels(tiles), LEVELS), sum = 0, excess = 0;
    for (int i = 0; i < PART; ++i) {
        int count = levels[i] < limit ? levels[i] : limit;
        sum += count, excess += levels[i] - count;
    }
    sums[threadIdx.x] = sum, excesses[threadIdx.x] = excess;
    __syncthreads();
    sum = excess = 0;
    for (int thread = 0; thread < THREADS; ++thread) {
        sum += thread < (int)threadIdx.x ? sums[thread] : 0;
        excess += excesses[thread];
    }
    for (int i = 0; i < PART; ++i) {
        sum += levels[i] < limit ? levels[i] : limit;
        levels[i] = (int)curve_at(tiles, threadIdx.x * PART + i, sum, excess, LEVELS);
    }
}

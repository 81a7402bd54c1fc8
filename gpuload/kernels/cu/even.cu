// Even: one thread for each entry of a table of `equalize`, see `kernels.tables.even_tables`.
#include "head.cuh"
#include "../../core/cpp/shared/colour.hpp"

extern "C" __global__ void even(const int* counts, unsigned char* tables)
{
    const int* histogram = counts + 256 * blockIdx.x;
    int level = threadIdx.x, before = 0, total = 0, largest = 0;
    for (int other = 0; other < 256; ++other) {
        int count = histogram[other];
        before += other < level ? count : 0;
        total += count;
        largest = count ? count : largest;
    }
    int even = evened(level, before, (total - largest) / 255);
    tables[256 * blockIdx.x + level] = (unsigned char)even;
}

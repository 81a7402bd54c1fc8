// Rows: one thread for each word of each row: from `origins` to `targets`, or, where that is null,
// row after row to `out`. `Word` is a whole number.
#include "head.cuh"

extern "C" __global__ void rows(const Long* origins, const Long* targets, Word* out, Long num_words,
    int blocks)
{
    Long row = blockIdx.x / blocks, place = (Long)(blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (place >= num_words) return;
    Word* to = targets ? (Word*)targets[row] : out + row * num_words;
    to[place] = ((const Word*)origins[row])[place];
}

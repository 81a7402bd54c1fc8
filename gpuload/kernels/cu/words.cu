// Words: one thread for each block of four random words of each record.
#include "head.cuh"

extern "C" __global__ void words(const unsigned long long* keys, unsigned long long* out,
    int num_blocks, int blocks)
{
    int place = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (place >= num_blocks) return;
    Long record = blockIdx.x / blocks;
    unsigned long long number = place + 1;
    Words words = mix_words({number, 0, 0, 0}, keys[2 * record], keys[2 * record + 1]);
    unsigned long long* to = out + (record * num_blocks + place) * 4;
    to[0] = words.c0, to[1] = words.c1, to[2] = words.c2, to[3] = words.c3;
}

// Change: one thread for each pixel of a result, with all of its channels, which `pixel` makes.
//
// The result is new memory: the description of an image is read once, and not again behind each
// number that is stored. `blocks` is divided by as in division.cuh.
extern "C" __global__ void change(const Image* __restrict__ images, const int* __restrict__ words,
    int num_words, const Stats* stats, Long step, const float* table, Out* __restrict__ out,
    unsigned blocks_factor, int blocks_shift, int blocks)
{
    Long row = (unsigned)((unsigned long long)blockIdx.x * blocks_factor >> blocks_shift);
    const Image& image = images[row];
    unsigned place = (blockIdx.x - (unsigned)row * blocks) * blockDim.x + threadIdx.x;
    if (place >= (unsigned)image.new_height * image.new_width) return;
    pixel(image, place / image.new_width, place % image.new_width, words + row * num_words,
        stats + row * step, table, out + (image.out + place) * OUT_CHANNELS);
}

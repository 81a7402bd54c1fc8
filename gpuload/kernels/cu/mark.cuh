// Mark: one thread for each pixel marks its image where `is_wrong` says so of one of its numbers.
extern "C" __global__ void mark(const Image* images, const int* words, int num_words, bool* marks,
    int blocks)
{
    Long row = blockIdx.x / blocks;
    const Image& image = images[row];
    unsigned place = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (place >= (unsigned)image.height * image.width) return;
    int y = place / image.width, x = place % image.width;
    for (int channel = 0; channel < CHANNELS; ++channel)
        if (is_wrong(at(image, y, x, channel), words + row * num_words)) marks[row] = true;
}

// Gather: a block sums up each of PARTS parts of an image, by `start`, `add` and `merge`.
//
// The parts depend on the size of the image alone: float sums are the same in any batch.
extern "C" __global__ void gather(const Image* images, const int* words, int num_words,
    const Stats* before, Stats* out)
{
    __shared__ Stats sums[THREADS];
    Long row = blockIdx.x / PARTS;
    const Image& image = images[row];
    Stats sum = start(image, before + row * PARTS);
    unsigned begin = (blockIdx.x % PARTS) * THREADS + threadIdx.x;
    unsigned size = (unsigned)image.height * image.width;
    for (unsigned place = begin; place < size; place += PARTS * THREADS)
        add(sum, image, place / image.width, place % image.width, words + row * num_words);
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half; half /= 2) {
        if (threadIdx.x < half) merge(sums[threadIdx.x], sums[threadIdx.x + half]);
        __syncthreads();
    }
    if (!threadIdx.x) out[blockIdx.x] = sums[0];
}

// Whole: the sum of the parts of an image that `gather` made, by `merge`.
__device__ inline Stats whole(const Stats* stats) {
    Stats sum = stats[0];
    for (int part = 1; part < PARTS; ++part) merge(sum, stats[part]);
    return sum;
}

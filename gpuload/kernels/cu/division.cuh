// Division: of numbers below 2**31 by multiplication: a factor, and by how many bits the product is
// shifted; `cuda.divisor` makes both. Larger numbers are divided.
__device__ inline unsigned quotient(unsigned number, unsigned length, unsigned factor, int shift) {
    return number >> 31 ? number / length
        : (unsigned)((unsigned long long)number * factor >> shift);
}

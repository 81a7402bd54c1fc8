// Numbers: arithmetic of single numbers that the core and the kernels of a GPU share.
//
// The files of this folder are compiled into the core, and NVRTC reads their text
// (`kernels.sources`). They use C++14 without its library, and C casts, which the emulated GPU
// takes for a GPU's. The NumPy form of an op is written by itself. Results of all three are equal
// bit for bit: no compiler may fuse a product and a sum (-ffp-contract=off, --fmad=false).
#pragma once

#ifdef __CUDACC_VER_MAJOR__  // NVRTC
#define SHARED __device__ inline
#else
#include <math.h>
#define SHARED static inline __attribute__((always_inline))  // as INLINE of clones.hpp
#endif

namespace core {

struct LongProduct {
    unsigned long long high, low;
};

// Operations of which each compiler has a form of its own. `multiply_add` returns a * b + sum with
// one rounding, for numbers of which double holds the sum (`kernels.colour`).
#ifdef __CUDACC_VER_MAJOR__
SHARED float larger(float a, float b) { return fmaxf(a, b); }
SHARED float smaller(float a, float b) { return fminf(a, b); }
SHARED float multiply_add(float a, float b, float sum) {
    return (float)((double)a * (double)b + (double)sum);
}
SHARED LongProduct long_product(unsigned long long a, unsigned long long b) {
    return {__umul64hi(a, b), a * b};
}
#else
SHARED float larger(float a, float b) { return a < b ? b : a; }
SHARED float smaller(float a, float b) { return b < a ? b : a; }
SHARED float multiply_add(float a, float b, float sum) { return fmaf(a, b, sum); }
SHARED LongProduct long_product(unsigned long long a, unsigned long long b) {
    __extension__ typedef unsigned __int128 Wide;
    const Wide product = (Wide)a * (Wide)b;
    return {(unsigned long long)(product >> 64), (unsigned long long)product};
}
#endif

// a * b + sum, added in double: rounded twice, as PyTorch's sums are on processors without a fused
// operation.
SHARED float add_product(float a, float b, float sum) {
    return (float)((double)a * (double)b + (double)sum);
}

SHARED float normalized(float value, float mean, float scale) { return (value - mean) * scale; }

// A value from 0 to `most`; not a number stays so. g++ 12 makes two instructions of this form, and
// more of conditional expressions.
SHARED float bounded(float value, float most) {
    if (value < 0.0f) value = 0.0f;
    if (most < value) value = most;
    return value;
}

// The nearest whole number, halves to even, from 0 to `most`; of not a number 0.
SHARED float rounded_to(float value, float most) {
    const float whole = rintf(value), positive = whole > 0.0f ? whole : 0.0f;
    return positive < most ? positive : most;
}

SHARED int byte_of(int number) { return number < 0 ? 0 : number > 255 ? 255 : number; }

// The pixel of an axis that is next to a place.
template <class Int>
SHARED Int clipped(Int place, Int length) {
    return place < 0 ? 0 : place < length ? place : length - 1;
}

// The pixel that stands for one beyond the border, at most a length away: as in a mirror, the edge
// is not repeated.
template <class Int>
SHARED Int mirrored(Int place, Int length) {
    const Int positive = place < 0 ? -place : place;
    return positive < length ? positive : 2 * (length - 1) - positive;
}

// The same at any place behind the border.
template <class Int>
SHARED Int reflected(Int place, Int length) {
    const Int period = length > 1 ? 2 * (length - 1) : 1, rest = place % period;
    return rest < length ? rest : period - rest;
}

struct Words {
    unsigned long long c0, c1, c2, c3;
};

// Philox 4x64-10, see `rng.philox`: makes four random words of four words and a key.
SHARED Words mix_words(Words words, unsigned long long key_0, unsigned long long key_1) {
    const unsigned long long m0 = 0xD2E7470EE14C6C93ULL, m1 = 0xCA5A826395121157ULL;
    for (int round = 0; round < 10; ++round) {
        const LongProduct first = long_product(words.c0, m0), second = long_product(words.c2, m1);
        words = {second.high ^ words.c1 ^ key_0, second.low, first.high ^ words.c3 ^ key_1,
                 first.low};
        key_0 += 0x9E3779B97F4A7C15ULL, key_1 += 0xBB67AE8584CAA73BULL;
    }
    return words;
}

}  // namespace core

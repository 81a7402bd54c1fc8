// Head, of all kernels: arithmetic that the core has, too, and how a number is stored.
#include <cuda_fp16.h>

#include "../../core/cpp/shared/numbers.hpp"

typedef long long Long;
using namespace core;

__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(__half* to, float value) { *to = __float2half_rn(value); }
__device__ inline void store(unsigned char* to, float value) {
    *to = (unsigned char)rounded_to(value, 255.0f);
}
__device__ inline void store(unsigned short* to, float value) {
    *to = (unsigned short)rounded_to(value, 65535.0f);
}

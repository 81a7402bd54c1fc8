// CUDA's language in C++: the source of a kernel, compiled by g++ behind this file, runs on a thread of the host.
//
// A kernel without a barrier runs one thread of the grid after the other. One with __syncthreads() runs the threads of a block
// as coroutines, which take turns at each barrier. CuPy's own element-wise kernels are loops over the whole array (CUPY_FOR):
// they run once, as a grid of one thread.
// Not here: what threads of one warp tell each other (shuffles, votes), dynamic shared memory, atomics of two streams at once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <ucontext.h>

#include <cassert>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#undef __constant__
#undef __device__
#undef __forceinline__
#undef __global__
#undef __host__
#undef __launch_bounds__
#undef __restrict__
#undef __shared__
#define __constant__
#define __device__
#define __forceinline__ inline
#define __global__
#define __host__
#define __launch_bounds__(...)
#define __restrict__
// One block at a time runs on a thread of the host. Arrays of bytes begin where any number may, as CuPy takes for granted.
#define __shared__ thread_local __attribute__((aligned(16)))

namespace emulated {

struct Index {
  unsigned x = 1, y = 1, z = 1;
};

}  // namespace emulated

static thread_local emulated::Index threadIdx, blockIdx, blockDim, gridDim;
static constexpr int warpSize = 32;

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

template <class A, class B>
static inline auto min(A a, B b) {
  using C = typename std::common_type<A, B>::type;
  return C(a) < C(b) ? C(a) : C(b);
}

template <class A, class B>
static inline auto max(A a, B b) {
  using C = typename std::common_type<A, B>::type;
  return C(a) > C(b) ? C(a) : C(b);
}

namespace emulated {

template <class To, class From>
static inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace emulated

namespace emulated {

// What a GPU makes of a number that the type does not hold: the nearest one of 32 or 64 bits, of which a shorter type keeps
// the low ones. NVRTC makes it `cvt.rzi.s32.f32` and the like; what becomes of nan, the PTX ISA says under `cvt`.
template <class Wide, class From>
static inline Wide saturated(From from) {
  using Limits = std::numeric_limits<Wide>;
  if (std::isnan(from)) return sizeof(From) < 8 && sizeof(Wide) < 8 ? Wide(0) : Wide(1) << (8 * sizeof(Wide) - 1);
  const From end = std::ldexp(From(1), Limits::digits);  // the first number that is too large
  if (from >= end) return Limits::max();
  return from <= -end - 1 || (!Limits::is_signed && from <= -1) ? Limits::min() : Wide(from);
}

template <class To, class From>
static inline To to(From from) {
  if constexpr (!std::is_floating_point<From>::value || !std::is_integral<To>::value || std::is_same<To, bool>::value) {
    return (To)from;
  } else {
    using Signed = typename std::conditional<(sizeof(To) > 4), long long, int>::type;
    using Unsigned = typename std::conditional<(sizeof(To) > 4), unsigned long long, unsigned>::type;
    return To(saturated<typename std::conditional<std::is_signed<To>::value, Signed, Unsigned>::type>(from));
  }
}

template <class To, class From>
static inline void assign(To& place, const From& number) {
  place = to<To>(number);
}

}  // namespace emulated

static inline int __float_as_int(float x) { return emulated::same_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return emulated::same_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return emulated::same_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return emulated::same_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emulated::same_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulated::same_bits<double>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
static inline double rsqrt(double x) { return 1 / std::sqrt(x); }
// Operations that the compiler of a GPU must not contract into a fused multiply-add; g++ is told to contract none.
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline int __float2int_rn(float x) { return emulated::to<int>(std::nearbyint(x)); }
static inline int __float2int_rd(float x) { return emulated::to<int>(std::floor(x)); }

template <class T>
static inline T __ldg(const T* address) {
  return *address;
}

// A clock of 1.5 GHz.
static inline long long clock64() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count() * 3 / 2;
}

template <class T>
static inline T atomicExch(T* address, T value) {
  return std::exchange(*address, value);
}

template <class T>
static inline T atomicAdd(T* address, T value) {
  return std::exchange(*address, *address + value);
}

template <class T>
static inline T atomicMax(T* address, T value) {
  return std::exchange(*address, value > *address ? value : *address);
}

template <class T>
static inline T atomicMin(T* address, T value) {
  return std::exchange(*address, value < *address ? value : *address);
}

template <class T>
static inline T atomicOr(T* address, T value) {
  return std::exchange(*address, *address | value);
}

template <class T>
static inline T atomicCAS(T* address, T expected, T value) {
  return std::exchange(*address, *address == expected ? value : *address);
}

namespace emulated {

constexpr size_t STACK_BYTES = 64 << 10;  // of a thread of a block

// The threads of the block that runs on this thread of the host.
struct Coroutines {
  std::vector<ucontext_t> contexts;
  std::vector<char> stacks;
  std::vector<char> are_finished;
  ucontext_t scheduler;
  unsigned current = 0;
  bool are_running = false;
  void (*kernel)(void**) = nullptr;
  void** arguments = nullptr;
};

static thread_local Coroutines coroutines;

static void begin_thread() {
  Coroutines& block = coroutines;
  block.kernel(block.arguments);
  block.are_finished[block.current] = true;
  swapcontext(&block.contexts[block.current], &block.scheduler);
}

static inline void barrier() {
  if (coroutines.are_running) swapcontext(&coroutines.contexts[coroutines.current], &coroutines.scheduler);
}

// Calls a kernel with arguments that lie where `pointers` say.
template <class Kernel, Kernel kernel>
struct Call;

template <class... Arguments, void (*kernel)(Arguments...)>
struct Call<void (*)(Arguments...), kernel> {
  static void run(void** pointers) { run(pointers, std::index_sequence_for<Arguments...>()); }

  static const size_t* sizes(size_t* number) {
    static const size_t bytes[] = {sizeof(typename std::remove_reference<Arguments>::type)..., 0};
    *number = sizeof...(Arguments);
    return bytes;
  }

 private:
  template <size_t... numbers>
  static void run(void** pointers, std::index_sequence<numbers...>) {
    kernel(*static_cast<typename std::remove_reference<Arguments>::type*>(pointers[numbers])...);
  }
};

static inline void set_thread(unsigned number) {
  threadIdx.x = number % blockDim.x;
  threadIdx.y = number / blockDim.x % blockDim.y;
  threadIdx.z = number / blockDim.x / blockDim.y;
}

static void run_block(void (*kernel)(void**), void** arguments, unsigned num_threads) {
  Coroutines& block = coroutines;
  block.contexts.resize(num_threads);
  block.are_finished.assign(num_threads, false);
  if (block.stacks.size() < num_threads * STACK_BYTES) block.stacks.resize(num_threads * STACK_BYTES);
  block.kernel = kernel;
  block.arguments = arguments;
  block.are_running = true;
  for (unsigned i = 0; i < num_threads; i++) {
    getcontext(&block.contexts[i]);
    block.contexts[i].uc_stack.ss_sp = block.stacks.data() + i * STACK_BYTES;
    block.contexts[i].uc_stack.ss_size = STACK_BYTES;
    block.contexts[i].uc_link = &block.scheduler;
    makecontext(&block.contexts[i], begin_thread, 0);
  }
  for (bool are_left = true; are_left;) {  // each lap takes every thread to its next barrier, or to its end
    are_left = false;
    for (unsigned i = 0; i < num_threads; i++) {
      if (block.are_finished[i]) continue;
      block.current = i;
      set_thread(i);
      swapcontext(&block.scheduler, &block.contexts[i]);
      are_left = true;
    }
  }
  block.are_running = false;
}

static inline void run_grid(void (*kernel)(void**), void** arguments, const unsigned* size, bool has_barriers, bool is_loop) {
  gridDim = is_loop ? Index() : Index{size[0], size[1], size[2]};
  blockDim = is_loop ? Index() : Index{size[3], size[4], size[5]};
  const unsigned num_threads = blockDim.x * blockDim.y * blockDim.z;
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
        if (has_barriers) {
          run_block(kernel, arguments, num_threads);
          continue;
        }
        for (unsigned i = 0; i < num_threads; i++) {
          set_thread(i);
          kernel(arguments);
        }
      }
}

}  // namespace emulated

static inline void __syncthreads() { emulated::barrier(); }
static inline void __syncwarp(unsigned = 0xffffffff) { emulated::barrier(); }

#include <cupy/complex.cuh>

#include <cupy/carray.cuh>

#include <cupy/atomics.cuh>

#include <cupy/math_constants.h>

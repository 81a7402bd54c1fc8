// Clones: a function with CLONES in front of it is compiled for three kinds of processor. The
// dynamic loader chooses the one to call. All return the same bits: -ffp-contract=off keeps the
// compiler from fusing a multiplication and an addition.
#pragma once

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && \
    !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HAS_CLONES 1
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CLONES
#endif

// A function is compiled for the processor of a clone if it is inlined into it.
#define INLINE static inline __attribute__((always_inline))  // for functions that clones call
#define INLINE_MEMBER inline __attribute__((always_inline))  // the same for a function of a class

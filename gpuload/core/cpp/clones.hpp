// Clones: a function compiled for several kinds of processor; the loader of the program picks one. All have the same
// bits as results: -ffp-contract=off keeps the compiler from fusing a multiplication and an addition.
#pragma once

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))  // what a clone calls is compiled for its processor only so
#define INLINE_MEMBER inline __attribute__((always_inline))  // the same for a function of a class

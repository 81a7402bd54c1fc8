// Shuffle: 16 bytes picked from two times 16, by numbers that the compiler knows; one or two
// instructions of a processor that has them. GCC and clang each have a function of their own for
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "clones.hpp"

namespace core {

typedef uint8_t Bytes16 __attribute__((vector_size(16)));

template <class Source, size_t... places>
INLINE Bytes16 shuffle_bytes(Bytes16 first, Bytes16 second, std::index_sequence<places...>) {
#if defined(__clang__)
    return __builtin_shufflevector(first, second, Source::of(places)...);
#else
    return __builtin_shuffle(first, second, Bytes16{uint8_t(Source::of(places))...});
#endif
}

// Returns, at each place i, byte Source::of(i) of `first`, or of `second` where that is 16 and
// more; `of` is constexpr.
template <class Source>
INLINE Bytes16 shuffle_bytes(Bytes16 first, Bytes16 second) {
    return shuffle_bytes<Source>(first, second, std::make_index_sequence<16>{});
}

}  // namespace core

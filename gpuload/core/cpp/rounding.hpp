// Rounding: a float as a value that T holds: the nearest, halves to even, bounded; a float stays as
// it is.
#pragma once

#include <cstdint>
#include <type_traits>

#include "clones.hpp"
#include "shared/numbers.hpp"

namespace core {

template <class T>
INLINE T rounded(float value) {
    if constexpr (std::is_same_v<T, float>) {
        return value;
    } else {
        return T(int32_t(rounded_to(value, std::is_same_v<T, uint8_t> ? 255.0f : 65535.0f)));
    }
}

}  // namespace core

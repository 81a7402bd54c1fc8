// Rounding: a float as a value that T holds: the nearest, halves to even, bounded; a float stays as
// it is.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "clones.hpp"

namespace core {

template <class T>
INLINE T rounded(float value) {
    if constexpr (std::is_same_v<T, float>) {
        return value;
    } else {
        // As `rounded_to`, of which g++ 12 makes a longer loop in a blur.
        constexpr float most = std::is_same_v<T, uint8_t> ? 255.0f : 65535.0f;
        const float whole = rintf(value), low = whole > 0.0f ? whole : 0.0f;
        return T(int32_t(low < most ? low : most));
    }
}

}  // namespace core

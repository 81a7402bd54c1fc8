// Pixels: what the targets that move pixels share: images and numbers of the fuzzer's choice, and how values are compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "../../../gpuload/core/cpp/resize.hpp"
#include "target.hpp"

namespace fuzz {

template <class T>
bool is_equal(T a, T b) {  // bit for bit, but for the bits of NaN
    return std::memcmp(&a, &b, sizeof(T)) == 0 || (a != a && b != b);
}

inline float float_of(Input& input) {  // mostly a small number, else any: NaN, infinity, subnormal
    const uint8_t kind = input.byte();
    if (kind < 224) return float(int(kind) - 112) / 16;
    const auto bits = uint32_t(input.word());
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline float finite_of(Input& input) {
    const float value = float_of(input);
    return std::isfinite(value) ? value : 1;
}

template <class T>
Block<T> pixels_of(Input& input, int64_t count) {
    Block<T> pixels{size_t(count)};
    for (int64_t i = 0; i < count; ++i)
        if constexpr (std::is_same_v<T, float>)
            pixels[i] = float_of(input);
        else if constexpr (sizeof(T) == 2)
            pixels[i] = T(input.number(0, 65535));
        else
            pixels[i] = input.byte();
    return pixels;
}

// A value as T holds it: the nearest, halves to even, bounded; NaN is 0.
template <class T>
T stored(float value) {
    if constexpr (std::is_same_v<T, float>) {
        return value;
    } else {
        constexpr float most = std::numeric_limits<T>::max();
        if (!(value > 0)) return 0;
        if (value >= most) return T(most);
        const int whole = int(value);
        const float part = value - float(whole);
        return T(part > 0.5f || (part == 0.5f && whole % 2) ? whole + 1 : whole);
    }
}

// An image whose rows may lie apart. Its memory ends with its last pixel.
template <class T>
struct Picture {
    int64_t channels, height, width, stride;
    Block<T> pixels;

    Picture(Input& input, int64_t num_channels, int64_t most = 12)
        : channels(num_channels), height(input.number(1, most)), width(input.number(1, most)),
          stride(width * channels + (input.flag() ? input.number(0, 40) : 0)),
          pixels(pixels_of<T>(input, stride * (height - 1) + width * channels)) {}

    T at(int64_t row, int64_t column, int64_t channel) const { return pixels[row * stride + column * channels + channel]; }
    core::Image<const T> image() const { return {pixels.data(), stride, height, width, channels}; }
};

// What a function writes to: an image whose rows lie side by side.
template <class T>
struct Result {
    int64_t channels, height, width;
    Block<T> pixels;

    Result(int64_t num_channels, int64_t num_rows, int64_t num_columns)
        : channels(num_channels), height(num_rows), width(num_columns), pixels(size_t(num_channels * num_rows * num_columns)) {}

    core::Image<T> image() { return {pixels.data(), width * channels, height, width, channels}; }

    // Compares each value with `expected(row, column, channel)`.
    template <class Expected>
    void compare(const Expected& expected, const char* what) const {
        for (int64_t y = 0; y < height; ++y)
            for (int64_t x = 0; x < width; ++x)
                for (int64_t c = 0; c < channels; ++c)
                    ensure(is_equal<T>(pixels[(y * width + x) * channels + c], expected(y, x, c)), what);
    }
};

}  // namespace fuzz

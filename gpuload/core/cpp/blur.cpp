// Blur: see blur.hpp.
//
// Assumes: images of one size, pixels side by side in a row, and weights that reach less far than
// the image; the Python face checked it.
#include "blur.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "clones.hpp"
#include "rounding.hpp"
#include "shared/numbers.hpp"

namespace core {
namespace {

constexpr int64_t AT_ONCE = 4;  // vectors that are summed in registers
constexpr size_t LINE = 64;     // bytes of the cache

// Sums lines, each times its weight, in their order, in vectors of so many bytes.
template <int BYTES>
INLINE void sum_lines(float* to, const float* const* lines, const float* weights, int64_t num_lines,
                      int64_t count) {
    typedef float Vector __attribute__((vector_size(BYTES), aligned(4), may_alias));
    constexpr int64_t WIDTH = BYTES / int64_t(sizeof(float)), STEP = WIDTH * AT_ONCE;
    for (int64_t begin = 0; begin < count; begin += STEP) {
        if (count < STEP) {
            for (int64_t i = 0; i < count; ++i) {
                float total = lines[0][i] * weights[0];
                for (int64_t line = 1; line < num_lines; ++line)
                    total += lines[line][i] * weights[line];
                to[i] = total;
            }
            return;
        }
        const int64_t place =
            std::min(begin, count - STEP);  // the last ones may be summed a second time
        Vector totals[AT_ONCE];
        for (int64_t n = 0; n < AT_ONCE; ++n)
            totals[n] = *reinterpret_cast<const Vector*>(lines[0] + place + WIDTH * n) * weights[0];
        for (int64_t line = 1; line < num_lines; ++line) {
            const float* const values = lines[line] + place;
            for (int64_t n = 0; n < AT_ONCE; ++n)
                totals[n] += *reinterpret_cast<const Vector*>(values + WIDTH * n) * weights[line];
        }
        for (int64_t n = 0; n < AT_ONCE; ++n)
            *reinterpret_cast<Vector*>(to + place + WIDTH * n) = totals[n];
    }
}

// Leaves out weights at both ends that are 0, which change no sum of whole numbers.
template <class T>
INLINE Line trimmed(Line line) {
    if (std::is_same_v<T, float>) return line;
    while (line.count > 1 && line.weights[0] == 0 && line.weights[line.count - 1] == 0)
        line = {line.weights + 1, line.count - 2};
    return line;
}

// Returns memory of so many floats that begins with a line of the cache.
INLINE float* aligned(std::vector<float>& memory, size_t count) {
    memory.resize(count + LINE / sizeof(float));
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + LINE - 1) / LINE *
                                    LINE);
}

template <class T, int BYTES>
INLINE void any_blur(const Image<const T>& from, Line down, Line across, const Image<T>& to) {
    down = trimmed<T>(down);
    across = trimmed<T>(across);
    const int64_t channels = from.channels, size = from.width * channels;
    const int64_t reach = down.count / 2, margin = across.count / 2 * channels;
    // The source rows of a result lie so close to each other that each has a place of its own among
    // these.
    const int64_t distance = (size + 15) / 16 * 16;  // whole lines of the cache
    std::vector<float> memory, line(size_t(size + 2 * margin)), total(static_cast<size_t>(size));
    float* const rows =
        aligned(memory, std::is_same_v<T, float> ? 0 : size_t(down.count * distance));
    std::vector<int64_t> numbers(size_t(down.count), -1);  // of the rows that are there
    std::vector<const float*> above(static_cast<size_t>(down.count)),
        beside(static_cast<size_t>(across.count));
    float* const row = line.data() + margin;
    for (int64_t tap = 0; tap < across.count; ++tap)
        beside[size_t(tap)] = line.data() + tap * channels;
    for (int64_t y = 0; y < from.height; ++y) {
        for (int64_t tap = 0; tap < down.count; ++tap) {
            const int64_t number = mirrored(y + tap - reach, from.height),
                          place = number % down.count;
            const T* const source = from.pixels + number * from.stride;
            if constexpr (std::is_same_v<T, float>) {
                above[size_t(tap)] = source;
            } else {
                float* const floats = rows + place * distance;
                above[size_t(tap)] = floats;
                if (numbers[size_t(place)] == number) continue;
                numbers[size_t(place)] = number;
                for (int64_t i = 0; i < size; ++i) floats[i] = float(source[i]);
            }
        }
        sum_lines<BYTES>(row, above.data(), down.weights, down.count, size);
        for (int64_t x = 1; x <= across.count / 2; ++x) {
            std::copy_n(row + mirrored(-x, from.width) * channels, channels, row - x * channels);
            std::copy_n(row + mirrored(from.width - 1 + x, from.width) * channels, channels,
                        row + (from.width - 1 + x) * channels);
        }
        sum_lines<BYTES>(total.data(), beside.data(), across.weights, across.count, size);
        T* __restrict target = to.pixels + y * to.stride;
        const float* __restrict sums = total.data();
        for (int64_t i = 0; i < size; ++i) target[i] = rounded<T>(sums[i]);
    }
}

// Each has vectors of its processor's size: a narrower one would take them apart, and slowly.

template <class T>
void blur_128(const Image<const T>& from, const Line& down, const Line& across,
              const Image<T>& to) {
    any_blur<T, 16>(from, down, across, to);
}

#ifdef HAS_CLONES

template <class T>
__attribute__((target("arch=x86-64-v3"))) void blur_256(const Image<const T>& from,
                                                        const Line& down, const Line& across,
                                                        const Image<T>& to) {
    any_blur<T, 32>(from, down, across, to);
}

template <class T>
__attribute__((target("arch=x86-64-v4"))) void blur_512(const Image<const T>& from,
                                                        const Line& down, const Line& across,
                                                        const Image<T>& to) {
    any_blur<T, 64>(from, down, across, to);
}

#endif

#ifdef HAS_CLONES
// Known before threads begin: a function's own static would have a lock, which a fork may leave
// locked.
const bool has_512 = __builtin_cpu_supports("x86-64-v4"),
           has_256 = __builtin_cpu_supports("x86-64-v3");
#endif

template <class T>
void choose_blur(const Image<const T>& from, const Line& down, const Line& across,
                 const Image<T>& to) {
#ifdef HAS_CLONES
    if (has_512) return blur_512(from, down, across, to);
    if (has_256) return blur_256(from, down, across, to);
#endif
    blur_128(from, down, across, to);
}

}  // namespace

void blur(const Image<const uint8_t>& from, const Line& down, const Line& across,
          const Image<uint8_t>& to) {
    choose_blur(from, down, across, to);
}
void blur(const Image<const uint16_t>& from, const Line& down, const Line& across,
          const Image<uint16_t>& to) {
    choose_blur(from, down, across, to);
}
void blur(const Image<const float>& from, const Line& down, const Line& across,
          const Image<float>& to) {
    choose_blur(from, down, across, to);
}

}  // namespace core

// The door of the core: the functions and classes that Python calls, which `core.face` describes.
//
// Checks  Sizes of arrays, places and numbers are checked in the files door_*.cpp and nowhere else:
//         all other files assume the things that their first lines say. An object of a class of the
//         door is checked once, when it is made: then it is right for all calls that take it.
// Memory  An argument holds the memory of its array until the call returns. An object that needs it
//         longer holds the array, where nothing writes to it, or a copy.
// Lock    The interpreter's lock is free while the core works, but for calls of some microseconds,
//         where it would take longer to get it back.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"

namespace door {

namespace nb = nanobind;
using namespace nb::literals;
using core::Array, core::SpacedArray;
using Bytes = Array<const uint8_t, 1>;
using Floats = Array<const float, 1>;
using Int64s = Array<const int64_t, 1>;
using Int32s = Array<const int32_t, 1>;
using Numbers = Array<const int32_t, 2>;  // some of each image
using Release = nb::gil_scoped_release;

constexpr int64_t SHORT = 4096;         // numbers that are computed in some microseconds
constexpr int64_t MOST_SIDE = 1 << 24;  // of an image; float32 has all whole numbers up to it

inline void require(bool fits, const char* message) {
    if (!fits) throw std::invalid_argument(message);
}

template <class Work>
auto unlocked_if_long(int64_t num_numbers, const Work& work) {
    if (num_numbers <= SHORT) return work();
    Release lock;
    return work();
}

// Returns a copy: others may write to the array while it is used.
template <class T, int N>
std::vector<T> copy_of(const Array<const T, N>& array) {
    return {array.data(), array.data() + array.size()};
}

// Checks that each row lies in `raw`, with `before` bytes in front of it and `behind` after it.
void check_rows(const Bytes& raw, const Int64s& begins, const Int64s& ends, int64_t before = 0,
                int64_t behind = 0);

inline bool is_side(int64_t length) { return length > 0 && length <= INT32_MAX; }

// Returns whether the bytes of an image of floats can be counted.
inline bool is_image(int64_t height, int64_t width, int64_t channels) {
    constexpr int64_t MOST = std::numeric_limits<int64_t>::max() / int64_t(sizeof(float));
    return is_side(height) && is_side(width) && is_side(channels) &&
           channels <= MOST / (height * width);
}

// Each adds the functions and classes of its file to the module.
void bind_random(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_copies(nb::module_& module);
void bind_records(nb::module_& module);
void bind_formats(nb::module_& module);
void bind_pixels(nb::module_& module);
void bind_visits(nb::module_& module);

}  // namespace door

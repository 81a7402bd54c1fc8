// Arrays: NumPy arrays as arguments of functions. An argument of type `Array<T, N>` takes an array
// of T with N axes in C order, aligned, writeable if T is not const, and nothing else; it holds the
// array's memory until the call returns, also while the interpreter's lock is free. The items of a
// `SpacedArray<T, N>` along its first axis may lie apart: images in larger records, or the rows of
// a box of an image.
#pragma once

#include <nanobind/nanobind.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

namespace core {

template <class T, int N, bool IS_DENSE = true>
class Array {
  public:
    Array() = default;
    Array(const Array&) = delete;
    ~Array() {
        if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }

    T* data() const { return static_cast<T*>(view_.buf); }
    int64_t shape(int axis) const { return int64_t(view_.shape[axis]); }
    int64_t size() const { return int64_t(view_.len) / int64_t(sizeof(T)); }
    int64_t stride() const {  // elements from item to item of the first axis
        return shape(0) > 1 ? int64_t(view_.strides[0]) / int64_t(sizeof(T)) : size();
    }

    // Takes the memory of an object. Returns false if it is not such an array.
    bool take(PyObject* object) noexcept {
        constexpr int ORDER = IS_DENSE ? PyBUF_C_CONTIGUOUS : PyBUF_STRIDES;
        const int flags = PyBUF_FORMAT | ORDER | (std::is_const_v<T> ? 0 : PyBUF_WRITABLE);
        if (!PyObject_CheckBuffer(object)) return false;
        if (PyObject_GetBuffer(object, &view_, flags) != 0) {
            PyErr_Clear();
            view_.obj = nullptr;
            return false;
        }
        // NumPy says so of an array that is not aligned, a memoryview does not.
        const bool is_aligned = reinterpret_cast<uintptr_t>(view_.buf) % alignof(T) == 0;
        return view_.ndim == N && view_.itemsize == Py_ssize_t(sizeof(T)) &&
               is_kind(view_.format) && is_aligned && (IS_DENSE || has_dense_items());
    }

  private:
    static bool is_kind(const char* format) {  // of Python's module struct; no format is "B"
        const std::string text = format != nullptr ? format : "B";
        if (text.size() != 1) return false;
        const char* kinds = std::is_floating_point_v<T> ? "fd"
                            : std::is_signed_v<T>       ? "bhilq"
                                                        : "BHILQ";
        return std::string(kinds).find(text) != std::string::npos;
    }

    // Returns whether each item of the first axis is in C order; they may lie apart, or be the
    // same.
    bool has_dense_items() const {
        Py_ssize_t stride = sizeof(T);
        for (int axis = N - 1; axis > 0; --axis) {
            if (view_.shape[axis] > 1 && view_.strides[axis] != stride) return false;
            stride *= view_.shape[axis];
        }
        const Py_ssize_t first = view_.strides[0];
        return view_.shape[0] <= 1 || (first >= 0 && first % Py_ssize_t(sizeof(T)) == 0);
    }

    Py_buffer view_ = {};
};

template <class T, int N>
using SpacedArray = Array<T, N, false>;

// An argument that takes an object of Python: an array, or a struct of the arrays of a tuple.
template <class T>
concept Takes = requires(T value, PyObject* object) {
    { value.take(object) } noexcept -> std::same_as<bool>;
};

// Takes the arrays of a tuple of just so many.
template <class... Arrays>
bool take_tuple(PyObject* object, Arrays&... arrays) noexcept {
    if (!PyTuple_Check(object) || PyTuple_Size(object) != Py_ssize_t(sizeof...(Arrays)))
        return false;
    Py_ssize_t place = 0;
    return (arrays.take(PyTuple_GetItem(object, place++)) && ...);
}

}  // namespace core

namespace nanobind::detail {

template <core::Takes T>
struct type_caster<T> {
    using Value = T;
    static constexpr auto Name = const_name("numpy.ndarray");
    template <class>
    using Cast = const Value&;

    bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
        return value.take(source.ptr());
    }
    template <class>
    bool can_cast() const noexcept {
        return true;
    }
    explicit operator const Value&() const { return value; }

    Value value;
};

}  // namespace nanobind::detail

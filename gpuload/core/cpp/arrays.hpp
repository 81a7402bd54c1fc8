// Arrays: NumPy arrays as arguments of functions. An argument of type `Array<T, N>` takes an array of T with N axes in C
// order, aligned, writeable if T is not const, and nothing else; it holds the array's memory until the call returns, also while
// the interpreter's lock is free.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <type_traits>

namespace core {

template <class T, int N>
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

    // Takes the memory of an object. Returns false if it is no such array.
    bool take(PyObject* object) noexcept {
        const int flags = PyBUF_ND | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (std::is_const_v<T> ? 0 : PyBUF_WRITABLE);
        if (!PyObject_CheckBuffer(object)) return false;
        if (PyObject_GetBuffer(object, &view_, flags) != 0) {
            PyErr_Clear();
            view_.obj = nullptr;
            return false;
        }
        // NumPy says so of an array that is not aligned, a memoryview does not.
        const bool is_aligned = reinterpret_cast<uintptr_t>(view_.buf) % alignof(T) == 0;
        return view_.ndim == N && view_.itemsize == Py_ssize_t(sizeof(T)) && is_kind(view_.format) && is_aligned;
    }

  private:
    static bool is_kind(const char* format) {  // of Python's module struct; no format is "B"
        const std::string text = format != nullptr ? format : "B";
        if (text.size() != 1) return false;
        const char* kinds = std::is_floating_point_v<T> ? "fd" : std::is_signed_v<T> ? "bhilq" : "BHILQ";
        return std::string(kinds).find(text) != std::string::npos;
    }

    Py_buffer view_ = {};
};

}  // namespace core

namespace nanobind::detail {

template <class T, int N>
struct type_caster<core::Array<T, N>> {
    using Value = core::Array<T, N>;
    static constexpr auto Name = const_name("numpy.ndarray");
    template <class>
    using Cast = const Value&;

    bool from_python(handle source, uint8_t, cleanup_list*) noexcept { return value.take(source.ptr()); }
    template <class>
    bool can_cast() const noexcept { return true; }
    explicit operator const Value&() const { return value; }

    Value value;
};

}  // namespace nanobind::detail

// Stands in for CuPy's file of this name, whose own one is Thrust's and needs nvcc. CuPy includes it everywhere; gpuload computes
// with no complex numbers.
#pragma once
#include <complex>

template <class T>
class complex : public std::complex<T> {
 public:
  using std::complex<T>::complex;
  complex() {}
  template <class U>
  complex(const std::complex<U>& other) : std::complex<T>(T(other.real()), T(other.imag())) {}
  template <class U, class = typename std::enable_if<std::is_arithmetic<U>::value>::type>
  explicit complex(const U& value) : std::complex<T>(T(value)) {}
};

// Resize one image, as `ops.resampling` defines it and equal to it bit for bit: the same sums in the same order.
#pragma once

#include <cstdint>

namespace core {

template <class T>
struct Image {
    T* pixels;
    int64_t stride;  // elements from row to row
    int64_t height, width, channels;
};

struct Pass {  // of one axis: the first source pixel of each output pixel, and its coefficients
    const int32_t* first;
    const float* weights;  // [support, count]: those of one tap side by side
    int64_t support, count;
};

// Writes the resized image. `horizontal` has output pixels up to a multiple of 4: those beyond the width are dropped.
void resize(const Image<const uint8_t>& from, const Pass& vertical, const Pass& horizontal, bool vertical_first,
            const Image<uint8_t>& to);
void resize(const Image<const float>& from, const Pass& vertical, const Pass& horizontal, bool vertical_first,
            const Image<float>& to);

}  // namespace core

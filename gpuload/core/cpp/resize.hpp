// Resize one image, as `kernels.resampling` defines it and equal to it bit for bit: the same sums
// in the same order.
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
    const float* weights;  // [count, support]: those of one pixel side by side
    int64_t support, count;
};

// A window of a resized image of three channels, as a walk over it (`Walk`) makes it: as high and
// wide as the passes have output pixels, which may be a part of those of the image, and the columns
// the last first.
template <class Out>
struct Window {
    Out* pixels;
    bool is_planar, is_upside_down;  // CHW, else HWC; the rows the last first
    // Of each value of a row, where it is planar of each channel: (value - mean) * scale, or the
    // value itself where it is uint8.
    const float *means, *scales;
};

// Writes the resized image. `horizontal` has output pixels up to a multiple of 4: those beyond the
// width are dropped.
void resize(const Image<const uint8_t>& from, const Pass& vertical, const Pass& horizontal,
            bool vertical_first, const Image<uint8_t>& to);
void resize(const Image<const float>& from, const Pass& vertical, const Pass& horizontal,
            bool vertical_first, const Image<float>& to);
void resize(const Image<const uint8_t>& from, const Pass& vertical, const Pass& horizontal,
            bool vertical_first, const Window<uint8_t>& to);
void resize(const Image<const uint8_t>& from, const Pass& vertical, const Pass& horizontal,
            bool vertical_first, const Window<float>& to);

}  // namespace core

// Warp: see warp.hpp.
//
// Assumes: images have the sizes that are said, sides up to 2**24, which float has, and pixels side by side in a row; the
// Python face checked it. Nothing is assumed of matrices and grids: places may lie anywhere and may be NaN.
//
// A sum that PyTorch makes in one rounding is made in double and rounded to float, as in `ops.warp`: a fused operation would
// differ from that in rare cases, and processors without it would call a function for each.
#include "warp.hpp"

#include <algorithm>
#include <cmath>

#include "clones.hpp"
#include "pixels.hpp"
#include "rounding.hpp"

namespace core {

// These are called once a row. Each has a clone for the processor.

CLONES void write_sums(const float* __restrict products, double product, float last, int64_t count, float* __restrict to) {
    for (int64_t x = 0; x < count; ++x) to[x] = float(double(products[x]) + product) + last;
}

CLONES void divide_places(float* __restrict to, const float* __restrict divisors, int64_t count) {
    for (int64_t x = 0; x < count; ++x) to[x] = to[x] / divisors[x] - 1.0f;
}

CLONES void scale_to_pixels(float* to, double half, int64_t count) {
    for (int64_t x = 0; x < count; ++x) to[x] = float(double(to[x] + 1.0f) * half - 0.5);
}

MatrixPlaces::MatrixPlaces(const Matrix& matrix, int64_t height, int64_t width, int64_t new_height, int64_t new_width)
    : is_affine_(matrix.count == 6), count_(new_width), half_{float(width) * 0.5f, float(height) * 0.5f},
      divisors_(is_affine_ ? 0 : size_t(new_width)) {
    first_row_ = is_affine_ ? float(double(1 - new_height) * 0.5) : 0.5f;  // of an affine map (0, 0) is the middle
    const float first_column = is_affine_ ? float(double(1 - new_width) * 0.5) : 0.5f;
    for (int axis = 0; axis < 2; ++axis)
        for (int i = 0; i < 3; ++i) lines_[axis][i] = matrix.numbers[3 * axis + i] / half_[axis];
    lines_[2][0] = is_affine_ ? 0.0f : matrix.numbers[6];
    lines_[2][1] = is_affine_ ? 0.0f : matrix.numbers[7];
    lines_[2][2] = 1.0f;
    for (int line = 0; line < (is_affine_ ? 2 : 3); ++line) {
        products_[line].resize(size_t(new_width));
        for (int64_t x = 0; x < new_width; ++x) products_[line][size_t(x)] = (float(x) + first_column) * lines_[line][0];
    }
}

void MatrixPlaces::write_line(int line, float row, float* to) const {
    write_sums(products_[line].data(), double(row) * double(lines_[line][1]), lines_[line][2], count_, to);
}

void MatrixPlaces::write_row(int64_t y, float* columns, float* rows) {
    const float row = float(y) + first_row_;
    if (!is_affine_) write_line(2, row, divisors_.data());
    float* const places[] = {columns, rows};
    for (int axis = 0; axis < 2; ++axis) {
        write_line(axis, row, places[axis]);
        if (!is_affine_) divide_places(places[axis], divisors_.data(), count_);
        scale_to_pixels(places[axis], half_[axis], count_);
    }
}

void GridPlaces::write_row(int64_t y, float* columns, float* rows) {
    std::copy_n(grid_.columns + y * count_, count_, columns);
    std::copy_n(grid_.rows + y * count_, count_, rows);
}

namespace {

// Writes for each place the offset of its nearest pixel, halves to even; -1 if it lies outside.
INLINE void write_offsets(const float* __restrict columns, const float* __restrict rows, int64_t count, float height,
                          float width, int64_t stride, int64_t channels, int64_t* __restrict offsets) {
    for (int64_t x = 0; x < count; ++x) {
        const float column = rintf(columns[x]), row = rintf(rows[x]);
        const bool is_inside = (column >= 0.0f) & (column < width) & (row >= 0.0f) & (row < height);
        const int32_t i = int32_t(is_inside ? column : 0.0f), j = int32_t(is_inside ? row : 0.0f);
        offsets[x] = is_inside ? int64_t(j) * stride + int64_t(i) * channels : -1;
    }
}

struct Weights {  // of the four pixels about a place, and the sum of those that lie inside
    float upper_left, upper_right, lower_left, lower_right, sum;
};

INLINE float add_product(float a, float b, float sum) { return float(double(a) * double(b) + double(sum)); }

// Blends two pixels of an upper row and two of a lower one. FIXED is the number of channels, 0 for any.
template <int FIXED, class T>
INLINE void blend(const T* upper, const T* lower, int64_t channels, const Weights& weights, const float* fill, T* to) {
    const int64_t count = FIXED ? FIXED : channels;
    for (int64_t c = 0; c < count; ++c) {
        float total = float(upper[c]) * weights.upper_left;
        total = add_product(float(upper[count + c]), weights.upper_right, total);
        total = add_product(float(lower[c]), weights.lower_left, total);
        total = add_product(float(lower[count + c]), weights.lower_right, total);
        to[c] = rounded<T>((total - fill[c]) * weights.sum + fill[c]);
    }
}

// Copies the four pixels about a place at the border, of which the upper left one has the given row and column. Those that
// lie outside are 0, and their weights are not in the sum.
template <class T>
INLINE void copy_corners(const Image<const T>& from, int64_t channels, int64_t top, int64_t left, Weights& weights,
                         T* corners) {
    const float parts[] = {weights.upper_left, weights.upper_right, weights.lower_left, weights.lower_right};
    for (int64_t corner = 0; corner < 4; ++corner) {
        const int64_t row = top + corner / 2, column = left + corner % 2;
        const bool is_inside = row >= 0 && row < from.height && column >= 0 && column < from.width;
        T* pixel = corners + corner * channels;
        if (is_inside)
            std::copy_n(from.pixels + row * from.stride + column * channels, channels, pixel);
        else
            std::fill_n(pixel, channels, T(0));
        const float part = is_inside ? parts[corner] : 0.0f;
        weights.sum = corner == 0 ? part : weights.sum + part;
    }
}

template <int FIXED, class T>
INLINE void warp_channels(const Image<const T>& from, Places& places, const float* fill, const Image<T>& to) {
    const int64_t channels = FIXED ? FIXED : from.channels, count = to.width;
    const float height = float(from.height), width = float(from.width);
    std::vector<float> columns(static_cast<size_t>(count)), rows(static_cast<size_t>(count));
    std::vector<T> corners(size_t(4 * channels)), border(static_cast<size_t>(channels));
    for (int64_t c = 0; c < channels; ++c) border[size_t(c)] = rounded<T>(fill[c]);
    for (int64_t y = 0; y < to.height; ++y) {
        places.write_row(y, columns.data(), rows.data());
        T* target = to.pixels + y * to.stride;
        for (int64_t x = 0; x < count; ++x, target += channels) {
            const float column = columns[size_t(x)], row = rows[size_t(x)];
            if (!(column > -1.0f && column < width && row > -1.0f && row < height)) {
                std::copy_n(border.data(), channels, target);
                continue;
            }
            const float left = std::floor(column), top = std::floor(row);
            const float right_part = column - left, lower_part = row - top;
            const float left_part = 1.0f - right_part, upper_part = 1.0f - lower_part;
            Weights weights{left_part * upper_part, right_part * upper_part, left_part * lower_part,
                            right_part * lower_part, 0.0f};
            const int64_t i = int64_t(left), j = int64_t(top);
            if (i >= 0 && i + 1 < from.width && j >= 0 && j + 1 < from.height) {
                weights.sum = ((weights.upper_left + weights.upper_right) + weights.lower_left) + weights.lower_right;
                const T* pixel = from.pixels + j * from.stride + i * channels;
                blend<FIXED, T>(pixel, pixel + from.stride, channels, weights, fill, target);
            } else {
                copy_corners(from, channels, j, i, weights, corners.data());
                blend<FIXED, T>(corners.data(), corners.data() + 2 * channels, channels, weights, fill, target);
            }
        }
    }
}

template <class T>
INLINE void warp_any(const Image<const T>& from, Places& places, const float* fill, const Image<T>& to) {
    if (from.channels == 3) return warp_channels<3, T>(from, places, fill, to);
    if (from.channels == 1) return warp_channels<1, T>(from, places, fill, to);
    warp_channels<0, T>(from, places, fill, to);
}

}  // namespace

CLONES void warp_nearest(const Image<const uint8_t>& from, Places& places, const uint8_t* fill, const Image<uint8_t>& to) {
    const size_t count = size_t(to.width);
    std::vector<float> columns(count), rows(count);
    std::vector<int64_t> offsets(count);
    for (int64_t y = 0; y < to.height; ++y) {
        places.write_row(y, columns.data(), rows.data());
        write_offsets(columns.data(), rows.data(), to.width, float(from.height), float(from.width), from.stride, from.channels,
                      offsets.data());
        copy_pixels(from.pixels, offsets.data(), to.width, from.channels, fill, to.pixels + y * to.stride);
    }
}

CLONES void warp_linear(const Image<const uint8_t>& from, Places& places, const float* fill, const Image<uint8_t>& to) {
    warp_any(from, places, fill, to);
}
CLONES void warp_linear(const Image<const uint16_t>& from, Places& places, const float* fill, const Image<uint16_t>& to) {
    warp_any(from, places, fill, to);
}
CLONES void warp_linear(const Image<const float>& from, Places& places, const float* fill, const Image<float>& to) {
    warp_any(from, places, fill, to);
}

}  // namespace core

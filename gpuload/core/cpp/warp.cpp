// Warp: see warp.hpp.
//
// Assumes: images have the sizes that are said, sides below 2**24, which float32 has, and pixels side by side in a row; the
// Python face checked it. Nothing is assumed of the matrix: places may lie anywhere and may be no numbers.
//
// A sum that PyTorch makes in one rounding is made in double and rounded to float, as in `ops.warp`: a fused operation would
// differ from that in rare cases, and processors without it would call a function for each.
#include "warp.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "clones.hpp"
#include "rounding.hpp"

namespace core {
namespace {

INLINE float add_product(float a, float b, float sum) { return float(double(a) * double(b) + double(sum)); }

// Places of one row of a result in the image: columns and rows, in pixels.
class Places {
  public:
    Places(const Matrix& matrix, int64_t height, int64_t width, int64_t new_height, int64_t new_width)
        : half_{float(width) * 0.5f, float(height) * 0.5f}, is_affine_(matrix.count == 6), count_(new_width) {
        begin_ = is_affine_ ? float(double(1 - new_height) * 0.5) : 0.5f;
        const float across = is_affine_ ? float(double(1 - new_width) * 0.5) : 0.5f;
        for (int axis = 0; axis < 2; ++axis)
            for (int i = 0; i < 3; ++i) lines_[axis][i] = matrix.numbers[3 * axis + i] / half_[axis];
        lines_[2][0] = is_affine_ ? 0.0f : matrix.numbers[6];
        lines_[2][1] = is_affine_ ? 0.0f : matrix.numbers[7];
        lines_[2][2] = 1.0f;
        for (int line = 0; line < 3; ++line) {
            products_[line].resize(size_t(new_width));
            for (int64_t x = 0; x < new_width; ++x) products_[line][size_t(x)] = (float(x) + across) * lines_[line][0];
        }
        divisors_.resize(size_t(new_width));
    }

    INLINE_MEMBER void row(int64_t y, float* __restrict columns, float* __restrict rows) {
        const float down = float(y) + begin_;
        if (!is_affine_) fill(2, down, divisors_.data());
        float* const places[] = {columns, rows};
        for (int axis = 0; axis < 2; ++axis) {
            float* __restrict to = places[axis];
            fill(axis, down, to);
            if (!is_affine_) divide(to, divisors_.data());
            const double half = half_[axis];
            for (int64_t x = 0; x < count_; ++x) to[x] = float(double(to[x] + 1.0f) * half - 0.5);
        }
    }

  private:
    INLINE_MEMBER void fill(int line, float down, float* __restrict to) const {
        const double product = double(down) * double(lines_[line][1]);
        const float last = lines_[line][2], *__restrict products = products_[line].data();
        for (int64_t x = 0; x < count_; ++x) to[x] = float(double(products[x]) + product) + last;
    }
    INLINE_MEMBER void divide(float* __restrict to, const float* __restrict divisors) const {
        for (int64_t x = 0; x < count_; ++x) to[x] = to[x] / divisors[x] - 1.0f;
    }

    float half_[2], lines_[3][3], begin_;
    bool is_affine_;
    int64_t count_;
    std::vector<float> products_[3], divisors_;
};

// Places that are there already.
class GridPlaces {
  public:
    GridPlaces(const Grid& grid, int64_t count) : grid_(grid), count_(count) {}
    INLINE_MEMBER void row(int64_t y, float* columns, float* rows) const {
        std::copy_n(grid_.columns + y * count_, count_, columns);
        std::copy_n(grid_.rows + y * count_, count_, rows);
    }

  private:
    Grid grid_;
    int64_t count_;
};

// Writes for each place the offset of its nearest pixel, -1 where it lies outside; halves to even.
INLINE void nearest_pixels(const float* __restrict columns, const float* __restrict rows, int64_t count, float height,
                           float width, int64_t stride, int64_t channels, int64_t* __restrict offsets) {
    for (int64_t x = 0; x < count; ++x) {
        const float column = rintf(columns[x]), row = rintf(rows[x]);
        const bool inside = (column >= 0.0f) & (column < width) & (row >= 0.0f) & (row < height);
        const int32_t i = int32_t(inside ? column : 0.0f), j = int32_t(inside ? row : 0.0f);
        offsets[x] = inside ? int64_t(j) * stride + int64_t(i) * channels : -1;
    }
}

template <int FIXED>  // bytes of a pixel, 0 for any number
INLINE void copy_pixels(const uint8_t* pixels, const int64_t* offsets, int64_t count, int64_t channels, const uint8_t* fill,
                        uint8_t* to) {
    const size_t size = FIXED ? size_t(FIXED) : size_t(channels);
    for (int64_t x = 0; x < count; ++x, to += size) std::memcpy(to, offsets[x] < 0 ? fill : pixels + offsets[x], size);
}

struct Weights {  // of the four pixels about a place: upper left and right, lower left and right; and the sum of those inside
    float upper_left, upper_right, lower_left, lower_right, sum;
};

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

template <int FIXED, class T, class Source>
INLINE void any_linear(const Image<const T>& from, Source& places, const float* fill, const Image<T>& to) {
    const int64_t channels = FIXED ? FIXED : from.channels, count = to.width;
    const float height = float(from.height), width = float(from.width);
    std::vector<float> columns(static_cast<size_t>(count)), rows(static_cast<size_t>(count));
    std::vector<T> edge(size_t(4 * channels));  // the four pixels about a place, 0 for those outside
    std::vector<T> border(static_cast<size_t>(channels));
    for (int64_t c = 0; c < channels; ++c) border[size_t(c)] = rounded<T>(fill[c]);
    for (int64_t y = 0; y < to.height; ++y) {
        places.row(y, columns.data(), rows.data());
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
            Weights weights{left_part * upper_part, right_part * upper_part, left_part * lower_part, right_part * lower_part, 0.0f};
            const int64_t i = int64_t(left), j = int64_t(top);
            if (i >= 0 && i + 1 < from.width && j >= 0 && j + 1 < from.height) {
                weights.sum = ((weights.upper_left + weights.upper_right) + weights.lower_left) + weights.lower_right;
                const T* pixel = from.pixels + j * from.stride + i * channels;
                blend<FIXED, T>(pixel, pixel + from.stride, channels, weights, fill, target);
                continue;
            }
            const float parts[] = {weights.upper_left, weights.upper_right, weights.lower_left, weights.lower_right};
            for (int64_t corner = 0; corner < 4; ++corner) {
                const int64_t line = j + corner / 2, place = i + corner % 2;
                const bool inside = line >= 0 && line < from.height && place >= 0 && place < from.width;
                T* pixel = edge.data() + corner * channels;
                if (inside)
                    std::copy_n(from.pixels + line * from.stride + place * channels, channels, pixel);
                else
                    std::fill_n(pixel, channels, T(0));
                const float part = inside ? parts[corner] : 0.0f;
                weights.sum = corner == 0 ? part : weights.sum + part;
            }
            blend<FIXED, T>(edge.data(), edge.data() + 2 * channels, channels, weights, fill, target);
        }
    }
}

template <class Source>
INLINE void any_nearest(const Image<const uint8_t>& from, Source& places, const uint8_t* fill, const Image<uint8_t>& to) {
    const size_t count = size_t(to.width);
    std::vector<float> columns(count), rows(count);
    std::vector<int64_t> offsets(count);
    for (int64_t y = 0; y < to.height; ++y) {
        places.row(y, columns.data(), rows.data());
        nearest_pixels(columns.data(), rows.data(), to.width, float(from.height), float(from.width), from.stride,
                       from.channels, offsets.data());
        uint8_t* target = to.pixels + y * to.stride;
        switch (from.channels) {
            case 1: copy_pixels<1>(from.pixels, offsets.data(), to.width, 1, fill, target); break;
            case 3: copy_pixels<3>(from.pixels, offsets.data(), to.width, 3, fill, target); break;
            case 4: copy_pixels<4>(from.pixels, offsets.data(), to.width, 4, fill, target); break;
            case 12: copy_pixels<12>(from.pixels, offsets.data(), to.width, 12, fill, target); break;
            default: copy_pixels<0>(from.pixels, offsets.data(), to.width, from.channels, fill, target);
        }
    }
}

template <class T, class Source>
INLINE void linear(const Image<const T>& from, Source& places, const float* fill, const Image<T>& to) {
    if (from.channels == 3) return any_linear<3, T>(from, places, fill, to);
    if (from.channels == 1) return any_linear<1, T>(from, places, fill, to);
    any_linear<0, T>(from, places, fill, to);
}

template <class T>
INLINE Places places_of(const Image<const T>& from, const Matrix& matrix, const Image<T>& to) {
    return Places(matrix, from.height, from.width, to.height, to.width);
}

}  // namespace

CLONES void warp_nearest(const Image<const uint8_t>& from, const Matrix& matrix, const uint8_t* fill,
                         const Image<uint8_t>& to) {
    Places places = places_of(from, matrix, to);
    any_nearest(from, places, fill, to);
}

CLONES void sample_nearest(const Image<const uint8_t>& from, const Grid& grid, const uint8_t* fill, const Image<uint8_t>& to) {
    GridPlaces places(grid, to.width);
    any_nearest(from, places, fill, to);
}

CLONES void warp_bytes(const Image<const uint8_t>& from, const Matrix& matrix, const float* fill, const Image<uint8_t>& to) {
    Places places = places_of(from, matrix, to);
    linear(from, places, fill, to);
}
CLONES void sample_bytes(const Image<const uint8_t>& from, const Grid& grid, const float* fill, const Image<uint8_t>& to) {
    GridPlaces places(grid, to.width);
    linear(from, places, fill, to);
}
template <>
void warp_linear(const Image<const uint8_t>& from, const Matrix& matrix, const float* fill, const Image<uint8_t>& to) {
    warp_bytes(from, matrix, fill, to);
}
template <>
void sample_linear(const Image<const uint8_t>& from, const Grid& grid, const float* fill, const Image<uint8_t>& to) {
    sample_bytes(from, grid, fill, to);
}

CLONES void warp_shorts(const Image<const uint16_t>& from, const Matrix& matrix, const float* fill, const Image<uint16_t>& to) {
    Places places = places_of(from, matrix, to);
    linear(from, places, fill, to);
}
CLONES void sample_shorts(const Image<const uint16_t>& from, const Grid& grid, const float* fill, const Image<uint16_t>& to) {
    GridPlaces places(grid, to.width);
    linear(from, places, fill, to);
}
template <>
void warp_linear(const Image<const uint16_t>& from, const Matrix& matrix, const float* fill, const Image<uint16_t>& to) {
    warp_shorts(from, matrix, fill, to);
}
template <>
void sample_linear(const Image<const uint16_t>& from, const Grid& grid, const float* fill, const Image<uint16_t>& to) {
    sample_shorts(from, grid, fill, to);
}

CLONES void warp_floats(const Image<const float>& from, const Matrix& matrix, const float* fill, const Image<float>& to) {
    Places places = places_of(from, matrix, to);
    linear(from, places, fill, to);
}
CLONES void sample_floats(const Image<const float>& from, const Grid& grid, const float* fill, const Image<float>& to) {
    GridPlaces places(grid, to.width);
    linear(from, places, fill, to);
}
template <>
void warp_linear(const Image<const float>& from, const Matrix& matrix, const float* fill, const Image<float>& to) {
    warp_floats(from, matrix, fill, to);
}
template <>
void sample_linear(const Image<const float>& from, const Grid& grid, const float* fill, const Image<float>& to) {
    sample_floats(from, grid, fill, to);
}

}  // namespace core

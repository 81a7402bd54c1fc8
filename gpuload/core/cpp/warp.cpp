// Warp: see warp.hpp.
//
// Assumes: images have the sizes that are said, sides up to 2**24, which float has, and pixels side
// by side in a row; the Python face checked it. Nothing is assumed of matrices and grids: places
// may lie anywhere and may be NaN.
//
// A sum that PyTorch makes in one rounding is made in double and rounded to float, as in
// `ops.geometry.warp`: a fused operation would differ from that in rare cases, and processors
// without it would call a function for each.
#include "warp.hpp"

#include <algorithm>
#include <cmath>

#include "clones.hpp"
#include "pixels.hpp"
#include "planes.hpp"
#include "rounding.hpp"
#include "shared/places.hpp"

namespace core {

// These are called once a row. Each has a clone for the processor.

CLONES void write_sums(const float* __restrict products, double product, float last, int64_t count,
                       float* __restrict to) {
    for (int64_t x = 0; x < count; ++x) to[x] = line_sum(products[x], product, last);
}

CLONES void divide_places(float* __restrict to, const float* __restrict divisors, int64_t count) {
    for (int64_t x = 0; x < count; ++x) to[x] = to[x] / divisors[x] - 1.0f;
}

CLONES void scale_to_pixels(float* to, double half, int64_t count) {
    for (int64_t x = 0; x < count; ++x) to[x] = to_pixels(to[x], half);
}

MatrixPlaces::MatrixPlaces(const Matrix& matrix, int64_t height, int64_t width, int64_t new_height,
                           int64_t new_width)
    : is_affine_(matrix.count == 6),
      count_(new_width),
      half_{float(width) * 0.5f, float(height) * 0.5f},
      divisors_(is_affine_ ? 0 : size_t(new_width)) {
    first_row_ = first_place(new_height, is_affine_);
    const float first_column = first_place(new_width, is_affine_);
    for (int axis = 0; axis < 2; ++axis)
        for (int i = 0; i < 3; ++i) lines_[axis][i] = matrix.numbers[3 * axis + i] / half_[axis];
    lines_[2][0] = is_affine_ ? 0.0f : matrix.numbers[6];
    lines_[2][1] = is_affine_ ? 0.0f : matrix.numbers[7];
    lines_[2][2] = 1.0f;
    for (int line = 0; line < (is_affine_ ? 2 : 3); ++line) {
        products_[line].resize(size_t(new_width));
        for (int64_t x = 0; x < new_width; ++x)
            products_[line][size_t(x)] = (float(x) + first_column) * lines_[line][0];
    }
}

void MatrixPlaces::write_line(int line, float row, float* to) const {
    write_sums(products_[line].data(), double(row) * double(lines_[line][1]), lines_[line][2],
               count_, to);
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
INLINE void write_offsets(const float* __restrict columns, const float* __restrict rows,
                          int64_t count, float height, float width, int64_t stride,
                          int64_t channels, int64_t* __restrict offsets) {
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

// Blends two pixels of an upper row and two of a lower one.
template <class T>
INLINE void blend(const T* upper, const T* lower, int64_t channels, const Weights& weights,
                  const float* fill, T* to) {
    for (int64_t c = 0; c < channels; ++c) {
        float total = float(upper[c]) * weights.upper_left;
        total = add_product(float(upper[channels + c]), weights.upper_right, total);
        total = add_product(float(lower[c]), weights.lower_left, total);
        total = add_product(float(lower[channels + c]), weights.lower_right, total);
        to[c] = rounded<T>(over_fill(total, weights.sum, fill[c]));
    }
}

// Copies the four pixels about a place at the border, of which the upper left one has the given row
// and column. Those that lie outside are 0, and their weights are not in the sum.
template <class T>
INLINE void copy_corners(const Image<const T>& from, int64_t channels, int64_t top, int64_t left,
                         Weights& weights, T* corners) {
    const float parts[] = {weights.upper_left, weights.upper_right, weights.lower_left,
                           weights.lower_right};
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

// Makes single pixels, wherever their places lie.
template <class T>
class PixelWarp {
  public:
    PixelWarp(const Image<const T>& from, const float* fill)
        : from_(from),
          fill_(fill),
          height_(float(from.height)),
          width_(float(from.width)),
          corners_(size_t(4 * from.channels)),
          border_(static_cast<size_t>(from.channels)) {
        for (int64_t c = 0; c < from.channels; ++c) border_[size_t(c)] = rounded<T>(fill[c]);
    }

    INLINE_MEMBER void write(float column, float row, T* to) {
        const int64_t channels = from_.channels;
        if (!(column > -1.0f && column < width_ && row > -1.0f && row < height_)) {
            std::copy_n(border_.data(), channels, to);
            return;
        }
        const float left = std::floor(column), top = std::floor(row);
        const Share across = share_of(column), down = share_of(row);
        Weights weights{across.first * down.first, across.second * down.first,
                        across.first * down.second, across.second * down.second, 0.0f};
        const int64_t i = int64_t(left), j = int64_t(top);
        const T *upper = corners_.data(), *lower = upper + 2 * channels;
        if (i >= 0 && i + 1 < from_.width && j >= 0 && j + 1 < from_.height) {
            weights.sum = ((weights.upper_left + weights.upper_right) + weights.lower_left) +
                          weights.lower_right;
            upper = from_.pixels + j * from_.stride + i * channels;
            lower = upper + from_.stride;
        } else {
            copy_corners(from_, channels, j, i, weights, corners_.data());
        }
        blend<T>(upper, lower, channels, weights, fill_, to);
    }

  private:
    const Image<const T>& from_;
    const float* const fill_;
    const float height_, width_;
    std::vector<T> corners_, border_;
};

constexpr int64_t BLOCK = 64;  // pixels of a row that are made at once, by vector code

// Pixels of so many channels, the numbers of each kind side by side.
template <int CHANNELS, class T>
struct WarpBlock {
    float weights[4][BLOCK], sums[BLOCK];
    int64_t offsets[BLOCK];  // of the upper left pixel; -1 where one of the four lies outside
    T corners[4][CHANNELS][BLOCK], results[CHANNELS][BLOCK];

    INLINE_MEMBER void write_weights(const Image<const T>& from, const float* __restrict columns,
                                     const float* __restrict rows, int64_t count) {
        const float last_column = float(from.width - 1), last_row = float(from.height - 1);
        const int64_t stride = from.stride;
        for (int64_t x = 0; x < count; ++x) {
            const float left = std::floor(columns[x]), top = std::floor(rows[x]);
            const Share across = share_of(columns[x]), down = share_of(rows[x]);
            weights[0][x] = across.first * down.first;
            weights[1][x] = across.second * down.first;
            weights[2][x] = across.first * down.second;
            weights[3][x] = across.second * down.second;
            sums[x] = ((weights[0][x] + weights[1][x]) + weights[2][x]) + weights[3][x];
            const bool is_inside =
                (left >= 0.0f) & (left < last_column) & (top >= 0.0f) & (top < last_row);
            const int32_t i = int32_t(is_inside ? left : 0.0f), j = int32_t(is_inside ? top : 0.0f);
            offsets[x] = is_inside ? int64_t(j) * stride + int64_t(i) * CHANNELS : -1;
        }
    }

    INLINE_MEMBER void gather(const Image<const T>& from, int64_t count) {
        for (int64_t x = 0; x < count; ++x) {
            if (offsets[x] < 0) continue;
            const T *const upper = from.pixels + offsets[x], *const lower = upper + from.stride;
            for (int64_t c = 0; c < CHANNELS; ++c) {
                corners[0][c][x] = upper[c];
                corners[1][c][x] = upper[CHANNELS + c];
                corners[2][c][x] = lower[c];
                corners[3][c][x] = lower[CHANNELS + c];
            }
        }
    }

    INLINE_MEMBER void blend(const float* fill, int64_t count) {
        for (int64_t c = 0; c < CHANNELS; ++c)
            for (int64_t x = 0; x < count; ++x) {
                float total = float(corners[0][c][x]) * weights[0][x];
                for (int64_t corner = 1; corner < 4; ++corner)
                    total = add_product(float(corners[corner][c][x]), weights[corner][x], total);
                results[c][x] = rounded<T>(over_fill(total, sums[x], fill[c]));
            }
    }
};

template <int CHANNELS, class T>
INLINE void warp_blocks(const Image<const T>& from, Places& places, const float* fill,
                        const Image<T>& to) {
    std::vector<float> columns(static_cast<size_t>(to.width)), rows(static_cast<size_t>(to.width));
    PixelWarp<T> pixels(from, fill);
    WarpBlock<CHANNELS, T> block{};  // what no pixel is gathered to is 0
    for (int64_t y = 0; y < to.height; ++y) {
        places.write_row(y, columns.data(), rows.data());
        for (int64_t begin = 0; begin < to.width; begin += BLOCK) {
            const int64_t count = std::min(BLOCK, to.width - begin);
            T* const target = to.pixels + y * to.stride + begin * CHANNELS;
            block.write_weights(from, columns.data() + begin, rows.data() + begin, count);
            block.gather(from, count);
            block.blend(fill, count);
            if constexpr (CHANNELS == 3)
                interleave<false>(target, block.results[0], BLOCK, count);
            else
                std::copy_n(block.results[0], count, target);
            for (int64_t x = 0; x < count; ++x)
                if (block.offsets[x] < 0)
                    pixels.write(columns[size_t(begin + x)], rows[size_t(begin + x)],
                                 target + x * CHANNELS);
        }
    }
}

template <class T>
INLINE void warp_pixels(const Image<const T>& from, Places& places, const float* fill,
                        const Image<T>& to) {
    std::vector<float> columns(static_cast<size_t>(to.width)), rows(static_cast<size_t>(to.width));
    PixelWarp<T> pixels(from, fill);
    for (int64_t y = 0; y < to.height; ++y) {
        places.write_row(y, columns.data(), rows.data());
        for (int64_t x = 0; x < to.width; ++x)
            pixels.write(columns[size_t(x)], rows[size_t(x)],
                         to.pixels + y * to.stride + x * from.channels);
    }
}

template <class T>
INLINE void warp_any(const Image<const T>& from, Places& places, const float* fill,
                     const Image<T>& to) {
    if (from.channels == 3) return warp_blocks<3, T>(from, places, fill, to);
    if (from.channels == 1) return warp_blocks<1, T>(from, places, fill, to);
    warp_pixels<T>(from, places, fill, to);
}

}  // namespace

CLONES void warp_nearest(const Image<const uint8_t>& from, Places& places, const uint8_t* fill,
                         const Image<uint8_t>& to) {
    const size_t count = size_t(to.width);
    std::vector<float> columns(count), rows(count);
    std::vector<int64_t> offsets(count);
    for (int64_t y = 0; y < to.height; ++y) {
        places.write_row(y, columns.data(), rows.data());
        write_offsets(columns.data(), rows.data(), to.width, float(from.height), float(from.width),
                      from.stride, from.channels, offsets.data());
        copy_pixels(from.pixels, offsets.data(), to.width, from.channels, fill,
                    to.pixels + y * to.stride);
    }
}

CLONES void warp_linear(const Image<const uint8_t>& from, Places& places, const float* fill,
                        const Image<uint8_t>& to) {
    warp_any(from, places, fill, to);
}
CLONES void warp_linear(const Image<const uint16_t>& from, Places& places, const float* fill,
                        const Image<uint16_t>& to) {
    warp_any(from, places, fill, to);
}
CLONES void warp_linear(const Image<const float>& from, Places& places, const float* fill,
                        const Image<float>& to) {
    warp_any(from, places, fill, to);
}

}  // namespace core

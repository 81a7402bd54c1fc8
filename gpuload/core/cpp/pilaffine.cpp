// Affine transforms as Pillow: see pilaffine.hpp.
//
// Assumes: the image has pixels, side by side in a row, and sides below 2**24; the result is of the
// same size; the Python face checked it. Nothing is assumed of the matrix but that its numbers are
// finite: places may lie anywhere.
//
// Pillow adds places up from pixel to pixel. Where a matrix stretches they are float64; else they
// are whole numbers of 1/65536, and float64 where these are too small for the image
// (`kernels.pillow`).
#include "pilaffine.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "clones.hpp"
#include "pixels.hpp"
#include "shared/pillow.hpp"

namespace core::pillow {
namespace {

constexpr int64_t UNIT = 65536;

// The pixel in which a point lies; -1 for one outside an axis of so many pixels.
INLINE int64_t pixel_of(double point, int64_t length) {
    return point >= 0 && point < double(length) ? int64_t(point) : -1;
}

INLINE bool is_inside(int64_t place, int64_t length) { return uint64_t(place) < uint64_t(length); }

// Copies the pixels of a row from column `begin` of a line of the image on, and `fill` where they
// lie outside.
INLINE void copy_run(const uint8_t* line, int64_t begin, int64_t width, int64_t channels,
                     const uint8_t* fill, uint8_t* to) {
    const int64_t first = std::clamp<int64_t>(-begin, 0, width),
                  last = std::clamp<int64_t>(width - begin, first, width);
    for (int64_t x = 0; x < first; ++x) std::memcpy(to + x * channels, fill, size_t(channels));
    std::memcpy(to + first * channels, line + (begin + first) * channels,
                size_t((last - first) * channels));
    for (int64_t x = last; x < width; ++x) std::memcpy(to + x * channels, fill, size_t(channels));
}

// A matrix that stretches and moves: one column for each column of the result, and one row for each
// row.
INLINE void stretch(const Image<const uint8_t>& from, const double* m, const uint8_t* fill,
                    uint8_t* out) {
    const int64_t channels = from.channels, length = from.width * channels;
    std::vector<int64_t> offsets(static_cast<size_t>(from.width));
    const double first = m[2] + m[0] * 0.5;
    const auto begin =
        int64_t(std::floor(std::clamp(first, -double(from.width), double(from.width))));
    bool is_run = true;  // the columns follow one another, without rounding in between
    double place = first;
    for (int64_t x = 0; x < from.width; ++x, place += m[0]) {
        const int64_t column = pixel_of(place, from.width);
        is_run = is_run && column == (is_inside(begin + x, from.width) ? begin + x : -1);
        offsets[size_t(x)] = column < 0 ? -1 : column * channels;
    }
    const std::vector<int64_t> outside(size_t(from.width), -1);
    place = m[5] + m[4] * 0.5;
    for (int64_t y = 0; y < from.height; ++y, place += m[4]) {
        const int64_t row = pixel_of(place, from.height);
        uint8_t* const to = out + y * length;
        if (is_run && row >= 0)
            copy_run(from.pixels + row * from.stride, begin, from.width, channels, fill, to);
        else
            copy_pixels(from.pixels + std::max<int64_t>(row, 0) * from.stride,
                        row >= 0 ? offsets.data() : outside.data(), from.width, channels, fill, to);
    }
}

// In whole numbers of 1/65536. Where a row of the result is a part of a row of the image, it is
// copied at once.
INLINE void turn_fixed(const Image<const uint8_t>& from, const double* m, const uint8_t* fill,
                       uint8_t* out) {
    const int64_t across[] = {fixed(m[0]), fixed(m[3])}, down[] = {fixed(m[1]), fixed(m[4])};
    const int64_t begin[] = {fixed(m[2] + m[0] * 0.5 + m[1] * 0.5),
                             fixed(m[5] + m[3] * 0.5 + m[4] * 0.5)};
    const int64_t channels = from.channels, width = from.width, height = from.height,
                  stride = from.stride;
    std::vector<int64_t> offsets(static_cast<size_t>(width));
    int64_t* const places = offsets.data();
    for (int64_t y = 0; y < height; ++y) {
        const int64_t first = begin[0] + y * down[0], line = begin[1] + y * down[1];
        uint8_t* const to = out + y * width * channels;
        if (across[0] == UNIT && across[1] == 0 && is_inside(line >> 16, height)) {
            copy_run(from.pixels + (line >> 16) * stride, std::clamp(first >> 16, -width, width),
                     width, channels, fill, to);
            continue;
        }
        for (int64_t x = 0; x < width; ++x) {
            const int64_t column = (first + x * across[0]) >> 16,
                          row = (line + x * across[1]) >> 16;
            const bool inside = (int(is_inside(column, width)) & int(is_inside(row, height))) != 0;
            places[x] = inside ? row * stride + column * channels : -1;
        }
        copy_pixels(from.pixels, places, width, channels, fill, to);
    }
}

// In float64, of images that are too large for whole numbers.
INLINE void turn_float(const Image<const uint8_t>& from, const double* m, const uint8_t* fill,
                       uint8_t* out) {
    const int64_t channels = from.channels;
    std::vector<int64_t> offsets(static_cast<size_t>(from.width));
    double first = m[2] + m[0] * 0.5 + m[1] * 0.5, line = m[5] + m[3] * 0.5 + m[4] * 0.5;
    for (int64_t y = 0; y < from.height; ++y, first += m[1], line += m[4]) {
        double column = first, row = line;
        for (int64_t& offset : offsets) {
            const int64_t i = pixel_of(column, from.width), j = pixel_of(row, from.height);
            offset = i < 0 || j < 0 ? -1 : j * from.stride + i * channels;
            column += m[0];
            row += m[3];
        }
        copy_pixels(from.pixels, offsets.data(), from.width, channels, fill,
                    out + y * from.width * channels);
    }
}

INLINE void nearest(const Image<const uint8_t>& from, const double* m, const uint8_t* fill,
                    uint8_t* out) {
    if (m[1] == 0 && m[3] == 0) return stretch(from, m, fill, out);
    if (is_fixed(m, double(from.width), double(from.height)))
        turn_fixed(from, m, fill, out);
    else
        turn_float(from, m, fill, out);
}

// Mixes the TAPS x TAPS pixels about each point: 2 for linear, 4 for cubic. FIXED is the number of
// channels.
template <int TAPS, int FIXED>
INLINE void interpolate(const Image<const uint8_t>& from, const double* m, const uint8_t* fill,
                        uint8_t* out) {
    constexpr int64_t BEFORE = TAPS / 2 - 1;  // pixels before the one in which the point lies
    const auto width = double(from.width), height = double(from.height);
    for (int64_t y = 0; y < from.height; ++y)
        for (int64_t x = 0; x < from.width; ++x, out += FIXED) {
            const double across = double(x) + 0.5, down = double(y) + 0.5;
            const double column = m[0] * across + m[1] * down + m[2],
                         row = m[3] * across + m[4] * down + m[5];
            if (!(column >= 0 && column < width && row >= 0 && row < height)) {
                std::memcpy(out, fill, FIXED);
                continue;
            }
            const double left = std::floor(column - 0.5), top = std::floor(row - 0.5);
            const double right_part = column - 0.5 - left, lower_part = row - 0.5 - top;
            const int64_t i = int64_t(left) - BEFORE, j = int64_t(top) - BEFORE;
            int64_t places[TAPS];
            for (int64_t tap = 0; tap < TAPS; ++tap)
                places[tap] = FIXED * std::clamp<int64_t>(i + tap, 0, from.width - 1);
            double lines[TAPS][FIXED];
            for (int64_t tap = 0; tap < TAPS; ++tap) {
                const uint8_t* const line =
                    from.pixels + from.stride * std::clamp<int64_t>(j + tap, 0, from.height - 1);
                for (int c = 0; c < FIXED; ++c) {
                    if constexpr (TAPS == 2)
                        lines[tap][c] =
                            linear(line[places[0] + c], line[places[1] + c], right_part);
                    else
                        lines[tap][c] = cubic(line[places[0] + c], line[places[1] + c],
                                              line[places[2] + c], line[places[3] + c], right_part);
                }
            }
            for (int c = 0; c < FIXED; ++c) {
                double value;
                if constexpr (TAPS == 2)
                    value = linear(lines[0][c], lines[1][c], lower_part);
                else
                    value = cubic(lines[0][c], lines[1][c], lines[2][c], lines[3][c], lower_part);
                out[c] = uint8_t(std::clamp(value, 0.0, 255.0));
            }
        }
}

}  // namespace

CLONES void affine_nearest(const Image<const uint8_t>& from, const double* matrix,
                           const uint8_t* fill, uint8_t* out) {
    nearest(from, matrix, fill, out);
}
CLONES void affine_linear(const Image<const uint8_t>& from, const double* matrix,
                          const uint8_t* fill, uint8_t* out) {
    from.channels == 3 ? interpolate<2, 3>(from, matrix, fill, out)
                       : interpolate<2, 1>(from, matrix, fill, out);
}
CLONES void affine_cubic(const Image<const uint8_t>& from, const double* matrix,
                         const uint8_t* fill, uint8_t* out) {
    from.channels == 3 ? interpolate<4, 3>(from, matrix, fill, out)
                       : interpolate<4, 1>(from, matrix, fill, out);
}

void affine(const Image<const uint8_t>& from, const double* matrix, Interpolation interpolation,
            const uint8_t* fill, uint8_t* out) {
    switch (interpolation) {
        case Interpolation::NEAREST:
            return affine_nearest(from, matrix, fill, out);
        case Interpolation::LINEAR:
            return affine_linear(from, matrix, fill, out);
        case Interpolation::CUBIC:
            return affine_cubic(from, matrix, fill, out);
    }
}

void turn(const Image<const uint8_t>& from, int quarters, uint8_t* out) {
    const int64_t channels = from.channels, height = from.height, width = from.width;
    std::vector<int64_t> offsets(static_cast<size_t>(width));
    for (int64_t y = 0; y < height; ++y) {
        for (int64_t x = 0; x < width; ++x) {
            const int64_t row = turned_row(quarters, y, x, height);
            offsets[size_t(x)] =
                row * from.stride + turned_column(quarters, y, x, width) * channels;
        }
        copy_pixels(from.pixels, offsets.data(), width, channels, nullptr,
                    out + y * width * channels);
    }
}

}  // namespace core::pillow

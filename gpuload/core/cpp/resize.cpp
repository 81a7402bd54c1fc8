// Resize: see resize.hpp.
//
// Assumes: the source lies in its memory, the result has room for all rows, and the passes have an
// output pixel for each row and column; the Python face checked it. First source pixels may lie
// outside: the edges are continued.
//
// Vertical first    a row of the result is a sum of source rows, read as they are stored; then the
//                   sum along that row.
// Horizontal first  each source row that is needed is summed along once, into a ring of `support`
//                   rows; then their sum.
//
// All that is in work fits into the second-level cache, whatever the size of the image.
#include "resize.hpp"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "clones.hpp"
#include "shared/numbers.hpp"

namespace core {

struct RowWriter {  // puts the rows of a result where they belong
    virtual ~RowWriter() = default;
    virtual void write(int64_t y, const float* sums) const = 0;
};

namespace {

typedef float Four __attribute__((vector_size(16), aligned(4),
                                  may_alias));  // a pixel and a float that is not used

constexpr float BIG =
    12582912.0f;  // 1.5 * 2**23: a number that is added to it loses its fraction, halves to even
constexpr int64_t RGB = 3;  // channels

INLINE float rounded(float value) {  // to a value of uint8
    float bounded = value > 0.0f ? value : 0.0f;
    bounded = bounded < 255.0f ? bounded : 255.0f;
    return (bounded + BIG) - BIG;
}

// Sums COUNT rows, each times its weight.
template <int COUNT, class From>
INLINE void sum_rows(float* __restrict to, const From* const* rows, const float* weights,
                     int64_t length) {
    const From* row[COUNT];
    float weight[COUNT];
    std::copy_n(rows, COUNT, row);
    std::copy_n(weights, COUNT, weight);
    for (int64_t i = 0; i < length; ++i) {
        float sum = weight[0] * float(row[0][i]);
#pragma GCC unroll 8
        for (int tap = 1; tap < COUNT; ++tap) sum += weight[tap] * float(row[tap][i]);
        to[i] = sum;
    }
}

// Adds four rows, each times its weight, one after the other.
template <class From>
INLINE void add_four(float* __restrict total, const From* const* rows, const float* weights,
                     int64_t length) {
    const From *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    const float u = weights[0], v = weights[1], w = weights[2], x = weights[3];
    for (int64_t i = 0; i < length; ++i)
        total[i] = total[i] + u * float(a[i]) + v * float(b[i]) + w * float(c[i]) + x * float(d[i]);
}

// Sums rows, each times its weight, in their order. Up to eight are summed in registers: a sum
// waits for memory, not for arithmetic.
template <class From>
INLINE void down(float* __restrict to, const From* const* rows, const float* weights,
                 int64_t support, int64_t length) {
    switch (support) {
        case 1:
            return sum_rows<1>(to, rows, weights, length);
        case 2:
            return sum_rows<2>(to, rows, weights, length);
        case 3:
            return sum_rows<3>(to, rows, weights, length);
        case 4:
            return sum_rows<4>(to, rows, weights, length);
        case 5:
            return sum_rows<5>(to, rows, weights, length);
        case 6:
            return sum_rows<6>(to, rows, weights, length);
        case 7:
            return sum_rows<7>(to, rows, weights, length);
        case 8:
            return sum_rows<8>(to, rows, weights, length);
    }
    sum_rows<8>(to, rows, weights, length);
    int64_t tap = 8;
    for (; tap + 4 <= support; tap += 4) add_four(to, rows + tap, weights + tap, length);
    for (; tap < support; ++tap) {
        const From* row = rows[tap];
        const float weight = weights[tap];
        for (int64_t i = 0; i < length; ++i) to[i] += weight * float(row[i]);
    }
}

// Sums along a row of three channels: line[x] = weights[x, 0] * row[first[x]] + ... It reads up to
// one float behind the last pixel, and writes one: the next pixel writes over it. FIXED is the
// number of taps, 0 for any.
template <int FIXED>
INLINE void along_3(float* line, const float* row, const Pass& pass) {
    const int64_t support = FIXED ? FIXED : pass.support;
    const int32_t *first = pass.first, *end = first + pass.count;
    for (const float* weights = pass.weights; first != end;
         ++first, line += RGB, weights += support) {
        const float* source = row + RGB * int64_t(*first);
        Four sum = weights[0] * *reinterpret_cast<const Four*>(source);
        for (int64_t tap = 1; tap < support; ++tap)
            sum += weights[tap] * *reinterpret_cast<const Four*>(source + RGB * tap);
        *reinterpret_cast<Four*>(line) = sum;
    }
}

INLINE void along_any(float* line, const float* row, const Pass& pass, int64_t channels) {
    for (int64_t x = 0; x < pass.count; ++x) {
        const float* source = row + int64_t(pass.first[x]) * channels;
        const float* weights = pass.weights + x * pass.support;
        for (int64_t channel = 0; channel < channels; ++channel) {
            float total = weights[0] * source[channel];
            for (int64_t tap = 1; tap < pass.support; ++tap)
                total += weights[tap] * source[tap * channels + channel];
            line[x * channels + channel] = total;
        }
    }
}

INLINE void along(float* line, const float* row, const Pass& pass, int64_t channels) {
    if (channels != RGB) return along_any(line, row, pass, channels);
    switch (pass.support) {
        case 2:
            return along_3<2>(line, row, pass);
        case 3:
            return along_3<3>(line, row, pass);
        case 4:
            return along_3<4>(line, row, pass);
        case 5:
            return along_3<5>(line, row, pass);
        default:
            return along_3<0>(line, row, pass);
    }
}

struct Row {  // of floats, continued on both sides with the pixels of its edges as far as a pass
              // reads
    int64_t width, channels, left = 0, right = 0;
    std::vector<float> memory;

    Row(const Pass& pass, int64_t num_pixels, int64_t num_channels)
        : width(num_pixels), channels(num_channels) {
        for (int64_t x = 0; x < pass.count; ++x) {
            left = std::max(left, -int64_t(pass.first[x]));
            right = std::max(right, int64_t(pass.first[x]) + pass.support - width);
        }
        memory.resize(size_t((left + width + right) * channels + 1));
    }

    float* begin() { return memory.data() + left * channels; }

    void replicate() {
        float *first = begin(), *end = first + width * channels;
        for (int64_t i = 0; i < left; ++i)
            std::copy(first, first + channels, memory.data() + i * channels);
        for (int64_t i = 0; i < right; ++i) std::copy(end - channels, end, end + i * channels);
    }
};

template <class T>
INLINE void any_resize(const Image<const T>& from, const Pass& vertical, const Pass& horizontal,
                       bool vertical_first, const RowWriter& to) {
    const int64_t support = vertical.support, channels = from.channels,
                  length = from.width * channels;
    const int64_t size = horizontal.count * channels, distance = size + 1;
    Row row(horizontal, from.width, channels);
    std::vector<float> line(static_cast<size_t>(distance));
    const auto number_of = [&](int64_t y, int64_t tap) {
        return std::clamp<int64_t>(int64_t(vertical.first[y]) + tap, 0, from.height - 1);
    };
    if (vertical_first) {
        std::vector<const T*> rows(static_cast<size_t>(support));
        for (int64_t y = 0; y < vertical.count; ++y) {
            for (int64_t tap = 0; tap < support; ++tap)
                rows[size_t(tap)] = from.pixels + from.stride * number_of(y, tap);
            down(row.begin(), rows.data(), vertical.weights + y * support, support, length);
            row.replicate();
            along(line.data(), row.begin(), horizontal, channels);
            to.write(y, line.data());
        }
        return;
    }
    std::vector<float> ring(size_t(support * distance));
    std::vector<int64_t> numbers(size_t(support), -1);  // of the source rows in the ring
    std::vector<const float*> rows(static_cast<size_t>(support));
    for (int64_t y = 0; y < vertical.count; ++y) {
        for (int64_t tap = 0; tap < support; ++tap) {
            const int64_t number = number_of(y, tap), slot = number % support;
            float* const sums = ring.data() + slot * distance;
            rows[size_t(tap)] = sums;
            if (numbers[size_t(slot)] == number) continue;
            const T* source = from.pixels + from.stride * number;
            float* const begin = row.begin();
            for (int64_t i = 0; i < length; ++i) begin[i] = float(source[i]);
            row.replicate();
            along(sums, begin, horizontal, channels);
            numbers[size_t(slot)] = number;
        }
        down(line.data(), rows.data(), vertical.weights + y * support, support, size);
        to.write(y, line.data());
    }
}

}  // namespace

// These are called once an image or a row. Each has a clone for the processor.

CLONES void resize_bytes(const Image<const uint8_t>& from, const Pass& vertical,
                         const Pass& horizontal, bool vertical_first, const RowWriter& to) {
    any_resize(from, vertical, horizontal, vertical_first, to);
}

CLONES void resize_floats(const Image<const float>& from, const Pass& vertical,
                          const Pass& horizontal, bool vertical_first, const RowWriter& to) {
    any_resize(from, vertical, horizontal, vertical_first, to);
}

CLONES void write_bytes(uint8_t* __restrict to, const float* __restrict sums, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = uint8_t(int32_t(rounded(sums[i])));
}

CLONES void write_floats(float* __restrict to, const float* __restrict sums, int64_t count,
                         const float* __restrict means, const float* __restrict scales) {
    for (int64_t i = 0; i < count; ++i) to[i] = normalized(rounded(sums[i]), means[i], scales[i]);
}

CLONES void write_bytes_of_channel(uint8_t* __restrict to, const float* __restrict sums,
                                   int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = uint8_t(int32_t(rounded(sums[RGB * i])));
}

CLONES void write_floats_of_channel(float* __restrict to, const float* __restrict sums,
                                    int64_t count, float mean, float scale) {
    for (int64_t i = 0; i < count; ++i) to[i] = normalized(rounded(sums[RGB * i]), mean, scale);
}

namespace {

template <class T>
struct ImageWriter final : RowWriter {
    const Image<T>& to;
    explicit ImageWriter(const Image<T>& image) : to(image) {}

    void write(int64_t y, const float* sums) const override {
        T* const row = to.pixels + y * to.stride;
        if constexpr (std::is_same_v<T, uint8_t>)
            write_bytes(row, sums, to.width * to.channels);
        else
            std::copy_n(sums, to.width * to.channels, row);
    }
};

template <class Out>
struct WindowWriter final : RowWriter {
    const Window<Out>& to;
    int64_t height, width;
    WindowWriter(const Window<Out>& window, const Pass& vertical, const Pass& horizontal)
        : to(window), height(vertical.count), width(horizontal.count) {}

    void write(int64_t y, const float* sums) const override {
        const int64_t line = to.is_upside_down ? height - 1 - y : y;
        Out* const row = to.pixels + line * width * (to.is_planar ? 1 : RGB);
        if constexpr (std::is_same_v<Out, uint8_t>) {
            if (!to.is_planar) return write_bytes(row, sums, RGB * width);
            for (int64_t c = 0; c < RGB; ++c)
                write_bytes_of_channel(row + c * height * width, sums + c, width);
        } else {
            if (!to.is_planar) return write_floats(row, sums, RGB * width, to.means, to.scales);
            for (int64_t c = 0; c < RGB; ++c)
                write_floats_of_channel(row + c * height * width, sums + c, width, to.means[c],
                                        to.scales[c]);
        }
    }
};

}  // namespace

void resize(const Image<const uint8_t>& from, const Pass& vertical, const Pass& horizontal,
            bool vertical_first, const Image<uint8_t>& to) {
    resize_bytes(from, vertical, horizontal, vertical_first, ImageWriter<uint8_t>(to));
}

void resize(const Image<const float>& from, const Pass& vertical, const Pass& horizontal,
            bool vertical_first, const Image<float>& to) {
    resize_floats(from, vertical, horizontal, vertical_first, ImageWriter<float>(to));
}

void resize(const Image<const uint8_t>& from, const Pass& vertical, const Pass& horizontal,
            bool vertical_first, const Window<uint8_t>& to) {
    resize_bytes(from, vertical, horizontal, vertical_first,
                 WindowWriter<uint8_t>(to, vertical, horizontal));
}

void resize(const Image<const uint8_t>& from, const Pass& vertical, const Pass& horizontal,
            bool vertical_first, const Window<float>& to) {
    resize_bytes(from, vertical, horizontal, vertical_first,
                 WindowWriter<float>(to, vertical, horizontal));
}

}  // namespace core

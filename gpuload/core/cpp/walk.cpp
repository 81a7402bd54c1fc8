// Walk: see walk.hpp.
//
// Assumes: images and results have the sizes that are said; the Python face checked it. Nothing is assumed of windows:
// they may lie anywhere.
//
// Each row of a result is made from one row of an image: read as it lies where that will do, else gathered into a line in
// the nearest cache first.
#include "walk.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "clones.hpp"
#include "planes.hpp"
#include "shuffle.hpp"

namespace core {
namespace {

struct Columns {  // of a window, that lie in the image: from and to, and the image's column where they begin
    int64_t first, last, column;
    int64_t count() const { return last - first; }
};

INLINE Columns columns_of(int64_t left, int64_t width, int64_t window, bool mirrored) {
    const int64_t first = std::min(window, std::max<int64_t>(0, -left));
    const int64_t last = std::max(first, std::min(window, width - left));
    const int64_t column = std::max<int64_t>(0, left);
    return mirrored ? Columns{window - last, window - first, column} : Columns{first, last, column};
}

template <class In, class Out>
INLINE Out value_of(In value, float mean, float scale) {
    if constexpr (std::is_same_v<Out, uint8_t>)
        return value;
    else
        return (float(value) - mean) * scale;
}

template <class In, class Out>  // one mean and scale for each element
INLINE void emit(Out* __restrict to, const In* __restrict line, const float* __restrict means,
                 const float* __restrict scales, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = value_of<In, Out>(line[i], means[i], scales[i]);
}

template <class In>
INLINE void reverse(In* __restrict to, const In* __restrict from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[count - 1 - i];
}

struct LastPixelFirst {  // five pixels of three bytes; the byte behind them stays
    static constexpr int of(size_t place) { return place == 15 ? 0 : int(15 - 3 * (place / 3) - 2 + place % 3); }
};

// Copies pixels of three bytes, the last first: five at a time by a shuffle of 16 bytes, of which the last is overwritten
// by the next five.
INLINE void reverse_bytes(uint8_t* __restrict to, const uint8_t* __restrict from, int64_t count) {
    int64_t x = 0;
    for (; x + 6 <= count; x += 5) {  // 16 bytes end behind the last of these five, and begin in the pixel before them
        Bytes16 pixels;
        std::memcpy(&pixels, from + 3 * (count - x) - 16, 16);
        pixels = shuffle_bytes<LastPixelFirst>(pixels, pixels);
        std::memcpy(to + 3 * x, &pixels, 16);
    }
    for (; x < count; ++x)
        for (int64_t c = 0; c < 3; ++c) to[3 * x + c] = from[3 * (count - 1 - x) + c];
}

template <class In>  // copies pixels, the last first if they are mirrored
INLINE void gather(In* __restrict to, const In* __restrict from, int64_t count, int64_t channels, bool mirrored) {
    if (!mirrored) {
        std::copy(from, from + count * channels, to);
    } else if (channels == 1) {
        reverse(to, from, count);
    } else if (channels == 3 && std::is_same_v<In, uint8_t>) {
        if constexpr (std::is_same_v<In, uint8_t>) reverse_bytes(to, from, count);
    } else if (channels == 3) {
        for (int64_t x = 0; x < count; ++x) {
            const In* pixel = from + 3 * (count - 1 - x);
            to[3 * x] = pixel[0];
            to[3 * x + 1] = pixel[1];
            to[3 * x + 2] = pixel[2];
        }
    } else {
        for (int64_t x = 0; x < count; ++x)
            for (int64_t c = 0; c < channels; ++c) to[x * channels + c] = from[(count - 1 - x) * channels + c];
    }
}

struct Lines {  // the channels' numbers again and again, a window's row of them
    std::vector<float> means, scales;
    Lines(const float* mean, const float* scale, int64_t channels, int64_t pixels)
        : means(size_t(channels * pixels)), scales(size_t(channels * pixels)) {
        for (size_t i = 0; i < means.size(); ++i) {
            means[i] = mean[i % size_t(channels)];
            scales[i] = scale[i % size_t(channels)];
        }
    }
};

// HWC to HWC. The images begin at `begin`, the results at `to`, `distance` apart: CHW to CHW is this for each channel.
template <class In, class Out>
INLINE void pixels_to_pixels(const Walk<In, Out>& walk, const In* begin, int64_t channels, const float* mean,
                             const float* scale, Out* to, int64_t distance) {
    const int64_t length = walk.window_width * channels;
    const Lines lines(mean, scale, channels, walk.window_width);
    std::vector<In> line(size_t(length), walk.fill);
    std::vector<Out> edge(static_cast<size_t>(length));  // a row of the result that lies outside the image
    const float *means = lines.means.data(), *scales = lines.scales.data();
    emit(edge.data(), line.data(), means, scales, length);
    for (int64_t i = 0; i < walk.count; ++i) {
        const bool down = walk.mirror[2 * i] == 1, across = walk.mirror[2 * i + 1] == 1;
        const Columns columns = columns_of(walk.start[2 * i + 1], walk.width, walk.window_width, across);
        std::fill(line.begin(), line.end(), walk.fill);
        for (int64_t y = 0; y < walk.window_height; ++y) {
            const int64_t row = walk.start[2 * i] + (down ? walk.window_height - 1 - y : y);
            Out* target = to + i * distance + y * length;
            if (row < 0 || row >= walk.height || columns.count() == 0) {
                std::copy(edge.begin(), edge.end(), target);
                continue;
            }
            const In* from = begin + i * walk.stride + (row * walk.width + columns.column) * channels;
            if (columns.count() == walk.window_width && !across) {
                emit(target, from, means, scales, length);
            } else {
                gather(line.data() + columns.first * channels, from, columns.count(), channels, across);
                emit(target, line.data(), means, scales, length);
            }
        }
    }
}

// CHW to HWC.
template <class In, class Out>
INLINE void planes_to_pixels(const Walk<In, Out>& walk) {
    const int64_t plane = walk.height * walk.width, channels = walk.channels, length = walk.window_width * channels;
    const Lines lines(walk.mean, walk.scale, channels, walk.window_width);
    std::vector<In> line(size_t(length), walk.fill);
    std::vector<Out> edge(static_cast<size_t>(length));
    emit(edge.data(), line.data(), lines.means.data(), lines.scales.data(), length);
    for (int64_t i = 0; i < walk.count; ++i) {
        const bool down = walk.mirror[2 * i] == 1, across = walk.mirror[2 * i + 1] == 1;
        const Columns columns = columns_of(walk.start[2 * i + 1], walk.width, walk.window_width, across);
        const int64_t count = columns.count();
        std::fill(line.begin(), line.end(), walk.fill);  // the columns beside the image stay so
        In* const pixels = line.data() + columns.first * channels;
        for (int64_t y = 0; y < walk.window_height; ++y) {
            const int64_t row = walk.start[2 * i] + (down ? walk.window_height - 1 - y : y);
            Out* target = walk.out + (i * walk.window_height + y) * length;
            if (row < 0 || row >= walk.height || count == 0) {
                std::copy(edge.begin(), edge.end(), target);
                continue;
            }
            const In* from = walk.images + i * walk.stride + row * walk.width + columns.column;
            if (channels == 3)
                interleave(pixels, from, plane, count, across);
            else
                for (int64_t c = 0; c < channels; ++c)
                    for (int64_t x = 0; x < count; ++x)
                        pixels[x * channels + c] = from[c * plane + (across ? count - 1 - x : x)];
            emit(target, line.data(), lines.means.data(), lines.scales.data(), length);
        }
    }
}

// HWC to CHW.
template <class In, class Out>
INLINE void pixels_to_planes(const Walk<In, Out>& walk) {
    const int64_t channels = walk.channels, window = walk.window_width;
    std::vector<In> line(size_t(window * channels));
    for (int64_t i = 0; i < walk.count; ++i) {
        const bool down = walk.mirror[2 * i] == 1, across = walk.mirror[2 * i + 1] == 1;
        const Columns columns = columns_of(walk.start[2 * i + 1], walk.width, window, across);
        std::fill(line.begin(), line.end(), walk.fill);
        for (int64_t y = 0; y < walk.window_height; ++y) {
            const int64_t row = walk.start[2 * i] + (down ? walk.window_height - 1 - y : y);
            const In* pixels = line.data();
            if (row < 0 || row >= walk.height || columns.count() == 0) {
                std::fill(line.begin(), line.end(), walk.fill);
            } else {
                const In* from = walk.images + i * walk.stride + (row * walk.width + columns.column) * channels;
                if (columns.count() == window && !across)
                    pixels = from;
                else  // the columns beside these still hold `fill`
                    gather(line.data() + columns.first * channels, from, columns.count(), channels, across);
            }
            for (int64_t c = 0; c < channels; ++c) {
                Out* __restrict target = walk.out + ((i * channels + c) * walk.window_height + y) * window;
                const float mean = walk.mean[c], scale = walk.scale[c];
                if (channels == 3)
                    for (int64_t x = 0; x < window; ++x) target[x] = value_of<In, Out>(pixels[3 * x + c], mean, scale);
                else
                    for (int64_t x = 0; x < window; ++x)
                        target[x] = value_of<In, Out>(pixels[x * channels + c], mean, scale);
            }
        }
    }
}

template <class In, class Out>
INLINE void any_walk(const Walk<In, Out>& walk) {
    const int64_t in_plane = walk.height * walk.width, out_plane = walk.window_height * walk.window_width;
    if (walk.in_planes && walk.out_planes) {
        for (int64_t c = 0; c < walk.channels; ++c)
            pixels_to_pixels(walk, walk.images + c * in_plane, 1, walk.mean + c, walk.scale + c, walk.out + c * out_plane,
                             walk.channels * out_plane);
    } else if (walk.in_planes) {
        planes_to_pixels(walk);
    } else if (walk.out_planes) {
        pixels_to_planes(walk);
    } else {
        pixels_to_pixels(walk, walk.images, walk.channels, walk.mean, walk.scale, walk.out, walk.channels * out_plane);
    }
}

}  // namespace

CLONES void walk(const Walk<uint8_t, uint8_t>& walk) { any_walk(walk); }
CLONES void walk(const Walk<uint8_t, float>& walk) { any_walk(walk); }
CLONES void walk(const Walk<float, float>& walk) { any_walk(walk); }

}  // namespace core

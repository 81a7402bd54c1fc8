// Walk: see walk.hpp.
//
// Assumes: images and results have the sizes that are said; the Python face checked it. Nothing is
// assumed of windows: they may lie anywhere.
//
// Each row of a result is made from one row of an image: read as it lies where that will do, else
// gathered into a line in the nearest cache first. The next row is fetched meanwhile: it may lie in
// a map of a file, far from any cache.
#include "walk.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "clones.hpp"
#include "planes.hpp"
#include "shared/numbers.hpp"
#include "shuffle.hpp"

namespace core {
namespace {

constexpr int64_t LINE_BYTES = 64;

struct Columns {  // of a window, that lie in the image: from and to, and the image's column where
                  // they begin
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
        return normalized(float(value), mean, scale);
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
    static constexpr int of(size_t place) {
        return place == 15 ? 0 : int(15 - 3 * (place / 3) - 2 + place % 3);
    }
};

// Copies pixels of three bytes, the last first: five at a time by a shuffle of 16 bytes, of which
// the last is overwritten by the next five.
INLINE void reverse_bytes(uint8_t* __restrict to, const uint8_t* __restrict from, int64_t count) {
    int64_t x = 0;
    for (; x + 6 <= count;
         x +=
         5) {  // 16 bytes end behind the last of these five, and begin in the pixel before them
        Bytes16 pixels;
        std::memcpy(&pixels, from + 3 * (count - x) - 16, 16);
        pixels = shuffle_bytes<LastPixelFirst>(pixels, pixels);
        std::memcpy(to + 3 * x, &pixels, 16);
    }
    for (; x < count; ++x)
        for (int64_t c = 0; c < 3; ++c) to[3 * x + c] = from[3 * (count - 1 - x) + c];
}

template <class In>  // copies pixels, the last first if they are mirrored
INLINE void gather(In* __restrict to, const In* __restrict from, int64_t count, int64_t channels,
                   bool mirrored) {
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
            for (int64_t c = 0; c < channels; ++c)
                to[x * channels + c] = from[(count - 1 - x) * channels + c];
    }
}

// Fetches the cache lines of a row. Rows of a window are not side by side, and mirrored ones are
// read backwards: no processor foresees both.
INLINE void fetch(const void* row, int64_t num_bytes) {
    for (int64_t place = 0; place < num_bytes; place += LINE_BYTES)
        __builtin_prefetch(static_cast<const char*>(row) + place);
}

template <class In>  // memory for a row of pixels, that this thread uses again
INLINE In* line_of(int64_t length) {
    static thread_local std::vector<In> line;
    if (int64_t(line.size()) < length) line.resize(size_t(length));
    return line.data();
}

// HWC to HWC; CHW to CHW is this for each plane, as an image of one channel.
template <class In, class Out>
INLINE void pixels_to_pixels(const Walker<In, Out>& walker, const Walked<In>& image,
                             int64_t channels, const float* means, const float* scales,
                             const Out* edge, Out* out) {
    const int64_t window = walker.window_width, length = window * channels;
    const bool down = image.mirror[0] == 1, across = image.mirror[1] == 1;
    const Columns columns = columns_of(image.start[1], image.width, window, across);
    const int64_t count = columns.count(), first = columns.first * channels;
    In* const line = line_of<In>(length);
    if (count < window) std::fill(line, line + length, walker.fill);
    for (int64_t y = 0; y < walker.window_height; ++y, out += length) {
        const int64_t row = image.start[0] + (down ? walker.window_height - 1 - y : y),
                      next = row + (down ? -1 : 1);
        if (row < 0 || row >= image.height || count == 0) {
            std::copy(edge, edge + length, out);
            continue;
        }
        const In* const from = image.pixels + (row * image.width + columns.column) * channels;
        if (across && next >= 0 && next < image.height)
            fetch(from + (next - row) * image.width * channels,
                  count * channels * int64_t(sizeof(In)));
        if constexpr (std::is_same_v<In, Out> &&
                      std::is_same_v<In, uint8_t>) {  // nothing is computed
            std::copy(edge, edge + first, out);
            gather(out + first, from, count, channels, across);
            std::copy(edge + first + count * channels, edge + length,
                      out + first + count * channels);
        } else if (count == window && !across) {
            emit(out, from, means, scales, length);
        } else {
            gather(line + first, from, count, channels, across);
            emit(out, static_cast<const In*>(line), means, scales, length);
        }
    }
}

// CHW to HWC.
template <class In, class Out>
INLINE void planes_to_pixels(const Walker<In, Out>& walker, const Walked<In>& image, Out* out) {
    const int64_t plane = image.height * image.width, channels = walker.channels,
                  length = walker.window_width * channels;
    const bool down = image.mirror[0] == 1, across = image.mirror[1] == 1;
    const Columns columns = columns_of(image.start[1], image.width, walker.window_width, across);
    const int64_t count = columns.count();
    In* const line = line_of<In>(length);
    std::fill(line, line + length, walker.fill);  // the columns beside the image stay so
    In* const pixels = line + columns.first * channels;
    for (int64_t y = 0; y < walker.window_height; ++y, out += length) {
        const int64_t row = image.start[0] + (down ? walker.window_height - 1 - y : y);
        if (row < 0 || row >= image.height || count == 0) {
            std::copy(walker.edge.begin(), walker.edge.end(), out);
            continue;
        }
        const In* from = image.pixels + row * image.width + columns.column;
        if (channels == 3)
            interleave(pixels, from, plane, count, across);
        else
            for (int64_t c = 0; c < channels; ++c)
                for (int64_t x = 0; x < count; ++x)
                    pixels[x * channels + c] = from[c * plane + (across ? count - 1 - x : x)];
        emit(out, static_cast<const In*>(line), walker.means.data(), walker.scales.data(), length);
    }
}

// HWC to CHW.
template <class In, class Out>
INLINE void pixels_to_planes(const Walker<In, Out>& walker, const Walked<In>& image, Out* out) {
    const int64_t channels = walker.channels, window = walker.window_width,
                  plane = walker.window_height * window;
    const bool down = image.mirror[0] == 1, across = image.mirror[1] == 1;
    const Columns columns = columns_of(image.start[1], image.width, window, across);
    In* const line = line_of<In>(window * channels);
    std::fill(line, line + window * channels, walker.fill);
    for (int64_t y = 0; y < walker.window_height; ++y) {
        const int64_t row = image.start[0] + (down ? walker.window_height - 1 - y : y),
                      next = row + (down ? -1 : 1);
        const In* pixels = line;
        if (row < 0 || row >= image.height || columns.count() == 0) {
            std::fill(line, line + window * channels, walker.fill);
        } else {
            const In* from = image.pixels + (row * image.width + columns.column) * channels;
            if (across && next >= 0 && next < image.height)
                fetch(from + (next - row) * image.width * channels,
                      columns.count() * channels * int64_t(sizeof(In)));
            if (columns.count() == window && !across)
                pixels = from;
            else  // the columns beside these still hold `fill`
                gather(line + columns.first * channels, from, columns.count(), channels, across);
        }
        for (int64_t c = 0; c < channels; ++c) {
            Out* __restrict target = out + c * plane + y * window;
            const float mean = walker.mean[size_t(c)], scale = walker.scale[size_t(c)];
            if (channels == 3)
                for (int64_t x = 0; x < window; ++x)
                    target[x] = value_of<In, Out>(pixels[3 * x + c], mean, scale);
            else
                for (int64_t x = 0; x < window; ++x)
                    target[x] = value_of<In, Out>(pixels[x * channels + c], mean, scale);
        }
    }
}

template <class In, class Out>
INLINE void any_walk(const Walker<In, Out>& walker, const Walked<In>& image, Out* out) {
    const float *means = walker.means.data(), *scales = walker.scales.data();
    if (walker.in_planes && walker.out_planes) {
        Walked<In> plane = image;
        for (int64_t c = 0; c < walker.channels; ++c) {
            const int64_t row = c * walker.window_width;
            pixels_to_pixels(walker, plane, 1, means + row, scales + row, walker.edge.data() + row,
                             out);
            plane.pixels += image.height * image.width;
            out += walker.window_height * walker.window_width;
        }
    } else if (walker.in_planes) {
        planes_to_pixels(walker, image, out);
    } else if (walker.out_planes) {
        pixels_to_planes(walker, image, out);
    } else {
        pixels_to_pixels(walker, image, walker.channels, means, scales, walker.edge.data(), out);
    }
}

}  // namespace

template <class In, class Out>
Walker<In, Out>::Walker(const Walk<In, Out>& walk)
    : channels(walk.channels),
      window_height(walk.window_height),
      window_width(walk.window_width),
      in_planes(walk.in_planes),
      out_planes(walk.out_planes),
      fill(walk.fill),
      mean(walk.mean, walk.mean + channels),
      scale(walk.scale, walk.scale + channels) {
    const auto length = size_t(channels * window_width);
    means.resize(length), scales.resize(length), edge.resize(length);
    if constexpr (std::is_same_v<Out, uint8_t>)
        std::fill(edge.begin(), edge.end(), fill);  // nothing is computed
    for (size_t i = 0; i < length && !std::is_same_v<Out, uint8_t>; ++i) {
        const size_t channel = out_planes ? i / size_t(window_width) : i % size_t(channels);
        means[i] = mean[channel];
        scales[i] = scale[channel];
        edge[i] = value_of<In, Out>(fill, means[i], scales[i]);
    }
}

template struct Walker<uint8_t, uint8_t>;
template struct Walker<uint8_t, float>;
template struct Walker<float, float>;

CLONES void walk(const Walker<uint8_t, uint8_t>& walker, const Walked<uint8_t>& image,
                 uint8_t* out) {
    any_walk(walker, image, out);
}
CLONES void walk(const Walker<uint8_t, float>& walker, const Walked<uint8_t>& image, float* out) {
    any_walk(walker, image, out);
}
CLONES void walk(const Walker<float, float>& walker, const Walked<float>& image, float* out) {
    any_walk(walker, image, out);
}

}  // namespace core

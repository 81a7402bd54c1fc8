// Pixels: resizes and walks beside loops that say what they mean, with windows and taps at any place.
#include "pixels.hpp"

#include "../../../gpuload/core/cpp/pilresize.hpp"
#include "../../../gpuload/core/cpp/taps.hpp"
#include "../../../gpuload/core/cpp/walk.hpp"

namespace fuzz {
namespace {

struct Taps {
    Block<int32_t> first;
    Block<float> weights;
    int64_t support;

    Taps(Input& input, int64_t count, int64_t num_taps, int64_t length)
        : first(size_t(count)), weights(size_t(count * num_taps)), support(num_taps) {
        for (int64_t i = 0; i < count; ++i) first[i] = int32_t(input.number(1 - support, length - 1));
        for (int64_t i = 0; i < weights.size(); ++i) weights[i] = float_of(input);
    }
    core::Pass pass() const { return {first.data(), weights.data(), support, first.size()}; }
};

// Returns the sum of taps of one axis of an image; `at` gives a source pixel.
template <class At>
float sum(const Taps& taps, int64_t i, int64_t length, const At& at) {
    float total = taps.weights[i * taps.support] * at(std::clamp<int64_t>(taps.first[i], 0, length - 1));
    for (int64_t tap = 1; tap < taps.support; ++tap)
        total += taps.weights[i * taps.support + tap] * at(std::clamp<int64_t>(taps.first[i] + tap, 0, length - 1));
    return total;
}

template <class T>
struct Resize {  // of one image, with taps of both axes
    bool is_vertical_first;
    Picture<T> image;
    Taps rows, columns;

    Resize(Input& input, int64_t channels, int64_t new_height, int64_t new_width)
        : is_vertical_first(input.flag()), image(input, channels), rows(input, new_height, input.number(1, 12), image.height),
          columns(input, new_width, input.number(1, 12), image.width) {}

    float value(int64_t y, int64_t x, int64_t c) const {
        const auto pixel = [&](int64_t row, int64_t column) { return float(image.at(row, column, c)); };
        const auto down = [&](int64_t column) {
            return sum(rows, y, image.height, [&](int64_t row) { return pixel(row, column); });
        };
        const auto along = [&](int64_t row) {
            return sum(columns, x, image.width, [&](int64_t column) { return pixel(row, column); });
        };
        return is_vertical_first ? sum(columns, x, image.width, down) : sum(rows, y, image.height, along);
    }
};

template <class T>
void resize(Input& input) {
    const int64_t channels = input.number(1, 5), height = input.number(1, 9), width = input.number(1, 9);
    const Resize<T> resize(input, channels, height, width + input.number(0, 3));  // columns beyond the width are dropped
    Result<T> out(channels, height, width);
    core::resize(resize.image.image(), resize.rows.pass(), resize.columns.pass(), resize.is_vertical_first, out.image());
    out.compare([&](int64_t y, int64_t x, int64_t c) { return stored<T>(resize.value(y, x, c)); }, "a resize is its sums");
}

template <class Out>
void window(Input& input) {
    const bool is_planar = input.flag(), is_upside_down = input.flag();
    const int64_t height = input.number(1, 9), width = input.number(1, 9);
    const Resize<uint8_t> resize(input, 3, height, width);
    const float mean[] = {float_of(input), float_of(input), float_of(input)};
    const float scale[] = {float_of(input), float_of(input), float_of(input)};
    Block<float> means(size_t(3 * width)), scales(size_t(3 * width));
    for (int64_t i = 0; i < means.size(); ++i) {
        means[i] = mean[i % 3];
        scales[i] = scale[i % 3];
    }
    Block<Out> out(size_t(3 * height * width));
    core::resize(resize.image.image(), resize.rows.pass(), resize.columns.pass(), resize.is_vertical_first,
                 core::Window<Out>{out.data(), is_planar, is_upside_down, means.data(), scales.data()});
    for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < width; ++x)
            for (int64_t c = 0; c < 3; ++c) {
                const int64_t row = is_upside_down ? height - 1 - y : y;
                const auto byte = stored<uint8_t>(resize.value(y, x, c));
                const Out value = out[is_planar ? (c * height + row) * width + x : (row * width + x) * 3 + c];
                if constexpr (std::is_same_v<Out, uint8_t>)
                    ensure(value == byte, "a window is a part of the resized image");
                else
                    ensure(is_equal(value, (float(byte) - mean[c]) * scale[c]), "a window is normalised");
            }
}

template <class In, class Out>
void walk(Input& input) {
    const bool in_planes = input.flag(), out_planes = input.flag();
    const int64_t channels = input.number(1, 5), height = input.number(1, 20), width = input.number(1, 40);
    const int64_t window_height = input.number(1, 24), window_width = input.number(1, 40), count = input.number(0, 3);
    const int64_t size = height * width * channels, out_size = window_height * window_width * channels;
    const int64_t stride = input.flag() ? input.number(0, 3000) : size;
    Block<int32_t> start(size_t(2 * count)), mirror(size_t(2 * count));
    for (int64_t i = 0; i < 2 * count; ++i) {
        start[i] = int32_t(input.flag() ? input.number(-30, 30) : input.hostile(20));
        mirror[i] = int32_t(input.flag() ? input.number(0, 1) : input.hostile(3));
    }
    Block<float> mean{size_t(channels)}, scale{size_t(channels)};
    for (int64_t c = 0; c < channels; ++c) {
        mean[c] = float_of(input);
        scale[c] = float_of(input);
    }
    const In fill = pixels_of<In>(input, 1)[0];
    const Block<In> images = pixels_of<In>(input, count > 0 ? stride * (count - 1) + size : 0);
    Block<Out> out{size_t(out_size * count)};
    const core::Walker<In, Out> walker({channels, in_planes, out_planes, fill, mean.data(), scale.data(), window_height, window_width});
    for (int64_t i = 0; i < count; ++i)
        core::walk(walker, {images.data() + i * stride, height, width, start.data() + 2 * i, mirror.data() + 2 * i},
                   out.data() + i * out_size);
    for (int64_t i = 0; i < count; ++i)
        for (int64_t y = 0; y < window_height; ++y)
            for (int64_t x = 0; x < window_width; ++x)
                for (int64_t c = 0; c < channels; ++c) {
                    const int64_t row = start[2 * i] + (mirror[2 * i] == 1 ? window_height - 1 - y : y);
                    const int64_t column = start[2 * i + 1] + (mirror[2 * i + 1] == 1 ? window_width - 1 - x : x);
                    const bool is_inside = row >= 0 && row < height && column >= 0 && column < width;
                    const int64_t place = in_planes ? (c * height + row) * width + column : (row * width + column) * channels + c;
                    const In value = is_inside ? images[i * stride + place] : fill;
                    const int64_t target = out_planes ? (c * window_height + y) * window_width + x : (y * window_width + x) * channels + c;
                    Out expected;
                    if constexpr (std::is_same_v<Out, uint8_t>)
                        expected = value;
                    else
                        expected = (float(value) - mean[c]) * scale[c];
                    ensure(is_equal(out[i * out_size + target], expected), "a walk is its windows");
                }
}

struct Steps {  // of one axis, of as large weights as Python's face takes; none: the axis stays as it is
    Block<int32_t> first, count, weights;
    int64_t support;

    Steps(Input& input, int64_t length) : Steps{input, length, input.flag() ? input.number(1, 9) : 0, input.number(1, 9)} {}

    Steps(Input& input, int64_t length, int64_t outputs, int64_t num_taps)
        : first(size_t(outputs)), count(size_t(outputs)), weights(size_t(outputs * num_taps)), support(num_taps) {
        for (int64_t i = 0; i < outputs; ++i) {
            count[i] = int32_t(input.number(0, std::min(support, length)));
            first[i] = int32_t(input.number(0, length - count[i]));
        }
        const int64_t most = core::MOST_WEIGHT / support;
        for (int64_t i = 0; i < weights.size(); ++i)
            weights[i] = int32_t(input.flag() ? (input.flag() ? most : -most) : int64_t(input.word() % uint64_t(2 * most + 1)) - most);
    }
    core::Steps steps() const { return {first.data(), count.data(), weights.data(), support, first.size()}; }
    int64_t outputs(int64_t length) const { return first.size() > 0 ? first.size() : length; }

    template <class At>
    int64_t value(int64_t i, const At& at) const {  // of one result
        if (first.size() == 0) return at(i);
        int64_t total = 1 << 21;  // a half
        for (int64_t tap = 0; tap < count[i]; ++tap) total += int64_t(weights[i * support + tap]) * at(first[i] + tap);
        return std::clamp<int64_t>(total >> 22, 0, 255);
    }
};

}  // namespace

void resizes(Input input) { input.flag() ? resize<float>(input) : resize<uint8_t>(input); }

void windows(Input input) { input.flag() ? window<float>(input) : window<uint8_t>(input); }

void pillow_resizes(Input input) {
    const int64_t channels = input.number(1, 5);
    const Picture<uint8_t> image(input, channels);
    const Steps down(input, image.height), across(input, image.width);
    Result<uint8_t> out(channels, down.outputs(image.height), across.outputs(image.width));
    core::resize_as_pillow(image.image(), down.steps(), across.steps(), out.image());
    out.compare(
        [&](int64_t y, int64_t x, int64_t c) {
            const auto along = [&](int64_t row) {
                return across.value(x, [&](int64_t column) { return int64_t(image.at(row, column, c)); });
            };
            return uint8_t(down.value(y, along));
        },
        "Pillow's resize is its sums");
}

void taps(Input input) {
    const int64_t length = input.number(1, 3000), count = input.number(1, 300);
    const bool is_antialiased = input.flag();
    const float width = 1 + float(input.number(0, 240)) / 16;
    const Block<float> table = pixels_of<float>(input, input.number(2, 40));
    const core::Filter filter{table.data(), table.size(), width, is_antialiased};
    core::Taps taps, mirrored;
    taps.compute(filter, length, count);
    mirrored.compute(filter, length, count, true);
    ensure(taps.support >= 1 && int64_t(taps.first.size()) == count, "a pixel has taps");
    ensure(int64_t(taps.weights.size()) == count * taps.support, "a tap has a weight");
    for (int64_t i = 0; i < count; ++i) {
        const int64_t other = count - 1 - i;
        const int32_t first = taps.first[size_t(i)];
        ensure(first > -taps.support && first < length, "a pixel is made of some of the source");
        ensure(mirrored.first[size_t(other)] == first, "mirrored taps are the same, the last first");
        for (int64_t tap = 0; tap < taps.support; ++tap) {
            const float weight = taps.weights[size_t(i * taps.support + tap)];
            ensure(is_equal(mirrored.weights[size_t(other * taps.support + tap)], weight), "mirrored weights are the same");
        }
    }
}

void walks(Input input) {
    switch (input.number(0, 2)) {
        case 0: return walk<uint8_t, float>(input);
        case 1: return walk<uint8_t, uint8_t>(input);
        default: return walk<float, float>(input);
    }
}

}  // namespace fuzz

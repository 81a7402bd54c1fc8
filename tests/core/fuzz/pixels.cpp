// Pixels: resize and walk beside loops that say what they mean, with windows and taps at any place.
#include <algorithm>
#include <type_traits>

#include "../../../gpuload/core/cpp/resize.hpp"
#include "../../../gpuload/core/cpp/walk.hpp"
#include "target.hpp"

namespace fuzz {
namespace {

template <class T>
bool is_equal(T a, T b) {
    return std::memcmp(&a, &b, sizeof(T)) == 0 || (a != a && b != b);
}

float float_of(Input& input) {
    const uint8_t kind = input.byte();
    if (kind < 224) return float(int(kind) - 112) / 16;
    const auto bits = uint32_t(input.word());
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

template <class T>
Block<T> pixels_of(Input& input, int64_t count) {
    Block<T> pixels{size_t(count)};
    for (int64_t i = 0; i < count; ++i)
        if constexpr (std::is_same_v<T, float>)
            pixels[i] = float_of(input);
        else
            pixels[i] = input.byte();
    return pixels;
}

uint8_t rounded(float value) {  // halves to even; what is no number is 0
    if (!(value > 0)) return 0;
    if (value >= 255) return 255;
    const int whole = int(value);
    const float part = value - float(whole);
    return uint8_t(part > 0.5f || (part == 0.5f && whole % 2) ? whole + 1 : whole);
}

template <class T>
T stored(float value) {
    if constexpr (std::is_same_v<T, uint8_t>)
        return rounded(value);
    else
        return value;
}

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
void resize(Input& input) {
    const bool vertical_first = input.flag();
    const int64_t channels = input.number(1, 5), height = input.number(1, 12), width = input.number(1, 12);
    const int64_t new_height = input.number(1, 9), new_width = input.number(1, 9), more = input.number(0, 3);
    const int64_t stride = input.flag() ? input.number(0, 80) : width * channels;
    const Taps rows(input, new_height, input.number(1, 7), height), columns(input, new_width + more, input.number(1, 7), width);
    const Block<T> image = pixels_of<T>(input, stride * (height - 1) + width * channels);
    Block<T> out{size_t(new_height * new_width * channels)};
    core::resize(core::Image<const T>{image.data(), stride, height, width, channels}, rows.pass(), columns.pass(),
                 vertical_first, core::Image<T>{out.data(), new_width * channels, new_height, new_width, channels});
    for (int64_t y = 0; y < new_height; ++y)
        for (int64_t x = 0; x < new_width; ++x)
            for (int64_t c = 0; c < channels; ++c) {
                const auto pixel = [&](int64_t row, int64_t column) { return float(image[row * stride + column * channels + c]); };
                const auto down = [&](int64_t column) { return sum(rows, y, height, [&](int64_t row) { return pixel(row, column); }); };
                const auto along = [&](int64_t row) { return sum(columns, x, width, [&](int64_t column) { return pixel(row, column); }); };
                const float value = vertical_first ? sum(columns, x, width, down) : sum(rows, y, height, along);
                ensure(is_equal(out[(y * new_width + x) * channels + c], stored<T>(value)), "resize is its sums");
            }
}

template <class In, class Out>
void walk(Input& input) {
    const bool in_planes = input.flag(), out_planes = input.flag();
    const int64_t channels = input.number(1, 5), height = input.number(1, 20), width = input.number(1, 20);
    const int64_t window_height = input.number(1, 24), window_width = input.number(1, 24), count = input.number(0, 3);
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
    core::walk(core::Walk<In, Out>{images.data(), stride, height, width, channels, in_planes, out_planes, count, start.data(),
                                   mirror.data(), fill, mean.data(), scale.data(), out.data(), window_height, window_width});
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

}  // namespace

void resizes(Input input) { input.flag() ? resize<float>(input) : resize<uint8_t>(input); }

void walks(Input input) {
    switch (input.number(0, 2)) {
        case 0: return walk<uint8_t, float>(input);
        case 1: return walk<uint8_t, uint8_t>(input);
        default: return walk<float, float>(input);
    }
}

}  // namespace fuzz

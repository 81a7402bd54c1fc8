// Colours: tables and counts beside plain loops; what works in blocks of pixels beside the same on each pixel alone.
#include "../../../gpuload/core/cpp/colour.hpp"
#include "../../../gpuload/core/cpp/lookup.hpp"
#include "pixels.hpp"

namespace fuzz {
namespace {

constexpr int64_t MOST_PIXELS = 1300;  // more than two of the core's blocks

// Compares what `change(pixels, count, out)` makes of all pixels of three channels with what it makes of each alone.
template <class Change>
void compare_pixels(Input& input, int64_t out_channels, const Change& change) {
    const int64_t count = input.number(0, MOST_PIXELS);
    const Block<uint8_t> pixels = pixels_of<uint8_t>(input, 3 * count);
    Block<uint8_t> out(size_t(out_channels * count)), single{size_t(out_channels)};
    change(pixels.data(), count, out.data());
    for (int64_t i = 0; i < count; ++i) {
        const Block<uint8_t> pixel(pixels.data() + 3 * i, 3);
        change(pixel.data(), 1, single.data());
        ensure(std::equal(single.data(), single.data() + out_channels, out.data() + out_channels * i),
               "a pixel's colour does not depend on its place");
    }
    if (out_channels != 3) return;
    Block<uint8_t> same(pixels.data(), size_t(3 * count));
    change(same.data(), count, same.data());
    ensure(std::equal(out.data(), out.data() + out.size(), same.data()), "a result may lie in the memory of its image");
}

void change_gray(Input& input) {
    const int64_t channels = input.flag() ? 1 : 3;
    const auto change = [&](const uint8_t* pixels, int64_t count, uint8_t* out) { core::make_gray(pixels, count, channels, out); };
    compare_pixels(input, channels, change);
}

void change_saturation(Input& input) {
    const float factor = finite_of(input), weight = input.flag() ? 1 - factor : finite_of(input);
    if (!std::isfinite(weight)) return;
    compare_pixels(input, 3, [&](const uint8_t* pixels, int64_t count, uint8_t* out) { core::saturate(pixels, count, factor, weight, out); });
}

void change_hue(Input& input) {
    const float shift = finite_of(input);
    compare_pixels(input, 3, [&](const uint8_t* pixels, int64_t count, uint8_t* out) { core::turn_hue(pixels, count, shift, out); });
}

void sum_grays(Input& input) {
    const int64_t count = input.number(0, MOST_PIXELS);
    const Block<uint8_t> pixels = pixels_of<uint8_t>(input, 3 * count);
    Block<uint8_t> grays{size_t(count)};
    core::make_gray(pixels.data(), count, 1, grays.data());
    int64_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += grays[i];
    ensure(core::sum_grays(pixels.data(), count) == sum, "the sum is that of the grays");
}

void sharpen(Input& input) {
    const int64_t channels = input.number(1, 5), height = input.number(3, 12), width = input.number(3, 12);
    const float weight = finite_of(input);
    const Block<uint8_t> image = pixels_of<uint8_t>(input, height * width * channels);
    Result<uint8_t> out(channels, height, width);
    core::sharpen(image.data(), height, width, channels, weight, out.pixels.data());
    out.compare(
        [&](int64_t y, int64_t x, int64_t c) {
            const auto at = [&](int64_t row, int64_t column) { return int(image[(row * width + column) * channels + c]); };
            if (y == 0 || x == 0 || y == height - 1 || x == width - 1) return uint8_t(at(y, x));
            int sum = 4 * at(y, x);
            for (int64_t i = 0; i < 9; ++i) sum += at(y + i / 3 - 1, x + i % 3 - 1);
            const float smooth = float((2 * sum + 13) / 26), middle = float(at(y, x));  // sum / 13, halves up
            const float value = std::fma(smooth - middle, weight, middle);
            return uint8_t(value > 0 ? std::min(value, 255.0f) : 0.0f);
        },
        "sharpness is a step from the mean of nine pixels to the middle");
}

void look_up(Input& input) {
    const int64_t count = input.number(0, MOST_PIXELS), channels = input.number(1, 5);
    const Block<uint8_t> image = pixels_of<uint8_t>(input, count * channels);
    Block<uint8_t> tables(size_t(256 * channels)), out(size_t(count * channels));
    const auto factor = input.byte();
    for (int64_t i = 0; i < tables.size(); ++i) tables[i] = uint8_t(i * factor + i / 256);
    core::look_up(image.data(), count, channels, tables.data(), out.data());
    for (int64_t i = 0; i < image.size(); ++i)
        ensure(out[i] == tables[256 * (i % channels) + image[i]], "a value is that of its channel's table");
}

void count_levels(Input& input) {
    const int64_t count = input.number(0, MOST_PIXELS), channels = input.number(1, 5);
    const Block<uint8_t> image = pixels_of<uint8_t>(input, count * channels);
    Block<int64_t> counts(size_t(256 * channels));
    core::count_levels(image.data(), count, channels, counts.data());
    for (int64_t i = 0; i < image.size(); ++i) --counts[256 * (i % channels) + image[i]];
    ensure(std::count(counts.data(), counts.data() + counts.size(), 0) == counts.size(), "each value is counted once");
}

}  // namespace

void colours(Input input) {
    switch (input.number(0, 6)) {
        case 0: return change_gray(input);
        case 1: return change_saturation(input);
        case 2: return change_hue(input);
        case 3: return sum_grays(input);
        case 4: return sharpen(input);
        case 5: return look_up(input);
        default: return count_levels(input);
    }
}

}  // namespace fuzz

// Warps and blurs beside loops that say what they mean: matrices and grids whose places lie anywhere or are NaN, weights of
// any value.
#include "../../../gpuload/core/cpp/blur.hpp"
#include "../../../gpuload/core/cpp/rounding.hpp"
#include "../../../gpuload/core/cpp/warp.hpp"
#include "pixels.hpp"

namespace fuzz {
namespace {

struct Place {  // in an image, in pixels
    float column, row;
};

Block<float> floats_of(Input& input, int64_t count) { return pixels_of<float>(input, count); }

// Where pixel (y, x) of a result is taken; the steps and roundings of `ops.geometry.warp`.
template <class T>
Place place_of(const Block<float>& matrix, const Picture<T>& from, int64_t height, int64_t width, int64_t y, int64_t x) {
    const bool is_affine = matrix.size() == 6;
    const float across = float(x) + (is_affine ? float(double(1 - width) * 0.5) : 0.5f);
    const float down = float(y) + (is_affine ? float(double(1 - height) * 0.5) : 0.5f);
    const auto line = [&](float a, float b, float c) { return float(double(across * a) + double(down) * double(b)) + c; };
    const float half[] = {float(from.width) * 0.5f, float(from.height) * 0.5f};
    float places[2];
    for (int axis = 0; axis < 2; ++axis) {
        const float* numbers = matrix.data() + 3 * axis;
        float place = line(numbers[0] / half[axis], numbers[1] / half[axis], numbers[2] / half[axis]);
        if (!is_affine) place = place / line(matrix[6], matrix[7], 1.0f) - 1.0f;
        places[axis] = float(double(place + 1.0f) * double(half[axis]) - 0.5);
    }
    return {places[0], places[1]};
}

// The nearest pixel's byte, that of `fill` outside.
uint8_t nearest(const Picture<uint8_t>& from, Place place, uint8_t fill, int64_t channel) {
    const float column = std::nearbyint(place.column), row = std::nearbyint(place.row);
    const bool is_inside = column >= 0 && column < float(from.width) && row >= 0 && row < float(from.height);
    return is_inside ? from.at(int64_t(row), int64_t(column), channel) : fill;
}

// The mean of the four pixels about a place; those outside count as `fill`.
template <class T>
T blended(const Picture<T>& from, Place place, float fill, int64_t channel) {
    const auto [column, row] = place;
    if (!(column > -1 && column < float(from.width) && row > -1 && row < float(from.height))) return stored<T>(fill);
    const float left = std::floor(column), top = std::floor(row), right_part = column - left, lower_part = row - top;
    float total = 0, sum = 0;
    for (int64_t corner = 0; corner < 4; ++corner) {
        const int64_t y = int64_t(top) + corner / 2, x = int64_t(left) + corner % 2;
        const bool is_inside = y >= 0 && y < from.height && x >= 0 && x < from.width;
        const float weight = (corner % 2 ? right_part : 1 - right_part) * (corner / 2 ? lower_part : 1 - lower_part);
        const float value = is_inside ? float(from.at(y, x, channel)) : 0.0f;
        total = corner == 0 ? value * weight : float(double(value) * double(weight) + double(total));
        sum = corner == 0 ? (is_inside ? weight : 0) : sum + (is_inside ? weight : 0);
    }
    return stored<T>((total - fill) * sum + fill);
}

// Warps an image by a matrix or a grid: `warp(from, places, to)` calls the core.
template <class T, class Warp, class Expected>
void warp_any(Input& input, int64_t channels, const Warp& warp, const Expected& expected) {
    const bool has_grid = input.flag();
    const Block<float> matrix = floats_of(input, input.flag() ? 6 : 8);
    const Picture<T> from(input, channels);
    Result<T> to{channels, input.number(1, 12), input.number(1, 12)};
    const Block<float> columns = floats_of(input, to.height * to.width), rows = floats_of(input, to.height * to.width);
    core::GridPlaces grid_places({columns.data(), rows.data()}, to.width);
    core::MatrixPlaces matrix_places({matrix.data(), matrix.size()}, from.height, from.width, to.height, to.width);
    core::Places& places = has_grid ? static_cast<core::Places&>(grid_places) : matrix_places;
    warp(from.image(), places, to.image());
    to.compare(
        [&](int64_t y, int64_t x, int64_t c) {
            const int64_t i = y * to.width + x;
            const Place place = has_grid ? Place{columns[i], rows[i]} : place_of(matrix, from, to.height, to.width, y, x);
            return expected(from, place, c);
        },
        "a warp takes the pixels of its places");
}

void warp_nearest(Input& input) {
    constexpr int64_t SIZES[] = {1, 2, 3, 4, 5, 12};
    const int64_t channels = SIZES[input.number(0, 5)];
    const Block<uint8_t> fill = pixels_of<uint8_t>(input, channels);
    warp_any<uint8_t>(
        input, channels,
        [&](const auto& from, core::Places& places, const auto& to) { core::warp_nearest(from, places, fill.data(), to); },
        [&](const Picture<uint8_t>& from, Place place, int64_t c) { return nearest(from, place, fill[c], c); });
}

template <class T>
void warp_linear(Input& input) {
    const int64_t channels = input.number(1, 5);
    const Block<float> fill = floats_of(input, channels);
    warp_any<T>(
        input, channels,
        [&](const auto& from, core::Places& places, const auto& to) { core::warp_linear(from, places, fill.data(), to); },
        [&](const Picture<T>& from, Place place, int64_t c) { return blended(from, place, fill[c], c); });
}

int64_t mirrored(int64_t place, int64_t length) {  // the edge is not repeated
    return place < 0 ? -place : place >= length ? 2 * (length - 1) - place : place;
}

template <class T>
void blur(Input& input) {
    const Picture<T> from(input, input.number(1, 5));
    const Block<float> down = floats_of(input, 2 * input.number(0, from.height - 1) + 1);
    const Block<float> across = floats_of(input, 2 * input.number(0, from.width - 1) + 1);
    Result<T> to(from.channels, from.height, from.width);
    core::blur(from.image(), {down.data(), down.size()}, {across.data(), across.size()}, to.image());
    const auto sum = [](const Block<float>& weights, int64_t place, int64_t length, const auto& value) {
        float total = 0;
        for (int64_t tap = 0; tap < weights.size(); ++tap) {
            const float product = value(mirrored(place + tap - weights.size() / 2, length)) * weights[tap];
            total = tap == 0 ? product : total + product;
        }
        return total;
    };
    to.compare(
        [&](int64_t y, int64_t x, int64_t c) {
            const auto column = [&](int64_t place) {
                return sum(down, y, from.height, [&](int64_t row) { return float(from.at(row, place, c)); });
            };
            return stored<T>(sum(across, x, from.width, column));
        },
        "a blur is its sums");
}

}  // namespace

void warps(Input input) {
    switch (input.number(0, 3)) {
        case 0: return warp_nearest(input);
        case 1: return warp_linear<uint8_t>(input);
        case 2: return warp_linear<uint16_t>(input);
        default: return warp_linear<float>(input);
    }
}

void blurs(Input input) {
    switch (input.number(0, 2)) {
        case 0: return blur<uint8_t>(input);
        case 1: return blur<uint16_t>(input);
        default: return blur<float>(input);
    }
}

void roundings(Input input) {
    for (int i = 0; i < 64; ++i) {
        const auto bits = uint32_t(input.word());
        float any;
        std::memcpy(&any, &bits, 4);
        for (const float value : {any, float(int64_t(bits % 262144) - 1024) / 2}) {  // also halves about all that are stored
            ensure(core::rounded<uint8_t>(value) == stored<uint8_t>(value), "a byte is the nearest");
            ensure(core::rounded<uint16_t>(value) == stored<uint16_t>(value), "16 bits are the nearest");
            ensure(is_equal(core::rounded<float>(value), value), "a float stays as it is");
        }
    }
}

}  // namespace fuzz

// Lab: see lab.hpp.
//
// The tables are those of `kernels.lab`, which describes them: float stands where NumPy has float32, double where it has
// float64. No place in them is out of their range, whatever the bytes of a pixel are.
#include "lab.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "clones.hpp"

namespace core {
namespace {

constexpr int LEVELS = 256, NUM_ROOTS = LEVELS * 3 / 2 * 8, MATRIX_BITS = 12;
constexpr int ONE_LINEAR = 255 << 3, ONE_ROOT = 1 << 15, ONE_LIGHT = 1 << 14, ONE_RESULT = 1 << 12;
constexpr int LEAST_ROOT = -8145, NUM_LIGHTS = ONE_LIGHT * 9 / 4;
constexpr int SCALE = (116 * 255 + 50) / 100, SHIFT = (16 * 255 * ONE_ROOT + 50) / 100;
constexpr double WHITE[] = {0.950456, 1.0, 1.088754};
constexpr double TO_XYZ[3][3] = {
    {0.412453, 0.357580, 0.180423}, {0.212671, 0.715160, 0.072169}, {0.019334, 0.119193, 0.950227}};
constexpr double FROM_XYZ[3][3] = {
    {3.240479, -1.53715, -0.498535}, {-0.969256, 1.875991, 0.041556}, {0.055648, -0.204043, 1.057311}};

int32_t whole(double number) { return int32_t(std::nearbyint(number)); }  // halves to even

struct Tables {
    std::array<int32_t, LEVELS> linear, y, root_of_y;
    std::array<int32_t, NUM_ROOTS> roots;
    std::array<int32_t, NUM_LIGHTS> lights;
    std::array<int32_t, ONE_RESULT> values;
    int32_t to_xyz[3][3], from_xyz[3][3];

    Tables() {
        for (int level = 0; level < LEVELS; ++level) {
            const auto value = double(float(level) / 255.0f);
            const double light = value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
            linear[size_t(level)] = whole(float(ONE_LINEAR) * float(light));
        }
        for (int i = 0; i < NUM_ROOTS; ++i) {
            const float place = (1.0f / float(ONE_LINEAR)) * float(i);
            const double low = double(place) * double(841.0f / 108.0f) + double(16.0f / 116.0f);
            roots[size_t(i)] = whole(float(ONE_ROOT) * (place < 216.0f / 24389.0f ? float(low) : cube_root(place)));
        }
        constexpr auto unit = float(ONE_LIGHT);
        for (int level = 0; level < LEVELS; ++level) {
            const bool is_dark = level <= 20;
            const float dark_y = float(level * (ONE_LIGHT * 20 * 9)) / float(17 * 29 * 29 * 29);
            const float dark_root = unit * (16.0f / 116.0f + float(level * 5) / float(3 * 17 * 29));
            const float root = float(level * (100 * ONE_LIGHT)) / float(255 * 116) + float(16 * ONE_LIGHT) / 116.0f;
            y[size_t(level)] = whole(is_dark ? dark_y : root * root * root / (unit * unit));
            root_of_y[size_t(level)] = whole(is_dark ? dark_root : root);
        }
        for (int i = 0; i < NUM_LIGHTS; ++i) {
            const int64_t root = i + LEAST_ROOT, small = root * 108 / 841 - ONE_LIGHT * 16 / 116 * 108 / 841;
            lights[size_t(i)] = int32_t(root <= 3390 ? small : root * root / ONE_LIGHT * root / ONE_LIGHT);
        }
        for (int i = 0; i < ONE_RESULT; ++i) {
            const double amount = double(i) / ONE_RESULT;
            const double gamma = amount <= 0.0031308 ? amount * 12.92 : std::pow(amount, 1 / 2.4) * 1.055 - 0.055;
            values[size_t(i)] = whole(255.0f * float(gamma));
        }
        for (int row = 0; row < 3; ++row)
            for (int column = 0; column < 3; ++column) {
                to_xyz[row][column] = whole((1 << MATRIX_BITS) * TO_XYZ[row][column] / WHITE[row]);
                from_xyz[row][column] = whole((1 << MATRIX_BITS) * FROM_XYZ[row][column] * WHITE[column]);
            }
    }

    static float cube_root(float place) {  // the bits that float has not are cut off
        const double root = std::cbrt(double(place));
        const auto nearest = float(root);
        return double(nearest) > root ? std::nextafter(nearest, 0.0f) : nearest;
    }
};

const Tables& tables() {
    static const Tables instance;  // made by the first thread that comes here; the others wait
    return instance;
}

INLINE int32_t product(int32_t x, int32_t y, int32_t z, const int32_t* row, int bits) {
    return (x * row[0] + y * row[1] + z * row[2] + (1 << (bits - 1))) >> bits;
}

INLINE uint8_t byte(int32_t number) { return uint8_t(std::clamp(number, 0, 255)); }

CLONES void write_lab(const Tables& table, const uint8_t* image, int64_t pixels, uint8_t* lightness, uint8_t* a, uint8_t* b) {
    constexpr int32_t half = ONE_ROOT / 2, middle = 128 * ONE_ROOT;
    const int32_t *const linear = table.linear.data(), *const roots = table.roots.data();
    for (int64_t i = 0; i < pixels; ++i) {
        const int32_t red = linear[image[3 * i]], green = linear[image[3 * i + 1]], blue = linear[image[3 * i + 2]];
        const int32_t x = roots[product(red, green, blue, table.to_xyz[0], MATRIX_BITS)];
        const int32_t y = roots[product(red, green, blue, table.to_xyz[1], MATRIX_BITS)];
        const int32_t z = roots[product(red, green, blue, table.to_xyz[2], MATRIX_BITS)];
        lightness[i] = byte((SCALE * y + (half - SHIFT)) >> 15);
        a[i] = byte((500 * (x - y) + (middle + half)) >> 15);
        b[i] = byte((200 * (y - z) + (middle + half)) >> 15);
    }
}

CLONES void write_rgb(const Tables& table, const uint8_t* lightness, const uint8_t* a, const uint8_t* b, int64_t pixels,
                      uint8_t* image) {
    const int32_t* const lights = table.lights.data() - LEAST_ROOT;
    for (int64_t i = 0; i < pixels; ++i) {
        const int32_t y = table.y[lightness[i]], root = table.root_of_y[lightness[i]];
        const int32_t root_x = root + ((5 * a[i] * 53687 + (1 << 7)) >> 13) - 128 * ONE_LIGHT / 500;
        const int32_t root_z = root - ((b[i] * 41943 + (1 << 4)) >> 9) + 128 * ONE_LIGHT / 200 - 1;
        const int32_t x = lights[root_x], z = lights[root_z];
        for (int64_t channel = 0; channel < 3; ++channel) {
            const int32_t place = product(x, y, z, table.from_xyz[channel], MATRIX_BITS + 2);
            image[3 * i + channel] = uint8_t(table.values[size_t(std::clamp(place, 0, ONE_RESULT - 1))]);
        }
    }
}

}  // namespace

void to_lab(const uint8_t* image, int64_t pixels, uint8_t* lightness, uint8_t* a, uint8_t* b) {
    write_lab(tables(), image, pixels, lightness, a, b);
}

void from_lab(const uint8_t* lightness, const uint8_t* a, const uint8_t* b, int64_t pixels, uint8_t* image) {
    write_rgb(tables(), lightness, a, b, pixels, image);
}

}  // namespace core

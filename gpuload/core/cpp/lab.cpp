// Lab: see lab.hpp.
//
// The tables are those of `kernels.lab`, which describes them: float stands where NumPy has
// float32, double where it has float64. No place in them is out of their range, whatever the bytes
// of a pixel are.
#include "lab.hpp"

#include <cmath>

#include "clones.hpp"
#include "shared/lab.hpp"

namespace core {
namespace {

constexpr int LEVELS = 256, ONE_LINEAR = 255 << 3;
constexpr double WHITE[] = {0.950456, 1.0, 1.088754};
constexpr double TO_XYZ[3][3] = {
    {0.412453, 0.357580, 0.180423}, {0.212671, 0.715160, 0.072169}, {0.019334, 0.119193, 0.950227}};
constexpr double FROM_XYZ[3][3] = {{3.240479, -1.53715, -0.498535},
                                   {-0.969256, 1.875991, 0.041556},
                                   {0.055648, -0.204043, 1.057311}};

int32_t whole(double number) { return int32_t(std::nearbyint(number)); }  // halves to even

struct Tables : LabTables {
    Tables() {
        for (int level = 0; level < LEVELS; ++level) {
            const auto value = double(float(level) / 255.0f);
            const double light =
                value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
            linear[level] = whole(float(ONE_LINEAR) * float(light));
        }
        for (int i = 0; i < NUM_ROOTS; ++i) {
            const float place = (1.0f / float(ONE_LINEAR)) * float(i);
            const double low = double(place) * double(841.0f / 108.0f) + double(16.0f / 116.0f);
            roots[i] = whole(float(ONE_ROOT) *
                             (place < 216.0f / 24389.0f ? float(low) : cube_root(place)));
        }
        constexpr auto unit = float(ONE_LIGHT);
        for (int level = 0; level < LEVELS; ++level) {
            const bool is_dark = level <= 20;
            const float dark_y = float(level * (ONE_LIGHT * 20 * 9)) / float(17 * 29 * 29 * 29);
            const float dark_root = unit * (16.0f / 116.0f + float(level * 5) / float(3 * 17 * 29));
            const float root = float(level * (100 * ONE_LIGHT)) / float(255 * 116) +
                               float(16 * ONE_LIGHT) / 116.0f;
            y[level] = whole(is_dark ? dark_y : root * root * root / (unit * unit));
            root_of_y[level] = whole(is_dark ? dark_root : root);
        }
        for (int i = 0; i < NUM_LIGHTS; ++i) {
            const int64_t root = i + LEAST_ROOT,
                          small = root * 108 / 841 - ONE_LIGHT * 16 / 116 * 108 / 841;
            lights[i] = int32_t(root <= 3390 ? small : root * root / ONE_LIGHT * root / ONE_LIGHT);
        }
        for (int i = 0; i < ONE_RESULT; ++i) {
            const double amount = double(i) / ONE_RESULT;
            const double gamma =
                amount <= 0.0031308 ? amount * 12.92 : std::pow(amount, 1 / 2.4) * 1.055 - 0.055;
            values[i] = whole(255.0f * float(gamma));
        }
        for (int row = 0; row < 3; ++row)
            for (int column = 0; column < 3; ++column) {
                to_xyz[row][column] = whole((1 << MATRIX_BITS) * TO_XYZ[row][column] / WHITE[row]);
                from_xyz[row][column] =
                    whole((1 << MATRIX_BITS) * FROM_XYZ[row][column] * WHITE[column]);
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

CLONES void write_lab(const Tables& table, const uint8_t* image, int64_t pixels, uint8_t* lightness,
                      uint8_t* a, uint8_t* b) {
    for (int64_t i = 0; i < pixels; ++i) {
        const Lab lab = to_lab(table, {image[3 * i], image[3 * i + 1], image[3 * i + 2]});
        lightness[i] = uint8_t(lab.lightness);
        a[i] = uint8_t(lab.a);
        b[i] = uint8_t(lab.b);
    }
}

CLONES void write_rgb(const Tables& table, const uint8_t* lightness, const uint8_t* a,
                      const uint8_t* b, int64_t pixels, uint8_t* image) {
    for (int64_t i = 0; i < pixels; ++i) {
        const Levels levels = from_lab(table, {lightness[i], a[i], b[i]});
        image[3 * i] = uint8_t(levels.red);
        image[3 * i + 1] = uint8_t(levels.green);
        image[3 * i + 2] = uint8_t(levels.blue);
    }
}

}  // namespace

void to_lab(const uint8_t* image, int64_t pixels, uint8_t* lightness, uint8_t* a, uint8_t* b) {
    write_lab(tables(), image, pixels, lightness, a, b);
}

void from_lab(const uint8_t* lightness, const uint8_t* a, const uint8_t* b, int64_t pixels,
              uint8_t* image) {
    write_rgb(tables(), lightness, a, b, pixels, image);
}

}  // namespace core

// Operations as edits: see policies.hpp.
//
// The functions are those that Python's `math` calls, and numbers are rounded to decimals as
// Python's `round` does it: by their exact decimals, which `std::to_chars` writes.
#include "policies.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "shared/edits.hpp"

namespace core {
namespace {

constexpr double PI = 3.14159265358979323846, TO_RADIANS = PI / 180.0, TO_DEGREES = 180.0 / PI;
constexpr double TIMM_LARGEST = 10.0;
constexpr int COSINE_DIGITS = 15, THRESHOLD_DIGITS = 4;
constexpr int64_t TABLE_NUMBERS = EDIT_NUMBERS - 2, LEVELS = 256;

// As in `ops.policy.policies`.
enum class Form {
    LEVEL,
    FACTOR,
    SHIFT,
    SHEAR_X,
    SHEAR_Y,
    THRESHOLD,
    PART,
    PART_OF_SIDE,
    PART_ABOUT_1,
    PART_AS_FACTOR,
    SATURATION,
    SIGMA,
    BITS,
    PART_OF_LEVELS,
    ADDEND,
};
static_assert(int64_t(Form::ADDEND) + 1 == NUM_FORMS);
enum class Table { POSTERIZE, SOLARIZE, SOLARIZE_ADD, INVERT };
constexpr int ROTATION = -1;

double rounded_to(double number, int digits) {
    char text[360];  // numbers up to 1e308 have so many digits
    const auto end =
        std::to_chars(text, text + sizeof text, number, std::chars_format::fixed, digits).ptr;
    std::from_chars(text, end, number);
    return number;
}

double shear_angle(double level) { return std::atan(level) * TO_DEGREES * TO_RADIANS; }

double value_of(const Rule& rule, double level, double height, double width) {
    const double part = std::fabs(level) / TIMM_LARGEST, sign = std::copysign(1.0, level);
    switch (Form(int(rule.form))) {
        case Form::LEVEL:
            return level;
        case Form::FACTOR:
            return 1.0 + level;
        case Form::SHIFT:
            return 0.0 - std::trunc(level);
        case Form::SHEAR_X:
            return std::tan(shear_angle(level));
        case Form::SHEAR_Y:
            return std::sin(shear_angle(level)) / std::cos(shear_angle(level));
        case Form::THRESHOLD:
            return std::ceil(rounded_to(255.0 * level, THRESHOLD_DIGITS)) + 0.0;
        case Form::PART:
            return sign * (part * rule.first);
        case Form::PART_OF_SIDE:
            return sign * (part * rule.first) * (rule.second == 0.0 ? height : width);
        case Form::PART_ABOUT_1:
            return std::max(rule.second, 1.0 + sign * (part * rule.first));
        case Form::PART_AS_FACTOR:
            return part * rule.first + rule.second;
        case Form::SATURATION:
            return 1.0 - std::min(1.0, 0.5 + 0.5 * part);
        case Form::SIGMA:
            return std::min(2.0, 0.1 + 1.9 * part);
        case Form::BITS:
            return rule.first + rule.second * std::trunc(part * 4.0);
        case Form::PART_OF_LEVELS:
            return rule.first + rule.second * std::min(256.0, std::trunc(part * 256.0));
        case Form::ADDEND:
            return std::min(128.0, std::trunc(part * 110.0));
    }
    return level;
}

void write_table(Table table, double value, double* to) {
    uint8_t bytes[LEVELS];
    const int whole = int(std::clamp(value, -1.0, 256.0));
    const int mask = whole >= 8 ? 255 : whole <= 0 ? 0 : 256 - 256 / (1 << whole);
    for (int level = 0; level < LEVELS; ++level) {
        int result = 255 - level;
        if (table == Table::POSTERIZE) result = level & mask;
        if (table == Table::SOLARIZE && level < value) result = level;
        if (table == Table::SOLARIZE_ADD)
            result = level < 128 ? std::min(level + whole, 255) : level;
        bytes[level] = uint8_t(result);
    }
    std::memcpy(to, bytes, sizeof bytes);
}

// See `blur_pillow.boxes`. Of a larger sigma the numbers would not fit; edits have none.
void write_box(double sigma, double* to) {
    sigma = std::clamp(sigma, -MOST_LEVEL, MOST_LEVEL);
    const float variance = float(sigma) * float(sigma) / 3.0f;
    const auto length = float(std::sqrt(12.0 * double(variance) + 1.0));
    const auto whole = float(std::floor((double(length) - 1.0) / 2.0));
    float part = (2.0f * whole + 1.0f) * (whole * (whole + 1.0f) - 3.0f * variance);
    part = part / (6.0f * (variance - (whole + 1.0f) * (whole + 1.0f)));
    const float radius = whole + part;
    constexpr int64_t ONE = 1 << 24;
    const auto reach = int64_t(radius), weight = int64_t(float(ONE) / (radius * 2.0f + 1.0f));
    const int64_t rest = ONE - (2 * reach + 1) * weight;
    to[0] = double(reach), to[1] = double(weight),
    to[2] = double(rest >= 0 ? rest / 2 : (rest - 1) / 2);
}

// See `pillow.rotations`; `slot` is a whole edit: a rotation by quarters is another one.
void write_rotation(double angle, double height, double width, double* slot) {
    double turn = std::fmod(angle, 360.0);
    turn = turn < 0.0 ? turn + 360.0 : turn + 0.0;
    if (turn == 0.0 || turn == 180.0 || (height == width && (turn == 90.0 || turn == 270.0))) {
        std::fill(slot + 2, slot + EDIT_NUMBERS, 0.0);
        slot[0] = double(turn == 0.0 ? Code::SKIP : Code::PIL_TURN),
        slot[2] = std::floor(turn / 90.0);
        return;
    }
    const double angle_down = -(turn * TO_RADIANS);
    const double cos = rounded_to(std::cos(angle_down), COSINE_DIGITS);
    const double sin = rounded_to(std::sin(angle_down), COSINE_DIGITS);
    const double x = width / 2.0, y = height / 2.0;
    const double matrix[] = {cos,  sin, cos * -x + sin * -y + x,
                             -sin, cos, -sin * -x + cos * -y + y};
    std::copy_n(matrix, 6, slot + 3);
}

void write_edit(const Policy& policy, const Rule& rule, double level, bool is_cubic,
                const int32_t* size, double* slot) {
    const double height = double(size[0]), width = double(size[1]),
                 value = value_of(rule, level, height, width);
    slot[0] = rule.code;
    double* to = slot + 2;
    switch (Code(int(rule.code))) {
        case Code::TABLE:
            return write_table(Table(int(rule.place)), value, to);
        case Code::PIL_BLUR:
            return write_box(value, to);
        case Code::PIL_AFFINE: {
            to[0] = policy.filters[is_cubic];
            std::copy_n(policy.fill, 3, to + 7);
            if (int(rule.place) == ROTATION) return write_rotation(value, height, width, slot);
            to[1] = to[5] = 1.0;
            to[1 + int(rule.place)] = value;
            return;
        }
        default:
            to[0] = value;
    }
}

}  // namespace

void write_edits(const Drawn& drawn, const Policy& policy, double* out) {
    std::fill_n(out, drawn.count * drawn.layers * EDIT_NUMBERS, 0.0);
    for (int64_t i = 0; i < drawn.count * drawn.layers; ++i) {
        double* slot = out + i * EDIT_NUMBERS;
        slot[1] = double(TABLE_NUMBERS);
        const Rule& rule = policy.rules[drawn.numbers[i]];
        if (Code(int(rule.code)) == Code::SKIP) continue;
        const bool is_cubic = drawn.cubic != nullptr && drawn.cubic[i] != 0;
        write_edit(policy, rule, double(drawn.levels[i]), is_cubic,
                   drawn.sizes + 2 * (i / drawn.layers), slot);
    }
}

}  // namespace core

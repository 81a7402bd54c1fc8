// Edits of images: numbers that are no edits are refused, and edits together are the same as one after the other.
#include <numeric>

#include "../../../gpuload/core/cpp/edit.hpp"
#include "../../../gpuload/core/cpp/shared/edits.hpp"
#include "pixels.hpp"

namespace fuzz {
namespace {

constexpr auto NUM_CODES = int64_t(core::Code::NUM_CODES);  // which is none itself
constexpr auto MIX = int64_t(core::Code::PIL_MIX), CLAHE = int64_t(core::Code::CLAHE);
constexpr auto PIL_BLUR = int64_t(core::Code::PIL_BLUR);
constexpr int64_t MOST_EDITS = 5;

double number_of(Input& input) {  // mostly a small number, else any
    if (input.byte() < 224) return double(float_of(input));
    const uint64_t bits = input.word();
    double value;
    std::memcpy(&value, &bits, 8);
    return value;
}

std::vector<double> arguments_of(Input& input, int64_t code, int64_t depth);

// An edit: its code, the number of its arguments, and these.
std::vector<double> edit_of(Input& input, int64_t depth) {
    const int64_t code = input.number(0, NUM_CODES);
    const std::vector<double> arguments = arguments_of(input, code, depth);
    std::vector<double> edit{double(code), double(arguments.size())};
    if (input.byte() >= 250) edit[size_t(input.number(0, 1))] = number_of(input);
    edit.insert(edit.end(), arguments.begin(), arguments.end());
    return edit;
}

std::vector<double> arguments_of(Input& input, int64_t code, int64_t depth) {
    std::vector<double> numbers;
    const auto put = [&](int64_t count) {
        for (int64_t i = 0; i < count; ++i) numbers.push_back(number_of(input));
    };
    if (code == int(core::Code::TABLE)) {  // a table of 256 bytes
        put(32);
    } else if (code == int(core::Code::BLUR)) {  // a blur: weights of two windows
        const int64_t down = input.number(1, 9), across = input.number(1, 9);
        numbers = {double(down), double(across)};
        put(down + across);
    } else if (code == int(core::Code::PIL_AFFINE)) {  // an affine map: interpolation, six numbers, a fill
        numbers = {double(input.number(0, 2))};
        put(6);
        for (int c = 0; c < 3; ++c) numbers.push_back(input.byte());
    } else if (code == int(core::Code::PIL_TURN)) {  // a turn by quarters
        numbers = {double(input.number(0, 4))};
    } else if (code == CLAHE) {  // a limit, tiles down and across
        numbers = {input.flag() ? number_of(input) : double(input.number(1, 300)) / 4, double(input.number(0, 30)),
                   input.byte() >= 250 ? number_of(input) : double(input.number(0, 30))};
    } else if (code == PIL_BLUR) {  // a reach, and two weights of 2**-24
        numbers = {double(input.number(0, 2)), double(input.number(0, 1 << 23)), double(input.number(0, 1 << 22))};
    } else if (code == MIX && depth == 0) {
        numbers = {number_of(input), double(input.number(0, 3))};
        for (auto chain = int64_t(numbers[1]); chain > 0; --chain) {
            std::vector<double> edits;
            for (int64_t i = input.number(0, 2); i > 0; --i) {
                const std::vector<double> edit = edit_of(input, 1);
                edits.insert(edits.end(), edit.begin(), edit.end());
            }
            numbers.push_back(number_of(input));
            numbers.push_back(double(edits.size()));
            numbers.insert(numbers.end(), edits.begin(), edits.end());
        }
    } else {
        put(input.number(0, 3));
    }
    return numbers;
}

core::Edits edits_of(const Block<double>& numbers) { return {numbers.data(), numbers.size()}; }

}  // namespace

void edits(Input input) {
    const int64_t channels = input.flag() ? 3 : input.number(1, 5), height = input.number(1, 20);
    const core::Size size{height, input.flag() ? height : input.number(1, 20), channels};
    std::vector<Block<double>> parts;
    std::vector<double> numbers;
    for (int64_t i = input.number(0, MOST_EDITS); i > 0; --i) {
        const std::vector<double> edit = edit_of(input, 0);
        parts.emplace_back(edit.data(), edit.size());
        numbers.insert(numbers.end(), edit.begin(), edit.end());
    }
    const Block<double> all(numbers.data(), numbers.size());
    const Block<uint8_t> image = pixels_of<uint8_t>(input, size.bytes());
    bool are_edits = true;
    for (const Block<double>& part : parts) are_edits = are_edits && core::are_edits(edits_of(part), size);
    if (!core::are_edits(edits_of(all), size)) return;
    Block<uint8_t> out(size_t(size.bytes()));
    core::Editor editor;
    editor.edit(image.data(), size, edits_of(all), out.data());
    if (!are_edits) return;  // an edit whose number of arguments is another took those behind it
    Block<uint8_t> from(image.data(), size_t(size.bytes())), to(size_t(size.bytes()));
    for (const Block<double>& part : parts) {
        editor.edit(from.data(), size, edits_of(part), to.data());  // an editor is used again and again
        std::swap(from, to);
    }
    ensure(std::equal(out.data(), out.data() + out.size(), from.data()), "edits together are the same as one after the other");
}

}  // namespace fuzz

// Edits: see edit.hpp.
//
// Look-ups that follow one another become one table for each channel, which is applied when pixels
// are needed. An edit that makes pixels of those beside them (a move) writes to other memory than
// it reads: `out` and a spare buffer take turns, so that the last move writes to `out`.
#include "edit.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "blur.hpp"
#include "colour.hpp"
#include "lookup.hpp"
#include "pilaffine.hpp"
#include "pilblur.hpp"
#include "pilcolour.hpp"
#include "shared/edits.hpp"

namespace core {
namespace {

constexpr int64_t LEVELS = 256, RGB = 3;
constexpr int64_t TABLE_NUMBERS = LEVELS / int64_t(sizeof(double)), FILL = 7,
                  AFFINE_NUMBERS = FILL + RGB;
constexpr int64_t MOST_TILES = std::numeric_limits<int32_t>::max();  // along an axis

constexpr auto LAST = int64_t(Code::NUM_CODES) - 1;

bool is_whole(double number, int64_t least, int64_t most) {
    return number >= double(least) && number <= double(most) && number == std::floor(number);
}

bool are_floats(const double* numbers, int64_t count) {  // that are finite
    return std::all_of(numbers, numbers + count,
                       [](double number) { return std::isfinite(float(number)); });
}

bool is_weight(double number) {
    return std::fabs(number) <= 1e6;
}  // the sum of levels times weights stays finite

bool are_finite(const double* numbers, int64_t count) {
    return std::all_of(numbers, numbers + count,
                       [](double number) { return std::isfinite(number); });
}

}  // namespace

struct Editor::Edit {
    Code code;
    const double* numbers;
    int64_t count;

    float number(int64_t i) const { return float(numbers[i]); }
    int64_t whole(int64_t i) const { return int64_t(numbers[i]); }

    bool is_move() const {
        switch (code) {
            case Code::SHARPNESS:
            case Code::BLUR:
            case Code::PIL_SHARPNESS:
            case Code::PIL_AFFINE:
            case Code::PIL_TURN:
            case Code::PIL_MIX:
            case Code::CLAHE:
            case Code::PIL_BLUR:
                return true;
            default:
                return false;
        }
    }

    bool changes(const Size& size) const {  // images of that size at all
        switch (code) {
            case Code::SKIP:
                return false;
            case Code::SATURATION:
            case Code::HUE:
            case Code::GRAY:
            case Code::PIL_SATURATION:
                return size.channels == RGB;
            case Code::SHARPNESS:
            case Code::PIL_SHARPNESS:
                return size.height > 2 && size.width > 2;
            default:
                return true;
        }
    }

    bool fits(const Size& size, bool is_inner) const {
        const bool has_colours = size.channels == 1 || size.channels == RGB;
        switch (code) {
            case Code::SKIP:
            case Code::AUTOCONTRAST:
            case Code::EQUALIZE:
            case Code::PIL_AUTOCONTRAST:
                return true;
            case Code::GRAY:
                return has_colours;
            case Code::TABLE:
                return count >= TABLE_NUMBERS;
            case Code::BRIGHTNESS:
            case Code::SHARPNESS:
            case Code::PIL_SHARPNESS:
                return count >= 1 && are_floats(numbers, 1);
            case Code::CONTRAST:
            case Code::SATURATION:
                return has_colours && count >= 2 && are_floats(numbers, 2);
            case Code::HUE:
            case Code::PIL_CONTRAST:
            case Code::PIL_SATURATION:
                return has_colours && count >= 1 && are_floats(numbers, 1);
            case Code::BLUR:
                return count >= 2 && is_whole(numbers[0], 1, count) &&
                       is_whole(numbers[1], 1, count) && whole(0) + whole(1) <= count - 2 &&
                       whole(0) % 2 == 1 && whole(1) % 2 == 1 && whole(0) / 2 < size.height &&
                       whole(1) / 2 < size.width;
            case Code::PIL_AFFINE:
                return has_colours && count >= AFFINE_NUMBERS && is_whole(numbers[0], 0, 2) &&
                       are_finite(numbers + 1, FILL - 1) &&
                       std::all_of(numbers + FILL, numbers + AFFINE_NUMBERS,
                                   [](double byte) { return is_whole(byte, 0, 255); });
            case Code::PIL_TURN:
                return count >= 1 && is_whole(numbers[0], 1, 3) &&
                       (whole(0) == 2 || size.height == size.width);
            case Code::PIL_MIX:
                return !is_inner && has_chains(size);
            case Code::CLAHE:
                return size.pixels() <= MOST_TILED && count >= 3 && std::isfinite(numbers[0]) &&
                       numbers[0] > 0 && is_whole(numbers[1], 1, MOST_TILES) &&
                       is_whole(numbers[2], 1, MOST_TILES);
            case Code::PIL_BLUR:
                return count >= 3 && is_whole(numbers[0], 0, pillow::MOST_BOX) &&
                       is_whole(numbers[1], 0, pillow::ONE_BOX) &&
                       is_whole(numbers[2], 0, pillow::ONE_BOX) &&
                       (2 * whole(0) + 1) * whole(1) + 2 * whole(2) <= pillow::ONE_BOX;
            case Code::NUM_CODES:
                break;
        }
        return false;
    }

    // A mix: the share of the sum of the chains, the number of chains, and for each chain its
    // weight, the count of its numbers, and these numbers.
    bool has_chains(const Size& size) const {
        if (count < 2 || !are_floats(numbers, 1) || !is_whole(numbers[1], 0, count)) return false;
        int64_t place = 2;
        for (int64_t chain = 0; chain < whole(1); ++chain) {
            const int64_t rest = count - place - 2;
            if (rest < 0 || !is_weight(numbers[place]) || !is_whole(numbers[place + 1], 0, rest))
                return false;
            if (!all_fit({numbers + place + 2, whole(place + 1)}, size, true)) return false;
            place += 2 + whole(place + 1);
        }
        return true;
    }

    static bool all_fit(const Edits& edits, const Size& size, bool is_inner) {
        for (int64_t place = 0; place < edits.count;) {
            const int64_t rest = edits.count - place - 2;
            const double* const numbers = edits.numbers + place;
            if (rest < 0 || !is_whole(numbers[0], 0, LAST) || !is_whole(numbers[1], 0, rest))
                return false;
            const Edit edit{Code(int(numbers[0])), numbers + 2, int64_t(numbers[1])};
            if (!edit.fits(size, is_inner)) return false;
            place += 2 + edit.count;
        }
        return true;
    }

    // Calls `use(edit)` for each of the edits that change images of a size.
    template <class Use>
    static void each(const Edits& edits, const Size& size, const Use& use) {
        for (int64_t place = 0; place < edits.count;) {
            const double* const numbers = edits.numbers + place;
            const Edit edit{Code(int(numbers[0])), numbers + 2, int64_t(numbers[1])};
            if (edit.changes(size)) use(edit);
            place += 2 + edit.count;
        }
    }
};

bool are_edits(const Edits& edits, const Size& size) {
    return Editor::Edit::all_fit(edits, size, false);
}

void Editor::edit(const uint8_t* image, const Size& size, const Edits& edits, uint8_t* out) {
    size_ = size;
    current_ = image;
    out_ = out;
    num_tables_ = num_moves_ = 0;
    Edit::each(edits, size, [&](const Edit& edit) { num_moves_ += edit.is_move(); });
    Edit::each(edits, size, [&](const Edit& edit) { apply(edit); });
    if (pixels() != out) std::memcpy(out, current_, size_t(size.bytes()));
}

void Editor::apply(const Edit& edit) {
    uint8_t table[LEVELS];
    switch (edit.code) {
        case Code::TABLE:
            std::memcpy(table, edit.numbers, LEVELS);
            return add_tables(table, 1);
        case Code::BRIGHTNESS:
            brightness_table(edit.number(0), table);
            return add_tables(table, 1);
        case Code::CONTRAST:
            contrast_table(float(sum(sum_grays)) / float(size_.pixels()), edit.number(0),
                           edit.number(1), table);
            return add_tables(table, 1);
        case Code::PIL_CONTRAST: {
            const double mean = double(sum(pillow::sum_grays)) / double(size_.pixels());
            pillow::contrast_table(float(std::floor(mean + 0.5)), edit.number(0), table);
            return add_tables(table, 1);
        }
        case Code::AUTOCONTRAST:
            return stretch(stretch_table);
        case Code::PIL_AUTOCONTRAST:
            return stretch(pillow::stretch_table);
        case Code::EQUALIZE:
            return equalize();
        default:
            break;
    }
    const uint8_t* const from = pixels();
    if (edit.is_move()) --num_moves_;
    uint8_t* const to = place(num_moves_);
    switch (edit.code) {
        case Code::SATURATION:
            saturate(from, size_.pixels(), edit.number(0), edit.number(1), to);
            break;
        case Code::PIL_SATURATION:
            pillow::saturate(from, size_.pixels(), edit.number(0), to);
            break;
        case Code::HUE:
            turn_hue(from, size_.pixels(), edit.number(0), to);
            break;
        case Code::GRAY:
            make_gray(from, size_.pixels(), RGB, to);
            break;
        default:
            move(edit, from, to);
    }
    current_ = to;
}

void Editor::move(const Edit& edit, const uint8_t* from, uint8_t* to) {
    const auto [height, width, channels] = size_;
    const Image<const uint8_t> image{from, width * channels, height, width, channels};
    switch (edit.code) {
        case Code::SHARPNESS:
            return sharpen(from, height, width, channels, edit.number(0), to);
        case Code::PIL_SHARPNESS:
            return pillow::sharpen(from, height, width, channels, edit.number(0), to);
        case Code::BLUR: {
            const int64_t down = edit.whole(0), across = edit.whole(1);
            const std::vector<float> weights(edit.numbers + 2, edit.numbers + 2 + down + across);
            return blur(image, {weights.data(), down}, {weights.data() + down, across},
                        Image<uint8_t>{to, image.stride, height, width, channels});
        }
        case Code::PIL_AFFINE: {
            uint8_t fill[RGB];
            for (int64_t c = 0; c < RGB; ++c) fill[c] = uint8_t(edit.numbers[FILL + c]);
            return pillow::affine(image, edit.numbers + 1, pillow::Interpolation(edit.whole(0)),
                                  fill, to);
        }
        case Code::PIL_TURN:
            return pillow::turn(image, int(edit.whole(0)), to);
        case Code::CLAHE: {
            const Tiling tiling{edit.whole(1), edit.whole(2), edit.numbers[0]};
            const Image<uint8_t> result{to, image.stride, height, width, channels};
            return channels == RGB ? tiles_.equalize_lightness(image, tiling, result)
                                   : tiles_.equalize(image, tiling, result);
        }
        case Code::PIL_BLUR:
            return pillow::blur(image, {edit.whole(0), edit.whole(1), edit.whole(2)}, to);
        default:
            return mix(edit, from, to);
    }
}

// Adds up the results of chains of edits, each times its weight, and blends the image with the sum.
void Editor::mix(const Edit& edit, const uint8_t* from, uint8_t* to) {
    const auto count = size_t(size_.bytes());
    if (!inner_) inner_ = std::make_unique<Editor>();
    chain_.resize(std::max(chain_.size(), count));
    sums_.assign(count, 0.0f);
    const double* numbers = edit.numbers + 2;
    for (int64_t chain = 0; chain < edit.whole(1); ++chain) {
        const auto weight = float(numbers[0]);
        const Edits edits{numbers + 2, int64_t(numbers[1])};
        inner_->edit(from, size_, edits, chain_.data());
        for (size_t i = 0; i < count; ++i) sums_[i] += float(chain_[i]) * weight;
        numbers += 2 + edits.count;
    }
    for (size_t i = 0; i < count; ++i) chain_[i] = uint8_t(std::clamp(sums_[i], 0.0f, 255.0f));
    pillow::blend(from, chain_.data(), size_.bytes(), edit.number(0), to);
}

// Has each channel looked up in the table for its least and its largest value.
void Editor::stretch(void (*table_of)(uint8_t low, uint8_t high, uint8_t* table)) {
    const int64_t channels = size_.channels;
    std::vector<uint8_t> low(static_cast<size_t>(channels)), high(static_cast<size_t>(channels));
    find_bounds(pixels(), size_.pixels(), channels, low.data(), high.data());
    new_tables_.resize(size_t(LEVELS * channels));
    for (int64_t c = 0; c < channels; ++c)
        table_of(low[size_t(c)], high[size_t(c)], new_tables_.data() + LEVELS * c);
    add_tables(new_tables_.data(), channels);
}

// Counts the levels in memory and moves the counts by the tables so far: the pixels need not be
// looked up before.
void Editor::equalize() {
    const int64_t channels = size_.channels, size = LEVELS * channels;
    counts_.assign(size_t(2 * size), 0);
    int64_t *const stored = counts_.data(), *const counts = stored + size;
    count_levels(current_, size_.pixels(), channels, stored);
    for (int64_t i = 0; i < size; ++i) {
        const int64_t level = i % LEVELS, place = num_tables_ == 1 ? level : i;
        counts[i - level + (num_tables_ == 0 ? level : tables_[size_t(place)])] += stored[i];
    }
    new_tables_.resize(size_t(size));
    for (int64_t c = 0; c < channels; ++c)
        even_table(counts + LEVELS * c, new_tables_.data() + LEVELS * c);
    add_tables(new_tables_.data(), channels);
}

// Returns the sum of the grays of all pixels; of red, green and blue a function makes it.
int64_t Editor::sum(int64_t (*sum_of_rgb)(const uint8_t* image, int64_t pixels)) {
    const uint8_t* const image = pixels();
    if (size_.channels == RGB) return sum_of_rgb(image, size_.pixels());
    int64_t total = 0;
    for (int64_t i = 0; i < size_.pixels(); ++i) total += image[i];
    return total;
}

// Returns the pixels, looked up.
const uint8_t* Editor::pixels() {
    if (num_tables_ > 0) {
        uint8_t* const to = place(num_moves_);
        look_up(current_, size_.bytes() / num_tables_, num_tables_, tables_.data(), to);
        current_ = to;
        num_tables_ = 0;
    }
    return current_;
}

// Returns the memory for pixels after which so many moves come.
uint8_t* Editor::place(int64_t num_moves) {
    if (num_moves % 2 == 0) return out_;
    spare_.resize(std::max(spare_.size(), size_t(size_.bytes())));
    return spare_.data();
}

// Has each value looked up, in one table or in that of its channel, after it was looked up in those
// so far.
void Editor::add_tables(const uint8_t* tables, int64_t count) {
    if (num_tables_ == 0) {
        tables_.assign(tables, tables + LEVELS * count);
        num_tables_ = count;
        return;
    }
    if (num_tables_ < count) {  // the one table becomes that of each channel
        tables_.resize(size_t(LEVELS * count));
        for (int64_t c = 1; c < count; ++c)
            std::copy_n(tables_.begin(), LEVELS, tables_.begin() + LEVELS * c);
        num_tables_ = count;
    }
    for (int64_t i = 0; i < LEVELS * num_tables_; ++i)
        tables_[size_t(i)] = tables[(count == 1 ? 0 : i / LEVELS * LEVELS) + tables_[size_t(i)]];
}

}  // namespace core

// Visits of an image: the same as its steps by themselves, one after the other; or declined, as one of these is.
#include "visits.hpp"

#include <algorithm>

#include "pixels.hpp"

namespace fuzz {
namespace {

constexpr int64_t MOST_STEPS = 6, MOST_SIDE = 40;

int32_t near(Input& input, int64_t usual) { return int32_t(input.hostile(usual)); }

core::Resizing resizing_of(Input& input, Sides image, Sides& after) {
    const float tables[][3] = {{0, 1, 0}, {0.5, 1, -0.25}};
    const float* const table = tables[input.flag()];
    core::Resizing resizing{{}, {}, {table, table + 3}, 2, input.flag()};
    if (input.flag()) resizing.table.clear();
    const bool fits = input.byte() < 224;
    const int32_t top = fits ? int32_t(input.number(0, std::max<int64_t>(image.height - 1, 0))) : near(input, image.height);
    const int32_t left = fits ? int32_t(input.number(0, std::max<int64_t>(image.width - 1, 0))) : near(input, image.width);
    const int32_t height = fits ? int32_t(input.number(1, std::max<int64_t>(image.height - top, 1))) : near(input, image.height);
    const int32_t width = fits ? int32_t(input.number(1, std::max<int64_t>(image.width - left, 1))) : near(input, image.width);
    resizing.boxes = {top, left, height, width};
    after = {input.number(input.byte() < 250, MOST_SIDE), input.number(1, MOST_SIDE)};
    resizing.sizes = {int32_t(after.height), int32_t(after.width)};
    return resizing;
}

core::Editing editing_of(Input& input) {
    std::vector<double> numbers;
    for (int64_t i = input.number(0, 3); i > 0; --i) {
        const int64_t code = input.number(0, 9);  // of arguments of any size: brightness, contrast, hue and such
        numbers.insert(numbers.end(), {double(code == 1 ? 2 : code), 2.0, double(float_of(input)), double(float_of(input))});
    }
    if (input.byte() > 250) numbers.push_back(1);
    const auto count = int64_t(numbers.size());
    return {std::move(numbers), count};
}

core::Walking walking_of(Input& input, Sides image, Sides& after) {
    after = {input.number(input.byte() < 250, MOST_SIDE), input.number(1, MOST_SIDE)};
    core::Walking walking;
    walking.sizes = {int32_t(after.height), int32_t(after.width)};
    for (const int64_t side : {image.height, image.width}) {
        walking.start.push_back(input.flag() ? int32_t(input.number(0, MOST_SIDE)) - 20 : near(input, side));
        walking.mirror.push_back(input.flag());
    }
    walking.fill = input.byte();
    return walking;
}

// Returns whether an image became another one.
template <class Out>
bool make(const Block<uint8_t>& image, Sides size, const core::Visit& visit, Block<Out>& out, Sides room) {
    const core::Pixels pixels{image.data(), size.height, size.width};
    const core::Room<Out> rooms{out.data(), room.height, room.width};
    int8_t declined = -1;
    core::make_rows(&pixels, visit, &rooms, &declined);
    ensure(declined == 0 || declined == 1, "an image is made or declined");
    return declined == 0;
}

}  // namespace

core::Visit visit_of(Input& input, int64_t channels, Sides image, std::vector<Sides>& sides) {
    core::Visit visit{1, channels, {}, {}, {}};
    for (int64_t i = input.number(0, MOST_STEPS); i > 0; --i) {
        Sides after = image;
        switch (input.number(0, 4)) {
            case 0: visit.steps.push_back(editing_of(input)); break;
            case 1:
            case 2: visit.steps.push_back(walking_of(input, image, after)); break;
            default: visit.steps.push_back(resizing_of(input, image, after));
        }
        sides.push_back(image = after);
    }
    return visit;
}

void visits(Input input) {
    const int64_t channels = input.flag() ? 3 : input.number(1, 5);
    const Sides size{input.number(1, MOST_SIDE), input.number(1, MOST_SIDE)};
    std::vector<Sides> sides;
    core::Visit visit = visit_of(input, channels, size, sides);
    const Sides room = sides.empty() ? size : sides.back();
    const Block<uint8_t> image = pixels_of<uint8_t>(input, channels * size.height * size.width);

    Block<uint8_t> out(size_t(channels * room.height * room.width));
    const bool is_made = make(image, size, visit, out, room);

    Block<uint8_t> now(image.data(), size_t(image.size()));
    Sides before = size;
    bool is_made_by_steps = true;
    for (size_t k = 0; k < sides.size() && is_made_by_steps; ++k) {
        Block<uint8_t> after(size_t(channels * sides[k].height * sides[k].width));
        is_made_by_steps = make(now, before, core::Visit{1, channels, {visit.steps[k]}, {}, {}}, after, sides[k]);
        now = std::move(after);
        before = sides[k];
    }
    // A box of a walk's window is looked at alone: what the walk does not fit may not be seen.
    ensure(is_made == is_made_by_steps, "a visit is declined where one of its steps is");
    if (is_made) ensure(std::equal(out.data(), out.data() + out.size(), now.data()), "a visit is its steps");

    const Sides other{room.height + 1, room.width};
    Block<uint8_t> larger(size_t(channels * other.height * other.width));
    ensure(!make(image, size, visit, larger, other), "a room of another size is not filled");
    if (visit.steps.empty() || !std::holds_alternative<core::Walking>(visit.steps.back())) return;
    visit.out_planes = input.flag();
    for (int64_t c = 0; c < channels; ++c) {
        visit.mean.push_back(float_of(input));
        visit.scale.push_back(float_of(input));
    }
    Block<float> floats(size_t(channels * room.height * room.width));
    ensure(make(image, size, visit, floats, room) == is_made, "floats are made where bytes are");
    for (int64_t i = 0; is_made && i < out.size(); ++i) {
        const int64_t c = i % channels, place = visit.out_planes ? c * room.height * room.width + i / channels : i;
        const float value = (float(out[i]) - visit.mean[size_t(c)]) * visit.scale[size_t(c)];
        ensure(is_equal(floats[place], value), "floats are the bytes, normalised");
    }
}

}  // namespace fuzz

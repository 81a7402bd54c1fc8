// The door to ops on pixels: see door.hpp.
#include <nanobind/stl/array.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <type_traits>

#include "blur.hpp"
#include "clahe.hpp"
#include "colour.hpp"
#include "door.hpp"
#include "edit.hpp"
#include "makers.hpp"
#include "pilresize.hpp"
#include "policies.hpp"
#include "resize.hpp"
#include "taps.hpp"
#include "walk.hpp"
#include "warp.hpp"

namespace door {
namespace {

template <class T>
using ImageArray = Array<T, 3>;  // height, width, channels
template <class T>
using Box = SpacedArray<const T, 3>;  // of an image

// Checks that an image has pixels.
template <class T, bool IS_DENSE>
core::Image<T> image_of(const Array<T, 3, IS_DENSE>& image, int64_t most_side = MOST_SIDE) {
    const int64_t height = image.shape(0), width = image.shape(1), channels = image.shape(2);
    const bool has_pixels = is_side(height) && is_side(width) && is_side(channels);
    require(has_pixels && height <= most_side && width <= most_side, "an image: sizes");
    return {image.data(), image.stride(), height, width, channels};
}

template <class T>
bool are_alike(const core::Image<const T>& from, const core::Image<T>& to) {
    return from.height == to.height && from.width == to.width && from.channels == to.channels;
}

// --- walks

bool are_windows(const Numbers& start, const Numbers& mirror) {
    return start.shape(1) == 2 && mirror.shape(0) == start.shape(0) && mirror.shape(1) == 2;
}

// How a walk changes images of any size. It holds copies.
class PixelWalk {
  public:
    PixelWalk(bool in_planes, bool out_planes, float fill, const Floats& mean, const Floats& scale)
        : in_planes_(in_planes), out_planes_(out_planes), fill_(fill), mean_(copy_of(mean)),
          scale_(copy_of(scale)) {
        require(scale.size() == mean.size(), "PixelWalk: a mean and a scale a channel");
    }

    template <class In, class Out>
    void run(const SpacedArray<const In, 4>& images, const Numbers& start, const Numbers& mirror,
             const Array<Out, 4>& out) const {
        const int64_t count = start.shape(0);
        const bool has_rows = images.shape(0) == count && out.shape(0) == count;
        require(has_rows && are_windows(start, mirror), "walk: a window an image");
        if (count == 0) return;
        const core::Size size = size_of(images, in_planes_), window = size_of(out, out_planes_);
        const core::Walker<In, Out> walker(walk_of<In, Out>(window.height, window.width));
        Release lock;
        for (int64_t i = 0; i < count; ++i) {
            const core::Walked<In> image{images.data() + i * images.stride(), size.height,
                                         size.width, start.data() + 2 * i, mirror.data() + 2 * i};
            core::walk(walker, image, out.data() + i * window.bytes());
        }
    }

    std::unique_ptr<core::Maker> maker(bool reads_floats, bool writes_floats,
                                       std::array<int64_t, 2> size, std::array<int64_t, 2> window,
                                       const Numbers& start, const Numbers& mirror) const {
        require(are_windows(start, mirror), "walk: a window an image");
        const bool fits =
            is_image(size[0], size[1], channels()) && is_image(window[0], window[1], channels());
        require(fits, "walk: sizes");
        require(writes_floats || !reads_floats, "walk: floats to bytes");
        const auto make = [&]<class In, class Out>(In, Out) -> std::unique_ptr<core::Maker> {
            const core::Walk<In, Out> walk = walk_of<In, Out>(window[0], window[1]);
            return std::make_unique<core::WalkMaker<In, Out>>(walk, size[0], size[1],
                                                              copy_of(start), copy_of(mirror));
        };
        if (reads_floats) return make(float{}, float{});
        return writes_floats ? make(uint8_t{}, float{}) : make(uint8_t{}, uint8_t{});
    }

  private:
    int64_t channels() const { return int64_t(mean_.size()); }

    template <class In, class Out>
    core::Walk<In, Out> walk_of(int64_t height, int64_t width) const {
        require(std::is_same_v<In, float> || (fill_ >= 0 && fill_ <= 255),
                "walk: fill is not a uint8");
        return {channels(),   in_planes_,    out_planes_, In(fill_),
                mean_.data(), scale_.data(), height,      width};
    }

    template <class Images>
    core::Size size_of(const Images& images, bool are_planes) const {
        const int first = are_planes ? 2 : 1;
        const core::Size size{images.shape(first), images.shape(first + 1),
                              images.shape(are_planes ? 1 : 3)};
        const bool has_pixels = is_image(size.height, size.width, size.channels);
        require(has_pixels && size.channels == channels(), "walk: sizes");
        return size;
    }

    bool in_planes_, out_planes_;
    float fill_;
    std::vector<float> mean_, scale_;
};

// --- resizes

struct Taps {  // of an axis; a `face.Taps`
    Array<const int32_t, 1> first;
    Array<const float, 2> weights;

    bool take(PyObject* tuple) noexcept { return core::take_tuple(tuple, first, weights); }

    core::Pass checked(int64_t length) const {
        const int64_t support = weights.shape(1);
        require(weights.shape(0) == first.size() && support > 0 && first.size() > 0,
                "resize: a pass");
        // So the continued row is not longer than the resize needs.
        for (int64_t i = 0; i < first.size(); ++i) {
            const bool is_near = first.data()[i] > -support && first.data()[i] < length;
            require(is_near, "resize: a pass reads outside");
        }
        return {first.data(), weights.data(), support, first.size()};
    }
};

template <class T>
void resize(const Box<T>& box, const Taps& vertical, const Taps& horizontal, bool vertical_first,
            const ImageArray<T>& out) {
    const core::Image<const T> from = image_of(box, INT32_MAX);
    const core::Image<T> to = image_of(out, INT32_MAX);
    const core::Pass down = vertical.checked(from.height), across = horizontal.checked(from.width);
    const bool fits =
        down.count == to.height && across.count >= to.width && from.channels == to.channels;
    require(fits, "resize: the result has another size");
    Release lock;
    core::resize(from, down, across, vertical_first, to);
}

struct Steps {  // of an axis; a `face.PixelSums`
    Array<const int32_t, 1> first, count;
    Array<const int32_t, 2> weights;

    bool take(PyObject* tuple) noexcept {
        Array<const double, 2> exact_weights;
        return core::take_tuple(tuple, first, count, exact_weights, weights);
    }

    // Checks that steps read pixels of the image alone, and that their sums fit into 32 bits.
    core::Steps checked(int64_t length) const {
        const int64_t support = weights.shape(1);
        const bool fits = count.size() == first.size() && weights.shape(0) == first.size();
        require(fits, "resize_as_pillow: steps");
        for (int64_t i = 0; i < first.size(); ++i) {
            const int64_t begin = first.data()[i], taps = count.data()[i];
            const bool is_inside =
                begin >= 0 && taps >= 0 && taps <= support && begin <= length - taps;
            require(is_inside, "resize_as_pillow: a step reads outside");
            int64_t positive = 0, negative = 0;
            for (int64_t tap = 0; tap < taps; ++tap) {
                const int64_t weight = weights.data()[i * support + tap];
                (weight > 0 ? positive : negative) += weight;
            }
            const bool is_small = positive <= core::MOST_WEIGHT && negative >= -core::MOST_WEIGHT;
            require(is_small, "resize_as_pillow: weights are too large");
        }
        return {first.data(), count.data(), weights.data(), support, first.size()};
    }
};

void resize_as_pillow(const Box<uint8_t>& box, const Steps& down, const Steps& across,
                      const ImageArray<uint8_t>& out) {
    const core::Image<const uint8_t> from = image_of(box, INT32_MAX);
    const core::Image<uint8_t> to = image_of(out);
    const core::Steps rows = down.checked(from.height), columns = across.checked(from.width);
    const int64_t height = rows.outputs > 0 ? rows.outputs : from.height;
    const int64_t width = columns.outputs > 0 ? columns.outputs : from.width;
    const bool fits = to.height == height && to.width == width && to.channels == from.channels;
    require(fits, "resize_as_pillow: the result has another size");
    Release lock;
    core::resize_as_pillow(from, rows, columns, to);
}

void taps(const Floats& table, float width, bool antialias, int64_t length,
          const Array<int32_t, 1>& first, const Array<float, 2>& weights) {
    const bool is_filter = table.size() > 1 && width >= 1 && width <= 16;
    require(is_filter && is_side(length) && is_side(first.size()), "taps: sizes");
    core::Taps taps;
    taps.compute({table.data(), table.size(), width, antialias}, length, first.size());
    require(weights.shape(0) == first.size() && weights.shape(1) == taps.support, "taps: weights");
    std::copy(taps.first.begin(), taps.first.end(), first.data());
    std::copy(taps.weights.begin(), taps.weights.end(), weights.data());
}

// --- edits

using EditArray = Array<const double, 2>;  // those of each image

// Checks edits of images of one size.
void check_edits(const double* numbers, int64_t count, int64_t num_numbers,
                 const core::Size& size) {
    require(size.height <= MOST_SIDE && size.width <= MOST_SIDE, "edit: sizes");
    for (int64_t i = 0; i < count; ++i) {
        const core::Edits edits{numbers + i * num_numbers, num_numbers};
        require(core::are_edits(edits, size), "edit: numbers that are not edits");
    }
}

void edit(const Array<const uint8_t, 4>& images, const EditArray& edits,
          const Array<uint8_t, 4>& out) {
    for (int axis = 0; axis < 4; ++axis)
        require(images.shape(axis) == out.shape(axis), "edit: a result of one shape");
    const int64_t count = images.shape(0), num_numbers = edits.shape(1);
    const bool fits = edits.shape(0) == count && images.data() != out.data();
    require(fits, "edit: edits of each image, and a result in other memory");
    if (images.size() == 0) return;
    const core::Size size{images.shape(1), images.shape(2), images.shape(3)};
    check_edits(edits.data(), count, num_numbers, size);
    Release lock;
    core::Editor editor;
    for (int64_t i = 0; i < count; ++i) {
        const core::Edits numbers{edits.data() + i * num_numbers, num_numbers};
        editor.edit(images.data() + i * size.bytes(), size, numbers, out.data() + i * size.bytes());
    }
}

std::unique_ptr<core::Maker> edit_maker(std::array<int64_t, 3> shape, const EditArray& edits) {
    const core::Size size{shape[0], shape[1], shape[2]};
    require(is_image(size.height, size.width, size.channels), "edit: sizes");
    std::vector<double> numbers = copy_of(edits);
    check_edits(numbers.data(), edits.shape(0), edits.shape(1), size);
    return std::make_unique<core::EditMaker>(size, edits.shape(0), edits.shape(1),
                                             std::move(numbers));
}

// The edits that a policy makes of the operations that were drawn for images. It holds copies.
class PolicyRules {
  public:
    PolicyRules(const Array<const double, 2>& rules, const Array<const double, 1>& moves)
        : rules_(copy_of(rules)), moves_(copy_of(moves)) {
        require(moves.size() == 5, "PolicyRules: two filters, and a fill of three channels");
        require(rules.shape(1) == 5 && rules.shape(0) <= MOST_SIDE,
                "PolicyRules: rules of five numbers");
        for (int64_t i = 0; i < num_rules(); ++i)
            require(is_rule(rules_.data() + 5 * i), "PolicyRules: numbers that are not a rule");
    }

    void write_edits(const Numbers& numbers, const Array<const float, 2>& levels,
                     const Numbers& cubic, const Numbers& sizes,
                     const Array<double, 3>& out) const {
        const int64_t count = numbers.shape(0), layers = numbers.shape(1);
        const auto is_of = [&](const auto& array) {
            return array.shape(0) == count && array.shape(1) == layers;
        };
        const bool has_levels = is_of(levels) && (cubic.size() == 0 || is_of(cubic));
        require(has_levels, "write_edits: a level, and a mark, for each operation");
        require(sizes.shape(0) == count && sizes.shape(1) == 2,
                "write_edits: a size for each image");
        require(is_of(out) && out.shape(2) == core::EDIT_NUMBERS, "write_edits: out");
        for (int64_t i = 0; i < numbers.size(); ++i) {
            const bool has_rule = numbers.data()[i] >= 0 && numbers.data()[i] < num_rules();
            require(has_rule, "write_edits: operations without a rule");
            require(std::fabs(levels.data()[i]) <= core::MOST_LEVEL, "write_edits: levels");
        }
        const int32_t* const marks = cubic.size() == 0 ? nullptr : cubic.data();
        const core::Drawn drawn{count, layers, numbers.data(), levels.data(), marks, sizes.data()};
        const auto* const rules = reinterpret_cast<const core::Rule*>(rules_.data());
        const core::Policy policy{rules, num_rules(), moves_.data(), moves_.data() + 2};
        unlocked_if_long(out.size(), [&] { core::write_edits(drawn, policy, out.data()); });
    }

  private:
    static bool is_rule(const double* rule) {
        const auto is_number = [&](int place, double least, double most) {
            return rule[place] >= least && rule[place] <= most &&
                   rule[place] == std::floor(rule[place]);
        };
        const bool has_numbers =
            std::fabs(rule[2]) <= core::MOST_LEVEL && std::fabs(rule[3]) <= core::MOST_LEVEL;
        return has_numbers && is_number(0, 0, 19) && is_number(1, 0, core::NUM_FORMS - 1) &&
               is_number(4, -1, 5);
    }
    int64_t num_rules() const { return int64_t(rules_.size()) / 5; }

    std::vector<double> rules_, moves_;
};

// --- warps, and filters of whole images

void make_gray(const ImageArray<const uint8_t>& image, const ImageArray<uint8_t>& out) {
    const int64_t height = image.shape(0), width = image.shape(1), out_channels = out.shape(2);
    const bool fits = image.shape(2) == 3 && out.shape(0) == height && out.shape(1) == width;
    const bool has_channels = out_channels == 1 || out_channels == 3;
    require(fits && has_channels, "make_gray: three channels, and a result of one or three");
    Release lock;
    core::make_gray(image.data(), height * width, out_channels, out.data());
}

template <class T>
struct Warp {  // an image, and its result
    Warp(const ImageArray<const T>& image, const ImageArray<T>& out, int64_t fill_size)
        : from(image_of(image)), to(image_of(out)) {
        require(from.channels == to.channels && fill_size == from.channels, "warp: channels");
    }

    core::MatrixPlaces places(const Floats& matrix) const {
        require(matrix.size() == 6 || matrix.size() == 8,
                "warp: a matrix has six numbers or eight");
        return {{matrix.data(), matrix.size()}, from.height, from.width, to.height, to.width};
    }

    core::GridPlaces places(const Array<const float, 2>& columns,
                            const Array<const float, 2>& rows) const {
        const auto is_of = [&](const auto& grid) {
            return grid.shape(0) == to.height && grid.shape(1) == to.width;
        };
        require(is_of(columns) && is_of(rows), "sample: a place a pixel");
        return {{columns.data(), rows.data()}, to.width};
    }

    core::Image<const T> from;
    core::Image<T> to;
};

void warp_nearest(const ImageArray<const uint8_t>& image, const Floats& matrix, const Bytes& fill,
                  const ImageArray<uint8_t>& out) {
    const Warp<uint8_t> warp(image, out, fill.size());
    Release lock;
    core::MatrixPlaces places = warp.places(matrix);
    core::warp_nearest(warp.from, places, fill.data(), warp.to);
}

template <class T>
void warp_linear(const ImageArray<const T>& image, const Floats& matrix, const Floats& fill,
                 const ImageArray<T>& out) {
    const Warp<T> warp(image, out, fill.size());
    Release lock;
    core::MatrixPlaces places = warp.places(matrix);
    core::warp_linear(warp.from, places, fill.data(), warp.to);
}

void sample_nearest(const ImageArray<const uint8_t>& image, const Array<const float, 2>& columns,
                    const Array<const float, 2>& rows, const Bytes& fill,
                    const ImageArray<uint8_t>& out) {
    const Warp<uint8_t> warp(image, out, fill.size());
    core::GridPlaces places = warp.places(columns, rows);
    Release lock;
    core::warp_nearest(warp.from, places, fill.data(), warp.to);
}

template <class T>
void sample_linear(const ImageArray<const T>& image, const Array<const float, 2>& columns,
                   const Array<const float, 2>& rows, const Floats& fill,
                   const ImageArray<T>& out) {
    const Warp<T> warp(image, out, fill.size());
    core::GridPlaces places = warp.places(columns, rows);
    Release lock;
    core::warp_linear(warp.from, places, fill.data(), warp.to);
}

template <class T>
void blur(const ImageArray<const T>& image, const Floats& down, const Floats& across,
          const ImageArray<T>& out) {
    const core::Image<const T> from = image_of(image);
    const core::Image<T> to = image_of(out);
    require(are_alike(from, to), "blur: sizes");
    require(down.size() % 2 == 1 && across.size() % 2 == 1, "blur: windows have a middle");
    const bool fits = down.size() / 2 < from.height && across.size() / 2 < from.width;
    require(fits, "blur: a window reaches too far");
    Release lock;
    core::blur(from, {down.data(), down.size()}, {across.data(), across.size()}, to);
}

void clahe(const ImageArray<const uint16_t>& image, double limit, int64_t rows, int64_t columns,
           const ImageArray<uint16_t>& out) {
    const core::Image<const uint16_t> from = image_of(image);
    const core::Image<uint16_t> to = image_of(out);
    require(are_alike(from, to) && from.height * from.width <= core::MOST_TILED, "clahe: sizes");
    const bool has_tiles = std::isfinite(limit) && limit > 0 && is_side(rows) && is_side(columns);
    require(has_tiles, "clahe: a limit and tiles");
    require(image.data() != out.data(), "clahe: a result in other memory");
    Release lock;
    core::TileEqualizer().equalize(from, {rows, columns, limit}, to);
}

}  // namespace

void bind_pixels(nb::module_& module) {
    nb::class_<PixelWalk>(module, "PixelWalk")
        .def(nb::init<bool, bool, float, const Floats&, const Floats&>(), nb::kw_only(),
             "in_planes"_a, "out_planes"_a, "fill"_a, "mean"_a, "scale"_a)
        .def("run", &PixelWalk::run<uint8_t, uint8_t>)
        .def("run", &PixelWalk::run<uint8_t, float>)
        .def("run", &PixelWalk::run<float, float>)
        .def("maker", &PixelWalk::maker, "reads_floats"_a, "writes_floats"_a, "size"_a, "window"_a,
             "start"_a, "mirror"_a);
    module.def("resize", resize<uint8_t>);
    module.def("resize", resize<float>);
    module.def("resize_as_pillow", resize_as_pillow);
    module.def("taps", taps);
    module.def("edit", edit);
    module.def("edit_maker", edit_maker);
    nb::class_<PolicyRules>(module, "PolicyRules")
        .def(nb::init<const Array<const double, 2>&, const Array<const double, 1>&>())
        .def("write_edits", &PolicyRules::write_edits);
    module.def("make_gray", make_gray);
    module.def("warp_nearest", warp_nearest);
    module.def("warp_linear", warp_linear<uint8_t>);
    module.def("warp_linear", warp_linear<uint16_t>);
    module.def("warp_linear", warp_linear<float>);
    module.def("sample_nearest", sample_nearest);
    module.def("sample_linear", sample_linear<uint8_t>);
    module.def("sample_linear", sample_linear<uint16_t>);
    module.def("sample_linear", sample_linear<float>);
    module.def("blur", blur<uint8_t>);
    module.def("blur", blur<uint16_t>);
    module.def("blur", blur<float>);
    module.def("clahe", clahe);
}

}  // namespace door

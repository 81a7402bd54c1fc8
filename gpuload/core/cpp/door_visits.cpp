// The door to rows of images, and to the codec that decodes them: see door.hpp.
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "codec.hpp"
#include "door.hpp"
#include "imagerows.hpp"
#include "makers.hpp"

namespace door {
namespace {

// Images for Python: an array of four axes, or a sequence of arrays of three. They hold the memory.
template <class T>
class Images {
  public:
    // Returns false if the first is of another dtype. Throws if others are.
    bool take(nb::handle images) {
        if (all_.take(images.ptr())) {
            const int64_t size = all_.shape(1) * all_.shape(2) * all_.shape(3);
            for (int64_t i = 0; i < all_.shape(0); ++i)
                items_.push_back(
                    {all_.data() + i * size, all_.shape(1), all_.shape(2), all_.shape(3)});
            return true;
        }
        nb::sequence sequence;
        require(nb::try_cast(images, sequence), "make_rows: images");
        for (nb::handle image : sequence) {
            Array<T, 3>& memory = memory_.emplace_back();
            const bool has_dtype = memory.take(image.ptr());
            if (!has_dtype && items_.empty()) return false;
            require(has_dtype, "make_rows: images of one dtype, of three axes");
            items_.push_back({memory.data(), memory.shape(0), memory.shape(1), memory.shape(2)});
        }
        return true;
    }

    struct Item {
        T* data;
        int64_t first, second, third;  // axes
    };
    const std::vector<Item>& items() const { return items_; }

  private:
    Array<T, 4> all_;
    std::list<Array<T, 3>> memory_;
    std::vector<Item> items_;
};

// JPEG files for Python, and which part of each is wanted. They hold the arrays.
class JpegFiles {
  public:
    JpegFiles(nb::handle raw, nb::handle begins, nb::handle ends, nb::handle heads,
              nb::handle regions) {
        const bool are_arrays = raw_.take(raw.ptr()) && begins_.take(begins.ptr()) &&
                                ends_.take(ends.ptr()) && heads_.take(heads.ptr()) &&
                                regions_.take(regions.ptr());
        require(are_arrays, "JpegFiles: arrays of another kind");
        check_rows(raw_, begins_, ends_);
        const int64_t count = begins_.size();
        require(heads_.shape(0) == count && heads_.shape(1) == 6, "JpegFiles: a head an image");
        const bool has_regions = regions_.shape(0) == count || regions_.shape(0) == 0;
        require(has_regions && regions_.shape(1) == 4, "JpegFiles: a region an image");
    }
    JpegFiles(const JpegFiles&) = delete;

    core::Files get() const {
        const int32_t* const regions = regions_.shape(0) == 0 ? nullptr : regions_.data();
        return {raw_.data(), begins_.data(), ends_.data(), heads_.data(), regions, begins_.size()};
    }

  private:
    Bytes raw_;
    Int64s begins_, ends_;
    Numbers heads_, regions_;
};

// Visit for Python. Once images go through it, it is not changed.
class Visit {
  public:
    Visit(int64_t count, int64_t channels) : visit_{count, channels, {}, {}, {}} {
        require(count >= 0 && is_side(channels), "Visit: sizes");
    }
    Visit(const Visit&) = delete;

    void resize(const Numbers& boxes, const Numbers& sizes, const Floats& table, float width,
                bool antialias) {
        require(is_each(boxes, 4) && is_each(sizes, 2), "Visit: a box and a size an image");
        const bool is_filter = table.size() == 0 || (table.size() > 1 && width >= 1 && width <= 16);
        require(is_filter, "Visit: a filter");
        add(core::Resizing{copy_of(boxes), copy_of(sizes), copy_of(table), width, antialias});
    }

    void edit(const Array<const double, 2>& edits) {
        require(edits.shape(0) == visit_.count, "Visit: edits of each image");
        add(core::Editing{copy_of(edits), edits.shape(1)});
    }

    void walk(const Numbers& start, const Numbers& mirror, const Numbers& sizes,
              const Bytes& fill) {
        require(is_each(start, 2) && is_each(mirror, 2), "Visit: a window an image");
        const bool has_sizes = sizes.shape(0) == 1 || sizes.shape(0) == visit_.count;
        require(has_sizes && sizes.shape(1) == 2, "Visit: sizes of windows");
        require(fill.size() == visit_.channels, "Visit: a fill a channel");
        add(core::Walking{copy_of(start), copy_of(mirror), copy_of(sizes), copy_of(fill)});
    }

    void finish(const Floats& mean, const Floats& scale, bool out_planes) {
        require(ends_in_walk(), "Visit: the last step is a walk of one fill");
        const bool fits = mean.size() == visit_.channels && scale.size() == visit_.channels;
        require(fits, "Visit: a mean and a scale a channel");
        require(!is_ready_, "Visit: it has its last step");
        is_ready_ = true;
        visit_.mean = copy_of(mean);
        visit_.scale = copy_of(scale);
        visit_.out_planes = out_planes;
    }

    void make_rows(nb::handle images, nb::handle out, const Array<int8_t, 1>& declined) {
        const core::Visit& steps = use();
        Images<const uint8_t> memory;
        require(memory.take(images), "make_rows: images are uint8, of three axes");
        std::vector<core::Pixels> pixels;
        for (const auto& item : memory.items()) {
            require(item.third == steps.channels, "make_rows: channels");
            pixels.push_back({item.data, item.first, item.second});
        }
        const bool fits = steps.count == int64_t(pixels.size()) && declined.size() == steps.count;
        require(fits, "make_rows: a row an image");
        with_rooms(out, [&](const auto& rooms) {
            Release lock;
            core::make_rows(pixels.data(), steps, rooms.data(), declined.data());
        });
    }

    double decode_rows(core::Codec& codec, const JpegFiles& jpegs, nb::handle out,
                       const Array<int8_t, 1>& declined) {
        const core::Visit& steps = use();
        const core::Files files = jpegs.get();
        require(steps.count == files.count && declined.size() == files.count,
                "make_rows: a row an image");
        int64_t time_ns = 0;
        with_rooms(out, [&](const auto& rooms) {
            Release lock;
            time_ns = core::make_rows(codec, files, steps, rooms.data(), declined.data());
        });
        return double(time_ns) / 1e9;
    }

    std::unique_ptr<core::Maker> maker(bool writes_floats, std::array<int64_t, 2> size,
                                       std::array<int64_t, 2> out_size) {
        const core::Visit& steps = use();
        const auto has_pixels = [&](const auto& sides) {
            return is_image(sides[0], sides[1], steps.channels);
        };
        require(steps.count > 0 && has_pixels(size) && has_pixels(out_size), "maker: sizes");
        require((!writes_floats && !steps.out_planes) || ends_in_walk(),
                "maker: the last step is a walk");
        const auto make = writes_floats ? core::image_maker<float> : core::image_maker<uint8_t>;
        return make(steps, {0, 0, size[0], size[1]}, {0, 0, out_size[0], out_size[1]});
    }

  private:
    bool is_each(const Numbers& numbers, int64_t columns) const {
        return numbers.shape(0) == visit_.count && numbers.shape(1) == columns;
    }

    void add(core::Step step) {
        require(!is_ready_, "Visit: it has its last step");
        visit_.steps.push_back(std::move(step));
    }

    const core::Visit& use() {
        is_ready_ = true;
        return visit_;
    }

    bool ends_in_walk() const {  // of one fill
        const auto* const last =
            visit_.steps.empty() ? nullptr : std::get_if<core::Walking>(&visit_.steps.back());
        return last != nullptr && last->has_one_fill();
    }

    // Calls `use(rooms)` for results of uint8 or of float32.
    template <class Use>
    void with_rooms(nb::handle images, const Use& use) const {
        Images<uint8_t> bytes;
        if (bytes.take(images)) return use(rooms_of(bytes));
        Images<float> floats;
        require(floats.take(images), "make_rows: results are uint8 or float32, of three axes");
        use(rooms_of(floats));
    }

    template <class Out>
    std::vector<core::Room<Out>> rooms_of(const Images<Out>& images) const {
        const bool are_bytes = std::is_same_v<Out, uint8_t>, are_planes = visit_.out_planes;
        require((are_bytes && !are_planes) || ends_in_walk(), "make_rows: the last step is a walk");
        std::vector<core::Room<Out>> rooms;
        for (const auto& [data, first, second, third] : images.items()) {
            require((are_planes ? first : third) == visit_.channels, "make_rows: channels");
            rooms.push_back({data, are_planes ? second : first, are_planes ? third : second});
        }
        require(int64_t(rooms.size()) == visit_.count, "make_rows: a result an image");
        return rooms;
    }

    core::Visit visit_;
    bool is_ready_ = false;
};

}  // namespace

void bind_visits(nb::module_& module) {
    nb::class_<JpegFiles>(module, "JpegFiles")
        .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle>(), "raw"_a,
             "begins"_a, "ends"_a, "heads"_a, "regions"_a);
    nb::class_<core::Codec>(module, "Codec")
        .def(nb::init<const std::string&, const std::string&>())
        .def_prop_ro("version", &core::Codec::version);
    nb::class_<Visit>(module, "Visit")
        .def(nb::init<int64_t, int64_t>())
        .def("resize", &Visit::resize)
        .def("edit", &Visit::edit)
        .def("walk", &Visit::walk)
        .def("finish", &Visit::finish)
        .def("make_rows", &Visit::make_rows)
        .def("decode_rows", &Visit::decode_rows)
        .def("maker", &Visit::maker);
}

}  // namespace door

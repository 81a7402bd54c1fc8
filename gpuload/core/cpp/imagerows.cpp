// Rows of images: see imagerows.hpp.
//
// Assumes: the assumptions of imagerows.hpp hold. Numbers of one image are compared with each other
// here, before they are used.
//
// The pixels of an image lie in the decoder's memory or in that of the caller, then by turns in two
// buffers: a step reads from where the one before has written to. The last step writes to the row.
// Steps are joined where that spares a pass over the image: a resize writes the window of the walk
// behind it, and a walk before a resize makes the box alone that is resized.
#include "imagerows.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "clones.hpp"
#include "resize.hpp"
#include "walk.hpp"

namespace core {

CLONES void weigh_colours(const uint8_t* __restrict image, int64_t pixels,
                          uint8_t* __restrict out) {
    // As in `images.decode`, in 2**-15.
    constexpr uint32_t RED = 9798, GREEN = 19235, BLUE = 3735, HALF = 1 << 14;
    for (int64_t i = 0; i < pixels; ++i)
        out[i] = uint8_t(
            (RED * image[3 * i] + GREEN * image[3 * i + 1] + BLUE * image[3 * i + 2] + HALF) >> 15);
}

namespace {

constexpr int64_t RGB = 3, RGBA = 4;
constexpr int64_t MOST_PIXELS = int64_t(1) << 40;  // more do not fit into any memory
constexpr int64_t KEPT_BYTES = int64_t(1) << 22;   // of a larger image a thread keeps no memory
constexpr int64_t MOST_COLUMNS = 1 << 16;  // of a window with a walker before there are images

bool is_inside(const Box& box, int64_t height, int64_t width) {
    return box.top >= 0 && box.left >= 0 && box.height > 0 && box.width > 0 &&
           box.height <= height - box.top && box.width <= width - box.left;
}

bool is_size(int64_t height, int64_t width) {
    return height > 0 && width > 0 && height <= MOST_PIXELS / width;
}

Box box_of(const int32_t* numbers) { return {numbers[0], numbers[1], numbers[2], numbers[3]}; }

class Memory {  // for pixels; they are lost when it grows
  public:
    uint8_t* reserve(int64_t size) {
        if (size > size_) {
            bytes_.reset();
            size_ = 0;
            bytes_.reset(new uint8_t[size_t(size)]);
            size_ = size;
        }
        return bytes_.get();
    }
    bool holds(const uint8_t* data) const { return data == bytes_.get(); }

  private:
    std::unique_ptr<uint8_t[]> bytes_;
    int64_t size_ = 0;
};

struct Scratch {  // memory of a thread, which is used again for the next image
    Taps vertical, horizontal;
    std::vector<int32_t> columns;
    Memory buffers[2];
    Editor editor;
    int64_t most_bytes = 0;  // of an image

    // Returns the buffer in which an image does not lie, large enough for another.
    uint8_t* reserve_beside(const Pixels& image, int64_t size) {
        most_bytes = std::max(most_bytes, size);
        return buffers[buffers[0].holds(image.data) ? 1 : 0].reserve(size);
    }
};

class Loan {  // of the scratch memory of this thread, for some images
  public:
    Loan() : scratch_(of_thread()) {
        if (!scratch_) scratch_ = std::make_unique<Scratch>();
    }
    Loan(const Loan&) = delete;
    ~Loan() {
        if (scratch_->most_bytes > KEPT_BYTES) scratch_.reset();
    }
    Scratch& get() { return *scratch_; }

  private:
    static std::unique_ptr<Scratch>& of_thread() {
        static thread_local std::unique_ptr<Scratch> scratch;
        return scratch;
    }

    std::unique_ptr<Scratch>& scratch_;
};

bool decode(Decoder& decoder, const Files& files, int64_t i, Pixels& pixels) {
    const int32_t* numbers = files.heads + 6 * i;
    const JpegHead head{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
    const uint8_t* data = files.raw + files.begins[i];
    const int64_t size = files.ends[i] - files.begins[i];
    const Box whole{0, 0, head.height, head.width},
        box = files.regions == nullptr ? whole : box_of(files.regions + 4 * i);
    if (!is_inside(box, head.height, head.width) || head.scan_end < 0 || head.scan_end > size)
        return false;
    pixels = {decoder.decode(data, size, head, box, files.regions == nullptr), box.height,
              box.width};
    return pixels.data != nullptr;
}

void make_opaque(const uint8_t* __restrict image, int64_t pixels, uint8_t* __restrict out) {
    for (int64_t i = 0; i < pixels; ++i) {
        for (int64_t c = 0; c < RGB; ++c) out[RGBA * i + c] = image[RGB * i + c];
        out[RGBA * i + RGB] = 255;
    }
}

// Makes the channels of a visit of red, green and blue. Returns false if there is no such form.
bool convert(Pixels& image, int64_t channels, Scratch& scratch) {
    if (channels == RGB) return true;
    if (channels != 1 && channels != RGBA) return false;
    const int64_t pixels = image.height * image.width;
    uint8_t* const out = scratch.reserve_beside(image, pixels * channels);
    (channels == 1 ? weigh_colours : make_opaque)(image.data, pixels, out);
    image.data = out;
    return true;
}

template <class Out>
Walker<uint8_t, Out> walker_of(const Visit& visit, const Walking& walking, int64_t height,
                               int64_t width, bool is_last) {
    const std::vector<float> zeros(size_t(visit.channels), 0.0f),
        ones(size_t(visit.channels), 1.0f);
    const bool has_mean = is_last && !visit.mean.empty();
    Walker<uint8_t, Out> walker(
        Walk<uint8_t, Out>{visit.channels, false, is_last && visit.out_planes, walking.fill.front(),
                           has_mean ? visit.mean.data() : zeros.data(),
                           has_mean ? visit.scale.data() : ones.data(), height, width});
    if constexpr (std::is_same_v<Out, uint8_t>)
        if (!walking.has_one_fill())
            for (size_t i = 0; i < walker.edge.size(); ++i)
                walker.edge[i] = walking.fill[i % walking.fill.size()];
    return walker;
}

// Takes the images of a visit through its steps.
template <class Out>
class Visitor {
  public:
    // `visit` stays until this has ended.
    explicit Visitor(const Visit& visit) : visit_(visit), inner_(visit.steps.size()) {
        for (size_t k = 0; k < visit.steps.size(); ++k) {
            const Walking* const walking = std::get_if<Walking>(&visit.steps[k]);
            if (walking == nullptr || walking->sizes.size() != 2) continue;
            const int32_t* const size = walking->sizes.data();
            if (!is_size(size[0], size[1]) || size[1] > MOST_COLUMNS) continue;
            if (k + 1 == visit.steps.size())
                last_.emplace(walker_of<Out>(visit, *walking, size[0], size[1], true));
            else
                inner_[k].emplace(walker_of<uint8_t>(visit, *walking, size[0], size[1], false));
        }
    }

    bool make(Pixels image, int64_t i, const Room<Out>& room, Scratch& scratch) const {
        const std::vector<Step>& steps = visit_.steps;
        if (steps.empty()) return copy(image, room);
        for (size_t k = 0; k < steps.size();) {
            const Place place{i, k, room, scratch};
            const size_t num_steps =
                std::visit([&](const auto& step) { return take(step, place, image); }, steps[k]);
            if (num_steps == 0) return false;
            k += num_steps;
        }
        return true;
    }

  private:
    struct Place {  // in the work
        int64_t image;
        size_t step;
        const Room<Out>& room;
        Scratch& scratch;
    };

    struct Prepared {  // to be resized, by the taps of the scratch memory
        Image<const uint8_t> box{};
        bool vertical_first = false;
    };

    bool is_last(const Place& place, size_t num_steps = 1) const {
        return place.step + num_steps == visit_.steps.size();
    }

    template <class Other>
    const Other* next(const Place& place) const {
        return is_last(place) ? nullptr : std::get_if<Other>(&visit_.steps[place.step + 1]);
    }

    bool copy(const Pixels& image, const Room<Out>& room) const {
        if constexpr (std::is_same_v<Out, uint8_t>) {
            if (image.height != room.height || image.width != room.width) return false;
            std::copy_n(image.data, visit_.channels * image.height * image.width, room.data);
            return true;
        }
        return false;
    }

    // Returns where a step of bytes writes an image of a size to: the room if it is the last one,
    // else a buffer. nullptr if that is no size, or another one than the room's.
    uint8_t* target(const Place& place, const Pixels& image, int64_t height, int64_t width) const {
        if (!is_size(height, width)) return nullptr;
        if (!is_last(place))
            return place.scratch.reserve_beside(image, visit_.channels * height * width);
        if constexpr (std::is_same_v<Out, uint8_t>)
            if (height == place.room.height && width == place.room.width) return place.room.data;
        return nullptr;
    }

    // The functions below do a step, and the steps that are joined to it. They put the result into
    // `image`, or write it to the room, and return how many steps they did; 0 if numbers do not
    // fit.

    size_t take(const Editing& editing, const Place& place, Pixels& image) const {
        const Size size{image.height, image.width, visit_.channels};
        const Edits edits{editing.numbers.data() + place.image * editing.num_numbers,
                          editing.num_numbers};
        uint8_t* const out = target(place, image, image.height, image.width);
        if (out == nullptr || !are_edits(edits, size)) return 0;
        place.scratch.editor.edit(image.data, size, edits, out);
        image.data = out;
        return 1;
    }

    size_t take(const Resizing& resizing, const Place& place, Pixels& image) const {
        return resize(resizing, box_of(resizing.boxes.data() + 4 * place.image), place, image);
    }

    size_t take(const Walking& walking, const Place& place, Pixels& image) const {
        const int32_t* const size = walking.size(place.image);
        if (!is_size(size[0], size[1])) return 0;
        if (const Resizing* const resizing = next<Resizing>(place))
            return walk_and_resize(walking, *resizing, place, image);
        const Walked<uint8_t> walked{image.data, image.height, image.width,
                                     walking.start.data() + 2 * place.image,
                                     walking.mirror.data() + 2 * place.image};
        if (!is_last(place)) {
            uint8_t* const out = target(place, image, size[0], size[1]);
            const std::optional<Walker<uint8_t, uint8_t>>& walker = inner_[place.step];
            core::walk(
                walker ? *walker : walker_of<uint8_t>(visit_, walking, size[0], size[1], false),
                walked, out);
            image = {out, size[0], size[1]};
            return 1;
        }
        if (size[0] != place.room.height || size[1] != place.room.width) return 0;
        core::walk(last_ ? *last_ : walker_of<Out>(visit_, walking, size[0], size[1], true), walked,
                   place.room.data);
        return 1;
    }

    // Makes the part of a window that is resized behind it, and resizes it.
    size_t walk_and_resize(const Walking& walking, const Resizing& resizing, Place place,
                           Pixels& image) const {
        const int32_t* const size = walking.size(place.image);
        const int32_t *start = walking.start.data() + 2 * place.image,
                      *mirror = walking.mirror.data() + 2 * place.image;
        Box box = box_of(resizing.boxes.data() + 4 * place.image);
        if (!is_inside(box, size[0], size[1])) return 0;
        const int64_t down = mirror[0] == 1 ? size[0] - box.top - box.height : box.top;
        const int64_t across = mirror[1] == 1 ? size[1] - box.left - box.width : box.left;
        const Box part{start[0] + down, start[1] + across, box.height, box.width};
        if (mirror[0] != 1 && mirror[1] != 1 && is_inside(part, image.height, image.width)) {
            box = part;  // it is resized from where it lies
        } else {
            // No image reaches to the largest number: a part that begins behind it lies outside,
            // wherever it begins.
            const int32_t begin[] = {int32_t(std::min<int64_t>(part.top, INT32_MAX)),
                                     int32_t(std::min<int64_t>(part.left, INT32_MAX))};
            uint8_t* const out = target(place, image, box.height, box.width);
            core::walk(walker_of<uint8_t>(visit_, walking, box.height, box.width, false),
                       Walked<uint8_t>{image.data, image.height, image.width, begin, mirror}, out);
            image = {out, box.height, box.width};
            box = {0, 0, box.height, box.width};
        }
        ++place.step;
        const size_t num_steps = resize(resizing, box, place, image);
        return num_steps == 0 ? 0 : num_steps + 1;
    }

    size_t resize(const Resizing& resizing, const Box& box, const Place& place,
                  Pixels& image) const {
        const int32_t* const size = resizing.sizes.data() + 2 * place.image;
        if (!is_inside(box, image.height, image.width) || !is_size(size[0], size[1])) return 0;
        if (resizing.table.empty()) return pick(resizing, box, place, image);
        if (const Walking* const walking = next<Walking>(place)) {
            const int32_t* const window = walking->size(place.image);
            const int32_t* const start = walking->start.data() + 2 * place.image;
            const Box part{start[0], start[1], window[0], window[1]};
            if (visit_.channels == RGB && is_size(window[0], window[1]) &&
                is_inside(part, size[0], size[1]))
                return resize_window(resizing, *walking, box, place, image);
        }
        uint8_t* const out = target(place, image, size[0], size[1]);
        if (out == nullptr) return 0;
        const Prepared prepared = prepare(resizing, box, place, image, false);
        const Pass vertical = place.scratch.vertical.pass(),
                   horizontal = place.scratch.horizontal.pass();
        core::resize(prepared.box, vertical, horizontal, prepared.vertical_first,
                     Image<uint8_t>{out, visit_.channels * horizontal.count, vertical.count,
                                    horizontal.count, visit_.channels});
        image = {out, size[0], size[1]};
        return 1;
    }

    // Takes the nearest pixels of a box, as `resampling.nearest` says.
    size_t pick(const Resizing& resizing, const Box& box, const Place& place, Pixels& image) const {
        const int32_t* const size = resizing.sizes.data() + 2 * place.image;
        const int64_t height = size[0], width = size[1], channels = visit_.channels;
        uint8_t* out = target(place, image, height, width);
        if (out == nullptr) return 0;
        std::vector<int32_t>& columns = place.scratch.columns;
        columns.resize(size_t(width));
        const float across = float(box.width) / float(width),
                    down = float(box.height) / float(height);
        for (int64_t x = 0; x < width; ++x)
            columns[size_t(x)] =
                int32_t(std::clamp<int64_t>(int64_t((float(x) + 0.5f) * across), 0, box.width - 1));
        uint8_t* const first = out;
        // The position of each row is that of the row before and a step, as DALI's CPU form has it.
        float position = 0.5f * down;
        for (int64_t y = 0; y < height; ++y, position += down, out += width * channels) {
            const int64_t row = box.top + std::clamp<int64_t>(int64_t(position), 0, box.height - 1);
            const uint8_t* const from = image.data + (row * image.width + box.left) * channels;
            if (channels == 1)
                for (int64_t x = 0; x < width; ++x) out[x] = from[columns[size_t(x)]];
            else
                for (int64_t x = 0; x < width; ++x)
                    for (int64_t c = 0; c < channels; ++c)
                        out[x * channels + c] = from[columns[size_t(x)] * channels + c];
        }
        image = {first, height, width};
        return 1;
    }

    // Finds the taps of a box, which lies in the image.
    Prepared prepare(const Resizing& resizing, const Box& box, const Place& place,
                     const Pixels& image, bool is_mirrored) const {
        const int32_t* const size = resizing.sizes.data() + 2 * place.image;
        const int64_t channels = visit_.channels, stride = channels * image.width;
        Taps &vertical = place.scratch.vertical, &horizontal = place.scratch.horizontal;
        const Filter filter{resizing.table.data(), int64_t(resizing.table.size()), resizing.width,
                            resizing.antialias};
        vertical.compute(filter, box.height, size[0]);
        horizontal.compute(filter, box.width, size[1], is_mirrored);
        return {{image.data + box.top * stride + box.left * channels, stride, box.height, box.width,
                 channels},
                is_vertical_first(box.height, box.width, vertical, horizontal)};
    }

    // Resizes the part of a box that a window shows, and walks over it: in one pass, without memory
    // between them.
    size_t resize_window(const Resizing& resizing, const Walking& walking, const Box& box,
                         const Place& place, Pixels& image) const {
        const int32_t* const window = walking.size(place.image);
        const int32_t *start = walking.start.data() + 2 * place.image,
                      *mirror = walking.mirror.data() + 2 * place.image;
        const auto write = [&](const auto& walker, auto* out) {
            const bool is_mirrored = mirror[1] == 1;
            const Prepared prepared = prepare(resizing, box, place, image, is_mirrored);
            const Taps &vertical = place.scratch.vertical, &horizontal = place.scratch.horizontal;
            const int64_t left =
                is_mirrored ? int64_t(horizontal.first.size()) - start[1] - window[1] : start[1];
            const bool planar = walker.out_planes;
            core::resize(
                prepared.box, vertical.pass(start[0], window[0]), horizontal.pass(left, window[1]),
                prepared.vertical_first,
                Window<std::remove_pointer_t<decltype(out)>>{
                    out, planar, mirror[0] == 1, planar ? walker.mean.data() : walker.means.data(),
                    planar ? walker.scale.data() : walker.scales.data()});
        };
        if (is_last(place, 2)) {
            if (window[0] != place.room.height || window[1] != place.room.width) return 0;
            write(last_ ? *last_ : walker_of<Out>(visit_, walking, window[0], window[1], true),
                  place.room.data);
            return 2;
        }
        uint8_t* const out =
            place.scratch.reserve_beside(image, visit_.channels * window[0] * window[1]);
        const std::optional<Walker<uint8_t, uint8_t>>& walker = inner_[place.step + 1];
        write(walker ? *walker : walker_of<uint8_t>(visit_, walking, window[0], window[1], false),
              out);
        image = {out, window[0], window[1]};
        return 2;
    }

    const Visit& visit_;
    // Of each step that is a walk over windows of one size.
    std::vector<std::optional<Walker<uint8_t, uint8_t>>> inner_;
    std::optional<Walker<uint8_t, Out>> last_;
};

template <class Out>
class ImageMaker : public Maker {
  public:
    ImageMaker(Visit visit, const Box& image, const Box& row)
        : Maker(visit.count, visit.channels * image.height * image.width,
                visit.channels * row.height * row.width * int64_t(sizeof(Out))),
          visit_(std::move(visit)), image_(image), row_(row), visitor_(visit_) {}

    bool make(const uint8_t* bytes, int64_t row, uint8_t* out) const override {
        Loan loan;
        return visitor_.make({bytes, image_.height, image_.width}, row,
                             {reinterpret_cast<Out*>(out), row_.height, row_.width}, loan.get());
    }

  private:
    Visit visit_;
    Box image_, row_;
    Visitor<Out> visitor_;
};

}  // namespace

template <class Out>
std::unique_ptr<Maker> image_maker(Visit visit, const Box& image, const Box& row) {
    return std::make_unique<ImageMaker<Out>>(std::move(visit), image, row);
}

template <class Out>
int64_t make_rows(Codec& codec, const Files& files, const Visit& visit, const Room<Out>* rooms,
                  int8_t* declined) {
    using Clock = std::chrono::steady_clock;
    Clock::duration time{};  // to read the clock costs 50 ns, an image some hundred microseconds
    std::fill_n(declined, files.count, int8_t(1));
    try {
        const Visitor<Out> visitor(visit);
        Codec::Loan decoder(codec);
        Loan scratch;
        for (int64_t i = 0; i < files.count; ++i) {
            Pixels image{};
            try {
                const Clock::time_point begin = Clock::now();
                const bool is_decoded = decode(decoder.decoder(), files, i, image);
                time += Clock::now() - begin;
                declined[i] = !(is_decoded && convert(image, visit.channels, scratch.get()) &&
                                visitor.make(image, i, rooms[i], scratch.get()));
            } catch (const std::exception&) {
                // No memory for this image: Python meets the same error, and names the file.
            }
        }
    } catch (const std::exception&) {  // no decoder, or no memory: Python meets the same error
    }
    return std::chrono::nanoseconds(time).count();
}

template <class Out>
void make_rows(const Pixels* images, const Visit& visit, const Room<Out>* rooms, int8_t* declined) {
    std::fill_n(declined, visit.count, int8_t(1));
    const Visitor<Out> visitor(visit);
    Loan scratch;
    for (int64_t i = 0; i < visit.count; ++i) {
        try {
            declined[i] = !visitor.make(images[i], i, rooms[i], scratch.get());
        } catch (const std::exception&) {  // as above
        }
    }
}

template int64_t make_rows(Codec&, const Files&, const Visit&, const Room<uint8_t>*, int8_t*);
template int64_t make_rows(Codec&, const Files&, const Visit&, const Room<float>*, int8_t*);
template void make_rows(const Pixels*, const Visit&, const Room<uint8_t>*, int8_t*);
template void make_rows(const Pixels*, const Visit&, const Room<float>*, int8_t*);
template std::unique_ptr<Maker> image_maker<uint8_t>(Visit, const Box&, const Box&);
template std::unique_ptr<Maker> image_maker<float>(Visit, const Box&, const Box&);

}  // namespace core

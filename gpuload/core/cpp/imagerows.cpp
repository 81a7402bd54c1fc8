// Rows of images: see imagerows.hpp.
//
// Assumes: the assumptions of imagerows.hpp hold. Numbers of one image are compared with each other here, before they are used.
#include "imagerows.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <type_traits>
#include <vector>

#include "resize.hpp"
#include "walk.hpp"

namespace core {
namespace {

constexpr int64_t CHANNELS = 3, MOST_PIXELS = int64_t(1) << 40;  // more do not fit into any memory

bool is_inside(const Box& box, int64_t height, int64_t width) {
    return box.top >= 0 && box.left >= 0 && box.height > 0 && box.width > 0 && box.height <= height - box.top &&
           box.width <= width - box.left;
}

Box box_of(const int32_t* numbers) { return {numbers[0], numbers[1], numbers[2], numbers[3]}; }

uint8_t* reserve(std::vector<uint8_t>& memory, int64_t size) {
    if (int64_t(memory.size()) < size) memory.resize(size_t(size));
    return memory.data();
}

bool decode(Decoder& decoder, const Files& files, int64_t i, Pixels& pixels) {
    const int32_t* numbers = files.heads + 6 * i;
    const JpegHead head{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
    const uint8_t* data = files.raw + files.begins[i];
    const int64_t size = files.ends[i] - files.begins[i];
    const Box whole{0, 0, head.height, head.width}, box = files.regions == nullptr ? whole : box_of(files.regions + 4 * i);
    if (!is_inside(box, head.height, head.width) || head.scan_end < 0 || head.scan_end > size) return false;
    pixels = {decoder.decode(data, size, head, box, files.regions == nullptr), box.height, box.width};
    return pixels.data != nullptr;
}

// Calls `use(i, pixels)` for each file that is decoded, and writes its result to `declined[i]`; writes 1 where the file is
// declined. Returns the time that decoding took, ns.
template <class Use>
int64_t decode_each(Codec& codec, const Files& files, int8_t* declined, const Use& use) {
    using Clock = std::chrono::steady_clock;
    Clock::duration time{};  // to read the clock costs 50 ns, an image some hundred microseconds
    std::fill_n(declined, files.count, int8_t(1));
    try {
        Codec::Loan loan(codec);
        for (int64_t i = 0; i < files.count; ++i) {
            Pixels image{};
            try {
                const Clock::time_point begin = Clock::now();
                const bool is_decoded = decode(loan.decoder(), files, i, image);
                time += Clock::now() - begin;
                declined[i] = !(is_decoded && use(i, image));
            } catch (const std::exception&) {  // no memory for this image: Python meets the same error, and names the file
            }
        }
    } catch (const std::exception&) {  // no decoder: Python meets the same error
    }
    return std::chrono::nanoseconds(time).count();
}

template <class Out>
Walker<uint8_t, Out> walker_of(const Walking<Out>& walking) {
    return Walker<uint8_t, Out>(Walk<uint8_t, Out>{CHANNELS, false, walking.out_planes, walking.fill, walking.mean, walking.scale,
                                                   walking.height, walking.width});
}

template <class Out>
class Row {  // makes the rows of a batch, one after the other
  public:
    explicit Row(const Making<Out>& making) : making_(making) {
        if (making.editing.window.start != nullptr) before_.emplace(walker_of(making.editing.window));
        if (making.walking.start != nullptr) last_.emplace(walker_of(making.walking));
    }

    bool make(const Pixels& image, int64_t i, Out* out) {
        const Editing& editing = making_.editing;
        const Walking<Out>& walking = making_.walking;
        if (editing.numbers == nullptr) return walk(image, making_.resizing, walking, last_, i, out);
        const Size size{editing.window.height, editing.window.width, CHANNELS};
        const Edits edits{editing.numbers + i * editing.num_numbers, editing.num_numbers};
        uint8_t* const bytes = reserve(bytes_, size.bytes());
        if (!walk(image, making_.resizing, editing.window, before_, i, bytes)) return false;
        if constexpr (std::is_same_v<Out, uint8_t>) {
            if (walking.start == nullptr) {
                if (walking.height != size.height || walking.width != size.width) return false;
                editor_.edit(bytes, size, edits, out);
                return true;
            }
        }
        uint8_t* const edited = reserve(edited_, size.bytes());
        editor_.edit(bytes, size, edits, edited);
        return walk({edited, size.height, size.width}, {}, walking, last_, i, out);
    }

  private:
    // Resizes an image, and walks over it, if there is a walk.
    template <class To>
    bool walk(Pixels image, const Resizing& resizing, const Walking<To>& walking, const std::optional<Walker<uint8_t, To>>& walker,
              int64_t i, To* out) {
        const bool is_resized = resizing.boxes != nullptr;
        if (walker) {
            const int32_t *start = walking.start + 2 * i, *mirror = walking.mirror + 2 * i;
            const Box window{start[0], start[1], walking.height, walking.width};
            const bool fits = is_resized && is_inside(window, resizing.sizes[2 * i], resizing.sizes[2 * i + 1]);
            if (is_resized && !prepare(resizing, i, image, fits && mirror[1] == 1)) return false;
            if (fits) {
                resize_window(walking, *walker, i, out);
                return true;
            }
            if (is_resized) image = resize(nullptr);
            core::walk(*walker, Walked<uint8_t>{image.data, image.height, image.width, start, mirror}, out);
            return true;
        }
        if constexpr (std::is_same_v<To, uint8_t>) {
            const int64_t height = is_resized ? resizing.sizes[2 * i] : image.height;
            const int64_t width = is_resized ? resizing.sizes[2 * i + 1] : image.width;
            if (height != walking.height || width != walking.width) return false;
            if (is_resized) {
                if (!prepare(resizing, i, image, false)) return false;
                resize(out);
            } else {
                std::copy_n(image.data, CHANNELS * height * width, out);
            }
            return true;
        }
        return false;
    }

    // Finds the box that is resized, and its taps. Returns false if the numbers do not fit.
    bool prepare(const Resizing& resizing, int64_t i, const Pixels& image, bool is_mirrored) {
        const Box box = box_of(resizing.boxes + 4 * i);
        const int64_t height = resizing.sizes[2 * i], width = resizing.sizes[2 * i + 1], stride = CHANNELS * image.width;
        if (!is_inside(box, image.height, image.width) || height < 1 || width < 1 || height > MOST_PIXELS / width) return false;
        box_ = {image.data + box.top * stride + box.left * CHANNELS, stride, box.height, box.width, CHANNELS};
        vertical_.compute(resizing.filter, box.height, height);
        horizontal_.compute(resizing.filter, box.width, width, is_mirrored);
        vertical_first_ = is_vertical_first(box.height, box.width, vertical_, horizontal_);
        return true;
    }

    // Resizes the prepared image, to `out` or else to memory of its own.
    Pixels resize(uint8_t* out) {
        const Pass vertical = vertical_.pass(), horizontal = horizontal_.pass();
        const int64_t length = CHANNELS * horizontal.count;
        if (out == nullptr) out = reserve(resized_, length * vertical.count);
        core::resize(box_, vertical, horizontal, vertical_first_,
                     Image<uint8_t>{out, length, vertical.count, horizontal.count, CHANNELS});
        return {out, vertical.count, horizontal.count};
    }

    // Resizes the part of the prepared image that a window shows, and walks over it: in one pass, without memory between them.
    //
    // Assumes: the window lies in the result, and its columns were prepared mirrored if it shows them so.
    template <class To>
    void resize_window(const Walking<To>& walking, const Walker<uint8_t, To>& walker, int64_t i, To* out) {
        const int32_t *start = walking.start + 2 * i, *mirror = walking.mirror + 2 * i;
        const int64_t left = mirror[1] == 1 ? int64_t(horizontal_.first.size()) - start[1] - walking.width : start[1];
        const bool planar = walking.out_planes;
        const float* const means = planar ? walker.mean.data() : walker.means.data();
        const float* const scales = planar ? walker.scale.data() : walker.scales.data();
        core::resize(box_, vertical_.pass(start[0], walking.height), horizontal_.pass(left, walking.width), vertical_first_,
                     Window<To>{out, planar, mirror[0] == 1, means, scales});
    }

    const Making<Out>& making_;
    std::optional<Walker<uint8_t, uint8_t>> before_;  // the edits
    std::optional<Walker<uint8_t, Out>> last_;
    Taps vertical_, horizontal_;
    Image<const uint8_t> box_{};
    bool vertical_first_ = false;
    std::vector<uint8_t> resized_, bytes_, edited_;
    Editor editor_;
};

}  // namespace

template <class Out>
int64_t make_rows(Codec& codec, const Files& files, const Making<Out>& making, Out* out, int8_t* declined) {
    const int64_t size = making.walking.height * making.walking.width * CHANNELS;
    Row<Out> row(making);
    return decode_each(codec, files, declined,
                       [&](int64_t i, const Pixels& image) { return row.make(image, i, out + i * size); });
}

int64_t decode_rows(Codec& codec, const Files& files, const Room* rooms, int8_t* declined) {
    return decode_each(codec, files, declined, [&](int64_t i, const Pixels& image) {
        const int64_t size = CHANNELS * image.height * image.width;
        if (size != rooms[i].size) return false;
        std::copy_n(image.data, size, rooms[i].data);
        return true;
    });
}

template <class Out>
void make_rows(const Pixels* images, int64_t count, const Making<Out>& making, Out* out, int8_t* declined) {
    const int64_t size = making.walking.height * making.walking.width * CHANNELS;
    std::fill_n(declined, count, int8_t(1));
    Row<Out> row(making);
    for (int64_t i = 0; i < count; ++i) {
        try {
            declined[i] = !row.make(images[i], i, out + i * size);
        } catch (const std::exception&) {  // as above
        }
    }
}

template int64_t make_rows(Codec&, const Files&, const Making<uint8_t>&, uint8_t*, int8_t*);
template int64_t make_rows(Codec&, const Files&, const Making<float>&, float*, int8_t*);
template void make_rows(const Pixels*, int64_t, const Making<uint8_t>&, uint8_t*, int8_t*);
template void make_rows(const Pixels*, int64_t, const Making<float>&, float*, int8_t*);

}  // namespace core

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

struct Scratch {  // memory of a thread, which is used again for the next image
    Taps vertical, horizontal;
    std::vector<uint8_t> resized, bytes, edited;
    Editor editor;
};

template <class Out>
class Row {  // makes rows of a batch
  public:
    explicit Row(const Making<Out>& making) : making_(making) {
        if (making.editing.window.start != nullptr) before_.emplace(walker_of(making.editing.window));
        if (making.walking.start != nullptr) last_.emplace(walker_of(making.walking));
    }

    bool make(const Pixels& image, int64_t i, Out* out, Scratch& scratch) const {
        const Editing& editing = making_.editing;
        const Walking<Out>& walking = making_.walking;
        if (editing.numbers == nullptr) return walk(image, making_.resizing, walking, last_, i, out, scratch);
        const Size size{editing.window.height, editing.window.width, CHANNELS};
        const Edits edits{editing.numbers + i * editing.num_numbers, editing.num_numbers};
        uint8_t* const bytes = reserve(scratch.bytes, size.bytes());
        if (!walk(image, making_.resizing, editing.window, before_, i, bytes, scratch)) return false;
        if constexpr (std::is_same_v<Out, uint8_t>) {
            if (walking.start == nullptr) {
                if (walking.height != size.height || walking.width != size.width) return false;
                scratch.editor.edit(bytes, size, edits, out);
                return true;
            }
        }
        uint8_t* const edited = reserve(scratch.edited, size.bytes());
        scratch.editor.edit(bytes, size, edits, edited);
        return walk({edited, size.height, size.width}, {}, walking, last_, i, out, scratch);
    }

  private:
    struct Prepared {  // to be resized, by the taps of the scratch memory
        Image<const uint8_t> box{};
        bool vertical_first = false;
    };

    // Resizes an image, and walks over it, if there is a walk.
    template <class To>
    bool walk(Pixels image, const Resizing& resizing, const Walking<To>& walking, const std::optional<Walker<uint8_t, To>>& walker,
              int64_t i, To* out, Scratch& scratch) const {
        Prepared prepared;
        const bool is_resized = resizing.boxes != nullptr;
        if (walker) {
            const int32_t *start = walking.start + 2 * i, *mirror = walking.mirror + 2 * i;
            const Box window{start[0], start[1], walking.height, walking.width};
            const bool fits = is_resized && is_inside(window, resizing.sizes[2 * i], resizing.sizes[2 * i + 1]);
            if (is_resized && !prepare(resizing, i, image, fits && mirror[1] == 1, scratch, prepared)) return false;
            if (fits) {
                resize_window(prepared, walking, *walker, i, out, scratch);
                return true;
            }
            if (is_resized) image = resize(prepared, nullptr, scratch);
            core::walk(*walker, Walked<uint8_t>{image.data, image.height, image.width, start, mirror}, out);
            return true;
        }
        if constexpr (std::is_same_v<To, uint8_t>) {
            const int64_t height = is_resized ? resizing.sizes[2 * i] : image.height;
            const int64_t width = is_resized ? resizing.sizes[2 * i + 1] : image.width;
            if (height != walking.height || width != walking.width) return false;
            if (is_resized) {
                if (!prepare(resizing, i, image, false, scratch, prepared)) return false;
                resize(prepared, out, scratch);
            } else {
                std::copy_n(image.data, CHANNELS * height * width, out);
            }
            return true;
        }
        return false;
    }

    // Finds the box that is resized, and its taps. Returns false if the numbers do not fit.
    static bool prepare(const Resizing& resizing, int64_t i, const Pixels& image, bool is_mirrored, Scratch& scratch,
                        Prepared& prepared) {
        const Box box = box_of(resizing.boxes + 4 * i);
        const int64_t height = resizing.sizes[2 * i], width = resizing.sizes[2 * i + 1], stride = CHANNELS * image.width;
        if (!is_inside(box, image.height, image.width) || height < 1 || width < 1 || height > MOST_PIXELS / width) return false;
        prepared.box = {image.data + box.top * stride + box.left * CHANNELS, stride, box.height, box.width, CHANNELS};
        scratch.vertical.compute(resizing.filter, box.height, height);
        scratch.horizontal.compute(resizing.filter, box.width, width, is_mirrored);
        prepared.vertical_first = is_vertical_first(box.height, box.width, scratch.vertical, scratch.horizontal);
        return true;
    }

    // Resizes the prepared image, to `out` or else to memory of its own.
    static Pixels resize(const Prepared& prepared, uint8_t* out, Scratch& scratch) {
        const Pass vertical = scratch.vertical.pass(), horizontal = scratch.horizontal.pass();
        const int64_t length = CHANNELS * horizontal.count;
        if (out == nullptr) out = reserve(scratch.resized, length * vertical.count);
        core::resize(prepared.box, vertical, horizontal, prepared.vertical_first,
                     Image<uint8_t>{out, length, vertical.count, horizontal.count, CHANNELS});
        return {out, vertical.count, horizontal.count};
    }

    // Resizes the part of the prepared image that a window shows, and walks over it: in one pass, without memory between them.
    //
    // Assumes: the window lies in the result, and its columns were prepared mirrored if it shows them so.
    template <class To>
    static void resize_window(const Prepared& prepared, const Walking<To>& walking, const Walker<uint8_t, To>& walker, int64_t i,
                              To* out, Scratch& scratch) {
        const int32_t *start = walking.start + 2 * i, *mirror = walking.mirror + 2 * i;
        const int64_t left = mirror[1] == 1 ? int64_t(scratch.horizontal.first.size()) - start[1] - walking.width : start[1];
        const bool planar = walking.out_planes;
        const float* const means = planar ? walker.mean.data() : walker.means.data();
        const float* const scales = planar ? walker.scale.data() : walker.scales.data();
        core::resize(prepared.box, scratch.vertical.pass(start[0], walking.height), scratch.horizontal.pass(left, walking.width),
                     prepared.vertical_first, Window<To>{out, planar, mirror[0] == 1, means, scales});
    }

    const Making<Out>& making_;
    std::optional<Walker<uint8_t, uint8_t>> before_;  // the edits
    std::optional<Walker<uint8_t, Out>> last_;
};

// Numbers of `count` images, which others may write to meanwhile.
template <class T>
class Numbers {
  public:
    Numbers(const T* numbers, int64_t count) : copy_(numbers, numbers + (numbers != nullptr ? count : 0)), is_there_(numbers != nullptr) {}
    const T* data() const { return is_there_ ? copy_.data() : nullptr; }

  private:
    std::vector<T> copy_;
    bool is_there_;
};

template <class Out>
class OwnWalking {
  public:
    OwnWalking(const Walking<Out>& walking, int64_t count)
        : start_(walking.start, 2 * count), mirror_(walking.mirror, 2 * count), mean_(walking.mean, CHANNELS),
          scale_(walking.scale, CHANNELS), walking_{walking} {}
    Walking<Out> get() const {
        return {start_.data(), mirror_.data(), walking_.fill, mean_.data(), scale_.data(), walking_.out_planes, walking_.height,
                walking_.width};
    }

  private:
    Numbers<int32_t> start_, mirror_;
    Numbers<float> mean_, scale_;
    Walking<Out> walking_;
};

template <class Out>
class ImageMaker : public Maker {
  public:
    ImageMaker(const Making<Out>& making, int64_t count, int64_t height, int64_t width)
        : Maker(count, CHANNELS * height * width, CHANNELS * making.walking.height * making.walking.width * int64_t(sizeof(Out))),
          height_(height), width_(width), boxes_(making.resizing.boxes, 4 * count), sizes_(making.resizing.sizes, 2 * count),
          table_(making.resizing.filter.table, making.resizing.filter.entries),
          edits_(making.editing.numbers, making.editing.num_numbers * count), window_(making.editing.window, count),
          walking_(making.walking, count),
          making_{{boxes_.data(), sizes_.data(), making.resizing.filter},
                  {edits_.data(), making.editing.num_numbers, window_.get()},
                  walking_.get()},
          row_(making_) {
        making_.resizing.filter.table = table_.data();
    }

    bool make(const uint8_t* bytes, int64_t row, uint8_t* out) const override {
        static thread_local Scratch scratch;
        return row_.make({bytes, height_, width_}, row, reinterpret_cast<Out*>(out), scratch);
    }

  private:
    int64_t height_, width_;
    Numbers<int32_t> boxes_, sizes_;
    Numbers<float> table_;
    Numbers<double> edits_;
    OwnWalking<uint8_t> window_;
    OwnWalking<Out> walking_;
    Making<Out> making_;
    Row<Out> row_;
};

}  // namespace

template <class Out>
std::unique_ptr<Maker> image_maker(const Making<Out>& making, int64_t count, int64_t height, int64_t width) {
    return std::make_unique<ImageMaker<Out>>(making, count, height, width);
}

template <class Out>
int64_t make_rows(Codec& codec, const Files& files, const Making<Out>& making, Out* out, int8_t* declined) {
    const int64_t size = making.walking.height * making.walking.width * CHANNELS;
    const Row<Out> row(making);
    Scratch scratch;
    return decode_each(codec, files, declined,
                       [&](int64_t i, const Pixels& image) { return row.make(image, i, out + i * size, scratch); });
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
    const Row<Out> row(making);
    Scratch scratch;
    for (int64_t i = 0; i < count; ++i) {
        try {
            declined[i] = !row.make(images[i], i, out + i * size, scratch);
        } catch (const std::exception&) {  // as above
        }
    }
}

template int64_t make_rows(Codec&, const Files&, const Making<uint8_t>&, uint8_t*, int8_t*);
template int64_t make_rows(Codec&, const Files&, const Making<float>&, float*, int8_t*);
template void make_rows(const Pixels*, int64_t, const Making<uint8_t>&, uint8_t*, int8_t*);
template void make_rows(const Pixels*, int64_t, const Making<float>&, float*, int8_t*);
template std::unique_ptr<Maker> image_maker(const Making<uint8_t>&, int64_t, int64_t, int64_t);
template std::unique_ptr<Maker> image_maker(const Making<float>&, int64_t, int64_t, int64_t);

}  // namespace core

// Rows of images: see imagerows.hpp.
#include "imagerows.hpp"

#include <algorithm>
#include <exception>
#include <type_traits>
#include <vector>

#include "resize.hpp"
#include "walk.hpp"

namespace core {
namespace {

constexpr int64_t CHANNELS = 3, MOST_PIXELS = int64_t(1) << 40;  // more do not fit into any memory

struct Pixels {
    const uint8_t* data;
    int64_t height, width;
};

bool is_inside(const Box& box, int64_t height, int64_t width) {
    return box.top >= 0 && box.left >= 0 && box.height > 0 && box.width > 0 && box.height <= height - box.top &&
           box.width <= width - box.left;
}

Box box_of(const int32_t* numbers) { return {numbers[0], numbers[1], numbers[2], numbers[3]}; }

class Row {  // makes one after the other
  public:
    explicit Row(Decoder& decoder) : decoder_(decoder) {}

    bool decode(const Files& files, int64_t i, Pixels& pixels) {
        const int32_t* numbers = files.heads + 6 * i;
        const JpegHead head{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
        const uint8_t* data = files.raw + files.begins[i];
        const int64_t size = files.ends[i] - files.begins[i];
        const Box whole{0, 0, head.height, head.width}, box = files.regions == nullptr ? whole : box_of(files.regions + 4 * i);
        if (!is_inside(box, head.height, head.width) || head.scan_end < 0 || head.scan_end > size) return false;
        pixels = {decoder_.decode(data, size, head, box, files.regions == nullptr), box.height, box.width};
        return pixels.data != nullptr;
    }

    // Resizes a box of an image, to `out` or else to memory of its own.
    bool resize(const Resizing& resizing, int64_t i, Pixels& pixels, uint8_t* out) {
        const Box box = box_of(resizing.boxes + 4 * i);
        const int64_t height = resizing.sizes[2 * i], width = resizing.sizes[2 * i + 1];
        if (!is_inside(box, pixels.height, pixels.width) || height < 1 || width < 1) return false;
        if (height > MOST_PIXELS / width) return false;
        if (out == nullptr) {
            if (resized_.size() < size_t(CHANNELS * height * width)) resized_.resize(size_t(CHANNELS * height * width));
            out = resized_.data();
        }
        vertical_.compute(resizing.filter, box.height, height);
        horizontal_.compute(resizing.filter, box.width, width);
        const int64_t stride = CHANNELS * pixels.width;
        const uint8_t* begin = pixels.data + box.top * stride + box.left * CHANNELS;
        core::resize(Image<const uint8_t>{begin, stride, box.height, box.width, CHANNELS}, vertical_.pass(),
                     horizontal_.pass(), is_vertical_first(box.height, box.width, vertical_, horizontal_),
                     Image<uint8_t>{out, CHANNELS * width, height, width, CHANNELS});
        pixels = {out, height, width};
        return true;
    }

  private:
    Decoder& decoder_;
    Taps vertical_, horizontal_;
    std::vector<uint8_t> resized_;
};

template <class Out>
bool make_row(Row& row, const Files& files, const Resizing& resizing, const Walking<Out>& walking, int64_t i, Out* out) {
    Pixels pixels{};
    if (!row.decode(files, i, pixels)) return false;
    if (walking.start != nullptr) {
        if (resizing.boxes != nullptr && !row.resize(resizing, i, pixels, nullptr)) return false;
        walk(Walk<uint8_t, Out>{pixels.data, 0, pixels.height, pixels.width, CHANNELS, false, walking.out_planes, 1,
                                walking.start + 2 * i, walking.mirror + 2 * i, walking.fill, walking.mean, walking.scale,
                                out, walking.height, walking.width});
        return true;
    }
    if constexpr (std::is_same_v<Out, uint8_t>) {
        const bool is_resized = resizing.boxes != nullptr;
        const int64_t height = is_resized ? resizing.sizes[2 * i] : pixels.height;
        const int64_t width = is_resized ? resizing.sizes[2 * i + 1] : pixels.width;
        if (height != walking.height || width != walking.width) return false;
        if (is_resized) return row.resize(resizing, i, pixels, out);
        std::copy_n(pixels.data, CHANNELS * height * width, out);
        return true;
    }
    return false;
}

}  // namespace

template <class Out>
void make_rows(Codec& codec, const Files& files, const Resizing& resizing, const Walking<Out>& walking, Out* out,
               int8_t* declined) {
    std::fill_n(declined, files.count, int8_t(1));
    try {
        Codec::Loan loan(codec);
        Row row(loan.decoder());
        for (int64_t i = 0; i < files.count; ++i) {
            try {
                declined[i] = !make_row(row, files, resizing, walking, i, out + i * walking.height * walking.width * CHANNELS);
            } catch (const std::exception&) {  // too little memory for this image: Python has the same error, and names the file
            }
        }
    } catch (const std::exception&) {  // no decoder: Python has the same error
    }
}

template void make_rows(Codec&, const Files&, const Resizing&, const Walking<uint8_t>&, uint8_t*, int8_t*);
template void make_rows(Codec&, const Files&, const Resizing&, const Walking<float>&, float*, int8_t*);

}  // namespace core

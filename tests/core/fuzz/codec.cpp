// Rows of images: JPEG files with heads, regions, boxes and sizes of their own or of other images, decoded by nvImageCodec.
// The environment says where its library is: NVIMGCODEC_LIBRARY and NVIMGCODEC_EXTENSIONS.
#include "../../../gpuload/core/cpp/imagerows.hpp"
#include "../../../gpuload/core/cpp/jpeg.hpp"
#include "target.hpp"

namespace fuzz {
namespace {

constexpr int64_t MOST_PIXELS = 1 << 18;  // of an image, so that an input takes milliseconds

core::Codec& codec() {
    static core::Codec* const codec = [] {
        const char *library = std::getenv("NVIMGCODEC_LIBRARY"), *extensions = std::getenv("NVIMGCODEC_EXTENSIONS");
        ensure(library != nullptr && extensions != nullptr, "the environment says where nvImageCodec is");
        return new core::Codec(library, extensions);
    }();
    return *codec;
}

// The head that the file has, or another one.
core::JpegHead head_of(Input& input, const Block<uint8_t>& file) {
    const bool is_hostile = input.flag();
    core::JpegHead head{};
    const bool is_sound = core::read_jpeg_head(file.data(), file.size(), head);
    if (is_sound && !is_hostile) return head;
    head.height = int32_t(input.hostile(head.height));
    head.width = int32_t(input.hostile(head.width));
    head.channels = int32_t(input.hostile(5));
    head.orientation = int32_t(input.hostile(9));
    head.scan_end = int32_t(input.hostile(file.size()));
    return head;
}

int32_t near(Input& input, int64_t usual) { return int32_t(input.hostile(usual)); }

}  // namespace

void rows(Input input) {
    const bool has_regions = input.flag(), has_boxes = input.flag(), has_walk = input.flag(), is_planar = input.flag();
    const bool is_antialiased = input.flag();
    const int64_t height = input.number(1, 40), width = input.number(1, 40);
    std::vector<uint8_t> words(100);
    for (uint8_t& word : words) word = input.byte();
    const Block<uint8_t> file = input.rest();
    Input choice(words.data(), words.size());
    const core::JpegHead head = head_of(choice, file);
    if (head.height > 0 && head.width > MOST_PIXELS / head.height) return;

    Block<int32_t> heads(6), regions(4), boxes(4), sizes(2), start(2), mirror(2);
    const int64_t values[] = {head.height, head.width, head.scans, head.channels, head.orientation, head.scan_end};
    for (int i = 0; i < 6; ++i) heads[i] = int32_t(values[i]);
    for (int i = 0; i < 4; ++i) {
        const int64_t side = i % 2 ? head.width : head.height;
        regions[i] = near(choice, side);
        boxes[i] = near(choice, has_regions ? regions[i & 1 ? 3 : 2] : side);
    }
    sizes[0] = has_walk ? int32_t(choice.number(0, 60)) : near(choice, height);
    sizes[1] = has_walk ? int32_t(choice.number(0, 60)) : near(choice, width);
    if (!has_walk && choice.flag()) {
        sizes[0] = int32_t(height);
        sizes[1] = int32_t(width);
    }
    for (int i = 0; i < 2; ++i) {
        start[i] = near(choice, 60);
        mirror[i] = choice.flag();
    }
    const int64_t begin = 0, end = file.size();
    const float table[] = {0, 1, 0}, mean[] = {1, 2, 3}, scale[] = {3, 2, 1};
    int8_t declined = -1;
    const core::Files files{file.data(), &begin, &end, heads.data(), has_regions ? regions.data() : nullptr, 1};
    const core::Resizing resizing{has_boxes ? boxes.data() : nullptr, has_boxes ? sizes.data() : nullptr,
                                  {table, 3, 2, is_antialiased}};
    if (has_walk) {
        Block<float> out(size_t(3 * height * width));
        const core::Walking<float> walking{start.data(), mirror.data(), 7, mean, scale, is_planar, height, width};
        core::make_rows(codec(), files, core::Making<float>{resizing, {}, walking}, out.data(), &declined);
    } else {
        Block<uint8_t> out(size_t(3 * height * width));
        const core::Walking<uint8_t> walking{nullptr, nullptr, 0, mean, scale, false, height, width};
        core::make_rows(codec(), files, core::Making<uint8_t>{resizing, {}, walking}, out.data(), &declined);
    }
    ensure(declined == 0 || declined == 1, "a row is made or declined");

    const bool has_size = head.height > 0 && head.width > 0 && choice.byte() < 224;
    Block<uint8_t> pixels(size_t(has_size ? 3 * int64_t(head.height) * head.width : choice.number(0, 3000)));
    const core::Room room{pixels.data(), pixels.size()};
    const core::Files whole{file.data(), &begin, &end, heads.data(), nullptr, 1};
    core::decode_rows(codec(), whole, &room, &declined);
    ensure(declined == 0 || declined == 1, "an image is decoded or declined");
}

}  // namespace fuzz

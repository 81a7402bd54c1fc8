// Rows of images: JPEG files with heads, regions, steps and sizes of their own or of other images, decoded by nvImageCodec.
// The environment says where its library is: NVIMGCODEC_LIBRARY and NVIMGCODEC_EXTENSIONS.
#include "../../../gpuload/core/cpp/jpeg.hpp"
#include "visits.hpp"

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
    const bool has_regions = input.flag(), writes_floats = input.flag(), fits_room = input.byte() < 224;
    const int64_t channels = input.flag() ? 3 : input.number(0, 5);
    std::vector<uint8_t> words(200);
    for (uint8_t& word : words) word = input.byte();
    const Block<uint8_t> file = input.rest();
    Input choice(words.data(), words.size());
    const core::JpegHead head = head_of(choice, file);
    if (head.height > 0 && head.width > MOST_PIXELS / head.height) return;

    Block<int32_t> heads(6), regions(4);
    const int64_t values[] = {head.height, head.width, head.scans, head.channels, head.orientation, head.scan_end};
    for (int i = 0; i < 6; ++i) heads[i] = int32_t(values[i]);
    for (int i = 0; i < 4; ++i) regions[i] = near(choice, i % 2 ? head.width : head.height);
    const Sides image = has_regions ? Sides{regions[2], regions[3]} : Sides{head.height, head.width};
    const bool has_size = image.height > 0 && image.width > 0 && image.height <= MOST_PIXELS / image.width;
    std::vector<Sides> sides;
    core::Visit visit = visit_of(choice, channels, has_size ? image : Sides{1, 1}, sides);
    Sides room = sides.empty() ? (has_size ? image : Sides{1, 1}) : sides.back();
    if (!fits_room) room = {choice.number(0, 40), choice.number(0, 40)};
    const int64_t begin = 0, end = file.size();
    int8_t declined = -1;
    const core::Files files{file.data(), &begin, &end, heads.data(), has_regions ? regions.data() : nullptr, 1};
    if (writes_floats && !visit.steps.empty() && std::holds_alternative<core::Walking>(visit.steps.back())) {
        visit.out_planes = choice.flag();
        Block<float> out(size_t(channels * room.height * room.width));
        const core::Room<float> rooms{out.data(), room.height, room.width};
        core::make_rows(codec(), files, visit, &rooms, &declined);
    } else {
        Block<uint8_t> out(size_t(channels * room.height * room.width));
        const core::Room<uint8_t> rooms{out.data(), room.height, room.width};
        core::make_rows(codec(), files, visit, &rooms, &declined);
    }
    ensure(declined == 0 || declined == 1, "a row is made or declined");
}

}  // namespace fuzz

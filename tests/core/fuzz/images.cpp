// Encoded images: LZW data of TIFF beside a decoder that makes the bytes, and the scans of JPEGs at any places.
#include "../../../gpuload/core/cpp/jpeg.hpp"
#include "../../../gpuload/core/cpp/lzw.hpp"
#include "../../../gpuload/core/cpp/scans.hpp"
#include "target.hpp"

namespace fuzz {
namespace {

constexpr int64_t MOST_BYTES = 1 << 18;  // that the decoder makes

// Returns how many bytes LZW data of TIFF come to, by making them (TIFF 6.0, section 13); those of more than MOST_BYTES
// are not made on.
int64_t decode(const Block<uint8_t>& coded, int64_t enough) {
    std::vector<std::vector<uint8_t>> table;
    std::vector<uint8_t> last;
    int64_t count = 0, place = 0;
    unsigned width = 9;
    bool has_begun = false;
    const auto code_at = [&](int64_t bit) {
        unsigned code = 0;
        for (unsigned i = 0; i < width; ++i, ++bit) code = code << 1 | (coded[bit / 8] >> (7 - bit % 8) & 1u);
        return code;
    };
    for (; place + width <= 8 * coded.size() && count < MOST_BYTES;) {
        const unsigned code = code_at(place);
        place += width;
        if (code == 256) {
            if (count >= enough) return count;
            has_begun = true;
            table.clear();
            last.clear();
            width = 9;
            continue;
        }
        if (!has_begun) return core::NO_CLEAR;
        if (code == 257) return count;
        if (table.size() == 4095 - 258) return core::BAD_CODE;  // a writer has to clear the table before
        std::vector<uint8_t> text;
        if (code < 256) {
            text = {uint8_t(code)};
        } else if (code - 258 < table.size()) {
            text = table[code - 258];
        } else if (code - 258 == table.size() && !last.empty()) {  // the code that is being made
            text = last;
            text.push_back(last[0]);
        } else {
            return core::BAD_CODE;
        }
        if (!last.empty()) {
            last.push_back(text[0]);
            table.push_back(last);
        }
        last = text;
        count += int64_t(text.size());
        const size_t next = 258 + table.size();  // "early change": one code before it is needed
        width = next >= 2047 ? 12 : next >= 1023 ? 11 : next >= 511 ? 10 : 9;
    }
    return has_begun ? count : core::NO_CLEAR;
}

bool is_segment_taken(unsigned marker) { return marker == 0xC4 || marker == 0xDD; }

}  // namespace

void lzw(Input input) {
    const int64_t enough = input.hostile(4000);
    const Block<uint8_t> coded = input.rest();
    const int64_t count = core::lzw_bytes(core::Reader(coded.data(), size_t(coded.size())), enough);
    const int64_t other = decode(coded, enough);
    if (other < MOST_BYTES && count != other) std::fprintf(stderr, "%ld, by the decoder %ld\n", long(count), long(other));
    ensure(other >= MOST_BYTES || count == other, "a decoder makes as many bytes");
}

void heads(Input input) {
    const Block<uint8_t> file = input.rest();
    core::JpegHead head{};
    if (!core::read_jpeg_head(file.data(), file.size(), head)) return;
    ensure(head.height > 0 && head.width > 0 && head.height * head.width <= 1 << 28, "an image has pixels, and not too many");
    ensure(head.channels >= 1 && head.channels <= 4 && head.orientation >= 1 && head.orientation <= 8, "numbers are usual");
    ensure(head.scans >= 1 && head.scan_end >= 0 && head.scan_end <= file.size(), "the data end in the file");
}

// The header is read as `images.heads.jpeg` reads it, or places are any.
void scans(Input input) {
    const bool is_hostile = input.flag();
    const int64_t max_scans = input.number(0, 255), num_segments = input.number(0, 6);
    std::vector<core::Segment> segments;
    std::vector<int64_t> words;
    for (int64_t i = 0; i < 2 * num_segments + 2; ++i) words.push_back(input.hostile(1000));
    const Block<uint8_t> file = input.rest();
    int64_t frame = words[0], place = words[1];
    if (is_hostile) {
        for (size_t i = 2; i + 1 < words.size(); i += 2) segments.push_back({words[i] & 1 ? 0xC4 : 0xDD, words[i + 1]});
    } else {
        for (int64_t at = 2; at + 4 <= file.size() && file[at] == 0xFF;) {
            const unsigned marker = file[at + 1];
            if (is_segment_taken(marker)) segments.push_back({marker, at + 2});
            if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) frame = at + 2;
            if (marker == 0xDA) {
                place = at + 2;
                break;
            }
            at += 2 + (file[at + 2] << 8 | file[at + 3]);
        }
    }
    const int64_t most = max_scans > 0 ? max_scans : 1 << 16;
    const core::Scans found = core::read_scans(file.data(), file.size(), frame, place, segments, most);
    ensure(found.number >= -1 && found.number <= most, "there are as many scans as are read");
    ensure(found.end >= 0 && found.end <= file.size(), "the data end in the file");
}

}  // namespace fuzz

// Heads of JPEG files: see jpeg.hpp.
//
// Assumes: `size` bytes can be read from `data` on. Nothing is assumed of the bytes: they are read
// by `Reader`.
#include "jpeg.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "reader.hpp"
#include "scans.hpp"

namespace core {
namespace {

constexpr int64_t MAX_SCANS = 1 << 16, MAX_PIXELS = 1 << 28, MAX_SIDE = 65500, MAX_FILL = 65536;
constexpr int64_t HUFFMAN_PIXELS_PER_BYTE = 1024, ARITHMETIC_PIXELS_PER_BYTE = 65536;
constexpr unsigned SOS = 0xDA, APP1 = 0xE1, DHT = 0xC4, DRI = 0xDD;
// The tag of EXIF, and a value that says nothing.
constexpr unsigned ORIENTATION = 0x112, MISSING = 9;

bool is_frame(unsigned marker) {
    return (marker >= 0xC0 && marker <= 0xC2) || marker == 0xC9 || marker == 0xCA;
}
bool is_arithmetic(unsigned frame) { return frame == 0xC9 || frame == 0xCA; }
bool is_segment(unsigned marker) {  // of a header: also DAC, DQT, DNL, APPn and COM
    return is_frame(marker) || marker == DHT || marker == 0xCC ||
           (marker >= 0xDB && marker <= DRI) || (marker & 0xF0) == 0xE0 || marker == 0xFE;
}

// Numbers of an EXIF block, in its byte order. The places were checked.
struct Exif {
    const uint8_t* block;
    uint64_t size;
    bool is_little;

    uint64_t number(uint64_t place, int num_bytes) const {  // a byte behind the block is 0
        uint64_t value = 0;
        for (int i = 0; i < num_bytes; ++i) {
            const uint64_t at = place + uint64_t(is_little ? num_bytes - 1 - i : i);
            value = value << 8 | (at < size ? block[at] : 0);
        }
        return value;
    }
};

// Whether the value of an entry, one of those that decoders look at, lies outside the block.
bool lies_outside(unsigned tag, uint64_t count, uint64_t place, uint64_t size) {
    switch (tag) {
        case 0x10E:
        case 0x10F:
        case 0x110:
        case 0x131:
        case 0x132:
        case 0x8298:  // texts
            return count > 4 && place + count > size;
        case 0x11A:
        case 0x11B: return place + 8 > size;  // one rational number, and so on
        case 0x13E: return place + 16 > size;
        case 0x211:
        case 0x214: return place + 8 * (tag == 0x211 ? 3 : 6) > size;
        case 0x13F: return place + 48 > size;
        default: return false;
    }
}

// Reads the orientation of an EXIF block: 1 to 8, 0 if decoders disagree about it
// (`images/heads/exif.py`).
unsigned read_orientation(Reader block) {
    const uint8_t* data = block.place();
    const uint64_t size = block.left();
    if (size < 10 || (std::memcmp(data + 2, "*\0", 2) != 0 && std::memcmp(data + 2, "\0*", 2) != 0))
        return 1;
    const bool is_little = std::memcmp(data, "II*\0", 4) == 0;
    if (!is_little && std::memcmp(data, "MM\0*", 4) != 0) return 0;
    const Exif exif{data, size, is_little};
    const uint64_t start = exif.number(4, 4) + 2;
    if (start > size) return 1;
    const uint64_t count = exif.number(start - 2, 2),
                   present = std::min((size - start + 11) / 12, count);
    bool is_damaged = size - start < 12 * count;
    unsigned value = 0;
    for (uint64_t entry = start; entry < start + 12 * present; entry += 12) {
        const unsigned tag = unsigned(exif.number(entry, 2));
        if (tag == ORIENTATION) {
            if (value == 0) value = unsigned(exif.number(entry + 8, 2));
            if (value == 0) value = MISSING;
        } else if (lies_outside(tag, exif.number(entry + 4, 4), exif.number(entry + 8, 4), size)) {
            is_damaged = true;
            break;
        }
    }
    if (is_damaged && value > 1 && value <= 8) return 0;
    return value >= 1 && value <= 8 ? value : 1;
}

// Reads a marker, in front of which fill bytes may stand.
bool read_marker(Reader& file, unsigned& marker) {
    uint8_t byte = 0;
    if (!file.byte(byte) || byte != 0xFF) return false;
    for (int64_t num_bytes = 2; file.byte(byte); ++num_bytes) {
        if (num_bytes > MAX_FILL) return false;
        marker = byte;
        if (byte != 0xFF) return true;
    }
    return false;
}

bool read_frame(Reader segment, JpegHead& head) {
    uint8_t bits = 0, channels = 0;
    unsigned height = 0, width = 0;
    if (!segment.byte(bits) || !segment.big_16(height) || !segment.big_16(width) ||
        !segment.byte(channels))
        return false;
    head.height = height;
    head.width = width;
    head.channels = channels;
    return bits == 8 && (channels == 1 || channels == 3 || channels == 4) &&
           segment.left() == size_t(3 * channels) && height > 0 && width > 0 &&
           std::max(head.height, head.width) <= MAX_SIDE;
}

struct Header {                // the settings in front of the first scan
    int64_t frame = 0;         // where the segment of the frame begins; 0: there is none
    unsigned orientation = 0;  // 0: the file does not state it
    std::vector<Segment> settings;
};

// Reads the segments up to the first scan. Returns false if the file is refused.
bool read_header(const uint8_t* data, int64_t size, Reader& file, JpegHead& head, Header& header) {
    for (unsigned marker = 0;;) {
        if (!read_marker(file, marker)) return false;
        if (marker == SOS) return header.frame > 0;
        if (!is_segment(marker) || (is_frame(marker) && header.frame > 0)) return false;
        const int64_t place = file.place() - data;
        unsigned length = 0;
        Reader segment;
        if (!file.big_16(length) || length < 2 || !file.part(length - 2, segment)) return false;
        if (is_frame(marker)) {
            header.frame = place;
            if (!read_frame(segment, head)) return false;
        } else if (marker == APP1 && size - place >= 8 &&
                   std::memcmp(data + place + 2, "Exif\0\0", 6) == 0) {
            const unsigned before = header.orientation;
            if (!segment.skip(6)) return false;
            header.orientation = read_orientation(segment);
            if (header.orientation == 0 || (before != 0 && before != header.orientation))
                return false;
        } else if (marker == DHT || marker == DRI) {
            header.settings.push_back({marker, place});
        }
    }
}

}  // namespace

bool read_jpeg_head(const uint8_t* data, int64_t size, JpegHead& head) {
    // A file with these bytes in front of "ftyp" may be of another format.
    if (size < 8 || std::memcmp(data, "\xFF\xD8\xFF", 3) != 0 ||
        std::memcmp(data + 4, "ftyp", 4) == 0)
        return false;
    Reader file(data + 2, size_t(size - 2));
    Header header;
    if (!read_header(data, size, file, head, header)) return false;
    const int64_t place = file.place() - data, pixels = head.height * head.width;
    const int64_t per_byte = is_arithmetic(data[header.frame - 1]) ? ARITHMETIC_PIXELS_PER_BYTE
                                                                   : HUFFMAN_PIXELS_PER_BYTE;
    if (pixels > MAX_PIXELS || pixels > (size - place) * per_byte) return false;
    const Scans scans = read_scans(data, size, header.frame, place, header.settings, MAX_SCANS);
    if (scans.number < 0) return false;
    head.scans = scans.number;
    head.scan_end = scans.end;
    head.orientation = header.orientation == 0 ? 1 : header.orientation;
    if (head.orientation > 4) std::swap(head.height, head.width);  // a quarter turn
    return true;
}

}  // namespace core

// Heads of JPEG files: size, channels and orientation, and whether the file is whole as far as its
// bytes show. `images/heads/jpeg.py` is the same in Python and says why; it reads a file that is
// refused here again, for the text of the error.
#pragma once

#include <cstdint>

namespace core {

struct JpegHead {
    int64_t height, width;  // pixels, upright
    int64_t scans, channels, orientation;
    int64_t scan_end;  // where the data of the only scan ends, if it is Huffman coded; else 0
};

// Reads the head of a file. Returns false if the file is no JPEG, or is refused.
bool read_jpeg_head(const uint8_t* data, int64_t size, JpegHead& head);

}  // namespace core

// Scans of a JPEG: whether their bytes show damage. `images/scans.py` is the same in NumPy and says
// why; it reads a file that is refused here again, for the text of the error.
#pragma once

#include <cstdint>
#include <vector>

namespace core {

struct Scans {
    int64_t number;  // of scans; -1: damaged
    int64_t end;     // where the data of the only scan ends, if it is Huffman coded; else 0
};

struct Segment {
    int64_t marker, place;
};

// Reads the scans of a JPEG. `frame` is where the frame header stands and `place` where the header
// of the first scan does, behind their markers; `segments` are DRI and DHT of the header. No more
// than `max_scans` are read.
Scans read_scans(const uint8_t* data, int64_t size, int64_t frame, int64_t place,
                 const std::vector<Segment>& segments, int64_t max_scans);

}  // namespace core

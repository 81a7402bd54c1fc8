// LZW: see lzw.hpp. Assumes nothing of the data.
#include "lzw.hpp"

#include <array>

namespace core {
namespace {
constexpr unsigned CLEAR = 256, END = 257, FIRST = 258;  // codes; the first entry of the table
constexpr unsigned MAX_ENTRIES = 3838;                   // between two Clear codes
}  // namespace

int64_t lzw_bytes(Reader coded, int64_t enough) {
    std::array<int64_t, MAX_ENTRIES> lengths;  // of the entries of the table, from FIRST on
    int64_t count = 0;
    unsigned num_entries = 0, width = 9;
    unsigned buffer = 0, num_bits = 0;  // the last bits that were read, and how many of them are left
    bool has_begun = false;
    for (;;) {
        while (num_bits < width) {
            uint8_t byte;
            if (!coded.byte(byte)) return has_begun ? count : NO_CLEAR;
            buffer = (buffer << 8 | byte) & 0xFFFFFF;
            num_bits += 8;
        }
        num_bits -= width;
        const unsigned code = buffer >> num_bits & ((1u << width) - 1);
        if (code == CLEAR) {
            if (count >= enough) return count;
            has_begun = true;
            num_entries = 0;
            width = 9;
        } else if (!has_begun) {
            return NO_CLEAR;
        } else if (code == END) {
            return count;
        } else {
            if (code >= FIRST + num_entries || num_entries == MAX_ENTRIES) return BAD_CODE;
            lengths[num_entries] = code < CLEAR ? 1 : lengths[code - FIRST] + 1;
            count += lengths[num_entries++];
            const bool is_full = num_entries == 254 || num_entries == 766 || num_entries == 1790;
            if (is_full) ++width;  // TIFF: one code early
        }
    }
}

}  // namespace core

// PNG: rows of pixels of their filtered form. `images.decode` reads the chunks and has zlib inflate
// them.
// Source: PNG 3rd edition, section 9.
#pragma once

#include <cstdint>

namespace core {

// Writes rows without their filters to `out`, [height, row_bytes]. Returns false if a filter is
// none that PNG has.
//
// Assumes: `rows` is [height, 1 + row_bytes], the first byte of each row is its filter, and 0 <
// pixel_bytes <= row_bytes.
bool unfilter(const uint8_t* rows, int64_t height, int64_t row_bytes, int64_t pixel_bytes,
              uint8_t* out);

}  // namespace core

// LZW of TIFF: how many bytes the codes come to, without making them; `images.heads.coded` has the same in NumPy.
// Source: TIFF 6.0, section 13.
#pragma once

#include <cstdint>

#include "reader.hpp"

namespace core {

constexpr int64_t NO_CLEAR = -1, BAD_CODE = -2;

// Returns how many bytes come out up to the first Clear at which they are enough; NO_CLEAR where the data do not begin
// with Clear, BAD_CODE where a code means nothing.
int64_t lzw_bytes(Reader coded, int64_t enough);

}  // namespace core

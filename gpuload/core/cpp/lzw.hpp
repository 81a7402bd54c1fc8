// LZW of TIFF: the number of bytes that the codes stand for, without decoding them.
// `images.heads.compression` has the same in Python.
// Source: TIFF 6.0, section 13.
#pragma once

#include <cstdint>

#include "reader.hpp"

namespace core {

constexpr int64_t NO_CLEAR = -1, BAD_CODE = -2;

// Returns the number of bytes that the codes stand for, up to the first Clear code at which they
// are enough; NO_CLEAR if the data do not begin with Clear, BAD_CODE if a code is not in the table.
int64_t lzw_bytes(Reader coded, int64_t enough);

}  // namespace core

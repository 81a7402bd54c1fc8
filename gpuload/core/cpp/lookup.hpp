// Look-up: each value of an image becomes another by a table of 256.
#pragma once

#include <cstdint>

namespace core {

// Looks up each value in the table of its channel: tables [channels, 256]. The result may lie in
// the image's memory.
void look_up(const uint8_t* image, int64_t pixels, int64_t channels, const uint8_t* tables,
             uint8_t* out);

}  // namespace core

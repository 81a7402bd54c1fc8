// Pages: memory that is not needed now is offered to the system, and costs nothing if it is written
// again before it is taken.
// Source: madvise(2), MADV_FREE, Linux 4.5.
#pragma once

#include <cstddef>
#include <cstdint>

namespace core {

// Lets the system take the whole pages of some memory, when it is short of it; their bytes are then
// zeros, or as before. Returns false if it does not do that here, or there is no whole page.
bool offer_pages(uint8_t* data, size_t size);

}  // namespace core

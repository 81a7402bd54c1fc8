// CRC32C (Castagnoli), by the processor's instruction where it has one, else by tables.
// Source: RFC 3720, appendix B.4; the mask of TFRecord: crc32c.h of TensorFlow.
#pragma once

#include <cstddef>
#include <cstdint>

namespace core {

// Returns the checksum of bytes behind a part with the checksum `before`, 0 if there is no such
// part.
uint32_t crc32c(const uint8_t* data, size_t size, uint32_t before = 0);

inline uint32_t masked(uint32_t checksum) {
    return (checksum >> 15 | checksum << 17) + 0xA282EAD8u;
}

// Returns the same by tables, on any processor; for tests.
uint32_t crc32c_by_tables(const uint8_t* data, size_t size, uint32_t before = 0);

}  // namespace core

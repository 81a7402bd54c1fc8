// CRC-32 (of ZIP, gzip and PNG) by carry-less multiplication, several times as fast as zlib's,
// where the processor has it.
// Source: RFC 1952, section 8 (the checksum); "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel, 2009 (folding).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace core {

// Returns the checksum of bytes behind a part with the checksum `before`, 0 if there is no such
// part; nothing where the processor has no carry-less multiplication, or only aarch64's: there
// zlib's is as fast.
std::optional<uint32_t> crc32(const uint8_t* data, size_t size, uint32_t before = 0);

// Returns the same with registers of 128 bits, also where larger ones are there; for tests.
std::optional<uint32_t> crc32_by_128_bits(const uint8_t* data, size_t size, uint32_t before = 0);

}  // namespace core

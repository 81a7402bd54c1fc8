// CRC32C: see crc32c.hpp.
//
// Assumes: `size` bytes can be read from `data` on; the Python face checked it.
// Speed: the instruction takes 8 bytes each 3 cycles if one waits for the other, and one a cycle if
// they do not. So long pieces are read at three places at once; the three checksums are joined by
// tables that shift one over the bytes behind it ("Fast CRC Computation for iSCSI Polynomial Using
// CRC32 Instruction", Intel, 2011). Measured: 20 GB/s in place of 7.
#include "crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace core {
namespace {

constexpr uint32_t POLYNOMIAL = 0x82F63B78;  // its bits reversed
constexpr size_t LANE_BYTES = 512;           // of each of the three places

using Table = std::array<uint32_t, 256>;

// Table k: the part of a byte that stands k bytes before the last.
constexpr std::array<Table, 8> byte_tables() {
    std::array<Table, 8> tables{};
    for (uint32_t value = 0; value < 256; ++value) {
        uint32_t sum = value;
        for (int bit = 0; bit < 8; ++bit) sum = sum & 1 ? sum >> 1 ^ POLYNOMIAL : sum >> 1;
        tables[0][value] = sum;
    }
    for (size_t k = 1; k < 8; ++k)
        for (size_t value = 0; value < 256; ++value) {
            const uint32_t sum = tables[k - 1][value];
            tables[k][value] = sum >> 8 ^ tables[0][sum & 0xFF];
        }
    return tables;
}

constexpr std::array<Table, 8> TABLES = byte_tables();

// Each byte of a checksum, carried over that many zero bytes: the sum of its bits, each carried.
constexpr std::array<Table, 4> shift_tables(size_t num_zeros) {
    std::array<Table, 4> tables{};
    for (size_t k = 0; k < 4; ++k)
        for (uint32_t value = 1; value < 256; ++value) {
            const uint32_t lowest = value & (~value + 1);
            uint32_t sum = tables[k][lowest] ^ tables[k][value ^ lowest];
            if (value == lowest) {
                sum = value << (8 * k);
                for (size_t i = 0; i < num_zeros; ++i) sum = sum >> 8 ^ TABLES[0][sum & 0xFF];
            }
            tables[k][value] = sum;
        }
    return tables;
}

uint64_t word_at(const uint8_t* data) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    return word;
}

#if defined(__x86_64__)
#define HAS_INSTRUCTION 1
#define WITH_INSTRUCTION __attribute__((target("sse4.2")))
bool is_there() { return __builtin_cpu_supports("sse4.2"); }
WITH_INSTRUCTION inline uint32_t add_word(uint32_t sum, uint64_t word) {
    return uint32_t(_mm_crc32_u64(sum, word));
}
WITH_INSTRUCTION inline uint32_t add_byte(uint32_t sum, uint8_t byte) {
    return _mm_crc32_u8(sum, byte);
}
#elif defined(__aarch64__) && defined(__linux__)
#define HAS_INSTRUCTION 1
#define WITH_INSTRUCTION __attribute__((target("+crc")))
bool is_there() { return getauxval(AT_HWCAP) & (1 << 7); }  // HWCAP_CRC32
WITH_INSTRUCTION inline uint32_t add_word(uint32_t sum, uint64_t word) {
    return __crc32cd(sum, word);
}
WITH_INSTRUCTION inline uint32_t add_byte(uint32_t sum, uint8_t byte) {
    return __crc32cb(sum, byte);
}
#endif

#ifdef HAS_INSTRUCTION
uint32_t shifted(const std::array<Table, 4>& tables, uint32_t sum) {
    return tables[0][sum & 0xFF] ^ tables[1][sum >> 8 & 0xFF] ^ tables[2][sum >> 16 & 0xFF] ^
           tables[3][sum >> 24];
}

constexpr std::array<Table, 4> OVER_LANE = shift_tables(LANE_BYTES);

// Asked when the program is loaded: a static variable of a function would have a lock, which stays
// locked in a child that is forked in that moment.
const bool INSTRUCTION = is_there();

WITH_INSTRUCTION uint32_t by_instruction(const uint8_t* data, size_t size, uint32_t sum) {
    for (; size >= 3 * LANE_BYTES; size -= 3 * LANE_BYTES, data += 3 * LANE_BYTES) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < LANE_BYTES; i += 8) {
            sum = add_word(sum, word_at(data + i));
            second = add_word(second, word_at(data + LANE_BYTES + i));
            third = add_word(third, word_at(data + 2 * LANE_BYTES + i));
        }
        sum = shifted(OVER_LANE, shifted(OVER_LANE, sum) ^ second) ^ third;
    }
    for (; size >= 8; size -= 8, data += 8) sum = add_word(sum, word_at(data));
    for (; size > 0; --size, ++data) sum = add_byte(sum, *data);
    return sum;
}
#endif

uint32_t by_tables(const uint8_t* data, size_t size, uint32_t sum) {
    for (; size >= 8; size -= 8, data += 8) {
        uint32_t next = 0;
        for (size_t k = 0; k < 8; ++k)
            next ^= TABLES[7 - k][(k < 4 ? sum >> (8 * k) & 0xFF : 0) ^ data[k]];
        sum = next;
    }
    for (; size > 0; --size, ++data) sum = sum >> 8 ^ TABLES[0][(sum ^ *data) & 0xFF];
    return sum;
}

}  // namespace

uint32_t crc32c(const uint8_t* data, size_t size, uint32_t before) {
#ifdef HAS_INSTRUCTION
    if (INSTRUCTION) return ~by_instruction(data, size, ~before);
#endif
    return ~by_tables(data, size, ~before);
}

uint32_t crc32c_by_tables(const uint8_t* data, size_t size, uint32_t before) {
    return ~by_tables(data, size, ~before);
}

}  // namespace core

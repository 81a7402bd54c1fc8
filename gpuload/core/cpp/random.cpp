// Random: see random.hpp.
//
// Assumes: arrays of the sizes that are said, and positions inside the permutation; the Python face
// checked both.
#include "random.hpp"

#include <algorithm>

#include "clones.hpp"
#include "shared/numbers.hpp"

namespace core {
namespace {

constexpr uint32_t H1 = 0x9E3779B1, H2 = 0x85EBCA77, H3 = 0xC2B2AE3D;
constexpr int64_t CHUNK =
    512;  // positions that go through all rounds together: both halves stay in the nearest cache

struct Block {
    uint64_t words[4];
};

inline Block block_of(uint64_t record, Key key, uint64_t number) {
    const Words words = mix_words({number, record, key.epoch, 0}, key.seed, key.stream);
    return {{words.c0, words.c1, words.c2, words.c3}};
}

INLINE uint32_t mix(uint32_t half, uint32_t key, uint32_t key_2, uint32_t modulus) {
    uint32_t h = (half ^ key) * H1;
    h = ((h ^ h >> 15) + key_2) * H2;
    h = (h ^ h >> 13) * H3;
    h ^= h >> 16;
    return uint32_t(uint64_t(h) * modulus >> 32);
}

// Rounds outside, positions inside: the inner loops become vector code.
CLONES void rounds(uint32_t* __restrict a, uint32_t* __restrict b, int64_t count,
                   const Network& network) {
    const uint32_t high = network.high, low = network.low;
    for (int64_t round = 0; round < network.num_rounds; round += 2) {
        const uint32_t* key = network.keys + 2 * round;
        const uint32_t k0 = key[0], k1 = key[1], k2 = key[2], k3 = key[3];
        for (int64_t i = 0; i < count; ++i) {
            const uint32_t total = a[i] + mix(b[i], k0, k1, high);
            a[i] = std::min(total,
                            total - high);  // total - high wraps round where total is below high
        }
        for (int64_t i = 0; i < count; ++i) {
            const uint32_t total = b[i] + mix(a[i], k2, k3, low);
            b[i] = std::min(total, total - low);
        }
    }
}

}  // namespace

void philox(const int64_t* records, int64_t num_records, Key key, int64_t num_blocks,
            uint64_t* out) {
    for (int64_t i = 0; i < num_records; ++i)
        for (int64_t number = 1; number <= num_blocks; ++number) {
            const Block block = block_of(uint64_t(records[i]), key, uint64_t(number));
            out = std::copy(block.words, block.words + 4, out);
        }
}

void uniform(const int64_t* records, int64_t num_records, Key key, int64_t count, double* out) {
    const auto number_of = [](uint64_t word) { return double(int64_t(word >> 11)) * 0x1p-53; };
    for (int64_t i = 0; i < num_records; ++i)
        for (int64_t left = count, number = 1; left > 0; left -= 4, ++number) {
            const Block block = block_of(uint64_t(records[i]), key, uint64_t(number));
            out = std::transform(block.words, block.words + std::min<int64_t>(4, left), out,
                                 number_of);
        }
}

void permute(const int64_t* positions, int64_t count, const Network& network, int64_t* out) {
    uint32_t a[CHUNK], b[CHUNK];
    const uint64_t low = network.low;
    for (int64_t begin = 0; begin < count; begin += CHUNK) {
        const int64_t size = std::min(CHUNK, count - begin);
        for (int64_t i = 0; i < size; ++i) {
            const uint64_t position = uint64_t(positions[begin + i]);
            a[i] = uint32_t(position / low);
            b[i] = uint32_t(position % low);
        }
        rounds(a, b, size, network);
        for (int64_t i = 0; i < size; ++i) {
            uint64_t position = a[i] * low + b[i];
            while (position >= uint64_t(network.length)) {  // "cycle walking": it ends, for a
                                                            // permutation has cycles only
                uint32_t one = uint32_t(position / low), other = uint32_t(position % low);
                rounds(&one, &other, 1, network);
                position = one * low + other;
            }
            out[begin + i] = int64_t(position);
        }
    }
}

}  // namespace core

// Random: Philox 4x64-10 and the keyed permutation, equal bit for bit to `rng.philox` and
// `order.Permutation`, which have their description and their sources.
#pragma once

#include <cstdint>

namespace core {

struct Key {
    uint64_t epoch, seed, stream;
};

// Writes the words of each record into its row of `out`, [num_records, 4 * num_blocks].
void philox(const int64_t* records, int64_t num_records, Key key, int64_t num_blocks,
            uint64_t* out);

// Writes `count` numbers in [0, 1) of each record into its row of `out`, [num_records, count].
void uniform(const int64_t* records, int64_t num_records, Key key, int64_t count, double* out);

struct Network {  // a Feistel network over pairs, position = a * low + b
    int64_t length;
    uint32_t high, low;
    const uint32_t* keys;  // [num_rounds, 2], an even number of rounds
    int64_t num_rounds;
};

// Writes the number at each position of the permutation. Each position lies in 0 .. length - 1 <=
// high * low - 1.
void permute(const int64_t* positions, int64_t count, const Network& network, int64_t* out);

}  // namespace core

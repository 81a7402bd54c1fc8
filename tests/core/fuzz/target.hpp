// Target: what all targets of the fuzzer share: `Input`, numbers and bytes of the fuzzer's choice, and `ensure`.
//
// Numbers come from the end of the input and bytes from its front, so that a file to begin with is an input as it stands:
// numbers that are missing are the lowest. What is read is a copy of just its size, and AddressSanitizer sees each byte
// that is read beyond it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace fuzz {

inline void ensure(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "ERROR: this does not hold: %s\n", what);
    std::abort();
}

template <class T>
class Block {  // memory of just its size
  public:
    explicit Block(size_t size) : data_(new T[size]()), size_(size) {}
    Block(const T* from, size_t size) : Block(size) {
        if (size > 0) std::memcpy(data_.get(), from, size * sizeof(T));
    }
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    int64_t size() const { return int64_t(size_); }
    T& operator[](int64_t i) { return data_[size_t(i)]; }
    const T& operator[](int64_t i) const { return data_[size_t(i)]; }

  private:
    std::unique_ptr<T[]> data_;
    size_t size_;
};

class Input {
  public:
    Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

    uint8_t byte() { return size_ > 0 ? data_[--size_] : 0; }
    bool flag() { return byte() & 1; }

    uint64_t word() {
        uint64_t word = 0;
        for (int i = 0; i < 8; ++i) word = word << 8 | byte();
        return word;
    }

    int64_t number(int64_t least, int64_t most) {  // most - least below 65,536
        const auto room = uint64_t(most - least) + 1;
        const uint64_t value = room <= 256 ? byte() : uint64_t(byte()) << 8 | byte();
        return least + int64_t(value % room);
    }

    // A number that is near `usual`, near the edge of a type, or any.
    int64_t hostile(int64_t usual) {
        constexpr int64_t EDGES[] = {0, -1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, INT64_MAX / 2, int64_t(1) << 32};
        const uint8_t kind = byte();
        if (kind < 192) return usual > 0 ? int64_t(kind == 191 ? usual : word() % uint64_t(usual)) : 0;
        if (kind < 224) return EDGES[kind % 8];
        return int64_t(kind < 240 ? uint64_t(usual) + uint64_t(int64_t(int8_t(byte()))) : word());
    }

    Block<uint8_t> rest() {
        Block<uint8_t> rest(data_, size_);
        size_ = 0;
        return rest;
    }

    Block<uint8_t> bytes(int64_t most) {
        const size_t size = size_ < size_t(most) ? size_ : size_t(most);
        Block<uint8_t> bytes(data_, size);
        data_ += size;
        size_ -= size;
        return bytes;
    }

  private:
    const uint8_t* data_;
    size_t size_;
};

// One function a target.
void blurs(Input input);
void checksums(Input input);
void colours(Input input);
void copies(Input input);
void edits(Input input);
void examples(Input input);
void frames(Input input);
void heads(Input input);
void lzw(Input input);
void maps(Input input);
void permutations(Input input);
void pillow_resizes(Input input);
void resizes(Input input);
void roundings(Input input);
void rows(Input input);
void scans(Input input);
void steps(Input input);
void taps(Input input);
void visits(Input input);
void walks(Input input);
void warps(Input input);
void windows(Input input);

}  // namespace fuzz

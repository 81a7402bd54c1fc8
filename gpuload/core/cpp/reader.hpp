// Reader: bytes of a file that may say anything, read from front to back. Each length is compared
// with the bytes that are left before it is used; a call that returns false leaves the reader where
// it was. A part of the bytes is a reader of its own.
//
// Assumes: `size` bytes can be read from `data` on as long as the reader lives; the code that makes
// the first reader checked it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace core {

class Reader {
  public:
    Reader() = default;
    Reader(const uint8_t* data, size_t size) : place_(data), end_(data + size) {}

    const uint8_t* place() const { return place_; }
    size_t left() const { return size_t(end_ - place_); }

    bool skip(uint64_t size) {
        if (size > left()) return false;
        place_ += size;
        return true;
    }

    bool part(uint64_t size, Reader& part) {
        if (size > left()) return false;
        part = Reader(place_, size_t(size));
        place_ += size;
        return true;
    }

    bool byte(uint8_t& value) {
        if (place_ == end_) return false;
        value = *place_++;
        return true;
    }

    bool big_16(unsigned& value) {
        if (left() < 2) return false;
        value = unsigned(place_[0]) << 8 | place_[1];
        place_ += 2;
        return true;
    }

    template <class T>
    bool little(T& value) {  // an unsigned number, its lowest byte first
        if (left() < sizeof(T)) return false;
        value = 0;
        for (size_t i = 0; i < sizeof(T); ++i) value |= T(place_[i]) << (8 * i);
        place_ += sizeof(T);
        return true;
    }

    bool varint(uint64_t& value) {  // of protobuf: 7 bits a byte, the lowest first, at most 64 bits
        if (place_ != end_ && *place_ < 0x80) {
            value = *place_++;
            return true;
        }
        value = 0;
        const uint8_t* place = place_;
        for (int shift = 0; shift < 64 && place != end_; shift += 7) {
            const uint8_t byte = *place++;
            if (shift == 63 && byte > 1) return false;
            value |= uint64_t(byte & 0x7F) << shift;
            if (byte < 0x80) {
                place_ = place;
                return true;
            }
        }
        return false;
    }

  private:
    const uint8_t *place_ = nullptr, *end_ = nullptr;
};

}  // namespace core

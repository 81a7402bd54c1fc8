// Makers: see makers.hpp.
#include "makers.hpp"

#include <cstring>
#include <utility>

namespace core {
namespace {

// Returns numbers where a thread can read them: where they lie, or a copy, if they do not lie at a
// multiple of their size.
template <class In>
const In* aligned(const uint8_t* bytes, int64_t num_bytes) {
    if (reinterpret_cast<uintptr_t>(bytes) % alignof(In) == 0)
        return reinterpret_cast<const In*>(bytes);
    static thread_local std::vector<In> copy;
    copy.resize(size_t(num_bytes) / sizeof(In));
    std::memcpy(copy.data(), bytes, size_t(num_bytes));
    return copy.data();
}

}  // namespace

template <class In, class Out>
WalkMaker<In, Out>::WalkMaker(const Walk<In, Out>& walk, int64_t height, int64_t width,
                              std::vector<int32_t> start, std::vector<int32_t> mirror)
    : Maker(int64_t(start.size()) / 2, height * width * walk.channels * int64_t(sizeof(In)),
            walk.out_size() * int64_t(sizeof(Out))),
      walker_(walk), height_(height), width_(width), start_(std::move(start)),
      mirror_(std::move(mirror)) {}

template <class In, class Out>
bool WalkMaker<In, Out>::make(const uint8_t* bytes, int64_t row, uint8_t* out) const {
    const Walked<In> image{aligned<In>(bytes, in_bytes), height_, width_, start_.data() + 2 * row,
                           mirror_.data() + 2 * row};
    walk(walker_, image, reinterpret_cast<Out*>(out));
    return true;
}

template class WalkMaker<uint8_t, uint8_t>;
template class WalkMaker<uint8_t, float>;
template class WalkMaker<float, float>;

EditMaker::EditMaker(const Size& size, int64_t rows, int64_t num_numbers,
                     std::vector<double> numbers)
    : Maker(rows, size.bytes(), size.bytes()), size_(size), num_numbers_(num_numbers),
      numbers_(std::move(numbers)) {}

bool EditMaker::make(const uint8_t* bytes, int64_t row, uint8_t* out) const {
    static thread_local Editor editor;  // its memory is used again
    editor.edit(bytes, size_, Edits{numbers_.data() + row * num_numbers_, num_numbers_}, out);
    return true;
}

}  // namespace core

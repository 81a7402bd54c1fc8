// Makers: ops on the bytes of a record on the way from its file to its row of a batch.
//
// A maker has the draws for each row of a plan. It is not changed, and used by many threads at
// once.
#pragma once

#include <cstdint>
#include <vector>

#include "edit.hpp"
#include "walk.hpp"

namespace core {

class Maker {
  public:
    Maker(int64_t rows, int64_t in, int64_t out) : num_rows(rows), in_bytes(in), out_bytes(out) {}
    Maker(const Maker&) = delete;
    virtual ~Maker() = default;

    // Writes `out_bytes` for a row, made of `in_bytes` that may lie at any address. Returns false
    // if it cannot.
    //
    // Assumes: there is such a row; `out` is aligned for numbers of the result.
    virtual bool make(const uint8_t* bytes, int64_t row, uint8_t* out) const = 0;

    const int64_t num_rows, in_bytes, out_bytes;
};

template <class In, class Out>
class WalkMaker : public Maker {
  public:
    // `start` and `mirror` have two numbers a row.
    WalkMaker(const Walk<In, Out>& walk, int64_t height, int64_t width, std::vector<int32_t> start,
              std::vector<int32_t> mirror);
    bool make(const uint8_t* bytes, int64_t row, uint8_t* out) const override;

  private:
    Walker<In, Out> walker_;
    int64_t height_, width_;
    std::vector<int32_t> start_, mirror_;
};

class EditMaker : public Maker {
  public:
    // `numbers` are the edits of one row after another, `num_numbers` each, of which `are_edits`
    // said yes.
    EditMaker(const Size& size, int64_t num_rows, int64_t num_numbers, std::vector<double> numbers);
    bool make(const uint8_t* bytes, int64_t row, uint8_t* out) const override;

  private:
    Size size_;
    int64_t num_numbers_;
    std::vector<double> numbers_;
};

}  // namespace core

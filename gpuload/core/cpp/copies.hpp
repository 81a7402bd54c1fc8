// Copies: the records of steps are copied from files to their places, as work for a queue. A maker
// does an op in place of a copy.
#pragma once

#include <vector>

#include "makers.hpp"
#include "maps.hpp"
#include "queue.hpp"

namespace core {

struct Part {  // of a record: bytes from `begin` on, for a block of memory
    int64_t begin, num_bytes;
    size_t block;
    const Maker* maker;  // nullptr: they are copied

    int64_t row_bytes() const { return maker != nullptr ? maker->out_bytes : num_bytes; }
};

// Records of one size, one after the other in files.
struct RecordFiles {
    Maps* maps;
    const int64_t* starts;   // the first record of each file, and the number of all
    const int64_t* files;    // the number of each in `maps`
    const int64_t* offsets;  // where the records of each begin
    int64_t num_files, record_bytes;
};

// Some of these records, one for each row of a plan.
struct Rows {
    RecordFiles from;
    std::vector<int64_t> numbers;  // of the records
    std::vector<int64_t> rows;     // of each record, ascending; empty: record i is row i
    std::vector<Part> parts;
};

// Where the records of some steps lie. It is not changed, and outlives the copies that use it.
struct Plan {
    std::vector<int64_t> ends;  // the row behind the last of each step
    std::vector<Rows> rows;

    int64_t begin(int64_t step) const { return step > 0 ? ends[size_t(step) - 1] : 0; }
};

struct Block {
    uint8_t* out;
    int64_t num_bytes;
};

// The copies of some steps of a plan; the first of their rows begins where a block does.
class Copies : public Work {
  public:
    // Steps are cut into pieces of at most `piece_rows` rows.
    Copies(const Plan& plan, int64_t first_step, int64_t num_steps, int64_t piece_rows,
           std::vector<Block> blocks);

  private:
    bool run(int64_t piece) override;
    bool copy(const Rows& all, int64_t first, int64_t after) const;
    bool place(const Rows& all, const uint8_t* record, int64_t row) const;

    const Plan& plan_;
    int64_t first_row_;
    std::vector<int64_t> row_ends_;  // of each piece
    std::vector<Block> blocks_;
};

}  // namespace core

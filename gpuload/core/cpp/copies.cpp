// Copies: see copies.hpp.
//
// Assumes: the ends of steps ascend from 0 on; starts of files ascend from 0 to the number of
// records, and stay as they are; numbers are those of records; `rows` ascend and lie below the last
// end; each block holds the rows of its steps. `Maps::copy` checks files, offsets and places once
// more.
#include "copies.hpp"

#include <algorithm>
#include <cstring>

namespace core {
namespace {

int64_t num_pieces(int64_t num_rows, int64_t piece_rows) {
    return std::max<int64_t>(1, (num_rows + piece_rows - 1) / piece_rows);
}

std::vector<int64_t> pieces_of(const Plan& plan, int64_t first_step, int64_t num_steps,
                               int64_t piece_rows) {
    std::vector<int64_t> counts;
    for (int64_t step = first_step; step < first_step + num_steps; ++step)
        counts.push_back(num_pieces(plan.ends[size_t(step)] - plan.begin(step), piece_rows));
    return counts;
}

}  // namespace

Copies::Copies(const Plan& plan, int64_t first_step, int64_t num_steps, int64_t piece_rows,
               std::vector<Block> blocks)
    : Work(pieces_of(plan, first_step, num_steps, piece_rows)), plan_(plan),
      first_row_(plan.begin(first_step)), blocks_(std::move(blocks)) {
    for (int64_t step = first_step; step < first_step + num_steps; ++step) {
        const int64_t begin = plan.begin(step), end = plan.ends[size_t(step)],
                      count = num_pieces(end - begin, piece_rows);
        for (int64_t piece = 1; piece <= count; ++piece)
            row_ends_.push_back(std::min(begin + piece * piece_rows, end));
    }
}

bool Copies::run(int64_t piece) {
    const int64_t first = piece > 0 ? row_ends_[size_t(piece) - 1] : first_row_,
                  after = row_ends_[size_t(piece)];
    for (const Rows& rows : plan_.rows)
        if (!copy(rows, first, after)) return false;
    return true;
}

// Copies the records of the rows from `first` to `after`, exclusive.
bool Copies::copy(const Rows& all, int64_t first, int64_t after) const {
    const auto place_of = [&](int64_t row) {
        return all.rows.empty()
                   ? std::min(row, int64_t(all.numbers.size()))
                   : std::lower_bound(all.rows.begin(), all.rows.end(), row) - all.rows.begin();
    };
    const RecordFiles& from = all.from;
    const int64_t begin = place_of(first), count = place_of(after) - begin;
    if (count == 0) return true;
    const auto row_of = [&](int64_t i) {
        return all.rows.empty() ? begin + i : all.rows[size_t(begin + i)];
    };
    thread_local std::vector<int64_t> memory;
    memory.resize(size_t(4 * count));
    int64_t *const files = memory.data(), *const offsets = files + count,
                   *const lengths = offsets + count, *const begins = lengths + count;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t number = all.numbers[size_t(begin + i)];
        const int64_t* next = from.starts + 1;
        if (from.num_files > 1)
            next = std::upper_bound(from.starts, from.starts + from.num_files, number);
        const int64_t file = next - from.starts - 1;
        files[i] = from.files[file];
        offsets[i] = from.offsets[file] + (number - from.starts[file]) * from.record_bytes;
        lengths[i] = from.record_bytes;
        begins[i] = (row_of(i) - first_row_) * from.record_bytes;
    }
    const Extents extents{files, offsets, lengths, count};
    const Part& part = all.parts.front();
    if (all.parts.size() == 1 && part.maker == nullptr && part.num_bytes == from.record_bytes) {
        const Block& to = blocks_[part.block];
        return from.maps->copy(extents, begins, to.out, to.num_bytes).second == Maps::COPIED;
    }
    bool is_placed = true;
    const auto use = [&](int64_t i, const uint8_t* record) {
        is_placed = place(all, record, row_of(i)) && is_placed;
    };
    return from.maps->read(extents, use).second == Maps::COPIED && is_placed;
}

// Puts the parts of a record into a row of their blocks.
bool Copies::place(const Rows& all, const uint8_t* record, int64_t row) const {
    for (const Part& part : all.parts) {
        uint8_t* const out = blocks_[part.block].out + (row - first_row_) * part.row_bytes();
        if (part.maker == nullptr)
            std::memcpy(out, record + part.begin, size_t(part.num_bytes));
        else if (!part.maker->make(record + part.begin, row, out))
            return false;
    }
    return true;
}

}  // namespace core

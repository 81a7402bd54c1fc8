// The Python face of the core, which `face.py` describes. Here, and only here, sizes of arrays, places and numbers are
// checked; behind it they are assumed. The interpreter's lock is free while work is done, but for calls of some
// microseconds, where it would take longer to get it back.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "arrays.hpp"
#include "blur.hpp"
#include "clahe.hpp"
#include "codec.hpp"
#include "colour.hpp"
#include "copies.hpp"
#include "crc32.hpp"
#include "crc32c.hpp"
#include "edit.hpp"
#include "guard.hpp"
#include "imagerows.hpp"
#include "jpeg.hpp"
#include "lzw.hpp"
#include "makers.hpp"
#include "maps.hpp"
#include "pages.hpp"
#include "pilresize.hpp"
#include "policies.hpp"
#include "queue.hpp"
#include "random.hpp"
#include "resize.hpp"
#include "scans.hpp"
#include "tfrecord.hpp"
#include "usage.hpp"
#include "walk.hpp"
#include "warp.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using core::Array;
using Bytes = Array<const uint8_t, 1>;
using Int64s = Array<const int64_t, 1>;
using Spans = Array<const int64_t, 2>;
using Release = nb::gil_scoped_release;

namespace {

constexpr int64_t SHORT = 4096;  // numbers that are computed in some microseconds

void require(bool fits, const char* message) {
    if (!fits) throw std::invalid_argument(message);
}

core::Bytes bytes_of(const Bytes& array) { return {array.data(), array.size()}; }

template <class Work>
void unlocked_if_long(int64_t num_numbers, const Work& work) {
    if (num_numbers <= SHORT) return work();
    Release lock;
    work();
}

// --- random

void philox(const Int64s& records, uint64_t epoch, uint64_t seed, uint64_t stream, const Array<uint64_t, 2>& out) {
    require(out.shape(0) == records.size() && out.shape(1) % 4 == 0, "philox: out has a row of whole blocks a record");
    unlocked_if_long(out.size(), [&] {
        core::philox(records.data(), records.size(), {epoch, seed, stream}, out.shape(1) / 4, out.data());
    });
}

void uniform(const Int64s& records, uint64_t epoch, uint64_t seed, uint64_t stream, const Array<double, 2>& out) {
    require(out.shape(0) == records.size(), "uniform: out has a row a record");
    unlocked_if_long(out.size(), [&] {
        core::uniform(records.data(), records.size(), {epoch, seed, stream}, out.shape(1), out.data());
    });
}

void permute(const Int64s& positions, int64_t length, uint32_t high, uint32_t low, const Array<const uint32_t, 2>& keys,
             const Array<int64_t, 1>& out) {
    require(out.size() == positions.size() && keys.shape(1) == 2 && keys.shape(0) % 2 == 0, "permute: sizes of arrays");
    require(length >= 0 && low > 0 && high > 0 && uint64_t(high) * low >= uint64_t(length), "permute: high * low >= length");
    for (int64_t i = 0; i < positions.size(); ++i)
        if (uint64_t(positions.data()[i]) >= uint64_t(length)) throw std::out_of_range("permute: a position is outside");
    const core::Network network{length, high, low, keys.data(), keys.shape(0)};
    unlocked_if_long(positions.size(), [&] { core::permute(positions.data(), positions.size(), network, out.data()); });
}

// --- memory and files

int64_t gather_rows(const Array<const uint8_t, 2>& rows, const Int64s& numbers, const Array<uint8_t, 1>& out,
                    const Int64s& begins) {
    require(numbers.size() == begins.size(), "gather_rows: a begin a number");
    Release lock;
    return core::gather_rows(rows.data(), rows.shape(0), rows.shape(1), numbers.data(), begins.data(), numbers.size(),
                             out.data(), out.size());
}

core::Extents extents_of(const Int64s& files, const Int64s& offsets, const Int64s& lengths) {
    require(files.size() == offsets.size() && files.size() == lengths.size(), "extents: arrays of one length");
    return {files.data(), offsets.data(), lengths.data(), files.size()};
}

// Maps for Python. They hold the paths and stamps, to which nobody writes.
class PyMaps {
  public:
    PyMaps(nb::handle folders, nb::handle folder_bounds, nb::handle folder_of, nb::handle names, nb::handle name_bounds,
           nb::handle stamps, int64_t piece_bytes, int64_t most_maps) {
        const bool fits = folders_.take(folders.ptr()) && folder_bounds_.take(folder_bounds.ptr()) &&
                          folder_of_.take(folder_of.ptr()) && names_.take(names.ptr()) && name_bounds_.take(name_bounds.ptr()) &&
                          stamps_.take(stamps.ptr());
        require(fits, "Maps: arrays of another kind");
        const int64_t num_folders = folder_bounds_.size() - 1, num_files = folder_of_.size();
        require(stamps_.shape(0) == num_files && stamps_.shape(1) == 3, "Maps: size, time and inode of each file");
        require(name_bounds_.size() == num_files + 1 && num_folders >= 0, "Maps: a path a file");
        require(are_bounds(folder_bounds_, folders_.size()) && are_bounds(name_bounds_, names_.size()), "Maps: bounds of texts");
        for (int64_t i = 0; i < num_files; ++i) require(folder_of_.data()[i] < num_folders, "Maps: a folder a file");
        require(piece_bytes >= 0 && most_maps >= 0 && most_maps < std::numeric_limits<int32_t>::max(), "Maps: sizes");
        const core::Paths paths{folders_.data(), folder_bounds_.data(), folder_of_.data(), names_.data(), name_bounds_.data()};
        maps_.emplace(paths, stamps_.data(), num_files, piece_bytes, most_maps);
    }
    PyMaps(const PyMaps&) = delete;

    core::Maps& get() { return *maps_; }

  private:
    static bool are_bounds(const Int64s& bounds, int64_t num_bytes) {
        const int64_t *const first = bounds.data(), *const last = first + bounds.size() - 1;
        return *first == 0 && *last == num_bytes && std::is_sorted(first, last + 1);
    }

    Array<const uint8_t, 1> folders_, names_;
    Array<const uint32_t, 1> folder_of_;
    Int64s folder_bounds_, name_bounds_;
    Spans stamps_;
    std::optional<core::Maps> maps_;
};

std::pair<int64_t, int> copy(PyMaps& maps, const Int64s& files, const Int64s& offsets, const Int64s& lengths,
                             const Array<uint8_t, 1>& out, const Int64s& begins) {
    const core::Extents extents = extents_of(files, offsets, lengths);
    require(begins.size() == files.size(), "copy: a begin an extent");
    Release lock;
    return maps.get().copy(extents, begins.data(), out.data(), out.size());
}

void map_files(PyMaps& maps, const Int64s& files, const Int64s& offsets, const Int64s& lengths) {
    const core::Extents extents = extents_of(files, offsets, lengths);
    Release lock;
    maps.get().map(extents);
}

void advise(PyMaps& maps, const Int64s& files, const Int64s& offsets, const Int64s& lengths, int64_t piece_bytes) {
    const core::Extents extents = extents_of(files, offsets, lengths);
    require(piece_bytes > 0, "advise: pieces have bytes");
    Release lock;
    maps.get().advise(extents, piece_bytes);
}

void states(PyMaps& maps, const Int64s& files, const Array<int8_t, 1>& out) {
    require(files.size() == out.size(), "states: an item a file");
    for (int64_t i = 0; i < files.size(); ++i) {
        if (files.data()[i] < 0 || files.data()[i] >= maps.get().num_files()) throw std::out_of_range("states: no such file");
        out.data()[i] = maps.get().state(files.data()[i]);
    }
}

// --- work of threads

constexpr auto WAIT = std::chrono::milliseconds(20);  // then Python may run signal handlers

// Queue for Python. In a child of a fork its memory is not freed: the threads that wait in it are in the parent.
class PyQueue {
  public:
    PyQueue() : queue_(new core::Queue) {}
    PyQueue(const PyQueue&) = delete;
    ~PyQueue() {
        if (!queue_->is_forked()) delete queue_;
    }

    int64_t serve() {
        Release lock;
        return queue_->serve();
    }
    void call(int64_t until, int64_t num_threads) { queue_->call(until, num_threads); }
    void leave() { queue_->leave(); }
    void end(nb::handle) { queue_->end(); }
    double take_idle_s() { return double(queue_->take_idle_ns()) / 1e9; }
    core::Queue& get() { return *queue_; }

  private:
    core::Queue* queue_;
};

// Plan for Python. It holds the maps and the arrays about files.
class PyPlan {
  public:
    explicit PyPlan(const Int64s& ends) : plan_{{ends.data(), ends.data() + ends.size()}, {}} {
        const std::vector<int64_t>& copy = plan_.ends;  // others may write to the array meanwhile
        const bool ascend = copy.empty() || (copy.front() >= 0 && std::is_sorted(copy.begin(), copy.end()));
        require(ascend, "Plan: ends of steps ascend from 0");
    }
    PyPlan(const PyPlan&) = delete;

    // Adds records: see `Plan.add` of `face.py`. Numbers and rows are copied, and the copies checked: others may write to these
    // arrays while threads copy records. The arrays about files are those of a leaf, to which nothing writes.
    void add(nb::object maps, nb::handle starts, nb::handle files, nb::handle offsets, int64_t record_bytes,
             const Int64s& numbers, nb::handle rows, const nb::sequence& parts) {
        require(!is_used_, "Plan: it is used already");
        FileArrays& arrays = arrays_.emplace_back();
        arrays.maps = std::move(maps);
        const bool fits =
            arrays.starts.take(starts.ptr()) && arrays.files.take(files.ptr()) && arrays.offsets.take(offsets.ptr());
        require(fits, "Plan: arrays of another kind");
        require(record_bytes >= 0, "Plan: sizes");
        const int64_t num_records = count_records(arrays, record_bytes);
        core::Rows entry{&nb::cast<PyMaps&>(arrays.maps).get(), arrays.starts.data(), arrays.files.data(), arrays.offsets.data(),
                         arrays.files.size(), record_bytes, copy_of(numbers), {}, parts_of(parts, record_bytes)};
        for (int64_t number : entry.numbers)
            if (uint64_t(number) >= uint64_t(num_records)) throw std::out_of_range("Plan: no such record");
        if (rows.is_none()) {
            require(numbers.size() <= begin(num_steps()), "Plan: a row a record");
        } else {
            Int64s array;
            require(array.take(rows.ptr()) && array.size() == numbers.size(), "Plan: a row a record");
            entry.rows = copy_of(array);
            const bool lie_inside = entry.rows.empty() || (entry.rows.front() >= 0 && entry.rows.back() < begin(num_steps()));
            require(lie_inside && std::is_sorted(entry.rows.begin(), entry.rows.end()), "Plan: rows ascend");
        }
        plan_.rows.push_back(std::move(entry));
    }

    const core::Plan& use() {
        is_used_ = true;
        return plan_;
    }
    int64_t num_steps() const { return int64_t(plan_.ends.size()); }
    int64_t begin(int64_t step) const { return plan_.begin(step); }

  private:
    struct FileArrays {
        nb::object maps;
        Int64s starts, files, offsets;
    };

    // Returns the number of all records, after it has checked that no place of one is beyond the largest number.
    static int64_t count_records(const FileArrays& arrays, int64_t record_bytes) {
        const int64_t num_files = arrays.files.size(), *starts = arrays.starts.data();
        require(num_files > 0 && arrays.starts.size() == num_files + 1 && arrays.offsets.size() == num_files, "Plan: files");
        require(starts[0] == 0 && std::is_sorted(starts, starts + num_files + 1), "Plan: starts ascend from 0");
        const int64_t most = std::numeric_limits<int64_t>::max(), num_records = starts[num_files];
        require(record_bytes <= most / std::max<int64_t>(num_records, 1), "Plan: sizes");
        for (int64_t i = 0; i < num_files; ++i) {
            const int64_t offset = arrays.offsets.data()[i];
            require(offset >= 0 && offset <= most - num_records * record_bytes, "Plan: offsets");
        }
        return num_records;
    }

    static std::vector<int64_t> copy_of(const Int64s& array) { return {array.data(), array.data() + array.size()}; }

    // Returns parts of records, after a check that they lie in one, and that makers know all rows.
    std::vector<core::Part> parts_of(const nb::sequence& parts, int64_t record_bytes) {
        std::vector<core::Part> result;
        for (nb::handle part : parts) {
            std::tuple<int64_t, int64_t, int64_t, nb::object> numbers;
            require(nb::try_cast(part, numbers), "Plan: a part is three numbers and a maker");
            const auto& [begin, num_bytes, block, maker] = numbers;
            require(begin >= 0 && num_bytes >= 0 && num_bytes <= record_bytes && begin <= record_bytes - num_bytes && block >= 0,
                    "Plan: a part lies in a record");
            result.push_back({begin, num_bytes, size_t(block), nullptr});
            if (maker.is_none()) continue;
            const core::Maker* used = nullptr;
            require(nb::try_cast(maker, used) && used->in_bytes == num_bytes && used->num_rows >= this->begin(num_steps()), "Plan: a maker for these rows");
            result.back().maker = used;
            makers_.push_back(maker);
        }
        require(!result.empty(), "Plan: a record has parts");
        return result;
    }

    core::Plan plan_;
    std::list<FileArrays> arrays_;
    std::vector<nb::object> makers_;
    bool is_used_ = false;
};

// Copies for Python. They hold queue, plan and memory until no thread uses them any more.
class PyCopies {
  public:
    PyCopies(nb::object queue, nb::object plan, int64_t first_step, int64_t num_steps, int64_t piece_rows,
             nb::sequence blocks)
        : queue_object_(std::move(queue)), plan_object_(std::move(plan)),
          queue_(nb::cast<PyQueue&>(queue_object_).get()) {
        PyPlan& steps = nb::cast<PyPlan&>(plan_object_);
        const core::Plan& used = steps.use();
        require(first_step >= 0 && num_steps > 0 && num_steps <= steps.num_steps() - first_step, "Copies: no such steps");
        require(piece_rows > 0, "Copies: pieces have rows");
        std::vector<core::Block> places;
        for (nb::handle block : blocks) {
            require(memory_.emplace_back().take(block.ptr()), "Copies: blocks are uint8 on one axis");
            places.push_back({memory_.back().data(), memory_.back().size()});
        }
        const int64_t num_rows = steps.begin(first_step + num_steps) - steps.begin(first_step);
        for (const core::Rows& rows : used.rows)
            for (const core::Part& part : rows.parts)
                require(part.block < places.size() && (num_rows == 0 || part.row_bytes() <= places[part.block].num_bytes / num_rows),
                        "Copies: a block is too small");
        const int64_t rows_at_once = std::min(piece_rows, std::max<int64_t>(num_rows, 1));
        copies_ = std::make_unique<core::Copies>(used, first_step, num_steps, rows_at_once, std::move(places));
        queue_.submit(*copies_);
    }
    PyCopies(const PyCopies&) = delete;
    ~PyCopies() {
        if (copies_) queue_.withdraw(*copies_);
    }

    int state(int64_t step) const { return copies_->state(checked(step)); }
    int wait(int64_t step) {
        const int now = state(step);
        if (now != core::Work::NOT_DONE) return now;
        Release lock;
        return queue_.wait(*copies_, step, WAIT);
    }
    int64_t num_done() const { return copies_->num_done(); }
    // Returns seconds: of all pieces, of those that were sampled, and of these waiting, without a core, and either.
    nb::tuple times() const {
        const core::Times& times = copies_->times();
        return nb::make_tuple(seconds(times.all), seconds(times.sampled), seconds(times.blocked), seconds(times.starved),
                              seconds(times.off_core));
    }
    nb::list spans() const {
        nb::list spans;
        for (const auto& [step, span] : copies_->spans())
            spans.append(nb::make_tuple(step, double(span.begin_ns) / 1e9, double(span.end_ns) / 1e9, span.thread));
        return spans;
    }
    double wait_s() const { return double(copies_->wait_ns()) / 1e9; }

  private:
    static double seconds(const std::atomic<int64_t>& ns) { return double(ns.load(std::memory_order_relaxed)) / 1e9; }
    int64_t checked(int64_t step) const {
        if (step < 0 || step >= copies_->num_steps()) throw std::out_of_range("Copies: no such step");
        return step;
    }

    nb::object queue_object_, plan_object_;
    core::Queue& queue_;
    std::list<Array<uint8_t, 1>> memory_;
    std::unique_ptr<core::Copies> copies_;
};

bool offer_pages(const Array<uint8_t, 1>& memory) {
    Release lock;
    return core::offer_pages(memory.data(), size_t(memory.size()));
}

// --- checksums and TFRecord

uint32_t crc32c(const Bytes& data, uint32_t before) {
    if (data.size() <= SHORT) return core::crc32c(data.data(), size_t(data.size()), before);
    Release lock;
    return core::crc32c(data.data(), size_t(data.size()), before);
}

uint32_t crc32c_by_tables(const Bytes& data, uint32_t before) {
    return core::crc32c_by_tables(data.data(), size_t(data.size()), before);
}

std::optional<uint32_t> crc32(const Bytes& data, uint32_t before) {
    if (data.size() <= SHORT) return core::crc32(data.data(), size_t(data.size()), before);
    Release lock;
    return core::crc32(data.data(), size_t(data.size()), before);
}

std::optional<uint32_t> crc32_by_128_bits(const Bytes& data, uint32_t before) {
    return core::crc32_by_128_bits(data.data(), size_t(data.size()), before);
}

// Checks that each row lies in `raw`, with `before` bytes in front of it and `behind` bytes after it.
void check_rows(const Bytes& raw, const Int64s& begins, const Int64s& ends, int64_t before, int64_t behind) {
    require(begins.size() == ends.size(), "a begin and an end a row");
    for (int64_t i = 0; i < begins.size(); ++i) {
        const int64_t begin = begins.data()[i], end = ends.data()[i];
        if (begin < before || begin > end || end > raw.size() - behind) throw std::out_of_range("a row lies outside");
    }
}

core::Spans checked(const Bytes& raw, const int64_t* places, int64_t num_rows) {
    for (int64_t i = 0; i < num_rows; ++i) {
        const int64_t begin = places[2 * i], end = places[2 * i + 1];
        if (begin != core::MISSING && (begin < 0 || begin > end || end > raw.size()))
            throw std::out_of_range("a span lies outside");
    }
    return {places, num_rows};
}

core::Spans checked(const Bytes& raw, const Spans& spans) {
    require(spans.shape(1) == 2, "a begin and an end a span");
    return checked(raw, spans.data(), spans.shape(0));
}

core::List list_of(int64_t kind) {
    require(kind >= core::BYTES_LIST && kind <= core::INT64_LIST, "no such kind of list");
    return core::List(kind);
}

std::pair<int64_t, int64_t> frames(const Bytes& piece, int64_t left, bool verify, const Array<int64_t, 1>& lengths) {
    Release lock;
    return core::frames(bytes_of(piece), left, verify, lengths.data(), lengths.size());
}

std::pair<int64_t, int64_t> verify(const Bytes& raw, const Int64s& begins, const Int64s& ends) {
    check_rows(raw, begins, ends, 12, 4);
    Release lock;
    return core::verify(bytes_of(raw), begins.data(), ends.data(), begins.size());
}

// One call finds and counts, so that the lock is released once.
int64_t read_features(const Bytes& raw, const Int64s& begins, const Int64s& ends, const Bytes& keys,
                      const Int64s& key_begins, const Int64s& sections, const Int64s& which, const Int64s& kinds,
                      const Array<int64_t, 3>& spans, const Array<int64_t, 2>& counts) {
    const int64_t num_rows = begins.size(), num_keys = sections.size();
    check_rows(raw, begins, ends, 0, 0);
    require(key_begins.size() == num_keys + 1 && which.size() == kinds.size(), "read_features: sizes of arrays");
    require(spans.shape(0) == num_keys && spans.shape(1) == num_rows && spans.shape(2) == 2, "read_features: spans");
    require(counts.shape(0) == kinds.size() && counts.shape(1) == num_rows, "read_features: counts");
    for (int64_t key = 0; key < num_keys; ++key) {
        const int64_t begin = key_begins.data()[key], end = key_begins.data()[key + 1];
        require(begin >= 0 && begin <= end && end <= keys.size(), "read_features: keys");
        require(sections.data()[key] == 1 || sections.data()[key] == 2, "read_features: sections");
    }
    for (int64_t i = 0; i < which.size(); ++i) {
        require(which.data()[i] >= 0 && which.data()[i] < num_keys, "read_features: which");
        if (kinds.data()[i] != core::NO_LIST) list_of(kinds.data()[i]);
    }
    Release lock;
    const core::Keys all{keys.data(), key_begins.data(), sections.data(), num_keys};
    int64_t bad = core::find_entries(bytes_of(raw), begins.data(), ends.data(), num_rows, all, spans.data());
    for (int64_t i = 0; i < kinds.size() && bad == core::DONE; ++i) {
        if (kinds.data()[i] == core::NO_LIST) continue;
        const core::Spans entries{spans.data() + 2 * num_rows * which.data()[i], num_rows};
        bad = core::count_values(bytes_of(raw), entries, true, core::List(kinds.data()[i]), counts.data() + num_rows * i);
    }
    return bad;
}

int64_t count_values(const Bytes& raw, const Spans& spans, int64_t kind, const Array<int64_t, 1>& counts) {
    const core::Spans features = checked(raw, spans);
    require(counts.size() == features.num_rows, "count_values: a count a span");
    const core::List list = list_of(kind);
    Release lock;
    return core::count_values(bytes_of(raw), features, false, list, counts.data());
}

int64_t count_steps(const Bytes& raw, const Spans& spans, const Array<int64_t, 1>& counts) {
    const core::Spans entries = checked(raw, spans);
    require(counts.size() == entries.num_rows, "count_steps: a count a span");
    Release lock;
    return core::count_steps(bytes_of(raw), entries, counts.data());
}

void fill_steps(const Bytes& raw, const Spans& spans, const Array<int64_t, 2>& steps) {
    const core::Spans entries = checked(raw, spans);
    require(steps.shape(1) == 2, "fill_steps: a begin and an end a step");
    Release lock;
    core::fill_steps(bytes_of(raw), entries, steps.data(), steps.shape(0));
}

void fill_any(const Bytes& raw, const Spans& spans, bool are_entries, const Int64s& counts, core::List kind, void* values,
              int64_t* ends, int64_t room) {
    const core::Spans features = checked(raw, spans);
    require(counts.size() == features.num_rows, "fill: a count a span");
    Release lock;
    core::fill_values(bytes_of(raw), features, are_entries, kind, counts.data(), values, ends, room);
}

void fill_ints(const Bytes& raw, const Spans& spans, bool are_entries, const Int64s& counts, const Array<int64_t, 1>& values) {
    fill_any(raw, spans, are_entries, counts, core::INT64_LIST, values.data(), nullptr, values.size());
}

void fill_floats(const Bytes& raw, const Spans& spans, bool are_entries, const Int64s& counts, const Array<float, 1>& values) {
    fill_any(raw, spans, are_entries, counts, core::FLOAT_LIST, values.data(), nullptr, values.size());
}

void fill_bytes(const Bytes& raw, const Spans& spans, bool are_entries, const Int64s& counts,
                const Array<int64_t, 1>& begins, const Array<int64_t, 1>& ends) {
    require(begins.size() == ends.size(), "fill_bytes: an end a begin");
    fill_any(raw, spans, are_entries, counts, core::BYTES_LIST, begins.data(), ends.data(), begins.size());
}

void gather_pieces(const Bytes& raw, const Int64s& begins, const Int64s& lengths, const Array<uint8_t, 1>& out,
                   const Int64s& places) {
    require(begins.size() == lengths.size() && begins.size() == places.size(), "gather_pieces: arrays of one length");
    Release lock;
    for (int64_t i = 0; i < begins.size(); ++i) {
        const int64_t begin = begins.data()[i], length = lengths.data()[i], place = places.data()[i];
        const bool inside = begin >= 0 && length >= 0 && place >= 0 && length <= raw.size() - begin && length <= out.size() - place;
        if (!inside) throw std::out_of_range("gather_pieces: a piece lies outside");
        std::copy_n(raw.data() + begin, length, out.data() + place);
    }
}

// --- images

int64_t lzw_bytes(const Bytes& coded, int64_t enough) {
    Release lock;
    return core::lzw_bytes(core::Reader(coded.data(), size_t(coded.size())), enough);
}

std::pair<int64_t, int64_t> read_scans(const Bytes& file, int64_t frame, int64_t place,
                                       const std::vector<std::pair<int64_t, int64_t>>& segments, int64_t max_scans) {
    std::vector<core::Segment> settings;
    for (const auto& [marker, at] : segments) settings.push_back({marker, at});
    Release lock;
    const core::Scans scans = core::read_scans(file.data(), file.size(), frame, place, settings, max_scans);
    return {scans.number, scans.end};
}

// A row of zeros is a file that is refused, or longer than numbers of `heads` are.
void read_jpeg_heads(const Bytes& raw, const Int64s& begins, const Int64s& ends, const Array<int32_t, 2>& heads) {
    check_rows(raw, begins, ends, 0, 0);
    require(heads.shape(0) == begins.size() && heads.shape(1) == 6, "read_jpeg_heads: six numbers a file");
    Release lock;
    for (int64_t i = 0; i < begins.size(); ++i) {
        const int64_t begin = begins.data()[i], size = ends.data()[i] - begin;
        core::JpegHead head{};
        if (size > INT32_MAX || !core::read_jpeg_head(raw.data() + begin, size, head)) head = {};
        const int64_t numbers[] = {head.height, head.width, head.scans, head.channels, head.orientation, head.scan_end};
        std::copy_n(numbers, 6, heads.data() + 6 * i);
    }
}

bool is_side(int64_t length) { return length > 0 && length <= INT32_MAX; }

// Returns whether the bytes of an image of floats can be counted.
bool is_image(int64_t height, int64_t width, int64_t channels) {
    constexpr int64_t MOST = std::numeric_limits<int64_t>::max() / int64_t(sizeof(float));
    return is_side(height) && is_side(width) && is_side(channels) && channels <= MOST / (height * width);
}

template <class In, class Out>
void walk(const Array<const In, 1>& images, int64_t stride, int64_t height, int64_t width, int64_t channels, bool in_planes,
          bool out_planes, const Array<const int32_t, 2>& start, const Array<const int32_t, 2>& mirror, float fill,
          const Array<const float, 1>& mean, const Array<const float, 1>& scale, const Array<Out, 1>& out,
          int64_t window_height, int64_t window_width) {
    const int64_t count = start.shape(0);
    require(start.shape(1) == 2 && mirror.shape(0) == count && mirror.shape(1) == 2, "walk: a window an image");
    require(mean.size() == channels && scale.size() == channels, "walk: a mean and a scale a channel");
    if (count == 0) return;
    require(is_side(height) && is_side(width) && is_side(channels) && is_side(window_height) && is_side(window_width),
            "walk: sizes");
    // Each product is compared with the size of the images before the next multiplication: no overflow.
    require(height <= images.size() && width <= images.size() / height && channels <= images.size() / (height * width),
            "walk: images are smaller than that");
    const int64_t size = height * width * channels;
    require(stride >= 0 && (count == 1 || stride <= (images.size() - size) / (count - 1)), "walk: too few images");
    require(out.size() % count == 0 && out.size() / count % window_height == 0 &&
                out.size() / count / window_height % window_width == 0 &&
                out.size() / count / window_height / window_width == channels,
            "walk: the result has another size");
    require(!std::is_same_v<In, uint8_t> || (fill >= 0 && fill <= 255), "walk: fill is no uint8");
    const core::Walk<In, Out> walk{channels, in_planes, out_planes, In(fill), mean.data(), scale.data(), window_height, window_width};
    Release lock;
    const core::Walker<In, Out> walker(walk);
    for (int64_t i = 0; i < count; ++i)
        core::walk(walker, core::Walked<In>{images.data() + i * stride, height, width, start.data() + 2 * i, mirror.data() + 2 * i},
                   out.data() + i * walk.out_size());
}

template <class In, class Out>
std::unique_ptr<core::Maker> walk_maker_of(int64_t height, int64_t width, int64_t channels, bool in_planes, bool out_planes,
                                           const Array<const int32_t, 2>& start, const Array<const int32_t, 2>& mirror,
                                           float fill, const Array<const float, 1>& mean, const Array<const float, 1>& scale,
                                           int64_t window_height, int64_t window_width) {
    require(!std::is_same_v<In, uint8_t> || (fill >= 0 && fill <= 255), "walk: fill is no uint8");
    const core::Walk<In, Out> walk{channels, in_planes, out_planes, In(fill), mean.data(), scale.data(), window_height, window_width};
    return std::make_unique<core::WalkMaker<In, Out>>(walk, height, width,
                                                      std::vector<int32_t>(start.data(), start.data() + start.size()),
                                                      std::vector<int32_t>(mirror.data(), mirror.data() + mirror.size()));
}

std::unique_ptr<core::Maker> walk_maker(bool reads_floats, bool writes_floats, int64_t height, int64_t width, int64_t channels,
                                        bool in_planes, bool out_planes, const Array<const int32_t, 2>& start,
                                        const Array<const int32_t, 2>& mirror, float fill, const Array<const float, 1>& mean,
                                        const Array<const float, 1>& scale, int64_t window_height, int64_t window_width) {
    require(start.shape(1) == 2 && mirror.shape(0) == start.shape(0) && mirror.shape(1) == 2, "walk: a window an image");
    require(mean.size() == channels && scale.size() == channels, "walk: a mean and a scale a channel");
    require(is_image(height, width, channels) && is_image(window_height, window_width, channels), "walk: sizes");
    require(writes_floats || !reads_floats, "walk: floats to bytes");
    const auto make = reads_floats    ? walk_maker_of<float, float>
                      : writes_floats ? walk_maker_of<uint8_t, float>
                                      : walk_maker_of<uint8_t, uint8_t>;
    return make(height, width, channels, in_planes, out_planes, start, mirror, fill, mean, scale, window_height, window_width);
}

core::Pass pass_of(const Array<const int32_t, 1>& first, const Array<const float, 2>& weights, int64_t length) {
    require(weights.shape(0) == first.size() && weights.shape(1) > 0 && first.size() > 0, "resize: a pass");
    for (int64_t i = 0; i < first.size(); ++i)  // so that the continued row is not longer than the resize needs
        require(first.data()[i] > -weights.shape(1) && first.data()[i] < length, "resize: a pass reads outside");
    return {first.data(), weights.data(), weights.shape(1), first.size()};
}

template <class T>
void resize(const Array<const T, 1>& image, int64_t offset, int64_t stride, int64_t height, int64_t width, int64_t channels,
            const Array<const int32_t, 1>& rows, const Array<const float, 2>& row_weights,
            const Array<const int32_t, 1>& columns, const Array<const float, 2>& column_weights, bool vertical_first,
            const Array<T, 1>& out, int64_t new_width) {
    require(is_side(height) && is_side(width) && is_side(channels) && is_side(new_width), "resize: sizes");
    require(offset >= 0 && offset <= image.size() && stride >= 0 && width <= (image.size() - offset) / channels &&
                (height == 1 || stride <= (image.size() - offset - width * channels) / (height - 1)),
            "resize: the box lies outside");
    const core::Pass vertical = pass_of(rows, row_weights, height), horizontal = pass_of(columns, column_weights, width);
    require(horizontal.count >= new_width && out.size() % vertical.count == 0 &&
                out.size() / vertical.count % new_width == 0 && out.size() / vertical.count / new_width == channels,
            "resize: the result has another size");
    Release lock;
    core::resize(core::Image<const T>{image.data() + offset, stride, height, width, channels}, vertical, horizontal,
                 vertical_first, core::Image<T>{out.data(), new_width * channels, vertical.count, new_width, channels});
}

// --- colours

constexpr int64_t MOST_SIDE = 1 << 24;  // float32 has all whole numbers up to it

using Image = Array<const uint8_t, 3>;  // height, width, channels
using Result = Array<uint8_t, 3>;

int64_t pixels_of(const Image& image) { return image.shape(0) * image.shape(1); }

void edit(const Array<const uint8_t, 4>& images, const Array<const double, 2>& edits, const Array<uint8_t, 4>& out) {
    for (int axis = 0; axis < 4; ++axis) require(images.shape(axis) == out.shape(axis), "edit: a result of one shape");
    const int64_t count = images.shape(0), num_numbers = edits.shape(1);
    require(edits.shape(0) == count && images.data() != out.data(), "edit: edits of each image, and a result in other memory");
    if (images.size() == 0) return;
    const core::Size size{images.shape(1), images.shape(2), images.shape(3)};
    require(size.height <= MOST_SIDE && size.width <= MOST_SIDE, "edit: sizes");
    const auto edits_of = [&](int64_t i) { return core::Edits{edits.data() + i * num_numbers, num_numbers}; };
    for (int64_t i = 0; i < count; ++i) require(core::are_edits(edits_of(i), size), "edit: numbers that are no edits");
    Release lock;
    core::Editor editor;
    for (int64_t i = 0; i < count; ++i)
        editor.edit(images.data() + i * size.bytes(), size, edits_of(i), out.data() + i * size.bytes());
}

void policy_edits(const Array<const int32_t, 2>& numbers, const Array<const float, 2>& levels,
                  const Array<const int32_t, 2>& cubic, const Array<const int32_t, 2>& sizes,
                  const Array<const double, 2>& rules, const Array<const double, 1>& moves,
                  const Array<double, 3>& out) {
    const int64_t count = numbers.shape(0), layers = numbers.shape(1);
    const auto is_of = [&](const auto& array) { return array.shape(0) == count && array.shape(1) == layers; };
    require(is_of(levels) && (cubic.size() == 0 || is_of(cubic)), "policy_edits: a level, and a mark, for each operation");
    require(sizes.shape(0) == count && sizes.shape(1) == 2 && moves.size() == 5, "policy_edits: a size for each image");
    require(out.shape(0) == count && out.shape(1) == layers && out.shape(2) == core::EDIT_NUMBERS, "policy_edits: out");
    require(rules.shape(1) == 5 && rules.shape(0) <= MOST_SIDE, "policy_edits: rules of five numbers");
    for (int64_t i = 0; i < rules.shape(0); ++i) {
        const double* rule = rules.data() + 5 * i;
        const auto is_number = [&](int place, double least, double most) {
            return rule[place] >= least && rule[place] <= most && rule[place] == std::floor(rule[place]);
        };
        const bool has_numbers = std::fabs(rule[2]) <= core::MOST_LEVEL && std::fabs(rule[3]) <= core::MOST_LEVEL;
        require(has_numbers && is_number(0, 0, 19) && is_number(1, 0, core::NUM_FORMS - 1) && is_number(4, -1, 5),
                "policy_edits: rules");
    }
    for (int64_t i = 0; i < numbers.size(); ++i) {
        require(numbers.data()[i] >= 0 && numbers.data()[i] < rules.shape(0), "policy_edits: operations without a rule");
        require(std::fabs(levels.data()[i]) <= core::MOST_LEVEL, "policy_edits: levels");
    }
    const core::Drawn drawn{count, layers, numbers.data(), levels.data(), cubic.size() == 0 ? nullptr : cubic.data(), sizes.data()};
    const core::Policy policy{reinterpret_cast<const core::Rule*>(rules.data()), rules.shape(0), moves.data(), moves.data() + 2};
    unlocked_if_long(out.size(), [&] { core::write_edits(drawn, policy, out.data()); });
}

std::unique_ptr<core::Maker> edit_maker(int64_t height, int64_t width, int64_t channels, const Array<const double, 2>& edits) {
    const core::Size size{height, width, channels};
    const int64_t num_numbers = edits.shape(1);
    require(is_image(height, width, channels) && height <= MOST_SIDE && width <= MOST_SIDE, "edit: sizes");
    std::vector<double> numbers(edits.data(), edits.data() + edits.size());  // others may write to the array meanwhile
    for (int64_t i = 0; i < edits.shape(0); ++i)
        require(core::are_edits({numbers.data() + i * num_numbers, num_numbers}, size), "edit: numbers that are no edits");
    return std::make_unique<core::EditMaker>(size, edits.shape(0), num_numbers, std::move(numbers));
}

void make_gray(const Image& image, const Result& out) {
    require(image.shape(2) == 3 && (out.shape(2) == 1 || out.shape(2) == 3) && out.shape(0) == image.shape(0) &&
                out.shape(1) == image.shape(1),
            "make_gray: three channels, and a result of one or three");
    Release lock;
    core::make_gray(image.data(), pixels_of(image), out.shape(2), out.data());
}

// Checks that an image has pixels, and sides that float32 has.
template <class T>
core::Image<T> image_of(const Array<T, 3>& image) {
    const int64_t height = image.shape(0), width = image.shape(1), channels = image.shape(2);
    require(height > 0 && width > 0 && channels > 0 && height <= MOST_SIDE && width <= MOST_SIDE, "warp: sizes");
    return {image.data(), width * channels, height, width, channels};
}

template <class T>
void check_channels(const core::Image<const T>& from, const core::Image<T>& to, int64_t fill) {
    require(from.channels == to.channels && fill == from.channels, "warp: channels");
}

template <class T>
core::MatrixPlaces places_of(const core::Image<const T>& from, const core::Image<T>& to, const Array<const float, 1>& matrix) {
    require(matrix.size() == 6 || matrix.size() == 8, "warp: a matrix has six numbers or eight");
    return {{matrix.data(), matrix.size()}, from.height, from.width, to.height, to.width};
}

template <class T>
core::GridPlaces places_of(const core::Image<T>& to, const Array<const float, 2>& columns, const Array<const float, 2>& rows) {
    const bool fits = columns.shape(0) == to.height && columns.shape(1) == to.width && rows.shape(0) == to.height &&
                      rows.shape(1) == to.width;
    require(fits, "sample: a place a pixel");
    return {{columns.data(), rows.data()}, to.width};
}

void warp_nearest(const Array<const uint8_t, 3>& image, const Array<const float, 1>& matrix, const Bytes& fill,
                  const Array<uint8_t, 3>& out) {
    const core::Image<const uint8_t> from = image_of(image);
    const core::Image<uint8_t> to = image_of(out);
    check_channels(from, to, fill.size());
    Release lock;
    core::MatrixPlaces places = places_of(from, to, matrix);
    core::warp_nearest(from, places, fill.data(), to);
}

template <class T>
void warp_linear(const Array<const T, 3>& image, const Array<const float, 1>& matrix, const Array<const float, 1>& fill,
                 const Array<T, 3>& out) {
    const core::Image<const T> from = image_of(image);
    const core::Image<T> to = image_of(out);
    check_channels(from, to, fill.size());
    Release lock;
    core::MatrixPlaces places = places_of(from, to, matrix);
    core::warp_linear(from, places, fill.data(), to);
}

void sample_nearest(const Array<const uint8_t, 3>& image, const Array<const float, 2>& columns,
                    const Array<const float, 2>& rows, const Bytes& fill, const Array<uint8_t, 3>& out) {
    const core::Image<const uint8_t> from = image_of(image);
    const core::Image<uint8_t> to = image_of(out);
    check_channels(from, to, fill.size());
    core::GridPlaces places = places_of(to, columns, rows);
    Release lock;
    core::warp_nearest(from, places, fill.data(), to);
}

template <class T>
void sample_linear(const Array<const T, 3>& image, const Array<const float, 2>& columns, const Array<const float, 2>& rows,
                   const Array<const float, 1>& fill, const Array<T, 3>& out) {
    const core::Image<const T> from = image_of(image);
    const core::Image<T> to = image_of(out);
    check_channels(from, to, fill.size());
    core::GridPlaces places = places_of(to, columns, rows);
    Release lock;
    core::warp_linear(from, places, fill.data(), to);
}

template <class T>
void blur(const Array<const T, 3>& image, const Array<const float, 1>& down, const Array<const float, 1>& across,
          const Array<T, 3>& out) {
    const core::Image<const T> from = image_of(image);
    const core::Image<T> to = image_of(out);
    require(from.height == to.height && from.width == to.width && from.channels == to.channels, "blur: sizes");
    require(down.size() % 2 == 1 && across.size() % 2 == 1, "blur: windows have a middle");
    require(down.size() / 2 < from.height && across.size() / 2 < from.width, "blur: a window reaches too far");
    Release lock;
    core::blur(from, {down.data(), down.size()}, {across.data(), across.size()}, to);
}

void clahe(const Array<const uint16_t, 3>& image, double limit, int64_t rows, int64_t columns, const Array<uint16_t, 3>& out) {
    const core::Image<const uint16_t> from = image_of(image);
    const core::Image<uint16_t> to = image_of(out);
    require(from.height == to.height && from.width == to.width && from.channels == to.channels, "clahe: sizes");
    require(from.height * from.width <= core::MOST_TILED, "clahe: sizes");
    require(std::isfinite(limit) && limit > 0 && is_side(rows) && is_side(columns), "clahe: a limit and tiles");
    require(image.data() != out.data(), "clahe: a result in other memory");
    Release lock;
    core::TileEqualizer().equalize(from, {rows, columns, limit}, to);
}

// Checks that Python's steps along an axis read pixels of the image alone, and that their sums fit into 32 bits.
core::Steps steps_of(const Array<const int32_t, 1>& first, const Array<const int32_t, 1>& count,
                     const Array<const int32_t, 2>& weights, int64_t length) {
    require(count.size() == first.size() && weights.shape(0) == first.size(), "resize_as_pillow: steps");
    const int64_t support = weights.shape(1);
    for (int64_t i = 0; i < first.size(); ++i) {
        const int64_t begin = first.data()[i], taps = count.data()[i];
        require(begin >= 0 && taps >= 0 && taps <= support && begin <= length - taps, "resize_as_pillow: a step reads outside");
        int64_t positive = 0, negative = 0;
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int64_t weight = weights.data()[i * support + tap];
            (weight > 0 ? positive : negative) += weight;
        }
        require(positive <= core::MOST_WEIGHT && negative >= -core::MOST_WEIGHT, "resize_as_pillow: weights are too large");
    }
    return {first.data(), count.data(), weights.data(), support, first.size()};
}

void resize_as_pillow(const Array<const uint8_t, 1>& image, int64_t offset, int64_t stride, int64_t height, int64_t width,
                      const Array<const int32_t, 1>& rows, const Array<const int32_t, 1>& row_count,
                      const Array<const int32_t, 2>& row_weights, const Array<const int32_t, 1>& columns,
                      const Array<const int32_t, 1>& column_count, const Array<const int32_t, 2>& column_weights,
                      const Array<uint8_t, 3>& out) {
    const core::Image<uint8_t> to = image_of(out);
    const int64_t channels = to.channels;
    require(is_side(height) && is_side(width), "resize_as_pillow: sizes");
    require(offset >= 0 && offset <= image.size() && stride >= 0 && width <= (image.size() - offset) / channels &&
                (height == 1 || stride <= (image.size() - offset - width * channels) / (height - 1)),
            "resize_as_pillow: the box lies outside");
    const core::Steps down = steps_of(rows, row_count, row_weights, height);
    const core::Steps across = steps_of(columns, column_count, column_weights, width);
    require(to.height == (down.outputs ? down.outputs : height) && to.width == (across.outputs ? across.outputs : width),
            "resize_as_pillow: the result has another size");
    Release lock;
    core::resize_as_pillow({image.data() + offset, stride, height, width, channels}, down, across, to);
}

// --- rows of images

using Numbers = Array<const int32_t, 2>;

template <class T, int N>
std::vector<T> copy_of(const Array<const T, N>& array) {  // others may write to the array meanwhile
    return {array.data(), array.data() + array.size()};
}

// Visit for Python. Once images go through it, it is not changed.
class PyVisit {
  public:
    PyVisit(int64_t count, int64_t channels) : visit_{count, channels, {}, {}, {}} {
        require(count >= 0 && is_side(channels), "Visit: sizes");
    }
    PyVisit(const PyVisit&) = delete;

    void resize(const Numbers& boxes, const Numbers& sizes, const Array<const float, 1>& table, float width, bool antialias) {
        require(each(boxes, 4) && each(sizes, 2), "Visit: a box and a size an image");
        require(table.size() == 0 || (table.size() > 1 && width >= 1 && width <= 16), "Visit: a filter");
        add(core::Resizing{copy_of(boxes), copy_of(sizes), copy_of(table), width, antialias});
    }

    void edit(const Array<const double, 2>& edits) {
        require(edits.shape(0) == visit_.count, "Visit: edits of each image");
        add(core::Editing{copy_of(edits), edits.shape(1)});
    }

    void walk(const Numbers& start, const Numbers& mirror, const Numbers& sizes, int fill) {
        require(each(start, 2) && each(mirror, 2), "Visit: a window an image");
        require(sizes.shape(1) == 2 && (sizes.shape(0) == 1 || sizes.shape(0) == visit_.count), "Visit: sizes of windows");
        require(fill >= 0 && fill <= 255, "Visit: fill is no uint8");
        add(core::Walking{copy_of(start), copy_of(mirror), copy_of(sizes), uint8_t(fill)});
    }

    void finish(const Array<const float, 1>& mean, const Array<const float, 1>& scale, bool out_planes) {
        require(ends_in_walk(), "Visit: the last step is a walk");
        require(mean.size() == visit_.channels && scale.size() == visit_.channels, "Visit: a mean and a scale a channel");
        require(!is_ready_, "Visit: it has its last step");
        is_ready_ = true;
        visit_.mean = copy_of(mean);
        visit_.scale = copy_of(scale);
        visit_.out_planes = out_planes;
    }

    const core::Visit& use() {
        is_ready_ = true;
        return visit_;
    }
    bool ends_in_walk() const {
        return !visit_.steps.empty() && std::holds_alternative<core::Walking>(visit_.steps.back());
    }

  private:
    bool each(const Numbers& numbers, int64_t columns) const {
        return numbers.shape(0) == visit_.count && numbers.shape(1) == columns;
    }
    void add(core::Step step) {
        require(!is_ready_, "Visit: it has its last step");
        visit_.steps.push_back(std::move(step));
    }

    core::Visit visit_;
    bool is_ready_ = false;
};

// Images for Python: an array of four axes, or arrays of three axes in a sequence, whose memory is held.
template <class T>
class Images {
  public:
    // Returns false if the first is of another dtype. Throws if others are.
    bool take(nb::handle images) {
        if (all_.take(images.ptr())) {
            const int64_t size = all_.shape(1) * all_.shape(2) * all_.shape(3);
            for (int64_t i = 0; i < all_.shape(0); ++i) items_.push_back({all_.data() + i * size, all_.shape(1), all_.shape(2), all_.shape(3)});
            return true;
        }
        nb::sequence sequence;
        require(nb::try_cast(images, sequence), "make_rows: images");
        for (nb::handle image : sequence) {
            Array<T, 3>& memory = memory_.emplace_back();
            const bool is_taken = memory.take(image.ptr());
            if (!is_taken && items_.empty()) return false;
            require(is_taken, "make_rows: images of one dtype, of three axes");
            items_.push_back({memory.data(), memory.shape(0), memory.shape(1), memory.shape(2)});
        }
        return true;
    }

    struct Item {
        T* data;
        int64_t first, second, third;  // axes
    };
    const std::vector<Item>& items() const { return items_; }

  private:
    Array<T, 4> all_;
    std::list<Array<T, 3>> memory_;
    std::vector<Item> items_;
};

template <class Out>
std::vector<core::Room<Out>> rooms_of(const Images<Out>& images, const PyVisit& visit, const core::Visit& steps) {
    require((std::is_same_v<Out, uint8_t> && !steps.out_planes) || visit.ends_in_walk(), "make_rows: the last step is a walk");
    std::vector<core::Room<Out>> rooms;
    for (const auto& item : images.items()) {
        require((steps.out_planes ? item.first : item.third) == steps.channels, "make_rows: channels");
        rooms.push_back(steps.out_planes ? core::Room<Out>{item.data, item.second, item.third} : core::Room<Out>{item.data, item.first, item.second});
    }
    require(int64_t(rooms.size()) == steps.count, "make_rows: a result an image");
    return rooms;
}

// Calls `use(rooms)` for results of uint8 or of float32.
template <class Use>
void with_rooms(nb::handle images, const PyVisit& visit, const core::Visit& steps, const Use& use) {
    Images<uint8_t> bytes;
    if (bytes.take(images)) return use(rooms_of(bytes, visit, steps));
    Images<float> floats;
    require(floats.take(images), "make_rows: results are uint8 or float32, of three axes");
    use(rooms_of(floats, visit, steps));
}

double make_rows_of_files(core::Codec& codec, const Bytes& raw, const Int64s& begins, const Int64s& ends, const Numbers& heads,
                          const Numbers& regions, PyVisit& visit, nb::handle out, const Array<int8_t, 1>& declined) {
    const int64_t count = begins.size();
    check_rows(raw, begins, ends, 0, 0);
    const core::Visit& steps = visit.use();
    require(heads.shape(0) == count && heads.shape(1) == 6, "make_rows: a head an image");
    require(regions.shape(1) == 4 && (regions.shape(0) == count || regions.shape(0) == 0), "make_rows: a region an image");
    require(steps.count == count && declined.size() == count, "make_rows: a row an image");
    const int32_t* const boxes = regions.shape(0) == 0 ? nullptr : regions.data();
    const core::Files files{raw.data(), begins.data(), ends.data(), heads.data(), boxes, count};
    int64_t time_ns = 0;
    with_rooms(out, visit, steps, [&](const auto& rooms) {
        Release lock;
        time_ns = core::make_rows(codec, files, steps, rooms.data(), declined.data());
    });
    return double(time_ns) / 1e9;
}

void make_rows_of_images(PyVisit& visit, nb::handle images, nb::handle out, const Array<int8_t, 1>& declined) {
    const core::Visit& steps = visit.use();
    Images<const uint8_t> memory;
    require(memory.take(images), "make_rows: images are uint8, of three axes");
    std::vector<core::Pixels> pixels;
    for (const auto& item : memory.items()) {
        require(item.third == steps.channels, "make_rows: channels");
        pixels.push_back({item.data, item.first, item.second});
    }
    require(steps.count == int64_t(pixels.size()) && declined.size() == steps.count, "make_rows: a row an image");
    with_rooms(out, visit, steps, [&](const auto& rooms) {
        Release lock;
        core::make_rows(pixels.data(), steps, rooms.data(), declined.data());
    });
}

std::unique_ptr<core::Maker> image_maker(PyVisit& visit, bool writes_floats, int64_t image_height, int64_t image_width,
                                         int64_t out_height, int64_t out_width) {
    const core::Visit& steps = visit.use();
    require(steps.count > 0 && is_image(image_height, image_width, steps.channels), "maker: sizes");
    require(is_image(out_height, out_width, steps.channels), "maker: sizes");
    require((!writes_floats && !steps.out_planes) || visit.ends_in_walk(), "maker: the last step is a walk");
    const auto make = writes_floats ? core::image_maker<float> : core::image_maker<uint8_t>;
    return make(steps, {0, 0, image_height, image_width}, {0, 0, out_height, out_width});
}

void taps(const Array<const float, 1>& table, float width, bool antialias, int64_t from, const Array<int32_t, 1>& first,
          const Array<float, 2>& weights) {
    require(table.size() > 1 && width >= 1 && width <= 16 && is_side(from) && is_side(first.size()), "taps: sizes");
    core::Taps taps;
    taps.compute({table.data(), table.size(), width, antialias}, from, first.size());
    require(weights.shape(0) == first.size() && weights.shape(1) == taps.support, "taps: weights");
    std::copy(taps.first.begin(), taps.first.end(), first.data());
    std::copy(taps.weights.begin(), taps.weights.end(), weights.data());
}

}  // namespace

NB_MODULE(_native, module) {
    nb::set_leak_warnings(false);  // objects that a thread uses when Python ends stay in memory
    module.attr("source") = GPULOAD_SOURCE;  // a checksum of these C++ files: `core/source.py`

    module.def("philox", philox);
    module.def("uniform", uniform);
    module.def("permute", permute);

    module.def("thread_usage", [] {
        const core::Usage usage = core::thread_usage();
        return nb::make_tuple(usage.cpu_ns, usage.queue_ns, usage.num_waits);
    });
    module.def("divide_gap", [](int64_t time_ns, std::array<int64_t, 3> before, std::array<int64_t, 3> after) {
        const core::Gap gap = core::gap_of(time_ns, {before[0], before[1], before[2]}, {after[0], after[1], after[2]});
        return nb::make_tuple(gap.blocked, gap.starved, gap.off_core);
    });
    module.def("gather_rows", gather_rows);
    module.def("gather_pieces", gather_pieces);
    module.def("can_map", core::guard::supported);
    module.def("num_free_maps", core::guard::num_free);
    nb::class_<PyMaps>(module, "Maps")
        .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, int64_t, int64_t>())
        .def("copy", copy)
        .def("map", map_files)
        .def("advise", advise)
        .def("states", states)
        .def_prop_ro("any_refused", [](PyMaps& maps) { return maps.get().any_refused(); });

    nb::class_<PyQueue>(module, "Queue")
        .def(nb::init<>())
        .def("serve", &PyQueue::serve)
        .def("call", &PyQueue::call)
        .def("leave", &PyQueue::leave)
        .def("end", &PyQueue::end, "ignored"_a = nb::none())
        .def("take_idle_s", &PyQueue::take_idle_s);
    nb::class_<PyPlan>(module, "Plan")
        .def(nb::init<const Int64s&>())
        .def("add", &PyPlan::add, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
    nb::class_<core::Maker>(module, "_Maker");  // functions below make them
    nb::class_<PyCopies>(module, "Copies")
        .def(nb::init<nb::object, nb::object, int64_t, int64_t, int64_t, nb::sequence>())
        .def("state", &PyCopies::state)
        .def("wait", &PyCopies::wait)
        .def_prop_ro("num_done", &PyCopies::num_done)
        .def("times", &PyCopies::times)
        .def("spans", &PyCopies::spans)
        .def_prop_ro("wait_s", &PyCopies::wait_s);

    module.def("offer_pages", offer_pages, "memory"_a);
    module.def("crc32", crc32, "data"_a, "before"_a = 0);
    module.def("crc32_by_128_bits", crc32_by_128_bits, "data"_a, "before"_a = 0);
    module.def("crc32c", crc32c, "data"_a, "before"_a = 0);
    module.def("crc32c_by_tables", crc32c_by_tables, "data"_a, "before"_a = 0);
    module.def("frames", frames);
    module.def("verify", verify);
    module.def("read_features", read_features);
    module.def("count_values", count_values);
    module.def("count_steps", count_steps);
    module.def("fill_steps", fill_steps);
    module.def("fill_ints", fill_ints);
    module.def("fill_floats", fill_floats);
    module.def("fill_bytes", fill_bytes);

    module.def("lzw_bytes", lzw_bytes);
    module.def("read_scans", read_scans);
    module.def("read_jpeg_heads", read_jpeg_heads);
    module.def("walk", walk<uint8_t, uint8_t>);
    module.def("walk", walk<uint8_t, float>);
    module.def("walk", walk<float, float>);
    module.def("resize", resize<uint8_t>);
    module.def("resize", resize<float>);
    module.def("taps", taps);
    module.def("edit", edit);
    module.def("policy_edits", policy_edits);
    module.def("walk_maker", walk_maker);
    module.def("edit_maker", edit_maker);
    module.def("make_gray", make_gray);
    nb::class_<PyVisit>(module, "Visit")
        .def(nb::init<int64_t, int64_t>())
        .def("resize", &PyVisit::resize)
        .def("edit", &PyVisit::edit)
        .def("walk", &PyVisit::walk)
        .def("finish", &PyVisit::finish)
        .def("make_rows", make_rows_of_images)
        .def("maker", image_maker);
    module.def("warp_nearest", warp_nearest);
    module.def("sample_nearest", sample_nearest);
    module.def("sample_linear", sample_linear<uint8_t>);
    module.def("sample_linear", sample_linear<uint16_t>);
    module.def("sample_linear", sample_linear<float>);
    module.def("blur", blur<uint8_t>);
    module.def("blur", blur<uint16_t>);
    module.def("blur", blur<float>);
    module.def("clahe", clahe);
    module.def("resize_as_pillow", resize_as_pillow);
    module.def("warp_linear", warp_linear<uint8_t>);
    module.def("warp_linear", warp_linear<uint16_t>);
    module.def("warp_linear", warp_linear<float>);
    nb::class_<core::Codec>(module, "Codec")
        .def(nb::init<const std::string&, const std::string&>())
        .def_prop_ro("version", &core::Codec::version)
        .def("make_rows", make_rows_of_files);
}

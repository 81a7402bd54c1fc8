// The door to files that threads copy records from: maps, queues, plans and copies; see door.hpp.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "copies.hpp"
#include "door.hpp"
#include "guard.hpp"
#include "makers.hpp"
#include "maps.hpp"
#include "queue.hpp"

namespace door {
namespace {

core::Extents extents_of(const Int64s& files, const Int64s& offsets, const Int64s& lengths) {
    const bool fits = files.size() == offsets.size() && files.size() == lengths.size();
    require(fits, "extents: arrays of one length");
    return {files.data(), offsets.data(), lengths.data(), files.size()};
}

struct Paths {
    Array<const uint8_t, 1> folders, names;
    Array<const uint32_t, 1> folder_of;
    Int64s folder_bounds, name_bounds;

    bool take(PyObject* tuple) noexcept {  // a `face.PathTable`
        return core::take_tuple(tuple, folders, folder_bounds, folder_of, names, name_bounds);
    }

    core::Paths checked(int64_t num_files) const {
        const int64_t num_folders = folder_bounds.size() - 1;
        const bool fits = folder_of.size() == num_files && name_bounds.size() == num_files + 1 &&
                          num_folders >= 0;
        require(fits, "Maps: a path a file");
        const bool are_texts = are_bounds(folder_bounds, folders) && are_bounds(name_bounds, names);
        require(are_texts, "Maps: bounds of texts");
        for (int64_t i = 0; i < num_files; ++i)
            require(folder_of.data()[i] < num_folders, "Maps: a folder a file");
        return {folders.data(), folder_bounds.data(), folder_of.data(), names.data(),
                name_bounds.data()};
    }

  private:
    static bool are_bounds(const Int64s& bounds, const Bytes& texts) {
        const int64_t *const first = bounds.data(), *const last = first + bounds.size() - 1;
        return *first == 0 && *last == texts.size() && std::is_sorted(first, last + 1);
    }
};

// Maps for Python. They hold the paths and stamps, to which nothing writes.
class Maps {
  public:
    Maps(nb::handle paths, nb::handle stamps, int64_t piece_bytes, int64_t most_maps) {
        const bool are_arrays = paths_.take(paths.ptr()) && stamps_.take(stamps.ptr());
        require(are_arrays, "Maps: arrays of another kind");
        require(stamps_.shape(1) == 3, "Maps: size, time and inode of each file");
        const int64_t num_files = stamps_.shape(0);
        const core::Paths all = paths_.checked(num_files);
        const bool fits =
            piece_bytes >= 0 && most_maps >= 0 && most_maps < std::numeric_limits<int32_t>::max();
        require(fits, "Maps: sizes");
        maps_.emplace(all, stamps_.data(), num_files, piece_bytes, most_maps);
    }
    Maps(const Maps&) = delete;

    std::pair<int64_t, int> copy(const Int64s& files, const Int64s& offsets, const Int64s& lengths,
                                 const Array<uint8_t, 1>& out, const Int64s& begins) {
        const core::Extents extents = extents_of(files, offsets, lengths);
        require(begins.size() == files.size(), "copy: a begin an extent");
        Release lock;
        return maps_->copy(extents, begins.data(), out.data(), out.size());
    }

    void map(const Int64s& files, const Int64s& offsets, const Int64s& lengths) {
        const core::Extents extents = extents_of(files, offsets, lengths);
        Release lock;
        maps_->map(extents);
    }

    void advise(const Int64s& files, const Int64s& offsets, const Int64s& lengths,
                int64_t piece_bytes) {
        const core::Extents extents = extents_of(files, offsets, lengths);
        require(piece_bytes > 0, "advise: pieces have bytes");
        Release lock;
        maps_->advise(extents, piece_bytes);
    }

    void states(const Int64s& files, const Array<int8_t, 1>& out) const {
        require(files.size() == out.size(), "states: an item a file");
        for (int64_t i = 0; i < files.size(); ++i) {
            const int64_t file = files.data()[i];
            if (file < 0 || file >= maps_->num_files())
                throw std::out_of_range("states: no such file");
            out.data()[i] = maps_->state(file);
        }
    }

    bool any_refused() const { return maps_->any_refused(); }
    core::Maps& get() { return *maps_; }

  private:
    Paths paths_;
    Array<const int64_t, 2> stamps_;
    std::optional<core::Maps> maps_;
};

// Records of one size in files, for Python. They hold the maps and the arrays.
class FileRecords {
  public:
    FileRecords(nb::object maps, nb::handle starts, nb::handle files, nb::handle offsets,
                int64_t record_bytes)
        : maps_(std::move(maps)), record_bytes_(record_bytes) {
        const bool fits =
            starts_.take(starts.ptr()) && files_.take(files.ptr()) && offsets_.take(offsets.ptr());
        require(fits && nb::isinstance<Maps>(maps_), "FileRecords: maps, and arrays of int64");
        const int64_t num_files = files_.size(), *const first = starts_.data();
        const bool is_one_each = starts_.size() == num_files + 1 && offsets_.size() == num_files;
        require(num_files > 0 && is_one_each, "FileRecords: files");
        require(first[0] == 0 && std::is_sorted(first, first + num_files + 1),
                "FileRecords: starts ascend from 0");
        // No place of a record is beyond the largest number.
        const int64_t most = std::numeric_limits<int64_t>::max();
        require(record_bytes >= 0 && record_bytes <= most / std::max<int64_t>(count(), 1),
                "FileRecords: sizes");
        for (int64_t i = 0; i < num_files; ++i) {
            const int64_t offset = offsets_.data()[i];
            require(offset >= 0 && offset <= most - count() * record_bytes, "FileRecords: offsets");
        }
    }
    FileRecords(const FileRecords&) = delete;

    int64_t count() const { return starts_.data()[files_.size()]; }
    int64_t record_bytes() const { return record_bytes_; }

    core::RecordFiles get() const {
        return {&nb::cast<Maps&>(maps_).get(),
                starts_.data(),
                files_.data(),
                offsets_.data(),
                files_.size(),
                record_bytes_};
    }

  private:
    nb::object maps_;
    Int64s starts_, files_, offsets_;
    int64_t record_bytes_;
};

// Queue for Python. In a child of a fork its memory is not freed: the threads that wait in it are
// in the parent.
class Queue {
  public:
    Queue() : queue_(new core::Queue) {}
    Queue(const Queue&) = delete;
    ~Queue() {
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

// Plan for Python. It holds the records and the makers.
class CopyPlan {
  public:
    explicit CopyPlan(const Int64s& ends) : plan_{copy_of(ends), {}} {
        const std::vector<int64_t>& all = plan_.ends;
        const bool ascend =
            all.empty() || (all.front() >= 0 && std::is_sorted(all.begin(), all.end()));
        require(ascend, "CopyPlan: ends of steps ascend from 0");
    }
    CopyPlan(const CopyPlan&) = delete;

    // Numbers and rows are copied, and the copies checked: others may write to these arrays while
    // threads copy records.
    void add(nb::object records, const Int64s& numbers, nb::handle rows,
             const nb::sequence& parts) {
        require(!is_used_, "CopyPlan: it is used already");
        const FileRecords* from = nullptr;
        require(nb::try_cast(records, from), "CopyPlan: records in files");
        core::Rows entry{from->get(), copy_of(numbers), rows_of(rows, numbers.size()),
                         parts_of(parts, *from)};
        for (int64_t number : entry.numbers) {
            const bool is_there = uint64_t(number) < uint64_t(from->count());
            if (!is_there) throw std::out_of_range("CopyPlan: no such record");
        }
        plan_.rows.push_back(std::move(entry));
        objects_.push_back(std::move(records));
    }

    const core::Plan& use() {
        is_used_ = true;
        return plan_;
    }
    int64_t num_steps() const { return int64_t(plan_.ends.size()); }
    int64_t begin(int64_t step) const { return plan_.begin(step); }

  private:
    int64_t num_rows() const { return begin(num_steps()); }

    std::vector<int64_t> rows_of(nb::handle rows, int64_t count) const {
        if (rows.is_none()) {
            require(count <= num_rows(), "CopyPlan: a row a record");
            return {};
        }
        Int64s array;
        require(array.take(rows.ptr()) && array.size() == count, "CopyPlan: a row a record");
        std::vector<int64_t> result = copy_of(array);
        const bool lie_inside =
            result.empty() || (result.front() >= 0 && result.back() < num_rows());
        require(lie_inside && std::is_sorted(result.begin(), result.end()),
                "CopyPlan: rows ascend");
        return result;
    }

    // Returns parts of records, after a check that they lie in one, and that makers know all rows.
    std::vector<core::Part> parts_of(const nb::sequence& parts, const FileRecords& records) {
        std::vector<core::Part> result;
        for (nb::handle part : parts) {
            std::tuple<int64_t, int64_t, int64_t, nb::object> numbers;
            require(nb::try_cast(part, numbers), "CopyPlan: a part is three numbers and a maker");
            const auto& [begin, num_bytes, block, maker] = numbers;
            const bool is_inside = begin >= 0 && num_bytes >= 0 &&
                                   num_bytes <= records.record_bytes() &&
                                   begin <= records.record_bytes() - num_bytes;
            require(is_inside && block >= 0, "CopyPlan: a part lies in a record");
            result.push_back({begin, num_bytes, size_t(block), nullptr});
            if (maker.is_none()) continue;
            const core::Maker*& used = result.back().maker;
            const bool fits = nb::try_cast(maker, used) && used->in_bytes == num_bytes &&
                              used->num_rows >= num_rows();
            require(fits, "CopyPlan: a maker for these rows");
            objects_.push_back(maker);
        }
        require(!result.empty(), "CopyPlan: a record has parts");
        return result;
    }

    core::Plan plan_;
    std::vector<nb::object> objects_;
    bool is_used_ = false;
};

constexpr auto WAIT = std::chrono::milliseconds(20);  // then Python may run signal handlers

double seconds(int64_t ns) { return double(ns) / 1e9; }

// Copies for Python. They hold queue, plan and memory until no thread uses them any more.
class Copies {
  public:
    Copies(nb::object queue, nb::object plan, int64_t first_step, int64_t num_steps,
           int64_t piece_rows, const nb::sequence& blocks)
        : queue_object_(std::move(queue)), plan_object_(std::move(plan)),
          queue_(nb::cast<Queue&>(queue_object_).get()) {
        CopyPlan& steps = nb::cast<CopyPlan&>(plan_object_);
        const core::Plan& plan_in_use = steps.use();
        const bool has_steps =
            first_step >= 0 && num_steps > 0 && num_steps <= steps.num_steps() - first_step;
        require(has_steps, "Copies: no such steps");
        require(piece_rows > 0, "Copies: pieces have rows");
        const int64_t num_rows = steps.begin(first_step + num_steps) - steps.begin(first_step);
        std::vector<core::Block> places = places_of(blocks);
        for (const core::Rows& rows : plan_in_use.rows)
            for (const core::Part& part : rows.parts) {
                const bool fits =
                    part.block < places.size() &&
                    (num_rows == 0 || part.row_bytes() <= places[part.block].num_bytes / num_rows);
                require(fits, "Copies: a block is too small");
            }
        const int64_t rows_at_once = std::min(piece_rows, std::max<int64_t>(num_rows, 1));
        copies_.emplace(plan_in_use, first_step, num_steps, rows_at_once, std::move(places));
        queue_.submit(*copies_);
    }
    Copies(const Copies&) = delete;
    ~Copies() { queue_.withdraw(*copies_); }

    int state(int64_t step) const {
        if (step < 0 || step >= copies_->num_steps())
            throw std::out_of_range("Copies: no such step");
        return copies_->state(step);
    }
    int wait(int64_t step) {
        const int now = state(step);
        if (now != core::Work::NOT_DONE) return now;
        Release lock;
        return queue_.wait(*copies_, step, WAIT);
    }
    int64_t num_done() const { return copies_->num_done(); }
    nb::tuple times() const {
        const core::Times& times = copies_->times();
        return nb::make_tuple(seconds(times.all), seconds(times.sampled), seconds(times.blocked),
                              seconds(times.starved), seconds(times.off_core));
    }
    nb::list spans() const {
        nb::list spans;
        for (const auto& [step, span] : copies_->spans())
            spans.append(
                nb::make_tuple(step, seconds(span.begin_ns), seconds(span.end_ns), span.thread));
        return spans;
    }
    double wait_s() const { return seconds(copies_->wait_ns()); }

  private:
    std::vector<core::Block> places_of(const nb::sequence& blocks) {
        std::vector<core::Block> places;
        for (nb::handle block : blocks) {
            require(memory_.emplace_back().take(block.ptr()),
                    "Copies: blocks are uint8 on one axis");
            places.push_back({memory_.back().data(), memory_.back().size()});
        }
        return places;
    }

    nb::object queue_object_, plan_object_;
    core::Queue& queue_;
    std::list<Array<uint8_t, 1>> memory_;
    std::optional<core::Copies> copies_;
};

}  // namespace

void bind_copies(nb::module_& module) {
    module.def("can_map", core::guard::supported);
    module.def("num_free_maps", core::guard::num_free);
    nb::class_<Maps>(module, "Maps")
        .def(nb::init<nb::handle, nb::handle, int64_t, int64_t>())
        .def("copy", &Maps::copy)
        .def("map", &Maps::map)
        .def("advise", &Maps::advise)
        .def("states", &Maps::states)
        .def_prop_ro("any_refused", &Maps::any_refused);
    nb::class_<FileRecords>(module, "FileRecords")
        .def(nb::init<nb::object, nb::handle, nb::handle, nb::handle, int64_t>(), "maps"_a,
             "starts"_a, "files"_a, "offsets"_a, "record_bytes"_a);
    nb::class_<Queue>(module, "Queue")
        .def(nb::init<>())
        .def("serve", &Queue::serve)
        .def("call", &Queue::call)
        .def("leave", &Queue::leave)
        .def("end", &Queue::end, "ignored"_a = nb::none())
        .def("take_idle_s", &Queue::take_idle_s);
    nb::class_<CopyPlan>(module, "CopyPlan")
        .def(nb::init<const Int64s&>())
        .def("add", &CopyPlan::add, "records"_a, "numbers"_a, "rows"_a.none(), "parts"_a);
    nb::class_<core::Maker>(module, "_Maker");  // the doors to pixels and visits return them
    nb::class_<Copies>(module, "Copies")
        .def(nb::init<nb::object, nb::object, int64_t, int64_t, int64_t, nb::sequence>())
        .def("state", &Copies::state)
        .def("wait", &Copies::wait)
        .def_prop_ro("num_done", &Copies::num_done)
        .def("times", &Copies::times)
        .def("spans", &Copies::spans)
        .def_prop_ro("wait_s", &Copies::wait_s);
}

}  // namespace door

// The door to TFRecord and serialized tf.train.Examples: see door.hpp.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "door.hpp"
#include "tfrecord.hpp"

namespace door {
namespace {

using Spans = Array<const int64_t, 2>;

core::Bytes bytes_of(const Bytes& array) { return {array.data(), array.size()}; }

core::Spans checked(const Bytes& raw, const Spans& spans) {
    require(spans.shape(1) == 2, "a begin and an end a span");
    for (int64_t i = 0; i < spans.shape(0); ++i) {
        const int64_t begin = spans.data()[2 * i], end = spans.data()[2 * i + 1];
        const bool is_inside = begin >= 0 && begin <= end && end <= raw.size();
        if (begin != core::MISSING && !is_inside) throw std::out_of_range("a span lies outside");
    }
    return {spans.data(), spans.shape(0)};
}

core::List list_of(int64_t kind) {
    require(kind >= core::BYTES_LIST && kind <= core::INT64_LIST, "no such kind of list");
    return core::List(kind);
}

std::pair<int64_t, int64_t> frames(const Bytes& piece, int64_t left, bool verify,
                                   const Array<int64_t, 1>& lengths) {
    Release lock;
    return core::frames(bytes_of(piece), left, verify, lengths.data(), lengths.size());
}

std::pair<int64_t, int64_t> verify(const Bytes& raw, const Int64s& begins, const Int64s& ends) {
    check_rows(raw, begins, ends, 12, 4);
    Release lock;
    return core::verify(bytes_of(raw), begins.data(), ends.data(), begins.size());
}

// Which features are wanted of messages. It holds copies.
class FeatureQuery {
  public:
    using Key = std::pair<int64_t, nb::bytes>;    // section, text
    using Feature = std::pair<int64_t, int64_t>;  // number of its key, kind of its values

    FeatureQuery(const std::vector<Key>& keys, const std::vector<Feature>& features)
        : features_(features) {
        for (const auto& [section, text] : keys) {
            require(section == 1 || section == 2, "FeatureQuery: sections");
            sections_.push_back(section);
            const auto* const first = static_cast<const uint8_t*>(text.data());
            text_.insert(text_.end(), first, first + text.size());
            begins_.push_back(int64_t(text_.size()));
        }
        for (const auto& [key, kind] : features) {
            require(key >= 0 && key < num_keys(), "FeatureQuery: no such key");
            if (kind != core::NO_LIST) list_of(kind);
        }
    }

    // One call finds and counts, so that the lock is released once.
    int64_t find(const Bytes& raw, const Int64s& begins, const Int64s& ends,
                 const Array<int64_t, 3>& spans, const Array<int64_t, 2>& counts) const {
        const int64_t num_rows = begins.size();
        check_rows(raw, begins, ends);
        const bool has_spans =
            spans.shape(0) == num_keys() && spans.shape(1) == num_rows && spans.shape(2) == 2;
        require(has_spans, "FeatureQuery: spans");
        const bool has_counts =
            counts.shape(0) == int64_t(features_.size()) && counts.shape(1) == num_rows;
        require(has_counts, "FeatureQuery: counts");
        Release lock;
        const core::Keys keys{text_.data(), begins_.data(), sections_.data(), num_keys()};
        int64_t bad = core::find_entries(bytes_of(raw), begins.data(), ends.data(), num_rows, keys,
                                         spans.data());
        int64_t* counts_of_feature = counts.data();
        for (const auto& [key, kind] : features_) {
            const core::Spans entries{spans.data() + 2 * num_rows * key, num_rows};
            if (bad == core::DONE && kind != core::NO_LIST)
                bad = core::count_values(bytes_of(raw), entries, true, core::List(kind),
                                         counts_of_feature);
            counts_of_feature += num_rows;
        }
        return bad;
    }

  private:
    int64_t num_keys() const { return int64_t(sections_.size()); }

    std::vector<uint8_t> text_;
    std::vector<int64_t> begins_{0}, sections_;
    std::vector<Feature> features_;
};

int64_t count_values(const Bytes& raw, const Spans& spans, int64_t kind,
                     const Array<int64_t, 1>& counts) {
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

void fill(const Bytes& raw, const Spans& spans, bool are_entries, const Int64s& counts,
          const core::ValueRoom& room) {
    const core::Spans features = checked(raw, spans);
    require(counts.size() == features.num_rows, "fill: a count a span");
    Release lock;
    core::fill_values(bytes_of(raw), features, are_entries, counts.data(), room);
}

template <class T, core::List KIND>
void fill_numbers(const Bytes& raw, const Spans& spans, bool are_entries, const Int64s& counts,
                  const Array<T, 1>& values) {
    fill(raw, spans, are_entries, counts, {KIND, values.data(), nullptr, values.size()});
}

void fill_bytes(const Bytes& raw, const Spans& spans, bool are_entries, const Int64s& counts,
                const Array<int64_t, 1>& begins, const Array<int64_t, 1>& ends) {
    require(begins.size() == ends.size(), "fill_bytes: an end a begin");
    fill(raw, spans, are_entries, counts,
         {core::BYTES_LIST, begins.data(), ends.data(), begins.size()});
}

}  // namespace

void bind_records(nb::module_& module) {
    module.def("frames", frames);
    module.def("verify", verify);
    nb::class_<FeatureQuery>(module, "FeatureQuery")
        .def(nb::init<const std::vector<FeatureQuery::Key>&,
                      const std::vector<FeatureQuery::Feature>&>(),
             "keys"_a, "features"_a)
        .def("find", &FeatureQuery::find);
    module.def("count_values", count_values);
    module.def("count_steps", count_steps);
    module.def("fill_steps", fill_steps);
    module.def("fill_ints", fill_numbers<int64_t, core::INT64_LIST>);
    module.def("fill_floats", fill_numbers<float, core::FLOAT_LIST>);
    module.def("fill_bytes", fill_bytes);
}

}  // namespace door

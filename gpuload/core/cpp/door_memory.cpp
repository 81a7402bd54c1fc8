// The door to copies of memory, checksums, and the time of threads: see door.hpp.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <array>
#include <optional>

#include "crc32.hpp"
#include "crc32c.hpp"
#include "door.hpp"
#include "maps.hpp"
#include "pages.hpp"
#include "usage.hpp"

namespace door {

void check_rows(const Bytes& raw, const Int64s& begins, const Int64s& ends, int64_t before,
                int64_t behind) {
    require(begins.size() == ends.size(), "a begin and an end a row");
    for (int64_t i = 0; i < begins.size(); ++i) {
        const int64_t begin = begins.data()[i], end = ends.data()[i];
        const bool is_inside = before <= begin && begin <= end && end <= raw.size() - behind;
        if (!is_inside) throw std::out_of_range("a row lies outside");
    }
}

namespace {

int64_t gather_rows(const Array<const uint8_t, 2>& rows, const Int64s& numbers,
                    const Array<uint8_t, 1>& out, const Int64s& begins) {
    require(numbers.size() == begins.size(), "gather_rows: a begin a number");
    Release lock;
    return core::gather_rows({rows.data(), rows.shape(0), rows.shape(1)}, numbers.data(),
                             begins.data(), numbers.size(), out.data(), out.size());
}

void gather_pieces(const Bytes& raw, const Int64s& begins, const Int64s& lengths,
                   const Array<uint8_t, 1>& out, const Int64s& places) {
    const bool fits = begins.size() == lengths.size() && begins.size() == places.size();
    require(fits, "gather_pieces: arrays of one length");
    Release lock;
    for (int64_t i = 0; i < begins.size(); ++i) {
        const int64_t begin = begins.data()[i], length = lengths.data()[i],
                      place = places.data()[i];
        const bool is_inside = begin >= 0 && length >= 0 && place >= 0 &&
                               length <= raw.size() - begin && length <= out.size() - place;
        if (!is_inside) throw std::out_of_range("gather_pieces: a piece lies outside");
        std::copy_n(raw.data() + begin, length, out.data() + place);
    }
}

bool offer_pages(const Array<uint8_t, 1>& memory) {
    Release lock;
    return core::offer_pages(memory.data(), size_t(memory.size()));
}

// Returns a checksum of bytes behind a part with the checksum `before`.
template <auto CHECKSUM>
auto checksum(const Bytes& data, uint32_t before) {
    return unlocked_if_long(data.size(),
                            [&] { return CHECKSUM(data.data(), size_t(data.size()), before); });
}

auto thread_usage() {
    const core::Usage usage = core::thread_usage();
    return nb::make_tuple(usage.cpu_ns, usage.queue_ns, usage.num_waits);
}

auto divide_gap(int64_t time_ns, std::array<int64_t, 3> before, std::array<int64_t, 3> after) {
    const auto usage_of = [](const auto& usage) {
        return core::Usage{usage[0], usage[1], usage[2]};
    };
    const core::Gap gap = core::gap_of(time_ns, usage_of(before), usage_of(after));
    return nb::make_tuple(gap.blocked, gap.starved, gap.off_core);
}

}  // namespace

void bind_memory(nb::module_& module) {
    module.def("gather_rows", gather_rows);
    module.def("gather_pieces", gather_pieces);
    module.def("offer_pages", offer_pages, "memory"_a);
    module.def("crc32", checksum<core::crc32>, "data"_a, "before"_a = 0);
    module.def("crc32_by_128_bits", checksum<core::crc32_by_128_bits>, "data"_a, "before"_a = 0);
    module.def("crc32c", checksum<core::crc32c>, "data"_a, "before"_a = 0);
    module.def("crc32c_by_tables", checksum<core::crc32c_by_tables>, "data"_a, "before"_a = 0);
    module.def("thread_usage", thread_usage);
    module.def("divide_gap", divide_gap);
}

}  // namespace door

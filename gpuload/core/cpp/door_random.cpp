// The door to random numbers: see door.hpp.
#include "door.hpp"
#include "random.hpp"

namespace door {
namespace {

void philox(const Int64s& records, uint64_t epoch, uint64_t seed, uint64_t stream,
            const Array<uint64_t, 2>& out) {
    const bool fits = out.shape(0) == records.size() && out.shape(1) % 4 == 0;
    require(fits, "philox: out has a row of whole blocks a record");
    unlocked_if_long(out.size(), [&] {
        core::philox(records.data(), records.size(), {epoch, seed, stream}, out.shape(1) / 4,
                     out.data());
    });
}

void uniform(const Int64s& records, uint64_t epoch, uint64_t seed, uint64_t stream,
             const Array<double, 2>& out) {
    require(out.shape(0) == records.size(), "uniform: out has a row a record");
    unlocked_if_long(out.size(), [&] {
        core::uniform(records.data(), records.size(), {epoch, seed, stream}, out.shape(1),
                      out.data());
    });
}

void permute(const Int64s& positions, int64_t length, uint32_t high, uint32_t low,
             const Array<const uint32_t, 2>& keys, const Array<int64_t, 1>& out) {
    const bool fits =
        out.size() == positions.size() && keys.shape(1) == 2 && keys.shape(0) % 2 == 0;
    require(fits, "permute: sizes of arrays");
    const bool is_covered = low > 0 && high > 0 && uint64_t(high) * low >= uint64_t(length);
    require(length >= 0 && is_covered, "permute: high * low >= length");
    for (int64_t i = 0; i < positions.size(); ++i) {
        const bool is_inside = uint64_t(positions.data()[i]) < uint64_t(length);
        if (!is_inside) throw std::out_of_range("permute: a position is outside");
    }
    const core::Network network{length, high, low, keys.data(), keys.shape(0)};
    unlocked_if_long(positions.size(), [&] {
        core::permute(positions.data(), positions.size(), network, out.data());
    });
}

}  // namespace

void bind_random(nb::module_& module) {
    module.def("philox", philox);
    module.def("uniform", uniform);
    module.def("permute", permute);
}

}  // namespace door

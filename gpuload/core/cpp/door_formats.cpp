// The door to the formats of image files: see door.hpp.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "door.hpp"
#include "jpeg.hpp"
#include "lzw.hpp"
#include "png.hpp"
#include "scans.hpp"

namespace door {
namespace {

bool unfilter(const Bytes& rows, int64_t pixel_bytes, const Array<uint8_t, 2>& out) {
    const int64_t height = out.shape(0), row_bytes = out.shape(1);
    require(pixel_bytes > 0 && pixel_bytes <= row_bytes && row_bytes < INT32_MAX,
            "unfilter: sizes");
    const bool fits = rows.size() % (1 + row_bytes) == 0 && rows.size() / (1 + row_bytes) == height;
    require(fits, "unfilter: a filter and bytes a row");
    Release lock;
    return core::unfilter(rows.data(), height, row_bytes, pixel_bytes, out.data());
}

int64_t lzw_bytes(const Bytes& stream, int64_t enough) {
    Release lock;
    return core::lzw_bytes(core::Reader(stream.data(), size_t(stream.size())), enough);
}

std::pair<int64_t, int64_t> read_scans(const Bytes& file, int64_t frame, int64_t place,
                                       const std::vector<std::pair<int64_t, int64_t>>& segments,
                                       int64_t max_scans) {
    std::vector<core::Segment> settings;
    for (const auto& [marker, at] : segments) settings.push_back({marker, at});
    Release lock;
    const core::Scans scans =
        core::read_scans(file.data(), file.size(), frame, place, settings, max_scans);
    return {scans.number, scans.end};
}

// A row of zeros is a file that is refused, or longer than numbers of `heads` are.
void read_jpeg_heads(const Bytes& raw, const Int64s& begins, const Int64s& ends,
                     const Array<int32_t, 2>& heads) {
    check_rows(raw, begins, ends);
    require(heads.shape(0) == begins.size() && heads.shape(1) == 6,
            "read_jpeg_heads: six numbers a file");
    Release lock;
    for (int64_t i = 0; i < begins.size(); ++i) {
        const int64_t begin = begins.data()[i], size = ends.data()[i] - begin;
        core::JpegHead head{};
        if (size > INT32_MAX || !core::read_jpeg_head(raw.data() + begin, size, head)) head = {};
        const int64_t numbers[] = {head.height,   head.width,       head.scans,
                                   head.channels, head.orientation, head.scan_end};
        std::copy_n(numbers, 6, heads.data() + 6 * i);
    }
}

}  // namespace

void bind_formats(nb::module_& module) {
    module.def("lzw_bytes", lzw_bytes);
    module.def("unfilter", unfilter);
    module.def("read_scans", read_scans);
    module.def("read_jpeg_heads", read_jpeg_heads);
}

}  // namespace door

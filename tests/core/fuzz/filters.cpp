// Filters of PNG rows: undone beside a plain loop that says what they mean.
#include "../../../gpuload/core/cpp/png.hpp"

#include <algorithm>
#include <cstdlib>

#include "target.hpp"

namespace fuzz {
namespace {

int prediction(int filter, int left, int above, int corner) {
    const int estimate = left + above - corner;
    const int to_left = std::abs(estimate - left), to_above = std::abs(estimate - above), to_corner = std::abs(estimate - corner);
    switch (filter) {
        case 1: return left;
        case 2: return above;
        case 3: return (left + above) / 2;
        case 4: return to_left <= std::min(to_above, to_corner) ? left : to_above <= to_corner ? above : corner;
        default: return 0;
    }
}

}  // namespace

void filters(Input input) {
    const int64_t height = input.number(0, 20), row_bytes = input.number(1, 40), pixel_bytes = input.number(1, std::min<int64_t>(row_bytes, 8));
    const bool may_be_wrong = input.flag();
    Block<uint8_t> rows(size_t(height * (1 + row_bytes)));
    bool is_right = true;
    for (int64_t i = 0; i < rows.size(); ++i) {
        rows[i] = input.byte();
        if (i % (1 + row_bytes) != 0) continue;
        if (!may_be_wrong) rows[i] %= 5;
        is_right = is_right && rows[i] < 5;
    }
    Block<uint8_t> out(size_t(height * row_bytes));
    ensure(core::unfilter(rows.data(), height, row_bytes, pixel_bytes, out.data()) == is_right, "a filter is none of PNG's");
    for (int64_t y = 0; is_right && y < height; ++y)
        for (int64_t x = 0; x < row_bytes; ++x) {
            const auto at = [&](int64_t row, int64_t column) {
                return row < 0 || column < 0 ? 0 : int(out[row * row_bytes + column]);
            };
            const int64_t place = y * (1 + row_bytes);
            const int sum = rows[place + 1 + x] + prediction(rows[place], at(y, x - pixel_bytes), at(y - 1, x), at(y - 1, x - pixel_bytes));
            ensure(out[y * row_bytes + x] == uint8_t(sum), "a byte is its difference and what the filter says");
        }
}

}  // namespace fuzz

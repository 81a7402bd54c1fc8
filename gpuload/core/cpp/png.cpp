// PNG: see png.hpp. Assumes nothing of the bytes of rows.
#include "png.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace core {
namespace {

enum Filter { NONE, SUB, UP, AVERAGE, PAETH };

// Which of three bytes is the nearest to a + b - c; of two that are as near the first.
int paeth(int a, int b, int c) {
    const int to_a = std::abs(b - c), to_b = std::abs(a - c), to_c = std::abs(a + b - 2 * c);
    return to_a <= to_b && to_a <= to_c ? a : to_b <= to_c ? b : c;
}

// Adds `predict(left, above, above left)` to each byte of a row; left of the first pixel there is
// 0.
template <class Predict>
void add(const uint8_t* row, const uint8_t* above, int64_t row_bytes, int64_t pixel_bytes,
         uint8_t* out, const Predict& predict) {
    for (int64_t x = 0; x < pixel_bytes; ++x) out[x] = uint8_t(row[x] + predict(0, above[x], 0));
    for (int64_t x = pixel_bytes; x < row_bytes; ++x)
        out[x] = uint8_t(row[x] + predict(out[x - pixel_bytes], above[x], above[x - pixel_bytes]));
}

}  // namespace

bool unfilter(const uint8_t* rows, int64_t height, int64_t row_bytes, int64_t pixel_bytes,
              uint8_t* out) {
    const std::vector<uint8_t> zeros(size_t(row_bytes), 0);
    const uint8_t* above = zeros.data();
    for (int64_t y = 0; y < height; ++y, rows += 1 + row_bytes, out += row_bytes) {
        const uint8_t* const row = rows + 1;
        switch (rows[0]) {
            case NONE: std::copy_n(row, row_bytes, out); break;
            case SUB:
                add(row, above, row_bytes, pixel_bytes, out, [](int a, int, int) { return a; });
                break;
            case UP:
                for (int64_t x = 0; x < row_bytes; ++x) out[x] = uint8_t(row[x] + above[x]);
                break;
            case AVERAGE:
                add(row, above, row_bytes, pixel_bytes, out,
                    [](int a, int b, int) { return (a + b) / 2; });
                break;
            case PAETH: add(row, above, row_bytes, pixel_bytes, out, paeth); break;
            default: return false;
        }
        above = out;
    }
    return true;
}

}  // namespace core

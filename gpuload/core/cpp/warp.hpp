// Warp one image, as `ops.geometry.warp` defines it and equal to it bit for bit: each pixel of the
// result is taken from the image at a place of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "resize.hpp"

namespace core {

// The place in the image of each pixel of a result: a column and a row, in pixels. It may lie
// anywhere, and may be NaN.
class Places {
  public:
    virtual ~Places() = default;
    // Writes the places of row `y` of the result.
    virtual void write_row(int64_t y, float* columns, float* rows) = 0;
};

struct Matrix {  // six numbers of an affine map, or eight of a perspective
    const float* numbers;
    int64_t count;
};

class MatrixPlaces final : public Places {
  public:
    MatrixPlaces(const Matrix& matrix, int64_t height, int64_t width, int64_t new_height,
                 int64_t new_width);
    void write_row(int64_t y, float* columns, float* rows) override;

  private:
    // Each line of the matrix is a sum: line[0] * column + line[1] * row + line[2]. The first two
    // lines are places in halves of the image, the third divides them. The products with the
    // columns are the same for each row of the result.
    void write_line(int line, float row, float* to) const;

    bool is_affine_;
    int64_t count_;
    float half_[2], lines_[3][3], first_row_;
    std::vector<float> products_[3], divisors_;
};

struct Grid {  // a column and a row for each pixel of the result, row by row
    const float *columns, *rows;
};

class GridPlaces final : public Places {
  public:
    GridPlaces(const Grid& grid, int64_t new_width) : grid_(grid), count_(new_width) {}
    void write_row(int64_t y, float* columns, float* rows) override;

  private:
    Grid grid_;
    int64_t count_;
};

// Takes the nearest pixels. A pixel is `channels` bytes of any meaning; `fill` is one.
void warp_nearest(const Image<const uint8_t>& from, Places& places, const uint8_t* fill,
                  const Image<uint8_t>& to);

// Blends the four pixels about each place. `fill` has a number for each channel.
void warp_linear(const Image<const uint8_t>& from, Places& places, const float* fill,
                 const Image<uint8_t>& to);
void warp_linear(const Image<const uint16_t>& from, Places& places, const float* fill,
                 const Image<uint16_t>& to);
void warp_linear(const Image<const float>& from, Places& places, const float* fill,
                 const Image<float>& to);

}  // namespace core

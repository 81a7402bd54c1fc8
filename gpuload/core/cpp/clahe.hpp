// CLAHE: the histogram of each tile of an image made even within a limit, as `ops.colour.clahe`
// defines it and equal to it bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "resize.hpp"

namespace core {

constexpr int64_t MOST_TILED =
    1 << 30;  // a tile, with the pixels that are added to it, is counted in 32 bits

struct Tiling {
    int64_t rows, columns;  // of tiles, at least 1
    double limit;  // how many times its share of the pixels a level may have; finite, more than 0
};

// Makes images of at most MOST_TILED pixels whose tiles have even histograms, and has the memory
// for it.
class TileEqualizer {
  public:
    // Changes each channel by itself. `to` is other memory, of the size of `from`, without room
    // between its rows.
    void equalize(const Image<const uint8_t>& from, const Tiling& tiling, const Image<uint8_t>& to);
    void equalize(const Image<const uint16_t>& from, const Tiling& tiling,
                  const Image<uint16_t>& to);

    // Changes L of Lab of red, green and blue.
    void equalize_lightness(const Image<const uint8_t>& from, const Tiling& tiling,
                            const Image<uint8_t>& to);

  private:
    struct Axis {  // the tiles along one axis, of which those behind the last pixel are left out
        int64_t tile = 0, num_tiles = 0;
        std::vector<int64_t> sources;        // of each place in a tile: the pixel that stands there
        std::vector<int64_t> before, after;  // of each pixel: the two tiles about it,
        std::vector<float> share;            // and how much of the second

        void divide(int64_t length, int64_t tiles, bool are_whole);
    };

    void divide(int64_t height, int64_t width, const Tiling& tiling);
    template <class T>
    void equalize_channels(const Image<const T>& from, const Tiling& tiling, const Image<T>& to);
    template <class T>
    void make_curves(const T* plane, const Image<const T>& from, int64_t row, double limit,
                     T* curves);

    Axis down_, across_;
    std::vector<int32_t> counts_;
    std::vector<int64_t> begin_before_, begin_after_;
    std::vector<uint16_t> curves_;
    std::vector<uint8_t> planes_;
};

}  // namespace core

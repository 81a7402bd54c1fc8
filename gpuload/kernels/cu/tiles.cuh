// Tiles: the functions of CLAHE for kernels; those of one number are shared with the core.
#include "../../core/cpp/shared/tiles.hpp"

// The tiles of an image, those left out that lie behind all of its pixels: `height` and `width` of
// a tile, and how many.
struct Tiling { int height, width, rows, columns; };

__device__ inline Tiling tiling(const Image& image, int rows, int columns) {
    bool are_whole = image.height % rows == 0 && image.width % columns == 0;
    int height = tile_side(image.height, rows, are_whole);
    int width = tile_side(image.width, columns, are_whole);
    return {height, width, neighbours(image.height - 1, height, rows).after + 1,
        neighbours(image.width - 1, width, columns).after + 1};
}
__device__ inline int num_pixels(const Tiling& tiles) { return tiles.height * tiles.width; }

// The new value of a level: `up_to` values are at most the level where each level has no more than
// the limit.
__device__ inline float curve_at(const Tiling& tiles, int level, int up_to, int excess,
    int levels)
{
    int rest = excess % levels, step = levels / (rest ? rest : 1), ones = level / step + 1;
    int sum = up_to + excess / levels * (level + 1) + (ones < rest ? ones : rest);
    return level_after(sum, num_pixels(tiles), levels);
}
template <class Curve>
__device__ inline float between_tiles(const Image& image, const Curve* curves, int rows,
    int columns, int levels, int y, int x, int value)
{
    Tiling tiles = tiling(image, rows, columns);
    Neighbours<int> down = neighbours(y, tiles.height, rows);
    Neighbours<int> across = neighbours(x, tiles.width, columns);
    float values[4];
    for (int corner = 0; corner < 4; ++corner) {
        int row = corner / 2 ? down.after : down.before;
        int column = corner % 2 ? across.after : across.before;
        values[corner] = (float)curves[(Long)(row * tiles.columns + column) * levels + value];
    }
    return between(values, across.share, down.share, (float)(levels - 1));
}

// Sample: the value of an image at a place between pixels, see `ops.geometry.warp`; `pixels` are
// those of one channel.
#include "../../core/cpp/shared/places.hpp"

template <class Place, class Number>
__device__ inline Number nearest(const Place& image, const Number* pixels, float column, float row,
    Number fill)
{
    column = rintf(column), row = rintf(row);
    bool inside = column >= 0.0f && column < (float)image.width && row >= 0.0f
        && row < (float)image.height;
    return inside ? pixels[(int)row * image.down + (int)column * image.across] : fill;
}

template <class Place, class Number>
__device__ inline float linear(const Place& image, const Number* pixels, float column, float row,
    float fill)
{
    float total = 0.0f, weight = 0.0f;
    bool near = column > -1.0f && column < (float)image.width && row > -1.0f
        && row < (float)image.height;
    if (near) {
        Share across = share_of(column), down = share_of(row);
        int left = (int)floorf(column), top = (int)floorf(row);
        for (int corner = 0; corner < 4; ++corner) {
            int i = left + corner % 2, j = top + corner / 2;
            float part = (corner % 2 ? across.second : across.first)
                * (corner / 2 ? down.second : down.first);
            bool inside = i >= 0 && i < image.width && j >= 0 && j < image.height;
            float value = inside ? (float)pixels[j * image.down + i * image.across] : 0.0f;
            total = corner ? add_product(value, part, total) : value * part;
            weight = weight + (inside ? part : 0.0f);
        }
    }
    return over_fill(total, weight, fill);
}

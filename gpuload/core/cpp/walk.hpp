// Walk: crop, mirror, reorder axes and normalise in one pass over images, as `ops.walk.Walk` says.
#pragma once

#include <cstdint>

namespace core {

template <class In, class Out>
struct Walk {
    const In* images;
    int64_t stride;  // elements from image to image
    int64_t height, width, channels;
    bool in_planes, out_planes;  // CHW, else HWC
    int64_t count;               // of images
    const int32_t *start, *mirror;  // [count, 2]: top and left of each window; 1 where it is mirrored down, across
    In fill;
    const float *mean, *scale;  // [channels]; out = (value - mean) * scale, or the value itself where it is uint8
    Out* out;
    int64_t window_height, window_width;
};

void walk(const Walk<uint8_t, uint8_t>& walk);
void walk(const Walk<uint8_t, float>& walk);
void walk(const Walk<float, float>& walk);

}  // namespace core

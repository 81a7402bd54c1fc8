// Walk: crop, mirror, reorder axes and normalise in one pass over an image, as `kernels.walk.Walk`
// says.
#pragma once

#include <cstdint>
#include <vector>

namespace core {

template <class In, class Out>
struct Walk {  // what is the same for all images
    int64_t channels;
    bool in_planes, out_planes;  // CHW, else HWC
    In fill;
    const float *mean,
        *scale;  // [channels]; out = (value - mean) * scale, or the value itself where it is uint8
    int64_t window_height, window_width;

    int64_t out_size() const { return window_height * window_width * channels; }
};

// A walk that is ready to be made: what depends on no image is computed.
template <class In, class Out>
struct Walker {
    explicit Walker(const Walk<In, Out>& walk);

    int64_t channels, window_height, window_width;
    bool in_planes, out_planes;
    In fill;
    std::vector<float> mean, scale;  // of each channel
    std::vector<float> means,
        scales;  // of each value of a row; where the result has planes, of a row of each plane
    std::vector<Out> edge;  // what such a row is outside the image
};

template <class In>
struct Walked {
    const In* pixels;
    int64_t height, width;
    const int32_t *start,
        *mirror;  // [2]: top and left of the window; 1 where it is mirrored down, across
};

// Writes the window of an image.
void walk(const Walker<uint8_t, uint8_t>& walker, const Walked<uint8_t>& image, uint8_t* out);
void walk(const Walker<uint8_t, float>& walker, const Walked<uint8_t>& image, float* out);
void walk(const Walker<float, float>& walker, const Walked<float>& image, float* out);

}  // namespace core

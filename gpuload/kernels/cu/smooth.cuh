// Smooth: the mean of the 3 x 3 pixels about each, of which the middle one weighs 5.
#include "colour.cuh"

__device__ inline bool is_edge(const Image& image, int y, int x) {
    return y == 0 || x == 0 || y == image.height - 1 || x == image.width - 1;
}
__device__ inline float smooth(const Image& image, int y, int x, int channel) {
    float total = 0.0f;
    int whole = 0;
    #pragma unroll 1
    for (int place = 0; place < 9; ++place) {
        float part = (float)at(image, y + place / 3 - 1, x + place % 3 - 1, channel);
        whole += (place == 4 ? 5 : 1) * (IS_BYTES ? (int)part : 0);
        part = part * (place == 4 ? (float)(5.0 / 13) : (float)(1.0 / 13));
        total = place ? total + part : part;
    }
    return IS_BYTES ? (float)smooth_of(whole) : total;
}
__device__ inline float sharpened_at(const Image& image, int y, int x, int channel, float weight) {
    float middle = (float)at(image, y, x, channel);
    if (image.height < 3 || image.width < 3) return middle;
    if (is_edge(image, y, x)) return within(middle);
    return cut(within(sharpened(middle, smooth(image, y, x, channel), weight)));
}

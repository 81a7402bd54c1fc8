// Warp: one thread for each number of a result, see `ops.geometry.warp`. The struct is the dtype
// `warp.IMAGE`; `Pixel` is a number of an image, with NEAREST one of any meaning, and so is `Fill`.
#include "head.cuh"
#include "sample.cuh"

struct Image {
    Long address, down, across, deep, out;
    int height, width, new_height, new_width, channels, is_same;
    float matrix[8];
};

extern "C" __global__ void warp(const Image* images, const Fill* fills, Pixel* out, int is_affine,
    int blocks)
{
    const Image& image = images[blockIdx.x / blocks];
    unsigned number = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (number >= (unsigned)image.new_height * image.new_width * image.channels) return;
    int channel = number % image.channels, x = number / image.channels % image.new_width;
    int y = number / image.channels / image.new_width;
    const Pixel* pixels = (const Pixel*)image.address + channel * image.deep;
    Pixel* to = out + image.out + number;
    if (image.is_same) {
        *to = pixels[y * image.down + x * image.across];
        return;
    }
    float half[] = {(float)image.width * 0.5f, (float)image.height * 0.5f};
    float places[2], divisor = 1.0f;
    float across = (float)x + first_place(image.new_width, is_affine);
    float down = (float)y + first_place(image.new_height, is_affine);
    const float* last = image.matrix + 6;
    if (!is_affine) divisor = line_sum(across * last[0], (double)down * (double)last[1], 1.0f);
    for (int axis = 0; axis < 2; ++axis) {
        const float* line = image.matrix + 3 * axis;
        float side = half[axis];
        float place = line_sum(
            across * (line[0] / side), (double)down * (double)(line[1] / side), line[2] / side);
        if (!is_affine) place = place / divisor - 1.0f;
        places[axis] = to_pixels(place, (double)side);
    }
#ifdef NEAREST
    *to = nearest(image, pixels, places[0], places[1], fills[channel]);
#else
    store(to, linear(image, pixels, places[0], places[1], fills[channel]));
#endif
}

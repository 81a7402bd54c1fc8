// Pixel, of kernels over images of any sizes, which `kernels.pixels` launches.
//
//   In, Out               a number of an image, and of a result
//   CHANNELS, OUT_CHANNELS
//   Stats                 the struct behind `stats`: of `gather`, or of another kernel; `step` from
//                         image to image
//   words, table          numbers of each image, in words of four bytes; numbers for all images
struct Image {
    Long address, down, across, deep, out;
    int height, width, new_height, new_width;
};

__device__ inline In at(const Image& image, int y, int x, int channel) {
    return ((const In*)image.address)[y * image.down + x * image.across + channel * image.deep];
}
__device__ inline float number(int word) { return __int_as_float(word); }

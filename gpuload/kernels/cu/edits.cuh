// Edits: the functions that the kernels of `edits_cuda` share. COUNTING and LOOK_UPS have a bit for
// each code.
#include "head.cuh"
#include "../../core/cpp/shared/edits.hpp"
#include "../../core/cpp/shared/lab.hpp"
#include "../../core/cpp/shared/pillow.hpp"
#include "pixel.cuh"
#include "colour.cuh"
#include "tiles.cuh"

enum { RGB = 3 };  // channels

// An image in a turn: where its edit begins, less than 0 for none; and the images of its chains,
// side by side. The struct is the dtype `edits_cuda.EDITED`.
struct Edited : Image { Long edit; const unsigned char* chains; };

__device__ inline Code code_of(const Edited& image, const double* edits) {
    return image.edit < 0 ? Code::SKIP : (Code)(int)edits[image.edit];
}
__device__ inline bool is_among(int codes, Code code) { return codes >> (int)code & 1; }
__device__ inline Tiling tiling(const Image& image, const double* numbers) {
    return tiling(image, (int)numbers[1], (int)numbers[2]);
}
__device__ inline Levels levels_of(const float* color) {
    return {(int)color[0], (int)color[1], (int)color[2]};
}
__device__ inline int pillow_gray(const float* color) {
    return CHANNELS == 1 ? (int)color[0]
        : pillow::gray_of((int)color[0], (int)color[1], (int)color[2]);
}
__device__ inline float pillow_blend(float base, float value, float factor) {
    return floorf(pillow::mixed(base, value, factor));
}

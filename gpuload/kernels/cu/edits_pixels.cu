// One thread for each pixel of a result: the edit of its image in this turn.
#include "edits.cuh"
#include "pillow.cuh"
#include "smooth.cuh"

typedef unsigned char Stats;

__device__ inline void blend_tiles(const Image& image, const double* numbers, int y, int x,
    const Stats* stats, const LabTables* tables, Out* to)
{
    int rows = (int)numbers[1], columns = (int)numbers[2];
    Tiling tiles = tiling(image, rows, columns);
    float color[NUMBERS];
    read(image, y, x, color);
    if (CHANNELS == RGB) {
        Lab lab = to_lab(*tables, levels_of(color));
        lab.lightness = (int)between_tiles(image, stats, rows, columns, 256, y, x, lab.lightness);
        Levels levels = from_lab(*tables, lab);
        to[0] = (Out)levels.red, to[1] = (Out)levels.green, to[2] = (Out)levels.blue;
        return;
    }
    for (int channel = 0; channel < CHANNELS; ++channel) {
        const Stats* curves = stats + (Long)channel * tiles.rows * tiles.columns * 256;
        int value = (int)color[channel];
        to[channel] = (Out)between_tiles(image, curves, rows, columns, 256, y, x, value);
    }
}
__device__ inline float blurred(const Image& image, const double* numbers, int y, int x,
    int channel)
{
    int down = (int)numbers[0], across = (int)numbers[1];
    float total = 0.0f;
    for (int i = 0; i < across; ++i) {
        int column = mirrored(x + i - across / 2, image.width);
        float sum = 0.0f;
        #pragma unroll 1
        for (int j = 0; j < down; ++j) {
            int row = mirrored(y + j - down / 2, image.height);
            float part = (float)at(image, row, column, channel) * (float)numbers[2 + j];
            sum = j ? sum + part : part;
        }
        float part = sum * (float)numbers[2 + down + i];
        total = i ? total + part : part;
    }
    return rounded_to(total, 255.0f);
}
__device__ inline void take_blur(const Image& image, Code code, const double* numbers, int y, int x,
    Out* to)
{
    #pragma unroll 1
    for (int channel = 0; channel < CHANNELS; ++channel) {
        if (code == Code::BLUR) to[channel] = (Out)blurred(image, numbers, y, x, channel);
        else to[channel] = (Out)pillow_blurred(image, numbers, y, x, channel);
    }
}
__device__ inline void copy(const Image& image, int y, int x, Out* to) {
    for (int channel = 0; channel < CHANNELS; ++channel) to[channel] = at(image, y, x, channel);
}
// The sum of chains: of each its weight, the count of its numbers, and these.
__device__ inline float mix(const Edited& image, const double* numbers, int y, int x, int channel) {
    int count = (int)numbers[1];
    Long size = (Long)image.height * image.width * CHANNELS;
    Long place = ((Long)y * image.width + x) * CHANNELS + channel;
    float total = 0.0f;
    numbers += 2;
    for (int chain = 0; chain < count; ++chain) {
        total = total + (float)image.chains[chain * size + place] * (float)numbers[0];
        numbers += 2 + (int)numbers[1];
    }
    return floorf(within(total));
}
__device__ inline void pixel(const Edited& image, const double* edits, int y, int x,
    const Stats* stats, const LabTables* tables, Out* to)
{
    Code code = code_of(image, edits);
    if (code == Code::SKIP) return copy(image, y, x, to);
    const double* numbers = edits + image.edit + 2;
    if (code == Code::PIL_AFFINE) return take_affine(image, numbers, y, x, to);
    if (code == Code::CLAHE) return blend_tiles(image, numbers, y, x, stats, tables, to);
    if (code == Code::PIL_TURN) {
        int turn = (int)numbers[0];
        return copy(image, pillow::turned_row(turn, y, x, image.height),
            pillow::turned_column(turn, y, x, image.width), to);
    }
    if (code == Code::BLUR || code == Code::PIL_BLUR)
        return take_blur(image, code, numbers, y, x, to);
    float color[NUMBERS], factor = (float)numbers[0], base = 0.0f;
    read(image, y, x, color);
    if (code == Code::HUE && CHANNELS == RGB) turn(color, factor);
    if (code == Code::GRAY || code == Code::SATURATION) base = gray(color);
    if (code == Code::PIL_SATURATION) base = (float)pillow_gray(color);
    bool is_inside = image.height >= 3 && image.width >= 3 && !is_edge(image, y, x);
    for (int channel = 0; channel < CHANNELS; ++channel) {
        float value = color[channel];
        if (is_among(LOOK_UPS, code)) value = (float)stats[256 * channel + (int)value];
        if (code == Code::GRAY) value = base;
        if (code == Code::SATURATION && CHANNELS == RGB)
            value = blend(value, base, factor, (float)numbers[1]);
        if (code == Code::PIL_SATURATION && CHANNELS == RGB)
            value = pillow_blend(base, value, factor);
        if (code == Code::SHARPNESS) value = sharpened_at(image, y, x, channel, factor);
        if (code == Code::PIL_SHARPNESS && is_inside)
            value = pillow_blend(smooth(image, y, x, channel), value, factor);
        if (code == Code::PIL_MIX)
            value = pillow_blend(value, mix(image, numbers, y, x, channel), factor);
        to[channel] = (Out)value;
    }
}
extern "C" __global__ void edit(const Edited* images, const double* edits, const Stats* stats,
    Long step, const LabTables* tables, Out* out, int blocks)
{
    Long row = blockIdx.x / blocks;
    const Edited& image = images[row];
    unsigned place = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    if (place >= (unsigned)image.new_height * image.new_width) return;
    pixel(image, edits, place / image.new_width, place % image.new_width, stats + row * step,
        tables, out + (image.out + place) * CHANNELS);
}

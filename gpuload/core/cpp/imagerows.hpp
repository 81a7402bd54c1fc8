// Rows of images: each file is decoded, resized, and walked over while it lies in the cache, into its row of a batch.
// `executors.array.stages.ImageStage` says what each step means; codec, resize and walk have files of their own.
#pragma once

#include <cstdint>

#include "codec.hpp"
#include "taps.hpp"

namespace core {

struct Files {
    const uint8_t* raw;
    const int64_t *begins, *ends;
    const int32_t* heads;    // [count, 6], as `read_jpeg_head` makes them
    const int32_t* regions;  // [count, 4]: top, left, height, width in the upright image; nullptr for all of each
    int64_t count;
};

struct Resizing {
    const int32_t* boxes;  // [count, 4]: of what was decoded; nullptr: nothing is resized
    const int32_t* sizes;  // [count, 2]: height and width of the result
    Filter filter;
};

template <class Out>
struct Walking {
    const int32_t *start, *mirror;  // [count, 2]; see `Walk`. nullptr: there is no walk, and Out is uint8_t
    uint8_t fill;
    const float *mean, *scale;
    bool out_planes;
    int64_t height, width;  // of the result
};

// Writes image i to `out + i * height * width * 3` and 0 to `declined[i]`, or nothing and 1.
//
// Assumes: the bytes of each file can be read. Heads, regions, boxes and sizes are compared with each other, with the files and
// with the result: a row is declined if they do not fit.
template <class Out>
void make_rows(Codec& codec, const Files& files, const Resizing& resizing, const Walking<Out>& walking, Out* out,
               int8_t* declined);

}  // namespace core

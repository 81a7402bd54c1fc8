// Rows of images: each is decoded, resized, edited, and walked over while it lies in the cache, into its row of a batch.
// `executors.array.stages.ImageStage` is the meaning of each step; codec, resize, edit and walk have files of their own.
#pragma once

#include <cstdint>
#include <memory>

#include "codec.hpp"
#include "edit.hpp"
#include "makers.hpp"
#include "taps.hpp"

namespace core {

struct Files {
    const uint8_t* raw;
    const int64_t *begins, *ends;
    const int32_t* heads;    // [count, 6], as `read_jpeg_head` makes them
    const int32_t* regions;  // [count, 4]: top, left, height, width in the upright image; nullptr for all of each
    int64_t count;
};

struct Pixels {  // of an image of three channels, side by side
    const uint8_t* data;
    int64_t height, width;
};

struct Resizing {
    const int32_t* boxes;  // [count, 4]: in each image, or in its decoded region; nullptr: nothing is resized
    const int32_t* sizes;  // [count, 2]: height and width of the result
    Filter filter;
};

template <class Out>
struct Walking {
    const int32_t *start, *mirror;  // [count, 2]; see `Walk`. nullptr: there is no walk, and Out is uint8_t
    uint8_t fill;
    const float *mean, *scale;  // of three channels; they do not change uint8_t
    bool out_planes;
    int64_t height, width;  // of the result
};

struct Editing {  // edits of the result of a walk, before a second walk
    const double* numbers;  // [count, num_numbers]; nullptr: there are none
    int64_t num_numbers;
    Walking<uint8_t> window;
};

template <class Out>
struct Making {  // the work on images, in this order; the edits begin with a walk of their own
    Resizing resizing;
    Editing editing;
    Walking<Out> walking;
};

struct Room {  // memory for the pixels of an image
    uint8_t* data;
    int64_t size;
};

// Writes the pixels of image i to `rooms[i]` and 0 to `declined[i]`, or nothing and 1. Returns the time that decoding took, ns.
//
// Assumes: the bytes of each file can be read. An image that does not fill its room is declined.
int64_t decode_rows(Codec& codec, const Files& files, const Room* rooms, int8_t* declined);

// Writes image i to `out + i * height * width * 3` and 0 to `declined[i]`, or nothing and 1. Returns the time that decoding
// took, ns.
//
// Assumes: the bytes of each file can be read, and the edits are edits of images as large as the window before them. Heads,
// regions, boxes and sizes are compared with each other, with the files and with the result: a row is declined if they do not
// fit.
template <class Out>
int64_t make_rows(Codec& codec, const Files& files, const Making<Out>& making, Out* out, int8_t* declined);

// The same of images that are decoded, without a time.
template <class Out>
void make_rows(const Pixels* images, int64_t count, const Making<Out>& making, Out* out, int8_t* declined);

// Returns what does the same while images are read that are `height` high and `width` wide: image i for row i. It copies all
// numbers of `making`, which are those of `count` images.
template <class Out>
std::unique_ptr<Maker> image_maker(const Making<Out>& making, int64_t count, int64_t height, int64_t width);

}  // namespace core

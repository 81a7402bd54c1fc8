// Rows of images: each is decoded, and goes through all steps while it lies in the cache, into its
// row of a batch.
//
// `executors.array.imagestage.ImageStage` is the meaning of each step; codec, resize, edit and walk
// have files of their own. Sizes and places of one image are compared with each other before they
// are used: an image that does not fit them is declined.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "codec.hpp"
#include "edit.hpp"
#include "makers.hpp"
#include "taps.hpp"

namespace core {

struct Files {
    const uint8_t* raw;
    const int64_t *begins, *ends;
    const int32_t* heads;  // [count, 6], as `read_jpeg_head` makes them
    // [count, 4]: top, left, height, width in the upright image; nullptr for all of each.
    const int32_t* regions;
    int64_t count;
};

struct Pixels {  // of an image, channels side by side
    const uint8_t* data;
    int64_t height, width;
};

struct Resizing {  // of a box of each image
    // [count, 4]: top, left, height, width; [count, 2]: height and width of the result.
    std::vector<int32_t> boxes, sizes;
    std::vector<float> table;  // of the filter, see `Filter`; empty: the nearest pixels are taken
    float width;
    bool antialias;
};

struct Editing {
    std::vector<double> numbers;  // [count, num_numbers], see edit.hpp
    int64_t num_numbers;
};

struct Walking {
    std::vector<int32_t> start, mirror;  // [count, 2], see `Walk`
    std::vector<int32_t> sizes;  // [count, 2]: height and width of each window, or [2]: of all
    std::vector<uint8_t> fill;   // of each channel, outside the image

    // Whether the fill is one number: else the result is bytes, HWC.
    bool has_one_fill() const {
        return std::count(fill.begin(), fill.end(), fill.front()) == int64_t(fill.size());
    }
    const int32_t* size(int64_t i) const { return sizes.data() + (sizes.size() == 2 ? 0 : 2 * i); }
};

using Step = std::variant<Resizing, Editing, Walking>;

struct Visit {  // steps that images of bytes go through
    int64_t count, channels;
    std::vector<Step> steps;
    // Of each channel: the last step, a walk, writes (value - mean) * scale where it writes floats.
    std::vector<float> mean, scale;
    bool out_planes = false;  // the last step, a walk, writes CHW, else HWC
};

template <class Out>
struct Room {  // memory for an image
    Out* data;
    int64_t height, width;
};

// Writes image i to `rooms[i]` and 0 to `declined[i]`, or anything and 1. Returns the time that
// decoding took, ns. Images have the channels of the visit: one are the grays of red, green and
// blue, and of four the last is opaque.
//
// Assumes: the bytes of each file can be read; the visit is of `files.count` images, and its last
// step is a walk of one fill if Out is float or the result has planes. Heads, regions, boxes, sizes
// and edits are compared with each other, with the files and with the rooms.
template <class Out>
int64_t make_rows(Codec& codec, const Files& files, const Visit& visit, const Room<Out>* rooms,
                  int8_t* declined);

// The same of images that are decoded, without a time.
template <class Out>
void make_rows(const Pixels* images, const Visit& visit, const Room<Out>* rooms, int8_t* declined);

// Returns a maker that does the same while images are read that have the height and width of
// `image`: image i for row i, which is as large as `row`.
template <class Out>
std::unique_ptr<Maker> image_maker(Visit visit, const Box& image, const Box& row);

}  // namespace core

// Planes: values of pixels of three channels put side by side, or taken apart.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "clones.hpp"
#include "shuffle.hpp"

namespace core {

// Third `part` of 16 pixels of three bytes, of which each comes from a plane of its own.
template <int part, bool mirrored>
struct FirstPlanes {  // from planes 0 and 1; the places of plane 2 hold anything
    static constexpr int plane(size_t place) { return int(16 * part + place) % 3; }
    static constexpr int column(size_t place) {
        const int column = int(16 * part + place) / 3;
        return mirrored ? 15 - column : column;
    }
    static constexpr int of(size_t place) {
        return plane(place) == 1 ? 16 + column(place) : column(place);
    }
};

template <int part, bool mirrored>
struct LastPlane {  // from the pixels of the first two planes, and plane 2
    using First = FirstPlanes<part, mirrored>;
    static constexpr int of(size_t place) {
        return First::plane(place) == 2 ? 16 + First::column(place) : int(place);
    }
};

template <int part, bool mirrored>
INLINE void interleave_third(uint8_t* to, Bytes16 red, Bytes16 green, Bytes16 blue) {
    const Bytes16 two = shuffle_bytes<FirstPlanes<part, mirrored>>(red, green);
    const Bytes16 pixels = shuffle_bytes<LastPlane<part, mirrored>>(two, blue);
    std::memcpy(to + 16 * part, &pixels, 16);
}

template <bool mirrored, class In>
INLINE void interleave(In* __restrict to, const In* __restrict red, int64_t plane, int64_t count) {
    const In *green = red + plane, *blue = green + plane;
    int64_t x = 0;
    if constexpr (std::is_same_v<In, uint8_t>)
        for (; x + 16 <= count; x += 16) {
            const int64_t column = mirrored ? count - 16 - x : x;
            Bytes16 reds, greens, blues;
            std::memcpy(&reds, red + column, 16);
            std::memcpy(&greens, green + column, 16);
            std::memcpy(&blues, blue + column, 16);
            interleave_third<0, mirrored>(to + 3 * x, reds, greens, blues);
            interleave_third<1, mirrored>(to + 3 * x, reds, greens, blues);
            interleave_third<2, mirrored>(to + 3 * x, reds, greens, blues);
        }
    for (; x < count; ++x) {
        const int64_t column = mirrored ? count - 1 - x : x;
        to[3 * x] = red[column];
        to[3 * x + 1] = green[column];
        to[3 * x + 2] = blue[column];
    }
}

// Copies the values of three planes, `plane` apart, side by side, the last pixel first if they are
// mirrored.
template <class In>
INLINE void interleave(In* to, const In* red, int64_t plane, int64_t count, bool mirrored) {
    if (mirrored)
        interleave<true>(to, red, plane, count);
    else
        interleave<false>(to, red, plane, count);
}

// Byte 3 * place + channel of the 48 that 16 pixels are: from the first 32, then from the others.
template <int channel>
struct FirstPixels {
    static constexpr int byte(size_t place) { return int(3 * place) + channel; }
    static constexpr int of(size_t place) { return byte(place) < 32 ? byte(place) : 0; }
};

template <int channel>
struct LastPixels {
    using First = FirstPixels<channel>;
    static constexpr int of(size_t place) {
        return First::byte(place) < 32 ? int(place) : First::byte(place) - 16;
    }
};

template <int channel>
INLINE void split_third(const Bytes16* pixels, uint8_t* to) {
    const Bytes16 first = shuffle_bytes<FirstPixels<channel>>(pixels[0], pixels[1]);
    const Bytes16 values = shuffle_bytes<LastPixels<channel>>(first, pixels[2]);
    std::memcpy(to, &values, 16);
}

// Puts the values of pixels into three planes, `plane` apart.
INLINE void split_bytes(uint8_t* __restrict to, const uint8_t* __restrict pixels, int64_t plane,
                        int64_t count) {
    int64_t x = 0;
    for (; x + 16 <= count; x += 16) {
        Bytes16 thirds[3];
        std::memcpy(thirds, pixels + 3 * x, sizeof thirds);
        split_third<0>(thirds, to + x);
        split_third<1>(thirds, to + plane + x);
        split_third<2>(thirds, to + 2 * plane + x);
    }
    for (; x < count; ++x)
        for (int64_t c = 0; c < 3; ++c) to[c * plane + x] = pixels[3 * x + c];
}

}  // namespace core

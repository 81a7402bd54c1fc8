// Look-up: see lookup.hpp.
//
// Assumes: image and result have the sizes that are said; the Python face checked it.
//
// Processors with AVX-512 VBMI look up 64 values at once, in tables that lie in registers: some
// eight times as many as one by one.
#include "lookup.hpp"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_PERMUTES 1
#define PERMUTES __attribute__((target("avx512f,avx512bw,avx512vbmi")))
#endif

namespace core {
namespace {

#ifdef HAS_PERMUTES

constexpr int64_t WIDTH = 64;  // bytes of a register

struct Table {
    __m512i parts[4];
};

PERMUTES inline Table table_of(const uint8_t* bytes) {
    Table table;
    for (int part = 0; part < 4; ++part)
        table.parts[part] = _mm512_loadu_si512(bytes + WIDTH * part);
    return table;
}

// A permutation takes seven bits of a value; the eighth says which half of the table it is.
PERMUTES inline __m512i values_of(const Table& table, __m512i values) {
    const __m512i low = _mm512_permutex2var_epi8(table.parts[0], values, table.parts[1]);
    const __m512i high = _mm512_permutex2var_epi8(table.parts[2], values, table.parts[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(values), low, high);
}

// Returns how many values were looked up, the first ones.
PERMUTES int64_t look_up_registers(const uint8_t* image, int64_t count, const uint8_t* bytes,
                                   uint8_t* out) {
    const Table table = table_of(bytes);
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH)
        _mm512_storeu_si512(out + i, values_of(table, _mm512_loadu_si512(image + i)));
    return i;
}

// The same for three channels: which channel a byte of a register is of repeats after three
// registers.
PERMUTES int64_t look_up_registers_of_rgb(const uint8_t* image, int64_t count, const uint8_t* bytes,
                                          uint8_t* out) {
    const Table red = table_of(bytes), green = table_of(bytes + 256), blue = table_of(bytes + 512);
    __mmask64 greens[3] = {}, blues[3] = {};
    for (int number = 0; number < 3; ++number)
        for (int place = 0; place < WIDTH; ++place) {
            const int channel = int((WIDTH * number + place) % 3);
            greens[number] |= __mmask64(channel == 1) << place;
            blues[number] |= __mmask64(channel == 2) << place;
        }
    int64_t i = 0;
    for (; i + 3 * WIDTH <= count; i += 3 * WIDTH)
        for (int number = 0; number < 3; ++number) {
            const __m512i values = _mm512_loadu_si512(image + i + WIDTH * number);
            const __m512i two = _mm512_mask_blend_epi8(greens[number], values_of(red, values),
                                                       values_of(green, values));
            _mm512_storeu_si512(
                out + i + WIDTH * number,
                _mm512_mask_blend_epi8(blues[number], two, values_of(blue, values)));
        }
    return i;
}

// Known before threads begin: a function's own static would have a lock, which a fork may leave
// locked.
const bool has_permutes =
    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi");

int64_t look_up_first(const uint8_t* image, int64_t pixels, int64_t channels, const uint8_t* tables,
                      uint8_t* out) {
    if (!has_permutes || (channels != 1 && channels != 3)) return 0;
    return channels == 1 ? look_up_registers(image, pixels, tables, out)
                         : look_up_registers_of_rgb(image, 3 * pixels, tables, out) / 3;
}

#else

int64_t look_up_first(const uint8_t*, int64_t, int64_t, const uint8_t*, uint8_t*) { return 0; }

#endif

}  // namespace

void look_up(const uint8_t* image, int64_t pixels, int64_t channels, const uint8_t* tables,
             uint8_t* out) {
    const int64_t begin =
        look_up_first(image, pixels, channels, tables, out);  // pixels that are done
    if (channels == 1) {
        for (int64_t i = begin; i < pixels; ++i) out[i] = tables[image[i]];
    } else if (channels == 3) {
        for (int64_t i = 3 * begin; i < 3 * pixels; i += 3) {
            out[i] = tables[image[i]];
            out[i + 1] = tables[256 + image[i + 1]];
            out[i + 2] = tables[512 + image[i + 2]];
        }
    } else {
        for (int64_t i = 0; i < pixels; ++i)
            for (int64_t c = 0; c < channels; ++c)
                out[i * channels + c] = tables[256 * c + image[i * channels + c]];
    }
}

}  // namespace core

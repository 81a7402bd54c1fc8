"""Colours on a GPU: the functions of `kernels.colour` for images of any sizes, by a few kernels.

They make the same numbers bit for bit, but for sums of float32 over an image, which have another
order. Each takes images for which `pixels.reads` is True, ``[N, H, W, C]`` or a list, and one
number for each image.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import colour, colour_pillow, cuda, tables
from gpuload.kernels.colour import BLUE, GREEN, RED
from gpuload.kernels.pixels import Pixels, constants
from gpuload.kernels.tables import ALMOST_HALF

Numbers = NDArray[Any]
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
NO_STEP, MOST_STEPS = -1, 4
RED_SHARE, GREEN_SHARE, BLUE_SHARE = (
    f"{colour.GRAY[channel]!r}f" for channel in (RED, GREEN, BLUE)
)

FUNCTIONS = f"""
enum {{ IS_BYTES = sizeof(In) == 1, NUMBERS = CHANNELS < 3 ? 3 : CHANNELS }};

__device__ inline float within(float value) {{
    float largest = IS_BYTES ? 255.0f : 1.0f;
    return value < 0.0f ? 0.0f : value > largest ? largest : value;
}}
__device__ inline float bounded(float value) {{ return IS_BYTES ? floorf(within(value)) : within(value); }}
__device__ inline float blend(float value, float base, float factor, float weight) {{
    return bounded((float)((double)(value * factor) + (double)base * (double)weight));
}}
__device__ inline float gray(const float* color) {{
    if (CHANNELS == 1) return color[0];
    float total = color[0] * {RED_SHARE};
    total = (float)((double)total + (double)color[1] * (double){GREEN_SHARE});
    total = (float)((double)total + (double)color[2] * (double){BLUE_SHARE});
    return IS_BYTES ? floorf(total) : total;
}}
__device__ inline float unit(float value) {{ return IS_BYTES ? value * (float)(1.0 / 255) : value; }}
__device__ inline float from_unit(float value) {{ return IS_BYTES ? floorf(value * {colour.LEVELS!r}f) : value; }}
__device__ inline float limited(float value) {{ return value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value; }}

__device__ inline void turn_hue(float* color, float shift) {{
    float red = unit(color[0]), green = unit(color[1]), blue = unit(color[2]);
    float high = fmaxf(fmaxf(red, green), blue), low = fminf(fminf(red, green), blue), span = high - low;
    bool is_gray = high == low;
    float saturation = span / (is_gray ? 1.0f : high), divisor = is_gray ? 1.0f : span;
    float reds = (high - red) / divisor, greens = (high - green) / divisor, blues = (high - blue) / divisor;
    float turns = high == red ? blues - greens : high == green ? (reds + 2.0f) - blues : (greens + 4.0f) - reds;
    turns = turns * (float)(1.0 / 6) + 1.0f;
    turns = turns - truncf(turns);
    turns = turns + shift;
    turns = turns - truncf(turns);
    turns = turns < 0.0f ? turns + 1.0f : turns;
    float six = turns * 6.0f, sector = floorf(six), rest = six - sector;
    float ramp = saturation * rest, pale = 1.0f - saturation;
    float falling = limited((1.0f - ramp) * high), rising = limited((ramp + pale) * high), least = limited(pale * high);
    int side = sector > 0.0f && sector < 6.0f ? (int)sector : 0;
    color[0] = from_unit(side == 0 || side == 5 ? high : side == 1 ? falling : side == 4 ? rising : least);
    color[1] = from_unit(side == 1 || side == 2 ? high : side == 0 ? rising : side == 3 ? falling : least);
    color[2] = from_unit(side == 3 || side == 4 ? high : side == 2 ? rising : side == 5 ? falling : least);
}}
__device__ inline void read(const Image& image, int y, int x, float* color) {{
    for (int channel = 0; channel < CHANNELS; ++channel) color[channel] = (float)at(image, y, x, channel);
}}
"""

# `words` has the steps in order, the number of each, and 1 minus it where it is a factor.
STEPS = f"""
struct Stats {{ double total; }};

__device__ inline void take_step(float* color, int step, float amount, float weight, float mean) {{
    if (step == {HUE}) {{
        if (CHANNELS == 3) turn_hue(color, amount);
        return;
    }}
    float base = step == {CONTRAST} ? mean : step == {SATURATION} ? gray(color) : 0.0f;
    for (int channel = 0; channel < CHANNELS; ++channel)
        if (step == {BRIGHTNESS}) color[channel] = bounded(color[channel] * amount);
        else if (step == {CONTRAST} || (step == {SATURATION} && CHANNELS == 3))
            color[channel] = blend(color[channel], base, amount, weight);
}}
"""
GRAY_SUMS = f"""{FUNCTIONS}{STEPS}
__device__ inline Stats start(const Image& image, const Stats* before) {{ return {{0.0}}; }}
__device__ inline void merge(Stats& sum, const Stats& part) {{ sum.total += part.total; }}
__device__ inline void add(Stats& sum, const Image& image, int y, int x, const int* words) {{
    float color[NUMBERS];
    read(image, y, x, color);
    for (int turn = 0; turn < {MOST_STEPS} && words[turn] != {CONTRAST}; ++turn)
        take_step(color, words[turn], number(words[turn + {MOST_STEPS}]), number(words[turn + {2 * MOST_STEPS}]), 0.0f);
    sum.total += (double)gray(color);
}}
"""
STEP_PIXEL = f"""{FUNCTIONS}{STEPS}
__device__ inline void merge(Stats& sum, const Stats& part) {{ sum.total += part.total; }}
{cuda.WHOLE}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    float color[NUMBERS], mean = 0.0f;
    if (stats) mean = (float)whole(stats).total / (float)(image.height * image.width);
    read(image, y, x, color);
    for (int turn = 0; turn < {MOST_STEPS}; ++turn)
        take_step(color, words[turn], number(words[turn + {MOST_STEPS}]), number(words[turn + {2 * MOST_STEPS}]), mean);
    for (int channel = 0; channel < CHANNELS; ++channel) to[channel] = (Out)color[channel];
}}
"""

# Ops on each value by itself: `changed` is the new value where `words` begins with 1.
TONE_PIXEL = """
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    for (int channel = 0; channel < CHANNELS; ++channel) {
        float value = (float)at(image, y, x, channel);
        to[channel] = (Out)(words[0] ? changed(value, channel, words + 1, stats) : value);
    }
}
"""
NO_STATS = f"{FUNCTIONS}typedef int Stats;\n"
CHANGED = "\n__device__ inline float changed(float value, int channel, const int* words, const Stats* stats)"
INVERSE = "((IS_BYTES ? 255.0f : 1.0f) - value)"
INVERT = f"{NO_STATS}{CHANGED} {{ return {INVERSE}; }}\n{TONE_PIXEL}"
SOLARIZE = (
    f"{NO_STATS}{CHANGED} {{ return value >= number(words[0]) ? {INVERSE} : value; }}\n{TONE_PIXEL}"
)
POSTERIZE = f"""{NO_STATS}{CHANGED} {{
    float steps = number(words[0]);
    if (IS_BYTES) return (float)((int)value & (256 - 256 / (int)steps));
    float step = floorf(value * steps);
    step = step > 0.0f ? step : 0.0f;
    return (step < steps - 1.0f ? step : steps - 1.0f) * number(words[1]);
}}
{TONE_PIXEL}"""
CONTRAST_ABOUT = f"""{NO_STATS}{CHANGED} {{
    float factor = number(words[0]), middle = number(words[1]);
    float result = value * factor + (middle - factor * middle);
    return IS_BYTES ? floorf(within(result) + {ALMOST_HALF!r}f) : result;
}}
{TONE_PIXEL}"""
POWER = f"""{NO_STATS}{CHANGED} {{
    float power = powf(value, number(words[0])), gain = number(words[1]);
    return gain == 1.0f ? power : limited(power * gain);
}}
{TONE_PIXEL}"""
LOOK_UP = f"""{NO_STATS}{CHANGED} {{ return (float)((const unsigned char*)words)[(int)value]; }}
{TONE_PIXEL}"""

EXTREMES = f"""{FUNCTIONS}
struct Stats {{ float low[CHANNELS], high[CHANNELS]; }};

__device__ inline void merge(Stats& sum, const Stats& part) {{
    for (int channel = 0; channel < CHANNELS; ++channel) {{
        sum.low[channel] = fminf(sum.low[channel], part.low[channel]);
        sum.high[channel] = fmaxf(sum.high[channel], part.high[channel]);
    }}
}}
"""
EXTREME_SUMS = f"""{EXTREMES}
__device__ inline Stats start(const Image& image, const Stats* before) {{
    Stats sum;
    for (int channel = 0; channel < CHANNELS; ++channel)
        sum.low[channel] = sum.high[channel] = (float)at(image, 0, 0, channel);
    return sum;
}}
__device__ inline void add(Stats& sum, const Image& image, int y, int x, const int* words) {{
    Stats part;
    for (int channel = 0; channel < CHANNELS; ++channel)
        part.low[channel] = part.high[channel] = (float)at(image, y, x, channel);
    merge(sum, part);
}}
"""
STRETCH = f"""{EXTREMES}{cuda.WHOLE}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    Stats sum = whole(stats);
    for (int channel = 0; channel < CHANNELS; ++channel) {{
        float value = (float)at(image, y, x, channel), low = sum.low[channel], high = sum.high[channel];
        bool is_flat = low == high;
        float scale = is_flat ? 1.0f : (high - low) * (float)(1.0 / (IS_BYTES ? 255 : 1));
        to[channel] = (Out)(words[0] ? bounded((value - (is_flat ? 0.0f : low)) / scale) : value);
    }}
}}
"""

LEVEL = f"""{FUNCTIONS}
__device__ inline int level(float value) {{
    float levels = IS_BYTES ? value : value * {colour.LEVELS!r}f;
    return levels > 0.0f ? (int)(levels < 255.0f ? levels : 255.0f) : 0;
}}
"""
# One thread for each pixel, then one for each entry of a table: see `tables.even_tables`.
COUNT_LEVELS = f"""{LEVEL}typedef int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    for (int channel = 0; channel < CHANNELS; ++channel)
        atomicAdd((int*)stats + 256 * channel + level((float)at(image, y, x, channel)), 1);
}}
"""
EVEN_TABLES = """
extern "C" __global__ void even(const int* counts, unsigned char* tables)
{
    const int* histogram = counts + 256 * blockIdx.x;
    int level = threadIdx.x, before = 0, total = 0, largest = 0;
    for (int other = 0; other < 256; ++other) {
        int count = histogram[other];
        before += other < level ? count : 0;
        total += count;
        largest = count ? count : largest;
    }
    int step = (total - largest) / 255, value = step ? (before + step / 2) / step : level;
    tables[256 * blockIdx.x + level] = (unsigned char)(value > 255 ? 255 : value);
}
"""
EQUALIZE = f"""{LEVEL}typedef unsigned char Stats;
{CHANGED} {{
    float result = (float)stats[256 * channel + level(value)];
    return IS_BYTES ? result : result * (float)(1.0 / 255);
}}
{TONE_PIXEL}"""

SMOOTH = """
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
    return IS_BYTES ? (float)((2 * whole + 13) / 26) : total;
}
__device__ inline float sharpened(const Image& image, int y, int x, int channel, float weight) {
    float middle = (float)at(image, y, x, channel);
    if (image.height < 3 || image.width < 3) return middle;
    if (is_edge(image, y, x)) return within(middle);
    return bounded((float)((double)middle + (double)(smooth(image, y, x, channel) - middle) * (double)weight));
}
"""
SHARPEN = f"""{NO_STATS}{SMOOTH}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    for (int channel = 0; channel < CHANNELS; ++channel)
        to[channel] = (Out)sharpened(image, y, x, channel, number(words[0]));
}}
"""

GRAYSCALE = f"""{NO_STATS}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    float color[NUMBERS];
    read(image, y, x, color);
    for (int channel = 0; channel < OUT_CHANNELS; ++channel)
        to[channel] = (Out)(words[0] ? gray(color) : color[channel < CHANNELS ? channel : 0]);
}}
"""

# `words` has the channel of the image for each channel of the result.
REORDER = """
typedef int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    for (int channel = 0; channel < OUT_CHANNELS; ++channel) to[channel] = at(image, y, x, words[channel]);
}
"""

PILLOW_YCBCR = f"""{NO_STATS}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    const double weights[] = {{{", ".join(repr(weight) for row in colour_pillow.YCBCR for weight in row)}}};
    for (int channel = 0; channel < 3; ++channel) {{
        int total = 0;
        for (int other = 0; other < 3; ++other)
            total += (int)(weights[3 * channel + other] * (double)at(image, y, x, other) * 64.0 + 0.5);
        to[channel] = (Out)((total >> 6) + (channel ? 128 : 0));
    }}
}}
"""
PILLOW_HSV = f"""{NO_STATS}
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    float color[NUMBERS];
    read(image, y, x, color);
    float high = fmaxf(color[0], fmaxf(color[1], color[2])), low = fminf(color[0], fminf(color[1], color[2]));
    float span = fmaxf(high - low, 1.0f);
    double red = (high - color[0]) / span, green = (high - color[1]) / span, blue = (high - color[2]) / span;
    float sextant = (float)(high == color[0] ? blue - green : high == color[1] ? 2.0 + red - blue : 4.0 + green - red);
    double turns = (double)sextant / 6.0 + 1.0;
    float hue = (float)(turns - floor(turns)), saturation = (high - low) / fmaxf(high, 1.0f);
    to[0] = (Out)((double)hue * 255.0), to[1] = (Out)((double)saturation * 255.0), to[2] = (Out)high;
}}
"""


def take_steps(xp: ModuleType, x: Any, steps: Numbers, amounts: Numbers) -> Any:
    """Return images behind up to four steps: two launches, one if no step is a contrast.

    Args:
        xp: CuPy.
        x: the images.
        steps: int32 ``[N, K]``, the numbers of the steps of each image in order; `NO_STEP` for
            none.
        amounts: float32 ``[N, K]``, the factor or the turn of each step.
    """
    missing = ((0, 0), (0, MOST_STEPS - steps.shape[1]))
    steps = np.pad(steps.astype(np.int32), missing, constant_values=NO_STEP)
    amounts = np.pad(amounts.astype(np.float32), missing)
    images = Pixels(xp, x, steps, amounts, colour.weight(amounts).astype(np.float32))
    if not (steps == CONTRAST).any():
        return images.change(STEP_PIXEL)
    return images.change(STEP_PIXEL, stats=images.gather(GRAY_SUMS, 8), step=cuda.PARTS)


def take_step(xp: ModuleType, x: Any, step: int, amounts: Numbers) -> Any:
    """Return images behind one step, with a factor or a turn for each."""
    return take_steps(xp, x, np.full((len(x), 1), step), amounts[:, None])


def tone(xp: ModuleType, x: Any, pixel: str, apply: Numbers, *words: Numbers) -> Any:
    """Return images of which each value becomes another by itself, where ``apply`` is 1; one
    launch."""
    return Pixels(xp, x, apply.astype(np.int32), *words).change(pixel)


def gamma(xp: ModuleType, x: Any, exponent: Numbers, gain: float) -> Any:
    """See `colour.gamma`."""
    apply = np.ones(len(x), np.int32)
    if x[0].dtype == np.uint8:
        levels = np.broadcast_to(tables.BYTES[:, None, None], (len(x), 256, 1, 1))
        return tone(xp, x, LOOK_UP, apply, colour.gamma(np, levels, exponent, gain))
    return tone(xp, x, POWER, apply, exponent, constants(len(x), gain))


def autocontrast(xp: ModuleType, x: Any, apply: Numbers) -> Any:
    """See `colour.autocontrast`; two launches."""
    images = Pixels(xp, x, apply.astype(np.int32))
    extremes = images.gather(EXTREME_SUMS, 8 * images.channels)
    return images.change(STRETCH, stats=extremes, step=cuda.PARTS)


def sharpness(xp: ModuleType, x: Any, factor: Numbers) -> Any:
    """See `colour.sharpness`; one launch."""
    return Pixels(xp, x, colour.weight(factor).astype(np.float32)).change(SHARPEN)


def equalize(xp: ModuleType, x: Any, apply: Numbers) -> Any:
    """See `colour.equalize`; three launches: histograms, tables, and the look-up."""
    images = Pixels(xp, x, apply.astype(np.int32))
    entries = 256 * images.channels
    counts = device.zeros((images.count, entries), np.int32)
    images.change(COUNT_LEVELS, stats=counts, step=entries)
    even_tables = xp.empty((images.count, entries), np.uint8)
    device.kernel(EVEN_TABLES, "even")(
        (images.count * images.channels,), (256,), (counts, even_tables)
    )
    return images.change(EQUALIZE, stats=even_tables, step=entries)

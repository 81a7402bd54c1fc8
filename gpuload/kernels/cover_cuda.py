"""Covers on a GPU: the pixels of `ops.colour.erasing`, bit for bit, for the kernels of
`kernels.pixels`."""

from __future__ import annotations

from functools import cache

HEAD = """
__device__ inline bool is_in(const int* box, int y, int x) {
    return y >= box[0] && y < box[0] + box[2] && x >= box[1] && x < box[1] + box[3];
}
"""

# Behind the numbers of a cover `words` has a colour, eight bytes a channel.
FILL = """
typedef int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    bool is_filled = is_covered(words, y, x);
    for (int channel = 0; channel < CHANNELS; ++channel)
        to[channel] = is_filled ? *(const Out*)(words + NUMBERS + 2 * channel) : at(image, y, x, channel);
}
"""

GRID = f"""
enum {{ NUMBERS = 4 }};
__device__ inline bool is_covered(const int* words, int y, int x) {{
    int unit = words[0], stays = words[1];
    return unit && (y + unit - words[2]) % unit >= stays && (x + unit - words[3]) % unit >= stays;
}}
{FILL}"""


@cache
def boxes(count: int) -> str:
    """Return the text for ``count`` boxes, four words each, and a colour."""
    return f"""{HEAD}
enum {{ NUMBERS = 4 * {count} }};
__device__ inline bool is_covered(const int* words, int y, int x) {{
    for (int box = 0; box < {count}; ++box)
        if (is_in(words + 4 * box, y, x)) return true;
    return false;
}}
{FILL}"""


@cache
def noise(count: int, *, of_pixels: bool) -> str:
    """Return the text for ``count`` boxes of noise: behind them are the deviation, and a mean for
    each channel.

    Args:
        count: boxes.
        of_pixels: whether each pixel has numbers of its own, else each box.
    """
    size, place = "1", "0"
    if of_pixels:
        size, place = "(Long)box[2] * box[3]", "(Long)(y - box[0]) * box[3] + x - box[1]"
    return f"""{HEAD}
typedef unsigned short Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{{
    Long begin = 0, first = -1;
    for (int turn = 0; turn < {count}; ++turn) {{
        const int* box = words + 4 * turn;
        if (!box[2] || !box[3]) continue;
        if (is_in(box, y, x)) first = begin + CHANNELS * ({place});
        begin += CHANNELS * ({size});
    }}
    const int* numbers = words + 4 * {count};
    for (int channel = 0; channel < CHANNELS; ++channel)
        if (first < 0) to[channel] = (Out)at(image, y, x, channel);
        else store(to + channel, table[stats[first + channel]] * number(numbers[0]) + number(numbers[1 + channel]));
}}
"""

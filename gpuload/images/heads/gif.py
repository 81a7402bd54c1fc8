"""Head of a GIF: its screen and its first frame, which is the image.

Read    a first frame inside of the screen, with a palette; of later frames is known whether there
        are any. As in Pillow, pixels of the screen around it are transparent if the frame has such
        a colour, else its first colour.
Whole   the data of the first frame end.
Source  GIF89a specification, sections 18 to 22.
"""

from __future__ import annotations

import struct

from gpuload.images.heads.base import Head, HeadError, UnsupportedError, check_size, upright

EXTENSION, FRAME, TRAILER = 0x21, 0x2C, 0x3B
CONTROL, TRANSPARENT = (
    0xF9,
    1,
)  # the extension in front of a frame (GIF89a, section 23), and a flag in it
SCREEN_PIXELS = (
    1 << 24
)  # of a screen around a small frame; a larger one needs the bytes of a frame that covers it
PIXELS_PER_BYTE = (
    4096  # a code of 9 bits and more stands for as many at most, of 3 to 8 bits for fewer
)


def read(view: memoryview) -> Head:
    """Return the head of a GIF; the errors are those of `images.head.read`."""
    width, height, flags = struct.unpack_from("<HHB", view, 6)
    place, has_palette = 13, bool(flags & 0x80)
    place += _palette_bytes(flags)
    surplus = ""
    while (kind := view[place]) == EXTENSION:
        if view[place + 1] == CONTROL:
            if view[place + 3] & TRANSPARENT:
                surplus = "alpha"
            else:
                surplus = ""
        place = _behind_blocks(view, place + 2)
    if kind == TRAILER:
        raise HeadError("it holds no image")
    if kind != FRAME:
        raise HeadError(f"byte {place} is {kind:#04x}, where a frame must begin")
    left, top, wide, high, flags = struct.unpack_from("<HHHHB", view, place + 1)
    if not has_palette and not flags & 0x80:
        raise UnsupportedError("a GIF without a palette, whose colours are not known")
    if not wide or not high or not width or not height:
        raise HeadError(f"its first frame would be {high} x {wide} pixels, of {height} x {width}")
    if left + wide > width or top + high > height:
        raise UnsupportedError(
            f"a GIF whose first frame is {high} x {wide} pixels at {top}, {left} of a screen of "
            f"{height} x {width}"
        )
    place += 10 + _palette_bytes(flags)
    if not 1 <= view[place] <= 8:
        raise HeadError(f"its pixels have {view[place]} bits")
    end = _behind_blocks(view, place + 1)
    capacity = (end - place) * PIXELS_PER_BYTE
    check_size(high * wide, capacity)
    check_size(height * width, max(capacity, SCREEN_PIXELS))
    return upright("gif", height, width, 3, 8, surplus=surplus, pages=1 + _has_frame(view, end))


def _has_frame(view: memoryview, place: int) -> bool:
    """Return True if a frame begins at a place, behind extensions."""
    try:
        while view[place] == EXTENSION:
            place = _behind_blocks(view, place + 2)
        return view[place] == FRAME
    except IndexError:
        return False  # the file ends there, of which decoders say nothing


def _palette_bytes(flags: int) -> int:
    # 2 ** (number + 1) colours, of three bytes each.
    if flags & 0x80:
        return 3 << (flags & 7) + 1
    return 0


def _behind_blocks(view: memoryview, place: int) -> int:
    while length := view[place]:
        place += 1 + length
    return place + 1

"""Head of a PNG: every chunk up to IEND; refused are names and lengths that libpng refuses.

APNG    the still image of an animated PNG, where all decoders agree on it: it is the first frame as
        well, and sound. OpenCV, and with it DALI, checks no animation (4.13: undefined pixels, or
        the process ends), so it is done here.
EXIF    the eXIf chunk.
Source  PNG 3rd edition, sections 5 and 11.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NoReturn

from gpuload.images.heads.base import (
    Head,
    HeadError,
    UnsupportedError,
    check_size,
    printable_name,
    upright,
)
from gpuload.images.heads.compression import DEFLATE_RATIO, inflate_parts
from gpuload.images.heads.exif import orientation

MAX_SIDE = 1_000_000  # PNG_USER_WIDTH_MAX of libpng
MAX_FILTER = 4  # the last of the filters of a PNG row

CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # of a PNG colour type; a palette has colours
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel as stored
INDEXED = 3  # the colour type with a palette
WITH_ALPHA = (4, 6)  # colour types
SMALL = 0x20  # the bit of a small letter: the first of a name says that the chunk is unnecessary, the third is capital
LENGTHS = {b"acTL": (8,), b"fcTL": (26,), b"bKGD": (1, 2, 6)}
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
CHUNK = struct.Struct(">I4s")
HEADER = struct.Struct(">I4sIIBBBBBI")
FRAME_CONTROL = struct.Struct(">IIIIIHHBB")
# Of each pass of an interlaced PNG: its first row and column, and the steps to the next.
ADAM7 = (
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
)


def read(view: memoryview) -> Head:
    """Return the head of a PNG; the errors are those of `images.head.read`."""
    height, width, colour, bits = _png_header(view)
    place, names, turn = 33, {b"IHDR"}, 1
    while True:
        if place + 12 > len(view):
            raise HeadError("the file ends before its chunk IEND: it was cut off")
        length, name = CHUNK.unpack_from(view, place)
        after = place + 12 + length
        if after > len(view):
            raise HeadError(
                f"the file ends inside its chunk {printable_name(name)}, before IEND: it was cut "
                "off"
            )
        if name == b"IEND":
            break
        if name != b"IDAT" or name not in names:
            _check_chunk(name, length, names, colour)
        if name == b"eXIf":
            turn = _png_exif(view, place, length, name in names)
        names.add(name)
        place = after
    if b"IDAT" not in names:
        raise HeadError("it holds no image: it has no chunk IDAT")
    pixel_bits = SAMPLES[colour] * bits
    check_size(height * width, DEFLATE_RATIO * len(view) // -(-width * pixel_bits // 8) * width)
    num_frames = 1
    if b"acTL" in names:
        if turn != 1:
            raise UnsupportedError(
                "an animated PNG with an orientation, about which decoders differ"
            )
        num_frames = _check_animation(view, height, width, pixel_bits)
    if colour in WITH_ALPHA or b"tRNS" in names:
        surplus = "alpha"
    else:
        surplus = ""
    return upright(
        "png", height, width, CHANNELS[colour], bits, turn, surplus=surplus, pages=num_frames
    )


def _png_header(view: memoryview) -> tuple[int, int, int, int]:
    """Return height, width, colour type and bits per sample, checked."""
    length, name, width, height, bits, colour, packing, filters, interlace, crc = (
        HEADER.unpack_from(view, 8)
    )
    if length != 13 or name != b"IHDR":
        raise HeadError(
            f"its first chunk is {printable_name(name)} of {length} bytes; it must be IHDR of 13"
        )
    if zlib.crc32(view[12:29]) != crc:
        raise HeadError(
            "the checksum of its header (IHDR) is wrong: the bytes changed after it was written"
        )
    if not 0 < width <= MAX_SIDE or not 0 < height <= MAX_SIDE:
        raise HeadError(
            f"it would be {height} x {width} pixels; a side of a PNG has 1 to {MAX_SIDE}"
        )
    if bits not in DEPTHS.get(colour, ()):
        raise HeadError(
            f"its header gives colour type {colour} with {bits} bits, which PNG does not have"
        )
    if packing or filters or interlace > 1:
        raise HeadError(
            f"its header gives methods {packing}, {filters}, {interlace}, which PNG does not have"
        )
    return height, width, colour, bits


def _check_chunk(name: bytes, length: int, names: set[bytes], colour: int) -> None:
    """Refuse a chunk that makes libpng, or OpenCV in front of it, refuse the file."""
    if not name.isalpha() or name[2] & SMALL:
        raise HeadError(f"its chunk {printable_name(name)} has a name that PNG does not have")
    if not name[0] & SMALL and (name not in (b"PLTE", b"IDAT") or name in names):
        raise HeadError(
            f"its chunk {printable_name(name)} is unknown and necessary, or occurs twice"
        )
    if b"IDAT" not in names and length not in LENGTHS.get(name, (length,)):
        raise HeadError(f"its chunk {printable_name(name)} is {length} bytes long")
    if name == b"PLTE" and colour == INDEXED and not (0 < length <= 768 and length % 3 == 0):
        raise HeadError(
            f"its palette is {length} bytes long; it has 3 for each of 1 to 256 colours"
        )
    if name == b"IDAT" and colour == INDEXED and b"PLTE" not in names:
        raise HeadError("its pixels are indices into a palette, and it has no palette (PLTE)")


def _png_exif(view: memoryview, place: int, length: int, again: bool) -> int:
    """Return the orientation; refuse a chunk that libpng leaves out and DALI takes."""
    if again:
        raise HeadError("its chunk eXIf, which gives the orientation, occurs twice")
    if not _is_as_written(view, place, length):
        raise HeadError("the checksum of its chunk eXIf, which gives the orientation, is wrong")
    return orientation(bytes(view[place + 8 : place + 8 + length]))


def _is_as_written(view: memoryview, place: int, length: int) -> bool:
    """Return True if the checksum of a chunk is right."""
    end = place + 8 + length
    return zlib.crc32(view[place + 4 : end]) == int.from_bytes(view[end : end + 4], "big")


def _check_animation(view: memoryview, height: int, width: int, pixel_bits: int) -> int:
    """Return how many frames an animated PNG has.

    Its still image must be its first frame, and sound, up to where the second frame begins.

    Source: PNG 3rd edition, section 11.3.4; OpenCV 4.13, grfmt_png.cpp.
    """
    pixel_parts: list[memoryview] = []
    num_frames, has_control = 0, False
    for name, content in _first_frame_chunks(view):
        length = len(content)
        if name == b"acTL" and length == 8 and not num_frames:
            num_frames = int.from_bytes(content[:4], "big")
        elif name == b"fcTL" and length == FRAME_CONTROL.size and (pixel_parts or not has_control):
            _check_frame_control(content, height, width, is_first=not pixel_parts)
            has_control = has_control or not pixel_parts
        elif name in (b"acTL", b"fcTL", b"fdAT"):
            _refuse_animation(
                f"its chunk {printable_name(name)} of {length} bytes has no place there"
            )
        elif name == b"IDAT":
            pixel_parts.append(content)
        elif pixel_parts and num_frames > 1 and name != b"IEND":
            _refuse_animation(f"chunk {printable_name(name)} stands inside its first frame")
    if not 0 < num_frames < 2**31 or not has_control:
        _refuse_animation("its still image is not its first frame")
    try:
        check_pixels(pixel_parts, height, width, pixel_bits, view[28])
    except HeadError as error:
        _refuse_animation(str(error))
    return num_frames


def _first_frame_chunks(view: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the chunks behind IHDR, name and content, up to IEND or the control of the second frame."""
    has_pixels, place, name = False, 33, b""  # 33: behind the signature (8 bytes) and IHDR (25)
    while name != b"IEND" and not (has_pixels and name == b"fcTL"):
        length, name = CHUNK.unpack_from(view, place)
        if not _is_as_written(view, place, length):
            _refuse_animation(f"the checksum of its chunk {printable_name(name)} is wrong")
        yield name, view[place + 8 : place + 8 + length]
        has_pixels = has_pixels or name == b"IDAT"
        place += 12 + length


def _check_frame_control(content: memoryview, height: int, width: int, is_first: bool) -> None:
    _, frame_width, frame_height, left, top, _, _, dispose, blend = FRAME_CONTROL.unpack(content)
    inside = left + frame_width <= width and top + frame_height <= height
    if (
        not inside
        or dispose > 2
        or blend > 1
        or (is_first and (frame_height, frame_width) != (height, width))
    ):
        _refuse_animation(
            f"a frame of {frame_height} x {frame_width} pixels at {top}, {left} does not fit into "
            "it"
        )


def _refuse_animation(reason: str) -> NoReturn:
    raise UnsupportedError(f"an animated PNG that decoders differ about: {reason}")


def check_pixels(
    pixel_parts: list[memoryview], height: int, width: int, pixel_bits: int, interlace: int
) -> None:
    """Check that the compressed pixels of a PNG are whole: as many rows as it has, each with a
    filter that exists.

    Raises:
        HeadError: they are not.
    """
    passes: list[range] = []
    end = num_bytes = 0
    for y, x, down, right in ADAM7 if interlace else ((0, 0, 1, 1),):
        rows, columns = -(-(height - y) // down), -(-(width - x) // right)
        if rows > 0 and columns > 0:
            row_bytes = 1 + -(-columns * pixel_bits // 8)  # the first names the filter
            passes.append(range(end, end := end + rows * row_bytes, row_bytes))
    for raw in inflate_parts(pixel_parts):
        for starts in passes:
            if num_bytes < starts.start:
                begin = starts.start - num_bytes
            else:
                begin = (starts.start - num_bytes) % starts.step
            filters = raw[begin : max(0, starts.stop - num_bytes) : starts.step]
            if filters and max(filters) > MAX_FILTER:
                raise HeadError(
                    f"a row of its pixels has filter {max(filters)}, of 0 to {MAX_FILTER}"
                )
        num_bytes += len(raw)
    if num_bytes < end:
        raise HeadError(f"its pixels are {num_bytes} bytes, of {end}")

"""Head of an encoded image: kind, size and orientation from its bytes, and whether it is whole.

JPEG    segments up to the first scan; baseline, extended and progressive, 8 bits, 1, 3 or 4 channels. Whole: the scans
        are, as far as their bytes show (`scans`), up to the end-of-image marker.
PNG     every chunk up to IEND; refused are names and lengths that libpng refuses. Whole: IEND is there.
APNG    the still image of an animated PNG, where all decoders agree on it: it is the first frame as well, and sound.
        OpenCV, and with it DALI, checks no animation (4.13: undefined pixels, or the process ends), so it is done here.
Scans   are counted: each costs a decoder a pass over all pixels, however short it is.
EXIF    APP1 segments and the eXIf chunk, read as DALI reads them: nothing counts behind a damaged entry.
Bounds  no memory is taken on a file's word: a size is refused that so few bytes cannot hold, and above MAX_PIXELS.
Agrees  the size is that of DALI's decoder. Where DALI's own parts would disagree about it, which would make it write
        beyond its buffer (measured with 2.4: the process dies), the file is refused.
Source  ITU-T T.81 annex B; PNG 3rd edition, sections 5 and 11; EXIF 2.32, section 4.6; the two parsers of nvImageCodec.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from numpy.typing import NDArray

from gpuload.images import scans

MAX_PIXELS = 2**28  # 0.8 GB as RGB; OpenCV and with it DALI's PNG decoder end at 2**30
MAX_JPEG_SIDE = 65500  # JPEG_MAX_DIMENSION of libjpeg-turbo
MAX_PNG_SIDE = 1_000_000  # PNG_USER_WIDTH_MAX of libpng
HUFFMAN_PIXELS_PER_BYTE = 1024  # at least 1 bit for each block of 64 pixels, and a margin of 2
ARITHMETIC_PIXELS_PER_BYTE = 65536  # a decision costs as little as 2**-15 bit; a flat image takes two for a block
DEFLATE_RATIO = 1032  # 258 bytes for 2 bits
INFLATE_BYTES = 1 << 16  # of pixels that are looked at, at a time
MAX_FILTER = 4  # the last of the filters of a PNG row

SOI, EOI, SOS, APP1, PNG = b"\xff\xd8", b"\xff\xd9", 0xDA, 0xE1, b"\x89PNG\r\n\x1a\n"
FRAMES = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}  # baseline, extended, progressive; the last two with arithmetic coding
ARITHMETIC = {0xC9, 0xCA}
OTHER_FRAMES = {
    **dict.fromkeys((0xC3, 0xCB), "a lossless JPEG"),
    **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "a hierarchical JPEG"),
}
SEGMENTS = {*FRAMES, 0xC4, 0xCC, 0xDB, 0xDC, 0xDD, *range(0xE0, 0xF0), 0xFE}  # and DHT, DAC, DQT, DNL, DRI, APPn, COM
MAX_FILL = 65536  # bytes 0xFF in front of a marker
EXIF = b"Exif\0\0"

CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # of a PNG colour type; a palette has colours
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel as stored
INDEXED = 3  # the colour type with a palette
SMALL = 0x20  # the bit of a small letter: the first of a name says that the chunk is unnecessary, the third is capital
LENGTHS = {b"acTL": (8,), b"fcTL": (26,), b"bKGD": (1, 2, 6)}
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
CHUNK = struct.Struct(">I4s")
HEADER = struct.Struct(">I4sIIBBBBBI")
FRAME_CONTROL = struct.Struct(">IIIIIHHBB")
# Of each pass of an interlaced PNG: its first row and column, and the steps to the next.
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))

ORIENTATION = 0x112
MISSING = 9  # no orientation
TEXTS = {0x10E, 0x10F, 0x110, 0x131, 0x132, 0x8298}
RATIONALS = {0x11A: 1, 0x11B: 1, 0x13E: 2, 0x13F: 6, 0x211: 3, 0x214: 6}  # how many of 8 bytes each


class HeadError(ValueError):
    """The bytes are no whole JPEG or PNG file; says why."""


@dataclass(frozen=True)
class Head:
    """What the header of an image says; height and width in pixels as displayed, after the EXIF orientation."""

    kind: str  # "jpeg" | "png"
    height: int
    width: int
    channels: int  # as stored: 1, 2, 3 or 4
    bits: int  # per sample
    orientation: int  # EXIF 1 to 8
    scans: int = 1  # how often a decoder goes over the pixels, up to `scans.MAX_SCANS`
    scan_end: int = field(
        default=0, compare=False
    )  # where the data of the only scan ends; 0 where codecs do not see it


def read(data: NDArray[Any] | bytes | bytearray | memoryview) -> Head:
    """Return the head of an encoded image (uint8 ``[num_bytes]``).

    Raises:
        HeadError: the bytes are not one whole JPEG or PNG image that DALI can decode.
    """
    view = memoryview(cast(Any, data))
    if view.format != "B" or not view.c_contiguous:
        view = memoryview(view.tobytes())
    if len(view) == 0:
        raise HeadError("the file is empty")
    try:
        if view[:2] == SOI:
            return _jpeg(view)
        if view[:8] == PNG:
            return _png(view)
    except scans.ScanError as error:
        raise HeadError(str(error)) from None
    except (IndexError, struct.error):
        raise HeadError(f"the file ends inside its header, after {len(view)} bytes") from None
    raise HeadError(f"it is no JPEG and no PNG file; it begins with {bytes(view[:8]).hex(' ')}")


def _jpeg(view: memoryview) -> Head:
    place, frame, exif, settings = 2, None, [], []
    while True:
        marker, place = view[place + 1], place + 2
        if marker == 0xFF or view[place - 2] != 0xFF:
            marker, place = _filled_marker(view, place - 2)
        if marker == SOS:
            break
        if marker not in SEGMENTS or (marker in FRAMES and frame):
            _refuse(marker)
        length = view[place] << 8 | view[place + 1]
        if length < 2:
            raise HeadError(f"segment {marker:#04x} of its header is shorter than its own length")
        if place + length > len(view):
            raise HeadError(f"the file ends inside segment {marker:#04x} of its header: it was cut off")
        if marker in FRAMES:
            frame = place, _frame(view, place, length)
        elif marker == APP1 and view[place + 2 : place + 8] == EXIF:
            exif.append(_jpeg_exif(view, place, length))
        elif marker in (scans.DHT, scans.DRI):
            settings.append((marker, place))
        place += length
    if frame is None:
        raise HeadError("its header gives no size")
    height, width, channels = frame[1]
    found = scans.read(view, frame[0], place, settings)
    per_byte = ARITHMETIC_PIXELS_PER_BYTE if view[frame[0] - 1] in ARITHMETIC else HUFFMAN_PIXELS_PER_BYTE
    _check_size(height * width, (len(view) - place) * per_byte)
    if len(set(exif)) > 1:
        raise HeadError(f"its EXIF blocks give different orientations: {exif}")
    return _head("jpeg", height, width, channels, 8, exif[0] if exif else 1, found.number, found.end)


def _filled_marker(view: memoryview, place: int) -> tuple[int, int]:
    """Return the marker that follows fill bytes at a place, and the place after it."""
    if view[place] != 0xFF:
        raise HeadError(f"byte {place} of its header is {view[place]:#04x}, where a marker must begin")
    marker, after = view[place + 1], place + 2
    while marker == 0xFF:
        marker, after = view[after], after + 1
        if after > place + MAX_FILL:
            raise HeadError(f"more than {MAX_FILL} fill bytes stand in its header")
    return marker, after


def _frame(view: memoryview, place: int, length: int) -> tuple[int, int, int]:
    """Return height, width and channels of a frame header, checked."""
    if length < 8:
        raise HeadError(f"its frame header is {length} bytes long")
    bits, height, width, channels = struct.unpack_from(">BHHB", view, place + 2)
    if bits != 8:
        raise HeadError(f"it has {bits} bits per sample; JPEG files of 8 bits can be decoded")
    if channels not in (1, 3, 4) or length != 8 + 3 * channels:
        raise HeadError(f"its frame header is {length} bytes long and gives {channels} channels; it has 1, 3 or 4")
    if height == 0:
        raise HeadError("its height is 0: it would be given after the image (DNL), which no decoder here reads")
    if width == 0 or max(height, width) > MAX_JPEG_SIDE:
        raise HeadError(f"it would be {height} x {width} pixels; a side of a JPEG has 1 to {MAX_JPEG_SIDE}")
    return height, width, channels


def _jpeg_exif(view: memoryview, place: int, length: int) -> int:
    if length < 8:
        raise HeadError("its EXIF segment is shorter than its own name")
    return _orientation(bytes(view[place + 8 : place + length]))


def _refuse(marker: int) -> NoReturn:
    if marker in FRAMES:
        raise HeadError("its header gives the size twice")
    if marker in OTHER_FRAMES:
        raise HeadError(f"it is {OTHER_FRAMES[marker]}, which no decoder here reads")
    if marker == EOI[1]:
        raise HeadError("it ends (end-of-image marker) before any image")
    raise HeadError(f"marker {marker:#04x} has no place in the header of a JPEG file")


def _check_size(pixels: int, most: int) -> None:
    if pixels > MAX_PIXELS:
        raise HeadError(f"it would have {pixels} pixels; at most {MAX_PIXELS} are decoded")
    if pixels > most:
        raise HeadError(f"it would have {pixels} pixels; so few bytes cannot hold more than {most}")


def _png(view: memoryview) -> Head:
    height, width, colour, bits = _png_header(view)
    place, seen, orientation = 33, {b"IHDR"}, 1
    while True:
        if place + 12 > len(view):
            raise HeadError("the file ends before its chunk IEND: it was cut off")
        length, name = CHUNK.unpack_from(view, place)
        after = place + 12 + length
        if after > len(view):
            raise HeadError(f"the file ends inside its chunk {_text(name)}, before IEND: it was cut off")
        if name == b"IEND":
            break
        if name != b"IDAT" or name not in seen:
            _check_chunk(name, length, seen, colour)
        if name == b"eXIf":
            orientation = _png_exif(view, place, length, name in seen)
        seen.add(name)
        place = after
    if b"IDAT" not in seen:
        raise HeadError("it holds no image: it has no chunk IDAT")
    pixel_bits = SAMPLES[colour] * bits
    _check_size(height * width, DEFLATE_RATIO * len(view) // -(-width * pixel_bits // 8) * width)
    if b"acTL" in seen:
        if orientation != 1:
            raise HeadError("it is an animated PNG with an orientation: decoders differ about it")
        _check_animation(view, height, width, pixel_bits)
    return _head("png", height, width, CHANNELS[colour], bits, orientation)


def _png_header(view: memoryview) -> tuple[int, int, int, int]:
    """Return height, width, colour type and bits per sample, checked."""
    length, name, width, height, bits, colour, packing, filters, interlace, crc = HEADER.unpack_from(view, 8)
    if length != 13 or name != b"IHDR":
        raise HeadError(f"its first chunk is {_text(name)} of {length} bytes; it must be IHDR of 13")
    if zlib.crc32(view[12:29]) != crc:
        raise HeadError("the checksum of its header (IHDR) is wrong: the bytes changed after it was written")
    if not 0 < width <= MAX_PNG_SIDE or not 0 < height <= MAX_PNG_SIDE:
        raise HeadError(f"it would be {height} x {width} pixels; a side of a PNG has 1 to {MAX_PNG_SIDE}")
    if bits not in DEPTHS.get(colour, ()):
        raise HeadError(f"its header gives colour type {colour} with {bits} bits, which PNG does not have")
    if packing or filters or interlace > 1:
        raise HeadError(f"its header gives methods {packing}, {filters}, {interlace}, which PNG does not have")
    return height, width, colour, bits


def _check_chunk(name: bytes, length: int, seen: set[bytes], colour: int) -> None:
    """Refuse a chunk that makes libpng, or OpenCV in front of it, refuse the file."""
    if not name.isalpha() or name[2] & SMALL:
        raise HeadError(f"its chunk {_text(name)} has a name that PNG does not have")
    if not name[0] & SMALL and (name not in (b"PLTE", b"IDAT") or name in seen):
        raise HeadError(f"its chunk {_text(name)} is unknown and necessary, or occurs twice")
    if b"IDAT" not in seen and length not in LENGTHS.get(name, (length,)):
        raise HeadError(f"its chunk {_text(name)} is {length} bytes long")
    if name == b"PLTE" and colour == INDEXED and not (0 < length <= 768 and length % 3 == 0):
        raise HeadError(f"its palette is {length} bytes long; it has 3 for each of 1 to 256 colours")
    if name == b"IDAT" and colour == INDEXED and b"PLTE" not in seen:
        raise HeadError("its pixels are indices into a palette, and it has no palette (PLTE)")


def _png_exif(view: memoryview, place: int, length: int, again: bool) -> int:
    """Return the orientation; refuse what libpng leaves out and DALI takes."""
    if again:
        raise HeadError("its chunk eXIf, which gives the orientation, occurs twice")
    if not _is_as_written(view, place, length):
        raise HeadError("the checksum of its chunk eXIf, which gives the orientation, is wrong")
    return _orientation(bytes(view[place + 8 : place + 8 + length]))


def _is_as_written(view: memoryview, place: int, length: int) -> bool:
    """Return True if the checksum of a chunk is right."""
    end = place + 8 + length
    return zlib.crc32(view[place + 4 : end]) == int.from_bytes(view[end : end + 4], "big")


def _check_animation(view: memoryview, height: int, width: int, pixel_bits: int) -> None:
    """Check that the still image of an animated PNG is its first frame, and sound, up to where the second frame begins.

    Source: PNG 3rd edition, section 11.3.4; OpenCV 4.13, grfmt_png.cpp.
    """
    coded: list[memoryview] = []
    name, num_frames, controlled, place = b"", 0, False, 33
    while name != b"IEND" and not (coded and name == b"fcTL"):
        length, name = CHUNK.unpack_from(view, place)
        content = view[place + 8 : place + 8 + length]
        if not _is_as_written(view, place, length):
            _refuse_animation(f"the checksum of its chunk {_text(name)} is wrong")
        if name == b"acTL" and length == 8 and not num_frames:
            num_frames = int.from_bytes(content[:4], "big")
        elif name == b"fcTL" and length == FRAME_CONTROL.size and (coded or not controlled):
            _check_frame_control(content, height, width, is_first=not coded)
            controlled = controlled or not coded
        elif name in (b"acTL", b"fcTL", b"fdAT"):
            _refuse_animation(f"its chunk {_text(name)} of {length} bytes has no place there")
        elif name == b"IDAT":
            coded.append(content)
        elif coded and num_frames > 1 and name != b"IEND":
            _refuse_animation(f"chunk {_text(name)} stands inside its first frame")
        place += 12 + length
    if not 0 < num_frames < 2**31 or not controlled:
        _refuse_animation("its still image is not its first frame")
    try:
        check_pixels(coded, height, width, pixel_bits, view[28])
    except HeadError as error:
        _refuse_animation(str(error))


def _check_frame_control(content: memoryview, height: int, width: int, is_first: bool) -> None:
    _, frame_width, frame_height, left, top, _, _, dispose, blend = FRAME_CONTROL.unpack(content)
    inside = left + frame_width <= width and top + frame_height <= height
    if not inside or dispose > 2 or blend > 1 or (is_first and (frame_height, frame_width) != (height, width)):
        _refuse_animation(f"a frame of {frame_height} x {frame_width} pixels at {top}, {left} does not fit into it")


def _refuse_animation(why: str) -> NoReturn:
    raise HeadError(f"it is an animated PNG that decoders differ about: {why}")


def check_pixels(coded: list[memoryview], height: int, width: int, pixel_bits: int, interlace: int) -> None:
    """Check that the compressed pixels of a PNG are whole: as many rows as it has, each with a filter that exists.

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
    for raw in _inflated(coded):
        for starts in passes:
            begin = starts.start - num_bytes if num_bytes < starts.start else (starts.start - num_bytes) % starts.step
            filters = raw[begin : max(0, starts.stop - num_bytes) : starts.step]
            if filters and max(filters) > MAX_FILTER:
                raise HeadError(f"a row of its pixels has filter {max(filters)}, of 0 to {MAX_FILTER}")
        num_bytes += len(raw)
    if num_bytes < end:
        raise HeadError(f"its pixels are {num_bytes} bytes, of {end}")


def _inflated(coded: list[memoryview]) -> Iterator[bytes]:
    """Give what a PNG holds compressed, in parts of at most INFLATE_BYTES: the whole may take gigabytes."""
    inflate = zlib.decompressobj()
    try:
        for piece in coded:
            for begin in range(0, len(piece), INFLATE_BYTES):
                rest, is_full = bytes(piece[begin : begin + INFLATE_BYTES]), True
                while not inflate.eof and (rest or is_full):
                    yield (part := inflate.decompress(rest, INFLATE_BYTES))
                    rest, is_full = inflate.unconsumed_tail, len(part) == INFLATE_BYTES
    except zlib.error as error:
        raise HeadError(f"its pixels are damaged ({error})") from None
    if not inflate.eof:
        raise HeadError("its pixels do not end")


def _orientation(block: bytes) -> int:
    """Return the orientation that an EXIF block gives, 1 to 8; 1 where it gives none.

    The first entry with the tag counts, its type does not.
    """
    if len(block) < 10 or block[2:4] not in (b"*\0", b"\0*"):
        return 1
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None:
        raise HeadError(f"its EXIF block begins with {block[:4].hex(' ')}, of which decoders make different things")
    start = struct.unpack_from(order + "I", block, 4)[0] + 2
    if start > len(block):
        return 1
    count = struct.unpack_from(order + "H", block, start - 2)[0]
    entries = block[start : start + 12 * count]
    value, damaged = 0, len(entries) < 12 * count
    for tag, _, number, place in struct.iter_unpack(order + "HHII", entries + bytes(-len(entries) % 12)):
        if tag == ORIENTATION:
            value = value or (place & 0xFFFF if order == "<" else place >> 16) or MISSING
        elif _outside(tag, number, place, len(block)):
            damaged = True
            break
    if damaged and 1 < value <= 8:
        raise HeadError("its EXIF block is damaged: decoders disagree whether the orientation in it counts")
    return value if 1 <= value <= 8 else 1


def _outside(tag: int, number: int, place: int, length: int) -> bool:
    """Return True if the value of an EXIF entry, one of those that are looked at, lies outside the block."""
    if tag in TEXTS:
        return number > 4 and place + number > length
    return tag in RATIONALS and place + 8 * RATIONALS[tag] > length


def _head(
    kind: str, height: int, width: int, channels: int, bits: int, orientation: int, num_scans: int = 1, end: int = 0
) -> Head:
    if orientation > 4:  # a quarter turn
        height, width = width, height
    return Head(kind, height, width, channels, bits, orientation, num_scans, end)


def _text(name: bytes) -> str:
    return name.decode("latin-1").encode("unicode_escape").decode()

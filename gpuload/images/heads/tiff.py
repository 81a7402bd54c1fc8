"""Head of a TIFF: the tags of its first page, and whether its pixels are whole.

Read    classic TIFF and BigTIFF, both byte orders, strips and tiles. By nvImageCodec: gray of 1, 8,
        10, 12, 14 and 16 bits, RGB of 8 to 16 with or without one more channel, palettes of 1 to 8
        bits, CMYK of 8; not compressed, Deflate, LZW, PackBits, CCITT (fax) and JPEG.
Rare    kinds that OpenCV, so DALI, reads wrongly or never (4.13) are read by Pillow or tifffile
        (`images.tiffs`): their form is "rare". They are floating point and signed samples, 32 bits,
        2 or 4 bits of gray, gray with alpha, more than one extra channel, planes of 16 bits, of
        four channels or in tiles, white as 0 with more than 8 bits; ZSTD, LZMA, WebP and others;
        and turned images with alpha: DALI multiplies their colours by the alpha.
Turned  images are given to the codecs as one that lies upright, `without_orientation`, and turned
        behind them: OpenCV, to which nvImageCodec leaves some of them, turns them also where it was
        told not to, and writes beyond their memory then. Of these kinds DALI gets none.
Pages   that are no small copy (reduced image) and no mask of another page are counted, those that
        are named by the tag SubIFDs too; the first is decoded. Planes that only a text counts, as
        ImageJ and tifffile write it for a stack behind one page, are pages if their bytes are
        there.
Numbers that stand for others by the tags of GDAL (no data, scale, offset) stay as they are stored;
the head names them.
Whole   libtiff fills up damaged parts, and OpenCV accepts that. So data compressed by Deflate, LZW
        or PackBits are gone through here (`compression`). PackBits runs across the rows of a strip
        are refused: libtiff cuts them off. Of CCITT, JPEG and other compressions only the places
        are checked: damage inside is not seen.
Source  TIFF 6.0; TIFF technical note 2 (JPEG); BigTIFF,
        https://libtiff.gitlab.io/libtiff/specification/bigtiff.html; GDAL's tags,
        https://gdal.org/en/stable/drivers/raster/gtiff.html
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload.images.heads import compression as codecs
from gpuload.images.heads.base import (
    MAX_PIXELS,
    Head,
    HeadError,
    UnsupportedError,
    check_size,
    printable_name,
    upright,
)

SUBFILE, OLD_SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = (
    254,
    255,
    256,
    257,
    258,
    259,
    262,
    266,
)
OFFSETS, ORIENTATION, CHANNELS, ROWS_PER_STRIP, BYTE_COUNTS, PLANAR = 273, 274, 277, 278, 279, 284
PREDICTOR, PALETTE, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_BYTE_COUNTS = (
    317,
    320,
    322,
    323,
    324,
    325,
)
EXTRA, SAMPLE_FORMAT, DEPTH, SUB_PAGES = 338, 339, 32997, 330
DESCRIPTION, GDAL_METADATA, GDAL_NODATA = TEXTS = (270, 42112, 42113)
TAGS = {
    SUBFILE,
    OLD_SUBFILE,
    WIDTH,
    HEIGHT,
    BITS,
    COMPRESSION,
    PHOTOMETRIC,
    FILL_ORDER,
    OFFSETS,
    ORIENTATION,
    CHANNELS,
}
TAGS |= {
    ROWS_PER_STRIP,
    BYTE_COUNTS,
    PLANAR,
    PREDICTOR,
    PALETTE,
    TILE_WIDTH,
    TILE_HEIGHT,
    TILE_OFFSETS,
}
TAGS |= {TILE_BYTE_COUNTS, EXTRA, SAMPLE_FORMAT, DEPTH, SUB_PAGES}
VALUE_BYTES = {
    1: 1,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: 1,
    7: 1,
    8: 2,
    9: 4,
    10: 8,
    11: 4,
    12: 8,
    13: 4,
    16: 8,
    17: 8,
    18: 8,
}
DTYPES = {1: "u1", 3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}  # of the types of whole numbers
ASCII = (2, 129)  # types of texts; the second is of UTF-8
TEXT_BYTES = 1 << 16  # of a text that are read
IMAGEJ_STACK = re.compile(rb"ImageJ=.*?\bimages=([0-9]{1,9})\b", re.DOTALL)
TIFFFILE_STACK = re.compile(rb'\{"shape": \[([0-9, ]{1,200})\]')
GDAL_ITEM = re.compile(rb"<Item\b([^>]*)>([^<]*)</Item>")
GDAL_ROLE = re.compile(rb"""\brole=["'](scale|offset)["']""")
MOST_PARTS = 4  # of the statements of GDAL's tags, that are told
UNCHANGED = {b"scale": 1.0, b"offset": 0.0}  # values that leave numbers as they are

WHITE_IS_0, BLACK_IS_0, RGB, INDEXED, CMYK, YCBCR = 0, 1, 2, 3, 5, 6
COLOUR_CHANNELS = {
    WHITE_IS_0: 1,
    BLACK_IS_0: 1,
    RGB: 3,
    INDEXED: 1,
    CMYK: 4,
    YCBCR: 3,
    8: 3,
    9: 3,
    10: 3,
}
COLOURS = {
    4: "a mask",
    CMYK: "CMYK",
    YCBCR: "YCbCr",
    8: "L*a*b*",
    9: "L*a*b*",
    10: "L*a*b*",
    32803: "a colour filter",
}
COLOURS |= {
    32844: "LogL",
    32845: "LogLuv",
    34892: "raw colours",
    WHITE_IS_0: "gray",
    BLACK_IS_0: "gray",
    RGB: "RGB",
}
COLOURS |= {INDEXED: "a palette"}
PLAIN, HUFFMAN, FAX3, FAX4, LZW, JPEG, DEFLATE, OLD_DEFLATE, PACKBITS = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    32946,
    32773,
)
FAX = {HUFFMAN, FAX3, FAX4}
COMPRESSIONS = {
    6: "old JPEG",
    34712: "JPEG 2000",
    34925: "LZMA",
    34933: "PNG",
    34934: "JPEG XR",
    50000: "ZSTD",
}
COMPRESSIONS |= {
    50001: "WebP",
    50002: "JPEG XL",
    22610: "JPEG XR",
    34661: "JBIG",
    34887: "LERC",
    32809: "ThunderScan",
}
COMPRESSIONS |= {
    HUFFMAN: "fax",
    FAX3: "fax",
    FAX4: "fax",
    LZW: "LZW",
    JPEG: "JPEG",
    DEFLATE: "Deflate",
}
COMPRESSIONS |= {
    OLD_DEFLATE: "Deflate",
    PACKBITS: "PackBits",
    52546: "JPEG XL",
    33003: "JPEG 2000",
    33005: "JPEG 2000",
}
COMPRESSIONS |= {34892: "JPEG", 65000: "EER", 65001: "EER", 65002: "EER"}
PREDICTED = (
    LZW,
    DEFLATE,
    OLD_DEFLATE,
    34925,
    50000,
)  # compressions in front of which libtiff has a predictor
IN_JPEG = {
    (WHITE_IS_0, 1),
    (BLACK_IS_0, 1),
    (RGB, 3),
    (YCBCR, 3),
    (CMYK, 4),
}  # kinds, and how many channels
COUNTERS: dict[int, Callable[[memoryview, int], int]] = {
    DEFLATE: codecs.deflate_bytes,
    OLD_DEFLATE: codecs.deflate_bytes,
    LZW: codecs.lzw_bytes,
}
ASSOCIATED, UNASSOCIATED = 1, 2  # alpha that the colours were multiplied by, and any other
REDUCED, MASK = (
    1,
    4,
)  # flags of a page that belongs to another one (TIFF 6.0, section 8, NewSubfileType)
OLD_REDUCED = 2  # the same in the older tag SubfileType
MOST_BYTES = 6 * MAX_PIXELS  # of all samples, as the largest image of three channels of 16 bits has
MOST_PAGES = 1 << 10  # of a file with more no more are counted
RARE = "rare"  # the form of a file that Pillow or tifffile reads
UNSIGNED, SIGNED, FLOAT, UNKNOWN = 1, 2, 3, 4  # formats of samples
SAMPLES = {SIGNED: "int", FLOAT: "float", UNSIGNED: "uint"}
DEEP = (10, 12, 14, 16)
WHOLE_BITS = {UNSIGNED: range(1, 33), SIGNED: (8, 16, 32), FLOAT: (16, 32, 64)}  # that are read
MAX_SIDE = 2**20  # CV_IO_MAX_IMAGE_WIDTH of OpenCV


def read(view: memoryview) -> Head:
    """Return the head of a TIFF; the errors are those of `images.head.read`."""
    tags = _Tags.of(view)
    width, height = tags.first(WIDTH, "width"), tags.first(HEIGHT, "height")
    channels = tags.first(CHANNELS, "number of channels", 1)
    if not 0 < width <= MAX_SIDE or not 0 < height <= MAX_SIDE:
        raise HeadError(
            f"it would be {height} x {width} pixels; a side of a TIFF has 1 to {MAX_SIDE}"
        )
    check_size(height * width)
    bits = _bits(tags, channels)
    kind = tags.first(PHOTOMETRIC, "kind of colours")
    compression = tags.first(COMPRESSION, "compression", PLAIN)
    sample = _sample(tags, bits)
    is_rare = sample != "" or _is_rare(tags, kind, channels, bits, compression)
    _check_kind(tags, kind, channels, bits, compression)
    num_bytes = height * width * channels * -(-bits // 8)
    if (
        num_bytes > MOST_BYTES
    ):  # the compressed data of some kinds are not gone through: a small file may claim it
        raise HeadError(
            f"its samples would take {num_bytes} bytes; at most {MOST_BYTES} are decoded"
        )
    _check_pixels(view, tags, height, width, channels, bits, compression)
    turn = _orientation(tags)
    samples = channels
    if kind == INDEXED:
        samples = 3
    deep = 16  # the colours of a palette have 16 bits, too
    if bits <= 8 and kind != INDEXED:
        deep = 8
    if is_rare:
        form = RARE
    else:
        form = _form(tags, kind, channels, bits)
    attributes: dict[str, Any] = {
        "form": form, "surplus": _extra(tags, kind, channels),
        "sample": sample, "pages": tags.num_pages(view, height * width * channels),
        "meaning": _meaning(tags),
    }  # fmt: skip
    decoded_bits = deep
    if sample:
        decoded_bits = bits
    return upright("tiff", height, width, samples, decoded_bits, turn, **attributes)


def foreign_to_dali(view: memoryview) -> str:
    """Return the kind of a TIFF that DALI does not decode; "" for any other, and for a file that is
    no whole TIFF."""
    try:
        tags = _Tags.of(view)
        if BITS not in tags.values:
            return "TIFF without BitsPerSample"
        channels = tags.first(CHANNELS, "number of channels", 1)
        kind, bits = tags.first(PHOTOMETRIC, "kind of colours"), _bits(tags, channels)
        compression = tags.first(COMPRESSION, "compression", PLAIN)
        is_rare = _sample(tags, bits) != "" or _is_rare(tags, kind, channels, bits, compression)
        is_plain = kind in (BLACK_IS_0, RGB) and bits in (8, 16) and TILE_WIDTH not in tags.values
        is_plain = is_plain and (channels == 1 or tags.first(PLANAR, "arrangement", 1) == 1)
    except (HeadError, IndexError, struct.error):
        return ""
    # DALI leaves turned images to OpenCV, which reads palettes and tiles in another way and, where
    # it is told not to turn them, writes beyond their memory; images of these plain kinds DALI
    # turns itself.
    if _orientation(tags) != 1 and not is_plain:
        return "TIFF (with an orientation, and a palette, tiles, planes or other samples than gray and RGB of 8 and 16)"
    if is_rare:
        return f"TIFF (of {channels} channels of {bits} bits, as they lie in this one)"
    return ""


class SampleLayout(NamedTuple):
    """How the samples of a page that `images.tiffs` reads are to be taken."""

    photometric: int
    channels: int
    bits: int
    compression: int
    is_planar: bool
    extras: tuple[int, ...]  # the kind of each channel beyond the colours
    is_little: bool  # its byte order
    is_big: bool  # a BigTIFF
    orientation: int  # as in EXIF, 1 to 8
    palette: (
        NDArray[np.uint16] | None
    )  # ``[2 ** bits, 3]``, of an image with a palette and nothing else


def layout(view: memoryview) -> SampleLayout:
    """Return how samples of the first page lie; the file was read by ``read``."""
    tags = _Tags.of(view)
    channels = tags.first(CHANNELS, "number of channels", 1)
    return SampleLayout(
        tags.first(PHOTOMETRIC, "kind of colours"), channels, _bits(tags, channels),
        tags.first(COMPRESSION, "compression", PLAIN), tags.first(PLANAR, "arrangement", 1) == 2 and channels > 1,
        tuple(tags.values.get(EXTRA, np.empty(0, np.int64)).tolist()), tags.order == "<",
        43 in bytes(view[2:4]), _orientation(tags), _palette(tags) if channels == 1 else None,
    )  # fmt: skip


def _palette(tags: _Tags) -> NDArray[np.uint16] | None:
    if tags.first(PHOTOMETRIC, "kind of colours") != INDEXED:
        return None
    return tags.values[PALETTE].reshape(3, -1).T.astype(np.uint16)


def without_orientation(view: memoryview) -> bytes:
    """Return a TIFF that `read` has read as one with pixels that lie upright as they are stored."""
    tags, content = _Tags.of(view), bytearray(view)
    place, dtype = tags.orientation_place
    content[place : place + dtype.itemsize] = np.array([1], dtype).tobytes()
    return bytes(content)


def _orientation(tags: _Tags) -> int:
    turn = tags.first(ORIENTATION, "orientation", 1)
    if 1 <= turn <= 8:
        return turn
    return 1


def compression_name(number: int) -> str:
    """Return the name of a compression."""
    return COMPRESSIONS.get(number, str(number))


def _extra(tags: _Tags, kind: int, channels: int) -> str:
    """Return the channels that RGB and GRAY leave out: alpha, or those of another meaning."""
    num_extra = channels - COLOUR_CHANNELS.get(kind, channels)
    if num_extra <= 0:
        return ""
    # Without the tag, a fourth channel of RGB is alpha (as in Pillow).
    is_alpha = num_extra == 1 and tags.first(EXTRA, "extra channel", UNASSOCIATED) in (
        ASSOCIATED,
        UNASSOCIATED,
    )
    if is_alpha:
        return "alpha"
    return f"{num_extra} more channel" + "s" * (num_extra > 1)


def _meaning(tags: _Tags) -> str:
    """Return the tags of GDAL by which samples stand for other numbers, with their values; "" if
    there are none."""
    parts, no_data = list[str](), tags.texts.get(GDAL_NODATA, b"").strip(b"\0 ")
    if no_data and no_data.lower() != b"nan":
        parts.append(f"GDAL_NODATA {printable_name(no_data[:40])}")
    for attributes, text in GDAL_ITEM.findall(tags.texts.get(GDAL_METADATA, b"")):
        role, value = GDAL_ROLE.search(attributes), _number(text)
        if role is not None and value not in (None, UNCHANGED[role[1]]):
            part = f"{role[1].decode()} {value:g} of GDAL_METADATA"
            if part not in parts:
                parts += [part]
            else:
                parts += []
    return ", ".join(parts[:MOST_PARTS])


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _sample(tags: _Tags, bits: int) -> str:
    """Return the dtype of samples that are no unsigned integers of 16 bits at most, ``"float32"``
    say; "" of those."""
    formats = tags.values.get(SAMPLE_FORMAT, np.array([UNSIGNED]))
    if int(formats[0]) == UNKNOWN:
        number = UNSIGNED
    else:
        number = int(formats[0])
    if (formats != formats[0]).any() or number not in SAMPLES or bits not in WHOLE_BITS[number]:
        names = {2: "signed", 3: "floating-point", 5: "complex", 6: "complex"}
        raise UnsupportedError(f"a TIFF of {names.get(number, 'unsigned')} samples of {bits} bits")
    if number == UNSIGNED and bits <= 16:
        return ""
    return f"{SAMPLES[number]}{bits if bits in (8, 16, 32, 64) else 32}"


def _form(tags: _Tags, kind: int, channels: int, bits: int) -> str:
    """Return the word for a kind that Pillow reads in another way; "" for any other."""
    if kind == RGB and channels == 4 and tags.first(EXTRA, "extra channel", 0) == ASSOCIATED:
        return "associated"
    if BITS not in tags.values:
        return "default bits"
    if kind == INDEXED:
        return "palette"
    if kind == CMYK:
        return "CMYK"
    if bits in (1, 8, 16):
        return ""
    return "odd bits"


@dataclass(frozen=True)
class _Tags:
    """The tags of the first page that matter here."""

    order: str
    values: dict[int, NDArray[np.int64]]
    next_page: int = 0  # where the tags of the next page begin; 0 if there is none
    orientation_place: tuple[int, np.dtype[Any]] = (
        0,
        np.dtype("u2"),
    )  # where the value stands, and its dtype
    texts: dict[int, bytes] = field(default_factory=dict)  # of TEXTS, up to TEXT_BYTES

    def num_pages(self, view: memoryview, num_samples: int) -> int:
        """Return how many pages are images of their own; this one, of so many samples, counts in
        any case."""
        count, page, visited = 1, self, {0}
        for place in self.values.get(SUB_PAGES, np.empty(0, np.int64))[:MOST_PAGES].tolist():
            try:
                count += _Tags.of(view, place).is_image
            except (HeadError, IndexError, struct.error):
                break
        # A chain that leads back, or outside of the file, ends there, as in libtiff.
        while page.next_page not in visited and len(visited) < MOST_PAGES:
            visited.add(page.next_page)
            try:
                page = _Tags.of(view, page.next_page)
            except (HeadError, IndexError, struct.error):
                break
            count += page.is_image
        return max(count, self._num_planes(view, num_samples))

    @property
    def is_image(self) -> bool:
        """False for a small copy or a mask of another page."""
        belongs = self.first(SUBFILE, "kind", 0) & (REDUCED | MASK)
        return not belongs and self.first(OLD_SUBFILE, "kind", 0) != OLD_REDUCED

    def _num_planes(self, view: memoryview, num_samples: int) -> int:
        """Return how many planes lie behind one another from this page on, by a text of ImageJ or
        tifffile."""
        text = self.texts.get(DESCRIPTION, b"")
        stack, array = IMAGEJ_STACK.match(text), TIFFFILE_STACK.match(text)
        if stack is not None:
            count = int(stack[1])
        elif array is not None:
            sides = [int(side) for side in array[1].split(b",") if side.strip().isdigit()]
            count = math.prod(sides) // num_samples
        else:
            return 1
        places, counts = OFFSETS, BYTE_COUNTS
        if TILE_WIDTH in self.values:
            places, counts = TILE_OFFSETS, TILE_BYTE_COUNTS
        begins, sizes = self.values[places], self.values[counts]
        # A text that a program took along to a page alone counts planes that are not there.
        is_whole = int(begins[0]) + count * int(sizes.sum()) <= len(view)
        is_plain = self.first(COMPRESSION, "compression", PLAIN) == PLAIN
        if is_plain and is_whole:
            return min(count, MOST_PAGES)
        return 1

    @classmethod
    def of(cls, view: memoryview, page: int | None = None) -> _Tags:
        """Return the tags of the page that begins at a byte, by default of the first page."""
        directory = _Directory.at(view, page)
        values: dict[int, NDArray[np.int64]] = {}
        texts: dict[int, bytes] = {}
        orientation_place = 0, np.dtype("u2")
        for tag, kind, number, start in directory.entries(view):
            size = number * VALUE_BYTES.get(kind, 0)
            if start + size > len(view):
                raise HeadError(f"its tag {tag} does not lie inside the file: it was cut off")
            if tag in TEXTS and kind in ASCII:
                texts[tag] = bytes(view[start : start + min(size, TEXT_BYTES)])
            if tag not in TAGS:
                continue
            if tag in values:
                raise HeadError(f"its tag {tag} occurs twice")
            if kind not in DTYPES or number == 0:
                raise HeadError(f"its tag {tag} is {number} values of type {kind}")
            dtype = np.dtype(directory.order + DTYPES[kind])
            numbers = np.frombuffer(view, dtype, number, start)
            # So that the sum of a place and a length cannot run over int64.
            if dtype.itemsize == 8 and (numbers >= 2**62).any():
                raise HeadError(f"its tag {tag} holds {numbers.max()}")
            values[tag] = numbers.astype(np.int64)
            if tag == ORIENTATION:
                orientation_place = start, dtype
        return cls(directory.order, values, directory.next_page(view), orientation_place, texts)

    def first(self, tag: int, name: str, default: int | None = None) -> int:
        """Return the first value of a tag; a tag without a default must be there."""
        if tag in self.values:
            return int(self.values[tag][0])
        if default is None:
            raise HeadError(f"it gives no {name} (tag {tag})")
        return default


class _Directory(NamedTuple):
    """The list of the tags of a page: the forms of a tag and of a place, and where it lies."""

    order: str
    entry: struct.Struct
    pointer: struct.Struct
    begin: int
    num_tags: int

    @classmethod
    def at(cls, view: memoryview, page: int | None) -> _Directory:
        """Return the list that begins at a byte, by default that of the first page."""
        order = "<" if view[0] == ord("I") else ">"
        if struct.unpack_from(order + "H", view, 2)[0] == 43:
            if struct.unpack_from(order + "HH", view, 4) != (8, 0):
                raise HeadError("its header is that of no BigTIFF")
            entry, pointer, counter = (struct.Struct(order + form) for form in ("HHQ", "Q", "Q"))
        else:
            entry, pointer, counter = (struct.Struct(order + form) for form in ("HHI", "I", "H"))
        place = page
        if place is None:
            place = pointer.unpack_from(view, pointer.size)[0]
        count = _whole_number(view[place : place + counter.size], order)
        directory = cls(order, entry, pointer, place + counter.size, count)
        is_whole = directory.begin <= len(view) and directory.end <= len(view)
        if not is_whole or not 0 < count <= 65535:
            raise HeadError(
                f"its first page has {count} tags at byte {place}, of {len(view)}: it was cut off"
            )
        return directory

    @property
    def end(self) -> int:
        """The byte behind the tags."""
        return self.begin + self.num_tags * (self.entry.size + self.pointer.size)

    def entries(self, view: memoryview) -> Iterator[tuple[int, int, int, int]]:
        """Yield of each tag its number, type and number of its values, and where they begin."""
        entry, pointer = self.entry, self.pointer
        for at in range(self.begin, self.end, entry.size + pointer.size):
            tag, kind, number = entry.unpack_from(view, at)
            start = at + entry.size
            if number * VALUE_BYTES.get(kind, 0) > pointer.size:  # else the values stand there
                start = pointer.unpack_from(view, start)[0]
            yield tag, kind, number, start

    def next_page(self, view: memoryview) -> int:
        """Return where the tags of the next page begin; 0 if there is none."""
        # Of a file that was cut off behind its last page nothing follows.
        return _whole_number(view[self.end : self.end + self.pointer.size], self.order)


def _whole_number(content: memoryview, order: str) -> int:
    return int.from_bytes(content, "little" if order == "<" else "big")


def _bits(tags: _Tags, channels: int) -> int:
    """Return the bits of a sample: where no tag says them it is 1 (TIFF 6.0, section 8,
    BitsPerSample)."""
    bits = tags.values.get(BITS)
    if bits is None:
        return 1
    if len(bits) != channels or (bits != bits[0]).any():
        raise HeadError(f"its bits per sample are {bits[:8].tolist()}, for {channels} channels")
    return int(bits[0])


def _is_rare(tags: _Tags, kind: int, channels: int, bits: int, compression: int) -> bool:
    """Return True for the kinds of pixels that DALI's decoder reads wrongly or not at all."""
    sound: dict[int, dict[int, tuple[int, ...]]] = {
        WHITE_IS_0: {1: (1, 8)},
        BLACK_IS_0: {1: (1, 8, *DEEP)},
        RGB: {3: (8, *DEEP), 4: (8, *DEEP)},
        INDEXED: {1: (1, 2, 4, 8)},
        CMYK: {4: (8,)},
    }
    if compression == JPEG:
        sound[YCBCR] = {3: (8,)}
    if bits not in sound.get(kind, {}).get(channels, ()):
        return True
    is_tiled = TILE_WIDTH in tags.values
    is_planar = tags.first(PLANAR, "arrangement", 1) != 1 and channels > 1
    if is_planar and (is_tiled or (kind, channels, bits) != (RGB, 3, 8)):
        return True
    if is_tiled and (kind, bits) == (WHITE_IS_0, 8):
        return True
    is_turned = tags.first(ORIENTATION, "orientation", 1) != 1
    if is_turned and _extra(tags, kind, channels) == "alpha":
        return True
    return _has_rare_packing(tags, bits, compression)


def _has_rare_packing(tags: _Tags, bits: int, compression: int) -> bool:
    """Return True for samples that are packed in a way that DALI's decoder reads wrongly, or never."""
    if compression not in {PLAIN, JPEG, PACKBITS, *FAX, *COUNTERS}:
        return True
    is_odd = bits in DEEP[:-1]
    if compression in (LZW, DEFLATE, OLD_DEFLATE):
        predictor = tags.first(PREDICTOR, "predictor", 1)
        if predictor not in (1, 2) or (predictor == 2 and (is_odd or bits < 8)):
            return True
    if compression == JPEG and bits != 8:
        return True
    return is_odd and (compression in (LZW, PACKBITS) or TILE_WIDTH in tags.values)


def _check_kind(tags: _Tags, kind: int, channels: int, bits: int, compression: int) -> None:
    """Refuse the kinds of pixels that nothing here reads."""
    if tags.first(DEPTH, "depth", 1) != 1:
        raise UnsupportedError("a TIFF that is a volume of several slices")
    if tags.first(SUBFILE, "kind", 0) & REDUCED:
        raise UnsupportedError(
            "a TIFF whose first page is a small copy of another one, as in raw files of cameras"
        )
    if compression not in COMPRESSIONS and compression != PLAIN:
        raise UnsupportedError(f"a TIFF of compression {compression}")
    least = COLOUR_CHANNELS.get(kind)
    if least is None or (kind == YCBCR and compression != JPEG):
        raise UnsupportedError(f"a TIFF of {COLOURS.get(kind, f'colours of kind {kind}')}")
    if channels < least:
        raise HeadError(
            f"it has {channels} channels, and its colours are {COLOURS.get(kind, kind)}"
        )
    _check_compression(tags, kind, channels, bits, compression)
    if tags.first(FILL_ORDER, "order of bits", 1) != 1 and bits != 1:
        raise UnsupportedError(
            f"a TIFF with the bits of its bytes in reverse order, and {bits} bits for a sample"
        )
    if kind == INDEXED and len(tags.values.get(PALETTE, ())) != 3 << bits:
        num_values = len(tags.values.get(PALETTE, ()))
        raise HeadError(f"its palette has {num_values} values; it needs {3 << bits}")


def _check_compression(tags: _Tags, kind: int, channels: int, bits: int, compression: int) -> None:
    """Refuse a compression, or a predictor, that does not go with the kind of pixels."""
    predictor = tags.first(PREDICTOR, "predictor", 1)
    is_predicted = compression in (PLAIN, *PREDICTED) and (bits >= 8 or compression == PLAIN)
    if predictor != 1 and not is_predicted:
        how = COMPRESSIONS.get(compression, "no compression")
        raise UnsupportedError(
            f"a TIFF with a predictor beside {how} and {bits} bits, about which decoders differ"
        )
    if compression == JPEG and (kind, channels) not in IN_JPEG:
        colours = COLOURS.get(kind, kind)
        raise UnsupportedError(f"a TIFF of {colours}, {channels} channels, compressed by JPEG")
    if compression in FAX and (kind not in (WHITE_IS_0, BLACK_IS_0) or bits != 1):
        raise HeadError("it is a fax of more than two levels")


def _check_pixels(
    view: memoryview,
    tags: _Tags,
    height: int,
    width: int,
    channels: int,
    bits: int,
    compression: int,
) -> None:
    """Refuse pixels that are not whole."""
    planes = 1
    if tags.first(PLANAR, "arrangement", 1) == 2:
        planes = channels
    pieces = _pieces_of(tags, height, width)
    begins, sizes = tags.values.get(pieces.places), tags.values.get(pieces.counts)
    num_pieces = pieces.number * planes
    if begins is None or sizes is None or not len(begins) == len(sizes) == num_pieces:
        lengths = [0 if array is None else len(array) for array in (begins, sizes)]
        raise HeadError(
            f"it gives {lengths[0]} places and {lengths[1]} lengths for {num_pieces} pieces"
        )
    if (begins + sizes > len(view)).any():
        raise HeadError("its pixels do not lie inside the file: it was cut off")
    if sizes.sum() > len(view):  # else a small file could be gone through a million times
        raise HeadError(f"its {len(sizes)} pieces of pixels lie in one another")
    pixel_bits = bits * (channels // planes)
    row_bytes = -(-pieces.width * pixel_bits // 8)
    # nvImageCodec has libtiff read strips row by row, and tiles as one piece.
    run_rows = 1
    if TILE_WIDTH in tags.values:
        run_rows = pieces.height
    for number, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist(), strict=True)):
        is_last = number % pieces.number == pieces.number - 1
        piece_bytes = row_bytes * (pieces.last_height if is_last else pieces.height)
        piece = view[begin : begin + size]
        have = _num_bytes(piece, compression, piece_bytes, run_rows * row_bytes)
        if have < piece_bytes:
            raise HeadError(
                f"piece {number} of its pixels is damaged: it has {have} of {piece_bytes} bytes"
            )


class _PieceLayout(NamedTuple):
    """The strips or tiles of a plane: how many, their size in pixels, and the tags of their places."""

    number: int
    width: int
    height: int
    last_height: int
    places: int
    counts: int


def _pieces_of(tags: _Tags, height: int, width: int) -> _PieceLayout:
    """Return the pieces of a plane; ``HeadError`` for sizes that cannot be."""
    if TILE_WIDTH in tags.values:
        wide, high = (
            tags.first(TILE_WIDTH, "width of tiles"),
            tags.first(TILE_HEIGHT, "height of tiles"),
        )
        # TIFF 6.0, section 15.
        if not wide or not high or wide % 16 or high % 16:
            raise HeadError(f"its tiles are {high} x {wide} pixels; both are multiples of 16")
        number = -(-width // wide) * -(-height // high)
        check_size(number * wide * high)
        return _PieceLayout(number, wide, high, high, TILE_OFFSETS, TILE_BYTE_COUNTS)
    high = min(tags.first(ROWS_PER_STRIP, "height of strips", height), height)
    if not high:
        raise HeadError("its strips have no rows")
    last = (height - 1) % high + 1
    return _PieceLayout(-(-height // high), width, high, last, OFFSETS, BYTE_COUNTS)


def _num_bytes(piece: memoryview, compression: int, enough: int, run_bytes: int) -> int:
    """Return how many bytes of samples a piece holds, at least if they are enough.

    Args:
        piece: the bytes of a strip or tile.
        compression: its kind; of one that is not gone through ``enough`` is the answer.
        enough: the bytes that are needed.
        run_bytes: a run of PackBits has to end at a multiple of these.
    """
    if compression == PLAIN:
        return len(piece)
    if compression in COUNTERS:
        return COUNTERS[compression](piece, enough)
    if compression == PACKBITS:
        return codecs.packbits_bytes(piece, enough, run_bytes)
    if compression == JPEG:
        is_whole = bytes(piece[:2]) == b"\xff\xd8" and b"\xff\xd9" in bytes(piece[-8:])
        if is_whole:
            return enough
        return 0
    if len(piece):
        return enough
    return 0

"""Head of a TIFF: the tags of its first page, and whether its pixels are whole.

Read    classic TIFF and BigTIFF, both byte orders, strips and tiles; gray of 1, 8, 10, 12, 14 and 16 bits, RGB of 8 to
        16 with or without one more channel, palettes of 1 to 8 bits, CMYK of 8; not compressed, Deflate, LZW, PackBits,
        CCITT (fax) and JPEG. Of several pages the first.
Not     kinds that OpenCV, so DALI, reads wrongly or never (4.13): floating point and signed samples, 2 or 4 bits of
        gray, gray with alpha, more than one extra channel, L*a*b*, YCbCr but as JPEG, planes of 16 bits or of four
        channels, white as 0 with more than 8 bits; ZSTD, LZMA, WebP, JPEG XR, old JPEG, volumes.
Whole   libtiff fills up damaged parts, and OpenCV accepts that. So data compressed by Deflate, LZW or PackBits are
        gone through here (`compression`). PackBits runs across the rows of a strip are refused: libtiff cuts them off.
        Of CCITT and JPEG only the places are checked: damage inside is not seen.
Source  TIFF 6.0; TIFF technical note 2 (JPEG); BigTIFF, https://libtiff.gitlab.io/libtiff/specification/bigtiff.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuload.images.heads import compression as codecs
from gpuload.images.heads.base import Head, HeadError, check_size, upright

SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = 254, 256, 257, 258, 259, 262, 266
OFFSETS, ORIENTATION, CHANNELS, ROWS_PER_STRIP, BYTE_COUNTS, PLANAR = 273, 274, 277, 278, 279, 284
PREDICTOR, PALETTE, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_BYTE_COUNTS = 317, 320, 322, 323, 324, 325
EXTRA, SAMPLE_FORMAT, DEPTH = 338, 339, 32997
TAGS = {SUBFILE, WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER, OFFSETS, ORIENTATION, CHANNELS}
TAGS |= {ROWS_PER_STRIP, BYTE_COUNTS, PLANAR, PREDICTOR, PALETTE, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS}
TAGS |= {TILE_BYTE_COUNTS, EXTRA, SAMPLE_FORMAT, DEPTH}
VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
DTYPES = {1: "u1", 3: "u2", 4: "u4", 13: "u4", 16: "u8"}  # of the types of whole numbers

WHITE_IS_0, BLACK_IS_0, RGB, INDEXED, CMYK, YCBCR = 0, 1, 2, 3, 5, 6
COLOURS = {4: "a mask", CMYK: "CMYK", YCBCR: "YCbCr", 8: "L*a*b*", 9: "L*a*b*", 10: "L*a*b*", 32803: "a colour filter"}
COLOURS |= {32844: "LogL", 32845: "LogLuv", 34892: "raw colours", WHITE_IS_0: "gray", BLACK_IS_0: "gray", RGB: "RGB"}
COLOURS |= {INDEXED: "a palette"}
PLAIN, HUFFMAN, FAX3, FAX4, LZW, JPEG, DEFLATE, OLD_DEFLATE, PACKBITS = 1, 2, 3, 4, 5, 7, 8, 32946, 32773
FAX = {HUFFMAN, FAX3, FAX4}
COMPRESSIONS = {6: "old JPEG", 34712: "JPEG 2000", 34925: "LZMA", 34933: "PNG", 34934: "JPEG XR", 50000: "ZSTD"}
COMPRESSIONS |= {50001: "WebP", 50002: "JPEG XL", 22610: "JPEG XR", 34661: "JBIG", 34887: "LERC", 32809: "ThunderScan"}
COUNTERS: dict[int, Callable[[memoryview, int], int]] = {
    DEFLATE: codecs.deflate_bytes,
    OLD_DEFLATE: codecs.deflate_bytes,
    LZW: codecs.lzw_bytes,
}
ASSOCIATED = 1  # alpha that the colours were multiplied by
MAX_SIDE = 2**20  # CV_IO_MAX_IMAGE_WIDTH of OpenCV


def read(view: memoryview) -> Head:
    """Return the head of a TIFF; see `images.head.read`."""
    tags = _Tags.of(view)
    width, height = tags.first(WIDTH, "width"), tags.first(HEIGHT, "height")
    channels = tags.first(CHANNELS, "number of channels", 1)
    if not 0 < width <= MAX_SIDE or not 0 < height <= MAX_SIDE:
        raise HeadError(f"it would be {height} x {width} pixels; a side of a TIFF has 1 to {MAX_SIDE}")
    check_size(height * width)
    bits = _bits(tags, channels)
    kind = tags.first(PHOTOMETRIC, "kind of colours")
    compression = tags.first(COMPRESSION, "compression", PLAIN)
    _check_kind(tags, kind, channels, bits, compression)
    _check_pixels(view, tags, height, width, channels, bits, compression)
    turn = tags.first(ORIENTATION, "orientation", 1)
    turn = turn if 1 <= turn <= 8 else 1
    samples = 3 if kind == INDEXED else channels
    deep = 8 if bits <= 8 and kind != INDEXED else 16  # the colours of a palette have 16 bits
    return upright("tiff", height, width, samples, deep, turn, form=_form(tags, kind, channels, bits))


def gives_bits(view: memoryview) -> bool:
    """Return False for a TIFF whose first page has no tag BitsPerSample; True for a file that is no whole TIFF."""
    try:
        return BITS in _Tags.of(view).values
    except (HeadError, IndexError, struct.error):
        return True


def _form(tags: _Tags, kind: int, channels: int, bits: int) -> str:
    """Return the word for a kind that Pillow reads in another way; "" for any other."""
    if kind == RGB and channels == 4 and tags.first(EXTRA, "extra channel", 0) == ASSOCIATED:
        return "associated"
    if BITS not in tags.values:
        return "default bits"
    return "palette" if kind == INDEXED else "CMYK" if kind == CMYK else "" if bits in (1, 8, 16) else "odd bits"


@dataclass(frozen=True)
class _Tags:
    """The tags of the first page that matter here."""

    order: str
    values: dict[int, NDArray[np.int64]]

    @classmethod
    def of(cls, view: memoryview) -> _Tags:
        order = "<" if view[0] == ord("I") else ">"
        is_big = struct.unpack_from(order + "H", view, 2)[0] == 43
        if is_big:
            if struct.unpack_from(order + "HH", view, 4) != (8, 0):
                raise HeadError("its header is that of no BigTIFF")
            place = struct.unpack_from(order + "Q", view, 8)[0]
            entry, inline, count_bytes = struct.Struct(order + "HHQ"), 8, 8
        else:
            place = struct.unpack_from(order + "I", view, 4)[0]
            entry, inline, count_bytes = struct.Struct(order + "HHI"), 4, 2
        count = int.from_bytes(view[place : place + count_bytes], "little" if order == "<" else "big")
        begin, step = place + count_bytes, entry.size + inline
        if begin > len(view) or not 0 < count <= 65535 or begin + count * step > len(view):
            raise HeadError(f"its first page has {count} tags at byte {place}, of {len(view)}: it was cut off")
        values: dict[int, NDArray[np.int64]] = {}
        for at in range(begin, begin + count * step, step):
            tag, kind, number = entry.unpack_from(view, at)
            start, size = at + entry.size, number * VALUE_BYTES.get(kind, 0)
            if size > inline:
                start = struct.unpack_from(order + ("Q" if is_big else "I"), view, start)[0]
            if start + size > len(view):
                raise HeadError(f"its tag {tag} does not lie inside the file: it was cut off")
            if tag not in TAGS:
                continue
            if tag in values:
                raise HeadError(f"its tag {tag} occurs twice")
            if kind not in DTYPES or number == 0:
                raise HeadError(f"its tag {tag} is {number} values of type {kind}")
            dtype = np.dtype(order + DTYPES[kind])
            numbers = np.frombuffer(view, dtype, number, start)
            # So that the sum of a place and a length cannot run over int64.
            if dtype.itemsize == 8 and (numbers >= 2**62).any():
                raise HeadError(f"its tag {tag} holds {numbers.max()}")
            values[tag] = numbers.astype(np.int64)
        return cls(order, values)

    def first(self, tag: int, name: str, default: int | None = None) -> int:
        """Return the first value of a tag; a tag without a default must be there."""
        if tag in self.values:
            return int(self.values[tag][0])
        if default is None:
            raise HeadError(f"it gives no {name} (tag {tag})")
        return default


def _bits(tags: _Tags, channels: int) -> int:
    """Return the bits of a sample: where no tag says them it is 1 (TIFF 6.0, section 8, BitsPerSample)."""
    bits = tags.values.get(BITS)
    if bits is None:
        return 1
    if len(bits) != channels or (bits != bits[0]).any():
        raise HeadError(f"its bits per sample are {bits[:8].tolist()}, for {channels} channels")
    return int(bits[0])


def _check_kind(tags: _Tags, kind: int, channels: int, bits: int, compression: int) -> None:
    """Refuse the kinds of pixels that decoders read wrongly or not at all."""
    formats = tags.values.get(SAMPLE_FORMAT)
    if formats is not None and (formats != 1).any():
        names = {2: "signed", 3: "floating-point"}
        raise HeadError(f"its samples are {names.get(int(formats.max()), 'of an unknown kind')}; unsigned are decoded")
    if tags.first(DEPTH, "depth", 1) != 1:
        raise HeadError("it is a volume of several slices")
    if tags.first(SUBFILE, "kind", 0) & 1:
        raise HeadError("its first page is a small copy of another one, as in raw files of cameras")
    if compression not in {PLAIN, JPEG, PACKBITS, *FAX, *COUNTERS}:
        raise HeadError(f"it is compressed by {COMPRESSIONS.get(compression, compression)}, which is not decoded")
    deep = (10, 12, 14, 16)
    sound: dict[int, dict[int, tuple[int, ...]]] = {
        WHITE_IS_0: {1: (1, 8)},
        BLACK_IS_0: {1: (1, 8, *deep)},
        RGB: {3: (8, *deep), 4: (8, *deep)},
        INDEXED: {1: (1, 2, 4, 8)},
        CMYK: {4: (8,)},
        YCBCR: {3: (8,)} if compression == JPEG else {},
    }
    if bits not in sound.get(kind, {}).get(channels, ()):
        colours = COLOURS.get(kind, f"colours of kind {kind}")
        raise HeadError(f"it is a TIFF of {colours} with {channels} channels of {bits} bits, which is not decoded")
    is_planar = tags.first(PLANAR, "arrangement", 1) != 1 and channels > 1
    predictor = tags.first(PREDICTOR, "predictor", 1) if compression in (LZW, DEFLATE, OLD_DEFLATE) else 1
    is_odd = bits in deep[:-1] or bits < 8
    if is_planar and (kind, channels, bits) != (RGB, 3, 8):
        raise HeadError("its channels lie one after the other; of 3 channels of 8 bits alone that is decoded")
    if predictor not in (1, 2) or (predictor == 2 and is_odd):
        raise HeadError(f"it has predictor {predictor} with {bits} bits, which is not decoded")
    if compression in FAX and (kind not in (WHITE_IS_0, BLACK_IS_0) or bits != 1):
        raise HeadError("it is a fax of more than two levels")
    if compression == JPEG and bits != 8:
        raise HeadError(f"it is compressed by JPEG with {bits} bits")
    if bits in deep[:-1] and (compression in (LZW, PACKBITS) or TILE_WIDTH in tags.values):
        raise HeadError(f"it has {bits} bits in tiles, or compressed by LZW or PackBits, which is not decoded")
    if tags.first(FILL_ORDER, "order of bits", 1) != 1 and bits != 1:
        raise HeadError(f"the bits of its bytes are in reverse order, with {bits} bits for a sample")
    if kind == INDEXED and len(tags.values.get(PALETTE, ())) != 3 << bits:
        raise HeadError(f"its palette has {len(tags.values.get(PALETTE, ()))} values; it needs {3 << bits}")


def _check_pixels(
    view: memoryview, tags: _Tags, height: int, width: int, channels: int, bits: int, compression: int
) -> None:
    """Refuse pixels that are not whole."""
    planes = channels if tags.first(PLANAR, "arrangement", 1) == 2 else 1
    bits *= channels // planes  # of a pixel
    if TILE_WIDTH in tags.values:
        wide, high = tags.first(TILE_WIDTH, "width of tiles"), tags.first(TILE_HEIGHT, "height of tiles")
        # TIFF 6.0, section 15.
        if not wide or not high or wide % 16 or high % 16:
            raise HeadError(f"its tiles are {high} x {wide} pixels; both are multiples of 16")
        across, down, places, counts = -(-width // wide), -(-height // high), TILE_OFFSETS, TILE_BYTE_COUNTS
        check_size(across * down * wide * high)
        count, last = across * down, high
    else:
        high = min(tags.first(ROWS_PER_STRIP, "height of strips", height), height)
        if not high:
            raise HeadError("its strips have no rows")
        wide, places, counts = width, OFFSETS, BYTE_COUNTS
        count, last = -(-height // high), (height - 1) % high + 1
    begins, sizes = tags.values.get(places), tags.values.get(counts)
    if begins is None or sizes is None or not len(begins) == len(sizes) == count * planes:
        lengths = [0 if array is None else len(array) for array in (begins, sizes)]
        raise HeadError(f"it gives {lengths[0]} places and {lengths[1]} lengths for {count * planes} pieces")
    if (begins + sizes > len(view)).any():
        raise HeadError("its pixels do not lie inside the file: it was cut off")
    if sizes.sum() > len(view):  # else a small file could be gone through a million times
        raise HeadError(f"its {len(sizes)} pieces of pixels lie in one another")
    row_bytes = -(-wide * bits // 8)
    for number, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist(), strict=True)):
        piece_bytes = row_bytes * (last if number % count == count - 1 else high)
        piece, have = view[begin : begin + size], size
        if compression in COUNTERS:
            have = COUNTERS[compression](piece, piece_bytes)
        elif compression == PACKBITS:
            # nvImageCodec has libtiff read strips row by row, and tiles as one piece.
            have = codecs.packbits_bytes(piece, piece_bytes, piece_bytes if TILE_WIDTH in tags.values else row_bytes)
        elif compression == JPEG:
            have = piece_bytes if bytes(piece[:2]) == b"\xff\xd8" and b"\xff\xd9" in bytes(piece[-8:]) else 0
        elif compression in FAX:
            have = piece_bytes if have else 0
        if have < piece_bytes:
            raise HeadError(f"piece {number} of its pixels is damaged: it has {have} of {piece_bytes} bytes")

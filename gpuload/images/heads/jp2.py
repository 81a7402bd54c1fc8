"""Head of a JPEG 2000 image: the boxes of a JP2 file, and the markers of its codestream.

Read    JP2 files of gray, RGB and RGBA, raw codestreams of RGB and RGBA; 8 to 16 bits, all channels
        alike. Of 9 to 15 bits, which DALI does not scale (form "12 bits"), samples are moved up to
        16: gray by Pillow, colours behind nvImageCodec. By Pillow gray with alpha of 8 bits, raw
        codestreams of gray (form "gray"), and signed gray, of which the numbers are stored ones and no
        colours (form "8 bits" to "16 bits").
Not     kinds that OpenCV, so DALI, reads wrongly or not at all (4.13): palettes, sYCC and other
        colours, channels of other sizes, an image that does not begin at 0, signed colours; HTJ2K
        and others of OTHER_SEGMENTS.
Whole   the tile parts stand one behind the other up to the end marker, and each tile has one;
        damage inside is not seen.
Bounds  each packet takes a byte at least, so that the numbers of layers, resolutions and precincts,
        for which a decoder takes memory, are bounded by those of the file.
Source  ITU-T T.800, annexes A, B and I.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from gpuload.images.heads.base import (
    Head,
    HeadError,
    UnsupportedError,
    check_size,
    printable_name,
    upright,
)

SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"
SOC, SIZ, COD, COC, QCD, QCC = 0xFF4F, 0xFF51, 0xFF52, 0xFF53, 0xFF5C, 0xFF5D
TLM, PLM, PLT, CRG, COM, SOT, SOD, EOC = (
    0xFF55,
    0xFF57,
    0xFF58,
    0xFF63,
    0xFF64,
    0xFF90,
    0xFF93,
    0xFFD9,
)
OTHER_SEGMENTS = {  # of sound images that are not decoded
    0xFF50: "high-throughput coding (HTJ2K)", 0xFF59: "high-throughput coding (HTJ2K)", 0xFF56: "a profile (PRF)",
    0xFF5E: "a region of interest (RGN)", 0xFF5F: "changes of its progression order (POC)",
    0xFF60: "packed packet headers (PPM)", 0xFF61: "packed packet headers (PPT)",
}  # fmt: skip
SIZES = struct.Struct(">HIIIIIIIIH")
TILE_PART = struct.Struct(">HHIBB")
BOX = struct.Struct(">I4s")
SRGB, GRAY = 16, 17
GRAYS = "gray"  # a form
SIGNED = 0x80  # a flag of a depth (T.800, table A.11)
COLOURS = {12: "CMYK", 14: "L*a*b*", 18: "sYCC"}
ENUMERATED, ICC = 1, 2
MAX_RESOLUTIONS = 33


def read_jp2(view: memoryview) -> Head:
    """Return the head of a JP2 file; the errors are those of `images.head.read`."""
    return _read_boxes(view)[0]


def codestream(view: memoryview) -> memoryview:
    """Return the codestream of a file that was read: of a JP2, Pillow 13 takes gray of 9 bits for
    one of 8."""
    if bytes(view[: len(SIGNATURE)]) == SIGNATURE:
        return _read_boxes(view)[1]
    return view


def _read_boxes(view: memoryview) -> tuple[Head, memoryview]:
    """Return the head of a JP2 file, and its codestream."""
    header = None
    for name, begin, end in _boxes(view, 0, len(view)):
        if name == b"jp2h":
            header = begin, end
        elif name == b"jp2c":
            if header is None:
                raise HeadError("its pixels (jp2c) stand before its header (jp2h)")
            head = _codestream(view[begin:end])
            _check_header(view, *header, head)
            return head, view[begin:end]
    raise HeadError("it holds no image: it has no box jp2c")


def read_codestream(view: memoryview) -> Head:
    """Return the head of a raw codestream; the errors are those of `images.head.read`."""
    head = _codestream(view)
    if head.channels < 3:
        return replace(head, form=head.form or GRAYS)
    return head


def _boxes(view: memoryview, begin: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Give the name of each box, and where its contents begin and end."""
    while begin + 8 <= end:
        length, name = BOX.unpack_from(view, begin)
        inside = begin + 8
        if length == 1:
            raise UnsupportedError(
                f"a JP2 whose box {printable_name(name)} has a length of 64 bits"
            )
        behind = end
        if length:
            behind = begin + length
        if behind < inside or behind > end:
            raise HeadError(
                f"its box {printable_name(name)} does not end inside the file: it was cut off"
            )
        yield name, inside, behind
        begin = behind


def _check_header(view: memoryview, begin: int, end: int, head: Head) -> None:
    """Refuse colours that are read differently; the sizes must be those of the codestream."""
    if bytes(view[begin + 4 : begin + 8]) != b"ihdr":
        raise HeadError("its header (jp2h) does not begin with the size (ihdr)")
    colour = None
    for name, start, stop in _boxes(view, begin, end):
        if name == b"ihdr":
            _check_size_box(view, start, head)
        elif name == b"colr" and colour is None:
            colour = view[start], int.from_bytes(view[start + 3 : min(start + 7, stop)], "big")
        elif name in (b"pclr", b"cmap"):
            raise UnsupportedError("a JPEG 2000 image with a palette")
        elif name == b"cdef":
            _check_channel_order(view, start, head)
    if colour is None:
        raise HeadError("it does not say its colours (box colr)")
    _check_colours(*colour, head)


def _check_size_box(view: memoryview, start: int, head: Head) -> None:
    height, width, channels, bits = struct.unpack_from(">IIHB", view, start)
    depth = head.stored_bits - 1
    if head.sample:
        depth |= SIGNED
    if (height, width, channels, bits) != (head.height, head.width, head.channels, depth):
        raise HeadError(
            f"its header says {height} x {width} pixels of {channels} channels, its pixels others"
        )


def _check_channel_order(view: memoryview, start: int, head: Head) -> None:
    count = struct.unpack_from(">H", view, start)[0]
    for number in range(count):
        channel, kind, of = struct.unpack_from(">HHH", view, start + 2 + 6 * number)
        in_order = (kind, of) == (0, channel + 1) or channel >= 3 or head.channels < 3
        if not in_order or channel >= head.channels:
            raise UnsupportedError("a JPEG 2000 image whose channels are in another order")


def _check_colours(method: int, space: int, head: Head) -> None:
    is_gray = head.channels < 3
    if method == ICC:
        if is_gray:
            raise UnsupportedError("a JPEG 2000 image whose gray is given by a profile")
        return
    if method == ENUMERATED and space == (GRAY if is_gray else SRGB):
        return
    colours = f"given by method {method}"
    if method == ENUMERATED:
        colours = COLOURS.get(space, f"of kind {space}")
    raise UnsupportedError(f"a JPEG 2000 image of {head.channels} channels that are {colours}")


def _codestream(view: memoryview) -> Head:
    if struct.unpack_from(">HH", view, 0) != (SOC, SIZ):
        raise HeadError("its codestream does not begin with its size (SIZ)")
    length = struct.unpack_from(">H", view, 4)[0]
    size = _Size(*SIZES.unpack_from(view, 6))
    if len(view) < 4 + length:
        raise HeadError(f"the file ends inside its size (SIZ), after {len(view)} bytes")
    if length != 38 + 3 * size.channels:
        raise HeadError(f"its size (SIZ) has {length} bytes, for {size.channels} channels")
    num_tiles = _num_tiles(size)
    depth, is_signed = _depth(view, size.channels)
    coding = _Coding(view, size.height, size.width, size.channels)
    markers: set[int] = set()
    place = 4 + length
    while (marker := _marker(view, place)) != SOT:
        if marker in markers & {COD, QCD}:
            raise HeadError(f"marker {marker:#x} of its codestream occurs twice")
        markers.add(marker)
        place = coding.behind(marker, place, in_tile=False)
    if not {COD, QCD} <= markers:
        raise HeadError("its codestream says nothing of its coding (COD, QCD)")
    _check_tiles(coding, place, num_tiles)
    form = ""
    if size.channels == 2:
        form = GRAYS
    if depth % 8 or is_signed:
        form = f"{depth} bits"
    bits = 16
    if depth == 8:
        bits = 8
    sample = ""
    if is_signed:
        sample = f"int{bits}"
    surplus = "alpha"
    if size.channels % 2:
        surplus = ""
    return upright(
        "jp2", size.height, size.width, size.channels, bits, 1,
        form=form, surplus=surplus, sample=sample,
    )  # fmt: skip


class _Size(NamedTuple):
    """The segment SIZ (T.800, A.5.1), all in samples; without the depths of the channels."""

    capabilities: int
    width: int
    height: int
    left: int
    top: int
    tile_width: int
    tile_height: int
    tile_left: int
    tile_top: int
    channels: int


def _num_tiles(size: _Size) -> int:
    """Return how many tiles an image has; refuse one that begins elsewhere, or that has no pixels."""
    if size.channels not in (1, 2, 3, 4):
        raise UnsupportedError(f"a JPEG 2000 image of {size.channels} channels")
    if size.left or size.top or size.tile_left or size.tile_top:
        raise UnsupportedError(
            f"a JPEG 2000 image that begins at {size.top}, {size.left}, "
            f"and its tiles at {size.tile_top}, {size.tile_left}"
        )
    if 0 in (size.height, size.width, size.tile_height, size.tile_width):
        raise HeadError(
            f"it would be {size.height} x {size.width} pixels "
            f"in tiles of {size.tile_height} x {size.tile_width}"
        )
    check_size(size.height * size.width)
    num_tiles = -(-size.height // size.tile_height) * -(-size.width // size.tile_width)
    # Their numbers have 16 bits (SOT, A.4.2).
    if num_tiles > 65535:
        raise HeadError(f"it has {num_tiles} tiles; there are 65535 at most")
    return num_tiles


def _depth(view: memoryview, channels: int) -> tuple[int, bool]:
    """Return the bits of a sample, and True for signed ones; they are the same of all channels."""
    forms = {bytes(view[place : place + 3]) for place in range(42, 42 + 3 * channels, 3)}
    form = forms.pop()
    depth, is_signed = (form[0] & ~SIGNED) + 1, bool(form[0] & SIGNED)
    if forms or form[1:] != b"\1\1" or not 8 <= depth <= 16:
        raise UnsupportedError(
            "a JPEG 2000 image whose channels differ, or have other than 8 to 16 bits"
        )
    if is_signed and channels > 1:
        raise UnsupportedError(f"a JPEG 2000 image of {channels} signed channels")
    if channels == 2 and depth > 8:
        raise UnsupportedError("a JPEG 2000 image of gray of 16 bits with alpha")
    return depth, is_signed


def _marker(view: memoryview, place: int) -> int:
    marker: int = struct.unpack_from(">H", view, place)[0]
    if marker < 0xFF00:
        raise HeadError(
            f"byte {place} of its codestream is {marker >> 8:#04x}, where a marker must begin"
        )
    return marker


class _Coding:
    """The segments in front of coded data, checked: they say nothing that OpenJPEG refuses.

    OpenCV 4.13 gives OpenJPEG a pointer without a value, to which it writes when it refuses the
    header of a codestream: the process may die. So the checks here are as strict as those of
    OpenJPEG.
    """

    def __init__(self, view: memoryview, height: int, width: int, channels: int) -> None:
        self.view, self._size, self._channels, self._layers = view, (height, width), channels, 1

    def behind(self, marker: int, place: int, *, in_tile: bool) -> int:
        """Return where the segment with a marker at a place ends, checked."""
        size: int = struct.unpack_from(">H", self.view, place + 2)[0]
        begin, end = place + 4, place + 2 + size
        if size < 2 or end > len(self.view):
            raise HeadError(
                f"its segment {marker:#x} at byte {place} of the codestream "
                "does not end inside the file"
            )
        if marker == COD:
            style, order, self._layers, colours = struct.unpack_from(">BBHB", self.view, begin)
            is_sound = style <= 7 and order <= 4 and colours <= 1 and self._layers > 0
            self._check(is_sound, marker, place)
            self._check_style(begin + 5, end, style & 1, self._channels, marker)
        elif marker == COC:
            channel, style = struct.unpack_from(">BB", self.view, begin)
            self._check(channel < self._channels and style <= 1, marker, place)
            self._check_style(begin + 2, end, style, 1, marker)
        elif marker in OTHER_SEGMENTS:
            raise UnsupportedError(f"a JPEG 2000 image with {OTHER_SEGMENTS[marker]}")
        else:
            self._check(self._is_sound(marker, begin, end, in_tile), marker, place)
        return end

    def _is_sound(self, marker: int, begin: int, end: int, in_tile: bool) -> bool:
        """Return True if a segment without a coding style may stand there, and has a right length."""
        if marker == COM:
            return True
        if marker in (QCD, QCC):
            if marker == QCC and self.view[begin] >= self._channels:
                return False
            begin += marker == QCC
            # T.800, A.6.4: a number for each subband, three a level and one, of 1 byte if nothing
            # is quantized, else of 2; or one number for all.
            sizes = {0: range(1, 98), 1: (2,), 2: range(2, 195, 2)}
            return end - begin - 1 in sizes.get(self.view[begin] & 31, ())
        if in_tile:
            return marker == PLT
        if marker == TLM:
            form = self.view[begin + 1]
            # T.800, A.7.1: a tile's number has 0, 1 or 2 bytes, the length of its part 2 or 4.
            step = 2 + 2 * (form >> 6 & 1) + (form >> 4 & 3)
            return form & 0x8F == 0 and form >> 4 & 3 < 3 and (end - begin - 2) % step == 0
        if marker == CRG:
            return end - begin == 4 * self._channels
        return marker == PLM and end > begin

    def _check(self, is_sound: bool, marker: int, place: int) -> None:
        if not is_sound:
            raise HeadError(
                f"its segment {marker:#x} at byte {place} of the codestream is damaged, or not "
                "decoded"
            )

    def _check_style(
        self, place: int, end: int, has_precincts: int, channels: int, marker: int
    ) -> None:
        levels, wide, high, style, transform = self.view[place : place + 5]
        self._check(
            levels < MAX_RESOLUTIONS and end == place + 5 + (levels + 1) * has_precincts,
            marker,
            place,
        )
        # T.800, A.6.1: a side of a code block is 2 ** (number + 2), 1024 at most, and a block has
        # 4096 samples at most.
        blocks = wide <= 8 and high <= 8 and wide + high <= 8
        self._check(blocks and style < 64 and transform <= 1, marker, place)
        packets = 0
        for level in range(levels + 1):
            if has_precincts:
                exponents = self.view[place + 5 + level]
            else:
                exponents = 0xFF
            # A precinct of one sample is allowed at the lowest resolution alone (table A.21).
            self._check(level == 0 or (exponents & 15 > 0 and exponents >> 4 > 0), marker, place)
            tall, broad = (-(-side // (1 << levels - level)) for side in self._size)
            packets += -(-tall // (1 << (exponents >> 4))) * -(-broad // (1 << (exponents & 15)))
        packets *= self._layers * channels
        if packets > len(self.view):
            raise HeadError(f"it would have {packets} packets; so few bytes cannot hold them")


def _check_tiles(coding: _Coding, place: int, num_tiles: int) -> None:
    tiles: set[int] = set()
    view = coding.view
    while _marker(view, place) == SOT:
        length, tile, size, _, _ = TILE_PART.unpack_from(view, place + 2)
        if size:
            end = place + size
        else:
            end = len(view) - 2
        if length != 10 or tile >= num_tiles or end < place + 14 or end + 2 > len(view):
            raise HeadError(
                f"tile {tile} of {num_tiles} does not end inside the file: it was cut off"
            )
        at = place + 12
        while (marker := _marker(view, at)) != SOD:
            at = coding.behind(marker, at, in_tile=True)
            if at + 2 > end:
                raise HeadError(f"the header of tile {tile} does not end inside it")
        tiles.add(tile)
        place = end
    if _marker(view, place) != EOC:
        raise HeadError(f"marker {_marker(view, place):#x} stands where its tiles end")
    if len(tiles) < num_tiles:
        raise HeadError(f"it has {len(tiles)} of {num_tiles} tiles")

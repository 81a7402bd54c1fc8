"""Head of an AVIF: the properties of its primary item.

Read    still images of 8 bits; of 10 and 12 bits, which libavif rounds to 8 for Pillow (form "10
        bits"). Turned and mirrored as ``irot`` and ``imir`` say; an EXIF block does not count.
        Monochrome ones have one channel.
Whole   is left to the decoder, libavif, which refuses files that were cut off.
Source  ISO/IEC 23008-12 (HEIF), sections 6.5 and 8.11; AV1 Image File Format 1.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gpuload.images.heads.base import (
    Head,
    HeadError,
    UnsupportedError,
    check_size,
    printable_name,
    upright,
)

BOX = struct.Struct(">I4s")
STILL = b"avif"
HIGH_DEPTH, TWELVE_BITS, MONOCHROME = (
    0x40,
    0x20,
    0x10,
)  # of the configuration of AV1 (AV1 in ISOBMFF, section 2.3)
ALPHAS = (b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0", b"urn:mpeg:hevc:2015:auxid:1\0")
# EXIF orientation of a quarter-turn count (anticlockwise) and a mirror axis; None is no mirror, 0
# top to bottom.
TURNS = {
    (0, None): 1,
    (1, None): 8,
    (2, None): 3,
    (3, None): 6,
    (0, 1): 2,
    (0, 0): 4,
    (1, 0): 5,
    (3, 1): 5,
}
TURNS |= {(1, 1): 7, (3, 0): 7, (2, 0): 2, (2, 1): 4}


def read(view: memoryview) -> Head:
    """Return the head of an AVIF; the errors are those of `images.head.read`."""
    if view[8:12] != STILL:
        brand = printable_name(bytes(view[8:12]))
        raise UnsupportedError(f"an AVIF of brand {brand}; still images (avif) are decoded")
    properties, numbers = _properties(view)
    places: dict[bytes, int] = {}
    for number in numbers:
        if 0 < number <= len(properties):
            name, start, _ = properties[number - 1]
            places.setdefault(name, start)
    if b"ispe" not in places:
        raise HeadError("it gives no size (ispe) of its primary image")
    width, height = struct.unpack_from(">II", view, places[b"ispe"] + 4)
    if not height or not width:
        raise HeadError(f"it would be {height} x {width} pixels")
    check_size(height * width)
    if b"clap" in places:
        raise UnsupportedError("an AVIF that is to be cut (clap), which decoders do or do not")
    setting = 0
    if b"av1C" in places:
        setting = view[places[b"av1C"] + 2]
    form = ""
    if setting & HIGH_DEPTH:
        form = "12 bits" if setting & TWELVE_BITS else "10 bits"
    turn = 0
    if b"irot" in places:
        turn = view[places[b"irot"]] & 3
    mirror = None
    if b"imir" in places:
        mirror = view[places[b"imir"]] & 1
    has_alpha = any(
        name == b"auxC" and bytes(view[start + 4 : stop]) in ALPHAS
        for name, start, stop in properties
    )
    channels = 3
    if setting & MONOCHROME:
        channels = 1
    surplus = ""
    if has_alpha:
        surplus = "alpha"
    return upright(
        "avif", height, width, channels, 8, TURNS[turn, mirror],
        form=form, surplus=surplus,
    )  # fmt: skip


def _properties(view: memoryview) -> tuple[list[tuple[bytes, int, int]], list[int]]:
    """Return the boxes of all properties, and the numbers, from 1 on, of those of the primary item."""
    metas = ((begin + 4, end) for name, begin, end in _boxes(view, 0, len(view)) if name == b"meta")
    meta = next(metas, None)
    if meta is None:
        raise HeadError("it has no box meta")
    inside = {name: (begin, end) for name, begin, end in _boxes(view, *meta)}
    if not {b"pitm", b"iprp"} <= inside.keys():
        raise HeadError("its box meta names no primary image")
    begin, _ = inside[b"pitm"]
    item = struct.unpack_from(">I" if view[begin] else ">H", view, begin + 4)[0]
    properties: list[tuple[bytes, int, int]] = []
    numbers: list[int] = []
    for name, start, stop in _boxes(view, *inside[b"iprp"]):
        if name == b"ipco":
            properties = list(_boxes(view, start, stop))
        elif name == b"ipma":
            numbers = _property_numbers(view, start, stop, item)
    return properties, numbers


def _boxes(view: memoryview, begin: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Give the name of each box, and where its contents begin and end."""
    while begin + 8 <= end:
        length, name = BOX.unpack_from(view, begin)
        inside = begin + 8
        if length == 1:
            length = int.from_bytes(view[inside : inside + 8], "big")
            inside += 8
        behind = end
        if length:
            behind = begin + length
        if behind < inside or behind > end:
            raise HeadError(
                f"its box {printable_name(name)} does not end inside the file: it was cut off"
            )
        yield name, inside, behind
        begin = behind


def _property_numbers(view: memoryview, place: int, end: int, item: int) -> list[int]:
    """Return the numbers of the properties of an item."""
    item_number = struct.Struct(">I" if view[place] else ">H")
    size, mask = (2, 0x7FFF) if view[place + 3] & 1 else (1, 0x7F)
    count = struct.unpack_from(">I", view, place + 4)[0]
    place += 8
    for _ in range(count):
        if place >= end:
            break
        number = item_number.unpack_from(view, place)[0]
        place += item_number.size
        associations = view[place]
        place += 1
        numbers = [
            int.from_bytes(view[place + size * i : place + size * (i + 1)], "big")
            for i in range(associations)
        ]
        place += size * associations
        if number == item:
            return [value & mask for value in numbers]
    return []

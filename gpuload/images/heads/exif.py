"""The orientation in an EXIF block, read as DALI reads it: nothing counts behind a damaged entry.

Source  EXIF 2.32, section 4.6; the parser of nvImageCodec.
"""

from __future__ import annotations

import struct

from gpuload.images.heads.base import HeadError

ORIENTATION = 0x112
MISSING = 9  # no orientation
TEXTS = {0x10E, 0x10F, 0x110, 0x131, 0x132, 0x8298}
RATIONALS = {0x11A: 1, 0x11B: 1, 0x13E: 2, 0x13F: 6, 0x211: 3, 0x214: 6}  # how many of 8 bytes each


def orientation(block: bytes) -> int:
    """Return the orientation that an EXIF block gives, 1 to 8; 1 where it gives none.

    The first entry with the tag counts, its type does not.
    """
    if len(block) < 10 or block[2:4] not in (b"*\0", b"\0*"):
        return 1
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None:
        raise HeadError(
            f"its EXIF block begins with {block[:4].hex(' ')}, of which decoders make different "
            "things"
        )
    start = struct.unpack_from(order + "I", block, 4)[0] + 2
    if start > len(block):
        return 1
    count = struct.unpack_from(order + "H", block, start - 2)[0]
    entries = block[start : start + 12 * count]
    value, is_damaged = 0, len(entries) < 12 * count
    for tag, _, number, place in struct.iter_unpack(
        order + "HHII", entries + bytes(-len(entries) % 12)
    ):
        if tag == ORIENTATION:
            # The orientation has 2 bytes, which stand first in the 4 bytes of an entry's value, in
            # either byte order.
            value = value or (place & 0xFFFF if order == "<" else place >> 16) or MISSING
        elif _outside(tag, number, place, len(block)):
            is_damaged = True
            break
    if is_damaged and 1 < value <= 8:
        raise HeadError(
            "its EXIF block is damaged: decoders disagree whether the orientation in it counts"
        )
    if 1 <= value <= 8:
        return value
    return 1


def _outside(tag: int, number: int, place: int, length: int) -> bool:
    """Return True if the value of an EXIF entry, one of those that are looked at, lies outside the
    block."""
    if tag in TEXTS:
        return number > 4 and place + number > length
    return tag in RATIONALS and place + 8 * RATIONALS[tag] > length

"""Bytes changed at random: bits, pieces, and the numbers that say how long something is."""

from __future__ import annotations

import struct
import zlib

import numpy as np

FORMATS = ("B", "<H", ">H", "<I", ">I", "<Q", ">Q")
EDGES = (
    0,
    1,
    2,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x10000,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
)


def mutated(data: bytes, rng: np.random.Generator, most: int = 6) -> bytes:
    """Return the bytes after 1 to ``most`` changes."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, most + 1)):
        CHANGES[rng.integers(len(CHANGES))](changed, rng)
    return bytes(changed)


def _flip(data: bytearray, rng: np.random.Generator) -> None:
    if data:
        data[_near_start(len(data), rng)] ^= 1 << int(rng.integers(8))


def _set(data: bytearray, rng: np.random.Generator) -> None:
    if data:
        data[_near_start(len(data), rng)] = int(
            rng.choice([0, 1, 0x20, 0x7F, 0xD9, 0xDA, 0xFF, rng.integers(256)])
        )


def _cut(data: bytearray, rng: np.random.Generator) -> None:
    start, length = _piece(data, rng)
    del data[start : start + length]


def _cut_end(data: bytearray, rng: np.random.Generator) -> None:
    del data[_near_start(len(data) + 1, rng) :]


def _insert(data: bytearray, rng: np.random.Generator) -> None:
    start, length = _piece(data, rng)
    data[start:start] = rng.bytes(length)


def _duplicate(data: bytearray, rng: np.random.Generator) -> None:
    start, length = _piece(data, rng)
    place = int(rng.integers(len(data) + 1))
    data[place:place] = data[start : start + length]


def _set_number(data: bytearray, rng: np.random.Generator) -> None:
    form = FORMATS[rng.integers(len(FORMATS))]
    size = struct.calcsize(form)
    if len(data) >= size:
        place = _near_start(len(data) - size + 1, rng)
        (old,) = struct.unpack_from(form, data, place)
        new = (int(rng.choice(np.array(EDGES, np.uint64))), old + 1, old - 1, old * 2)[
            rng.integers(4)
        ]
        struct.pack_into(form, data, place, new % 256**size)


CHANGES = (_flip, _set, _cut, _cut_end, _insert, _duplicate, _set_number, _set_number)


def _near_start(length: int, rng: np.random.Generator) -> int:
    """Return a place, every second time among the first bytes, where formats say what follows."""
    return int(rng.integers(min(length, 128) if rng.random() < 0.5 else length))


def _piece(data: bytearray, rng: np.random.Generator) -> tuple[int, int]:
    return int(rng.integers(len(data) + 1)), int(rng.geometric(0.05))


def sealed_png(data: bytes) -> bytes:
    """Return a PNG whose chunks have right checksums again, as far as there are chunks."""
    sealed, place = bytearray(data), 8
    while place + 12 <= len(sealed):
        end = place + 8 + int.from_bytes(sealed[place : place + 4], "big")
        if end + 4 > len(sealed):
            break
        sealed[end : end + 4] = struct.pack(">I", zlib.crc32(sealed[place + 4 : end]))
        place = end + 4
    return bytes(sealed)

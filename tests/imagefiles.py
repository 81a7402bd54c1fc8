"""JPEG and PNG files made byte by byte, to be damaged at will."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

RGB, GRAY, GRAY_ALPHA, RGBA, PALETTE = 2, 0, 4, 6, 3
SAMPLES = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}


def pixels(height: int, width: int, channels: int = 3) -> Any:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)


def jpeg(height: int = 16, width: int = 24, mode: str = "RGB", **options: Any) -> bytes:
    """Return a JPEG file of Pillow's; ``mode`` RGB, L or CMYK."""
    image = Image.fromarray(pixels(height, width, len(mode)).squeeze(), mode)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, **options)
    return file.getvalue()


def jpeg_of_scans(height: int, width: int, num_scans: int) -> bytes:
    """Return a progressive gray JPEG of one level: each scan after the first has a bit for a block of 64 pixels."""
    bits = bytes(-(-(-(-height // 8) * -(-width // 8)) // 8))  # code 0 for each block: no difference, or its end
    first, other = (segment(0xDA, bytes([1, 1, 0, *band])) + bits for band in ((0, 0, 0), (1, 63, 1)))
    tables = segment(0xDB, b"\0" + b"\1" * 64) + b"".join(
        segment(0xC4, bytes([table, 1]) + bytes(15) + b"\0") for table in (0x00, 0x10)
    )
    frame = segment(0xC2, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0")
    return b"\xff\xd8" + tables + frame + first + other * (num_scans - 1) + b"\xff\xd9"


def segment(marker: int, content: bytes, length: int | None = None) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2 if length is None else length) + content


def exif_segment(block: bytes) -> bytes:
    return segment(0xE1, b"Exif\0\0" + block)


def inserted(data: bytes, *parts: bytes) -> bytes:
    """Put parts behind the start-of-image marker of a JPEG file."""
    return data[:2] + b"".join(parts) + data[2:]


def find_segment(data: bytes, markers: range | tuple[int, ...]) -> int:
    """Return where the first segment with one of these markers begins in the header of a JPEG file."""
    place = 2
    while data[place + 1] not in markers:
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return place


def replaced(data: bytes, place: int, *values: int) -> bytes:
    return data[:place] + bytes(values) + data[place + len(values) :]


def entry(tag: int, value: bytes, *, kind: int = 3, count: int = 1, order: str = "<") -> bytes:
    return struct.pack(order + "HHI", tag, kind, count) + value


def exif(*entries: bytes, order: str = "<", count: int | None = None, start: int = 8) -> bytes:
    """Return an EXIF block: a TIFF header and one directory."""
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", start)
    number = struct.pack(order + "H", len(entries) if count is None else count)
    return head + bytes(start - 8) + number + b"".join(entries) + bytes(4)


def turned(orientation: int, order: str = "<") -> bytes:
    """Return the EXIF entry of an orientation."""
    return entry(0x112, struct.pack(order + "HH", orientation, 0), order=order)


def chunk(name: bytes, content: bytes = b"", crc: int | None = None) -> bytes:
    checksum = zlib.crc32(name + content) if crc is None else crc
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def png_header(height: int, width: int, colour: int = RGB, bits: int = 8, methods: bytes = bytes(3)) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBB", width, height, bits, colour) + methods)


def png_pixels(height: int, width: int, colour: int = RGB, bits: int = 8) -> bytes:
    row = pixels(1, -(-width * SAMPLES[colour] * bits // 8), 1).tobytes()
    return chunk(b"IDAT", zlib.compress((b"\0" + row) * height))


def png(height: int = 16, width: int = 24, colour: int = RGB, bits: int = 8, *chunks: bytes) -> bytes:
    """Return a PNG file, with more chunks between header and pixels."""
    palette = chunk(b"PLTE", bytes(range(256)) * 3) if colour == PALETTE and bits == 8 else b""
    if colour == PALETTE and bits < 8:
        palette = chunk(b"PLTE", bytes(3 * 2**bits))
    head = b"\x89PNG\r\n\x1a\n" + png_header(height, width, colour, bits) + palette
    return head + b"".join(chunks) + png_pixels(height, width, colour, bits) + chunk(b"IEND")

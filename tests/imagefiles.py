"""Image files made byte by byte, to be damaged at will."""

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
    """Return a progressive gray JPEG of one level: each scan after the first has a bit for a block
    of 64 pixels."""
    bits = bytes(
        -(-(-(-height // 8) * -(-width // 8)) // 8)
    )  # code 0 for each block: no difference, or its end
    first, second = (
        segment(0xDA, bytes([1, 1, 0, *band])) + bits for band in ((0, 0, 0), (1, 63, 1))
    )
    tables = segment(0xDB, b"\0" + b"\1" * 64) + b"".join(
        segment(0xC4, bytes([table, 1]) + bytes(15) + b"\0") for table in (0x00, 0x10)
    )
    frame = segment(0xC2, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0")
    return b"\xff\xd8" + tables + frame + first + second * (num_scans - 1) + b"\xff\xd9"


def segment(marker: int, content: bytes, length: int | None = None) -> bytes:
    return (
        struct.pack(">BBH", 0xFF, marker, len(content) + 2 if length is None else length) + content
    )


def exif_segment(block: bytes) -> bytes:
    return segment(0xE1, b"Exif\0\0" + block)


def inserted(data: bytes, *parts: bytes) -> bytes:
    """Put parts behind the start-of-image marker of a JPEG file."""
    return data[:2] + b"".join(parts) + data[2:]


def find_segment(data: bytes, markers: range | tuple[int, ...]) -> int:
    """Return where the first segment with one of these markers begins in the header of a JPEG
    file."""
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


def png_header(
    height: int, width: int, colour: int = RGB, bits: int = 8, methods: bytes = bytes(3)
) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBB", width, height, bits, colour) + methods)


def png_pixels(height: int, width: int, colour: int = RGB, bits: int = 8) -> bytes:
    row = pixels(1, -(-width * SAMPLES[colour] * bits // 8), 1).tobytes()
    return chunk(b"IDAT", zlib.compress((b"\0" + row) * height))


def png(
    height: int = 16, width: int = 24, colour: int = RGB, bits: int = 8, *chunks: bytes
) -> bytes:
    """Return a PNG file, with more chunks between header and pixels."""
    palette = chunk(b"PLTE", bytes(range(256)) * 3) if colour == PALETTE and bits == 8 else b""
    if colour == PALETTE and bits < 8:
        palette = chunk(b"PLTE", bytes(3 * 2**bits))
    head = b"\x89PNG\r\n\x1a\n" + png_header(height, width, colour, bits) + palette
    return head + b"".join(chunks) + png_pixels(height, width, colour, bits) + chunk(b"IEND")


def tiff(
    height: int = 13,
    width: int = 21,
    channels: int = 3,
    bits: int = 8,
    *,
    order: str = "<",
    big: bool = False,
    rows: int | None = None,
    planar: bool = False,
    tags: dict[int, tuple[int, list[int]] | None] | None = None,
    pieces: list[bytes] | None = None,
    pack: Any = bytes,
) -> bytes:
    """Return a TIFF of random bits; ``tags`` are further or other ones, type and values, and None
    leaves one out."""
    rows, planes = rows or height, channels if planar else 1
    row_bytes = -(-width * (channels // planes) * bits // 8)
    if pieces is None:
        rng = np.random.default_rng(0)
        strips = [min(rows, height - top) for _ in range(planes) for top in range(0, height, rows)]
        pieces = [rng.bytes(row_bytes * count) for count in strips]
    pieces = [pack(piece) for piece in pieces]
    results: dict[int, tuple[int, list[int]] | None] = {
        256: (4, [width]), 257: (4, [height]), 258: (3, [bits] * channels), 259: (3, [1]),
        262: (3, [2 if channels > 2 else 1]), 277: (3, [channels]), 278: (4, [rows]), 284: (3, [2 if planar else 1]),
        273: (4, [0] * len(pieces)), 279: (4, [len(piece) for piece in pieces]), **(tags or {}),
    }  # fmt: skip
    known_names = {tag: item for tag, item in sorted(results.items()) if item is not None}
    inline, size = (8, 20) if big else (4, 12)
    behind = (16 + 8 if big else 8 + 2) + size * len(known_names) + inline
    forms = {1: "B", 2: "B", 3: "H", 4: "I", 5: "II", 12: "d", 16: "Q"}

    def directory(begins: list[int]) -> tuple[bytes, bytes]:
        entries, values = b"", b""
        for tag, (kind, value) in known_names.items():
            raw = struct.pack(
                order + forms[kind] * len(value),
                *(begins if tag in (273, 324) and value else value),
            )
            entries += struct.pack(order + ("HHQ" if big else "HHI"), tag, kind, len(value))
            if len(raw) > inline:
                entries += struct.pack(order + ("Q" if big else "I"), behind + len(values))
                values += raw + bytes(len(raw) % 2)
            else:
                entries += raw.ljust(inline, b"\0")
        return entries, values

    start = behind + len(directory([0] * len(pieces))[1])
    begins = [start + sum(map(len, pieces[:number])) for number in range(len(pieces))]
    entries, values = directory(begins)
    head = (b"II" if order == "<" else b"MM") + (
        struct.pack(order + "HHHQQ", 43, 8, 0, 16, len(known_names))
        if big
        else struct.pack(order + "HIH", 42, 8, len(known_names))
    )
    return head + entries + bytes(inline) + values + b"".join(pieces)


def bmp(
    height: int = 13,
    width: int = 21,
    bits: int = 24,
    compression: int = 0,
    *,
    header: int = 40,
    masks: tuple[int, ...] = (),
    colours: int = 0,
    top_down: bool = False,
    content: bytes | None = None,
    begin: int | None = None,
) -> bytes:
    """Return a BMP of random bits with a random palette."""
    rng = np.random.default_rng(0)
    content = rng.bytes(-(-width * bits // 32) * 4 * height) if content is None else content
    entry = 3 if header == 12 else 4
    palette = b"".join(
        rng.bytes(3) + bytes(entry - 3) for _ in range((colours or 2**bits) if bits <= 8 else 0)
    )
    if header == 12:
        head = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        size = -height if top_down else height
        head = struct.pack(
            "<IiiHHIIiiII",
            header,
            width,
            size,
            1,
            bits,
            compression,
            len(content),
            0,
            0,
            colours,
            0,
        )
        mask_bytes = struct.pack(f"<{len(masks)}I", *masks)
        head += mask_bytes if header == 40 else mask_bytes.ljust(header - 40, b"\0")[: header - 40]
    behind = 14 + len(head) + len(palette)
    begin = behind if begin is None else begin
    return (
        b"BM" + struct.pack("<IHHI", behind + len(content), 0, 0, begin) + head + palette + content
    )


def pnm(
    kind: int,
    height: int = 13,
    width: int = 21,
    most: int = 255,
    *,
    values: Any = None,
    comment: bytes = b"",
) -> bytes:
    """Return a PNM file of kind 1 to 6."""
    limit = 1 if kind in (1, 4) else most
    if values is None:
        values = np.random.default_rng(0).integers(
            0, limit + 1, (height, width, 3 if kind in (3, 6) else 1)
        )
    head = b"P%d\n%s%d %d\n" % (kind, comment, width, height) + (
        b"" if kind in (1, 4) else b"%d\n" % most
    )
    if kind == 4:
        return head + np.packbits(values[..., 0], axis=1).tobytes()
    if kind > 3:
        return head + values.astype(">u2" if most > 255 else "u1").tobytes()
    return head + b" ".join(b"%d" % value for value in values.ravel()) + b"\n"


def webp(*chunks: tuple[bytes, bytes], length: int | None = None) -> bytes:
    """Return a WebP file of these chunks."""
    inner = b"".join(
        name + struct.pack("<I", len(item)) + item + bytes(len(item) % 2) for name, item in chunks
    )
    return (
        b"RIFF" + struct.pack("<I", len(inner) + 4 if length is None else length) + b"WEBP" + inner
    )


def webp_chunk(data: bytes) -> tuple[bytes, bytes]:
    """Return the chunk with the image of a simple WebP file, as Pillow writes it."""
    size = int.from_bytes(data[16:20], "little")
    return data[12:16], data[20 : 20 + size]


def canvas(height: int, width: int, flags: int) -> tuple[bytes, bytes]:
    """Return the first chunk of an extended WebP file."""
    return b"VP8X", bytes([flags, 0, 0, 0]) + struct.pack("<I", width - 1)[:3] + struct.pack(
        "<I", height - 1
    )[:3]

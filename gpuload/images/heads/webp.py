"""Head of a WebP: the chunks of its RIFF container, and the size in its bitstream.

Read    lossy (VP8), lossless (VP8L), with alpha; the size is that of the bitstream, which the
        canvas of an extended file must equal. Of an animated one the first frame (form "animation",
        for Pillow): pixels of the canvas around it are transparent, as in libwebp, which takes no
        background there, and black as RGB.
EXIF    the chunk EXIF, where the extended header announces it.
Plain   nvImageCodec 0.9, and so DALI, reads no chunk behind one of an odd number of bytes, and no
        EXIF block that begins with "Exif", as many programs write it. Such a file is decoded as one
        without metadata, `without_metadata`, and turned here; its form is "plain".
Whole   the container ends inside the file, and so do all chunks.
Source  RFC 9649, section 2; RFC 6386, section 9.1; RFC 9649, section 3.4 (size of VP8L).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gpuload.images.heads.base import Head, HeadError, check_size, printable_name, upright
from gpuload.images.heads.exif import orientation

CHUNK = struct.Struct("<4sI")
PREFIX = b"Exif\0\0"
FRAME_BYTES = 16  # of the header of a frame
PLAIN, ANIMATION = "plain", "animation"  # forms
HAS_EXIF, HAS_ALPHA = 8, 16  # flags of an extended header
KEY_FRAME = b"\x9d\x01\x2a"


def read(view: memoryview) -> Head:
    """Return the head of a WebP; the errors are those of `images.head.read`."""
    end = 8 + int.from_bytes(view[4:8], "little")
    if end > len(view) or len(view) < 30:
        raise HeadError(f"its container has {end} bytes, and the file {len(view)}: it was cut off")
    canvas, size, flags, turn, has_alpha, num_frames = None, None, 0, 1, False, 0
    form, is_misread = "", False
    for name, place, length in _chunks(view, end):
        behind = place + length
        # nvImageCodec 0.9 looks for the next chunk at the odd place.
        is_misread |= length % 2 == 1 and behind + 1 < end
        if name == b"VP8X" and place == 20 and length >= 10:
            flags = view[place]
            has_alpha |= flags & HAS_ALPHA > 0
            canvas = _of_three(view, place + 7) + 1, _of_three(view, place + 4) + 1
        elif name == b"ANMF":
            num_frames += 1
            if size is None:
                size, form = _first_frame(view, place, behind, canvas), ANIMATION
        elif name in (b"VP8 ", b"VP8L") and size is None:
            size, is_translucent = _size_of_bitstream(view, name, place, length)
            has_alpha |= is_translucent
        elif name == b"EXIF" and flags & HAS_EXIF:
            block = bytes(view[place:behind])
            turn = orientation(block.removeprefix(PREFIX))
            is_misread |= turn != 1 and block.startswith(PREFIX)
    height, width = _check_canvas(size, canvas)
    if is_misread:
        form = form or PLAIN
    channels, surplus = (4, "alpha") if has_alpha else (3, "")
    pages = max(num_frames, 1)
    return upright(
        "webp", height, width, channels, 8, turn, form=form, surplus=surplus, pages=pages
    )


def _check_canvas(size: tuple[int, int] | None, canvas: tuple[int, int] | None) -> tuple[int, int]:
    """Return the size of an image, which is that of its canvas if the file has one."""
    if size is None:
        raise HeadError("it holds no image: it has no chunk VP8 or VP8L")
    if canvas not in (None, size):
        raise HeadError(f"its canvas is {list(canvas or ())} pixels, and its image {list(size)}")
    check_size(size[0] * size[1])
    return size


def _size_of_bitstream(
    view: memoryview, name: bytes, place: int, length: int
) -> tuple[tuple[int, int], bool]:
    """Return height and width of an image, and True if it has alpha of its own."""
    if name == b"VP8 ":
        return _lossy(view, place, length), False
    return _lossless(view, place, length)


def without_metadata(view: memoryview) -> bytes:
    """Return a WebP that `read` has read as one of a single chunk: its colours, without metadata
    and alpha."""
    end = 8 + int.from_bytes(view[4:8], "little")
    for name, place, length in _chunks(view, end):
        if name in (b"VP8 ", b"VP8L"):
            chunk = (
                CHUNK.pack(name, length) + bytes(view[place : place + length]) + bytes(length % 2)
            )
            return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk
    raise HeadError("it holds no image: it has no chunk VP8 or VP8L")


def _chunks(view: memoryview, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Give the name of each chunk, where its content begins, and its length."""
    place = 12
    while place + 8 <= end:
        name, length = CHUNK.unpack_from(view, place)
        place += 8
        if place + length > end:
            raise HeadError(f"its chunk {printable_name(name)} does not end inside the container")
        yield name, place, length
        # Chunks of RIFF begin at even bytes.
        place += length + length % 2


def _first_frame(
    view: memoryview, place: int, end: int, canvas: tuple[int, int] | None
) -> tuple[int, int]:
    """Return height and width of the canvas of an animation, in which its first frame lies (RFC
    9649, 2.7.1.1)."""
    if end - place < FRAME_BYTES + 8 or canvas is None:
        raise HeadError("its first frame (ANMF) is shorter than its header")
    left, top = 2 * _of_three(view, place), 2 * _of_three(view, place + 3)
    width, height = _of_three(view, place + 6) + 1, _of_three(view, place + 9) + 1
    if top + height > canvas[0] or left + width > canvas[1]:
        text = (
            f"{height} x {width} pixels at {top}, {left} of a canvas of {canvas[0]} x {canvas[1]}"
        )
        raise HeadError(f"its first frame has {text}")
    return canvas


def _lossy(view: memoryview, place: int, length: int) -> tuple[int, int]:
    if length < 10 or view[place] & 1 or view[place + 3 : place + 6] != KEY_FRAME:
        raise HeadError("its chunk VP8 does not begin with a key frame")
    # The upper 19 bits of a frame's first three bytes (RFC 6386, section 9.1).
    first_bytes = int.from_bytes(view[place : place + 3], "little") >> 5
    if first_bytes > length - 10:
        raise HeadError("its chunk VP8 is shorter than its first part")
    width, height = struct.unpack_from("<HH", view, place + 6)
    # The two bits above are a scale for displays.
    return _check_sides(height & 0x3FFF, width & 0x3FFF)


def _lossless(view: memoryview, place: int, length: int) -> tuple[tuple[int, int], bool]:
    if length < 5 or view[place] != 0x2F:
        raise HeadError("its chunk VP8L does not begin with 0x2f")
    bits = int.from_bytes(view[place + 1 : place + 5], "little")
    if bits >> 29:
        raise HeadError(f"its chunk VP8L is of version {bits >> 29}; there is only version 0")
    return _check_sides((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1), bool(bits >> 28 & 1)


def _check_sides(height: int, width: int) -> tuple[int, int]:
    if not height or not width:
        raise HeadError(f"it would be {height} x {width} pixels")
    return height, width


def _of_three(view: memoryview, place: int) -> int:
    return int.from_bytes(view[place : place + 3], "little")

"""Head of a JPEG: segments up to the first scan, and the scans as far as their bytes show
(`scans`).

Read    baseline, extended and progressive, 8 bits, 1, 3 or 4 channels, up to the end-of-image
        marker.
Stray   bytes in front of a marker, which some cameras and programs leave there, are passed over, as
        by libjpeg. DALI and nvImageCodec refuse such a file; its form is "stray bytes", and
        `without_stray_bytes` makes one that they read.
Scans   are counted: each costs a decoder a pass over all pixels, however short it is.
EXIF    APP1 segments.
Source  ITU-T T.81 annex B; the parser of nvImageCodec.
"""

from __future__ import annotations

import struct
from typing import NoReturn

from gpuload.images import scans
from gpuload.images.heads.base import Head, HeadError, UnsupportedError, check_size, upright
from gpuload.images.heads.exif import orientation

MAX_SIDE = 65500  # JPEG_MAX_DIMENSION of libjpeg-turbo
HUFFMAN_PIXELS_PER_BYTE = 1024  # at least 1 bit for each block of 64 pixels, and a margin of 2
ARITHMETIC_PIXELS_PER_BYTE = (
    65536  # a decision costs as little as 2**-15 bit; a flat image takes two for a block
)

EOI, SOS, APP1 = 0xD9, 0xDA, 0xE1
FRAMES = {
    0xC0,
    0xC1,
    0xC2,
    0xC9,
    0xCA,
}  # baseline, extended, progressive; the last two with arithmetic coding
ARITHMETIC = {0xC9, 0xCA}
OTHER_FRAMES = {
    **dict.fromkeys((0xC3, 0xCB), "a lossless JPEG"),
    **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF, 0xDE), "a hierarchical JPEG"),
    0xF7: "a JPEG-LS image",
}
SEGMENTS = {
    *FRAMES,
    0xC4,
    0xCC,
    0xDB,
    0xDC,
    0xDD,
    *range(0xE0, 0xF0),
    0xFE,
}  # and DHT, DAC, DQT, DNL, DRI, APPn, COM
MAX_FILL = 65536  # bytes 0xFF in front of a marker
MAX_STRAY = 65536  # bytes in front of a marker that are passed over
STRAY_BYTES = "stray bytes"  # a form
EXIF = b"Exif\0\0"


def read(view: memoryview) -> Head:
    """Return the head of a JPEG; the errors are those of `images.head.read`."""
    place, frame, exif, settings = 2, None, [], []
    has_stray_bytes = False
    while True:
        if view[place] != 0xFF or view[place + 1] == 0:
            place, has_stray_bytes = _behind_stray_bytes(view, place), True
        marker, place = view[place + 1], place + 2
        if marker == 0xFF:
            marker, place = _filled_marker(view, place - 2)
        if marker == SOS:
            break
        if marker not in SEGMENTS or (marker in FRAMES and frame):
            _refuse(marker)
        length = view[place] << 8 | view[place + 1]
        if length < 2:
            raise HeadError(f"segment {marker:#04x} of its header is shorter than its own length")
        if place + length > len(view):
            raise HeadError(
                f"the file ends inside segment {marker:#04x} of its header: it was cut off"
            )
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
    scan_info = scans.read(view, frame[0], place, settings)
    # A size that so few bytes cannot hold is refused before a decoder takes memory for it.
    if view[frame[0] - 1] in ARITHMETIC:
        per_byte = ARITHMETIC_PIXELS_PER_BYTE
    else:
        per_byte = HUFFMAN_PIXELS_PER_BYTE
    check_size(height * width, (len(view) - place) * per_byte)
    if len(set(exif)) > 1:
        raise HeadError(f"its EXIF blocks give different orientations: {exif}")
    turn = 1
    if exif:
        turn = exif[0]
    form = ""
    if has_stray_bytes:
        form = STRAY_BYTES
    attributes = {
        "scans": scan_info.number,
        "scan_end": scan_info.end,
        "form": form,
    }
    return upright("jpeg", height, width, channels, 8, turn, **attributes)


def without_stray_bytes(view: memoryview) -> bytes:
    """Return a JPEG that `read` has read, without the bytes in front of markers of its header."""
    parts, place = [view[:2]], 2
    while True:
        if view[place] != 0xFF or view[place + 1] == 0:
            place = _behind_stray_bytes(view, place)
        marker, behind = _filled_marker(view, place)
        if marker == SOS:
            return b"".join([*parts, view[place:]])
        end = behind + int.from_bytes(view[behind : behind + 2], "big")
        parts.append(view[place:end])
        place = end


def _behind_stray_bytes(view: memoryview, place: int) -> int:
    """Return where the next marker begins: 0xFF that is not followed by 0 (libjpeg's
    ``next_marker``)."""
    # A JPEG begins with two markers, without anything between them.
    if place > 2:
        match = scans.FILLED_MARKER.search(view, place, place + MAX_STRAY)
    else:
        match = None
    while match is not None and match[0][-1] == 0:
        match = scans.FILLED_MARKER.search(view, match.end(), place + MAX_STRAY)
    if match is None:
        raise HeadError(
            f"byte {place} of its header is {view[place]:#04x}, where a marker must begin"
        )
    return match.start()


def _filled_marker(view: memoryview, place: int) -> tuple[int, int]:
    """Return the marker that follows fill bytes at a place, and the place after it."""
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
        raise UnsupportedError(f"a JPEG of {bits} bits per sample; of 8 it is decoded")
    if channels not in (1, 3, 4) or length != 8 + 3 * channels:
        raise HeadError(
            f"its frame header is {length} bytes long and gives {channels} channels; it has 1, 3 "
            "or 4"
        )
    if height == 0:
        raise UnsupportedError(
            "a JPEG whose height stands after the image (DNL); in its header it is 0"
        )
    if width == 0 or max(height, width) > MAX_SIDE:
        raise HeadError(
            f"it would be {height} x {width} pixels; a side of a JPEG has 1 to {MAX_SIDE}"
        )
    return height, width, channels


def _jpeg_exif(view: memoryview, place: int, length: int) -> int:
    if length < 8:
        raise HeadError("its EXIF segment is shorter than its own name")
    return orientation(bytes(view[place + 8 : place + length]))


def _refuse(marker: int) -> NoReturn:
    if marker in FRAMES:
        raise HeadError("its header gives the size twice")
    if marker in OTHER_FRAMES:
        raise UnsupportedError(OTHER_FRAMES[marker])
    if marker == EOI:
        raise HeadError("it ends (end-of-image marker) before any image")
    raise HeadError(f"marker {marker:#04x} has no place in the header of a JPEG file")

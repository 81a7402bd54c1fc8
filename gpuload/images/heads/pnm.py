"""Head of a PNM: PBM (P1, P4), PGM (P2, P5) and PPM (P3, P6).

Read    a largest value of 255 or 65535: for others OpenCV, and so DALI, scales plain samples only (4.13). Comments
        stand behind white space in the header. Behind the last number of plain samples stands white space.
Whole   all samples are there.
Source  Netpbm, pbm(5), pgm(5), ppm(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gpuload.images.heads.base import Head, HeadError, check_size, upright

HEADER_BYTES = 1 << 16  # within which a header ends, comments too
NUMBER = re.compile(rb"(?:\s|\s#[^\r\n]*[\r\n])+([0-9]{1,9})(?=\s)")
PLAIN, BITS = (1, 2, 3), (1, 4)
WHITE, DIGITS = b" \t\n\v\f\r", b"0123456789"
TEXT_BYTES = 1 << 20  # of plain samples that are looked at, at a time


def read(view: memoryview) -> Head:
    """Return the head of a PNM; see `images.head.read`."""
    kind, place = view[1] - ord("0"), 2
    header, numbers = bytes(view[:HEADER_BYTES]), []
    for name in ("width", "height") if kind in BITS else ("width", "height", "largest value"):
        match = NUMBER.match(header, place)
        if match is None:
            raise HeadError(f"its header gives no {name} behind byte {place}, between white space")
        numbers.append(int(match[1]))
        place = match.end()
    width, height, largest = (*numbers, 1)[:3]
    if not width or not height:
        raise HeadError(f"it would be {height} x {width} pixels")
    if largest not in (255, 65535) and kind not in BITS:
        raise HeadError(f"its largest value is {largest}; PNM files of 255 or 65535 are decoded")
    channels = 3 if kind in (3, 6) else 1
    check_size(height * width)
    samples, begin = height * width * channels, place + 1
    if header[place : place + 2] == b"\r\n" and kind not in PLAIN:
        raise HeadError("two bytes, CR and LF, end its header, where decoders take one")
    if kind in PLAIN:
        _check_text(view[begin:], samples, largest)
    else:
        num_bytes = -(-width // 8) * height if kind == 4 else samples * (2 if largest > 255 else 1)
        if len(view) - begin < num_bytes:
            raise HeadError(f"its pixels are {len(view) - begin} bytes, of {num_bytes}: it was cut off")
    return upright("pnm", height, width, channels, 16 if largest > 255 else 8)


def _check_text(text: memoryview, samples: int, limit: int) -> None:
    """Refuse samples that are too few, too large, or something else."""
    count = 0
    for part in _parts(text):
        if garbage := part.translate(None, WHITE + DIGITS):
            raise HeadError(f"among its samples stands {garbage[:8]!r}")
        numbers = part.split()[: samples - count]
        if max(map(len, numbers), default=0) > 5:
            raise HeadError(f"a sample of it has more than 5 digits; the largest value is {limit}")
        largest = int(np.array(numbers, "S5").astype(np.int64).max(initial=0)) if numbers else 0
        if largest > limit:
            raise HeadError(f"a sample of it is {largest}; the largest value is {limit}")
        count += len(numbers)
        if count == samples:
            return
    raise HeadError(f"it has {count} of {samples} samples, each with white space behind it")


def _parts(text: memoryview) -> Iterator[bytes]:
    """Give whole numbers with white space behind them, some at a time."""
    rest = b""
    for begin in range(0, len(text), TEXT_BYTES):
        part = rest + bytes(text[begin : begin + TEXT_BYTES])
        end = max(part.rfind(bytes([white])) for white in WHITE) + 1
        yield part[:end]
        rest = part[end:]
        if len(rest) > TEXT_BYTES:
            raise HeadError("among its samples stands a number that does not end")

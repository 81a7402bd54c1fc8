"""Inputs that each target begins with: files of `tests/golden`, and what is written here."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image

from tests import imagefiles
from tests.attack import messages
from tests.attack.corpus import corpus

# Numbers come from the end of an input.
SEALED, VERIFIED = bytes([*bytes(9), 40, 0, 1]), bytes([*bytes(9), 40, 1, 0])  # at most 40 frames
ROWS = bytes(
    [*bytes(24), 0, 2, 0, 1, 0, 0, 0, 3, 2]
)  # two rows of all bytes; the keys "i", "f" and "b" of features
LISTS = bytes(
    [*bytes(24), 1, 2, 1, 0, 0, 0, 0, 3, 2]
)  # "i" of a context, and the lists "i" and "b"
ALL_BYTES = b"\xc4"  # are made of LZW data
HEADER = bytes(21)  # the places of scans are read from the file
NUM_CHOICES = 205  # bytes that say what becomes of an image
WHOLE = bytes([*bytes(201), 1, 0, 0, 0])  # red, green and blue of all of it


def _numbers() -> Iterator[bytes]:
    for seed in range(24):
        yield np.random.default_rng(seed).bytes(64 << seed % 6)


def _checksums() -> Iterator[bytes]:
    yield b"123456789"
    for size in (8, 511, 1536, 1537, 3 * 512 + 7, 9000):
        yield np.random.default_rng(size).bytes(size)


def _examples() -> Iterator[bytes]:
    if messages.google_crc32c is None:
        return
    for seed in range(8):
        message = messages.example(np.random.default_rng(seed))
        yield message + ROWS
    yield _sequence() + LISTS


def _sequence() -> bytes:
    """Return a SequenceExample: a context and two feature lists."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    ints = field(1, field(3, field(1, b"\x01\x02\x03")))
    texts = field(1, field(1, field(1, b"abc") + field(1, b"")))
    lists = field(1, field(1, b"i") + field(2, ints + ints)) + field(
        1, field(1, b"b") + field(2, texts)
    )
    return field(1, field(1, field(1, b"i") + field(2, field(3, field(1, b"\x07"))))) + field(
        2, lists
    )


def _frames() -> Iterator[bytes]:
    if messages.google_crc32c is None:
        return
    for sizes in ((0,), (1, 20, 300), (5,) * 30):
        whole = b"".join(messages.framed(bytes(range(256))[:size]) for size in sizes)
        yield whole + VERIFIED
        yield whole + SEALED


def _lzw() -> Iterator[bytes]:
    for size in (4, 60, 200):
        file = io.BytesIO()
        Image.fromarray(imagefiles.pixels(size, size)).save(file, "TIFF", compression="tiff_lzw")
        tags = Image.open(file).tag_v2  # type: ignore[attr-defined]
        for offset, length in zip(tags[273], tags[279], strict=True):
            yield file.getvalue()[offset : offset + length] + ALL_BYTES


def _heads() -> Iterator[bytes]:
    yield from (data for data in corpus() if data.startswith(b"\xff\xd8"))
    yield imagefiles.jpeg(40, 30, restart_marker_blocks=1)
    yield imagefiles.jpeg(40, 30, progressive=True)


def _scans() -> Iterator[bytes]:
    yield from (data + HEADER for data in _heads())


def _rows() -> Iterator[bytes]:
    for number, data in enumerate(_heads()):
        yield data + WHOLE
        for seed in range(4):
            yield data + np.random.default_rng([number, seed]).bytes(NUM_CHOICES)


NUMBERS = (  # targets whose inputs are numbers alone
    "blurs", "colours", "copies", "edits", "filters", "maps", "permutations", "pillow_resizes", "resizes", "roundings",
    "steps", "taps", "visits", "walks", "warps", "windows",
)  # fmt: skip
SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "checksums": _checksums, "examples": _examples, "frames": _frames, "heads": _heads, "lzw": _lzw, "rows": _rows,
    "scans": _scans, **dict.fromkeys(NUMBERS, _numbers),
}  # fmt: skip

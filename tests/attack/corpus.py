"""Images to begin with: files of other projects and files made byte by byte; and what is left of
them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from tests import imagefiles
from tests.attack.mutate import mutated, sealed_png

GOLDEN = Path(__file__).parents[1] / "golden" / "images"
MOST_BYTES = 1 << 14


@cache
def corpus() -> tuple[bytes, ...]:
    """Return whole files, each small."""
    files = sorted(path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix != ".md")
    turned = [
        imagefiles.exif(imagefiles.turned(n, order), order=order)
        for n, order in ((1, "<"), (3, ">"), (6, "<"), (8, ">"))
    ]
    return (
        *(data for path in files if len(data := path.read_bytes()) <= MOST_BYTES),
        *(imagefiles.jpeg(mode=mode) for mode in ("RGB", "L", "CMYK")),
        *(
            imagefiles.jpeg(37, 51, progressive=True, subsampling=subsampling)
            for subsampling in (0, 1, 2)
        ),
        imagefiles.jpeg(64, 40, restart_marker_blocks=2),
        *(
            imagefiles.inserted(imagefiles.jpeg(), imagefiles.exif_segment(block))
            for block in turned
        ),
        *(
            imagefiles.png(16, 24, colour, bits)
            for colour, bits in ((2, 8), (2, 16), (0, 1), (0, 8), (0, 16), (3, 8), (3, 2))
        ),
        *(
            imagefiles.png(9, 5, colour, 8, imagefiles.chunk(b"eXIf", turned[2]))
            for colour in (4, 6)
        ),
        *_by_pillow(),
    )


def _by_pillow() -> Iterator[bytes]:
    """Give images of the other formats, as far as this Pillow writes them."""
    for mode, kind, options in (
        ("RGB", "WEBP", {"lossless": True}), ("RGBA", "WEBP", {"quality": 60}), ("RGB", "BMP", {}), ("P", "BMP", {}),
        ("RGB", "TIFF", {}), ("L", "TIFF", {"compression": "tiff_lzw"}), ("RGB", "TIFF", {"compression": "packbits"}),
        ("I;16", "TIFF", {}), ("L", "TIFF", {"compression": "tiff_adobe_deflate"}), ("RGB", "PPM", {}),
        ("L", "PPM", {}),
        ("1", "PPM", {}), ("P", "GIF", {}), ("RGB", "JPEG2000", {}), ("RGB", "AVIF", {}),
    ):  # fmt: skip
        pixels = Image.fromarray(imagefiles.pixels(13, 18))
        image = Image.new(mode, (18, 13)) if mode == "I;16" else pixels.convert(mode)
        file = io.BytesIO()
        with contextlib.suppress(OSError, KeyError):  # without the library that writes it
            image.save(file, kind, **options)
            yield file.getvalue()


def damaged(rng: np.random.Generator) -> bytes:
    """Return one of them, damaged; sometimes it gets a piece of another, and a PNG the right
    checksums again."""
    files = corpus()
    data = files[rng.integers(len(files))]
    if rng.random() < 0.1:
        second = files[rng.integers(len(files))]
        start, place = int(rng.integers(len(second))), int(rng.integers(len(data)))
        data = data[:place] + second[start : start + int(rng.geometric(0.005))] + data[place:]
    data = mutated(data, rng, most=int(rng.integers(1, 7)))
    return sealed_png(data) if data[1:4] == b"PNG" and rng.random() < 0.6 else data

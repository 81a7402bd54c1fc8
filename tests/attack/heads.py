"""Heads of damaged images: the kind and size that Pillow sees, or an error of ours."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gpuload.images import head as heads
from tests.attack.corpus import corpus, damaged
from tests.attack.hunt import Report, hunt

MORE_BYTES = 1 << 25
KINDS = {
    "JPEG": "jpeg",
    "MPO": "jpeg",
    "PNG": "png",
    "WEBP": "webp",
    "TIFF": "tiff",
    "BMP": "bmp",
    "PPM": "pnm",
}
KINDS |= {"GIF": "gif", "AVIF": "avif"}


def attack(seconds: float, seed: int) -> Report:
    """Read heads; first sound ones, so that what is loaded with the first file of a format is no
    trial's memory."""
    for data in corpus():
        with contextlib.suppress(heads.HeadError):
            heads.read(data)
    return hunt(seconds, seed, trial, more_bytes=MORE_BYTES)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Read the head of one file."""
    files = corpus()
    data = files[rng.integers(len(files))] if rng.random() < 0.05 else damaged(rng)
    (folder / "image").write_bytes(data)
    try:
        head = heads.read(data)
    except heads.HeadError:
        return "refused"
    size = (head.height, head.width) if head.orientation <= 4 else (head.width, head.height)
    reference = _by_pillow(data)
    assert reference in (None, (head.kind, *size)), f"{head}, by Pillow {reference}"
    return "read" if reference else "read, not by Pillow"


def _by_pillow(data: bytes) -> Any:
    """Return kind, height and width as stored; None where Pillow does not read it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(data), formats=list(KINDS))
        except Exception:  # Pillow raises many kinds
            return None
    return KINDS[str(image.format)], image.height, image.width

"""The demo's contact sheet: one PNG of records as they are stored and as they come in six epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload.cli import demo_data, demo_parity
from gpuload.sources.base import Source

NUM_EPOCHS = 6
CELL, GAP, MARGIN, HEADING, TITLE = 112, 8, 24, 24, 40  # pixels
DIGITS = (0, 1, 2, 3, 4)
PHOTOS = (3, 24, 83, 120)
INK, DIM, PAPER = (28, 32, 40), (120, 126, 136), (250, 250, 248)

Image = NDArray[np.uint8]


def save(folder: Path, path: Path, *, seed: int) -> tuple[int, int]:
    """Draw the sheet, save it, and return its width and height in pixels."""
    from PIL import Image as pillow

    sections = [
        ("Digits from fixed-length records: RandomCrop(8, 8, pad=1)", _digits(folder, seed)),
        (
            f"Pieces of two photographs: RandomResizedCrop({demo_parity.PIXELS}, {demo_parity.PIXELS}), RandomFlip()",
            _photos(folder, seed),
        ),
    ]
    num_rows = sum(len(rows) for _, rows in sections)
    width = 2 * MARGIN + (NUM_EPOCHS + 1) * (CELL + GAP) + GAP
    height = 2 * MARGIN + len(sections) * (TITLE + HEADING + 12) + num_rows * (CELL + GAP)
    sheet = pillow.new("RGB", (width, height), PAPER)
    top = MARGIN
    for title, rows in sections:
        top = _draw(sheet, title, rows, top) + 12
    sheet.save(path)
    return width, height


def _digits(folder: Path, seed: int) -> list[list[Image]]:
    source = demo_data.fixed(folder).select(DIGITS)
    stored = [source[i]["image"] for i in range(len(source))]
    return _rows(source, stored, [gl.ops.RandomCrop(8, 8, pad=1)], seed)


def _photos(folder: Path, seed: int) -> list[list[Image]]:
    source = demo_data.photos(folder).select(PHOTOS)
    crop = gl.ops.RandomResizedCrop(demo_parity.PIXELS, demo_parity.PIXELS)
    with gl.Loader(source, batch_size=1, ops=[gl.ops.Decode()], device="cpu") as decoded:
        stored = [batch["image"][0] for batch in decoded]
    return _rows(source, stored, [gl.ops.Decode(), crop, gl.ops.RandomFlip()], seed)


def _rows(source: Source, stored: list[Image], ops: Sequence[Any], seed: int) -> list[list[Image]]:
    """Return for each record the stored image and then the augmented one of each epoch."""
    with gl.Loader(source, batch_size=len(source), ops=ops, seed=seed, device="cpu") as loader:
        epochs = [loader.batch_at(0, epoch=epoch)["image"] for epoch in range(NUM_EPOCHS)]
    return [[stored[record], *(images[record] for images in epochs)] for record in range(len(source))]


def _draw(sheet: Any, title: str, rows: list[list[Image]], top: int) -> int:
    """Draw a section from ``top`` on and return where it ends, pixels."""
    from PIL import ImageDraw, ImageFont

    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, top), title, INK, ImageFont.load_default(20))
    top += TITLE
    for column in range(NUM_EPOCHS + 1):
        caption = f"epoch {column - 1}" if column else "as stored"
        pen.text((_left(column), top), caption, DIM, ImageFont.load_default(14))
    top += HEADING
    for row in rows:
        for column, image in enumerate(row):
            sheet.paste(_cell(image), (_left(column), top))
        top += CELL + GAP
    return top


def _left(column: int) -> int:
    return MARGIN + column * (CELL + GAP) + (GAP if column else 0)


def _cell(image: Image) -> Any:
    """Return an image in a cell: small ones enlarged pixel by pixel, large ones fitted and centred."""
    from PIL import Image as pillow
    from PIL import ImageOps

    picture = pillow.fromarray(image[..., 0] if image.shape[2] == 1 else image).convert("RGB")
    small = max(picture.size) < CELL
    method = pillow.Resampling.NEAREST if small else pillow.Resampling.LANCZOS
    return ImageOps.pad(picture, (CELL, CELL), method, color=PAPER)

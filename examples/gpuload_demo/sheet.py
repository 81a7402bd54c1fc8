"""The demo's contact sheet: one PNG of a few records, augmented from epoch to epoch.

Each of the two photographs stands there as it is stored, with the boxes that are cut out of it in
the first epochs, and beside it the results: cut, resized, perhaps mirrored, brighter or darker.
Below are some digits, enlarged, as the network gets them.

Where a box lies is asked of the loader itself: a second field holds the place of each pixel, and an
op that acts on both fields draws once for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload_demo import data as demo_data
from gpuload_demo import train as demo_train

NUM_EPOCHS, NUM_COLUMNS = 8, 4
VIEW, GAP, MARGIN, TITLE, CAPTION, CELL = 208, 8, 24, 36, 20, 112  # pixels
DIGITS = (0, 1, 2)
INK, DIM, PAPER = (28, 32, 40), (120, 126, 136), (250, 250, 248)
COLOURS = (
    (230, 25, 75), (0, 130, 200), (200, 160, 0), (60, 180, 75), (245, 130, 48), (145, 30, 180), (0, 160, 160),
    (240, 50, 230),
)  # fmt: skip
FIELDS = ("image", "place")
AUGMENT = (
    gl.ops.RandomResizedCrop(VIEW, VIEW, on=FIELDS, interpolation={"place": "nearest"}),
    gl.ops.RandomFlip(on=FIELDS),
    gl.ops.Brightness(0.7, 1.3),
    gl.ops.Contrast(0.7, 1.3),
)
AUGMENT_TEXT = "RandomResizedCrop, RandomFlip, Brightness(0.7, 1.3), Contrast(0.7, 1.3)"

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class View:
    """A photograph in an epoch: its pixels, and the box of the stored image that they come from."""

    pixels: Image
    top: int
    left: int
    bottom: int  # the first row behind it
    right: int
    is_mirrored: bool


def save(folder: Path, path: Path, *, seed: int) -> tuple[int, int]:
    """Draw the sheet, save it, and return its width and height in pixels."""
    from PIL import Image as pillow

    photos = photographs(folder, seed=seed)
    digits = _digits(folder, seed=seed)
    of_photo = TITLE + 2 * (CAPTION + VIEW + GAP) + GAP
    width = 2 * MARGIN + photos[0][0].shape[1] + 2 * GAP + NUM_COLUMNS * (VIEW + GAP) - GAP
    height = 2 * MARGIN + len(photos) * of_photo + TITLE + CAPTION + len(digits) * (CELL + GAP)
    sheet = pillow.new("RGB", (width, height), PAPER)
    top = MARGIN
    for name, (image, views) in zip(demo_data.PHOTOGRAPHS, photos, strict=True):
        _text(sheet, (MARGIN, top), f"{name}.jpg: {AUGMENT_TEXT}", large=True)
        _draw_photograph(sheet, image, views, top + TITLE)
        top += of_photo
    _text(sheet, (MARGIN, top), "digits: RandomCrop(8, 8, pad=1)", large=True)
    _draw_digits(sheet, digits, top + TITLE)
    sheet.save(path)
    return width, height


def photographs(folder: Path, *, seed: int) -> list[tuple[Image, list[View]]]:
    """Return each photograph as it is stored, and its views in the first epochs."""
    images = demo_data.whole(folder)
    with gl.Loader(images, batch_size=1, ops=[gl.ops.Decode()], device="cpu") as decode_loader:
        originals = [batch["image"][0] for batch in decode_loader]
    # The coordinates of its pixels go along as a second image: behind the ops they say where each
    # pixel came from.
    places = np.stack(
        [np.moveaxis(np.indices(image.shape[:2], np.float32), 0, -1) for image in originals]
    )
    ops = [gl.ops.Decode(), *AUGMENT]
    with gl.Loader(
        gl.zip(images, gl.arrays(place=places)),
        batch_size=len(originals),
        ops=ops,
        seed=seed,
        device="cpu",
    ) as loader:
        epochs = [loader.batch_at(0, epoch=epoch) for epoch in range(NUM_EPOCHS)]
    return [
        (image, [_view(batch["image"][record], batch["place"][record]) for batch in epochs])
        for record, image in enumerate(originals)
    ]


def _view(pixels: Image, places: NDArray[np.float32]) -> View:
    (top, left), (bottom, right) = places.min(axis=(0, 1)), places.max(axis=(0, 1)) + 1
    return View(
        pixels,
        int(top),
        int(left),
        int(bottom),
        int(right),
        bool(places[0, 0, 1] > places[0, -1, 1]),
    )


def _digits(folder: Path, *, seed: int) -> list[list[Image]]:
    """Return the images of each digit: as stored, then as in each epoch."""
    source = demo_data.fixed(folder).select(DIGITS)
    originals = source.read(range(len(source)))["image"]
    with gl.Loader(
        source, batch_size=len(source), ops=demo_train.AUGMENT, seed=seed, device="cpu"
    ) as loader:
        epochs = [loader.batch_at(0, epoch=epoch)["image"] for epoch in range(NUM_EPOCHS)]
    return [
        [originals[record], *(images[record] for images in epochs)] for record in range(len(source))
    ]


def _draw_photograph(sheet: Any, image: Image, views: list[View], top: int) -> None:
    """Draw the stored photograph with the boxes on it, and its views beside it."""
    from PIL import Image as pillow
    from PIL import ImageDraw

    _text(sheet, (MARGIN, top), "as stored, and the part that each epoch takes")
    photo = pillow.fromarray(image)
    pen = ImageDraw.Draw(photo)
    for epoch, view in enumerate(views):
        box = (view.left, view.top, view.right - 1, view.bottom - 1)
        pen.rectangle(box, outline=COLOURS[epoch], width=3)
    for epoch, view in enumerate(
        views
    ):  # each number in another corner, as boxes may begin at one place
        if epoch % 2:
            left = view.right - 19
        else:
            left = view.left
        if epoch % 4 > 1:
            top_of_number = view.bottom - 23
        else:
            top_of_number = view.top
        pen.rectangle((left, top_of_number, left + 18, top_of_number + 22), COLOURS[epoch])
        _text(photo, (left + 4, top_of_number), str(epoch), PAPER, large=True)
    sheet.paste(photo, (MARGIN, top + CAPTION))
    for epoch, view in enumerate(views):
        row, column = divmod(epoch, NUM_COLUMNS)
        left = MARGIN + photo.width + 2 * GAP + column * (VIEW + GAP)
        begin = top + row * (CAPTION + VIEW + GAP)
        _text(sheet, (left, begin), f"epoch {epoch}" + (", mirrored" if view.is_mirrored else ""))
        sheet.paste(pillow.fromarray(view.pixels), (left, begin + CAPTION))
        ImageDraw.Draw(sheet).rectangle(
            (left - 3, begin + CAPTION - 3, left + VIEW + 2, begin + CAPTION + VIEW + 2),
            outline=COLOURS[epoch], width=3,
        )  # fmt: skip


def _draw_digits(sheet: Any, rows: list[list[Image]], top: int) -> None:
    from PIL import Image as pillow

    for column in range(len(rows[0])):
        left = MARGIN + column * (CELL + GAP)
        _text(sheet, (left, top), f"epoch {column - 1}" if column else "as stored")
        for number, row in enumerate(rows):
            digit = pillow.fromarray(row[column][..., 0]).resize(
                (CELL, CELL), pillow.Resampling.NEAREST
            )
            sheet.paste(digit, (left, top + CAPTION + number * (CELL + GAP)))


def _text(
    image: Any,
    at: tuple[int, int],
    text: str,
    colour: tuple[int, int, int] | None = None,
    *,
    large: bool = False,
) -> None:
    from PIL import ImageDraw, ImageFont

    font = ImageFont.load_default(20 if large else 14)
    ImageDraw.Draw(image).text(at, text, colour or (INK if large else DIM), font)

"""The gallery of ops in `docs/ops.md`: a picture of each, made by ``gl.preview``.

``python -m tests.gallery [NAME ...]`` makes the pictures (of these ops alone) and writes the part
of the page.

Photos    four with free licences from `tests/golden`, see `docs/images/ops/ORIGIN.md`, brought to
          one size.
Picture   the photo as it is stored, and behind the op in epochs 0, 1 and 2 (once if nothing is
          random). Where the op moves pixels, boxes, points and mask go with the photo; the mask is
          below it, and epoch 2 is left out.
Ops       are the examples of their docstrings, or those of ``PROGRAMS``, for photos are larger than
          the images that examples are for. ``WITHOUT`` has the ops without a picture, and why they
          have none.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageOps

import gpuload as gl
from gpuload.ops import Op
from gpuload.preview import Cell
from gpuload.preview.pictures import Pixels, empty, grid
from tests import opexamples
from tests.codeblocks import ROOT

FOLDER = ROOT / "docs" / "images" / "ops"
GOLDEN = ROOT / "tests" / "golden"
HEIGHT, WIDTH = 108, 160
NUM_EPOCHS, SEED, QUALITY = 3, 65, 65
BEGIN, END = (
    "<!-- gallery: python -m tests.gallery writes it -->\n",
    "<!-- end of the gallery -->\n",
)

PHOTOS = (
    "images/image/cat.jpg",
    "image_formats/webp/nvImageCodec/cat-lossy-2184682_640_no_orientation.webp",
    "image_formats/webp/Pillow/flower.webp",
    "images/libjpeg-turbo/testorig.jpg",
)
# Of the first photo, in its pixels: two boxes with labels, points, and the outline of what its mask
# covers.
BOXES = ((18, 14, 87, 106), (50, 14, 81, 49))
LABELS = ("cat", "face")
POINTS = ((58, 34), (72, 34), (64, 41))
OUTLINE = (
    (51, 16), (55, 18), (73, 18), (78, 15), (80, 35), (78, 47), (85, 55), (85, 70), (82, 80), (85, 100), (80, 105),
    (75, 102), (74, 82), (68, 82), (74, 100), (68, 105), (61, 100), (58, 80), (50, 65), (42, 56), (24, 54), (19, 46),
    (38, 38), (36, 28), (40, 25), (43, 36), (50, 35),
)  # fmt: skip

PROGRAMS = {
    "AutoContrast": "gl.ops.AutoContrast(p=1)",
    "Brightness": "gl.ops.Brightness(0.3, 1.7)",
    "CLAHE": "gl.ops.CLAHE((2, 8), p=1)",
    "CenterCrop": "gl.ops.CenterCrop(72, 96)",
    "CleanBoxes": "gl.ops.CenterCrop(60, 96), gl.ops.CleanBoxes(min_size=30)",
    "Contrast": "gl.ops.Contrast(0.2, 2.5)",
    "Copy": "gl.ops.Copy('image', to=('view_0', 'view_1')), *gl.ops.repeat([gl.ops.RandomResizedCrop(108, 160, "
    "scale=(0.2, 1)), gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1)], on=('view_0', 'view_1'))",
    "Cutout": "gl.ops.Cutout(48)",
    "Elastic": "gl.ops.Elastic(60, sigma=4)",
    "Equalize": "gl.ops.Equalize(p=1)",
    "Erasing": "gl.ops.Erasing(p=1, mode='pixel', fill=124, std=60)",
    "Gamma": "gl.ops.Gamma(0.3, 3)",
    "GaussianBlur": "gl.ops.GaussianBlur(9, (0.5, 4.0))",
    "Grayscale": "gl.ops.Grayscale(p=0.5)",
    "GridMask": "gl.ops.GridMask((24, 48))",
    "Hue": "gl.ops.Hue(-0.4, 0.4)",
    "Invert": "gl.ops.Invert(p=1)",
    "JpegArtefacts": "gl.ops.JpegArtefacts((4, 20))",
    "Mosaic": "gl.ops.Mosaic(108, 160, fill=124)",
    "Pad": "gl.ops.Pad(128, 192, fill=124)",
    "Perspective": "gl.ops.Perspective(0.5, p=1)",
    "Posterize": "gl.ops.Posterize(2, p=0.5)",
    "RandomCrop": "gl.ops.RandomCrop(96, 96, pad=16)",
    "RandomResize": "gl.ops.RandomResize(60, 160)",
    "RandomResizedCrop": "gl.ops.RandomResizedCrop(108, 160, scale=(0.3, 1))",
    "RandomZoomOut": "gl.ops.RandomZoomOut(side_range=(1, 2), fill=124)",
    "Resize": "gl.ops.Resize(108, 108)",
    "Saturation": "gl.ops.Saturation(0, 4)",
    "ScaleJitter": "gl.ops.ScaleJitter(108, 160, scale=(0.5, 1.5))",
    "Sharpness": "gl.ops.Sharpness(0, 6)",
    "Solarize": "gl.ops.Solarize(128, p=1)",
}
WITHOUT = {
    "Cast": "shows nothing",
    "Dali": "runs in DALI alone",
    "Decode": "makes images of files",
    "Normalize": "shows nothing, as a preview has the pixels without it",
    "OneHot": "is for labels",
    "PadTo": "is for sequences",
    "PerImageStandardization": "shows nothing, as pictures of float numbers are stretched",
    "Reshape": "shows nothing",
    "Transpose": "shows nothing",
}
GEOMETRY, COLOUR, NOISE, CHOICES, PAIRS = (
    "Geometry", "Colour", "Blur, noise and occlusion", "Policies and choices", "Views and pairs",
)  # fmt: skip
FAMILIES = {
    GEOMETRY: "The marked mask, boxes and points of an image move with its pixels, by one draw.",
    COLOUR: "The results are those of torchvision's functions of these names for uint8 tensors.",
    NOISE: "Noise comes from counters that depend on (seed, epoch, record, op), as all draws do.",
    CHOICES: "Which operations an image gets is drawn for it; see [augmentation](augmentation.md).",
    PAIRS: "Several views of one image, and mixtures of two; see [augmentation](augmentation.md).",
}
MODULES = {
    "blur": NOISE, "noise": NOISE, "erasing": NOISE, "jpegartefacts": NOISE, "policies": CHOICES, "choices": CHOICES,
    "views": PAIRS,
}  # fmt: skip  # families that the op itself does not tell


def names() -> list[str]:
    """Return the names of the ops that have a picture."""
    return [name for name in opexamples.NAMES if name not in WITHOUT]


def program(name: str) -> tuple[str, list[Op]]:
    """Return the ops that the picture of an op shows, as text and as a list."""
    text = PROGRAMS.get(name, opexamples.example_text(name))
    return text, eval(f"[{text}]", {"gl": gl, "np": np})


def family(name: str) -> str:
    """Return the family of an op."""
    op = opexamples.example(name)
    module = type(op).__module__.rpartition(".")[2]
    if op.traits.mixes:
        return PAIRS
    return MODULES.get(module, GEOMETRY if op.traits.geometric or name == "CleanBoxes" else COLOUR)


@lru_cache(maxsize=2)
def photos(annotated: bool) -> gl.Source:
    """Return the photos, with a mask, boxes, their labels, and points if they are wanted."""
    pixels = []
    for path in PHOTOS:
        with Image.open(GOLDEN / path) as image:
            pixels.append(
                np.asarray(
                    ImageOps.fit(image.convert("RGB"), (WIDTH, HEIGHT), Image.Resampling.LANCZOS)
                )
            )
    source = gl.arrays(image=np.stack(pixels))
    if not annotated:
        return source
    outline = Image.new("L", (WIDTH, HEIGHT))
    ImageDraw.Draw(outline).polygon(OUTLINE, fill=1)
    mask = np.asarray(outline)[..., None]
    plain = gl.arrays(
        mask=np.stack([mask] * len(pixels)), points=np.stack([np.float32(POINTS)] * len(pixels))
    )
    boxes = gl.records(
        len(pixels),
        _read_boxes,
        fields={"boxes": ("float32", (None, 4)), "labels": ("U4", (None,))},
    )
    return gl.zip(source, plain, boxes).mark(
        mask="mask", points="xy", boxes="xyxy", labels="with boxes"
    )


def _read_boxes(numbers: Any) -> dict[str, Any]:
    return {
        "boxes": [np.float32(BOXES)] * len(numbers),
        "labels": [np.array(LABELS)] * len(numbers),
    }


def cells(name: str) -> tuple[Cell, ...]:
    """Return the first photo as it is stored, and behind an op."""
    _, ops = program(name)
    moving = [op for op in ops if op.traits.geometric]
    annotated = bool(moving) and all(op.traits.geometric.points for op in moving) and name != "Copy"
    with gl.Loader(photos(annotated), 1, ops=ops, seed=SEED, device="cpu") as loader:
        (row,) = gl.preview(loader, records=1, epochs=NUM_EPOCHS - annotated).rows
    return row


def picture(name: str) -> Pixels:
    """Return the picture of an op."""
    columns = [[pixels for _, pixels, _ in cell.pictures] for cell in cells(name)]
    most = max(map(len, columns))
    return grid(
        [
            [column[line] if line < len(column) else empty() for column in columns]
            for line in range(most)
        ]
    )


def to_jpeg(pixels: Pixels) -> bytes:
    """Return a picture as a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY, subsampling=2, optimize=True)
    return file.getvalue()


def lines() -> Iterator[str]:
    """Give the lines of the gallery in Markdown."""
    for title, text in FAMILIES.items():
        members = [name for name in names() if family(name) == title]
        yield from (f"### {title}", "", text, "")
        for name in members:
            code = program(name)[0].replace("gl.ops.", "")
            yield from (f"`{code}`", "", f"![{name}](images/ops/{name}.jpg)", "")
    rest = "; ".join(f"`{name}` {reason}" for name, reason in WITHOUT.items())
    yield from (f"Without a picture: {rest}.", "")


def main(arguments: list[str]) -> None:
    """Write pictures, and the gallery of the page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in arguments or names():
        (FOLDER / f"{name}.jpg").write_bytes(to_jpeg(picture(name)))
    if not arguments:
        for path in FOLDER.glob("*.jpg"):
            if path.stem not in names():
                path.unlink()
    page = opexamples.PAGE.read_text(encoding="utf-8")
    pattern = re.compile(f"(?<={re.escape(BEGIN)}).*(?={re.escape(END)})", re.DOTALL)
    assert pattern.search(page), f"{opexamples.PAGE} has no place for the gallery"
    text = "\n".join(lines())
    opexamples.PAGE.write_text(pattern.sub(lambda _: f"\n{text}\n", page), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

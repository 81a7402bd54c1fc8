"""The gallery of ops: every op is in it, and its pictures are those that its command makes."""

from __future__ import annotations

import io

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")
from tests import gallery, opexamples  # noqa: E402

PAGE = opexamples.PAGE.read_text(encoding="utf-8")


def test_every_op_has_a_picture_or_a_reason():
    assert set(gallery.names()) | gallery.WITHOUT.keys() == set(opexamples.NAMES)
    assert set(gallery.PROGRAMS) <= set(gallery.names())
    pictures = {path.stem for path in gallery.FOLDER.glob("*.jpg")}
    assert pictures == set(gallery.names()), "python -m tests.gallery makes them"
    for name in gallery.names():
        assert f"![{name}](images/ops/{name}.jpg)" in PAGE, (
            "python -m tests.gallery writes the page"
        )


def test_the_page_is_what_the_command_writes():
    text = PAGE.partition(gallery.BEGIN)[2].partition(gallery.END)[0]
    assert text.strip() == "\n".join(gallery.lines()).strip(), "python -m tests.gallery writes it"


def test_the_page_names_the_command_and_the_seed():
    assert (
        f"`python -m tests.gallery`\nmakes all pictures, by `gl.preview` with seed {gallery.SEED};"
        in PAGE
    )


def test_pictures_are_small():
    sizes = [path.stat().st_size for path in gallery.FOLDER.glob("*.jpg")]
    assert max(sizes) < 40_000
    assert sum(sizes) < 1_500_000


@pytest.mark.parametrize("name", ["RandomFlip", "Rotate", "Hue", "MixUp", "RandAugment"])
def test_a_picture_is_the_one_that_the_command_makes(name):
    saved = np.asarray(Image.open(gallery.FOLDER / f"{name}.jpg")).astype(int)

    again = np.asarray(Image.open(io.BytesIO(gallery.to_jpeg(gallery.picture(name))))).astype(int)

    assert saved.shape == again.shape
    assert np.abs(saved - again).mean() < 1  # another libjpeg may round otherwise


def test_boxes_go_with_the_photo():
    """Mirrored photos have their boxes mirrored: the pictures of the box's colour are where they
    should be."""
    stored, *flips = [cell.pictures[0][1] for cell in gallery.cells("RandomFlip")]
    mirror = stored[:, ::-1]
    kinds = {
        "as stored" if np.abs(flip.astype(int) - stored).mean() < 8 else "mirrored"
        for flip in flips
    }
    assert kinds == {"as stored", "mirrored"}
    for flip in flips:
        assert (
            min(np.abs(flip.astype(int) - other).mean() for other in (stored, mirror)) < 8
        )  # but for the labels

"""RandomFlip."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps

from gpuload.errors import SpecError
from gpuload.ops import RandomFlip
from gpuload.testing.ops import OpContract, uniform, varying


class TestRandomFlip(OpContract):
    cases = (
        (RandomFlip(), uniform(np.uint8, 5, 19, 3)),
        (RandomFlip(0.7, vertical=True), uniform(np.float32, 5, 18, 3)),
        (RandomFlip(horizontal=False, vertical=True), varying(np.uint8, 1)),
        (RandomFlip(1, vertical=True), varying(np.uint8, 3)),
        (RandomFlip(), uniform(np.uint8, 4, 40, 1)),
        (RandomFlip(), uniform(np.bool_, 4, 4, 2)),
        (RandomFlip(), uniform(np.float16, 4, 4, 4)),
        (RandomFlip(), uniform(np.int64, 5, 4, 7)),
    )
    neutral = (
        (RandomFlip(0), uniform(np.uint8, 5, 9, 3)),
        (RandomFlip(0, vertical=True), varying(np.uint8, 3)),
    )
    refused = (
        (RandomFlip(), uniform(np.uint8, 3, 32, 32)),
        (RandomFlip(), uniform(np.uint8, 28, 28)),
        (RandomFlip(), uniform(np.complex64, 8, 8, 3)),
    )


def test_it_mirrors_the_columns_and_if_wanted_the_rows():
    image = np.array([[[1], [2], [3]], [[4], [5], [6]]], np.uint8)
    op = RandomFlip(vertical=True)

    def flipped(vertical, horizontal):
        draw = {"vertical": np.int32(vertical), "horizontal": np.int32(horizontal)}
        return op.array(np, image, draw)[..., 0].tolist()

    assert flipped(0, 0) == [[1, 2, 3], [4, 5, 6]]
    assert flipped(0, 1) == [[3, 2, 1], [6, 5, 4]]
    assert flipped(1, 0) == [[4, 5, 6], [1, 2, 3]]
    assert flipped(1, 1) == [[6, 5, 4], [3, 2, 1]]


def test_a_number_below_p_mirrors():
    u = np.array([[0.0, 0.9], [0.29, 0.3], [0.3, 0.1]])

    draw = RandomFlip(0.3, vertical=True).draw(u, np.zeros((3, 2), np.int32))

    assert draw["horizontal"].tolist() == [1, 1, 0]
    assert draw["vertical"].tolist() == [0, 0, 1]


def test_only_what_was_asked_for_is_mirrored():
    draw = RandomFlip(1).draw(np.zeros((2, 2)), np.zeros((2, 2), np.int32))

    assert draw["horizontal"].tolist() == [1, 1]
    assert draw["vertical"].tolist() == [0, 0]


def test_it_equals_pillow():
    image = np.random.default_rng(0).integers(0, 256, (6, 7, 3), dtype=np.uint8)

    mirrored = RandomFlip().array(np, image, {"vertical": np.int32(0), "horizontal": np.int32(1)})

    np.testing.assert_array_equal(mirrored, np.asarray(ImageOps.mirror(Image.fromarray(image))))


@pytest.mark.parametrize(
    "arguments",
    [{"p": 1.5}, {"p": float("nan")}, {"p": "half"}, {"horizontal": 1}, {"horizontal": False}],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="RandomFlip"):
        RandomFlip(**arguments)

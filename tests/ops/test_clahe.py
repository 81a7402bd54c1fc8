"""CLAHE, beside OpenCV's and Albumentations' formula; and OpenCV's Lab."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import SpecError
from gpuload.kernels import lab
from gpuload.ops import CLAHE
from gpuload.ops.base import is_random
from gpuload.testing.ops import OpContract, uniform, varying

GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "augment" / "clahe.npz"))
RESULTS = [name for name in GOLDEN if name.count("/") == 3]


class TestCLAHE(OpContract):
    cases = (
        (CLAHE(), uniform(np.uint8, 32, 40, 3)),
        (CLAHE((0.5, 40), (3, 5), p=0.5), uniform(np.uint8, 31, 17, 3)),
        (CLAHE(2, 4), varying(np.uint8, 1)),
        (CLAHE((1, 2), (2, 2), p=0.5), varying(np.uint8, 3)),
        (CLAHE(4, (4, 2)), uniform(np.uint8, 16, 24, 5)),
        (CLAHE(4), uniform(np.uint8, 3, 2, 1)),
        (CLAHE((0.5, 40), (3, 2), p=0.5), uniform(np.uint16, 13, 10, 1)),
        (CLAHE(40, (2, 1)), varying(np.uint16, 2)),
    )
    neutral = ((CLAHE(p=0), uniform(np.uint8, 9, 8, 3)), (CLAHE(p=0), varying(np.uint8, 2)))
    refused = (
        (CLAHE(), uniform(np.uint8, 3, 32, 32)),
        (CLAHE(), uniform(np.uint16, 9, 8, 3)),
        (CLAHE(), uniform(np.float32, 9, 8, 3)),
    )


def equalize(image, limit, rows, columns):
    return CLAHE(limit, (rows, columns)).array(
        np, image, {"apply": np.int32(1), "clip_limit": np.float32(limit)}
    )


@pytest.mark.parametrize("name", RESULTS)
def test_every_value_is_opencvs(name):
    image, limit, rows, columns = name.split("/")

    result = equalize(GOLDEN[f"images/{image}"], float(limit), int(rows), int(columns))

    np.testing.assert_array_equal(result, GOLDEN[name])


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("lab/")])
def test_lab_is_opencvs(name):
    image = GOLDEN[f"images/{name.split('/')[1]}"]

    np.testing.assert_array_equal(np.stack(lab.to_lab(np, image), axis=-1), GOLDEN[name])


def test_each_of_a_million_colours_is_opencvs_in_lab_and_back():
    rng = np.random.default_rng(3)
    colours = rng.integers(0, 256, (1000, 1000, 3), np.uint8)
    other_lightness = rng.integers(0, 256, (1000, 1000), np.uint8)

    lightness, a, b = lab.to_lab(np, colours)
    result = lab.from_lab(np, other_lightness, a, b)

    expected = cv2.cvtColor(colours, cv2.COLOR_RGB2LAB)
    np.testing.assert_array_equal(np.stack([lightness, a, b], axis=-1), expected)
    expected[..., 0] = other_lightness
    np.testing.assert_array_equal(result, cv2.cvtColor(expected, cv2.COLOR_LAB2RGB))


@pytest.mark.parametrize("number", range(60))
def test_random_images_sizes_limits_and_tiles_are_opencvs(number):
    rng = np.random.default_rng(number)
    height, width, rows, columns = (int(rng.integers(1, top)) for top in (90, 90, 12, 12))
    image = (
        rng.normal(rng.integers(256), rng.integers(1, 90), (height, width)).clip(0, 255)
    ).astype(np.uint8)
    limit = float(np.float32(10 ** rng.uniform(-1, 3)))

    result = equalize(image[..., None], limit, rows, columns)[..., 0]

    np.testing.assert_array_equal(result, cv2.createCLAHE(limit, (columns, rows)).apply(image))


def test_a_flat_image_within_a_limit_stays_nearly_flat_and_without_one_becomes_white():
    image = np.full((16, 16, 1), 100, np.uint8)

    # Of the 256 pixels level 100 keeps one, and levels 0 to 254 get one each: so 102 values are at
    # most 100.
    within = equalize(image, 1.0, 1, 1)
    beyond = equalize(image, 256.0, 1, 1)

    assert np.unique(within).tolist() == [round(255 / 256 * 102)]
    assert np.unique(beyond).tolist() == [255]


def test_limits_are_drawn_between_two_and_every_image_has_its_own():
    op = CLAHE((2, 6), p=0.25)

    draw = op.draw(np.random.default_rng(0).random((10_000, 2)), np.zeros((10_000, 2), np.int32))

    assert draw["apply"].mean() == pytest.approx(0.25, abs=0.02)
    assert draw["clip_limit"].min() == pytest.approx(2, abs=0.01)
    assert draw["clip_limit"].max() == pytest.approx(6, abs=0.01)
    assert draw["clip_limit"].mean() == pytest.approx(4, abs=0.05)
    assert is_random(CLAHE((1, 2), p=1))
    assert not is_random(CLAHE(2, p=1))


def test_three_channels_of_16_bits_are_refused_and_the_remedy_works():
    source = gl.arrays(image=np.full((4, 9, 8, 3), 0x1234, np.uint16))
    with pytest.raises(SpecError, match="OpenCV has for uint8 alone") as error:
        gl.Loader(source, batch_size=4, ops=[CLAHE()])
    remedy = eval(str(error.value).split("before it: ")[1].splitlines()[0], {"gl": gl})

    batch = next(iter(gl.Loader(source, batch_size=4, ops=[remedy, CLAHE(2, 1)])))

    assert batch["image"].dtype == np.uint8


@pytest.mark.parametrize(
    "arguments",
    [
        {"clip_limit": 0},
        {"clip_limit": (2, 1)},
        {"clip_limit": (1, 2, 3)},
        {"grid": 0},
        {"grid": (8, 8, 8)},
        {"p": 2},
    ],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="CLAHE"):
        CLAHE(**arguments)

"""The colour functions beside torchvision's and Pillow's results, kept in
tests/golden/augment/colour.npz."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps

from gpuload.kernels import colour
from tests.codeblocks import ROOT

RESULTS = dict(np.load(ROOT / "tests" / "golden" / "augment" / "colour.npz"))
FUNCTIONS = {
    "adjust_brightness": colour.brightness,
    "adjust_contrast": colour.contrast,
    "adjust_saturation": colour.saturation,
    "adjust_sharpness": colour.sharpness,
    "adjust_hue": colour.hue,
    "adjust_gamma": colour.gamma,
    "posterize": lambda xp, x, bits: colour.posterize(xp, x, int(bits)),
    "solarize": colour.solarize,
    "invert": lambda xp, x, _: colour.invert(xp, x),
    "autocontrast": lambda xp, x, _: colour.autocontrast(xp, x),
    "equalize": lambda xp, x, _: colour.equalize(xp, x),
    "rgb_to_grayscale": lambda xp, x, channels: colour.grayscale(xp, x, int(channels)),
}
KEYS = {name: [key for key in RESULTS if key.startswith(f"{name}/")] for name in FUNCTIONS}


def image_of(key):
    image = RESULTS[f"images/{key.split('/')[2]}"]
    return image.astype(np.float32) / np.float32(255) if key.endswith("/float") else image


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_value_is_torchvisions(name):
    for key in KEYS[name]:
        number = float(key.split("/")[1])
        number = number / 255 if name == "solarize" and key.endswith("/float") else number

        result = FUNCTIONS[name](np, image_of(key), number)

        assert result.dtype == RESULTS[key].dtype, key
        if result.dtype == np.uint8:
            np.testing.assert_array_equal(result, RESULTS[key], key)
        else:  # torch sums over pixels in an order of its own, and has other powers
            np.testing.assert_allclose(result, RESULTS[key], rtol=0, atol=1e-6, err_msg=key)
    assert len(KEYS[name]) >= 7


@pytest.mark.parametrize("name", FUNCTIONS)
def test_images_of_a_batch_are_those_that_are_changed_alone(name):
    rng = np.random.default_rng(3)
    for dtype in (np.uint8, np.float32):
        images = rng.integers(0, 256, (4, 6, 7, 3), np.uint8)
        images[2] = 9
        images = images if dtype == np.uint8 else images.astype(np.float32) / 255
        numbers = np.array([0, 0.3, 0.75, 1], np.float32)
        if name in ("posterize", "rgb_to_grayscale"):
            numbers = np.array([0, 3, 8, 1] if name == "posterize" else [3, 3, 3, 3])

        batch = (
            colour.grayscale(np, images, 3)
            if name == "rgb_to_grayscale"
            else colour.posterize(np, images, numbers)
            if name == "posterize"
            else FUNCTIONS[name](np, images, numbers)
        )

        alone = np.stack(
            [
                FUNCTIONS[name](np, image, number)
                for image, number in zip(images, numbers, strict=True)
            ]
        )
        assert batch.dtype == dtype
        np.testing.assert_array_equal(batch, alone)


PILLOWS = {
    "equalize": (colour.equalize, ImageOps.equalize),
    "invert": (colour.invert, ImageOps.invert),
    **{
        f"solarize {threshold}": (
            lambda xp, x, threshold=threshold: colour.solarize(xp, x, threshold),
            lambda image, threshold=threshold: ImageOps.solarize(image, threshold),
        )
        for threshold in (0, 1, 128, 255, 256)
    },
    **{
        f"posterize {bits}": (
            lambda xp, x, bits=bits: colour.posterize(xp, x, bits),
            lambda image, bits=bits: ImageOps.posterize(image, bits),
        )
        for bits in range(1, 9)
    },
}


@pytest.mark.parametrize("name", PILLOWS)
def test_every_value_is_pillows(name):
    function, pillows = PILLOWS[name]
    for key in ("photo", "noise", "ramp", "dark", "small"):
        image = RESULTS[f"images/{key}"]

        expected = np.asarray(pillows(Image.fromarray(image)))

        np.testing.assert_array_equal(function(np, image), expected, key)


def test_the_gray_of_each_colour_is_cut_off():
    # torchvision: 0.2989 + 0.587 + 0.114 is 0.9999, so that white is 254, and black 0.
    image = np.array([[[255, 255, 255], [0, 0, 0], [1, 1, 1], [255, 0, 0]]], np.uint8)

    assert colour.gray(np, image).ravel().tolist() == [254, 0, 0, 76]


def test_a_gain_of_gamma_is_bounded():
    image = np.array([[[0], [128], [255]]], np.uint8)

    assert colour.gamma(np, image, 1.0, 2).ravel().tolist() == [0, 255, 255]
    assert colour.gamma(np, image, 1.0, 0.5).ravel().tolist() == [0, 64, 127]


def test_equalize_counts_only_the_values_below_the_largest_as_pillow_does():
    image = np.minimum(np.arange(32 * 48, dtype=np.int32).reshape(32, 48, 1) // 6, 100).astype(
        np.uint8
    )
    image = np.repeat(image, 3, axis=2)  # more than half of its pixels have the largest value

    expected = np.asarray(ImageOps.equalize(Image.fromarray(image)))

    np.testing.assert_array_equal(colour.equalize(np, image), expected)


@pytest.mark.parametrize(
    "values",
    [(-53.3, 0.0), (1.7, 1.0), (np.nan, 0.0), (-np.inf, 0.0), (np.inf, 1.0), (300.0, 1.0)],
    ids=str,
)
def test_floats_beyond_black_and_white_count_as_these_where_they_become_bytes(values):
    value, bound = np.float32(values)
    ramp = np.linspace(0, 1, 48, dtype=np.float32).reshape(4, 12, 1)
    image, bounded = ramp.copy(), ramp.copy()
    image[1, 3:7], bounded[1, 3:7] = value, bound

    assert (
        colour.to_dtype(np, image, np.dtype(np.uint8)).tolist()
        == (bounded * 255.999).astype(np.uint8).tolist()
    )
    np.testing.assert_array_equal(colour.equalize(np, image), colour.equalize(np, bounded))


def test_a_hue_of_floats_below_black_is_turned_without_a_warning():
    image = np.array(
        [[[0, -1, -0.5], [1, 0, 0]]], np.float32
    )  # the first is not gray, and its largest level is 0

    turned = colour.hue(np, image, np.float32(0.25))

    np.testing.assert_allclose(turned[0, 1], [0.5, 1, 0], atol=1e-6)

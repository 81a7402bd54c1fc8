"""Colours as Pillow makes them: every value, beside Pillow itself."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from gpuload.kernels import colour_pillow

ENHANCERS = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "saturation": ImageEnhance.Color,
    "sharpness": ImageEnhance.Sharpness,
}
SHAPES = [(24, 32, 3), (33, 7, 1), (2, 9, 3), (50, 41, 3)]


def images(shape, count):
    """Return noise of all levels and of a few, arrays ``[H, W, C]``, with the image of Pillow."""
    rng = np.random.default_rng(shape[0])
    for number in range(count):
        low, high = sorted(rng.integers(0, 257, 2)) if number % 2 else (0, 256)
        image = rng.integers(low, max(high, low + 1), shape).clip(0, 255).astype(np.uint8)
        yield image, Image.fromarray(image if shape[2] == 3 else image[..., 0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ENHANCERS)
def test_every_value_is_that_of_the_enhancer(name, shape):
    function, factors = (
        getattr(colour_pillow, name),
        [0, 1, *np.random.default_rng(0).uniform(0, 2.5, 60)],
    )
    for factor, (image, pillows) in zip(factors, images(shape, len(factors)), strict=True):
        expected = np.asarray(ENHANCERS[name](pillows).enhance(factor)).reshape(shape)

        np.testing.assert_array_equal(function(np, image, factor), expected, str(factor))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_value_is_that_of_autocontrast(shape):
    for image, pillows in images(shape, 200):
        expected = np.asarray(ImageOps.autocontrast(pillows)).reshape(shape)

        np.testing.assert_array_equal(colour_pillow.autocontrast(np, image), expected)


@pytest.mark.parametrize("space", ["YCbCr", "HSV"])
def test_every_colour_is_that_of_the_colour_space(space):
    rng = np.random.default_rng(5)
    for image in (
        rng.integers(0, high, (700, 700, 3)).astype(np.uint8) for high in (256, 256, 40, 4)
    ):
        expected = np.asarray(Image.fromarray(image).convert(space))

        np.testing.assert_array_equal(getattr(colour_pillow, space.lower())(np, image), expected)


@pytest.mark.parametrize("name", ENHANCERS)
def test_images_of_a_batch_are_those_that_are_changed_alone(name):
    batch = np.random.default_rng(1).integers(0, 256, (5, 8, 9, 3), np.uint8)
    factors = np.array([0, 0.3, 1, 1.7, 2.2], np.float32)
    function = getattr(colour_pillow, name)

    result = function(np, batch, factors)

    singles = [function(np, image, factor) for image, factor in zip(batch, factors, strict=True)]
    np.testing.assert_array_equal(result, singles)

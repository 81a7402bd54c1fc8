"""Colours in the core: every value that NumPy makes, and what its face refuses."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import core
from gpuload.ops import colour, colour_core, tables

pytestmark = pytest.mark.skipif(core.native is None, reason=core.problem)
RNG = np.random.default_rng(8)
SIZES = ((1, 1), (3, 3), (31, 33), (40, 13), (64, 16))  # 512 pixels are a block of the core


def images(channels=3):
    """Return noise of all levels and of a few."""
    for size in SIZES:
        for low, high in ((0, 256), (100, 104), (200, 256), (0, 2)):
            yield RNG.integers(low, high, (*size, channels)).astype(np.uint8)


def check(name, numbers, channels=3):
    for image in images(channels):
        for number in numbers:
            out = np.empty_like(image)

            getattr(colour_core, name)(image, number, out)

            np.testing.assert_array_equal(out, getattr(colour, name)(np, image, number), str((name, number)))


FACTORS = np.float32([0, 1e-6, 0.3, 0.999999, 1, 1.000001, 1.7, 300])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "sharpness"])
def test_each_value_is_that_of_numpy_for_any_factor(name, channels):
    check(name, [*FACTORS, *RNG.uniform(0, 2.5, 20).astype(np.float32)], channels)


@pytest.mark.parametrize("channels", [1, 3])
def test_each_value_is_that_of_numpy_for_any_turn(channels):
    check("hue", [*np.float32([-0.5, -1e-8, 0, 1e-8, 0.5]), *RNG.uniform(-0.5, 0.5, 20).astype(np.float32)], channels)


@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_each_value_is_that_of_numpy_for_any_histogram(name, channels):
    for image in images(channels):
        out = np.empty_like(image)

        getattr(colour_core, name)(image, out)

        np.testing.assert_array_equal(out, getattr(colour, name)(np, image))
        np.testing.assert_array_equal(colour_core.counts_up_to(image), tables.counts_up_to(np, image))


def test_the_gray_of_every_colour_is_that_of_numpy():
    green, blue = np.meshgrid(np.arange(256), np.arange(256))
    for red in range(0, 256, 5):
        image = np.stack([np.full_like(green, red), green, blue], axis=-1).astype(np.uint8)
        gray, rgb = np.empty((256, 256, 1), np.uint8), np.empty_like(image)

        colour_core.grayscale(image, gray)
        colour_core.grayscale(image, rgb)

        np.testing.assert_array_equal(gray, colour.grayscale(np, image, 1))
        np.testing.assert_array_equal(rgb, colour.grayscale(np, image, 3))
        assert core.native.sum_grays(image) == colour.gray(np, image).astype(int).sum()


def test_tables_are_those_of_each_image_and_channel():
    batch = RNG.integers(0, 256, (4, 5, 6, 3), np.uint8)
    for shape in ((4, 1, 256), (4, 3, 256)):
        table, out = RNG.integers(0, 256, shape, np.uint8), np.empty_like(batch)

        core.native.look_up(batch, table, out)

        np.testing.assert_array_equal(out, tables.look_up(np, batch, table if shape[1] == 3 else table[:, 0]))


RGB, GRAY = np.zeros((4, 5, 3), np.uint8), np.zeros((4, 5, 1), np.uint8)


@pytest.mark.parametrize("call", [
    lambda native: native.look_up(RGB[None], np.zeros((1, 2, 256), np.uint8), RGB[None].copy()),
    lambda native: native.look_up(RGB[None], np.zeros((2, 1, 256), np.uint8), RGB[None].copy()),
    lambda native: native.look_up(RGB[None], np.zeros((1, 1, 255), np.uint8), RGB[None].copy()),
    lambda native: native.look_up(RGB[None], np.zeros((1, 1, 256), np.uint8), GRAY[None].copy()),
    lambda native: native.count_levels(RGB, np.zeros((1, 256), np.int64)),
    lambda native: native.count_levels(RGB, np.zeros((3, 255), np.int64)),
    lambda native: native.sum_grays(GRAY),
    lambda native: native.make_gray(GRAY, RGB.copy()),
    lambda native: native.make_gray(RGB, np.zeros((4, 5, 2), np.uint8)),
    lambda native: native.make_gray(RGB, np.zeros((4, 4, 1), np.uint8)),
    lambda native: native.saturate(GRAY, 1, 0, GRAY.copy()),
    lambda native: native.saturate(RGB, 1, 0, GRAY.copy()),
    lambda native: native.turn_hue(RGB, 0, np.zeros((4, 6, 3), np.uint8)),
    lambda native: native.sharpen(RGB, 0, np.zeros((4, 6, 3), np.uint8)),
    lambda native: native.sharpen(RGB[:2], 0, RGB[:2].copy()),
    lambda native: native.sharpen(RGB, 0, RGB),
])  # fmt: skip
def test_shapes_that_do_not_belong_together_are_refused(call):
    with pytest.raises(ValueError, match=r"look_up|count_levels|sum_grays|make_gray|saturate|turn_hue|sharpen"):
        call(core.native)

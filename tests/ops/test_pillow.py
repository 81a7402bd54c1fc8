"""Affine transforms as Pillow makes them: every value, on noise, against Pillow itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import Image

from gpuload import core
from gpuload.kernels import pillow

RESAMPLE = {
    "nearest": Image.Resampling.NEAREST,
    "linear": Image.Resampling.BILINEAR,
    "cubic": Image.Resampling.BICUBIC,
}
FILTERS = {
    "linear": RESAMPLE["linear"],
    "cubic": RESAMPLE["cubic"],
    "lanczos": Image.Resampling.LANCZOS,
}
GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "augment" / "pillow_resize.npz"))
RESULTS = [name for name in GOLDEN if name.count("/") == 3]
SIZES = [(24, 32), (37, 23), (33, 33), (1, 7)]


def noise(height, width):
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)


def matrices(kind, count, size):
    rng = np.random.default_rng(7)
    height, width = size
    for _ in range(count):
        shear, move = rng.uniform(-0.5, 0.5), rng.uniform(-0.4, 0.4)
        yield {
            "shear x": (1, shear, 0, 0, 1, 0),
            "shear y": (1, 0, 0, shear, 1, 0),
            "translate x": (1, 0, move * width, 0, 1, 0),
            "translate y": (1, 0, 0, 0, 1, move * height),
            "scale": (1 + shear, 0, move * width, 0, 1 - shear, 3),
            "all": tuple(rng.uniform(-1.5, 1.5, 6) * (1, 1, width, 1, 1, height)),
            "far": (1, 0.1, 1e6 * move, 0.2, 1, 0),
        }[kind]


@pytest.mark.parametrize("interpolation", RESAMPLE)
@pytest.mark.parametrize(
    "kind", ["shear x", "shear y", "translate x", "translate y", "scale", "all", "far"]
)
def test_an_affine_transform_equals_pillow(kind, interpolation):
    for size in SIZES:
        image = noise(*size)
        for matrix in matrices(kind, 6, size):
            expected = Image.fromarray(image).transform(
                size[::-1],
                Image.Transform.AFFINE,
                matrix,
                RESAMPLE[interpolation],
                fillcolor=(128, 7, 255),
            )

            result = pillow.affine(np, image, matrix, interpolation, fill=(128, 7, 255))

            np.testing.assert_array_equal(result, np.asarray(expected), err_msg=f"{matrix} {size}")


@pytest.mark.parametrize("interpolation", RESAMPLE)
def test_a_rotation_equals_pillow(interpolation):
    angles = [0, 90, 180, 270, -90, 360, 45, *np.random.default_rng(3).uniform(-400, 400, 9)]
    for size in SIZES:
        image = noise(*size)
        for angle in angles:
            expected = Image.fromarray(image).rotate(
                angle, RESAMPLE[interpolation], fillcolor=(1, 2, 3)
            )

            result = pillow.rotate(np, image, angle, interpolation, fill=(1, 2, 3))

            np.testing.assert_array_equal(result, np.asarray(expected), err_msg=f"{angle} {size}")


def test_one_channel_and_a_single_fill():
    image = noise(24, 32)[..., :1]
    matrix = (1, 0.3, 0, 0, 1, 0)
    expected = Image.fromarray(image[..., 0]).transform(
        (32, 24), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC, fillcolor=9
    )

    np.testing.assert_array_equal(
        pillow.affine(np, image, matrix, "cubic", 9)[..., 0], np.asarray(expected)
    )


@pytest.mark.parametrize("name", RESULTS)
def test_a_resize_equals_pillow(name):
    kind, interpolation, height, width = name.split("/")
    image, expected = GOLDEN[f"images/{kind}"], GOLDEN[name]

    result = pillow.resize(np, image, (int(height), int(width)), interpolation)

    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("interpolation", pillow.SUPPORTS)
@pytest.mark.parametrize(
    ("size", "new_size"),
    [
        ((97, 17), (23, 12)),
        ((300, 3), (9, 5)),
        ((90, 40), (31, 80)),
        ((50, 60), (20, 55)),
        ((17, 97), (12, 23)),
    ],
    ids=["tall", "100 times as high", "height down, width up", "height down more", "wide"],
)
def test_a_resize_sums_along_the_rows_first_as_pillow_up_to_12_also_of_tall_images(
    size, new_size, interpolation
):
    image = np.random.default_rng(size[0]).integers(0, 256, (*size, 3), np.uint8)
    (height, width), by_pillow = new_size, FILTERS[interpolation]
    # Each pass ends in bytes, so that two calls of any version of Pillow, for an axis each, have
    # that order.
    rows_first = (
        Image.fromarray(image)
        .resize((width, size[0]), by_pillow)
        .resize((width, height), by_pillow)
    )

    result = pillow.resize(np, image, (height, width), interpolation)

    np.testing.assert_array_equal(result, np.asarray(rows_first))
    if int(PIL.__version__.partition(".")[0]) < 13 or size == (17, 97):
        whole = np.asarray(Image.fromarray(image).resize((width, height), by_pillow))
        np.testing.assert_array_equal(result, whole)


def test_the_core_resizes_a_box_as_numpy_does():
    if core.native is None:
        pytest.skip(core.problem)
    rng = np.random.default_rng(0)
    for _ in range(100):
        image = rng.integers(0, 256, (*rng.integers(3, 60, 2), rng.choice([1, 3, 4])), np.uint8)
        top, left = (int(rng.integers(0, length - 1)) for length in image.shape[:2])
        box = image[top : image.shape[0] - 1, left:]
        out = np.empty((*rng.integers(1, 60, 2), image.shape[2]), np.uint8)
        for interpolation in pillow.SUPPORTS:
            pillow.resize_into(image, (top, left, *box.shape[:2]), interpolation, out)

            np.testing.assert_array_equal(out, pillow.resize(np, box, out.shape[:2], interpolation))


def test_columns_beyond_the_whole_numbers_of_a_matrix_equal_pillow():
    image = noise(2, 40_000)
    for angle in (0.0005, 180.0005):
        expected = Image.fromarray(image).rotate(angle, RESAMPLE["nearest"], fillcolor=(1, 2, 3))

        result = pillow.rotate(np, image, angle, fill=(1, 2, 3))

        np.testing.assert_array_equal(result, np.asarray(expected))

"""Rotate, Rotate90, Affine, Shear, Translate and Perspective, and the arithmetic below them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpuload import core
from gpuload.errors import SpecError
from gpuload.ops import Affine, Perspective, Rotate, Rotate90, Shear, Translate
from gpuload.ops.geometry import warp
from gpuload.ops.geometry.affine import matrices
from gpuload.ops.geometry.perspective import coefficients
from gpuload.spec import Field
from gpuload.testing.ops import OpContract, uniform, varying

GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "augment" / "geometry.npz"))
CALLS = [json.loads(call) for call in GOLDEN["calls"].tolist()]
NOT_BLENDED = (
    uniform(np.int64, 12, 9, 1),
    uniform(np.float64, 12, 9, 3),
    uniform(np.int16, 12, 9, 3),
)
NOT_IMAGES = (
    uniform(np.uint8, 3, 32, 32),
    uniform(np.uint8, 28, 28),
    uniform(np.complex64, 8, 8, 3),
)


class WarpContract(OpContract):
    def test_each_form_equals_the_array_form(self):  # that of the core may have rows of its own
        for op, field in self.cases:
            if not isinstance(op, warp.Warp) or core.native is None:
                continue
            _, values, draws = self._batch(op, field)
            for row in range(len(values)):
                draw = {name: parameters[row] for name, parameters in draws[0].items()}
                expected = op.array(np, values[row], draw)
                result = np.empty_like(expected)

                op.forms(field).row(np.ascontiguousarray(values[row]), draw, result)

                np.testing.assert_array_equal(result, expected)


class TestRotate(WarpContract):
    cases = (
        (Rotate(30), varying(np.uint8, 3)),
        (Rotate((10, 80), interpolation="linear", fill=(3, 200, 7)), uniform(np.uint8, 12, 19, 3)),
        (Rotate(180, expand=True), uniform(np.uint8, 12, 19, 1)),
        (Rotate(180, expand=True, interpolation="linear"), varying(np.float32, 3)),
        (Rotate(45, fill=-1), uniform(np.int64, 9, 12, 1)),
        (Rotate(45, fill=1), uniform(np.bool_, 9, 12, 2)),
        (Rotate(45, interpolation="linear", fill=65535), uniform(np.uint16, 9, 12, 5)),
        (Rotate((90, 90), fill=0.5), uniform(np.float16, 8, 8, 4)),
        (Rotate(20, interpolation="linear"), uniform(np.uint8, 1, 7, 4)),
    )
    neutral = (
        (Rotate(0), varying(np.uint8, 3)),
        (Rotate(0, interpolation="linear", fill=9), uniform(np.float32, 8, 9, 3)),
        (Rotate(0, expand=True), uniform(np.int16, 8, 9, 3)),
        (Rotate((360, 360), interpolation="linear"), uniform(np.uint8, 8, 9, 3)),
    )
    refused = (
        *((Rotate(10), field) for field in NOT_IMAGES),
        *((Rotate(10, interpolation="linear"), field) for field in NOT_BLENDED),
        (Rotate(10, fill=256), uniform(np.uint8, 8, 9, 3)),
        (Rotate(10, fill=0.5), uniform(np.uint8, 8, 9, 3)),
        (Rotate(10, fill=(1, 2)), uniform(np.uint8, 8, 9, 3)),
    )


class TestRotate90(OpContract):
    cases = (
        (Rotate90(), varying(np.uint8, 3)),
        (Rotate90(), uniform(np.float32, 9, 9, 3)),
        (Rotate90(), uniform(np.int64, 7, 9, 1)),
        (Rotate90((0, 2)), uniform(np.bool_, 7, 9, 2)),
        (Rotate90((1, 3)), uniform(np.float16, 7, 9, 5)),
    )
    neutral = ((Rotate90((0,)), uniform(np.uint8, 7, 9, 3)),)
    refused = tuple((Rotate90(), field) for field in NOT_IMAGES)


class TestAffine(WarpContract):
    cases = (
        (Affine(30, (0.2, 0.1), (0.5, 2), 20), varying(np.uint8, 3)),
        (
            Affine((5, 9), shear=(1, 2, -20, 3), interpolation="linear"),
            uniform(np.float32, 12, 19, 3),
        ),
        (Affine(scale=(0.1, 0.1), fill=255), uniform(np.uint8, 12, 19, 1)),
    )
    neutral = (
        (Affine(), varying(np.uint8, 3)),
        (Affine(interpolation="linear"), uniform(np.float32, 8, 9, 3)),
    )
    refused = tuple((Affine(), field) for field in NOT_IMAGES)


class TestShear(WarpContract):
    cases = (
        (Shear(30), varying(np.uint8, 3)),
        (Shear(0, (5, 9), interpolation="linear"), uniform(np.uint8, 12, 19, 1)),
    )
    neutral = ((Shear(0), varying(np.uint8, 3)),)
    refused = tuple((Shear(5), field) for field in NOT_IMAGES)


class TestTranslate(WarpContract):
    cases = (
        (Translate(0.3), varying(np.uint8, 3)),
        (Translate(0.5, 0, fill=7), uniform(np.int32, 12, 19, 2)),
        (Translate(1, 1, interpolation="linear"), uniform(np.float32, 12, 19, 3)),
    )
    neutral = (
        (Translate(0), varying(np.uint8, 3)),
        (Translate(0.02, 0.02), uniform(np.uint8, 9, 9, 3)),
    )
    refused = tuple((Translate(0.5), field) for field in NOT_IMAGES)


class TestPerspective(WarpContract):
    cases = (
        (Perspective(), varying(np.uint8, 3)),
        (Perspective(1, p=1, fill=(1, 2, 3)), uniform(np.float32, 12, 19, 3)),
        (Perspective(0.7, p=1, interpolation="nearest"), uniform(np.int64, 12, 19, 1)),
        (Perspective(1, p=1), uniform(np.uint8, 1, 5, 3)),
        (Perspective(1, p=1), uniform(np.uint8, 2, 2, 3)),
    )
    neutral = (
        (Perspective(p=0), uniform(np.float32, 8, 9, 3)),
        (Perspective(0, p=1), uniform(np.uint8, 8, 9, 3)),
    )
    refused = (
        *((Perspective(), field) for field in NOT_IMAGES),
        *((Perspective(), field) for field in NOT_BLENDED),
    )


def matrix_of(function, keywords, size):
    """Return the matrix, and the size of the result, of a call of torchvision's function."""
    sizes = np.array([size], np.int32)
    if function == "perspective":
        return coefficients(np.array([keywords["endpoints"]], float), sizes)[0], size
    if function == "affine":
        numbers = (
            np.array([keywords[name]], float) for name in ("angle", "translate", "scale", "shear")
        )
        return matrices(*numbers)[0], size
    angle = keywords["angle"]
    draw = Rotate((angle, angle), expand=keywords["expand"]).draw(np.zeros((1, 1)), sizes)
    return draw["matrix"][0], tuple(draw.get("size", sizes)[0].tolist())


@pytest.mark.parametrize(
    "number", range(len(CALLS)), ids=[f"{name}-{image}" for name, image, _ in CALLS]
)
def test_it_equals_torchvision(number):
    function, name, keywords = CALLS[number]
    image, expected = GOLDEN[f"images/{name}"], GOLDEN[f"result/{number}"]
    interpolation = {"nearest": "nearest", "bilinear": "linear"}[keywords["interpolation"]]
    matrix, size = matrix_of(function, keywords, image.shape[:2])

    result = warp.warp(np, image, matrix, size, interpolation, keywords["fill"][0])

    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    # torchvision moves the pixels of turns by 90 degrees without blending them; the blend rounds
    # floats.
    is_quarter = function == "rotate" and keywords["angle"] % 90 == 0
    rounding = 2e-6 if is_quarter and image.dtype == np.float32 else 0
    np.testing.assert_allclose(result, expected, rtol=0, atol=rounding)


def test_an_image_is_turned_counter_clockwise():
    image = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)

    draw = Rotate((90, 90), expand=True).draw(np.zeros((1, 1)), np.array([[2, 3]], np.int32))
    turned = Rotate((90, 90), expand=True).array(
        np, image, {name: values[0] for name, values in draw.items()}
    )

    assert turned[..., 0].tolist() == [[2, 5], [1, 4], [0, 3]]
    assert (
        Rotate90((1,)).array(np, image, {"quarters": np.int32(1)})[..., 0].tolist()
        == turned[..., 0].tolist()
    )


def test_an_image_is_moved_by_whole_pixels():
    image = np.arange(1, 9, dtype=np.uint8).reshape(2, 4, 1)

    moved = warp.warp(np, image, matrices(np.zeros(1), np.array([[2.0, 1.0]]))[0], (2, 4), fill=0)

    assert moved[..., 0].tolist() == [[0, 0, 0, 0], [0, 0, 1, 2]]


def test_a_draw_is_uniform_between_its_ends():
    u = np.array([[0.0], [0.5], [0.75]])

    expected = matrices(-np.array([-10.0, 0.0, 5.0]))

    np.testing.assert_array_equal(
        Rotate(10).draw(u, np.full((3, 2), 8, np.int32))["matrix"], expected
    )


@pytest.mark.parametrize(
    ("op", "num_uniforms"),
    [
        (Rotate(40), 1),
        (Rotate(170, expand=True), 1),
        (Rotate90(), 1),
        (Affine(40, (0.2, 0.3), (0.6, 1.4), (-20, 20, -10, 10)), 6),
        (Perspective(0.6, p=1), 9),
    ],
)
def test_points_go_where_their_pixels_go(op, num_uniforms):
    """A disk of light is moved by the op; its centre by ``move_points``."""
    height, width = 60, 80
    size = np.array([[height, width]], np.int32)
    y, x = np.mgrid[:height, :width] + 0.5
    for seed in range(8):
        u = np.random.default_rng(seed).random((1, num_uniforms))
        draw = {name: values[0] for name, values in op.draw(u, size).items()}
        center = np.array([[43.0, 27.0]])
        image = np.exp(-((x - center[0, 0]) ** 2 + (y - center[0, 1]) ** 2) / 18)[..., None].astype(
            np.float32
        )

        result = op.array(np, image, draw)[..., 0]
        (moved,) = op.traits.geometric.move_points(center, draw, size[0])

        rows, columns = np.mgrid[: result.shape[0], : result.shape[1]] + 0.5
        light = [(columns * result).sum() / result.sum(), (rows * result).sum() / result.sum()]
        np.testing.assert_allclose(
            moved, light, atol=0.35
        )  # light of whole pixels, in perspective a little askew


def test_places_that_are_no_numbers_lie_outside():
    image = np.full((4, 4, 3), 100, np.uint8)
    on_the_horizon = np.array(
        [1, 0, 0, 0, 1, 0, -1 / 1.5, 0], np.float32
    )  # divided by 0 at x = 1.5
    for interpolation in warp.INTERPOLATIONS:
        expected = warp.warp(np, image, on_the_horizon, (4, 4), interpolation, 7)
        assert (expected[:, 1] == 7).all()
        if core.native is not None:
            result = np.empty_like(expected)
            warp.warp_into(image, on_the_horizon, interpolation, 7, result)
            np.testing.assert_array_equal(result, expected)


def test_an_image_and_its_mask_get_an_interpolation_and_a_fill_each():
    op = Rotate(30, on=("image", "mask"), interpolation={"image": "linear"}, fill={"mask": 255})

    assert (op.of("image").interpolation, op.of("image").fill) == ("linear", 0)
    assert (op.of("mask").interpolation, op.of("mask").fill) == ("nearest", 255)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (Rotate, {"degrees": -5}),
        (Rotate, {"degrees": (5, 4)}),
        (Rotate, {"degrees": float("nan")}),
        (Rotate, {"degrees": 5, "interpolation": "cubic"}),
        (Rotate, {"degrees": 5, "expand": 1}),
        (Rotate, {"degrees": 5, "fill": "black"}),
        (Rotate90, {"quarters": (0, 4)}),
        (Rotate90, {"quarters": ()}),
        (Rotate90, {"quarters": (1, 1)}),
        (Affine, {"translate": (0.5, 1.5)}),
        (Affine, {"translate": 0.5}),
        (Affine, {"scale": (0, 1)}),
        (Affine, {"shear": (1, 2, 3)}),
        (Affine, {"shear": 90}),
        (Shear, {"x": (-95, 0)}),
        (Translate, {"x": -0.1}),
        (Perspective, {"distortion": 1.5}),
        (Perspective, {"p": 2}),
    ],
)
def test_wrong_arguments_are_refused(op, arguments):
    with pytest.raises(SpecError, match=op.__name__):
        op(**arguments)


def test_what_turns_and_grows_has_images_of_different_sizes():
    field = Field("image", np.dtype(np.uint8), (10, 20, 3))

    assert Rotate(10, expand=True).field_after(field).shape == (None, None, 3)
    assert Rotate90().field_after(field).shape == (None, None, 3)
    assert Rotate90((1, 3)).field_after(field).shape == (20, 10, 3)

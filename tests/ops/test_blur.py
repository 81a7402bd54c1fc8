"""GaussianBlur."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gpuload import core
from gpuload.errors import RowError, SpecError
from gpuload.ops import GaussianBlur
from gpuload.ops.colour import blur
from gpuload.testing.ops import OpContract, uniform, varying

GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "augment" / "blur.npz"))
RESULTS = [name for name in GOLDEN if name.startswith("blur/")]


class TestGaussianBlur(OpContract):
    cases = (
        (GaussianBlur(5), varying(np.uint8, 3)),
        (GaussianBlur((3, 9), 1.5), uniform(np.float32, 12, 19, 5)),
        (GaussianBlur(1, p=0.5), uniform(np.uint16, 12, 19, 1)),
        (GaussianBlur((5, 3), (0.1, 9), p=0.5), uniform(np.uint8, 2, 3, 3)),
    )
    neutral = (
        (GaussianBlur(5, p=0), uniform(np.float32, 12, 19, 3)),
        (GaussianBlur(1), varying(np.uint8, 3)),
        (GaussianBlur(7, 0.01), uniform(np.uint8, 12, 19, 3)),
    )
    refused = (
        (GaussianBlur(3), uniform(np.uint8, 3, 32, 32)),
        (GaussianBlur(3), uniform(np.int16, 28, 28, 3)),
        (GaussianBlur(23), uniform(np.uint8, 11, 28, 3)),
        (GaussianBlur((23, 1)), uniform(np.uint8, 28, 11, 3)),
    )


@pytest.mark.parametrize("name", RESULTS)
def test_it_equals_torchvision_but_for_one_level(name):
    _, image, kernel_x, kernel_y, sigma = name.split("/")
    image, expected = GOLDEN[f"images/{image}"], GOLDEN[name]
    down, across = (
        blur.weights(np.array([float(sigma)]), int(side))[0] for side in (kernel_y, kernel_x)
    )

    result = GaussianBlur(3).array(np, image, {"down": down, "across": across})

    difference = np.abs(result.astype(np.float64) - expected)
    if image.dtype == np.float32:
        assert difference.max() <= 2e-6  # of sums of up to 253 products in another order
    else:
        assert difference.max() <= 1
        assert (difference > 0).mean() <= 1e-3


def test_weights_are_those_of_a_normal_curve():
    (line,) = blur.weights(np.array([2.0]), 5)

    curve = [math.exp(-(x**2) / 8) for x in (-2, -1, 0, 1, 2)]
    np.testing.assert_allclose(line, np.array(curve) / sum(curve), rtol=1e-7)


def test_each_weight_is_a_normal_number_or_0():
    lines = blur.weights(np.linspace(0.02, 3, 500), 23)

    assert lines[lines > 0].min() >= 2.0**-126
    assert (lines == 0).any(axis=1).sum() > 100
    np.testing.assert_allclose(lines.sum(axis=1), 1, rtol=1e-6)


def test_the_edge_is_not_repeated_in_the_mirror():
    assert blur.mirror(4, 3).tolist() == [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]


def test_the_core_equals_numpy():
    if core.native is None:
        pytest.skip(core.problem)
    rng = np.random.default_rng(0)
    for dtype in (np.uint8, np.uint16, np.float32):
        for kernel in ((1, 1), (3, 7), (15, 5)):
            op = GaussianBlur(kernel)
            image = rng.integers(0, 256, (17, 23, 3)).astype(dtype)
            draw = {
                name: values[0]
                for name, values in op.draw(rng.random((1, 2)), np.array([[17, 23]])).items()
            }
            result = np.empty_like(image)

            op.forms(uniform(dtype, 17, 23, 3)).row(image, draw, result)

            np.testing.assert_array_equal(result, op.array(np, image, draw))


def test_an_image_that_is_too_small_is_named():
    with pytest.raises(RowError) as caught:
        GaussianBlur(9).draw(np.zeros((3, 2)), np.array([[9, 9], [5, 9], [4, 9]], np.int32))

    assert caught.value.row == 2
    assert "4 x 9" in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel": 4},
        {"kernel": (3, 0)},
        {"kernel": (3, 3, 3)},
        {"sigma": 0},
        {"sigma": (2, 1)},
        {"p": 2},
    ],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="GaussianBlur"):
        GaussianBlur(**{"kernel": 3, **arguments})

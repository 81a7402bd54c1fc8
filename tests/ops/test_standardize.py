"""PerImageStandardization."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gpuload.graph.graph import compile_ops
from gpuload.ops import PerImageStandardization
from gpuload.spec import Spec
from gpuload.testing.ops import OpContract, array_form, dali_form, uniform, varying

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
TOLERANCE = 2e-6  # DALI sums in another order, and its mean may be the float32 beside ours


class TestPerImageStandardization(OpContract):
    cases = (
        (PerImageStandardization(), uniform(np.uint8, 9, 8, 3)),
        (PerImageStandardization(), uniform(np.float32, 30, 28, 1)),
        (PerImageStandardization(), varying(np.uint8, 3)),
        (PerImageStandardization(), varying(np.float32, 4)),
        (PerImageStandardization(), uniform(np.bool_, 9, 8, 3)),
        (PerImageStandardization(), uniform(np.int16, 9, 8, 3)),
    )
    refused = (
        (PerImageStandardization(), uniform(np.uint8, 3, 32, 32)),
        (PerImageStandardization(), uniform(np.uint8, 28, 28)),
        (PerImageStandardization(), uniform("U3")),
    )

    def compare(self, actual, expected):
        for image, other in zip(actual, expected, strict=True):
            assert (image.dtype, image.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(
                image, other, rtol=0, atol=TOLERANCE * max(1, np.abs(other).max())
            )


def standardised(image):
    height, width = image.shape[:2]
    least = PerImageStandardization().draw(np.empty((1, 0)), np.array([[height, width]], np.int32))[
        "least"
    ][0]
    return PerImageStandardization().array(np, image, {"least": least})


@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 8, 3), (224, 200, 3), (33, 31, 1)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_it_equals_tensorflow(shape, dtype):
    # TensorFlow sums in float32, so the tolerance is that of its mean.
    tf = pytest.importorskip("tensorflow")
    image = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)

    np.testing.assert_allclose(
        standardised(image), tf.image.per_image_standardization(image), rtol=0, atol=1e-5
    )


def test_nearly_constant_images_are_divided_by_the_least_deviation_as_in_tensorflow():
    tf = pytest.importorskip("tensorflow")
    image = np.full((10, 10, 1), 5, np.float32)
    image[0, 0] = 5.01

    colours = np.repeat(image, 3, axis=2)
    np.testing.assert_allclose(
        standardised(colours), tf.image.per_image_standardization(colours), rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(
        standardised(image), tf.image.per_image_standardization(image), rtol=0, atol=1e-6
    )
    assert standardised(image).max() == pytest.approx(
        0.0099 * 10, rel=1e-3
    )  # (5.01 - 5.0001) / (1 / sqrt(100))
    assert not standardised(np.full((4, 4, 3), 7, np.uint8)).any()


def test_a_large_image_is_as_exact_in_dali_as_a_small_one():
    image = np.random.default_rng(0).integers(0, 256, (1, 900, 1100, 3), dtype=np.uint8)
    graph = compile_ops(Spec((uniform(np.uint8, 900, 1100, 3),)), [PerImageStandardization()])
    sizes = {"image": np.array([[900, 1100]], np.int32)}
    draws = graph.draw(seed=0, epoch=0, records=np.arange(1), sizes=sizes)

    result, expected = dali_form(graph, image, draws, "cpu"), array_form(graph, image, draws)

    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)

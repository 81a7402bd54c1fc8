"""Pad."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops
from gpuload.ops import Normalize, Pad, RandomFlip
from gpuload.ops.base import RowError
from gpuload.spec import Spec
from gpuload.testing.ops import OpContract, array_form, batch_form, uniform, varying

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class TestPad(OpContract):
    cases = (
        (Pad(12, 13), uniform(np.uint8, 8, 6, 3)),
        (Pad(100, fill=9), varying(np.uint8, 3)),
        (Pad(100, 131, fill=-0.5), varying(np.float32, 1)),
        (Pad(margin=3, fill=7), uniform(np.uint8, 8, 6, 3)),
        (Pad(margin=(1, 2, 3, 0), fill=7), varying(np.uint8, 3)),
        (Pad(margin=(0, 5, 0, 1), fill=0.25), uniform(np.float32, 8, 6, 2)),
        (Pad(9, fill=1), uniform(np.bool_, 8, 8, 1)),
        (Pad(9, fill=-3), uniform(np.int16, 8, 8, 2)),
        (Pad(9, fill=0.1), uniform(np.float16, 8, 8, 5)),
        (Pad(9, fill=255), uniform(np.int32, 8, 8, 1)),
    )
    neutral = (
        (Pad(8, 6, fill=3), uniform(np.uint8, 8, 6, 3)),
        (Pad(margin=0, fill=3), varying(np.uint8, 3)),
    )
    refused = (
        (Pad(40), uniform(np.uint8, 3, 32, 32)),
        (Pad(40), uniform(np.uint8, 28, 28)),
        (Pad(8, 20), uniform(np.uint8, 9, 9, 3)),
        (Pad(9, fill=256), uniform(np.uint8, 8, 8, 3)),
        (Pad(9, fill={"image": -1}), uniform(np.uint8, 8, 8, 3)),
    )


def padded(image, op):
    graph = compile_ops(Spec((uniform(image.dtype, *image.shape),)), [op])
    sizes = {"image": np.array([image.shape[:2]], np.int32)}
    return array_form(
        graph, image[None], graph.draw(seed=0, epoch=0, records=np.arange(1), sizes=sizes)
    )[0]


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("size", [(8, 8), (5, 6), (6, 5), (1, 3)])
def test_up_to_a_size_it_equals_tensorflow(size):
    tf = pytest.importorskip("tensorflow")
    image = noise(*size, 3)

    np.testing.assert_array_equal(
        padded(image, Pad(8, 9)), tf.image.resize_with_crop_or_pad(image, 8, 9)
    )


def test_by_a_margin_it_equals_numpy_with_the_sides_in_torchvisions_order():
    image = noise(4, 5, 3)

    left, top, right, bottom = 1, 2, 3, 4
    expected = np.pad(image, ((top, bottom), (left, right), (0, 0)), constant_values=9)
    np.testing.assert_array_equal(
        padded(image, Pad(margin=(left, top, right, bottom), fill=9)), expected
    )
    np.testing.assert_array_equal(
        padded(image, Pad(margin=2)), np.pad(image, ((2, 2), (2, 2), (0, 0)))
    )


def test_what_is_known_of_the_size_stays_known():
    assert Pad(margin=(1, 2, 3, 4)).field_after(varying(np.uint8, 3)).shape == (None, None, 3)
    assert Pad(margin=(1, 2, 3, 4)).field_after(uniform(np.uint8, 10, 20, 3)).shape == (16, 24, 3)
    assert Pad(50).field_after(varying(np.uint8, 3)).shape == (50, 50, 3)


def test_an_image_that_is_larger_is_named_with_its_row():
    with pytest.raises(RowError, match=r"row 1 of the batch: .*it has 31 x 33 pixels") as caught:
        Pad(32).draw(np.zeros((2, 0)), np.array([[32, 32], [31, 33]], np.int32))

    assert "gl.ops.Resize(32, 32)" in caught.value.remedy
    assert "Pad(margin=32) adds so many pixels on each side" in caught.value.remedy


def test_a_flip_after_it_and_a_normalisation_are_still_one_walk():
    graph = compile_ops(
        Spec((uniform(np.uint8, 9, 8, 3),)), [RandomFlip(1), Pad(13, 12, fill=3), Normalize(1, 2)]
    )
    images = np.stack([noise(9, 8, 3)] * 3)
    draws = graph.draw(
        seed=0, epoch=0, records=np.arange(3), sizes={"image": np.full((3, 2), (9, 8), np.int32)}
    )

    np.testing.assert_array_equal(
        batch_form(graph, images, draws, "cpu"), array_form(graph, images, draws)
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"height": 0},
        {"width": 5},
        {"height": 5, "margin": 3},
        {"margin": -1},
        {"margin": (1, 2)},
        {"margin": (1, 2, 3, -1)},
        {"margin": 1.5},
        {"height": 5, "fill": "black"},
        {"height": 5, "fill": {"mask": "black"}},
        {"height": 5, "fill": {3: 1}},
    ],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="Pad"):
        Pad(**arguments)

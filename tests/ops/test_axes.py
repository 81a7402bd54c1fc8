"""Reshape and Transpose."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops
from gpuload.ops import RandomFlip, Reshape, Transpose
from gpuload.spec import Spec
from gpuload.testing.ops import OpContract, uniform, varying


class TestReshape(OpContract):
    cases = (
        (Reshape((28, 28, 1)), uniform(np.uint8, 784)),
        (Reshape((-1,)), uniform(np.float32, 4, 5, 3)),
        (Reshape((2, -1, 5)), uniform(np.int64, 4, 5, 3, axes="HWC")),
        (Reshape(1), uniform(np.float64)),
        (Reshape(()), uniform(np.uint8, 1)),
    )
    neutral = ((Reshape((4, 5, 3)), uniform(np.uint8, 4, 5, 3)),)
    refused = (
        (Reshape((28, 28)), uniform(np.uint8, 783)),
        (Reshape((-1, 28)), uniform(np.uint8, 783)),
        (Reshape((3,)), uniform("S2", 3)),
    )


class TestTranspose(OpContract):
    cases = (
        (Transpose("HWC"), uniform(np.uint8, 3, 4, 5)),
        (Transpose("HWC"), uniform(np.float32, 4, 20, 5, axes="CHW")),
        (Transpose("CHW"), uniform(np.uint8, 4, 5, 3)),
        (Transpose("CHW"), uniform(np.float32, 4, 5, 2, axes="HWC")),
        (Transpose("CHW"), varying(np.uint8, 3)),
        (Transpose((1, 0)), uniform(np.int16, 4, 5)),
        (Transpose((3, 0, 1, 2)), uniform(np.float64, 2, 3, 4, 5)),
    )
    neutral = ((Transpose((0, 1, 2)), uniform(np.uint8, 4, 5, 3)),)
    refused = (
        (Transpose("HWC"), uniform(np.uint8, 4, 5, 3, axes="HWC")),
        (Transpose("HWC"), uniform(np.uint8, 4, 5)),
        (Transpose("HWC"), uniform(np.uint8, 32, 32, 3)),
        (Transpose("CHW"), uniform(np.uint8, 1, 28, 28)),
        (Transpose((1, 0)), uniform(np.uint8, 4, 5, 3)),
    )


def test_reshape_keeps_the_elements_in_c_order():
    result = Reshape((3, 2)).array(np, np.array([[1, 2, 3], [4, 5, 6]]), {})

    assert result.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_transpose_moves_the_channels():
    planes = np.array([[[1, 2, 3]], [[4, 5, 6]]])

    assert Transpose("HWC").array(np, planes, {}).tolist() == [[[1, 4], [2, 5], [3, 6]]]
    assert Transpose("CHW").array(np, planes.transpose(1, 2, 0), {}).tolist() == planes.tolist()


def test_the_spec_says_what_the_axes_are_afterwards():
    graph = compile_ops(
        Spec((uniform(np.uint8, 3, 32, 40),)), [Transpose("HWC"), RandomFlip(), Transpose("CHW")]
    )

    assert [spec["image"].axes for spec in graph.specs] == ["HWC", "HWC", "CHW"]
    assert [spec["image"].shape for spec in graph.specs] == [(32, 40, 3), (32, 40, 3), (3, 32, 40)]


def test_a_transpose_by_numbers_keeps_the_names_of_the_axes():
    after = Transpose((2, 0, 1)).field_after(uniform(np.uint8, 4, 5, 3, axes="HWC"))

    assert after.axes == "CHW"


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        (
            (32, 32, 3),
            r"leave Transpose out; of a recipe .* images='HWC'; .* Transpose\(\(1, 2, 0\)\)",
        ),
        ((28, 28, 1), "leave Transpose out"),
        (
            (28, 28),
            r"put gl.ops.Reshape\(\(28, 28, 1\)\) in its place, or Reshape\(\(1, 28, 28\)\) before it",
        ),
        ((784,), "gl.ops.Reshape before it"),
    ],
)
def test_a_recipe_for_images_in_another_form_names_the_way(shape, remedy):
    source = gl.arrays(image=np.zeros((4, *shape), np.uint8), label=np.arange(4))
    with pytest.raises(
        SpecError, match=f"Transpose(.|\n)*shape {re.escape(str(shape))}(.|\n)*{remedy}"
    ):
        gl.Loader(source, 2, ops=gl.recipes.cifar10(), device="cpu")


def test_axes_by_number_take_what_looks_like_the_other_order():
    assert Transpose((1, 2, 0)).field_after(uniform(np.uint8, 32, 30, 3)).shape == (30, 3, 32)


@pytest.mark.parametrize("shape", [(0, 3), (-1, -1), (-2, 3), (2.5,), "HWC", None])
def test_wrong_shapes_are_refused(shape):
    with pytest.raises(SpecError, match="Reshape"):
        Reshape(shape)


@pytest.mark.parametrize("axes", ["NCHW", (0, 0, 1), (1, 2, 3), (), 5])
def test_wrong_axes_are_refused(axes):
    with pytest.raises(SpecError, match="Transpose"):
        Transpose(axes)

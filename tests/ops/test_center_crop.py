"""CenterCrop."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops
from gpuload.ops import CenterCrop, Decode
from gpuload.ops.base import RowError
from gpuload.spec import Field, Spec
from gpuload.testing.ops import OpContract, uniform, varying

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class TestCenterCrop(OpContract):
    cases = (
        (CenterCrop(8, 6), uniform(np.uint8, 12, 11, 3)),
        (CenterCrop(7), uniform(np.float32, 12, 11, 1)),
        (CenterCrop(33, 30), varying(np.uint8, 3)),
        (CenterCrop(20, 31), varying(np.float32, 1)),
        (CenterCrop(5), uniform(np.bool_, 8, 8, 1)),
        (CenterCrop(5), uniform(np.int64, 8, 8, 2)),
        (CenterCrop(5), uniform(np.float16, 8, 8, 5)),
        (CenterCrop(5, 6, rounding="even"), uniform(np.uint8, 8, 9, 3)),
        (CenterCrop(33, 30, rounding="even"), varying(np.uint8, 3)),
    )
    neutral = ((CenterCrop(8, 6), uniform(np.uint8, 8, 6, 3)),)
    refused = (
        (CenterCrop(4), uniform(np.uint8, 3, 32, 32)),
        (CenterCrop(4), uniform(np.uint8, 28, 28)),
        (CenterCrop(9), uniform(np.uint8, 8, 20, 3)),
    )


@pytest.mark.parametrize("size", [(8, 8), (9, 12), (10, 13), (11, 7), (13, 9)])
def test_it_equals_tensorflow(size):
    tf = pytest.importorskip("tensorflow")
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    op = CenterCrop(6, 7)
    draw = op.draw(np.empty((1, 0)), np.array([size], np.int32))

    cut = op.array(np, image, {"start": draw["start"][0]})

    np.testing.assert_array_equal(cut, tf.image.resize_with_crop_or_pad(image, 6, 7))


def test_an_image_smaller_than_the_window_is_named_with_its_row():
    with pytest.raises(RowError, match=r"row 1 of the batch: .*it has 30 x 99 pixels") as caught:
        CenterCrop(32).draw(np.zeros((2, 0)), np.array([[32, 32], [30, 99]], np.int32))

    assert "gl.ops.Resize(shorter=32)" in caught.value.remedy


def test_only_its_region_is_decoded():
    files = Field("image", np.dtype(np.uint8), (None,), encoded=True)
    graph = compile_ops(Spec((files,)), [Decode(), CenterCrop(8)])

    region, rest = graph.draw(
        seed=1, epoch=0, records=np.arange(1), sizes={"image": np.array([[20, 31]], np.int32)}
    )

    assert (region["start"].tolist(), region["shape"].tolist()) == ([[6, 11]], [[8, 8]])
    assert rest["start"].tolist() == [[0, 0]]


@pytest.mark.parametrize("arguments", [{"height": 0}, {"height": 2.5}, {"height": 3, "width": -1}])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="CenterCrop"):
        CenterCrop(**arguments)


def test_half_of_an_odd_rest_is_rounded_to_even_as_torchvision_does():
    """torchvision: ``int(round((size - crop) / 2.0))``, and Python rounds halves to even; worked by
    hand."""
    sizes = np.array([[10, 11], [12, 13], [14, 9]], np.int32)

    down = CenterCrop(8, 8).draw(np.empty((3, 0)), sizes)["start"]
    even = CenterCrop(8, 8, rounding="even").draw(np.empty((3, 0)), sizes)["start"]

    assert down.tolist() == [[1, 1], [2, 2], [3, 0]]
    assert even.tolist() == [[1, 2], [2, 2], [3, 0]]
    with pytest.raises(SpecError, match="rounding"):
        CenterCrop(8, rounding="up")

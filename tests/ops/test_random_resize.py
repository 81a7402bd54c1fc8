"""RandomResize."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.errors import SpecError
from gpuload.testing.ops import uniform, varying
from tests.ops.test_detection import TestScaleJitter as ScaleJitterContract

SIZES = np.array([[480, 640], [640, 480], [375, 500], [100, 1000], [1000, 100], [33, 33]], np.int32)


class TestRandomResize(ScaleJitterContract):
    cases: ClassVar = [
        (ops.RandomResize(20, 30), uniform(np.uint8, 30, 40, 3)),
        (ops.RandomResize(12, 30, step=6, longer=31), varying(np.uint8, channels=3)),
        (ops.RandomResize(9, 60, interpolation="nearest"), varying(np.int32, channels=1)),
        (
            ops.RandomResize(24, 24, interpolation="cubic", antialias=False),
            varying(np.float32, channels=3),
        ),
    ]
    refused: ClassVar = [
        (ops.RandomResize(20, 20), uniform(np.int32, 8, 9, 3)),
        (ops.RandomResize(20, 20), uniform(np.uint8, 8, 9)),
    ]


def sizes_of(op, u, size=SIZES):
    return op.draw(np.full((len(size), 1), u), size)["size"].astype(int).tolist()


def test_the_shorter_side_has_the_length_and_the_longer_one_is_rounded_down():
    """The lengths are worked by hand: 260 * 640 / 480 = 346.67, 260 * 500 / 375 = 346.67."""
    assert sizes_of(ops.RandomResize(260, 1040), 0.0) == [
        [260, 346], [346, 260], [260, 346], [260, 2600], [2600, 260], [260, 260],
    ]  # fmt: skip


def test_the_longer_side_has_at_most_its_length():
    """800 * 500 / 375 = 1066; of 100 x 1000 the longer side counts: 100 * 1333 / 1000 = 133.3."""
    assert sizes_of(ops.RandomResize(800, 800, longer=1333), 0.5) == [
        [800, 1066], [1066, 800], [800, 1066], [133, 1333], [1333, 133], [800, 800],
    ]  # fmt: skip


def test_each_length_is_as_likely_and_there_are_no_others():
    op = ops.RandomResize(480, 800, step=32)
    u = np.random.default_rng(1).random((22_000, 1))

    lengths = op.draw(u, np.full((len(u), 2), 100, np.int32))["size"][:, 0]

    values, counts = np.unique(lengths, return_counts=True)
    assert values.tolist() == [480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800]
    assert abs(counts - 2000).max() < 200


def test_the_last_length_is_one_that_a_step_reaches():
    op = ops.RandomResize(10, 15, step=4)

    assert [sizes_of(op, u, SIZES[-1:])[0][0] for u in (0.0, 0.49, 0.5, 0.999)] == [10, 10, 14, 14]


def test_boxes_and_the_mask_go_with_the_image():
    images = np.zeros((4, 40, 60, 3), np.uint8)
    images[:, 10:20, 30:45] = 200
    source = gl.arrays(
        image=images,
        mask=images[..., :1],
        boxes=np.tile(np.array([[30, 10, 45, 20]], np.float32), (4, 1, 1)),
    ).mark(boxes="xyxy", mask="mask")
    op = ops.RandomResize(80, 80)

    with gl.Loader(source, 4, ops=[op], device="cpu") as loader:
        batch = loader.batch_at(0)

    for image, mask, boxes in zip(batch["image"], batch["mask"], batch["boxes"], strict=True):
        assert image.shape == (80, 120, 3)
        assert mask.shape == (80, 120, 1)
        assert set(mask.ravel().tolist()) == {0, 200}
        assert boxes.tolist() == [[60, 20, 90, 40]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"low": 0, "high": 4},
        {"low": 5, "high": 4},
        {"low": 5, "high": 9, "step": 0},
        {"low": 5, "high": 9, "longer": 0},
        {"low": 5, "high": 9, "interpolation": "best"},
        {"low": 5, "high": 9, "antialias": "no"},
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments):
    with pytest.raises(SpecError):
        ops.RandomResize(**arguments)

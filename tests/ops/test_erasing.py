"""Erasing, Cutout and GridMask."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuload.errors import SpecError
from gpuload.ops import Cutout, Erasing, GridMask
from gpuload.testing.ops import OpContract, uniform, varying

NOT_IMAGES = (
    uniform(np.uint8, 3, 32, 32),
    uniform(np.uint8, 28, 28),
    uniform(np.complex64, 8, 8, 3),
)


class TestErasing(OpContract):
    cases = (
        (Erasing(), varying(np.uint8, 3)),
        (Erasing(1, fill=(1, 2, 3), count=3), uniform(np.float32, 12, 19, 3)),
        (Erasing(1, mode="rand"), uniform(np.float32, 12, 19, 3)),
        (Erasing(0.7, mode="pixel", fill=(100, 20), std=50, count=2), uniform(np.uint8, 12, 19, 2)),
        (Erasing(1, scale=(1, 1), ratio=(9, 9)), uniform(np.uint8, 12, 19, 3)),
        (Erasing(1, fill=-7), uniform(np.int64, 12, 19, 1)),
    )
    neutral = (
        (Erasing(0), varying(np.uint8, 3)),
        (Erasing(1, scale=(1, 1), ratio=(1, 1)), varying(np.uint8, 1)),
        (
            Erasing(1, scale=(1, 1), ratio=(1, 1)),
            uniform(np.uint8, 9, 9, 1),
        ),  # a box as large as the image
    )
    refused = (
        *((Erasing(), field) for field in NOT_IMAGES),
        (Erasing(fill=256), uniform(np.uint8, 8, 9, 3)),
        (Erasing(fill=(1, 2)), uniform(np.uint8, 8, 9, 3)),
    )


class TestCutout(OpContract):
    cases = (
        (Cutout(5), varying(np.uint8, 3)),
        (Cutout(50, count=2, p=0.6), uniform(np.float32, 12, 19, 3)),
        (Cutout(4, fill=1), uniform(np.bool_, 12, 19, 1)),
    )
    neutral = ((Cutout(5, p=0), varying(np.uint8, 3)),)
    refused = tuple((Cutout(5), field) for field in NOT_IMAGES)


class TestGridMask(OpContract):
    cases = (
        (GridMask((4, 9)), varying(np.uint8, 3)),
        (GridMask((2, 2), ratio=0, p=0.6, fill=(1, 2, 3)), uniform(np.float32, 12, 19, 3)),
        (GridMask((7, 7), ratio=1, fill=9), uniform(np.int32, 12, 19, 1)),
    )
    neutral = ((GridMask(p=0), varying(np.uint8, 3)),)
    refused = tuple((GridMask(), field) for field in NOT_IMAGES)


def test_a_box_has_the_drawn_area_and_ratio():
    u = np.full((1, Erasing().num_uniforms), 0.5)

    boxes = Erasing(1, scale=(0.1, 0.3), ratio=(0.5, 2)).draw(u, np.array([[100, 200]], np.int32))[
        "boxes"
    ]

    side = math.sqrt(0.2 * 100 * 200)  # the middle of the scale, and of the ratio's logarithms: 1
    top, left, height, width = boxes[0, 0].tolist()
    assert (height, width) == (round(side), round(side))
    assert (top, left) == (int(0.5 * (100 - height + 1)), int(0.5 * (200 - width + 1)))


def test_the_first_try_that_fits_is_taken_and_none_where_none_does():
    u = np.full((2, Erasing().num_uniforms), 0.0)
    u[:, 1:11] = 0.999  # nearly the whole area
    u[0, 1 + 10 + 2] = 0.5  # the third try alone is a square

    op = Erasing(1, scale=(0.02, 0.9), ratio=(0.01, 100))
    boxes = op.draw(u, np.full((2, 2), 50, np.int32))["boxes"]

    assert boxes[0, 0, 2:].tolist() == [47, 47]  # sqrt(0.89912 * 2500) = 47.4
    assert boxes[1, 0].tolist() == [0, 0, 0, 0]


def test_the_three_modes():
    image = np.zeros((9, 9, 2), np.float32)
    draw = {"boxes": np.array([[2, 3, 4, 5]], np.int32), "key": np.array([1, 2, 3, 4], np.int32)}

    def box(mode):
        result = Erasing(1, mode=mode, fill=(10, 20), std=0.5).array(np, image, draw)
        outside = result.copy()
        outside[2:6, 3:8] = 0
        assert not outside.any()
        return result[2:6, 3:8].reshape(-1, 2)

    assert (box("const") == (10, 20)).all()
    assert len(np.unique(box("rand"), axis=0)) == 1
    assert np.abs(box("rand")[0] - (10, 20)).max() < 2.2  # 4.3 deviations
    assert len(np.unique(box("pixel")[:, 0])) == 20
    assert np.abs(box("pixel").mean(axis=0) - (10, 20)).max() < 0.5


def test_a_cutout_may_reach_over_the_border():
    u = np.array([[0.0, 0.0, 0.5], [0.0, 0.99, 0.0]])

    boxes = Cutout(5).draw(u, np.full((2, 2), 10, np.int32))["boxes"][:, 0]

    assert boxes.tolist() == [[0, 3, 3, 5], [7, 0, 3, 3]]


@pytest.mark.parametrize(("ratio", "num_covered"), [(0, 9), (0.5, 4), (1, 1)])
def test_of_each_unit_of_a_grid_one_row_stays_and_one_is_covered_whatever_the_ratio(
    ratio, num_covered
):
    op = GridMask((4, 4), ratio=ratio, p=1, fill=1)

    image = op.array(
        np,
        np.zeros((8, 8, 1), np.uint8),
        {"grid": op.draw(np.full((1, 4), 0.0), [[8, 8]])["grid"][0]},
    )

    assert image.sum() == 4 * num_covered


def test_a_grid_leaves_the_first_rows_and_columns_of_each_unit():
    image = np.ones((6, 6, 1), np.uint8)

    result = GridMask((3, 3)).array(np, image, {"grid": np.array([3, 2, 1, 0], np.int32)})

    line, dark = [1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 0]
    assert result[..., 0].tolist() == [dark, line, line, dark, line, line]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (Erasing, {"p": 2}),
        (Erasing, {"scale": (0, 0.5)}),
        (Erasing, {"scale": (0.5, 1.5)}),
        (Erasing, {"ratio": (2, 1)}),
        (Erasing, {"mode": "random"}),
        (Erasing, {"std": -1}),
        (Erasing, {"count": 0}),
        (Erasing, {"fill": "random"}),
        (Cutout, {"size": 0}),
        (Cutout, {"size": 4, "count": 1.5}),
        (GridMask, {"unit": (1, 4)}),
        (GridMask, {"unit": (8, 4)}),
        (GridMask, {"ratio": 1.5}),
    ],
)
def test_wrong_arguments_are_refused(op, arguments):
    with pytest.raises(SpecError, match=op.__name__):
        op(**arguments)

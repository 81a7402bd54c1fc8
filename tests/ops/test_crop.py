"""RandomCrop."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.errors import SpecError
from gpuload.ops import RandomCrop
from gpuload.ops.base import RowError
from gpuload.testing.ops import OpContract, uniform, varying


class TestRandomCrop(OpContract):
    cases = (
        (RandomCrop(8, 6), uniform(np.uint8, 12, 10, 3)),
        (RandomCrop(8, 6, pad=4, fill=7), uniform(np.uint8, 8, 6, 3)),
        (RandomCrop(33, pad=3, fill=9), varying(np.uint8, 3)),
        (RandomCrop(20, 31), varying(np.float32, 1)),
        (RandomCrop(9, pad=5, fill=0.5), uniform(np.float32, 8, 7, 4)),
        (RandomCrop(8, pad=2, fill=1), uniform(np.bool_, 8, 8, 1)),
        (RandomCrop(8, pad=2, fill=-3), uniform(np.int16, 8, 8, 2)),
        (RandomCrop(8, pad=2, fill=0.1), uniform(np.float16, 8, 8, 5)),
        (RandomCrop(8, pad=2), uniform(np.float64, 8, 8, 3)),
    )
    neutral = ((RandomCrop(8, 6), uniform(np.uint8, 8, 6, 3)),)
    refused = (
        (RandomCrop(4), uniform(np.uint8, 3, 32, 32)),
        (RandomCrop(4), uniform(np.uint8, 8, 8, 3, axes="CHW")),
        (RandomCrop(4), uniform(np.uint8, 28, 28)),
        (RandomCrop(4), uniform("U3")),
        (RandomCrop(9), uniform(np.uint8, 8, 20, 3)),
        (RandomCrop(4, pad=1, fill=256), uniform(np.uint8, 8, 8, 3)),
        (RandomCrop(4, pad=1, fill=0.5), uniform(np.uint8, 8, 8, 3)),
    )


def test_a_window_is_cut_where_it_was_drawn_and_filled_outside():
    image = np.arange(1, 7, dtype=np.uint8).reshape(2, 3, 1)
    op = RandomCrop(2, 3, pad=1, fill=9)

    window = op.array(np, image, {"start": np.array([-1, 1], np.int32)})

    assert window[..., 0].tolist() == [[9, 9, 9], [2, 3, 9]]


def test_the_lowest_and_the_highest_number_draw_the_first_and_the_last_place():
    size = np.array([[10, 20]] * 2, np.int32)
    u = np.array([[0, 0], [np.nextafter(1, 0)] * 2])

    draw = RandomCrop(4, 6, pad=3).draw(u, size)

    assert draw["start"].tolist() == [[-3, -3], [10 + 3 - 4, 20 + 3 - 6]]


def test_every_place_is_equally_likely():
    u = np.stack([np.arange(900) / 900, np.arange(900) / 900], axis=1)

    draw = RandomCrop(5, 1).draw(u, np.full((900, 2), 9, np.int32))

    assert np.bincount(draw["start"][:, 0]).tolist() == [180] * 5
    assert np.bincount(draw["start"][:, 1]).tolist() == [100] * 9


def test_it_equals_a_crop_of_numpy_s_padded_array():
    image = np.random.default_rng(0).integers(0, 256, (6, 7, 3), dtype=np.uint8)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), constant_values=5)

    window = RandomCrop(5, 4, pad=2, fill=5).array(
        np, image, {"start": np.array([-2, 3], np.int32)}
    )

    np.testing.assert_array_equal(window, padded[0:5, 5:9])


def test_an_image_smaller_than_the_window_is_named_with_its_row():
    with pytest.raises(RowError, match=r"row 1 of the batch: .*it has 30 x 99 pixels") as caught:
        RandomCrop(32).draw(np.zeros((2, 2)), np.array([[32, 32], [30, 99]], np.int32))

    assert caught.value.row == 1
    assert "Resize(shorter=32)" in caught.value.remedy


@pytest.mark.parametrize(
    "arguments",
    [
        {"height": 0},
        {"height": 2.5},
        {"height": 3, "width": -1},
        {"height": 3, "pad": -1},
        {"height": True},
    ],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="RandomCrop"):
        RandomCrop(**arguments)


def test_the_remedy_for_channels_first_is_transpose():
    with pytest.raises(SpecError) as caught:
        RandomCrop(4).field_after(uniform(np.uint8, 3, 32, 32))

    assert "Transpose('HWC'" in caught.value.remedy

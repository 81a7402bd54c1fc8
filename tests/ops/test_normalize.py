"""Normalize."""

from __future__ import annotations

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import SpecError
from gpuload.ops import CenterCrop, Normalize
from gpuload.spec import Field
from gpuload.testing.ops import OpContract, assert_identical, uniform, varying

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class TestNormalize(OpContract):
    cases = (
        (Normalize(MEAN, STD), uniform(np.uint8, 7, 9, 3)),
        (Normalize(MEAN, STD, dtype="float16"), uniform(np.uint8, 7, 9, 3)),
        (Normalize(MEAN, 17), varying(np.uint8, 3)),
        (Normalize((1e-3,), (7.7,)), uniform(np.float32, 5, 4, 1)),
        (Normalize(3, 0.1), uniform(np.float32, 5, 4, 6)),
        (Normalize(33.3, 78.6), uniform(np.uint8, 50)),
        (Normalize((1, 2, 3, 4), 5), uniform(np.float32, 6, 4)),
        (Normalize(1, 3), uniform(np.uint8)),
        (Normalize(1, 3), Field("x", np.dtype(np.int16), (None,))),
        (Normalize((1, 2), (3, 4), dtype="float16"), Field("x", np.dtype(np.float32), (None, 2))),
        (Normalize(1, 3, dtype="float16"), uniform(np.int32, 3, 4, 5, 2)),
        *(
            (Normalize(MEAN, STD), uniform(dtype, 3, 4, 3))
            for dtype in ("i1", "i2", "u2", "i4", "u4", "i8", "u8")
        ),
        *((Normalize(MEAN, STD), uniform(dtype, 3, 4, 3)) for dtype in ("f2", "f8", "?")),
    )
    neutral = ((Normalize(0, 1), uniform(np.float32, 5, 4, 3)),)
    refused = (
        (Normalize(MEAN, STD), uniform(np.uint8, 3, 32, 32)),
        (Normalize(MEAN, STD), uniform(np.uint8, 8, 8, 1)),
        (Normalize(MEAN, STD), uniform(np.uint8)),
        (Normalize(0, 1), uniform("S4", 3)),
    )


def test_it_subtracts_the_mean_and_divides_by_the_standard_deviation():
    pixels = np.array([[[0, 10, 255]]], np.uint8)

    result = Normalize((0, 20, 55), (1, 2, 4)).array(np, pixels, {})

    assert result.tolist() == [[[0.0, -5.0, 50.0]]]
    assert result.dtype == np.float32


def test_it_multiplies_by_the_reciprocal_rounded_to_float32_as_dali_does():
    assert Normalize(0, 3).array(np, np.uint8([[[9]]]), {}).item() == np.float32(9) * (
        np.float32(1) / np.float32(3)
    )
    assert Normalize(0, 41).array(np, np.uint8([[[41]]]), {}).item() == np.float32(
        0.99999994
    )  # not 1


def test_it_is_within_one_rounding_of_the_quotient_in_float64():
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)

    result = Normalize(121.3, 61.7).array(np, pixels, {})

    np.testing.assert_allclose(
        result, (pixels.astype(np.float64) - 121.3) / 61.7, rtol=3e-6, atol=1e-7
    )


def test_two_of_them_behind_a_crop_are_done_one_after_the_other():
    images = np.random.default_rng(0).integers(0, 256, (3, 9, 8, 3), np.uint8)
    first, second = Normalize(MEAN, STD), Normalize((0.5, -1, 2), (2, 3, 0.7))
    loader = gl.Loader(
        gl.arrays(image=images), 3, ops=[CenterCrop(6, 5), first, second], device="cpu"
    )

    expected = second.array(np, first.array(np, images[:, 1:7, 1:6], {}), {})

    np.testing.assert_array_equal(loader.batch_at(0)["image"], expected)


def test_one_number_may_stand_for_all_channels():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)

    single, triple = Normalize(9, (2, 3, 4)), Normalize((9, 9, 9), (2, 3, 4))

    assert_identical(single.array(np, pixels, {}), triple.array(np, pixels, {}))


def test_equal_parameters_have_equal_text_however_they_are_written():
    ways = [
        Normalize([1, 2], (3, 4)),
        Normalize((1.0, 2), [3.0, 4]),
        Normalize(np.array([1, 2]), np.float32([3, 4])),
    ]

    assert {repr(op) for op in ways} == {"Normalize((1.0, 2.0), (3.0, 4.0))"}
    assert len(set(ways)) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"mean": 0, "std": 0},
        {"mean": 0, "std": (1, -1)},
        {"mean": (1, 2), "std": (1, 2, 3)},
        {"mean": (), "std": 1},
        {"mean": float("inf"), "std": 1},
        {"mean": "a", "std": 1},
        {"mean": 0, "std": 1, "dtype": "int8"},
        {"mean": 0, "std": 1, "dtype": "float64"},
        {"mean": 0, "std": 1, "dtype": None},
        {"mean": 0, "std": 1, "dtype": "nonsense"},
    ],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="Normalize"):
        Normalize(**arguments)

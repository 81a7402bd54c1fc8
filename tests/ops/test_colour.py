"""Brightness and Contrast."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.errors import SpecError
from gpuload.ops import Brightness, Contrast
from gpuload.testing.ops import OpContract, assert_identical, uniform, varying


class ColourContract(OpContract):
    """On the CPU DALI is equal bit for bit."""

    def compare_gpu(self, got, expected):
        """A GPU fuses the product and the sum, and rounds halves to even."""
        for one, other in zip(got, expected, strict=True):
            difference = np.abs(one.astype(np.float64) - other)
            assert difference.max() <= (1 if one.dtype == np.uint8 else 1e-6 * np.abs(other).max())


class TestBrightness(ColourContract):
    cases = (
        (Brightness(0.5, 1.5), uniform(np.uint8, 9, 8, 3)),
        (Brightness(0, 3), uniform(np.float32, 9, 8, 1)),
        (Brightness(0.9, 1.1), varying(np.uint8, 3)),
        (Brightness(2, 2), varying(np.float32, 3)),
    )
    neutral = ((Brightness(1, 1), uniform(np.uint8, 9, 8, 3)), (Brightness(1, 1), varying(np.float32, 3)))
    refused = (
        (Brightness(0.5, 1.5), uniform(np.uint8, 3, 32, 32)),
        (Brightness(0.5, 1.5), uniform(np.uint16, 9, 8, 3)),
        (Brightness(0.5, 1.5), uniform(np.float64, 9, 8, 3)),
    )


class TestContrast(ColourContract):
    cases = (
        (Contrast(0.5, 1.5), uniform(np.uint8, 9, 8, 3)),
        (Contrast(0, 3, center=0.5), uniform(np.float32, 9, 8, 1)),
        (Contrast(0.9, 1.1, center=99.5), varying(np.uint8, 3)),
        (Contrast(2, 2, 128), varying(np.float32, 3)),
    )
    neutral = ((Contrast(1, 1), uniform(np.uint8, 9, 8, 3)), (Contrast(1, 1, 0), varying(np.float32, 3)))
    refused = (*TestBrightness.refused, (Contrast(0.5, 1.5), uniform(np.float32, 9, 8, 3)))


def changed(op, values, factor):
    image = np.asarray(values).reshape(1, -1, 1)
    return op.array(np, image, {"factor": np.float32(factor)}).ravel().tolist()


def test_bytes_are_multiplied_rounded_halves_up_and_bounded():
    assert changed(Brightness(0, 9), np.array([0, 1, 3, 5, 100, 200, 255], np.uint8), 1.5) == [
        0,
        2,
        5,
        8,
        150,
        255,
        255,
    ]
    assert changed(Brightness(0, 9), np.array([0, 1, 2, 255], np.uint8), 0) == [0, 0, 0, 0]


def test_contrast_moves_pixels_away_from_the_gray():
    assert changed(Contrast(0, 9), np.array([0, 64, 128, 129, 192], np.uint8), 2) == [0, 0, 128, 130, 255]
    assert changed(Contrast(0, 9), np.array([0, 128, 255], np.uint8), 0) == [128, 128, 128]
    assert changed(Contrast(0, 9, center=0.5), np.array([0, 0.5, 1], np.float32), 3) == [-1, 0.5, 2]


def test_float_images_are_not_bounded():
    assert changed(Brightness(0, 9), np.array([-1, 0.5, 200], np.float32), 2) == [-2, 1, 400]


def test_the_factor_goes_from_low_to_high():
    draw = Brightness(0.5, 2.5).draw(np.array([[0.0], [0.5], [1 - 1e-12]]), np.zeros((3, 2), np.int32))

    assert draw["factor"].tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize("factor", [0.3, 0.75, 1.0, 1.4, 2.0])
def test_brightness_is_within_a_level_of_torchvisions(factor):
    # torchvision 0.25, _functional_tensor._blend(image, zeros, factor) for uint8: cut off, not rounded.
    image = np.arange(256, dtype=np.uint8)
    theirs = (np.float32(factor) * image.astype(np.float32)).clip(0, 255).astype(np.uint8)

    ours = np.array(changed(Brightness(0, 9), image, factor), int)

    assert np.abs(ours - theirs).max() <= 1
    assert (ours >= theirs).all()


@pytest.mark.parametrize("factor", [0.3, 1.0, 1.7])
def test_contrast_about_the_mean_equals_tensorflow(factor):
    # tf.image.adjust_contrast: (x - mean) * factor + mean for each channel; the same about a given gray.
    tf = pytest.importorskip("tensorflow")
    image = np.random.default_rng(0).normal(0.4, 0.2, (9, 8, 1)).astype(np.float32)

    ours = Contrast(0, 9, center=float(image.mean())).array(np, image, {"factor": np.float32(factor)})

    np.testing.assert_allclose(ours, tf.image.adjust_contrast(image, factor), rtol=0, atol=1e-6)


def test_of_float_images_the_gray_must_be_said_and_the_remedy_says_how():
    with pytest.raises(SpecError) as caught:
        Contrast(0.5, 1.5).field_after(uniform(np.float32, 9, 8, 3))

    assert "gl.ops.Contrast(0.5, 1.5, center=0.5)" in caught.value.remedy


def test_images_of_different_sizes_may_share_a_factor():
    from gpuload.ops.graph import compile_ops
    from gpuload.spec import Spec

    views = Spec((uniform(np.uint8, 9, 8, 3, name="left"), uniform(np.uint8, 5, 4, 3, name="right")))
    graph = compile_ops(views, [Brightness(0.5, 1.5, on=("left", "right"))])
    sizes = {"left": np.array([[9, 8]] * 2, np.int32), "right": np.array([[5, 4]] * 2, np.int32)}

    (draw,) = graph.draw(seed=0, epoch=0, records=np.arange(2), sizes=sizes)

    assert draw["factor"].shape == (2,)


@pytest.mark.parametrize("op", [Brightness, Contrast])
@pytest.mark.parametrize("arguments", [(-0.1, 1), (2, 1), ("a", 1), (1, None), (1, float("inf")), (True, 1)])
def test_wrong_arguments_are_refused(op, arguments):
    with pytest.raises(SpecError, match=op.__name__):
        op(*arguments)


def test_ops_and_forms_agree_for_every_byte_and_many_factors():
    every = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 1, 1))
    factors = np.linspace(0, 3, 301, dtype=np.float32)
    op = Contrast(0, 3, center=97)

    batch = op.array_batch(np, np.broadcast_to(every, (301, 256, 1, 1)), {"factor": factors})

    assert_identical(batch, [op.array(np, every, {"factor": factor}) for factor in factors])

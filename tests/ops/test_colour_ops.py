"""The colour ops: their draws, what they refuse, and their forms on all executors."""

from __future__ import annotations

import numpy as np
import pytest

import gpuload as gl
from gpuload import core
from gpuload.errors import SpecError
from gpuload.executors.array import ArrayBatchExecutor, ArrayRowExecutor
from gpuload.graph.graph import compile_ops
from gpuload.kernels import colour
from gpuload.ops import (
    AutoContrast,
    Brightness,
    ChannelShuffle,
    ColorJitter,
    ColorSpace,
    Contrast,
    Equalize,
    Gamma,
    Grayscale,
    Hue,
    Invert,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
)
from gpuload.ops.base import is_random
from gpuload.spec import Spec
from gpuload.testing.ops import OpContract, array_form, assert_identical, numbers, uniform, varying
from tests import simdevice

WRONG_FIELDS = (
    uniform(np.uint8, 3, 32, 32),
    uniform(np.uint16, 9, 8, 3),
    uniform(np.float64, 9, 8, 3),
)
NO_COLOUR = uniform(np.uint8, 9, 8, 4, axes="HWC")


class ColourContract(OpContract):
    """uint8 values are equal everywhere; float32 sums of a GPU have another order."""

    def values(self, field, count):
        values = super().values(field, count)
        if field.dtype != np.float32:
            return values
        return (
            values / 255
            if isinstance(values, np.ndarray)
            else [value / np.float32(255) for value in values]
        )


class TestBrightness(ColourContract):
    cases = (
        (Brightness(0.5, 1.5), uniform(np.uint8, 9, 8, 3)),
        (Brightness(0, 3), uniform(np.float32, 9, 8, 1)),
        (Brightness(0.9, 1.1), varying(np.uint8, 3)),
        (Brightness(2, 2), varying(np.float32, 3)),
        (Brightness(0.5, 1.5), NO_COLOUR),
    )
    neutral = (
        (Brightness(1, 1), uniform(np.uint8, 9, 8, 3)),
        (Brightness(1, 1), varying(np.uint8, 3)),
    )
    refused = tuple((Brightness(0.5, 1.5), field) for field in WRONG_FIELDS)


class TestContrast(ColourContract):
    cases = (
        (Contrast(0.5, 1.5), uniform(np.uint8, 9, 8, 3)),
        (Contrast(0, 3), uniform(np.float32, 9, 8, 1)),
        (Contrast(0.9, 1.1), varying(np.uint8, 3)),
        (Contrast(2, 2), varying(np.uint8, 1)),
    )
    neutral = ((Contrast(1, 1), uniform(np.uint8, 9, 8, 3)), (Contrast(1, 1), varying(np.uint8, 1)))
    refused = tuple((Contrast(0.5, 1.5), field) for field in (*WRONG_FIELDS, NO_COLOUR))


class TestContrastAboutACenter(ColourContract):
    cases = (
        (Contrast(0.5, 1.5, 128), uniform(np.uint8, 9, 8, 3)),
        (Contrast(0, 3, center=0.5), uniform(np.float32, 9, 8, 1)),
        (Contrast(0.9, 1.1, center=99.5), varying(np.uint8, 3)),
        (Contrast(2, 2, 128), varying(np.float32, 3)),
        (Contrast(2, 2, 128), NO_COLOUR),
    )
    neutral = (
        (Contrast(1, 1, 128), uniform(np.uint8, 9, 8, 3)),
        (Contrast(1, 1, 0), varying(np.float32, 3)),
    )
    refused = tuple((Contrast(0.5, 1.5, 128), field) for field in WRONG_FIELDS)


class TestSaturation(ColourContract):
    cases = (
        (Saturation(0.5, 1.5), uniform(np.uint8, 9, 8, 3)),
        (Saturation(0, 3), uniform(np.float32, 9, 8, 3)),
        (Saturation(0, 3), uniform(np.uint8, 9, 8, 1)),
        (Saturation(0.9, 1.1), varying(np.uint8, 3)),
    )
    neutral = (
        (Saturation(1, 1), uniform(np.uint8, 9, 8, 3)),
        (Saturation(0, 2), varying(np.uint8, 1)),
    )
    refused = tuple((Saturation(0.5, 1.5), field) for field in (*WRONG_FIELDS, NO_COLOUR))


class TestSharpness(ColourContract):
    cases = (
        (Sharpness(0.5, 1.5), uniform(np.uint8, 9, 8, 3)),
        (Sharpness(0, 3, p=0.5), uniform(np.float32, 9, 8, 1)),
        (Sharpness(0, 3), uniform(np.uint8, 2, 8, 3)),
        (Sharpness(0, 2, p=0.5), varying(np.uint8, 3)),
    )
    neutral = (
        (Sharpness(1, 1), uniform(np.uint8, 9, 8, 3)),
        (Sharpness(0, 0, p=0), varying(np.uint8, 1)),
    )
    refused = tuple((Sharpness(0.5, 1.5), field) for field in (*WRONG_FIELDS, NO_COLOUR))


class TestHue(ColourContract):
    cases = (
        (Hue(-0.5, 0.5), uniform(np.uint8, 9, 8, 3)),
        (Hue(0.1, 0.2), uniform(np.float32, 9, 8, 3)),
        (Hue(0, 0.5), uniform(np.uint8, 9, 8, 1)),
        (Hue(-0.1, 0.1), varying(np.uint8, 3)),
    )
    neutral = ((Hue(0, 0), uniform(np.uint8, 9, 8, 3)), (Hue(-0.1, 0.1), varying(np.uint8, 1)))
    refused = tuple((Hue(0, 0.5), field) for field in (*WRONG_FIELDS, NO_COLOUR))


class TestGamma(ColourContract):
    cases = (
        (Gamma(0.5, 1.5), uniform(np.uint8, 9, 8, 3)),
        (Gamma(0.2, 3), uniform(np.float32, 9, 8, 1)),
        (Gamma(0.9, 1.1, gain=1.2), varying(np.uint8, 3)),
        (Gamma(2, 2), NO_COLOUR),
    )
    neutral = ((Gamma(1, 1), uniform(np.uint8, 9, 8, 3)), (Gamma(1, 1), varying(np.uint8, 1)))
    refused = tuple((Gamma(0.5, 1.5), field) for field in WRONG_FIELDS)

    def values(self, field, count):
        """Powers need values that are not negative."""
        values = super().values(field, count)
        return abs(values) if field.dtype == np.float32 else values


JITTER = ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)


class TestColorJitter(ColourContract):
    cases = (
        (JITTER, uniform(np.uint8, 9, 8, 3)),
        (ColorJitter(0.8, hue=(0.1, 0.2)), uniform(np.float32, 9, 8, 3)),
        (ColorJitter(contrast=(0, 3), saturation=1), uniform(np.uint8, 9, 8, 1)),
        (JITTER, varying(np.uint8, 3)),
    )
    refused = tuple((JITTER, field) for field in (*WRONG_FIELDS, NO_COLOUR))


class TestGrayscale(ColourContract):
    cases = (
        (Grayscale(), uniform(np.uint8, 9, 8, 3)),
        (Grayscale(1), uniform(np.float32, 9, 8, 3)),
        (Grayscale(3), uniform(np.uint8, 9, 8, 1)),
        (Grayscale(1), varying(np.uint8, 3)),
        (Grayscale(p=0.4), varying(np.uint8, 3)),
    )
    neutral = ((Grayscale(p=0), uniform(np.uint8, 9, 8, 3)), (Grayscale(1), varying(np.uint8, 1)))
    refused = (
        *((Grayscale(), field) for field in (*WRONG_FIELDS, NO_COLOUR)),
        (Grayscale(1, p=0.5), uniform(np.uint8, 9, 8, 3)),
    )


class TestChannelShuffle(ColourContract):
    cases = (
        (ChannelShuffle(), uniform(np.uint8, 9, 8, 3)),
        (ChannelShuffle(), uniform(np.float32, 9, 8, 4, axes="HWC")),
        (ChannelShuffle(), varying(np.uint8, 3)),
    )
    neutral = ((ChannelShuffle(), uniform(np.uint8, 9, 8, 1)),)
    refused = tuple(
        (ChannelShuffle(), field)
        for field in (*WRONG_FIELDS, uniform(np.uint8, 9, 8, 17, axes="HWC"))
    )


class TestColorSpace(ColourContract):
    cases = (
        (ColorSpace("BGR"), uniform(np.uint8, 9, 8, 3)),
        (ColorSpace("BGR"), uniform(np.float32, 9, 8, 3)),
        (ColorSpace("GRAY"), uniform(np.uint8, 9, 8, 3)),
        (ColorSpace("GRAY"), varying(np.float32, 3)),
        (ColorSpace("YCBCR"), uniform(np.uint8, 9, 8, 3)),
        (ColorSpace("HSV"), varying(np.uint8, 3)),
    )
    refused = (
        *(
            (ColorSpace("BGR"), field)
            for field in (*WRONG_FIELDS, NO_COLOUR, uniform(np.uint8, 9, 8, 1))
        ),
        (ColorSpace("HSV"), uniform(np.float32, 9, 8, 3)),
    )


def test_all_orders_of_channels_are_as_likely_and_that_of_torchvision():
    image = np.arange(3, dtype=np.uint8).reshape(1, 1, 3)
    keys = np.random.default_rng(0).random((6000, 16))
    draw = ChannelShuffle().draw(keys, np.zeros((6000, 2), np.int32))

    orders = (
        ChannelShuffle()
        .array_batch(np, np.broadcast_to(image, (6000, 1, 1, 3)), draw)
        .reshape(-1, 3)
    )

    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert 900 < counts.min() <= counts.max() < 1100
    assert (
        orders[0].tolist() == keys[0, :3].argsort().tolist()
    )  # image[permutation], as torchvision


def test_all_orders_of_steps_are_as_likely_and_numbers_go_from_low_to_high():
    u = np.random.default_rng(0).random((24_000, 8))
    draw = ColorJitter(0.4, (0.5, 3), 1.5, 0.1).draw(u, np.zeros((24_000, 2), np.int32))

    _, counts = np.unique(draw["order"], axis=0, return_counts=True)
    assert len(counts) == 24
    assert 850 < counts.min() <= counts.max() < 1150
    np.testing.assert_allclose(draw["amount"].min(axis=0), [0.6, 0.5, 0, -0.1], atol=2e-3)
    np.testing.assert_allclose(draw["amount"].max(axis=0), [1.4, 3, 2.5, 0.1], atol=2e-3)


def test_steps_that_are_left_out_change_nothing():
    image = numbers(uniform(np.uint8, 9, 8, 3), 1)[0]
    draw = {
        "order": np.array([3, 0, 2, 1], np.int32),
        "amount": np.array([0.7, 1, 1, 0.3], np.float32),
    }

    result = ColorJitter(brightness=0.3, hue=0.5).array(np, image, draw)

    np.testing.assert_array_equal(
        result, colour.brightness(np, colour.hue(np, image, 0.3), np.float32(0.7))
    )
    assert ColorJitter(brightness=0.3) == ColorJitter(
        brightness=(0.7, 1.3), contrast=None, saturation=(1, 1)
    )


class ToneContract(ColourContract):
    """Any number of channels, and an op that is applied to half of the images."""

    op = None
    arguments = ()

    def __init_subclass__(cls):
        op, arguments = cls.op, cls.arguments
        cls.cases = (
            (op(*arguments), uniform(np.uint8, 9, 8, 3)),
            (op(*arguments, p=0.5), uniform(np.uint8, 9, 8, 1)),
            (op(*arguments, p=0.5), varying(np.uint8, 3)),
            (op(*arguments), NO_COLOUR),
        )
        cls.neutral = ((op(*arguments, p=0), uniform(np.uint8, 9, 8, 3)),)
        cls.refused = tuple((op(*arguments), field) for field in WRONG_FIELDS)


class TestInvert(ToneContract):
    op = Invert


class TestPosterize(ToneContract):
    op, arguments = Posterize, (3,)


class TestSolarize(ToneContract):
    op, arguments = Solarize, (100,)


class TestAutoContrast(ToneContract):
    op = AutoContrast


class TestEqualize(ToneContract):
    op = Equalize


class TestTonesOfFloats(ColourContract):
    cases = tuple(
        (op, field)
        for op in (Invert(p=0.5), Posterize(3), Solarize(0.4, p=0.5), AutoContrast(), Equalize())
        for field in (uniform(np.float32, 9, 8, 3), varying(np.float32, 1))
    )
    refused = ((Solarize(128), uniform(np.float32, 9, 8, 3)),)


EVERY = (
    Brightness(0.5, 1.5), Contrast(0.5, 1.5), Contrast(0.5, 1.5, center=99), Saturation(0.5, 1.5),
    Hue(-0.5, 0.5), Gamma(0.5, 2), JITTER, Grayscale(p=0.5), Grayscale(1), ChannelShuffle(),
    ColorSpace("BGR"), ColorSpace("GRAY"), ColorSpace("YCBCR"), ColorSpace("HSV"),
    Sharpness(0, 2, p=0.7), Invert(p=0.5), Posterize(4, p=0.5), Solarize(99, p=0.5), AutoContrast(p=0.5),
    Equalize(p=0.5),
)  # fmt: skip


@pytest.mark.parametrize("op", EVERY, ids=repr)
def test_on_the_device_nothing_waits_and_the_pixels_are_those_of_the_cpu(op, monkeypatch):
    sim = simdevice.install(monkeypatch)
    field = uniform(np.uint8, 6, 7, 3)
    graph, lane = compile_ops(Spec((field,)), [op]), gl.device.Lane("gpu:0")
    executor, on_cpu = (
        ArrayBatchExecutor(graph, device="gpu:0"),
        ArrayBatchExecutor(graph, device="cpu"),
    )
    images = numbers(field, 8)
    sizes = {"image": np.broadcast_to(np.array([6, 7], np.int32), (8, 2))}
    draws = graph.draw(seed=0, epoch=0, records=np.arange(8), sizes=sizes)
    with lane:
        executor.start({"image": lane.upload(images)}, draws)
        result = executor.finish()["image"]
        waits = len(sim.host_waits)
        result = result.get()
    on_cpu.start({"image": images}, draws)

    np.testing.assert_array_equal(result, on_cpu.finish()["image"])
    assert waits == 0
    lane.close()
    sim.finish()


@pytest.mark.parametrize(
    "field", [uniform(np.uint8, 6, 7, 3), uniform(np.uint8, 300, 290, 3), varying(np.uint8, 1)]
)
def test_ops_on_bytes_that_follow_one_another_are_done_together(field):
    chain = [Brightness(0.5, 1.5), Invert(p=0.5), Contrast(0.5, 1.5, center=99), Posterize(5, p=0.5), Gamma(0.5, 2),
             Solarize(99, p=0.5), gl.ops.RandomFlip(), Brightness(0.9, 1.1), Equalize()]  # fmt: skip
    graph = compile_ops(Spec((field,)), chain)
    images = numbers(field, 9)
    sizes = {"image": np.array([image.shape[:2] for image in images], np.int32)}
    draws = graph.draw(seed=0, epoch=0, records=np.arange(9), sizes=sizes)
    executor = ArrayRowExecutor(graph)

    result = executor.run({"image": images}, draws, {})["image"]

    assert_identical(result, array_form(graph, images, draws))
    if core.native is not None:
        together = (
            "Brightness Invert Contrast Posterize Gamma Solarize RandomFlip Brightness Equalize"
        )
        assert executor.describe()["stages"] == f"image: image of {together}"


def changed(op, values, factor):
    image = np.asarray(values).reshape(1, -1, 1)
    return op.array(np, image, {"factor": np.float32(factor)}).ravel().tolist()


def test_bytes_are_multiplied_cut_off_and_bounded():
    assert changed(Brightness(0, 9), np.array([0, 1, 3, 5, 100, 200], np.uint8), 1.5) == [
        0,
        1,
        4,
        7,
        150,
        255,
    ]
    assert changed(Brightness(0, 9), np.array([-1, 0.2, 0.7], np.float32), 2) == [
        0,
        np.float32(0.4),
        1,
    ]


def test_about_a_center_bytes_are_rounded_and_floats_not_bounded():
    assert changed(Contrast(0, 9, 128), np.array([0, 64, 128, 129, 192], np.uint8), 2) == [
        0,
        0,
        128,
        130,
        255,
    ]
    assert changed(Contrast(0, 9, 128), np.array([127, 129, 130], np.uint8), 0.5) == [128, 129, 129]
    assert changed(Contrast(0, 9, center=0.5), np.array([0, 0.5, 1], np.float32), 3) == [-1, 0.5, 2]


def test_the_factor_goes_from_low_to_high():
    draw = Brightness(0.5, 2.5).draw(
        np.array([[0.0], [0.5], [1 - 1e-12]]), np.zeros((3, 2), np.int32)
    )

    assert draw["factor"].tolist() == [0.5, 1.5, 2.5]


def test_an_image_that_is_not_sharpened_has_factor_one():
    draw = Sharpness(2, 2, p=0.25).draw(
        np.array([[0.5, 0.24], [0.5, 0.25]]), np.zeros((2, 2), np.int32)
    )

    assert draw["factor"].tolist() == [2, 1]


def test_a_share_of_p_of_the_images_is_changed():
    images = np.zeros((1000, 2, 2, 3), np.uint8)

    batch = gl.Loader(
        gl.arrays(image=images), batch_size=1000, ops=[Invert(p=0.3)], device="cpu"
    ).batch_at(0)

    assert 250 < (batch["image"] == 255).all(axis=(1, 2, 3)).sum() < 350


@pytest.mark.parametrize("op", [Equalize(), Invert(p=0), Equalize(p=0.5), Brightness(1, 2)])
def test_an_op_is_random_if_some_images_are_changed_and_others_not(op):
    assert is_random(op) == (op in (Equalize(p=0.5), Brightness(1, 2)))


def test_images_of_different_sizes_may_share_a_factor():
    views = Spec(
        (uniform(np.uint8, 9, 8, 3, name="left"), uniform(np.uint8, 5, 4, 3, name="right"))
    )
    graph = compile_ops(views, [Brightness(0.5, 1.5, on=("left", "right"))])
    sizes = {"left": np.array([[9, 8]] * 2, np.int32), "right": np.array([[5, 4]] * 2, np.int32)}

    (draw,) = graph.draw(seed=0, epoch=0, records=np.arange(2), sizes=sizes)

    assert draw["factor"].shape == (2,)


@pytest.mark.parametrize("op", [Brightness, Contrast, Saturation, Sharpness, Gamma])
@pytest.mark.parametrize(
    "arguments", [(-0.1, 1), (2, 1), ("a", 1), (1, None), (1, float("inf")), (True, 1)]
)
def test_wrong_factors_are_refused(op, arguments):
    with pytest.raises(SpecError, match=op.__name__):
        op(*arguments)


@pytest.mark.parametrize("call", [
    lambda: Posterize(9), lambda: Posterize(-1), lambda: Posterize(1.5), lambda: Solarize(-1), lambda: Solarize(257),
    lambda: Solarize("half"), lambda: Invert(p=1.1), lambda: Equalize(p=-1), lambda: AutoContrast(p=None),
    lambda: Hue(-0.6, 0), lambda: Hue(0, 0.6), lambda: Hue(0.1, 0), lambda: Gamma(1, 1, gain=-1),
    lambda: ColorJitter(brightness=-1), lambda: ColorJitter(hue=0.6), lambda: ColorJitter(contrast=(2, 1)),
    lambda: ColorJitter(saturation=(1, 2, 3)), lambda: ColorJitter(brightness="much"), lambda: Grayscale(2),
    lambda: ColorSpace("RGB"), lambda: Sharpness(0, 1, p=2), lambda: Contrast(1, 1, center=float("nan")),
])  # fmt: skip
def test_wrong_arguments_are_refused(call):
    with pytest.raises(SpecError, match="must be"):
        call()


def test_a_batch_and_single_images_agree_for_every_byte_and_many_factors():
    every = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 1, 1))
    factors = np.linspace(0, 3, 301, dtype=np.float32)

    batch = colour.contrast(np, np.broadcast_to(every, (301, 256, 1, 1)), factors)

    assert_identical(batch, [colour.contrast(np, every, factor) for factor in factors])

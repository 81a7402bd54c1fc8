"""Volumes, DHWC and DHW: ops that move pixels act on all slices with one draw, and along them where
depth= says."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import RecordError, SpecError
from gpuload.graph.graph import compile_ops
from gpuload.ops import (
    Brightness,
    Cast,
    CenterCrop,
    Normalize,
    Pad,
    RandomCrop,
    RandomFlip,
    Resize,
    Rotate90,
)
from gpuload.spec import Field, Spec
from gpuload.testing.ops import OpContract, uniform
from tests import simdevice

VOLUME = uniform(np.uint8, 5, 9, 8, 2)
SCAN = uniform(np.int16, 6, 9, 8, axes="DHW")
VARYING = Field("image", np.dtype(np.uint16), (None, None, None, 1), axes="DHWC")
REFUSED = (
    uniform(np.uint8, 2, 3, 4, 5, 6),
    uniform(np.complex64, 5, 9, 8, 2),
    uniform(np.uint8, 5, 9),
)


class TestRandomFlip(OpContract):
    cases = (
        (RandomFlip(0.5, vertical=True), VOLUME),
        (RandomFlip(0.5, vertical=True, depth=True), VOLUME),
        (RandomFlip(0.5, horizontal=False, depth=True), SCAN),
        (RandomFlip(0.5, depth=True), VARYING),
        (RandomFlip(), uniform(np.float16, 3, 4, 5, 7)),
        (RandomFlip(0.7, vertical=True), uniform(np.bool_, 3, 4, 5, axes="DHW")),
        (RandomFlip(0.7, vertical=True), uniform(np.float32, 3, 4, 5, axes="DHW")),
    )
    neutral = ((RandomFlip(0, depth=True), VOLUME),)
    refused = (
        *((RandomFlip(), field) for field in REFUSED),
        (RandomFlip(depth=True), uniform(np.uint8, 5, 9, 3)),
    )


class TestRandomCrop(OpContract):
    cases = (
        (RandomCrop(4, 5), VOLUME),
        (RandomCrop(4, 5, depth=3), VOLUME),
        (RandomCrop(7, pad=3, fill=9, depth=2), SCAN),
        (RandomCrop(30, depth=20), VARYING),
        (RandomCrop(80, pad_if_needed=True, depth=70, fill=3), VARYING),
        (RandomCrop(4, depth=5), uniform(np.float32, 5, 9, 8, 3)),
        (RandomCrop(4, pad=1), uniform(np.uint8, 5, 9, 8, axes="DHW")),
    )
    neutral = ((RandomCrop(9, 8, depth=5), VOLUME), (RandomCrop(9, 8), SCAN))
    refused = (
        *((RandomCrop(2), field) for field in REFUSED),
        (RandomCrop(10, 8), VOLUME),
        (RandomCrop(4, depth=6), VOLUME),
        (RandomCrop(4, depth=2), uniform(np.uint8, 5, 9, 3)),
    )


class TestCenterCrop(OpContract):
    cases = (
        (CenterCrop(4, 5), VOLUME),
        (CenterCrop(4, 5, depth=2), SCAN),
        (CenterCrop(20, 31, depth=12), VARYING),
    )
    refused = ((CenterCrop(10), VOLUME), (CenterCrop(4, depth=7), SCAN))


class TestPad(OpContract):
    cases = (
        (Pad(12, 11, fill=7), VOLUME),
        (Pad(12, 11, depth=9), SCAN),
        (Pad(margin=(1, 2, 3, 4), fill=5), VARYING),
        (Pad(99, depth=90), VARYING),
        (Pad(99), VARYING),
    )
    neutral = ((Pad(9, 8, depth=5), VOLUME),)
    refused = (
        (Pad(8), VOLUME),
        (Pad(12, depth=4), VOLUME),
        (Pad(12, depth=4), uniform(np.uint8, 5, 9, 3)),
    )


class TestRotate90(OpContract):
    cases = (
        (Rotate90(), uniform(np.uint8, 5, 8, 8, 2)),
        (Rotate90((1, 3)), SCAN),
        (Rotate90(), VARYING),
        (Rotate90(), uniform(np.float64, 5, 8, 6, axes="DHW")),
    )
    neutral = ((Rotate90((0,)), VOLUME),)


class TestNormalizeAndCast(OpContract):
    cases = (
        (Normalize((100, 120), (50, 60)), VOLUME),
        (Normalize(-100, 250.5), SCAN),
        (Normalize(1000, 3), VARYING),
        (Cast("float32"), SCAN),
        (Cast("uint8"), VARYING),
    )
    refused = ((Normalize((1, 2), 1), SCAN), (Normalize((1, 2, 3), 1), VOLUME))


def test_each_axis_is_mirrored_by_its_own_draw():
    volume = np.arange(2 * 2 * 3).reshape(2, 2, 3)

    def flipped(depthwise, vertical, horizontal):
        draw = {"depthwise": depthwise, "vertical": vertical, "horizontal": horizontal}
        return (
            RandomFlip()
            .array(np, volume, {name: np.int32(value) for name, value in draw.items()})
            .tolist()
        )

    assert flipped(0, 0, 0) == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    assert flipped(0, 0, 1) == [[[2, 1, 0], [5, 4, 3]], [[8, 7, 6], [11, 10, 9]]]
    assert flipped(0, 1, 0) == [[[3, 4, 5], [0, 1, 2]], [[9, 10, 11], [6, 7, 8]]]
    assert flipped(1, 0, 0) == [[[6, 7, 8], [9, 10, 11]], [[0, 1, 2], [3, 4, 5]]]


def test_places_of_a_crop_are_drawn_on_each_axis():
    op = RandomCrop(2, 3, depth=4)
    u = np.random.default_rng(0).random((4000, op.num_uniforms))

    start = op.draw(u, np.full((4000, 3), (5, 9, 6), np.int32))["start"]

    assert [np.unique(column).tolist() for column in start.T] == [
        [0, 1, 2, 3],
        [*range(7)],
        [0, 1, 2],
    ]
    counts = np.bincount(start[:, 2])
    assert counts.min() > 0.3 * len(u)


def test_a_volume_and_its_mask_stay_together_and_channels_do_not_matter():
    rng = np.random.default_rng(1)
    volumes = rng.integers(0, 4000, (6, 5, 9, 8, 11), np.uint16)
    masks = (volumes[..., :1] > 2000).astype(np.uint8)
    source = gl.arrays(image=volumes, mask=masks).mark(mask="mask", image="DHWC")
    chain = [RandomCrop(6, 5, pad=1, depth=3, fill={"image": 0}), RandomFlip(0.5, vertical=True, depth=True),
             Rotate90(quarters=(0, 2)), Normalize(2000.0, 1000.0, on="image")]  # fmt: skip

    with gl.Loader(source, 3, ops=chain, device="cpu", seed=2) as load:
        for batch in load:
            assert batch["image"].shape == (3, 3, 6, 5, 11)
            assert batch["image"].dtype == np.float32
            np.testing.assert_array_equal(batch["image"][..., :1] > 0, batch["mask"] == 1)


@pytest.mark.parametrize("axes", ["DHWC", "DHW"])
def test_on_a_gpu_as_on_a_cpu(axes, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    values = np.random.default_rng(1).integers(0, 4000, (6, 5, 9, 8, 2), np.uint16)
    values = values if axes == "DHWC" else values[..., 0]
    source = gl.arrays(image=values).mark(image=axes)
    chain = [
        RandomCrop(6, 5, pad=1, depth=3),
        RandomFlip(0.5, vertical=True, depth=True),
        Normalize(2000.0, 1000.0),
    ]
    words = {"ops": chain, "seed": 2, "shuffle": True}
    with (
        gl.Loader(source, 3, device="cpu", **words) as on_cpu,
        gl.Loader(source, 3, device="gpu", **words) as on_gpu,
    ):
        for batch, expected in zip(on_gpu, on_cpu, strict=True):
            np.testing.assert_allclose(batch["image"].get(), expected["image"], rtol=0, atol=1e-6)
    del batch
    gc.collect()
    sim.finish()


def test_a_volume_with_too_few_slices_is_named():
    volumes = [np.zeros((n % 5 + 3, 8, 8, 1), np.uint8) for n in range(10)]
    source = gl.records(10, lambda rows: {"image": [volumes[n] for n in rows]},
                        fields={"image": ("uint8", (None, None, None, 1))})  # fmt: skip

    with gl.Loader(source, 4, ops=[RandomCrop(4, depth=4)], device="cpu") as load:
        with pytest.raises(
            RecordError, match=r"record 0: RandomCrop.* 8 x 8 pixels in 3 slices"
        ) as caught:
            load.batch_at(0)
        assert "in 4 slices does not fit" in caught.value.cause


@pytest.mark.parametrize(
    "op", [Resize(4, 4), Brightness(0.5, 1), gl.ops.Rotate(10), gl.ops.Erasing()]
)
def test_ops_for_images_refuse_slices_and_name_those_that_take_them(op):
    for field in (VOLUME, SCAN.with_(dtype=np.uint8)):
        with pytest.raises(SpecError, match="slices of an image") as caught:
            compile_ops(Spec((field,)), [op])
        assert "RandomFlip" in caught.value.remedy


def test_boxes_beside_a_volume_are_refused():
    boxes = Field("boxes", np.dtype("f4"), (None, 4), kind="xyxy")

    with pytest.raises(SpecError, match=r"boxes.* xyxy") as caught:
        compile_ops(Spec((VOLUME, boxes)), [RandomFlip()])
    assert "slices" in caught.value.cause


def test_an_image_and_a_volume_share_no_draw():
    mask = uniform(np.uint8, 9, 8, 1, name="mask")

    with pytest.raises(SpecError, match="no size in common"):
        compile_ops(Spec((VOLUME, mask)), [RandomFlip(on=("image", "mask"))])


@pytest.mark.parametrize("axes", ["DHWC", "DHW"])
def test_a_mask_without_channels_goes_with_the_slices_of_its_volume(axes):
    volumes = np.random.default_rng(6).integers(0, 4000, (6, 5, 9, 8), np.uint16)
    images = volumes if axes == "DHW" else volumes[..., None]
    source = gl.zip(
        gl.arrays(scan=images).mark(scan=axes), gl.arrays(organ=volumes > 2000).mark(organ="mask")
    )
    source = source if axes == "DHW" else source.rename(scan="image")
    name = source.spec.names[0]
    chain = [
        gl.ops.Sometimes(0.5, [RandomFlip(1.0, depth=True)], on=name),
        RandomCrop(6, 5, depth=3, on=name),
    ]

    batch = gl.Loader(source, 6, ops=chain, device="cpu", seed=2).batch_at(0)

    assert batch["organ"].shape == (6, 3, 6, 5)
    np.testing.assert_array_equal(batch[name].reshape(batch["organ"].shape) > 2000, batch["organ"])


def test_slices_that_nothing_marks_are_told_of_with_the_mark():
    scan, mask = SCAN.with_(name="scan"), uniform(np.uint8, 6, 9, 8, name="organ")
    with pytest.raises(SpecError) as caught:
        compile_ops(Spec((scan, mask)), [RandomFlip(on=("scan", "organ"))])
    assert "source.mark(organ='DHW') for slices" in caught.value.remedy
    with pytest.raises(SpecError) as caught:
        compile_ops(Spec((uniform(np.uint16, 24, 80, 72),)), [RandomCrop(64)])
    assert "if 'image' are slices, write source.mark(image='DHW')" in caught.value.remedy

"""RandomIoUCrop, RandomZoomOut and ScaleJitter, beside torchvision's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops
from gpuload.spec import Field, Spec
from gpuload.testing.ops import OpContract, uniform, varying
from tests.ops.test_resize import ResizeContract

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "augment" / "detection.json").read_text(
        encoding="utf-8"
    )
)
SIZE = np.array([GOLDEN["size"]], np.int32)
IMAGES = np.random.default_rng(1).integers(0, 256, (8, 60, 80, 3), np.uint8)
BOXES = np.array([[10, 10, 60, 50], [50, 30, 78, 58], [2, 2, 6, 6]], np.float32)
NUM_DRAWS = 4000


class TestRandomZoomOut(OpContract):
    cases: ClassVar = [
        (ops.RandomZoomOut(p=0.8), uniform(np.uint8, 8, 9, 3)),
        (ops.RandomZoomOut(fill=7, side_range=(1, 2), p=1), varying(np.uint8, channels=1)),
        (ops.RandomZoomOut(fill=0.5, p=1), varying(np.float32, channels=3)),
        (ops.RandomZoomOut(p=1), uniform(bool, 8, 9, 2)),
        (ops.RandomZoomOut(fill=(123, 117, 104), p=1), varying(np.uint8, channels=3)),
    ]
    neutral: ClassVar = [(ops.RandomZoomOut(p=0), uniform(np.uint8, 8, 9, 3))]
    refused: ClassVar = [
        (ops.RandomZoomOut(fill=300), uniform(np.uint8, 8, 9, 3)),
        (ops.RandomZoomOut(fill=(1, 2)), uniform(np.uint8, 8, 9, 3)),
        (ops.RandomZoomOut(fill=(1, 2, 300)), uniform(np.uint8, 8, 9, 3)),
        (ops.RandomZoomOut(), uniform(np.uint8, 8, 9)),
        (ops.RandomZoomOut(), uniform(np.uint8, 3, 8, 9, axes="CHW")),
    ]


class TestScaleJitter(OpContract):
    def compare(self, actual, expected):
        """See ResizeContract: 1 level where DALI rounds a half otherwise; here of some hundred
        bytes an image."""
        for value, expected_value in zip(actual, expected, strict=True):
            difference = np.abs(value.astype(float) - expected_value)
            assert (value.dtype, value.shape) == (expected_value.dtype, expected_value.shape)
            assert difference.max() <= (value.dtype == np.uint8)
            assert (difference > 0).mean() <= 1e-2

    compare_gpu = ResizeContract.compare_gpu

    cases: ClassVar = [
        (ops.ScaleJitter(20, 24), uniform(np.uint8, 30, 40, 3)),
        (ops.ScaleJitter(24, scale=(0.5, 1.5)), varying(np.uint8, channels=3)),
        (ops.ScaleJitter(24, interpolation="nearest"), varying(np.int32, channels=1)),
        (
            ops.ScaleJitter(24, interpolation="cubic", antialias=False),
            varying(np.float32, channels=3),
        ),
    ]
    refused: ClassVar = [
        (ops.ScaleJitter(20), uniform(np.int32, 8, 9, 3)),
        (ops.ScaleJitter(20), uniform(np.uint8, 8, 9)),
    ]


class TestRandomCropOfSmallImages(OpContract):
    cases: ClassVar = [
        (ops.RandomCrop(40, 44, pad_if_needed=True, fill=9), varying(np.uint8, channels=3)),
        (ops.RandomCrop(40, 44, pad=2, pad_if_needed=True), uniform(np.float32, 30, 50, 3)),
        (
            ops.RandomCrop(40, 44, pad_if_needed=True, fill=(123, 117, 104)),
            varying(np.uint8, channels=3),
        ),
        (ops.RandomCrop(30, 30, pad=3, fill=(1.5, 0.25, -2)), uniform(np.float32, 30, 30, 3)),
        (ops.Pad(margin=2, fill=(9, 8, 7)), uniform(np.uint8, 8, 9, 3)),
        (ops.Pad(90, 100, fill=(9, 8, 7, 6)), varying(np.uint8, channels=4)),
    ]


def standard_errors(rows, mean, deviation):
    """Return by how many standard errors the means of draws differ from torchvision's."""
    rows, deviation = np.asarray(rows, float), np.maximum(deviation, 1e-9)
    return np.abs(rows.mean(axis=0) - mean) / (
        deviation * np.sqrt(1 / len(rows) + 1 / GOLDEN["draws"])
    )


@pytest.mark.parametrize("number", range(len(GOLDEN["boxes"])))
def test_crops_are_drawn_as_torchvision_draws_them(number):
    op, corners = ops.RandomIoUCrop(), np.array(GOLDEN["boxes"][number], np.float64)
    u = np.random.default_rng(number).random((NUM_DRAWS, op.num_uniforms))

    draw = op.draw_by_boxes(u, np.repeat(SIZE, NUM_DRAWS, axis=0), [corners] * NUM_DRAWS)

    is_whole = (draw["shape"] == SIZE).all(axis=1, keepdims=True)
    rows = np.concatenate([draw["start"], draw["shape"], is_whole], axis=1)
    assert standard_errors(rows, *GOLDEN["crops"][number]).max() < 4.5
    begins, sizes = (
        rows[~is_whole[:, 0], None, 1::-1],
        rows[~is_whole[:, 0], None, 3:1:-1],
    )  # x and y; width and height
    centres = (corners[:, :2] + corners[:, 2:]) / 2
    assert ((centres > begins) & (centres < begins + sizes)).all(axis=2).any(axis=1).all()
    aspects = sizes[..., 0] / sizes[..., 1]
    assert aspects.min() >= 0.5
    assert aspects.max() <= 2


def test_an_overlap_that_is_asked_for_is_kept():
    op, corners = ops.RandomIoUCrop(options=(0.5,)), np.array([[10.0, 10, 60, 50]])
    u = np.random.default_rng(0).random((500, op.num_uniforms))

    draw = op.draw_by_boxes(u, np.repeat(SIZE, 500, axis=0), [corners] * 500)

    (top, left), (height, width) = draw["start"].T, draw["shape"].T
    common = (np.minimum(left + width, 60) - np.maximum(left, 10)) * (
        np.minimum(top + height, 50) - np.maximum(top, 10)
    )
    assert (
        common / (height * width + 50 * 40 - common) >= 0.5
    ).mean() > 0.99  # those of which no round fits are whole


def test_paddings_are_drawn_as_torchvision_draws_them():
    op = ops.RandomZoomOut(side_range=(1.0, 3.0), p=1)
    u = np.random.default_rng(0).random((NUM_DRAWS, 4))

    draw = op.draw(u, np.repeat(SIZE, NUM_DRAWS, axis=0))

    top, left = -draw["start"].T
    height, width = (draw["shape"] - SIZE).T
    rows = np.stack([left, top, width - left, height - top], axis=1)
    assert standard_errors(rows, *GOLDEN["paddings"]).max() < 4.5
    assert rows.min() >= 0


def test_sizes_are_the_fitting_one_times_a_factor():
    op = ops.ScaleJitter(100, 200, scale=(0.5, 1.5))

    draw = op.draw(
        np.array([[0.0], [0.5], [1.0]]), np.array([[50, 50], [50, 200], [300, 30]], np.int32)
    )

    assert draw["size"].tolist() == [
        [50, 50],
        [50, 200],
        [150, 15],
    ]  # factors 2 * 0.5, 1 * 1, 1/3 * 1.5


def source_of(kind="xyxy", name="boxes"):
    values = BOXES / np.tile(SIZE[0, ::-1], 2) if "normalized" in kind else BOXES
    return gl.arrays(image=IMAGES, **{name: np.tile(values.astype("f4"), (8, 1, 1))}).mark(
        **{name: kind}
    )


@pytest.mark.parametrize("kind", ["xyxy", "normalized xyxy"])
@pytest.mark.parametrize("executor", ["array", "dali"])
def test_an_image_is_cut_by_its_boxes_behind_other_ops(executor, kind):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    chain = [ops.RandomZoomOut(p=0.5, side_range=(1, 2)), ops.RandomFlip(), ops.RandomIoUCrop()]
    chain += [ops.Resize(32, 32, interpolation="nearest")]
    with gl.Loader(source_of(kind), 8, ops=chain, device="cpu", executor=executor, seed=3) as load:
        batch = load.batch_at(0)
        alone = load.replace(batch_size=1)
        for n in range(8):
            np.testing.assert_array_equal(alone.batch_at(n)["image"][0], batch["image"][n])
            np.testing.assert_array_equal(alone.batch_at(n)["boxes"][0], batch["boxes"][n])
    assert load.state_dict()["ops"][-1] == f"mark(boxes='{kind}')"

    largest = batch["boxes"][..., 2:].max()
    assert largest <= (1 if "normalized" in kind else 32)
    assert (batch["boxes"].any(axis=2)).any(axis=1).all()  # a box is left of each record
    assert not batch["boxes"].any(axis=2).all()  # and others are gone


def test_the_image_alone_is_cut_as_beside_its_boxes():
    chain = [ops.RandomIoUCrop(), ops.Resize(32, 32)]
    load = gl.Loader(source_of(), 8, ops=chain, device="cpu", seed=3)

    alone = load.replace(output=("image",))

    np.testing.assert_array_equal(alone.batch_at(0)[0], load.batch_at(0)["image"])
    np.testing.assert_array_equal(
        load.to_source(epoch=0).read(range(8))["image"], load.batch_at(0)["image"]
    )


def test_boxes_that_are_not_there_when_they_are_needed_are_refused():
    image, boxes = (
        Field("image", np.dtype("u1"), (9, 9, 3)),
        Field("boxes", np.dtype("f4"), (None, 4), kind="xyxy"),
    )
    with pytest.raises(SpecError, match="no field is marked as boxes") as caught:
        compile_ops(Spec((image, boxes.unmarked)), [ops.RandomIoUCrop()])
    assert "source.mark" in caught.value.remedy
    with pytest.raises(SpecError, match="behind CleanBoxes") as caught:
        compile_ops(Spec((image, boxes)), [ops.CleanBoxes(), ops.RandomIoUCrop()])
    assert "put CleanBoxes behind RandomIoUCrop" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RandomIoUCrop", {"scale": (0.3, 1.1)}),
        ("RandomIoUCrop", {"ratio": (0, 2)}),
        ("RandomIoUCrop", {"options": ()}),
        ("RandomZoomOut", {"side_range": (0.5, 2)}),
        ("RandomZoomOut", {"p": 2}),
        ("ScaleJitter", {"height": 0}),
        ("ScaleJitter", {"height": 9, "scale": (2, 1)}),
        ("ScaleJitter", {"height": 9, "interpolation": "best"}),
        ("RandomCrop", {"height": 9, "pad_if_needed": 1}),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, arguments):
    with pytest.raises(SpecError, match=next(reversed(arguments))):
        getattr(ops, name)(**arguments)


def test_a_colour_fills_what_is_added_and_a_mask_beside_it_gets_its_own():
    image = np.full((1, 4, 4, 3), 50, np.uint8)
    source = gl.arrays(image=image, mask=image[..., :1]).mark(mask="mask")
    ops_of_both = [ops.Pad(margin=1, fill={"image": (1, 2, 3), "mask": 255})]

    with gl.Loader(source, 1, ops=ops_of_both, device="cpu") as loader:
        batch = loader.batch_at(0)

    assert batch["image"][0, 0, 0].tolist() == [1, 2, 3]
    assert batch["image"][0, 1, 1].tolist() == [50, 50, 50]
    assert (batch["mask"][0, 0, 0, 0], batch["mask"][0, 1, 1, 0]) == (255, 50)


def test_a_canvas_has_its_colour_around_the_image():
    op = ops.RandomZoomOut(fill=(1, 2, 3), p=1, side_range=(2, 2))
    draw = {"start": np.array([-1, -2], np.int32), "shape": np.array([4, 4], np.int32)}

    result = op.array(np, np.full((2, 2, 3), 9, np.uint8), draw)

    assert result[0, 0].tolist() == [1, 2, 3]
    assert result[1, 2].tolist() == [9, 9, 9]
    assert (result == 9).all(axis=2).sum() == 4

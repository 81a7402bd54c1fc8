"""OneOf, Sometimes and Shuffle: a choice for each record, and only what was chosen is done."""

from __future__ import annotations

import gc
from typing import ClassVar

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError, RowError, SpecError
from gpuload.graph.graph import compile_ops
from gpuload.spec import Spec
from gpuload.testing.ops import OpContract, uniform, varying
from tests import simdevice

ops = gl.ops
COLOURS = [ops.Brightness(0.5, 1.5), ops.Contrast(0.5, 1.5), ops.Invert()]
PIXELS = np.random.default_rng(3).integers(0, 256, (40, 9, 12, 3), np.uint8)


class TestOneOf(OpContract):
    cases: ClassVar = [
        (ops.OneOf(COLOURS), uniform(np.uint8, 8, 9, 3)),
        (
            ops.OneOf([ops.RandomCrop(6, 7), [ops.CenterCrop(6, 7), ops.RandomFlip()]]),
            varying(np.uint8, channels=3),
        ),
        (
            ops.OneOf([ops.RandomCrop(6), ops.RandomResizedCrop(6)], weights=[1, 3]),
            uniform(np.uint8, 8, 9, 3),
        ),
        (
            ops.OneOf([ops.RandomFlip(1.0), ops.Sometimes(0.5, ops.Contrast(0.5, 2))]),
            varying(np.uint8, channels=1),
        ),
        (ops.OneOf([ops.Rotate(30), ops.Contrast(0.5, 2)]), uniform(np.uint8, 8, 9, 3)),
    ]
    neutral: ClassVar = [
        (ops.OneOf([ops.RandomFlip(0.0), ops.Brightness(1, 1)]), uniform(np.uint8, 8, 9, 3))
    ]
    refused: ClassVar = [
        (ops.OneOf([ops.CenterCrop(4), ops.CenterCrop(5)]), uniform(np.uint8, 8, 9, 3))
    ]


class TestSometimes(OpContract):
    cases: ClassVar = [
        (ops.Sometimes(0.5, COLOURS), uniform(np.uint8, 8, 9, 3)),
        (
            ops.Sometimes(0.5, [ops.RandomFlip(), ops.Contrast(0.5, 2)]),
            varying(np.uint8, channels=3),
        ),
        (ops.Sometimes(0.4, ops.RandomResizedCrop(8, 9)), uniform(np.uint8, 8, 9, 3)),
        (ops.Sometimes(0.5, ops.RandomCrop(5, 5)), varying(np.uint8, channels=3)),
    ]
    neutral: ClassVar = [(ops.Sometimes(0, COLOURS), uniform(np.uint8, 8, 9, 3))]
    refused: ClassVar = [(ops.Sometimes(0.5, ops.Cast("float32")), uniform(np.uint8, 8, 9, 3))]


class TestShuffle(OpContract):
    cases: ClassVar = [
        (ops.Shuffle(COLOURS), uniform(np.uint8, 8, 9, 3)),
        (ops.Shuffle([ops.RandomFlip(), *COLOURS[:2]]), varying(np.uint8, channels=3)),
    ]
    neutral: ClassVar = [
        (ops.Shuffle([ops.RandomFlip(0.0), ops.Brightness(1, 1)]), uniform(np.uint8, 8, 9, 3))
    ]
    refused: ClassVar = [
        (ops.Shuffle([ops.CenterCrop(4), ops.Invert()]), uniform(np.uint8, 8, 9, 3)),
        (ops.Shuffle([ops.RandomCrop(4, 4), ops.Invert()]), varying(np.uint8, channels=3)),
    ]


def images_of(chain, **arguments):
    with gl.Loader(
        gl.arrays(image=PIXELS), 7, ops=chain, seed=2, **{"device": "cpu", **arguments}
    ) as loader:
        images = [batch["image"] for batch in loader.epoch(1)]
        return np.concatenate(
            [image if isinstance(image, np.ndarray) else image.get() for image in images]
        )


def draws_of(op, count=40_000):
    graph = compile_ops(Spec((uniform(np.uint8, 8, 9, 3),)), [op])
    sizes = {"image": np.full((count, 2), (8, 9), np.int32)}
    return graph.draw(seed=1, epoch=0, records=np.arange(count), sizes=sizes)[0]


def test_each_record_is_one_of_the_results():
    results = images_of([ops.OneOf([ops.Invert(), ops.RandomFlip(1.0)])])
    kinds = [
        "inverted"
        if (image == 255 - before).all()
        else "mirrored"
        if (image == before[:, ::-1]).all()
        else "?"
        for image, before in zip(results, PIXELS, strict=True)
    ]
    assert set(kinds) == {"inverted", "mirrored"}


def test_weights_and_probabilities():
    shares = (
        np.bincount(draws_of(ops.OneOf(COLOURS, weights=[5, 0, 3]))["choice"], minlength=3) / 40_000
    )
    np.testing.assert_allclose(shares, [0.625, 0, 0.375], atol=0.01)
    np.testing.assert_allclose(
        np.bincount(draws_of(ops.OneOf(COLOURS))["choice"]) / 40_000, [1 / 3] * 3, atol=0.01
    )
    assert draws_of(ops.Sometimes(0.2, COLOURS))["choice"].mean() == pytest.approx(0.2, abs=0.01)


def test_all_orders_of_a_shuffle_are_as_likely():
    orders, counts = np.unique(draws_of(ops.Shuffle(COLOURS))["order"], axis=0, return_counts=True)
    assert len(orders) == 6
    np.testing.assert_allclose(counts / 40_000, [1 / 6] * 6, atol=0.01)


def test_a_shuffle_applies_its_ops_in_the_order_that_was_drawn():
    def double(x):
        return np.minimum(x.astype(int) * 2, 255).astype(np.uint8)

    results = images_of([ops.Shuffle([ops.Python(double, out={}), ops.Invert()])])

    forms = [255 - double(PIXELS), double(255 - PIXELS)]
    matches = [[(image == form[row]).all() for form in forms] for row, image in enumerate(results)]
    assert {tuple(entry) for entry in matches} == {(True, False), (False, True)}


def test_numbers_of_an_op_are_its_own_and_drawn_for_what_it_is_applied_to_alone():
    draw = draws_of(ops.OneOf([ops.Brightness(0.5, 1.5), ops.Brightness(0.5, 1.5)]))
    first, second, choice = draw["0.factor"], draw["1.factor"], draw["choice"]
    assert (first[choice == 1] == 0).all()
    assert (second[choice == 0] == 0).all()
    assert first[choice == 0].min() >= 0.5
    assert len(np.intersect1d(first[choice == 0], second[choice == 1])) < 100


def test_what_is_not_chosen_is_not_done():
    calls = []

    def note(x):
        calls.append(x.shape)
        return x

    images_of([ops.Sometimes(0.25, ops.Python(note, out={}))])

    assert 2 <= len(calls) <= 20


def test_a_crop_that_fits_only_the_records_that_it_is_applied_to():
    field = varying(np.uint8, channels=3)
    graph = compile_ops(Spec((field,)), [ops.Sometimes(0.5, ops.RandomCrop(8, 8))])
    large = {"image": np.full((40, 2), 12, np.int32)}
    rows = np.flatnonzero(
        graph.draw(seed=1, epoch=0, records=np.arange(40), sizes=large)[0]["choice"]
    )

    def sizes(row):
        size = large["image"].copy()
        size[row] = 4
        return {"image": size}

    graph.draw(
        seed=1, epoch=0, records=np.arange(40), sizes=sizes(np.setdiff1d(np.arange(40), rows))
    )
    with pytest.raises(RowError) as caught:
        graph.draw(seed=1, epoch=0, records=np.arange(40), sizes=sizes(rows[2]))
    assert caught.value.row == rows[2]


def test_on_a_gpu(monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    chain = [
        ops.Sometimes(0.5, [ops.RandomFlip(1.0), ops.Invert()]),
        ops.OneOf([ops.RandomCrop(6, 7), ops.CenterCrop(6, 7)]),
        ops.Shuffle([ops.Brightness(0.5, 1.5), ops.Invert(), ops.RandomFlip()]),
    ]
    np.testing.assert_array_equal(images_of(chain, device="gpu"), images_of(chain))
    gc.collect()
    sim.finish()


def test_mixup_or_cutmix_is_chosen_for_each_pair():
    source = gl.arrays(image=PIXELS, label=np.arange(40) % 4)
    one_hot = ops.OneHot(4)
    with gl.Loader(
        source, 40, ops=[one_hot, ops.OneOf([ops.MixUp(), ops.CutMix()])], device="cpu"
    ) as loader:
        batch = loader.batch_at(0)
        images, labels = np.array(batch["image"]), np.array(batch["label"])
    weights = labels[np.arange(40), np.arange(40) % 4]
    np.testing.assert_array_equal(weights[::2], weights[1::2])
    pasted = [
        all((image[y, x] == PIXELS[row][y, x]).all() or (image[y, x] == PIXELS[row ^ 1][y, x]).all()
            for y in range(9) for x in range(12))
        for row, image in enumerate(images)
    ]  # fmt: skip
    assert pasted[::2] == pasted[1::2]
    assert set(pasted) == {True, False}
    for batch_size in (7, 8):
        with gl.Loader(source, batch_size, ops=loader.ops, device="cpu") as other:
            np.testing.assert_array_equal(
                np.concatenate([batch["image"] for batch in other.epoch(0)]), images
            )


def test_masks_and_boxes_go_along():
    masks = PIXELS[..., :1]
    boxes = np.tile(np.array([[1, 2, 4, 5]], np.float32), (40, 1, 1))
    source = gl.arrays(image=PIXELS, mask=masks, boxes=boxes).mark(mask="mask", boxes="xyxy")
    with gl.Loader(
        source, 40, ops=[ops.Sometimes(0.5, ops.RandomFlip(1.0))], device="cpu"
    ) as loader:
        batch = loader.batch_at(0)
    for row in range(40):
        mirrored = (batch["image"][row] == PIXELS[row][:, ::-1]).all()
        np.testing.assert_array_equal(
            batch["mask"][row], masks[row][:, ::-1] if mirrored else masks[row]
        )
        np.testing.assert_array_equal(
            batch["boxes"][row], [[8, 2, 11, 5] if mirrored else [1, 2, 4, 5]]
        )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.OneOf([]), "a list of ops"),
        (lambda: ops.OneOf(ops.Invert), "a list of ops"),
        (lambda: ops.OneOf([ops.Invert(on="image")]), "on= is for all ops in it"),
        (lambda: ops.OneOf(COLOURS, weights=[1, 2]), "3 numbers"),
        (lambda: ops.Sometimes(2, COLOURS), "a probability"),
        (lambda: ops.Shuffle([ops.Invert(), 3]), "a list of ops"),
        (lambda: images_of([ops.Sometimes(0.5, ops.OneHot(3))]), "put OneHot before"),
        (
            lambda: images_of([ops.Sometimes(0.5, ops.Dali("gaussian_blur", sigma=1.0))]),
            "put Dali before",
        ),
        (lambda: images_of([ops.OneOf([ops.MixUp(), ops.Invert()])]), "one draw for both"),
    ],
)
def test_what_is_wrong_is_told(call, words):
    with pytest.raises(GpuloadError, match=words) as caught:
        call()
    assert caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize(
    "op",
    [
        ops.Sometimes(1, [ops.Brightness(2, 2), ops.RandomFlip(1)]),
        ops.OneOf([[ops.Invert(), ops.RandomFlip(1)]]),
        ops.Shuffle([ops.Solarize(0), ops.RandomFlip(1)]),
        ops.Sometimes(1, [ops.Sometimes(1, [ops.Brightness(2, 2), ops.RandomFlip(1)])]),
    ],
    ids=lambda op: type(op).__name__,
)
def test_the_labels_of_a_mask_are_moved_and_not_coloured(op):
    masks = np.random.default_rng(1).integers(0, 256, PIXELS[..., :1].shape, np.int32)
    source = gl.arrays(image=PIXELS, mask=masks).mark(mask="mask")

    with gl.Loader(source, len(PIXELS), ops=[op], device="cpu") as load:
        batch = load.batch_at(0)

    np.testing.assert_array_equal(batch["mask"], masks[:, :, ::-1])
    assert not np.array_equal(batch["image"], PIXELS[:, :, ::-1])


def test_a_policy_beside_a_mask_is_refused():
    source = gl.arrays(image=PIXELS, mask=PIXELS[..., :1]).mark(mask="mask")

    for op in (ops.RandAugment(), ops.Sometimes(0.5, [ops.TrivialAugmentWide()])):
        with pytest.raises(SpecError, match="beside the mask 'mask'"):
            gl.Loader(source, 4, ops=[op], device="cpu")

"""Image and mask: one draw for both, and for each field its own way to fill and to interpolate."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops, state
from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops
from gpuload.spec import Spec
from gpuload.testing.ops import uniform

BOTH = ("image", "mask")
RNG = np.random.default_rng(0)
MASKS = np.where(np.indices((8, 60, 80, 1)).sum(axis=0) % 31 < 15, 7, 0).astype(np.uint8)
IMAGES = np.concatenate(
    [MASKS, 100 + MASKS, RNG.integers(0, 256, (8, 60, 80, 1), dtype=np.uint8)], axis=3
)
NEAREST = {"mask": "nearest"}


def batch_of(chain, executor, **fields):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    source = gl.arrays(**{"image": IMAGES, "mask": MASKS, **fields})
    with gl.Loader(
        source, batch_size=8, ops=chain, device="cpu", executor=executor, seed=5
    ) as load:
        return next(iter(load))


@pytest.mark.parametrize("executor", ["array", "dali"])
@pytest.mark.parametrize(
    "op",
    [
        ops.RandomResizedCrop(32, 32, on=BOTH, interpolation=NEAREST),
        ops.Resize(32, 48, on=BOTH, interpolation=NEAREST),
        ops.Resize(shorter=37, on=BOTH, interpolation=NEAREST),
    ],
    ids=lambda op: type(op).__name__,
)
def test_labels_stay_labels_and_the_image_is_interpolated(op, executor):
    batch = batch_of([op], executor)

    assert set(np.unique(batch["mask"])) == {0, 7}
    assert set(np.unique(batch["image"][..., 0])) > {0, 1, 3, 6, 7}


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_the_mask_is_cut_where_the_image_is(executor):
    chain = [ops.RandomResizedCrop(32, 32, on=BOTH, interpolation=NEAREST), ops.RandomFlip(on=BOTH)]

    batch = batch_of(chain, executor)

    nearest = batch_of(
        [ops.RandomResizedCrop(32, 32, on=BOTH, interpolation="nearest"), chain[1]], executor
    )
    np.testing.assert_array_equal(batch["mask"], nearest["mask"])
    np.testing.assert_array_equal(batch["mask"][..., 0], nearest["image"][..., 0])
    linear = batch_of([ops.RandomResizedCrop(32, 32), ops.RandomFlip()], executor)
    np.testing.assert_array_equal(batch["image"], linear["image"])


def test_both_executors_make_the_same_of_masks():
    chain = [ops.RandomResizedCrop(32, 32, on=BOTH, interpolation=NEAREST), ops.RandomFlip(on=BOTH)]

    by_array, by_dali = batch_of(chain, "array"), batch_of(chain, "dali")

    np.testing.assert_array_equal(by_array["mask"], by_dali["mask"])
    assert np.abs(by_array["image"].astype(int) - by_dali["image"]).max() <= 1  # see ResizeContract


@pytest.mark.parametrize("executor", ["array", "dali"])
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32"]
)
def test_masks_of_any_kind_are_resized_by_nearest(dtype, executor):
    masks = (MASKS * 17).astype(dtype)
    op = ops.Resize(25, 33, on=BOTH, interpolation=NEAREST)

    result = batch_of([op], executor, mask=masks)["mask"]

    expected = batch_of([op], "array", mask=MASKS)["mask"]
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, (expected * 17).astype(dtype))


@pytest.mark.parametrize("executor", ["array", "dali"])
@pytest.mark.parametrize(
    "op",
    [
        ops.Pad(70, 90, fill={"mask": 255}, on=BOTH),
        ops.Pad(margin=5, fill={"mask": 255}, on=BOTH),
        ops.RandomCrop(64, 84, pad=9, fill={"mask": 255}, on=BOTH),
    ],
    ids=lambda op: type(op).__name__,
)
def test_what_is_added_around_a_mask_has_a_value_of_its_own(op, executor):
    batch = batch_of([op], executor)

    outside = batch["mask"][..., 0] == 255
    assert 0.05 < outside.mean() < 0.5
    assert (batch["image"][outside] == 0).all()
    assert set(np.unique(batch["mask"][~outside])) == {0, 7}


def test_a_state_tells_the_plain_form_as_ever_and_the_fields_apart():
    assert state.canonical_text(ops.Resize(8, 8)) == "Resize(height=8, width=8)"
    assert (
        state.canonical_text(ops.Resize(8, 8, interpolation="nearest"))
        == "Resize(height=8, width=8, interpolation='nearest')"
    )
    text = state.canonical_text(ops.Resize(8, 8, on=BOTH, interpolation=NEAREST))
    assert (
        text == "Resize(on=('image', 'mask'), height=8, width=8, interpolation={'mask': 'nearest'})"
    )
    assert (
        state.canonical_text(ops.RandomCrop(8, pad=1, fill={"mask": 255}))
        == "RandomCrop(height=8, width=8, pad=1, fill={'mask': 255.0})"
    )


def test_a_dict_of_nothing_but_the_default_is_the_default():
    assert ops.Resize(8, 8, interpolation={"image": "linear"}) == ops.Resize(8, 8)
    assert ops.Resize(8, 8, interpolation={"image": "linear", **NEAREST}).interpolation == NEAREST
    assert ops.Pad(8, fill={}) == ops.Pad(8)
    assert ops.Rotate(9, interpolation={"image": "nearest"}) == ops.Rotate(9)
    assert ops.Rotate(9, interpolation={"image": "linear", **NEAREST}).interpolation == {
        "image": "linear"
    }


def test_ops_with_dicts_can_be_hashed_and_pickled_and_keep_their_own_dict():
    interpolation = {"mask": "nearest"}
    op = ops.Resize(8, 8, interpolation=interpolation)
    interpolation["mask"] = "cubic"

    assert op.interpolation == NEAREST
    assert hash(op) == hash(ops.Resize(8, 8, interpolation=NEAREST))
    assert pickle.loads(pickle.dumps(op)) == op


def test_an_argument_for_a_field_that_the_op_does_not_act_on_is_refused_with_on_in_the_remedy():
    spec = Spec((uniform(np.uint8, 9, 9, 3), uniform(np.uint8, 9, 9, 1, name="mask")))

    with pytest.raises(SpecError, match=r"interpolation names the fields \['mask'\]") as caught:
        compile_ops(spec, [ops.Resize(8, 8, interpolation=NEAREST)])

    assert "on=('image', 'mask')" in caught.value.remedy
    assert "acts on the field 'image' alone" in caught.value.cause
    assert compile_ops(spec, [ops.Resize(8, 8, interpolation=NEAREST, on=("image", "mask"))])


@pytest.mark.parametrize("shape", [(60, 80), (None, None)])
def test_a_mask_of_two_axes_is_refused_with_a_remedy_that_works(shape):
    mask = uniform(np.uint8, *shape, name="mask")
    with pytest.raises(SpecError, match="an image has three axes") as caught:
        ops.Resize(8, 8, on="mask", interpolation="nearest").field_after(mask)

    remedy = caught.value.remedy.removeprefix("put ").removesuffix(" before it")
    graph = compile_ops(
        Spec((mask,)),
        [eval(remedy, {"gl": gl}), ops.Resize(8, 8, on="mask", interpolation="nearest")],
    )
    assert graph.spec_out["mask"].shape == (8, 8, 1)


def test_labels_that_are_no_bytes_are_refused_for_linear_with_nearest_in_the_cause():
    with pytest.raises(SpecError, match="interpolation='nearest'"):
        ops.Resize(8, 8).field_after(uniform(np.int32, 9, 9, 1))


def test_fields_that_an_op_draws_nothing_for_may_differ_in_size():
    source = gl.arrays(image=IMAGES, table=np.arange(8 * 6.0).reshape(8, 2, 3))

    with gl.Loader(
        source, batch_size=4, ops=[ops.Cast("float32", on=("image", "table"))], device="cpu"
    ) as load:
        batch = next(iter(load))

    assert batch["image"].dtype == batch["table"].dtype == np.float32

"""OneHot."""

from __future__ import annotations

import numpy as np
import pytest

import gpuload as gl
from gpuload import state
from gpuload.errors import RecordError, SpecError
from gpuload.executors.array import ArrayBatchExecutor, ArrayRowExecutor
from gpuload.graph.graph import compile_ops
from gpuload.ops import OneHot
from gpuload.ops.base import RowError
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.ops import OpContract, dali_form, uniform


class TestOneHot(OpContract):
    cases = (
        *(
            (OneHot(5, dtype), uniform("int64", name="label"))
            for dtype in ("f2", "f4", "f8", "u1", "i8")
        ),
        *(
            (OneHot(5), uniform(dtype, name="label"))
            for dtype in ("i1", "i2", "i4", "u1", "u2", "u4", "u8")
        ),
        (OneHot(5), uniform("uint8", 1, name="label")),
        (OneHot(5, on="mask"), uniform("uint8", 3, 4, name="mask")),
        (OneHot(5), Field("label", np.dtype("int32"), (None,))),
        *(
            (OneHot(5, dtype, smoothing=0.1), uniform("int64", name="label"))
            for dtype in ("f2", "f4", "f8")
        ),
        (OneHot(5, smoothing=0.3), Field("label", np.dtype("int32"), (None,))),
    )
    refused = (
        (OneHot(5), uniform("float32", name="label")),
        (OneHot(5), uniform("U3", name="label")),
        (OneHot(5), uniform("bool", name="label")),
    )

    def values(self, field, count):
        rng = np.random.default_rng(0)
        if field.ragged:
            return Ragged.of(
                [rng.integers(0, 5, n % 4).astype(field.dtype) for n in range(count)], field.dtype
            )
        return rng.integers(0, 5, (count, *field.fixed_shape)).astype(field.dtype)


def test_the_label_becomes_a_one_at_its_place():
    assert OneHot(3).array(np, np.uint8(1), {}).tolist() == [0, 1, 0]
    assert OneHot(2, "int32").array(np, np.array([1, 0]), {}).tolist() == [[0, 1], [1, 0]]


def test_it_acts_on_the_label_by_default():
    spec = Spec((uniform(np.uint8, 4, 4, 3), uniform(np.int64, name="label")))

    assert compile_ops(spec, [OneHot(3)]).targets == (("label",),)


def test_it_equals_rows_of_numpy_s_identity():
    labels = np.array([4, 0, 2], np.int32)

    np.testing.assert_array_equal(
        OneHot(5).array_batch(np, labels, {}), np.eye(5, dtype=np.float32)[labels]
    )


def by_rows(graph, labels):
    return ArrayRowExecutor(graph).run({"label": labels}, [{}], {})


def by_batches(graph, labels):
    executor = ArrayBatchExecutor(graph, device="cpu")
    executor.start({"label": labels}, [{}])
    return executor.finish()


def by_dali(graph, labels):
    return dali_form(graph, labels, [{}], "cpu")


@pytest.mark.parametrize("wrong", [-1, 3, 200])
@pytest.mark.parametrize("run", [by_rows, by_batches, by_dali])
def test_a_label_that_is_no_class_is_named_with_its_row(run, wrong):
    graph = compile_ops(Spec((uniform(np.int16, name="label"),)), [OneHot(3)])
    labels = np.array([0, 2, wrong, -7], np.int16)

    with pytest.raises(RowError, match=f"label {wrong} is not in 0 to 2") as caught:
        run(graph, labels)

    assert caught.value.row == 2


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_too_few_classes_are_told_from_a_damaged_record(executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    source = gl.arrays(label=np.array([3, 9, 12, 1]))

    with (
        gl.Loader(source, batch_size=4, ops=[OneHot(10)], device="cpu", executor=executor) as load,
        pytest.raises(RecordError, match="record 2: label 12 is not in 0 to 9") as caught,
    ):
        next(iter(load))

    assert caught.value.cause == "num_classes is 10; this label needs at least 13"
    assert "gl.ops.OneHot(13)" in caught.value.remedy


def test_of_an_array_of_labels_the_largest_wrong_one_is_named_and_of_negative_ones_the_least():
    assert "label 12 " in OneHot(10).traits.check.error(np.array([3, 12, 11])).reason
    assert "label -7 " in OneHot(10).traits.check.error(np.array([3, -7, -1])).reason
    assert OneHot(10).traits.check.error(np.int8(-1)).cause == "labels count from 0"


@pytest.mark.parametrize("arguments", [(0,), (2.5,), (3, "complex64"), (3, "bool")])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="OneHot"):
        OneHot(*arguments)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_smoothed_labels_are_what_keras_makes_of_them(dtype):
    """Keras: ``y * (1 - s) + s / n``, printed in its documentation; of 4 classes and s = 0.2: 0.85
    and 0.05."""
    labels = OneHot(4, dtype, smoothing=0.2).array(np, np.array([2, 0]), {})

    assert labels.dtype == dtype
    np.testing.assert_allclose(
        labels, [[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]], rtol=1e-3
    )
    np.testing.assert_allclose(labels.astype(float).sum(axis=1), 1, rtol=1e-3)


def test_smoothing_of_1_leaves_nothing_of_the_label():
    assert OneHot(4, smoothing=1).array(np, np.array([2]), {}).tolist() == [[0.25] * 4]


def test_without_smoothing_the_op_has_the_same_name_in_a_state():
    assert state.canonical_text(OneHot(4, smoothing=0)) == "OneHot(num_classes=4)"
    assert state.canonical_text(OneHot(4, smoothing=0.1)) == "OneHot(num_classes=4, smoothing=0.1)"


@pytest.mark.parametrize(
    "arguments", [{"smoothing": -0.1}, {"smoothing": 1.5}, {"dtype": "int32", "smoothing": 0.1}]
)
def test_smoothing_that_cannot_be_is_refused(arguments):
    with pytest.raises(SpecError, match="smoothing"):
        OneHot(3, **arguments)


def test_without_on_it_takes_the_label_or_the_only_whole_number_and_never_the_image():
    image = np.zeros((4, 8, 8, 3), np.uint8)
    single = gl.arrays(image=image, cls=np.array([0, 1, 2, 1]), weight=np.ones(4, np.float32))
    double = gl.arrays(image=image, cls=np.arange(4), index=np.arange(4))

    batch = gl.Loader(single, 4, ops=[gl.ops.OneHot(3)], device="cpu").batch_at(0)

    assert batch["cls"].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert batch["image"].shape == (4, 8, 8, 3)
    with pytest.raises(SpecError, match=r"\['cls', 'index'\] are whole numbers") as error:
        gl.Loader(double, 4, ops=[gl.ops.OneHot(4)], device="cpu")
    assert "on='cls'" in error.value.remedy
    with pytest.raises(SpecError, match="there is no field 'label'"):
        gl.Loader(
            gl.arrays(image=image, weight=np.ones(4)), 4, ops=[gl.ops.OneHot(4)], device="cpu"
        )

"""Every op with every kind of wrong argument: what is wrong is a GpuloadError, and its remedy can
be typed."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError
from gpuload.graph.graph import compile_ops
from gpuload.ops import arguments
from gpuload.ops.base import Op
from gpuload.spec import Field, Spec
from gpuload.testing.ops import uniform
from tests.opexamples import NAMES, beside_boxes, example_arguments

WRONG: list[Any] = [
    *(object(), None, True, 1j, int, float, np.floating, Op, lambda x: x),
    *("", "nonsense", "image", b"image", "(2", "f4,f4"),
    *([], (), {}, [[1], [2, 3]], ["a"], [None], [1, "a"], {"a": 1}, {3: "linear"}, {"image": None}),
    *(-1, 0, 10**9, 10**400, 1e300, float("nan"), float("inf"), np.float32(0.5), np.int64(3)),
    *(np.array(3), np.zeros(0), np.array([0.5, 0.7]), np.array([[1]])),
]
CASES = [
    (name, argument.name)
    for name in NAMES
    for argument in dataclasses.fields(getattr(gl.ops, name))
]
FILES = Spec((Field("image", np.dtype(np.uint8), (None,), encoded=True),))
IMAGES = Spec((uniform(np.uint8, 32, 32, 3), uniform(np.uint8, name="label")))
BOXES = beside_boxes(gl.arrays(image=np.zeros((12, 32, 32, 3), np.uint8))).spec


@pytest.mark.parametrize(("name", "argument"), CASES, ids=["-".join(case) for case in CASES])
def test_a_wrong_argument_is_an_error_of_ours_with_cause_and_remedy_and_what_is_taken_is_of_its_type(
    name, argument
):
    kind, is_for_dali = getattr(gl.ops, name), name == "Dali"  # which checks its settings itself
    annotations = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    num_errors = 0

    for value in WRONG:
        error = error_of(kind, {**example_arguments(name), argument: value})
        if error is None:
            assert is_for_dali or is_plausible(annotations[argument], value), (
                annotations[argument],
                value,
            )
            continue
        num_errors += 1
        assert name in error.what or argument in error.what
        assert error.cause
        assert error.remedy
        check_what_it_says_to_type(error.remedy)
    assert num_errors or (is_for_dali and argument == "settings")


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_an_op_is_right(name):
    assert error_of(getattr(gl.ops, name), example_arguments(name)) is None


def error_of(kind, settings):
    """Return what is raised by an op that is made of some arguments and brought together with
    records."""
    try:
        op = kind(**settings)
        spec = FILES if kind is gl.ops.Decode else BOXES if op.traits.marks.are_read else IMAGES
        compile_ops(
            spec.only("image") if op.traits.mixes else spec, [op]
        )  # a class number beside it needs OneHot before
    except GpuloadError as error:
        return error
    return None


def is_plausible(annotation: str, value: Any) -> bool:
    """Return whether an argument of this type may have a value: no bool for a number, no nan, no
    array for a text."""
    if isinstance(value, (bool, np.bool_)):
        return "bool" in annotation or "Any" in annotation or "float | str" in annotation
    if value is None:
        return "None" in annotation or annotation == "Range"  # of ColorJitter: the image stays
    if isinstance(value, (float, np.floating)):
        return math.isfinite(value) and any(
            word in annotation for word in ("float", "Fill", "Any", "Range")
        )
    if isinstance(value, (str, bytes)):
        return "str" in annotation and bool(value)
    return isinstance(value, (int, np.integer, dict, list, tuple, np.ndarray)) or callable(value)


def check_what_it_says_to_type(remedy):
    """Make the ops that a remedy writes out, but for those with dots in place of arguments."""
    for text in re.findall(r"gl\.ops\.\w+\((?:[^()]|\([^()]*\))*\)", remedy):
        if "..." not in text.replace("[..., None]", "") and "Python(" not in text:
            assert isinstance(eval(text, {"gl": gl}), Op), remedy


@pytest.mark.parametrize(
    "on", [3, [], (), "", ("image", 3), ("image", "image"), [["image"]], {"image": 1}, b"image"]
)
def test_fields_that_are_no_names_are_refused_when_the_op_is_made(on):
    with pytest.raises(GpuloadError, match="a field name, or a tuple of them"):
        gl.ops.RandomFlip(on=on)


def test_a_list_of_fields_is_told_as_a_tuple():
    assert gl.ops.RandomFlip(on=["image", "mask"]) == gl.ops.RandomFlip(on=("image", "mask"))


def test_what_numpy_has_instead_of_numbers_is_taken_as_them():
    assert gl.ops.RandomCrop(np.int64(4), np.uint8(3)) == gl.ops.RandomCrop(4, 3)
    assert gl.ops.Normalize(np.float32(1), np.array([1.0, 2.0])) == gl.ops.Normalize(
        1.0, (1.0, 2.0)
    )


@pytest.mark.parametrize("dtype", ["float32", "f4", np.float32, np.dtype("<f4"), "<f4"])
def test_a_dtype_has_one_name(dtype):
    assert arguments.dtype_name(gl.ops.RandomFlip(), "dtype", dtype, ["float32"]) == "float32"

"""Specs are ordered, named and checked."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gpuload.errors import SpecError, UnknownFieldError
from gpuload.spec import Field, Layout, Part, Spec

F4 = np.dtype("f4")
X = Field("x", F4, (2, 3))


def test_a_field_is_uniform_if_no_axis_varies():
    assert X.uniform
    assert not Field("x", F4, (None, 3)).uniform
    assert not Field("x", F4, None).uniform


def test_the_shape_of_a_field_that_varies_is_an_error_that_names_it():
    with pytest.raises(SpecError, match=r"field 'x' has shape \(None, 3\)"):
        _ = Field("x", F4, (None, 3)).fixed_shape


@pytest.mark.parametrize(
    ("dtype", "host"), [("S4", True), ("U2", True), ("M8[s]", True), ("m8[s]", True), ("c8", False), ("?", False)]
)
def test_text_bytes_and_datetimes_stay_on_the_host(dtype, host):
    assert Field("x", np.dtype(dtype), ()).host_only is host


@pytest.mark.parametrize("dtype", [[("a", "f4"), ("b", "i2")], "(2,3)f4", [("a", "O")]])
def test_a_dtype_of_several_values_is_refused(dtype):
    with pytest.raises(SpecError, match=r"'x'.*dtype[\s\S]*a field has one dtype, of numbers, text or bytes"):
        Field("x", np.dtype(dtype), ())


def test_two_fields_of_one_name_are_refused():
    with pytest.raises(SpecError, match=r"\['x'\] occur twice"):
        Spec((X, X))


def test_a_field_that_is_not_there_is_an_error_that_names_those_that_are():
    with pytest.raises(UnknownFieldError, match=r"no field 'y'\n  cause:  the fields are \['x'\]"):
        Spec((X,))["y"]


def test_only_keeps_the_order_of_the_spec():
    spec = Spec((X, X.with_(name="y"), X.with_(name="z")))
    assert spec.only(["z", "x"]).names == ("x", "z")
    assert spec.replacing(X.with_(name="y", dtype=np.dtype("u1")))["y"].dtype == np.uint8
    assert "x" in spec
    assert len(spec) == 3


@pytest.mark.parametrize(
    ("layout", "direct"),
    [
        (Layout(24, (Part(X, F4),)), True),
        (Layout(25, (Part(X, F4),)), False),
        (Layout(24, (Part(X, np.dtype(">f4")),)), False),
        (Layout(24, (Part(X, F4, fortran=True),)), False),
        (Layout(28, (Part(X, F4, 4),)), False),
    ],
)
def test_bytes_that_are_the_field_already_need_no_decoding(layout, direct):
    assert layout.is_direct is direct


@pytest.mark.parametrize(
    ("part", "strides"),
    [
        (Part(X, F4), (12, 4)),
        (Part(X, F4, fortran=True), (4, 8)),
        (Part(X, F4, strides_bytes=(60, 20)), (60, 20)),
        (Part(X.with_(shape=()), F4), ()),
    ],
)
def test_strides_are_those_of_the_file_or_of_elements_side_by_side(part, strides):
    assert part.strides == strides


@pytest.mark.parametrize(
    ("shape", "ragged"),
    [
        ((None,), True),
        ((None, 3), True),
        ((None, None), False),
        ((3, None), False),
        ((3,), False),
        ((), False),
        (None, False),
    ],
)
def test_a_field_is_ragged_if_only_its_first_axis_varies(shape, ragged):
    assert Field("x", F4, shape).ragged is ragged


@pytest.mark.parametrize(
    ("second", "same"),
    [
        (Layout(24, (Part(X, F4),)), True),
        (Layout(24, (Part(X.with_(name="y", axes="HW"), F4),)), True),
        (Layout(25, (Part(X, F4),)), False),
        (Layout(24, (Part(X, np.dtype(">f4")),)), False),
        (Layout(24, (Part(X, F4, fortran=True),)), False),
        (Layout(24, (Part(X, F4, strides_bytes=(4, 8)),)), False),
        (Layout(24, (Part(X, F4, 4),)), False),
        (Layout(24, (Part(X.with_(shape=(3, 2)), F4),)), False),
        (Layout(24, (Part(X, F4), Part(X.with_(name="y"), F4))), False),
        (Layout(24, ()), False),
    ],
)
def test_layouts_have_the_same_bytes_whatever_the_names(second, same):
    layout = Layout(24, (Part(X, F4),))

    assert layout.same_bytes(second) is same
    assert second.same_bytes(layout) is same


def test_the_spec_of_a_layout_is_its_fields_in_order():
    layout = Layout(48, (Part(X, F4), Part(X.with_(name="y"), F4, 24)))

    assert layout.spec == Spec((X, X.with_(name="y")))


def test_thousands_of_fields_are_no_quadratic_work():
    fields = tuple(Field(f"field {number}", F4, ()) for number in range(16_000))
    start = time.process_time()

    spec = Spec(fields)
    results = [spec[field.name] for field in fields if field.name in spec]

    assert len(spec.only(spec.names)) == len(results) == 16_000
    assert time.process_time() - start < 2  # some 0.1 s; it was 15

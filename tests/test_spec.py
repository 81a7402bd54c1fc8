"""Specs are ordered, named and checked."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import CallError, SpecError, UnknownFieldError
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
    ("dtype", "host"),
    [("S4", True), ("U2", True), ("M8[s]", True), ("m8[s]", True), ("c8", False), ("?", False)],
)
def test_text_bytes_and_datetimes_stay_on_the_host(dtype, host):
    assert Field("x", np.dtype(dtype), ()).host_only is host


@pytest.mark.parametrize("dtype", [[("a", "f4"), ("b", "i2")], "(2,3)f4", [("a", "O")]])
def test_a_dtype_of_several_values_is_refused(dtype):
    with pytest.raises(
        SpecError, match=r"'x'.*dtype[\s\S]*a field has one dtype, of numbers, text or bytes"
    ):
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


def test_the_repr_of_a_field_is_the_call_that_makes_it():
    fields = [
        Field("x", F4, (2, None)),
        Field("image", np.dtype("u1"), (None,), encoded=True),
        Field("photo", np.dtype("u1"), None, axes="HWC"),
        Field("label", np.dtype("O"), (), text="str"),
        Field("classes", np.dtype("<U3"), (4,), rows_of="boxes"),
        Field("day", np.dtype("M8[D]"), (), kind=""),
    ]

    assert [eval(repr(field), {"gl": gl}) for field in fields] == fields
    assert repr(fields[0]) == "gl.Field('x', 'float32', (2, None))"
    assert repr(fields[1]) == "gl.Field('image', 'uint8', (None,), encoded=True)"


def numbered(count):
    return Spec(tuple(Field(f"column {number}", F4, (3,)) for number in range(count)))


def test_the_repr_of_a_spec_is_a_line_where_that_fits_and_else_a_line_a_field():
    assert repr(Spec(())) == "<gl.Spec: 0 fields>"
    assert repr(numbered(1)) == "<gl.Spec: 1 field; column 0: float32 (3,)>"
    assert repr(numbered(3)) == (
        "<gl.Spec: 3 fields;\n  column 0: float32 (3,);\n  column 1: float32 (3,);\n  column 2: float32 (3,)>"
    )
    assert repr(numbered(40)).splitlines()[1:] == [
        f"  column {number}: float32 (3,){';' if number < 39 else '>'}" for number in range(40)
    ]
    assert repr(numbered(70)).splitlines()[-2:] == [
        "  column 63: float32 (3,);",
        "  ... and 6 more fields>",
    ]


@pytest.mark.parametrize("count", [1, 3, 9, 40])
def test_source_loader_and_batch_are_shown_in_80_columns_with_the_first_fields(count):
    source = gl.arrays(**{f"column_{number}": np.zeros((64, 3), "f4") for number in range(count)})
    with gl.Loader(source, 16, device="cpu") as loader:
        texts = [repr(source), repr(loader), repr(loader.peek())]

    assert all(len(line) <= 80 for text in texts for line in text.splitlines())
    num_fields = min(count, 9)
    expected = [1, 1, 1] if count == 1 else [1 + num_fields, 2 + num_fields, 1 + num_fields]
    assert [len(text.splitlines()) for text in texts] == expected
    assert ["  ... and 32 more fields" in text for text in texts] == [count == 40] * 3


def test_errors_name_a_source_of_many_fields_in_one_line():
    source = gl.arrays(**{f"column_{number}": np.zeros(0) for number in range(40)})

    with pytest.raises(SpecError) as caught:
        gl.mix({source: 1.0})

    assert caught.value.what == "gl.mix: part 0 is <gl.arrays: 0 records>"
    with pytest.raises(CallError) as caught:
        gl.Loader(source, batches=3)
    assert str(caught.value).startswith(
        "gl.Loader(<gl.arrays: 0 records, column_0: float64 (), column_1: float64 (), "
    )
    assert "\n" not in caught.value.what


def test_names_of_fields_are_shown_without_what_moves_a_terminal():
    source = gl.arrays(**{"a\x1b[2J\n": [1]})

    assert repr(source) == r"<gl.arrays: 1 record, a\x1b[2J\n: int64 ()>"

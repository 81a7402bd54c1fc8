"""Cast."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import DeviceError, RecordError, RowError, SpecError
from gpuload.ops import Cast, Normalize
from gpuload.ops.value import cast
from gpuload.ops.value.cast import exact_cast
from gpuload.ragged import Ragged
from gpuload.spec import Field
from gpuload.testing.ops import OpContract, numbers, uniform, varying
from tests import simdevice

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
HARD = (
    *(
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -1.5,
        -2.5,
        0.49999997,
        -0.49999997,
        127.5,
        128.5,
    ),
    *(
        255.5,
        254.5,
        -128.5,
        -129,
        32767.5,
        65535.5,
        2.0**31,
        2.0**31 - 128,
        -(2.0**31),
        2.0**32,
        2.0**63,
        2.0**64,
    ),
    *(-(2.0**63), 3e38, -3e38, 8388607.5, 4194304.5, 1e-40, 65504, 65519.9, 65520, 3e-8),
)


RAGGED = Field("x", np.dtype(np.float32), (None,))


class TestCast(OpContract):
    cases = (
        *(
            (Cast(dtype), uniform(source_dtype, 6, 7, 3))
            for dtype in INTEGERS
            for source_dtype in ("f2", "f4", "i4", "?")
        ),
        *(
            (Cast(dtype), uniform(source_dtype, 5))
            for dtype in ("int8", "uint32", "int64")
            for source_dtype in INTEGERS
        ),
        *(
            (Cast(dtype), uniform(source_dtype, 4, 4, 3))
            for dtype in FLOATS
            for source_dtype in (*FLOATS, "u1", "i8", "u8")
        ),
        (Cast("float32"), varying(np.uint8, 3)),
        (Cast("uint8"), varying(np.float32, 3)),
        (Cast("int32"), uniform(np.uint8)),
        (Cast("int32"), RAGGED),
        (Cast("float16"), Field("x", np.dtype(np.uint8), (None, 3, 2))),
    )
    neutral = tuple((Cast(dtype), uniform(dtype, 5, 6, 3)) for dtype in (*INTEGERS, *FLOATS))
    refused = (
        (Cast("uint8"), uniform("float64", 3)),
        (Cast("uint8"), uniform("M8[s]", 3)),
        (Cast("float32"), uniform("m8[us]")),
        (Cast("int64"), uniform("M8[W]")),
        (Cast("int64", unit="s"), uniform("m8[M]")),
        (Cast("int64", unit="s"), uniform("int64")),
        (Cast("float32"), uniform("complex64", 3)),
    )

    def values(self, field, count):
        values = numbers(field, count)
        if field.uniform and field.dtype.kind == "f" and values[0].size >= len(HARD):
            with np.errstate(over="ignore"):
                values.reshape(count, -1)[:, : len(HARD)] = np.array(HARD).astype(field.dtype)
        return values


@pytest.mark.parametrize(
    ("numbers", "dtype", "expected"),
    [
        ([0.5, 1.5, 2.5, -0.5, -1.5], "int8", [1, 2, 3, -1, -2]),
        ([0.49999997, 254.5, 255.4, 255.5, -0.6], "uint8", [0, 255, 255, 255, 0]),
        ([np.nan, np.inf, -np.inf], "uint8", [0, 255, 0]),
        ([np.nan, np.inf, -np.inf], "int32", [0, 2**31 - 1, -(2**31)]),
        ([np.nan, np.inf, -np.inf], "int64", [0, 2**63 - 1, -(2**63)]),
        ([2.0**63, 2.0**64, 1e30], "uint64", [2**63, 2**64 - 1, 2**64 - 1]),
        ([4194304.5, 8388607.5, 8388609.0], "int32", [4194305, 8388608, 8388609]),
    ],
)
def test_floats_are_rounded_halves_away_from_zero_and_bounded(numbers, dtype, expected):
    result = Cast(dtype).array(np, np.array(numbers, np.float32), {})

    assert result.tolist() == expected
    assert result.dtype == dtype


def test_integers_are_bounded():
    numbers = np.array([-(2**63), -1, 0, 255, 256, 2**63 - 1], np.int64)

    assert Cast("uint8").array(np, numbers, {}).tolist() == [0, 0, 0, 255, 255, 255]
    assert Cast("int8").array(np, numbers, {}).tolist() == [-128, -1, 0, 127, 127, 127]
    assert Cast("uint64").array(np, numbers, {}).tolist() == [0, 0, 0, 255, 256, 2**63 - 1]
    assert Cast("int64").array(np, np.array([2**64 - 1], np.uint64), {}).tolist() == [2**63 - 1]


def test_too_large_for_float16_is_infinite():
    assert Cast("float16").array(np, np.float32([65504, 65519, 65520]), {}).tolist() == [
        65504,
        65504,
        np.inf,
    ]


@pytest.mark.parametrize("dtype", ["bool", "complex64", "U3", "float128", "nonsense", None, 3])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(SpecError, match="Cast"):
        Cast(dtype)


@pytest.mark.parametrize(
    "dtype", ["float", "int", "uint", "double", "half", "f", float, int, np.floating]
)
def test_a_name_that_leaves_the_width_open_is_refused_with_one_that_does_not(dtype):
    with pytest.raises(SpecError, match="says how many bits it has") as caught:
        Cast(dtype)

    named = caught.value.remedy.removeprefix("write '").removesuffix("', say")
    assert Cast(named).dtype == named


BFLOAT16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
# Of float32, the upper 16 bits; rounded to nearest, halves to even: 1 + 2**-8 lies in the middle of
# two.
HALVES = [1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3e38, -2.5, 0.1, np.inf]
BITS = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x7F62, 0xC020, 0x3DCD, 0x7F80]


@pytest.mark.parametrize("dtype", ["bfloat16", BFLOAT16, BFLOAT16.type])
def test_to_bfloat16_is_the_nearest(dtype):
    floats = np.array(HALVES, np.float32)

    (batch,) = gl.Loader(gl.arrays(x=floats), 8, ops=[Cast(dtype)], device="cpu")

    assert batch["x"].dtype == BFLOAT16
    assert batch["x"].view(np.uint16).tolist() == BITS


@pytest.mark.parametrize("executor", ["auto", "dali"])
@pytest.mark.parametrize(
    ("dtype", "behind"),
    [("float32", []), ("float64", []), ("int32", []), ("float32", [Cast("f2")])],
)
def test_from_bfloat16_it_is_exact(dtype, behind, executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    numbers = np.array([[1, -2.5, 0.10009765625], [3, 100, 0]], BFLOAT16)

    load = gl.Loader(
        gl.arrays(x=numbers), 2, ops=[Cast(dtype), *behind], device="cpu", executor=executor
    )

    with load:
        values = load.batch_at(0)["x"]
    expected = np.array([[1, -2.5, 0.10009765625], [3, 100, 0]], np.float64)
    assert values.dtype == (behind[0].dtype if behind else dtype)
    assert (
        values.tolist()
        == (expected if dtype != "int32" else np.array([[1, -3, 0], [3, 100, 0]])).tolist()
    )


def test_on_a_gpu_it_comes_from_the_host_and_does_not_go_back(monkeypatch):
    simdevice.install(monkeypatch, seed=2)
    source = gl.arrays(x=np.array([[1, -2.5], [3, 100]], BFLOAT16))

    with gl.Loader(
        source, 2, ops=[Cast("f4"), Normalize(1, 2)], device="gpu", executor="array"
    ) as load:
        assert np.asarray(load.batch_at(0)["x"].get()).tolist() == [[0, -1.75], [1, 49.5]]
    floats = gl.arrays(x=np.zeros((2, 2), np.float32))
    with pytest.raises(DeviceError, match="would stay on the host") as caught:
        gl.Loader(
            floats, 2, ops=[Normalize(1, 2), Cast("bfloat16")], device="gpu", executor="array"
        )

    assert "tf.cast(images, tf.bfloat16)" in caught.value.remedy


def test_other_ops_say_that_bfloat16_wants_cast():
    with pytest.raises(SpecError, match="bfloat16") as caught:
        gl.Loader(gl.arrays(x=np.zeros((2, 2), BFLOAT16)), 2, ops=[Normalize(1, 2)], device="cpu")

    assert "Cast('float32', on='x')" in caught.value.remedy
    with pytest.raises(SpecError, match="neither NumPy nor CuPy nor DALI has bfloat16") as caught:
        Normalize(1, 2, dtype="bfloat16")

    assert "gl.ops.Cast('bfloat16')" in caught.value.remedy


def test_ragged_values_keep_their_lengths():
    values = Ragged(np.array([9, 0.5, 1.5, -2.5, 300, 7], np.float32), np.array([1, 3, 3, 5]))

    result = Cast("uint8").array_batch(np, values, {})

    assert [row.tolist() for row in result] == [[1, 2], [], [0, 255]]
    assert result.dtype == np.uint8


def test_a_kernel_bounds_integers_and_no_booleans():
    def kernel(before, after):
        return cast._kernel(np.dtype(before), np.dtype(after))

    assert (
        "to[channel] = (Out)(value < (In)0ULL ? (In)0ULL : value > (In)255ULL ? (In)255ULL : value);"
        in kernel("i2", "u1")
    )
    assert "to[channel] = (Out)value;" in kernel("?", "i4")


def test_one_dtype_has_one_text():
    assert {repr(Cast(dtype)) for dtype in ("float32", "f4", np.float32, np.dtype("<f4"))} == {
        "Cast('float32')"
    }


DATES = np.array(["2020-01-01", "1969-12-31T23:59:59.5", "9999-12-31"], "M8[ms]")


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        # Seconds by `date -u -d DATE +%s`; halves of a second before 1970 are rounded down.
        (DATES, None, [1577836800000, -500, 253402214400000]),
        (DATES, "s", [1577836800, -1, 253402214400]),
        (DATES, "D", [18262, -1, 2932896]),
        (DATES, "us", [1577836800000000, -500000, 253402214400000000]),
        (np.array(["2020-01-01", "2020-01-02"], "M8[D]"), None, [18262, 18263]),
        (np.array(["1970-02", "1969-01"], "M8[M]"), "D", [31, -365]),
        (np.array([90, -90], "m8[m]"), "s", [5400, -5400]),
        (np.array([90, -90], "m8[m]"), "h", [1, -2]),
        (np.array([-(2**63) + 1, 2**63 - 1], "M8[ns]"), "s", [-9223372037, 9223372036]),
        (np.array([3], "M8[25s]"), None, [75]),
    ],
)
def test_dates_become_numbers_of_units_since_1970(values, unit, expected):
    op = Cast("int64", unit=unit)

    assert op.array_batch(np, values, {}).tolist() == expected
    assert [op.array(np, value, {}).item() for value in values] == expected
    assert op.field_after(Field("x", np.dtype("M8[s]"), ())) == Field("x", np.dtype(np.int64), ())


@pytest.mark.parametrize(
    ("values", "unit", "row", "cause"),
    [
        (np.array(["2020", "NaT"], "M8[D]"), None, 1, "is missing"),
        (DATES, "ns", 2, "9999-12-31(.|\n)* is too far away"),
        (np.array([2**62], "M8[W]"), "s", 0, "is too far away"),
        (np.array([2**62], "M8[Y]"), "D", 0, "is too far away"),
        (np.array([["2020", "2021"], ["2020", "NaT"]], "M8[D]"), "s", 1, "is missing"),
        (
            Ragged.of([np.array(["2020"], "M8[D]"), np.array(["2020", "NaT"], "M8[D]")], "M8[D]"),
            "s",
            1,
            "is missing",
        ),
    ],
)
def test_a_date_that_no_number_stands_for_is_refused_with_its_row(values, unit, row, cause):
    with pytest.raises(RowError, match=cause) as error:
        Cast("int64", unit=unit).array_batch(np, values, {})

    assert error.value.row == row


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"])
def test_the_call_that_errors_print_for_dates_loses_no_part_of_them(unit):
    dates = np.array([1, 7, 50], f"M8[{unit}]")
    call = exact_cast(Field("x", dates.dtype, ()))
    op = eval(call, {"gl": gl})
    numbers_unit = op.unit or unit

    numbers = op.array_batch(np, dates, {})

    np.testing.assert_array_equal(numbers.astype(f"M8[{numbers_unit}]").astype(dates.dtype), dates)
    if op.unit is not None:
        with pytest.raises(SpecError) as error:
            Cast("int64", on="x").field_after(Field("x", dates.dtype, ()))
        assert call in str(error.value)


def test_parts_that_no_unit_holds_are_named():
    call = exact_cast(Field("x", np.dtype("M8[ps]"), ()))
    assert call == "gl.ops.Cast('int64', unit='ns', on='x'), which leaves out parts of a nanosecond"


def test_a_date_beyond_a_unit_is_answered_by_the_unit_that_holds_it():
    with pytest.raises(RowError) as error:
        Cast("int64", unit="ns").array_batch(np, DATES, {})
    assert error.value.remedy.startswith("leave unit= out: numbers of 'ms', as the field has them")


def test_a_loader_names_the_record_of_a_missing_date():
    source = gl.arrays(
        day=np.array(["2020-01-01", "2020-01-02", "NaT", "2020-01-04"], "M8[D]"), x=np.arange(4)
    )

    with gl.Loader(source, 2, ops=[Cast("int64", unit="h", on="day")], device="cpu") as loader:
        assert np.asarray(loader.batch_at(0)["day"]).tolist() == [438288, 438312]
        with pytest.raises(RecordError, match=r"record 2(.|\n)*a date is missing"):
            loader.batch_at(1)


@pytest.mark.parametrize("unit", ["Y", "week", 1])
def test_other_units_are_refused(unit):
    with pytest.raises(SpecError, match="unit"):
        Cast("int64", unit=unit)


def test_text_that_is_named_is_said_to_be_text():
    source = gl.arrays(a=np.array(["1,5"]), b=np.array([1j]))

    with pytest.raises(SpecError) as caught:
        gl.Loader(source, batch_size=1, ops=[Cast("float32", on="a")])
    assert caught.value.remedy.startswith("'a' is text")
    with pytest.raises(SpecError) as caught:
        gl.Loader(source, batch_size=1, ops=[Cast("float32", on=("b",))])
    assert caught.value.remedy == "leave 'b' out of on="


@pytest.mark.parametrize(
    ("text", "number", "value"),
    [("a;b\n2,5;1\n", 0, 2.5), ('a,b\n"1,000",1\n', 1, 1000)],
    ids=["decimal", "thousands"],
)
def test_the_csv_calls_in_the_remedy_for_text_read_its_numbers(tmp_path, text, number, value):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        Cast("float32", on="a").field_after(Field("a", np.dtype("U5"), ()))
    call = re.findall(r"gl\.csv\([^)]*\)", caught.value.remedy)[number]

    loader = gl.Loader(
        eval(call, {"gl": gl, "path": path}), batch_size=1, ops=[Cast("float32", on="a")]
    )

    assert [batch["a"].tolist() for batch in loader] == [[value]]

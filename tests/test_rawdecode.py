"""Raw bytes become the fields that NumPy finds in them, on every array library alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpuload import rawdecode
from gpuload.errors import SpecError
from gpuload.sources.layouts import compact_layout, layout_of
from gpuload.testing.sources import assert_same
from tests.sources.npyfiles import fields_of

NUMBERS = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
)
TEXTS = st.one_of(
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(endianness="?", min_len=1),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
)


def structures(kinds):
    return st.one_of(
        kinds,
        hnp.nested_dtypes(kinds, max_leaves=6, max_itemsize=300).filter(
            lambda d: d.subdtype is None
        ),
    )


@st.composite
def raw_records(draw, kinds):
    """Return records as NumPy has them, their raw bytes and their layout."""
    dtype = draw(structures(kinds))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    count, fortran = draw(st.integers(0, 4)), draw(st.booleans())
    records = draw(hnp.arrays(dtype, (count, *shape)))
    layout = layout_of(dtype, shape, field="x", fortran=fortran)
    stored = b"".join(records[i, ...].tobytes(order="F" if fortran else "C") for i in range(count))
    raw = np.frombuffer(stored, np.uint8)
    return records, raw.reshape(count, layout.record_bytes).copy(), layout


@given(raw_records(st.one_of(NUMBERS, TEXTS)))
def test_fields_are_what_numpy_finds_in_the_records(case):
    records, raw, layout = case

    fields = rawdecode.decode(np, raw, layout)

    assert list(fields) == list(fields_of(records))
    for name, expected in fields_of(records).items():
        assert_same(fields[name], expected)


@given(raw_records(NUMBERS))
def test_bytes_alone_give_the_same_as_numpy(case):
    _, raw, layout = case

    for part in layout.parts:
        assert_same(
            rawdecode._by_bytes(np, raw, part), rawdecode.decode(np, raw, layout)[part.field.name]
        )


@given(raw_records(st.one_of(NUMBERS, TEXTS)))
def test_fields_are_decoded_into_arrays_that_are_there(case):
    records, raw, layout = case
    expected = fields_of(records)
    out = {name: np.ndarray(values.shape, values.dtype) for name, values in expected.items()}

    rawdecode.decode_into(raw, layout, out)

    for name, values in expected.items():
        assert_same(out[name], values)


@given(raw_records(st.one_of(NUMBERS, TEXTS)))
def test_the_packed_layout_holds_the_same_fields_native(case):
    records, raw, layout = case
    native = compact_layout(layout)
    again = np.zeros((len(raw), native.record_bytes), np.uint8)
    for part, stored in zip(native.parts, layout.parts, strict=True):
        rawdecode.view_part(again, part)[...] = rawdecode.view_part(raw, stored)

    fields = rawdecode.decode(np, again, native)

    assert all(part.is_native for part in native.parts)
    for name, expected in fields_of(records).items():
        assert_same(fields[name], expected)


def test_native_fields_are_views_at_any_alignment():
    layout = layout_of(np.dtype([("label", "u1"), ("value", "<f4", (2,))]), field="x")
    raw = np.zeros((3, 9), np.uint8)

    fields = rawdecode.decode(np, raw, layout)
    raw[1] = [7, *np.array([1.5, -2], "<f4").view(np.uint8)]

    assert fields["label"].tolist() == [0, 7, 0]
    assert fields["value"].tolist() == [[0, 0], [1.5, -2], [0, 0]]


def test_rows_may_be_apart():
    layout = layout_of(np.dtype(">i2"), (2,), field="x")
    raw = np.arange(30, dtype=np.uint8).reshape(5, 6)[::2, 1:5]

    assert rawdecode.decode(np, raw, layout)["x"].tolist() == [
        [0x0102, 0x0304],
        [0x0D0E, 0x0F10],
        [0x191A, 0x1B1C],
    ]


@pytest.mark.parametrize(
    ("dtype", "shape", "fortran", "direct"),
    [
        ("<f4", (3,), False, True),
        ("|u1", (), False, True),
        (">f4", (3,), False, False),
        ("<f4", (3, 2), True, False),
        ([("a", "<f4")], (), False, True),
        ([("a", "<f4")], (3,), False, True),
        ([("a", "<f4"), ("b", "u1")], (), False, False),
        ({"names": ["a"], "formats": ["<f4"], "offsets": [4]}, (), False, False),
    ],
)
def test_raw_bytes_are_the_field_itself_where_they_are_native_and_nothing_else(
    dtype, shape, fortran, direct
):
    layout = layout_of(np.dtype(dtype), shape, field="x", fortran=fortran)

    assert layout.is_direct is direct


@pytest.mark.parametrize(
    "raw",
    [
        np.zeros((2, 5), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((2, 4), np.int8),
        np.zeros((2, 8), np.uint8)[:, ::2],
    ],
)
def test_what_is_no_block_of_the_layout_is_refused(raw):
    with pytest.raises(SpecError, match="raw records"):
        rawdecode.decode(np, raw, layout_of(np.dtype("<f4"), field="x"))


@pytest.mark.parametrize("dtype", ["S3", "U2", "M8[s]"])
def test_fields_for_the_host_alone_are_refused_elsewhere(dtype):
    layout = layout_of(np.dtype(dtype), field="x")

    with pytest.raises(SpecError, match="on the host"):
        rawdecode._by_bytes(np, np.zeros((2, layout.record_bytes), np.uint8), layout.parts[0])


@pytest.mark.parametrize("dtype", ["O", [("a", "O")], []])
def test_a_dtype_without_bytes_of_its_own_is_no_layout(dtype):
    with pytest.raises(SpecError):
        layout_of(np.dtype(dtype), field="x")


@pytest.mark.gpu
@given(raw_records(NUMBERS))
def test_cupy_decodes_what_numpy_decodes(case):
    cupy = pytest.importorskip("cupy")
    _, raw, layout = case

    on_gpu = rawdecode.decode(cupy, cupy.asarray(raw), layout)

    for name, expected in rawdecode.decode(np, raw, layout).items():
        assert (
            on_gpu[name].flags.c_contiguous or expected.itemsize == 1
        )  # bytes stay where they lie
        assert_same(cupy.asnumpy(on_gpu[name]), expected)


@pytest.mark.gpu
def test_cupy_makes_no_copy_of_a_native_field_that_fills_the_record():
    cupy = pytest.importorskip("cupy")
    raw = cupy.zeros((4, 24), cupy.uint8)

    values = rawdecode.decode(cupy, raw, layout_of(np.dtype("<f4"), (2, 3), field="x"))["x"]

    assert values.data.ptr == raw.data.ptr

"""Arrays in memory."""

from __future__ import annotations

import datetime
import re

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpuload as gl
from gpuload import core
from gpuload.errors import RecordIndexError, SpecError
from gpuload.sources.arrays import arrays
from gpuload.sources.layouts import layout_of
from gpuload.sources.shares import fill
from gpuload.testing.sources import SourceContract, assert_same

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (7, 4, 5, 3), np.uint8)
LABELS = RNG.integers(0, 10, 7)
NUMBERS = RNG.standard_normal((7, 6, 2))


@pytest.fixture(params=["compiled", "numpy"])
def gather(request, monkeypatch):
    """Gather in the core, and with NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(core, "native", None)
    elif core.native is None:
        pytest.skip(core.problem)
    return request.param


@pytest.mark.usefixtures("gather")
class TestArraysInCOrder(SourceContract):
    def open(self, folder):
        return arrays(image=IMAGES, label=LABELS)

    def open_other(self, folder):
        return arrays(image=IMAGES, label=LABELS + 1)

    def expected(self):
        return {"image": IMAGES, "label": LABELS}


@pytest.mark.usefixtures("gather")
class TestArraysOfOtherForms(SourceContract):
    """Big-endian, Fortran order, strided, reversed, read-only, transposed, of no bytes."""

    def open(self, folder):
        fixed = NUMBERS.copy()
        fixed.setflags(write=False)
        return arrays(
            big=NUMBERS.astype(">f8"),
            fortran=np.asfortranarray(NUMBERS),
            strided=np.repeat(NUMBERS, 2, axis=0)[::2, ::2],
            backwards=NUMBERS[::-1][::-1],
            fixed=fixed,
            transposed=np.ascontiguousarray(NUMBERS.transpose(1, 2, 0)).transpose(2, 0, 1),
            column=NUMBERS[:, 3, 1],
            nothing=NUMBERS[:, :0],
        )

    def open_other(self, folder):
        return arrays(big=NUMBERS)

    def expected(self):
        return {
            "big": NUMBERS,
            "fortran": NUMBERS,
            "strided": NUMBERS[:, ::2],
            "backwards": NUMBERS,
            "fixed": NUMBERS,
            "transposed": NUMBERS,
            "column": NUMBERS[:, 3, 1],
            "nothing": NUMBERS[:, :0],
        }


class TestArraysOfTexts(SourceContract):
    """Objects, as the columns of pandas: texts and bytes of any length, beside numbers."""

    texts = np.array(["one", "", "żółw", "a" * 70_000] * 25, object)

    def open(self, folder):
        raw = np.array([text.encode() for text in self.texts], object)
        return arrays(text=self.texts, raw=raw, number=np.arange(100))

    def open_other(self, folder):
        other = self.texts.copy()
        other[99] = "a" * 69_999 + "b"
        return arrays(
            text=other,
            raw=np.array([text.encode() for text in self.texts], object),
            number=np.arange(100),
        )

    def expected(self):
        raw = np.array([text.encode() for text in self.texts], object)
        return {"text": self.texts, "raw": raw, "number": np.arange(100)}


class TestArraysOfTheHost(SourceContract):
    """Text, bytes, dates, a structured array, a list."""

    table = np.array(
        [(1, (2.5, 3)), (4, (5.5, 6)), (7, (8.5, 9))],
        [("a", ">i4"), ("b", [("c", "f4"), ("d", "u1")])],
    )

    def open(self, folder):
        return arrays(
            text=np.array(["one", "two", "drei"]),
            raw=np.array([b"x", b"yy", b"zzz"]),
            day=np.array(["2026-01-01", "2026-01-02", "NaT"], "M8[D]"),
            flag=[True, False, True],
            table=self.table,
        )

    def open_other(self, folder):
        return arrays(text=np.array(["one", "two", "three"]))

    def expected(self):
        return {
            "text": np.array(["one", "two", "drei"]),
            "raw": np.array([b"x", b"yy", b"zzz"]),
            "day": np.array(["2026-01-01", "2026-01-02", "NaT"], "M8[D]"),
            "flag": np.array([True, False, True]),
            "a": self.table["a"].astype("i4"),
            "b.c": self.table["b"]["c"].astype("f4"),
            "b.d": self.table["b"]["d"],
        }


@st.composite
def arrays_and_indices(draw):
    dtypes = st.one_of(
        hnp.integer_dtypes(endianness="?"), hnp.floating_dtypes(endianness="?"), hnp.boolean_dtypes(),
        hnp.complex_number_dtypes(endianness="?"), hnp.datetime64_dtypes(endianness="?"), hnp.byte_string_dtypes(),
    )  # fmt: skip
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    array = draw(hnp.arrays(draw(dtypes), shape))
    array = draw(
        st.sampled_from(
            [array, np.asfortranarray(array), array[::-1], np.repeat(array, 2, 0)[1::2]]
        )
    )
    if array.ndim > 1 and draw(st.booleans()):
        array = array.swapaxes(0, 1)
    return array, draw(st.lists(st.integers(0, len(array) - 1)))


@given(arrays_and_indices())
def test_any_array_is_read_as_numpy_indexes_it(case):
    array, indices = case

    read = arrays(x=array).read(indices)["x"]

    expected = array[indices] if indices else array[:0]
    assert read.dtype == array.dtype.newbyteorder("=")
    assert read.shape == expected.shape
    assert read.tobytes() == expected.astype(read.dtype).tobytes()


def test_the_arrays_are_held_and_not_copied():
    array = np.zeros((3, 2))
    source = arrays(x=array)

    array[1] = 7

    assert source[1]["x"].tolist() == [7, 7]


def test_groups_hold_the_bytes_as_stored():
    source = arrays(x=NUMBERS.astype(">f8"), y=NUMBERS.astype("<f8"))
    out = [np.zeros((7, group.layout.record_bytes), np.uint8) for group in source.groups]
    shares = source.resolve(np.arange(7))

    for number, group in enumerate(source.groups):
        fill(shares, number, group.layout, out[number])

    assert out[0].tobytes() == NUMBERS.astype(">f8").tobytes()
    assert out[1].tobytes() == NUMBERS.astype("<f8").tobytes()
    assert source.groups[1].layout.is_direct
    assert not source.groups[0].layout.is_direct


@pytest.mark.usefixtures("gather")
def test_read_only_numbers_and_places_are_taken():
    [share] = arrays(x=NUMBERS).resolve(np.array([3, 1]))
    numbers, begins, out = np.array([3, 1]), np.array([96, 0]), np.zeros(192, np.uint8)
    numbers.flags.writeable = begins.flags.writeable = False

    share.leaf.read(numbers, out, begins)

    assert_same(out.view(np.float64).reshape(2, 6, 2), NUMBERS[[1, 3]])


@pytest.mark.usefixtures("gather")
@pytest.mark.parametrize(
    ("number", "begin"), [(7, 0), (-1, 0), (0, 97), (0, -1), (2**62, 0), (0, 2**62)]
)
@pytest.mark.parametrize("array", [NUMBERS, np.asfortranarray(NUMBERS)], ids=["C", "F"])
def test_nothing_is_copied_outside(number, begin, array):
    [share] = arrays(x=array).resolve(np.array([0]))
    out = np.zeros(192, np.uint8)

    with pytest.raises(RecordIndexError):
        share.leaf.read(np.array([1, number]), out, np.array([96, begin]))
    assert not out.any()


@pytest.mark.parametrize(
    ("source", "out"),
    [
        (np.zeros((3, 4), np.int8), np.zeros(8, np.uint8)),
        (np.zeros((4, 3), np.uint8).T, np.zeros(8, np.uint8)),
        (np.zeros((3, 4), np.uint8), np.zeros(8, np.int64)),
        (np.zeros((3, 4), np.uint8), np.zeros(16, np.uint8)[::2]),
        (np.zeros((3, 4), np.uint8), np.frombuffer(bytes(8), np.uint8)),
        (np.zeros(12, np.uint8), np.zeros(8, np.uint8)),
    ],
)
def test_the_core_takes_arrays_of_bytes_and_no_others(source, out):
    if core.native is None:
        pytest.skip(core.problem)

    with pytest.raises(TypeError, match="gather_rows"):
        core.native.gather_rows(source, np.array([0]), out, np.array([0]))


@pytest.mark.usefixtures("gather")
def test_records_of_another_width_than_the_rows_are_refused_and_never_written_beyond():
    """A leaf whose layout is not the group's was once copied with its own width, behind the memory
    of the group."""
    wide, narrow = arrays(x=NUMBERS), arrays(x=NUMBERS[:, :1])
    shares, group = wide.resolve(np.array([0, 1])), narrow.groups[0]
    memory = np.full((4, group.layout.record_bytes), 0xA5, np.uint8)

    with pytest.raises(SpecError, match="in rows of"):
        fill(shares, 0, group.layout, memory[:2])
    assert (memory == 0xA5).all()


@pytest.mark.parametrize(
    "how", [lambda m: m, np.asarray, lambda m: m[1:, ::2], lambda m: np.asarray(m)[2:].view("u1")]
)
def test_an_array_of_a_file_is_refused_with_the_remedy(tmp_path, how):
    np.save(tmp_path / "a.npy", NUMBERS)
    memory = np.load(tmp_path / "a.npy", mmap_mode="r")

    with pytest.raises(SpecError, match=r"x is an array of a file(.|\n)*gl\.npy"):
        arrays(x=how(memory))
    assert_same(arrays(x=np.array(memory))[3]["x"], NUMBERS[3])
    assert_same(arrays(x=memory[[2, 1]])[0]["x"], NUMBERS[2])


@pytest.mark.parametrize("descr", ["|S0", "<U0", "|V0"])
def test_elements_without_bytes_are_refused(descr):
    empty = np.ndarray((9,), np.lib.format.descr_to_dtype(descr), b"")

    with pytest.raises(SpecError, match="no bytes"):
        layout_of(empty.dtype, (), field="x")
    with pytest.raises(SpecError, match="no bytes"):
        layout_of(np.dtype([("a", empty.dtype), ("b", "u1")]), (), field="x")


def test_an_empty_source_reads_nothing():
    source = arrays(x=np.zeros((0, 3), np.float32))

    assert len(source) == 0
    assert source.read([])["x"].shape == (0, 3)
    assert source.fingerprint()


def test_arrays_of_different_lengths_are_an_error_that_names_them():
    with pytest.raises(SpecError, match="'image': 7, 'label': 6"):
        arrays(image=IMAGES, label=LABELS[:6])


@pytest.mark.parametrize(
    ("value", "subject"),
    [
        (np.array([{}, 1], object), "x is an array of Python objects"),
        (np.zeros(2, [("a", "O")]), "x is an array of Python objects"),
        (np.float32(1), "x is one value without axes"),
        ([[1, 2], [3]], "x cannot be made an array"),
        (np.ma.masked_array([1, 2], [True, False]), "x is a masked array"),
        (None, "x is one value without axes"),
    ],
)
def test_what_holds_no_records_is_an_error_that_names_the_field(value, subject):
    with pytest.raises(SpecError, match=subject):
        arrays(x=value)


class NAType:  # as that of pandas is called
    pass


@pytest.mark.parametrize("gap", [None, float("nan"), np.float64("nan"), NAType()])
def test_a_gap_among_texts_is_refused_with_its_place_and_a_remedy_that_works(gap):
    texts = np.array(["a", gap, "c"], object)

    with pytest.raises(SpecError, match=r"text\[1\] is ") as caught:
        arrays(text=texts)

    remedy = re.search(r"(\[value .*\]);", str(caught.value))[1]
    assert arrays(text=eval(remedy, {"text": texts})).read([0, 1, 2])["text"].tolist() == [
        "a",
        "",
        "c",
    ]


def test_texts_and_numbers_are_no_field():
    values = np.array(["a", 1], object)

    with pytest.raises(SpecError, match=r"\[str\(value\) for value in x\]"):
        arrays(x=values)
    with pytest.raises(SpecError, match="x is an array of Python objects"):
        arrays(x=np.array([1, None], object))


def test_texts_go_through_loaders_and_splits():
    source = arrays(text=np.array(["b", "a", "b", "a"], object), n=np.arange(4))

    batches = [batch["text"].tolist() for batch in gl.Loader(source, 3, device="cpu")]
    parts = source.split(0.5, by="text")

    assert batches == [["b", "a", "b"], ["a"]]
    assert [sorted(part.read(range(2))["text"]) for part in parts] == [["a", "b"]] * 2


def test_no_array_is_an_error():
    with pytest.raises(SpecError, match="without arrays"):
        arrays()


def test_two_fields_of_one_name_are_an_error():
    with pytest.raises(SpecError, match="twice"):
        arrays(a=np.zeros(3), table=np.zeros(3, [("a", "f4")]))


@pytest.mark.parametrize("place", [0, 2_000_000, 3_999_999])
def test_the_fingerprint_sees_the_beginning_the_middle_and_the_end_of_a_large_array(place):
    large = np.zeros(4_000_000, np.uint8)
    before = arrays(x=large).fingerprint()

    large[place] = 1

    assert arrays(x=large).fingerprint() != before


@pytest.mark.parametrize(
    "second",
    [
        arrays(y=NUMBERS),
        arrays(x=NUMBERS.astype("f4")),
        arrays(x=NUMBERS.reshape(7, 2, 6)),
        arrays(x=NUMBERS[:6]),
    ],
)
def test_the_fingerprint_sees_names_dtypes_shapes_and_lengths(second):
    assert second.fingerprint() != arrays(x=NUMBERS).fingerprint()


@pytest.mark.parametrize("kind", [list, lambda arrays: np.array(arrays, dtype=object)])
def test_arrays_of_different_lengths_are_refused_with_the_call_that_takes_them(kind):
    x = kind([[1, 2], [3], [4, 5, 6]])

    with pytest.raises(SpecError) as caught:
        gl.arrays(x=x)

    call = re.search(r"gl\.records\(.*\}\)", caught.value.remedy)
    source = eval(call[0], {"gl": gl, "numpy": np, "x": x})
    assert [value.tolist() for value in source.read(range(3))["x"]] == [[1, 2], [3], [4, 5, 6]]


@pytest.mark.parametrize("values", [["a\0", "bc"], [b"a\0\0", b""], (b"\0",)])
def test_texts_of_a_list_keep_the_zeros_at_their_ends(values):
    source = gl.arrays(x=values)

    assert source.read(range(len(values)))["x"].tolist() == list(values)


# --- values that NumPy would change


class Short:
    """A sequence that says it is longer than it is."""

    def __len__(self):
        return 5

    def __getitem__(self, number):
        return [10, 11][number]


class Masked:
    """What pandas' arrays with gaps, "Int64" say, are to NumPy."""

    dtype = type("Int64Dtype", (), {"numpy_dtype": np.dtype(np.int64)})()

    def __len__(self):
        return 2

    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, np.nan])

    def isna(self):
        return np.array([False, True])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([2**53 + 1, 0.5], "x has the whole number 9007199254740993"),
        ([2**63 + 1, -1], "x has the whole number 9223372036854775809"),
        (["a", float("nan")], r"x\[1\] is nan"),
        (["a", 1], r"x\[1\] is 1"),
        ([b"a", "b"], r"x\[0\] is b'a'"),
        (Short(), "x has 5 values, and 2 came"),
        (Masked(), "x has values that are missing"),
        (pyarrow.array([2**53 + 1, None]), "x has values that are missing"),
        (pyarrow.chunked_array([[1], [None]], pyarrow.int32()), "x has values that are missing"),
    ],
)
def test_values_that_numpy_would_change_are_refused(value, text):
    with pytest.raises(SpecError, match=text):
        gl.arrays(x=value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2.5], [1.0, 2.5]),
        ([2**53, 0.5], [2.0**53, 0.5]),
        ([1.0, float("inf"), float("nan")], [1.0, np.inf, np.nan]),
        ([True, 2], [1, 2]),
        (pyarrow.array([1, 2]), [1, 2]),
        (pyarrow.array([1.0, float("nan")]), [1.0, np.nan]),
        (range(3), [0, 1, 2]),
    ],
)
def test_values_that_numpy_holds_are_taken(value, expected):
    source = gl.arrays(x=value)

    np.testing.assert_array_equal(source.read(range(len(source)))["x"], expected)


UTC2 = datetime.timezone(datetime.timedelta(hours=2))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([datetime.datetime(2020, 1, 1, 12)], ["2020-01-01T12"]),
        ([datetime.datetime(2020, 1, 1, 12, tzinfo=UTC2)], ["2020-01-01T10"]),
        ([datetime.date(2020, 1, 1)], ["2020-01-01"]),
    ],
)
def test_the_remedy_for_dates_of_python_gives_their_values(values, expected):
    with pytest.raises(SpecError) as caught:
        gl.arrays(x=values)

    call = caught.value.remedy[caught.value.remedy.index("numpy.array") :]
    array = eval(call, {"numpy": np, "datetime": datetime, "x": values})
    source = gl.arrays(x=array)
    np.testing.assert_array_equal(source.read([0])["x"], np.array(expected, "M8[us]"))

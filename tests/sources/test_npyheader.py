"""Headers of NPY files: what numpy.load takes is taken, anything else is refused and nothing is
run."""

from __future__ import annotations

import pickle
import struct
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.errors import FormatError, GpuloadError
from gpuload.formats.npy import npyheader
from gpuload.formats.npy.source import npy
from tests.sources.npyfiles import fields_of, write, write_header

GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
DATA = np.arange(6, dtype="<f4").tobytes()


@pytest.mark.parametrize(
    "header",
    [
        GOOD,
        GOOD + "\n",
        GOOD + " " * 3000 + "\n",
        " " + GOOD.replace(" ", ""),
        GOOD.replace(", }", "}"),
        GOOD.replace("'", '"'),
        GOOD.replace("(2, 3)", "(2L, 3L)"),
        GOOD.replace("(2, 3)", "(2, 3,)"),
        GOOD.replace("'<f4'", "u'<f4'"),
        GOOD.replace("'<f4'", r"'\x3cf4'"),
        GOOD.replace("'<f4'", "('<f4')"),
        "{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}\n\n",
    ],
)
@pytest.mark.filterwarnings(
    "ignore:Reading `.npy`:UserWarning"
)  # of numpy.load, about headers of Python 2
def test_headers_that_numpy_load_takes_are_taken(tmp_path, header):
    path = write_header(tmp_path / "a.npy", header, DATA + b"bytes after the last element")

    np.testing.assert_array_equal(npy(path).read([0, 1])["x"], np.load(path))


@pytest.mark.parametrize("version", [(2, 0), (3, 0)])
def test_a_header_longer_than_what_is_read_at_first_is_read_whole(tmp_path, version):
    dtype = np.dtype([(f"field number {number}", "<f4") for number in range(500)])
    array = np.arange(1000, dtype="<f4").view(dtype)
    path = write(tmp_path / "a.npy", array, version=version)

    assert npy(path)[1]["field number 499"] == 999


def test_field_names_may_hold_any_text_in_version_3(tmp_path):
    array = np.array([(1, 2)], [("größe", "<i4"), ("高さ's \"\\", "<i4")])
    path = write(tmp_path / "a.npy", array, version=(3, 0))

    assert npy(path).spec.names == array.dtype.names


class Trap:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_is_refused_and_not_run(tmp_path):
    array = np.array([Trap(tmp_path / "ran")], object)
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, array, allow_pickle=True)

    with pytest.raises(FormatError, match="pickle"):
        npy(tmp_path / "a.npy")

    assert pickle.loads(b"N.") is None
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "descr",
    [
        "'|O'",
        "'O'",
        "'|O8'",
        "[('a', '<f4'), ('b', '|O')]",
        "[('a', [('b', '|O', (2,))])]",
        "'object'",
    ],
)
def test_objects_are_refused_wherever_they_hide(tmp_path, descr):
    path = write_header(tmp_path / "a.npy", GOOD.replace("'<f4'", descr).replace("(2, 3)", "(0,)"))

    with pytest.raises(FormatError, match=r"a\.npy(.|\n)*Python objects"):
        npy(path)


@pytest.mark.parametrize(
    ("header", "cause"),
    [
        ("__import__('os').system('touch ran')", "no plain literal"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}.copy()", "no plain literal"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1+1, 3)}", "no plain literal"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'more': 1}", "must be a dict"),
        ("{'descr': '<f4', 'shape': (2, 3)}", "must be a dict"),
        ("['descr', '<f4']", "must be a dict"),
        ("", "no plain literal"),
        ("{", "no plain literal"),
        ("{'descr': '<f4' 'fortran_order': False, 'shape': (2, 3)}", "no plain literal"),
        ("{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}", "fortran_order"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3]}", "shape"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': 6}", "shape"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3)}", "shape"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 3)}", "shape"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2.0, 3)}", "no plain literal"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': ('2', 3)}", "shape"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}" % ("1," * 65), "axes"),
        ("{'descr': '<x9', 'fortran_order': False, 'shape': (2, 3)}", "dtype"),
        ("{'descr': 4, 'fortran_order': False, 'shape': (2, 3)}", "dtype"),
        ("{'descr': [], 'fortran_order': False, 'shape': (2, 3)}", "dtype"),
        ("{'descr': ('<f4', (3,)), 'fortran_order': False, 'shape': (2,)}", "dtype"),
        ("{'descr': [('a', '<f4'), ('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", "dtype"),
        ("(" * 5000, "no plain literal"),
        ("{'descr': " + "[" * 30_000 + "]" * 30_000 + "}", "no plain literal"),
        ("{'descr': '" + "f4," * 20_000, "no plain literal"),
        ("-" * 60_000 + "1", "no plain literal"),
        ("9" * 60_000, "no plain literal"),
        (GOOD + "\0", "no plain literal"),
        (GOOD + GOOD, "no plain literal"),
    ],
)
def test_a_header_that_is_no_header_is_refused_and_not_run(tmp_path, monkeypatch, header, cause):
    monkeypatch.chdir(tmp_path)
    path = write_header(tmp_path / "a.npy", header, DATA)

    with pytest.raises(FormatError, match=r"a\.npy") as caught:
        npy(path)

    assert cause in caught.value.cause
    assert len(str(caught.value)) < 1000
    assert not (tmp_path / "ran").exists()


def test_long_integers_are_of_python_2_and_not_in_version_3(tmp_path):
    path = write_header(tmp_path / "a.npy", GOOD.replace("3)", "3L)"), DATA, version=(3, 0))

    with pytest.raises(FormatError, match="no plain literal"):
        npy(path)
    with pytest.raises(ValueError, match="header"):
        np.load(path)


@pytest.mark.parametrize(
    "shape", ["(9223372036854775807,)", "(4294967296, 4294967296)", "(4611686018427387904, 0, 8)"]
)
def test_a_shape_that_overflows_is_refused(tmp_path, shape):
    path = write_header(tmp_path / "a.npy", GOOD.replace("(2, 3)", shape), DATA)

    with pytest.raises(FormatError, match=r"2\*\*63"):
        npy(path)


@pytest.mark.parametrize("shape", ["(1000000000000, 3)", "(2, 4)", "(3, 3)"])
def test_a_shape_that_the_file_is_too_short_for_is_refused(tmp_path, shape):
    path = write_header(tmp_path / "a.npy", GOOD.replace("(2, 3)", shape), DATA)

    with pytest.raises(FormatError, match=r"the file has 24 after its header") as caught:
        npy(path)

    assert str(4 * np.prod(eval(shape, {}))) in caught.value.cause


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path):
    whole = write_header(tmp_path / "whole.npy", GOOD, DATA).read_bytes()
    for length in range(len(whole)):
        path = tmp_path / "a.npy"
        path.write_bytes(whole[:length])

        with pytest.raises(FormatError, match=r"a\.npy"):
            npy(path)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "empty"),
        (b"PK\3\4 an archive", "begins with"),
        (b"\x93NUMPX\1\0", "begins with"),
        (b"\x93NUMPY\4\0" + b"\0" * 200, "version is 4.0"),
        (b"\x93NUMPY\0\0" + b"\0" * 200, "version is 0.0"),
        (b"\x93NUMPY\1\1" + b"\0" * 200, "version is 1.1"),
        (b"\x93NUMPY\2\0" + struct.pack("<I", 2**32 - 1) + b" " * 100, "does not fit"),
        (b"\x93NUMPY\3\0" + struct.pack("<I", 4) + b"\xff\xfe{}", "UTF-8"),
    ],
)
def test_what_is_no_npy_file_is_refused(tmp_path, content, cause):
    path = tmp_path / "a.npy"
    path.write_bytes(content)

    with pytest.raises(FormatError, match=r"a\.npy") as caught:
        npy(path)

    assert cause in caught.value.cause
    assert isinstance(caught.value, ValueError)


def test_a_giant_header_is_refused_before_it_is_read(tmp_path):
    path = write_header(
        tmp_path / "a.npy", GOOD + " " * (npyheader.LARGEST_HEADER_BYTES + 1), DATA, version=(2, 0)
    )

    with pytest.raises(FormatError, match="longer than"):
        npy(path)


@given(st.binary(max_size=300), st.integers(1, 3))
def test_any_bytes_as_a_header_are_an_error_of_ours_or_a_header(tmp_path_factory, header, major):
    path = write_header(tmp_path_factory.mktemp("npy") / "a.npy", header, DATA, version=(major, 0))

    with pytest.raises(GpuloadError):
        npy(path)


@given(st.integers(0, len(GOOD) - 1), st.text(max_size=3))
def test_a_damaged_header_is_an_error_of_ours_or_what_numpy_load_gives(
    tmp_path_factory, place, text
):
    broken = (GOOD[:place] + text + GOOD[place + 1 :]).encode("latin1", "replace")
    path = write_header(tmp_path_factory.mktemp("npy") / "a.npy", broken, DATA)

    try:
        array = npy(path, record="file").read([0])
    except GpuloadError:
        return

    content = np.load(path)
    assert [value.tobytes() for value in array.values()] == [content.tobytes()]


@pytest.mark.parametrize(
    ("descr", "dtype"),
    [("'|a5'", "S5"), ("[('n', '|a2'), ('a5', '<i2')]", [("n", "S2"), ("a5", "<i2")])],
)
def test_the_old_name_of_bytes_is_taken_and_the_filters_of_all_threads_left_alone(
    tmp_path, monkeypatch, descr, dtype
):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,)}}"
    path = write_header(tmp_path / "a.npy", header, b"abcdefgh")
    monkeypatch.setattr(warnings, "catch_warnings", None)

    record = npy(path)[0]

    expected = fields_of(np.frombuffer(b"abcdefgh", dtype, 1))
    assert {name: value.item() for name, value in record.items()} == {
        n: v.item() for n, v in expected.items()
    }


@pytest.mark.parametrize("shape", ["(1l,)", "(1,\v)"])
def test_what_python_itself_does_not_read_is_refused(tmp_path, shape):
    path = write_header(
        tmp_path / "a.npy",
        f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n",
        bytes(8),
    )
    with pytest.raises((ValueError, SyntaxError)):
        np.load(path)
    with pytest.raises(FormatError, match="no plain literal"):
        npy(path)

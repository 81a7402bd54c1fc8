"""NPY files: the arrays and files of NumPy's own tests of the format
(numpy/lib/tests/test_format.py)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import FormatError, GpuloadError, SpecError

numpy_tests = pytest.importorskip(
    "numpy.lib.tests.test_format", reason="this NumPy brings no tests"
)

pytestmark = pytest.mark.slow

DIFFERENT = {
    "object arrays": "they are pickles, which run code when they are read",
    "rank-0 arrays as rows": "they have no rows; record='file' reads them",
    "a field without a name": "a batch could not be asked for it",
    "records without fields": "there is nothing to read",
    "long field names, headers above 10,000 characters": "NumPy refuses to parse them, too, unless it is told to trust",
    "version 1.0 files of Python 2 (win64python2.npy)": "read: the L behind its numbers is known",
}
ARRAYS = [*numpy_tests.basic_arrays, *numpy_tests.record_arrays]
DTYPES = [getattr(numpy_tests, f"dt{number}") for number in range(1, 7)]
DATA = Path(numpy_tests.__file__).parent / "data"


def columns_of(array: np.ndarray, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The columns of a structured array; those of structures in it have both names."""
    for name in array.dtype.names or ():
        column = array[name]
        if column.dtype.names is None:
            yield f"{prefix}{name}", column
        else:
            yield from columns_of(column, f"{prefix}{name}.")


def assert_is_read(path: Path, array: np.ndarray) -> None:
    """Check each record, as rows and as one file, against an array."""
    columns = dict(columns_of(array)) if array.dtype.names else {"x": array}
    with gl.npy(path, record="file") as source:
        values = source.read([0])
        for name, column in columns.items():
            assert np.asarray(values[name])[0].tobytes() == native(column).tobytes(), name
    if array.ndim:
        with gl.npy(path) as source:
            assert len(source) == len(array)
            order = np.random.default_rng(0).permutation(len(array))
            values = source.read(order)
            for name, column in columns.items():
                assert np.asarray(values[name]).tobytes() == native(column[order]).tobytes(), name


def native(array: np.ndarray) -> np.ndarray:
    """The same values in this machine's byte order, side by side."""
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))


@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_roundtrip(number: int, tmp_path: Path):
    array = ARRAYS[number]
    np.save(tmp_path / "x.npy", array)

    if array.dtype.hasobject:
        with pytest.raises(FormatError, match="Python objects"):
            gl.npy(tmp_path / "x.npy")
        return
    assert_is_read(tmp_path / "x.npy", array)
    if not array.ndim:
        with pytest.raises(SpecError, match="it has no rows"):
            gl.npy(tmp_path / "x.npy")


@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_file_truncated(number: int, tmp_path: Path):
    array = ARRAYS[number]
    if array.dtype.hasobject or not array.size:
        pytest.skip("objects are refused, and of an empty array the header alone would be cut")
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    (tmp_path / "x.npy").write_bytes(file.getvalue()[:-1])

    with pytest.raises(FormatError):
        gl.npy(tmp_path / "x.npy", record="file")


@pytest.mark.parametrize("number", range(len(DTYPES)))
def test_load_padded_dtype(number: int, tmp_path: Path):
    array = np.zeros(3, DTYPES[number])
    for row in range(3):
        array[row] = row + 5
    np.save(tmp_path / "x.npy", array)

    if not array.dtype.names or "" in array.dtype.names:
        with pytest.raises(GpuloadError):
            gl.npy(tmp_path / "x.npy")
        return
    assert_is_read(tmp_path / "x.npy", array)


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.npy")))
def test_files_of_python_2_and_3(name: str):
    if "objarr" in name:
        with pytest.raises(FormatError, match="Python objects"):
            gl.npy(DATA / name)
        return
    assert_is_read(DATA / name, np.load(DATA / "python3.npy"))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", "CF")
def test_write_version(version: tuple[int, int], order: Any, tmp_path: Path):
    array = np.asarray(np.arange(60.0).reshape(5, 12), order=order)
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version=version)

    assert_is_read(tmp_path / "x.npy", array)


def test_unicode_field_names(tmp_path: Path):
    array = np.array([(1, 3), (1, 2)], [("int", int), ("\N{CJK UNIFIED IDEOGRAPH-6574}", int)])
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version=(3, 0))

    assert_is_read(tmp_path / "x.npy", array)


@pytest.mark.parametrize(
    "head",
    [
        *(
            b"\x93NUMPY" + bytes(version)
            for version in ((1, 1), (0, 0), (0, 1), (4, 0), (5, 0), (255, 255))
        ),
        b"1",
        b"\x93NUMPX\x01\x00",
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPY\x01\x00\x36\x00{'descr': 'x', 'shape': (1, 2), }                    \n",
        b"\x93NUMPY\x01\x00\x60\x00{'descr': '<f8', 'extra': -1, 'fortran_order': False, 'shape': (1, 2), }"
        + b" " * 40,
    ],
)
def test_bad_header(head: bytes, tmp_path: Path):
    (tmp_path / "x.npy").write_bytes(head + bytes(64))

    with pytest.raises(FormatError, match=r"x\.npy"):
        gl.npy(tmp_path / "x.npy")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype(
            {"names": ["a", "b"], "formats": [float, np.dtype("S3", metadata={"some": "stuff"})]}
        ),
        np.dtype(int, metadata={"some": "stuff"}),
        np.dtype([("subarray", (int, (2,)))], metadata={"some": "stuff"}),
    ],
)
def test_metadata_dtype(dtype: np.dtype, tmp_path: Path):
    np.save(tmp_path / "x.npy", np.ones(10, dtype))

    assert_is_read(tmp_path / "x.npy", np.load(tmp_path / "x.npy"))


def test_large_file_support(tmp_path: Path):
    """A sparse file of 5 GiB: the row in the middle of it."""
    header = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (5 << 20, 1024))
    header[3 << 20] = 7
    del header

    with gl.npy(tmp_path / "x.npy") as source:
        assert source.read([3 << 20, (5 << 20) - 1])["x"].sum(axis=1).tolist() == [7 * 1024, 0]

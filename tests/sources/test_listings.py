"""The table of arrays that a manifest holds: what is read is what was written, and what cannot be is refused."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.errors import FormatError
from gpuload.formats.listing import (
    FREE,
    ListedArray,
    chunk_numbers,
    read_arrays,
    split_by_file,
    to_arrays,
)
from gpuload.storage.files import Files
from gpuload.storage.manifest import Manifest

TABLE = (
    ListedArray("kind_of", "<u4", after="kinds"),
    ListedArray("counts"),
    ListedArray(
        "places",
        per=("counts",),
        columns=("begin", "length"),
        inside=("begin", "length"),
        total=500,
    ),
    ListedArray("notes", per=FREE, is_optional=True),
)
VALUES = {
    "kind_of": [0, 1],
    "counts": [2, 1],
    "places": [[0, 10], [10, 90], [5, 195]],
    "notes": [7],
}
SIZES = {"kinds": 2}


def manifest(arrays):
    """Return the manifest of two files, of 100 and 200 bytes."""
    stamps = np.array([[100, 0, 0], [200, 0, 0]], np.int64)
    return Manifest("x.manifest", "none", Files(("/a", "/b"), stamps), {}, {}, arrays)


def test_what_is_written_is_read_file_by_file():
    arrays = to_arrays(TABLE, VALUES, "0 ")

    read = read_arrays(manifest(arrays), TABLE, SIZES, "0 ")

    assert {name: (array.dtype.str, array.tolist()) for name, array in read.items()} == {
        "kind_of": ("<u4", [0, 1]),
        "counts": ("<i8", [2, 1]),
        "places": ("<i8", [[0, 10], [10, 90], [5, 195]]),
        "notes": ("<i8", [7]),
    }
    pieces = split_by_file(read["places"], read["counts"])
    assert [piece.tolist() for piece in pieces] == [[[0, 10], [10, 90]], [[5, 195]]]


def test_only_what_may_lack_may_lack():
    arrays = to_arrays(TABLE, VALUES)
    del arrays["notes"]
    assert "notes" not in read_arrays(manifest(arrays), TABLE, SIZES)

    del arrays["counts"]
    with pytest.raises(FormatError, match="'counts' is missing"):
        read_arrays(manifest(arrays), TABLE, SIZES)


@pytest.mark.parametrize(
    ("name", "place", "value", "cause"),
    [
        ("kind_of", 0, 2, "holds 1 to 2"),
        ("counts", 0, -1, "holds -1 to 1"),
        ("counts", 0, 3, "has 3 entries, not 4"),
        ("counts", slice(None), [2**63 - 1, 2**63 - 1], "holds 9223372036854775807"),
        ("places", (0, 0), -1, "holds -1 to 195"),
        ("places", (1, 1), 91, "outside of their file"),
        ("places", (0, 0), 2**60 - 1, "too large together"),
    ],
)
def test_numbers_that_cannot_be_are_refused(name, place, value, cause):
    arrays = to_arrays(TABLE, VALUES)
    arrays[name][place] = value

    with pytest.raises(FormatError, match="no manifest that can be used") as error:
        read_arrays(manifest(arrays), TABLE, SIZES)
    assert cause in error.value.cause


def test_counts_whose_sum_is_right_only_in_64_bits_are_refused():
    table = (ListedArray("counts", after=None), ListedArray("rows", per=("counts",)))
    arrays = {"counts": np.array([2**63 - 1, -(2**63) + 4]), "rows": np.zeros(3, np.int64)}

    with pytest.raises(FormatError, match="has 3 entries"):
        read_arrays(manifest(arrays), table)


def test_arrays_that_have_all_of_their_chunks_list_no_numbers():
    numbers = np.array([1, 4])

    chunks = chunk_numbers(manifest({}), numbers, [(3, 3), (2, 5), (0, 4)], "chunks of x")

    assert [array.tolist() for array in chunks] == [[0, 1, 2], [1, 4], []]


@pytest.mark.parametrize("numbers", [[4, 1], [1, 1], [1, 5], [-1, 1], [1], [1, 2, 3]])
def test_numbers_of_chunks_that_cannot_be_are_refused(numbers):
    with pytest.raises(FormatError, match="no manifest that can be used"):
        chunk_numbers(manifest({}), np.array(numbers), [(2, 5)], "chunks of x")

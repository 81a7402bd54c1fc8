"""Listings: the arrays that manifests hold of the files of a format, as a table that the format declares.

    ARRAYS = (
        ListedArray("row_groups", after=MAX_LENGTH),                        a number for each file
        ListedArray("rows", per=("row_groups",), total=MAX_LENGTH),         so many numbers for each file
        ListedArray("places", per=("row_groups",), columns=("begin", "length"), inside=("begin", "length")),
    )

Reading compares each array with its row of the table: dtype, axes, bounds, how many entries there are, and whether what
lies in a file lies inside of it. So a format works on with numbers that can be, and no sum or product of a few of them
leaves int64: they are below LARGEST if the table says nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.storage.manifest import Manifest

Array = NDArray[Any]
LARGEST = 1 << 60
FILE, ANY = ("file",), ()


@dataclass(frozen=True)
class ListedArray:
    """A row of the table: an array of a manifest, ``[n]``, or ``[n, num_columns]`` where it has columns.

    Attributes:
        name: of the array.
        dtype: of its numbers.
        per: what has an entry: FILE each file; ANY any number of entries; else the names of arrays above, whose numbers,
            multiplied, count the entries of each file.
        columns: the names of the columns; or the name of a size that says how many there are.
        least: no number is less.
        after: each number is less than this one, or than the size of this name; None: numbers are compared with nothing.
        column_limits: the same for columns that have another one.
        total: all numbers together are less.
        inside: columns whose sum, the place where something ends, is at most the bytes of the file.
        default: fills an array that is not there, as in manifests of before; None: it has to be there.
    """

    name: str
    dtype: str = "<i8"
    per: tuple[str, ...] = FILE
    columns: tuple[str, ...] | str = ()
    least: int = 0
    after: int | str | None = LARGEST
    column_limits: Mapping[str, int] | None = None
    total: int | None = None
    inside: tuple[str, ...] = ()
    default: int | None = None


Table = Sequence[ListedArray]


def to_arrays(table: Table, values: Mapping[str, Any], prefix: str = "") -> dict[str, Array]:
    """Return the arrays of a manifest.

    Args:
        table: of the format.
        values: the numbers of each array by its name; those of all files, one after the other. Without any an array is
            left out.
        prefix: of the names in the manifest.
    """
    arrays = dict[str, Array]()
    for row in table:
        if row.name in values:
            array = np.asarray(values[row.name], row.dtype)
            if isinstance(row.columns, tuple) and row.columns:
                array = array.reshape(-1, len(row.columns))
            arrays[prefix + row.name] = array
    return arrays


def read_arrays(
    listing: Manifest, table: Table, sizes: Mapping[str, int] | None = None, prefix: str = ""
) -> dict[str, Array]:
    """Return the arrays of a table by their names; those of numbers of columns ``[n, num_columns]``.

    Args:
        listing: the manifest.
        table: of the format.
        sizes: numbers by the names that the table has for them.
        prefix: of the names in the manifest.

    Raises:
        FormatError: an array is missing, or is not as the table says.
    """
    arrays = dict[str, Array]()
    for row in table:
        arrays[row.name] = _read_array(listing, row, sizes or {}, prefix, arrays)
    return arrays


def _read_array(
    listing: Manifest, row: ListedArray, sizes: Mapping[str, int], prefix: str, arrays: Mapping[str, Array]
) -> Array:
    name, counts = prefix + row.name, _counts(listing, row, arrays)
    num_columns = sizes[row.columns] if isinstance(row.columns, str) else len(row.columns)
    if row.default is not None and name not in listing.arrays:
        shape = (int(counts.sum()), num_columns) if row.columns else (int(counts.sum()),)
        return np.full(shape, row.default, row.dtype)
    array = listing.array(name, row.dtype, -1, num_columns) if row.columns else listing.array(name, row.dtype, -1)
    # In float64: sums of damaged numbers could run over in int64, and fit again.
    if row.per != ANY and float(counts.sum(dtype=np.float64)) != len(array):
        raise listing.error(f"its array {name!r} has {len(array)} entries, and others are counted")
    after = sizes[row.after] if isinstance(row.after, str) else row.after
    limits = row.column_limits or {}
    titles = row.columns if limits and isinstance(row.columns, tuple) else (row.name,)
    for title, column in zip(titles, array.T if limits else [array], strict=True):
        limit = limits.get(title, after)
        if limit is not None and column.size and not row.least <= int(column.min()) <= int(column.max()) < limit:
            raise listing.error(f"its array {name!r} holds {int(column.min())} to {int(column.max())}")
    if row.total is not None and float(array.sum(dtype=np.float64)) >= row.total:
        raise listing.error(f"the numbers of its array {name!r} are too large together")
    if row.inside:
        ends = array[:, [row.columns.index(title) for title in row.inside]].sum(axis=1)
        if (ends > np.repeat(listing.files.sizes, counts.astype(np.int64))).any():
            raise listing.error(f"what its array {name!r} names lies outside of its file")
    return array


def _counts(listing: Manifest, row: ListedArray, arrays: Mapping[str, Array]) -> Array:
    """Return how many entries an array has for each file, float64 ``[num_files]``."""
    counts = np.ones(len(listing.files))
    for name in row.per if row.per not in (FILE, ANY) else ():
        counts *= arrays[name]
    return counts


def split_by_file(array: Array, counts: Array) -> list[Array]:
    """Return the entries of each file, of which the counts say how many they are."""
    return np.split(array, np.cumsum(counts)[:-1])


def listed_images(listing: Manifest) -> dict[str, bool]:
    """Return for columns of bytes whether they hold images.

    Raises:
        FormatError: the manifest does not say it.
    """
    images = listing.about.get("images")
    if not isinstance(images, dict) or not all(type(is_image) is bool for is_image in images.values()):
        raise listing.error("it does not say which columns hold images")
    return images

"""Listings: the arrays that a manifest holds of files, as a table that each format declares.

    ListedArray("row_groups", after=MAX_LENGTH)     a number for each file
    ListedArray("rows", per=("row_groups",))        so many numbers for each file
    ListedArray("places", per=("row_groups",),      so many pairs, which lie inside of the file
                columns=PLACE, inside=PLACE)

Reading compares each array with its row of the table: dtype, axes, bounds, how many entries there
are, and whether the places that they name lie inside of their file. Numbers that are compared are
below LARGEST at most, so sums of a few of them stay in int64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.sources.leaf import Array, Indices
from gpuload.storage.manifest import Manifest

LARGEST = 1 << 60
FILE, FREE = ("file",), ("free",)


@dataclass(frozen=True)
class ListedArray:
    """A row of the table: an array ``[n]`` of a manifest; with columns ``[n, num_columns]``.

    Attributes:
        name: of the array.
        dtype: of its numbers.
        per: FILE: one entry a file; FREE: any number; else arrays above it in the table: their
            numbers, multiplied, count the entries of each file.
        columns: their names; or the name of a size that says how many there are.
        least, after: the bounds of all numbers, the second one exclusive, or the name of a size;
            None: numbers are not compared.
        total: the sum of all numbers is less.
        inside: columns whose sum is at most the number of bytes of the file.
        is_optional: True if manifests of before may lack it.
    """

    name: str
    dtype: str = "<i8"
    per: tuple[str, ...] = FILE
    columns: tuple[str, ...] | str = ()
    least: int = 0
    after: int | str | None = LARGEST
    total: int | None = None
    inside: tuple[str, ...] = ()
    is_optional: bool = False


def to_arrays(
    table: Sequence[ListedArray], values: Mapping[str, Any], prefix: str = ""
) -> dict[str, Array]:
    """Return the arrays of a manifest from their numbers by name; a prefix begins each name."""
    return {
        prefix + row.name: np.asarray(values[row.name], row.dtype)
        for row in table
        if row.name in values
    }


def read_arrays(
    listing: Manifest,
    table: Sequence[ListedArray],
    sizes: Mapping[Any, int] | None = None,
    prefix: str = "",
) -> dict[str, Array]:
    """Return the arrays of a table by their names, without their prefix in the manifest.

    Raises:
        FormatError: an array is missing, or is not as the table says.
    """
    sizes, arrays = sizes or {}, dict[str, Array]()
    for row in table:
        name, after = prefix + row.name, row.after
        if row.is_optional and name not in listing.arrays:
            continue
        num_columns = sizes.get(row.columns, len(row.columns))
        array = listing.array(name, row.dtype, -1, *[num_columns] * bool(row.columns))
        arrays[row.name] = array
        # In float64: sums of damaged numbers could run over in int64, and fit again.
        counts = np.ones(len(listing.files))
        for count in set(row.per).intersection(arrays):
            counts *= arrays[count]
        if row.per != FREE and counts.sum() != len(array):
            raise listing.error(
                f"its array {name!r} has {len(array)} entries, not {counts.sum():.0f}"
            )
        limit = sizes.get(after, after)
        if limit is not None and array.size and not row.least <= array.min() <= array.max() < limit:
            raise listing.error(f"its array {name!r} holds {array.min()} to {array.max()}")
        if row.total is not None and array.sum(dtype=np.float64) >= row.total:
            raise listing.error(f"the numbers of its array {name!r} are too large together")
        ends = sum(array[:, row.columns.index(column)] for column in row.inside)
        if row.inside and (ends > np.repeat(listing.files.sizes, counts.astype(np.int64))).any():
            raise listing.error(f"its array {name!r} names places outside of their file")
    return arrays


def split_by_file(array: Array, counts: Array) -> list[Array]:
    """Return the entries of each file, given their numbers."""
    return np.split(array, np.cumsum(counts)[:-1])


def chunk_numbers(
    listing: Manifest, numbers: Array, counts: Iterable[tuple[int, int]], noun: str
) -> list[Indices]:
    """Return which chunks of each array were written, int64 ``[num_written]``, ascending.

    Args:
        listing: the manifest.
        numbers: of the written chunks of those arrays that lack some, one array after the other.
        counts: of each array how many chunks were written, and how many there could be.
        noun: the chunks, in words.

    Raises:
        FormatError: chunks are listed twice, are missing, or lie outside of their array.
    """
    results, first = list[Indices](), 0
    for count, total in counts:
        if count == total:
            results.append(np.arange(count, dtype=np.int64))
            continue
        chunks = numbers[first : first + count]
        first += count
        is_sound = chunks.size == count and (np.diff(chunks) > 0).all()
        if not is_sound or (count and not 0 <= chunks[0] <= chunks[-1] < total):
            raise listing.error(f"{noun} are listed twice, are missing, or lie outside of it")
        results.append(chunks)
    if first != numbers.size:
        raise listing.error(f"it has more numbers of {noun} than chunks")
    return results


def listed_images(listing: Manifest) -> dict[str, bool]:
    """Return for columns of bytes whether they hold images.

    Raises:
        FormatError: the manifest does not say it.
    """
    images = listing.about.get("images")
    if not isinstance(images, dict) or not all(
        type(is_image) is bool for is_image in images.values()
    ):
        raise listing.error("it does not say which columns hold images")
    return images

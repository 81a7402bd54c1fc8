"""Listing: the part of a manifest about HDF5 files, so that opening them reads no metadata.

Values   the complete paths of the datasets; for each its kinds (`datasets.py`), which files share.
Arrays   for dataset k, with names that begin with its number: of each file the kind, the number of
         rows, the byte where these begin, and how many chunks were written; of each chunk place and
         length. The numbers of chunks stand there only for files that lack some, and masks of
         filters only if one has any.
Bounds   rows and chunks lie inside of their files, and chunks inside of their datasets. Datasets that
         HDF5 decodes are compared with the file when they are first read.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuload.errors import SpecError
from gpuload.formats.hdf5.chunks import grid_shape
from gpuload.formats.hdf5.datasets import (
    CHUNKS,
    FILTERS,
    HDF5,
    ROWS,
    TEXTS,
    TURNED,
    VALUES,
    Dataset,
    DatasetKind,
)
from gpuload.formats.listing import (
    FREE,
    ListedArray,
    chunk_numbers,
    read_arrays,
    split_by_file,
    to_arrays,
)
from gpuload.formats.members import complete_path, listed_kinds, listed_paths
from gpuload.formats.npy import npyheader
from gpuload.formats.npy.npyheader import Header
from gpuload.formats.packing import Packing
from gpuload.sources.leaf import Array, Indices
from gpuload.spec import Layout
from gpuload.storage.manifest import Manifest

# Raised for values that are not a kind.
NO_KIND = (TypeError, ValueError, LookupError, AttributeError, SpecError)
LARGEST_LENGTH = 1 << 60
DATASETS = (
    ListedArray("kind_of", "<u4", after="kinds"),
    ListedArray("lengths"),
    ListedArray("num_missing", is_optional=True),
    ListedArray("begins"),
)
CHUNK = ("offset", "length")
CHUNK_TABLE = (
    ListedArray("num_chunks"),
    ListedArray("chunks", per=("num_chunks",), columns=CHUNK, inside=CHUNK),
    ListedArray("chunk_numbers", per=FREE),
    ListedArray("chunk_masks", per=FREE, after=1 << 32),
)
NO_CHUNKS = np.zeros(0, np.int64)


def to_manifest(
    paths: Sequence[str], tables: Sequence[Sequence[Dataset]]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the values and arrays of a manifest.

    Args:
        paths: of the datasets, complete.
        tables: of each file its datasets, in this order.

    Raises:
        SpecError: a dtype has no form in a manifest.
    """
    kinds, arrays = list[list[Any]](), dict[str, Array]()
    for number, path in enumerate(paths):
        column = [table[number] for table in tables]
        numbers = dict[DatasetKind, int]()
        kind_of = [numbers.setdefault(dataset.kind, len(numbers)) for dataset in column]
        kinds.append([_to_json(path, kind) for kind in numbers])
        values: dict[str, Any] = {
            "kind_of": kind_of,
            "lengths": [dataset.length for dataset in column],
            "begins": [dataset.offset for dataset in column],
        }
        num_missing = [dataset.num_missing for dataset in column]
        if any(num_missing):
            values["num_missing"] = num_missing
        if any(kind.how == CHUNKS for kind in numbers):
            values.update(_chunk_values(column))
        arrays.update(to_arrays((*DATASETS, *CHUNK_TABLE), values, f"{number} "))
    return {"paths": list(paths), "kinds": kinds}, arrays


def _chunk_values(column: Sequence[Dataset]) -> dict[str, Array]:
    """Return the values of CHUNK_TABLE for a dataset of each file."""
    chunks = [dataset.chunks or (NO_CHUNKS,) * 4 for dataset in column]
    pairs = zip(chunks, column, strict=True)
    lacking = [item[0] for item, dataset in pairs if item[0].size != _num(dataset)]
    masks = np.concatenate([item[3] for item in chunks])
    return {
        "num_chunks": np.array([item[0].size for item in chunks]),
        "chunks": np.concatenate([np.stack(item[1:3], axis=1) for item in chunks]),
        "chunk_numbers": np.concatenate([NO_CHUNKS, *lacking]),
        "chunk_masks": masks if masks.any() else NO_CHUNKS,
    }


def _num(dataset: Dataset) -> int:
    """Return how many chunks a dataset has, written or not."""
    kind = dataset.kind
    if kind.how == CHUNKS:
        return math.prod(grid_shape((dataset.length, *kind.shape), kind.chunk))
    return 0


def _to_json(path: str, kind: DatasetKind) -> dict[str, Any]:
    base, inner = kind.base
    try:
        text = npyheader.to_literal(Header(base, False, (0, *inner), 0))
        is_same = npyheader.from_literal(text).dtype == base
    except ValueError:  # NumPy has no text for parts that overlap
        is_same = False
    if not is_same:
        raise SpecError(
            f"a manifest with {path}",
            cause=f"the parts of its compound {base} lie in an order that a manifest cannot tell",
            remedy="leave it out by fields=, or open the files by their paths",
        )
    return {
        "how": kind.how,
        "array": text,
        "shape": list(kind.shape),
        "chunk": list(kind.chunk),
        "filters": [[code, list(values), name] for code, values, name in kind.filters],
        "fill": base64.b64encode(kind.fill).decode("ascii"),
        "varying": kind.varying,
        "has_images": kind.has_images,
        "classes": list(kind.classes),
        "packing": kind.packing and kind.packing.to_json(),
        "order": kind.order,
    }


def from_manifest(
    listing: Manifest, fields: Mapping[str, str] | None, group: str
) -> tuple[dict[str, str], list[list[Dataset]]]:
    """Return the paths of the datasets by the names of fields, and of each file these datasets.

    Raises:
        FormatError: the manifest contradicts itself.
        SpecError: a dataset is not listed.
    """
    paths, kinds = listing.about.get("paths"), listing.about.get("kinds")
    pairs = listed_paths(listing, paths, fields, group, "dataset")
    numbers = {str(path): number for number, path in enumerate(paths or ())}
    if not isinstance(kinds, list) or len(kinds) != len(paths or ()):
        raise listing.error("it holds no kinds of datasets")
    columns = list[list[Dataset]]()
    for path in pairs.values():
        place = complete_path(group, path)
        columns.append(_column(listing, place, f"{numbers[place]} ", kinds[numbers[place]]))
    if any(
        [dataset.length for dataset in c] != [dataset.length for dataset in columns[0]]
        for c in columns
    ):
        raise listing.error("its datasets differ in their numbers of rows")
    return pairs, [list(table) for table in zip(*columns, strict=True)]


def _column(listing: Manifest, path: str, prefix: str, entries: Any) -> list[Dataset]:
    """Return the dataset of one path of each file."""
    kinds = listed_kinds(listing, path, entries, _from_json, NO_KIND, "file")
    arrays = read_arrays(listing, DATASETS, {"kinds": len(kinds)}, prefix)
    kind_of, lengths, begins = (arrays[name] for name in ("kind_of", "lengths", "begins"))
    num_missing = arrays.get("num_missing", np.zeros_like(lengths))
    row_bytes = np.array([_row_bytes(kind) for kind in kinds], np.int64)[kind_of]
    is_rows = np.array([kind.how == ROWS for kind in kinds])[kind_of]
    room = listing.files.sizes - begins  # so said, no product can overflow
    has_room = (room >= 0) & (row_bytes > 0) & (lengths <= room // np.maximum(row_bytes, 1))
    if (is_rows & ~has_room).any():
        raise listing.error(f"rows of {path} would end behind their file")
    of_file = [kinds[number] for number in kind_of.tolist()]
    column = [Dataset(kind, n) for kind, n in zip(of_file, lengths.tolist(), strict=True)]
    chunks: Sequence[tuple[Indices, ...]] = [()] * len(column)
    if any(kind.how == CHUNKS for kind in kinds):
        chunks = _chunks_of(listing, path, prefix, column)
    numbers = zip(begins.tolist(), num_missing.tolist(), strict=True)
    datasets = list[Dataset]()
    for dataset, places, (begin, missing) in zip(column, chunks, numbers, strict=True):
        how = dataset.kind.how
        offset, num = begin * (how == ROWS), missing * (how == HDF5)
        datasets.append(replace(dataset, offset=offset, chunks=places, num_missing=num))
    return datasets


def _row_bytes(kind: DatasetKind) -> int:
    fields = kind.fields("x")
    if isinstance(fields, Layout):
        return fields.record_bytes
    return 0


def _from_json(entry: Any) -> DatasetKind:
    """Return a kind; raises ``ValueError``, or errors of Python for values of other kinds."""
    header = npyheader.from_literal(entry["array"])
    inner = header.shape[1:]
    if inner:
        dtype = np.dtype((header.dtype, inner))
    else:
        dtype = header.dtype
    filters = tuple(
        (_whole(code), tuple(map(_whole, values)), _text(name))
        for code, values, name in entry["filters"]
    )
    packing = entry.get("packing")  # older manifests have neither this nor an order
    if packing:
        packing = Packing.from_json(packing)
    kind = DatasetKind(
        _text(entry["how"]),
        dtype,
        tuple(map(_whole, entry["shape"])),
        tuple(map(_whole, entry["chunk"])),
        filters,
        base64.b64decode(_text(entry["fill"]), validate=True),
        _text(entry["varying"]),
        entry["has_images"] is True,
        tuple(map(_text, entry["classes"])),
        packing or None,
        _text(entry.get("order", "")),
    )
    is_sound = (
        kind.how in (ROWS, CHUNKS, HDF5)
        and kind.varying in ("", TEXTS, VALUES)
        and kind.order in ("", TURNED)
        and 0 not in kind.chunk
        and len(kind.chunk) in (0, 1 + len(kind.shape))
        and not (kind.chunk and kind.how == ROWS)
        and (kind.how == HDF5 or not (kind.varying or kind.order))
        and (kind.how != CHUNKS or _has_sound_chunks(kind))
    )
    if not is_sound:
        raise ValueError("its parts contradict each other")
    return kind


def _has_sound_chunks(kind: DatasetKind) -> bool:
    """Return True if chunks of a kind can be decoded to rows."""
    codes, has_fill = {code for code, *_ in kind.filters}, len(kind.fill) == kind.dtype.itemsize
    return bool(kind.chunk) and codes <= set(FILTERS) and has_fill and _row_bytes(kind) > 0


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < LARGEST_LENGTH:
        raise ValueError(f"{value!r} is no length")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _chunks_of(
    listing: Manifest, path: str, prefix: str, column: Sequence[Dataset]
) -> list[tuple[Indices, ...]]:
    """Return numbers, offsets, lengths and masks of the chunks of each file."""
    arrays = read_arrays(listing, CHUNK_TABLE, prefix=prefix)
    counts, places, numbers, masks = arrays.values()
    if len(masks) not in (0, len(places)):
        raise listing.error(f"it has other masks of {path} than chunks")
    if not len(masks):
        masks = np.zeros(len(places), np.int64)
    totals = zip(counts.tolist(), map(_num, column), strict=True)
    numbers_of = chunk_numbers(listing, numbers, totals, f"chunks of {path}")
    columns = [split_by_file(array, counts) for array in (*places.T, masks)]
    parts: list[tuple[Indices, ...]] = list(zip(numbers_of, *columns, strict=True))
    for place, dataset in enumerate(column):
        if dataset.kind.how != CHUNKS:
            parts[place] = ()
    return parts

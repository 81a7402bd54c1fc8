"""Listing: what a manifest holds of HDF5 files, so that opening them reads no metadata.

Values   the complete paths of the datasets; for each its kinds (`datasets.py`), which files share.
Arrays   for dataset k, with names that begin with its number: of each file the kind, the number of
         rows, the byte where these begin, and how many chunks were written; of each chunk place and
         length. The numbers of chunks stand there only for files that lack some, and masks of
         filters only if one has any.
Bounds   rows and chunks lie inside of their files, and chunks inside of their datasets. What HDF5
         decodes is compared with the file when it is first read.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
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
    Kind,
)
from gpuload.formats.members import complete_path, listed_kinds, listed_paths
from gpuload.formats.npy import npyheader
from gpuload.formats.npy.npyheader import Header
from gpuload.formats.packing import Packing
from gpuload.sources.leaf import Array, Indices
from gpuload.spec import Layout
from gpuload.storage.manifest import Manifest

NO_KIND = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    SpecError,
)  # raised for values that are no kind
LARGEST_LENGTH = 1 << 60
LARGEST_MASK = 1 << 32
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
        numbers = dict[Kind, int]()
        kind_of = [numbers.setdefault(dataset.kind, len(numbers)) for dataset in column]
        kinds.append([_to_json(path, kind) for kind in numbers])
        arrays[f"{number} kind_of"] = np.array(kind_of, np.uint32)
        arrays[f"{number} lengths"] = np.array([dataset.length for dataset in column], np.int64)
        num_missing = np.array([dataset.num_missing for dataset in column], np.int64)
        if num_missing.any():
            arrays[f"{number} num_missing"] = num_missing
        arrays[f"{number} begins"] = np.array([dataset.offset for dataset in column], np.int64)
        if any(kind.how == CHUNKS for kind in numbers):
            chunks = [dataset.chunks or (NO_CHUNKS,) * 4 for dataset in column]
            masks = np.concatenate([item[3] for item in chunks])
            lacking = [
                item[0]
                for item, dataset in zip(chunks, column, strict=True)
                if item[0].size != _num(dataset)
            ]
            arrays[f"{number} num_chunks"] = np.array([item[0].size for item in chunks], np.int64)
            arrays[f"{number} chunks"] = np.concatenate(
                [np.stack(item[1:3], axis=1) for item in chunks]
            )
            arrays[f"{number} chunk_numbers"] = np.concatenate([NO_CHUNKS, *lacking])
            if masks.any():
                arrays[f"{number} chunk_masks"] = masks
            else:
                arrays[f"{number} chunk_masks"] = NO_CHUNKS
    return {"paths": list(paths), "kinds": kinds}, arrays


def _num(dataset: Dataset) -> int:
    """Return how many chunks a dataset has, written or not."""
    kind = dataset.kind
    if kind.how == CHUNKS:
        return math.prod(grid_shape((dataset.length, *kind.shape), kind.chunk))
    return 0


def _to_json(path: str, kind: Kind) -> dict[str, Any]:
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
    kind_of = listing.numbers(f"{prefix}kind_of", 0, len(kinds), "<u4")
    lengths = listing.numbers(f"{prefix}lengths", 0, LARGEST_LENGTH)
    begins = listing.numbers(f"{prefix}begins", 0, LARGEST_LENGTH)
    name = f"{prefix}num_missing"
    if name in listing.arrays:
        num_missing = listing.numbers(name, 0, LARGEST_LENGTH)
    else:
        num_missing = np.zeros_like(lengths)
    row_bytes = np.array([_row_bytes(kind) for kind in kinds], np.int64)[kind_of]
    is_rows = np.array([kind.how == ROWS for kind in kinds])[kind_of]
    room = listing.files.sizes - begins  # so said, no product can overflow
    if (
        is_rows & ((room < 0) | (row_bytes == 0) | (lengths > room // np.maximum(row_bytes, 1)))
    ).any():
        raise listing.error(f"rows of {path} would end behind their file")
    chunks: Sequence[tuple[Indices, ...]] = [()] * len(kind_of)
    shares = list(
        zip([kinds[number] for number in kind_of.tolist()], lengths.tolist(), strict=True)
    )
    if any(kind.how == CHUNKS for kind in kinds):
        chunks = _chunks_of(
            listing, path, prefix, [Dataset(kind, length) for kind, length in shares]
        )
    return [
        Dataset(
            kind,
            length,
            begin if kind.how == ROWS else 0,
            places,
            missing if kind.how == HDF5 else 0,
        )
        for (kind, length), begin, places, missing in zip(
            shares, begins.tolist(), chunks, num_missing.tolist(), strict=True
        )
    ]


def _row_bytes(kind: Kind) -> int:
    fields = kind.fields("x")
    if isinstance(fields, Layout):
        return fields.record_bytes
    return 0


def _from_json(entry: Any) -> Kind:
    """Return a kind; raises ``ValueError``, or what Python raises of values of other kinds."""
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
    kind = Kind(
        _text(entry["how"]),
        dtype,
        tuple(map(_whole, entry["shape"])),
        tuple(map(_whole, entry["chunk"])),
        filters,
        base64.b64decode(_text(entry["fill"]), validate=True),
        _text(entry["varying"]),
        entry["has_images"] is True,
        tuple(map(_text, entry["classes"])),
        # Older manifests have neither.
        Packing.from_json(entry["packing"]) if entry.get("packing") else None,
        _text(entry.get("order", "")),
    )
    codes = {code for code, *_ in filters}
    is_sound = (
        kind.how in (ROWS, CHUNKS, HDF5)
        and kind.varying in ("", TEXTS, VALUES)
        and 0 not in kind.chunk
    )
    is_sound = (
        is_sound and kind.order in ("", TURNED) and (kind.order != TURNED or kind.how == HDF5)
    )
    is_sound = (
        is_sound
        and len(kind.chunk) in (0, 1 + len(kind.shape))
        and (kind.how == HDF5 or not kind.varying)
    )
    if kind.how == CHUNKS:
        has_fill = len(kind.fill) == dtype.itemsize
        is_sound = (
            is_sound
            and bool(kind.chunk)
            and codes <= set(FILTERS)
            and has_fill
            and _row_bytes(kind) > 0
        )
    if not is_sound or (kind.how == ROWS and kind.chunk):
        raise ValueError("its parts contradict each other")
    return kind


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
    counts = listing.numbers(f"{prefix}num_chunks", 0, LARGEST_LENGTH)
    places, numbers = (
        listing.array(f"{prefix}chunks", "<i8", -1, 2),
        listing.array(f"{prefix}chunk_numbers", "<i8", -1),
    )
    masks = listing.array(f"{prefix}chunk_masks", "<i8", -1)
    # In float64: sums of damaged numbers could run over in int64, and fit again.
    if counts.sum(dtype=np.float64) != len(places) or len(masks) not in (0, len(places)):
        raise listing.error(f"it has other chunks of {path} than it counts")
    if len(masks):
        masks = masks
    else:
        masks = np.zeros(len(places), np.int64)
    offsets, lengths = places.T
    sizes = np.repeat(listing.files.sizes, counts)
    if (places < 0).any() or (offsets > sizes).any() or (lengths > sizes - offsets).any():
        raise listing.error(f"a chunk of {path} lies outside of its file")
    if (masks < 0).any() or (masks >= LARGEST_MASK).any():
        raise listing.error(f"a mask of filters of {path} cannot be")
    result, first, first_number = list[tuple[Indices, ...]](), 0, 0
    for dataset, count in zip(column, counts.tolist(), strict=True):
        total, end = _num(dataset), first + count
        if count == total:  # each was written
            own_numbers = np.arange(count, dtype=np.int64)
        else:
            own_numbers = numbers[first_number : first_number + count]
            first_number += count
            is_sound = own_numbers.size == count and (np.diff(own_numbers) > 0).all()
            if not is_sound or (count and not 0 <= own_numbers[0] <= own_numbers[-1] < total):
                raise listing.error(
                    f"chunks of {path} are more than its shape has, stand there twice, or lie outside of it"
                )
        part = own_numbers, offsets[first:end], lengths[first:end], masks[first:end]
        result.append(part if dataset.kind.how == CHUNKS else ())
        first = end
    if first_number != numbers.size:
        raise listing.error(f"it has more numbers of chunks of {path} than chunks")
    return result

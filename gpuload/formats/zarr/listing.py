"""Listing: the part of a manifest about Zarr groups, so that opening them reads no metadata and
lists no folder.

Files    of each group and array the file of its metadata, then those of its chunks or shards.
Values   the complete paths of the arrays; for each its kinds, which groups share: metadata without
         the first axis and without attributes, the path in the store, and whether its values are
         images.
Arrays   of each group a row of numbers, one for each array: which kind, how many rows, how many
         chunks have a file; of shards how many chunks they lack. The places of chunks in the grid
         stand there only for arrays that lack some.
Folders  are those of the files of metadata, so that groups move with their manifest.
Bounds   zarr takes the metadata as those of a file, and chunks lie in the grid of their array.
         Whether their files have the names that zarr asks for is found out before it does
         (`arrays.py`).
Memory   about 40 bytes a chunk beside those of its name, which its stamp takes for the most part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from gpuload import lazy, signalsafe
from gpuload.errors import SpecError, line_of
from gpuload.formats import members
from gpuload.formats.listing import FREE, ListedArray, chunk_numbers, read_arrays, to_arrays
from gpuload.formats.members import complete_path
from gpuload.formats.packing import Packing
from gpuload.formats.zarr import FIELD, METADATA, shards
from gpuload.formats.zarr.arrays import ChunkedKind, GroupTables, StoredArray, array_of
from gpuload.sources.leaf import Array, Indices
from gpuload.storage.files import Files
from gpuload.storage.manifest import Manifest
from gpuload.storage.paths import PackedPaths, Texts
from gpuload.storage.stores import like

folder_store = lazy.function("gpuload.formats.zarr.store", "FolderStore")
LARGEST_LENGTH = 1 << 60
NO_CHUNKS = np.zeros(0, np.int64)
GROUPS = (
    ListedArray("kind_of", "<u4", FREE, columns="paths", after=1 << 32),
    ListedArray("lengths", per=FREE, columns="paths"),
    ListedArray("num_chunks", per=FREE, columns="paths"),
    ListedArray("chunk_places", per=FREE),
    # Without it the indexes of shards are read.
    ListedArray("num_absent", per=FREE, columns="paths", least=-1, is_optional=True),
)


def to_manifest(
    paths: Sequence[str], tables: Sequence[Sequence[StoredArray]]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the values and arrays of a manifest.

    Args:
        paths: of the arrays, complete.
        tables: of each group its arrays, in this order.

    Raises:
        SpecError: the metadata of an array have no form in a manifest.
    """
    kind_of, numbers = _number_kinds(paths, tables)
    arrays = [array for table in tables for array in table]
    lacking = [array.chunks for array in arrays if array.chunks.size != _num_chunks(array)]
    values: dict[str, Any] = {
        "kind_of": kind_of,
        "lengths": [[array.length for array in table] for table in tables],
        "num_chunks": [[array.chunks.size for array in table] for table in tables],
        "chunk_places": np.concatenate([NO_CHUNKS, *lacking]),
    }
    num_absent = [[array.num_absent for array in table] for table in tables]
    if any(number is not None for row in num_absent for number in row):
        values["num_absent"] = [[-1 if n is None else n for n in row] for row in num_absent]
    about = {"paths": list(paths), "kinds": [list(map(json.loads, column)) for column in numbers]}
    return about, to_arrays(GROUPS, values)


def _number_kinds(
    paths: Sequence[str], tables: Sequence[Sequence[StoredArray]]
) -> tuple[Array, list[dict[str, int]]]:
    """Return the number of the kind of each array, ``[groups, paths]``, and the numbers by path."""
    numbers: list[dict[str, int]] = [{} for _ in paths]
    texts = dict[int, str]()  # of kinds by their identity: groups of a manifest have them in common
    kind_of = np.zeros((len(tables), len(paths)), np.uint32)
    for row, table in enumerate(tables):
        for column, (path, array) in enumerate(zip(paths, table, strict=True)):
            key = id(array.kind)
            if key not in texts:
                texts[key] = _text_of(path, array.kind)
            kind_of[row, column] = numbers[column].setdefault(texts[key], len(numbers[column]))
    return kind_of, numbers


def _num_chunks(array: StoredArray) -> int:
    """Return how many chunks an array has, with and without a file."""
    return math.prod(array.kind.counts(array.length))


def _text_of(path: str, kind: ChunkedKind) -> str:
    """Return the JSON of a kind."""

    def metadata_of() -> dict[str, Any]:
        metadata = kind.to_json()
        again = ChunkedKind(kind.path, array_of(metadata, 0, folder_store(""), kind.path))
        if again.to_json() != metadata:
            raise ValueError("it reads them as others")
        return metadata

    def to_error(error: Exception) -> SpecError:
        return SpecError(
            f"a manifest with {path}",
            cause=f"zarr cannot read its metadata again from values of JSON: {line_of(error)}",
            remedy="leave it out by fields=, or open the groups by their paths",
        )

    metadata = signalsafe.call_library(metadata_of, to_error)
    values = {"path": kind.path, "metadata": metadata, "has_images": kind.has_images}
    if kind.packing:
        values["packing"] = kind.packing.to_json()
    return json.dumps(values, sort_keys=True)


def from_manifest(listing: Manifest, fields: Mapping[str, str] | None, group: str) -> GroupTables:
    """Return the groups of a manifest.

    Raises:
        FormatError: the manifest contradicts itself.
        SpecError: an array is not listed.
    """
    paths, kinds = listing.about.get("paths"), listing.about.get("kinds")
    if isinstance(paths, list) and complete_path(group, "") in paths:
        pairs = {FIELD: ""}  # an array without a group has one field
    else:
        pairs = members.listed_paths(listing, paths, fields, group, "array")
    paths = cast(list[str], paths)
    if not isinstance(kinds, list) or len(kinds) != len(paths):
        raise listing.error("it holds no kinds of arrays")
    numbers = {path: number for number, path in enumerate(paths)}
    columns = [numbers[complete_path(group, path)] for path in pairs.values()]
    table_kinds = [  # zarr may raise any exception
        members.listed_kinds(listing, path, entries, _from_json, (Exception,), "group")
        for path, entries in zip(paths, kinds, strict=True)
    ]
    tables = _tables_of(listing, table_kinds)
    num_chunks = np.array([[array.chunks.size for array in table] for table in tables])
    firsts = np.cumsum(np.append(0, num_chunks.reshape(-1) + 1))[:-1].reshape(num_chunks.shape)
    folders = [
        _folder_of(
            listing, [(int(first), array.kind) for first, array in zip(row, table, strict=True)]
        )
        for row, table in zip(firsts, tables, strict=True)
    ]
    files = _files_of(listing.files, folders, firsts[:, columns], num_chunks[:, columns] + 1)
    return GroupTables(
        files, folders, pairs, [[table[column] for column in columns] for table in tables]
    )


def _from_json(entry: Any) -> ChunkedKind:
    """Return a kind; raises any error for values that are none."""
    path, metadata = entry["path"], entry["metadata"]
    if not isinstance(path, str) or (
        path and any(part in ("", ".", "..") for part in path.split("/"))
    ):
        raise ValueError(f"{path!r} is no path of an array")
    shape = metadata["shape"]
    if not isinstance(shape, list) or not all(
        type(n) is int and 0 <= n < LARGEST_LENGTH for n in shape
    ):
        raise ValueError(f"{shape!r} is no shape of rows")
    if entry.get("packing"):
        packing = Packing.from_json(entry["packing"])
    else:
        packing = None
    kind = ChunkedKind(
        path, array_of(metadata, 0, folder_store(""), path), entry["has_images"] is True, packing
    )
    if len(kind.steps) != 1 + len(shape) or kind.row_shape != tuple(shape):
        raise ValueError("its chunks have other axes than its rows")
    return kind


def _tables_of(
    listing: Manifest, kinds: Sequence[Sequence[ChunkedKind]]
) -> list[list[StoredArray]]:
    """Return the arrays of each group, given the kinds of each path.

    Raises:
        FormatError: the manifest contradicts itself.
    """
    arrays = read_arrays(listing, GROUPS, {"paths": len(kinds)})
    places = arrays.pop("chunk_places")
    kind_of, lengths, num_chunks = (arrays[row.name] for row in GROUPS[:3])
    if not kind_of.size or len({array.shape for array in arrays.values()}) > 1:
        raise listing.error("its arrays are of other numbers of groups")
    # In float64: sums of damaged numbers could run over in int64, and fit again.
    if (num_chunks + 1.0).sum() != len(listing.files):
        raise listing.error("it lists other files than those of metadata and chunks")
    if (lengths != lengths[:, :1]).any():
        raise listing.error("its arrays differ in their numbers of rows")
    if (kind_of >= [len(column) for column in kinds]).any():
        raise listing.error("it has no such kind of an array")
    tables, counts = list[list[StoredArray]](), list[tuple[int, int]]()
    rows = zip(kind_of.tolist(), lengths.tolist(), num_chunks.tolist(), strict=True)
    for row in rows:
        tables.append([])
        for column, (number, length, count) in enumerate(zip(*row, strict=True)):
            tables[-1].append(array := StoredArray(kinds[column][number], length, NO_CHUNKS))
            counts.append((count, total := _num_chunks(array)))
            if total > members.MOST_BLOCKS or count > total:
                raise listing.error(f"an array has {total} chunks, of which it lists {count}")
    chunks = iter(chunk_numbers(listing, places, counts, "chunks of an array"))
    tables = [[replace(array, chunks=next(chunks)) for array in table] for table in tables]
    if "num_absent" in arrays:
        for table, numbers in zip(tables, arrays["num_absent"].tolist(), strict=True):
            table[:] = [_with_absent(listing, *pair) for pair in zip(table, numbers, strict=True)]
    return tables


def _with_absent(listing: Manifest, array: StoredArray, number: int) -> StoredArray:
    """Return an array with the number of chunks that its shards lack; -1: not counted."""
    if number < 0:
        return array
    levels = shards.levels_of(array.kind.sample)
    if not levels or number > shards.count_leaves(levels, (array.length, *array.kind.row_shape)):
        raise listing.error(f"{number} chunks of an array cannot be missing in its shards")
    return replace(array, num_absent=number)


def _folder_of(listing: Manifest, arrays: Sequence[tuple[int, ChunkedKind]]) -> str:
    """Return the folder of a group, above those of its arrays; of each the number of its first
    file, and the kind."""
    folders = set[str]()
    for number, kind in arrays:
        folder, _, name = listing.files.paths[number].rpartition("/")
        tail = f"/{kind.path}" if kind.path else ""
        if name not in METADATA or not folder.endswith(tail):
            raise listing.error(
                f"{listing.files.paths[number]} is no file of the metadata of "
                f"{kind.path or 'an array'}"
            )
        folders.add(folder.removesuffix(tail) or "/")
    if len(folders) > 1:
        raise listing.error(f"the arrays of a group lie in {sorted(folders)}")
    return like(listing.files.paths[arrays[0][0]], folders.pop())


def _files_of(files: Files, folders: Sequence[str], firsts: Indices, counts: Indices) -> Files:
    """Return the files of arrays, with names from the folder of their group on.

    Args:
        files: all that are listed.
        folders: of the groups.
        firsts: int64 ``[num_groups, num_arrays]``, the number of the first file of each array.
        counts: the same, the number of its files.
    """
    paths = cast(PackedPaths, files.paths)
    steps = np.cumsum(counts.reshape(-1))
    numbers = np.arange(steps[-1]) + np.repeat(
        firsts.reshape(-1) - (steps - counts.reshape(-1)), counts.reshape(-1)
    )
    if not np.array_equal(
        numbers, np.arange(len(files))
    ):  # other fields than those that were indexed
        paths = paths.select(numbers)
        files = replace(files, paths=paths, stamps=files.stamps[numbers])
    group_of = np.zeros(len(paths.folders), np.int64)
    group_of[paths.folder_of] = np.repeat(np.arange(len(folders)), counts.sum(axis=1))
    names = list[str]()
    for name, number in zip(
        paths.folders.between(0, len(paths.folders)), group_of.tolist(), strict=True
    ):
        folder = folders[number]
        if name.startswith(f"{folder}/"):
            name = f"{folder.rpartition('/')[2]}/{name[len(folder) + 1 :]}"
        names.append(name)
    return replace(files, names=PackedPaths(Texts.of(names), paths.folder_of, paths.names))

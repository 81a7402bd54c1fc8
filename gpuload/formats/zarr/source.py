"""Zarr: arrays of one length in a folder are the fields of records; formats 2 and 3.

Layout  A group is a folder of arrays, each a folder with a file of metadata and a file for each
        chunk, or for each shard of many chunks. A chunk without a file has the fill value.
Access  Arrays with chunks of whole rows, without compression or other codecs, are read where
        they lie. All others are decoded by the library zarr, the chunks of some rows at a time, for
        several threads side by side.
Files   All chunks are listed when a group is opened, and zarr reads them through `store.py`: so a
        file that changed or disappeared is an error, where zarr would give the fill value. In an
        object store the listing of an array tells the ETags of its chunks; a web server lists
        nothing, and is asked for each chunk.
Refused stores that are no folders, as ZIP archives; codecs that are not known here, as pickle,
which runs any code. Opening metadata are read and checked here (`metadata.py`), before zarr makes
an array of them (`arrays.py`). A manifest
        holds all that is used of them (`listing.py`): a source that is opened by it reads none, and
        lists no folder.
Fork    zarr starts its own thread anew in a child.
Needs   zarr 3, and so Python 3.11.
Source  https://zarr-specs.readthedocs.io
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gpuload import lazy, signalsafe
from gpuload.errors import (
    FormatError,
    GpuloadError,
    MissingFileError,
    SpecError,
    UnknownFieldError,
    line_of,
)
from gpuload.formats import members
from gpuload.formats.packing import packing_of
from gpuload.formats.zarr import FIELD, METADATA
from gpuload.formats.zarr.arrays import (
    CALL,
    ChunkedKind,
    ChunkedPlace,
    GroupTables,
    StoredArray,
    array_of,
    import_zarr,
    member_of,
    with_gaps,
    with_images,
)
from gpuload.formats.zarr.listing import from_manifest, to_manifest
from gpuload.formats.zarr.metadata import FILES, Node, chunk_counts, chunk_places, read_node
from gpuload.sources.blocks import CACHE_BYTES
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Entries, Opening
from gpuload.sources.furtherfields import log_further_fields
from gpuload.storage import manifest, objects, open_storage
from gpuload.storage.extents import Storage
from gpuload.storage.files import look_at
from gpuload.storage.handles import exists
from gpuload.storage.stores import WEB, ObjectURL, is_remote, place_of, remote_of
from gpuload.storage.wildcards import (
    Paths,
    expand_folders,
    files_below,
    join,
    names_in,
    warn_of_missing_shards,
)
from gpuload.threads import parallel_map

if TYPE_CHECKING:
    from gpuload.formats.zarr.store import FolderStore

Result = TypeVar("Result")
folder_store = lazy.function("gpuload.formats.zarr.store", "FolderStore")
MOST_REQUESTS = 1 << 20  # for chunks of an array, of a server that lists none
MOST_GAPS = 1 << 20  # chunks of an array that are not there, unless fill=True asks for them


def zarr(
    paths: Paths,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    *,
    group: str = "/",
    fill: bool | None = None,
    mask_and_scale: bool | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> ColumnSource:
    """Return the records of Zarr groups: element i of the first axis of each array.

        gl.zarr("train.zarr")
        gl.zarr("shards/*.zarr", ["image", "label"])                            these arrays alone
        gl.zarr("all.zarr", {"image": "x", "label": "meta/y"}, group="train")
        gl.zarr("s3://bucket/train.zarr")

    ``source.describe()`` says which arrays are read where they lie, and which are decoded a block
    of rows at a time. With the latter a shuffle of all rows decodes a block for each of them,
    unless they fit into the cache: ``shuffle=gl.Blocks(1000, 4)``, with the number of rows of a
    block, decodes each once.

    Args:
        paths: a folder, its URL, a string with wildcards, or a list of these; a list keeps its
            order, a wildcard is sorted. Or a manifest of such folders (``Source.index``).
        fields: the paths of arrays in the group, in this order; or a dict from names of fields to
            these. By default all arrays of the group itself that have an axis.
        group: the path of the group.
        fill: True reads chunks without a file, or without a place in their shard, as the fill
            value, without a warning; False: they are an error. zarr itself leaves out chunks that
            hold nothing but the fill value. Unless it is True the index of each shard is read when
            folders are opened; a manifest holds the numbers.
        mask_and_scale: True makes values of numbers that are packed, as the attributes of xarray
            and netCDF say (``scale_factor``, ``add_offset``, ``_FillValue``, ``missing_value``,
            ``valid_range``, ``_Unsigned``): floats, with NaN for a missing value. False gives them
            as they are stored. By default packed numbers are an error.
        cache_bytes: of decoded blocks that are kept.

    Raises:
        SpecError: an argument is wrong; an array cannot be a field; arrays differ in length, or
            groups in a field; numbers are packed, and no argument says how they are read.
        UnknownFieldError: there is no such array or group.
        FormatError: a folder is no Zarr group, or its metadata are damaged.
        FileError: a folder is missing, or cannot be read.
        MissingPackageError: zarr 3 is not installed.
    """
    arguments = members.check_arguments(CALL, fields, group, cache_bytes, fill, mask_and_scale)
    import_zarr()
    listing = manifest.load(paths, "zarr")
    if listing is None:
        groups, stores = _open_folders(expand_folders(paths), arguments["fields"], group, fill)
    else:
        groups = from_manifest(listing, arguments["fields"], group)
        warn_of_missing_shards([folder.rstrip("/") for folder in groups.folders])
        stores = [folder_store(folder) for folder in groups.folders]
    storage = open_storage(groups.files)
    places = list[list[ChunkedPlace]]()

    def entries() -> Entries:
        complete_paths = [members.complete_path(group, path) for path in groups.paths.values()]
        tables = [[_try_count(place, storage).array for place in row] for row in places]
        return Entries(*to_manifest(complete_paths, tables))

    argument: Any = tuple(groups.folders)
    if listing is not None:
        argument = listing.path
    opening = Opening(zarr, {"paths": argument, **arguments})
    try:
        places = _places_of(groups, stores)
        for store, row in zip(stores, places, strict=True):
            store.settle(storage, {groups.files.paths[place.first]: place.first for place in row})
        look = partial(_look_into, storage=storage, fill=fill, is_listed=listing is not None)
        places = [[_within(place, groups, look) for place in row] for row in places]
        tables = [[_within(place, groups, member_of) for place in row] for row in places]
        source = members.source_of(
            groups.files, storage, opening, tables, groups.folders, arguments, entries
        )
    except (SpecError, FormatError) as error:
        raise (error if listing is None else error.within(listing.path)) from None
    return source


def _try_count(place: ChunkedPlace, storage: Storage) -> ChunkedPlace:
    """Return an array with the number of chunks that its shards lack, if that can be told."""
    try:
        return with_gaps(place, storage)
    except SpecError:
        return place


def _look_into(
    place: ChunkedPlace, storage: Storage, fill: bool | None, *, is_listed: bool
) -> ChunkedPlace:
    """Return an array with all that its chunks alone tell: encoded images, and chunks that lack.

    Args:
        place: of the array.
        storage: of the files.
        fill: True: chunks that lack are not counted; False: an error says why they cannot be.
        is_listed: True if a manifest tells whether values are images.
    """
    if not is_listed:
        # One value is looked at, on the first row, which has to be of the files with these stamps.
        place = with_images(place)
    if fill:
        return place
    if fill is None:
        return _try_count(place, storage)
    return with_gaps(place, storage)


def _open_folders(
    folders: Sequence[str], fields: Mapping[str, str] | None, group: str, fill: bool | None
) -> tuple[GroupTables, list[FolderStore]]:
    """Return the groups in folders, and the store through which zarr reads each."""
    groups = [_StoreGroup.open(folder, fields, group, fill) for folder in folders]
    paths = {name: entry.path for name, entry in groups[0].arrays.items()}
    if fields is None:
        later_fields = {item.folder: list(item.arrays) for item in groups[1:]}
        log_further_fields(CALL, groups[0].folder, list(paths), later_fields)
    groups = [item if fields else item.only(paths) for item in groups]
    path_list = [path for item in groups for path in item.files]
    files, _ = look_at(path_list, 0, lambda path, size, head: None)
    roots = [item.folder for item in groups for _ in item.files]
    files = replace(
        files, names=tuple(_name(root, path) for root, path in zip(roots, path_list, strict=True))
    )
    tables = [[entry.array for entry in item.arrays.values()] for item in groups]
    return GroupTables(files, list(folders), paths, tables), [item.store for item in groups]


def _name(folder: str, path: str) -> str:
    """Return the name of a file of a store in errors and in the digest."""
    return f"{os.path.basename(folder)}/{path[len(folder) + 1 :]}"


@dataclass(frozen=True)
class _StoreEntry:
    """An array of a folder.

    Attributes:
        array: the array.
        path: in the group.
        files: of its metadata, then of its chunks.
    """

    array: StoredArray
    path: str
    files: list[str]


@dataclass(frozen=True)
class _StoreGroup:
    """A group in a folder.

    Attributes:
        folder: its path or URL.
        store: through which zarr reads it.
        arrays: its arrays that are fields, by the name of the field.
    """

    folder: str
    store: FolderStore
    arrays: dict[str, _StoreEntry]

    @classmethod
    def open(
        cls, folder: str, fields: Mapping[str, str] | None, group: str, fill: bool | None
    ) -> _StoreGroup:
        """Return a folder with its arrays.

        Raises:
            FormatError: it is no Zarr group.
            UnknownFieldError: there is no such array.
        """
        if not is_remote(folder) and not signalsafe.is_folder(folder):
            raise _no_folder(folder)
        store = folder_store(folder)
        nodes = _nodes_of(folder, store, fields, group)
        arrays = {
            name: _listing(folder, store, path, node, fill) for name, (path, node) in nodes.items()
        }
        return cls(folder, store, arrays)

    def only(self, names: Mapping[str, str]) -> _StoreGroup:
        """Return the group with some of its fields."""
        missing = [name for name in names if name not in self.arrays]
        if missing:
            raise UnknownFieldError(
                f"{self.folder} has no array {missing[0]!r}",
                cause=f"it has {list(self.arrays)}",
                remedy="name those that all groups have: fields=[...]",
            )
        return replace(self, arrays={name: self.arrays[name] for name in names})

    @property
    def files(self) -> list[str]:
        """The files of all arrays."""
        return [path for entry in self.arrays.values() for path in entry.files]


def _nodes_of(
    folder: str, store: FolderStore, fields: Mapping[str, str] | None, group: str
) -> dict[str, tuple[str, Node]]:
    """Return path in the group and metadata of arrays by the name of the field."""
    root = group.strip("/")
    node = read_node(store.read_metadata, folder, root)
    if node is None:
        if any(exists(join(folder, name)) for name in METADATA):
            raise UnknownFieldError(
                f"{folder} has no group {group!r}", cause="nothing is there", remedy="name another"
            )
        raise (
            FormatError(
                f"{folder} is no Zarr group",
                cause=f"it has none of {METADATA}; {store.missing}",
                remedy="check the path",
            )
        )
    if node.metadata is not None:
        if not node.has_axes:
            raise SpecError(
                f"{folder} has no axis in the group {group}",
                cause="it is a single value, and a record is element i of the first axis of an "
                "array",
                remedy="name a group, or an array with an axis",
            )
        return {FIELD: ("", node)}
    if fields is not None:
        return {name: (path, _find(folder, store, node, path)) for name, path in fields.items()}
    names = _names_below(folder, node)
    children = {
        name: child for name in names if (child := _child(folder, store, node, name)) is not None
    }
    nodes = {name: (name, child) for name, child in children.items() if child.has_axes}
    if not nodes:
        raise SpecError(
            f"{folder} has no array with an axis in the group {group}",
            cause=f"it has the groups {[name for name, child in children.items() if child.metadata is None]}",
            remedy="name the group, group='train', or the arrays: fields={'x': 'train/x'}",
        )
    return nodes


def _names_below(folder: str, node: Node) -> list[str]:
    """Return the names of the nodes in a group, sorted.

    Consolidated metadata may be older than the arrays: they are taken only where nothing can be
    listed.
    """
    if node.members is not None and not _lists(folder):
        return sorted(name for name in node.members if "/" not in name)
    if node.path:
        root = join(folder, node.path)
    else:
        root = folder
    is_far = is_remote(root)
    names = (name for name in names_in(root) if name not in FILES)
    return sorted(name for name in names if is_far or signalsafe.is_folder(join(root, name)))


def _child(folder: str, store: FolderStore, node: Node, path: str) -> Node | None:
    """Return a group or array below a group; None if there is none."""
    path = path.strip("/")
    if node.members is not None and not _lists(folder):
        return node.members.get(path)
    return read_node(store.read_metadata, folder, f"{node.path}/{path}" if node.path else path)


def _places_of(groups: GroupTables, stores: Sequence[FolderStore]) -> list[list[ChunkedPlace]]:
    """Return the arrays of each group among the files, which stand one behind the other."""
    firsts = itertools.accumulate(
        (array.num_files for table in groups.tables for array in table), initial=0
    )
    return [
        [
            ChunkedPlace(groups.files, first, store, array, name, path)
            for array, (name, path), first in zip(table, groups.paths.items(), firsts, strict=False)
        ]
        for store, table in zip(stores, groups.tables, strict=True)
    ]


def _within(
    place: ChunkedPlace, groups: GroupTables, function: Callable[[ChunkedPlace], Result]
) -> Result:
    """Return the result for an array; an error names it, and how to leave it out."""
    try:
        return function(place)
    except SpecError as error:
        rest = [name for name in groups.paths if name != place.name]
        if rest:
            error.remedy += f"; fields={rest} leaves it out"
        else:
            error.remedy += ""
        raise error.within(place.title) from None


def _find(folder: str, store: FolderStore, node: Node, path: str) -> Node:
    """Return the metadata of an array of a group."""
    is_path = all(part not in ("", ".", "..") for part in path.strip("/").split("/"))
    if is_path:
        child = _child(folder, store, node, path)
    else:
        child = None
    if child is None or not child.has_axes:
        names = _names_below(folder, node)
        raise UnknownFieldError(
            f"{folder} has no array {path!r} with an axis",
            cause=f"its group {node.path or '/'} has "
            f"{[name for name in names if _child(folder, store, node, name)]}",
            remedy="name what is there",
        )
    return child


def _listing(
    folder: str, store: FolderStore, path: str, node: Node, fill: bool | None
) -> _StoreEntry:
    """Return an array with the files of its chunks."""
    metadata = node.metadata or {}
    root, length = folder, int(metadata["shape"][0])
    if node.path:
        root = join(folder, node.path)
    num_chunks = math.prod(chunk_counts(metadata))
    if num_chunks > members.MOST_BLOCKS:
        raise SpecError(
            f"{folder}, {path} has {num_chunks} chunks",
            cause=f"that are more than {members.MOST_BLOCKS}; or its shape is damaged",
            remedy="write it anew in larger chunks or shards",
        )

    def sample() -> Any:
        row_metadata = {**metadata, "shape": metadata["shape"][1:]}
        return array_of(row_metadata, length, store, node.path)

    kind = ChunkedKind(
        node.path, signalsafe.call_library(sample, lambda error: _damage(folder, error))
    )
    kind = replace(kind, packing=packing_of(kind.packing_attributes(node.attributes), kind.dtype))
    about = [join(root, name) for name in METADATA]
    if _lists(root):
        paths = list(files_below(root))
    else:
        if num_chunks > MOST_REQUESTS:
            raise SpecError(
                f"{folder}, {path} has {num_chunks} chunks",
                cause=f"a web server lists none, and more than {MOST_REQUESTS} are not asked for "
                "one by one",
                remedy="open it in an object store or on a disk, or by a manifest that was written "
                "there",
            )
        paths = list(_look_for([*about, *kind.chunk_paths(root, length)]))
    prefix = join(root, "x")[:-1]
    keys = [text[len(prefix) :] if text.startswith(prefix) else "" for text in paths]
    places = chunk_places(metadata, keys)
    numbers = np.array([number for number, _ in places], np.int64)
    num_missing = num_chunks - numbers.size
    if num_missing > MOST_GAPS and not fill:
        raise SpecError(
            f"{folder}, {path}: {num_missing} of its {num_chunks} chunks are not there",
            cause="the program that wrote it or a copy stopped early; or its shape is damaged",
            remedy="write or copy it anew, or pass fill=True, which reads these chunks as the fill "
            "value",
        )
    first = next(text for name in about for text in paths if text == name)
    return _StoreEntry(
        StoredArray(kind, length, numbers), path, [first, *(paths[index] for _, index in places)]
    )


def _lists(folder: str) -> bool:
    """Return True for a folder of files that can be listed."""
    return not is_remote(folder) or place_of(folder).scheme not in WEB


def _look_for(urls: Sequence[str]) -> Iterable[str]:
    """Yield those of the URLs that are there, each with its stamp."""

    def look(url: str) -> str | None:
        try:
            return ObjectURL(url, remote_of(url), objects.look(url, 0)[0])
        except MissingFileError:
            return None

    return filter(None, parallel_map(look, urls, objects.REQUESTS))


def _no_folder(path: str) -> GpuloadError:
    if not signalsafe.exists(path, follow=False):
        return MissingFileError(
            f"{path} is missing", cause="no such folder", remedy="check the path"
        )
    return FormatError(
        f"{path} is no folder",
        cause="a Zarr group is a folder of chunks; archives of one are not supported",
        remedy="call gl.open(path), which finds out the format, and says how to unpack an archive",
    )


def _damage(folder: str, error: Exception) -> FormatError:
    return FormatError(
        f"{folder}: its metadata are damaged",
        cause=f"zarr refuses them: {line_of(error)}",
        remedy="copy it again",
    )

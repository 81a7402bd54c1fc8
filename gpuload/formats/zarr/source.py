"""Zarr: arrays of one length in a folder are the fields of records; formats 2 and 3.

Layout  A group is a folder of arrays, each a folder with a file of metadata and a file for each chunk, or for each
        shard of many chunks. A chunk without a file has the fill value.
Access  Arrays whose chunks hold whole rows, without compression or other codecs, are read where they lie. All others
        are decoded by the library zarr, the chunks of some rows at a time, for several threads side by side.
Files   All chunks are listed when a group is opened, and zarr reads them through `store.py`: so a file that changed or
        disappeared is an error, where zarr would give the fill value. In an object store the listing of an array tells
        the ETags of its chunks; a web server lists nothing, and is asked for each chunk.
Refused stores that are no folders, as ZIP archives; codecs that unpickle, which would run any code.
Opening zarr reads the metadata, of which a `StoredArray` is all that is used (`arrays.py`). A manifest holds these
        (`listing.py`): a source that is opened by it reads no metadata, and lists no folder.
Fork    zarr starts its own thread anew in a child.
Needs   zarr 3, and so Python 3.11.
Source  https://zarr-specs.readthedocs.io
"""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gpuload import lazy, signalsafe
from gpuload.errors import FormatError, GpuloadError, MissingFileError, SpecError, UnknownFieldError, line_of
from gpuload.formats import members
from gpuload.formats.zarr import FIELD, METADATA
from gpuload.formats.zarr.arrays import CALL, Groups, Kind, Place, StoredArray, import_zarr, member_of, with_images
from gpuload.formats.zarr.listing import from_manifest, to_manifest
from gpuload.sources.blocks import CACHE_BYTES
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Entries, Opening
from gpuload.storage import manifest, objects, open_storage
from gpuload.storage.files import Paths, exists, expand_folders, files_below, join, look_at
from gpuload.storage.stores import WEB, ObjectURL, is_remote, place_of, remote_of
from gpuload.threads import parallel_map

if TYPE_CHECKING:
    from gpuload.formats.zarr.store import FolderStore

Result = TypeVar("Result")
folder_store = lazy.function("gpuload.formats.zarr.store", "FolderStore")
log = logging.getLogger("gpuload")


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

    ``source.describe()`` says which arrays are read where they lie, and which are decoded a block of rows at a time.
    With the latter a shuffle of all rows decodes a block for each of them, unless they fit into the cache:
    ``shuffle=gl.Blocks(1000, 4)``, with the number of rows of a block, decodes each once.

    Args:
        paths: a folder, its URL, a string with wildcards, or a list of these; a list keeps its order, a wildcard is
            sorted. Or a manifest of such folders (``Source.index``).
        fields: the paths of arrays in the group, in this order; or a dict from names of fields to these. By default all
            arrays of the group itself that have an axis.
        group: the path of the group.
        fill: True reads chunks without a file as the fill value, without a warning; False: they are an error. zarr
            itself writes no file for a chunk that holds nothing but the fill value.
        mask_and_scale: True makes values of numbers that are packed, as the attributes of xarray and netCDF say
            (``scale_factor``, ``add_offset``, ``_FillValue``, ``missing_value``, ``valid_range``, ``_Unsigned``):
            floats, with NaN for a missing value. False gives them as they are stored. By default packed numbers are an
            error.
        cache_bytes: of decoded blocks that are kept.

    Raises:
        SpecError: an argument is wrong; an array cannot be a field; arrays differ in length, or groups in a field;
            numbers are packed, and no argument says what becomes of them.
        UnknownFieldError: there is no such array or group.
        FormatError: a folder is no Zarr group, or its metadata are damaged.
        FileError: a folder is missing, or cannot be read.
        MissingPackageError: zarr 3 is not installed.
    """
    arguments = members.check_arguments(CALL, fields, group, cache_bytes, fill, mask_and_scale)
    import_zarr()
    listing = manifest.load(paths, "zarr")
    if listing is None:
        groups, stores = _open_folders(expand_folders(paths), arguments["fields"], group)
    else:
        groups = from_manifest(listing, arguments["fields"], group)
        stores = [folder_store(folder) for folder in groups.folders]
    storage = open_storage(groups.files)
    places = list[list[Place]]()

    def entries() -> Entries:
        complete_paths = [members.complete_path(group, path) for path in groups.paths.values()]
        return Entries(*to_manifest(complete_paths, [[place.array for place in row] for row in places]))

    opening = Opening(zarr, {"paths": tuple(groups.folders) if listing is None else listing.path, **arguments})
    try:
        places = _places_of(groups, stores)
        for store, row in zip(stores, places, strict=True):
            store.settle(storage, {groups.files.paths[place.first]: place.first for place in row})
        # What varies is tried on its first row, which has to be of the files with these stamps.
        places = (
            places
            if listing is not None
            else [[_within(place, groups, with_images) for place in row] for row in places]
        )
        tables = [[_within(place, groups, member_of) for place in row] for row in places]
        source = members.source_of(groups.files, storage, opening, tables, groups.folders, arguments, entries)
    except (SpecError, FormatError) as error:
        raise (error if listing is None else error.within(listing.path)) from None
    return source


def _open_folders(
    folders: Sequence[str], fields: Mapping[str, str] | None, group: str
) -> tuple[Groups, list[FolderStore]]:
    """Return the groups in folders, and what reads them for zarr."""
    groups = [_Group.open(folder, fields, group) for folder in folders]
    paths = {name: entry.path for name, entry in groups[0].arrays.items()}
    groups = [item if fields else item.only(paths) for item in groups]
    path_list = [path for item in groups for path in item.files]
    files, _ = look_at(path_list, 0, lambda path, size, head: None)
    roots = [item.folder for item in groups for _ in item.files]
    files = replace(files, names=tuple(_name(root, path) for root, path in zip(roots, path_list, strict=True)))
    tables = [[entry.array for entry in item.arrays.values()] for item in groups]
    return Groups(files, list(folders), paths, tables), [item.store for item in groups]


def _name(folder: str, path: str) -> str:
    """Return the name of a file of a store in errors and in the digest."""
    return f"{os.path.basename(folder)}/{path[len(folder) + 1 :]}"


@dataclass(frozen=True)
class _Entry:
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
class _Group:
    """A group in a folder.

    Attributes:
        folder: its path or URL.
        store: through which zarr reads it.
        arrays: its arrays that are fields, by the name of the field.
    """

    folder: str
    store: FolderStore
    arrays: dict[str, _Entry]

    @classmethod
    def open(cls, folder: str, fields: Mapping[str, str] | None, group: str) -> _Group:
        """Return a folder with its arrays.

        Raises:
            FormatError: it is no Zarr group.
            UnknownFieldError: there is no such array.
        """
        if not is_remote(folder) and not os.path.isdir(folder):
            raise _no_folder(folder)
        import_zarr()
        store = folder_store(folder)

        def to_error(error: Exception) -> GpuloadError:
            if not isinstance(error, FileNotFoundError):
                return _damage(folder, error)
            if any(exists(join(folder, name)) for name in METADATA):
                return UnknownFieldError(
                    f"{folder} has no group {group!r}", cause="nothing is there", remedy="name another"
                )
            return FormatError(
                f"{folder} is no Zarr group",
                cause=f"it has none of {METADATA}; {store.missing}",
                remedy="check the path",
            )

        nodes = signalsafe.call_library(lambda: _nodes_of(folder, store, fields, group), to_error)
        arrays = {name: _listing(folder, path, array) for name, (path, array) in nodes.items()}
        return cls(folder, store, arrays)

    def only(self, names: Mapping[str, str]) -> _Group:
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
) -> dict[str, tuple[str, Any]]:
    """Return path and array of zarr by the name of the field; zarr may raise any error."""
    package = import_zarr()
    # Consolidated metadata may be older than the arrays: they are taken only where nothing can be listed.
    options = {"mode": "r", "use_consolidated": False if _lists(folder) else None}  # None: where it is there
    node = package.open(store=store, path=group.strip("/"), **options)
    if isinstance(node, package.Array) and not node.shape:
        raise SpecError(
            f"{folder} has no axis in the group {group}",
            cause="it is a single value, and a record is element i of the first axis of an array",
            remedy="name a group, or an array with an axis",
        )
    if isinstance(node, package.Array):
        return {FIELD: ("", node)}
    if fields is not None:
        return {name: (path, _find(folder, node, path)) for name, path in fields.items()}
    nodes = {name: (name, array) for name, array in sorted(node.arrays()) if array.shape}
    if not nodes:
        raise SpecError(
            f"{folder} has no array with an axis in the group {group}",
            cause=f"it has the groups {sorted(name for name, _ in node.groups())}",
            remedy="name the group, group='train', or the arrays: fields={'x': 'train/x'}",
        )
    return nodes


def _places_of(groups: Groups, stores: Sequence[FolderStore]) -> list[list[Place]]:
    """Return the arrays of each group among the files, which stand one behind the other."""
    firsts = itertools.accumulate((array.num_files for table in groups.tables for array in table), initial=0)
    return [
        [
            Place(groups.files, first, store, array, name, path)
            for array, (name, path), first in zip(table, groups.paths.items(), firsts, strict=False)
        ]
        for store, table in zip(stores, groups.tables, strict=True)
    ]


def _within(place: Place, groups: Groups, function: Callable[[Place], Result]) -> Result:
    """Return the result for an array; an error names it, and how to leave it out."""
    try:
        return function(place)
    except SpecError as error:
        rest = [name for name in groups.paths if name != place.name]
        error.remedy += f"; fields={rest} leaves it out" if rest else ""
        raise error.within(place.title) from None


def _find(folder: str, node: Any, path: str) -> Any:
    """Return an array of a group."""
    try:
        array = node[path.strip("/")]
    except (KeyError, ValueError):
        array = None
    if not isinstance(array, import_zarr().Array) or not array.shape:
        raise UnknownFieldError(
            f"{folder} has no array {path!r} with an axis",
            cause=f"its group {node.path or '/'} has {sorted(name for name, _ in node.members())}",
            remedy="name what is there",
        )
    return array


def _listing(folder: str, path: str, array: Any) -> _Entry:
    """Return an array with the files of its chunks."""
    kind = Kind(array.path, array)
    root = join(folder, array.path) if array.path else folder
    counts = kind.counts(int(array.shape[0]))
    if math.prod(counts) > members.MOST_BLOCKS:
        raise SpecError(
            f"{folder}, {path} has {math.prod(counts)} chunks",
            cause=f"that are more than {members.MOST_BLOCKS}; or its shape is damaged",
            remedy="write it anew in larger chunks or shards",
        )
    about = [join(root, name) for name in METADATA]

    def names() -> Iterator[str]:
        return (join(root, array.metadata.encode_chunk_key(place)) for place in itertools.product(*map(range, counts)))

    # A URL from a listing is found by its plain text, and brings its stamp.
    paths = {path: path for path in (files_below(root) if _lists(root) else _look_for([*about, *names()]))}
    chunks = {number: paths[name] for number, name in enumerate(names()) if name in paths}
    if len(chunks) < math.prod(counts):
        num_missing = math.prod(counts) - len(chunks)
        log.info("%s, %s: %d chunks are not there, and have the fill value", folder, path, num_missing)
    metadata = next(paths[name] for name in about if name in paths)
    content = StoredArray(kind, int(array.shape[0]), np.array(list(chunks), np.int64))
    return _Entry(content, path, [metadata, *chunks.values()])


def _lists(folder: str) -> bool:
    """Return True for a folder whose files can be listed."""
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
    if not os.path.lexists(path):
        return MissingFileError(f"{path} is missing", cause="no such folder", remedy="check the path")
    return FormatError(
        f"{path} is no folder", cause="a Zarr group is a folder of chunks", remedy="unpack it, if it is an archive"
    )


def _damage(folder: str, error: Exception) -> FormatError:
    return FormatError(
        f"{folder}: its metadata are damaged",
        cause=f"zarr refuses them: {line_of(error)}",
        remedy="copy it again",
    )

"""Zarr: arrays of one length in a folder are the fields of records; formats 2 and 3.

Layout  A group is a folder of arrays, each a folder with a file of metadata and a file for each chunk, or for each
        shard of many chunks. A chunk without a file has the fill value.
Access  Arrays whose chunks hold whole rows, without compression or other codecs, are read where they lie. All others
        are decoded by the library zarr, the chunks of some rows at a time, for several threads side by side.
Files   All chunks are listed when a group is opened, and zarr reads them through `store.py`: so a file that changed or
        disappeared is an error, where zarr would give the fill value. In an object store the listing of an array tells
        the ETags of its chunks; a web server lists nothing, and is asked for each chunk.
Refused stores that are no folders, as ZIP archives; codecs that unpickle, which would run any code.
Fork    zarr starts its own thread anew in a child.
Needs   zarr 3, and so Python 3.11.
Source  https://zarr-specs.readthedocs.io
"""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from gpuload import lazy, signalsafe
from gpuload.errors import (
    DamagedBlockError,
    FormatError,
    GpuloadError,
    MissingFileError,
    MissingPackageError,
    SpecError,
    UnknownFieldError,
    line_of,
    missing_package,
)
from gpuload.formats import members
from gpuload.formats.members import Member, Places
from gpuload.formats.zarr import METADATA
from gpuload.ragged import Ragged
from gpuload.sources.blocks import CACHE_BYTES
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Entries, Opening
from gpuload.sources.leaf import Array, Indices
from gpuload.spec import Field, Layout
from gpuload.storage import objects, open_storage
from gpuload.storage.files import Files, Paths, exists, expand_folders, files_below, join, look_at
from gpuload.storage.stores import WEB, ObjectURL, is_remote, place_of, remote_of
from gpuload.threads import parallel_map

CALL = "gl.zarr"
MAJOR = 3  # version of the library
FIELD = "x"  # the name of the field of an array without a group
TEXTS, BYTES = "VariableLengthUTF8", "VariableLengthBytes"  # zarr's names of types
folder_store = lazy.function("gpuload.formats.zarr.store", "FolderStore")
log = logging.getLogger("gpuload")


def zarr(
    paths: Paths,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    *,
    group: str = "/",
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
            sorted.
        fields: the paths of arrays in the group, in this order; or a dict from names of fields to these. By default all
            arrays of the group itself that have an axis.
        group: the path of the group.
        cache_bytes: of decoded blocks that are kept.

    Raises:
        SpecError: an argument is wrong; an array cannot be a field; arrays differ in length, or groups in a field.
        UnknownFieldError: there is no such array or group.
        FormatError: a folder is no Zarr group, or its metadata are damaged.
        FileError: a folder is missing, or cannot be read.
        MissingPackageError: zarr 3 is not installed.
    """
    arguments = members.check_arguments(CALL, fields, group, cache_bytes)
    _import_zarr()
    names = expand_folders(paths)
    stores = [_Store.open(folder, arguments["fields"], group) for folder in names]
    pairs = arguments["fields"] or {name: name for name in stores[0].arrays}
    stores = [store if arguments["fields"] else store.only(pairs) for store in stores]
    numbers, path_list = list[int](), list[str]()
    for store in stores:
        numbers.append(len(path_list))
        path_list += store.files
    files, _ = look_at(path_list, 0, lambda path, size, head: None)
    roots = [store.folder for store in stores for _ in store.files]
    files = replace(files, names=tuple(_name(root, path) for root, path in zip(roots, path_list, strict=True)))
    storage = open_storage(files)
    # Before the members are made: what varies is tried on its first row, which must be of the files with these stamps.
    for store, first in zip(stores, numbers, strict=True):
        store.reading.settle(storage, dict(zip(store.files, itertools.count(first), strict=False)))
    tables = [store.members(files, first) for store, first in zip(stores, numbers, strict=True)]
    opening = Opening(zarr, {"paths": tuple(names), **arguments})

    def entries() -> Entries:
        raise SpecError(
            f"a manifest of {files.names[0]}",
            cause="gl.zarr opens no manifests",
            remedy="open the groups by their paths; gl.convert writes formats that have manifests",
        )

    return members.source_of(files, storage, opening, tables, names, arguments, entries)


def _import_zarr() -> ModuleType:
    try:
        package = signalsafe.import_package("zarr")
    except ImportError as error:
        raise missing_package("zarr", needed_for=CALL, extra="zarr", error=error) from None
    if int(package.__version__.partition(".")[0]) < MAJOR:
        raise MissingPackageError(
            f"{CALL} needs zarr {MAJOR}", cause=f"this is {package.__version__}", remedy="use Python 3.11, and zarr 3"
        )
    return package


def _name(folder: str, path: str) -> str:
    """Return the name of a file of a store in errors and in the digest."""
    return f"{os.path.basename(folder)}/{path[len(folder) + 1 :]}"


@dataclass(frozen=True)
class _Array:
    """An array of a store.

    Attributes:
        array: zarr's.
        path: in the group.
        metadata: the file of its metadata.
        chunks: the files of its chunks or shards that are there, by their place in the grid; ascending.
    """

    array: Any
    path: str
    metadata: str
    chunks: dict[int, str]


@dataclass(frozen=True)
class _Store:
    """A folder.

    Attributes:
        folder: its path or URL.
        reading: the store through which zarr reads it.
        arrays: its arrays that are fields, by the name of the field.
    """

    folder: str
    reading: Any
    arrays: dict[str, _Array]

    @classmethod
    def open(cls, folder: str, fields: Mapping[str, str] | None, group: str) -> _Store:
        """Return a folder with its arrays.

        Raises:
            FormatError: it is no Zarr group.
            UnknownFieldError: there is no such array.
        """
        if not is_remote(folder) and not os.path.isdir(folder):
            raise _no_folder(folder)
        package, store, lists = _import_zarr(), folder_store(folder), _lists(folder)
        try:
            # Consolidated metadata may be older than the arrays: they are taken only where nothing can be listed.
            options = {"mode": "r", "use_consolidated": False if lists else None}  # None: where it is there
            node = package.open(store=store, path=group.strip("/"), **options)
        except GpuloadError:
            raise
        except FileNotFoundError:
            raise (
                UnknownFieldError(f"{folder} has no group {group!r}", cause="nothing is there", remedy="name another")
                if any(exists(join(folder, name)) for name in METADATA)
                else FormatError(
                    f"{folder} is no Zarr group",
                    cause=f"it has none of {METADATA}; {store.missing}",
                    remedy="check the path",
                )
            ) from None
        except Exception as error:
            raise _damage(folder, error) from None
        try:
            if isinstance(node, package.Array):
                nodes = {FIELD: ("", node)}
            elif fields is None:
                nodes = {name: (name, array) for name, array in sorted(node.arrays()) if array.shape}
            else:
                nodes = {name: (path, _find(folder, node, path)) for name, path in fields.items()}
        except GpuloadError:
            raise
        except Exception as error:
            raise _damage(folder, error) from None
        if not nodes:
            raise SpecError(
                f"{folder} has no array with an axis in the group {group}",
                cause=f"it has the groups {sorted(name for name, _ in node.groups())}",
                remedy="name the group, group='train', or the arrays: fields={'x': 'train/x'}",
            )
        arrays = {name: _listing(folder, path, array) for name, (path, array) in nodes.items()}
        return cls(folder, store, arrays)

    def only(self, names: Mapping[str, str]) -> _Store:
        """Return the store with some of its fields."""
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
        """The files of all arrays: the metadata of each, then its chunks."""
        return [path for item in self.arrays.values() for path in (item.metadata, *item.chunks.values())]

    def members(self, files: Files, first: int) -> list[Member]:
        """Return the arrays as fields; ``first`` is the number of the first file of the store."""
        table = list[Member]()
        for name, item in self.arrays.items():
            numbers = dict(zip(item.chunks, itertools.count(first + 1), strict=False))
            chunks = _Chunks(files, first, numbers, item.array, f"{self.folder}, {item.path or 'the array'}")
            try:
                table.append(_member(chunks, name, item.path))
            except SpecError as error:
                rest = [other_name for other_name in self.arrays if other_name != name]
                error.remedy += f"; fields={rest} leaves it out" if rest else ""
                raise error.within(chunks.title) from None
            first += 1 + len(item.chunks)
        return table


def _find(folder: str, node: Any, path: str) -> Any:
    """Return an array of a group."""
    try:
        array = node[path.strip("/")]
    except (KeyError, ValueError):
        array = None
    if not isinstance(array, _import_zarr().Array) or not array.shape:
        raise UnknownFieldError(
            f"{folder} has no array {path!r} with an axis",
            cause=f"its group {node.path or '/'} has {sorted(name for name, _ in node.members())}",
            remedy="name what is there",
        )
    return array


def _listing(folder: str, path: str, array: Any) -> _Array:
    """Return an array with the files of its chunks."""
    root = join(folder, array.path) if array.path else folder
    lengths = array.shards or array.chunks
    counts = [-(-length // max(step, 1)) for length, step in zip(array.shape, lengths, strict=True)]
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
    return _Array(array, path, metadata, chunks)


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


@dataclass(frozen=True)
class _Chunks:
    """The chunks of an array.

    Attributes:
        files: the files of the source.
        metadata: the number of the file of its metadata.
        numbers: of the files of chunks or shards, by their place in the grid.
        array: zarr's.
        title: folder and array, for errors.
    """

    files: Files
    metadata: int
    numbers: dict[int, int]
    array: Any
    title: str

    def files_of(self, begin: int, end: int) -> list[int]:
        """Return the numbers of the files that hold rows."""
        lengths = self.array.shards or self.array.chunks
        in_row = math.prod(-(-n // step) for n, step in zip(self.array.shape[1:], lengths[1:], strict=True))
        places = range(begin // lengths[0] * in_row, -(-end // lengths[0]) * in_row)
        return [self.numbers[place] for place in places if place in self.numbers]

    def decode(self, starts: Indices, field: Field | np.dtype[Any], block: int) -> Array | Ragged:
        """Return the rows of a block: of a dtype, or of a field of values of varying length.

        Raises:
            DamagedBlockError: zarr cannot decode them.
            ChangedFileError: a file changed.
        """
        begin, end = (int(start) for start in starts[block : block + 2])
        place = f"{self.title}, rows {begin} to {end - 1}"
        try:
            values = np.asarray(self.array[begin:end])
        except GpuloadError:
            raise
        except Exception as error:  # a codec may raise any
            cause = f"zarr cannot decode it: {line_of(error)}"
            raise DamagedBlockError(place, cause=cause, remedy="copy the files again") from None
        if isinstance(field, Field):
            return members.texts_of(values) if field.text else members.varying_of(values, field.dtype)
        if values.dtype != self.array.dtype or values.shape != (end - begin, *self.array.shape[1:]):
            cause = f"it has become {values.dtype} {values.shape}, and was {self.array.dtype}"
            raise DamagedBlockError(place, cause=cause, remedy="copy the files again")
        return np.ascontiguousarray(values, field)

    def origin(self, starts: Indices, block: int) -> tuple[str, int]:
        """Return the first file of a block."""
        numbers = self.files_of(int(starts[block]), int(starts[block + 1]))
        return self.files.paths[numbers[0] if numbers else self.metadata], 0


def _member(chunks: _Chunks, name: str, path: str) -> Member:
    """Return an array as fields of records."""
    array, shape, settings = chunks.array, tuple(map(int, chunks.array.shape)), chunks.array.metadata
    codecs = (*(array.filters or ()), *(array.compressors or ()))
    if any("pickle" in str(getattr(codec, "codec_id", type(codec).__name__)).lower() for codec in codecs):
        raise SpecError(
            "its values are pickles",
            cause="they could run any code when they are read",
            remedy="store arrays of numbers or texts",
        )
    size = sum(int(chunks.files.sizes[number]) for number in chunks.numbers.values())
    kind = type(settings.dtype if settings.zarr_format == 2 else settings.data_type).__name__
    fields: Field | Layout
    if kind == TEXTS:
        fields = members.text_field(name, shape[1:])
    elif kind == BYTES:
        fields = members.varying_field(name, np.dtype(np.uint8), shape[1:], array[:1] if shape[0] else [])
    else:
        fields = members.row_layout(name, array.dtype, shape[1:])
    row_bytes = fields.record_bytes if isinstance(fields, Layout) else 0
    files, dtype = _plain_files(chunks, row_bytes), array.dtype
    if files is not None:
        dtype = _stored_dtype(array)
        fields = members.row_layout(name, dtype, shape[1:])
    starts = members.block_starts(chunks.title, shape[0], max(int(array.chunks[0]), 1), row_bytes, size)
    return Member(
        chunks.title,
        path,
        fields,
        starts,
        partial(chunks.decode, starts, fields if isinstance(fields, Field) else dtype),
        "decoded by zarr",
        partial(chunks.origin, starts),
        shape[0] * row_bytes or size,
        None if files is None else Places(files, np.diff(starts), np.zeros(files.size, np.int64)),
    )


def _plain_files(chunks: _Chunks, row_bytes: int) -> Indices | None:
    """Return the number of the file of each chunk, if all hold rows as NumPy has them; None if not."""
    array, settings = chunks.array, chunks.array.metadata
    if settings.zarr_format == 2:
        is_plain = settings.compressor is None and not settings.filters and settings.order == "C"
    else:
        is_plain = [type(codec).__name__ for codec in settings.codecs] == ["BytesCodec"]
    if not (is_plain and row_bytes and array.chunks[1:] == array.shape[1:]):
        return None
    files = np.array(list(chunks.numbers.values()), np.int64)
    is_whole = files.size == -(-array.shape[0] // array.chunks[0])
    # The last chunk, too: zarr fills it up with rows that are none.
    is_whole = is_whole and bool((chunks.files.sizes[files] == array.chunks[0] * row_bytes).all())
    return files if is_whole else None


def _stored_dtype(array: Any) -> np.dtype[Any]:
    """Return the dtype of the bytes of an array: in format 3 its codec says the byte order."""
    order = getattr(getattr(array, "serializer", None), "endian", None)
    dtype: np.dtype[Any] = array.dtype
    if array.metadata.zarr_format == 2 or order is None:
        return dtype
    return dtype.newbyteorder("<" if order.value == "little" else ">")

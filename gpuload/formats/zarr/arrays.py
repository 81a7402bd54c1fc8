"""Arrays: the metadata of an array of a store, as zarr reads them, and the fields of records that it becomes.

A `StoredArray` is all that opening takes of it. It comes from the store, or from a manifest
(`listing.py`). The files of an array stand one behind the other among those of the source: its
metadata, then its chunks. Before zarr decodes rows, the store is told which files are their chunks,
and their names are compared with those that zarr will ask for.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import ModuleType
from typing import Any

import numpy as np

from gpuload import signalsafe, threads
from gpuload.errors import (
    DamagedBlockError,
    FormatError,
    MissingPackageError,
    SpecError,
    line_of,
    missing_package,
)
from gpuload.formats import members
from gpuload.formats.members import Gaps, Member, MemberPlaces
from gpuload.formats.packing import MISSING, SCALES, Packing
from gpuload.formats.zarr import shards
from gpuload.formats.zarr.metadata import check_array
from gpuload.formats.zarr.texts import with_checks
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Array, Indices
from gpuload.spec import Field, Layout
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files
from gpuload.storage.wildcards import join

CALL = "gl.zarr"
MAJOR = 3  # version of the library
AXES_OF_XARRAY = "_ARRAY_DIMENSIONS"  # an attribute of arrays of xarray, in format 2
TEXTS, BYTES = "VariableLengthUTF8", "VariableLengthBytes"  # zarr's names of types


def import_zarr() -> ModuleType:
    """Return the package zarr.

    Raises:
        MissingPackageError: it is not installed, or too old.
    """
    is_first = "zarr" not in sys.modules
    try:
        package = signalsafe.import_package("zarr")
    except ImportError as error:
        raise missing_package("zarr", needed_for=CALL, extra="zarr", error=error) from None
    if is_first:
        threads.end_first()  # zarr stops its event loop at the end, and a thread that waits for it then waits for ever
    if int(package.__version__.partition(".")[0]) < MAJOR:
        raise MissingPackageError(
            f"{CALL} needs zarr {MAJOR}",
            cause=f"this is {package.__version__}",
            remedy="use Python 3.11, and zarr 3",
        )
    return package


@dataclass(frozen=True, eq=False)
class ChunkedKind:
    """The part of an array that many stores have in common.

    Attributes:
        path: of the array in its store; "" for an array without a group.
        sample: zarr's array; its length is of no meaning here.
        has_images: True if its values are encoded images.
        packing: how its numbers stand for values.
    """

    path: str
    sample: Any
    has_images: bool = False
    packing: Packing | None = None

    @cached_property
    def type_name(self) -> str:
        """The name of zarr's type."""
        settings = self.sample.metadata
        return type(settings.dtype if settings.zarr_format == 2 else settings.data_type).__name__

    @cached_property
    def dtype(self) -> Any:
        """The dtype of its values."""
        return self.sample.dtype

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return tuple(map(int, self.sample.shape[1:]))

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The shape of the content of a file: of a chunk, or of a shard; at least 1 along each axis."""
        return tuple(max(int(step), 1) for step in self.sample.shards or self.sample.chunks)

    @cached_property
    def block_rows(self) -> int:
        """The rows of a chunk, also of one in a shard."""
        return max(int(self.sample.chunks[0]), 1)

    @cached_property
    def plain_dtype(self) -> np.dtype[Any] | None:
        """The dtype of the bytes of chunks that hold whole rows as NumPy has them; None for
        others."""
        array, settings = self.sample, self.sample.metadata
        if settings.zarr_format == 2:
            is_plain = (
                settings.compressor is None and not settings.filters and settings.order == "C"
            )
        else:
            is_plain = [type(codec).__name__ for codec in settings.codecs] == ["BytesCodec"]
        if not is_plain or self.type_name in (TEXTS, BYTES) or self.steps[1:] != self.row_shape:
            return None
        # In format 3 the codec says the byte order.
        order = getattr(getattr(array, "serializer", None), "endian", None)
        dtype: np.dtype[Any] = array.dtype
        if settings.zarr_format == 2 or order is None:
            return dtype
        return dtype.newbyteorder("<" if order.value == "little" else ">")

    def counts(self, length: int) -> tuple[int, ...]:
        """Return the shape of the grid of chunks or shards of an array of some rows."""
        return tuple(
            -(-n // step) for n, step in zip((length, *self.row_shape), self.steps, strict=True)
        )

    def packing_attributes(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes that say how numbers are packed; in format 2 xarray has its own
        fill value."""
        settings = self.sample.metadata
        is_of_xarray = settings.zarr_format == 2 and not {*SCALES, AXES_OF_XARRAY}.isdisjoint(
            attributes
        )
        if is_of_xarray and settings.fill_value is not None and MISSING[0] not in attributes:
            return {**attributes, MISSING[0]: settings.fill_value}
        return dict(attributes)

    def chunk_paths(self, root: str, length: int) -> Iterator[str]:
        """Yield the paths of the files of all chunks of an array of some rows."""
        for place in itertools.product(*map(range, self.counts(length))):
            yield join(root, self.sample.metadata.encode_chunk_key(place))

    def fields(self, name: str) -> Layout | Field:
        """Return the layout of a decoded row, or the field of values of varying length.

        Raises:
            SpecError: it cannot be a field.
        """
        if self.type_name == TEXTS:
            return members.text_field(name, self.row_shape)
        if self.type_name == BYTES:
            values = members.varying_field(name, np.dtype(np.uint8), self.row_shape, [])
            return replace(values, encoded=self.has_images)
        return _row_layout(name, self.dtype, self.row_shape)

    def to_json(self) -> dict[str, Any]:
        """Return the metadata in values that JSON has, without the first axis and without
        attributes."""
        values: dict[str, Any] = json.loads(
            json.dumps({**self.sample.metadata.to_dict(), "attributes": {}})
        )
        return {**values, "shape": values["shape"][1:]}


@functools.lru_cache(maxsize=256)
def _row_layout(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Layout:
    """Return the layout of a row, one for all stores."""
    return members.row_layout(name, dtype, shape)


def array_of(metadata: Mapping[str, Any], length: int, store: Any, path: str) -> Any:
    """Return zarr's array of some rows for metadata from `ChunkedKind.to_json`; for others zarr raises any
    error.

    Raises:
        SpecError: a codec is not supported.
        ValueError: they cannot be those of an array.
    """
    check_array({**metadata, "shape": [length, *metadata["shape"]]})
    package, storage = import_zarr(), signalsafe.import_package("zarr.storage")
    place = storage.StorePath(store, path)
    array = package.Array.from_dict(place, {**metadata, "shape": [length, *metadata["shape"]]})
    with contextlib.suppress(SpecError):  # zarr does not check the shapes of shards in shards
        shards.levels_of(array)
    return with_checks(array)


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array of a store.

    Attributes:
        kind: the part that other stores share.
        length: the number of rows.
        chunks: int64 ``[num_chunks]``, ascending: the places in the grid of the chunks or shards
            that have a file.
        num_absent: how many chunks are not there, of an array of shards; None: not counted.
    """

    kind: ChunkedKind
    length: int
    chunks: Indices
    num_absent: int | None = None

    @property
    def num_files(self) -> int:
        """The number of its files: of its metadata, and its chunks."""
        return 1 + int(self.chunks.size)


@dataclass(frozen=True, eq=False)
class GroupTables:
    """The groups of a source.

    Attributes:
        files: of all arrays that are fields, group by group: of each array its metadata, then its
            chunks.
        folders: of the groups.
        paths: of the arrays in the group, by the name of the field.
        tables: of each group its arrays, in this order.
    """

    files: Files
    folders: list[str]
    paths: dict[str, str]
    tables: list[list[StoredArray]]


@dataclass(frozen=True, eq=False)
class ChunkedPlace:
    """An array of a store, as a field of the records of a source.

    Attributes:
        files: the files of the source.
        first: the number of the file of its metadata; its chunks follow.
        store: reads the files for zarr.
        array: the array.
        name: of the field.
        path: of the array in the group.
        cache: zarr's array, once zarr decoded rows of an array of a manifest.
    """

    files: Files
    first: int
    store: Any
    array: StoredArray
    name: str
    path: str
    cache: list[Any] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Folder and array, for errors."""
        return f"{self.store.folder}, {self.path or 'the array'}"

    def _array(self) -> Any:
        """Return zarr's array; raises ``ChangedFileError`` if its metadata changed after the
        manifest was written."""
        kind = self.array.kind
        if kind.sample.store_path.store is self.store:
            return kind.sample
        if (
            not self.cache
        ):  # without a lock, of a `cached_property` say: it would have all arrays wait for a store
            self.files.check(self.first)
            self.cache.append(array_of(kind.to_json(), self.array.length, self.store, kind.path))
        return self.cache[0]

    def _chunks_of(self, begin: int, end: int) -> range:
        """Return which of the chunks hold rows."""
        kind, chunks = self.array.kind, self.array.chunks
        step, in_row = kind.steps[0], math.prod(kind.counts(self.array.length)[1:])
        low, high = np.searchsorted(
            chunks, [begin // step * in_row, -(-end // step) * in_row]
        ).tolist()
        return range(low, high)

    def _tell_store(self, begin: int, end: int) -> None:
        """Tell the store the files of rows.

        Raises:
            FormatError: a manifest lists a file where zarr asks for another one: zarr would give
                the fill value.
        """
        kind, counts = self.array.kind, self.array.kind.counts(self.array.length)
        if kind.path:
            root = join(self.store.folder, kind.path)
        else:
            root = self.store.folder
        numbers = dict[str, int]()
        for chunk in self._chunks_of(begin, end):
            number, place = (
                self.first + 1 + chunk,
                np.unravel_index(int(self.array.chunks[chunk]), counts),
            )
            name = join(root, kind.sample.metadata.encode_chunk_key(tuple(map(int, place))))
            if self.files.paths[number] != name:
                raise FormatError(
                    f"{self.title} is not as the manifest {self.files.manifest} says",
                    cause=f"it lists {self.files.paths[number]} in the place of {name}",
                    remedy="make the manifest anew: gpuload index, or source.index(path)",
                )
            numbers[name] = number
        self.store.add(numbers)

    def rows(self, begin: int, end: int) -> Any:
        """Return rows as zarr decodes them; the errors are those of `decode`."""
        self._tell_store(begin, end)
        return signalsafe.call_library(
            lambda: np.asarray(self._array()[begin:end]),
            lambda error: self._damage(begin, end, f"zarr cannot decode it: {line_of(error)}"),
        )

    def _damage(self, begin: int, end: int, cause: str) -> DamagedBlockError:
        return DamagedBlockError(
            f"{self.title}, rows {begin} to {end - 1}", cause=cause, remedy="copy the files again"
        )

    def decode(self, starts: Indices, form: Field | np.dtype[Any], block: int) -> Array | Ragged:
        """Return the rows of a block: of a dtype, or of a field of values of varying length.

        Raises:
            DamagedBlockError: zarr cannot decode them.
            ChangedFileError: a file changed.
            FormatError: a manifest lists other files than zarr asks for.
        """
        begin, end = (int(start) for start in starts[block : block + 2])
        values, kind = self.rows(begin, end), self.array.kind
        if isinstance(form, Field):
            if form.text:
                return members.texts_of(values)
            return members.varying_of(values, form.dtype)
        if values.dtype != kind.dtype or values.shape != (end - begin, *kind.row_shape):
            raise self._damage(
                begin, end, f"it has become {values.dtype} {values.shape}, and was {kind.dtype}"
            )
        return np.ascontiguousarray(values, form)

    def origin(self, starts: Indices, block: int) -> tuple[str, int]:
        """Return the first file of a block; that of the metadata if all of its chunks have the fill
        value."""
        chunks = self._chunks_of(int(starts[block]), int(starts[block + 1]))
        return self.files.paths[self.first + 1 + chunks[0] if chunks else self.first], 0


def with_images(place: ChunkedPlace) -> ChunkedPlace:
    """Return an array of bytes of varying length; its first value tells whether they are images."""
    array, kind = place.array, place.array.kind
    if kind.type_name != BYTES or not array.length:
        return place
    values = members.varying_field("x", np.dtype(np.uint8), kind.row_shape, place.rows(0, 1))
    return replace(place, array=replace(array, kind=replace(kind, has_images=values.encoded)))


def with_gaps(place: ChunkedPlace, storage: Storage) -> ChunkedPlace:
    """Return an array of shards with the number of chunks that are not there; others as they are.

    Raises:
        SpecError: the indexes of its shards cannot be read where they lie.
        ChangedFileError, FileError: a file changed, or cannot be read.
    """
    array, levels = place.array, shards.levels_of(place.array.kind.sample)
    if array.num_absent is not None or not levels:
        return place
    counts, shape = array.kind.counts(array.length), (array.length, *array.kind.row_shape)
    numbers = np.arange(place.first + 1, place.first + array.num_files, dtype=np.int64)
    corners = np.stack(np.unravel_index(array.chunks, counts), axis=1) * np.array(array.kind.steps)
    parts = shards.Shards(numbers, np.zeros_like(numbers), place.files.sizes[numbers], corners)
    num_present = shards.count_present(storage, levels, parts, shape)
    num_absent = shards.count_leaves(levels, shape) - num_present
    return replace(place, array=replace(array, num_absent=num_absent))


def _gaps_of(array: StoredArray) -> Gaps | None:
    """Return how many chunks are not there; of an array of shards those in shards, if they were
    counted."""
    kind = array.kind
    num_chunks = math.prod(kind.counts(array.length))
    num_missing = num_chunks - array.chunks.size
    if array.num_absent is not None:
        shape = (array.length, *kind.row_shape)
        num_missing = array.num_absent
        num_chunks = shards.count_leaves(shards.levels_of(kind.sample), shape)
    fill = f"the fill value {kind.sample.fill_value}"
    if num_missing:
        return Gaps(num_missing, num_chunks, fill, is_usual=True)
    return None


def member_of(place: ChunkedPlace) -> Member:
    """Return an array as fields of records."""
    array, kind, name = place.array, place.array.kind, place.name
    numbers = np.arange(place.first + 1, place.first + array.num_files, dtype=np.int64)
    sizes = place.files.sizes[numbers]
    fields, dtype = kind.fields(name), kind.dtype
    if isinstance(fields, Layout):
        row_bytes = fields.record_bytes
    else:
        row_bytes = 0
    # The last chunk, too, is whole: zarr fills it up with rows that are none.
    is_plain = (
        kind.plain_dtype is not None
        and row_bytes
        and numbers.size == -(-array.length // kind.steps[0])
    )
    is_plain = is_plain and bool((sizes == kind.steps[0] * row_bytes).all())
    if is_plain and kind.plain_dtype is not None:
        dtype = kind.plain_dtype
        fields = _row_layout(name, dtype, kind.row_shape)
    size, rows = int(sizes.sum()), min(kind.block_rows, max(array.length, 1))
    members.check_chunk(place.title, kind.sample.chunks, dtype.itemsize, size)
    starts = members.block_starts(place.title, array.length, rows, row_bytes, size)
    places = None
    if is_plain:
        places = MemberPlaces(numbers, np.diff(starts), np.zeros(numbers.size, np.int64))
    return Member(
        place.title,
        place.path,
        fields,
        starts,
        partial(place.decode, starts, fields if isinstance(fields, Field) else dtype),
        "decoded by zarr",
        partial(place.origin, starts),
        array.length * row_bytes or size,
        places,
        gaps=_gaps_of(array),
        packing=kind.packing,
    )

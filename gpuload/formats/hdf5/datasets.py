"""Datasets: the metadata of an array of an HDF5 file, and the fields of records that it becomes.

A `Dataset` is all that opening takes of it. It comes from the file, through h5py, or from a
manifest (`listing.py`). Where rows are decoded by HDF5, the dataset in the file is compared with it
before any of them is.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpuload import signalsafe
from gpuload.errors import (
    DamagedBlockError,
    FormatError,
    GpuloadError,
    MissingPackageError,
    SpecError,
    UnknownFieldError,
    line_of,
)
from gpuload.formats import members
from gpuload.formats.hdf5 import matlab, messages
from gpuload.formats.hdf5.chunks import (
    CHECKSUM_BYTES,
    DEFLATE,
    FLETCHER32,
    SHUFFLE,
    Grid,
    grid_shape,
    sort_chunks,
)
from gpuload.formats.hdf5.library import find, import_h5py, read_file, refusal
from gpuload.formats.members import Gaps, Member, MemberPlaces
from gpuload.formats.packing import NAMES, Packing, packing_of
from gpuload.ragged import Ragged
from gpuload.sources.layouts import native
from gpuload.sources.leaf import Array, Indices
from gpuload.spec import NUMBERS, Field, Layout
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files
from gpuload.storage.inflate import (
    ALLOWED_BYTES,
    LARGEST_EXPANSION,
    inflate_chunk,
    limit_bytes,
    too_large,
)

BY_HDF5 = "decoded by HDF5"
FILTERS = (DEFLATE, SHUFFLE, FLETCHER32)  # that are undone here
REFERENCE_BYTES = 16  # of a value of varying length, in the dataset itself
ROWS, CHUNKS, HDF5 = (
    "rows",
    "chunks",
    "hdf5",
)  # how a dataset is read: as rows in one piece, in chunks, or by HDF5
TEXTS, VALUES = "texts", "values"  # of varying length
TURNED = "F"  # the order of an array with turned axes


@dataclass(frozen=True)
class DatasetKind:
    """The part of a dataset that many files have in common.

    Attributes:
        how: ROWS, CHUNKS or HDF5.
        dtype: of the elements as stored; of values of varying length that of theirs, of texts
            uint8.
        shape: of a row, in elements of the dtype.
        chunk: the shape of a chunk of rows; () without chunks.
        filters: number, values and name of each filter, in the order in which they were applied.
        fill: the bytes of the fill value of a dataset in CHUNKS.
        varying: TEXTS or VALUES for values of varying length; "" for others.
        has_images: True if values are encoded images.
        classes: the names of the values 0, 1, 2, ...
        packing: how its numbers stand for values.
        order: "F" if its axes are turned when it is read, and `shape` and `chunk` are those of the
            turned array.
    """

    how: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunk: tuple[int, ...] = ()
    filters: tuple[tuple[int, tuple[int, ...], str], ...] = ()
    fill: bytes = b""
    varying: str = ""
    has_images: bool = False
    classes: tuple[str, ...] = ()
    packing: Packing | None = None
    order: str = ""

    def fields(self, name: str) -> Layout | Field:
        """Return the layout of a row, or the field of values of varying length."""
        if self.varying == TEXTS:
            return members.text_field(name, self.shape)
        if self.varying:
            return Field(name, native(self.dtype), (None,), encoded=self.has_images)
        return _row_layout(name, self.dtype, self.shape)

    @property
    def base(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """The dtype of the elements of elements that are arrays, and the shape of these; of others
        (dtype, ())."""
        return self.dtype.subdtype or (self.dtype, ())


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset of a file.

    Attributes:
        kind: the part that other files share.
        length: the number of rows.
        offset: the byte of the file where the first of ROWS begins.
        chunks: numbers, offsets, lengths and masks of CHUNKS that were written (`chunks.Grid`).
        num_missing: how many chunks of a dataset that HDF5 decodes were never written; 1 for one in
            one piece.
    """

    kind: DatasetKind
    length: int
    offset: int = 0
    chunks: tuple[Indices, ...] = ()
    num_missing: int = 0

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the dataset in the file."""
        shape = (self.length, *self.kind.shape)
        if self.kind.order == TURNED:
            return shape[::-1]
        return shape

    @property
    def num_chunks(self) -> int:
        """How many chunks it has, written or not."""
        kind = self.kind
        if kind.chunk:
            return math.prod(grid_shape((self.length, *kind.shape), kind.chunk))
        return 1


@dataclass(frozen=True)
class DatasetPlace:
    """A dataset of a file.

    Attributes:
        files, number: the files of the source, and which of them it is.
        storage: of the files.
        group: the path of the group.
        name: of the field.
        path: of the dataset in the group.
    """

    files: Files
    number: int
    storage: Storage
    group: str
    name: str
    path: str

    @property
    def file(self) -> str:
        """The path of the file."""
        return self.files.paths[self.number]

    @property
    def title(self) -> str:
        """File and dataset."""
        return f"{self.file}, {self.path}"

    @property
    def file_bytes(self) -> int:
        """The size of the file."""
        return int(self.files.sizes[self.number])

    def starts(self, length: int, rows: int, row_bytes: int) -> Indices:
        """Return where blocks of rows begin."""
        return members.block_starts(self.title, length, max(rows, 1), row_bytes, self.file_bytes)

    def find(self, file: Any) -> Any:
        """Return the dataset in the open file."""
        return find(file, self.file, f"{self.group}/{self.path}")

    def decode(self, starts: Indices, dataset: Dataset, block: int) -> Array | Ragged:
        """Return the rows of a block, through h5py.

        Raises:
            DamagedBlockError: h5py cannot decode them, or the dataset became another one.
            FormatError: it is another one than the manifest says.
        """
        begin, end = (int(start) for start in starts[block : block + 2])

        def read(file: Any) -> tuple[Array | Ragged | None, str]:
            # Opened for each block: no file of h5py stays open, so a fork finds none
            # (`library.py`).
            array, difference = self._find_again(file, dataset)
            if difference:
                return None, difference
            if dataset.kind.varying:
                _check_lengths(self, array, begin, end, dataset)
            else:
                _check_expansion(self, array, begin, end, dataset)
            # MATLAB's arrays are turned: their first axis is the last of the dataset.
            if dataset.kind.order == TURNED:
                values = array[..., begin:end].T
            else:
                values = array[begin:end]
            if len(values) != end - begin:
                raise ValueError(f"it gave {len(values)} rows")
            return _block_of(values, dataset.kind), ""

        def to_error(error: Exception) -> GpuloadError:
            cause = refusal(self.files, self.number, self.title, error).cause
            return DamagedBlockError(
                f"{self.title}, rows {begin} to {end - 1}",
                cause=cause,
                remedy="copy the file again",
            )

        values, difference = read_file(self.files, self.number, read, to_error)
        if values is not None:
            return values
        if self.files.manifest:
            raise FormatError(
                f"{self.title} is not as the manifest {self.files.manifest} says",
                cause=difference,
                remedy="make the manifest anew: gpuload index, or source.index(path)",
            )
        raise DamagedBlockError(
            f"{self.title}, rows {begin} to {end - 1}",
            cause=difference,
            remedy="copy the file again",
        )

    def _find_again(self, file: Any, dataset: Dataset) -> tuple[Any, str]:
        """Return the dataset in the open file, and how it differs from the one that was opened; ""
        if it does not.

        The file passed its stamp, but h5py reads it anew, or did never read it: nothing of another
        dtype may go into a batch, nothing of another file be read, and no chunk be decoded that has
        more bytes than were allowed.
        """
        try:
            array = self.find(file)
        except (UnknownFieldError, SpecError) as error:
            return None, f"{error.what}: {error.cause}"
        kind, h5py = dataset.kind, import_h5py()
        if not isinstance(array, h5py.Dataset) or array.is_virtual or array.external:
            return array, "it is no dataset with values of its own"
        dtype, shape, chunk = array.dtype, dataset.stored_shape, tuple(array.chunks or ())
        if kind.order == TURNED:
            chunk = chunk[::-1]
        if h5py.check_string_dtype(dtype):
            elements = np.dtype(np.uint8)
        else:
            elements = h5py.check_vlen_dtype(dtype)
        # Not None: NumPy takes it for float64 where it compares it with a dtype.
        has_elements = elements is not None and elements == kind.dtype
        is_same = matlab.is_stored_as(kind.dtype, dtype)
        if kind.varying and dtype.hasobject:
            has_dtype = has_elements
        else:
            has_dtype = is_same
        is_text = dtype.hasobject and h5py.check_string_dtype(dtype) is not None
        if (
            not has_dtype
            or is_text != (kind.varying == TEXTS)
            or array.shape != shape
            or chunk != kind.chunk
        ):
            return (
                array,
                f"it has become {dtype} {array.shape} in chunks of {chunk}, and was {kind.dtype} "
                f"{shape}",
            )
        return array, ""


def _block_of(values: Any, kind: DatasetKind) -> Array | Ragged:
    if kind.varying:
        if kind.varying == TEXTS:
            return members.texts_of(values)
        return members.varying_of(values, native(kind.dtype))
    base, inner = kind.base
    if not matlab.is_stored_as(base, values.dtype):
        raise ValueError(f"it has become {values.dtype} {values.shape}, and was {base} {inner}")
    return np.ascontiguousarray(values).view(base)


@functools.lru_cache(maxsize=256)
def _row_layout(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Layout:
    """Return the layout of a row, one for all files: to make it takes a third of the time of
    opening a manifest."""
    return members.row_layout(name, dtype, shape)


# --- from a file


def read_dataset(place: DatasetPlace, file: Any, order: str | None) -> Dataset:
    """Return a dataset of an open file.

    Args:
        place: of the dataset.
        file: of h5py.
        order: ``"F"`` turns its axes; None: as they are, and those of MATLAB are refused.

    Raises:
        SpecError: it cannot be a field.
        FormatError: its places do not lie in the file.
        MissingPackageError: HDF5 has not one of its filters.
    """
    dataset = _find_array(place, file)
    dtype = _dtype_of(dataset)
    filters, attributes = _filters_of(dataset), _attributes_of(dataset)
    matlab.check_class(attributes, dataset, place.path)
    _refuse_references(dtype)
    shape, length = tuple(map(int, dataset.shape[1:])), int(dataset.shape[0])
    chunk = tuple(map(int, dataset.chunks or ()))
    num_missing = _num_missing(dataset, chunk)
    if dtype.hasobject and dtype.names is None:
        kind = _varying_kind(place, dataset, dtype, shape, chunk, filters, num_missing)
        kind = replace(kind, packing=packing_of(attributes, dtype))
        return Dataset(kind, length, num_missing=num_missing)
    if shape:
        order = _order_of(attributes, dtype, dataset.shape, order)
    packing = packing_of(attributes, dtype)
    plain_dtype = matlab.dtype_of(attributes, _without_metadata(dtype))
    if place.number == 0:  # once for all files
        matlab.tell_characters(attributes, place.title, dtype)
    if shape and order == TURNED:
        rows, *inner_axes = (*shape[::-1], length)
        members.row_layout(place.name, dtype, tuple(inner_axes))  # refuses a row that no array has
        kind = DatasetKind(
            HDF5,
            plain_dtype,
            tuple(inner_axes),
            chunk[::-1],
            filters,
            packing=packing,
            order=TURNED,
        )
        return Dataset(kind, rows, num_missing=num_missing)
    row_bytes = members.row_layout(place.name, dtype, shape).record_bytes
    classes = _classes_of(dataset)
    kind = DatasetKind(HDF5, plain_dtype, shape, chunk, filters, classes=classes, packing=packing)
    by_hdf5 = Dataset(kind, length, num_missing=num_missing)
    # A type of the file may have other bytes than the dtype that h5py gives for it: only an equal
    # one is read without h5py.
    type_of_dtype = import_h5py().h5t.py_create(dtype, logical=True)
    if not dataset.id.get_type().equal(type_of_dtype) or not row_bytes:
        return by_hdf5
    if not file.userblock_size and _has_plain_chunks(place, dataset, by_hdf5):
        return _chunked_dataset(place, dataset, by_hdf5)
    if length and not num_missing and _is_contiguous(dataset):
        return _contiguous_dataset(place, dataset, by_hdf5, length * row_bytes)
    return by_hdf5


def _find_array(place: DatasetPlace, file: Any) -> Any:
    """Return a dataset of h5py with an axis and values of its own; ``SpecError`` for others."""
    dataset = place.find(file)
    if not isinstance(dataset, import_h5py().Dataset):
        raise SpecError(
            "it is no array", cause="it is a group", remedy="name datasets with an axis"
        )
    if not dataset.shape:
        raise SpecError(
            "it is no array",
            cause="it is a single value or empty",
            remedy="name datasets with an axis",
        )
    if dataset.is_virtual:
        raise SpecError(
            "its values lie in other files",
            cause="it is a virtual dataset",
            remedy="open those files, as a list of paths",
        )
    if dataset.external:
        raise SpecError(
            "its values lie in other files",
            cause=f"they are in {dataset.external[0][0]!r}",
            remedy="use gl.fixed for those",
        )
    return dataset


def _dtype_of(dataset: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = dataset.dtype
    except TypeError as error:
        raise SpecError(
            "its elements are none of NumPy's", cause=line_of(error), remedy="convert it with h5py"
        ) from None
    return dtype


def _refuse_references(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject and import_h5py().check_ref_dtype(dtype) is not None:
        raise SpecError(
            "its elements are references to other objects of the file",
            cause="they have no values of their own",
            remedy="name the datasets that they lead to, or read them by h5py: file[reference]",
        )


def _has_plain_chunks(place: DatasetPlace, dataset: Any, about: Dataset) -> bool:
    """Return True if HDF5 lists the chunks of a dataset, and their filters are undone here."""
    kind = about.kind
    if not kind.chunk or any(code not in FILTERS for code, *_ in kind.filters):
        return False
    is_unwritten = about.num_missing and about.num_missing == about.num_chunks
    return not is_unwritten and _lists_chunks(place, dataset)


def _chunked_dataset(place: DatasetPlace, dataset: Any, about: Dataset) -> Dataset:
    """Return a dataset with the places of its chunks."""
    kind, (base, inner) = about.kind, about.kind.base
    infos = list[Any]()
    # One walk over the index; get_chunk_info(number) begins it anew for each chunk, a hundred
    # times as slow.
    dataset.id.chunk_iter(infos.append)
    chunks = [((*info.chunk_offset, *(0 for _ in inner)), *info[1:]) for info in infos]
    fill = np.broadcast_to(np.array(dataset.fillvalue, base), inner).tobytes()
    shape, chunk = (about.length, *kind.shape, *inner), (*kind.chunk, *inner)
    places = sort_chunks(place.title, shape, chunk, chunks, place.file_bytes)
    return Dataset(replace(kind, how=CHUNKS, fill=fill), about.length, 0, places)


def _is_contiguous(dataset: Any) -> bool:
    layout = dataset.id.get_create_plist().get_layout()
    return bool(layout == import_h5py().h5d.CONTIGUOUS)


def _contiguous_dataset(
    place: DatasetPlace, dataset: Any, about: Dataset, num_bytes: int
) -> Dataset:
    """Return a dataset that lies in one piece of ``num_bytes``, with its place.

    Raises:
        FormatError: the piece does not lie in the file.
    """
    offset, stored_bytes = int(dataset.id.get_offset()), int(dataset.id.get_storage_size())
    size = place.file_bytes
    if stored_bytes != num_bytes or offset + num_bytes > size:
        raise FormatError(
            f"{place.title} has {num_bytes} bytes from byte {offset} of {size} on, "
            f"and {stored_bytes} are stored",
            cause="its header is damaged, or the file was cut short",
            remedy="copy the file again",
        )
    return Dataset(replace(about.kind, how=ROWS, chunk=(), filters=()), about.length, offset)


def _attributes_of(dataset: Any) -> dict[str, Any]:
    """Return those attributes of a dataset that give its numbers a meaning."""
    return {name: dataset.attrs[name] for name in (*NAMES, *matlab.NAMES) if name in dataset.attrs}


def _num_missing(dataset: Any, chunk: tuple[int, ...]) -> int:
    """Return how many chunks of a dataset were never written; a dataset in one piece is one."""
    if not dataset.size:
        return 0
    if not chunk:
        return int(not dataset.id.get_storage_size())
    return max(math.prod(grid_shape(dataset.shape, chunk)) - int(dataset.id.get_num_chunks()), 0)


def _order_of(
    attributes: Mapping[str, Any], dtype: np.dtype[Any], shape: Sequence[int], order: str | None
) -> str:
    """Return the order of an array of several axes: "F" where it is to be turned.

    Raises:
        SpecError: MATLAB wrote it, and nothing says whether its axes are turned; or it cannot be
            turned.
    """
    if order == TURNED and dtype.subdtype is not None:
        raise SpecError(
            f"its elements are arrays, {dtype}",
            cause='order="F" turns the axes of the dataset alone',
            remedy='leave order="F" out',
        )
    if matlab.CLASS in attributes and order is None:
        raise SpecError(
            "it is an array of MATLAB, whose axes lie in the file in turned order, as "
            f"{tuple(map(int, shape))}",
            cause="MATLAB counts the elements of the first axis fastest, HDF5 those of the last",
            remedy=f'gl.hdf5(..., order="F") turns them, for {int(shape[-1])} records of MATLAB\'s '
            "first axis, or "
            f'order="C" for {int(shape[0])} records as stored',
        )
    return order or ""


def _lists_chunks(place: DatasetPlace, dataset: Any) -> bool:
    """Return True if HDF5 lists the chunks of a dataset with their true places, and all went
    through the filters.

    By the indexes of HDF5 1.10 that are arrays, H5Dchunk_iter (libhdf5 1.14.6) counts the places in
    the order of the dataset's axes as they are. In the index the axis that may grow without end
    comes first, and the other ones have their largest lengths.
    """
    address, size = int(import_h5py().h5o.get_info(dataset.id).addr), place.file_bytes

    def read(offset: int, length: int) -> bytes:
        end = min(offset + length, size)
        content = np.empty(max(end - offset, 0), np.uint8)
        if content.size:
            extents = Extents(
                *(np.array([value], np.int64) for value in (place.number, offset, content.size))
            )
            place.storage.read(extents, content, np.zeros(1, np.int64))
        return content.tobytes()

    index = messages.chunk_index(read, address)
    if index is None or not index.is_whole:
        return False
    if index.kind not in (messages.FIXED_ARRAY, messages.EXTENSIBLE_ARRAY):
        return True
    axes = list(zip(dataset.shape, dataset.maxshape, dataset.chunks, strict=True))
    growing = [axis for axis, (_, limit, _) in enumerate(axes) if limit is None]
    is_full = all(
        limit is None or -(-limit // step) == -(-length // step) for length, limit, step in axes
    )
    return is_full and growing in ([], [0])


def _filters_of(dataset: Any) -> tuple[tuple[int, tuple[int, ...], str], ...]:
    """Return the filters of a dataset.

    Raises:
        MissingPackageError: HDF5 has not one of them.
    """
    settings = dataset.id.get_create_plist()
    filters = [settings.get_filter(number) for number in range(settings.get_nfilters())]
    parts = [
        (int(code), tuple(values), name.decode("ascii", "replace"))
        for code, _, values, name in filters
    ]
    check_filters([(code, name) for code, _, name in parts])
    return tuple(parts)


def check_filters(filters: Sequence[tuple[int, str]]) -> None:
    """Raise ``MissingPackageError`` if HDF5 has not a filter, told by number and name, nor
    hdf5plugin either."""
    h5z = import_h5py().h5z
    for code, name in filters:
        if not h5z.filter_avail(code):
            with contextlib.suppress(ImportError):
                signalsafe.import_package("hdf5plugin")  # which adds its filters to HDF5
        if not h5z.filter_avail(code):
            raise MissingPackageError(
                f"it is compressed by the filter {code} ({name})",
                cause="HDF5 has not this filter here",
                remedy="pip install hdf5plugin, which has most of them",
            )


def _without_metadata(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype without the additions of h5py: the names of an enumeration, the encoding of
    texts."""
    if dtype.subdtype is not None:
        return np.dtype((_without_metadata(dtype.subdtype[0]), dtype.subdtype[1]))
    if dtype.names is not None:
        parts = [dtype.fields[name] for name in dtype.names]  # type: ignore[index]
        return np.dtype(
            {
                "names": list(dtype.names),
                "formats": [_without_metadata(part[0]) for part in parts],
                "offsets": [part[1] for part in parts],
                "itemsize": dtype.itemsize,
            }
        )
    if dtype.metadata:
        return np.dtype(dtype.str)
    return dtype


def _classes_of(dataset: Any) -> tuple[str, ...]:
    """Return the names of the values 0, 1, 2, ... of an enumeration; none for other datasets."""
    names = import_h5py().check_enum_dtype(dataset.dtype) or {}
    by_value = {value: name for name, value in names.items()}
    if set(by_value) == set(range(len(names))):
        return tuple(by_value[value] for value in range(len(by_value)))
    return ()


def _varying_kind(
    place: DatasetPlace,
    dataset: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    filters: Any,
    num_missing: int,
) -> DatasetKind:
    """Return the kind of a dataset of values of varying length."""
    h5py = import_h5py()
    if h5py.check_string_dtype(dtype) is not None:
        members.text_field(place.name, shape)  # refuses several in a row
        return DatasetKind(HDF5, np.dtype(np.uint8), shape, chunk, filters, varying=TEXTS)
    base = h5py.check_vlen_dtype(dtype)
    if base is not None and not base.isnative:
        raise SpecError(
            f"it has values of varying length of {base}",
            cause="h5py gives these without turning their bytes around",
            remedy="write it anew in the byte order of this machine",
        )
    if base is None or base.kind not in NUMBERS or shape:
        members.varying_field(place.name, base, shape, [])  # refuses it
    kind = DatasetKind(HDF5, _without_metadata(base), shape, chunk, filters, varying=VALUES)
    _check_lengths(
        place,
        dataset,
        0,
        min(1, len(dataset)),
        Dataset(kind, len(dataset), num_missing=num_missing),
    )
    field = members.varying_field(place.name, base, shape, dataset[:1])
    return replace(kind, has_images=field.encoded)


def _check_lengths(place: DatasetPlace, dataset: Any, begin: int, end: int, about: Dataset) -> None:
    """Look at the lengths of values of varying length before HDF5 makes room for them, without
    asking the file.

    They stand with the places of the values in the dataset. Those behind filters that are not
    undone here are not seen.

    Raises:
        ValueError: a value has more bytes than the file.
        FormatError: the values have more bytes than a file of this size may unpack to.
    """
    size, kind, pieces = place.file_bytes, about.kind, list[Array]()
    if not kind.chunk:
        pieces.append(_references(place, dataset, begin, end))
    elif all(code in FILTERS for code, *_ in kind.filters):
        step, zero = kind.chunk[0], np.zeros(1, np.int64)
        for first in range(begin // step * step, end, step):
            # For a chunk that was never written h5py 3.14 asks for memory of any size. To look for
            # it walks all.
            if (
                about.num_missing
                and dataset.id.get_chunk_info_by_coord((first,)).byte_offset is None
            ):
                continue
            mask, raw = dataset.id.read_direct_chunk((first,))
            filters = tuple((code, values) for code, values, _ in kind.filters)
            sizes, masks = np.array([len(raw)], np.int64), np.array([mask], np.int64)
            dtype = np.dtype((np.void, REFERENCE_BYTES))
            grid = Grid(
                place.title,
                place.number,
                (len(dataset),),
                kind.chunk,
                dtype,
                filters,
                0,
                zero,
                zero,
                sizes,
                masks,
            )
            content = grid.undo(np.frombuffer(raw, np.uint8), 0).reshape(-1, REFERENCE_BYTES)
            pieces.append(content[max(begin - first, 0) : end - first])
    for content in pieces:
        lengths = content[:, :4].copy().view("<u4").astype(np.int64) * kind.dtype.itemsize
        if lengths.size and int(lengths.max()) > size:
            raise ValueError(
                f"a value of varying length has {int(lengths.max())} bytes, and the file {size}"
            )
        if int(lengths.sum()) > limit_bytes(size):
            raise too_large(place.title, size, int(lengths.sum()), unpack="with h5py")


def _check_expansion(
    place: DatasetPlace, dataset: Any, begin: int, end: int, about: Dataset
) -> None:
    """Look at chunks behind deflate before HDF5 inflates them, which it does without a limit.

    Those behind another filter that is not undone here are not seen.

    Raises:
        FormatError: a chunk unpacks to more than a file of its size may unpack to.
    """
    kind = about.kind
    codes = [code for code, *_ in kind.filters]
    if DEFLATE not in codes or place.file_bytes * LARGEST_EXPANSION <= ALLOWED_BYTES:
        return
    behind = kind.filters[len(codes) - codes[::-1].index(DEFLATE) :]
    if not all(code == FLETCHER32 for code, *_ in behind):
        return
    least_limit = 2 * math.prod(kind.chunk) * kind.dtype.itemsize
    rows = range(begin // kind.chunk[0] * kind.chunk[0], end, kind.chunk[0])
    columns = [
        range(0, length, step) for length, step in zip(kind.shape, kind.chunk[1:], strict=True)
    ]
    for place_of_chunk in itertools.product(rows, *columns):
        if kind.order == TURNED:
            corner = place_of_chunk[::-1]
        else:
            corner = place_of_chunk
        if about.num_missing and dataset.id.get_chunk_info_by_coord(corner).byte_offset is None:
            continue
        mask, raw = dataset.id.read_direct_chunk(corner)
        if len(raw) * LARGEST_EXPANSION <= ALLOWED_BYTES or mask:
            continue
        num_bytes, limit = 0, max(limit_bytes(len(raw)), least_limit)
        with contextlib.suppress(zlib.error):  # HDF5 will tell of it
            for piece in inflate_chunk(
                zlib.decompressobj(), raw[: len(raw) - CHECKSUM_BYTES * len(behind)]
            ):
                num_bytes += len(piece)
                if num_bytes > limit:
                    raise too_large(
                        f"{place.title}, a chunk", len(raw), num_bytes, unpack="with h5py"
                    )


def _references(place: DatasetPlace, dataset: Any, begin: int, end: int) -> Array:
    """Return length and place of the values of a dataset in one piece, ``[n, REFERENCE_BYTES]``; or
    none."""
    offset, stored_bytes = dataset.id.get_offset(), int(dataset.id.get_storage_size())
    first = int(offset or 0) + begin * REFERENCE_BYTES
    num_bytes = (end - begin) * REFERENCE_BYTES
    is_there = offset is not None and stored_bytes == len(dataset) * REFERENCE_BYTES
    if not is_there or not 0 <= first <= place.file_bytes - num_bytes:
        return np.zeros((0, REFERENCE_BYTES), np.uint8)
    content = np.empty(num_bytes, np.uint8)
    extents = Extents(*(np.array([value], np.int64) for value in (place.number, first, num_bytes)))
    place.storage.read(extents, content, np.zeros(1, np.int64))
    return content.reshape(-1, REFERENCE_BYTES)


# --- to fields


def member_of(place: DatasetPlace, dataset: Dataset) -> Member:
    """Return a dataset as fields of records.

    Raises:
        FormatError: a block of it decodes to more bytes than are allowed.
        SpecError: it has too many blocks.
    """
    kind, length, size = dataset.kind, dataset.length, place.file_bytes
    fields = kind.fields(place.name)
    if kind.varying:
        element_bytes = REFERENCE_BYTES
    else:
        element_bytes = kind.dtype.itemsize
    members.check_chunk(
        place.title,
        kind.chunk or (0,),
        element_bytes,
        size,
    )
    if not isinstance(fields, Layout):
        # Values of varying length lie one by one in heaps of the file. How many bytes the heaps
        # hold for this dataset is not written anywhere: the whole file is the most it can be.
        rows = members.rows_of_block(size + REFERENCE_BYTES * length, length)
        return _rows_member(
            place, dataset, fields, place.starts(length, rows, REFERENCE_BYTES), size
        )
    if kind.how == CHUNKS:
        return _chunks_member(place, dataset, fields)
    num_bytes = length * fields.record_bytes
    if kind.chunk:
        rows = kind.chunk[0]
    else:
        rows = members.rows_of_block(num_bytes, length)
    return _rows_member(
        place, dataset, fields, place.starts(length, rows, fields.record_bytes), num_bytes
    )


def _rows_member(
    place: DatasetPlace, dataset: Dataset, fields: Layout | Field, starts: Indices, num_bytes: int
) -> Member:
    """Return a dataset that lies in one piece, or that HDF5 decodes."""
    if isinstance(fields, Layout):
        row_bytes = fields.record_bytes
    else:
        row_bytes = 0

    def origin(block: int) -> tuple[str, int]:
        # 0: HDF5 decodes it, and gives no place to name.
        return place.file, dataset.offset and dataset.offset + int(starts[block]) * row_bytes

    if dataset.num_missing:
        gaps = Gaps(dataset.num_missing, dataset.num_chunks, "the fill value")
    else:
        gaps = None
    places = None
    if dataset.kind.how == ROWS:
        places = MemberPlaces(
            *(
                np.array([value], np.int64)
                for value in (place.number, dataset.length, dataset.offset)
            )
        )
    return Member(
        place.title, place.path, fields, starts, partial(place.decode, starts, dataset), BY_HDF5, origin, num_bytes,
        places, dataset.kind.classes, gaps, dataset.kind.packing,
    )  # fmt: skip


def _chunks_member(place: DatasetPlace, dataset: Dataset, layout: Layout) -> Member:
    """Return a dataset of chunks that are read and decoded without h5py."""
    kind, (base, inner) = dataset.kind, dataset.kind.base
    starts = place.starts(dataset.length, kind.chunk[0], layout.record_bytes)
    grid = Grid(
        place.title,
        place.number,
        (dataset.length, *kind.shape, *inner),
        (*kind.chunk, *inner),
        base,
        tuple((code, values) for code, values, _ in kind.filters),
        np.frombuffer(kind.fill, base).reshape(inner),
        *dataset.chunks,
    )
    num_missing, gaps = math.prod(grid.counts) - grid.numbers.size, None
    if num_missing:
        gaps = Gaps(num_missing, math.prod(grid.counts), f"the fill value {grid.fill}")
    places = None
    if grid.is_plain:
        numbers = np.full(grid.numbers.size, place.number, np.int64)
        places = MemberPlaces(numbers, np.diff(starts), grid.offsets)
    return Member(
        place.title, place.path, layout, starts, partial(grid.decode, place.storage), "decoded by gpuload",
        partial(grid.origin, place.file), dataset.length * layout.record_bytes, places, kind.classes, gaps,
        kind.packing,
    )  # fmt: skip


def within(place: DatasetPlace, names: Sequence[str], error: GpuloadError) -> GpuloadError:
    """Return an error with its place, and which fields would leave the dataset out."""
    rest = [name for name in names if name != place.name]
    if rest:
        error.remedy += f"; fields={rest} leaves it out"
    else:
        error.remedy += ""
    return error.within(place.title)

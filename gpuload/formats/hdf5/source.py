"""HDF5 files: datasets of one length are the fields of records.

Layout  A file holds groups of datasets, each in one piece (contiguous), in chunks, or in its header (compact).
Access  Contiguous datasets, and chunks without filters that hold whole rows, are read where they lie, row by row, as
        NPY files are. Chunks behind deflate, shuffle and fletcher32 are decoded here (`chunks.py`), by all threads side
        by side. All others go through h5py: other filters, values of varying length, types that NumPy has not. HDF5
        has one lock for all of its calls, so that these are decoded one after the other.
Opening h5py reads the metadata, from a file of Python's that checks each piece: HDF5 opens no path. No file stays open.
Fork    h5py takes its lock around a fork, so that a child can use it. A child leaves the files that were open then.
Links   soft links are followed. External links, virtual datasets and datasets with their bytes in other files are
        refused by name: their bytes have other names, changes and rights than the file.
Damage  HDF5's library ends the process for some damaged files. Metadata of files that are written with
        ``libver="v108"`` or later have checksums; others have none.
Needs   h5py; hdf5plugin for filters that HDF5 has not.
Source  https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
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
    missing_package,
)
from gpuload.formats import members
from gpuload.formats.hdf5.chunks import DEFLATE, FLETCHER32, SHUFFLE, Filter, Grid, sort_chunks
from gpuload.formats.members import Member, Places
from gpuload.ragged import Ragged
from gpuload.sources.blocks import CACHE_BYTES
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Opening
from gpuload.sources.leaf import Array, Indices
from gpuload.spec import Field, Layout
from gpuload.storage import open_storage
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files, Handle, Paths, by_chunks, expand, look_at, open_error

CALL, BY_HDF5 = "gl.hdf5", "decoded by HDF5"
FILTERS = (DEFLATE, SHUFFLE, FLETCHER32)  # that are undone here
METADATA_BYTES = 1 << 16  # of an object that are asked for at a time, as HDF5 goes from place to place
MOST_LINKS = 16  # soft links one behind the other
MOST_NAMES = 8  # of datasets in an error
REFERENCE_BYTES = 16  # of a value of varying length, in the dataset itself
ERRORS = (OSError, LookupError, ValueError, TypeError, RuntimeError, MemoryError, ArithmeticError, AttributeError)
log = logging.getLogger("gpuload")


def hdf5(
    paths: Paths,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    *,
    group: str = "/",
    cache_bytes: int = CACHE_BYTES,
) -> ColumnSource:
    """Return the records of HDF5 files: element i of the first axis of each dataset.

        gl.hdf5("train.h5")
        gl.hdf5("shards/*.h5", ["image", "label"])                              these datasets alone
        gl.hdf5("all.h5", {"image": "x", "label": "meta/y"}, group="train")     /train/x and /train/meta/y

    ``source.describe()`` says which datasets are read where they lie, and which are decoded a block of rows at a time.
    With the latter a shuffle of all rows decodes a block for each of them, unless they fit into the cache:
    ``shuffle=gl.Blocks(1000, 4)``, with the number of rows of a block, decodes each once.

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a wildcard is sorted.
        fields: the paths of datasets in the group, in this order; or a dict from names of fields to these. By default
            all datasets of the group itself that have an axis.
        group: the path of the group.
        cache_bytes: of decoded blocks that are kept.

    Raises:
        SpecError: an argument is wrong; a dataset cannot be a field; datasets differ in length, or files in a field.
        UnknownFieldError: there is no such dataset or group.
        FormatError: a file is no HDF5 file, or is damaged.
        FileError: a file is missing, a directory, or cannot be read.
        MissingPackageError: h5py is not installed, or a filter is missing that hdf5plugin may have.
    """
    arguments = members.check_arguments(CALL, fields, group, cache_bytes)
    _import_h5py()
    names = expand(paths)
    files, _ = look_at(names, 0, lambda path, size, head: None)
    storage = open_storage(files)
    tables = [_members_of(files, 0, storage, arguments["fields"], group)]
    pairs = arguments["fields"] or {member.path: member.path for member in tables[0]}
    tables += by_chunks(
        lambda chunk: [_members_of(files, number, storage, pairs, group) for number in chunk], range(1, len(files))
    )
    opening = Opening(hdf5, {"paths": tuple(names), **arguments})
    return members.source_of(files, storage, opening, tables, files.paths, arguments)


def _import_h5py() -> ModuleType:
    try:
        return signalsafe.import_package("h5py")
    except ImportError as error:
        raise missing_package("h5py", needed_for=CALL, extra="hdf5", error=error) from None


# --- files


class _Bytes(io.RawIOBase):
    """The bytes of an open file, as h5py reads those of Python's files; each piece is whole or an error."""

    def __init__(self, files: Files, number: int, handle: Handle) -> None:
        self._files, self._number, self._handle, self._at = files, number, handle, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, int(self._files.sizes[self._number]))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, memory: Any) -> int:
        view, size = memoryview(memory), int(self._files.sizes[self._number])
        # h5py ignores how many bytes came, and HDF5 would take what was in this memory for metadata.
        if not 0 <= self._at <= size - len(view):
            raise OSError(f"{len(view)} bytes at byte {self._at} do not lie in the {size} bytes of the file")
        self._files.read(self._number, self._handle, view, self._at)
        self._at += len(view)
        return len(view)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


@contextlib.contextmanager
def _open(files: Files, number: int) -> Iterator[Any]:
    """Yield a file as h5py's.

    Raises:
        FormatError: h5py does not take it.
        FileError: the file changed, or cannot be read.
    """
    path, size = files.paths[number], int(files.sizes[number])
    with files.open_file(number, METADATA_BYTES) as handle:
        try:
            file = _import_h5py().File(_Bytes(files, number, handle), "r")
        except ERRORS as error:
            raise _refusal(files, number, f"{path} is no HDF5 file to read", error, f"; it has {size} bytes") from None
        with file:
            yield file
        # Behind h5py: what it read of a file that changed meanwhile is not used.
        files.check_descriptor(number, handle)


def _refusal(files: Files, number: int, subject: str, error: Exception, size: str = "") -> GpuloadError:
    """Return the error for one of h5py's.

    Raises:
        FileError: the file changed, or cannot be read.
    """
    if isinstance(error, GpuloadError):
        return error
    files.check(number)
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return open_error(files.paths[number], error)
    return FormatError(
        subject,
        cause=f"h5py refuses it: {line_of(error)}{size}",
        remedy="it was cut short, is damaged or still being written: copy it again; gl.open(path) says what it is",
    )


# --- datasets


def _members_of(
    files: Files, number: int, storage: Storage, fields: Mapping[str, str] | None, group: str
) -> list[Member]:
    """Return the datasets of a file that are fields; None: all of the group."""
    path = files.paths[number]
    with _open(files, number) as file:
        try:
            names = dict(fields or {name: name for name in _names_in(file, path, group)})
            return [
                _member(_Place(files, number, storage, group, name, place), file, [] if fields else list(names))
                for name, place in names.items()
            ]
        except ERRORS as error:
            raise _refusal(files, number, f"{path} is damaged", error) from None


def _names_in(file: Any, path: str, group: str) -> list[str]:
    """Return the names of the datasets of a group that have an axis."""
    h5py = _import_h5py()
    node = _find(file, path, group)
    if not isinstance(node, h5py.Group):
        raise SpecError(f"{path}: {group} is no group", cause="it is a dataset", remedy="name it by fields=")
    names = [name for name in node if getattr(_find(file, path, f"{group}/{name}"), "shape", ())]
    if not names:
        paths = list[str]()

        def collect(name: str, item: Any) -> bool | None:
            if getattr(item, "shape", ()):
                paths.append(name)
            return len(paths) == MOST_NAMES or None  # None: go on

        file.visititems(collect)
        raise SpecError(
            f"{path} has no dataset with an axis in the group {group}",
            cause=f"in other groups there are {', '.join(paths)}" if paths else "there is none in other groups either",
            remedy="name the group, group='train', or the datasets: fields={'x': 'train/x'}",
        )
    return names


def _find(file: Any, path: str, place: str) -> Any:
    """Return the group or dataset at a place. Soft links are followed; others lead to other files, and are refused.

    h5py would open another file as this one again, since it reads both by the same Python file.

    Raises:
        UnknownFieldError: there is none.
        SpecError: a link leads to another file, or to itself.
    """
    h5py = _import_h5py()
    node, parts, num_links = file, place.split("/"), 0
    while parts:
        part = parts.pop(0)
        if part in ("", "."):
            continue
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            content = f"has {list(node)[:MOST_NAMES]}" if isinstance(node, h5py.Group) else "is a dataset"
            raise UnknownFieldError(
                f"{path} has no {place.strip('/')!r}", cause=f"{node.name} {content}", remedy="name what is there"
            )
        if isinstance(link, h5py.SoftLink) and num_links < MOST_LINKS:
            num_links += 1
            node, parts = file if link.path.startswith("/") else node, link.path.split("/") + parts
        elif isinstance(link, h5py.HardLink):
            node = node[part]
        else:
            is_soft = isinstance(link, h5py.SoftLink)
            raise SpecError(
                f"{path}: {place.strip('/')!r} is a link",
                cause="it leads to itself" if is_soft else f"it leads to the file {getattr(link, 'filename', '')!r}",
                remedy="leave it out by fields=" + ", or open that file, and join both: gl.zip(a, b)" * (not is_soft),
            )
    return node


@dataclass(frozen=True)
class _Place:
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
        return _find(file, self.file, f"{self.group}/{self.path}")

    def decode(self, starts: Indices, field: Field | np.dtype[Any], block: int) -> Array | Ragged:
        """Return the rows of a block, through h5py: of a dtype, or of a field of values of varying length.

        Raises:
            DamagedBlockError: h5py cannot decode them.
        """
        begin, end = (int(start) for start in starts[block : block + 2])
        with _open(self.files, self.number) as file:
            try:
                # Opened for each block: no file of h5py stays open, so a fork finds none (see Fork above).
                values = self.find(file)[begin:end]
                if isinstance(field, Field):
                    return members.texts_of(values) if field.text else members.varying_of(values, field.dtype)
                base, inner = field.subdtype or (field, ())
                # The file passed its stamp, but h5py read it anew: nothing of another dtype may go into a batch.
                if values.dtype != base or values.shape[:1] != (end - begin,):
                    raise ValueError(f"it has become {values.dtype} {values.shape}, and was {base} {inner}")
                return np.ascontiguousarray(values)
            except ERRORS as error:
                refusal = _refusal(self.files, self.number, self.title, error)
                raise DamagedBlockError(
                    f"{self.title}, rows {begin} to {end - 1}", cause=refusal.cause, remedy="copy the file again"
                ) from None


def _member(place: _Place, file: Any, names: Sequence[str]) -> Member:
    """Return a dataset as fields of records; ``names`` are those of the other fields, for remedies."""
    h5py, dataset = _import_h5py(), place.find(file)
    try:
        if not isinstance(dataset, h5py.Dataset) or not dataset.shape:
            raise SpecError(
                "it is no array",
                cause="it is a single value or empty" if isinstance(dataset, h5py.Dataset) else "it is a group",
                remedy="name datasets with an axis",
            )
        if dataset.is_virtual or dataset.external:
            raise SpecError(
                "its values lie in other files",
                cause="it is a virtual dataset" if dataset.is_virtual else f"they are in {dataset.external[0][0]!r}",
                remedy="open those files, as a list of paths" if dataset.is_virtual else "use gl.fixed for those",
            )
        try:
            dtype = dataset.dtype
        except TypeError as error:
            raise SpecError(
                "its elements are none of NumPy's", cause=line_of(error), remedy="convert it with h5py"
            ) from None
        filters = _filters_of(dataset)
        if not dataset.id.get_storage_size() and dataset.size:
            raise SpecError(
                f"none of its {dataset.shape[0]} rows was ever written",
                cause="the program that created it ended before that, or writes it still",
                remedy="write it anew",
            )
        if dtype.hasobject and dtype.names is None:
            return _varying(place, dataset, dtype)
        layout = members.row_layout(place.name, dtype, dataset.shape[1:])
        # A type of the file may have other bytes than the dtype that h5py gives for it: only an equal one is read
        # without h5py.
        is_plain = dataset.id.get_type().equal(h5py.h5t.py_create(dtype, logical=True)) and layout.record_bytes > 0
        plain = _without_metadata(dtype)
        if dataset.chunks and is_plain and filters is not None and not file.userblock_size:
            return _chunked(place, dataset, layout, plain, filters)
        return _whole(place, dataset, layout, plain, is_plain=is_plain)
    except (SpecError, MissingPackageError) as error:
        rest = [name for name in names if name != place.name]
        error.remedy += f"; fields={rest} leaves it out" if rest else ""
        raise error.within(place.title) from None


def _filters_of(dataset: Any) -> tuple[Filter, ...] | None:
    """Return the filters of a dataset; None if one of them is not undone here.

    Raises:
        MissingPackageError: HDF5 has not one of them.
    """
    h5z, settings = _import_h5py().h5z, dataset.id.get_create_plist()
    filters = [settings.get_filter(number) for number in range(settings.get_nfilters())]
    for code, _, _, name in filters:
        if not h5z.filter_avail(code):
            with contextlib.suppress(ImportError):
                signalsafe.import_package("hdf5plugin")  # which adds its filters to HDF5
        if not h5z.filter_avail(code):
            raise MissingPackageError(
                f"it is compressed by the filter {code} ({name.decode('ascii', 'replace')})",
                cause="HDF5 has not this filter here",
                remedy="pip install hdf5plugin, which has most of them",
            )
    if any(code not in FILTERS for code, *_ in filters):
        return None
    return tuple((code, values) for code, _, values, _ in filters)


def _without_metadata(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype without what h5py adds to it: the names of an enumeration, the encoding of texts."""
    return np.dtype(dtype.str) if dtype.metadata and dtype.names is None and dtype.subdtype is None else dtype


def _classes_of(dataset: Any) -> tuple[str, ...]:
    """Return the names of the values 0, 1, 2, ... of an enumeration; none for other datasets."""
    names = _import_h5py().check_enum_dtype(dataset.dtype) or {}
    by_value = {value: name for name, value in names.items()}
    return tuple(by_value[value] for value in range(len(by_value))) if set(by_value) == set(range(len(names))) else ()


def _varying(place: _Place, dataset: Any, dtype: np.dtype[Any]) -> Member:
    """Return a dataset of values of varying length. These lie one by one in heaps of the file."""
    h5py, length = _import_h5py(), int(dataset.shape[0])
    if h5py.check_string_dtype(dtype) is not None:
        field = members.text_field(place.name, dataset.shape[1:])
    else:
        base = h5py.check_vlen_dtype(dtype)
        if base is not None and not base.isnative:
            raise SpecError(
                f"it has values of varying length of {base}",
                cause="h5py gives these without turning their bytes around",
                remedy="write it anew in the byte order of this machine",
            )
        field = members.varying_field(place.name, base, dataset.shape[1:], dataset[:1])
    # How many bytes the heaps hold for this dataset is not written anywhere: the whole file is the most it can be.
    rows = members.rows_of_block(place.file_bytes + REFERENCE_BYTES * length, length)
    starts = place.starts(length, rows, REFERENCE_BYTES)
    return Member(
        place.title,
        place.path,
        field,
        starts,
        partial(place.decode, starts, field),
        BY_HDF5,
        lambda block: (place.file, 0),
        place.file_bytes,
    )


def _chunked(place: _Place, dataset: Any, layout: Layout, dtype: np.dtype[Any], filters: tuple[Filter, ...]) -> Member:
    """Return a dataset whose chunks are read and decoded without h5py."""
    base, inner = dtype.subdtype or (dtype, ())
    shape, chunk = (*map(int, dataset.shape), *inner), (*map(int, dataset.chunks), *inner)
    starts = place.starts(shape[0], chunk[0], layout.record_bytes)
    infos = list[Any]()
    # One walk over the index; get_chunk_info(number) begins it anew for each chunk, a hundred times as slow.
    dataset.id.chunk_iter(infos.append)
    chunks = [((*info.chunk_offset, *(0 for _ in inner)), *info[1:]) for info in infos]
    grid = Grid(
        place.title,
        place.number,
        shape,
        chunk,
        base,
        filters,
        np.array(dataset.fillvalue, base),
        *sort_chunks(place.title, shape, chunk, chunks, place.file_bytes),
    )
    if num_missing := math.prod(grid.counts) - grid.numbers.size:
        log.warning(
            "%s: %d of %d chunks were never written; their elements are the fill value %s",
            *(place.title, num_missing, math.prod(grid.counts), dataset.fillvalue),
        )
    places = None
    if grid.is_plain:
        numbers = np.full(grid.numbers.size, place.number, np.int64)
        places = Places(numbers, np.diff(starts), grid.offsets)
    return Member(
        place.title,
        place.path,
        layout,
        starts,
        partial(grid.decode, place.storage),
        "decoded by gpuload",
        partial(grid.origin, place.file),
        shape[0] * layout.record_bytes,
        places,
        _classes_of(dataset),
    )


def _whole(place: _Place, dataset: Any, layout: Layout, dtype: np.dtype[Any], *, is_plain: bool) -> Member:
    """Return a dataset that lies in one piece, or that h5py decodes."""
    contiguous = _import_h5py().h5d.CONTIGUOUS
    length, stored_bytes, size = int(dataset.shape[0]), int(dataset.id.get_storage_size()), place.file_bytes
    num_bytes, places, offset = length * layout.record_bytes, None, 0
    rows = int(dataset.chunks[0]) if dataset.chunks else members.rows_of_block(num_bytes, length)
    starts = place.starts(length, rows, layout.record_bytes)
    if is_plain and num_bytes and dataset.id.get_create_plist().get_layout() == contiguous:
        offset = int(dataset.id.get_offset())
        if stored_bytes != num_bytes or offset + num_bytes > size:
            raise FormatError(
                f"{place.title} has {num_bytes} bytes from byte {offset} of {size} on, and {stored_bytes} are stored",
                cause="its header is damaged, or the file was cut short",
                remedy="copy the file again",
            )
        places = Places(*(np.array([value], np.int64) for value in (place.number, length, offset)))

    def origin(block: int) -> tuple[str, int]:
        # 0: HDF5 decodes it, and gives no place to name.
        return place.file, offset and offset + int(starts[block]) * layout.record_bytes

    return Member(
        place.title,
        place.path,
        layout,
        starts,
        partial(place.decode, starts, dtype),
        BY_HDF5,
        origin,
        num_bytes,
        places,
        _classes_of(dataset),
    )

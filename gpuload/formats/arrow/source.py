"""Arrow files and streams: rows by number, columns alone; so are Feather (version 2) and the files of `datasets`.

Layout  record batches, in which each column is one piece of memory as Arrow lays it out, or a compressed one.
Access  a column of numbers, or of lists of one size, that is not compressed and has no missing value is read where it
        lies, row by row, as NPY files are: PyArrow opens a map of the file, and its addresses say where. All other
        columns are decoded a record batch at a time (`blocks.py`), through PyArrow, and checked before they are used.
Fields  `formats/columnar.py` says what columns become.
Memory  some numbers a record batch, and ``cache_bytes`` of decoded columns.
Limits  A file that is cut short while it is opened, through a map, ends the process; later it is an error as for other
        files. Streams have dictionaries only in their first batch's company, so columns of these are refused there.
Needs   PyArrow.
Source  https://arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess Communication"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gpuload.errors import DamagedBlockError, GpuloadError, SpecError
from gpuload.formats import columnar
from gpuload.formats.arrow import FILE_MAGIC
from gpuload.formats.columnar import Column
from gpuload.ragged import Ragged
from gpuload.sources.blocks import CACHE_BYTES, BlockCache, BlockLeaf
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Opening
from gpuload.sources.leaf import Array, Indices, Leaf, starts_of
from gpuload.sources.rows import Form, RowLeaf
from gpuload.spec import Layout, Part
from gpuload.storage import open_storage
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files, Paths, expand, look_at
from gpuload.storage.stores import is_remote

CALL = "gl.arrow"
HEAD_BYTES = 8


def arrow(
    paths: Paths,
    fields: Sequence[str] | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    defaults: Mapping[str, Any] | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> ColumnSource:
    """Return the rows of Arrow files or streams: ``.arrow``, ``.feather``, and what `datasets` saves to disk.

        gl.arrow("table.feather")
        gl.arrow("dataset/train/*.arrow", ["image", "label"])

    ``source.describe()`` says which columns are read where they lie, and which are decoded a record batch at a time.

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a wildcard is sorted.
        fields: the columns, in this order; by default all. A member of a struct is ``"outer.inner"``.
        shapes: the shape of columns that are lists of varying length in the file, and have one length in fact.
        defaults: for each column what stands for its missing values. Without it they are an error.
        cache_bytes: of decoded columns of record batches that are kept.

    Raises:
        SpecError: an argument is wrong; a column cannot be a field, or has missing values; files differ, or are remote.
        UnknownFieldError: there is no such column.
        FormatError: a file is no Arrow file or stream, or is cut short.
        FileError: a file is missing, a directory, or cannot be read.
        MissingPackageError: PyArrow is not installed.
    """
    arguments = columnar.check_arguments(CALL, fields, shapes, defaults, cache_bytes)
    columnar.import_arrow(CALL)
    names = expand(paths)
    files, heads = look_at(names, HEAD_BYTES, lambda path, size, head: head)
    tables = [_Table.open(files, number, head) for number, head in enumerate(heads)]
    columns = columnar.columns_of_files(tables, arguments)
    blocks = [(table, number) for table in tables for number in range(len(table.batches))]
    starts = starts_of([table.batches[number].num_rows for table, number in blocks])
    cache = BlockCache(arguments["cache_bytes"], int(files.sizes.sum()))
    storage = open_storage(files)
    leaves = [
        _leaf(storage, blocks, starts, [part[key] for part in columns], cache, key) for key in range(len(columns[0]))
    ]
    counts = [sum(batch.num_rows for batch in table.batches) for table in tables]
    opening = Opening(arrow, {"paths": tuple(names), **arguments})
    for table in tables:
        table.forget_maps()
    about = sorted(arguments["defaults"].items()) or None
    return ColumnSource(files, opening, storage, leaves, counts, tables[0].description.classes, about=about)


@dataclass
class _Batch:
    """A record batch: its rows, the bytes of a stream that hold it, and PyArrow's view of it in the map."""

    num_rows: int
    begin: int
    end: int
    view: Any


@dataclass
class _Table:
    """A file or stream.

    Attributes:
        files, number: the files of the source, and which of them it is.
        schema: PyArrow's.
        schema_bytes: of a stream the bytes of its schema, which stands first; 0 for a file.
        batches: those with rows.
        address: of the map's first byte.
        map: PyArrow's map of the file, while it is opened.
    """

    files: Files
    number: int
    schema: Any
    schema_bytes: int
    batches: list[_Batch]
    address: int
    map: Any
    title: ClassVar[str] = "Arrow"

    @property
    def path(self) -> str:
        return self.files.paths[self.number]

    @property
    def description(self) -> columnar.Description:
        return columnar.describe_features(self.schema.metadata)

    @classmethod
    def open(cls, files: Files, number: int, head: bytes) -> _Table:
        """Return a file with its record batches, of which only the metadata were read.

        Raises:
            FormatError: it is no Arrow file or stream.
            SpecError: it is remote.
        """
        path, pyarrow = files.paths[number], columnar.import_arrow(CALL)
        if is_remote(path):
            raise SpecError(
                f"{path} as an Arrow file",
                cause="its record batches are found by a map, and remote files have none",
                remedy="copy it to a disk, or write Parquet, which is read from stores",
            )
        with columnar.as_refusal(cls.title, files, number):
            file = pyarrow.memory_map(path)
            address = file.read_buffer(1).address
            file.seek(0)
            if head.startswith(FILE_MAGIC):
                reader = pyarrow.ipc.open_file(file)
                views = map(reader.get_batch, range(reader.num_record_batches))
                batches, schema_bytes = [_Batch(view.num_rows, 0, 0, view) for view in views], 0
            else:
                reader = pyarrow.ipc.open_stream(file)
                schema_bytes = file.tell()
                batches = list(_read_stream(file, reader))
        files.check(number)
        return cls(files, number, reader.schema, schema_bytes, batches, address, file)

    def forget_maps(self) -> None:
        """Let go of the map, and close it: threads of PyArrow may refer to it for some time."""
        for batch in self.batches:
            batch.view = None
        self.map.close()
        self.map = None

    def first(self, path: columnar.Path) -> list[Any]:
        """Return the value of a column in the first row that the file has."""
        for batch in self.batches:
            if batch.num_rows:
                with columnar.as_damage(self.path, self.files, self.number):
                    row = batch.view.slice(0, 1).select([path[0]])
                    row.validate(full=True)
                    return columnar.python_values(path, row)
        return []

    def decode(self, column: Column, block: int) -> Any:
        """Return a record batch with a column alone, checked."""
        pyarrow, number = columnar.import_arrow(CALL), self.schema.get_field_index(column.path[0])
        options = pyarrow.ipc.IpcReadOptions(included_fields=[number], use_threads=False)
        with self.files.open_binary(self.number) as file:
            if not self.schema_bytes:
                batch = pyarrow.ipc.open_file(file, options=options).get_batch(block)
            else:
                place = self.batches[block]
                content = file.read(self.schema_bytes)
                file.seek(place.begin)
                content += file.read(place.end - place.begin)
                batch = pyarrow.ipc.open_stream(pyarrow.BufferReader(content), options=options).read_next_batch()
        batch.validate(full=True)
        return batch


def _read_stream(file: Any, reader: Any) -> Iterator[_Batch]:
    """Yield the record batches of a stream, with the bytes where each lies."""
    begin = file.tell()
    for view in reader:
        end = file.tell()
        yield _Batch(view.num_rows, begin, end, view)
        begin = end


def _leaf(
    storage: Storage,
    blocks: Sequence[tuple[_Table, int]],
    starts: Indices,
    columns: Sequence[Column],
    cache: BlockCache,
    key: int,
) -> Leaf:
    """Return the leaf of a column: of rows where they lie, if all batches have them so, else of decoded batches."""
    field = columns[0].field
    places = [_place(columns[table.number], table, table.batches[number].view) for table, number in blocks]
    offsets = [place for place in places if place is not None]
    if places and len(offsets) == len(places):
        part = Part(field, field.dtype, 0)
        owners = np.array([table.number for table, _ in blocks], np.int64)
        return RowLeaf(
            Form(Layout(part.num_bytes, (part,))), storage, owners, np.diff(starts), np.array(offsets, np.int64)
        )
    for table in {id(table): table for table, _ in blocks}.values():
        path = columns[table.number].path
        if table.schema_bytes and "dictionary<" in str(table.schema.field(path[0]).type):
            raise SpecError(
                f"{table.path}: column {field.name!r} is {table.schema.field(path[0]).type}",
                cause="the values of a dictionary stand anywhere in a stream",
                remedy="write it as an Arrow file or as Parquet, with PyArrow",
            )
    rows = int(np.diff(starts).max(initial=0))
    return BlockLeaf(
        field,
        starts,
        partial(_decode, blocks, columns),
        cache,
        key,
        f"record batches of up to {rows} rows, decoded by PyArrow",
        lambda block: (blocks[block][0].path, blocks[block][0].batches[blocks[block][1]].begin),
    )


def _place(column: Column, table: _Table, view: Any) -> int | None:
    """Return the byte of a file where the values of a column in a record batch begin; None if they must be decoded."""
    field = column.field
    if len(column.path) > 1 or not field.has_rows or not field.dtype.itemsize or 0 in field.fixed_shape:
        return None
    if not view.num_rows:
        return 0
    array, count = view.column(column.path[0]), view.num_rows
    begin = 0  # of the first value, in values of the innermost list
    while hasattr(array, "storage"):
        array = array.storage
    while str(array.type).startswith("fixed_size_list<") and not array.null_count:
        size = array.type.list_size
        begin, count, array = (begin + array.offset) * size, count * size, array.values
    kind = str(array.type)
    size = array.type.byte_width if kind.startswith("fixed_size_binary") else field.dtype.itemsize
    is_same = kind.startswith("fixed_size_binary") or columnar.dtype_of_bytes(array.type) == field.dtype
    if not is_same or array.null_count:
        return None
    buffer = array.buffers()[1]
    if buffer is None:
        return None
    first = (begin + array.offset) * size
    offset = buffer.address - table.address + first
    inside_buffer, num_bytes = first + count * size <= buffer.size, int(table.files.sizes[table.number])
    is_inside = inside_buffer and offset >= 0 and offset + count * size <= num_bytes
    return offset if is_inside and count * size == view.num_rows * Part(field, field.dtype, 0).num_bytes else None


def _decode(blocks: Sequence[tuple[_Table, int]], columns: Sequence[Column], block: int) -> Array | Ragged:
    """Return the values of a column in a record batch."""
    table, number = blocks[block]
    place, column, expected = (
        f"{table.path}, record batch {number}",
        columns[table.number],
        table.batches[number].num_rows,
    )
    try:
        with columnar.as_damage(place, table.files, table.number):
            batch = table.decode(column, number)
            if batch.num_rows == expected:
                return columnar.values_of(column, batch)
    except GpuloadError as error:
        raise (error if error.what.startswith(table.path) else error.within(place)) from None
    raise DamagedBlockError(
        f"{place} has {batch.num_rows} rows",
        cause=f"it had {expected} when the file was opened",
        remedy="copy the file again",
    )

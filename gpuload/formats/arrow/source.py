"""Arrow files and streams: rows by number, columns alone; so are Feather (version 2) and the files of `datasets`.

Layout  record batches, in which each column is one piece of memory as Arrow lays it out, or a compressed one.
Access  a column of numbers, or of lists of one size, that is not compressed and has no missing value is read where it
        lies, row by row, as NPY files are: the metadata of the record batches say where (`messages.py`). All other
        columns are decoded a record batch at a time (`blocks.py`), through PyArrow, and checked before they are used:
        of a record batch only the bytes of that column are read.
Opening reads the schema, the dictionaries, and the metadata of each record batch: of a file all together, since its
        footer has their places; of a stream one behind the other, from an object store by a request each.
Fields  `formats/columnar.py` says what columns become.
Memory  some numbers a record batch, and ``cache_bytes`` of decoded columns.
Limits  Streams may have dictionaries anywhere, so columns of these are refused there.
Needs   PyArrow.
Source  https://arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess Communication"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gpuload.errors import DamagedBlockError, FormatError, GpuloadError, SpecError
from gpuload.formats import columnar
from gpuload.formats.arrow import FILE_MAGIC
from gpuload.formats.arrow.messages import WINDOW_BYTES, Batches, Message, WrongMessage, read_batches, width
from gpuload.formats.columnar import Column
from gpuload.ragged import Ragged
from gpuload.sources.blocks import CACHE_BYTES, BlockCache, BlockLeaf
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Opening
from gpuload.sources.leaf import Array, Bytes, Indices, Leaf, starts_of
from gpuload.sources.rows import Form, RowLeaf
from gpuload.spec import Layout, Part
from gpuload.storage import open_storage
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files, Paths, by_chunks, expand, look_at
from gpuload.storage.inflate import limit_bytes, too_large

CALL = "gl.arrow"
PEEK_BYTES = 1 << 16  # of the values of a column that are read for the first one
LENGTH_BYTES = 8  # in front of a compressed buffer: its bytes when it is unpacked, int64


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
        SpecError: an argument is wrong; a column cannot be a field, or has missing values; files differ.
        UnknownFieldError: there is no such column.
        FormatError: a file is no Arrow file or stream, or is cut short.
        FileError: a file is missing, a directory, or cannot be read.
        MissingPackageError: PyArrow is not installed.
    """
    arguments = columnar.check_arguments(CALL, fields, shapes, defaults, cache_bytes)
    columnar.import_arrow(CALL)
    names = expand(paths)
    files, heads = look_at(names, WINDOW_BYTES, lambda path, size, head: head)
    storage = open_storage(files)
    tables = by_chunks(
        lambda chunk: [_Table.open(storage, number, heads[number]) for number in chunk], range(len(files))
    )
    columns = columnar.columns_of_files(tables, arguments)
    cache = BlockCache(arguments["cache_bytes"], int(files.sizes.sum()))
    leaves = [_leaf(tables, [part[key] for part in columns], cache, key) for key in range(len(columns[0]))]
    for table in tables:
        table.batches.forget_buffers()
    counts = [int(table.batches.rows.sum()) for table in tables]
    opening = Opening(arrow, {"paths": tuple(names), **arguments})
    about = sorted(arguments["defaults"].items()) or None
    return ColumnSource(files, opening, storage, leaves, counts, tables[0].description.classes, about=about)


@dataclass(frozen=True, eq=False)
class _Table:
    """A file or stream.

    Attributes:
        storage: of the files of the source.
        number: which of these it is.
        schema: PyArrow's.
        is_file: False for a stream.
        batches: its record batches.
        widths: the nodes and buffers of each column; None if they are not the same in all record batches.
    """

    storage: Storage
    number: int
    schema: Any
    is_file: bool
    batches: Batches
    widths: list[tuple[int, int]] | None
    title: ClassVar[str] = "Arrow"

    @property
    def files(self) -> Files:
        return self.storage.files

    @property
    def path(self) -> str:
        return self.files.paths[self.number]

    @property
    def description(self) -> columnar.Description:
        return columnar.describe_features(self.schema.metadata)

    @classmethod
    def open(cls, storage: Storage, number: int, head: bytes) -> _Table:
        """Return a file with its record batches, of which only the metadata were read.

        Raises:
            FormatError: it is no Arrow file or stream.
        """
        path, size = storage.files.paths[number], int(storage.files.sizes[number])

        def read(begins: Indices, lengths: Indices) -> Bytes:
            content = np.empty(int(lengths.sum()), np.uint8)
            extents = Extents(np.full(begins.size, number, np.int64), begins, lengths)
            storage.read(extents, content, starts_of(lengths.tolist())[:-1])
            return content

        with columnar.as_refusal(cls.title, storage.files, number):
            try:
                batches = read_batches(read, size, head)
            except WrongMessage as error:
                raise FormatError(
                    f"{path} is no Arrow file to read",
                    cause=f"{error}; it has {size} bytes",
                    remedy="it was cut short, or is still being written, or is something else: gl.open(path) finds out",
                ) from None
            ipc = columnar.import_arrow(CALL).ipc
            schema = ipc.open_stream(batches.prefix).schema
            if batches.footer and not schema.equals(ipc.open_file(batches.footer).schema):
                raise FormatError(
                    f"{path} has two schemas",
                    cause="that of its footer is another one than that at its beginning: it is damaged",
                    remedy="copy it again",
                )
            widths = [width(field.type) for field in schema]
        is_regular = batches.has(tuple(sum(counts) for counts in zip(*widths, strict=True)))
        is_file = head.startswith(FILE_MAGIC)
        return cls(storage, number, schema, is_file, batches, widths if is_regular else None)

    def first(self, path: columnar.Path) -> list[Any]:
        """Return the value of a column in the first row that the file has; of a long one the beginning is enough."""
        for number in np.flatnonzero(self.batches.rows)[:1].tolist():
            begin, end = self.span(path[0])[number].tolist()
            buffers = self._buffers(path[0])
            if buffers is not None and not self.batches.is_packed[number]:
                places, lengths = buffers[number].T
                ends = places + np.append(lengths[:-1], PEEK_BYTES)  # the values are the last buffer of a column
                end = min(end, int(ends.max()))
            with columnar.as_damage(f"{self.path}, record batch {number}", self.files, self.number):
                row = self._decode(path[0], number, begin, end).slice(0, 1)
                row.validate(full=True)
                return columnar.python_values(path, row)
        return []

    def decode(self, column: str, number: int, span: Indices) -> Any:
        """Return a record batch with a column alone, checked.

        Args:
            column: its name.
            number: of the record batch.
            span: of it from `span`.
        """
        batch = self._decode(column, number, *span.tolist())
        # PyArrow itself believes the offsets of a file, and would read behind the memory by them.
        batch.validate(full=True)
        return batch

    def _decode(self, column: str, number: int, begin: int, end: int) -> Any:
        """Return a record batch with a column alone, of whose body some bytes are read; the others are zeros."""
        arrow, prefix, at = columnar.import_arrow(CALL), self.batches.prefix, int(self.batches.begins[number])
        metadata, body = int(self.batches.metadata[number]), int(self.batches.bodies[number])
        content = np.zeros(len(prefix) + metadata + body, np.uint8)
        content[: len(prefix)] = np.frombuffer(prefix, np.uint8)
        begins, lengths = np.array([0, metadata + begin]), np.array([metadata, end - begin])
        owner = np.full(2, self.number, np.int64)
        self.storage.read(Extents(owner, at + begins, lengths), content, len(prefix) + begins)
        if self.batches.is_packed[number]:
            self._check_size(column, number, content[len(prefix) :])
        # One thread: the others decode other blocks meanwhile.
        options = arrow.ipc.IpcReadOptions(included_fields=[self.schema.get_field_index(column)], use_threads=False)
        return arrow.ipc.open_stream(arrow.py_buffer(content), options=options).read_next_batch()

    def _check_size(self, column: str, number: int, message: Bytes) -> None:
        """Refuse a column that unpacks to more bytes than is allowed: each buffer says its own in front.

        Raises:
            FormatError: it does.
        """
        metadata, num_bytes = int(self.batches.metadata[number]), 0
        buffers = Message.parse(message[:metadata].tobytes()).buffers
        if self.widths is not None:
            _, first, count = self._first(column)
            buffers = buffers[first : first + count]
        for begin in buffers[(buffers > [-1, 0]).all(axis=1), 0].tolist():
            head = message[metadata + begin : metadata + begin + LENGTH_BYTES].tobytes()
            num_bytes += max(0, int.from_bytes(head, "little", signed=True))
        if num_bytes > limit_bytes(packed_bytes := int(self.files.sizes[self.number])):
            raise too_large(f"{self.path}, record batch {number}", packed_bytes, num_bytes, unpack="with PyArrow")

    def _first(self, column: str) -> tuple[int, int, int]:
        """Return the number of the first node of a column, of its first buffer, and how many buffers it has."""
        place, widths = self.schema.get_field_index(column), self.widths or []
        return sum(nodes for nodes, _ in widths[:place]), sum(count for _, count in widths[:place]), widths[place][1]

    def _buffers(self, column: str) -> Indices | None:
        """Return place and bytes of the buffers of a column in each record batch, ``[n, num_buffers, 2]``."""
        if self.widths is None:
            return None
        _, first, count = self._first(column)
        return self.batches.buffers[:, first : first + count]

    def span(self, column: str) -> Indices:
        """Return where the bytes of a column begin and end in the body of each record batch, int64 ``[n, 2]``.

        Raises:
            FormatError: they lie outside of it.
        """
        bodies, buffers = self.batches.bodies[:, None], self._buffers(column)
        if buffers is None:
            return np.concatenate([np.zeros_like(bodies), bodies], axis=1)
        begins, lengths = buffers.transpose(2, 0, 1)
        is_outside = (lengths != 0) & ((begins < 0) | (lengths < 0) | (begins > bodies) | (lengths > bodies - begins))
        lengths_differ = self.batches.nodes[:, self._first(column)[0], 0] != self.batches.rows
        is_wrong = is_outside.any(axis=1) | lengths_differ
        if is_wrong.any():
            raise FormatError(
                f"{self.path}, record batch {int(is_wrong.argmax())}: column {column!r} lies outside of it, or has "
                "another length",
                cause="its metadata say so: they are damaged",
                remedy="copy the file again",
            )
        first = np.where(lengths, begins, bodies).min(axis=1)
        after = np.where(lengths, begins + lengths, 0).max(axis=1)
        return np.stack([np.minimum(first, after), after], axis=1)

    def places(self, column: Column) -> Indices | None:
        """Return the byte where the values of a column begin in each record batch; None if they must be decoded."""
        field, batches, buffers = column.field, self.batches, self._buffers(column.path[0])
        if len(column.path) > 1 or not field.has_rows or not field.dtype.itemsize or 0 in field.fixed_shape:
            return None
        if buffers is None or batches.is_packed.any() or not batches.is_little:
            return None
        missing = batches.nodes[:, self._first(column.path[0])[0] :, 1]
        arrow_type, count, depth = self.schema.field(column.path[0]).type, 1, 0  # of lists in one another
        while hasattr(arrow_type, "storage_type") or str(arrow_type).startswith("fixed_size_list<"):
            if hasattr(arrow_type, "storage_type"):
                arrow_type = arrow_type.storage_type
            else:
                arrow_type, count, depth = arrow_type.value_type, count * arrow_type.list_size, depth + 1
        is_binary = str(arrow_type).startswith("fixed_size_binary[")
        row_bytes = count * (arrow_type.byte_width if is_binary else field.dtype.itemsize)
        is_same = is_binary or columnar.dtype_of_bytes(arrow_type) == field.dtype
        if not is_same or row_bytes != Part(field, field.dtype, 0).num_bytes:
            return None
        # Each list has one buffer, the bits of missing lists; the values have such a buffer, too, in front of theirs.
        begins, lengths = buffers[:, depth + 1].T
        fits = (missing[:, : depth + 1] == 0).all(axis=1) & (batches.rows <= lengths // row_bytes)
        if not fits[batches.rows > 0].all():
            return None
        return np.where(batches.rows > 0, batches.begins + batches.metadata + begins, 0)


def _leaf(tables: Sequence[_Table], columns: Sequence[Column], cache: BlockCache, key: int) -> Leaf:
    """Return the leaf of a column: of rows where they lie, if all batches have them so, else of decoded batches."""
    field, storage = columns[0].field, tables[0].storage
    blocks = [(table, number) for table in tables for number in range(table.batches.rows.size)]
    rows = np.concatenate([table.batches.rows for table in tables])
    spans = np.concatenate([table.span(column.path[0]) for table, column in zip(tables, columns, strict=True)])
    places = [table.places(column) for table, column in zip(tables, columns, strict=True)]
    offsets = [place for place in places if place is not None]
    if blocks and len(offsets) == len(places):
        part = Part(field, field.dtype, 0)
        owners = np.array([table.number for table, _ in blocks], np.int64)
        return RowLeaf(Form(Layout(part.num_bytes, (part,))), storage, owners, rows, np.concatenate(offsets))
    for table, column in zip(tables, columns, strict=True):
        arrow_type = table.schema.field(column.path[0]).type
        if not table.is_file and "dictionary<" in str(arrow_type):
            raise SpecError(
                f"{table.path}: column {field.name!r} is {arrow_type}",
                cause="the values of a dictionary stand anywhere in a stream",
                remedy="write it as an Arrow file or as Parquet, with PyArrow",
            )
    return BlockLeaf(
        field,
        starts_of(rows.tolist()),
        partial(_decode, blocks, columns, spans),
        cache,
        key,
        f"record batches of up to {int(rows.max(initial=0))} rows, decoded by PyArrow",
        lambda block: (blocks[block][0].path, int(blocks[block][0].batches.begins[blocks[block][1]])),
    )


def _decode(
    blocks: Sequence[tuple[_Table, int]], columns: Sequence[Column], spans: Indices, block: int
) -> Array | Ragged:
    """Return the values of a column in a record batch."""
    table, number = blocks[block]
    place, column = f"{table.path}, record batch {number}", columns[table.number]
    expected = int(table.batches.rows[number])
    try:
        with columnar.as_damage(place, table.files, table.number):
            batch = table.decode(column.path[0], number, spans[block])
            if batch.num_rows == expected:
                return columnar.values_of(column, batch)
    except GpuloadError as error:
        raise (error if error.what.startswith(table.path) else error.within(place)) from None
    raise DamagedBlockError(
        f"{place} has {batch.num_rows} rows",
        cause=f"it had {expected} when the file was opened",
        remedy="copy the file again",
    )

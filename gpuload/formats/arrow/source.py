"""Arrow files and streams: rows by number, columns alone; so are Feather (version 2) and the files
of `datasets`.

Layout  record batches, in which each column is one piece of memory as Arrow lays it out, or a
        compressed one.
Access  a column of numbers, or of lists of one size, that is not compressed and has no missing
        value is read where it lies, row by row, as NPY files are: the metadata of the record
        batches say where (`messages.py`). All other columns are decoded a record batch at a time
        (`blocks.py`), through PyArrow, and checked before they are used: of a record batch only the
        bytes of that column are read.
Opening reads the schema, the dictionaries, and the metadata of each record batch: of a file all
        together, since its footer has their places; of a stream one behind the other, from an
        object store by a request each.
Fields  as `formats/columnar.py` makes them of columns.
Memory  some numbers a record batch, and ``cache_bytes`` of decoded columns.
Limits  Streams may have dictionaries anywhere, so columns of these are refused there.
Needs   PyArrow.
Source  https://arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess
        Communication"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuload.errors import DamagedBlockError, FormatError, SpecError
from gpuload.formats import columnar
from gpuload.formats.arrow.listing import from_manifest, to_manifest
from gpuload.formats.arrow.messages import WINDOW_BYTES, RecordBatches
from gpuload.formats.arrow.table import CALL, ArrowTable
from gpuload.formats.columnar import Column
from gpuload.formats.tablesource import TableSource, divide
from gpuload.ragged import Ragged
from gpuload.sources.blocks import CACHE_BYTES, BlockLeaf, BlockMemory
from gpuload.sources.filesource import Entries, Opening
from gpuload.sources.leaf import Array, Indices, Leaf, starts_of
from gpuload.sources.rows import RecordForm, RowLeaf
from gpuload.spec import Layout, Part
from gpuload.storage import manifest, open_storage
from gpuload.storage.extents import Storage
from gpuload.storage.files import look_at
from gpuload.storage.folders import ARROW, expand_tables
from gpuload.storage.handles import by_chunks
from gpuload.storage.wildcards import Paths


def arrow(
    paths: Paths,
    fields: Sequence[str] | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    defaults: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, DTypeLike] | None = None,
    partitions: Sequence[str] | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> TableSource:
    """Return the rows of Arrow files or streams: ``.arrow``, ``.feather``, and those that
    `datasets` saves to disk.

        gl.arrow("table.feather")
        gl.arrow("dataset/train/*.arrow", ["image", "label"])

    ``source.describe()`` says which columns are read where they lie, and which are decoded a record
    batch at a time.

    Args:
        paths: a path, a string with wildcards, a folder, or a list of these; a list keeps its
            order, a wildcard is sorted. A folder means its files and those of its folders, without
            names that begin with ``_`` or ``.``. Or a manifest of such files (``Source.index``).
        fields: the columns, in this order; by default all. A member of a struct is
            ``"outer.inner"``.
        shapes: the shape of columns that are lists of varying length in the file, and have one
            length in fact.
        defaults: for each column a value in place of missing ones, which are an error without it.
        dtypes: for each column the dtype of its field, if it is another one than in the file; a
            value that it does not hold is an error. Files with int32 and int64, or float32 and
            float64, have the larger one without it.
        partitions: the columns that folders ``name=value`` are, int64 or text, looked for in the
            path of each file; [] for none. None: all such folders below a folder or wildcard of
            ``paths``.
        cache_bytes: of decoded columns of record batches that are kept.

    Raises:
        SpecError: an argument is wrong; a column cannot be a field, or has missing values; files
            differ.
        UnknownFieldError: there is no such column.
        FormatError: a file is no Arrow file or stream, or is cut short.
        FileError: a file is missing, a directory, or cannot be read.
        MissingPackageError: PyArrow is not installed.
    """
    arguments = columnar.check_arguments(
        CALL, fields, shapes, defaults, cache_bytes, dtypes=dtypes, partitions=partitions
    )
    columnar.import_arrow(CALL)
    listing = manifest.load(paths, "arrow")
    if listing is None:
        names, inner = expand_tables(paths, ARROW)
        files, heads = look_at(names, WINDOW_BYTES, lambda path, size, head: head)
        storage = open_storage(files)
        tables = _open_tables(storage, heads)
        images = dict[str, bool]()
    else:
        files, storage = listing.files, open_storage(listing.files)
        names, inner = list(files.paths), [""] * len(files)
        tables, images = from_manifest(listing, storage)
    of_files, folders = divide(CALL, arguments, tables, inner, listing)
    groups = _groups_of(tables)
    columns = list[list[Column]]([] for _ in groups)
    if of_files is not None:
        firsts = [group.tables[0] for group in groups]
        columns = columnar.columns_of_files(CALL, firsts, of_files, images)
    cache = BlockMemory(arguments["cache_bytes"], int(files.sizes.sum()))
    leaves = [
        _leaf(tables, groups, [part[key] for part in columns], cache, key)
        for key in range(len(columns[0]))
    ]
    for table in tables:
        table.batches.forget_buffers()
    origin = tuple(names) if listing is None else listing.path
    opening = Opening(arrow, {"paths": origin, **arguments})
    return ArrowSource(opening, leaves, tables, columns[0], folders, storage)


class ArrowSource(TableSource):
    """Rows of Arrow files or streams; made by ``gl.arrow``."""

    def _entries(self) -> Entries:
        # Nodes and buffers of record batches, which nothing else needs any more, are read anew.
        heads = look_at(self._files.paths, WINDOW_BYTES, lambda path, size, head: head)[1]
        about, arrays = to_manifest(_open_tables(self._storage, heads), self._columns)
        return Entries({**about, **self._about_folders()}, arrays)


def _open_tables(storage: Storage, heads: Sequence[bytes]) -> list[ArrowTable]:
    """Return files, given the first bytes of each."""
    return by_chunks(
        lambda chunk: [ArrowTable.open(storage, number, heads[number]) for number in chunk],
        range(len(heads)),
    )


@dataclass(frozen=True, eq=False)
class _SchemaGroup:
    """Files that begin alike: with one schema, and the same dictionaries.

    Attributes:
        tables: the files.
        blocks: int64 ``[n]``, which of the record batches of all files theirs are.
        table: a file that has all of these.
    """

    tables: list[ArrowTable]
    blocks: Indices
    table: ArrowTable

    def span(self, column: str) -> Indices:
        """Return where the bytes of a column lie, as `ArrowTable.span` does."""
        try:
            return self.table.span(column)
        except FormatError:
            for table in self.tables:  # the one that is wrong raises it with its name
                table.span(column)
            raise


def _groups_of(tables: Sequence[ArrowTable]) -> list[_SchemaGroup]:
    """Return the groups of files, in the order of their first files."""
    members, starts = (
        dict[tuple[bytes, bool], list[int]](),
        starts_of([table.batches.rows.size for table in tables]),
    )
    for number, table in enumerate(tables):
        members.setdefault((table.batches.prefix, table.widths is None), []).append(number)
    groups = list[_SchemaGroup]()
    for numbers in members.values():
        blocks = np.concatenate(
            [np.arange(starts[number], starts[number + 1]) for number in numbers]
        )
        parts = [tables[number] for number in numbers]
        table = replace(parts[0], batches=RecordBatches.join([part.batches for part in parts]))
        groups.append(_SchemaGroup(parts, blocks, table))
    return groups


def _leaf(
    tables: Sequence[ArrowTable],
    groups: Sequence[_SchemaGroup],
    columns: Sequence[Column],
    cache: BlockMemory,
    key: int,
) -> Leaf:
    """Return the leaf of a column: of rows where they lie, if all batches have them so, else of
    decoded batches."""
    field, storage = columns[0].field, tables[0].storage
    rows = np.concatenate([table.batches.rows for table in tables])
    owners = np.repeat(np.arange(len(tables)), [table.batches.rows.size for table in tables])
    spans, offsets, have_rows = (
        np.empty((rows.size, 2), np.int64),
        np.empty(rows.size, np.int64),
        rows.size > 0,
    )
    kinds = np.empty(len(tables), np.int64)  # the group of each file
    for number, (group, column) in enumerate(zip(groups, columns, strict=True)):
        kinds[[table.number for table in group.tables]] = number
        spans[group.blocks] = group.span(column.path[0])
        places = group.table.places(column)
        have_rows = have_rows and places is not None
        if places is None:
            offsets[group.blocks] = 0
        else:
            offsets[group.blocks] = places
        arrow_type = group.table.schema.field(column.path[0]).type
        if (
            places is None
            and not all(table.is_file for table in group.tables)
            and "dictionary<" in str(arrow_type)
        ):
            raise SpecError(
                f"{group.tables[0].path}: column {field.name!r} is {arrow_type}",
                cause="the values of a dictionary stand anywhere in a stream",
                remedy="write it as an Arrow file or as Parquet, with PyArrow",
            )
    if have_rows:
        part = Part(field, field.dtype, 0)
        return RowLeaf(RecordForm(Layout(part.num_bytes, (part,))), storage, owners, rows, offsets)
    firsts = starts_of([table.batches.rows.size for table in tables])

    def find(block: int) -> tuple[ArrowTable, int]:
        owner = int(owners[block])
        return tables[owner], block - int(firsts[owner])

    def decode(block: int) -> Array | Ragged:
        table, number = find(block)
        return _decode(table, number, columns[int(kinds[table.number])], spans[block])

    def origin(block: int) -> tuple[str, int]:
        table, number = find(block)
        return table.path, int(table.batches.begins[number])

    how = f"record batches of up to {int(rows.max(initial=0))} rows, decoded by PyArrow"
    return BlockLeaf(field, starts_of(rows.tolist()), decode, cache, key, how, origin)


def _decode(table: ArrowTable, number: int, column: Column, span: Indices) -> Array | Ragged:
    """Return the values of a column in a record batch."""
    place, expected = f"{table.path}, record batch {number}", int(table.batches.rows[number])
    room = columnar.UnpackLimit(place, int(table.files.sizes[table.number]))
    with columnar.as_damage_of(table, place):
        batch = table.decode(column.path[0], number, span)
        if batch.num_rows == expected:
            return columnar.values_of(column, batch, room)
    raise DamagedBlockError(
        f"{place} has {batch.num_rows} rows",
        cause=f"it had {expected} when the file was opened",
        remedy="copy the file again",
    )

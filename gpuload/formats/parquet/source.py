"""Parquet files: rows by number, columns alone, through PyArrow.

Layout  row groups, in which each column lies in a piece of its own, encoded and mostly compressed.
        The footer of a file says where, and how many rows each row group has; each is compared with
        the rows that are read.
Access  a column of a row group is decoded as a whole, for however few of its rows (`blocks.py`).
        PyArrow decodes it without the interpreter's lock, so that threads decode side by side;
        decoded ones are cached.
Fields  as `formats/columnar.py` makes them of columns.
Memory  the footers, and ``cache_bytes`` of decoded columns. A column of a row group unpacks to at
        most the limit of `storage/inflate.py`; it is decoded BATCH_ROWS rows at a time, so no
        number in the file is believed before.
Needs   PyArrow.
Source  https://parquet.apache.org/docs/file-format
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuload.errors import DamagedBlockError
from gpuload.formats import columnar
from gpuload.formats.columnar import Column
from gpuload.formats.parquet.int96 import UNITS, join_times
from gpuload.formats.parquet.listing import from_manifest, to_manifest
from gpuload.formats.parquet.pages import DICTIONARY_ENCODINGS, PLAIN_ENCODING, parse_pages
from gpuload.formats.parquet.table import BATCH_ROWS, CALL, ParquetTable
from gpuload.formats.tablesource import TableSource, divide
from gpuload.ragged import Ragged
from gpuload.sources.blocks import CACHE_BYTES, BlockLeaf, BlockMemory
from gpuload.sources.filesource import Entries, Opening
from gpuload.sources.leaf import Array, Leaf, starts_of
from gpuload.storage import manifest, open_storage
from gpuload.storage.files import look_at
from gpuload.storage.folders import PARQUET, expand_tables
from gpuload.storage.handles import by_chunks
from gpuload.storage.wildcards import Paths

SMALL_BYTES = 1 << 24  # of files with columns that are decoded as dictionaries where these may grow
LEVEL_BYTES = 4  # of a value in a list: where it stands, as PyArrow decodes it
PARTS, PARTS_OF_LARGE = (
    8,
    2,
)  # of the memory that a column may take: for rows that are decoded at a time


def parquet(
    paths: Paths,
    fields: Sequence[str] | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    defaults: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, DTypeLike] | None = None,
    partitions: Sequence[str] | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> TableSource:
    """Return the rows of Parquet files.

        gl.parquet("train-*.parquet")
        gl.parquet("train-*.parquet", ["image", "label"])      these columns alone
        gl.parquet("vectors.parquet", shapes={"vector": (768,)}, defaults={"age": 0})

    A row group is decoded as a whole. So a shuffle of all rows decodes a row group for each of
    them, unless they fit into the cache: ``shuffle=gl.Blocks(1000, 4)``, with the number of rows of
    a row group, decodes each once.

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
        cache_bytes: of decoded columns of row groups that are kept.

    Raises:
        SpecError: an argument is wrong; a column cannot be a field, or has missing values; files
            differ.
        UnknownFieldError: there is no such column.
        FormatError: a file is no Parquet file, or its footer is damaged.
        FileError: a file is missing, a directory, or cannot be read.
        MissingPackageError: PyArrow is not installed.
    """
    arguments = columnar.check_arguments(
        CALL, fields, shapes, defaults, cache_bytes, dtypes=dtypes, partitions=partitions
    )
    columnar.import_arrow(CALL)
    listing = manifest.load(paths, "parquet")
    if listing is None:
        names, inner = expand_tables(paths, PARQUET)
        files, _ = look_at(names, 0, lambda path, size, head: None)
        tables = by_chunks(
            lambda chunk: [ParquetTable.open(files, number) for number in chunk], range(len(files))
        )
    else:
        names, files = list(listing.files.paths), listing.files
        inner = [""] * len(names)
        tables, columns_of_manifest = from_manifest(listing)
    of_files, folders = divide(CALL, arguments, tables, inner, listing)
    if of_files is None:
        columns = [list[Column]() for _ in tables]
    elif listing is None:
        columns = columnar.columns_of_files(CALL, tables, of_files)
    else:
        columns = columns_of_manifest(of_files)
    groups = [(table, group) for table in tables for group in range(table.rows.size)]
    starts = starts_of([num_rows for table in tables for num_rows in table.rows.tolist()])
    cache = BlockMemory(arguments["cache_bytes"], sum(table.num_bytes for table in tables))
    leaves: list[Leaf] = [
        BlockLeaf(
            column.field,
            starts,
            partial(_decode, groups, [file_columns[key] for file_columns in columns]),
            cache,
            key,
            f"row groups of up to {int(np.diff(starts).max(initial=0))} rows, decoded by PyArrow",
            lambda block: (groups[block][0].path, 0),
        )
        for key, column in enumerate(columns[0])
    ]
    origin = tuple(names) if listing is None else listing.path
    opening = Opening(parquet, {"paths": origin, **arguments})
    return ParquetSource(opening, leaves, tables, columns[0], folders, open_storage(files))


class ParquetSource(TableSource):
    """Rows of Parquet files; made by ``gl.parquet``."""

    def __init__(
        self, opening: Opening, leaves: Any, tables: Sequence[ParquetTable], *rest: Any
    ) -> None:
        super().__init__(opening, leaves, tables, *rest)
        self._tables = tables

    def _entries(self) -> Entries:
        about, arrays = to_manifest(self._tables, self._columns)
        return Entries({**about, **self._about_folders()}, arrays)


def _decode(
    groups: Sequence[tuple[ParquetTable, int]], columns: Sequence[Column], block: int
) -> Array | Ragged:
    """Return the values of a column in a row group."""
    table, group = groups[block]
    column, expected = columns[table.number], int(table.rows[group])
    place, num_rows, num_bytes, pieces = f"{table.path}, row group {group}", 0, 0, list[Any]()
    room = columnar.UnpackLimit(place, int(table.files.sizes[table.number]))
    with columnar.as_damage_of(table, place):
        for count, values in _pieces(table, group, column, room):
            pieces.append(values)
            num_rows, num_bytes = num_rows + count, num_bytes + values.nbytes
            if num_rows > expected:
                break
            room.check(num_bytes)
    if num_rows != expected:
        count_text = "more" if num_rows > expected else num_rows
        raise DamagedBlockError(
            f"{place}, column {column.dotted} has {count_text} rows",
            cause=f"the footer says that it has {expected}",
            remedy="copy the file again",
        )
    return columnar.join(column, pieces)


class _DecodeAgain(Exception):
    """Decoded so, a column would take too much memory.

    Attributes:
        num_rows: to decode at a time.
        as_dictionary: True to decode texts to places in a dictionary; its texts are added up.
    """

    def __init__(self, num_rows: int, as_dictionary: bool) -> None:
        super().__init__(num_rows)
        self.num_rows, self.as_dictionary = num_rows, as_dictionary


def _pieces(
    table: ParquetTable, group: int, column: Column, room: columnar.UnpackLimit
) -> Iterator[tuple[int, Array | Ragged]]:
    """Yield rows of a column, some at a time: how many they are, and their values.

    Raises:
        FormatError: they take more memory than is allowed.
    """
    if column.field.has_rows:
        num_rows = min(int(table.rows[group]), BATCH_ROWS)
        room.check(num_rows * math.prod(column.field.fixed_shape) * column.field.dtype.itemsize)
    try:
        yield from _batches(table, group, column, room, None)
    except _DecodeAgain as error:  # raised before the first rows
        yield from _batches(table, group, column, room, error)


def _check_pages(
    content: bytes, table: ParquetTable, group: int, column: Column, room: columnar.UnpackLimit
) -> None:
    """Check the headers of the pages of a column, before PyArrow decodes them.

    Args:
        content: of the column in a row group.
        table: the file.
        group: of its row groups.
        column: the column.
        room: the memory that its values may take.

    Raises:
        FormatError: they take more memory than is allowed.
        _DecodeAgain: a text that is stored once may be that of each row.
    """
    pages = parse_pages(content)
    room.check(pages.num_bytes)
    # PyArrow's values of lists and ours are there at the same time.
    value_bytes = column.field.dtype.itemsize
    if not column.field.has_rows:
        value_bytes = 2 * value_bytes + LEVEL_BYTES
    room.check(pages.num_values * value_bytes)
    is_long = pages.shared_bytes * pages.num_values > room.limit
    if not is_long or not table.texts_of(column.path):
        return
    # PyArrow has dictionaries of pages of these encodings alone. To gather them takes twice the
    # time where most texts differ, so that large files are decoded some rows at a time.
    is_small = room.packed_bytes < SMALL_BYTES
    if is_small and pages.encodings <= {PLAIN_ENCODING, *DICTIONARY_ENCODINGS}:
        raise _DecodeAgain(BATCH_ROWS, as_dictionary=True)
    per_row = pages.shared_bytes * -(-pages.num_values // max(int(table.rows[group]), 1))
    parts = PARTS if is_small else PARTS_OF_LARGE
    raise _DecodeAgain(max(1, min(BATCH_ROWS, room.limit // parts // per_row)), as_dictionary=False)


def _batches(
    table: ParquetTable,
    group: int,
    column: Column,
    room: columnar.UnpackLimit,
    again: _DecodeAgain | None,
) -> Iterator[tuple[int, Array | Ragged]]:
    """Yield rows of a column as `_pieces` does; ``again`` says how, if a first try ended."""
    is_small, how = room.packed_bytes < SMALL_BYTES, again or _DecodeAgain(BATCH_ROWS, False)
    is_looked_at = (
        is_small or not column.field.has_rows
    )  # a fixed shape says how many bytes rows have

    def look(content: bytes) -> None:
        _check_pages(content, table, group, column, room)

    # A file may hold far more than its bytes, by values that are stored once for many.
    options: dict[str, Any] = {"rows": how.num_rows, "as_dictionary": how.as_dictionary}
    if is_looked_at and again is None:
        options["look"] = look
    else:
        options["look"] = None
    if not table.is_int96(column.path):
        for batch in table.batches(column.path, [group], **options):
            yield batch.num_rows, columnar.values_of(column, batch, room)
        return
    # Missing ones become NaT in both units, and then the default.
    default = column.default
    if default is not None and column.field.shape == ():
        default = np.array("NaT", "M8[s]")
    columns = [
        replace(
            column,
            field=column.field.with_(dtype=np.dtype(f"M8[{unit}]")),
            dtype=None,
            default=default,
        )
        for unit in UNITS
    ]
    batches = [table.batches(column.path, [group], unit=unit, **options) for unit in UNITS]
    for of_units in zip(*batches, strict=True):
        seconds, nanoseconds = (
            columnar.values_of(part, batch, room)
            for part, batch in zip(columns, of_units, strict=True)
        )
        yield of_units[0].num_rows, join_times(column, seconds, nanoseconds)

"""Parquet files: rows by number, columns alone, through PyArrow.

Layout  row groups, in which each column lies in a piece of its own, encoded and mostly compressed. The footer of a file
        says where, and how many rows each row group has; each is compared with what is read.
Access  a column of a row group is decoded as a whole, for however few of its rows (`blocks.py`). PyArrow decodes it
        without the interpreter's lock, so that threads decode side by side; decoded ones are cached.
Fields  `formats/columnar.py` says what columns become.
Memory  the footers, and ``cache_bytes`` of decoded columns. A column of a row group unpacks to at most the limit of
        `storage/inflate.py`; it is decoded BATCH_ROWS rows at a time, so no number in the file is believed before.
Needs   PyArrow.
Source  https://parquet.apache.org/docs/file-format
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuload.errors import DamagedBlockError, GpuloadError
from gpuload.formats import columnar
from gpuload.formats.columnar import Column
from gpuload.formats.parquet.listing import from_manifest, to_manifest
from gpuload.formats.parquet.table import CALL, Table
from gpuload.ragged import Ragged
from gpuload.sources.blocks import CACHE_BYTES, BlockCache, BlockLeaf
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Entries, Opening
from gpuload.sources.leaf import Array, starts_of
from gpuload.storage import manifest, open_storage
from gpuload.storage.files import Paths, by_chunks, expand, look_at
from gpuload.storage.inflate import limit_bytes, too_large


def parquet(
    paths: Paths,
    fields: Sequence[str] | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    defaults: Mapping[str, Any] | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> ColumnSource:
    """Return the rows of Parquet files.

        gl.parquet("train-*.parquet")
        gl.parquet("train-*.parquet", ["image", "label"])                              these columns alone
        gl.parquet("vectors.parquet", shapes={"vector": (768,)}, defaults={"age": 0})

    A row group is decoded as a whole. So a shuffle of all rows decodes a row group for each of them, unless they fit
    into the cache: ``shuffle=gl.Blocks(1000, 4)``, with the number of rows of a row group, decodes each once.

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a wildcard is sorted. Or a
            manifest of such files (``Source.index``).
        fields: the columns, in this order; by default all. A member of a struct is ``"outer.inner"``.
        shapes: the shape of columns that are lists of varying length in the file, and have one length in fact.
        defaults: for each column what stands for its missing values. Without it they are an error.
        cache_bytes: of decoded columns of row groups that are kept.

    Raises:
        SpecError: an argument is wrong; a column cannot be a field, or has missing values; files differ.
        UnknownFieldError: there is no such column.
        FormatError: a file is no Parquet file, or its footer is damaged.
        FileError: a file is missing, a directory, or cannot be read.
        MissingPackageError: PyArrow is not installed.
    """
    arguments = columnar.check_arguments(CALL, fields, shapes, defaults, cache_bytes)
    columnar.import_arrow(CALL)
    listing = manifest.load(paths, "parquet")
    if listing is None:
        names: Sequence[str] = expand(paths)
        files, _ = look_at(names, 0, lambda path, size, head: None)
        tables = by_chunks(lambda chunk: [Table.open(files, number) for number in chunk], range(len(files)))
        columns = columnar.columns_of_files(CALL, tables, arguments)
    else:
        names, files = listing.files.paths, listing.files
        tables, columns = from_manifest(listing, arguments)
    groups = [(table, group) for table in tables for group in range(table.rows.size)]
    starts = starts_of([num_rows for table in tables for num_rows in table.rows.tolist()])
    cache = BlockCache(arguments["cache_bytes"], sum(table.num_bytes for table in tables))
    leaves = [
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
    opening = Opening(parquet, {"paths": tuple(names) if listing is None else listing.path, **arguments})
    return ParquetSource(opening, leaves, tables, columns[0])


class ParquetSource(ColumnSource):
    """Rows of Parquet files; made by ``gl.parquet``."""

    def __init__(
        self, opening: Opening, leaves: Sequence[BlockLeaf], tables: Sequence[Table], columns: Sequence[Column]
    ) -> None:
        files, counts = tables[0].files, [int(table.rows.sum()) for table in tables]
        about = sorted(opening.arguments["defaults"].items()) or None
        classes = columnar.classes_of(tables, columns)
        super().__init__(files, opening, open_storage(files), leaves, counts, classes, about=about)
        self._tables, self._columns = tables, columns

    def _entries(self) -> Entries:
        return Entries(*to_manifest(self._tables, self._columns))


def _decode(groups: Sequence[tuple[Table, int]], columns: Sequence[Column], block: int) -> Array | Ragged:
    """Return the values of a column in a row group."""
    table, group = groups[block]
    column, expected = columns[table.number], int(table.rows[group])
    place, num_rows, num_bytes, pieces = f"{table.path}, row group {group}", 0, 0, list[Any]()
    packed_bytes = int(table.files.sizes[table.number])
    limit = limit_bytes(packed_bytes)
    try:
        with columnar.as_damage(place, table.files, table.number):
            for batch in table.batches(column.path, [group]):
                pieces.append(columnar.values_of(column, batch))
                num_rows, num_bytes = num_rows + batch.num_rows, num_bytes + pieces[-1].nbytes
                if num_rows > expected:
                    break
                if num_bytes > limit:
                    raise too_large(place, packed_bytes, num_bytes, unpack="with PyArrow")
    except GpuloadError as error:
        raise (error if error.what.startswith(table.path) else error.within(place)) from None
    if num_rows != expected:
        raise DamagedBlockError(
            f"{place}, column {column.dotted} has {'more' if num_rows > expected else num_rows} rows",
            cause=f"the footer says that it has {expected}",
            remedy="copy the file again",
        )
    return columnar.join(column, pieces)

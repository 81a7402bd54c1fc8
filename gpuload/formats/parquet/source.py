"""Parquet files: rows by number, columns alone, through PyArrow.

Layout  row groups, in which each column lies in a piece of its own, encoded and mostly compressed. The footer of a file
        says where, and how many rows each row group has; each is compared with what is read.
Access  a column of a row group is decoded as a whole, for however few of its rows (`blocks.py`). PyArrow decodes it
        without the interpreter's lock, so that threads decode side by side; decoded ones are cached.
Fields  `formats/columnar.py` says what columns become.
Memory  the footers, and ``cache_bytes`` of decoded columns. A column of a row group unpacks to at most the limit of
        `storage/inflate.py`; it is decoded BATCH_ROWS rows at a time, so no number in the file is believed before.
Damage  is found by PyArrow while it decodes. It ends the process for some damaged footers where it is asked for places
        and statistics of columns (`RowGroupMetaData.column`, 26.0), so that nothing here asks for these.
Needs   PyArrow.
Source  https://parquet.apache.org/docs/file-format
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gpuload.errors import DamagedBlockError, FormatError, GpuloadError
from gpuload.formats import columnar
from gpuload.formats.columnar import Column
from gpuload.ragged import Ragged
from gpuload.sources.blocks import CACHE_BYTES, BlockCache, BlockLeaf
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Opening
from gpuload.sources.leaf import Array, starts_of
from gpuload.storage import open_storage
from gpuload.storage.files import Files, Paths, by_chunks, expand, look_at
from gpuload.storage.inflate import limit_bytes, too_large

BATCH_ROWS = 1 << 16  # decoded at a time
PEEK_BYTES = 1 << 16  # read at a time for the first value of a column
CALL = "gl.parquet"


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
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a wildcard is sorted.
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
    names = expand(paths)
    files, _ = look_at(names, 0, lambda path, size, head: None)
    footers = by_chunks(lambda chunk: [_read_footer(files, number) for number in chunk], range(len(files)))
    tables = [_Table(files, number, footer) for number, footer in enumerate(footers)]
    columns = columnar.columns_of_files(tables, arguments)
    groups = [(table, group) for table in tables for group in range(table.footer.num_row_groups)]
    starts = starts_of([table.num_rows(group) for table, group in groups])
    counts = [sum(map(table.num_rows, range(table.footer.num_row_groups))) for table in tables]
    cache = BlockCache(arguments["cache_bytes"], sum(table.footer.row_group(i).total_byte_size for table, i in groups))
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
    opening = Opening(parquet, {"paths": tuple(names), **arguments})
    about = sorted(arguments["defaults"].items()) or None
    return ColumnSource(files, opening, open_storage(files), leaves, counts, tables[0].description.classes, about=about)


@dataclass(frozen=True)
class _Table:
    """A file and its footer.

    Attributes:
        files, number: the files of the source, and which of them it is.
        footer: PyArrow's.
    """

    files: Files
    number: int
    footer: Any
    title: ClassVar[str] = "Parquet"

    @property
    def path(self) -> str:
        return self.files.paths[self.number]

    @property
    def schema(self) -> Any:
        return self.footer.schema.to_arrow_schema()

    @property
    def description(self) -> columnar.Description:
        return columnar.describe_features(self.footer.metadata)

    def num_rows(self, group: int) -> int:
        """Return the number of rows that a row group has, as the footer says."""
        num_rows = int(self.footer.row_group(group).num_rows)
        if num_rows < 0:
            raise FormatError(
                f"{self.path}, row group {group}, has {num_rows} rows",
                cause="its footer says so: it is damaged",
                remedy="copy the file again",
            )
        return num_rows

    def first(self, path: columnar.Path) -> list[Any]:
        """Return the value of a column in the first row that the file has."""
        groups = [group for group in range(self.footer.num_row_groups) if self.num_rows(group) > 0]
        for batch in self.batches(path, groups[:1], rows=1):
            return columnar.python_values(path, batch)
        return []

    def batches(self, path: columnar.Path, groups: list[int], rows: int = BATCH_ROWS) -> Iterator[Any]:
        """Yield the rows of a column, some at a time.

        Raises:
            DamagedBlockError: they cannot be decoded.
            FileError: the file changed, or cannot be read.
        """
        place = f"{self.path}, row group {groups[0] if groups else 0}"
        with self.files.open_binary(self.number) as file, columnar.as_damage(place, self.files, self.number):
            reader = columnar.import_arrow(CALL).parquet.ParquetFile(
                file,
                metadata=self.footer,
                buffer_size=PEEK_BYTES if rows == 1 else 0,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            options = {"batch_size": rows, "row_groups": groups, "columns": [".".join(path)], "use_threads": False}
            yield from reader.iter_batches(**options)


def _read_footer(files: Files, number: int) -> Any:
    """Return the footer of a file.

    Raises:
        FormatError: it is no Parquet file, or its footer is damaged.
    """
    with columnar.as_refusal(_Table.title, files, number), files.open_binary(number) as file:
        return columnar.import_arrow(CALL).parquet.read_metadata(file)


def _decode(groups: Sequence[tuple[_Table, int]], columns: Sequence[Column], block: int) -> Array | Ragged:
    """Return the values of a column in a row group."""
    table, group = groups[block]
    column, expected = columns[table.number], table.num_rows(group)
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

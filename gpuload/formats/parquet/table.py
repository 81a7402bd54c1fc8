"""Table: a Parquet file, as its footer says: the schema, and how many rows each row group has.

Footer  PyArrow's. One that a manifest stands in for is read when rows of the file are first read,
        and compared with it.
Damage  is found by PyArrow while it decodes. It ends the process for some damaged footers where it
        is asked for places and statistics of columns (`RowGroupMetaData.column`, 26.0), so that
        nothing here asks for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuload.errors import FormatError
from gpuload.formats import columnar
from gpuload.formats.parquet.int96 import with_microseconds
from gpuload.formats.parquet.pages import WatchedFile, parse_pages
from gpuload.sources.leaf import Indices
from gpuload.storage.files import Files

BATCH_ROWS = 1 << 16  # decoded at a time
PEEK_BYTES = 1 << 16  # read at a time for the first value of a column
CALL = "gl.parquet"
FEATURES = b"huggingface"  # the key of the features of the library `datasets`


@dataclass
class ParquetTable:
    """A file.

    Attributes:
        files, number: the files of the source, and which of them it is.
        schema: PyArrow's; of its metadata those of `datasets` alone.
        rows: int64 ``[num_row_groups]``, the rows of each row group.
        num_bytes: of all row groups, unpacked.
        footer: PyArrow's, and the paths of the columns of INT96; None: it was not read yet.
    """

    files: Files
    number: int
    schema: Any
    rows: Indices
    num_bytes: int
    footer: tuple[Any, frozenset[columnar.Path]] | None = None
    title: ClassVar[str] = "Parquet"

    @classmethod
    def open(cls, files: Files, number: int) -> ParquetTable:
        """Return a file; its footer is read.

        Raises:
            FormatError: it is no Parquet file, or its footer is damaged.
            FileError: it changed, or cannot be read.
        """
        footer, schema, int96 = _read_footer(files, number)
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        rows = _rows_of(files.paths[number], footer)
        return cls(
            files,
            number,
            schema,
            rows,
            sum(group.total_byte_size for group in groups),
            (footer, int96),
        )

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.files.paths[self.number]

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return int(self.rows.sum())

    @property
    def description(self) -> columnar.DatasetFeatures:
        """The features of the columns in the metadata of the library `datasets`."""
        return columnar.describe_features(self.schema.metadata)

    def first(self, path: columnar.Path) -> list[Any]:
        """Return the value of a column in the first row that the file has."""
        room = columnar.UnpackLimit(self.path, int(self.files.sizes[self.number]))
        is_first = True

        def look(content: bytes) -> None:
            nonlocal is_first
            if is_first:  # later bytes begin anywhere
                is_first = False
                room.check(parse_pages(content).num_bytes)

        for batch in self.batches(path, np.flatnonzero(self.rows)[:1].tolist(), 1, look=look):
            return columnar.python_values(path, batch)
        return []

    def is_int96(self, path: columnar.Path) -> bool:
        """Return True if a column is of timestamps of 12 bytes."""
        return path in self._footer()[1]

    def texts_of(self, path: columnar.Path) -> list[str]:
        """Return the paths of Parquet's columns of texts or bytes that a column is, or has below
        it."""
        schema, dotted = self._footer()[0].schema, ".".join(path)
        leaves = [schema.column(number) for number in range(len(schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        return [name for name in texts if name == dotted or name.startswith(f"{dotted}.")]

    def batches(
        self,
        path: columnar.Path,
        groups: list[int],
        rows: int = BATCH_ROWS,
        *,
        unit: str | None = None,
        look: Callable[[bytes], None] | None = None,
        as_dictionary: bool = False,
    ) -> Iterator[Any]:
        """Yield the rows of a column, some at a time; timestamps of 12 bytes in a unit.

        Args:
            path: of the column.
            groups: the row groups.
            rows: how many to yield at a time.
            unit: of timestamps of 12 bytes.
            look: takes the bytes of the column in a row group before they are decoded.
            as_dictionary: True for texts as places in a dictionary.

        Raises:
            DamagedBlockError: they cannot be decoded.
            FormatError: the footer is another one than a manifest says.
            FileError: the file changed, or cannot be read.
        """
        place = f"{self.path}, row group {[*groups, 0][0]}"
        footer, _ = self._footer()
        with (
            self.files.open_binary(self.number) as file,
            columnar.as_damage(place, self.files, self.number),
        ):
            content: Any = file
            if look is not None:
                content = WatchedFile(file, look)
            reader = columnar.import_arrow(CALL).parquet.ParquetFile(
                content,
                metadata=footer,
                # Without a buffer PyArrow reads the whole column of a row group first, which is too
                # much for one value.
                buffer_size=PEEK_BYTES * (rows == 1),
                # No threads of PyArrow's: blocks are decoded side by side by ours.
                pre_buffer=False,
                page_checksum_verification=True,
                coerce_int96_timestamp_unit=unit,
                read_dictionary=self.texts_of(path) if as_dictionary else None,
            )
            options = {
                "batch_size": rows,
                "row_groups": groups,
                "columns": [".".join(path)],
                "use_threads": False,
            }
            yield from reader.iter_batches(**options)

    def _footer(self) -> tuple[Any, frozenset[columnar.Path]]:
        """Return the footer, and the paths of columns of INT96.

        Threads that meet here for the first time each read it, and the last one stays.
        """
        if self.footer is None:
            footer, schema, int96 = _read_footer(self.files, self.number)
            if not schema.equals(self.schema) or not np.array_equal(
                _rows_of(self.path, footer), self.rows
            ):
                raise FormatError(
                    f"{self.path} is not as its manifest says",
                    cause="its footer has another schema, or row groups of other lengths",
                    remedy="make the manifest anew: gpuload index, or source.index(path)",
                )
            self.footer = (footer, int96)
        return self.footer


def _read_footer(files: Files, number: int) -> tuple[Any, Any, frozenset[columnar.Path]]:
    """Return the footer of a file, its schema, and the paths of its columns of INT96.

    Raises:
        FormatError: it is no Parquet file, or its footer is damaged.
    """
    with columnar.as_refusal(ParquetTable.title, files, number):
        with files.open_binary(number) as file:
            footer = columnar.import_arrow(CALL).parquet.read_metadata(file)
        features = (footer.metadata or {}).get(FEATURES)
        schema, int96 = with_microseconds(footer.schema.to_arrow_schema(), footer.schema)
        return footer, schema.with_metadata(features and {FEATURES: features}), int96


def _rows_of(path: str, footer: Any) -> Indices:
    """Return the rows of each row group, as the footer says; raises ``FormatError`` for less than
    none."""
    rows = np.array(
        [footer.row_group(group).num_rows for group in range(footer.num_row_groups)], np.int64
    )
    if (rows < 0).any():
        group = int((rows < 0).argmax())
        raise FormatError(
            f"{path}, row group {group}, has {rows[group]} rows",
            cause="its footer says so: it is damaged",
            remedy="copy the file again",
        )
    return rows

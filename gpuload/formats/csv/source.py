"""CSV files: each line is a record, by number; typed columns, read at random.

Once     each file is converted once, block by block: to rows of one size in a table in the cache
         folder (`storage/derivedfiles.py`), or in memory where files are small. From then on
         records are read like those of ``gl.fixed``. A file that changed is converted anew when it
         is opened; the table of the old one may be removed.
Stores   Files in object stores that a manifest lists are not converted: it says where blocks of
         lines lie, and a block is asked for, and parsed, when one of its records is wanted
         (`blocks.py`).
Types    from the user, or found in the whole data (`kinds.py`), never in a sample of it.
Errors   name the user's file and line, also where a table is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import GpuloadError, RecordError, SpecError
from gpuload.formats.csv import parse
from gpuload.formats.csv.blocks import leaves_of
from gpuload.formats.csv.columns import (
    NA_VALUES,
    Columns,
    Defaults,
    FieldColumns,
    Header,
    dialect_of,
    list_names,
    select_columns,
)
from gpuload.formats.csv.fields import (
    FieldRun,
    PayloadLeaf,
    Reference,
    ReferredLeaf,
    SpreadLeaf,
    TableLeaf,
    groups_of,
    spread,
)
from gpuload.formats.csv.headers import names_of
from gpuload.formats.csv.keep import CsvRows, read_rows
from gpuload.formats.csv.kinds import Form
from gpuload.formats.csv.lines import blocks, scan
from gpuload.formats.csv.listing import entries_of, from_manifest
from gpuload.formats.csv.rows import CsvFileRecords
from gpuload.formats.csv.table import RowTable
from gpuload.formats.csv.values import Job
from gpuload.sources.arrays import ArrayLeaf
from gpuload.sources.filesource import Entries, FileSource, Opening
from gpuload.sources.gaps import GapLeaf, Origin
from gpuload.sources.leaf import Group, Leaf, starts_of
from gpuload.sources.sourcefiles import SourceFiles
from gpuload.spec import Spec
from gpuload.storage import keptfile, manifest, open_storage
from gpuload.storage.extents import Storage
from gpuload.storage.files import any_is_remote, look_at
from gpuload.storage.folders import CSV, expand_tables
from gpuload.storage.wildcards import Paths

BAD_LINES = ("raise", "keep")
log = logging.getLogger("gpuload")


def csv(
    paths: Paths, columns: Columns | None = None, defaults: Defaults | None = None, *, header: Header = True,
    delimiter: str = ",", quote: str | None = '"', encoding: str = "utf-8", skip_lines: int = 0,
    na_values: Iterable[str] = NA_VALUES, bad_lines: str = "raise", decimal: str = ".", thousands: str | None = None,
    escape: str | None = None, compression: str = "auto",
) -> CsvSource:  # fmt: skip
    """Return the records of CSV files of the same columns; needs PyArrow.

        gl.csv("iris.csv")                                                all columns, types found
        gl.csv("people-*.csv", {"id": "i8", "age": "f4", "name": "U20"})  these, of these types
        gl.csv("digits.csv", {"label": "u1", "image": ("u1", "pixel*")})  many columns as one field
        gl.csv("rows.csv", defaults=[0, 0.0, "", float], header=False)    as tf.io.decode_csv's
                                                                          record_defaults

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a
            wildcard is sorted. Files of gzip are found by their content. Or a manifest of such
            files (``Source.index``). Files in an object store are read as a whole when they are
            opened, once on each machine, unless a manifest lists them.
        columns: a dict from field to dtype, or a list of names, with types found; None: all
            columns. dtypes are booleans, integers, ``f4``, ``f8``, ``M8[D]`` to ``M8[ns]`` (ISO
            8601), ``U20`` and ``S20`` (UTF-8) of at most so much, ``str`` for text as long as the
            longest, which is of any length (objects) where that has more than 256 characters,
            ``object`` for text of any length, ``bytes`` for UTF-8 of varying length (uint8), None
            for the type of its values. ``("f4", ["a", "b"])`` or ``("f4", "pixel*")`` is a vector
            of these columns.
        defaults: values that stand for missing ones: a dict from column or field to value, or a
            list with one for each column that is read; it gives the dtype where ``columns`` does
            not. A type in place of a value: the column is of that type, and each line needs a
            value. Without a default, a missing float is not-a-number, a missing time not-a-time, a
            missing text empty, and a missing integer or boolean an error. An integer in a column of
            floats that its dtype does not hold exactly is an error, too.
        header: True if the first line of each file names the columns; False: they are ``column_0``,
            ``column_1`` ...; a list of names: the files have no such line.
        delimiter: the character between two values.
        quote: the character around values that hold delimiters, line ends or, doubled, quotes;
            None: there is none.
        encoding: of the files, as Python names it; a mark at the beginning (BOM) is left out.
        skip_lines: how many lines to leave out at the beginning of each file.
        na_values: texts that stand for a missing value. In a text column without a default they
            stay as they are.
        bad_lines: ``"raise"``: a line that is wrong is an error, at once. ``"keep"``: it is a
            record, and an error when that is read; ``on_error=`` of the loader decides about it.
            The log says how many there are, and of more than 10,000 in a file the next one is an
            error. Wrong are lines of too few or too many columns, of text that is no UTF-8, and of
            a value that is missing or none of the type that ``columns`` or ``defaults`` say: types
            that are found are those of all lines. A quote that nothing closes, a byte 0, and bytes
            that are no text of another encoding than UTF-8 are errors all the same: the lines
            behind them cannot be told apart.
        decimal: the character in front of the fraction of a number: ``","`` for 2,5.
        thousands: the character between groups of digits of a number, ``","`` for 1,234,567 or
            ``"."`` for 1.234.567; None: there is none.
        escape: the character that has the next one stand for itself, also a quote or a line end: a
            backslash in files of Spark and MySQL; None: there is none, and a quote inside of
            quotes is doubled.
        compression: ``"zip"``: each file is a ZIP archive that holds one file, the table.
            ``"auto"``: files of gzip are known by their bytes.

    Raises:
        SpecError: arguments that do not fit; a type that cannot be found; a header that looks like
            data.
        UnknownFieldError: there is no such column.
        RecordError: a line has too few or too many columns, a value that is none of its type, or is
            no text; it names file and line.
        FormatError: a file is empty, is no CSV, or its columns are others than those of the first.
        FileError: a file is missing, a directory, or cannot be read.
        MissingPackageError: PyArrow is not installed.
    """
    if not isinstance(bad_lines, str) or bad_lines not in BAD_LINES:
        raise SpecError(
            f"bad_lines = {bad_lines!r}",
            cause="it is no such way",
            remedy=f"use one of {BAD_LINES}",
        )
    dialect = dialect_of(
        header, delimiter, quote, encoding, skip_lines, na_values,
        decimal=decimal, thousands=thousands, escape=escape, compression=compression,
    )  # fmt: skip
    parse.version()  # a missing PyArrow is an error before any file is opened
    index, listing, keeps_bad = manifest.load(paths, "csv"), None, bad_lines == "keep"
    if index is None:
        files = look_at(expand_tables(paths, CSV)[0], 0, lambda path, size, head: None)[0]
    else:
        files = index.files
    if index is not None and any_is_remote(files.paths):
        listing = from_manifest(index, dialect)
    if listing is None:
        names = names_of(files, dialect, has_columns=columns is not None, keeps_bad=keeps_bad)
    else:
        names = listing.names
    if len(names) == 1 and dialect.header:
        _tell_of_delimiter(files.paths[0], names[0])
    read, fields = select_columns(names, columns, defaults)
    if columns is not None and not isinstance(columns, (Mapping, list, tuple)):
        # Keys of a dict, or an array: a manifest holds neither.
        columns = [str(name) for name in columns]
    if not isinstance(header, (bool, list, tuple)):
        header = dialect.names or bool(header)
    arguments = {
        "paths": files.paths if index is None else index.path,
        "columns": columns,
        "defaults": defaults,
        "header": header,
        "delimiter": delimiter,
        "quote": quote,
        "encoding": encoding,
        "skip_lines": skip_lines,
        "na_values": dialect.na_values,
        "bad_lines": bad_lines,
    }
    marks = {"decimal": (decimal, "."), "thousands": (thousands, None), "escape": (escape, None)}
    marks["compression"] = (compression, "auto")
    arguments |= {name: value for name, (value, usual) in marks.items() if value != usual}
    job = Job(files, dialect, names, read, keeps_bad=keeps_bad)
    selection = None if listing is None else listing.select(read)
    if selection is None:
        content = _read_rows(job)
    else:
        content = CsvRows(*selection)
    return CsvSource(job, fields, Opening(csv, arguments), content)


def _read_rows(job: Job) -> CsvRows:
    """Return the rows of the files; errors of a line name the argument that lets it pass."""
    try:
        return read_rows(job)
    except RecordError as error:
        if not job.keeps_bad:
            error.remedy += '; or have such lines be damaged records: gl.csv(..., bad_lines="keep")'
        raise


class CsvSource(FileSource):
    """Records of CSV files; made by ``gl.csv``."""

    def __init__(
        self, job: Job, fields: Sequence[FieldColumns], opening: Opening, content: CsvRows
    ) -> None:
        _tell_of_texts(job, content.form)
        longest = [
            max(lengths) for lengths in zip(*(part.longest for part in content.parts), strict=True)
        ]
        groups = groups_of(job.columns, fields, content.form, longest)
        field_groups = list[Group]()
        for group in groups:
            if isinstance(group, Reference):
                field_groups.append(Group(Spec((group.field,)), None))
            else:
                field_groups.append(Group.of(group.layout))
        self._form = content.form
        storage: Storage
        self._leaves: tuple[Leaf, ...]
        if content.rows is not None:
            storage = open_storage(job.files)
            self._leaves = tuple(
                _in_memory(content.rows, content.payload, group) for group in groups
            )
        elif content.tables:
            self._leaves, storage = _of_tables(content.tables, groups)
        else:
            storage = open_storage(job.files)
            self._leaves = leaves_of(job, content.form, content.parts, groups, storage)
        super().__init__(job.files, opening, tuple(field_groups), storage)
        self._access = self._leaves[0].how
        self._lines = _Lines(job, content.parts)
        if self._lines.bad:
            numbers = np.array(list(self._lines.bad), np.int64)
            self._leaves = tuple(
                GapLeaf(leaf, numbers, self._lines.error, self._lines.origin)
                for leaf in self._leaves
            )
            log.warning(
                "gl.csv: %d of %d lines are wrong and cannot be read; the first is %s",
                *(numbers.size, len(self), self._lines.error(int(numbers[0])).what),
            )

    def __len__(self) -> int:
        return int(self._lines.starts[-1])

    def _where(self, number: int) -> str:
        return self._lines.locate(number)

    @property
    def files(self) -> SourceFiles:
        """The files, and how many records each has."""
        return SourceFiles(self._files.paths, [part.count for part in self._lines.parts])

    def _entries(self) -> Entries:
        return entries_of(self._lines.job, self._form, self._lines.parts)

    def _digest(self) -> str:
        job = self._lines.job
        columns = [
            (column.number, column.name, str(column.dtype), repr(column.default))
            for column in job.columns
        ]
        return self._files.digest(job.dialect, columns, [str(field) for field in self.spec])


def _tell_of_delimiter(path: str, name: str) -> None:
    """Warn of a table of one column that has other delimiters in its name."""
    delimiter = next((mark for mark in ";\t|" if mark in name), None)
    if delimiter is not None:
        log.warning(
            "gl.csv: %s has one column, %r; if %r stands between values, pass delimiter=%r",
            *(path, name[:80], delimiter, delimiter),
        )


def _tell_of_texts(job: Job, form: Form) -> None:
    """Warn of columns that look like booleans or numbers, and are text."""
    codes = [
        column.name
        for column, kind in zip(job.columns, form, strict=True)
        if kind.name == parse.CODES
    ]
    if codes:
        log.warning(
            "gl.csv: numbers in %s of %s begin with a zero, as 007 does, or are as long as +4915123456789, so they are "
            "text; columns={%r: 'i8', ...} makes whole numbers of them, 'f8' any numbers",
            *(list_names(codes), job.files.paths[0], codes[0]),
        )
    for column, kind in zip(job.columns, form, strict=True):
        if column.dtype is None and kind.name == parse.WORDS and kind.has_missing:
            log.warning(
                "gl.csv: column %r of %s holds true and false, and some of its values are missing, so it is text; "
                "columns={%r: '?', ...} with defaults={%r: False} makes booleans of it",
                *(column.name, job.files.paths[0], column.name, column.name),
            )


class _Lines:
    """Which line of which file a record is.

    Attributes:
        job: the files, and how they were read.
        parts: the result for each file.
        starts: int64 ``[num_files + 1]``, the first record of each.
        bad: the wrong lines, by the number of their record.
    """

    def __init__(self, job: Job, parts: Sequence[CsvFileRecords]) -> None:
        self.job, self.parts = job, parts
        self.starts = starts_of([part.count for part in parts])
        self.bad = {
            start + fault.number: fault
            for start, part in zip(self.starts.tolist(), parts, strict=False)
            for fault in part.bad
        }

    def locate(self, number: int) -> str:
        """Return file and line of a record."""
        file, record = self._place(number)
        name, bad = self.job.files.names[file], self.bad.get(number)
        if bad:
            line = bad.line
        else:
            line = _line(self.job, file, self.parts[file], record)
        if line:
            return f"{name}, line {line}"
        return f"{name}, record {record}"

    def origin(self, number: int) -> Origin:
        """Return the file and the byte of a wrong line; None where they are not
        known."""
        bad = self.bad.get(number)
        if bad and bad.offset >= 0:
            return (self.job.files.paths[self._place(number)[0]], bad.offset)
        return None

    def _place(self, number: int) -> tuple[int, int]:
        """Return the file of a record, and its number there."""
        file = int(np.searchsorted(self.starts, number, side="right")) - 1
        return file, number - int(self.starts[file])

    def error(self, number: int) -> RecordError:
        """Return the error for the record of a wrong line."""
        bad = self.bad[number]
        return RecordError(
            f"{self.locate(number)}: {bad.reason}", cause=bad.cause, remedy=bad.remedy
        )


def _in_memory(rows: NDArray[Any], payload: NDArray[np.uint8], run: FieldRun | Reference) -> Leaf:
    """Return a leaf of rows in memory, or of the bytes that they refer to."""
    if isinstance(run, Reference):
        return PayloadLeaf(run, rows.view(np.uint8).reshape(rows.size, rows.itemsize), payload)
    if run.is_direct:
        return ArrayLeaf("", rows.view(run.stored_dtype))
    records = np.zeros(rows.size, run.field_dtype)
    if rows.size:
        spread(
            rows.view(np.uint8).reshape(rows.size, -1),
            run,
            records.view(np.uint8).reshape(rows.size, -1),
        )
    return ArrayLeaf("", records)


def _of_tables(
    tables: Sequence[RowTable], groups: Sequence[FieldRun | Reference]
) -> tuple[tuple[Leaf, ...], Storage]:
    """Return a leaf for each group, which reads the rows of tables and the bytes that these refer
    to; the storage."""
    files, _ = keptfile.look_at([table.file for table in tables], 0, lambda path, size, head: None)
    storage = open_storage(files)
    counts = np.array([table.part.count for table in tables], np.int64)
    payloads = np.array([table.payload for table in tables], np.int64)
    leaves: list[Leaf] = []
    for group in groups:
        if isinstance(group, Reference):
            leaves.append(ReferredLeaf(group, storage, counts, payloads, tables[0].row_bytes))
        elif group.is_direct:
            leaves.append(TableLeaf(group.layout, storage, counts))
        else:
            leaves.append(SpreadLeaf(group, storage, counts))
    return tuple(leaves), storage


def _line(job: Job, file: int, part: CsvFileRecords, record: int) -> int:
    """Return the line where a record begins; 0 if the file has changed."""
    block = int(np.searchsorted(part.places[:, 0], record, side="right")) - 1
    first, line, offset, is_regular = part.places[block].tolist()
    # Each record of the block is one line, so that none has to be looked at.
    if is_regular:
        return int(line + record - first)
    try:
        return _scan_line(job, file, line, offset, record - first)
    except GpuloadError:  # changed, or gone: the record is named by its number
        return 0


def _scan_line(job: Job, file: int, line: int, offset: int, number: int) -> int:
    """Return the line of the record that stands ``number`` records behind the record at
    ``line``."""
    start = (offset, line) if offset > 0 else (0, 1)
    for block in blocks(job.files, file, job.dialect, start=start):
        if block.line + block.num_lines <= line:
            continue
        for record in scan(block.data, job.dialect, block.line):
            if record.line >= line:
                if number == 0:
                    return record.line
                number -= 1
    return 0

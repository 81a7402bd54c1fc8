"""Values of a block: its columns as PyArrow reads them in a form, or in a wider one.

Wider  The type of a column that the user does not give holds all values so far. If a block cannot
       be read as that, its types are inferred; if none is wider, the column that PyArrow names
       becomes float or text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.formats.csv import parse
from gpuload.formats.csv.columns import CsvColumn, Dialect
from gpuload.formats.csv.kinds import (
    ANY_LENGTH,
    FLOAT,
    NUMBERS,
    UNSIGNED,
    ColumnKind,
    Form,
    is_found,
    is_measured,
    is_referred,
    is_text,
    needs_value,
)
from gpuload.formats.csv.lines import TextBlock
from gpuload.formats.csv.parse import (
    OVER,
    TEXT,
    ColumnRequest,
    NumberColumn,
    TextColumn,
    Unreadable,
)
from gpuload.storage.files import Files

UTF32 = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"


@dataclass(frozen=True)
class Job:
    """The files to read, and how.

    Attributes:
        files: the user's.
        dialect: the form of their text.
        names: of all columns of a file.
        columns: those that are read, in the order of the fields.
        keeps_bad: True if a wrong line becomes a record that cannot be read, and is no error yet.
    """

    files: Files
    dialect: Dialect
    names: tuple[str, ...]
    columns: tuple[CsvColumn, ...]
    keeps_bad: bool = False


@dataclass(frozen=True)
class BlockValues:
    """The values of a block.

    Attributes:
        form: they are read in; it holds the form that was asked for.
        columns: `NumberColumn`, `TextColumn` or `Characters` of each column.
        longest: of each column the characters of its longest text (bytes with dtype S); 0 for
            others.
        count: the records.
    """

    form: Form
    columns: Sequence[Any]
    longest: list[int]
    count: int


@dataclass(frozen=True)
class Characters:
    """Texts of a column as the numbers of their characters, in 1, 2 or 4 bytes each."""

    payload: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, texts: TextColumn) -> Characters:
        """Return the characters of texts in UTF-8."""
        payload = texts.payload
        if not payload.size or int(payload.max()) < 0x80:
            return cls(payload, texts.offsets)
        begins = np.zeros(payload.size + 1, np.int64)  # characters in front of each byte
        # In UTF-8 a byte 10xxxxxx goes on with a character, any other begins one.
        np.cumsum((payload & 0xC0) != 0x80, out=begins[1:])
        codes = np.frombuffer(payload.tobytes().decode("utf-8").encode(UTF32), np.uint32)
        return cls(codes.astype(np.min_scalar_type(codes.max())), begins[texts.offsets])


def parse_block(job: Job, block: TextBlock, form: Form) -> BlockValues:
    """Return the values of a block, in a wider form where it needs one.

    Raises:
        Unreadable: a line is wrong.
    """
    while True:
        try:
            columns = _read(job, block, form)
        except Unreadable as error:
            form = _widen(job, block, form, error)
            continue
        form, longest = _measure(job, block, form, columns)
        return BlockValues(form, columns, longest, _count(columns))


def count_records(job: Job, block: TextBlock, form: Form) -> int:
    """Return the number of records of a block.

    Columns of inferred types are read as text: their values are never wrong.

    Raises:
        Unreadable: a line is wrong.
    """
    pairs = zip(job.columns, form, strict=True)
    loose = tuple(kind if column.dtype else ColumnKind(TEXT) for column, kind in pairs)
    columns = _read(job, block, loose)
    _measure(job, block, loose, columns)
    return _count(columns)


def _count(columns: Sequence[Any]) -> int:
    first = columns[0]
    return len(first.values) if isinstance(first, NumberColumn) else first.offsets.size - 1


def _read(job: Job, block: TextBlock, form: Form) -> list[Any]:
    """Return the values of a block, column by column."""
    requests = [
        ColumnRequest(
            column.number,
            kind.read,
            default=column.default,
            may_be_codes=column.dtype is None and kind.read in NUMBERS,
        )
        for column, kind in zip(job.columns, form, strict=True)
    ]
    columns = parse.read_columns(
        block.data, job.dialect, len(job.names), requests, has_quotes=block.has_quotes
    )
    for place, (column, kind) in enumerate(zip(job.columns, form, strict=True)):
        if column.dtype is not None and _is_rounded(job, block, column, columns[place]):
            raise Unreadable(f"a number is none that {column.dtype} holds", column.number)
        if isinstance(columns[place], TextColumn) and _has_characters(column, kind):
            columns[place] = Characters.of(columns[place])
    return columns


def _has_characters(column: CsvColumn, kind: ColumnKind) -> bool:
    """Return True if a row holds the characters of a column's text, and not bytes of UTF-8."""
    return (column.dtype is None or column.dtype.kind == "U") and not is_text(column, kind)


def _is_rounded(
    job: Job, block: TextBlock, column: CsvColumn, values: NumberColumn | TextColumn
) -> bool:
    """Return True if a float of a column is infinite or a rounded integer, unlike its text."""
    if not isinstance(values, NumberColumn) or values.values.dtype.kind != "f":
        return False
    return parse.are_unfit(
        block.data, job.dialect, len(job.names), column.number, values, has_quotes=block.has_quotes
    )


def _widen(job: Job, block: TextBlock, form: Form, error: Unreadable) -> Form:
    """Return a wider form for a block that cannot be read in this one.

    Raises:
        Unreadable: no form is wider.
    """
    free = {
        column.number: place for place, column in enumerate(job.columns) if column.dtype is None
    }
    if not free:
        raise error
    kinds = parse.infer_kinds(
        block.data, job.dialect, len(job.names), list(free), has_quotes=block.has_quotes
    )
    wider = list(form)
    for place, (name, has_missing) in zip(free.values(), kinds, strict=True):
        wider[place] = form[place].widen(name, has_missing)
    if tuple(wider) == form and error.column in free:
        # No type of its ladder holds the block: integers below 0 among some that only uint64 holds,
        # hexadecimal integers among floats, times too early for the nanoseconds of others.
        place = free[error.column]
        name = FLOAT if form[place].name == UNSIGNED else TEXT
        wider[place] = replace(form[place], name=name)
    if tuple(wider) == form:
        raise error
    return tuple(wider)


def _measure(
    job: Job, block: TextBlock, form: Form, columns: Sequence[Any]
) -> tuple[Form, list[int]]:
    """Return the form that values need, and the longest text of each column.

    Raises:
        Unreadable: a value is missing that is needed, or a text is longer than its dtype.
    """
    wider, longest = list(form), [0] * len(form)
    for place, (column, kind, values) in enumerate(zip(job.columns, form, columns, strict=True)):
        if isinstance(values, NumberColumn):
            if column.dtype is None:
                wider[place] = _kind_of_numbers(job, block, column, kind, values)
            elif values.missing is not None and needs_value(column):
                raise Unreadable("a value is missing", column.number)
        elif values.offsets.size > 1:
            longest[place] = max_length = int(np.diff(values.offsets).max())
            if is_referred(column, kind):
                continue
            if is_measured(column):
                kind = replace(kind, width=min(max(kind.width, max_length), ANY_LENGTH))
            elif max_length > kind.width:
                raise Unreadable("a text is too long", column.number)
            if is_found(column):
                kind = replace(kind, unit=max(kind.unit, values.payload.itemsize))
            wider[place] = kind
    return tuple(wider), longest


def _kind_of_numbers(
    job: Job, block: TextBlock, column: CsvColumn, kind: ColumnKind, values: NumberColumn
) -> ColumnKind:
    """Return the kind that a column of an inferred type needs for some of its numbers."""
    kind = kind.widen(kind.name, values.missing is not None)
    if kind.read == FLOAT and kind.name != OVER and _is_rounded(job, block, column, values):
        return kind.widen(OVER, False)
    return kind

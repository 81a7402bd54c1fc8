"""Kinds: the types that the columns of all files have together, in any order in which blocks
are looked at.

none   all values are missing: becomes float64, not-a-number
bool   true, True, TRUE, false ...           with missing ones: text
int    int64, above that uint64              with missing ones: float64
float  float64                               missing: not-a-number; also where other lines hold
                                             integers, and for integers that no dtype of integers
                                             holds; a number beyond its range, and an integer that
                                             float64 would round: an error
codes  numbers of which one begins with a zero and another digit, 00501 say, or with a plus and
       eight digits, as phone numbers do: text, as they are
time   YYYY-MM-DD: datetime64[D], with a time of day [s] or, with parts of a second, [ns]; missing:
       not-a-time
text   anything else, also numbers in one line and words in another; as long as the longest, and of
       any length (objects) if one text has more than LONGEST_FIXED characters
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from gpuload.formats.csv.columns import TIME_UNITS, CsvColumn
from gpuload.formats.csv.parse import CODES, NULL, OVER, TEXT, WORDS

INTEGER, UNSIGNED, FLOAT = "<i8", "<u8", "<f8"
# Each holds all values of those before it, or reports that it cannot.
NUMBERS = (INTEGER, UNSIGNED, FLOAT, OVER, CODES)
TIMES = tuple(f"<M8[{unit}]" for unit in TIME_UNITS)
WITH_MISSING = {INTEGER: FLOAT, UNSIGNED: FLOAT, WORDS: TEXT}
LONGEST_FIXED = 256  # characters: each record has room for the longest text of a column, so that they lie in rows
ANY_LENGTH = LONGEST_FIXED + 1  # the width of texts that do not
REFERENCE = np.dtype(
    [("offset", "<i8"), ("length", "<i8")]
)  # in a row, of bytes that lie elsewhere


@dataclass(frozen=True, repr=False)
class ColumnKind:
    """The kind of the values of a column: how they are read and stored.

    Attributes:
        name: a dtype as text, or one of `parse.NULL`, `parse.WORDS`, `parse.OVER`, `parse.CODES`,
            `parse.TEXT`.
        width: of text: the characters (dtype S: bytes) that a row has room for; ANY_LENGTH: a row
            refers to it.
        unit: of text: the bytes of a character in a row, 1, 2 or 4; the least that hold all
            characters of the column.
        has_missing: of a type that is found: True if values are missing, where that makes a
            difference.
    """

    name: str
    width: int = 0
    unit: int = 1
    has_missing: bool = False

    def __repr__(self) -> str:
        """Return the kind as a text, which names of kept tables are made of: it never changes."""
        values = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return f"Kind({', '.join(values)})"

    @property
    def read(self) -> str:
        """The type that PyArrow reads: a dtype as text, `parse.NULL`, `parse.WORDS` or
        `parse.TEXT`."""
        if self.has_missing and self.name in WITH_MISSING:
            return WITH_MISSING[self.name]
        return {OVER: FLOAT, CODES: TEXT}.get(self.name, self.name)

    def widen(self, name: str, has_missing: bool) -> ColumnKind:
        """Return the kind that holds values of this and of another kind, and missing ones if there
        are any."""
        kind_name = common_kind(self.name, name)
        tells = kind_name in (NULL, *WITH_MISSING)
        return replace(
            self, name=kind_name, has_missing=tells and (self.has_missing or has_missing)
        )


Form = tuple[ColumnKind, ...]


def kind_of_dtype(column: CsvColumn) -> ColumnKind | None:
    """Return the kind of a column with a given dtype; None if the dtype is to be inferred.

    Text without a length has at first the width of its default.
    """
    if column.dtype is None:
        return None
    if column.dtype.kind == "O":
        return ColumnKind(TEXT, ANY_LENGTH)
    if column.dtype.kind not in "US":
        return ColumnKind(column.dtype.str)
    width = column.dtype.itemsize // {"U": 4, "S": 1}[column.dtype.kind]
    return ColumnKind(TEXT, width or len(column.default or ""))


def is_ragged(column: CsvColumn) -> bool:
    """Return True for bytes of varying length, as numbers."""
    return column.dtype is not None and column.dtype.kind == "S" and not column.dtype.itemsize


def is_text(column: CsvColumn, kind: ColumnKind) -> bool:
    """Return True for text of any length, which becomes objects."""
    is_asked = column.dtype is not None and column.dtype.kind == "O"
    return is_asked or (is_measured(column) and kind.read == TEXT and kind.width >= ANY_LENGTH)


def is_referred(column: CsvColumn, kind: ColumnKind) -> bool:
    """Return True if a row does not hold the values of a column, but says where their bytes lie."""
    return is_ragged(column) or is_text(column, kind)


def is_measured(column: CsvColumn) -> bool:
    """Return True if text of this column is as wide as the longest value, because no length is
    given."""
    return column.dtype is None or (column.dtype.kind == "U" and not column.dtype.itemsize)


def needs_value(column: CsvColumn) -> bool:
    """Return True if a value that is missing is an error: nothing stands for it."""
    return column.dtype is not None and column.dtype.kind in "iub" and column.default is None


def is_found(column: CsvColumn) -> bool:
    """Return True if something of how this column is kept depends on the data: its dtype, its
    width, its characters."""
    return column.dtype is None or (column.dtype.kind == "U" and not column.is_part)


def common_kind(first: str, second: str) -> str:
    """Return the kind that holds the values of both."""
    if first == second:
        return first
    if NULL in (first, second):
        return first if second == NULL else second
    for ladder in (NUMBERS, TIMES):
        if first in ladder and second in ladder:
            return ladder[max(ladder.index(first), ladder.index(second))]
    return TEXT


def column_dtype(column: CsvColumn, kind: ColumnKind) -> np.dtype[Any]:
    """Return the dtype of a column in a row."""
    if is_referred(column, kind):
        return REFERENCE
    if kind.read == TEXT and is_found(column):
        return np.dtype((f"u{kind.unit}", (max(1, kind.width),)))
    if kind.read == TEXT:
        return np.dtype(column.dtype)
    return np.dtype({NULL: FLOAT, WORDS: "?"}.get(kind.read, kind.read))


def row_dtype(columns: Sequence[CsvColumn], form: Form) -> np.dtype[Any]:
    """Return the dtype of a row: the columns in their order, each aligned."""
    dtypes = [
        (str(place), column_dtype(column, kind))
        for place, (column, kind) in enumerate(zip(columns, form, strict=True))
    ]
    return np.dtype(dtypes, align=True)

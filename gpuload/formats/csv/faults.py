"""Why a line is wrong: said by the exact scan, once PyArrow has refused the block that holds it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuload import signalsafe
from gpuload.errors import GpuloadError, RecordError, SpecError
from gpuload.formats.csv.columns import CsvColumn, Dialect, list_names
from gpuload.formats.csv.kinds import ColumnKind, Form, is_measured, is_referred, needs_value
from gpuload.formats.csv.lines import BACKSLASH, Record, TextBlock, scan
from gpuload.formats.csv.numbers import plain
from gpuload.formats.csv.parse import (
    FALSE,
    NO_NUMBER,
    OVER,
    TEXT,
    TRUE,
    Unreadable,
    is_rounded,
    whole,
)

MAX_CHARACTERS = 60
WHOLE = re.compile(r"[+-]?[0-9]+")


def explain(
    path: str,
    block: TextBlock,
    dialect: Dialect,
    names: Sequence[str],
    columns: Sequence[CsvColumn],
    form: Form,
    refusal: Unreadable,
) -> GpuloadError:
    """Return the error for a wrong line.

    Args:
        path: of the file.
        block: the line alone.
        dialect: of the file.
        names: of all columns of the file.
        columns: that are read.
        form: how they are read.
        refusal: PyArrow's word, for a line that the scan finds nothing wrong with.
    """
    record = next(scan(block.data, dialect, block.line))
    if record.escaped_quote:
        return _of_quote(path, record)
    if record.has_null and dialect.null not in dialect.na_values:
        return _of_null(path, dialect, names, record)
    if len(record.values) != len(names):
        return _of_count(path, record, names, dialect)
    for column, kind in zip(columns, form, strict=True):
        try:
            text = record.values[column.number].decode()
        except UnicodeDecodeError as error:
            return _no_utf8(path, block, record, column, error)
        fault = _of_value(f"{path}, line {record.line}", dialect, column, kind, text)
        if fault is not None:
            return fault
    name = ""
    if refusal.column is not None:
        name = f", column {_short(names[refusal.column])}"
    return RecordError(
        f"{path}, line {record.line}{name} cannot be read",
        cause=str(refusal),
        remedy="repair it, pass another dtype in columns=, or list in na_values= the texts of missing values",
    )


def _of_value(
    line: str, dialect: Dialect, column: CsvColumn, kind: ColumnKind, text: str
) -> GpuloadError | None:
    if kind.read != TEXT and column.dtype is None:
        return None  # another kind would have been found
    location = f"{line}, column {_short(column.name)}"
    if kind.read == TEXT:
        return _too_long(location, text, column, kind)
    if text in dialect.na_values:
        if needs_value(column):
            return _missing(location, text, column)
        return None
    reason = _reason(plain(text, dialect), kind.name)
    if reason is None:
        return None
    return _no_value(location, text, column, reason, dialect)


def _of_null(path: str, dialect: Dialect, names: Sequence[str], record: Record) -> RecordError:
    places = [place for place, value in enumerate(record.values) if value == dialect.null.encode()]
    if places[0] < len(names):
        name = f", column {_short(names[places[0]])}"
    else:
        name = ""
    return RecordError(
        f"{path}, line {record.line}{name} is {dialect.null}",
        cause="MySQL and Hive write so that a value is missing; with escape= alone it would be the text N",
        remedy=f"say that it is missing: gl.csv(..., na_values={['', dialect.null]})",
    )


def _of_quote(path: str, record: Record) -> RecordError:
    return RecordError(
        f"{path}, line {record.line}: a quote inside of a value stands behind a backslash",
        cause="RFC 4180 doubles such a quote; this one ends the value, and other text follows",
        remedy='pass escape="\\\\" for files whose writer puts backslashes in front of quotes, as Spark and MySQL do',
    )


def _of_count(path: str, record: Record, names: Sequence[str], dialect: Dialect) -> RecordError:
    count = len(record.values)
    text = b" | ".join(record.values).decode("utf-8", "replace")
    is_escaped = not dialect.escape and any(value.endswith(BACKSLASH) for value in record.values)
    if is_escaped:
        escape = '; pass escape="\\\\" if the backslash escapes the character behind it'
    else:
        escape = ""
    return RecordError(
        f"{path}, line {record.line} has {count} column{'s' * (count != 1)}, not {len(names)}: {_short(text)}",
        cause=f"the columns are {list_names(names)}",
        remedy="repair the line; a value that holds a delimiter stands in quotes; check delimiter= and skip_lines="
        + escape,
    )


def _no_utf8(
    path: str, block: TextBlock, record: Record, column: CsvColumn, error: UnicodeDecodeError
) -> RecordError:
    value = record.values[column.number]
    inside = max(0, block.data.find(value, record.begin)) + error.start
    if block.offset >= 0:
        place = f", byte {block.offset + inside}"
    else:
        place = ""
    return RecordError(
        f"{path}, line {record.line}{place}, column {column.name!r}: {value[error.start]:#04x} is no UTF-8",
        cause=error.reason,
        remedy='pass the encoding of the file: "latin-1" or "cp1252" are common',
    )


def _too_long(location: str, text: str, column: CsvColumn, kind: ColumnKind) -> GpuloadError | None:
    if is_referred(column, kind) or is_measured(column):
        return None
    code, noun, length = "U", "characters", len(text)
    if column.dtype is not None and column.dtype.kind == "S":
        code, noun, length = "S", "bytes", len(text.encode())
    if length <= kind.width:
        return None
    return RecordError(
        f"{location} has {length} {noun}: {_short(text)}",
        cause=f"the column is {column.dtype}, and nothing is cut",
        remedy=f'pass "{code}{length}", or object for text of any length',
    )


def _missing(location: str, text: str, column: CsvColumn) -> RecordError:
    note = f" ({text!r})" if text else ""
    return RecordError(
        f"{location}: a value is missing{note}",
        cause=f"{column.dtype} has no form for a missing value, and the column has no default",
        remedy=f"pass defaults={{{_short(column.name)}: 0}}, say, or read it as a float: not-a-number stands for it "
        "then",
    )


def _no_value(
    location: str, text: str, column: CsvColumn, reason: str, dialect: Dialect
) -> RecordError:
    number = plain(text, dialect).strip()
    is_number = _why_unfit(number, np.dtype(np.float64)) is not None
    is_shortened = column.dtype is not None and column.dtype.kind == "f" and WHOLE.fullmatch(number)
    remedy = (
        "repair it, pass another dtype in columns=, or list in na_values= the texts of missing "
    )
    remedy += "values"
    if is_number:
        remedy += "; str keeps its digits"
    elif marks := _marks_of(text, dialect):
        remedy = f"pass {marks} if it is a number; else {remedy}"
    if is_shortened and not is_number:
        remedy = f'pass "f8", which holds it; else {remedy}'
    return RecordError(
        f"{location}: {_short(text)} is no {column.dtype}", cause=reason, remedy=remedy
    )


def _marks_of(text: str, dialect: Dialect) -> str:
    """Return the arguments with which a text is a number: ``decimal=","``, say; "" if there are
    none."""
    for decimal, thousands in (
        (".", ","),
        (",", ""),
        (",", "."),
        (",", " "),
        (".", " "),
        (".", "'"),
        (".", "_"),
    ):
        form = replace(dialect, decimal=decimal, thousands=thousands)
        with signalsafe.suppress(ValueError):
            float(plain(text.strip(), form))
            names = [f"decimal={decimal!r}"] * (decimal != dialect.decimal)
            return ", ".join(
                names + [f"thousands={thousands!r}"] * (thousands != dialect.thousands)
            )
    return ""


def unfit(
    path: str, block: TextBlock, dialect: Dialect, columns: Sequence[CsvColumn], form: Form
) -> GpuloadError | None:
    """Return the error for the first number of a block that the floats of its column do not
    hold."""
    floats = [column for column, kind in zip(columns, form, strict=True) if kind.name == OVER]
    for record in scan(block.data, dialect, block.line):
        for column in floats:
            if column.number >= len(record.values):  # a line that is wrong and kept
                continue
            text = plain(record.values[column.number].decode("utf-8", "replace").strip(), dialect)
            cause = _why_unfit(text, np.dtype(np.float64))
            if cause is not None:
                name = _short(column.name)
                return SpecError(
                    f"{path}, line {record.line}, column {name} has {_short(text)}",
                    cause=f"{cause}; the column is float64 for its fractions, missing values or range",
                    remedy=f"take the texts, columns={{{name}: str, ...}} with None for the type of each other column; "
                    f"or, of integers of which some are missing, defaults={{{name}: 0}}",
                )
    return None


def _why_unfit(text: str, dtype: np.dtype[Any]) -> str | None:
    """Return why floats of a size do not hold the number of a text; None if they do, or it is
    none."""
    if _overflows(text, dtype):
        return f"no dtype holds it: {dtype} ends at {np.finfo(dtype).max:.2g}"
    if WHOLE.fullmatch(text) and is_rounded(text, dtype):
        return (
            f"{dtype} does not hold this integer exactly: it would become {int(dtype.type(text))}"
        )
    return None


def _reason(text: str, kind: str) -> str | None:
    """Return why a text is no value of a kind; None if nothing is found."""
    dtype, text = np.dtype(kind), text.strip()
    if dtype.kind == "b":
        if text in (*TRUE, *FALSE, "0", "1"):
            return None
        return "a boolean is true or false, 1 or 0"
    if dtype.kind in "iu":
        if not WHOLE.fullmatch(text):
            return "it is no whole number in decimal digits"
        limits = np.iinfo(dtype)
        fits = limits.min <= whole(text) <= limits.max
        if fits and text[0] != "+":
            return None
        return f"it has the numbers {limits.min} to {limits.max}, without a +"
    if dtype.kind == "f":
        try:
            float(text)
        except ValueError:
            return "it is no number"
        if "_" in text:
            return "a number has no _"
        return _why_unfit(text, dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error"
            )  # NumPy warns of a zone, which the text of a time has not
            np.array(text, dtype)
    except (ValueError, Warning) as error:
        return str(error)
    return None


def _overflows(text: str, dtype: np.dtype[Any]) -> bool:
    """Return True if a text has the digits of a number that becomes infinite as a float of this
    size."""
    try:
        with np.errstate(over="ignore"):
            is_infinite = bool(np.isinf(np.array(float(text), dtype)))
    except ValueError:
        return False
    return is_infinite and re.match(NO_NUMBER, text) is None


def _short(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return repr(text)
    return f"{text[:MAX_CHARACTERS]!r} ..."

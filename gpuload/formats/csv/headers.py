"""Headers: the names of the columns, which all files of a source have in the same order."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import re
from collections.abc import Sequence

from gpuload.errors import FormatError, GpuloadError, SpecError
from gpuload.formats.csv.columns import MAX_NAMES, Dialect, list_names
from gpuload.formats.csv.lines import blocks, scan
from gpuload.storage.files import Files

log = logging.getLogger("gpuload")
HEAD_BYTES = 1 << 16  # of a file that is looked at at a time
MOST_COLUMNS = 1 << 16
# So many numbers ascend by chance in a sixth of all records, and always in a row of steps.
FEWEST_STEPS = 3
DATE = re.compile(r"\d{4}-\d\d-\d\d([ T].*)?|\d{1,2}[./]\d{1,2}[./](\d{4}|\d\d)")


def names_of(
    files: Files, dialect: Dialect, *, has_columns: bool, keeps_bad: bool
) -> tuple[str, ...]:
    """Return the names of the columns, which all files have.

    Args:
        files: the user's.
        dialect: their form.
        has_columns: True if the user says which columns are read.
        keeps_bad: True if the first line of a file without a header may be wrong; one of the next
            is not, then.

    Raises:
        FormatError: no file has a line, or one has another header than the first.
        SpecError: the first line looks like data.
    """
    first: tuple[str, ...] | None = None
    makes_fields = dialect.header and not has_columns
    blanks, first_path = list[str](), files.paths[0]
    for number, path in enumerate(files.paths):
        names = _head(files, number, dialect)
        if names is None:  # a part without records, as Spark writes
            blanks.append(path)
            continue
        expected = dialect.names or first or names
        is_same = len(names) == len(expected) and (names == expected or not dialect.header)
        if not is_same and not (keeps_bad and _has_line_of(files, number, dialect, len(expected))):
            raise _differing_names(path, names, first_path, first, expected)
        if first is None:
            first, first_path = expected, path
            if makes_fields:
                _check_no_data(path, names, dialect)
                _tell_likely_data(files, number, dialect, names)
    if blanks:
        message = "gl.csv: %d of %d files are empty, and hold no records: %s"
        log.info(message, len(blanks), len(files), blanks[0])
    if dialect.names is not None:
        return dialect.names
    if first is None:
        raise _empty_files(files, dialect)
    names = _replace_blanks(first, dialect)
    if makes_fields and not first[0] and len(names) > 1:
        _warn_of_labels(first_path, names)
    return names


def _replace_blanks(names: Sequence[str], dialect: Dialect) -> tuple[str, ...]:
    """Return the names in a header; columns without one have their number as a name."""
    if not dialect.header:
        names = [""] * len(names)
    return tuple(name or f"column_{number}" for number, name in enumerate(names))


def _differing_names(
    path: str,
    names: Sequence[str],
    first_path: str,
    first: Sequence[str] | None,
    expected: Sequence[str],
) -> SpecError | FormatError:
    """Return the error for a file with other columns than the first file, or than the user says."""
    if first is None:
        return SpecError(
            f"header has {_count_text(expected, 'name')}, {path} has {_count_text(names, 'column')}",
            cause="each column needs a name",
            remedy="name all columns, in their order; columns= chooses some",
        )
    return FormatError(
        f"{path} has the columns {list_names(names)}, {first_path} has {list_names(first)}",
        cause="the files of a source have the same columns in the same order",
        remedy="make two sources, with columns= for the same fields, and put them together with "
        "gl.concat",
    )


def _empty_files(files: Files, dialect: Dialect) -> FormatError:
    """Return the error for files without a line."""
    noun = "line that names the columns" if dialect.header else "record"
    title, cause = f"{files.paths[0]} is empty", f"there is no {noun}"
    if len(files) > 1:
        title = f"{files.paths[0]} and {len(files) - 1} more are empty"
        cause = f"no file has a {noun}"
    return FormatError(
        title,
        cause=cause,
        remedy="check the files; header=[...] names the columns of files without a header",
    )


def _warn_of_labels(path: str, names: Sequence[str]) -> None:
    """Warn that the first column has no name, as the labels of rows that pandas writes have
    none."""
    if len(names) <= MAX_NAMES:
        rest = list_names(names[1:])
    else:
        rest = "[...] with the others"
    log.warning(
        "%s: the first column has no name and becomes the field %r; pandas and R write the labels of rows so. "
        "columns=%s leaves it out",
        *(path, names[0], rest),
    )


def _head(files: Files, number: int, dialect: Dialect) -> tuple[str, ...] | None:
    """Return the values of the first line of a file; None if it has none.

    Raises:
        FormatError: they are more than records have, or are not UTF-8.
    """
    for block in blocks(files, number, dialect, HEAD_BYTES):
        for record in scan(block.data, dialect, block.line):
            if len(record.values) > MOST_COLUMNS:
                raise FormatError(
                    f"{files.paths[number]} has {len(record.values)} columns",
                    cause=f"records have at most {MOST_COLUMNS}",
                    remedy="check the delimiter, and that the file is a CSV; store such data as NPY",
                )
            try:
                return tuple(value.decode().strip() for value in record.values)
            except UnicodeDecodeError as error:
                if not dialect.header:
                    return tuple("" for _ in record.values)
                raise FormatError(
                    f"{files.paths[number]}, line {record.line} is no UTF-8",
                    cause=str(error),
                    remedy='pass the encoding of the file: "latin-1" or "cp1252" are common',
                ) from None
    return None


def _count_text(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}{'s' * (len(names) != 1)}"


def _has_line_of(files: Files, number: int, dialect: Dialect, count: int) -> bool:
    """Return True if there is no header and one of the first lines has so many values."""
    if dialect.header:
        return False
    block = next(blocks(files, number, dialect, HEAD_BYTES), None)
    return block is not None and any(
        len(record.values) == count for record in scan(block.data, dialect, block.line)
    )


def _check_no_data(path: str, names: Sequence[str], dialect: Dialect) -> None:
    numbers = [number for name in names if (number := _number(name, dialect)) is not None]
    # 1949, 1950 ...: years, as names
    is_ascending = _are_ascending(numbers)
    if len(numbers) == len(names) or (2 * len(numbers) > len(names) and not is_ascending):
        raise SpecError(
            f"{path} begins with {list_names(names)}",
            cause="the first line names the columns, and these are numbers for the most part",
            remedy="if it is data, gl.csv(path, header=False), or header=[...] to name the columns; else columns=[...]",
        )


def _tell_likely_data(files: Files, number: int, dialect: Dialect, names: Sequence[str]) -> None:
    """Log a warning if the first line of a file may be a record.

    39,State-gov,77516,13        whole numbers that do not ascend: no years, say
    M,0.455,15 | M,0.35,7        a fraction, and the next line has the same kinds
    2020-01-01,5 | 2020-01-02,6  a date above a date
    country,1999,2000            a header, and so is 400.5,401.0,401.5 of a spectrum
    """
    numbers = [value for name in names if (value := _number(name, dialect)) is not None]
    kinds = [_kind(name, dialect) for name in names]
    is_ascending = _are_ascending(numbers)
    has_fraction = len(numbers) < FEWEST_STEPS and not all(value.is_integer() for value in numbers)
    is_likely = not is_ascending
    if is_ascending and (has_fraction or "date" in kinds):
        line = _second(files, number, dialect)
        is_likely = [_kind(value, dialect) for value in line] == kinds
    if is_likely:
        values = [name for name, kind in zip(names, kinds, strict=True) if kind != "text"]
        log.warning(
            "%s: the first line names the columns, and %s among them are numbers or dates; "
            "if it is a record: header=False",
            *(files.paths[number], list_names(values)),
        )


def _second(files: Files, number: int, dialect: Dialect) -> list[str]:
    """Return the values of the second line of a file; none if it is missing or damaged."""
    records = (
        record
        for block in blocks(files, number, dialect, HEAD_BYTES)
        for record in scan(block.data, dialect, block.line)
    )
    with contextlib.suppress(GpuloadError, UnicodeDecodeError):  # reading the records will raise it
        for record in itertools.islice(records, 1, 2):
            return [value.decode().strip() for value in record.values]
    return []


def _are_ascending(numbers: Sequence[float]) -> bool:
    return all(first < second for first, second in itertools.pairwise(numbers))


def _kind(text: str, dialect: Dialect) -> str:
    if _number(text, dialect) is not None:
        return "number"
    return "date" if DATE.fullmatch(text) else "text"


def _number(text: str, dialect: Dialect) -> float | None:
    try:
        value = float(text.replace(dialect.decimal, "."))
    except ValueError:
        return None
    return value if math.isfinite(value) else None  # nan and inf may be names

"""CSV as a format: text with the same number of columns in its first lines, two or more.

One line of ten may have another number of columns, which `gl.csv` then names.
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Sequence
from csv import Error as TableError
from csv import reader as table_reader

from gpuload import lazy, signalsafe
from gpuload.errors import FormatError
from gpuload.formats.base import Beginning, Format, Match
from gpuload.formats.csv.excel import OTHER_BOMS, delimiter_in
from gpuload.sources.base import Source

csv = lazy.function("gpuload.formats.csv.source", "csv")
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson", ".geojson", ".ipynb")
TEXT_SUFFIXES = (
    *(
        ".yaml",
        ".yml",
        ".toml",
        ".ini",
        ".cfg",
        ".conf",
        ".properties",
        ".xml",
        ".html",
        ".htm",
        ".svg",
        ".log",
    ),
    *(
        ".md",
        ".rst",
        ".tex",
        ".bib",
        ".srt",
        ".vtt",
        ".py",
        ".sh",
        ".sql",
        ".js",
        ".ts",
        ".css",
        ".c",
        ".h",
        ".cpp",
    ),
)  # of texts that are no tables, though their lines may have as many commas each
TABLE_SUFFIXES = (".csv", ".tsv", ".psv", ".tab")
LINES = 20  # of text that are looked at
DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}


def _sniff(beginning: Beginning) -> Match | None:
    """Return which table of text it is; None if it is no text.

    Where no delimiter gives each line as many columns as the first, one of four lines and more, or
    one of ten, may be wrong; ``gl.csv`` then names it.

    Raises:
        FormatError: two delimiters do, or it is text and none does, or a table in another encoding
            than UTF-8.
    """
    path, head = beginning.path, beginning.head
    if head.startswith(OTHER_BOMS):
        _refuse_utf16(path, head)
    text = _text(head, is_cut=beginning.num_bytes > len(head))
    if text is None:
        _refuse_other_encoding(beginning)
        return None
    _refuse_json(path, text)
    stated = delimiter_in(text.encode())
    if stated in DELIMITERS:
        fits = [stated]
    else:
        fits = _delimiters(text)
    if fits:
        _refuse_prose(path, text, fits)
    if len(fits) == 1:
        title = f"a table of text, with {DELIMITERS[fits[0]]} between columns"
        if beginning.compression:
            title += f", in {beginning.compression}"
        return Match(title, f"gl.csv(delimiter={fits[0]!r})", {"delimiter": fits[0]})
    if fits:
        between = " and ".join(DELIMITERS[delimiter] for delimiter in fits)
        raise FormatError(
            f"{path} is a table of text, and there are two ways to read it",
            cause=f"{between} both give each line the same number of columns",
            remedy=f"say which it is: gl.csv(path, delimiter={fits[0]!r})",
        )
    if not text.strip():
        return None
    lines = text.splitlines()
    raise FormatError(
        f"{path} is text that begins with {lines[0][:60]!r}",
        cause="its first lines have no delimiter in common that would make two or more columns of each",
        remedy="call gl.text(path) to have each line as a record; gl.csv(path, delimiter=...) if it is a table, also "
        "of one column",
    )


def _refuse_utf16(path: str, head: bytes) -> None:
    """Raise ``FormatError`` for a table in UTF-16, as Excel and PowerShell write it."""
    text = head[: len(head) // 2 * 2].decode("utf-16", "replace")
    fits = _delimiters(text[: text.rfind("\n") + 1])
    if fits:
        if fits[0] == ",":
            delimiter = ""
        else:
            delimiter = f"delimiter={fits[0]!r}, "
        raise FormatError(
            f"{path} is a table of text in UTF-16",
            cause="it begins with the mark of UTF-16; without an argument text is read as UTF-8",
            remedy=f'say it: gl.csv(path, {delimiter}encoding="utf-16")',
        )


def _suffix(path: str) -> str:
    """Return the suffix of a file in small letters, without that of a compression."""
    return os.path.splitext(path.lower().removesuffix(".gz").removesuffix(".zip"))[1]


def _refuse_prose(path: str, text: str, fits: Sequence[str]) -> None:
    """Raise ``FormatError`` for text that is no table, though its lines have as many commas each.

    A file with the suffix of another kind of text is none; and one without the suffix of a table is
    none if each line looks like a sentence with a comma: a space behind it, and words on both
    sides.
    """
    suffix, delimiter = _suffix(path), fits[0]
    if suffix in TABLE_SUFFIXES:
        return
    if suffix in TEXT_SUFFIXES:
        reason = f"its name ends in {suffix}"
    else:
        reason = ""
    rows = [row for row in _rows(text, delimiter) if len(row) == 2]
    cells = [cell.strip() for row in rows for cell in row]
    if rows and delimiter in ",;" and all(row[1].startswith(" ") for row in rows):
        is_prose = 2 * sum(" " in cell for cell in cells) > len(cells)
        if is_prose and not reason:
            reason = "its lines look like sentences"
    if reason:
        raise FormatError(
            f"{path} is text, and looks like no table",
            cause=f"{reason}; the {DELIMITERS[delimiter]} in them may be chance",
            remedy="call gl.text(path) to have each line as a record; if it is a table, "
            f"gl.csv(path, delimiter={delimiter!r})",
        )


def _refuse_json(path: str, text: str) -> None:
    """Raise ``FormatError`` for JSON: its lines may have as many commas each as those of a
    table."""
    first = text.lstrip().partition("\n")[0].strip()
    is_json = _suffix(path) in JSON_SUFFIXES
    if not is_json and first[:1] + first[-1:] in ("{}", "[]"):
        with signalsafe.suppress(ValueError, RecursionError):
            is_json = isinstance(json.loads(first), (dict, list))
    if is_json:
        raise FormatError(
            f"{path} is JSON",
            cause="JSON is not supported",
            remedy="Hugging Face's datasets reads it: "
            f'gl.datasets(datasets.load_dataset("json", data_files={path!r}, split="train")); or gl.text(path) has '
            "each line as a record",
        )


def _text(head: bytes, *, is_cut: bool) -> str | None:
    """Return the whole lines of the beginning of a file; None if it is no text in UTF-8."""
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4 or not is_cut:
            return None
        text = head[: error.start].decode("utf-8-sig")  # the last character was cut
    if any(ord(char) < 32 and char not in "\t\n\r\f" for char in text):
        return None
    if is_cut:
        return text[: text.rfind("\n") + 1]
    return text


def _refuse_other_encoding(beginning: Beginning) -> None:
    """Raise ``FormatError`` for a table of text that is no UTF-8; many programs write latin-1 and
    its like."""
    head = beginning.head
    if any(byte < 32 and byte not in b"\t\n\r\f" for byte in head):
        text = ""
    else:
        text = head.decode("latin-1")
    if beginning.num_bytes > len(head):
        text = text[: text.rfind("\n") + 1]
    fits = _delimiters(text)
    if fits:
        place = next(place for place in range(len(head)) if head[place] >= 128)
        if fits[0] == ",":
            delimiter = ""
        else:
            delimiter = f'delimiter="{fits[0]}", '.replace("\t", "\\t")
        raise FormatError(
            f"{beginning.path} is a table of text, and no UTF-8",
            cause=f"it is in another encoding: the first byte that is no ASCII is 0x{head[place]:02x}, at byte {place}",
            remedy=f'say which it is: gl.csv(path, {delimiter}encoding="latin-1"), or "cp1252", say; the texts '
            "show whether it is right",
        )


def _delimiters(text: str) -> list[str]:
    """Return the delimiters that give (nearly) all lines the same number of columns, two or
    more."""
    fits: list[str] = []
    for is_strict in (True, False):
        fits = fits or [
            delimiter
            for delimiter in DELIMITERS
            if _columns(text, delimiter, is_strict=is_strict) > 1
        ]
    return fits


def _columns(text: str, delimiter: str, *, is_strict: bool) -> int:
    """Return the number of columns of the first line if (nearly) all other lines have as many; else
    0."""
    rows = _rows(text, delimiter)
    if not rows:
        return 0
    count = len(rows[0])
    if is_strict or len(rows) < 4:
        allowed = 0
    else:
        allowed = max(1, len(rows) // 10)
    if sum(len(row) != count for row in rows) <= allowed:
        return count
    return 0


def _rows(text: str, delimiter: str) -> list[list[str]]:
    """Return the values of the first lines; none if it is no table."""
    try:
        rows = (row for row in table_reader(io.StringIO(text), delimiter=delimiter) if row)
        return list(itertools.islice(rows, LINES))
    except TableError:
        return []


def _open_for_check(paths: Sequence[str], delimiter: str) -> tuple[Source, None]:
    """Return the rows, of which those that cannot be read are records, too."""
    return csv(list(paths), delimiter=delimiter, bad_lines="keep"), None


CSV = Format(
    "csv",
    csv,
    _sniff,
    known_by="text",
    records={
        "gl.csv(paths, columns=None, defaults=None)": "a line of a CSV file: typed columns, quotes, "
        "missing values with defaults; gz; read at random"
    },
    compressions=("gzip", "zip"),
    hint='a table in another encoding is gl.csv(path, encoding="latin-1")',
    open_for_check=_open_for_check,
    has_blank_parts=True,
)

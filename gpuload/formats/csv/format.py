"""CSV as a format: text whose first lines have the same number of columns, two or more.

One line of ten may have another number of columns, which `gl.csv` then names.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Sequence
from csv import Error as TableError
from csv import reader as table_reader

from gpuload import lazy, signalsafe
from gpuload.errors import FormatError
from gpuload.formats.base import Beginning, Format, Match
from gpuload.formats.csv.excel import delimiter_in
from gpuload.sources.base import Source

csv = lazy.function("gpuload.formats.csv.source", "csv")
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
LINES = 20  # of text that are looked at
DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}


def _sniff(beginning: Beginning) -> Match | None:
    """Return which table of text it is; None if it is no text.

    Where no delimiter gives each line as many columns as the first, one of four lines and more, or one of ten, may be
    wrong; ``gl.csv`` then names it.

    Raises:
        FormatError: two delimiters do, or it is text and none does, or a table in another encoding than UTF-8.
    """
    path, head = beginning.path, beginning.head
    text = _text(head, is_cut=beginning.num_bytes > len(head))
    if text is None:
        _refuse_other_encoding(beginning)
        return None
    _refuse_json(path, text)
    stated = delimiter_in(text.encode())
    fits = [stated] if stated in DELIMITERS else _delimiters(text)
    if len(fits) == 1:
        title = f"a table of text, with {DELIMITERS[fits[0]]} between columns"
        title += f", in {beginning.compression}" if beginning.compression else ""
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


def _refuse_json(path: str, text: str) -> None:
    """Raise ``FormatError`` for JSON, whose lines may have as many commas each as those of a table."""
    first = text.lstrip().partition("\n")[0].strip()
    is_json = first.startswith(("{", "[")) and path.lower().removesuffix(".gz").endswith(JSON_SUFFIXES)
    if not is_json and first.startswith("{") and first.endswith("}"):
        with signalsafe.suppress(ValueError, RecursionError):
            is_json = isinstance(json.loads(first), dict)
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
    return text[: text.rfind("\n") + 1] if is_cut else text


def _refuse_other_encoding(beginning: Beginning) -> None:
    """Raise ``FormatError`` for a table of text that is no UTF-8; many programs write latin-1 and its like."""
    head = beginning.head
    text = "" if any(byte < 32 and byte not in b"\t\n\r\f" for byte in head) else head.decode("latin-1")
    if beginning.num_bytes > len(head):
        text = text[: text.rfind("\n") + 1]
    fits = _delimiters(text)
    if fits:
        place = next(place for place in range(len(head)) if head[place] >= 128)
        delimiter = "" if fits[0] == "," else f'delimiter="{fits[0]}", '.replace("\t", "\\t")
        raise FormatError(
            f"{beginning.path} is a table of text, and no UTF-8",
            cause=f"it is in another encoding: the first byte that is no ASCII is 0x{head[place]:02x}, at byte {place}",
            remedy=f'say which it is: gl.csv(path, {delimiter}encoding="latin-1"), or "cp1252", say; the texts '
            "show whether it is right",
        )


def _delimiters(text: str) -> list[str]:
    """Return the delimiters that give (nearly) all lines the same number of columns, two or more."""
    fits: list[str] = []
    for is_strict in (True, False):
        fits = fits or [delimiter for delimiter in DELIMITERS if _columns(text, delimiter, is_strict=is_strict) > 1]
    return fits


def _columns(text: str, delimiter: str, *, is_strict: bool) -> int:
    """Return the number of columns of the first line if (nearly) all other lines have as many; else 0."""
    try:
        rows = list(
            itertools.islice((row for row in table_reader(io.StringIO(text), delimiter=delimiter) if row), LINES)
        )
    except TableError:
        return 0
    count = len(rows[0]) if rows else 0
    allowed = 0 if is_strict or len(rows) < 4 else max(1, len(rows) // 10)
    return count if sum(len(row) != count for row in rows) <= allowed else 0


def _open_for_check(paths: Sequence[str], delimiter: str) -> tuple[Source, None]:
    """Return the rows, of which those that cannot be read are records, too."""
    return csv(list(paths), delimiter=delimiter, bad_lines="keep"), None


CSV = Format(
    "csv",
    csv,
    _sniff,
    known_by="text",
    compressions=("gzip", "zip"),
    hint='a table in another encoding is gl.csv(path, encoding="latin-1")',
    open_for_check=_open_for_check,
    call=csv,
)

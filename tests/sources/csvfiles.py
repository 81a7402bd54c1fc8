"""What a CSV file holds, worked out from what Python's csv module reads: an independent reference
for `gl.csv`."""

from __future__ import annotations

import csv
import gzip
import re

import numpy as np

MISSING = {"", "NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "None", "NaN", "nan"}
INTEGER = re.compile(r"-?[0-9]+")
FLOAT = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE
)
LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
DATE = re.compile(r"[0-9]{4}-[01][0-9]-[0-3][0-9]")
BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def rows(path, *, delimiter=",", quote='"', encoding="utf-8", skip_lines=0):
    """Return all records as lists of texts, the header among them."""
    codec = "utf-8-sig" if encoding == "utf-8" else encoding
    source = gzip.open if str(path).endswith(".gz") else open
    quoting = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    with source(path, "rt", encoding=codec, newline="") as file:
        for _ in range(skip_lines):
            file.readline()
        return [row for row in csv.reader(file, delimiter=delimiter, **quoting) if row]


def expected(path, *, header=True, na_values=MISSING, **options):
    """Return what ``gl.csv(path)`` must read: a dict from name to array."""
    result = rows(path, **options)
    names, lines = (result[0], result[1:]) if header is True else (header or [], result)
    names = [
        name.strip() or f"column_{number}"
        for number, name in enumerate(names or [""] * len(lines[0]))
    ]
    columns = zip(*lines, strict=True) if lines else [()] * len(names)
    return {name: column(texts, set(na_values)) for name, texts in zip(names, columns, strict=True)}


def column(texts, missing=MISSING):
    """Return the values of a column, of the type that all its texts have together."""
    held = [text.strip() for text in texts if text not in missing]
    is_whole = len(held) == len(texts)
    if not held:
        return np.full(len(texts), np.nan)
    if is_whole and all(text in BOOLS for text in held):
        return np.array([BOOLS[text] for text in texts])
    if all(map(FLOAT.fullmatch, held)) and any(map(LEADING_ZERO.match, held)):
        return np.array(texts)
    if is_whole and all(map(INTEGER.fullmatch, held)):
        values = [int(text) for text in held]
        for dtype in (np.int64, np.uint64):
            if np.iinfo(dtype).min <= min(values) and max(values) <= np.iinfo(dtype).max:
                return np.array(values, dtype)
    if all(map(FLOAT.fullmatch, held)):
        return np.array([np.nan if text in missing else float(text) for text in texts])
    if all(map(DATE.fullmatch, held)):
        return np.array(["NaT" if text in missing else text for text in texts], "M8[D]")
    return np.array(texts)

"""Columns of names: a table is joined by place with files, and a column of it has the names of
these files.

    photos            table               gl.zip(photos, table)
    bird.png          file      label
    cat.png           dog.png   0         an error: the column has the names of the files in another order
    dog.png           cat.png   1

Rule    A column of texts holds the names of files if nearly all of its values are names of files,
        with or without folders and suffix, and no value stands there twice. One column in the order
        of the files is enough.
Cost    The texts of FIRST records are read. If they are names in the order of the files, those of
        SPREAD records are read, from all of the source.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.errors import GpuloadError
from gpuload.sources.base import Source
from gpuload.sources.leaf import Indices
from gpuload.sources.names import RecordNames
from gpuload.spec import Field

FIRST = 16  # records that show whether a column may hold names
SPREAD = (
    256  # records, from all of the source, that show whether names stand in the order of the files
)
# Of the values of a column of names that are names of files: some files may have other names
SHARE = 0.9
LONGEST = 4096  # characters of a path


@dataclass(frozen=True)
class Misplaced:
    """A value of a column that is the name of another record.

    Attributes:
        column: the name of the field.
        record: that has the value.
        value: the name of another record.
    """

    column: str
    record: int
    value: str


def misplaced_value(names: RecordNames, source: Source) -> Misplaced | None:
    """Return a value of a column that holds the names in another order; None if there is no such
    column."""
    if len(source) != len(names) or len(names) < 2:
        return None
    result: Misplaced | None = None
    for field in filter(_is_text, source.spec):
        values = _values(source, field.name, np.arange(min(FIRST, len(names))))
        places = _places(names, values)
        if places is None:
            continue
        if all(place in (number, -1) for number, place in places.items()):
            spread = np.unique(np.linspace(0, len(names) - 1, SPREAD).astype(np.int64))
            values = _values(source, field.name, spread)
            places = _places(names, values)
        if places is None:
            continue
        wrong = (number for number, place in places.items() if place not in (number, -1))
        record = next(wrong, None)
        if record is None:
            return None
        result = result or Misplaced(field.name, record, values[record])
    return result


def _is_text(field: Field) -> bool:
    return field.shape == () and (field.dtype.kind in "US" or bool(field.text))


def _values(source: Source, name: str, numbers: Indices) -> dict[int, str]:
    """Return the texts of some records, by number; {} if they cannot be read: the loader will raise
    that error."""
    try:
        values = source.read(numbers, fields=name)[name]
    except GpuloadError:
        return {}
    texts = dict[int, str]()
    for number, value in zip(numbers.tolist(), values, strict=True):
        if isinstance(value, bytes):
            text = value.decode(errors="replace")
        else:
            text = str(value)
        if len(text) <= LONGEST:
            texts[number] = text.strip().replace("\\", "/")
    return texts


def _places(names: RecordNames, values: dict[int, str]) -> dict[int, int] | None:
    """Return the number of the record that each value names, or -1; None if they name none.

    Args:
        names: of the records.
        values: of a column, by number.
    """
    least = SHARE * len(values)
    beside = {number for number, text in values.items() if _is_name(text, names.stem(number))}
    places = {number: number if number in beside else -1 for number in values}
    # Records may stand in several rows, if their order is that of the rows.
    if not values or len(beside) == len(values) or len(set(values.values())) < len(values):
        if values and len(beside) >= least:
            return places
        return None
    rest = {number: text for number, text in values.items() if number not in beside}
    num_named = sum(bool(text) and names.contain(_stems(text)[-1]) for text in rest.values())
    if len(beside) + num_named < least:
        return None
    places |= _find(names, rest)
    if sum(place >= 0 for place in places.values()) >= least:
        return places
    return None


def _find(names: RecordNames, values: dict[int, str]) -> dict[int, int]:
    """Return the first record that each value names, or -1."""
    bases = {_base(stem) for text in values.values() for stem in _stems(text)}
    records: dict[str, list[int]] = {}
    for record, stem in enumerate(names.stems):
        if _base(stem) in bases:
            records.setdefault(_base(stem), []).append(record)
    places = dict.fromkeys(values, -1)
    for number, text in values.items():
        candidates = (record for stem in _stems(text) for record in records.get(_base(stem), ()))
        matches = (record for record in candidates if _is_name(text, names.stems[record]))
        places[number] = next(matches, -1)
    return places


def _base(stem: str) -> str:
    return stem.rpartition("/")[2]


def _stems(text: str) -> Sequence[str]:
    """Return the forms of a text as a path without suffix: ``v1.2`` may have one, or none."""
    return text, os.path.splitext(text)[0]


def _is_name(text: str, stem: str) -> bool:
    """Return True if a text is a path to a record, from any folder, with or without suffix."""
    paths = _stems(text)
    return any(
        path == stem or path.endswith(f"/{stem}") or stem.endswith(f"/{path}") for path in paths
    )

"""Keeping the rows of CSV files: in memory where the files are small, else in tables in the cache
folder, one a file.

Form     where types or lengths of text are found, the form of the rows depends on all files
         together. It is kept beside the tables, so that opening the same files again reads none of
         them.
Tries    files are converted in the form of the first block. If one does not fit, the others are
         looked at, too, and all are converted in the form that holds everything: twice is usual
         then, and each try is wider than the last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.formats.csv import faults, parse, table
from gpuload.formats.csv.kinds import Form, is_found, is_referred, row_dtype
from gpuload.formats.csv.parse import OVER
from gpuload.formats.csv.rows import Job, Part, Unfit, bodies, convert, guess
from gpuload.formats.csv.table import Table, Writer
from gpuload.progress import Progress
from gpuload.storage import keptfile
from gpuload.storage.derivedfiles import cache_path, key_of, load_or_make
from gpuload.storage.files import any_is_remote

SMALL_BYTES = 1 << 24  # of all files: their rows are kept in memory, as they are read in a moment
MOST_ROWS_BYTES = 1 << 26  # of their rows
log = logging.getLogger("gpuload")


@dataclass(frozen=True)
class CsvRows:
    """Rows of all files: in memory, with the bytes that they refer to; or in tables; else in the
    text of the files."""

    form: Form
    parts: list[Part]
    rows: NDArray[Any] | None = None
    tables: tuple[Table, ...] = ()
    payload: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))


def read_rows(job: Job) -> CsvRows:
    """Return the rows of the files: in memory where these are small, else in tables, which are made
    if need be.

    Raises:
        GpuloadError: a line is wrong; names file and line.
        FileError: a table cannot be written.
    """
    with Progress("reading CSV files") as progress:
        # None, too, if the rows take too much memory
        if _is_small(job):
            rows = _in_memory(job, progress)
        else:
            rows = None
        return rows or _in_tables(job, progress)


def _is_small(job: Job) -> bool:
    return int(job.files.sizes.sum()) <= SMALL_BYTES


def _in_memory(job: Job, progress: Progress) -> CsvRows | None:
    """Return the rows of small files; None if they are large."""
    form = guess(job)
    while True:
        room, parts = Room(MOST_ROWS_BYTES), list[Part]()
        try:
            for number in range(len(job.files)):
                parts.append(convert(job, number, form, room, progress))
        except TooLarge:
            return None
        except Unfit as error:
            form = _widen_over_files(job, len(parts) + 1, error.form, progress)
            continue
        _check_floats(job, form)
        rows, payload = room.content(row_dtype(job.columns, form))
        return CsvRows(form, parts, rows=rows, payload=payload)


class Room:
    """Takes rows in memory: a `rows.Sink`.

    Args:
        most_bytes: of the rows and what they refer to; None: any number.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most_bytes, self._num_bytes = most_bytes, 0
        self._pieces, self._payloads = list[NDArray[Any]](), list[NDArray[np.uint8]]()

    def rows(self, rows: NDArray[Any]) -> None:
        """Take rows; raises `TooLarge`."""
        self._pieces.append(rows)
        self._count(rows.nbytes)

    def payload(self, payload: NDArray[np.uint8]) -> int:
        """Take bytes that rows refer to; returns where they begin among all of these."""
        begin = sum(array.size for array in self._payloads)
        self._payloads.append(payload)
        self._count(payload.size)
        return begin

    def content(self, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Return the rows, and the bytes that they refer to."""
        if self._pieces:
            rows = np.concatenate(self._pieces)
        else:
            rows = np.zeros(0, dtype)
        return rows, np.concatenate([np.zeros(0, np.uint8), *self._payloads])

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._most_bytes is not None and self._num_bytes > self._most_bytes:
            raise TooLarge


class TooLarge(Exception):
    """Rows need more memory than they may."""


def _in_tables(job: Job, progress: Progress) -> CsvRows:
    """Return the rows of the files in tables; a missing table is made."""
    # Whatever changes the rows: who has another version, machine or question makes tables of his
    # own.
    about = (
        "csv",
        table.VERSION,
        parse.version(),
        sys.byteorder,
        job.dialect,
        job.names,
        job.columns,
        job.keeps_bad,
    )
    keys = [key_of(job.files, number, *about) for number in range(len(job.files))]
    if not any(map(is_found, job.columns)):
        form = guess(job)
        return CsvRows(form, *_tables(job, keys, form, progress))
    key = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]

    made_of = ["csv form", key]

    def load(path: str) -> Form | None:
        content = keptfile.read_kept_file(path, made_of)
        if content is None:
            return None
        return table.form_of_json(json.loads(content))

    def make(path: str) -> None:
        form = guess(job)
        while True:
            try:
                _tables(job, keys, form, progress)
            except _UnfitTable as error:
                form = _widen_over_files(job, error.number + 1, error.form, progress)
                continue
            _check_floats(job, form)
            break
        with keptfile.Writer(path, made_of) as writer:
            writer.write(json.dumps(table.to_json(form)).encode("ascii"))
            writer.end()

    form = load_or_make([cache_path(f"{key}-csv.json")], load, make)
    return CsvRows(form, *_tables(job, keys, form, progress))


class _UnfitTable(Exception):
    def __init__(self, number: int, form: Form) -> None:
        super().__init__()
        self.number, self.form = number, form


@cache
def _tell_of_store(paths: tuple[str, ...], megabytes: int) -> None:
    """Log, once, that files in a store are read as a whole."""
    if any_is_remote(paths):
        if len(paths) == 1:
            files = paths[0]
        else:
            files = f"{paths[0]} and {len(paths) - 1} more"
        log.warning(
            "%s: all of the %d MB are read to find the lines, once on this machine; gpuload index writes a manifest, "
            "and who opens that asks only for the lines that are wanted",
            files,
            megabytes,
        )


def _tables(
    job: Job, keys: Sequence[str], form: Form, progress: Progress
) -> tuple[list[Part], None, tuple[Table, ...]]:
    row_bytes = row_dtype(job.columns, form).itemsize
    # A file has another form among other files, and a table for each.
    digest = hashlib.sha256(repr(form).encode()).hexdigest()[:8]
    places = [
        cache_path(f"{key}-{digest}-{name[:100]}.rows")
        for key, name in zip(keys, job.files.names, strict=True)
    ]
    tables, eager = [], keptfile.is_small(places)
    for number, (key, place) in enumerate(zip(keys, places, strict=True)):
        made_of = ["csv table", key, table.to_json(form)]

        def make(path: str, number: int = number, made_of: Any = made_of) -> None:
            _tell_of_store(tuple(job.files.paths), int(job.files.sizes.sum()) >> 20)
            writer = Writer(path, made_of, has_payload=any(map(is_referred, job.columns, form)))
            with writer.open_file():
                try:
                    part = convert(job, number, form, writer, progress)
                except Unfit as error:
                    raise _UnfitTable(number, error.form) from None
                writer.end(part, row_bytes)

        load = partial(table.load, made_of=made_of, row_bytes=row_bytes, eager=eager)
        tables.append(load_or_make([place], load, make))
    return [entry.part for entry in tables], None, tuple(tables)


def _widen_over_files(job: Job, first: int, form: Form, progress: Progress) -> Form:
    """Return the form that holds the files from one on, too."""
    for number in range(first, len(job.files)):
        try:
            convert(job, number, form, None, progress)
        except Unfit as error:
            form = error.form
    return form


def _check_floats(job: Job, form: Form) -> None:
    """Raise ``SpecError`` for the first number that the floats of a column do not hold, if the form
    says so."""
    for number, path in (
        enumerate(job.files.paths) if any(kind.name == OVER for kind in form) else ()
    ):
        for block in bodies(job, number):
            error = faults.unfit(path, block, job.dialect, job.columns, form)
            if error is not None:
                raise error

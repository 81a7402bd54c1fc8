"""Keeping the rows of CSV files: in memory if the files are small, else in tables, one a file.

Form     If types or lengths of text are found, the form of the rows depends on all files together.
         It is kept beside the tables in the cache folder, so that opening the same files again
         reads none of them.
Tries    Files are converted in the form of the first block. If one does not fit, the others are
         looked at, too, and all are converted in the form that holds everything: twice is usual
         then, and each try is wider than the last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuload.formats.csv import faults, parse, table
from gpuload.formats.csv.kinds import Form, is_found, is_referred, row_dtype
from gpuload.formats.csv.parse import OVER
from gpuload.formats.csv.rows import CsvFileRecords, WiderForm, bodies, convert, guess
from gpuload.formats.csv.table import RowTable, TableWriter
from gpuload.formats.csv.values import Job
from gpuload.progress import Progress
from gpuload.storage import keptfile
from gpuload.storage.derivedfiles import cache_path, key_of, load_or_make
from gpuload.storage.files import any_is_remote

SMALL_BYTES = 1 << 24  # of all files: their rows are kept in memory, as they are read in a moment
MOST_ROWS_BYTES = 1 << 26  # of their rows
log = logging.getLogger("gpuload")
Result = TypeVar("Result")


@dataclass(frozen=True)
class CsvRows:
    """Rows of all files: in memory, with the bytes that they refer to, or in tables.

    Without both they are in the text of the files.
    """

    form: Form
    parts: list[CsvFileRecords]
    rows: NDArray[Any] | None = None
    tables: tuple[RowTable, ...] = ()
    payload: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))


def read_rows(job: Job) -> CsvRows:
    """Return the rows of the files: in memory if these are small, else in tables.

    Raises:
        GpuloadError: a line is wrong; names file and line.
        FileError: a table cannot be written.
    """
    with Progress("reading CSV files") as progress:
        rows = None
        if int(job.files.sizes.sum()) <= SMALL_BYTES:
            rows = _in_memory(job, progress)
        return rows or _in_tables(job, progress)


def _in_memory(job: Job, progress: Progress) -> CsvRows | None:
    """Return the rows of small files; None if they are large."""
    rooms = list[Room]()

    def converter(form: Form) -> Callable[[int], CsvFileRecords]:
        rooms[:] = [room := Room(MOST_ROWS_BYTES)]
        return lambda number: convert(job, number, form, room, progress)

    try:
        form, parts = _convert_files(job, converter, progress)
    except TooLarge:
        return None
    rows, payload = rooms[0].content(row_dtype(job.columns, form))
    return CsvRows(form, parts, rows=rows, payload=payload)


def _convert_files(
    job: Job, converter: Callable[[Form], Callable[[int], Result]], progress: Progress
) -> tuple[Form, list[Result]]:
    """Return the form that holds all files, and the result of each.

    Args:
        job: the files, and how they are read.
        converter: returns a function that converts a file, by its number, to rows of a form; this
            raises `WiderForm` if the form does not hold the file.
        progress: shows how far the reading is.
    """
    form = guess(job)
    while True:
        wider, results, convert_file = form, list[Result](), converter(form)
        for number in range(len(job.files)):
            try:
                if wider == form:
                    results.append(convert_file(number))
                else:  # the rows of all files are made anew: this one is only looked at
                    convert(job, number, wider, None, progress)
            except WiderForm as error:
                wider = error.form
        if wider == form:
            _check_floats(job, form)
            return form, results
        form = wider


class Room:
    """Takes rows in memory: a `rows.Sink`.

    Args:
        most_bytes: of the rows and the bytes that they refer to; None: any number.
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
        rows = np.concatenate([np.zeros(0, dtype), *self._pieces])
        return rows, np.concatenate([np.zeros(0, np.uint8), *self._payloads])

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._most_bytes is not None and self._num_bytes > self._most_bytes:
            raise TooLarge


class TooLarge(Exception):
    """Rows need more memory than they may."""


def _in_tables(job: Job, progress: Progress) -> CsvRows:
    """Return the rows of the files in tables; a missing table is made."""
    # All that changes the rows: another version, machine or call makes tables of its own.
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
        return _in_form(job, keys, guess(job), progress)
    key = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]
    made_of = ["csv form", key]

    def load(path: str) -> Form | None:
        content = keptfile.read_kept_file(path, made_of)
        if content is None:
            return None
        return table.form_of_json(json.loads(content))

    def make(path: str) -> None:
        form, _ = _convert_files(
            job, lambda form: _table_maker(job, keys, form, progress), progress
        )
        with keptfile.KeptWriter(path, made_of) as writer:
            writer.write(json.dumps(table.to_json(form)).encode("ascii"))
            writer.end()

    form = load_or_make([cache_path(f"{key}-csv.json")], load, make)
    return _in_form(job, keys, form, progress)


def _in_form(job: Job, keys: Sequence[str], form: Form, progress: Progress) -> CsvRows:
    """Return the rows of the files in tables of a form that holds them."""
    tables = tuple(map(_table_maker(job, keys, form, progress), range(len(keys))))
    return CsvRows(form, [entry.part for entry in tables], tables=tables)


def _table_maker(
    job: Job, keys: Sequence[str], form: Form, progress: Progress
) -> Callable[[int], RowTable]:
    """Return a function that returns the table of a file, by its number, and makes it if need be.

    The function raises `WiderForm` if the form does not hold the file.
    """
    row_bytes = row_dtype(job.columns, form).itemsize
    # A file has another form among other files, and a table for each.
    digest = hashlib.sha256(repr(form).encode()).hexdigest()[:8]
    places = [
        cache_path(f"{key}-{digest}-{name[:100]}.rows")
        for key, name in zip(keys, job.files.names, strict=True)
    ]
    eager = keptfile.is_small(places)

    def table_of(number: int) -> RowTable:
        made_of = ["csv table", keys[number], table.to_json(form)]

        def make(path: str) -> None:
            _tell_of_store(tuple(job.files.paths), int(job.files.sizes.sum()) >> 20)
            writer = TableWriter(
                path, made_of, has_payload=any(map(is_referred, job.columns, form))
            )
            with writer.open_file():
                part = convert(job, number, form, writer, progress)
                writer.end(part, row_bytes)

        load = partial(table.load, made_of=made_of, row_bytes=row_bytes, eager=eager)
        return load_or_make([places[number]], load, make)

    return table_of


@cache
def _tell_of_store(paths: tuple[str, ...], megabytes: int) -> None:
    """Log, once, that files in a store are read as a whole."""
    if any_is_remote(paths):
        suffix = f" and {len(paths) - 1} more" * (len(paths) > 1)
        log.warning(
            "%s%s: all of the %d MB are read to find the lines, once on this machine; gpuload index "
            "writes a manifest, by which only the lines that are wanted are asked for",
            *(paths[0], suffix, megabytes),
        )


def _check_floats(job: Job, form: Form) -> None:
    """Raise ``SpecError`` for the first number that the floats of a column do not hold."""
    if not any(kind.name == OVER for kind in form):
        return
    for number, path in enumerate(job.files.paths):
        for block in bodies(job, number):
            error = faults.unfit(path, block, job.dialect, job.columns, form)
            if error is not None:
                raise error

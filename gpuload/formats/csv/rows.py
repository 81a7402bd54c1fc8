"""CSV files as rows of one size, block by block: rows go to a sink while blocks are parsed.

Order    Several blocks are parsed side by side in threads, and written in their order.
Form     A type that the user does not give is inferred from the first block. A block that does not
         fit makes the form wider: the rest of the file is parsed without being written, and the
         caller begins anew, with a form that holds all blocks. So types are those of the whole
         data, and most files are read once.
Room     Text without a given length gets half as much room again as the first block needs, and a
         character has one byte until one needs more.
Wrong    Lines are an error; or, if the user wants to keep them, records without a value: they are
         cut out of the text of their block, and their rows are zeros, which are never read.
Memory   A few blocks, their columns and rows; very long rows are made some at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuload.formats.csv import badlines
from gpuload.formats.csv.badlines import BadLine
from gpuload.formats.csv.columns import CsvColumn
from gpuload.formats.csv.kinds import (
    LONGEST_FIXED,
    REFERENCE,
    ColumnKind,
    Form,
    is_found,
    is_measured,
    is_text,
    kind_of_dtype,
    row_dtype,
)
from gpuload.formats.csv.lines import BLOCK_BYTES, TextBlock, blocks, num_ends, scan
from gpuload.formats.csv.parse import NULL, TEXT, NumberColumn, Unreadable
from gpuload.formats.csv.values import BlockValues, Job, parse_block
from gpuload.progress import Progress
from gpuload.threads import num_cores, parallel_map

# Blocks a core that are parsed before the rows of the first are written. Each turn ends in waiting.
AT_ONCE = 4
# Of files with more, blocks are longer, as each column of a block costs some microseconds.
MANY_COLUMNS = 64
MOST_BLOCKS = 8  # times BLOCK_BYTES
PIECE_BYTES = (
    1 << 20
)  # of rows that are filled column by column, which stay in the cache; at least PIECE_ROWS
PIECE_ROWS = 64
ROWS_BYTES = (
    1 << 24
)  # of rows of a block that a thread makes at once; those of more are made when they are written
LEAST_WIDTH = 16  # characters: room for text that was taken for numbers at first
Pieces = Iterable[tuple[NDArray[Any], dict[str, NDArray[np.uint8]]]]


class Sink(Protocol):
    """Takes the rows of one file."""

    def rows(self, rows: NDArray[Any]) -> None:
        """Take rows, in their order."""

    def payload(self, payload: NDArray[np.uint8]) -> int:
        """Take bytes that rows refer to; returns where they begin among all of these."""


@dataclass
class CsvFileRecords:
    """The result of reading a file.

    Attributes:
        count: its records.
        places: int64 ``[num_blocks, 4]``: of each block the first record, its line, the byte of the
            file where the block begins (-1: not known), and 1 if each record is one line, else 0.
        longest: of each column the characters of its longest text (bytes with dtype S); 0 for
            others.
        bad: the wrong lines, in their order.
    """

    count: int = 0
    places: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    longest: list[int] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)


class WiderForm(Exception):
    """The rows of a file need a wider form; ``form`` holds all values of it."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form


@dataclass
class _BlockRows:
    """A block as rows.

    Attributes:
        form: of the rows; if it is wider than the one that was asked for, there are none.
        count: the records.
        longest: of each column the longest text.
        pieces: the rows, one piece after the other, each with the bytes that its rows refer to.
        bad: the wrong lines.
    """

    form: Form
    count: int
    longest: list[int]
    pieces: Pieces
    bad: Sequence[BadLine] = ()


def guess(job: Job) -> Form:
    """Return the form of the first block with records, with half as much room for text again."""
    form = tuple(kind_of_dtype(column) or ColumnKind(NULL) for column in job.columns)
    if not any(map(is_found, job.columns)):
        return form
    for number, path in enumerate(job.files.paths):
        for block in bodies(job, number, BLOCK_BYTES):
            form = _parse_block(job, path, block, form).form
            return tuple(map(_with_room, job.columns, form))
    return form


def _with_room(column: CsvColumn, kind: ColumnKind) -> ColumnKind:
    if kind.read != TEXT or not is_measured(column) or is_text(column, kind):
        return kind
    return replace(kind, width=min(max(kind.width + kind.width // 2, LEAST_WIDTH), LONGEST_FIXED))


def convert(
    job: Job, number: int, form: Form, sink: Sink | None, progress: Progress
) -> CsvFileRecords:
    """Read a file and write its rows to a sink; without a sink the file is only parsed.

    Raises:
        WiderForm: the form does not hold the file; the rows in the sink are of no use.
        GpuloadError: a line is wrong; names file and line.
    """
    path, files = job.files.paths[number], job.files
    part, places, wider = (
        CsvFileRecords(longest=[0] * len(job.columns)),
        list[tuple[int, int, int, int]](),
        form,
    )
    before, total = int(files.sizes[:number].sum()), int(files.sizes.sum())
    cores = num_cores()
    stream = bodies(job, number, _block_bytes(job))
    ready: list[_BlockRows] = []

    def write() -> None:
        if sink is not None:
            for block_rows in ready:
                _write_rows(block_rows, sink)

    def parser_of(block: TextBlock) -> Callable[[], _BlockRows]:
        return lambda: _parse_block(job, path, block, wider)

    def fetch() -> list[TextBlock]:
        return list(islice(stream, AT_ONCE * cores))

    chunk = fetch()
    while chunk or ready:
        # Side by side: parsed blocks are written, the next ones are read. The first error in this
        # order is raised.
        tasks: list[Callable[[], Any]] = [write, *map(parser_of, chunk), fetch]
        _, *results, coming = parallel_map(lambda task: task(), tasks, cores)
        ready = []
        for block, block_rows in zip(chunk, results, strict=True):
            wider = _wider(wider, block_rows.form)
            places.append(
                (part.count, block.line, block.offset, int(block.num_lines == block_rows.count))
            )
            part.bad += [replace(bad, number=part.count + bad.number) for bad in block_rows.bad]
            badlines.check_count(path, part.bad)
            part.count += block_rows.count
            part.longest = [
                max(pair) for pair in zip(part.longest, block_rows.longest, strict=True)
            ]
            if wider == form:
                ready.append(block_rows)
            if block.offset >= 0:
                progress.show((before + block.offset) >> 20, total >> 20, "MB")
            else:
                progress.show()
        chunk = coming
    if wider != form:
        raise WiderForm(wider)
    part.places = np.array(places, np.int64).reshape(-1, 4)
    return part


def _block_bytes(job: Job) -> int:
    return BLOCK_BYTES * min(max(1, len(job.columns) // MANY_COLUMNS), MOST_BLOCKS)


def _wider(left: Form, right: Form) -> Form:
    """Return the form that holds the values of both."""
    return tuple(
        replace(
            first.widen(second.name, second.has_missing),
            width=max(first.width, second.width),
            unit=max(first.unit, second.unit),
        )
        for first, second in zip(left, right, strict=True)
    )


def bodies(job: Job, number: int, block_bytes: int = BLOCK_BYTES) -> Iterator[TextBlock]:
    """Yield the blocks of a file without its header."""
    has_header = job.dialect.header
    for block in blocks(job.files, number, job.dialect, block_bytes):
        if has_header:
            head = next(scan(block.data, job.dialect, block.line), None)
            if head is None:
                continue  # nothing but empty lines yet
            has_header, lines = False, num_ends(block.data[: head.end])
            offset = block.offset_of(head.end)
            block = TextBlock(
                block.data[head.end :],
                block.line + lines,
                block.num_lines - lines,
                offset,
                block.has_quotes,
            )
        if block.data:
            yield block


def write_block(job: Job, path: str, block: TextBlock, form: Form, sink: Sink) -> bool:
    """Write the rows of a block to a sink; return False if the form does not hold them.

    Raises:
        RecordError: a line is wrong; names file and line.
    """
    block_rows = _parse_block(replace(job, keeps_bad=False), path, block, form)
    if block_rows.form != form:
        return False
    _write_rows(block_rows, sink)
    return True


def _write_rows(block_rows: _BlockRows, sink: Sink) -> None:
    for rows, payloads in block_rows.pieces:
        for name, payload in payloads.items():
            rows[name]["offset"] += sink.payload(payload)
        sink.rows(rows)


def _parse_block(job: Job, path: str, block: TextBlock, form: Form) -> _BlockRows:
    """Return a block as rows of a form, or of a wider one that it needs."""
    try:
        return _rows_of(job, parse_block(job, block, form), form)
    except Unreadable as error:
        if not job.keeps_bad:
            raise badlines.first_error(job, path, block, form, error) from None
        sound, bad = badlines.separate(job, path, block, form, error)
    block_rows = _BlockRows(form, 0, [0] * len(form), [])
    if sound.data:
        block_rows = _rows_of(job, parse_block(job, sound, form), form)
    pieces = _with_bad(block_rows, bad, row_dtype(job.columns, form))
    return _BlockRows(block_rows.form, block_rows.count + len(bad), block_rows.longest, pieces, bad)


def _rows_of(job: Job, values: BlockValues, form: Form) -> _BlockRows:
    """Return the values of a block as rows; without any if they need a wider form."""
    if values.form != form:
        return _BlockRows(values.form, values.count, values.longest, [])
    dtype = row_dtype(job.columns, form)
    at_once = max(PIECE_ROWS, PIECE_BYTES // dtype.itemsize)
    pieces: Pieces = (
        _rows(job, values.columns, dtype, first, min(first + at_once, values.count))
        for first in range(0, values.count, at_once)
    )
    if values.count * dtype.itemsize <= ROWS_BYTES:
        pieces = list(pieces)
    return _BlockRows(form, values.count, values.longest, pieces)


def _with_bad(block_rows: _BlockRows, bad: Sequence[BadLine], dtype: np.dtype[Any]) -> Pieces:
    """Yield the rows of the sound lines, with a row of zeros in the place of each wrong line."""
    # The number of sound records in front of each.
    before = np.array([fault.number - place for place, fault in enumerate(bad)], np.int64)
    first = num_gaps = 0
    for rows, payloads in block_rows.pieces:
        end = int(np.searchsorted(before, first + rows.size))
        is_bad = np.zeros(rows.size + end - num_gaps, np.bool_)
        is_bad[before[num_gaps:end] - first + np.arange(end - num_gaps)] = True
        wider = np.zeros(is_bad.size, dtype)
        wider[~is_bad] = rows
        yield wider, payloads
        first, num_gaps = first + rows.size, end
    if num_gaps < len(bad):
        yield np.zeros(len(bad) - num_gaps, dtype), {}


def _rows(
    job: Job, values: Sequence[Any], dtype: np.dtype[Any], first: int, after: int
) -> tuple[NDArray[Any], dict[str, NDArray[np.uint8]]]:
    """Return some records of a block as rows, and the bytes that they refer to."""
    # Gaps for alignment go to the table, too: they are zeros, and no bytes of earlier data.
    has_gaps = sum(dtype[place].itemsize for place in range(len(job.columns))) < dtype.itemsize
    new = np.zeros if has_gaps else np.empty
    rows, payloads = new(after - first, dtype), {}
    for place, (column, column_values) in enumerate(zip(job.columns, values, strict=True)):
        name = str(place)
        if isinstance(column_values, NumberColumn):
            rows[name] = _fill_missing(
                column_values.values[first:after], column_values.missing, column, first, after
            )
            continue
        begin, end = int(column_values.offsets[first]), int(column_values.offsets[after])
        lengths = np.diff(column_values.offsets[first : after + 1])
        payload = column_values.payload[begin:end]
        if dtype[place] == REFERENCE:
            rows[name]["offset"] = column_values.offsets[first:after] - begin
            rows[name]["length"] = lengths
            payloads[name] = payload
            continue
        base = dtype[place].base
        item = np.dtype({"U": np.uint32, "S": np.uint8}.get(base.kind, base))
        wide = np.zeros((after - first, dtype[place].itemsize // item.itemsize), item)
        # Row by row, as they lie in the payload.
        wide[np.arange(wide.shape[1]) < lengths[:, None]] = payload
        # Of dtype U and S a text is one element, of others the number of each character is.
        rows[name] = wide.view(base).reshape(rows[name].shape)
    return rows, payloads


def _fill_missing(
    values: NDArray[Any], missing: Any, column: CsvColumn, first: int, after: int
) -> NDArray[Any]:
    if missing is None or not missing[first:after].any():
        return values
    result = values.copy()
    default = column.default
    if default is None:
        default = np.datetime64("NaT") if values.dtype.kind == "M" else np.nan
    result[missing[first:after]] = default
    return result

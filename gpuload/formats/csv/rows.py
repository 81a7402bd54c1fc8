"""CSV files as rows of one size, block by block: the rows of a file go to a sink while the next
blocks are parsed.

Order    several blocks are parsed side by side in threads, and written in their order.
Kinds    a type that the user does not give is guessed from the first block, and each other block
         must fit. A block that does not fit makes the form wider: the rest of the file is parsed
         without being written, and the caller begins anew, with a form that holds all blocks. So
         types are those of the whole data, and most files are read once.
Room     text without a given length gets half as much room again as the first block needs, and a
         character has one byte until one needs more.
Wrong    lines are an error; or, where the user wants to keep them, records without a value: they
         are cut out of the text of their block, and their rows are zeros, which are never read.
Memory   a few blocks, their columns and rows; rows that are very long are made some at a time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import FormatError, GpuloadError, RecordError
from gpuload.formats.csv import faults, parse
from gpuload.formats.csv.columns import Column, Dialect
from gpuload.formats.csv.kinds import (
    ANY_LENGTH,
    FLOAT,
    INTEGER,
    LONGEST_FIXED,
    NUMBERS,
    REFERENCE,
    UNSIGNED,
    Form,
    Kind,
    is_found,
    is_measured,
    is_referred,
    is_text,
    kind_of_dtype,
    needs_value,
    row_dtype,
)
from gpuload.formats.csv.lines import (
    BLOCK_BYTES,
    Block,
    Record,
    blocks,
    num_ends,
    scan,
    split_block,
)
from gpuload.formats.csv.parse import NULL, OVER, TEXT, ColumnRequest, Numbers, Texts, Unreadable
from gpuload.progress import Progress
from gpuload.storage.files import Files
from gpuload.threads import num_cores, parallel_map

AT_ONCE = 4  # blocks a core that are parsed before the rows of the first are written; the end of each turn is waiting
MANY_COLUMNS = (
    64  # of files with more, blocks are longer, as each column of a block costs some microseconds
)
MOST_BLOCKS = 8  # times BLOCK_BYTES
PIECE_BYTES = (
    1 << 20
)  # of rows that are filled column by column, which stay in the cache; at least PIECE_ROWS
PIECE_ROWS = 64
ROWS_BYTES = (
    1 << 24
)  # of rows of a block that a thread makes at once; those of more are made when they are written
PLACE = re.compile(r"^byte [0-9]+, ")  # which the source says itself
OF_COLUMN = re.compile(
    r"In CSV column #([0-9]+): (?:Row #[0-9]+: )?(.*)", re.DOTALL
)  # as PyArrow's words begin
SHORT_BYTES = (
    1 << 14
)  # of the pieces of a block in which a line is wrong: at least these, and as many a column
SHORT_COLUMN_BYTES = (
    64  # measured: to parse a piece takes 25 us a column, to look at each of its values 1 us
)
PARTS = 8  # into which a block with a wrong line is cut, and each part with one again
MOST_BAD = 10_000  # lines of a file that are wrong and kept
LEAST_WIDTH = 16  # characters: room for text that was taken for numbers at first
UTF32 = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"


@dataclass(frozen=True)
class Job:
    """The files to read, and how.

    Attributes:
        files: the user's.
        dialect: the form of their text.
        names: of all columns of a file.
        columns: those that are read, in the order of the fields.
        keeps_bad: True if a line that is wrong becomes a record that cannot be read, and is no
            error yet.
    """

    files: Files
    dialect: Dialect
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    keeps_bad: bool = False


@dataclass(frozen=True)
class Bad:
    """A line that is wrong, kept as a record.

    Attributes:
        number: of the record in its file; in its block, until the file is read.
        line: of the file.
        offset: the byte of the file where it begins; -1 where that is not known.
        reason: the fault, without the name of the place.
        cause: of the error.
        remedy: of the error.
    """

    number: int
    line: int
    offset: int
    reason: str
    cause: str
    remedy: str


T = TypeVar("T")


class Sink(Protocol):
    """Takes the rows of one file."""

    def rows(self, rows: NDArray[Any]) -> None:
        """Take rows, in their order."""

    def payload(self, payload: NDArray[np.uint8]) -> int:
        """Take bytes that rows refer to; returns where they begin among all of these."""


@dataclass
class Part:
    """The result of reading a file.

    Attributes:
        count: its records.
        places: int64 ``[num_blocks, 4]``: of each block the first record, its line, the byte of the
            file where the block begins (-1: not known), and 1 if each record is one line, else 0.
        longest: of each column the characters of its longest text (bytes with dtype S), 0 for
            others.
        bad: the records whose lines are wrong, in their order.
    """

    count: int = 0
    places: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    longest: list[int] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)


class Unfit(Exception):
    """A file does not fit the form; ``form`` holds all that was seen of it."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form


def guess(job: Job) -> Form:
    """Return the form of the first block that has records; room for text is twice that of its
    longest there."""
    form = tuple(kind_of_dtype(column) or Kind(NULL) for column in job.columns)
    if not any(map(is_found, job.columns)):
        return form
    for number in range(len(job.files)):
        for block in bodies(job, number, BLOCK_BYTES):
            if block.data:
                path = job.files.paths[number]
                form = read_sound_lines(job, path, block, form, partial(_form_of, path, form), form)
                return tuple(
                    replace(
                        kind,
                        width=min(max(kind.width + kind.width // 2, LEAST_WIDTH), LONGEST_FIXED),
                    )
                    if kind.read == TEXT and is_measured(column) and not is_text(column, kind)
                    else kind
                    for column, kind in zip(job.columns, form, strict=True)
                )
    return form


def _form_of(path: str, form: Form, job: Job, block: Block) -> Form:
    return _widen_form(job, path, block, form)[0]


def read_sound_lines(
    job: Job, path: str, block: Block, form: Form, read: Callable[[Job, Block], T], empty: T
) -> T:
    """Return the result of a function for a block; where bad lines are kept, for the block without
    them."""
    try:
        return read(job, block)
    except (RecordError, Unreadable):
        if not job.keeps_bad:
            raise
    block, _ = _without_bad(job, path, block, form)
    if block.data:
        return read(replace(job, keeps_bad=False), block)
    return empty


def convert(job: Job, number: int, form: Form, sink: Sink | None, progress: Progress) -> Part:
    """Read a file and write its rows to a sink; without a sink the file is only parsed.

    Raises:
        Unfit: the form does not hold the file; the rows in the sink are of no use.
        GpuloadError: a line is wrong; names file and line.
    """
    path, files = job.files.paths[number], job.files
    part, places, wider = (
        Part(longest=[0] * len(job.columns)),
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

    def parser_of(block: Block) -> Callable[[], _BlockRows | Form]:
        return lambda: _parse_block(job, path, block, wider)

    def fetch() -> list[Block]:
        return list(islice(stream, AT_ONCE * cores))

    chunk = fetch()
    while chunk or ready:
        # Side by side: parsed blocks are written, the next ones are read. The first error in this
        # order is raised.
        tasks: list[Callable[[], Any]] = [write, *map(parser_of, chunk), fetch]
        _, *results, coming = parallel_map(lambda task: task(), tasks, cores)
        ready = []
        for block, block_rows in zip(chunk, results, strict=True):
            if isinstance(block_rows, tuple):
                wider = _wider(wider, block_rows)
                continue
            places.append(
                (part.count, block.line, block.offset, int(block.num_lines == block_rows.count))
            )
            part.bad += [replace(bad, number=part.count + bad.number) for bad in block_rows.bad]
            check_count(path, part.bad[: MOST_BAD + 1])
            part.count += block_rows.count
            part.longest = [
                max(pair) for pair in zip(part.longest, block_rows.longest, strict=True)
            ]
            # Once the form was widened, the rows are of no use: the rest of the file is only looked
            # at.
            if wider is form:
                ready += [block_rows]
            else:
                ready += []
            if block.offset >= 0:
                progress.show((before + block.offset) >> 20, total >> 20, "MB")
            else:
                progress.show()
        chunk = coming
    if wider is not form:
        raise Unfit(wider)
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


def bodies(job: Job, number: int, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield the blocks of a file without its header."""
    has_header = job.dialect.header
    for block in blocks(job.files, number, job.dialect, block_bytes):
        if has_header:
            head = next(scan(block.data, job.dialect, block.line), None)
            if head is None:
                continue  # nothing but empty lines yet
            has_header, lines = False, num_ends(block.data[: head.end])
            if block.offset >= 0:
                offset = block.offset + head.end
            else:
                offset = -1
            block = Block(
                block.data[head.end :],
                block.line + lines,
                block.num_lines - lines,
                offset,
                block.has_quotes,
            )
        if block.data:
            yield block


Pieces = Iterable[tuple[NDArray[Any], dict[str, NDArray[np.uint8]]]]


@dataclass
class _BlockRows:
    """A block as rows: ``pieces`` one after the other, with the bytes that the rows of each refer
    to."""

    count: int
    longest: list[int]
    pieces: Pieces
    bad: Sequence[Bad] = ()


def _write_rows(block_rows: _BlockRows, sink: Sink) -> None:
    for rows, payloads in block_rows.pieces:
        for name, payload in payloads.items():
            rows[name]["offset"] += sink.payload(payload)
        sink.rows(rows)


def write_block(job: Job, path: str, block: Block, form: Form, sink: Sink) -> bool:
    """Write the rows of a block to a sink; return False if the form does not hold them.

    Raises:
        RecordError: a line is wrong; names file and line.
    """
    block_rows = _parse_block(replace(job, keeps_bad=False), path, block, form)
    if isinstance(block_rows, _BlockRows):
        _write_rows(block_rows, sink)
    return isinstance(block_rows, _BlockRows)


def _parse_block(job: Job, path: str, block: Block, form: Form) -> _BlockRows | Form:
    """Return a block as rows, or the form that it needs."""
    try:
        return _whole(job, path, block, form)
    except RecordError:
        if not job.keeps_bad:
            raise
    block, bad = _without_bad(job, path, block, form)
    dtype = row_dtype(job.columns, form)
    if block.data:
        block_rows = _whole(replace(job, keeps_bad=False), path, block, form)
    else:
        block_rows = _BlockRows(0, [0] * len(form), [])
    if not isinstance(block_rows, _BlockRows):
        return block_rows
    return _BlockRows(
        block_rows.count + len(bad), block_rows.longest, _with_bad(block_rows, bad, dtype), bad
    )


def _without_bad(job: Job, path: str, block: Block, form: Form) -> tuple[Block, list[Bad]]:
    """Return a block without its wrong lines, and a list of these.

    Raises:
        GpuloadError: more lines are wrong than are kept.
    """
    sound_lines, bad, row = list[bytes](), list[Bad](), 0
    texts = dict[str, str]()  # one copy of each cause and remedy: those of most errors are equal
    for short, count in _isolate_faults(job, block, form):
        if count is not None:  # all its lines are sound
            sound_lines.append(short.data)
            row += count
            continue
        for record, error in _judge_records(job, path, short, form):
            if error is None:
                sound_lines.append(short.data[record.begin : record.end])
            else:
                reason = error.what.removeprefix(f"{path}, line {record.line}").lstrip(":, ")
                cause, remedy = (
                    texts.setdefault(text, text) for text in (error.cause, error.remedy)
                )
                if short.offset >= 0:
                    offset = short.offset + record.begin
                else:
                    offset = -1
                bad.append(Bad(row, record.line, offset, PLACE.sub("", reason), cause, remedy))
                check_count(path, bad)
            row += 1
    return replace(block, data=b"".join(sound_lines)), bad


def check_count(path: str, bad: Sequence[Bad]) -> None:
    """Raise ``RecordError`` if more lines of a file are wrong than are kept."""
    if len(bad) > MOST_BAD:
        raise RecordError(
            f"{path}, line {bad[-1].line}: {bad[-1].reason}",
            cause=f"{bad[-1].cause}; with it more than {MOST_BAD} lines of the file are wrong: so many are not kept",
            remedy=bad[-1].remedy,
        )


def _fault(job: Job, path: str, block: Block, form: Form, reason: str) -> GpuloadError:
    """Return the error for the first wrong line of a block; if there is none, an error with
    ``reason``.

    Where wrong lines are kept, all of them are listed later, and none is searched here.
    """
    if job.keeps_bad:
        return RecordError(reason)
    for short, count in _isolate_faults(job, block, form):
        if count is None:
            for _, error in _judge_records(job, path, short, form):
                if error is not None:
                    return error
    last = block.line + block.num_lines - 1
    return FormatError(
        f"{path}, lines {block.line} to {last} cannot be read",
        cause=reason,
        remedy="check delimiter, quote and columns; columns={...} names the type of each",
    )


def _isolate_faults(job: Job, block: Block, form: Form) -> Iterator[tuple[Block, int | None]]:
    """Yield a block in pieces: each with the number of its records, or short and with None: a line
    of it is wrong."""
    short_bytes = max(SHORT_BYTES, SHORT_COLUMN_BYTES * len(job.names))
    part_bytes = max(short_bytes, len(block.data) // PARTS)
    for part in split_block(block, job.dialect, part_bytes):
        count = _count_or_words(job, part, form)[0]
        if count is None and part_bytes > short_bytes and len(part.data) < len(block.data):
            yield from _isolate_faults(job, part, form)
        else:
            yield part, count


def _judge_records(
    job: Job, path: str, short: Block, form: Form
) -> Iterator[tuple[Record, GpuloadError | None]]:
    """Yield each record of a piece with its error or None: PyArrow decides which are wrong, the
    scan says why."""

    def reason_of(numbers: Sequence[int]) -> str | None:
        """Return why PyArrow refuses these records together; None if it takes them."""
        data = b"".join(
            short.data[records[number].begin : records[number].end] for number in numbers
        )
        return _count_or_words(job, replace(short, data=data), form)[1]

    def note_errors(numbers: Sequence[int]) -> None:
        """Note an error for each of these records that PyArrow refuses: half of them at a time,
        down to one."""
        if numbers:
            reason = reason_of(numbers)
        else:
            reason = None
        if reason is None:
            return
        if len(numbers) > 1:
            note_errors(numbers[: len(numbers) // 2])
            note_errors(numbers[len(numbers) // 2 :])
            return
        match = OF_COLUMN.match(reason)
        if match:
            column = f", column {job.names[int(match[1])][:80]!r}"
        else:
            column = ""
        errors[numbers[0]] = RecordError(
            f"{path}, line {records[numbers[0]].line}{column} cannot be read",
            cause=match[2] if match else reason,
            remedy="repair it, pass another dtype in columns=, or list in na_values= the texts of missing values",
        )

    records, errors = list[Record](), list[GpuloadError | None]()
    for record, error in faults.each_record(path, short, job.dialect, job.names, job.columns, form):
        records.append(record)
        errors.append(error)
    for number, error in enumerate(errors):
        if error is not None and not isinstance(
            error, RecordError
        ):  # of the arguments, not of a line
            raise error
        if error is not None and reason_of([number]) is None:
            errors[number] = None
    note_errors([number for number, error in enumerate(errors) if error is None])
    yield from zip(records, errors, strict=True)


def _count_or_words(job: Job, block: Block, form: Form) -> tuple[int | None, str | None]:
    """Return the number of records of a block and None; or, where a record is wrong, None and the
    reason.

    A value of a column whose type is guessed is never wrong, but may change the type: such columns
    are read as text.
    """
    loose = tuple(
        Kind(TEXT) if column.dtype is None else kind
        for column, kind in zip(job.columns, form, strict=True)
    )
    try:
        values = _read(job, block, loose)
    except Unreadable as error:
        return None, str(error)
    for column, kind, column_values in zip(job.columns, form, values, strict=True):
        if isinstance(column_values, Numbers):
            if column_values.missing is not None and needs_value(column):
                return None, "a value is missing"
            continue
        has_length = kind.read == TEXT and not (is_measured(column) or is_referred(column, kind))
        if has_length and int(np.diff(column_values.offsets).max(initial=0)) > kind.width:
            return None, "a text is too long"
    return _count(values, job, block), None


def _with_bad(block_rows: _BlockRows, bad: Sequence[Bad], dtype: np.dtype[Any]) -> Pieces:
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


def _whole(job: Job, path: str, block: Block, form: Form) -> _BlockRows | Form:
    """Return a block whose lines all are right as rows, or the form that it needs."""
    try:
        values = _read(job, block, form)
    except Unreadable as error:
        return _widen_form(job, path, block, form, str(error))[0]
    wider, longest = _measure(job, path, block, form, values)
    if wider != form:
        return wider
    count = _count(values, job, block)
    dtype = row_dtype(job.columns, form)
    at_once = max(PIECE_ROWS, PIECE_BYTES // dtype.itemsize)
    pieces: Iterable[Any] = (
        _rows(job, values, dtype, first, min(first + at_once, count))
        for first in range(0, count, at_once)
    )
    return _BlockRows(
        count, longest, list(pieces) if count * dtype.itemsize <= ROWS_BYTES else pieces
    )


def _read(job: Job, block: Block, form: Form) -> list[Any]:
    """Return the values of a block, column by column; raises `Unreadable` for a number that its
    dtype does not hold."""
    requests = [
        ColumnRequest(
            column.number,
            kind.read,
            column.default if kind.read == TEXT else None,
            column.dtype is None and kind.read in NUMBERS,
        )
        for column, kind in zip(job.columns, form, strict=True)
    ]
    read = parse.read_columns(
        block.data, job.dialect, len(job.names), requests, has_quotes=block.has_quotes
    )
    for column, values in zip(job.columns, read, strict=True):
        if column.dtype is not None and _are_unfit(job, block, column, values):
            raise Unreadable(
                f"In CSV column #{column.number}: a number is none that {column.dtype} holds"
            )
    return [
        _Text.of(values) if isinstance(values, Texts) and _has_characters(column, kind) else values
        for column, kind, values in zip(job.columns, form, read, strict=True)
    ]


def _are_unfit(job: Job, block: Block, column: Column, values: Numbers | Texts) -> bool:
    """Return True if a float of a column is not the number that its text says: infinite, or a
    rounded integer."""
    if not isinstance(values, Numbers) or values.values.dtype.kind != "f":
        return False
    return parse.are_unfit(
        block.data, job.dialect, len(job.names), column.number, values, has_quotes=block.has_quotes
    )


def _has_characters(column: Column, kind: Kind) -> bool:
    """Return True if a row holds the characters of a column's text, and not bytes of UTF-8."""
    return (column.dtype is None or column.dtype.kind == "U") and not is_text(column, kind)


@dataclass(frozen=True)
class _Text:
    """Texts of a column as the numbers of their characters, in the least bytes that hold all of
    them: 1, 2 or 4."""

    payload: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Texts) -> _Text:
        payload = texts.payload
        if not payload.size or int(payload.max()) < 0x80:
            return cls(payload, texts.offsets)
        begins = np.zeros(payload.size + 1, np.int64)  # characters in front of each byte
        # In UTF-8 a byte 10xxxxxx goes on with a character, any other begins one.
        np.cumsum((payload & 0xC0) != 0x80, out=begins[1:])
        codes = np.frombuffer(payload.tobytes().decode("utf-8").encode(UTF32), np.uint32)
        return cls(codes.astype(np.min_scalar_type(codes.max())), begins[texts.offsets])


def _count(values: Sequence[Any], job: Job, block: Block) -> int:
    first = values[0]
    return len(first.values) if isinstance(first, Numbers) else first.offsets.size - 1


def _measure(
    job: Job, path: str, block: Block, form: Form, values: Sequence[Any]
) -> tuple[Form, list[int]]:
    """Return the form that values need, and the longest text of each column."""
    wider, longest = list(form), [0] * len(form)
    for place, (column, kind, column_values) in enumerate(
        zip(job.columns, form, values, strict=True)
    ):
        if isinstance(column_values, Numbers):
            if column.dtype is None:
                wider[place] = _of_numbers(job, block, column, kind, column_values)
            elif column_values.missing is not None and needs_value(column):
                raise _fault(job, path, block, form, "a value is missing")
        elif column_values.offsets.size > 1:
            longest[place] = max_length = int(np.diff(column_values.offsets).max())
            if is_referred(column, kind):
                continue
            if is_measured(column):
                wider[place] = replace(kind, width=min(max(kind.width, max_length), ANY_LENGTH))
            elif max_length > kind.width:
                raise _fault(job, path, block, form, "a text is too long")
            if is_found(column):
                wider[place] = replace(
                    wider[place], unit=max(kind.unit, column_values.payload.itemsize)
                )
    return tuple(wider), longest


def _of_numbers(job: Job, block: Block, column: Column, kind: Kind, column_values: Numbers) -> Kind:
    """Return the kind that a column of a guessed type needs for some of its numbers."""
    kind = kind.widen(kind.name, column_values.missing is not None)
    if kind.read == FLOAT and kind.name != OVER and _are_unfit(job, block, column, column_values):
        return kind.widen(OVER, False)
    return kind


def _widen_form(
    job: Job, path: str, block: Block, form: Form, reason: str = ""
) -> tuple[Form, list[int]]:
    """Return the form that holds a block, too, and the longest text of each column.

    Args:
        job: the files to read, and how.
        path: of the file.
        block: of it.
        form: that holds all earlier blocks; an empty ``reason`` says that there are none.
        reason: why the block cannot be read in this form.
    """
    free = [place for place, column in enumerate(job.columns) if column.dtype is None]
    wider, last_reason = list(form), reason
    try:
        if free:
            numbers = [job.columns[place].number for place in free]
            column_kinds = parse.infer_kinds(
                block.data, job.dialect, len(job.names), numbers, has_quotes=block.has_quotes
            )
            for place, (name, has_missing) in zip(free, column_kinds, strict=True):
                wider[place] = form[place].widen(name, has_missing)
        if not reason or tuple(wider) != form:
            try:
                return _measure(job, path, block, tuple(wider), _read(job, block, tuple(wider)))
            except Unreadable as error:
                last_reason = str(error)
        before, wider = wider, _readable(job, block, wider, free)
        if wider == before:
            raise Unreadable(last_reason)
        return _measure(job, path, block, tuple(wider), _read(job, block, tuple(wider)))
    except Unreadable as error:
        if (
            reason and tuple(wider) != form
        ):  # wider, and not wide enough: the next try goes on from here
            return tuple(wider), [0] * len(form)
        raise _fault(job, path, block, form, str(error)) from None


def _readable(job: Job, block: Block, form: Sequence[Kind], free: Sequence[int]) -> list[Kind]:
    """Return a form in which columns of found types that a block cannot be read in by themselves
    are text.

    Hexadecimal integers among floats are such, or times too early for the nanoseconds of others;
    also integers below 0 among some that only uint64 holds, which are floats together.
    """
    wider = list(form)
    for place in _unreadable(job, block, form, free):
        is_signed = form[place].name == UNSIGNED and _is_readable(
            job, block, [place], [Kind(INTEGER)]
        )
        wider[place] = replace(form[place], name=FLOAT if is_signed else TEXT)
    return wider


def _unreadable(job: Job, block: Block, form: Sequence[Kind], places: Sequence[int]) -> list[int]:
    """Return the columns that cannot be read; searched by halves, because a file may have
    thousands."""
    if not places or _is_readable(job, block, places, [form[place] for place in places]):
        return []
    if len(places) == 1:
        return list(places)
    half = len(places) // 2
    return [
        column
        for part in (places[:half], places[half:])
        for column in _unreadable(job, block, form, part)
    ]


def _is_readable(job: Job, block: Block, places: Sequence[int], kinds: Sequence[Kind]) -> bool:
    try:
        _read(
            replace(job, columns=tuple(job.columns[place] for place in places)), block, tuple(kinds)
        )
    except Unreadable:
        return False
    return True


def _rows(
    job: Job, values: Sequence[Any], dtype: np.dtype[Any], first: int, after: int
) -> tuple[NDArray[Any], dict[str, NDArray[np.uint8]]]:
    """Return some records of a block as rows, and the bytes that they refer to."""
    # Gaps for alignment go to the table, too: they are zeros, and not what the memory held before.
    has_gaps = sum(dtype[place].itemsize for place in range(len(job.columns))) < dtype.itemsize
    rows, payloads = (np.zeros if has_gaps else np.empty)(after - first, dtype), {}
    for place, (column, column_values) in enumerate(zip(job.columns, values, strict=True)):
        name = str(place)
        if isinstance(column_values, Numbers):
            rows[name] = _fill_missing(
                column_values.values[first:after], column_values.missing, column, first, after
            )
            continue
        begin, end = int(column_values.offsets[first]), int(column_values.offsets[after])
        lengths = np.diff(column_values.offsets[first : after + 1])
        payload = column_values.payload[begin:end]
        if dtype[place] == REFERENCE:
            rows[name]["offset"], rows[name]["length"] = (
                column_values.offsets[first:after] - begin,
                lengths,
            )
            payloads[name] = payload
            continue
        base = dtype[place].base
        item = np.dtype(np.uint32 if base.kind == "U" else np.uint8 if base.kind == "S" else base)
        wide = np.zeros((after - first, dtype[place].itemsize // item.itemsize), item)
        wide[np.arange(wide.shape[1]) < lengths[:, None]] = (
            payload  # row by row, as they lie in the payload
        )
        if base.kind == "u":
            rows[name] = wide
        else:
            rows[name] = wide.view(base)[:, 0]
    return rows, payloads


def _fill_missing(
    values: NDArray[Any], missing: Any, column: Column, first: int, after: int
) -> NDArray[Any]:
    if missing is None or not missing[first:after].any():
        return values
    result = values.copy()
    if values.dtype.kind == "M":
        empty: Any = np.datetime64("NaT")
    else:
        empty = np.nan
    if column.default is not None:
        result[missing[first:after]] = column.default
    else:
        result[missing[first:after]] = empty
    return result

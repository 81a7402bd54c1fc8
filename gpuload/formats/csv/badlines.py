"""Wrong lines of a block: PyArrow decides which lines are wrong, a scan of each says why.

Search  A block that PyArrow refuses is cut into some parts, and each part that it refuses again,
        down to single records. So a block with one wrong line among thousands costs little more
        than parsing it twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuload.errors import FormatError, GpuloadError, RecordError
from gpuload.formats.csv import faults
from gpuload.formats.csv.kinds import Form
from gpuload.formats.csv.lines import TextBlock, num_ends, scan, split_block
from gpuload.formats.csv.parse import Unreadable
from gpuload.formats.csv.values import Job, count_records

PLACE = re.compile(r"^byte [0-9]+, ")  # which the source says itself
PARTS = 4  # into which a block with a wrong line is cut
MOST_BAD = 10_000  # lines of a file that are wrong and kept


@dataclass(frozen=True)
class BadLine:
    """A wrong line that is kept as a record.

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


def first_error(
    job: Job, path: str, block: TextBlock, form: Form, refusal: Unreadable
) -> GpuloadError:
    """Return the error for the first wrong line of a block that PyArrow refused."""
    for _, _, error in _judge(job, path, block, form, refusal):
        if error is not None:
            return error
    last = block.line + block.num_lines - 1
    return FormatError(
        f"{path}, lines {block.line} to {last} cannot be read",
        cause=str(refusal),
        remedy="check delimiter, quote and columns; columns={...} names the type of each",
    )


def separate(
    job: Job, path: str, block: TextBlock, form: Form, refusal: Unreadable
) -> tuple[TextBlock, list[BadLine]]:
    """Return a block that PyArrow refused without its wrong lines, and a list of these.

    Raises:
        RecordError: more lines are wrong than are kept.
    """
    sound, bad, row = list[bytes](), list[BadLine](), 0
    texts = dict[str, str]()  # one copy of each cause and remedy: those of most errors are equal
    for part, count, error in _judge(job, path, block, form, refusal):
        if error is None:
            sound.append(part.data)
        else:
            reason = error.what.removeprefix(f"{path}, line {part.line}").lstrip(":, ")
            cause, remedy = (texts.setdefault(text, text) for text in (error.cause, error.remedy))
            bad.append(BadLine(row, part.line, part.offset, PLACE.sub("", reason), cause, remedy))
            check_count(path, bad)
        row += count
    return replace(block, data=b"".join(sound)), bad


def check_count(path: str, bad: Sequence[BadLine]) -> None:
    """Raise ``RecordError`` if more lines of a file are wrong than are kept."""
    if len(bad) > MOST_BAD:
        raise RecordError(
            f"{path}, line {bad[-1].line}: {bad[-1].reason}",
            cause=f"{bad[-1].cause}; with it more than {MOST_BAD} lines of the file are wrong: "
            "so many are not kept",
            remedy=bad[-1].remedy,
        )


def _judge(
    job: Job, path: str, block: TextBlock, form: Form, refusal: Unreadable | None = None
) -> Iterator[tuple[TextBlock, int, GpuloadError | None]]:
    """Yield a block in parts, each with the number of its records and the error of a wrong line.

    A part with an error is a single line; the others have none.
    """
    if refusal is None:
        try:
            yield block, count_records(job, block, form), None
            return
        except Unreadable as error:
            refusal = error
    parts = list(split_block(block, job.dialect, max(1, len(block.data) // PARTS)))
    if len(parts) == 1:
        parts = list(_single_records(job, block))
    if len(parts) == 1:
        yield (
            parts[0],
            1,
            faults.explain(path, parts[0], job.dialect, job.names, job.columns, form, refusal),
        )
    else:
        for part in parts:
            yield from _judge(job, path, part, form)


def _single_records(job: Job, block: TextBlock) -> Iterator[TextBlock]:
    """Yield each record of a block as a block of its own."""
    for record in scan(block.data, job.dialect, block.line):
        data = block.data[record.begin : record.end]
        offset, num_lines = block.offset_of(record.begin), num_ends(data)
        yield replace(block, data=data, line=record.line, num_lines=num_lines, offset=offset)

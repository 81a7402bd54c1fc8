"""The table: the rows of one CSV file as a file in the cache folder, read as fixed-size records.

Layout   A kept file (`storage/keptfile.py`): rows of ``row_bytes`` from byte 0 on | their payload |
         places, int64 ``[n, 4]`` (`rows.CsvFileRecords`). The JSON at its end has their numbers.
Why      shuffled reading asks for one piece of memory a record. The same data by columns, as in an
         Arrow file, asks for one a column: measured on 10^6 records of ten columns, shuffled, see
         `benchmarks/csv_rows.py`.
Trust    all bytes have checksums; a table that does not fit them is made anew. While it is read its
         file is watched like those of the user.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.formats.csv.badlines import BadLine
from gpuload.formats.csv.kinds import ColumnKind, Form
from gpuload.formats.csv.rows import CsvFileRecords
from gpuload.storage import keptfile
from gpuload.storage.keptfile import KeptFile

VERSION = 7  # of the layout, and of which types and values are read
PLACE_BYTES = 4 * 8
MOST_PLACES_BYTES = 1 << 30


@dataclass(frozen=True)
class RowTable:
    """A table that is there.

    Attributes:
        file: the kept file.
        part: the result of reading the CSV file.
        row_bytes: of a row.
        payload: the byte where the payload begins.
    """

    file: KeptFile
    part: CsvFileRecords
    row_bytes: int
    payload: int


class TableWriter:
    """Writes a table: a `rows.Sink`.

    Args:
        path: of a new file.
        made_of: the origin of the table, as `keptfile.KeptWriter` takes it.
        has_payload: True if rows refer to bytes.
    """

    def __init__(self, path: str, made_of: Any, *, has_payload: bool) -> None:
        self._path, self._made_of, self._has_payload = path, made_of, has_payload
        self._payload_bytes = 0

    def rows(self, rows: NDArray[Any]) -> None:
        """Take rows."""
        self._file.write(rows.view(np.uint8).data)

    def payload(self, payload: NDArray[np.uint8]) -> int:
        """Take bytes that rows refer to; returns where they begin in the payload."""
        begin = self._payload_bytes
        self._spool.write(payload.data)
        self._payload_bytes += payload.size
        return begin

    @contextlib.contextmanager
    def open_file(self) -> Iterator[TableWriter]:
        """Open the file; the bytes of the payload go to one without a name until all rows are
        written."""
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(keptfile.KeptWriter(self._path, self._made_of))
            if self._has_payload:
                # Beside the table, and not in TMPDIR, which may be small, or lie in memory.
                home = os.path.dirname(self._path)
                self._spool: Any = stack.enter_context(tempfile.TemporaryFile(dir=home))
            yield self

    def end(self, part: CsvFileRecords, row_bytes: int) -> None:
        """Write the payload, the places and the faults behind the rows."""
        if self._has_payload:
            self._spool.seek(0)
            while piece := self._spool.read(1 << 20):
                self._file.write(piece)
        distinct = dict.fromkeys(text for fault in part.bad for text in (fault.cause, fault.remedy))
        texts = {text: place for place, text in enumerate(distinct)}
        bad = [
            [
                fault.number,
                fault.line,
                fault.offset,
                fault.reason,
                texts[fault.cause],
                texts[fault.remedy],
            ]
            for fault in part.bad
        ]
        self._file.write(np.ascontiguousarray(part.places, "<i8").tobytes())
        numbers = {
            "row_bytes": row_bytes,
            "count": part.count,
            "payload_bytes": self._payload_bytes,
        }
        self._file.end({**numbers, "longest": part.longest, "texts": list(texts), "bad": bad})


def load(path: str, made_of: Any, row_bytes: int, *, eager: bool) -> RowTable | None:
    """Return a table; None if it is not there, is damaged, or is not one of this form."""
    file = keptfile.open_kept_file(path, made_of, eager=eager)
    if file is None:
        return None
    about = file.about
    count, payload_bytes = about["count"], about["payload_bytes"]
    places_at = count * row_bytes + payload_bytes
    places_bytes = file.content_bytes - places_at
    if (
        about["row_bytes"] != row_bytes
        or not 0 <= places_bytes <= MOST_PLACES_BYTES
        or places_bytes % PLACE_BYTES
    ):
        return None
    raw = file.read(places_at, places_bytes)
    if raw is None:
        return None
    places = np.frombuffer(raw, "<i8").astype(np.int64).reshape(-1, 4)
    texts = about["texts"]
    bad = [BadLine(number, line, offset, reason, texts[cause], texts[remedy])
           for number, line, offset, reason, cause, remedy in about["bad"]]  # fmt: skip
    return RowTable(
        file, CsvFileRecords(count, places, about["longest"], bad), row_bytes, count * row_bytes
    )


def to_json(form: Form) -> list[list[Any]]:
    """Return a form as plain values."""
    return [[kind.name, kind.width, kind.unit, kind.has_missing] for kind in form]


def form_of_json(values: Sequence[Sequence[Any]]) -> Form:
    """Return the form that `to_json` made these values of."""
    return tuple(
        ColumnKind(str(name), int(width), int(unit), bool(missing))
        for name, width, unit, missing in values
    )

"""The table: the rows of one CSV file as a file in the cache folder, read like any fixed-size records.

Layout   rows of ``row_bytes`` from byte 0 on | payload, what rows refer to | places, int64 ``[n, 4]`` (`rows.Part`) |
         what it is, as JSON | an end of END.size bytes, which says where these parts begin.
Why      shuffled reading asks for one piece of memory a record. The same data by columns, as in an Arrow file, asks for
         one a column: measured on 10^6 records of ten columns, shuffled, see `benchmarks/csv.py`.
Trust    the end, what lies in front of it and a sample of the rows have checksums; a table that does not fit them is
         made anew. While it is read its file is watched like those of the user.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gpuload.sources.csv.kinds import Form, Kind
from gpuload.sources.csv.rows import Bad, Part

VERSION = 3  # of the layout
END = struct.Struct(
    "<8s5q2I"
)  # magic, row_bytes, count, payload_bytes, num_places, json_bytes, their crc32, of a sample
MAGIC = b"gpulcsv\x01"
PLACE_BYTES = 4 * 8
SAMPLES, SAMPLE_BYTES = 64, 4096
MOST_JSON_BYTES = 1 << 26


@dataclass(frozen=True)
class Table:
    """A table that is there.

    Attributes:
        path: of its file.
        part: what it holds.
        row_bytes: of a row.
        payload: the byte where the payload begins.
        num_bytes: of the whole file.
    """

    path: str
    part: Part
    row_bytes: int
    payload: int
    num_bytes: int


class Writer:
    """Writes a table: a `rows.Sink`.

    Args:
        path: of a new file.
        has_payload: True if rows refer to bytes.
    """

    def __init__(self, path: str, *, has_payload: bool) -> None:
        self._path, self._has_payload = path, has_payload
        self._count = self._payload_bytes = 0

    def rows(self, rows: NDArray[Any]) -> None:
        """Take rows."""
        self._file.write(rows.view(np.uint8).data)
        self._count += rows.size

    def payload(self, payload: NDArray[np.uint8]) -> int:
        """Take bytes that rows refer to; returns where they begin in the payload."""
        begin = self._payload_bytes
        self._spool.write(payload.data)
        self._payload_bytes += payload.size
        return begin

    @contextlib.contextmanager
    def opened(self) -> Iterator[Writer]:
        """Open the file; the bytes of the payload go to one without a name until all rows are written."""
        with contextlib.ExitStack() as stack:
            self._file: BinaryIO = stack.enter_context(open(self._path, "wb"))
            if self._has_payload:
                home = os.path.dirname(self._path)
                self._spool: Any = stack.enter_context(tempfile.TemporaryFile(dir=home))
            yield self

    def end(self, part: Part, form: Form, row_bytes: int) -> None:
        """Write what stands behind the rows."""
        if self._has_payload:
            self._spool.seek(0)
            while piece := self._spool.read(1 << 20):
                self._file.write(piece)
        distinct = dict.fromkeys(text for one in part.bad for text in (one.cause, one.remedy))
        texts = {text: place for place, text in enumerate(distinct)}
        bad = [[one.number, one.line, one.offset, one.reason, texts[one.cause], texts[one.remedy]] for one in part.bad]
        about = {"form": to_json(form), "longest": part.longest, "texts": list(texts), "bad": bad}
        told = json.dumps(about).encode()
        behind = np.ascontiguousarray(part.places, "<i8").tobytes() + told
        self._file.write(behind)
        self._file.flush()
        numbers = (row_bytes, part.count, self._payload_bytes, len(part.places), len(told))
        sample = _sampled(self._path, part.count * row_bytes + self._payload_bytes)
        self._file.write(END.pack(MAGIC, *numbers, zlib.crc32(struct.pack("<5q", *numbers) + behind), sample))


def load(path: str, form: Form, row_bytes: int) -> Table | None:
    """Return a table; None if it is not there, or is not one of this form."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < END.size:
                return None
            file.seek(size - END.size)
            magic, *numbers, crc, sample = END.unpack(file.read(END.size))
            own_row_bytes, count, payload_bytes, num_places, json_bytes = numbers
            if magic != MAGIC or min(numbers) < 0 or own_row_bytes != row_bytes or json_bytes > MOST_JSON_BYTES:
                return None
            behind = num_places * PLACE_BYTES + json_bytes
            if count * row_bytes + payload_bytes + behind + END.size != size:
                return None
            file.seek(size - END.size - behind)
            told = file.read(behind)
        if zlib.crc32(struct.pack("<5q", *numbers) + told) != crc:
            return None
        about = json.loads(told[num_places * PLACE_BYTES :])
        if from_json(about["form"]) != form or _sampled(path, count * row_bytes + payload_bytes) != sample:
            return None
        places = np.frombuffer(told[: num_places * PLACE_BYTES], "<i8").astype(np.int64).reshape(-1, 4)
        texts = [str(text) for text in about["texts"]]
        bad = [
            Bad(int(number), int(line), int(offset), str(reason), texts[cause], texts[remedy])
            for number, line, offset, reason, cause, remedy in about["bad"]
        ]
        part = Part(count, places, [int(length) for length in about["longest"]], bad)
        return Table(path, part, row_bytes, count * row_bytes, size)
    except (OSError, ValueError, LookupError, TypeError):  # not there, cut short, or another file: it is made anew
        return None


def _sampled(path: str, num_bytes: int) -> int:
    """Return the checksum of some pieces of rows and payload."""
    crc = 0
    with open(path, "rb") as file:
        for begin in np.linspace(0, max(0, num_bytes - SAMPLE_BYTES), SAMPLES).astype(np.int64).tolist():
            file.seek(begin)
            crc = zlib.crc32(file.read(min(SAMPLE_BYTES, num_bytes - begin)), crc)
    return crc


def to_json(form: Form) -> list[list[Any]]:
    """Return a form as plain values."""
    return [[kind.name, kind.width, kind.unit, kind.has_missing] for kind in form]


def from_json(given: Sequence[Sequence[Any]]) -> Form:
    """Return the form that plain values say."""
    return tuple(Kind(str(name), int(width), int(unit), bool(missing)) for name, width, unit, missing in given)

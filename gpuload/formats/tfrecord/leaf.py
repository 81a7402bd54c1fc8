"""Leaf: the records of TFRecord files, verified and parsed.

Frames   a record is read with its header and its checksums, in one piece. The header must say the
         length that the index says, so that an index of another file is noticed; both checksums are
         verified for all records of a read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gpuload import core
from gpuload.errors import RowError
from gpuload.formats.tfrecord import checksums
from gpuload.formats.tfrecord.features import FeatureColumn
from gpuload.formats.tfrecord.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES
from gpuload.formats.tfrecord.parsing import parse_features
from gpuload.formats.tfrecord.values import MissingFeature, values_of
from gpuload.formats.tfrecord.wire import list_keys
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Bytes, Indices, Leaf, Values
from gpuload.sources.memory import room
from gpuload.sources.spans import SpanLeaf
from gpuload.spec import Spec
from gpuload.storage.extents import Storage

AGAIN = "copy the file again; source.select(...) leaves the record out"


class TFRecordLeaf(SpanLeaf):
    """Records of TFRecord files.

    Args:
        columns: the fields.
        storage: of the files.
        bounds: int64 ``[num_records + num_files]``: of each file the byte where each record begins,
            and the last ends.
        starts: int64 ``[num_files + 1]``, the number of the first record of each file, and of all.
        paths: of the files, as the user named them.
        verify: False: payloads are not compared with their checksums.
    """

    def __init__(
        self,
        columns: Sequence[FeatureColumn],
        storage: Storage,
        bounds: Indices,
        starts: Indices,
        paths: Sequence[str],
        *,
        verify: bool,
    ) -> None:
        super().__init__(storage, bounds, starts, paths, FRAME_BYTES)
        self.spec = Spec(tuple(column.field for column in columns))
        check = "not verified (verify=False)"
        if verify:
            check = "verified"
        self.how = f"{storage.how}, checksums {check}"
        self._columns, self._verify = tuple(columns), verify
        self._features = (*columns, *(place for column in columns for place in column.places))

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the fields of records as they are stored, in the order of ``spec``.

        Raises:
            RowError: a record is damaged, or holds something else than the fields.
        """
        del numbers
        self.check(raw)
        return self.parse(raw)

    def parse(self, raw: Ragged) -> list[Values]:
        """Return the fields of records that are whole."""
        payload = raw.payload
        begins, ends = _payloads(raw)
        all_lists = parse_features(payload, begins, ends, self._features)
        places = iter(all_lists[len(self._columns) :])
        try:
            return [
                values_of(column, lists, payload, [next(places) for _ in column.places])
                for column, lists in zip(self._columns, all_lists, strict=False)
            ]
        except MissingFeature as error:
            has = list_keys([payload[begins[error.row] : ends[error.row]].tobytes()])
            raise RowError(
                error.row, error.reason, cause=f"it has {has}", remedy=error.remedy
            ) from None

    def check(self, raw: Ragged) -> None:
        """Compare the headers of records with the index, and all bytes with their checksums.

        Raises:
            RowError: a record is damaged.
        """
        (begins, ends), raw_bytes = _payloads(raw), raw.payload
        if core.native is not None and self._verify:
            row, damage = core.native.verify(raw_bytes, begins, ends)
            if damage:
                _check(
                    raw_bytes, begins[row : row + 1], ends[row : row + 1], row, verify=True
                )  # raises its error
            return
        _check(raw_bytes, begins, ends, 0, verify=self._verify)


def _payloads(raw: Ragged) -> tuple[Indices, Indices]:
    """Return where the payload of each record begins and ends."""
    return raw.offsets[:-1] + HEADER_BYTES, raw.offsets[1:] - FOOTER_BYTES


def _check(raw: Bytes, begins: Indices, ends: Indices, row: int, *, verify: bool) -> None:
    """Raise ``RowError`` if a record differs from its frame; ``row`` is added to the row that the
    error names."""
    headers = _slices(raw, begins - HEADER_BYTES, HEADER_BYTES)
    # Read with a sign, as the index has it: a damaged length of 2 ** 63 or more is negative, and
    # differs.
    expected, lengths = np.ascontiguousarray(headers[:, :8]).view("<i8")[:, 0], ends - begins
    wrong = expected != lengths
    if wrong.any():
        bad = int(wrong.argmax())
        raise RowError(
            row + bad,
            f"its header says {int(expected[bad]) % (1 << 64)} bytes, the index "
            f"{int(lengths[bad])}",
            cause="the bytes changed after the index was made",
            remedy=f"{AGAIN}; if the file is right, remove its index (.NAME.gpuload-index beside "
            "it)",
        )
    if verify:
        expected = np.ascontiguousarray(headers[:, 8:]).view("<u4")[:, 0]
        _compare("length", checksums.of_lengths(lengths), expected, row)
        expected = np.ascontiguousarray(_slices(raw, ends, FOOTER_BYTES)).view("<u4")[:, 0]
        _compare("payload", checksums.of_pieces(raw, begins, ends), expected, row)


def _compare(part: str, actual: NDArray[np.uint32], expected: NDArray[np.uint32], row: int) -> None:
    wrong = actual != expected
    if wrong.any():
        bad = int(wrong.argmax())
        raise RowError(
            row + bad,
            f"{part} checksum is {int(actual[bad]):#010x}, the file says "
            f"{int(expected[bad]):#010x}",
            cause="the bytes changed after the file was written, or the copy stopped early",
            remedy=AGAIN,
        )


def _slices(raw: Bytes, begins: Indices, size: int) -> Bytes:
    """Return ``size`` bytes from each place on, as rows; they lie inside ``raw``."""
    windows = as_strided(raw, (raw.size - size + 1, size), (1, 1), writeable=False)
    rows: Bytes = windows[begins]
    return rows


def one_record(leaf: Leaf, number: int) -> Ragged:
    """Return the bytes of a record, with its frame."""
    numbers = np.array([number], np.int64)
    size = int(leaf.num_bytes(numbers)[0])
    raw = room((size,), np.dtype(np.uint8))
    leaf.read(numbers, raw, np.zeros(1, np.int64))
    return Ragged(raw, np.array([0, size], np.int64))

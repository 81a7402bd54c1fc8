"""CRC32C (Castagnoli) of bytes: by the core, or by NumPy, which is its meaning.

A CRC is linear: that of zeros, beginning with zero, is zero, and that of a sum is the sum, bit by
bit. So NumPy cuts all pieces into rows of ROW_BYTES, filled up with zeros in front, makes the
checksums of all rows side by side, and joins those of a piece by tables that carry a checksum over
the row behind it.

Source  RFC 3720, appendix B.4
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from gpuload import core

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
Sums = NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78  # its bits reversed
ROW_BYTES = 64
START_BYTES = 4  # the checksum begins with ones: as if these many bytes of the data were turned
MOST_BYTES = 1 << 24  # of which rows are made at a time


def of_bytes(data: bytes | memoryview | Bytes, before: int = 0) -> int:
    """Return the checksum of bytes behind others of the checksum ``before``; of none that is 0."""
    if core.native is not None:
        return core.native.crc32c(data, before)
    raw = np.frombuffer(data, np.uint8)
    for begin in range(0, raw.size, MOST_BYTES):
        part = raw[begin : begin + MOST_BYTES]
        before = int(by_numpy(part, np.zeros(1, np.int64), np.array([part.size]), before)[0])
    return before


def of_pieces(raw: Bytes, begins: Int64s, ends: Int64s) -> Sums:
    """Return the checksum of ``raw[begins[i]:ends[i]]`` for each i, uint32 ``[n]``."""
    # NumPy fills rows with zeros, and has them all in memory: beyond MOST_BYTES the pieces are done
    # one by one.
    if core.native is not None or int((ends - begins).sum()) > MOST_BYTES:
        pieces = (
            of_bytes(raw[begin:end])
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        )
        return np.fromiter(pieces, np.uint32, len(begins))
    return by_numpy(raw, begins, ends)


def by_numpy(raw: Bytes, begins: Int64s, ends: Int64s, before: int = 0) -> Sums:
    """Return the checksums of the pieces by NumPy; each piece continues bytes of the checksum
    ``before``."""
    lengths = ends - begins
    num_rows = np.maximum(-(-np.maximum(lengths, START_BYTES) // ROW_BYTES), 1)
    row_ends = np.cumsum(num_rows)
    rows = np.zeros((int(num_rows.sum()), ROW_BYTES), np.uint8)
    flat, start = rows.reshape(-1), np.array([~before & 0xFFFFFFFF], "<u4").view(np.uint8)
    for begin, end, after in zip(
        begins.tolist(), ends.tolist(), (row_ends * ROW_BYTES).tolist(), strict=True
    ):
        first = after - (end - begin)
        flat[first:after] = raw[begin:end]
        flat[first : min(after, first + START_BYTES)] ^= start[: after - first]
    sums = np.zeros(len(rows), np.uint32)
    table = _tables()[0]
    for column in rows.T:
        sums = (sums >> np.uint32(8)) ^ table[(sums ^ column) & np.uint32(0xFF)]
    total = np.zeros(lengths.size, np.uint32)
    for number in range(
        int(num_rows.max(initial=0))
    ):  # of a row, counted from the end of the longest piece
        place = row_ends - int(num_rows.max()) + number
        has_row = place >= row_ends - num_rows
        total[has_row] = _carried(total[has_row]) ^ sums[place[has_row]]
    short = lengths < START_BYTES  # the rest of the start lies behind the end of these
    left = (~before & 0xFFFFFFFF) >> (8 * np.minimum(lengths, 3)).astype(np.uint32)
    return ~(total ^ np.where(short, left, 0).astype(np.uint32))


def _carried(sums: Sums) -> Sums:
    """Return checksums carried over ROW_BYTES zeros."""
    tables = _tables()[1:]
    parts = [tables[k][sums >> np.uint32(8 * k) & np.uint32(0xFF)] for k in range(4)]
    return np.bitwise_xor.reduce(parts)  # type: ignore[no-any-return]


@functools.cache
def _tables() -> Sums:
    """Return uint32 ``[5, 256]``: the term of a byte, then those of byte k of a checksum after a
    row, k = 0 .. 3."""
    byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte = np.where(
            byte & np.uint32(1), byte >> np.uint32(1) ^ np.uint32(POLYNOMIAL), byte >> np.uint32(1)
        )
    row_table = np.arange(256, dtype=np.uint32) << (
        np.uint32(8) * np.arange(4, dtype=np.uint32)[:, None]
    )
    for _ in range(ROW_BYTES):
        row_table = (row_table >> np.uint32(8)) ^ byte[row_table & np.uint32(0xFF)]
    return np.concatenate([byte[None], row_table])

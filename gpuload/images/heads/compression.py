"""The number of bytes that compressed pixels come to, without keeping them: codecs fill up missing
ones silently.

Deflate   inflated in pieces.
LZW       as TIFF has it, in the core (2 ms for 700 KB), or else in NumPy (55 ms): between two Clear
          codes the width of each code is known beforehand, so that all are cut out at once; entry
          258 + i of the table is as long as code i and one byte more.
PackBits  a walk over the lengths.
Source    RFC 1951; TIFF 6.0, sections 9 and 13.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.images.heads.base import HeadError

DEFLATE_RATIO = 1032  # 258 bytes for 2 bits
INFLATE_BYTES = 1 << 16  # that are looked at, at a time

CLEAR, END, FIRST = 256, 257, 258  # codes of LZW; the first entry of the table
MAX_CODES = 3839  # between two Clear codes: the table has 4096 entries
WIDTHS = np.full(
    MAX_CODES, 9, np.int64
)  # in bits, of each code after a Clear; a wider one comes an entry early
for _number in (254, 766, 1790):
    WIDTHS[_number:] += 1
LZW_ERRORS = {  # by the results of the core
    -1: "its LZW data do not begin with the code Clear: they are damaged, or of an old form",
    -2: "its pixels are damaged: a code of LZW means nothing",
}
STARTS = np.concatenate([[0], np.cumsum(WIDTHS)])


def inflate_parts(parts: Sequence[memoryview]) -> Iterator[bytes]:
    """Yield the bytes that Deflate data hold, in parts of at most INFLATE_BYTES: the whole may take
    gigabytes.

    Raises:
        HeadError: it is damaged, or does not end.
    """
    inflater = zlib.decompressobj()
    try:
        for piece in parts:
            for begin in range(0, len(piece), INFLATE_BYTES):
                rest, is_full = bytes(piece[begin : begin + INFLATE_BYTES]), True
                while not inflater.eof and (rest or is_full):
                    yield (part := inflater.decompress(rest, INFLATE_BYTES))
                    rest, is_full = inflater.unconsumed_tail, len(part) == INFLATE_BYTES
    except zlib.error as error:
        raise HeadError(f"its pixels are damaged ({error})") from None
    if not inflater.eof:
        raise HeadError("its pixels do not end")


def deflate_bytes(stream: memoryview, enough: int) -> int:
    """Return how many bytes come out, at least if they are enough."""
    count = 0
    for part in inflate_parts([stream]):
        count += len(part)
        if count >= enough:
            break
    return count


def lzw_bytes(stream: memoryview, enough: int) -> int:
    """Return how many bytes come out, at least if they are enough."""
    data = np.frombuffer(stream, np.uint8)
    if core.native is None:
        return _lzw_bytes(data, enough)
    count = core.native.lzw_bytes(data, enough)
    if count in LZW_ERRORS:
        raise HeadError(LZW_ERRORS[count])
    return count


def _lzw_bytes(stream: NDArray[np.uint8], enough: int) -> int:
    count, place = 0, int(WIDTHS[0])  # in bits
    if _codes(stream, 0)[:1].tolist() != [CLEAR]:
        raise HeadError(LZW_ERRORS[-1])
    while count < enough:
        codes = _codes(stream, place)
        special = np.flatnonzero((codes == CLEAR) | (codes == END))
        if special.size:
            num_codes = int(special[0])
        else:
            num_codes = len(codes)
        count += _lzw_lengths(codes[:num_codes])
        if not special.size or codes[num_codes] == END:
            break
        place += int(STARTS[num_codes + 1])
    return count


def _codes(stream: NDArray[np.uint8], place: int) -> NDArray[np.int64]:
    """Return the codes from a bit on, as if there were no Clear among them."""
    count = int(np.searchsorted(STARTS, 8 * len(stream) - place, "right")) - 1
    part = stream[place >> 3 : (place + int(STARTS[-1]) >> 3) + 3]
    data = np.concatenate([part, np.zeros(3, np.uint8)]).astype(np.uint32)
    first, widths = (place & 7) + STARTS[:count], WIDTHS[:count]
    byte = first >> 3
    three = (data[byte] << np.uint32(16) | data[byte + 1] << np.uint32(8) | data[byte + 2]).astype(
        np.int64
    )
    codes: NDArray[np.int64] = (three >> (24 - (first & 7) - widths)) & ((1 << widths) - 1)
    return codes


def _lzw_lengths(codes: NDArray[np.int64]) -> int:
    """Return how many bytes the codes after a Clear come to."""
    number = np.arange(len(codes))
    if (codes >= FIRST + number).any() or (codes[:1] >= CLEAR).any() or len(codes) == MAX_CODES:
        raise HeadError(LZW_ERRORS[-2])
    before = np.append(np.where(codes < CLEAR, len(codes), codes - FIRST), len(codes))
    lengths = np.append(np.ones(len(codes), np.int64), 0)
    while (
        before[:-1] < len(codes)
    ).any():  # each time the chains that were followed are twice as long
        lengths, before = lengths + lengths[before], before[before]
    return int(lengths.sum())


def packbits_bytes(runs: memoryview, enough: int, row_bytes: int) -> int:
    """Return how many bytes come out, at least if they are enough.

    Args:
        runs: the PackBits data: of each run a byte with its length, and its values.
        enough: the bytes that are needed.
        row_bytes: of a row, at the end of which a run has to end (TIFF 6.0, section 9). libtiff reads row
            by row: it throws away the rest of a run, and begins the next row with the next run.

    Raises:
        HeadError: a run reaches into another row.
    """
    count = place = 0
    while place < len(runs) - 1 and count < enough:
        head = runs[place]
        if head < 128:
            length = min(head + 1, len(runs) - place - 1)
            place += head + 2
        elif head > 128:
            length = 257 - head
            place += 2
        else:
            length = 0
            place += 1
        end_of_row = count - count % row_bytes + row_bytes
        count += length
        if count > end_of_row and end_of_row < enough:
            raise HeadError(
                f"a run of its PackBits data reaches across rows, of {row_bytes} bytes, which TIFF "
                "forbids"
            )
    return count

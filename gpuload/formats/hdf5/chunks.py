"""Chunks: the places of the chunks of an HDF5 dataset, and the rows that their bytes become.

Layout   A dataset is cut into chunks of one shape along all axes; those at its end reach beyond it.
         Each chunk lies in one piece in the file, behind the filters of its dataset. A chunk
         without a place was never written: its elements have the fill value.
Filters  shuffle, deflate and fletcher32 are undone here, from bytes that `storage` reads: without
         HDF5's lock, side by side in all threads, and with each length checked.
Blocks   A block is the chunks of the same rows.
Source   HDF5 File Format Specification 3.0, IV.A.2.l "Filter Pipeline"; H5checksum.c, Fletcher's
         checksum of 32 bits
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import DamagedBlockError, FormatError
from gpuload.sources.leaf import Array, Bytes, Indices
from gpuload.sources.memory import room
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.inflate import inflate_block, reason_of

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
CHECKSUM_BYTES = 4
SPARE_BYTES = 64  # of a chunk between two filters, beyond its bytes
WORDS = 1 << 16  # of 16 bits: the sums of their sums have less than 64 bits
Shape = tuple[int, ...]
Filter = tuple[int, Shape]  # its number, and its values


@dataclass(frozen=True, eq=False)
class Grid:
    """The chunks of a dataset.

    Attributes:
        title: file and dataset, for errors.
        file: the number of the file.
        shape: of the dataset.
        chunk: the shape of a chunk.
        dtype: of the elements, as stored.
        filters: in the order in which they were applied.
        fill: the fill value.
        numbers: int64 ``[num_chunks]``, which chunk of the grid each is, in C order; ascending.
        offsets, lengths: int64 ``[num_chunks]``, the bytes of the file that hold it.
        masks: int64 ``[num_chunks]``, a bit for each filter that was passed over.
    """

    title: str
    file: int
    shape: Shape
    chunk: Shape
    dtype: np.dtype[Any]
    filters: tuple[Filter, ...]
    fill: Any
    numbers: Indices
    offsets: Indices
    lengths: Indices
    masks: Indices

    @property
    def counts(self) -> Shape:
        """The number of chunks along each axis."""
        return grid_shape(self.shape, self.chunk)

    @property
    def chunk_bytes(self) -> int:
        """The bytes of a chunk without filters."""
        return math.prod(self.chunk) * self.dtype.itemsize

    @property
    def is_plain(self) -> bool:
        """True if the bytes of chunks are rows, and each was written."""
        is_rows = not self.filters and self.chunk[1:] == self.shape[1:] and not self.masks.any()
        return (
            is_rows
            and self.numbers.size == math.prod(self.counts)
            and bool((self.lengths == self.chunk_bytes).all())
        )

    def decode(self, storage: Storage, block: int) -> Array:
        """Return the rows of a block, ``[n, *shape]`` of the dtype as stored.

        Raises:
            DamagedBlockError: a chunk cannot be decoded.
            FileError: the file changed, or cannot be read.
        """
        first_row = block * self.chunk[0]
        shape = (min(self.chunk[0], self.shape[0] - first_row), *self.shape[1:])
        chunks_of_block = math.prod(self.counts[1:])
        first, last = np.searchsorted(
            self.numbers, [block * chunks_of_block, (block + 1) * chunks_of_block]
        ).tolist()
        values = room(shape, self.dtype)
        if last - first < chunks_of_block:
            values[...] = self.fill
        lengths = self.lengths[first:last]
        begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        raw = room((int(begins[-1]),), np.dtype(np.uint8))
        files = np.full(lengths.size, self.file, np.int64)
        storage.read(Extents(files, self.offsets[first:last], lengths), raw, begins[:-1])
        for number in range(first, last):
            piece = raw[int(begins[number - first]) : int(begins[number - first + 1])]
            elements = self.undo(piece, number).view(self.dtype).reshape(self.chunk)
            place = np.unravel_index(int(self.numbers[number]), self.counts)[1:]
            corner = tuple(
                int(step) * length for step, length in zip(place, self.chunk[1:], strict=True)
            )
            ends = (begin + length for begin, length in zip(corner, self.chunk[1:], strict=True))
            target = values[(slice(None), *map(slice, corner, ends))]
            target[...] = elements[tuple(map(slice, target.shape))]
        return values

    def undo(self, raw: Bytes, number: int) -> Bytes:
        """Return the bytes of a chunk without its filters."""
        mask = int(self.masks[number])
        try:
            for place, (code, values) in reversed(list(enumerate(self.filters))):
                # A filter that may be left out, and was for this chunk: it failed, or made the
                # chunk larger.
                if mask >> place & 1:
                    continue
                if code == DEFLATE:
                    raw = np.frombuffer(
                        inflate_block(raw.data, self.chunk_bytes + SPARE_BYTES), np.uint8
                    )
                elif code == SHUFFLE:
                    raw = _unshuffle(raw, values[0] if values else self.dtype.itemsize)
                else:
                    raw = _without_checksum(raw)
            if raw.size != self.chunk_bytes:
                raise ValueError(
                    f"it unpacks to {raw.size} bytes, and the chunk has {self.chunk_bytes}"
                )
        except (ValueError, EOFError, zlib.error) as error:
            raise DamagedBlockError(
                f"{self.title}, chunk at byte {int(self.offsets[number])}",
                cause=reason_of(error),
                remedy="copy the file again",
            ) from None
        return raw

    def origin(self, path: str, block: int) -> tuple[str, int]:
        """Return the path, and the byte where the first chunk of a block begins; 0 if none was
        written."""
        first = int(np.searchsorted(self.numbers, block * math.prod(self.counts[1:])))
        return path, int(self.offsets[first]) if first < self.numbers.size else 0


def grid_shape(shape: Shape, chunk: Shape) -> Shape:
    """Return the number of chunks along each axis."""
    return tuple(-(-length // step) for length, step in zip(shape, chunk, strict=True))


def sort_chunks(
    title: str, shape: Shape, chunk: Shape, infos: Sequence[Any], file_bytes: int
) -> tuple[Indices, ...]:
    """Return numbers, offsets, lengths and masks of chunks, in the order of their numbers.

    Args:
        title: file and dataset, for errors.
        shape: of the dataset.
        chunk: of a chunk.
        infos: of each chunk the first element, the mask of filters, the byte of the file and the
            length.
        file_bytes: of the file.

    Raises:
        FormatError: a chunk lies outside of the dataset or the file, or stands there twice.
    """
    counts = grid_shape(shape, chunk)
    corners = np.array([info[0] for info in infos], np.int64).reshape(-1, len(shape))
    places_of_chunks = np.minimum(
        np.array([info[1:4] for info in infos], np.float64).reshape(-1, 3), 2.0**62
    )
    masks, offsets, lengths = places_of_chunks.astype(np.int64).T
    places = corners // np.array(chunk, np.int64)
    is_wrong = (
        (corners % np.array(chunk, np.int64)).any()
        or (places < 0).any()
        or (places >= counts).any()
    )
    if is_wrong:
        numbers = np.zeros(len(infos), np.int64)
    else:
        numbers = np.ravel_multi_index(tuple(places.T), counts)
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order].astype(np.int64)
    is_wrong = is_wrong or (np.diff(numbers) == 0).any()
    if (
        is_wrong
        or (offsets < 0).any()
        or (lengths < 0).any()
        or (lengths > file_bytes - offsets).any()
    ):
        raise FormatError(
            f"{title}: its list of chunks is damaged",
            cause="a chunk lies outside of the dataset or of the file, or stands there twice",
            remedy="copy the file again",
        )
    return numbers, offsets[order], lengths[order], masks[order]


def _unshuffle(raw: Bytes, element_bytes: int) -> Bytes:
    """Return bytes of which all first bytes of elements stood first, then all second ones, and so
    on."""
    if element_bytes < 2:
        return raw
    count = raw.size // element_bytes
    whole = raw[: count * element_bytes].reshape(element_bytes, count).T.reshape(-1)
    if whole.size < raw.size:
        return np.concatenate([whole, raw[whole.size :]])
    return whole


def _without_checksum(raw: Bytes) -> Bytes:
    """Return bytes without the checksum behind them.

    Raises:
        ValueError: it is another one.
    """
    if raw.size < CHECKSUM_BYTES:
        raise ValueError("it has no room for its checksum")
    content, expected = (
        raw[:-CHECKSUM_BYTES],
        int.from_bytes(raw[-CHECKSUM_BYTES:].tobytes(), "little"),
    )
    actual = fletcher32(content)
    swapped = int.from_bytes(
        actual.to_bytes(4, "big")[1::-1] + actual.to_bytes(4, "big")[:1:-1], "big"
    )
    if expected not in (
        actual,
        swapped,
    ):  # HDF5 before 1.6.3 swapped the bytes on little-endian machines
        raise ValueError(f"its checksum is {actual:#010x}, the file says {expected:#010x}")
    return content


def fletcher32(content: Bytes) -> int:
    """Return Fletcher's checksum of 32 bits, of big-endian words of 16 bits, as HDF5 computes
    it."""
    whole = np.zeros(-(-content.size // 2) * 2, np.uint8)
    whole[: content.size] = content
    words: NDArray[np.int64] = whole.view(">u2").astype(np.int64)
    first = second = 0
    for begin in range(0, words.size, WORDS):
        piece = words[begin : begin + WORDS]
        second = (
            second + first * piece.size + int((piece * np.arange(piece.size, 0, -1)).sum())
        ) % 0xFFFF
        first = (first + int(piece.sum())) % 0xFFFF
    if (
        words.any()
    ):  # sums are folded, not divided: of all sums but that of zeros 0 is written as 0xffff
        first, second = first or 0xFFFF, second or 0xFFFF
    return second << 16 | first

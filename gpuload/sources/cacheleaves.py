"""Leaves of a cache: records in the pieces of its columns, in memory or in files."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from gpuload.ragged import Ragged, offsets_of
from gpuload.sources.cachecolumns import CacheColumn
from gpuload.sources.leaf import (
    UINT8,
    Array,
    Bytes,
    Indices,
    Leaf,
    Values,
    check_places,
    gather_pieces,
    gather_rows,
)
from gpuload.sources.reading import Readable, record_origin
from gpuload.spec import Field
from gpuload.storage.extents import Extents, Storage


class CachePiece(ABC):
    """The bytes of a column, one value after the other.

    Attributes:
        how: one line about how it is read.
    """

    how: str

    @abstractmethod
    def read(self, offsets: Indices, lengths: Indices, out: Bytes, begins: Indices) -> None:
        """Copy ``lengths[i]`` bytes at ``offsets[i]`` to ``out[begins[i]:]``, where they fit."""

    @abstractmethod
    def read_rows(self, row_bytes: int, numbers: Indices, out: Bytes, begins: Indices) -> None:
        """Copy row ``numbers[i]``, of rows of one size, to ``out[begins[i]:]``."""

    def advise(self, offsets: Indices, lengths: Indices) -> None:  # noqa: B027 - memory is there
        """Ask the system to have these bytes in memory soon."""


class MemoryPiece(CachePiece):
    """A piece in memory."""

    how = "cached in memory"

    def __init__(self, raw: Bytes) -> None:
        self._raw = raw

    def read(self, offsets: Indices, lengths: Indices, out: Bytes, begins: Indices) -> None:
        """Copy bytes."""
        gather_pieces(self._raw, offsets, lengths, out, begins)

    def read_rows(self, row_bytes: int, numbers: Indices, out: Bytes, begins: Indices) -> None:
        """Copy rows."""
        if row_bytes:
            gather_rows(self._raw.reshape(-1, row_bytes), numbers, out, begins)


class FilePiece(CachePiece):
    """A piece that is a file.

    Args:
        storage: of the files of a cache.
        number: of the file among these.
    """

    def __init__(self, storage: Storage, number: int) -> None:
        self.how, self._storage, self._number = storage.how, storage, number

    def read(self, offsets: Indices, lengths: Indices, out: Bytes, begins: Indices) -> None:
        """Copy bytes."""
        self._storage.read(self._extents(offsets, lengths), out, begins)

    def read_rows(self, row_bytes: int, numbers: Indices, out: Bytes, begins: Indices) -> None:
        """Copy rows."""
        lengths = np.full(numbers.size, row_bytes, np.int64)
        self.read(numbers * row_bytes, lengths, out, begins)

    def advise(self, offsets: Indices, lengths: Indices) -> None:
        """Ask the system to have these bytes in memory soon."""
        self._storage.advise(self._extents(offsets, lengths))

    def _extents(self, offsets: Indices, lengths: Indices) -> Extents:
        return Extents(np.full(offsets.size, self._number, np.int64), offsets, lengths)


def cache_leaf(
    column: CacheColumn, piece: CachePiece, indices: dict[str, Indices], source: Readable
) -> Leaf:
    """Return the leaf that reads a column.

    Args:
        column: rows of one size, or values of which each has its own.
        piece: the rows, or the payload.
        indices: int64, of values the lengths in bytes (``"offsets"``), and where several axes vary
            the number of axes of each (``"axes"``) and their lengths (``"shapes"``).
        source: of the records.
    """
    if column.layout is not None:
        return RowsLeaf(column, piece, source)
    shapes = None
    if "shapes" in indices:
        shapes = Ragged(indices["shapes"], offsets_of(indices["axes"]))
    return ValuesLeaf(column, piece, offsets_of(indices["offsets"]), shapes, source)


class CacheLeaf(Leaf):
    """Records with values in a piece of a cache."""

    asks_once = True

    def __init__(self, column: CacheColumn, piece: CachePiece, source: Readable) -> None:
        self.spec, self.layout, self.how = column.spec, column.layout, piece.how
        self.num_records = len(source)
        self._piece, self._source = piece, source

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file of the source that holds a record, and the byte where it begins."""
        return record_origin(self._source, number)


class RowsLeaf(CacheLeaf):
    """Rows of one size, one after the other."""

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        self._piece.read_rows(self._row_bytes, numbers, out, begins)

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        lengths = np.full(numbers.size, self._row_bytes, np.int64)
        self._piece.advise(numbers * self._row_bytes, lengths)

    @property
    def _row_bytes(self) -> int:
        return 0 if self.layout is None else self.layout.record_bytes


class ValuesLeaf(CacheLeaf):
    """Values of a field of varying shape, one after the other.

    Args:
        column: the field.
        piece: the payload.
        offsets: int64 ``[n + 1]``, the byte where each begins, and the last ends.
        shapes: of each, a ragged of int64; None where only the first axis varies.
        source: of the records.
    """

    def __init__(
        self,
        column: CacheColumn,
        piece: CachePiece,
        offsets: Indices,
        shapes: Ragged | None,
        source: Readable,
    ) -> None:
        super().__init__(column, piece, source)
        self.is_direct = shapes is None
        self._offsets, self._shapes = offsets, shapes

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many raw bytes each record has, int64 ``[n]``."""
        return self._offsets[numbers + 1] - self._offsets[numbers]

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        lengths = self.num_bytes(numbers)
        check_places(numbers, lengths, out.size, begins)
        self._piece.read(self._offsets[numbers], lengths, out, begins)

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the values as arrays of their shapes."""
        if self._shapes is None:
            return super().unpack(numbers, raw)
        field = self.spec.fields[0]
        shapes = [self._shapes[number].tolist() for number in numbers.tolist()]
        return [[_array(*pair, field) for pair in zip(raw, shapes, strict=True)]]

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        self._piece.advise(self._offsets[numbers], self.num_bytes(numbers))


def _array(raw: Bytes, shape: list[int], field: Field) -> Array:
    out = np.empty(shape, field.dtype)
    out.reshape(-1).view(UINT8)[:] = raw
    return out

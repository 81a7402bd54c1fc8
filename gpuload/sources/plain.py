"""Plain reads: records of files with ``os.preadv``, for systems without Numba or without the guard.

Same meaning and same checks as `maps.py`. Neighbours are read together, a file is opened once for all its records of a
batch.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import RecordIndexError
from gpuload.sources.files import OPEN_FLAGS, Files, difference, open_error, stamp_of

Int64s = NDArray[np.int64]
Block = NDArray[np.uint8]
LARGEST_READ = 1 << 30  # Linux reads at most 0x7ffff000 bytes a call
BYTES_A_READ = 1000  # a read of one item takes as long as copying about so many bytes


class PlainReader:
    """Reads records of files into blocks; arguments as for ``MappedReader``."""

    how = "positioned reads"

    def __init__(self, files: Files, starts: Int64s, offsets: Int64s) -> None:
        self._files, self._starts, self._offsets = files, starts, offsets

    def copy(self, indices: Int64s, rows: Int64s, block: Block, record_bytes: int) -> None:
        """Copy record ``indices[i]`` of ``record_bytes`` bytes to row ``rows[i]`` of the block."""
        for number, chosen in self._by_file(indices, rows, block):
            inside, to = indices[chosen] - self._starts[number], rows[chosen]
            joined = block.strides[0] == record_bytes
            with self._opened(number) as descriptor:
                for first, after in _runs(inside, to, joined):
                    target = block[to[first] : to[after - 1] + 1]
                    self._read(number, descriptor, target, int(inside[first]) * record_bytes)

    def copy_columns(self, indices: Int64s, rows: Int64s, block: Block, item_bytes: int, places: Int64s) -> bool:
        """The same for files in Fortran order: item k of a record goes to byte ``places[k]`` of its row."""
        for number, chosen in self._by_file(indices, rows, block):
            inside, to = indices[chosen] - self._starts[number], rows[chosen]
            num_records = int(self._starts[number + 1] - self._starts[number])
            with self._opened(number) as descriptor:
                for column, place in enumerate(places.tolist()):
                    items = self._column(number, descriptor, inside, column * num_records, item_bytes)
                    block[to, place : place + item_bytes] = items
        return True

    def _column(self, number: int, descriptor: int, inside: Int64s, before: int, item_bytes: int) -> Block:
        """Return one item of each record: the stretch that holds them all, or one by one where that reads too much."""
        low, high = int(inside.min()), int(inside.max()) + 1
        if (high - low) * item_bytes <= inside.size * BYTES_A_READ:
            stretch = np.empty((high - low, item_bytes), np.uint8)
            self._read(number, descriptor, stretch, (before + low) * item_bytes)
            return stretch[inside - low]
        items = np.empty((inside.size, item_bytes), np.uint8)
        for i, record in enumerate(inside.tolist()):
            self._read(number, descriptor, items[i : i + 1], (before + record) * item_bytes)
        return items

    def read(self, numbers: Int64s, buffers: list[Block]) -> None:
        """Read the data of files, each into its buffer of just that length."""
        for number, buffer in zip(numbers.tolist(), buffers, strict=True):
            with self._opened(number) as descriptor:
                self._read(number, descriptor, buffer.reshape(1, -1), 0)

    def _by_file(self, indices: Int64s, rows: Int64s, block: Block) -> Iterator[tuple[int, Int64s]]:
        """Yield each file of a batch and which of the batch's records are in it, in their order."""
        inside = (indices >= 0) & (indices < self._starts[-1]) & (rows >= 0) & (rows < len(block))
        if not inside.all():
            raise RecordIndexError(
                f"record {int(indices[~inside][0])}, or the row that it should go to, is outside",
                cause="there is no such record, or the block has too few rows",
                remedy="check the indices, and that each row lies in the block",
            )
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        for chosen in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            if chosen.size:
                yield int(numbers[chosen[0]]), chosen

    @contextmanager
    def _opened(self, number: int) -> Iterator[int]:
        """Give a descriptor of a file; afterwards check that it is the file that it was."""
        path = self._files.paths[number]
        try:
            descriptor = os.open(path, OPEN_FLAGS)
        except OSError as error:
            self._files.check(number)
            raise open_error(path, error) from None
        try:
            yield descriptor
            now = stamp_of(os.fstat(descriptor))
            if now != self._files.stamp(number):
                raise self._files.changed(number, difference(self._files.stamp(number), now))
        finally:
            os.close(descriptor)

    def _read(self, number: int, descriptor: int, target: Block, offset: int) -> None:
        """Read bytes of a file's data into rows that lie side by side, in as many calls as it takes."""
        view = target.reshape(-1).data
        place, done = int(self._offsets[number]) + offset, 0
        while done < len(view):
            try:
                got = os.preadv(descriptor, [view[done : done + LARGEST_READ]], place + done)
            except OSError as error:
                raise open_error(self._files.paths[number], error) from None
            if not got:
                raise self._files.changed(number, f"it ends at byte {place + done}, before its last record")
            done += got


def _runs(inside: Int64s, to: Int64s, joined: bool) -> Iterator[tuple[int, int]]:
    """Yield first and after-last of the records that are neighbours, in the file as in the block."""
    if not joined:
        yield from ((i, i + 1) for i in range(inside.size))
        return
    breaks = np.flatnonzero((np.diff(inside) != 1) | (np.diff(to) != 1)) + 1
    edges = [0, *breaks.tolist(), inside.size]
    yield from itertools.pairwise(edges)

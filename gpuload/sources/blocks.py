"""Blocks: records that can only be decoded together, as those of a row group of Parquet or of a
chunk of Zarr.

    leaf = BlockLeaf(field, starts, decode, cache, "row groups by PyArrow")     decode(3): the values of block 3

Access  A block is decoded as a whole, for however few of its records. So records in the order of
        their blocks cost each block once, and records in any order up to a block each:
        `order.Blocks` with ``block_records`` is for these.
Cache   The blocks that were used last stay decoded, up to a number of bytes for all fields
        together. A block larger than that stays until the next one comes. Threads that want the
        same block wait for the one that decodes it.
Errors  A block that is damaged stays so: its error is stored in its place, and raised for each of
        its records.
Fork    A child begins with an empty cache, since a thread that is not there any more may hold one
        of its locks.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gpuload.errors import DamagedBlockError, SpecError
from gpuload.ragged import Ragged, offsets_of
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
from gpuload.sources.memory import step_room
from gpuload.spec import Field, Layout, Part, Spec, is_whole

CACHE_BYTES = 1 << 28  # of decoded blocks, if the user does not say another number
Decode = Callable[[int], Any]  # an array or a Ragged


def check_cache_bytes(call: str, value: Any) -> int:
    """Return the argument ``cache_bytes`` of a call that opens such records.

    Raises:
        SpecError: it is no number of bytes.
    """
    if not is_whole(value):
        raise SpecError(
            f"{call}: cache_bytes = {value!r}",
            cause="it is a number of bytes",
            remedy="leave it out",
        )
    return int(value)


class BlockMemory:
    """The blocks that were used last, decoded; safe in several threads.

    Args:
        max_bytes: of all blocks together.
        total_bytes: of all blocks of the source, about.

    Attributes:
        is_complete: True if all blocks of the source stay decoded.
    """

    def __init__(self, max_bytes: int, total_bytes: int) -> None:
        self._max_bytes, self.is_complete = max_bytes, total_bytes <= max_bytes
        self._clear()

    def _clear(self) -> None:
        self._process, self._lock, self._num_bytes = os.getpid(), threading.Lock(), 0
        self._entries: dict[tuple[int, int], _Entry] = {}  # the one that was used last stands last

    def get(self, key: tuple[int, int], decode: Callable[[], Any]) -> Any:
        """Return the block of a key, decoded now if it is not there.

        Raises:
            DamagedBlockError: it is damaged. All other errors of ``decode`` are not stored.
        """
        if self._process != os.getpid():
            self._clear()
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry
        # A lock for each block: a thread that wants another one does not wait until this one is
        # decoded.
        with entry.lock:
            if entry.error is not None:
                # A copy: the error of each thread has a traceback, and a place, of its own.
                raise copy.copy(entry.error)
            if entry.block is None:
                try:
                    entry.block = decode()
                except DamagedBlockError as error:
                    # without its traceback, which would keep memory of the caller
                    entry.error = copy.copy(error)
                    raise
                self._make_room(key, entry, entry.block.nbytes)
            return entry.block

    def _make_room(self, key: tuple[int, int], entry: _Entry, num_bytes: int) -> None:
        """Count a new block, and drop those that were not used for the longest time, but never the
        new one."""
        with self._lock:
            if self._entries.get(key) is not entry:  # it was dropped meanwhile
                return
            entry.num_bytes = num_bytes
            self._num_bytes += num_bytes
            for old_key in list(self._entries):
                if self._num_bytes <= self._max_bytes:
                    break
                if old_key != key:
                    self._num_bytes -= self._entries.pop(old_key).num_bytes


class _Entry:
    """A block of the cache: being decoded while the lock is held, decoded, or damaged."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.block: Any = None
        self.error: DamagedBlockError | None = None
        self.num_bytes = 0


class BlockLeaf(Leaf):
    """Records that lie in blocks.

    Args:
        fields: the field; uniform, ragged, or text. Or the layout of rows of one size.
        starts: int64 ``[num_blocks + 1]``, the number of the first record of each block, and of all
            records.
        decode: returns the values of a block as the field stores them (`Field.stored`): an array
            ``[n, *shape]`` or a `Ragged`, with a value for each record; of a layout rows of these
            bytes. They are not written to.
        cache: of the blocks of all fields of a source.
        key: of the field in the cache.
        how: one line about how blocks are read.
        place: returns the file of a block and the byte where it begins, if they are known.
    """

    def __init__(
        self,
        fields: Field | Layout,
        starts: Indices,
        decode: Decode,
        cache: BlockMemory,
        key: int,
        how: str,
        place: Callable[[int], tuple[str, int] | None] = lambda block: None,
    ) -> None:
        self.how, self.num_records = how, int(starts[-1])
        if isinstance(fields, Layout):
            self.layout = fields
        elif fields.has_rows:
            part = Part(fields, fields.dtype, 0)
            self.layout = Layout(part.num_bytes, (part,))
        if isinstance(fields, Layout):
            self.spec = fields.spec
        else:
            self.spec = Spec((fields,))
        # Where all blocks stay decoded, records in any order cost each of them once.
        self.asks_once = cache.is_complete
        if cache.is_complete:
            self.block_records = 0
        else:
            self.block_records = int(np.diff(starts).max(initial=0))
        self._starts, self._decode, self._cache, self._key, self._place = (
            starts,
            decode,
            cache,
            key,
            place,
        )

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return the bytes of records of one size, and zeros for others: their values are made by
        ``unpack``."""
        if self.layout is None:
            return np.zeros(numbers.size, np.int64)
        return super().num_bytes(numbers)

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        if self.layout is None or not self.layout.record_bytes:
            return
        # of all, before the first block is decoded
        check_places(numbers, self.layout.record_bytes, out.size, begins)
        for block, rows in self._parts(numbers):
            raw = _raw(self._values(block)).reshape(-1, self.layout.record_bytes)
            gather_rows(raw, numbers[rows] - self._starts[block], out, begins[rows])

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the values of records, which have no raw bytes."""
        del raw
        parts = [
            (rows, _take(self._values(block), numbers[rows] - self._starts[block]))
            for block, rows in self._parts(numbers)
        ]
        return [_merge(parts, numbers.size)]

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file of the block of a record, and the byte where the block begins."""
        return self._place(int(np.searchsorted(self._starts, number, side="right")) - 1)

    def _values(self, block: int) -> Any:
        return self._cache.get((self._key, block), lambda: self._decode(block))

    def _parts(self, numbers: Indices) -> Iterator[tuple[int, Indices]]:
        """Yield each block that records lie in, and which of the records these are."""
        blocks = np.searchsorted(self._starts, numbers, side="right") - 1
        order = np.argsort(blocks, kind="stable")
        edges = np.flatnonzero(np.diff(blocks[order])) + 1
        for rows in np.split(order, edges):
            if rows.size:
                yield int(blocks[rows[0]]), rows


def _take(values: Ragged, numbers: Indices) -> Ragged:
    """Return some values of a block, copied one after the other."""
    lengths, size = values.lengths[numbers], _element_bytes(values)
    offsets = offsets_of(lengths)
    payload = _step_room(int(offsets[-1]), values)
    begins = values.offsets[:-1][numbers] * size
    gather_pieces(_raw(values.payload), begins, lengths * size, _raw(payload), offsets[:-1] * size)
    return Ragged(payload, offsets)


def _merge(parts: Sequence[tuple[Indices, Ragged]], count: int) -> Ragged:
    """Return the values of several parts, each at its rows."""
    if len(parts) == 1:
        return parts[0][1]  # its rows are all, in order
    lengths = np.empty(count, np.int64)
    for rows, part in parts:
        lengths[rows] = part.lengths
    offsets, first = offsets_of(lengths), parts[0][1]
    size = _element_bytes(first)
    payload = _step_room(int(offsets[-1]), first)
    for rows, part in parts:
        begins, lengths_bytes = part.offsets[:-1] * size, part.lengths * size
        gather_pieces(
            _raw(part.payload), begins, lengths_bytes, _raw(payload), offsets[rows] * size
        )
    return Ragged(payload, offsets)


def _step_room(total: int, like: Ragged) -> Array:
    """Return memory for ``total`` elements, in the dtype and shape of those of a ragged array."""
    return (
        step_room(total * _element_bytes(like))
        .view(like.dtype)
        .reshape(total, *like.payload.shape[1:])
    )


def _element_bytes(ragged: Ragged) -> int:
    return int(ragged.dtype.itemsize * np.prod(ragged.payload.shape[1:], dtype=np.int64))


def _raw(payload: Array) -> Bytes:
    """Return the bytes of an array in C order, without a copy."""
    return payload.reshape(-1).view(UINT8)

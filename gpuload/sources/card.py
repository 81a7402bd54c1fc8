"""Rows of a source that stay in the memory of a GPU, as far as a budget of bytes goes.

    source.cache(device=True)                       half of the free memory of the GPU, at most
    source.cache(device=True, memory="20GB")        so many bytes at most

Rows     A row is one field of one record, native and in C order. A loader copies the rows of a
         record to the GPU's memory when the record was uploaded for a batch, in the order in which
         records come, until they fill the budget. The records behind them come from the source each
         time.
Room     Memory is taken in pieces, of each field one for the same records. Memory that the batches
         of all loaders need beside them stays free: records for which nothing more is left come
         from the source.
Which    Fields of one size, of a dtype that a GPU has. The others come from the source each time.
Shared   The rows belong to the source: all loaders of it, of its slices and splits, on the same GPU
         use the same ones. They are freed when the last of these loaders is closed.
Streams  Each loader has a stream of its own. Rows are marked as there behind an event on the stream
         that writes them, and a reader on another stream waits for that event first. The
         marks change under a lock, which is taken by threads in which no signal handler runs.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload import lazy
from gpuload.errors import SpecError, TooLargeError
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Bytes, Group, Indices, Leaf, Values, gather_rows
from gpuload.sources.reading import Readable
from gpuload.sources.shares import fill, values
from gpuload.spec import Field, Layout, Spec

check_end = lazy.function("gpuload.sources.cache", "check_end")
num_bytes_of: Callable[[int | str], int] = lazy.function("gpuload.sources.cache", "num_bytes_of")

FREE_PART = 0.5  # of the free memory of a GPU, which a cache without a budget may fill
PIECE_BYTES = 1 << 28  # of all fields of some records: so much is taken from CUDA at a time
SAMPLED_RECORDS = 64  # of which it is asked whether their rows can lie on a GPU
Addresses = NDArray[np.int64]
log = logging.getLogger("gpuload")


def stays_on_card(field: Field) -> bool:
    """Return True if the values of a field can lie in a GPU's memory, a row of one size for each
    record."""
    return (
        field.has_rows and not field.host_only and not field.encoded and prod(field.fixed_shape) > 0
    )


def checked_budget(memory: int | str | None) -> int | None:
    """Return the bytes of a budget; None where none was named.

    Raises:
        SpecError: it says no number of bytes.
    """
    try:
        if memory is None:
            return None
        return num_bytes_of(memory)
    except SpecError as error:
        raise SpecError(
            f"cache(device=True, memory={memory!r})"[:200],
            cause="it is the most bytes of the GPU's memory that the values may take",
            remedy='write memory="20GB" or memory=20_000_000_000, or leave it out for half of what '
            "is free",
        ) from error


def _cut_groups(source: Readable) -> list[tuple[int, Group]]:
    """Return the groups of a source, each with its number there; fields that stay on the host are
    groups apart.

    Only groups of records of one size are cut: the others are parsed as a whole.
    """
    groups: list[tuple[int, Group]] = []
    for number, group in enumerate(source.groups):
        if group.layout is None:
            # Once the records lie on the card, a step takes as long as its kernels.
            groups.append((number, Group(group.spec, None, is_quick=True)))
            continue
        for _, parts in groupby(group.layout.parts, key=lambda part: stays_on_card(part.field)):
            groups.append((number, Group.of(Layout(group.layout.record_bytes, tuple(parts)))))
    return groups


class CardCache:
    """The rows of one source on one GPU.

    Args:
        title: the source in one line, for errors and the log.
        device: ``"gpu:N"``.
        budget: bytes; None for a part of the memory that is free now.
        num_records: of the source.
        record_bytes: of all rows of a record.

    Attributes:
        device: which GPU.
        lock: is held while rows are copied, and marked as there.
        budget_bytes: that the rows may take.
        most_records: that fit into them, and into the free memory beside the batches of all users.
        events: of each lane that copied rows: the event behind the last of them.

    Raises:
        TooLargeError: the GPU has not so much memory that is free.
    """

    def __init__(
        self, title: str, device: str, budget: int | None, num_records: int, record_bytes: int
    ) -> None:
        self.device, self.lock, self.events = device, threading.Lock(), dict[Any, Any]()
        devices.empty_pool(device)  # of batches of before, which were larger maybe
        free, total = devices.card_bytes(device)
        if budget is None:
            self.budget_bytes = int(free * FREE_PART)
        else:
            self.budget_bytes = budget
        if self.budget_bytes > free:
            raise TooLargeError(
                f"{self.budget_bytes} bytes for {title} on {device}",
                cause=f"{free} of its {total} bytes are free",
                remedy=f"write cache(device=True, memory={max(1, int(free * FREE_PART))}), or "
                "leave memory= out for half of what is free",
            )
        budget_records = min(num_records, self.budget_bytes // max(record_bytes, 1))
        self.most_records = self._budget_records = budget_records
        if num_records and not self.most_records:
            most_bytes = min(num_records * record_bytes, free)
            change = (
                f"write cache(device=True, memory={most_bytes}); other records are read each time"
            )
            if most_bytes < record_bytes:
                change = 'have the memory of the host keep them: cache(memory="8GB")'
            raise TooLargeError(
                f"{self.budget_bytes} bytes for {title} on {device}",
                cause=f"one record takes {record_bytes} bytes, and {free} bytes of the GPU are "
                "free",
                remedy=change,
            )
        self._title, self._num_records, self._record_bytes = (
            title,
            num_records,
            max(record_bytes, 1),
        )
        self._piece_rows: list[int] = []  # of each piece of all columns
        self._in_use_before = 0  # bytes of CuPy's pool, when the first user came
        self._columns: dict[tuple[int, int], CardColumn] = {}
        self._users: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def column(self, leaf: int, number: int, field: Field) -> CardColumn:
        """Return the rows of a field of a leaf."""
        with self.lock:
            if (leaf, number) not in self._columns:
                self._columns[leaf, number] = CardColumn(self, field, self._num_records)
            return self._columns[leaf, number]

    def piece_rows(self, place: int) -> int:
        """Return for how many rows a column takes its piece number ``place``; 0 if there is no
        more."""
        if sum(self._piece_rows[:place]) >= self.most_records:
            return 0
        if place == len(self._piece_rows):
            self._bound()
            num_rows = self.most_records - sum(self._piece_rows)
            self._piece_rows.append(min(max(1, PIECE_BYTES // self._record_bytes), num_rows))
        return self._piece_rows[place]

    def _bound(self) -> None:
        """Have no more records than fit beside the batches of all users now."""
        free, _ = devices.card_bytes(self.device)
        in_use, idle = devices.pool_bytes(self.device)
        # All that CuPy's pool has given out since the first user came is taken for memory of
        # batches.
        of_batches = idle + max(0, in_use - self._in_use_before)
        room = free - max(0, sum(self._users.values()) - of_batches)
        limit = sum(self._piece_rows) + max(0, room) // self._record_bytes
        if limit < self.most_records:
            self.most_records = limit
            self._tell(f"{self.device} has no more memory beside the batches")

    def stop(self, place: int) -> None:
        """Take no more memory: there was none for piece number ``place`` of a column."""
        self.most_records = sum(self._piece_rows[:place])
        self._tell(f"{self.device} has no memory left")

    def _tell(self, cause: str = "") -> None:
        if self.most_records < self._num_records:
            level = logging.WARNING
        else:
            level = logging.INFO
        log.log(level, "%s: %s", cause or self._title, self.describe())

    @property
    def num_records(self) -> int:
        """How many records lie on the GPU with all fields that loaders have asked for."""
        return min((column.num_rows for column in self._columns.values()), default=0)

    def describe(self) -> str:
        """Return how many records lie on the GPU, and how many never will, in one line."""
        num_bytes = sum(column.num_rows * column.row_bytes for column in self._columns.values())
        line = (
            f"{self.num_records} of {self._num_records} records are in the memory of "
            f"{self.device}, {num_bytes / 1e6:.3g} MB of at most {self.budget_bytes / 1e6:.4g} MB"
        )
        if self.most_records < self._num_records:
            num_left = self._num_records - self.most_records
            return f"{line}; {num_left} do not fit and come from the source in each epoch"
        if self.num_records < self.most_records:
            return f"{line}; the others follow as they are first read"
        return line

    def join(self, user: Any, batch_bytes: int) -> None:
        """Add a user of the rows, which is referred to weakly, and so many bytes for its batches
        beside them."""
        with self.lock:
            if not self._users:
                self._in_use_before = devices.pool_bytes(self.device)[0]
                self._tell()
            self._users[user] = batch_bytes
            self._bound()

    def leave(self, user: Any) -> None:
        """Take a user away when all work of its lane has run; with the last one the rows are
        freed."""
        with self.lock:
            if user not in self._users:
                return
            del self._users[user]
            if not self._users:
                for column in self._columns.values():
                    column.free()
                self.events.clear()
                self._piece_rows.clear()
                self.most_records = self._budget_records


class CardColumn:
    """The rows of one field, in pieces of a GPU's memory.

    Attributes:
        addresses: int64 ``[num_records]``, where the row of each record begins; 0 where it is not
            there.
        row_bytes: of a row.
        num_rows: how many are there.
    """

    def __init__(self, cache: CardCache, field: Field, num_records: int) -> None:
        self.cache, self.field = cache, field
        self.row_bytes, self.num_rows = field.dtype.itemsize * prod(field.fixed_shape), 0
        self.addresses: Addresses = np.zeros(num_records, np.int64)
        self._pieces: list[devices.CardMemory] = []
        self._next = self._end = 0  # addresses of the last piece that no row has

    def take(self, count: int) -> Addresses:
        """Return addresses of memory for rows, int64 ``[n]`` with n up to ``count``: fewer where
        there is no more."""
        addresses = list[Addresses]()
        while count > 0:
            if self._next == self._end and not self._take_piece():
                break
            num_rows = min(count, (self._end - self._next) // self.row_bytes)
            addresses.append(self._next + self.row_bytes * np.arange(num_rows, dtype=np.int64))
            self._next += num_rows * self.row_bytes
            self.num_rows += num_rows
            count -= num_rows
        if addresses:
            return np.concatenate(addresses)
        return np.empty(0, np.int64)

    def _take_piece(self) -> bool:
        """Take memory for more rows; False if there is none."""
        num_rows = self.cache.piece_rows(len(self._pieces))
        if not num_rows:
            return False
        piece = devices.CardMemory.take(num_rows * self.row_bytes, self.cache.device)
        if piece is None:
            self.cache.stop(len(self._pieces))
            return False
        self._pieces.append(piece)
        self._next, self._end = piece.address, piece.address + num_rows * self.row_bytes
        return True

    def free(self) -> None:
        """Give the memory back."""
        self.addresses[:] = 0
        self.num_rows = self._next = self._end = 0
        while self._pieces:
            self._pieces.pop().free()


class CardLeaf(Leaf):
    """Some fields of the records of a source, with rows that may lie on GPUs; a read here reads the
    source.

    Args:
        source: the records; number i here is number i there.
        group: the number of the source's group that the fields belong to.
        fields: these fields, as a group.
        number: of this leaf among those of its source.
        budget: bytes that all leaves of the source may take on a GPU; None for a part of its free
            memory.
        caches: of the whole source, by device; one dict for all its leaves.
    """

    asks_once = True  # as far as records fit

    def __init__(
        self, source: Readable, group: int, fields: Group, number: int, budget: int | None,
        caches: dict[str, CardCache],
    ) -> None:  # fmt: skip
        self.source, self.group, self.number = source, group, number
        self.spec: Spec = fields.spec
        self.layout, self._group_spec = fields.layout, source.groups[group].spec
        layout = source.groups[group].layout
        self._group_parts = () if layout is None else layout.parts
        self.num_records = len(source)
        self.how = "rows in the memory of a GPU"
        self._budget, self._caches = budget, caches

    def cache_on(self, device: str) -> CardCache:
        """Return the rows of the source on a GPU; the first call finds out how many records fit.

        Raises:
            TooLargeError, DeviceError: see `CardCache`.
        """
        if device not in self._caches:
            record_bytes = row_bytes(filter(stays_on_card, self.source.spec))
            cache = CardCache(
                self.source._line(), device, self._budget, self.num_records, record_bytes
            )
            # of two threads that come here at once, the first one's
            self._caches.setdefault(device, cache)
        return self._caches[device]

    @property
    def calls_python(self) -> bool:  # type: ignore[override]
        """True if a Python function makes the records of the source."""
        return any(share.leaf.calls_python for share in self._first_shares)

    @property
    def block_records(self) -> int:  # type: ignore[override]
        """How many records the source decodes together for one that it reads."""
        return max((share.leaf.block_records for share in self._first_shares), default=0)

    @property
    def _first_shares(self) -> list[Any]:
        return self._shares(np.zeros(min(1, self.num_records), np.int64))

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many raw bytes each record has; none where the values come from the source as
        they are."""
        if self.layout is None:
            return np.zeros(numbers.size, np.int64)
        return super().num_bytes(numbers)

    def value_bytes(self, numbers: Indices) -> Indices:
        """Return about how many bytes the values of each record take, int64 ``[n]``."""
        total: Indices = np.zeros(numbers.size, np.int64)
        for share in self._shares(numbers):
            if share.rows is None:
                rows = slice(None)
            else:
                rows = share.rows
            total[rows] += share.leaf.value_bytes(share.numbers)
        return total

    def _shares(self, numbers: Indices) -> list[Any]:
        return [share for share in self.source.resolve(numbers) if share.group == self.group]

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        if self.layout is None:
            return
        size, rows = self.layout.record_bytes, np.arange(numbers.size, dtype=np.int64)
        layout = replace(self.layout, parts=self._group_parts)
        is_whole = numbers.size * size == out.size and np.array_equal(begins, size * rows)
        if is_whole:
            memory = out
        else:
            memory = np.empty(numbers.size * size, np.uint8)
        raw = memory.reshape(numbers.size, size)
        fill(self._shares(numbers), self.group, layout, raw)
        if not is_whole:
            gather_rows(raw, rows, out, begins)

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the values as the source has them."""
        return values(self._shares(numbers), self.group, self._group_spec, numbers.size)

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file that holds a record and the byte where it begins."""
        (share,) = self._shares(np.array([number], np.int64))
        origin: tuple[str, int] | None = share.leaf.origin(int(share.numbers[0]))
        return origin

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        for share in self._shares(numbers):
            share.leaf.advise(share.numbers)


def card_leaves(
    source: Readable, memory: int | str | None, path: str | os.PathLike[str] | None
) -> tuple[CardLeaf, ...]:
    """Return leaves with rows that stay in the memory of GPUs, one for each group of a source.

    Raises:
        SpecError: there is a path, the budget says no number of bytes, or the source is a mix.
    """
    if path is not None:
        raise SpecError(
            f"cache(device=True, path={path!r})"[:200],
            cause="values are kept in one place: in the memory of a GPU, or in files below a "
            "folder",
            remedy="write source.cache(path=...).cache(device=True): the second one keeps what the "
            "first one has",
        )
    check_end(source)
    budget = checked_budget(memory)
    caches: dict[str, CardCache] = {}
    groups = enumerate(_cut_groups(source))
    return tuple(
        CardLeaf(source, group, fields, number, budget, caches)
        for number, (group, fields) in groups
    )


def row_bytes(fields: Iterable[Field]) -> int:
    """Return the bytes of a row of each of some fields together."""
    return sum(field.dtype.itemsize * prod(field.fixed_shape) for field in fields)


def leaves_on_card(source: Readable) -> list[tuple[int, CardLeaf]]:
    """Return the leaves of some records that have rows on a GPU, each with its group."""
    if not source._has_card or not len(source):
        return []
    numbers = np.linspace(0, len(source) - 1, SAMPLED_RECORDS).astype(np.int64)
    pairs = [(share.group, share.leaf) for share in source.resolve(numbers)]
    return [(group, leaf) for group, leaf in dict.fromkeys(pairs) if isinstance(leaf, CardLeaf)]


def card_groups_of(source: Readable) -> frozenset[int]:
    """Return the groups of a source that have rows on a GPU."""
    return frozenset(group for group, _ in leaves_on_card(source))

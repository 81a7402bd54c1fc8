"""Ahead: what storage is asked for before it is read, and when.

Storage reads faster what it is asked for early, in order and in long pieces than what steps ask for when they need it,
in the order in which they need it.

In order        what some steps take together, some steps before
gl.Blocks       the windows whose records are mixed, each in ascending order, while the one before is taken
Whole shuffle   all records in ascending order when the epoch begins, if they fit into memory and most of them are
                taken. The first step waits for them, since reading at random beside would disturb what is read in
                order, but a second at most; what is not there by then comes as it is needed

Nothing is asked for that is in memory, as far as a look at some records tells. From the first that is not, a thread
(`fetching.py`) has storage read what steps in order and windows will take, and steps wait until it is there. Before a
whole shuffle two threads do, each one half, which was faster than one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from gpuload.fetching import Fetcher, resident
from gpuload.order import Blocks, Plan, Start, block_records
from gpuload.sources.base import Indices, Source
from gpuload.sources.memory import cache_bytes
from gpuload.sources.places import Places

Asks = Iterator[tuple[int, Indices]]
PIECE_BYTES = 1 << 24  # asked for at once
WINDOW_BYTES = 1 << 25  # what is read in order is asked for so many bytes before
MOST_RECORDS = 1 << 17  # in a list
MOST_SHARDS = 4  # that share a window of blocks; with more each takes little of it
LEAST_TAKEN = 0.5  # the part of all records that an epoch must take, for all to be asked for
LOOKED_AT = 16  # records, to see if many are in memory
MOST_SECONDS = 1.0  # that a step is held up while storage is slow


class Ahead:
    """What storage is asked for in the course of an epoch; what fails the step itself meets again, which says so."""

    def __init__(self, source: Source, plan: Plan, epoch: int, start: Start) -> None:
        self._source, self._plan, self._start = source, plan, start
        self._asks: Asks = iter(())
        if source.has_places and source.blocks:
            record_bytes = sum(layout.record_bytes for layout in source.blocks)
            self._asks = asks(plan, epoch, start, max(record_bytes, 1), cache_bytes())
        self._fetcher: Fetcher | None = None
        self._num_resident = self._num_fetched = 0  # of all records that were due; the latter are the fetcher's
        self._advance()

    def ready(self, step: int) -> bool:
        """Ask for what is due before a step, and return False if that step had to wait."""
        self._ask(step)
        return self._fetcher is None or self._fetcher.fetched(self._needed(step))

    def wait(self, step: int) -> None:
        """Ask for what is due before a step, and wait for what it needs."""
        self._ask(step)
        if self._fetcher is not None:
            self._fetcher.wait(self._needed(step))

    def close(self) -> None:
        """Have nothing more read."""
        if self._fetcher is not None:
            self._fetcher.close()

    def _needed(self, step: int) -> int:
        """Return how many records must have been fetched before a step; at the end there are fewer."""
        return min(needed(self._plan, self._start, step) - self._num_resident, self._num_fetched)

    def _ask(self, step: int) -> None:
        until, absent = time.monotonic() + MOST_SECONDS, []
        while self._wanted is not None and self._step <= step:
            if self._plan.shuffle is not True:
                self._fetch(self._wanted)
            elif time.monotonic() < until and not self._resident(self._wanted):
                absent.append((self._places(self._wanted), self._wanted.size))
            self._advance()
        if absent:
            _fetch_all(absent, until)

    def _fetch(self, wanted: Indices) -> None:
        """Have records fetched, from the first on that are not in memory."""
        if self._fetcher is None and not self._resident(wanted):
            self._fetcher = Fetcher()
        if self._fetcher is None:
            self._num_resident += wanted.size
        else:
            self._num_fetched += wanted.size
            self._fetcher.ask(self._places(wanted), wanted.size)

    def _resident(self, wanted: Indices) -> bool:
        """Look at a few of the records, and at the last: where somebody waited, the system has read on for some way."""
        looked_at = np.arange(LOOKED_AT) * (wanted.size - 1) // (LOOKED_AT - 1)
        return resident(self._places(wanted[looked_at]))

    def _places(self, wanted: Indices) -> Places:
        try:
            return self._source.places(wanted)
        except Exception:
            return Places()

    def _advance(self) -> None:
        self._step: int
        self._wanted: Indices | None
        self._step, self._wanted = next(self._asks, (0, None))


def _fetch_all(absent: list[tuple[Places, int]], until: float) -> None:
    """Have places fetched in two threads, which have so many records; wait for them, but not after ``until``."""
    half = (len(absent) + 1) // 2
    fetchers = [(Fetcher(), part) for part in (absent[:half], absent[half:]) if part]
    for fetcher, part in fetchers:
        for places, num_records in part:
            fetcher.ask(places, num_records)
    for fetcher, part in fetchers:
        fetcher.wait(sum(num_records for _, num_records in part), until)
        fetcher.close()


def needed(plan: Plan, start: Start, step: int) -> int:
    """Return how many of the records that ``asks`` yields, from the first on, there must be before a step; or more."""
    if isinstance(plan.shuffle, Blocks):  # all windows that it touches
        size = plan.shuffle.window_records
        return -(-plan.position(step + 1, start) // size) * size - start.position // size * size
    return (step + 1 - start.step) * plan.batch_size


def asks(plan: Plan, epoch: int, start: Start, record_bytes: int, room: int) -> Asks:
    """Yield steps, and which records storage should be asked for when they begin, int64 in ascending order.

    Args:
        plan: which records are taken.
        epoch: of the plan.
        start: where the epoch begins.
        record_bytes: the bytes of a record.
        room: the bytes of files that stay in memory; nothing is asked for that would be gone before it is taken.
    """
    if plan.shuffle is True:
        return _of_whole_shuffle(plan, start, record_bytes, room)
    if plan.shuffle is False:
        return _of_order(plan, epoch, start, record_bytes, room)
    return _of_blocks(plan, plan.shuffle, epoch, start, record_bytes, room)


def _of_whole_shuffle(plan: Plan, start: Start, record_bytes: int, room: int) -> Asks:
    taken = (plan.end(start) - start.step) * plan.batch_size
    if plan.length * record_bytes <= room and taken >= LEAST_TAKEN * plan.length:
        size = min(max(PIECE_BYTES // record_bytes, 1), MOST_RECORDS)
        for first in range(0, plan.length, size):
            yield start.step, np.arange(first, min(first + size, plan.length), dtype=np.int64)


def _of_order(plan: Plan, epoch: int, start: Start, record_bytes: int, room: int) -> Asks:
    """Yield what some steps take, WINDOW_BYTES before they do; at first a piece a step, for the first step waits."""
    step_bytes, end = plan.batch_size * record_bytes, plan.end(start)
    if WINDOW_BYTES + max(PIECE_BYTES, step_bytes) > room:
        return
    many = max(1, min(PIECE_BYTES // step_bytes, MOST_RECORDS // plan.batch_size))
    before = -(-WINDOW_BYTES // step_bytes)
    for number, first in enumerate(range(start.step, end, many)):
        steps = range(first, min(first + many, end))
        if plan.num_shards == 1:
            records = np.arange(plan.position(steps.start, start), plan.position(steps.stop, start), dtype=np.int64)
        else:
            taken, valid, _ = plan.span(steps, epoch, start)
            records = taken[valid]
        yield max(first - before, start.step + number), records


def _of_blocks(plan: Plan, blocks: Blocks, epoch: int, start: Start, record_bytes: int, room: int) -> Asks:
    """Yield the windows that the steps touch, in pieces, while the steps take the window before."""
    size = blocks.window_records
    if size > MOST_RECORDS or 2 * size * record_bytes > room or plan.num_shards > MOST_SHARDS:
        return
    piece = max(1, PIECE_BYTES // record_bytes)
    for first in range(start.position // size * size, plan.position(plan.end(start), start), size):
        positions = np.arange(first, min(first + size, plan.length), dtype=np.int64)
        window = np.sort(block_records(positions, plan.length, blocks, plan.seed, epoch))
        for begin in range(0, window.size, piece):
            reached = (first + begin - size - start.position) // plan.global_batch
            yield start.step + max(reached, 0), window[begin : begin + piece]

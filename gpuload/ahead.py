"""Ahead: what storage is asked for before it is read, and when.

Storage reads faster what it is asked for early, in order and in long pieces than what steps ask for when they need it,
in the order in which they need it.

In order        what some steps take together, some steps before
gl.Blocks       the windows whose records are mixed, each in ascending order, while the one before is taken
Whole shuffle   all records in ascending order when the epoch begins, if they fit into memory and most of them are
                taken. The first step waits for them, since reading at random beside would disturb what is read in
                order, but a second at most; what is not there by then comes as it is needed
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import numpy as np

from gpuload.order import Blocks, Plan, Start, block_records
from gpuload.sources.base import Indices, Source
from gpuload.sources.memory import cache_bytes

Asks = Iterator[tuple[int, Indices]]
PIECE_BYTES = 1 << 24  # asked for at once
WINDOW_BYTES = 1 << 25  # what is read in order is asked for so many bytes before
MOST_RECORDS = 1 << 17  # in a list
MOST_SHARDS = 4  # that share a window of blocks; with more each takes little of it
LEAST_TAKEN = 0.5  # the part of all records that an epoch must take, for all to be asked for
MOST_SECONDS = 1.0  # that a step is held up while storage is slow


class Ahead:
    """What storage is asked for in the course of an epoch."""

    def __init__(self, source: Source, plan: Plan, epoch: int, start: Start) -> None:
        self._source, self._end = source, plan.end(start)
        self._wait = plan.shuffle is True
        self._asks: Asks = iter(())
        if source.can_expect and source.blocks:
            record_bytes = sum(layout.record_bytes for layout in source.blocks)
            room = cache_bytes() if self._wait else 0
            self._asks = asks(plan, epoch, start, max(record_bytes, 1), room)
        self._advance()

    def ask(self, step: int) -> None:
        """Ask for what is due before a step; what fails the step itself meets again, which says so."""
        if step < self._step:
            return
        until = time.perf_counter() + MOST_SECONDS
        while self._wanted is not None and self._step <= step:
            if time.perf_counter() < until:
                with contextlib.suppress(Exception):
                    self._source.expect(self._wanted, wait=self._wait)
            self._advance()

    def _advance(self) -> None:
        self._step: int
        self._wanted: Indices | None
        self._step, self._wanted = next(self._asks, (self._end, None))


def asks(plan: Plan, epoch: int, start: Start, record_bytes: int, room: int) -> Asks:
    """Yield steps, and which records storage should be asked for when they begin, int64 in ascending order.

    Args:
        plan: which records are taken.
        epoch: of the plan.
        start: where the epoch begins.
        record_bytes: the bytes of a record.
        room: the bytes of files that stay in memory.
    """
    if plan.shuffle is True:
        return _of_whole_shuffle(plan, start, record_bytes, room)
    if plan.shuffle is False:
        return _of_order(plan, epoch, start, record_bytes)
    return _of_blocks(plan, plan.shuffle, epoch, start, record_bytes)


def _of_whole_shuffle(plan: Plan, start: Start, record_bytes: int, room: int) -> Asks:
    taken = (plan.end(start) - start.step) * plan.batch_size
    if plan.length * record_bytes <= room and taken >= LEAST_TAKEN * plan.length:
        size = min(max(PIECE_BYTES // record_bytes, 1), MOST_RECORDS)
        for first in range(0, plan.length, size):
            yield start.step, np.arange(first, min(first + size, plan.length), dtype=np.int64)


def _of_order(plan: Plan, epoch: int, start: Start, record_bytes: int) -> Asks:
    """Yield what some steps take, WINDOW_BYTES before they do; at first a piece a step, for the first step waits."""
    step_bytes, end = plan.batch_size * record_bytes, plan.end(start)
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


def _of_blocks(plan: Plan, blocks: Blocks, epoch: int, start: Start, record_bytes: int) -> Asks:
    """Yield the windows that the steps touch, in pieces, while the steps take the window before."""
    size = blocks.block_records * blocks.window_blocks
    if size > MOST_RECORDS or plan.num_shards > MOST_SHARDS:
        return
    piece = max(1, PIECE_BYTES // record_bytes)
    for first in range(start.position // size * size, plan.position(plan.end(start), start), size):
        positions = np.arange(first, min(first + size, plan.length), dtype=np.int64)
        window = np.sort(block_records(positions, plan.length, blocks, plan.seed, epoch))
        for begin in range(0, window.size, piece):
            reached = (first + begin - size - start.position) // plan.global_batch
            yield start.step + max(reached, 0), window[begin : begin + piece]

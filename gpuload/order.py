"""Order: which record, at which step of which epoch, on which shard. Pure: no files, no state, O(1) memory.

The global order of an epoch is a list of positions 0 .. length - 1, each holding one record. It depends on the length,
the seed, the epoch and the kind of shuffle alone. At each step the shards together take the next
``num_shards * batch_size`` positions, shard by shard:

    10 records, batch_size 2, 2 shards      step 0            step 1            step 2
    last_batch "partial"      shard 0       [0 1]             [4 5]             [8]
                              shard 1       [2 3]             [6 7]             [9]
    last_batch "drop"         both          the same without step 2
    last_batch "pad"          shard 0       [0 1]             [4 5]             [8 9]
                              shard 1       [2 3]             [6 7]             [0 1], both not valid

So a run goes on where it stopped with another batch size or number of shards: the position is all there is to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from gpuload import kernels, rng
from gpuload.errors import RecordIndexError, SpecError

Positions = NDArray[np.int64]
LAST_BATCH = ("partial", "drop", "pad")
ROUNDS, ROUNDS_SMALL, SMALL = 8, 24, 1 << 16  # tests/test_order.py measures that these mix
MAX_LENGTH = 1 << 62  # halves of a position fit into 31 bits
RECORDS_STREAM, BLOCKS_STREAM, WINDOW_STREAM, ROTATION_STREAM = range(4)  # streams of ops are hashes, far from these


@dataclass(frozen=True)
class Blocks:
    """Shuffle blocks of neighbouring records, then the records within each window of blocks.

    For cold disks and object stores: reads stay near each other. The same promise as the whole shuffle, but records
    only mix within ``block_records * window_blocks`` of one another. Where blocks begin is drawn anew each epoch.

    Args:
        block_records: neighbouring records that stay in one window.
        window_blocks: blocks whose records are mixed with each other.
    """

    block_records: int = 1024
    window_blocks: int = 16

    def __post_init__(self) -> None:
        for name in ("block_records", "window_blocks"):
            _check_count(f"Blocks.{name}", getattr(self, name))

    @property
    def window_records(self) -> int:
        """How many records are mixed."""
        return self.block_records * self.window_blocks


@dataclass(frozen=True)
class Permutation:
    """A keyed permutation of 0 .. length - 1 that is computed, not stored.

    A Feistel network over pairs (a, b), position = a * low + b with high * low >= length, whose rounds add a keyed
    hash of one half to the other, modulo its range; a result beyond ``length`` is permuted again ("cycle walking",
    Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
    """

    length: int
    keys: tuple[tuple[int, int], ...]

    @cached_property
    def low(self) -> int:
        """The range of the lower half."""
        return isqrt(max(self.length, 1) - 1) + 1

    @cached_property
    def high(self) -> int:
        """The range of the upper half."""
        return max(1, -(-self.length // self.low))

    def at(self, positions: Positions) -> Positions:
        """Return what stands at these positions, int64 ``[N]``; each position must lie in 0 .. length - 1."""
        keys = self._keys
        compiled = kernels.load("random")
        if compiled is not None:
            out = np.empty(positions.size, np.int64)
            compiled.feistel(positions, self.length, np.uint32(self.high), np.uint32(self.low), keys, out)
            return out
        out = self._walk(positions, keys)
        while (beyond := np.flatnonzero(out >= self.length)).size:
            out[beyond] = self._walk(out[beyond], keys)
        return out

    @cached_property
    def _keys(self) -> NDArray[np.uint32]:
        return np.array(self.keys, np.uint32)

    def _walk(self, x: Positions, keys: NDArray[np.uint32]) -> Positions:
        a, b = (x // self.low).astype(np.uint32), (x % self.low).astype(np.uint32)
        high, low = np.uint32(self.high), np.uint32(self.low)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            a = _added(a, _mix(b, even, high), high)
            b = _added(b, _mix(a, odd, low), low)
        return a.astype(np.int64) * self.low + b.astype(np.int64)


@lru_cache(maxsize=256)
def permutation(length: int, *, seed: int, epoch: int, stream: int = RECORDS_STREAM, number: int = 0) -> Permutation:
    """Return the permutation of ``length`` for a key of (seed, epoch, stream, number)."""
    if not 0 <= length <= MAX_LENGTH:
        raise SpecError(f"{length} records", cause="an order holds 0 to 2**62 of them", remedy="use fewer records")
    rounds = ROUNDS_SMALL if length < SMALL else ROUNDS
    words = rng.bits(rounds, seed=seed, epoch=epoch, records=np.array([number]), stream=stream)[0]
    return Permutation(length, tuple((int(word) >> 32, int(word) & 0xFFFFFFFF) for word in words))


@dataclass(frozen=True)
class Start:
    """Where an epoch goes on: ``step`` begins at global position ``position``."""

    step: int = 0
    position: int = 0


@dataclass(frozen=True)
class Plan:
    """The records of every step of every epoch on one shard.

    Raises:
        SpecError: an argument is not what it must be; it is named.
    """

    length: int
    batch_size: int
    shuffle: bool | Blocks = False
    seed: int = 0
    shard_id: int = 0
    num_shards: int = 1
    last_batch: str = "partial"

    def __post_init__(self) -> None:
        _check_count("batch_size", self.batch_size)
        _check_count("num_shards", self.num_shards)
        rng.checked_word(self.seed, "seed")
        if not isinstance(self.shuffle, (bool, Blocks)):
            raise SpecError(
                f"shuffle = {self.shuffle!r}", cause="it is not known", remedy="use True, False or gl.Blocks(...)"
            )
        if isinstance(self.shard_id, bool) or not 0 <= self.shard_id < self.num_shards:
            raise SpecError(
                f"shard_id = {self.shard_id!r} of {self.num_shards} shards",
                cause=f"shards are numbered 0 to {self.num_shards - 1}",
                remedy="pass the rank of this process",
            )
        if self.last_batch not in LAST_BATCH:
            raise SpecError(
                f"last_batch = {self.last_batch!r}", cause="it is not known", remedy=f"use one of {LAST_BATCH}"
            )

    @cached_property
    def global_batch(self) -> int:
        """The records that all shards together take at a step."""
        return self.batch_size * self.num_shards

    def end(self, start: Start = Start()) -> int:
        """Return the number of steps of an epoch that goes on at ``start``; the same on every shard."""
        left = self.length - start.position
        return start.step + (left // self.global_batch if self.last_batch == "drop" else -(-left // self.global_batch))

    def position(self, step: int, start: Start = Start()) -> int:
        """Return the global position where a step begins, at most ``length``."""
        return min(self.length, start.position + (step - start.step) * self.global_batch)

    def start_at(self, position: int) -> Start:
        """Return how an epoch goes on at a position that any number of shards and batch size may have reached."""
        return Start(-(-position // self.global_batch), position)

    def batch(self, step: int, epoch: int, start: Start = Start()) -> tuple[Positions, NDArray[np.bool_]]:
        """Return the records of a step on this shard, int64 ``[n]``, and which of them are valid, bool ``[n]``.

        Raises:
            RecordIndexError: the epoch has no such step.
        """
        records, valid, _ = self.span(range(step, step + 1), epoch, start)
        return records, valid

    def span(
        self, steps: range, epoch: int, start: Start = Start()
    ) -> tuple[Positions, NDArray[np.bool_], tuple[int, ...]]:
        """Return ``batch`` of several steps, one after the other, and how many records each has; one call for all."""
        end = self.end(start)
        if not 0 <= steps.start <= steps.stop <= end:
            raise RecordIndexError(
                f"step {steps.stop - 1} of an epoch of {end} steps",
                cause="steps are counted from 0",
                remedy="ask for a step below len(loader)",
            )
        parts = [self._positions(start.position + (step - start.step) * self.global_batch) for step in steps]
        positions, valid = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        return self._records(positions, epoch), valid, tuple(part[0].size for part in parts)

    def _positions(self, first: int) -> tuple[Positions, NDArray[np.bool_]]:
        """Return this shard's positions of the step that begins at global position ``first``, and which are valid."""
        left = self.length - first
        if left >= self.global_batch:
            begin = first + self.shard_id * self.batch_size
            return np.arange(begin, begin + self.batch_size, dtype=np.int64), np.ones(self.batch_size, np.bool_)
        begin, count, wanted = self._last(first, left)
        return np.arange(begin, begin + wanted, dtype=np.int64) % self.length, np.arange(wanted) < count

    def _last(self, first: int, left: int) -> tuple[int, int, int]:
        """Return where this shard's part of the last records begins, how many it holds, and the size of its batch."""
        if self.last_batch == "pad":
            begin = self.shard_id * self.batch_size
            return first + begin, min(max(left - begin, 0), self.batch_size), self.batch_size
        share, more = divmod(left, self.num_shards)
        count = share + (self.shard_id < more)
        begin = self.shard_id * share + min(self.shard_id, more)
        return first + begin, count, max(count, 1)

    def _records(self, positions: Positions, epoch: int) -> Positions:
        if self.shuffle is False:
            return positions
        if self.shuffle is True:
            return permutation(self.length, seed=self.seed, epoch=epoch).at(positions)
        return _in_blocks(positions, self.length, self.shuffle, self.seed, epoch)


def _in_blocks(positions: Positions, length: int, blocks: Blocks, seed: int, epoch: int) -> Positions:
    """Return the records at these positions of a block shuffle."""
    per_window = blocks.window_records
    windows = positions // per_window
    mixed = np.empty_like(positions)
    for window in np.unique(windows).tolist():
        chosen = windows == window
        begin = window * per_window
        inside = permutation(
            min(per_window, length - begin), seed=seed, epoch=epoch, stream=WINDOW_STREAM, number=window
        )
        mixed[chosen] = begin + inside.at(positions[chosen] - begin)
    return block_records(mixed, length, blocks, seed, epoch)


def block_records(positions: Positions, length: int, blocks: Blocks, seed: int, epoch: int) -> Positions:
    """Return the records at these positions where blocks are shuffled, and the records within a window are not.

    Whole blocks are permuted, the remainder is the last block; the records are first turned round by a drawn distance,
    so that each epoch has other blocks and another remainder.
    """
    size = blocks.block_records
    rotation = int(rng.bits(1, seed=seed, epoch=epoch, records=np.zeros(1, np.int64), stream=ROTATION_STREAM)[0, 0])
    order = permutation(length // size, seed=seed, epoch=epoch, stream=BLOCKS_STREAM)
    block, within = positions // size, positions % size
    whole = block < order.length
    block[whole] = order.at(block[whole])
    return (block * size + within + rotation % max(length, 1)) % max(length, 1)


def _mix(half: NDArray[np.uint32], keys: NDArray[np.uint32], modulus: np.uint32) -> NDArray[np.uint32]:
    """Return a keyed hash of a half, in 0 .. modulus - 1: multiply and xor-shift, then the upper bits of a product."""
    h = (half ^ keys[0]) * np.uint32(0x9E3779B1)
    h = ((h ^ (h >> np.uint32(15))) + keys[1]) * np.uint32(0x85EBCA77)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE3D)
    h = h ^ (h >> np.uint32(16))
    scaled: NDArray[np.uint32] = ((h.astype(np.uint64) * np.uint64(modulus)) >> np.uint64(32)).astype(np.uint32)
    return scaled


def _added(half: NDArray[np.uint32], hashed: NDArray[np.uint32], modulus: np.uint32) -> NDArray[np.uint32]:
    total = half + hashed  # below 2 * modulus, which fits: halves have 31 bits
    return np.where(total >= modulus, total - modulus, total)


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise SpecError(f"{name} = {value!r}", cause="it must be a whole number of at least 1", remedy="pass one")

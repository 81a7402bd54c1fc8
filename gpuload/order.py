"""Order: which record, at which step of which epoch, on which shard. Pure: no files, no state, O(1)
memory.

The global order of an epoch is a list of positions 0 .. length - 1, each holding one record. It
depends on the length, the seed, the epoch and the kind of shuffle alone. At each step the shards
together take the next ``num_shards * batch_size`` positions, shard by shard:

    10 records, batch_size 2, 2 shards      step 0            step 1            step 2
    last_batch "partial"      shard 0       [0 1]             [4 5]             [8]
                              shard 1       [2 3]             [6 7]             [9]
    last_batch "drop"         both          the same without step 2
    last_batch "pad"          shard 0       [0 1]             [4 5]             [8 9]
                              shard 1       [2 3]             [6 7]             [0 1], both not valid

So a run goes on where it stopped with another batch size or number of shards: the position is all
there is to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd, isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import core, rng
from gpuload.errors import RecordIndexError, SpecError, TooLargeError, short_repr
from gpuload.spec import is_whole

Positions = NDArray[np.int64]
LAST_BATCH = ("partial", "drop", "pad")
ROUNDS, ROUNDS_SMALL, SMALL = 8, 24, 1 << 16  # tests/test_order.py measures that these mix
MAX_LENGTH = 1 << 62  # halves of a position fit into 31 bits
# Streams of ops are hashes, far from these.
(
    RECORDS_STREAM,
    BLOCKS_STREAM,
    WINDOW_STREAM,
    ROTATION_STREAM,
    SPLIT_STREAM,
    MIX_STREAM,
    TURNS_STREAM,
) = range(7)
SAMPLE_STREAM = 7
MOST_SHARDS = (
    4  # that share a window and each ask for all of it; with more, each takes little of it
)
# of a window, for a shard to ask for it: half a share, since shares are uneven
MIN_SHARE = 1 / (2 * MOST_SHARDS)
MOST_AHEAD = 1 << 20  # records in the windows that a shard needs at a time: 8 MiB of record numbers
MOST_LANES = 32  # that a shard asks for; each costs some microseconds a step
PIECE_RECORDS = 1 << 20  # of an epoch, that are gone through at a time to find a record


@dataclass(frozen=True)
class Blocks:
    """Shuffle blocks of neighbouring records, then the records within each window of blocks.

    For cold disks and object stores: reads stay near each other. The same promise as the whole
    shuffle, but records only mix within ``block_records * window_blocks`` of one another. Where
    blocks begin is drawn anew each epoch.

    At each step the shards take neighbouring positions, so many shards share each window, and each
    of them reads blocks of which it uses little. Where shards do not share a cache, ``lanes``
    avoids that: the order then interleaves so many sequences of windows, ``chunk`` positions at a
    time, and each shard stays on lanes of its own:

        13 records, lanes=3, chunk=2            lane 0: a b c d     lane 1: e f g h     lane 2: i j k l     left: m
        the order                               a b  e f  i j   c d  g h  k l   m
        3 shards, batch_size 2, take at step 0  shard 0: a b    shard 1: e f    shard 2: i j
                                     at step 1           c d             g h             k l

    This needs ``num_shards * batch_size == lanes * chunk``, and ``num_shards`` that divides
    ``lanes``. So begin with ``lanes=num_shards, chunk=batch_size``; the run may then go on with
    half as many shards of twice the batch size. With any other numbers the order is the same, but
    the shards share windows again.

    Args:
        block_records: neighbouring records that stay in one window.
        window_blocks: blocks with records that are mixed with each other.
        lanes: sequences that the order interleaves.
        chunk: positions that are taken from a lane at a time; without meaning where there is one
            lane.

    Raises:
        SpecError: a number is not a whole number of at least 1, or there are lanes without a chunk.
    """

    block_records: int = 1024
    window_blocks: int = 16
    lanes: int = 1
    chunk: int | None = None

    def __post_init__(self) -> None:
        for name in ("block_records", "window_blocks", "lanes"):
            _keep(
                self, name, check_count(f"Blocks.{name}", getattr(self, name), maximum=MAX_LENGTH)
            )
        if self.chunk is not None:
            chunk = check_count("Blocks.chunk", self.chunk, maximum=MAX_LENGTH)
            _keep(self, "chunk", chunk if self.lanes > 1 else None)  # one order has one name
        elif self.lanes > 1:
            raise SpecError(
                f"Blocks.lanes = {self.lanes} without chunk",
                cause="the order takes turns between lanes, chunk positions at a time",
                remedy="pass chunk=batch_size, with the batch size of one shard",
            )

    def __repr__(self) -> str:
        if self.lanes > 1:
            lanes = f", lanes={self.lanes}, chunk={self.chunk}"
        else:
            lanes = ""
        return (
            f"Blocks(block_records={self.block_records}, window_blocks={self.window_blocks}{lanes})"
        )

    @property
    def window_records(self) -> int:
        """How many records are mixed."""
        # a larger window makes no difference
        return min(self.block_records * self.window_blocks, MAX_LENGTH)


@dataclass(frozen=True, eq=False)
class Buckets:
    """Shuffle all records, so that those of similar length come together: batches with little
    padding.

    The shuffled order of an epoch is cut into windows of ``chunk * window_chunks`` records. In each
    window records are sorted by length and cut into chunks, and the chunks are shuffled; records
    that fill no chunk stay at the end::

        9 records, chunk=2, window_chunks=4
        shuffled, as lengths      5 1 9 3 5 2 8 1 | 4
        sorted, and cut           1 1  2 3  5 5  8 9 | 4
        the order                 5 5  1 1  8 9  2 3 | 4

    Records of one length come in the order of the shuffle. With ``chunk=num_shards * batch_size``
    all shards have similar lengths at each step, with ``chunk=batch_size`` each shard has its own.
    The order does not depend on the batch size; with one that does not divide ``chunk`` some
    batches have records of two chunks.

    Args:
        by: the field of varying length, counted along the first axis; or the lengths
            of all records, whole numbers ``[len(source)]``. They are kept, 8 bytes a record. Of a
            field they are found out when a loader is made, from where the records lie if that tells
            it, else by reading the field once.
        chunk: records of similar length.
        window_chunks: in how many chunks records are sorted. More of them mean less padding, and
            less randomness.

    Raises:
        SpecError: a number is not a whole number of at least 1, or the lengths are no lengths.
    """

    by: str | NDArray[np.int64]
    chunk: int
    window_chunks: int = 128

    def __post_init__(self) -> None:
        for name in ("chunk", "window_chunks"):
            _keep(
                self, name, check_count(f"Buckets.{name}", getattr(self, name), maximum=MAX_LENGTH)
            )
        if isinstance(self.by, str) and self.by:
            return
        try:
            lengths = np.asarray(self.by)
        except ValueError:  # lists of several lengths, which are refused below
            lengths = np.empty(0)
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or bool((lengths < 0).any()):
            raise SpecError(
                f"Buckets.by = {self.by!r}"[:200],
                cause="it is the name of a field, or an array with the length of each record, "
                "whole numbers",
                remedy="write gl.Buckets('tokens', chunk=64), say",
            )
        # A copy, also of int64: the caller may change the array, and the order of a run must not.
        _keep(self, "by", lengths.astype(np.int64))

    @property
    def window_records(self) -> int:
        """How many records are sorted at a time."""
        return min(self.chunk * self.window_chunks, MAX_LENGTH)

    def __repr__(self) -> str:
        if isinstance(self.by, str):
            by = repr(self.by)
        else:
            by = f"{self.by.size} lengths"
        return f"Buckets({by}, chunk={self.chunk}, window_chunks={self.window_chunks})"

    def at(self, positions: Positions, *, length: int, seed: int, epoch: int) -> Positions:
        """Return the records at these positions of an epoch."""
        windows = positions // self.window_records
        records = np.empty_like(positions)
        for window in np.unique(windows).tolist():
            in_window = windows == window
            order = _bucket_window(self, length, seed, epoch, window)
            records[in_window] = order[positions[in_window] - window * self.window_records]
        return records

    def order_of_window(self, length: int, seed: int, epoch: int, window: int) -> Positions:
        """Return the records of a window in their order, int64 ``[n]``."""
        begin = window * self.window_records
        places = np.arange(begin, min(begin + self.window_records, length), dtype=np.int64)
        records = permutation(length, seed=seed, epoch=epoch).at(places)
        num_chunks = records.size // self.chunk
        in_chunks = num_chunks * self.chunk
        # of the shuffle, so that the rest is of any length
        whole, left = (records[:in_chunks], records[in_chunks:])
        lengths = np.asarray(self.by)[whole]  # a plan has no names of fields
        chunks = whole[np.argsort(lengths, kind="stable")].reshape(num_chunks, self.chunk)
        turn = permutation(num_chunks, seed=seed, epoch=epoch, stream=WINDOW_STREAM, number=window)
        return np.concatenate(
            [chunks[turn.at(np.arange(num_chunks, dtype=np.int64))].reshape(-1), left]
        )


@lru_cache(maxsize=8)
def _bucket_window(buckets: Buckets, length: int, seed: int, epoch: int, window: int) -> Positions:
    """Return ``Buckets.order_of_window``: the steps of a window follow one another, and share
    it."""
    return buckets.order_of_window(length, seed, epoch, window)


@dataclass(frozen=True)
class Permutation:
    """A keyed permutation of 0 .. length - 1 that is computed, not stored.

    A Feistel network over pairs (a, b), position = a * low + b with high * low >= length. Its
    rounds add a keyed hash of one half to the other, modulo its range; a result beyond ``length``
    is permuted again ("cycle walking", Black and Rogaway, "Ciphers with arbitrary finite domains",
    CT-RSA 2002).
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
        """Return the records at these positions, int64 ``[N]``; each position must lie in 0 ..
        length - 1."""
        keys = self._keys
        if core.native is not None:
            out = np.empty(positions.size, np.int64)
            core.native.permute(
                np.ascontiguousarray(positions, np.int64),
                self.length,
                self.high,
                self.low,
                keys,
                out,
            )
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


def permute(positions: Positions, length: int, words: NDArray[np.uint64]) -> Positions:
    """Return the elements at positions of permutations of one length, each position with the keys
    of its permutation.

    Args:
        positions: int64 ``[N]``, each in 0 .. length - 1.
        length: of each of the permutations.
        words: uint64 ``[N, num_rounds(length)]``: the upper and lower halves of each word are the
            keys of a round.
    """
    permutation_of_length = Permutation(length, ())
    keys = np.stack([words.T >> np.uint64(32), words.T & np.uint64(0xFFFFFFFF)], axis=1).astype(
        np.uint32
    )
    out = permutation_of_length._walk(positions, keys)
    while (beyond := np.flatnonzero(out >= length)).size:
        out[beyond] = permutation_of_length._walk(out[beyond], keys[:, :, beyond])
    return out


def num_rounds(length: int) -> int:
    """Return how many rounds a permutation of a length needs to mix."""
    return ROUNDS_SMALL if length < SMALL else ROUNDS


@lru_cache(maxsize=256)
def permutation(
    length: int, *, seed: int, epoch: int, stream: int = RECORDS_STREAM, number: int = 0
) -> Permutation:
    """Return the permutation of ``length`` for a key of (seed, epoch, stream, number)."""
    _checked_length(length)
    words = rng.bits(
        num_rounds(length), seed=seed, epoch=epoch, records=np.array([number]), stream=stream
    )[0]
    return Permutation(length, tuple((int(word) >> 32, int(word) & 0xFFFFFFFF) for word in words))


@dataclass(frozen=True)
class Position:
    """Where a run is, or where an epoch was gone on with.

    Attributes:
        epoch: which pass over the source.
        step: which step of the epoch is the next.
        offset: of the global order of the epoch, where that step begins. It is ``step *
            global_batch`` only as long as the epoch was not gone on with another batch size or
            number of shards.
    """

    epoch: int = 0
    step: int = 0
    offset: int = 0


class Groups(NamedTuple):
    """The records of some steps, each step with the partners of its records.

    Attributes:
        records: int64 ``[n]``.
        valid: bool ``[n]``, False where a record only pads a batch, or is there as a partner alone.
        batches: for each step how many rows come before its batch, are its batch, and come behind
            it.
        partners: int32 ``[n, size - 1]``, how many rows further the partners of each row are: in
            pairs -1, 1, or 0 for a row without one.
    """

    records: Positions
    valid: NDArray[np.bool_]
    batches: tuple[tuple[int, int, int], ...]
    partners: NDArray[np.int32]


@dataclass(frozen=True)
class Plan:
    """The records of every step of every epoch on one shard.

    Raises:
        SpecError: an argument is wrong; the message names it.
    """

    length: int
    batch_size: int
    shuffle: bool | Blocks | Buckets = False
    seed: int = 0
    shard_id: int = 0
    num_shards: int = 1
    last_batch: str = "partial"

    def __post_init__(self) -> None:
        _keep(self, "length", _checked_length(self.length))
        for name in ("batch_size", "num_shards"):
            _keep(self, name, check_count(name, getattr(self, name)))
        _keep(self, "seed", rng.checked_word(self.seed, "seed"))
        # States and repr have True, and not np.True_.
        if isinstance(self.shuffle, np.bool_):
            _keep(self, "shuffle", bool(self.shuffle))
        if not isinstance(self.shuffle, (bool, Blocks, Buckets)):
            raise SpecError(
                f"shuffle = {self.shuffle!r}",
                cause="it is not known",
                remedy="use True, False, gl.Blocks(...) or gl.Buckets(...)",
            )
        if isinstance(self.shuffle, Buckets) and np.shape(self.shuffle.by) != (self.length,):
            raise SpecError(
                f"{self.shuffle!r} of {self.length} records",
                cause="it has the length of each record of the source, in its order",
                remedy="pass one length for each record, or the name of a field to gl.Loader",
            )
        if not is_whole(self.shard_id) or self.shard_id >= self.num_shards:
            raise SpecError(
                f"shard_id = {short_repr(self.shard_id)} of {self.num_shards} shards",
                cause=f"shards are numbered 0 to {self.num_shards - 1}",
                remedy=self._ranks_remedy(),
            )
        _keep(self, "shard_id", int(self.shard_id))
        if not isinstance(self.last_batch, str) or self.last_batch not in LAST_BATCH:
            raise SpecError(
                f"last_batch = {self.last_batch!r}",
                cause="it is not known",
                remedy=f"use one of {LAST_BATCH}",
            )

    def _ranks_remedy(self) -> str:
        """Return the remedy for a rank that there is not: with one shard, the number of them is
        missing, too."""
        if self.num_shards > 1 or not is_whole(self.shard_id) or self.shard_id >= MAX_LENGTH:
            return "pass the rank of this process"
        rank = int(self.shard_id)
        return f"pass the number of processes, too: shard_id={rank}, num_shards={rank + 1} say"

    @cached_property
    def global_batch(self) -> int:
        """The records that all shards together take at a step."""
        return self.batch_size * self.num_shards

    @cached_property
    def most_records(self) -> int:
        """The most records that a step has on this shard: not ``batch_size`` where there are not so
        many."""
        if self.last_batch == "pad":
            return self.batch_size
        return max(1, min(self.batch_size, -(-self.length // self.num_shards)))

    def most_rows(self, size: int) -> int:
        """Return the most rows of a step: those of a batch, and the partners that it lacks in
        groups of ``size``."""
        return self.most_records + 2 * (size - 1)

    def end(self, position: Position = Position()) -> int:
        """Return the step behind the last one of an epoch that goes on at ``position``; the same on
        every shard."""
        left = self.length - position.offset
        whole, rest = divmod(left, self.global_batch)
        return position.step + whole + (rest > 0 and self.last_batch != "drop")

    def at(self, position: Position, step: int) -> Position:
        """Return the position of a later step of the epoch that is at ``position``, or of its end.

        Raises:
            RecordIndexError: the epoch has no such step.
            SpecError: the step is no whole number.
        """
        # A negative number is whole, too: the next check says which steps there are.
        if not is_whole(step, least=-MAX_LENGTH):
            raise SpecError(
                f"step = {short_repr(step)}",
                cause="steps are counted 0, 1, 2 ... from the epoch's beginning",
                remedy="pass step=0",
            )
        if not position.step <= step <= self.end(position):
            raise _no_step(step, self.end(position))
        return self.later(position, int(step))

    def later(self, position: Position, step: int) -> Position:
        """Return the same, of a step that the epoch is known to have."""
        offset = position.offset + (step - position.step) * self.global_batch
        return Position(position.epoch, step, min(self.length, offset))

    def normalize(self, position: Position) -> Position:
        """Return the position as such: the end of an epoch is the beginning of the next."""
        end = self.end(position)
        if end and position.step >= end:
            return Position(position.epoch + 1)
        return position

    def start_at(self, epoch: int, offset: int) -> Position:
        """Return how an epoch goes on at an offset that any number of shards and batch size may
        have reached."""
        return Position(epoch, -(-offset // self.global_batch), offset)

    def span(
        self, position: Position, num_steps: int = 1
    ) -> tuple[Positions, NDArray[np.bool_], tuple[int, ...]]:
        """Return the records of the steps from a position on, on this shard.

        Args:
            position: of the first of the steps.
            num_steps: how many follow one another; one call for all is cheaper than one for each.

        Returns:
            The records, int64 ``[n]``; which of them are valid, bool ``[n]``; and how many each of
            the steps has.

        Raises:
            RecordIndexError: the epoch has no such step.
        """
        if num_steps < 1 or position.step + num_steps > self.end(position):
            raise _no_step(position.step + max(num_steps, 1) - 1, self.end(position))
        # the usual case
        if self.num_shards == 1 and position.offset + num_steps * self.batch_size <= self.length:
            count = num_steps * self.batch_size
            places = np.arange(position.offset, position.offset + count, dtype=np.int64)
            return (
                self._records(places, position.epoch),
                np.ones(count, np.bool_),
                (self.batch_size,) * num_steps,
            )
        parts = [self._positions(position.offset + i * self.global_batch) for i in range(num_steps)]
        if num_steps == 1:
            places, valid = parts[0]
        else:
            places, valid = map(np.concatenate, zip(*parts, strict=True))
        return self._records(places, position.epoch), valid, tuple(part[0].size for part in parts)

    def span_of_groups(self, position: Position, size: int, num_steps: int = 1) -> Groups:
        """Return the same for ops that mix records, with the partners of each record.

        The partners of position p of the global order are p xor 1, and in groups of four p xor 2
        and p xor 3; where the epoch has no such position, there is none. So they depend on the
        epoch alone, and groups lie in one batch wherever its size, and the position where it
        begins, are multiples of theirs. At other steps the partners that are missing come in front
        of the batch, or behind it:

            7 records, batch_size 3     batches     0 1 2       3 4 5             6
                                        pairs       0 1 2 (3)   (2) 3 4 5         6
                                        fours       0 1 2 (3)   (0 1 2) 3 4 5 (6) (4 5) 6

        Args:
            position: see ``span``.
            size: of a group, 2 or 4.
            num_steps: see ``span``.

        Raises:
            RecordIndexError: the epoch has no such step.
        """
        if num_steps < 1 or position.step + num_steps > self.end(position):
            raise _no_step(position.step + max(num_steps, 1) - 1, self.end(position))
        parts = [self._positions(position.offset + i * self.global_batch) for i in range(num_steps)]
        places, valid, batches = [], [], []
        for batch, is_valid in parts:
            first, last = int(batch[0]), int(batch[-1])
            front = np.arange(first - first % size, first)
            behind = np.arange(last + 1, min(last - last % size + size, self.length))
            places += [front, batch, behind]
            valid += [np.zeros(front.size, np.bool_), is_valid, np.zeros(behind.size, np.bool_)]
            batches.append((front.size, batch.size, behind.size))
        rows = np.concatenate(places)
        further = (rows[:, None] ^ np.arange(1, size)) - rows[:, None]
        partners = np.where(rows[:, None] + further < self.length, further, 0).astype(np.int32)
        return Groups(
            self._records(rows, position.epoch), np.concatenate(valid), tuple(batches), partners
        )

    def steps_of(self, records: Sequence[int], epoch: int = 0) -> list[int]:
        """Return at which steps of an epoch some records come, on this shard.

        Without shuffling this is a division; else the records of the epoch are gone through until
        all were met.

        Raises:
            RecordIndexError: the shard does not have one of them in this epoch.
        """
        steps: dict[int, int] = {}
        end = self.end()
        if self.shuffle is False and self.num_shards == 1:
            num_records = min(self.length, end * self.batch_size)
            steps = {
                record: record // self.batch_size for record in records if 0 <= record < num_records
            }
        else:
            count = max(1, PIECE_RECORDS // self.batch_size)
            for first in range(0, end, count):
                numbers, valid, counts = self.span(
                    self.later(Position(epoch), first), min(count, end - first)
                )
                is_hit = np.isin(numbers, records) & valid
                places = np.repeat(np.arange(first, first + len(counts)), counts)
                steps |= zip(numbers[is_hit].tolist(), places[is_hit].tolist(), strict=True)
                if steps.keys() >= set(records):
                    break
        for record in records:
            if record not in steps:
                raise RecordIndexError(
                    f"record {record} of {self.length} in epoch {epoch}",
                    cause=f"none of the {end} steps of shard {self.shard_id} of {self.num_shards} "
                    "has it",
                    remedy="name a record of this shard; last_batch='drop' leaves the last ones of "
                    "an epoch out",
                )
        return [steps[record] for record in records]

    def _positions(self, first: int) -> tuple[Positions, NDArray[np.bool_]]:
        """Return this shard's positions of the step that begins at global position ``first``, and
        which are valid."""
        left = self.length - first
        if left >= self.global_batch:
            begin = first + self.shard_id * self.batch_size
            return np.arange(begin, begin + self.batch_size, dtype=np.int64), np.ones(
                self.batch_size, np.bool_
            )
        begin, count, batch_length = self._last(first, left)
        begin %= self.length  # where a shard is given padding only
        try:
            return np.arange(begin, begin + batch_length, dtype=np.int64) % self.length, np.arange(
                batch_length
            ) < count
        except (MemoryError, ValueError) as error:  # ValueError: more than NumPy can count
            raise TooLargeError(
                f"a batch of {batch_length} records, with last_batch={self.last_batch!r}",
                cause=f"there is no memory for so many record numbers: {error}",
                remedy="use a smaller batch_size",
            ) from None

    def _last(self, first: int, left: int) -> tuple[int, int, int]:
        """Return this shard's part of the last records: where it begins, how many it holds, and the
        size of its batch.

        Args:
            first: the global position of the first of these records.
            left: how many they are; fewer than one step of all shards takes.
        """
        if self.last_batch == "pad":
            begin = self.shard_id * self.batch_size
            return first + begin, min(max(left - begin, 0), self.batch_size), self.batch_size
        share, rest = divmod(left, self.num_shards)
        count = share + (self.shard_id < rest)
        begin = self.shard_id * share + min(self.shard_id, rest)
        return first + begin, count, max(count, 1)

    def _records(self, positions: Positions, epoch: int) -> Positions:
        """Return the records at global positions of an epoch, int64."""
        if self.shuffle is False:
            return positions
        if self.shuffle is True:
            return permutation(self.length, seed=self.seed, epoch=epoch).at(positions)
        if isinstance(self.shuffle, Buckets):
            return self.shuffle.at(positions, length=self.length, seed=self.seed, epoch=epoch)
        return _in_blocks(
            self._lanes.places(positions), self.length, self.shuffle, self.seed, epoch
        )

    def ahead(self, start: Position, step: int, *, num_steps: int = 1) -> Positions:
        """Return which records storage should be asked for when this shard begins a step, int64 in
        ascending order.

        Windows of ``gl.Blocks`` are asked for as a whole and in ascending order, which storage
        reads faster than the records of one step after the other. Each is asked for once in an
        epoch, one window before it is needed, and at least one step before:

            windows a, b, c ... of 4 records        step              0      1      2      3      4      5
            batch_size 2, start at step 0           takes of          a      a      b      b      c      c
                                                    is asked for      a b    -      c      -      d      -

        With lanes the same holds in each lane of this shard. Of a window that begins before
        ``start``, records taken before are not asked for.

        Nothing is asked for where there are no blocks; where more than MOST_SHARDS shards share a
        window, so that each takes little of it; and where a shard needs windows of more than
        MOST_AHEAD records, or of more than MOST_LANES lanes, at a time.

        Args:
            start: where the epoch was begun, or gone on with.
            step: at or after ``start.step``.
            num_steps: this step and those after it are asked for in one call; their number.
        """
        if step > start.step:
            before = self._horizon(step - 1, start)
        else:
            before = start.offset
        until = self._horizon(step + num_steps - 1, start)
        parts = [np.empty(0, np.int64)]
        for lane in _lanes_of(self, start.offset):
            begin, after = (
                self._readahead_end(lane, before, start),
                self._readahead_end(lane, until, start),
            )
            if begin < after:
                parts += self._in_windows(np.arange(begin, after, dtype=np.int64), start)
        return np.sort(np.concatenate(parts), kind="stable")  # by merging, since blocks are runs

    @cached_property
    def _lanes(self) -> Lanes:
        blocks = self.shuffle
        if isinstance(blocks, Blocks):
            return Lanes(self.length, blocks.lanes, blocks.chunk or 1)
        return Lanes(0, 1, 1)

    @cached_property
    def _window(self) -> int:
        """The number of records in a window of ``gl.Blocks``; 1 without blocks."""
        if isinstance(self.shuffle, Blocks):
            return self.shuffle.window_records
        return 1

    def _horizon(self, step: int, start: Position) -> int:
        """Return the position up to which storage has been asked when a step has begun: a window
        further in each lane.

        Where a step takes more than that, it is one step further.
        """
        return self.later(start, step + 1).offset + max(
            self._window * self._lanes.lanes, self.global_batch
        )

    def _readahead_end(self, lane: int, horizon: int, start: Position) -> int:
        """Return the place in a lane up to which storage has been asked: where the window of the
        horizon ends."""
        first, horizon_place = (
            self._lanes.first_place(lane, start.offset),
            self._lanes.first_place(lane, horizon),
        )
        end_of_window = -(-horizon_place // self._window) * self._window
        if horizon_place == first:
            return first
        return min(end_of_window, self._lanes.first_place(lane, self.length))

    def _in_windows(self, places: Positions, start: Position) -> tuple[Positions, ...]:
        """Return of the records at these places those that steps take, in windows of which this
        shard takes enough."""
        if not isinstance(self.shuffle, Blocks):
            return ()
        positions = self._lanes.positions(places)
        in_steps = positions < self.later(start, self.end(start)).offset
        places, in_shard = places[in_steps], self._in_shard(positions[in_steps], start)
        windows = places // self._window
        # Counted from 0: `bincount` would have an entry for each window of the epoch before these.
        windows -= windows.min(initial=self.length)
        sizes = np.bincount(windows)
        enough = np.bincount(windows, in_shard) >= MIN_SHARE * sizes
        whole = places[(enough & (sizes == self._window))[windows]]
        parts = places[(enough & (sizes < self._window))[windows]]
        about = (self.length, self.shuffle, self.seed, start.epoch)
        # mixing a whole window does not change its set
        return block_records(whole, *about), _in_blocks(parts, *about)

    def _in_shard(self, positions: Positions, start: Position) -> NDArray[np.bool_]:
        """Return which of the positions this shard takes."""
        num_whole = (self.length - start.offset) // self.global_batch
        # where the last step begins, if it is not a whole one
        last = start.offset + num_whole * self.global_batch
        begin, count, _ = self._last(last, self.length - last)
        own_of_whole = (
            positions - start.offset
        ) % self.global_batch // self.batch_size == self.shard_id
        own_of_last = (positions >= begin) & (positions < begin + count)
        return np.where(positions < last, own_of_whole, own_of_last)


@dataclass(frozen=True)
class Lanes:
    """How an order interleaves sequences of places, ``chunk`` positions at a time; the remainder
    stays in order.

    A place is where a record stands after blocks were shuffled; a position is where it stands in
    the order:

        13 places, 3 lanes, chunk 2     position     0  1  2  3  4  5  6  7  8  9 10 11 12
                                        place        0  1  4  5  8  9  2  3  6  7 10 11 12
                                        lane         0  0  1  1  2  2  0  0  1  1  2  2 (3: remainder)
    """

    length: int
    lanes: int
    chunk: int

    @cached_property
    def row(self) -> int:
        """The positions after which it is the first lane's turn again."""
        return self.lanes * self.chunk

    @cached_property
    def lane_length(self) -> int:
        """The places of each lane."""
        return self.length // self.row * self.chunk

    @cached_property
    def whole(self) -> int:
        """The places of all lanes; the remainder is shorter than a row."""
        return self.lane_length * self.lanes

    def places(self, positions: Positions) -> Positions:
        """Return the places at these positions."""
        if self.lanes == 1 or self.whole == 0:
            return positions
        rows, within = np.divmod(positions, self.row)
        places: Positions = (
            within // self.chunk * self.lane_length + rows * self.chunk + within % self.chunk
        )
        return np.where(positions < self.whole, places, positions)

    def positions(self, places: Positions) -> Positions:
        """Return the positions of these places."""
        if self.lanes == 1 or self.whole == 0:
            return places
        lanes, within = np.divmod(places, self.lane_length)
        positions: Positions = (
            within // self.chunk * self.row + lanes * self.chunk + within % self.chunk
        )
        return np.where(places < self.whole, positions, places)

    def first_place(self, lane: int, position: int) -> int:
        """Return the first place of a lane that does not stand before a position, or where the lane
        ends."""
        if lane == self.lanes:
            return max(position, self.whole)
        rows, within = divmod(min(position, self.whole), self.row)
        return (
            lane * self.lane_length
            + rows * self.chunk
            + min(max(within - lane * self.chunk, 0), self.chunk)
        )


@lru_cache(maxsize=64)
def _lanes_of(plan: Plan, position: int) -> tuple[int, ...]:
    """Return the lanes of the windows that a shard asks for from a position on, and last the
    remainder behind them.

    The batches of a shard begin ``global_batch`` apart. So modulo a row they begin
    ``gcd(global_batch, row)`` apart, all round, and each covers some lanes.
    """
    if not isinstance(plan.shuffle, Blocks):
        return ()
    num_lanes, chunk, row = plan.shuffle.lanes, plan._lanes.chunk, plan._lanes.row
    stride = gcd(plan.global_batch, row)
    lanes: set[int] | range = range(num_lanes)
    if max(plan.batch_size, chunk) < stride:  # else there is no lane between two batches
        if row // stride > MOST_LANES:
            return ()
        first = (position + plan.shard_id * plan.batch_size) % stride
        begins = range(first, first + row, stride)
        last = plan.batch_size - 1
        lanes = {
            lane % num_lanes
            for begin in begins
            for lane in range(begin // chunk, (begin + last) // chunk + 1)
        }
    is_costly = len(lanes) > MOST_LANES or len(lanes) * 2 * plan.shuffle.window_records > MOST_AHEAD
    if is_costly or len(lanes) * plan.num_shards > MOST_SHARDS * num_lanes:
        return ()
    return (*sorted(lanes), *([num_lanes] if plan.num_shards <= MOST_SHARDS else []))


@dataclass(frozen=True)
class Split:
    """One of two parts of the records 0 .. length - 1, chosen at random, in their original order;
    without storing it.

    The records are cut into as many cells as the rarer part has records, of nearly equal size; a
    cell holds one record of the rarer part, at a random place, and for the rest records of the
    other:

        length 11, count 3      cells [0 1 2 3] [4 5 6 7] [8 9 10]      the first part, say      1  7  8
                                                                        the second part          0 2 3  4 5 6  9 10

    So both parts are spread evenly over the source, and a reader of one part reads neighbours. The
    choice depends on length, count, seed and number alone: cell c takes the first word of
    ``rng.bits``, epoch ``number``, record c, in a stream of its own, modulo its size, which is
    exact to size / 2**64.

    Args:
        length: of the source.
        count: the records of the first part.
        seed: 0 to 2**64 - 1.
        second: the other part is meant, with ``length - count`` records.
        number: of splits with one seed, which this is; those of other numbers are independent.

    Raises:
        SpecError: an argument is wrong; the message names it.
    """

    length: int
    count: int
    seed: int
    second: bool
    number: int = 0

    def __post_init__(self) -> None:
        _keep(self, "length", _checked_length(self.length))
        if not is_whole(self.count) or self.count > self.length:
            raise SpecError(
                f"count = {short_repr(self.count)} of {self.length} records",
                cause="a part has between none and all of them",
                remedy="pass round(fraction * length)",
            )
        _keep(self, "count", int(self.count))
        _keep(self, "seed", rng.checked_word(self.seed, "seed"))

    def __len__(self) -> int:
        if self.second:
            return self.length - self.count
        return self.count

    def at(self, positions: Positions) -> Positions:
        """Return the records at these positions of the part, int64 ``[N]``; each must lie in 0 ..
        len(part) - 1."""
        first_is_rarer = self.count <= self.length - self.count
        if first_is_rarer:
            num_cells = self.count
        else:
            num_cells = self.length - self.count
        if num_cells == 0:
            return positions
        # so many of the first cells have one record more
        size, larger = divmod(self.length, num_cells)
        if first_is_rarer != self.second:
            cells = positions
            return self._begin(cells, size, larger) + self._places(cells, size, larger)
        # A cell has size - 1 records of the other part, the larger ones size; size is at least 2.
        beyond = positions - larger * size
        cells = np.where(beyond < 0, positions // size, larger + beyond // (size - 1))
        within = np.where(beyond < 0, positions % size, beyond % (size - 1))
        within += within >= self._places(cells, size, larger)
        return self._begin(cells, size, larger) + within

    def _begin(self, cells: Positions, size: int, larger: int) -> Positions:
        return cells * size + np.minimum(cells, larger)

    def _places(self, cells: Positions, size: int, larger: int) -> Positions:
        """Return where in each cell the record of the rarer part is."""
        words = rng.bits(1, seed=self.seed, epoch=self.number, records=cells, stream=SPLIT_STREAM)[
            :, 0
        ]
        return (words % (size + (cells < larger)).astype(np.uint64)).astype(np.int64)


def _no_step(step: int, end: int) -> RecordIndexError:
    return RecordIndexError(
        f"step {step} of an epoch of {end} steps",
        cause="steps are counted from 0",
        remedy="ask for a step below len(loader)",
    )


def _in_blocks(places: Positions, length: int, blocks: Blocks, seed: int, epoch: int) -> Positions:
    """Return the records at these places of a block shuffle."""
    per_window = blocks.window_records
    windows = places // per_window
    block_places = np.empty_like(places)
    for window in np.unique(windows).tolist():
        in_window = windows == window
        begin = window * per_window
        inside = permutation(
            min(per_window, length - begin),
            seed=seed,
            epoch=epoch,
            stream=WINDOW_STREAM,
            number=window,
        )
        block_places[in_window] = begin + inside.at(places[in_window] - begin)
    return block_records(block_places, length, blocks, seed, epoch)


def block_records(
    places: Positions, length: int, blocks: Blocks, seed: int, epoch: int
) -> Positions:
    """Return the records at these places where blocks are shuffled, and the records within a window
    are not.

    Whole blocks are permuted, the remainder is the last block; the records are first turned round
    by a drawn distance, so that each epoch has other blocks and another remainder.
    """
    size = blocks.block_records
    rotation = int(
        rng.bits(1, seed=seed, epoch=epoch, records=np.zeros(1, np.int64), stream=ROTATION_STREAM)[
            0, 0
        ]
    )
    order = permutation(length // size, seed=seed, epoch=epoch, stream=BLOCKS_STREAM)
    block, within = places // size, places % size
    whole = block < order.length
    block[whole] = order.at(block[whole])
    return (block * size + within + rotation % max(length, 1)) % max(length, 1)


def _mix(
    half: NDArray[np.uint32], keys: NDArray[np.uint32], modulus: np.uint32
) -> NDArray[np.uint32]:
    """Return a keyed hash of a half, in 0 .. modulus - 1: multiply and xor-shift, then the upper
    bits of a product."""
    h = (half ^ keys[0]) * np.uint32(0x9E3779B1)
    h = ((h ^ (h >> np.uint32(15))) + keys[1]) * np.uint32(0x85EBCA77)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE3D)
    h = h ^ (h >> np.uint32(16))
    scaled: NDArray[np.uint32] = (
        (h.astype(np.uint64) * np.uint64(modulus)) >> np.uint64(32)
    ).astype(np.uint32)
    return scaled


def _added(
    half: NDArray[np.uint32], hashed: NDArray[np.uint32], modulus: np.uint32
) -> NDArray[np.uint32]:
    total = half + hashed  # below 2 * modulus, which fits: halves have 31 bits
    return np.where(total >= modulus, total - modulus, total)


def _keep(plan: Blocks | Buckets | Plan | Split, name: str, value: object) -> None:
    """Keep a checked argument of a frozen dataclass: a NumPy integer as an int, which repr and JSON
    know."""
    object.__setattr__(plan, name, value)


def check_count(name: str, value: int, *, maximum: int | None = None) -> int:
    """Return a whole number of at least 1; raises ``SpecError`` that names the argument."""
    if not is_whole(value, least=1) or (maximum is not None and value > maximum):
        if maximum is None:
            demand = "of at least 1"
        else:
            demand = f"from 1 to {maximum}"
        raise SpecError(
            f"{name} = {short_repr(value)}",
            cause=f"it must be a whole number {demand}",
            remedy=f"write {name.rpartition('.')[2]}=4, say",
        )
    return int(value)


def check_flag(name: str, value: object) -> bool:
    """Return True or False; raises ``SpecError`` for another value, which names the argument."""
    if not isinstance(value, (bool, np.bool_)):
        raise SpecError(
            f"{name} = {short_repr(value)}",
            cause="it is True or False",
            remedy=f"write {name}=True, say",
        )
    return bool(value)


def _checked_length(value: int) -> int:
    if not is_whole(value) or value > MAX_LENGTH:
        raise SpecError(
            f"{short_repr(value)} records",
            cause="an order holds 0 to 2**62 of them",
            remedy="use fewer records",
        )
    return int(value)

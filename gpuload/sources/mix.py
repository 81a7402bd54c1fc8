"""Mix: records of several sources, in stated proportions, each source with epochs of its own;
computed, not stored.

A mix has no end. Its records are numbered on and on, and an epoch of ``len(mix)`` records is where
a loader counts: in epoch e, record i of the mix is number ``e * len(mix) + i``, which is also in
``batch.records``. The next epoch goes on in each part where the last one left it:

    a has 4 records, b has 2, gl.mix({a: 0.75, b: 0.25}), 6 records an epoch

    numbers       0    1    2    3    4    5  | 6    7    8    9    10   11 | 12   13 ...
    records       a1   b1   a3   a0   a2   a1 | a0   a2   a3   a0   a3   a1 | a2   b0

Part a begins anew with numbers 5 and 9, each time when all of its records were there, in the middle
of an epoch or not.

Turns       At the end of each block of BLOCK numbers each part had its share of all numbers so far,
            to less than a record for each part that there is, so proportions are exact in the long
            run. Within a block turns are shuffled, so that ranks and batches do not fall into step
            with them.
Own epochs  The r-th turn of a part of n records is that of epoch ``r // n``, place ``r % n``, of
            the part, which has a keyed permutation of its own in each of its epochs
            (`order.Permutation`). So all records of a part were there before one comes again,
            counted in the order of the numbers.
Cost        For each number some operations for each part, and a block that is shuffled; no state.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import rng
from gpuload.errors import SpecError
from gpuload.order import (
    MAX_LENGTH,
    MIX_STREAM,
    TURNS_STREAM,
    Permutation,
    check_count,
    num_rounds,
    permute,
)
from gpuload.sources.base import Reordered, Source
from gpuload.sources.compose import check_fields, concat
from gpuload.sources.leaf import Indices, starts_of

BLOCK = 32  # numbers that have shuffled turns
MOST_EPOCHS = (
    4  # of a part that are computed one after the other by the core; more at once by NumPy
)
LARGEST_DENOMINATOR = (1 << 31) - 1  # of a share: its products fit into 64 bits
Parts = Mapping[Source, float] | Sequence[tuple[Source, float]]


def mix(parts: Parts, *, seed: int = 0, num_records: int | None = None) -> Mixed:
    """Return a mix of sources: ``gl.mix({photos: 0.7, drawings: 0.3})``.

    A loader goes through it with ``shuffle=False`` in the order of the mix, which is mixed already;
    with ``shuffle=True`` the records of each epoch are shuffled once more. Slices, splits and
    filters of a mix are of its first epoch, and so is ``mix[:]``, which is a source like any other.

    Args:
        parts: sources and their weights, as a dict or a list of pairs; weights are relative, ``{a:
            7, b: 3}`` is the same. They are taken as they are written: 0.1 is one tenth.
        seed: 0 to 2**64 - 1; of the order of each part, and of the turns.
        num_records: of an epoch; by default as many as all parts have together.

    Raises:
        SpecError: the fields of the parts differ, a weight is no number above 0, a part has no
            records or is a mix.
    """
    pairs = _pairs(parts)
    rng.checked_word(seed, "seed")
    length = sum(len(source) for source, _ in pairs)
    if num_records is not None:
        length = check_count("num_records", num_records, maximum=MAX_LENGTH)
    for number, (source, _) in enumerate(pairs):
        cause, remedy = "it has no records to take", "leave it out"
        if source.endless:
            cause, remedy = "it is a mix or a sample itself", "give all parts to one gl.mix"
        if source.endless or not len(source):
            part = f"gl.mix: part {number} is {source._line()}"
            raise SpecError(part, cause=cause, remedy=remedy)
    sources, weights = [source for source, _ in pairs], [weight for _, weight in pairs]
    return Mixed(tuple(sources), tuple(weights), int(seed), length)


def _pairs(parts: Any) -> list[tuple[Source, Fraction]]:
    if isinstance(parts, Mapping):
        pairs = list(parts.items())
    else:
        pairs = parts
    if not isinstance(pairs, Sequence) or not pairs or not all(_is_pair(pair) for pair in pairs):
        raise SpecError(
            f"gl.mix({parts!r})"[:200],
            cause="it takes sources and their weights",
            remedy="write gl.mix({a: 0.7, b: 0.3}), or gl.mix([(a, 0.7), (b, 0.3)])",
        )
    return [(source, _weight(number, weight)) for number, (source, weight) in enumerate(pairs)]


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], Source)


def _weight(number: int, weight: Any) -> Fraction:
    is_number = isinstance(
        weight, (int, float, np.integer, np.floating, Fraction)
    ) and not isinstance(weight, bool)
    # `isfinite` raises
    is_huge = isinstance(weight, (int, Fraction)) and weight > sys.float_info.max
    if not is_number or is_huge or not math.isfinite(weight) or weight <= 0:
        raise SpecError(
            f"gl.mix: part {number} has the weight {weight!r}",
            cause="a weight is a number above 0",
            remedy="leave out a part that should not be there",
        )
    # By its text: 0.1 is meant as one tenth, and Fraction(0.1) is the binary number beside it.
    if isinstance(weight, Fraction):
        return weight
    return Fraction(str(weight))


class Mixed(Reordered):
    """Sources in stated proportions; made by ``gl.mix``."""

    endless = True

    def __init__(
        self, parts: tuple[Source, ...], weights: tuple[Fraction, ...], seed: int, num_records: int
    ) -> None:
        check_fields("gl.mix", parts, promote=False)
        try:
            concatenation = concat(*parts)
        except SpecError as error:
            raise SpecError(
                error.what.replace("gl.concat", "gl.mix"), cause=error.cause, remedy=error.remedy
            ) from None
        super().__init__(concatenation)
        self._mix_parts, self._weights, self._seed, self._length = parts, weights, seed, num_records
        self._turns = Turns(weights, seed)
        self._starts = starts_of([len(part) for part in parts])

    def _made_of(self) -> tuple[Any, ...]:
        return self._mix_parts, self._weights, self._seed, self._length

    def _title(self) -> str:
        return f"gl.mix of {len(self._mix_parts)} sources"

    def _place(self) -> str:
        total = sum(self._weights)
        return "shares " + ", ".join(f"{float(weight / total):.4g}" for weight in self._weights)

    def __len__(self) -> int:
        return self._length

    def _inner(self, numbers: Indices) -> Indices:
        """Return the record of each number; records are counted over all parts, one part after the
        other."""
        owners, turns = self._turns.at(numbers)
        records = np.empty(numbers.size, np.int64)
        for owner in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == owner)
            length = len(self._mix_parts[owner])
            records[rows] = self._starts[owner] + _in_own_order(
                turns[rows], length, self._seed, owner
            )
        return records

    def _digest(self) -> str:
        return self._digest_with(
            [str(weight) for weight in self._weights], self._seed, self._length
        )


@dataclass(frozen=True)
class Turns:
    """The part that has its turn at each number, and how many turns it had before.

    Args:
        weights: of the parts.
        seed: of the blocks that are shuffled.
    """

    weights: tuple[Fraction, ...]
    seed: int

    @cached_property
    def _shares(self) -> list[tuple[int, int]]:
        """For each part but the last, numerator and denominator of its share in the rest behind the
        parts before it."""
        shares = []
        for number in range(len(self.weights) - 1):
            share = self.weights[number] / sum(self.weights[number:])
            # So that ``rest * numerator`` below, both under 2**31, fits into an int64.
            shares.append(share.limit_denominator(LARGEST_DENOMINATOR).as_integer_ratio())
        return shares

    def counts(self, numbers: Indices) -> NDArray[np.int64]:
        """Return how many turns each part has before each of the numbers, int64 ``[n, num_parts]``.

        With each number one of the counts rises by one, and no other changes.
        """
        left, counts = numbers, []
        for numerator, denominator in self._shares:
            wholes, rest = np.divmod(left, denominator)
            # Divided first: ``left * numerator`` would overflow after some billions of numbers.
            counts.append(wholes * numerator + rest * numerator // denominator)
            left = left - counts[-1]
        return np.stack([*counts, left], axis=1)

    def at(self, numbers: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the part of each number, and the number of its turn in that part, counted from
        0."""
        blocks, inverse = np.unique(numbers // BLOCK, return_inverse=True)
        before, after = self.counts(blocks * BLOCK), self.counts(blocks * BLOCK + BLOCK)
        ends = np.cumsum(after - before, axis=1)
        in_order = np.zeros((blocks.size, BLOCK), np.int64)
        for end in ends.T[:-1]:
            in_order += np.arange(BLOCK) >= end[:, None]
        # Epoch 0 in every epoch: blocks are numbered on, so no two epochs share one.
        words = rng.bits(BLOCK // 2, seed=self.seed, epoch=0, records=blocks, stream=TURNS_STREAM)
        keys = np.concatenate(
            [words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], axis=1
        ).astype(np.uint32)
        # Stable: of two equal keys the order must not depend on the version of NumPy.
        owners = np.take_along_axis(in_order, np.argsort(keys, axis=1, kind="stable"), axis=1)
        turns = np.empty_like(owners)
        for part in range(len(self.weights)):
            is_part = owners == part
            turns[is_part] = (np.cumsum(is_part, axis=1) - 1 + before[:, part, None])[is_part]
        return owners[inverse, numbers % BLOCK], turns[inverse, numbers % BLOCK]


def _in_own_order(turns: Indices, length: int, seed: int, part: int) -> Indices:
    """Return the records of a part at its turns."""
    epochs, places = np.divmod(turns, length)
    different, inverse = np.unique(epochs, return_inverse=True)
    # The words of the generator swap roles here: a part stands for the epoch, and its epoch for the
    # record.
    words = rng.bits(
        num_rounds(length), seed=seed, epoch=part, records=different, stream=MIX_STREAM
    )
    if different.size > MOST_EPOCHS:
        return permute(places, length, words[inverse])
    records = np.empty(turns.size, np.int64)
    for number, keys in enumerate(words):
        rows = np.flatnonzero(inverse == number)
        pairs = tuple((int(word) >> 32, int(word) & 0xFFFFFFFF) for word in keys)
        records[rows] = Permutation(length, pairs).at(places[rows])
    return records

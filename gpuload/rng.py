"""Random numbers as a pure function of (seed, epoch, record, stream), whole batches at once.

Philox 4x64-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC
2011), with the words side by side and never added: key = (seed, stream), counter = (block, record,
epoch, 0). Equal bit for bit to

    numpy.random.Generator(numpy.random.Philox(counter=[0, record, epoch, 0], key=[seed, stream])).random(k)

(with both lists as uint64 arrays)

NumPy raises the counter before it makes a block, so block j (numbers 4j .. 4j + 3) has the counter
word j + 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.errors import SpecError

WORDS = NDArray[np.uint64]
ROUNDS = 10
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
MASK64 = (1 << 64) - 1
LOW32 = np.uint64(0xFFFFFFFF)
SHIFT32 = np.uint64(32)


def uniform(
    count: int, *, seed: int, epoch: int, records: NDArray[np.int64], stream: int
) -> NDArray[np.float64]:
    """Return ``count`` numbers in [0, 1) for each record.

    Args:
        count: numbers per record.
        seed: 0 to 2**64 - 1.
        epoch: 0 to 2**64 - 1.
        records: int64 ``[N]``, record numbers.
        stream: 0 to 2**64 - 1; numbers of different streams are independent.

    Returns:
        float64 ``[N, count]``, the upper 53 bits of each word times 2**-53, as NumPy makes them.
    """
    if core.native is not None:
        numbers = np.empty((records.size, count), np.float64)
        core.native.uniform(
            np.ascontiguousarray(records, np.int64), *_words(epoch, seed, stream), numbers
        )
        return numbers
    words = _bits(count, seed=seed, epoch=epoch, records=records, stream=stream)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bits(count: int, *, seed: int, epoch: int, records: NDArray[np.int64], stream: int) -> WORDS:
    """Return ``count`` random 64-bit words for each record, uint64 ``[N, count]``."""
    if core.native is not None:
        words = np.empty((records.size, _round_up(count)), np.uint64)
        core.native.philox(
            np.ascontiguousarray(records, np.int64), *_words(epoch, seed, stream), words
        )
        return words[:, :count]
    return _bits(count, seed=seed, epoch=epoch, records=records, stream=stream)


def _bits(count: int, *, seed: int, epoch: int, records: NDArray[np.int64], stream: int) -> WORDS:
    """Return the same words by NumPy: the definition."""
    # A block has four words; those that are not asked for are made and left out, so that word k
    # never depends on ``count``.
    blocks = _round_up(count) // 4
    block = np.tile(np.arange(1, blocks + 1, dtype=np.uint64), records.size)
    record = np.repeat(records.astype(np.uint64), blocks)
    zeros = np.zeros_like(block)
    counter = (block, record, zeros + np.uint64(checked_word(epoch, "epoch")), zeros)
    return np.stack(philox(counter, (seed, stream)), axis=1).reshape(records.size, blocks * 4)[
        :, :count
    ]


def below(words: WORDS, count: int) -> NDArray[np.int64]:
    """Return random words as whole numbers 0 .. count - 1: ``words * count // 2**64``.

    Of 2**64 words each number has as many as any other, or one more.

    Args:
        words: uint64 ``[N]``.
        count: 1 to 2**63.
    """
    return _multiply(words, count)[0].astype(np.int64)


def philox(
    counter: tuple[WORDS, WORDS, WORDS, WORDS], key: tuple[int, int]
) -> tuple[WORDS, WORDS, WORDS, WORDS]:
    """Return the Philox 4x64-10 blocks of counters ``[M]`` each under one key, four words ``[M]``
    each."""
    c0, c1, c2, c3 = counter
    k0, k1 = checked_word(key[0], "seed"), checked_word(key[1], "stream")
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint64(k0), low1, high0 ^ c3 ^ np.uint64(k1), low0
        k0, k1 = (k0 + WEYL[0]) & MASK64, (k1 + WEYL[1]) & MASK64
    return c0, c1, c2, c3


def checked_word(value: int, name: str) -> int:
    """Return a 64-bit word of a key or counter; raises ``SpecError`` outside 0 to 2**64 - 1."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or not 0 <= value <= MASK64
    ):
        raise SpecError(
            f"{name} = {value!r}",
            cause="it is a whole number from 0 to 2**64 - 1",
            remedy="pass such a number",
        )
    return int(value)


def _round_up(count: int) -> int:
    """Return ``count`` rounded up to whole blocks of four words."""
    return -(-count // 4) * 4


def _words(epoch: int, seed: int, stream: int) -> tuple[int, int, int]:
    return checked_word(epoch, "epoch"), checked_word(seed, "seed"), checked_word(stream, "stream")


def _multiply(x: WORDS, constant: int) -> tuple[WORDS, WORDS]:
    """Return the high and the low 64 bits of ``x * constant``, from four 32-bit products."""
    # NumPy has no integers of 128 bits: the product is put together from four of 32 by 32 bits.
    low, high = np.uint64(constant & 0xFFFFFFFF), np.uint64(constant >> 32)
    x_low, x_high = x & LOW32, x >> SHIFT32
    middle = x_high * low + (x_low * low >> SHIFT32)
    cross = x_low * high + (middle & LOW32)
    return x_high * high + (middle >> SHIFT32) + (cross >> SHIFT32), x * np.uint64(constant)

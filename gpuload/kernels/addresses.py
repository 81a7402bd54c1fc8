"""Rows of a batch on a GPU that lie anywhere in its memory: only where each begins is known.

    rows = RowAddresses(addresses, words, dtype, shape)   nothing is copied yet
    walk.walk_on_device(xp, walk, rows)                   the walk reads them where they lie
    rows.gather(xp)                                       an array ``[n, *shape]``, by one kernel

A row has its elements side by side, in C order and native.
"""

from __future__ import annotations

from math import prod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import cuda

Addresses = NDArray[np.int64]
WORD_BYTES = (8, 4, 2, 1)  # that a thread copies; addresses and lengths are multiples of it


class RowAddresses:
    """The rows of one field of a batch; the caller keeps them until the work that reads them was
    queued.

    Args:
        addresses: int64 ``[n]``, where each row begins.
        words: the same on the GPU, int32 ``[2 * n]``.
        dtype: of an element.
        shape: of a row.
    """

    def __init__(
        self, addresses: Addresses, words: Any, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        self.addresses, self.words, self.dtype, self.row_shape = addresses, words, dtype, shape

    def __len__(self) -> int:
        return self.addresses.size

    def __getitem__(self, rows: slice) -> RowAddresses:
        """Return some of the rows, as a batch of their own."""
        begin, end, _ = rows.indices(len(self))
        return RowAddresses(
            self.addresses[begin:end], self.words[2 * begin : 2 * end], self.dtype, self.row_shape
        )

    def gather(self, xp: ModuleType) -> Any:
        """Return the rows as an array ``[n, *shape]`` of their own."""
        out = xp.empty((len(self), *self.row_shape), self.dtype)
        if out.size:
            row_bytes = self.dtype.itemsize * prod(self.row_shape)
            device.open_bundle()
            _launch(self.words, 0, out, row_bytes, word_bytes(row_bytes, self.addresses), len(self))
        return out


def move_rows(words: Any, row_bytes: int, size: int, count: int) -> None:
    """Queue the copy of rows from some addresses of a GPU to others, on CuPy's current stream, by
    one kernel.

    Args:
        words: on the GPU: the addresses to read from, int64 ``[count]``, and behind them those to
            write to, as words of int32.
        row_bytes: of a row.
        size: the bytes of a word, which all addresses and ``row_bytes`` are multiples of; see
            `word_bytes`.
        count: how many rows there are.
    """
    if count and row_bytes:
        _launch(words, words[2 * count :], 0, row_bytes, size, count)


def word_bytes(row_bytes: int, *addresses: Addresses) -> int:
    """Return the largest word in which rows of so many bytes at these addresses can be copied."""
    bits = row_bytes
    for numbers in addresses:
        if numbers.size:
            bits |= int(np.bitwise_or.reduce(numbers))
        else:
            bits |= 0
    return next(size for size in WORD_BYTES if bits % size == 0)


def _launch(origins: Any, targets: Any, out: Any, row_bytes: int, size: int, count: int) -> None:
    num_words = row_bytes // size
    blocks = -(-num_words // cuda.THREADS)
    device.kernel(cuda.rows(size), "rows")(
        (blocks * count,),
        (cuda.THREADS,),
        (origins, targets, out, np.int64(num_words), np.int32(blocks)),
    )

"""Gather: rows of an array in memory into rows of a block, with the next row on its way while one is copied."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuload.kernels.compile import kernel
from gpuload.kernels.memory import copy_bytes, prefetch

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
AHEAD_LINES = 8  # as in `copy.py`


@kernel
def gather(indices: Int64s, rows: Int64s, source: tuple[int, int, int], to: tuple[int, int, int], size: int) -> int:
    """Copy ``size`` bytes of row ``indices[i]`` of ``source`` to row ``rows[i]`` of ``to``.

    Args:
        indices: which rows.
        rows: where each goes.
        source: address, bytes from row to row, number of rows.
        to: the same.
        size: bytes of a row.

    Returns:
        -1, or the place of the first index or row that lies outside; then nothing was copied.
    """
    for i in range(indices.size):
        if indices[i] < 0 or indices[i] >= source[2] or rows[i] < 0 or rows[i] >= to[2]:
            return i
    for i in range(indices.size):
        if i + 1 < indices.size:
            for line in range(min(AHEAD_LINES, (size + 63) // 64)):
                prefetch(source[0] + indices[i + 1] * source[1] + 64 * line)
        copy_bytes(to[0] + rows[i] * to[1], source[0] + indices[i] * source[1], size)
    return -1

"""Gather: records of an array in memory to places of other memory, the next on its way while one is copied."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuload.kernels.compile import kernel
from gpuload.kernels.memory import copy_bytes, prefetch

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
AHEAD_LINES = 8  # cache lines of the next record that are fetched; measured
DONE = -1


def gather(source: Bytes, numbers: Int64s, out: Bytes, begins: Int64s) -> int:
    """Copy row ``numbers[i]`` of ``source`` to ``out[begins[i]:]``.

    Args:
        source: uint8 ``[num_rows, size]``, contiguous.
        numbers: int64 ``[n]``, contiguous and writeable (so that one compiled form serves all).
        out: uint8 ``[total]``, contiguous and writeable.
        begins: int64 ``[n]``, contiguous and writeable.

    Returns:
        DONE, or the place of the first number or begin that lies outside; then nothing was copied.

    Raises:
        ValueError: the arrays are not of these kinds; addresses would lead elsewhere.
    """
    of_bytes = source.dtype == out.dtype == np.uint8 and source.ndim == 2 and out.ndim == 1
    contiguous = source.flags.c_contiguous and out.flags.c_contiguous and out.flags.writeable
    if not of_bytes or not contiguous or numbers.shape != begins.shape or numbers.ndim != 1:
        raise ValueError(f"gather of {source.dtype} {source.shape} to {out.dtype} {out.shape}")
    address, to = (array.__array_interface__["data"][0] for array in (source, out))
    return int(copy_rows(numbers, begins, (address, *source.shape), (to, out.size)))


@kernel
def copy_rows(numbers: Int64s, begins: Int64s, source: tuple[int, int, int], to: tuple[int, int]) -> int:
    """Copy rows of ``source`` = (address, number of rows, bytes of one) to ``to`` = (address, bytes)."""
    size = source[2]
    for i in range(numbers.size):
        if numbers[i] < 0 or numbers[i] >= source[1] or begins[i] < 0 or begins[i] > to[1] - size:
            return i
    for i in range(numbers.size):
        if i + 1 < numbers.size:
            for line in range(min(AHEAD_LINES, (size + 63) // 64)):
                prefetch(source[0] + numbers[i + 1] * size + 64 * line)
        copy_bytes(to[0] + begins[i], source[0] + numbers[i] * size, size)
    return DONE

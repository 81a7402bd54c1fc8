"""Compiled Philox 4x64-10 and Feistel permutation: equal bit for bit to ``rng.philox`` and ``order.Permutation``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from gpuload.kernels.compile import short_kernel

M0, M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
W0, W1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
LOW32, S32 = np.uint64(0xFFFFFFFF), np.uint64(32)
H1, H2, H3 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77), np.uint32(0xC2B2AE3D)


@short_kernel
def _high(x: Any, y: Any) -> Any:
    x_low, x_high, y_low, y_high = x & LOW32, x >> S32, y & LOW32, y >> S32
    middle = x_high * y_low + ((x_low * y_low) >> S32)
    cross = x_low * y_high + (middle & LOW32)
    return x_high * y_high + (middle >> S32) + (cross >> S32)


@short_kernel
def philox(records: NDArray[np.int64], epoch: Any, seed: Any, stream: Any, out: NDArray[np.uint64]) -> None:
    """Write the words of each record into its row of ``out``, uint64 ``[N, 4 * blocks]``."""
    for i in range(records.size):
        for block in range(out.shape[1] // 4):
            c0, c1, c2, c3 = uint64(block + 1), uint64(records[i]), uint64(epoch), uint64(0)
            k0, k1 = uint64(seed), uint64(stream)
            for _ in range(10):
                high0, low0, high1, low1 = _high(c0, M0), c0 * M0, _high(c2, M1), c2 * M1
                c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
                k0, k1 = k0 + W0, k1 + W1
            out[i, 4 * block], out[i, 4 * block + 1] = c0, c1
            out[i, 4 * block + 2], out[i, 4 * block + 3] = c2, c3


@short_kernel
def uniform(
    records: NDArray[np.int64], epoch: Any, seed: Any, stream: Any, words: NDArray[np.uint64], out: NDArray[np.float64]
) -> None:
    """Write the numbers of each record into its row of ``out``, float64 ``[N, count]``; ``words`` is scratch memory."""
    philox(records, epoch, seed, stream, words)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = np.float64(words[i, j] >> np.uint64(11)) * 2.0**-53


@short_kernel
def _mix(half: Any, key: Any, key2: Any, modulus: Any) -> Any:
    h = uint32((half ^ key) * H1)
    h = uint32((h ^ (h >> uint32(15))) + key2) * H2
    h = uint32(uint32(h) ^ (uint32(h) >> uint32(13))) * H3
    h = uint32(h) ^ (uint32(h) >> uint32(16))
    return uint32((uint64(h) * uint64(modulus)) >> S32)


@short_kernel
def _rounds(a: Any, b: Any, high: Any, low: Any, keys: NDArray[np.uint32]) -> None:
    for r in range(0, keys.shape[0], 2):  # rounds outside, positions inside: the inner loops become vector code
        for i in range(a.size):
            total = uint32(a[i] + _mix(b[i], keys[r, 0], keys[r, 1], high))
            a[i] = min(total, uint32(total - high))  # total - high wraps round where total is below high
        for i in range(a.size):
            total = uint32(b[i] + _mix(a[i], keys[r + 1, 0], keys[r + 1, 1], low))
            b[i] = min(total, uint32(total - low))


@short_kernel
def feistel(
    positions: NDArray[np.int64], length: int, high: Any, low: Any, keys: NDArray[np.uint32], out: NDArray[np.int64]
) -> None:
    """Write the permuted positions into ``out``; ``keys`` is uint32 ``[rounds, 2]``."""
    a, b = np.empty(positions.size, np.uint32), np.empty(positions.size, np.uint32)
    for i in range(positions.size):
        a[i], b[i] = positions[i] // low, positions[i] % low
    _rounds(a, b, high, low, keys)
    for i in range(positions.size):
        out[i] = np.int64(a[i]) * np.int64(low) + np.int64(b[i])
        while out[i] >= length:
            one, other = a[i : i + 1], b[i : i + 1]
            one[0], other[0] = out[i] // low, out[i] % low
            _rounds(one, other, high, low, keys)
            out[i] = np.int64(one[0]) * np.int64(low) + np.int64(other[0])

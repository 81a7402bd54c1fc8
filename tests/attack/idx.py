"""IDX files of any type and shape, sound and damaged: what ``numpy.frombuffer`` finds, or an error
of ours."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from tests.attack.hunt import Report, hunt, outcome
from tests.attack.mutate import mutated

ROWS = 50  # that are read of a file; a damaged header may promise 2**32 without bytes
TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def attack(seconds: float, seed: int) -> Report:
    """Read IDX files."""
    return hunt(seconds, seed, trial, more_bytes=1 << 27)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write a file, damage it or not, and read it."""
    number = int(rng.choice(list(TYPES)))
    shape = tuple(rng.integers(0, 6, rng.integers(1, 4)).tolist())
    head = struct.pack(f">HBB{len(shape)}I", 0, number, len(shape), *shape)
    data = head + rng.bytes(math.prod(shape) * np.dtype(TYPES[number]).itemsize)
    sound = rng.random() < 0.3
    if not sound:
        data = mutated(data, rng, most=2)
    packed_bytes = rng.random() < 0.3
    raw = gzip.compress(data, 1) if packed_bytes else data
    if packed_bytes and not sound and rng.random() < 0.3:
        raw = mutated(raw, rng, most=2)
    path = folder / "a.idx"
    path.write_bytes(raw)
    status, result = outcome(_read, path)
    expected = _by_numpy(data)
    if status == "refused":
        assert not sound or 0 in shape[1:], f"a sound file is refused: {result}"
        return status
    if packed_bytes and raw != gzip.compress(data, 1):
        return "read, of a changed gzip"
    assert expected is not None, f"read {result.shape}, by NumPy it is no IDX file"
    expected = expected[:ROWS]
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype.newbyteorder("=")), (
        f"{result!r}"
    )
    assert np.array_equal(result, expected, equal_nan=expected.dtype.kind == "f")
    return status


def _read(path: Path) -> Any:
    with gl.idx(path) as source:
        return source.read(range(min(len(source), ROWS)))["x"]


def _by_numpy(data: bytes) -> Any:
    """Return the array; None where this is no IDX file."""
    if (
        len(data) < 4
        or data[:2] != b"\0\0"
        or data[2] not in TYPES
        or not data[3]
        or len(data) < 4 + 4 * data[3]
    ):
        return None
    dtype, shape = np.dtype(TYPES[data[2]]), struct.unpack_from(f">{data[3]}I", data, 4)
    if len(data) != 4 + 4 * len(shape) + math.prod(shape) * dtype.itemsize:
        return None
    return np.frombuffer(data, dtype, offset=4 + 4 * len(shape)).reshape(shape)

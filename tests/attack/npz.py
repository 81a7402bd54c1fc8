"""NPZ archives, stored and deflated, sound and damaged: the values of ``numpy.load``, or an error
of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from tests.attack.hunt import Report, hunt, outcome
from tests.attack.mutate import mutated

DTYPES = ("u1", "<f4", ">i2", "<i8", "?", "S3", "<c8")


def attack(seconds: float, seed: int) -> Report:
    """Read NPZ archives."""
    return hunt(seconds, seed, trial, more_bytes=1 << 28)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write one or two archives, damage the last one of them or none, and read them."""
    count = int(rng.integers(1, 7))
    kinds = [
        (np.dtype(str(rng.choice(DTYPES))), (count, *rng.integers(1, 5, rng.integers(3)).tolist()))
        for _ in "ab"
    ]
    paths = [folder / f"{number}.npz" for number in range(rng.integers(1, 3))]
    save = (np.savez, np.savez_compressed)[rng.integers(2)]
    for path in paths:
        arrays = [
            np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
            for dtype, shape in kinds
        ]
        save(path, **dict(zip("ab", arrays, strict=True)))
    sound = rng.random() < 0.2
    if not sound:
        paths[-1].write_bytes(mutated(paths[-1].read_bytes(), rng, most=2))
    record = ("row", "file")[rng.integers(2)]
    status, result = outcome(_read, paths, record)
    if status == "refused":
        assert not sound, f"a sound archive is refused: {result}"
        return status
    expected = [_by_numpy(path) for path in paths]
    if any(item is None for item in expected):
        return "read, not by NumPy"
    for name, values in result.items():
        reference = [item[name] for item in expected]
        rows = reference if record == "file" else [row for array in reference for row in array]
        assert len(values) == len(rows), f"{len(values)} records, of {len(rows)}"
        for actual, row in zip(values, rows, strict=True):
            actual, row = np.asanyarray(actual), np.asanyarray(row)
            same = (
                np.array_equal(actual, row, equal_nan=True)
                if row.dtype.kind in "fc"
                else np.array_equal(actual, row)
            )
            assert same, f"{name!r}: {actual!r}, by NumPy {row!r}"
    return status


def _read(paths: list[Path], record: Any) -> Any:
    with gl.npz(paths, record=record) as source:
        return source.read(range(len(source)))


def _by_numpy(path: Path) -> Any:
    """Return the arrays; None where NumPy refuses one, or the archive has others as well."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception:  # zipfile and zlib raise many kinds
        return None

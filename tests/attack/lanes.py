"""Loaders for the parts that attack a running one: rows, rows through ops, JPEGs on each
executor."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from tests import imagefiles

HAS_DALI = find_spec("nvidia.dali") is not None
ROWS_OPS = (
    gl.ops.RandomCrop(6, 6, pad=2),
    gl.ops.RandomFlip(),
    gl.ops.Normalize((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)),
)
JPEG_OPS = (gl.ops.Decode(), gl.ops.RandomResizedCrop(20, 24), gl.ops.RandomFlip())
NUM_ROWS, NUM_IMAGES = 2000, 60


def loader(lane: str, folder: Path, **changes: Any) -> gl.Loader:
    """Return a loader of a lane; its files are written once to the folder.

    Args:
        lane: "rows": NPY files in C and Fortran order; "ops": arrays in memory and ops; "jpeg":
            JPEG files, array executor; "dali": the same on DALI.
        folder: for files.
        changes: arguments of the loader.
    """
    source, ops = _source(lane, folder)
    arguments = {
        "batch_size": 8,
        "shuffle": True,
        "seed": 5,
        "device": "cpu",
        "num_threads": 2,
        "ops": ops,
    }
    return gl.Loader(
        source, **{**arguments, "executor": "dali" if lane == "dali" else "array", **changes}
    )


def digests(batches: Iterable[gl.batch.Batch]) -> list[tuple[int, int, str]]:
    """Return epoch, step and what they hold, of batches."""
    return [digest(batch) for batch in batches]


def digest(batch: gl.batch.Batch) -> tuple[int, int, str]:
    """Return epoch, step and a digest of all records and values of a batch."""
    digest_of_records = hashlib.blake2b(batch.records.tobytes(), digest_size=8)
    for name, values in batch.items():
        array = np.asarray(values)
        digest_of_records.update(
            f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()
        )
    return batch.epoch, batch.step, digest_of_records.hexdigest()


def _source(lane: str, folder: Path) -> tuple[Any, tuple[Any, ...]]:
    if lane == "rows":
        if not (folder / "rows").exists():
            _write_rows(folder / "rows")
        return gl.npy(f"{folder}/rows/*.npy"), ()
    if lane == "ops":
        images = np.random.default_rng(0).integers(0, 256, (NUM_ROWS, 6, 6, 3), np.uint8)
        return gl.arrays(image=images, label=np.arange(NUM_ROWS)), ROWS_OPS
    if not (folder / "images").exists():
        _write_images(folder / "images")
    return gl.images(folder / "images", labels=None), JPEG_OPS


def _write_rows(folder: Path) -> None:
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(NUM_ROWS, dtype=np.int32), 4)):
        array = rows[:, None] * 1000 + np.arange(64, dtype=np.int32)
        np.save(folder / f"{number}.npy", np.asarray(array, order="FC"[number > 0]))


def _write_images(folder: Path) -> None:
    folder.mkdir()
    for number in range(NUM_IMAGES):
        (folder / f"{number:03}.jpg").write_bytes(imagefiles.jpeg(24 + number % 7, 30 + number % 5))

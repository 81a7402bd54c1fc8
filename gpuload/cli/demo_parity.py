"""Parity in the demo: the same photographs decoded and augmented on two executors, pixel by pixel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload.cli import demo_data

TOLERANCE = 1  # levels of 255: what RandomResizedCrop states against DALI
PIXELS = 112


@dataclass(frozen=True)
class Parity:
    """How far two executors are apart: the largest difference in levels, and the share of values that differ."""

    largest: int
    share: float
    num_images: int


def compare(folder: Path, *, seed: int, device: str) -> Parity:
    """Compare the array executor on the CPU to DALI on ``device``."""
    largest, differing, total, num_images = 0, 0, 0, 0
    with (
        photo_loader(folder, seed=seed, executor="array") as ours,
        photo_loader(folder, seed=seed, executor="dali", device=device) as dali,
    ):
        for one, other in zip(ours, dali, strict=True):
            apart = np.abs(one["image"].astype(np.int16) - _host(other["image"]))
            largest = max(largest, int(apart.max()))
            differing, total = differing + int(np.count_nonzero(apart)), total + apart.size
            num_images += len(apart)
    return Parity(largest, differing / total, num_images)


def photo_loader(
    folder: Path, *, seed: int, executor: str = "auto", device: str = "cpu", ops: tuple[Any, ...] = ()
) -> gl.Loader:
    """Return a loader of the photographs' pieces: decoded, a random piece of each resized, perhaps mirrored; uint8."""
    augment = [gl.ops.Decode(), gl.ops.RandomResizedCrop(PIXELS, PIXELS), gl.ops.RandomFlip(), *ops]
    return gl.Loader(
        demo_data.photos(folder), batch_size=32, ops=augment, output=("image", "label"), shuffle=True, seed=seed,
        executor=executor, device=device,
    )  # fmt: skip


def _host(array: Any) -> NDArray[np.int16]:
    return (array if isinstance(array, np.ndarray) else array.get()).astype(np.int16)

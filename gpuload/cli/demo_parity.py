"""Parity in the demo: the same JPEG files decoded and augmented on two executors, pixel by pixel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload.cli import demo_data

PIXELS = 224


@dataclass(frozen=True)
class Parity:
    """How far two executors are apart: the largest difference in levels, and the share of values that differ."""

    work: str
    tolerance: int  # levels of 255: 0 where pixels only move, 1 where RandomResizedCrop makes new ones
    largest: int
    share: float
    num_images: int

    def __str__(self) -> str:
        apart = f"{self.largest} of 255 levels" + (f", on {self.share:.4%} of the values" if self.largest else "")
        return f"{self.num_images:,} {self.work}: largest difference {apart}"


def compare(folder: Path, *, seed: int, device: str = "cpu") -> list[Parity]:
    """Compare the array executor on the CPU to DALI on ``device``: on all digits, and on the photographs."""
    return [
        _apart("digits decoded, cut, mirrored", 0, *_pair(digit_loader, folder, seed, device)),
        _apart("photographs decoded, cut, resized, mirrored", 1, *_pair(photo_loader, folder, seed, device)),
    ]


def digit_loader(folder: Path, **arguments: Any) -> gl.Loader:
    """Return a loader of the digits' JPEG files: decoded, moved by some pixels, perhaps mirrored; uint8."""
    augment = [gl.ops.Decode(), gl.ops.RandomCrop(32, 32, pad=4), gl.ops.RandomFlip()]
    return gl.Loader(demo_data.digit_jpegs(folder), batch_size=256, ops=augment, shuffle=True, **arguments)


def photo_loader(folder: Path, **arguments: Any) -> gl.Loader:
    """Return a loader of the photographs' pieces: decoded, a random piece of each resized, perhaps mirrored; uint8."""
    augment = [gl.ops.Decode(), gl.ops.RandomResizedCrop(PIXELS, PIXELS), gl.ops.RandomFlip()]
    return gl.Loader(
        demo_data.photos(folder), batch_size=64, ops=augment, output=("image", "label"), shuffle=True, **arguments
    )


def _pair(make: Any, folder: Path, seed: int, device: str) -> tuple[gl.Loader, gl.Loader]:
    return (
        make(folder, seed=seed, executor="array", device="cpu"),
        make(folder, seed=seed, executor="dali", device=device),
    )


def _apart(work: str, tolerance: int, ours: gl.Loader, theirs: gl.Loader) -> Parity:
    """Return how far two loaders are apart over an epoch, and close them."""
    largest, differing, total, num_images = 0, 0, 0, 0
    with ours, theirs:
        for one, other in zip(ours, theirs, strict=True):
            apart = np.abs(_levels(one["image"]) - _levels(other["image"]))
            largest = max(largest, int(apart.max()))
            differing, total = differing + int(np.count_nonzero(apart)), total + apart.size
            num_images += len(apart)
    return Parity(work, tolerance, largest, differing / total, num_images)


def _levels(array: Any) -> NDArray[np.int16]:
    return (array if isinstance(array, np.ndarray) else array.get()).astype(np.int16)

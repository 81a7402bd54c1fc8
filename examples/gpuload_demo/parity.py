"""Parity in the demo: the same JPEG files decoded and augmented on two executors, pixel by pixel.

On a CPU both decode with libjpeg-turbo, and the largest difference is bounded. On a GPU nvJPEG
decodes, which rounds otherwise: DALI's own tests bound the mean difference alone, at 1 level with
fancy upsampling, and so does this one. The largest difference is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload_demo import data as demo_data

PIXELS = 224
MEAN_ON_GPU = 1.0  # levels of 255


@dataclass(frozen=True)
class Parity:
    """The difference of two executors: the largest, the mean, and the share of values that differ.

    ``tolerance`` is of the largest difference: 0 where pixels only move, 1 where RandomResizedCrop
    makes new ones; on a GPU it is None, and the mean is bounded by ``MEAN_ON_GPU``. All differences
    are levels of 255.
    """

    work: str
    tolerance: int | None
    largest: int
    mean: float
    share: float
    num_images: int

    @property
    def holds(self) -> bool:
        """True if the difference is within its bound."""
        if self.tolerance is None:
            return self.mean <= MEAN_ON_GPU
        return self.largest <= self.tolerance

    @property
    def bound(self) -> str:
        """The bound, in words."""
        if self.tolerance is None:
            return f"mean {MEAN_ON_GPU:g}"
        return str(self.tolerance)

    def __str__(self) -> str:
        difference = f"{self.largest} of 255 levels"
        if self.largest:
            difference += f", mean {self.mean:.3f}, on {self.share:.4%} of the values"
        return f"{self.num_images:,} {self.work}: largest difference {difference}"


def compare(folder: Path, *, seed: int, device: str = "cpu") -> list[Parity]:
    """Compare the array executor on the CPU to DALI on ``device``: on all digits, and on the
    photographs."""
    if device == "cpu":
        of_moves, of_resizing = (0, 1)
    else:
        of_moves, of_resizing = (None, None)
    return [
        _compare_loaders(
            "digits decoded, cut, mirrored", of_moves, *_pair(digit_loader, folder, seed, device)
        ),
        _compare_loaders(
            "photographs decoded, cut, resized, mirrored",
            of_resizing,
            *_pair(photo_loader, folder, seed, device),
        ),
    ]


def digit_loader(folder: Path, **arguments: Any) -> gl.Loader:
    """Return a loader of the digits' JPEG files: decoded, moved by some pixels, perhaps mirrored;
    uint8."""
    augment = [gl.ops.Decode(), gl.ops.RandomCrop(32, 32, pad=4), gl.ops.RandomFlip()]
    return gl.Loader(
        demo_data.digit_jpegs(folder), batch_size=256, ops=augment, shuffle=True, **arguments
    )


def photo_loader(folder: Path, **arguments: Any) -> gl.Loader:
    """Return a loader of the photographs' pieces: decoded, a random piece of each resized, perhaps
    mirrored; uint8."""
    augment = [gl.ops.Decode(), gl.ops.RandomResizedCrop(PIXELS, PIXELS), gl.ops.RandomFlip()]
    return gl.Loader(
        demo_data.photos(folder),
        batch_size=64,
        ops=augment,
        output=("image", "label"),
        shuffle=True,
        **arguments,
    )


def _pair(make: Any, folder: Path, seed: int, device: str) -> tuple[gl.Loader, gl.Loader]:
    return (
        make(folder, seed=seed, executor="array", device="cpu"),
        make(folder, seed=seed, executor="dali", device=device),
    )


def _compare_loaders(
    work: str, tolerance: int | None, first: gl.Loader, second: gl.Loader
) -> Parity:
    """Return the difference of two loaders over an epoch, and close them."""
    largest, levels, differing, total, num_images = 0, 0, 0, 0, 0
    with first, second:
        for first_batch, second_batch in zip(first, second, strict=True):
            difference = np.abs(_levels(first_batch["image"]) - _levels(second_batch["image"]))
            largest, levels = (
                max(largest, int(difference.max())),
                levels + int(difference.sum(dtype=np.int64)),
            )
            differing, total = (
                differing + int(np.count_nonzero(difference)),
                total + difference.size,
            )
            num_images += len(difference)
    return Parity(work, tolerance, largest, levels / total, differing / total, num_images)


def _levels(array: Any) -> NDArray[np.int16]:
    # In 16 bits: differences of bytes wrap around below zero.
    return (array if isinstance(array, np.ndarray) else array.get()).astype(np.int16)

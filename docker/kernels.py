"""Compiles the kernels of an image and keeps them beside gpuload's modules, by small epochs of all that has kernels.

What is compiled depends on the types that a kernel is called with, so that the epochs differ in where records lie (rows
of files, of one or many, memory), in the order of axes, in dtypes, and in whether an image is resized. What is not here
is compiled when it is first used, beside the batches that NumPy makes meanwhile.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import gpuload as gl
from gpuload import kernels
from gpuload.cli import health
from gpuload.kernels import cache

HEIGHT, WIDTH, CROP = 40, 48, 32
NORMALIZE = gl.ops.Normalize((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))


def main() -> None:
    """Run all epochs, each in both orders of its records."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, kernels.patient():
        for (source, ops), shuffle in itertools.product(works(Path(folder)), (False, True)):
            with gl.Loader(source, 4, ops=ops, shuffle=shuffle, device="cpu", executor="array") as loader:
                for _ in loader:
                    pass
    if not kernels.compiled():
        print(f"kernels: {kernels.how()}")
        return
    kept = [file for place in cache.folders() for file in Path(place).glob("*.nbc")]
    places = ", ".join(sorted({str(file.parent) for file in kept}))
    print(f"kernels: {len(kept)} in {places}, {time.perf_counter() - began:.0f} s")


def works(folder: Path) -> Iterator[tuple[gl.Source, list[gl.ops.Op]]]:
    """Yield sources, and what is done to their records."""
    random = np.random.default_rng(0)
    for number in range(3):
        np.save(folder / f"rows{number}.npy", random.random((8, 64), np.float32))
    yield gl.npy(folder / "rows0.npy"), []
    yield gl.npy(folder / "rows*.npy"), []
    yield gl.npy(folder / "rows*.npy", record="file"), []

    examples = gl.arrays(x=random.random((8, 64), np.float32), label=np.arange(8), name=np.array([b"ab"] * 8))
    gl.convert(examples, folder / "examples.tfrecord")
    yield gl.tfrecord(folder / "examples.tfrecord", {"x": ("f4", (64,)), "label": "i8", "name": "bytes"}), []

    for axes, dtype in itertools.product(("HWC", "CHW"), (np.uint8, np.float32)):
        shape = (HEIGHT, WIDTH, 3) if axes == "HWC" else (3, HEIGHT, WIDTH)
        pixels = random.integers(0, 256, (8, *shape)).astype(dtype)
        np.save(folder / f"{axes}{np.dtype(dtype)}.npy", pixels)
        yield gl.arrays(image=pixels), []
        for source in (gl.npy(folder / f"{axes}{np.dtype(dtype)}.npy"), gl.arrays(image=pixels)):
            for ops in of_images(axes):
                yield source.mark(**{source.spec.names[0]: axes}), ops

    coded = np.array([health.png(image) for image in random.integers(0, 256, (8, HEIGHT, WIDTH, 3), np.uint8)])
    for ops in of_images("HWC"):
        yield gl.arrays(image=coded).mark(image="encoded"), [gl.ops.Decode(), *ops]


def of_images(axes: str) -> Iterator[list[gl.ops.Op]]:
    """Yield lists of ops for images: cut, mirrored, normalised or not, to each order of axes; resized."""
    to_pixels = [gl.ops.Transpose("HWC")] if axes == "CHW" else []
    to_planes = [gl.ops.Transpose("CHW")]
    for cut, last in itertools.product(
        ([], [gl.ops.RandomCrop(CROP, CROP, pad=4)]),
        ([], [NORMALIZE]),
    ):
        yield [*to_pixels, *cut, gl.ops.RandomFlip(), *last]
        yield [*to_pixels, *cut, gl.ops.RandomFlip(), *last, *to_planes]
    for resized in (gl.ops.RandomResizedCrop(CROP, CROP), gl.ops.Resize(2 * CROP, 2 * CROP)):
        yield [*to_pixels, resized, gl.ops.RandomFlip(), NORMALIZE]
        yield [*to_pixels, resized, gl.ops.RandomFlip()]


if __name__ == "__main__":
    main()

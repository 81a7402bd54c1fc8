"""How fast do many small NPZ files come as batches (10,000 of a uint8 image 3 x 64 x 64 and a
label, batches of 64)?

Variants  stored, as numpy.savez writes them; deflated, as numpy.savez_compressed does (the images
          have 16 levels, and shrink to about half)
Limit     open, read and close each file into one reused buffer, one process a core; nothing is
          inflated or summed
Floor     one thread, np.load of each file
Shuffle   each peer opens every file once a pass in a new whole order
Sums      all verify the CRC-32 of each array: zipfile does by itself, gpuload too
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, forms
from benchmarks.limits import on_all_cores
from benchmarks.machine import cores
from benchmarks.question import Epoch, Peer, Question, Work

BUFFER_BYTES = 1 << 16  # more than any of the files has

Pair = tuple[NDArray[Any], NDArray[Any]]


def _paths(work: Work) -> list[str]:
    return [str(path) for path in sorted((work.path / work.variant).iterdir())]


def _load(path: str) -> Pair:
    with np.load(path) as archive:
        return archive["image"], archive["label"]


def _stacked(pairs: list[Pair]) -> Pair:
    images, labels = zip(*pairs, strict=True)
    return np.stack(images), np.stack(labels)


def limit(work: Work) -> Epoch:
    """Every file opened, read and closed."""
    paths = _paths(work)

    def part(core: int, num_cores: int) -> Callable[[], None]:
        own_paths, buffer = paths[core::num_cores], bytearray(BUFFER_BYTES)

        def read() -> None:
            for path in own_paths:
                descriptor = os.open(path, os.O_RDONLY)
                os.preadv(descriptor, [buffer], 0)
                os.close(descriptor)

        return read

    return on_all_cores(work, part)


def numpy_load(work: Work) -> Epoch:
    """One thread, np.load of each file, np.stack."""
    paths, rng = _paths(work), np.random.default_rng(0)
    return lambda: (
        _stacked([_load(paths[record]) for record in batch]) for batch in forms.batches(work, rng)
    )


def numpy_threads(num_threads: int) -> Callable[[Work], Epoch]:
    """np.load of each file in threads, two batches ahead."""

    def build(work: Work) -> Epoch:
        paths, rng = _paths(work), np.random.default_rng(0)
        pool = ThreadPoolExecutor(num_threads)

        def epoch() -> Iterator[Pair]:
            ahead = []
            for batch in forms.batches(work, rng):
                ahead.append([pool.submit(_load, paths[record]) for record in batch])
                if len(ahead) > 2:
                    yield _stacked([future.result() for future in ahead.pop(0)])
            for futures in ahead:
                yield _stacked([future.result() for future in futures])

        return epoch

    return build


def torch(work: Work) -> Epoch:
    """DataLoader over whole batches, np.load in a worker process a core."""
    paths = _paths(work)
    loader = forms.torch_loader(
        work, lambda batch: _stacked([_load(paths[record]) for record in batch]), cores()
    )
    return lambda: iter(loader)


def grain(work: Work) -> Epoch:
    """Batches of indices as the source, np.load in Grain's threads."""
    paths = _paths(work)
    return forms.grain_epoch(
        work, lambda batch: _stacked([_load(paths[record]) for record in batch])
    )


def gpuload(work: Work) -> Epoch:
    """The package measured, with its defaults."""
    import gpuload as gl

    source = gl.npz(str(work.path / work.variant / "*.npz"), record="file")
    loader = gl.Loader(source, batch_size=work.batch_size, shuffle=True, seed=0, device="cpu")
    return forms.own_form(work, loader, "image", "label")


QUESTION = Question(
    name="npz_files",
    asks="10,000 NPZ files, each a uint8 image of 3 x 64 x 64 and a label, in batches of 64: how fast do they come?",
    limit="open, read and close of each file into a reused buffer, one process a core",
    prepare=data.npz_files,
    num_records=(10_000, 200),
    batch_size=64,
    variants=("stored", "deflated"),
    peers=(
        Peer("limit", limit, "read of all files, all cores", role="limit"),
        Peer("numpy_load", numpy_load, "bare np.load and np.stack", role="floor"),
        Peer("gpuload", gpuload, 'gl.npz, record="file", defaults', ("gpuload",), role="ours"),
        Peer("numpy_2", numpy_threads(2), "np.load in 2 threads, two batches ahead"),
        Peer("numpy_8", numpy_threads(8), "np.load in 8 threads, two batches ahead"),
        Peer(
            "torch",
            torch,
            "DataLoader, whole batches, np.load, a process a core",
            ("torch", "torch.utils.data"),
        ),
        Peer(
            "grain",
            grain,
            "batches of indices as the source, np.load in threads",
            ("grain.python",),
        ),
    ),
)

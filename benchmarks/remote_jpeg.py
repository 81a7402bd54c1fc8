"""How fast do JPEGs of a store come, ready for training (512 objects of about 500 x 375, batches of
64)?

Work      as `jpeg_training.py`: read, decode, random box to 224 x 224, flip, normalise; each image
          is an object
Variants  shuffled: a server beside the client; shuffled-20ms: each answer comes 20 ms later
Limit     all objects by obstore in threads, nothing decoded
Floor     obstore alone in threads, two batches ahead; OpenCV in a thread a core
Pixels    gpuload: with antialias (its default), and without, as the others have it
Cache     `gpuload_cache` has a cache on disk, which its first pass, that does not count, fills
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, forms, jpeg_training, remoteserver
from benchmarks.machine import cores
from benchmarks.question import Epoch, Peer, Question, Work

BATCHES_AHEAD = 2
SIDE = jpeg_training.SIDE


def prepare(folder: Path, num_records: int) -> Path:
    """Write the images, and return the folder that is the server's root."""

    def write(path: Path) -> None:
        path.mkdir(parents=True)
        data.jpegs(folder, num_records).rename(path / "bucket")

    return data.once(folder / f"remote-jpegs-{num_records}", write)


def _objects(work: Work) -> tuple[list[str], list[int]]:
    files = sorted((work.path / "bucket").iterdir())
    return [file.name for file in files], [file.stat().st_size for file in files]


def limit(work: Work) -> Epoch:
    """All objects, nothing decoded."""
    ranges = remoteserver.obstore_ranges(
        remoteserver.serve(work.path, work.variant), remoteserver.threads_of(work.variant)
    )
    names, sizes = _objects(work)

    def epoch() -> Iterator[Any]:
        ranges(names, [0] * len(names), sizes)
        yield np.broadcast_to(np.float32(0), (work.num_records, 1))

    return epoch


def client(make: remoteserver.Make) -> Callable[[Work], Epoch]:
    """A batch of objects at a time, two batches ahead; decoded in a thread a core."""

    def build(work: Work) -> Epoch:
        import cv2

        cv2.setNumThreads(1)
        url, rng = remoteserver.serve(work.path, work.variant), np.random.default_rng(0)
        ranges = make(url, remoteserver.threads_of(work.variant))
        names, sizes = _objects(work)
        pool, decoders = ThreadPoolExecutor(BATCHES_AHEAD + 1), ThreadPoolExecutor(cores())

        def decode(content: bytes, seed: int, out: NDArray[np.float32]) -> None:
            image = jpeg_training.cv2_decode(content)
            jpeg_training.normalise(jpeg_training.resized(image, np.random.default_rng(seed)), out)

        def make_batch(batch: forms.Records, seeds: list[int]) -> NDArray[np.float32]:
            contents = ranges(
                [names[i] for i in batch], [0] * len(batch), [sizes[i] for i in batch]
            )
            images = forms.empty(len(batch), SIDE, SIDE, 3)
            list(decoders.map(decode, contents, seeds, images))
            return images

        def epoch() -> Iterator[NDArray[np.float32]]:
            tasks = (
                pool.submit(make_batch, batch, rng.integers(1 << 63, size=len(batch)).tolist())
                for batch in forms.batches(work, rng)
            )
            return forms.results_of(tasks, BATCHES_AHEAD)

        return epoch

    return build


def gpuload(form: str = "", antialias: bool = False) -> Callable[[Work], Epoch]:
    """The package measured, with its defaults, or with its cache."""

    def build(work: Work) -> Epoch:
        import gpuload as gl

        url = f"{remoteserver.serve(work.path, work.variant)}/bucket"
        cache = tempfile.mkdtemp(prefix="benchmarks-cache-") if form == "cache" else None
        source = gl.images(
            gl.Remote([f"{url}/{name}" for name in _objects(work)[0]], cache=cache), labels=None
        )
        ops = [
            gl.ops.Decode(),
            gl.ops.RandomResizedCrop(SIDE, SIDE, antialias=antialias),
            gl.ops.RandomFlip(),
            gl.ops.Normalize(jpeg_training.MEAN, jpeg_training.STD),
        ]
        loader = gl.Loader(
            source, batch_size=work.batch_size, ops=ops, shuffle=True, seed=0, device="cpu"
        )
        return forms.own_form(work, loader, "image")

    return build


QUESTION = Question(
    name="remote_jpeg",
    asks="512 JPEGs of about 500 x 375, each an object of a store, to random crops of 224 x 224: how fast?",
    limit="all objects by obstore in threads, nothing decoded",
    prepare=prepare,
    num_records=(512, 8),
    batch_size=64,
    variants=("shuffled", f"shuffled{remoteserver.FAR}"),
    peers=(
        Peer("limit", limit, "obstore in threads, nothing decoded", ("obstore",), role="limit"),
        Peer("gpuload", gpuload(), "gl.images of URLs, no antialias", ("gpuload", "obstore"), role="ours"),
        Peer("gpuload_antialias", gpuload(antialias=True), "the same with antialias, its default",
             ("gpuload", "obstore"), role="ours"),
        Peer("gpuload_cache", gpuload("cache"), "gl.Remote(urls, cache=...), second pass on, no antialias",
             ("gpuload", "obstore"), role="ours"),
        *(
            Peer(name, client(make), about, ("cv2", *packages),
                 role="floor" if name == "obstore" else "peer")
            for name, make, about, packages in remoteserver.CLIENTS
        ),
    ),
)  # fmt: skip

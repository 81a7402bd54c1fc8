"""How fast do rows of one NPY object of a store come (4,096 of 32,768 x 784 float32, batches of
256, shuffled)?

Variants  shuffled: a server beside the client; shuffled-20ms: each answer comes 20 ms later
Rows      a pass takes the same 4,096 rows, drawn once: neighbours are as rare as in a large data
          set
Limit     the bytes of 4,096 neighbours in pieces of 4 MiB by 8 threads, once a pass: no request for
          a row
Floor     obstore alone in threads, a request a row, two batches ahead: nothing is checked
Shuffle   each peer visits each of these rows once a pass in a new whole order, but
          `gpuload_blocks`, which takes 4,096 neighbours, and mixes 4 blocks of 256 at a time;
          `gpuload_cache` has a cache on disk, which its first pass, that does not count, fills
Checks    gpuload compares length, size, time and ETag of each answer, and the checksums of its
          cache; others do not
Absent    tf.data: TensorFlow's own files know s3:// and http:// only by tensorflow-io, which has no
          build for today's
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, forms, remoteserver
from benchmarks.question import Epoch, Peer, Question, Work

ROW_BYTES = 4 * data.ROW_SHAPE[0]
NAME = "rows.npy"
TIMES_ROWS = 8  # as many rows as a pass takes
BATCHES_AHEAD = 2
PIECE_BYTES, PIECE_THREADS = 1 << 22, 8


def prepare(folder: Path, num_records: int) -> Path:
    """Write the file, and return the folder that is the server's bucket."""

    def write(path: Path) -> None:
        (path / "bucket").mkdir(parents=True)
        data.npy_rows(folder, TIMES_ROWS * num_records).rename(path / "bucket" / NAME)

    return data.once(folder / f"remote-rows-{num_records}", write)


def _subset(work: Work) -> forms.Records:
    """Return the numbers of the rows of a pass, in a random order."""
    return np.random.default_rng(1).permutation(TIMES_ROWS * work.num_records)[: work.num_records]


def limit(work: Work) -> Epoch:
    """The bytes of as many rows in large pieces."""
    ranges = remoteserver.obstore_ranges(remoteserver.serve(work.path, work.variant), PIECE_THREADS)
    size = work.num_records * ROW_BYTES
    begins = list(range(0, size, PIECE_BYTES))

    def epoch() -> Iterator[Any]:
        ranges([NAME] * len(begins), begins, [min(begin + PIECE_BYTES, size) for begin in begins])
        yield np.broadcast_to(np.float32(0), (work.num_records, 1))

    return epoch


def client(make: remoteserver.Make) -> Callable[[Work], Epoch]:
    """A batch of ranges at a time, two batches ahead."""

    def build(work: Work) -> Epoch:
        url, rng = remoteserver.serve(work.path, work.variant), np.random.default_rng(0)
        ranges = make(url, remoteserver.threads_of(work.variant))
        pool, subset = ThreadPoolExecutor(BATCHES_AHEAD + 1), _subset(work)

        def fetch(rows: forms.Records) -> NDArray[np.float32]:
            begins = (data.NPY_HEADER_BYTES + rows * ROW_BYTES).tolist()
            parts = ranges([NAME] * len(rows), begins, [begin + ROW_BYTES for begin in begins])
            return np.frombuffer(b"".join(parts), np.float32).reshape(-1, *data.ROW_SHAPE)

        def epoch() -> Iterator[NDArray[np.float32]]:
            tasks = (pool.submit(fetch, subset[batch]) for batch in forms.batches(work, rng))
            return forms.results_of(tasks, BATCHES_AHEAD)

        return epoch

    return build


def gpuload(form: str = "") -> Callable[[Work], Epoch]:
    """The package measured, with its defaults, its shuffle for slow storage, or its cache."""

    def build(work: Work) -> Epoch:
        import gpuload as gl

        url = f"{remoteserver.serve(work.path, work.variant)}/bucket/{NAME}"
        cache = tempfile.mkdtemp(prefix="benchmarks-cache-") if form == "cache" else None
        source = gl.npy(gl.Remote(url, cache=cache))
        rows = source[: work.num_records] if form == "blocks" else source.select(_subset(work))
        shuffle: Any = gl.Blocks(256, 4) if form == "blocks" else True
        loader = gl.Loader(rows, batch_size=work.batch_size, shuffle=shuffle, seed=0, device="cpu")
        return forms.own_form(work, loader, "x")

    return build


QUESTION = Question(
    name="remote_rows",
    asks="4,096 rows of 784 float32 from 32,768 in one NPY object of a store, shuffled, in batches of 256: how fast?",
    limit="the bytes of as many neighbours in pieces of 4 MiB by 8 threads",
    prepare=prepare,
    num_records=(4_096, 512),
    batch_size=256,
    variants=("shuffled", f"shuffled{remoteserver.FAR}"),
    peers=(
        Peer("limit", limit, "neighbours in pieces of 4 MiB, 8 threads", ("obstore",), role="limit"),
        Peer("gpuload", gpuload(), "gl.npy of a URL, shuffle=True, defaults", ("gpuload", "obstore"), role="ours"),
        Peer("gpuload_blocks", gpuload("blocks"), "neighbours, shuffle=gl.Blocks(256, 4)",
             ("gpuload", "obstore"), role="ours"),
        Peer("gpuload_cache", gpuload("cache"), "gl.Remote(url, cache=...), second pass on",
             ("gpuload", "obstore"), role="ours"),
        *(
            Peer(name, client(make), about, packages, role="floor" if name == "obstore" else "peer")
            for name, make, about, packages in remoteserver.CLIENTS
        ),
    ),
)  # fmt: skip

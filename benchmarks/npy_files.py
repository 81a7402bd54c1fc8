"""How fast do many NPY files of one record each come as batches (20,000 of float32 3 x 64 x 64,
batches of 64)?

Limit    open, read and close each file into one reused buffer, one process a core
Floor    one thread, np.load of each file
Shuffle  each peer opens every file once a pass in a new whole order
Headers  the peers skip the 128 bytes of a header unread, as an expert does who wrote the files;
         gpuload, DALI and np.load read it
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, forms
from benchmarks.limits import on_all_cores
from benchmarks.machine import cores
from benchmarks.question import SLOW, Epoch, Peer, Question, Work

RECORD_BYTES = 4 * int(np.prod(data.FILE_SHAPE))
FILE_BYTES = data.NPY_HEADER_BYTES + RECORD_BYTES
TF_PARALLEL = 4

Images = NDArray[np.float32]


def _paths(work: Work) -> list[str]:
    return [str(path) for path in sorted(work.path.iterdir())]


def _read(paths: list[str], batch: forms.Records) -> Images:
    """Read a batch: positioned reads past the headers, each into its row."""
    images = forms.empty(len(batch), *data.FILE_SHAPE)
    rows: Any = images  # NumPy's stubs do not say that an array is a buffer
    for record, row in zip(batch.tolist(), rows, strict=True):
        path = paths[record]
        descriptor = os.open(path, os.O_RDONLY)
        count = os.preadv(descriptor, [row], data.NPY_HEADER_BYTES)
        os.close(descriptor)
        if count != RECORD_BYTES:
            raise ValueError(f"{path}: {count} bytes after the header, not {RECORD_BYTES}")
    return images


def limit(work: Work) -> Epoch:
    """Every file opened, read and closed."""
    paths = _paths(work)

    def part(core: int, num_cores: int) -> Callable[[], None]:
        own_paths, buffer = paths[core::num_cores], bytearray(FILE_BYTES)

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
    return forms.handed(
        work,
        lambda: (
            np.stack([np.load(paths[record]) for record in batch])
            for batch in forms.batches(work, rng)
        ),
    )


def torch(work: Work) -> Epoch:
    """DataLoader over whole batches, positioned reads in the main process (workers were slower)."""
    paths = _paths(work)
    loader = forms.torch_loader(work, lambda batch: _read(paths, batch))
    return forms.handed(work, lambda: iter(loader))


def grain(num_threads: int | None = None, batches_ahead: int = 4) -> Callable[[Work], Epoch]:
    """Batches of indices as the source, positioned reads in Grain's threads."""

    def build(work: Work) -> Epoch:
        paths = _paths(work)
        epoch = forms.grain_epoch(
            work,
            lambda batch: _read(paths, batch),
            num_threads=num_threads,
            batches_ahead=batches_ahead,
        )
        return forms.handed(work, epoch)

    return build


def dali(work: Work) -> Epoch:
    """readers.numpy, shuffled anew in each pass."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=work.batch_size, num_threads=cores(), device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        return fn.readers.numpy(files=_paths(work), shuffle_after_epoch=True, dont_use_mmap=True)

    return forms.handed(work, forms.dali_reading(pipeline(), work))


def tfdata(work: Work) -> Epoch:
    """Shuffled paths, read_file in parallel, one decode_raw a batch."""
    import tensorflow as tf

    paths = tf.constant(_paths(work))

    def decode(raw: Any) -> Any:
        return tf.reshape(tf.io.decode_raw(raw, tf.float32), [-1, *data.FILE_SHAPE])

    def read(path: Any) -> Any:
        return tf.strings.substr(tf.io.read_file(path), data.NPY_HEADER_BYTES, RECORD_BYTES)

    dataset = tf.data.Dataset.from_tensor_slices(paths).shuffle(work.num_records)
    dataset = dataset.map(read, TF_PARALLEL).batch(work.batch_size).map(decode, cores()).prefetch(2)
    return forms.tf_epoch(work, dataset)


def gpuload(work: Work, num_threads: int | None = None) -> Epoch:
    """The package measured, with its defaults or in more threads than cores, for a disk that likes
    many requests."""
    import gpuload as gl

    source = gl.npy(str(work.path / "*.npy"), record="file")
    loader = gl.Loader(
        source,
        batch_size=work.batch_size,
        shuffle=True,
        seed=0,
        device="cpu",
        num_threads=num_threads,
    )
    return forms.own_form(work, loader, "x")


QUESTION = Question(
    name="npy_files",
    asks="20,000 NPY files, each one float32 array of 3 x 64 x 64, in batches of 64: how fast do they come?",
    limit="open, read and close of each file into a reused buffer, one process a core",
    prepare=data.npy_files,
    num_records=(20_000, 200),
    batch_size=64,
    variants=("shuffled", "shuffled-tf"),
    peers=(
        Peer("limit", limit, "read of all files, all cores", role="limit"),
        Peer("numpy_load", numpy_load, "bare np.load and np.stack", role="floor"),
        Peer("gpuload", gpuload, 'gl.npy, record="file", defaults', ("gpuload",), role="ours"),
        Peer(
            "gpuload_16",
            partial(gpuload, num_threads=16),
            "the same with num_threads=16",
            ("gpuload",),
            role="ours",
            cache=SLOW,
        ),
        Peer(
            "torch",
            torch,
            "DataLoader, whole batches, positioned reads",
            ("torch", "torch.utils.data"),
        ),
        Peer(
            "grain",
            grain(),
            "batches of indices as the source, positioned reads in threads",
            ("grain.python",),
        ),
        Peer("grain_16", grain(16, 1), "the same in 16 threads", ("grain.python",), cache=SLOW),
        Peer("dali", dali, "readers.numpy", ("nvidia.dali", "nvidia.dali.fn")),
        Peer("tfdata", tfdata, "read_file in parallel, one decode_raw a batch", ("tensorflow",)),
    ),
)

"""How fast do rows of one NPY file come as batches (200,000 x 784 float32, batches of 256)?

Variants  shuffled, sequential    handed over as NumPy arrays shuffled-tf, sequential-tf    as
          tf.Tensors: without a copy where the peer can, else tf.convert_to_tensor
Limit     a copy of all bytes by all cores into buffers that stay in the cache
Floor     one thread: a new order each pass, `take` from the memory map (in order: a slice's copy)
Shuffle   each peer visits every record once a pass in a new whole order, but `tfdata_records`: its
          buffer of 10,000 records is what tf.data has for data that is not in memory; and
          `gpuload_blocks`, which mixes 16 blocks of 1,024 records at a time
Views     a view of data that lies in memory already, which NumPy, torch and tf.data give in order
          at no cost, is no loading: every batch here is memory of its own
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, forms
from benchmarks.limits import on_all_cores, share
from benchmarks.machine import cores
from benchmarks.question import SLOW, Epoch, Peer, Question, Work

ROW_BYTES = 4 * data.ROW_SHAPE[0]
SHUFFLE_BUFFER = 10_000

Rows = NDArray[np.float32]


def _rows(work: Work) -> Rows:
    """Return all rows as a map; it is told of random access where reading around each page would
    spoil the cache."""
    rows = np.load(
        work.path, mmap_mode="r" if work.cache == "large" else "c"
    )  # "c" is promised memory
    if work.cache == "large" and work.shuffled:
        rows._mmap.madvise(mmap.MADV_RANDOM)
    return np.asarray(rows)  # not a memmap: each slice of that class costs microseconds


def _gather(rows: Rows, batch: Any) -> Rows:
    """Return the rows of a batch as memory of their own."""
    return rows[batch].copy() if isinstance(batch, slice) else rows.take(batch, axis=0)


def limit(work: Work) -> Epoch:
    """All bytes copied once, batch by batch into one buffer a core."""

    def part(core: int, num_cores: int) -> Callable[[], None]:
        own_rows = share(work.num_records, core, num_cores)
        rows = _rows(replace(work, variant="sequential"))[
            own_rows.start : own_rows.stop
        ]  # it is read in order
        buffer = np.empty((work.batch_size, *data.ROW_SHAPE), np.float32)

        def copy() -> None:
            for start in range(0, len(rows), work.batch_size):
                chunk = rows[start : start + work.batch_size]
                np.copyto(buffer[: len(chunk)], chunk)

        return copy

    return on_all_cores(work, part)


def numpy(work: Work) -> Epoch:
    """One thread; a batch is one `take`, or in order one copy."""
    rows, rng = _rows(work), np.random.default_rng(0)
    return forms.handed(work, lambda: (_gather(rows, batch) for batch in forms.batches(work, rng)))


def torch(work: Work) -> Epoch:
    """DataLoader over whole batches; NumPy gathers, faster than torch's index_select; tf.Tensors by
    DLPack."""
    rows = _rows(work)
    if not work.to_tf:
        loader = forms.torch_loader(work, lambda batch: _gather(rows, batch))
        return lambda: iter(loader)
    import torch
    from tensorflow.experimental.dlpack import from_dlpack

    def make(
        batch: Any,
    ) -> Any:  # torch's memory is aligned to 64 bytes, which TensorFlow's DLPack must have
        if isinstance(batch, slice):
            return torch.from_numpy(rows[batch]).clone()
        batch_tensor = torch.empty(len(batch), *data.ROW_SHAPE)
        np.take(
            rows, batch, axis=0, out=batch_tensor.numpy(), mode="clip"
        )  # "raise" would buffer the output
        return batch_tensor

    tensors = forms.torch_loader(work, make)
    return lambda: (from_dlpack(tensor.__dlpack__()) for tensor in tensors)


def grain(num_threads: int | None = None, batches_ahead: int = 4) -> Callable[[Work], Epoch]:
    """Batches of indices as the source, gathered by Grain's threads."""

    def build(work: Work) -> Epoch:
        rows = _rows(work)
        epoch = forms.grain_epoch(
            work,
            lambda batch: _gather(rows, batch),
            num_threads=num_threads,
            batches_ahead=batches_ahead,
        )
        return forms.handed(work, epoch)

    return build


def dali(work: Work) -> Epoch:
    """external_source fed with a whole batch as one sample, without a copy on the way in."""
    from nvidia.dali import fn, pipeline_def, types

    rows, rng = _rows(work), np.random.default_rng(0)

    def source() -> Iterator[list[Rows]]:
        for batch in forms.batches(work, rng):
            yield [rows[batch] if isinstance(batch, slice) else rows.take(batch, axis=0)]

    @pipeline_def(batch_size=1, num_threads=cores(), device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        return fn.external_source(
            source=source, cycle="raise", dtype=types.FLOAT, ndim=2, no_copy=True
        )

    if not work.to_tf:
        return forms.dali_fed(pipeline(), lambda output: np.asarray(output[0]))
    from tensorflow.experimental.dlpack import from_dlpack

    return forms.dali_fed(pipeline(), lambda output: from_dlpack(output[0].__dlpack__()))


def tfdata_gather(work: Work) -> Epoch:
    """tf.data, all data in memory: one permutation a pass, one gather a batch, one thread each
    gather."""
    import tensorflow as tf

    rows, size, count = _in_memory(work), work.batch_size, work.num_records

    def batches(_: Any) -> Any:
        records = tf.random.shuffle(tf.range(count))
        steps = tf.data.Dataset.range(work.num_batches)
        return steps.map(
            lambda step: tf.gather(rows, records[step * size : (step + 1) * size]), 2 * cores()
        )

    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1
    dataset = tf.data.Dataset.range(1).flat_map(batches).prefetch(4)
    return forms.tf_epoch(work, dataset.with_options(options))


def tfdata_slices(work: Work) -> Epoch:
    """tf.data, all data in memory: from_tensor_slices of whole batches (of rows, batched then, it
    is half as fast)."""
    import tensorflow as tf

    rows, size = _in_memory(work), work.batch_size
    end = work.num_records // size * size
    dataset = tf.data.Dataset.from_tensor_slices(
        tf.reshape(rows[:end], [-1, size, *data.ROW_SHAPE])
    )
    if end < work.num_records:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(rows[end:]))
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1
    return forms.tf_epoch(work, dataset.prefetch(4).with_options(options))


def _in_memory(work: Work) -> Any:
    """Return the rows as a tensor: by DLPack, for tf.constant holds them twice."""
    from tensorflow.experimental.dlpack import from_dlpack

    return from_dlpack(_rows(work).__dlpack__())


def tfdata_records(work: Work) -> Epoch:
    """tf.data, streaming: FixedLengthRecordDataset, a shuffle buffer of 10,000, one decode_raw a
    batch."""
    import tensorflow as tf

    dataset = tf.data.FixedLengthRecordDataset(
        str(work.path), ROW_BYTES, header_bytes=data.NPY_HEADER_BYTES, buffer_size=4 << 20
    )
    if work.shuffled:
        dataset = dataset.shuffle(SHUFFLE_BUFFER)
    dataset = (
        dataset.batch(work.batch_size)
        .map(lambda raw: tf.io.decode_raw(raw, tf.float32), cores())
        .prefetch(2)
    )
    return forms.tf_epoch(work, dataset)


def tfdata_pyfunc(work: Work) -> Epoch:
    """tf.data, streaming: batches of indices, one numpy_function a batch that takes from the memory
    map."""
    import tensorflow as tf

    rows, rng, size = _rows(work), np.random.default_rng(0), work.batch_size

    def batches(_: Any) -> Any:
        order = tf.numpy_function(lambda: rng.permutation(work.num_records), [], tf.int64)
        steps = tf.data.Dataset.range(work.num_batches)
        return steps.map(lambda step: order[step * size : (step + 1) * size])

    def gather(batch: Any) -> Any:
        return tf.numpy_function(lambda records: rows.take(records, axis=0), [batch], tf.float32)

    dataset = (
        tf.data.Dataset.range(1)
        .flat_map(batches)
        .map(gather, num_parallel_calls=cores())
        .prefetch(2)
    )
    return forms.tf_epoch(work, dataset)


def gpuload(blocks: bool = False) -> Callable[[Work], Epoch]:
    """The package measured, with its defaults, or with its shuffle for slow storage."""

    def build(work: Work) -> Epoch:
        import gpuload as gl

        shuffle = gl.Blocks() if blocks else work.shuffled
        loader = gl.Loader(
            gl.npy(work.path), batch_size=work.batch_size, shuffle=shuffle, seed=0, device="cpu"
        )
        return forms.own_form(work, loader, "x")

    return build


_TF = ("tensorflow",)
_SHUFFLED = ("shuffled", "shuffled-tf")
_SEQUENTIAL = ("sequential", "sequential-tf")
_BUT_LAST = (
    *_SHUFFLED,
    "sequential",
)  # in order to tf.Tensor they say no more than numpy, whose copy they share
QUESTION = Question(
    name="npy_rows",
    asks="Rows of one NPY file, 200,000 x 784 float32, in batches of 256: how fast do they come?",
    limit="a copy of the same bytes by all cores into buffers that stay in the cache",
    prepare=data.npy_rows,
    num_records=(200_000, 1_000),
    batch_size=256,
    record_bytes=ROW_BYTES,
    variants=("shuffled", "sequential", "shuffled-tf", "sequential-tf"),
    peers=(
        Peer("limit", limit, "copy of all bytes, all cores", role="limit"),
        Peer("numpy", numpy, "bare np.take from a memory map (in order: a slice's copy)", role="floor"),
        Peer("gpuload", gpuload(), "gl.npy, defaults", ("gpuload",), role="ours"),
        Peer(
            "gpuload_blocks", gpuload(blocks=True), "gl.npy, shuffle=gl.Blocks(): 16,384 records are mixed at a time",
            ("gpuload",), variants=("shuffled",), role="ours", cache=("large",),
        ),
        Peer("torch", torch, "DataLoader, whole batches of indices, np.take", ("torch", "torch.utils.data")),
        Peer("grain", grain(), "batches of indices as the source, threads", ("grain.python",), variants=_BUT_LAST),
        Peer(
            "grain_16", grain(16, 1), "the same in 16 threads", ("grain.python",), variants=_BUT_LAST, cache=SLOW
        ),
        Peer(
            "dali", dali, "external_source, a batch as one sample", ("nvidia.dali", "nvidia.dali.fn"),
            variants=_BUT_LAST,
        ),
        Peer("tfdata_gather", tfdata_gather, "all data in memory, tf.gather", _TF, variants=_SHUFFLED, cache=("warm",)),
        Peer(
            "tfdata_slices", tfdata_slices, "all data in memory, from_tensor_slices", _TF,
            variants=_SEQUENTIAL, cache=("warm",),
        ),
        Peer(
            "tfdata_pyfunc", tfdata_pyfunc, "streaming, numpy_function takes from a memory map", _TF,
            variants=_SHUFFLED,
        ),
        Peer(
            "tfdata_records", tfdata_records, "streaming, FixedLengthRecordDataset (shuffle buffer of 10,000)", _TF,
            variants=("shuffled", *_SEQUENTIAL),
        ),
    ),
)  # fmt: skip

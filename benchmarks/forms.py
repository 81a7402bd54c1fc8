"""The peers' forms that several questions share: whole batches for torch, Grain and DALI; tensors
of TensorFlow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import cores
from benchmarks.question import Epoch, Work

Records = NDArray[np.int64]
Make = Callable[..., Any]


ALIGN_BYTES = 64  # of memory that TensorFlow takes without a copy


def empty(*shape: int) -> NDArray[np.float32]:
    """Return new float32 memory that TensorFlow can take without a copy."""
    num_items, num_extra = int(np.prod(shape)), ALIGN_BYTES // 4
    memory = np.empty(num_items + num_extra, np.float32)
    begin = -memory.ctypes.data % ALIGN_BYTES // 4
    return memory[begin : begin + num_items].reshape(shape)


def handed(work: Work, epoch: Epoch) -> Epoch:
    """Return the epoch as it is, or with each array as a tf.Tensor: by DLPack, a copy where memory
    is not aligned."""
    if not work.to_tf:
        return epoch
    import tensorflow as tf
    from tensorflow.experimental.dlpack import from_dlpack

    def tensor(array: NDArray[Any]) -> Any:
        shared = (
            array.ctypes.data % ALIGN_BYTES == 0
            and array.flags.c_contiguous
            and array.flags.writeable
        )
        return from_dlpack(array.__dlpack__()) if shared else tf.convert_to_tensor(array)

    return lambda: (
        tuple(map(tensor, batch)) if isinstance(batch, tuple) else tensor(batch)
        for batch in epoch()
    )


def tf_epoch(work: Work, dataset: Any) -> Epoch:
    """Return the passes of a tf.data.Dataset, to tf.Tensors or NumPy."""
    return lambda: iter(dataset) if work.to_tf else dataset.as_numpy_iterator()


def own_form(work: Work, loader: Any, *names: str) -> Epoch:
    """Return the passes of gpuload's loader: the fields of these names, one or a tuple."""
    batches = loader
    if work.to_tf:
        from gpuload.bridges import tensorflow as bridge

        batches = bridge.tensors(loader)
    if len(names) == 1:
        return lambda: (batch[names[0]] for batch in batches)
    return lambda: (tuple(batch[name] for name in names) for batch in batches)


def batches(work: Work, rng: np.random.Generator) -> list[Any]:
    """Return a pass, batch by batch: record numbers of a new permutation, or slices where the pass
    is in order."""
    slices = [
        slice(start, start + work.batch_size)
        for start in range(0, work.num_records, work.batch_size)
    ]
    return (
        [*map(rng.permutation(work.num_records).__getitem__, slices)] if work.shuffled else slices
    )


def results_of(tasks: Iterable[Future[Any]], num_ahead: int) -> Iterator[Any]:
    """Yield the results of tasks in their order; so many of them are begun before the first result
    is asked for."""
    ahead: deque[Future[Any]] = deque()
    for task in tasks:
        ahead.append(task)
        if len(ahead) > num_ahead:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


def torch_loader(work: Work, make: Make, num_workers: int = 0) -> Iterable[Any]:
    """Return a DataLoader with automatic batching off: its sampler gives whole batches, `make`
    makes one.

    torch's own threads are off: they gain nothing here, and made its gather a tenth as fast once a
    core had other work.
    """
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)

    class Batches(Dataset[Any]):
        def __getitem__(self, batch: Any) -> Any:
            return make(batch)

    class Order:
        def __iter__(self) -> Iterator[Any]:
            return iter(batches(work, rng))

        def __len__(self) -> int:
            return work.num_batches

    return DataLoader(Batches(), batch_size=None, sampler=Order(), num_workers=num_workers,
                      persistent_workers=num_workers > 0, collate_fn=lambda batch: batch)  # fmt: skip


def grain_epoch(
    work: Work,
    make: Make,
    *,
    random: bool = False,
    num_threads: int | None = None,
    batches_ahead: int = 4,
) -> Epoch:
    """Return passes of Grain with batches of record numbers as the source, each made by one of its
    threads.

    Args:
        work: the work.
        make: from a batch of record numbers, and where it is `random` a generator, to the batch.
        random: whether `make` draws.
        num_threads: a thread a core where it is not told.
        batches_ahead: for each thread; the fastest of those tried.
    """
    import grain.python as pygrain  # type: ignore[import-untyped]

    rng = np.random.default_rng(0)
    num_threads = num_threads or cores()
    options = pygrain.ReadOptions(
        num_threads=num_threads, prefetch_buffer_size=batches_ahead * num_threads
    )

    def epoch() -> Iterator[Any]:
        dataset = pygrain.MapDataset.source(batches(work, rng)).seed(int(rng.integers(1 << 31)))
        dataset = dataset.random_map(make) if random else dataset.map(make)
        return iter(dataset.to_iter_dataset(options))

    return epoch


def dali_fed(pipe: Any, hand: Callable[..., Any]) -> Epoch:
    """Return passes of a pipeline that external_source feeds; `hand` makes the batch of its
    outputs."""
    pipe.build()

    def epoch() -> Iterator[Any]:
        while True:
            try:
                outputs = pipe.run()
            except StopIteration:
                break
            yield hand(*outputs)
        pipe.reset()

    return epoch


def dali_reading(pipe: Any, work: Work) -> Epoch:
    """Return passes of a pipeline with a reader, which goes on into the next pass: so does the
    batch on the border."""
    pipe.build()
    spare: list[NDArray[Any]] = []

    def epoch() -> Iterator[Any]:
        left = work.num_records
        while left > 0:
            images = spare.pop() if spare else dense(*pipe.run())
            if len(images) > left:
                spare.append(images[left:])
            left -= len(images)
            yield images[: len(images) + min(left, 0)]

    return epoch


def dense(output: Any) -> NDArray[Any]:
    """Return an output of DALI as one array, without a copy."""
    return np.asarray(output.as_tensor())

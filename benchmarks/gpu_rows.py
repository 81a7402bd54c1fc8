"""How fast do records of fixed size come to a GPU (200,000, shuffled, as CuPy arrays or tensors
there)?

Variants  rows-256, rows-4096    rows of one NPY file, 784 x float32, in batches of 256 and of 4,096
          fixed-256              CIFAR-10's binary format to label and float32 HWC image: crop of 32
          x 32 at a random
                                 place of the image padded by 4, flip with p = 1/2, minus mean, over
                                 standard deviation
          ...-step               the same in a loop whose step is a kernel of about 2.5 ms
Limit     the link: as many bytes from pinned memory; with a step, the loop over data that lies on
          the GPU already, so that a share of 1 says: whatever the loader did was hidden behind the
          steps
Floor     one thread: `take` from a memory map, in `fixed` with `fixed_images.augment`; then
          `cupy.asarray`
Peers     torch and tf.data take raw records to the GPU and augment there, as gpuload does
Shuffle   each peer visits every record once a pass in a new whole order
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, fixed_images, forms, gpu, npy_rows
from benchmarks.gpu import STEP, GpuQuestion
from benchmarks.machine import cores
from benchmarks.question import Batch, Epoch, Peer, Work

FILES = {"rows": "rows.npy", "fixed": "fixed.bin"}
RECORD_BYTES = {"rows": npy_rows.ROW_BYTES, "fixed": data.FIXED_BYTES}
RESULT_SHAPES = {"rows": data.ROW_SHAPE, "fixed": (fixed_images.SIDE, fixed_images.SIDE, 3)}
NUM_RECORDS = 200_000
STEP_ROUNDS = 1_000_000
MOST_WORKERS = 8

LINK = ("rows-256", "rows-4096", "fixed-256")
LOOP = tuple(variant + STEP for variant in LINK)


def prepare(folder: Path, num_records: int) -> Path:
    """Return a folder with both files."""
    links = folder / f"gpu-rows-{num_records}"
    links.mkdir(parents=True, exist_ok=True)
    for name, write in (("rows", data.npy_rows), ("fixed", data.fixed_images)):
        path = write(folder, num_records)
        if not (links / FILES[name]).exists():
            (links / FILES[name]).symlink_to(Path("..") / path.name)
    return links


def kind_of(work: Work) -> str:
    """Return which records a variant is about, ``"rows"`` or ``"fixed"``."""
    return work.variant.partition("-")[0]


def part_of(work: Work) -> Work:
    """Return the work of a variant: its file and its batch size, which are not the same for all
    here."""
    return replace(
        work, path=work.path / FILES[kind_of(work)], batch_size=int(work.variant.split("-")[1])
    )


def consumed(build: Callable[[Work], Epoch]) -> Callable[[Work], Epoch]:
    """Return the builder of a loader with the consumer behind it."""
    return lambda work: gpu.consumed(
        work, build(part_of(work)), STEP_ROUNDS if work.num_records == NUM_RECORDS else 1
    )


def link(work: Work) -> Epoch:
    """The bytes alone."""
    return gpu.link(work, RECORD_BYTES[kind_of(work)])


def resident(work: Work) -> Epoch:
    """The step alone."""
    return gpu.resident(work, *RESULT_SHAPES[kind_of(work)])


def bare(work: Work) -> Epoch:
    """One thread."""
    return gpu.upload_batches(
        (npy_rows.numpy if kind_of(work) == "rows" else fixed_images.numpy)(work)
    )


def gpuload(work: Work) -> Epoch:
    """The package measured, with its defaults."""
    import gpuload as gl

    if kind_of(work) == "rows":
        loader = gl.Loader(
            gl.npy(work.path), batch_size=work.batch_size, shuffle=True, seed=0, device="gpu"
        )
        return forms.own_form(work, loader, "x")
    source = gl.fixed(work.path, [("label", "u1"), ("image", "u1", data.IMAGE_SHAPE)])
    ops = [
        gl.ops.Transpose("HWC"),
        gl.ops.RandomCrop(fixed_images.SIDE, fixed_images.SIDE, pad=fixed_images.PAD),
        gl.ops.RandomFlip(),
        gl.ops.Normalize(fixed_images.MEAN, fixed_images.STD),
    ]
    loader = gl.Loader(
        source, batch_size=work.batch_size, shuffle=True, seed=0, ops=ops, device="gpu"
    )
    return forms.own_form(work, loader, "label", "image")


def _records(work: Work) -> NDArray[Any]:
    """Return all records as a map, ``[num_records, ...]``."""
    if kind_of(work) == "rows":
        return np.asarray(np.load(work.path, mmap_mode="c"))
    return np.asarray(
        np.memmap(work.path, np.uint8, "c", shape=(work.num_records, data.FIXED_BYTES))
    )


def torch(num_workers: int) -> Callable[[Work], Epoch]:
    """DataLoader over whole batches, pinned; without workers NumPy gathers straight into pinned
    memory."""

    def build(work: Work) -> Epoch:
        import torch

        records = _records(work)
        dtype = torch.from_numpy(records[:0]).dtype

        def make(batch: forms.Records) -> Any:
            batch_tensor = torch.empty(
                len(batch), *records.shape[1:], dtype=dtype, pin_memory=not num_workers
            )
            np.take(
                records, batch, axis=0, out=batch_tensor.numpy(), mode="clip"
            )  # "raise" would buffer the output
            return batch_tensor

        loader: Any = forms.torch_loader(work, make, num_workers)
        loader.pin_memory = num_workers > 0
        return (
            gpu.torch_passes(loader)
            if kind_of(work) == "rows"
            else gpu.torch_passes(loader, _torch_augment(torch))
        )

    return build


def _torch_augment(torch: Any) -> Callable[[Any], Batch]:
    """Return the function of a batch of raw records on the GPU: one gather that crops and flips."""
    pad, steps = fixed_images.PAD, torch.arange(fixed_images.SIDE, device="cuda")
    mean, std = (
        torch.tensor(values, device="cuda") for values in (fixed_images.MEAN, fixed_images.STD)
    )

    def augment(raw: Any) -> Batch:
        count = len(raw)
        images = torch.nn.functional.pad(
            raw[:, 1:].reshape(count, *data.IMAGE_SHAPE), (pad, pad, pad, pad)
        )
        y, x = (torch.randint(0, 2 * pad + 1, (count, 1), device="cuda") + steps for _ in range(2))
        x = torch.where(torch.rand(count, 1, device="cuda") < 0.5, x.flip(1), x)
        number = torch.arange(count, device="cuda")[:, None, None]
        pixels = images[number, :, y[:, :, None], x[:, None, :]]  # [count, SIDE, SIDE, 3]
        return raw[:, 0], (pixels.float() - mean) / std

    return augment


def tfdata(work: Work) -> Epoch:
    """All records in a tensor on the host: one permutation a pass, one gather a batch,
    prefetch_to_device."""
    tf = gpu.tensorflow()
    size, count = work.batch_size, work.num_records
    with tf.device("/cpu:0"):
        records = tf.experimental.dlpack.from_dlpack(
            _records(work).__dlpack__()
        )  # tf.constant would hold them twice

    def batches(_: Any) -> Any:
        order = tf.random.shuffle(tf.range(count))
        steps = tf.data.Dataset.range(work.num_batches)
        return steps.map(
            lambda step: tf.gather(records, order[step * size : (step + 1) * size]), cores()
        )

    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1
    dataset = tf.data.Dataset.range(1).flat_map(batches).with_options(options)
    if kind_of(work) == "rows":
        return gpu.tf_passes(tf, dataset)
    return gpu.tf_passes(tf, dataset, tf.function(fixed_images._xla(work)))


_TORCH = ("cupy", "torch", "torch.utils.data")
_WARM = ("warm",)
QUESTION = GpuQuestion(
    name="gpu_rows",
    asks="200,000 shuffled records to a GPU: rows of 784 float32 of one NPY file in batches of 256 and 4,096, CIFAR-10 "
    "style records cropped, flipped and normalised in batches of 256; alone, and in a loop whose step is a kernel of "
    "about 2.5 ms (-step): how fast do they come?",
    limit="the same bytes from pinned memory to the GPU; for -step, the same loop over data on the GPU",
    prepare=prepare,
    num_records=(NUM_RECORDS, 5_000),
    batch_size=256,
    variants=(*LINK, *LOOP),
    link_bytes={variant: RECORD_BYTES[variant.partition("-")[0]] for variant in LINK},
    peers=(
        Peer("link", link, "copies of pinned memory", ("cupy",), variants=LINK, role="limit", cache=_WARM),
        Peer(
            "resident", consumed(resident), "data on the GPU already", ("cupy",), variants=LOOP, role="limit",
            cache=_WARM,
        ),
        Peer("cupy", consumed(bare), "bare np.take and cupy.asarray", ("cupy",), role="floor", cache=_WARM),
        Peer(
            "gpuload", consumed(gpuload), "gl.npy and gl.fixed, defaults", ("cupy", "gpuload"),
            role="ours", cache=_WARM,
        ),
        Peer(
            "torch", consumed(torch(0)), "DataLoader, np.take into pinned memory, to(non_blocking)", _TORCH, cache=_WARM
        ),
        Peer(
            "torch_workers", consumed(torch(min(MOST_WORKERS, cores()))),
            "DataLoader, up to 8 workers, pin_memory, to(non_blocking)", _TORCH, cache=_WARM,
        ),
        Peer(
            "tfdata", consumed(tfdata), "all data in memory, tf.gather, prefetch_to_device", ("cupy", "tensorflow"),
            cache=_WARM,
        ),
    ),
)  # fmt: skip

"""How fast do fixed-length image records come, augmented (60,000 in CIFAR-10's binary format,
batches of 128)?

Work     label, and the image as float32 HWC: crop of 32 x 32 at a random place of the image padded
         by 4 zero pixels, flip with p = 1/2, minus mean, over standard deviation
Limit    uint8 to float32 of every byte by all cores into buffers that stay in the cache
Floor    one thread: a new order each pass, a batch gathered from the memory map, then `augment`
Peers    torch and Grain run `augment` too (torch's own operators were slower); DALI and tf.data
         their own operators, tf.data's fused by XLA
Shuffle  each peer visits every record once a pass in a new whole order, but `tfdata`: its buffer of
         10,000 records is what tf.data has for data that is not in memory
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, forms
from benchmarks.limits import on_all_cores, share
from benchmarks.machine import cores
from benchmarks.question import Epoch, Peer, Question, Work

MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
SIDE, PAD = 32, 4
PADDED_SIDE = SIDE + 2 * PAD
SHUFFLE_BUFFER = 10_000

Bytes = NDArray[np.uint8]
Labelled = tuple[Bytes, NDArray[np.float32]]


def _records(work: Work) -> Bytes:
    memory = np.memmap(work.path, np.uint8, "r", shape=(work.num_records, data.FIXED_BYTES))
    return np.asarray(memory)


def _take(records: Bytes, batch: forms.Records) -> Bytes:
    return np.asarray(records.take(batch, axis=0))


_SCALE = (1 / np.asarray(STD)).astype(np.float32)
_SHIFT = np.tile((-np.asarray(MEAN) / STD).astype(np.float32), SIDE)


def augment(raw: Bytes, rng: np.random.Generator) -> Labelled:
    """Return labels and augmented images of raw records: the fastest of ten NumPy and torch forms
    tried.

    Crops are runs of 32 bytes while the image is CHW; one multiplication a channel then changes the
    layout, the type and the scale together; rows of 96 values, not pixels of 3, keep NumPy's inner
    loop long.
    """
    count = len(raw)
    windows = np.lib.stride_tricks.sliding_window_view(pad(raw), (SIDE, SIDE), axis=(2, 3))
    tops, lefts = rng.integers(0, 2 * PAD + 1, (2, count))
    crops = windows.transpose(0, 2, 3, 1, 4, 5)[np.arange(count), tops, lefts]
    flipped = rng.random(count) < 0.5
    crops[flipped] = crops[flipped, :, :, ::-1]
    images = forms.empty(count, SIDE, SIDE, 3)
    for channel in range(3):
        np.multiply(crops[:, channel], _SCALE[channel], out=images[..., channel])
    rows = images.reshape(count, SIDE, 3 * SIDE)
    rows += _SHIFT
    return raw[:, 0].copy(), images


def pad(raw: Bytes) -> Bytes:
    """Return the CHW images of raw records with zero pixels around them."""
    images = np.zeros((len(raw), 3, PADDED_SIDE, PADDED_SIDE), np.uint8)
    images[:, :, PAD:-PAD, PAD:-PAD] = raw[:, 1:].reshape(-1, *data.IMAGE_SHAPE)
    return images


def limit(work: Work) -> Epoch:
    """Every byte to float32, a batch at a time into one buffer a core."""

    def part(core: int, num_cores: int) -> Callable[[], None]:
        own_part = share(work.num_records, core, num_cores)
        records = _records(work)[own_part.start : own_part.stop]
        buffer = np.empty((work.batch_size, data.FIXED_BYTES), np.float32)

        def convert() -> None:
            for start in range(0, len(records), work.batch_size):
                chunk = records[start : start + work.batch_size]
                np.copyto(buffer[: len(chunk)], chunk)

        return convert

    return on_all_cores(work, part)


def numpy(work: Work) -> Epoch:
    """One thread."""
    records, rng = _records(work), np.random.default_rng(0)
    return forms.handed(
        work, lambda: (augment(_take(records, batch), rng) for batch in forms.batches(work, rng))
    )


def torch(work: Work) -> Epoch:
    """DataLoader over whole batches, `augment` in the main process (workers were slower)."""
    records, rng = _records(work), np.random.default_rng(0)
    loader = forms.torch_loader(work, lambda batch: augment(_take(records, batch), rng))
    return forms.handed(work, lambda: iter(loader))


def grain(work: Work) -> Epoch:
    """Batches of indices as the source, `augment` in Grain's threads."""
    records = _records(work)

    def make(batch: forms.Records, rng: np.random.Generator) -> Labelled:
        return augment(_take(records, batch), rng)

    return forms.handed(work, forms.grain_epoch(work, make, random=True))


def dali(work: Work) -> Epoch:
    """external_source of gathered and padded images; one crop_mirror_normalize does the rest."""
    from nvidia.dali import fn, pipeline_def, types

    records, rng = _records(work), np.random.default_rng(0)

    def source() -> Any:
        for batch in forms.batches(work, rng):
            raw = _take(records, batch)
            yield raw[:, :1].copy(), pad(raw)

    @pipeline_def(batch_size=work.batch_size, num_threads=cores(), device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        labels, images = fn.external_source(source=source, num_outputs=2, cycle="raise", dtype=types.UINT8,
                                            layout=["", "CHW"], no_copy=True)  # fmt: skip
        y, x = (
            fn.random.uniform(values=[place / (2 * PAD) for place in range(2 * PAD + 1)])
            for _ in range(2)
        )
        return labels, fn.crop_mirror_normalize(
            images, crop=(SIDE, SIDE), crop_pos_y=y, crop_pos_x=x, mirror=fn.random.coin_flip(),
            mean=list(MEAN), std=list(STD), dtype=types.FLOAT, output_layout="HWC",
        )  # fmt: skip

    epoch = forms.dali_fed(
        pipeline(), lambda labels, images: (forms.dense(labels), forms.dense(images))
    )
    return forms.handed(work, epoch)


def tfdata(work: Work) -> Epoch:
    """Streaming: records shuffled in a buffer of 10,000 and batched, then one function fused by
    XLA."""
    import tensorflow as tf

    finish = _xla(work)
    dataset = tf.data.FixedLengthRecordDataset(
        str(work.path), data.FIXED_BYTES, buffer_size=4 << 20
    )
    dataset = dataset.shuffle(SHUFFLE_BUFFER).batch(work.batch_size)
    dataset = dataset.map(lambda raw: finish(tf.io.decode_raw(raw, tf.uint8)), cores()).prefetch(2)
    return forms.tf_epoch(work, dataset)


def tfdata_memory(work: Work) -> Epoch:
    """All records in a tensor in memory: one permutation a pass, one gather a batch, then the same
    function."""
    import tensorflow as tf

    finish, records = _xla(work), tf.constant(_records(work))
    size, count = work.batch_size, work.num_records

    def batches(_: Any) -> Any:
        order = tf.random.shuffle(tf.range(count))
        steps = tf.data.Dataset.range(work.num_batches)
        return steps.map(
            lambda step: finish(tf.gather(records, order[step * size : (step + 1) * size])), cores()
        )

    dataset = tf.data.Dataset.range(1).flat_map(batches).prefetch(2)
    return forms.tf_epoch(work, dataset)


def _xla(work: Work) -> Callable[[Any], Any]:
    """Return the function of a batch of raw records: draws, then one gather that crops and flips,
    fused by XLA.

    Only whole batches go through the compiled one: XLA compiles anew for each shape.
    """
    import tensorflow as tf

    def fused(raw: Any, tops: Any, lefts: Any, flip: Any) -> Any:
        steps = tf.range(SIDE)
        y = (tops[:, None] + steps)[:, :, None, None]
        x = (lefts[:, None] + tf.where(flip[:, None], SIDE - 1 - steps, steps))[:, None, :, None]
        inside = (y >= 0) & (y < SIDE) & (x >= 0) & (x < SIDE)
        places = (
            1
            + (tf.range(3) * SIDE + tf.clip_by_value(y, 0, SIDE - 1)) * SIDE
            + tf.clip_by_value(x, 0, SIDE - 1)
        )
        pixels = tf.cast(tf.gather(raw, places, batch_dims=1), tf.float32)
        return (tf.where(inside, pixels, 0.0) - MEAN) * (1 / np.asarray(STD, np.float32))

    compiled = tf.function(fused, jit_compile=True)

    def finish(raw: Any) -> Any:
        count = tf.shape(raw)[0]
        tops, lefts = tf.unstack(tf.random.uniform([2, count], -PAD, PAD + 1, tf.int32))
        flip = tf.random.uniform([count]) < 0.5
        return raw[:, 0], compiled(
            tf.ensure_shape(raw, [None, data.FIXED_BYTES]), tops, lefts, flip
        )

    return finish


def gpuload(executor: str) -> Callable[[Work], Epoch]:
    """The package measured, on one of its executors."""

    def build(work: Work) -> Epoch:
        import gpuload as gl

        source = gl.fixed(work.path, [("label", "u1"), ("image", "u1", data.IMAGE_SHAPE)])
        ops = [
            gl.ops.Transpose("HWC"),
            gl.ops.RandomCrop(SIDE, SIDE, pad=PAD),
            gl.ops.RandomFlip(),
            gl.ops.Normalize(MEAN, STD),
        ]
        loader = gl.Loader(source, batch_size=work.batch_size, shuffle=True, seed=0, ops=ops, device="cpu",
                           executor=executor)  # fmt: skip
        return forms.own_form(work, loader, "label", "image")

    return build


_DALI = ("nvidia.dali", "nvidia.dali.fn")
QUESTION = Question(
    name="fixed_images",
    asks="60,000 CIFAR-10 style records to label and normalised float32 HWC image, random flip, crop padded by 4, "
    "in batches of 128: how fast do they come?",
    limit="uint8 to float32 of every byte by all cores into buffers that stay in the cache",
    prepare=data.fixed_images,
    num_records=(60_000, 600),
    batch_size=128,
    variants=("shuffled", "shuffled-tf"),
    peers=(
        Peer("limit", limit, "conversion of all bytes, all cores", role="limit"),
        Peer("numpy", numpy, "bare np.take from a memory map, vectorised NumPy", role="floor"),
        Peer("gpuload", gpuload("array"), "gl.fixed, array executor", ("gpuload",), role="ours"),
        Peer(
            "gpuload_dali", gpuload("dali"), "gl.fixed, DALI executor on the CPU", ("gpuload", *_DALI),
            variants=("shuffled",), role="ours",
        ),
        Peer("torch", torch, "DataLoader, whole batches, vectorised NumPy", ("torch", "torch.utils.data")),
        Peer("grain", grain, "batches of indices as the source, vectorised NumPy in threads", ("grain.python",)),
        Peer("dali", dali, "external_source of padded images, crop_mirror_normalize", _DALI),
        Peer("tfdata", tfdata, "streaming, batched first, fused by XLA", ("tensorflow",)),
        Peer("tfdata_memory", tfdata_memory, "all data in memory, fused by XLA", ("tensorflow",), cache=("warm",)),
    ),
)  # fmt: skip

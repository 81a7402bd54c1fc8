"""How fast do tf.train.Examples come from TFRecord files (100,000 of 3,072 image bytes, a label, 4
floats; 4 shards)?

Limit    a copy of the shards' bytes by all cores into buffers that stay in the cache
Checks   gpuload and tf.data verify the checksum of each record; DALI has no such check, and Grain's
         reader neither
Shuffle  gpuload visits all records in a new whole order each pass; tf.data takes the shards side by
         side through a buffer of 10,000 records, DALI through one of 10,000: what they have for
         such files
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, forms
from benchmarks.limits import on_all_cores
from benchmarks.machine import cores
from benchmarks.question import Epoch, Peer, Question, Work

SHUFFLE_BUFFER = 10_000
Bytes = NDArray[np.uint8]


def _shards(work: Work) -> list[Path]:
    return sorted(work.path.glob("*.tfrecord"))


def limit(work: Work) -> Epoch:
    """Every byte copied, a piece at a time into one buffer a core."""

    def part(core: int, num_cores: int) -> Callable[[], None]:
        shards = [np.memmap(path, np.uint8, "r") for path in _shards(work)]
        buffer = np.empty(1 << 18, np.uint8)

        def copy() -> None:
            for shard in shards:
                begin, end = shard.size * core // num_cores, shard.size * (core + 1) // num_cores
                for start in range(begin, end, buffer.size):
                    piece = shard[start : min(start + buffer.size, end)]
                    np.copyto(buffer[: piece.size], piece)

        return copy

    return on_all_cores(work, part)


def gpuload(*, verify: bool) -> Callable[[Work], Epoch]:
    """The package measured."""

    def build(work: Work) -> Epoch:
        import gpuload as gl

        features = {
            "image": gl.Raw("u1", (data.EXAMPLE_BYTES,)),
            "label": "i8",
            "box": ("f4", (4,)),
        }
        source = gl.tfrecord(_shards(work), features, verify=verify)
        return forms.own_form(
            work, gl.Loader(source, work.batch_size, shuffle=True), "image", "label", "box"
        )

    return build


def tfdata(work: Work) -> Epoch:
    """Shards side by side, a buffer of 10,000 serialized records, one parse_example and one
    decode_raw a batch."""
    import tensorflow as tf

    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "box": tf.io.FixedLenFeature([4], tf.float32),
    }

    def parse(serialized: Any) -> Any:
        values = tf.io.parse_example(serialized, features)
        image = tf.io.decode_raw(values["image"], tf.uint8, fixed_length=data.EXAMPLE_BYTES)
        return image, values["label"], values["box"]

    paths = tf.data.Dataset.from_tensor_slices([str(path) for path in _shards(work)])
    dataset = paths.shuffle(4).interleave(
        lambda path: tf.data.TFRecordDataset(path, buffer_size=4 << 20),
        cycle_length=4,
        block_length=16,
        num_parallel_calls=cores(),
        deterministic=False,
    )
    dataset = (
        dataset.shuffle(SHUFFLE_BUFFER)
        .batch(work.batch_size)
        .map(parse, cores(), deterministic=False)
    )
    return forms.tf_epoch(work, dataset.prefetch(2))


def dali(work: Work) -> Epoch:
    """readers.tfrecord with the index files that it needs; checksums are not verified."""
    import nvidia.dali.tfrecord as tfrec
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=work.batch_size, num_threads=cores(), device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        read = fn.readers.tfrecord(
            path=[str(path) for path in _shards(work)],
            index_path=[str(path.with_suffix(".idx")) for path in _shards(work)],
            features={
                "image": tfrec.FixedLenFeature((), tfrec.string, ""),
                "label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
                "box": tfrec.FixedLenFeature([4], tfrec.float32, 0.0),
            },
            random_shuffle=True,
            initial_fill=SHUFFLE_BUFFER,
            prefetch_queue_depth=2,
        )
        return read["image"], read["label"], read["box"]

    pipe = pipeline()
    pipe.build()
    spare: list[tuple[Any, ...]] = []

    def epoch() -> Iterator[
        Any
    ]:  # the reader goes on into the next pass, and so does the batch on the border
        left = work.num_records
        while left > 0:
            batch = spare.pop() if spare else tuple(forms.dense(output) for output in pipe.run())
            if len(batch[0]) > left:
                spare.append(tuple(array[left:] for array in batch))
            yield tuple(array[:left] for array in batch)
            left -= len(batch[0])

    return forms.handed(work, epoch)


QUESTION = Question(
    name="tfrecord",
    asks="Examples of 3,072 image bytes, a label and 4 floats, 4 TFRecord shards, batches of 256, shuffled",
    limit="a copy of the shards' bytes by all cores",
    prepare=data.tfrecords,
    num_records=(100_000, 2_000),
    batch_size=256,
    variants=("shuffled", "shuffled-tf"),
    peers=(
        Peer("limit", limit, "a copy of all bytes by all cores", variants=("shuffled",), role="limit"),
        Peer(
            "gpuload", gpuload(verify=True), "gl.tfrecord, defaults: checksums verified", ("gpuload",),
            role="ours",
        ),
        Peer(
            "gpuload_unverified", gpuload(verify=False), "the same, verify=False", ("gpuload",),
            variants=("shuffled",), role="ours",
        ),
        Peer(
            "tfdata", tfdata, "parse_example a batch, interleave, buffer of 10,000; checksums verified", ("tensorflow",)
        ),
        Peer(
            "dali", dali, "readers.tfrecord, buffer of 10,000; checksums not verified",
            ("nvidia.dali", "nvidia.dali.fn", "nvidia.dali.tfrecord"), variants=("shuffled",),
        ),
    ),
)  # fmt: skip

"""Rates in the demo: records per second to tf.Tensor, through gpuload and through tf.data, on the
same work.

Each work is that of a table of the benchmarks: the layout of the records, the ops, the size of a
batch and the form of tf.data, which is tuned, are the same (``NOTES`` names the differences).
Change both together.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from gpuload.sources.base import Source
from gpuload.threads import num_cores
from gpuload_demo import data as demo_data
from gpuload_demo.report import Rate

ROUNDS = 3
SIDE, PAD, CIFAR_MEAN, CIFAR_STD = 32, 4, (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
PHOTO_SIDE, PHOTO_MEAN, PHOTO_STD = 224, (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SHUFFLE_BUFFER = 10_000
# How often a pass goes over the data: rows and records so that it is as long as in the benchmarks,
# where tf.data needs 30 to 80 ms for its beginning; photographs so that it has at least eight
# batches.
ROWS_TIMES, RECORDS_TIMES, PHOTOS_TIMES = 10, 3, 2

NOTES = (
    "records per second to tf.Tensor, medians of interleaved rounds in this run",
    "same work: the table of that name in benchmarks/results, part shuffled-tf, row tfdata (npy_rows: tfdata_gather); "
    "README.md shows the part shuffled, which ends in NumPy arrays",
    "not as there: fewer records, several times over in a pass; rows and CIFAR-10 records of pixels, not of random "
    "numbers; rounds of moments; one process for all, and tf.data without the malloc settings that it has there. "
    "Believe the tables",
)
NOTE_ON_A_GPU = (
    "those tables are of CPUs: here gpuload's batches end on {device}, those of tf.data on the host"
)
Batches = Iterable[Any]  # a tuple each, the images or rows last


@dataclass(frozen=True)
class Work:
    """One work: its name, the table that has it, gpuload's loader, and a function that returns
    tf.data's batches."""

    name: str
    table: str
    loader: gl.Loader
    tf_data: Callable[[], Batches]


def measure(folder: Path, *, device: str, seconds: float, say: Callable[[str], None]) -> list[Rate]:
    """Return the rate of each work; each side of each runs for about ``seconds`` in all."""
    from gpuload.bridges import tensorflow as gltf

    rates = []
    for work in works(folder, device=device):
        say(f"measuring: {work.name}")
        with work.loader:
            gpuload_rate, tf_rate = _medians(
                gltf.tensors(work.loader), work.tf_data(), seconds / ROUNDS
            )
        rates.append(Rate(work.name, work.table, gpuload_rate, tf_rate))
    return rates


def notes(device: str) -> list[str]:
    """Return remarks on the rates."""
    return [*NOTES, *([] if device == "cpu" else [NOTE_ON_A_GPU.format(device=device)])]


def works(folder: Path, *, device: str) -> list[Work]:
    """Return all works, with loaders that are to be closed."""
    benchmark_folder = folder / "measured"
    rows = _times(gl.npy(benchmark_folder / "rows.npy"), ROWS_TIMES)
    records = _times(gl.fixed(benchmark_folder / "records.bin", demo_data.CIFAR), RECORDS_TIMES)
    photos = _times(gl.images(folder / "photos", labels=None), PHOTOS_TIMES)
    crop = [
        gl.ops.Transpose("HWC"), gl.ops.RandomCrop(SIDE, SIDE, pad=PAD), gl.ops.RandomFlip(),
        gl.ops.Normalize(CIFAR_MEAN, CIFAR_STD),
    ]  # fmt: skip
    resize = [
        gl.ops.Decode(), gl.ops.RandomResizedCrop(PHOTO_SIDE, PHOTO_SIDE), gl.ops.RandomFlip(),
        gl.ops.Normalize(PHOTO_MEAN, PHOTO_STD),
    ]  # fmt: skip

    def loader(source: Any, batch_size: int, ops: list[gl.ops.Op], *output: str) -> gl.Loader:
        return gl.Loader(
            source,
            batch_size=batch_size,
            shuffle=True,
            seed=0,
            ops=ops,
            output=output,
            device=device,
        )

    return [
        Work("784 float32 of an NPY file", "npy_rows", loader(rows, 256, [], "x"), lambda: _tf_rows(benchmark_folder)),
        Work(
            "CIFAR-10 records: crop, flip, normalise", "fixed_images", loader(records, 128, crop, "label", "image"),
            lambda: _tf_records(benchmark_folder),
        ),
        Work(
            "JPEGs of 500 x 375: crop, resize, flip, normalise", "jpeg_training",
            loader(photos, 64, resize, "image"),
            lambda: _tf_photos(folder / "photos"),
        ),
    ]  # fmt: skip


def _times(source: Source, times: int) -> Source:
    return source.select(np.tile(np.arange(len(source)), times))


def _medians(gpuload_batches: Batches, tf_batches: Batches, seconds: float) -> tuple[float, float]:
    for batches in (
        gpuload_batches,
        tf_batches,
    ):  # the first epoch compiles, opens and fills caches
        _rate(batches, 0.0)
    rounds = [(_rate(gpuload_batches, seconds), _rate(tf_batches, seconds)) for _ in range(ROUNDS)]
    return statistics.median(gpuload_rate for gpuload_rate, _ in rounds), statistics.median(
        tf_rate for _, tf_rate in rounds
    )


def _rate(batches: Batches, seconds: float) -> float:
    """Return records per second over whole epochs that together take at least ``seconds``."""
    num_records, start_s = 0, time.perf_counter()
    while True:
        for *_, images in batches:
            num_records += int(images.shape[0])
        took = time.perf_counter() - start_s
        if took >= seconds:
            return num_records / took


def _tf_rows(folder: Path) -> Batches:
    """All rows in a tensor in memory, as tf.data has no NPY reader: a permutation a pass, a gather
    a batch."""
    import tensorflow as tf

    rows, num_rows, size = tf.constant(np.load(folder / "rows.npy")), demo_data.NUM_BENCHMARK, 256
    count = ROWS_TIMES * num_rows

    def batches(_: Any) -> Any:
        order = tf.random.shuffle(tf.range(count)) % num_rows
        steps = tf.data.Dataset.range(-(-count // size))
        return steps.map(
            lambda step: (tf.gather(rows, order[step * size : (step + 1) * size]),), 2 * num_cores()
        )

    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1
    data: Batches = tf.data.Dataset.range(1).flat_map(batches).prefetch(4).with_options(options)
    return data


def _tf_records(folder: Path) -> Batches:
    """Records shuffled in a buffer and batched, then one function a batch, fused by XLA."""
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
        return (tf.where(inside, pixels, 0.0) - CIFAR_MEAN) * (
            1 / np.asarray(CIFAR_STD, np.float32)
        )

    compiled = tf.function(fused, jit_compile=True)
    record_bytes = np.dtype(demo_data.CIFAR).itemsize

    def finish(payload: Any) -> Any:
        raw = tf.ensure_shape(tf.io.decode_raw(payload, tf.uint8), [None, record_bytes])
        count = tf.shape(raw)[0]
        tops, lefts = tf.unstack(tf.random.uniform([2, count], -PAD, PAD + 1, tf.int32))
        return raw[:, 0], compiled(raw, tops, lefts, tf.random.uniform([count]) < 0.5)

    paths = [str(folder / "records.bin")] * RECORDS_TIMES
    records = tf.data.FixedLengthRecordDataset(paths, record_bytes, buffer_size=4 << 20)
    data: Batches = records.shuffle(SHUFFLE_BUFFER).batch(128).map(finish, num_cores()).prefetch(2)
    return data


def _tf_photos(folder: Path) -> Batches:
    """The box alone is decoded, by the fast inverse DCT, and resized without antialias; the rest a
    batch, by XLA."""
    import tensorflow as tf

    def load(path: Any) -> Any:
        jpeg = tf.io.read_file(path)
        start, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(jpeg), tf.zeros([1, 0, 4]), min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        box = tf.concat([start[:2], size[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(jpeg, box, channels=3, dct_method="INTEGER_FAST")
        return tf.ensure_shape(
            tf.image.resize(image, [PHOTO_SIDE, PHOTO_SIDE]), [PHOTO_SIDE, PHOTO_SIDE, 3]
        )

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def finish(images: Any, flip: Any) -> Any:
        images = tf.where(flip[:, None, None, None], tf.reverse(images, [2]), images)
        return (images - PHOTO_MEAN) * (1 / np.asarray(PHOTO_STD, np.float32))

    paths = [str(path) for path in sorted(folder.glob("*/*.jpg"))] * PHOTOS_TIMES
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    batches = files.map(load, num_cores(), deterministic=True).batch(64)
    data: Batches = batches.map(
        lambda images: (finish(images, tf.random.uniform([tf.shape(images)[0]]) < 0.5),), 1
    ).prefetch(1)
    return data

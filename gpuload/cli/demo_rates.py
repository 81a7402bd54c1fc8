"""Rates in the demo: records per second to tf.Tensor, through gpuload and through plain tf.data, on the same work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from gpuload import kernels
from gpuload.cli import demo_data, demo_parity, demo_train
from gpuload.cli.demo_report import Rate

ROUNDS = 3
PHOTO_MEAN, PHOTO_STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
Batches = Iterable[Any]  # of two parts each: images and labels


def measure(
    folder: Path, digits: demo_data.Digits, *, device: str, seconds: float, say: Callable[[str], None]
) -> list[Rate]:
    """Return the rate of each part of the work; each side of each runs for about ``seconds`` in all."""
    from gpuload.bridges import tensorflow as gltf

    normalize = gl.ops.Normalize(mean=PHOTO_MEAN, std=PHOTO_STD)
    works: list[tuple[str, gl.Loader, Batches]] = [
        ("digits in NPY shards: crop, normalise", _rows(demo_data.npy(folder), device), _tf_rows(digits)),
        ("digits in fixed records: crop, normalise", _rows(demo_data.fixed(folder), device), _tf_fixed(folder)),
        (
            "JPEG photographs: crop, resize, flip, normalise",
            demo_parity.photo_loader(folder, seed=1, device=device, ops=(normalize,)),
            _tf_photos(folder),
        ),
    ]
    rates = []
    for work, loader, plain in works:
        say(f"measuring: {work}")
        with loader, kernels.patient():
            ours, theirs = _medians(gltf.tensors(loader), plain, seconds / ROUNDS)
        rates.append(Rate(work, ours, theirs))
    return rates


def _rows(source: Any, device: str) -> gl.Loader:
    return demo_train.digits_loader(source, seed=1, device=device).replace(batch_size=256)


def _medians(ours: Batches, theirs: Batches, seconds: float) -> tuple[float, float]:
    for batches in (ours, theirs):  # the first epoch compiles, opens and fills caches
        _rate(batches, 0.0)
    rounds = [(_rate(ours, seconds), _rate(theirs, seconds)) for _ in range(ROUNDS)]
    return statistics.median(one for one, _ in rounds), statistics.median(other for _, other in rounds)


def _rate(batches: Batches, seconds: float) -> float:
    """Return records per second over whole epochs that together take at least ``seconds``."""
    num_records, began = 0, time.perf_counter()
    while True:
        for _, labels in batches:
            num_records += int(labels.shape[0])
        took = time.perf_counter() - began
        if took >= seconds:
            return num_records / took


def _tf_rows(digits: demo_data.Digits) -> Batches:
    """tf.data has no NPY reader: the rows are held in memory, which is its best case."""
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((digits.images[..., None], digits.labels))
    return _tf_batches(rows, len(digits.labels), _tf_augmented)


def _tf_fixed(folder: Path) -> Batches:
    import tensorflow as tf

    def decode(records: Any) -> tuple[Any, Any]:
        data = tf.io.decode_raw(records, tf.uint8)
        return _tf_augmented(tf.cast(tf.reshape(data[:, 1:], (-1, 8, 8, 1)), tf.float32), data[:, 0])

    paths = sorted(map(str, (folder / "fixed").glob("*.bin")))
    size = np.dtype(demo_data.RECORD).itemsize
    return _tf_batches(tf.data.FixedLengthRecordDataset(paths, size), 1797, decode)


def _tf_batches(records: Any, num_records: int, decode: Callable[..., Any]) -> Batches:
    """Work on whole batches: ten times as fast as tf.data is record by record."""
    import tensorflow as tf

    batches = records.shuffle(num_records).batch(256)
    return _prefetched(batches.map(decode, num_parallel_calls=tf.data.AUTOTUNE))


def _tf_augmented(images: Any, labels: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    padded = tf.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    start = tf.random.uniform((tf.shape(images)[0], 2, 1), 0, 3, tf.int32) + tf.range(8)
    rows = tf.gather(padded, start[:, 0], axis=1, batch_dims=1)
    crop = tf.gather(rows, start[:, 1], axis=2, batch_dims=1)
    return (crop - demo_train.MEAN) / demo_train.STD, labels


def _tf_photos(folder: Path) -> Batches:
    import tensorflow as tf

    def load(path: Any, label: Any) -> tuple[Any, Any]:
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(data), tf.zeros((1, 0, 4)), aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0), use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        window = tf.stack((begin[0], begin[1], size[0], size[1]))
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.resize(image, (demo_parity.PIXELS, demo_parity.PIXELS))
        return (tf.image.random_flip_left_right(image) - PHOTO_MEAN) / PHOTO_STD, label

    paths = sorted((folder / "photos").glob("*/*.jpg"))
    labels = [path.parent.name == "flower" for path in paths]
    files = tf.data.Dataset.from_tensor_slices((list(map(str, paths)), labels)).shuffle(len(paths))
    return _prefetched(files.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(32))


def _prefetched(batches: Any) -> Batches:
    import tensorflow as tf

    prefetched: Batches = batches.prefetch(tf.data.AUTOTUNE)
    return prefetched

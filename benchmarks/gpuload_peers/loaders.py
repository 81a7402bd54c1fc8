"""Plain loaders of other libraries on the same files, as their documentation writes them.

tfdata   NPY rows as one tensor in memory, shuffled whole; images by tf.io; TFRecords without
         parsing
torch    NPY rows from a map, by a DataLoader over batches of records; images by Pillow; as many
         workers as cores
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from gpuload import threads
from gpuload.errors import MissingPackageError, missing_package
from gpuload.sources.base import Source

Loop = Callable[[], Iterable[int]]  # yields the number of records of each batch of an epoch
SIDE = 224
BUFFER = 10_000  # records that tf.data shuffles at a time, where they are not in memory
WARM_UP = 0.2


def measure_peer(
    name: str, source: Source, batch_size: int, shuffled: bool, seconds: float
) -> float | str:
    """Return the records per second of a plain loader; or in words why there is none."""
    try:
        loop = PEERS[name](source, batch_size, shuffled)
    except MissingPackageError as error:
        return f"is not installed: {error.remedy}"
    if loop is None:
        return "has no plain loader for these files here"
    begin, start, count = time.perf_counter(), 0.0, 0
    while True:
        for num_records in loop():
            now = time.perf_counter()
            if not start and now - begin > WARM_UP * seconds:
                start, count = now, 0
            elif start:
                count += num_records
                if now - start > seconds:
                    return count / (now - start)


def _tfdata(source: Source, batch_size: int, shuffled: bool) -> Loop | None:
    os.environ.setdefault(
        "TF_CPP_MIN_LOG_LEVEL", "2"
    )  # no lines about the processor among the figures
    try:
        import tensorflow as tf
    except ImportError as error:
        raise missing_package(
            "tensorflow", needed_for="--against tfdata", extra="cpu", error=error
        ) from None
    paths = list(source.files.paths)

    def decode(path: Any) -> Any:
        pixels = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
        return tf.image.resize(pixels, (SIDE, SIDE))

    if _are_images(source):
        dataset = tf.data.Dataset.from_tensor_slices(paths)
        if shuffled:
            dataset = dataset.shuffle(len(paths))
        dataset = dataset.map(decode, tf.data.AUTOTUNE)
    elif (rows := _rows(source, paths)) is not None:
        dataset = tf.data.Dataset.from_tensor_slices(rows)
        if shuffled:
            dataset = dataset.shuffle(len(rows))
    elif all(path.endswith((".tfrecord", ".tfrecords")) for path in paths):
        dataset = tf.data.TFRecordDataset(paths)
        if shuffled:
            dataset = dataset.shuffle(BUFFER)
    else:
        return None
    dataset = dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)
    return lambda: (int(batch.shape[0]) for batch in dataset)


def _torch(source: Source, batch_size: int, shuffled: bool) -> Loop | None:
    try:
        torch: Any = importlib.import_module("torch")
        torch_data: Any = importlib.import_module("torch.utils.data")
    except ImportError as error:
        raise missing_package(
            "torch", needed_for="--against torch", extra="torch", error=error
        ) from None
    paths = list(source.files.paths)
    if _are_images(source):
        dataset: Any = _ImageFiles(paths)
    else:
        dataset = _rows(source, paths)
    if dataset is None:
        return None
    loader = torch_data.DataLoader(
        # Spawned, as this process has threads of loaders, and a fork may inherit their locks for
        # ever; kept, as otherwise each epoch would start processes anew, and that would be
        # measured.
        dataset, batch_size, shuffle=shuffled, num_workers=threads.num_cores(), multiprocessing_context="spawn",
        collate_fn=None if _are_images(source) else _stack, persistent_workers=True,
    )  # fmt: skip

    def loop() -> Iterator[int]:
        for batch in loader:
            yield len(torch.as_tensor(batch))

    return loop


def _stack(rows: list[Any]) -> Any:
    return np.stack(rows)


class _ImageFiles:
    """Images as float32 ``[3, height, width]``, each read by Pillow."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Any:
        from PIL import Image

        with Image.open(self._paths[number]) as image:
            pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32)


def _are_images(source: Source) -> bool:
    # An image a file; images inside of archives or records have no plain loader here.
    return any(field.encoded for field in source.spec) and len(source.files.paths) == len(source)


def _rows(source: Source, paths: list[str]) -> Any:
    """Return the rows of a single NPY file as a map; None for other files."""
    if len(paths) != 1 or not paths[0].endswith(".npy") or len(source.spec.fields) != 1:
        return None
    rows = np.load(paths[0], mmap_mode="r", allow_pickle=False)
    return rows if len(rows) == len(source) else None


PEERS: dict[str, Callable[[Source, int, bool], Loop | None]] = {"tfdata": _tfdata, "torch": _torch}

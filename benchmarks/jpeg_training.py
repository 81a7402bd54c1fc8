"""How fast do JPEGs come, ready for training (2,000 of about 500 x 375, batches of 64)?

Work     read the file, decode, cut a random box (area 0.08 to 1 of the image, proportions 3/4 to
         4/3), resize it to 224 x 224 (linear), flip with p = 1/2, minus mean, over standard
         deviation: float32 NHWC
Limit    libjpeg-turbo's decode of the same images alone by all cores, one process each, bytes in
         memory; two packages of it are measured, the faster one is the limit
Floor    a thread pool over simplejpeg and OpenCV, hand-written for this work: batches ahead, a task
         an image
Pixels   gpuload: accurate decode, crop, resize with antialias as DALI (its default), and without
         where it says so DALI: the same with its own readers and draws; it decodes the box only, as
         it can tf.data: the fast inverse DCT (its default), decodes the box only, no antialias
         thread pool, torch, Grain: accurate decode of all, OpenCV's linear resize, no antialias
Shuffle  each peer visits every image once a pass in a new whole order
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, forms
from benchmarks.limits import on_all_cores
from benchmarks.machine import cores
from benchmarks.question import Epoch, Peer, Question, Work

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SIDE = 224
AREA, PROPORTIONS, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
BATCHES_AHEAD = 2
NUM_WORKERS = 2
MOST_PIXELS = 600 * 450

Image = NDArray[np.uint8]
Box = tuple[int, int, int, int]

_SCALE = np.tile((1 / np.asarray(STD)).astype(np.float32), SIDE)
_SHIFT = np.tile((-np.asarray(MEAN) / STD).astype(np.float32), SIDE)


def _paths(work: Work) -> list[Path]:
    return sorted(work.path.iterdir())


def simplejpeg_decode(file: bytes) -> Image:
    """Decode to RGB by simplejpeg."""
    import simplejpeg

    return np.asarray(simplejpeg.decode_jpeg(file))


def cv2_decode(file: bytes) -> Image:
    """Decode by OpenCV, to BGR as it comes: RGB would cost more."""
    import cv2

    return np.asarray(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR))


def draw_box(rng: np.random.Generator, height: int, width: int) -> Box:
    """Return top, left, height, width of a random box, as torchvision draws it."""
    low, high = math.log(PROPORTIONS[0]), math.log(PROPORTIONS[1])
    for _ in range(TRIES):
        area = height * width * rng.uniform(*AREA)
        proportion = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(area * proportion)), round(math.sqrt(area / proportion))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def resized(image: Image, rng: np.random.Generator) -> Image:
    """Return a random box of an image, resized by OpenCV and perhaps flipped."""
    import cv2

    top, left, height, width = draw_box(rng, *image.shape[:2])
    box = cv2.resize(
        image[top : top + height, left : left + width], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR
    )
    return np.asarray(cv2.flip(box, 1) if rng.random() < 0.5 else box)


def normalise(image: Image, out: NDArray[np.float32]) -> None:
    """Write the image's values, scaled and shifted, to ``out``; rows of 672 values keep NumPy's
    inner loop long."""
    rows = out.reshape(SIDE, SIDE * 3)
    np.multiply(image.reshape(SIDE, SIDE * 3), _SCALE, out=rows)
    rows += _SHIFT


def _limit_threads() -> None:
    import cv2

    cv2.setNumThreads(1)


def limit(make_decode: Callable[[], Callable[[bytes], Any]]) -> Callable[[Work], Epoch]:
    """Decode alone, from memory."""

    def build(work: Work) -> Epoch:
        files = [path.read_bytes() for path in _paths(work)]
        decode = make_decode()
        _limit_threads()

        def part(core: int, num_cores: int) -> Callable[[], None]:
            own_files = files[core::num_cores]
            return lambda: deque(map(decode, own_files), maxlen=0).clear()

        return on_all_cores(work, part)

    return build


def into_one_buffer() -> Callable[[bytes], Any]:
    """Return simplejpeg's decode into memory that is used again: new memory costs a third of the
    time."""
    import simplejpeg

    buffer = bytearray(MOST_PIXELS * 3)
    return lambda file: simplejpeg.decode_jpeg(file, buffer=buffer)


def threads(work: Work) -> Epoch:
    """A thread a core, a task an image, two batches ahead."""
    _limit_threads()
    paths, rng = _paths(work), np.random.default_rng(0)
    pool = ThreadPoolExecutor(cores())

    def make(record: int, seed: int, out: NDArray[np.float32]) -> None:
        image = simplejpeg_decode(paths[record].read_bytes())
        normalise(resized(image, np.random.default_rng(seed)), out)

    def submit(batch: NDArray[np.int64]) -> tuple[NDArray[np.float32], list[Future[None]]]:
        images = forms.empty(len(batch), SIDE, SIDE, 3)
        seeds = rng.integers(1 << 63, size=len(batch))
        return images, [
            pool.submit(make, *task)
            for task in zip(batch.tolist(), seeds.tolist(), images, strict=True)
        ]

    def epoch() -> Iterator[NDArray[np.float32]]:
        ahead: deque[Any] = deque()
        for batch in [*forms.batches(work, rng), *[None] * BATCHES_AHEAD]:
            if batch is not None:
                ahead.append(submit(batch))
            if ahead and (batch is None or len(ahead) > BATCHES_AHEAD):
                images, tasks = ahead.popleft()
                for task in tasks:
                    task.result()
                yield images

    return forms.handed(work, epoch)


def torch(work: Work) -> Epoch:
    """DataLoader over whole batches, two workers; uint8 crosses to the main process, which
    normalises."""
    import torch

    paths = _paths(work)

    def make(batch: forms.Records) -> Any:
        _limit_threads()
        rng = np.random.default_rng(torch.initial_seed() ^ int(batch[0]))
        images = [resized(simplejpeg_decode(paths[record].read_bytes()), rng) for record in batch]
        return torch.from_numpy(np.stack(images))

    loader = forms.torch_loader(work, make, NUM_WORKERS)
    return forms.handed(work, lambda: map(_normalised, loader))


def _normalised(images: Any) -> NDArray[np.float32]:
    out = forms.empty(*images.shape)
    for image, into in zip(images.numpy(), out, strict=True):
        normalise(image, into)
    return out


def grain(work: Work) -> Epoch:
    """Batches of indices as the source, a batch made by one of Grain's threads."""
    _limit_threads()
    paths = _paths(work)

    def make(batch: forms.Records, rng: np.random.Generator) -> NDArray[np.float32]:
        images = forms.empty(len(batch), SIDE, SIDE, 3)
        for record, out in zip(batch, images, strict=True):
            normalise(resized(simplejpeg_decode(paths[record].read_bytes()), rng), out)
        return images

    return forms.handed(work, forms.grain_epoch(work, make, random=True, batches_ahead=2))


def dali(antialias: bool) -> Callable[[Work], Epoch]:
    """readers.file, decoders.image_random_crop, resize, crop_mirror_normalize."""

    def build(work: Work) -> Epoch:
        from nvidia.dali import fn, pipeline_def, types

        @pipeline_def(batch_size=work.batch_size, num_threads=cores(), device_id=None)  # type: ignore[untyped-decorator]
        def pipeline() -> Any:
            files, _ = fn.readers.file(
                files=[str(path) for path in _paths(work)], shuffle_after_epoch=True
            )
            boxes = fn.decoders.image_random_crop(
                files,
                random_area=list(AREA),
                random_aspect_ratio=list(PROPORTIONS),
                num_attempts=TRIES,
            )
            images = fn.resize(
                boxes, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR, antialias=antialias
            )
            return fn.crop_mirror_normalize(
                images,
                mirror=fn.random.coin_flip(),
                mean=list(MEAN),
                std=list(STD),
                output_layout="HWC",
            )

        return forms.handed(work, forms.dali_reading(pipeline(), work))

    return build


def tfdata(work: Work) -> Epoch:
    """decode_and_crop_jpeg with the fast inverse DCT and a resize an image; flip and normalise a
    batch, by XLA."""
    import tensorflow as tf

    def make(path: Any) -> Any:
        file = tf.io.read_file(path)
        shape = tf.io.extract_jpeg_shape(file)
        start, size, _ = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([1, 0, 4]), min_object_covered=0.0, aspect_ratio_range=PROPORTIONS, area_range=AREA,
            max_attempts=TRIES, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        box = tf.concat([start[:2], size[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(file, box, channels=3, dct_method="INTEGER_FAST")
        return tf.ensure_shape(tf.image.resize(image, [SIDE, SIDE]), [SIDE, SIDE, 3])

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def finish(images: Any, flip: Any) -> Any:
        images = tf.where(flip[:, None, None, None], tf.reverse(images, [2]), images)
        return (images - MEAN) * (1 / np.asarray(STD, np.float32))

    dataset = tf.data.Dataset.from_tensor_slices([str(path) for path in _paths(work)]).shuffle(
        work.num_records
    )
    dataset = dataset.map(make, cores(), deterministic=True).batch(work.batch_size)
    dataset = dataset.map(
        lambda images: finish(images, tf.random.uniform([tf.shape(images)[0]]) < 0.5), 1
    ).prefetch(1)
    return forms.tf_epoch(work, dataset)


def gpuload(executor: str, antialias: bool) -> Callable[[Work], Epoch]:
    """The package measured, on one of its executors."""

    def build(work: Work) -> Epoch:
        import gpuload as gl

        ops = [
            gl.ops.Decode(),
            gl.ops.RandomResizedCrop(SIDE, SIDE, antialias=antialias),
            gl.ops.RandomFlip(),
            gl.ops.Normalize(MEAN, STD),
        ]
        loader = gl.Loader(
            gl.images(work.path, labels=None), batch_size=work.batch_size, shuffle=True, seed=0, ops=ops, device="cpu",
            executor=executor,
        )  # fmt: skip
        return forms.own_form(work, loader, "image")

    return build


_CV2 = ("cv2",)
_CODECS = ("cv2", "simplejpeg")
_TORCH = ("torch", "torch.utils.data")
_GRAIN = "grain.python"
_DALI = ("nvidia.dali", "nvidia.dali.fn")
QUESTION = Question(
    name="jpeg_training",
    asks="2,000 JPEGs of about 500 x 375 to random-resized-crop 224, flip, normalised float32 NHWC, in batches of 64: "
    "how fast do they come?",
    limit="libjpeg-turbo decoding the same images alone, all cores",
    prepare=data.jpegs,
    num_records=(2_000, 80),
    batch_size=64,
    variants=("shuffled", "shuffled-tf"),
    peers=(
        Peer("limit_simplejpeg", limit(into_one_buffer), "simplejpeg into one buffer", _CODECS, role="limit"),
        Peer("limit_cv2", limit(lambda: cv2_decode), "cv2.imdecode", _CV2, role="limit"),
        Peer("threads", threads, "a thread pool over simplejpeg and OpenCV; no antialias", _CODECS, role="floor"),
        Peer("gpuload", gpuload("array", True), "array executor, antialias", ("gpuload",), _CODECS, role="ours"),
        Peer(
            "gpuload_plain", gpuload("array", False), "array executor, no antialias", ("gpuload",), _CODECS, role="ours"
        ),
        Peer(
            "gpuload_dali", gpuload("dali", True), "DALI executor on the CPU, antialias", ("gpuload", *_DALI), _CODECS,
            variants=("shuffled",), role="ours",
        ),
        Peer(
            "gpuload_dali_plain", gpuload("dali", False), "DALI executor on the CPU, no antialias", ("gpuload", *_DALI),
            _CODECS, variants=("shuffled",), role="ours",
        ),
        Peer("torch", torch, "DataLoader, 2 workers, simplejpeg, OpenCV; no antialias", (*_TORCH, *_CODECS)),
        Peer("grain", grain, "batches of indices, simplejpeg, OpenCV, threads; no antialias", (_GRAIN, *_CODECS)),
        Peer("dali", dali(False), "readers.file, image_random_crop, resize; no antialias", _DALI),
        Peer("dali_antialias", dali(True), "readers.file, image_random_crop, resize; antialias", _DALI,
             variants=("shuffled",)),
        Peer("tfdata", tfdata, "decode_and_crop_jpeg, fast DCT, resize; batches by XLA; no antialias", ("tensorflow",)),
    ),
)  # fmt: skip

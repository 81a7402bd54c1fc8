"""How fast do JPEGs come to a GPU, ready for training (2,000 of about 500 x 375, batches of 64)?

Work     read the file, decode, cut a random box (area 0.08 to 1 of the image, proportions 3/4 to
         4/3), resize it to 224 x 224 (linear), flip with p = 1/2, minus mean, over standard
         deviation: float32 NHWC on the GPU
Variants shuffled, and in a loop whose step is a kernel of about 10 ms (shuffled-step)
Limit    a pipeline of DALI as NVIDIA's examples write it, with its best settings: its own reader,
         its own draws, decoded by nvJPEG and by the hardware decoder where there is one, three
         batches ahead, memory for the largest image taken before. The faster one of two counts:
         boxes are decoded alone (`dali`), or whole images (`dali_whole`), as nvImageCodec 0.9.0 is
         reported to end the process at a region on some cards. With a step, the loop over data that
         lies on the GPU already
Floor    a thread pool over simplejpeg and OpenCV on the host (`jpeg_training.threads`), then
         `cupy.asarray`
Ways     of gpuload: `gpuload` decodes by DALI on the GPU, `gpuload_host` by the core on the host,
         with all that is behind the flip in CuPy, `gpuload_dali_host` by the core with DALI behind
         it. `dali_host` is DALI's own decoder on the host, of boxes alone
Pixels   gpuload and DALI: antialias. `gpuload` and `dali_cuda` take no hardware decoder, whose
         pixels differ from those of nvJPEG's kernels; `gpuload_hardware` and `dali_hardware` give
         it all images. torch, torchcodec, tf.data and the floor: no antialias
Shuffle  each peer visits every image once a pass in a new whole order
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data, forms, gpu, jpeg_training
from benchmarks.gpu import STEP, GpuQuestion
from benchmarks.jpeg_training import AREA, MEAN, PROPORTIONS, SIDE, STD, TRIES
from benchmarks.machine import cores
from benchmarks.question import Batch, Epoch, Peer, Work
from gpuload import device

NUM_RECORDS = 2_000
STEP_ROUNDS = 4_000_000
MOST_WORKERS = 16
HARDWARE_LOAD = 0.65  # the share of images for the hardware decoder; DALI's default
QUEUE_DEPTH = 3  # batches ahead; DALI's default is 2

SHUFFLED, LOOP = "shuffled", "shuffled" + STEP


def consumed(build: Callable[[Work], Epoch]) -> Callable[[Work], Epoch]:
    """Return the builder of a loader with the consumer behind it."""
    return lambda work: gpu.consumed(
        work, build(work), STEP_ROUNDS if work.num_records == NUM_RECORDS else 1
    )


def resident(work: Work) -> Epoch:
    """The step alone."""
    return gpu.resident(work, SIDE, SIDE, 3)


def dali(
    hardware_load: float, *, is_whole: bool = False, on_host: bool = False
) -> Callable[[Work], Epoch]:
    """readers.file, decoders.image_random_crop (mixed) and resize, crop_mirror_normalize.

    ``is_whole``: decoders.image and random_resized_crop in place of the two, as some cards refuse
    regions. ``on_host``: the decoder runs on the host, and images are uploaded as they come from
    it.
    """

    def build(work: Work) -> Epoch:
        from nvidia.dali import Pipeline, fn, pipeline_def, types

        settings = {
            "batch_size": work.batch_size,
            "num_threads": cores(),
            "prefetch_queue_depth": QUEUE_DEPTH,
        }
        if (
            "exec_dynamic" in inspect.signature(Pipeline.__init__).parameters
        ):  # not in old containers
            settings["exec_dynamic"] = True
        width, height = (
            int(data.JPEG_WIDTH * data.JPEG_SPREAD),
            int(data.JPEG_HEIGHT * data.JPEG_SPREAD),
        )

        @pipeline_def(device_id=0, **settings)  # type: ignore[untyped-decorator]
        def pipeline() -> Any:
            files, _ = fn.readers.file(files=_paths(work), shuffle_after_epoch=True)
            decoder = {
                "device": "mixed", "hw_decoder_load": hardware_load, "preallocate_width_hint": width,
                "preallocate_height_hint": height,
            }  # fmt: skip
            if on_host:
                decoder = {"device": "cpu"}
            box = {
                "random_area": list(AREA),
                "random_aspect_ratio": list(PROPORTIONS),
                "num_attempts": TRIES,
            }
            resize = {"size": (SIDE, SIDE), "interp_type": types.INTERP_LINEAR, "antialias": True}
            if is_whole:
                images = fn.random_resized_crop(
                    fn.decoders.image(files, **decoder), **box, **resize
                )
            else:
                images = fn.decoders.image_random_crop(files, **box, **decoder)
                images = fn.resize(images.gpu() if on_host else images, **resize)
            return fn.crop_mirror_normalize(
                images,
                mirror=fn.random.coin_flip(),
                mean=list(MEAN),
                std=list(STD),
                output_layout="HWC",
            )

        return _passes(pipeline(), work)

    return build


def _paths(work: Work) -> list[str]:
    return [str(path) for path in sorted(work.path.iterdir())]


def _passes(pipe: Any, work: Work) -> Epoch:
    """Return passes of a pipeline whose reader goes on into the next pass: so does the batch on the
    border."""
    pipe.build()
    cupy = device.cupy()
    spare: list[Any] = []

    def epoch() -> Iterator[Batch]:
        left = work.num_records
        while left > 0:
            if spare:
                images = spare.pop()
            else:
                (outputs,) = pipe.run(
                    cupy.cuda.get_current_stream().ptr
                )  # that stream waits, the host does not
                images = cupy.from_dlpack(outputs.as_tensor())
            if len(images) > left:
                spare.append(images[left:])
            left -= len(images)
            yield images[: len(images) + min(left, 0)]

    return epoch


def gpuload(
    executor: str, *, decode: str = "auto", hardware_load: float = 0.0
) -> Callable[[Work], Epoch]:
    """The package measured, in one of its ways."""

    def build(work: Work) -> Epoch:
        import gpuload as gl

        ops = [
            gl.ops.Decode(hw_decoder_load=hardware_load), gl.ops.RandomResizedCrop(SIDE, SIDE),
            gl.ops.RandomFlip(), gl.ops.Normalize(MEAN, STD),
        ]  # fmt: skip
        loader = gl.Loader(
            gl.images(work.path, labels=None), batch_size=work.batch_size, shuffle=True, seed=0, ops=ops,
            device="gpu", executor=executor, decode=decode, num_threads=cores(),
        )  # fmt: skip
        return forms.own_form(work, loader, "image")

    return build


def bare(work: Work) -> Epoch:
    """All on the host, by a thread a core."""
    return gpu.upload_batches(jpeg_training.threads(work))


def torch(decode: Callable[[], Callable[[str], Any]]) -> Callable[[Work], Epoch]:
    """DataLoader over whole batches, a worker a core; uint8 goes to the GPU, which normalises.

    ``decode`` returns, in a worker, the function of a path that returns its pixels, HWC.
    """

    def build(work: Work) -> Epoch:
        import cv2
        import torch

        paths = _paths(work)

        def make(batch: forms.Records) -> Any:
            cv2.setNumThreads(1)
            torch.set_num_threads(1)
            rng, pixels = np.random.default_rng(torch.initial_seed() ^ int(batch[0])), decode()
            images = [jpeg_training.resized(pixels(paths[record]), rng) for record in batch]
            return torch.from_numpy(np.stack(images))

        loader: Any = forms.torch_loader(work, make, min(MOST_WORKERS, cores()))
        loader.pin_memory = True
        mean, std = (torch.tensor(values, device="cuda") for values in (MEAN, STD))
        return gpu.torch_passes(loader, lambda images: (images.float() - mean) / std)

    return build


def by_simplejpeg() -> Callable[[str], Any]:
    """Return simplejpeg's decoder."""
    return lambda path: jpeg_training.simplejpeg_decode(Path(path).read_bytes())


def by_torchcodec() -> Callable[[str], Any]:
    """Return torchcodec's decoder on the host."""
    decoders = importlib.import_module("torchcodec.decoders")
    return lambda path: np.ascontiguousarray(decoders.decode_jpeg(path).permute(1, 2, 0).numpy())


def tfdata(work: Work) -> Epoch:
    """decode_and_crop_jpeg with the fast inverse DCT and a resize an image; uint8 goes to the GPU,
    the rest by XLA."""
    tf = gpu.tensorflow()

    def make(path: Any) -> Any:
        file = tf.io.read_file(path)
        start, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(file), tf.zeros([1, 0, 4]), min_object_covered=0.0,
            aspect_ratio_range=PROPORTIONS, area_range=AREA, max_attempts=TRIES, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        box = tf.concat([start[:2], size[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(file, box, channels=3, dct_method="INTEGER_FAST")
        image = tf.cast(tf.round(tf.image.resize(image, [SIDE, SIDE])), tf.uint8)
        return tf.ensure_shape(image, [SIDE, SIDE, 3])

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def finish(images: Any) -> Any:
        flip = tf.random.uniform([tf.shape(images)[0]]) < 0.5
        pixels = tf.cast(
            tf.where(flip[:, None, None, None], tf.reverse(images, [2]), images), tf.float32
        )
        return (pixels - MEAN) * (1 / np.asarray(STD, np.float32))

    dataset = tf.data.Dataset.from_tensor_slices(_paths(work)).shuffle(work.num_records)
    dataset = dataset.map(make, cores(), deterministic=True).batch(work.batch_size)
    return gpu.tf_passes(tf, dataset, finish)


_DALI = ("cupy", "nvidia.dali", "nvidia.dali.fn")
_CODECS = ("cv2", "simplejpeg")
_TORCH = ("torch", "torch.utils.data")
_WARM = ("warm",)
QUESTION = GpuQuestion(
    name="gpu_jpeg",
    asks="2,000 JPEGs of about 500 x 375 to random-resized-crop 224, flip, normalised float32 NHWC on a GPU, in "
    "batches of 64; alone, and in a loop whose step is a kernel of about 10 ms (-step): how fast do they come?",
    limit="a hand-written pipeline of DALI on the same GPU; for -step, the same loop over data on the GPU",
    prepare=data.jpegs,
    num_records=(NUM_RECORDS, 160),
    batch_size=64,
    variants=(SHUFFLED, LOOP),
    peers=(
        Peer(
            "dali", consumed(dali(HARDWARE_LOAD)), "readers.file, image_random_crop, resize; hardware decoder", _DALI,
            variants=(SHUFFLED,), role="limit", cache=_WARM,
        ),
        Peer(
            "resident", consumed(resident), "data on the GPU already", ("cupy",), variants=(LOOP,), role="limit",
            cache=_WARM,
        ),
        Peer(
            "dali_loop", consumed(dali(HARDWARE_LOAD)), "readers.file, image_random_crop, resize; hardware decoder",
            _DALI, variants=(LOOP,), cache=_WARM,
        ),
        Peer("dali_cuda", consumed(dali(0.0)), "the same without the hardware decoder", _DALI, cache=_WARM),
        Peer("dali_hardware", consumed(dali(1.0)), "the same with all images for it", _DALI, cache=_WARM),
        Peer(
            "dali_whole", consumed(dali(HARDWARE_LOAD, is_whole=True)),
            "readers.file, decoders.image, random_resized_crop; hardware decoder", _DALI,
            variants=(SHUFFLED,), role="limit", cache=_WARM,
        ),
        Peer(
            "dali_whole_loop", consumed(dali(HARDWARE_LOAD, is_whole=True)), "the same", _DALI, variants=(LOOP,),
            cache=_WARM,
        ),
        Peer(
            "dali_whole_cuda", consumed(dali(0.0, is_whole=True)), "dali_whole without the hardware decoder", _DALI,
            cache=_WARM,
        ),
        Peer(
            "dali_whole_hardware", consumed(dali(1.0, is_whole=True)), "dali_whole with all images for it", _DALI,
            cache=_WARM,
        ),
        Peer(
            "threads", consumed(bare), "a thread pool over simplejpeg and OpenCV, cupy.asarray", ("cupy", *_CODECS),
            role="floor", cache=_WARM,
        ),
        Peer(
            "gpuload", consumed(gpuload("dali")), "executor='dali': DALI decodes on the GPU", ("gpuload", *_DALI),
            role="ours", cache=_WARM,
        ),
        Peer(
            "gpuload_hardware", consumed(gpuload("dali", hardware_load=1.0)),
            "the same, Decode(hw_decoder_load=1)", ("gpuload", *_DALI), cache=_WARM,
        ),
        Peer(
            "gpuload_host", consumed(gpuload("array")), "executor='array': the core decodes, CuPy does the rest",
            ("cupy", "gpuload"), cache=_WARM,
        ),
        Peer(
            "gpuload_dali_host", consumed(gpuload("dali", decode="host")),
            "executor='dali', decode='host': the core decodes, DALI does the rest", ("gpuload", *_DALI),
            cache=_WARM,
        ),
        Peer(
            "dali_host", consumed(dali(0.0, on_host=True)), "dali with its decoder on the host", _DALI,
            cache=_WARM,
        ),
        Peer(
            "torch", consumed(torch(by_simplejpeg)), "DataLoader, up to 16 workers, simplejpeg, OpenCV, pin_memory",
            ("cupy", *_TORCH, *_CODECS), cache=_WARM,
        ),
        Peer(
            "torchcodec", consumed(torch(by_torchcodec)), "the same, torchcodec's decode_jpeg in place of simplejpeg",
            ("cupy", *_TORCH, "torchcodec.decoders", "cv2"), cache=_WARM,
        ),
        Peer(
            "tfdata", consumed(tfdata), "decode_and_crop_jpeg, fast DCT, resize on the host, prefetch_to_device",
            ("cupy", "tensorflow"), cache=_WARM,
        ),
    ),
)  # fmt: skip

"""How each executor decodes image files, whole and by region, beside the array executor and
independent decoders.

Samples  a file of each format that Pillow writes here, of one picture: half of it smooth, half of
         it noise; and files that are named.
Regions  are cut by a random crop behind the decoder, which then decodes no more than the crop
         needs; they are compared with the same cut of the whole image.
Others   Pillow, and OpenCV. Files of 16 bits are rounded to 8 as gpuload does it,
         ``rint(x / 257)``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gpuload_peers.libraries import version_of
from numpy.typing import NDArray

import gpuload as gl
from gpuload.cli.parity_bounds import bound_of, bound_of_executor
from gpuload.cli.parity_ops import EPOCH, SEED, to_host
from gpuload.cli.parity_rows import Comparison, failure, measure
from gpuload.errors import RecordError
from gpuload.ops.bounds import EXACT
from gpuload.sources.base import Source

HEIGHT, WIDTH = 90, 122  # no multiples of 8
REGION = (40, 56)
PARTS = ("whole", "region")  # of a comparison of an image
Pixels = NDArray[np.uint8]

SAMPLES: tuple[
    tuple[str, str, dict[str, Any]], ...
] = (  # title and mode, Pillow's format, its words
    ("JPEG 4:2:0", "JPEG", {"quality": 90, "subsampling": 2}),
    ("JPEG 4:4:4", "JPEG", {"quality": 90, "subsampling": 0}),
    ("JPEG progressive", "JPEG", {"quality": 80, "progressive": True}),
    ("JPEG gray", "JPEG", {"quality": 90}),
    ("JPEG CMYK", "JPEG", {"quality": 90}),
    ("PNG", "PNG", {}),
    ("PNG palette", "PNG", {}),
    ("PNG 16-bit gray", "PNG", {}),
    ("BMP", "BMP", {}),
    ("PNM", "PPM", {}),
    ("TIFF LZW", "TIFF", {"compression": "tiff_lzw"}),
    ("TIFF deflate", "TIFF", {"compression": "tiff_adobe_deflate"}),
    ("WebP lossy", "WEBP", {"quality": 80}),
    ("WebP lossless", "WEBP", {"lossless": True}),
    ("JPEG 2000 lossless", "JPEG2000", {}),
    (
        "JPEG 2000 lossy",
        "JPEG2000",
        {"quality_mode": "dB", "quality_layers": [40], "irreversible": True},
    ),
    ("GIF", "GIF", {}),
    ("AVIF", "AVIF", {"quality": 80}),
)
MODES = {"gray": "L", "CMYK": "CMYK", "palette": "P", "GIF": "P", "16-bit gray": "I;16"}


def picture() -> Pixels:
    """Return a picture, half of it smooth, half of it noise, uint8 ``[HEIGHT, WIDTH, 3]``."""
    rng, (y, x) = np.random.default_rng(2), np.mgrid[:HEIGHT, :WIDTH].astype(float)
    smooth = np.stack(
        [x * 255 / WIDTH, y * 255 / HEIGHT, 127 + 100 * np.sin(x / 9) * np.cos(y / 7)], axis=2
    )
    noise = rng.integers(0, 256, smooth.shape)
    return np.where((x + y < (WIDTH + HEIGHT) / 2)[..., None], smooth, noise).astype(np.uint8)


def samples() -> Iterator[tuple[str, bytes]]:
    """Give a title and a file of each format that Pillow writes here; none without Pillow."""
    if not version_of("Pillow"):
        return
    from PIL import Image

    Image.init()
    for title, form, words in SAMPLES:
        mode = next((mode for word, mode in MODES.items() if title.endswith(word)), "RGB")
        file = io.BytesIO()
        image = Image.fromarray(picture())
        if mode == "I;16":
            # No multiple of 257: the values lie between levels of 8 bits, so rounding shows.
            image = Image.fromarray(picture()[..., 0].astype(np.uint16) * 251)
        elif mode != "RGB":
            image = image.convert(mode)
        try:
            image.save(file, form, **words)
        except (KeyError, OSError):  # this Pillow was built without it
            continue
        yield title, file.getvalue()


def jpegs(count: int, sides: tuple[int, int]) -> list[NDArray[np.uint8]]:
    """Return JPEG files of pictures, half smooth and half noise, of sides between two numbers of
    pixels.

    Subsampling, quality and progressive scans go through all their values.
    """
    from PIL import Image

    rng, files = np.random.default_rng(7), []
    for number in range(count):
        height, width = rng.integers(*sides, 2, endpoint=True).tolist()
        image = Image.fromarray(picture()).resize((width, height))
        file = io.BytesIO()
        image.save(
            file, "JPEG", quality=75 + number % 20, subsampling=number % 3, progressive=number % 5 == 0
        )  # fmt: skip
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    return files


def compare_files(
    paths: Sequence[str], executors: Sequence[tuple[str, str]]
) -> Iterator[Comparison]:
    """Give the comparisons of image files; without any path, samples are made.

    Raises:
        FileError: a file cannot be read.
    """
    for title, source in sources(paths):
        yield from compare_source(title, source, executors)


def sources(paths: Sequence[str]) -> Iterator[tuple[str, Source]]:
    """Give a title and a source of one image file for each path; without any, for each sample.

    Raises:
        FileError: a file cannot be read.
    """
    for path in paths:
        yield f"file {os.path.basename(path)}", gl.images([path], labels=None)
    for title, data in () if paths else samples():
        yield f"file {title}", _source_of(data)


def compare_bytes(
    title: str, data: bytes, executors: Sequence[tuple[str, str]], parts: Sequence[str] = PARTS
) -> Iterator[Comparison]:
    """Give the comparisons of an image file that lies in memory: of the whole image, of a region,
    or of both."""
    yield from compare_source(f"file {title}", _source_of(data), executors, parts)


def _source_of(data: bytes) -> Source:
    """Return the source of one record, which is an image file."""
    content = np.frombuffer(data, np.uint8)

    def read(numbers: Any) -> dict[str, Any]:
        return {"image": [content] * len(numbers)}

    return gl.records(1, read, fields={"image": ("uint8", (None,))}).mark(image="encoded")


def compare_source(
    title: str, source: Source, executors: Sequence[tuple[str, str]], parts: Sequence[str] = PARTS
) -> Iterator[Comparison]:
    """Give the comparisons of one file: libraries, then each executor, whole and by region."""
    data = bytes(source[0]["image"])
    try:
        whole = _decode(source, "array", "cpu")
    except RecordError as error:
        yield failure(title, "array on cpu", "itself", EXACT, error)
        return
    for library, decode in (("Pillow", _by_pillow), ("OpenCV", _by_opencv)):
        if not version_of(library) or "whole" not in parts:
            continue
        bound, against = bound_of(title, library), f"{library} {version_of(library)}"
        try:
            yield measure(title, "array on cpu", against, bound, [whole], [decode(data)])
        except _NotDecodable as error:
            yield failure(title, "array on cpu", against, bound, error, is_refusal=True)
    height, width = (min(side, length) for side, length in zip(REGION, whole.shape, strict=False))
    for name, place in executors:
        party = f"{name} on {place.partition(':')[0]}"
        # For the array executor on a GPU, too, images are decoded on the host, as on a CPU.
        if (name, place) == ("array", "cpu") or name == "dali":
            yield from _compare_executor(
                title, source, whole, (height, width), (name, place), party, parts
            )


def _compare_executor(
    title: str, source: Source, whole: Pixels, region: tuple[int, int], executor: tuple[str, str], party: str,
    parts: Sequence[str],
) -> Iterator[Comparison]:  # fmt: skip
    bound = bound_of_executor(gl.ops.Decode(), party)
    try:
        if party != "array on cpu" and "whole" in parts:
            yield measure(
                title, party, "array on cpu", bound, [_decode(source, *executor)], [whole]
            )
        if "region" not in parts:
            return
        crop = gl.ops.RandomCrop(*region)
        ops = [gl.ops.Decode(), crop]
        with gl.Loader(
            source, 1, ops=ops, seed=SEED, drawn=True, executor=executor[0], device=executor[1]
        ) as loader:
            batch = loader.batch_at(0, EPOCH)
            pixels, (top, left) = (
                to_host(batch["image"])[0],
                batch.drawn["RandomCrop/0"]["start"][0].tolist(),
            )
        window = whole[top : top + region[0], left : left + region[1]]
        yield measure(f"{title}, a region", party, "array on cpu", bound, [pixels], [window])
    except gl.GpuloadError as error:
        # Pillow alone decodes these two; that an executor without it refuses them is no fault.
        yield failure(
            title, party, "array on cpu", bound, error, is_refusal=title.endswith(("GIF", "AVIF"))
        )


def _decode(source: Source, name: str, place: str) -> Pixels:
    with gl.Loader(source, 1, ops=[gl.ops.Decode()], executor=name, device=place) as loader:
        pixels: Pixels = to_host(loader.batch_at(0)["image"][0])
        return pixels


class _NotDecodable(Exception):
    """The library does not decode this file."""


def _by_pillow(data: bytes) -> Pixels:
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data)) as file:
            # gpuload and OpenCV turn an image as EXIF says; Pillow by itself does not.
            image = ImageOps.exif_transpose(file)
            if image.mode.startswith("I;16"):
                return _eight(np.repeat(np.asarray(image)[..., None], 3, axis=2))
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise _NotDecodable(str(error)) from None


def _by_opencv(data: bytes) -> Pixels:
    import cv2

    # Without ANYDEPTH OpenCV cuts 16 bits down to 8 itself, and does not round.
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise _NotDecodable("it does not decode this file")
    return _eight(np.ascontiguousarray(image[..., ::-1]))


def _eight(image: NDArray[Any]) -> Pixels:
    """Return values of 16 bits as 8."""
    if image.dtype == np.uint8:
        return image
    return np.rint(image / 257).astype(np.uint8)

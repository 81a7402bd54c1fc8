"""The demo's real data: scikit-learn's digits and photographs, written in each format that gpuload
reads here.

Below one folder:

    npy/       1,797 digits as float32 rows in NPY shards, no two of which have the same header, and
               their labels
    fixed/     the same digits as fixed-length records: one byte of label, 64 bytes of image
    digits/    the same digits as JPEG files, 32 x 32 pixels, one folder a class
    whole/     the two photographs as they are, 640 x 427
    photos/    pieces of them as JPEG files of about 500 x 375, one folder a photograph
    measured/  small pieces of them in the two formats of the benchmarks: rows.npy, and records.bin
               as CIFAR-10 has them

The pieces in ``photos`` are the first ones of ``benchmarks/jpeg_training.py``, byte for byte; rows
and records have the layout of ``npy_rows.py`` and ``fixed_images.py``, with pixels of the
photographs where those have random numbers.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload.errors import FileError
from gpuload.sources.base import Source

RECORD = [("label", "u1"), ("image", "u1", (8, 8, 1))]
PHOTOGRAPHS = ("china", "flower")
PIECES_SEED, NUM_PIECES = (
    20_261_101,
    256,
)  # of the benchmarks' JPEG files, and how many of their 2,000 are made here
PIECE_PIXELS, PIECE_QUALITY = (500, 375), 90
NUM_BENCHMARK = 20_000  # rows, and records
ROW_PIXELS, CIFAR_PIXELS = (28, 28), (32, 32)
CIFAR = [("label", "u1"), ("image", "u1", (3, *CIFAR_PIXELS))]


@dataclass(frozen=True)
class Shard:
    """How one NPY shard differs from the others: its rows, its header's version, its byte order,
    its axis order."""

    num_rows: int
    version: tuple[int, int]
    big_endian: bool = False
    fortran: bool = False

    def __str__(self) -> str:
        order = f"{'big' if self.big_endian else 'little'}-endian, {'Fortran' if self.fortran else 'C'} order"
        return f"{self.num_rows:>4} rows, NPY {self.version[0]}.{self.version[1]}, {order}"

    def write(self, path: Path, rows: NDArray[Any]) -> None:
        """Write the rows as this shard."""
        rows = rows.astype(rows.dtype.newbyteorder(">" if self.big_endian else "<"))
        with path.open("wb") as file:
            np.lib.format.write_array(
                file, np.asfortranarray(rows) if self.fortran else rows, version=self.version
            )


SHARDS = (
    Shard(500, (1, 0)),
    Shard(397, (2, 0), big_endian=True),
    Shard(0, (1, 0)),
    Shard(600, (3, 0), fortran=True),
    Shard(300, (1, 0), big_endian=True, fortran=True),
)


@dataclass(frozen=True)
class Digits:
    """scikit-learn's digits: float32 ``[1797, 8, 8]`` of 0 to 255, int64 ``[1797]``."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def load_digits() -> Digits:
    """Return the digits, their 17 levels spread over 0 to 255."""
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    pixels = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.float32)
    return Digits(pixels, labels.astype(np.int64))


def write(folder: Path, digits: Digits) -> None:
    """Write everything below ``folder``.

    Raises:
        FileError: the disk is full, say; NumPy's and Pillow's errors do not name the file.
    """
    try:
        _write_npy(folder / "npy", digits)
        _write_fixed(folder / "fixed", digits)
        _write_jpegs(folder / "digits", _digit_images(digits))
        _write_whole(folder / "whole")
        _write_photos(folder / "photos")
        _write_benchmark(folder / "measured")
    except OSError as error:
        raise FileError(
            f"the records of the demo cannot be written to {folder}",
            cause=error.strerror or str(error),
            remedy="make room there, or set TMPDIR to a folder of another disk",
        ) from None


def npy(folder: Path) -> Source:
    """Return the digits of the NPY shards: float32 ``image`` (8, 8), int64 ``label``."""
    images = gl.npy(folder / "npy" / "images-*.npy", field="image")
    return gl.zip(images, gl.npy(folder / "npy" / "labels-*.npy", field="label"))


def fixed(folder: Path) -> Source:
    """Return the digits of the fixed-length records: uint8 ``label``, uint8 ``image`` (8, 8, 1)."""
    return gl.fixed(folder / "fixed" / "digits-*.bin", RECORD)


def digit_jpegs(folder: Path) -> Source:
    """Return the digits of the JPEG files: encoded ``image``, ``label``."""
    return gl.images(folder / "digits")


def whole(folder: Path) -> Source:
    """Return the two photographs as they are: encoded ``image``."""
    return gl.images(folder / "whole", labels=None)


def photos(folder: Path) -> Source:
    """Return the pieces of the photographs: encoded ``image``, ``label``."""
    return gl.images(folder / "photos")


def _write_npy(folder: Path, digits: Digits) -> None:
    folder.mkdir()
    begin = 0
    for number, shard in enumerate(SHARDS):
        rows = slice(begin, begin + shard.num_rows)
        shard.write(folder / f"images-{number}.npy", digits.images[rows])
        shard.write(folder / f"labels-{number}.npy", digits.labels[rows])
        begin += shard.num_rows


def _write_fixed(folder: Path, digits: Digits) -> None:
    folder.mkdir()
    records = np.empty(len(digits.labels), np.dtype(RECORD))
    records["label"] = digits.labels
    records["image"] = digits.images[..., None]
    for number, part in enumerate(np.array_split(records, 3)):
        part.tofile(folder / f"digits-{number}.bin")


def _write_jpegs(folder: Path, images: Iterator[tuple[str, Any]]) -> None:
    for number, (label, image) in enumerate(images):
        (folder / label).mkdir(parents=True, exist_ok=True)
        image.save(folder / label / f"{number:04}.jpg", quality=92)


def _digit_images(digits: Digits) -> Iterator[tuple[str, Any]]:
    from PIL import Image

    for pixels, label in zip(digits.images, digits.labels, strict=True):
        yield (
            str(label),
            Image.fromarray(pixels.astype(np.uint8)).resize((32, 32), Image.Resampling.BICUBIC),
        )


def _write_whole(folder: Path) -> None:
    folder.mkdir()
    for name in PHOTOGRAPHS:
        jpeg = importlib.resources.files("sklearn.datasets.images") / f"{name}.jpg"
        (folder / f"{name}.jpg").write_bytes(jpeg.read_bytes())


def _write_photos(folder: Path) -> None:
    photographs, rng = _photographs(), np.random.default_rng(PIECES_SEED)
    for name in PHOTOGRAPHS:
        (folder / name).mkdir(parents=True)
    for number in range(NUM_PIECES):
        name = PHOTOGRAPHS[number % 2]
        piece = _piece(rng, photographs[name])
        piece.save(
            folder / name / f"{number:04}.jpg", "JPEG", quality=PIECE_QUALITY, subsampling="4:2:0"
        )


def _piece(rng: np.random.Generator, photograph: Any) -> Any:
    """Return a random piece of a photograph, at a size within 15 % of 500 x 375, perhaps
    mirrored."""
    from PIL import Image

    # The order of these draws is that of benchmarks/data.py: another order would make other files.
    share = rng.uniform(0.6, 1.0)
    width, height = int(photograph.width * share), int(photograph.height * share)
    left = rng.integers(photograph.width - width + 1)
    top = rng.integers(photograph.height - height + 1)
    size = (
        int(PIECE_PIXELS[0] * rng.uniform(0.85, 1.15)),
        int(PIECE_PIXELS[1] * rng.uniform(0.85, 1.15)),
    )
    piece = photograph.crop((left, top, left + width, top + height)).resize(
        size, Image.Resampling.BICUBIC
    )
    if rng.random() < 0.5:
        return piece.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return piece


def _write_benchmark(folder: Path) -> None:
    """Write windows of the photographs at a third of their size, where even small ones show
    something."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    small = np.stack([np.asarray(photograph.reduce(3)) for photograph in _photographs().values()])
    label = rng.integers(len(small), size=NUM_BENCHMARK)
    rows = _windows(rng, small.mean(axis=3, dtype=np.float32)[..., None], label, ROW_PIXELS)
    np.save(folder / "rows.npy", rows.reshape(NUM_BENCHMARK, -1))
    records = np.empty(NUM_BENCHMARK, np.dtype(CIFAR))
    records["label"] = label
    records["image"] = _windows(rng, small, label, CIFAR_PIXELS).transpose(0, 3, 1, 2)
    records.tofile(folder / "records.bin")


def _windows(
    rng: np.random.Generator,
    images: NDArray[Any],
    numbers: NDArray[np.int64],
    size: tuple[int, int],
) -> NDArray[Any]:
    """Return a window at a random place of each of the numbered images, [N, height, width, C]."""
    windows = np.lib.stride_tricks.sliding_window_view(images, size, axis=(1, 2))
    tops, lefts = (rng.integers(length, size=len(numbers)) for length in windows.shape[1:3])
    return windows[numbers, tops, lefts].transpose(0, 2, 3, 1)


def _photographs() -> dict[str, Any]:
    from PIL import Image
    from sklearn import datasets

    return {
        name: Image.fromarray(datasets.load_sample_image(f"{name}.jpg")) for name in PHOTOGRAPHS
    }

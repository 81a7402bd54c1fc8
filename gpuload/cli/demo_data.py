"""The demo's real data: scikit-learn's digits and photographs, written in each format that gpuload reads here.

Below one folder:

    npy/      1,797 digits as float32 rows in NPY shards, no two of which have the same header; their labels beside them
    fixed/    the same digits as fixed-length records: one byte of label, 64 bytes of image
    digits/   the same digits as JPEG files, 32 x 32 pixels, one folder a class
    photos/   pieces of the two photographs as JPEG files, one folder a photograph
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload.sources.base import Source

RECORD = [("label", "u1"), ("image", "u1", (8, 8, 1))]
PIECE_PIXELS = (180, 400)  # least and greatest side of a piece of a photograph
NUM_PIECES = 80  # of each photograph


@dataclass(frozen=True)
class Shard:
    """How one NPY shard differs from the others: its rows, its header's version, its byte order, its axis order."""

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
            np.lib.format.write_array(file, np.asfortranarray(rows) if self.fortran else rows, version=self.version)


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
    """Write everything below ``folder``."""
    _write_npy(folder / "npy", digits)
    _write_fixed(folder / "fixed", digits)
    _write_jpegs(folder / "digits", _digit_images(digits))
    _write_jpegs(folder / "photos", _photo_pieces())


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
        yield str(label), Image.fromarray(pixels.astype(np.uint8)).resize((32, 32), Image.Resampling.BICUBIC)


def _photo_pieces() -> Iterator[tuple[str, Any]]:
    from PIL import Image
    from sklearn import datasets

    rng = np.random.default_rng(0)
    for name in ("china", "flower"):
        photo = Image.fromarray(datasets.load_sample_image(f"{name}.jpg"))
        for _ in range(NUM_PIECES):
            width, height = (int(side) for side in rng.integers(*PIECE_PIXELS, size=2))
            left, top = int(rng.integers(photo.width - width)), int(rng.integers(photo.height - height))
            yield name, photo.crop((left, top, left + width, top + height))

"""The data of the questions: made once, from a fixed seed, into a folder that can be deleted.

A folder's or file's name holds what it is, and it gets that name only when it is complete.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import cores

SEED = 20_261_101
ROW_SHAPE = (784,)
FILE_SHAPE = (3, 64, 64)
IMAGE_SHAPE = (3, 32, 32)
FIXED_BYTES = 1 + 3 * 32 * 32
NPY_HEADER_BYTES = 128  # what np.save writes for these shapes; checked when the data is made
EXAMPLE_BYTES = 3 * 32 * 32  # of the image in an Example
NUM_SHARDS = 4
CSV_INTEGERS = ("id", "label")
CSV_NAMES = (*(f"x{number}" for number in range(8)), *CSV_INTEGERS)
JPEG_QUALITY = 90
JPEG_WIDTH, JPEG_HEIGHT, JPEG_SPREAD = 500, 375, 1.15


def npy_rows(folder: Path, num_records: int) -> Path:
    """Return one NPY file of float32 rows of 784."""
    return once(folder / f"rows-{num_records}.npy", lambda path: _write_rows(path, num_records))


def _write_rows(path: Path, num_records: int) -> None:
    rng = np.random.default_rng(SEED)
    header = {"descr": "<f4", "fortran_order": False, "shape": (num_records, *ROW_SHAPE)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        _check_header(file.tell())
        for start in range(0, num_records, 8192):
            count = min(8192, num_records - start)
            rng.random((count, *ROW_SHAPE), dtype=np.float32).tofile(file)


def npy_files(folder: Path, num_records: int) -> Path:
    """Return a folder of NPY files, each one float32 array of 3 x 64 x 64."""
    return once(folder / f"files-{num_records}", lambda path: _write_files(path, num_records))


def _write_files(path: Path, num_records: int) -> None:
    rng = np.random.default_rng(SEED)
    path.mkdir()
    for number in range(num_records):
        with open(path / f"{number:06d}.npy", "wb") as file:
            np.save(file, rng.random(FILE_SHAPE, dtype=np.float32))
            _check_header(file.tell() - int(np.prod(FILE_SHAPE)) * 4)


def npz_files(folder: Path, num_records: int) -> Path:
    """Return the folders stored and deflated of NPZ files: a uint8 image of 3 x 64 x 64, of 16
    levels, and a label."""
    return once(folder / f"npz-{num_records}", lambda path: _write_npz(path, num_records))


def _write_npz(path: Path, num_records: int) -> None:
    rng = np.random.default_rng(SEED)
    for name in ("stored", "deflated"):
        (path / name).mkdir(parents=True)
    for number in range(num_records):
        arrays = {"image": rng.integers(0, 16, FILE_SHAPE, np.uint8), "label": np.int64(number)}
        np.savez(path / "stored" / f"{number:06d}.npz", **arrays)
        np.savez_compressed(path / "deflated" / f"{number:06d}.npz", **arrays)


def _check_header(header_bytes: int) -> None:
    if header_bytes != NPY_HEADER_BYTES:
        raise RuntimeError(
            f"this NumPy writes NPY headers of {header_bytes} bytes, the peers skip {NPY_HEADER_BYTES}"
        )


def fixed_images(folder: Path, num_records: int) -> Path:
    """Return one file of CIFAR-10 style records: a label byte, then 3 x 32 x 32 bytes."""
    return once(folder / f"fixed-{num_records}.bin", lambda path: _write_fixed(path, num_records))


def _write_fixed(path: Path, num_records: int) -> None:
    rng = np.random.default_rng(SEED)
    records = rng.integers(0, 256, (num_records, FIXED_BYTES), dtype=np.uint8)
    records[:, 0] %= 10
    records.tofile(path)


def tfrecords(folder: Path, num_records: int) -> Path:
    """Return a folder of 4 TFRecord shards of Examples (image bytes, a label, 4 floats), each with
    DALI's index."""
    return once(
        folder / f"tfrecords-{num_records}", lambda path: _write_tfrecords(path, num_records)
    )


def _write_tfrecords(path: Path, num_records: int) -> None:
    import google_crc32c

    def masked(data: bytes) -> bytes:
        checksum = google_crc32c.value(data)
        return (((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")

    rng = np.random.default_rng(SEED)
    path.mkdir()
    for shard in range(NUM_SHARDS):
        lines, place = [], 0
        with open(path / f"shard-{shard}.tfrecord", "wb") as file:
            for _ in range(
                num_records * shard // NUM_SHARDS, num_records * (shard + 1) // NUM_SHARDS
            ):
                example = _example(rng)
                length = len(example).to_bytes(8, "little")
                place += file.write(length + masked(length) + example + masked(example))
                lines.append(f"{place - len(example) - 16} {len(example) + 16}\n")
        (path / f"shard-{shard}.idx").write_text("".join(lines), encoding="ascii")


def _example(rng: np.random.Generator) -> bytes:
    """Return a serialized tf.train.Example."""

    def message(number: int, content: bytes) -> bytes:
        size, head = len(content), bytearray([number << 3 | 2])
        while size > 0x7F:
            head.append(size & 0x7F | 0x80)
            size >>= 7
        return bytes([*head, size]) + content

    def feature(key: str, kind: int, values: bytes) -> bytes:
        return message(1, message(1, key.encode()) + message(2, message(kind, message(1, values))))

    return message(
        1,
        feature("image", 1, rng.bytes(EXAMPLE_BYTES))
        + feature("label", 3, bytes([int(rng.integers(10))]))
        + feature("box", 2, rng.random(4, np.float32).tobytes()),
    )


def csv_rows(folder: Path, num_records: int) -> Path:
    """Return a CSV file of 8 floats of 6 decimals and 2 integers a line, with a header."""
    return once(folder / f"lines-{num_records}.csv", lambda path: _write_csv(path, num_records))


def _write_csv(path: Path, num_records: int) -> None:
    rng = np.random.default_rng(SEED)
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write(",".join(CSV_NAMES) + "\n")
        for start in range(0, num_records, 8192):
            count = min(8192, num_records - start)
            floats, integers = (
                rng.normal(size=(count, 8)).round(6),
                rng.integers(0, 10**6, (count, 2)),
            )
            for float_row, integer_row in zip(floats.tolist(), integers.tolist(), strict=True):
                file.write(",".join(map(repr, [*float_row, *integer_row])) + "\n")


def jpegs(folder: Path, num_records: int) -> Path:
    """Return a folder of JPEGs of about 500 x 375, pieces of scikit-learn's two sample
    photographs."""
    return once(folder / f"jpegs-{num_records}", lambda path: _write_jpegs(path, num_records))


def _write_jpegs(path: Path, num_records: int) -> None:
    """All cores encode; the numbers are drawn in the order of the files, whoever encodes them."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(SEED)
    photographs = [np.asarray(image) for image in load_sample_images().images]
    pieces = [draw_piece(rng, photographs[number % 2]) for number in range(num_records)]
    path.mkdir()

    def write(number: int) -> None:
        (path / f"{number:06d}.jpg").write_bytes(pieces[number].encoded(photographs[number % 2]))

    with ThreadPoolExecutor(
        cores()
    ) as pool:  # Pillow resizes and encodes without the interpreter's lock
        list(pool.map(write, range(num_records)))


@dataclass(frozen=True)
class PhotographPiece:
    """A piece of a photograph, at a size of its own.

    Attributes:
        box: left, top, right, bottom in the photograph, pixels.
        size: width and height of the JPEG, pixels.
        is_flipped: from left to right.
    """

    box: tuple[int, int, int, int]
    size: tuple[int, int]
    is_flipped: bool

    def encoded(self, photograph: NDArray[np.uint8]) -> bytes:
        """Return the piece as a JPEG (4:2:0)."""
        from PIL import Image

        image: Any = Image.fromarray(photograph)
        piece = image.crop(self.box).resize(self.size, Image.Resampling.BICUBIC)
        if self.is_flipped:
            piece = piece.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        file = io.BytesIO()
        piece.save(file, "JPEG", quality=JPEG_QUALITY, subsampling="4:2:0")
        return file.getvalue()


def draw_piece(rng: np.random.Generator, photograph: NDArray[np.uint8]) -> PhotographPiece:
    """Return a random piece of a photograph, at a size within 15 % of 500 x 375."""
    share = rng.uniform(0.6, 1.0)
    height, width = (int(side * share) for side in photograph.shape[:2])
    left = int(rng.integers(photograph.shape[1] - width + 1))
    top = int(rng.integers(photograph.shape[0] - height + 1))
    size = (
        int(JPEG_WIDTH * rng.uniform(0.85, JPEG_SPREAD)),
        int(JPEG_HEIGHT * rng.uniform(0.85, JPEG_SPREAD)),
    )
    return PhotographPiece((left, top, left + width, top + height), size, bool(rng.random() < 0.5))


def once(path: Path, write: Callable[[Path], None]) -> Path:
    """Return the path, written first if it is not there; a half-written one never gets the name."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".unfinished")
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        write(unfinished)
        os.sync()  # pages still to be written can neither be dropped nor be ignored by a measurement
        unfinished.rename(path)
    return path

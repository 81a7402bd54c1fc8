"""The limits of a machine with the user's files, measured: storage, memory, image decoding, copies
to a GPU.

Storage   The system is asked to forget up to SAMPLE_BYTES of the files before (posix_fadvise), so
          that they come from storage and not from the page cache. Files that it keeps all the same
          are read faster than any storage.
Threads   A disk may be fastest for one reader, a store in a network for many: the better of both
          counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload import threads
from gpuload.images import decode, head
from gpuload.images.heads.base import HeadError
from gpuload.sources.base import Source
from gpuload.stats import Limits
from gpuload.stats.bottleneck import THREADS_PER_CORE
from gpuload.storage.stores import is_remote

SAMPLE_BYTES, PIECE_BYTES, COPY_BYTES = 1 << 28, 1 << 20, 1 << 26
MOST_FILES = 1000
NUM_IMAGES = 16
NUM_RECORDS = 16  # their size is the number of bytes of a read in random order
READ_AT = getattr(os, "pread", None)  # not on Windows
FORGET = getattr(os, "POSIX_FADV_DONTNEED", None)


def measure_limits(source: Source, *, on_gpu: bool, seconds: float) -> Limits:
    """Return the limits, each measured for so many seconds at most; of an object store none is
    measured."""
    files = [
        path
        for path in source.files.paths[:MOST_FILES]
        if not is_remote(path) and os.path.getsize(path)
    ]
    sequential = random = 0.0
    if files and READ_AT is not None and FORGET is not None:
        sequential = _storage_rate(_pieces(files, PIECE_BYTES), seconds)
        record_bytes = max(1, sum(map(os.path.getsize, files)) // max(len(source), 1))
        random = _storage_rate(_random_pieces(files, min(record_bytes, PIECE_BYTES)), seconds)
    if on_gpu:
        pinned, pageable = _upload_rates(seconds)
    else:
        pinned, pageable = (0.0, 0.0)
    return Limits(
        sequential_bytes=sequential,
        random_bytes=random,
        copy_bytes=_copy_rate(seconds),
        decode_images=_decode_rate(source, seconds),
        pinned_bytes=pinned,
        pageable_bytes=pageable,
    )


def _pieces(files: list[str], piece_bytes: int) -> list[tuple[str, int, int]]:
    """Return pieces of files in their order: path, offset and length."""
    pieces: list[tuple[str, int, int]] = []
    left = SAMPLE_BYTES
    for path in files:
        size = min(os.path.getsize(path), left)
        pieces += [
            (path, begin, min(piece_bytes, size - begin)) for begin in range(0, size, piece_bytes)
        ]
        left -= size
        if left <= 0:
            break
    return pieces


def _random_pieces(files: list[str], piece_bytes: int) -> list[tuple[str, int, int]]:
    """Return pieces at random places of random files."""
    rng, sizes = np.random.default_rng(0), [os.path.getsize(path) for path in files]
    pieces = []
    # By their sizes: each byte is as likely, as records of one size would have it.
    for number in rng.choice(len(files), 4096, p=np.array(sizes) / sum(sizes)).tolist():
        begin = int(rng.integers(0, max(1, sizes[number] - piece_bytes)))
        pieces.append((files[number], begin, min(piece_bytes, sizes[number] - begin)))
    return pieces


def _storage_rate(pieces: list[tuple[str, int, int]], seconds: float) -> float:
    """Return the most bytes per second that storage gives of pieces: to one thread or to many."""
    return max(
        _rate(pieces, seconds / 2, count) for count in (1, THREADS_PER_CORE * threads.num_cores())
    )


def _rate(pieces: list[tuple[str, int, int]], seconds: float, num_threads: int) -> float:
    """Return the bytes per second of reading pieces, which the system has forgotten before, by some
    threads."""
    for path in dict.fromkeys(path for path, _, _ in pieces):
        with _open_file(path) as file, contextlib.suppress(OSError):
            # Pages that are not yet written to storage, or that a program maps, stay: that is
            # advice and no order.
            os.posix_fadvise(file, 0, 0, FORGET or 0)
    next_pieces, begin = iter(pieces), time.perf_counter()  # next() is one step of the interpreter

    def read(_: int) -> int:
        num_bytes = 0
        for path, offset, length in next_pieces:
            with _open_file(path) as file:
                num_bytes += len(os.pread(file, length, offset))
            if time.perf_counter() - begin > seconds:
                break
        return num_bytes

    return sum(threads.parallel_map(read, range(num_threads), num_threads)) / max(
        time.perf_counter() - begin, 1e-9
    )


@contextlib.contextmanager
def _open_file(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def _repeat(work: Callable[[], None], seconds: float) -> float:
    """Return how often some work can be done in a second."""
    # Once before the clock runs: the first time touches new pages and loads libraries.
    work()
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds / 2 or not count:
        work()
        count += 1
    return count / max(time.perf_counter() - begin, now - begin, 1e-9)


def _copy_rate(seconds: float) -> float:
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    return COPY_BYTES * _repeat(lambda: np.copyto(target, source), seconds)


def _decode_rate(source: Source, seconds: float) -> float:
    """Return how many images of the source one thread decodes in a second; 0.0 where it has
    none."""
    names = [field.name for field in source.spec if field.encoded]
    if not names or not len(source):
        return 0.0
    numbers = np.linspace(0, len(source) - 1, min(NUM_IMAGES, len(source))).astype(np.int64)
    # Read before the clock starts: decoding alone is measured.
    images = [
        np.asarray(image) for name in names for image in source.read(numbers, fields=name)[name]
    ]
    images = list(filter(_is_sound, images))
    heads = [head.read(image) for image in images]

    def decode_images() -> None:
        for image, about in zip(images, heads, strict=True):
            decode.decode(image, about, "RGB")

    if images:
        return len(images) * _repeat(decode_images, seconds)
    return 0.0


def _is_sound(image: NDArray[np.uint8]) -> bool:
    """Return True if an image can be decoded; the loop over batches says what is wrong with the
    others."""
    try:
        decode.decode(image, head.read(image), "RGB")
    except (HeadError, decode.ImageError):
        return False
    return True


def _upload_rates(seconds: float) -> tuple[float, float]:
    """Return the bytes per second of copies to the GPU: from page-locked memory, from other
    memory."""

    def rate(host: NDArray[np.uint8]) -> float:
        def upload() -> None:
            devices.upload(host, "gpu:0")
            devices.synchronize("gpu:0")

        return COPY_BYTES * _repeat(upload, seconds)

    return rate(devices.pinned(COPY_BYTES)), rate(np.ones(COPY_BYTES, np.uint8))

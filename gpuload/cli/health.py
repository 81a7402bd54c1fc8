"""``gpuload health``: small epochs of records made in memory, each value of which is checked; it
writes no file.

Rows    images as they are, mirrored at random and normalised.
Images  the same as PNG files, decoded first; left out where nothing is installed that decodes.

Exit status 0 if every record came once and right, 1 if not, 2 if the device, the executor or memory
is not to be had. A container's health check asks this way, and so can anybody.
"""

from __future__ import annotations

import platform
import struct
import time
import zlib
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload.cli.base import Output, verb
from gpuload.errors import MissingPackageError
from gpuload.executors.choose import NAMES
from gpuload.sources.base import Source

NUM_RECORDS, BATCH_SIZE, SIZE = 64, 8, (24, 32, 3)
MEAN, STD = 128.0, 64.0  # powers of two: a normalized byte is exact
DESCRIPTION_LINES = (
    "device:",
    "executor:",
    "decoding:",
    "core:",
    "threads:",
)  # of `Loader.describe`


@verb
@click.option(
    "--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, gpu or gpu:N."
)
@click.option(
    "--executor",
    type=click.Choice(NAMES),
    default="auto",
    show_default=True,
    help="The executor of the ops.",
)
@click.option(
    "--num-threads", type=int, metavar="N", help="Threads of the loader.  [default: the cores]"
)
def command(output: Output, device: str, executor: str, num_threads: int | None) -> int:
    """Run small epochs of records made in memory, and check each value.

    For the health check of a container. The exit status is 1 if a record is lost or wrong.
    """
    start_s = time.perf_counter()
    output.say(
        f"gpuload {gl.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    )
    pixels = _pixels()
    works = {
        "rows": (gl.arrays(image=pixels), ()),
        "images": (
            gl.arrays(image=np.array([png(image) for image in pixels])).mark(image="encoded"),
            (gl.ops.Decode(),),
        ),
    }
    problems: list[str] = []
    results: list[dict[str, Any]] = []
    for name, (source, ops) in works.items():
        try:
            loader = _loader(source, ops, device=device, executor=executor, num_threads=num_threads)
        # A container without a decoder may be one for rows: it is healthy without images.
        except MissingPackageError as error:
            if not ops:
                raise
            output.say(f"{name}: left out, as nothing decodes them here ({error.what})")
            results.append({"name": name, "verdict": "left out", "problems": []})
            continue
        with loader:
            loader_problems = _problems(loader, pixels)
            if loader_problems:
                verdict = "WRONG"
            else:
                verdict = "right"
            output.say(f"{name}: {verdict}, {NUM_RECORDS} records in {len(loader)} steps")
            lines = [
                line
                for line in loader.describe().splitlines()
                if line.startswith(DESCRIPTION_LINES)
            ]
            for line in [*loader_problems, *lines]:
                output.say(f"  {line}")
        problems += loader_problems
        about = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        results.append(
            {"name": name, "verdict": verdict.lower(), "problems": loader_problems, **about}
        )
    duration_s = time.perf_counter() - start_s
    verdict = "not healthy" if problems else "healthy"
    output.say(f"{verdict}, {duration_s:.2f} s")
    output.result(
        is_healthy=not problems, works=results, num_records=NUM_RECORDS, duration_s=duration_s
    )
    return 1 if problems else 0


def _loader(
    source: Source, ops: tuple[Any, ...], *, device: str, executor: str, num_threads: int | None
) -> gl.Loader:
    return gl.Loader(
        source,
        BATCH_SIZE,
        ops=[*ops, gl.ops.RandomFlip(), gl.ops.Normalize(MEAN, STD)],
        shuffle=True,
        device=device,
        executor=executor,
        num_threads=num_threads,
    )


def _problems(loader: gl.Loader, pixels: NDArray[np.uint8]) -> list[str]:
    """Return the faults of an epoch: records that did not come exactly once, values that differ
    from their record."""
    expected = (pixels.astype(np.float32) - MEAN) / STD
    arrivals: list[int] = []
    wrong: list[int] = []
    for batch in loader:
        for record, image in zip(batch.records.tolist(), batch["image"], strict=True):
            # CuPy's word for a copy on the host
            if isinstance(image, np.ndarray):
                values = image
            else:
                values = image.get()
            arrivals.append(record)
            if not any(
                # The flip is drawn: either is right, and no pixel may be in between.
                np.array_equal(values, candidate)
                for candidate in (expected[record], expected[record, :, ::-1])
            ):
                wrong.append(record)
    problems = []
    if sorted(arrivals) != list(range(len(pixels))):
        problems.append(
            f"of {len(pixels)} records {len(set(arrivals))} came, and {len(arrivals)} in all"
        )
    if wrong:
        problems.append(f"{len(wrong)} records have other values than they should have: {wrong}")
    return problems


def _pixels() -> NDArray[np.uint8]:
    """Return images of which no two are equal, and none is its own mirror image."""
    return np.random.default_rng(0).integers(0, 256, (NUM_RECORDS, *SIZE), np.uint8)


def png(image: NDArray[np.uint8]) -> bytes:
    """Return an RGB image as a PNG file (ISO/IEC 15948): 8 bits a channel, rows without a
    filter."""
    height, width, _ = image.shape
    rows = np.insert(
        image.reshape(height, -1), 0, 0, axis=1
    ).tobytes()  # each begins with the number of its filter

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows, 1))
        + chunk(b"IEND", b"")
    )

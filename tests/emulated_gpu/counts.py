"""What a batch costs on a GPU, in calls of CUDA: `python -m tests.emulated_gpu.counts [--only NAME
...] [--ops]`.

Counts   of a whole epoch of each work on the emulated GPU, after one that warms up, divided by its
         batches: kernels launched, uploads and their bytes, uploads from memory that is not pinned
         (each waits for the stream), waits of the host (and how many for the whole device), memory
         taken from CUDA (device or pinned), streams and events made.
Ops      With ``--ops`` also what each op costs: `opcounts`.
Result   ``benchmarks/results/gpu-counts.md`` (``--write``, with all works and ops). ``--check``
         compares with it and fails for a count that grew by more than `TOLERANCE`, for an op of
         more launches than it may have, and for a reduction of CuPy (`opcounts.REDUCTIONS`).
Host     ``--host`` runs the works on a device that does nothing, and prints the processor time of a
         batch, of all threads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import gpuload as gl
from gpuload import device as devices
from gpuload.pipeline import joining
from tests import emulated_gpu, opexamples
from tests.emulated_gpu import opcounts

RESULT = emulated_gpu.HERE.parent.parent / "benchmarks" / "results" / "gpu-counts.md"
WORKS_HEADING, CHANGES_HEADING, OPS_HEADING = "## Works", "## At the start and today", "## Each op"
NUM_BATCHES, WARM_EPOCHS, HOST_EPOCHS = 24, 1, 10
# A count may grow by a tenth of itself and by this. How far ahead the loader is when an epoch ends
# varies; on a busy machine more memory and more events are in flight at once.
TOLERANCE = 0.1
SLACK = {"allocations": 2.0, "streams and events": 2.0}
LEAST_SLACK = 0.25

COLUMNS = {
    "launches": ("cuLaunchKernel",),
    "uploads": ("uploads",),
    "of them pageable": ("pageable uploads",),
    "KB uploaded": ("uploaded bytes",),
    "waits": (
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaDeviceSynchronize",
        "cudaMemcpy",
    ),
    "of them for the whole device": ("cudaDeviceSynchronize",),
    "allocations": ("cudaMalloc", "cudaHostAlloc"),
    "streams and events": (
        "cudaStreamCreate",
        "cudaStreamCreateWithFlags",
        "cudaEventCreate",
        "cudaEventCreateWithFlags",
    ),
}
BYTES = "KB uploaded"
# Before the lane was made for few calls (2026-11-22), counted in the same way.
AT_THE_START = {
    "Resize": {"launches": 576, "uploads": 352},
    "RandomResizedCrop": {"launches": 576, "uploads": 352},
    "CIFAR-10 chain: transpose, crop, flip, normalise": {"launches": 33, "uploads": 5.5},
    "rows of 3 KiB": {"uploads": 1},
    "rows, handed over by DLPack that names a stream (torch)": {
        "of them for the whole device": 0.1
    },
    "rows, handed over by DLPack without a stream (JAX, TensorFlow)": {
        "of them for the whole device": 0.1
    },
    "OneHot, a checked op": {"waits": 1, "streams and events": 1},
}
Counts = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Work:
    """One kind of batch.

    Args:
        batch_size: records.
        source: returns the source of a number of records, in a folder.
        ops: of the loader.
        take: what the consumer does with a batch.
        stays: True if what comes before the first random op stays in the GPU's memory.
    """

    batch_size: int
    source: Callable[[Path, int], Any]
    ops: tuple[Any, ...] = ()
    take: Callable[[Any], Any] = lambda batch: None
    stays: bool = False


def rows(folder: Path, number: int) -> Any:
    """Rows of 3136 bytes in an NPY file."""
    np.save(folder / "rows.npy", np.random.default_rng(0).random((number, 784), np.float32))
    return gl.npy(folder / "rows.npy")


def cifar(folder: Path, number: int) -> Any:
    """Records of the CIFAR-10 binary version."""
    random = np.random.default_rng(0)
    records = np.zeros(number, [("label", "u1"), ("image", "u1", (3, 32, 32))])
    records["image"] = random.integers(0, 256, records["image"].shape, np.uint8)
    records["label"] = random.integers(0, 10, number)
    records.tofile(folder / "cifar.bin")
    return gl.fixed(folder / "cifar.bin", [("label", "u1"), ("image", "u1", (3, 32, 32))])


def images(folder: Path, number: int) -> Any:
    """Images of one size, in memory."""
    return gl.arrays(image=np.random.default_rng(0).integers(0, 256, (number, 48, 64, 3), np.uint8))


def images_of_many_sizes(folder: Path, number: int) -> Any:
    """Images of 16 sizes, each in an NPY file."""
    random = np.random.default_rng(0)
    for i in range(number):
        np.save(folder / f"{i:05}.npy", random.integers(0, 256, (40 + i % 16, 64, 3), np.uint8))
    return gl.npy(folder / "*.npy", record="file", field="image")


def files_of_images(folder: Path, number: int) -> Any:
    """JPEG files of some sizes about 64 x 64 pixels."""
    random = np.random.default_rng(0)
    for i in range(number):
        image = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).resize(
            (64 + i % 5, 60 + i % 7)
        )
        image.save(folder / f"{i:05}.jpg")
    return gl.images(folder, labels=None)


def labelled_images(folder: Path, number: int) -> Any:
    """Images of one size, and class numbers, in memory."""
    return gl.zip(images(folder, number), labels(folder, number))


def labels(folder: Path, number: int) -> Any:
    """Class numbers."""
    return gl.arrays(label=np.arange(number) % 10)


def sentences(folder: Path, number: int) -> Any:
    """Lists of 1 to 32 numbers."""
    lengths = np.random.default_rng(0).integers(1, 33, number)
    return gl.records(
        number, lambda places: {"tokens": [np.arange(lengths[i], dtype=np.int32) for i in places]}
    )


def by_dlpack(batch: Any) -> None:
    """Hand the arrays of a batch to a library that names no stream, and let go of them."""
    for name in batch.keys():  # noqa: SIM118  # a batch iterates over its parts
        batch[name].__dlpack__()


def by_stream(batch: Any) -> None:
    """Hand the arrays of a batch to a library that reads them on the stream which it names, and let
    go of them."""
    for name in batch.keys():  # noqa: SIM118
        devices.stream_export(batch[name]).__dlpack__(stream=THE_NULL_STREAM)


CHAIN = (
    gl.ops.Transpose("HWC"), gl.ops.RandomCrop(32, 32, pad=4), gl.ops.RandomFlip(),
    gl.ops.Normalize((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
)  # fmt: skip
SIZED = (gl.ops.Decode(), gl.ops.RandomResizedCrop(64, 64), gl.ops.RandomFlip())
NORMALIZE = gl.ops.Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))
JITTER = gl.ops.ColorJitter(0.4, 0.4, 0.4)
THE_NULL_STREAM = 1  # as torch names it in DLPack

WORKS = {
    "rows of 3 KiB": Work(256, rows),
    "CIFAR-10 records": Work(256, cifar),
    "CIFAR-10 chain: transpose, crop, flip, normalise": Work(256, cifar, CHAIN),
    "resident CIFAR chain: the records lie on the GPU": Work(256, cifar, CHAIN, stays=True),
    "Resize": Work(16, images, (gl.ops.Resize(24, 24),)),
    "RandomResizedCrop": Work(16, images, (gl.ops.RandomResizedCrop(24, 24),)),
    "Resize of images of many sizes": Work(16, images_of_many_sizes, (gl.ops.Resize(24, 24),)),
    "files of images, decoded, cropped, flipped": Work(16, files_of_images, SIZED),
    "the same, Normalize": Work(16, files_of_images, (*SIZED, NORMALIZE)),
    "the same, ColorJitter, Normalize": Work(16, files_of_images, (*SIZED, JITTER, NORMALIZE)),
    "the same, ColorJitter, RandAugment, Normalize": Work(
        16, files_of_images, (*SIZED, JITTER, gl.ops.RandAugment(), NORMALIZE)
    ),
    "files of images, decoded": Work(16, files_of_images, (gl.ops.Decode(),)),
    "files of images, decoded, ColorJitter": Work(16, files_of_images, (gl.ops.Decode(), JITTER)),
    "OneHot, a checked op": Work(256, labels, (gl.ops.OneHot(10, on="label"),)),
    "images and labels: ColorJitter, OneHot, MixUp": Work(
        16, labelled_images, (JITTER, gl.ops.OneHot(10), gl.ops.MixUp())
    ),
    "values of varying length": Work(256, sentences),
    "rows, handed over by DLPack that names a stream (torch)": Work(256, rows, take=by_stream),
    "rows, handed over by DLPack without a stream (JAX, TensorFlow)": Work(
        256, rows, take=by_dlpack
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 0, or 1 if a count grew."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.emulated_gpu.counts", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="works whose names contain one of these"
    )
    parser.add_argument("--ops", nargs="*", metavar="NAME", help="these ops, too, or all of them")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--check", action="store_true", help=f"compare with {RESULT.name}")
    parser.add_argument(
        "--host", action="store_true", help="processor time of a batch in place of counts"
    )
    options = parser.parse_args(arguments)
    if (why := emulated_gpu.problem()) is not None:
        sys.exit(why)
    emulated_gpu.install(idle=options.host)
    joining.GROUP_S = 60.0  # on a busy machine, too, as many steps are done together
    works = {
        name: work
        for name, work in WORKS.items()
        if not options.only or any(part in name for part in options.only)
    }
    if options.host:
        for name, work in works.items():
            print(
                f"{host_us(work):8.0f} us of processor time a batch of {work.batch_size}: {name}",
                flush=True,
            )
        return 0
    counts = {name: count(work) for name, work in works.items()}
    print(table(counts), end="")
    has_ops = options.ops is not None or options.write
    ops = opcounts.count(options.ops or opexamples.NAMES) if has_ops else {}
    print(ops_table(ops), end="")
    if options.write:
        if options.only or options.ops:
            parser.error("--write takes all works and all ops")
        RESULT.write_text(page(counts, ops), encoding="utf-8")
    growth = opcounts.above(ops)
    if options.check:
        before, ops_before = read(RESULT.read_text(encoding="utf-8"))
        growth += grown(counts, before) + grown(ops, ops_before) + opcounts.reductions()
    for line in growth:
        print(line)
    return 1 if growth else 0


def count(work: Work) -> dict[str, float]:
    """Return how much of each column a batch costs."""
    with tempfile.TemporaryDirectory() as folder, _loader(work, Path(folder)) as loader:
        for _ in range(WARM_EPOCHS):
            _run(work, loader)
        before = emulated_gpu.calls()
        _run(work, loader)
        since = emulated_gpu.since(before)
    totals = {
        column: sum(since.get(name, 0) for name in names) for column, names in COLUMNS.items()
    }
    totals[BYTES] /= 1000
    return {column: round(total / NUM_BATCHES, 1) for column, total in totals.items()}


def host_us(work: Work) -> float:
    """Return the processor time of a batch, microseconds."""
    with tempfile.TemporaryDirectory() as folder, _loader(work, Path(folder)) as loader:
        _run(work, loader)
        start = time.process_time()
        for _ in range(HOST_EPOCHS):
            _run(work, loader)
        return (time.process_time() - start) / HOST_EPOCHS / NUM_BATCHES * 1e6


def _loader(work: Work, folder: Path) -> Any:
    source = work.source(folder, work.batch_size * NUM_BATCHES)
    loader = gl.Loader(
        source, work.batch_size, ops=work.ops, shuffle=True, seed=1, device="gpu", executor="array"
    )
    return loader.cache(device=True) if work.stays else loader


def _run(work: Work, loader: Any) -> None:
    for batch in loader:
        work.take(batch)
        del batch


def table(counts: Counts) -> str:
    """Return the counts of works as a table of Markdown."""
    rows = {
        name: [str(WORKS[name].batch_size), name, *_texts(row, COLUMNS)]
        for name, row in counts.items()
    }
    return _table(["a batch of", "work", *COLUMNS], rows.values())


def ops_table(ops: Counts) -> str:
    """Return the counts of ops as a table of Markdown, empty without ops."""
    columns = list(dict.fromkeys(column for row in ops.values() for column in row))
    return _table(
        ["images", "op", *columns],
        [["64", name, *_texts(row, columns)] for name, row in ops.items()],
    )


def changes_table(counts: Counts) -> str:
    """Return how counts changed since the start as a table of Markdown."""
    rows = [
        [str(WORKS[name].batch_size), name, column, _text(before), _text(counts[name][column])]
        for name, row in AT_THE_START.items()
        for column, before in row.items()
    ]
    return _table(["a batch of", "work", "count", "at the start", "today"], rows)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---:", "---", *("---:" for _ in head[2:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) if len(head) > 2 else ""


def _texts(row: dict[str, float], columns: Iterable[str]) -> list[str]:
    return [_text(row[column]) if column in row else "" for column in columns]


def _text(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def page(counts: Counts, ops: Counts) -> str:
    """Return the text of the results file."""
    return f"""# What a batch costs on a GPU, in calls of CUDA

Counted with the real CuPy on the emulated GPU (`tests/emulated_gpu`), which knows no times; the machine
does not matter. `make emulated-gpu` compares with these tables; `python -m tests.emulated_gpu.counts --write` renews
them.

{WORKS_HEADING}

Array executor, whole epochs, a mean over their batches.

{table(counts)}
{CHANGES_HEADING}

The counts that were too large when they were first counted.

{changes_table(counts)}
{OPS_HEADING}

{opcounts.ABOUT}

{ops_table(ops)}"""


def read(text: str) -> tuple[Counts, Counts]:
    """Return the counts of works and of ops of a results file."""
    works, _, rest = text.partition(CHANGES_HEADING)
    return _read_table(works), _read_table(rest.partition(OPS_HEADING)[2])


def _read_table(text: str) -> Counts:
    lines = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    columns = lines[0][2:] if lines else []
    return {
        line[1]: {
            column: float(cell) for column, cell in zip(columns, line[2:], strict=True) if cell
        }
        for line in lines[2:]
    }


def grown(counts: Counts, before: Counts) -> list[str]:
    """Return a line for each count that is larger than it was."""
    return [
        f"{name}: {column} {row[column]:g} a batch, before {before[name][column]:g}"
        for name, row in counts.items()
        for column in row
        if column in before.get(name, {}) and row[column] > _most(column, before[name][column])
    ]


def _most(column: str, before: float) -> float:
    return before * (1 + TOLERANCE) + SLACK.get(column, LEAST_SLACK)


if __name__ == "__main__":
    sys.exit(main())

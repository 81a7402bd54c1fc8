"""Are the lanes to a GPU right? `python -m benchmarks.gpu_right WHAT --result FILE` (`make gpu-test`).

lanes   JPEGs of many sizes through lists of ops, in each lane beside the CPU's batches, two epochs. The lanes in which
        the core decodes must be equal to the last bit. Where nvJPEG decodes, the mean difference of bytes is bounded,
        as DALI's own tests bound it
audit   each lane with every record audited: a difference is an error that names the record
poison  the memory that a lane takes was filled with a pattern before: what a decoder does not write is seen. And
        decoders of DALI that had other images in their memory just before, for each share of the hardware decoder
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import gpu, gpu_parity
from benchmarks.gpu_parity import Difference, Result
from gpuload import device as devices

ABOUT = (
    "Batches of each lane beside those of the CPU; differences are in units of the values, levels of 255 for bytes. "
    "array: the core decodes, CuPy does the rest. dali, host: the core decodes, DALI does the rest. dali: DALI decodes."
)
COLUMNS = ("what", "beside", "values that differ", "largest", "mean", "")

SIDE, BATCH, NUM_IMAGES, NUM_SHORT = 96, 16, 200, 24
MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
PATTERN = 0xA5
MOST_PROBLEMS = 20

# Keyword arguments of a loader; whether nvJPEG decodes, whose pixels are others.
LANES: dict[str, tuple[dict[str, str], bool]] = {
    "array": ({"executor": "array"}, False),
    "dali, host": ({"executor": "dali", "decode": "host"}, False),
    "dali": ({"executor": "dali"}, True),
}


def lists_of_ops() -> dict[str, list[Any]]:
    """Return lists of ops by name: what trainings do to images."""
    import gpuload as gl

    o = gl.ops
    cut = [o.Decode(), o.RandomResizedCrop(SIDE, SIDE), o.RandomFlip()]
    return {
        "bytes": cut,
        "normalised": [*cut, o.Normalize(MEAN, STD)],
        "normalised, CHW": [*cut, o.Normalize(MEAN, STD), o.Transpose("CHW")],
        "colour": [*cut, o.ColorJitter(0.4, 0.4, 0.4, 0.1), o.Normalize(MEAN, STD)],
        "RandAugment": [*cut, o.RandAugment(), o.Normalize(MEAN, STD)],
        "resized": [o.Decode(), o.Resize(SIDE + 16, SIDE + 16), o.RandomCrop(SIDE, SIDE), o.Erasing()],
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the rows; the exit status is 1 if something is wrong."""
    options = gpu.part_options("gpu_right", "what", WHATS, arguments)
    rows: list[list[str]] = []
    problems: list[str] = []
    for more_rows, more_problems in WHATS[options.what](options.smoke):
        rows += more_rows
        problems += more_problems
        gpu.write_rows(options.result, rows, problems)
    print(*problems[:MOST_PROBLEMS], sep="\n")
    return 1 if problems else 0


def lanes(is_short: bool) -> Iterator[Result]:
    """Compare each lane with the CPU's batches."""
    with tempfile.TemporaryDirectory() as folder:
        source = _pictures(Path(folder), is_short)
        for lane in _present_lanes():
            for name, ops in lists_of_ops().items():
                yield _compared(source, name, ops, lane)
    yield _absent_lanes(), []


def audit(is_short: bool) -> Iterator[Result]:
    """Have every record of each lane audited."""
    with tempfile.TemporaryDirectory() as folder:
        source = _pictures(Path(folder), is_short)
        for lane in _present_lanes():
            arguments, is_nvjpeg = LANES[lane]
            name = "bytes" if is_nvjpeg else "colour"
            with _loader(source, lists_of_ops()[name], device="gpu", audit=1.0, **arguments) as loader:
                yield _audited(loader, f"{name}, lane {lane}")
    yield _absent_lanes(), []


def poison(is_short: bool) -> Iterator[Result]:
    """Compare batches whose memory was full of a pattern before, and decoders that had other images in it."""
    with tempfile.TemporaryDirectory() as folder:
        source = _pictures(Path(folder), is_short)
        for lane in _present_lanes():
            for name in ("bytes", "colour"):
                with filled_memory():
                    yield _compared(source, name, lists_of_ops()[name], lane, note=f"memory of {PATTERN:#x} before")
    if "dali" in _present_lanes():
        for load in gpu_parity.LOADS:
            yield _stale(load, 6 if is_short else gpu_parity.NUM_JPEGS)
    yield _absent_lanes(), []


def _present_lanes() -> list[str]:
    """Return the lanes that can be tried here."""
    has_dali = not gpu.absent(["gpuload.executors.dali"])
    return [name for name in LANES if has_dali or name == "array"]


def _absent_lanes() -> list[list[str]]:
    """Return a row for each lane that cannot be tried here."""
    reasons = gpu.absent(["gpuload.executors.dali"])
    names = [name for name in LANES if name != "array"] if reasons else []
    return [[f"lane {name}", "-", "-", "-", "-", "; ".join(reasons.values())] for name in names]


def _pictures(folder: Path, is_short: bool) -> Any:
    """Return a source of JPEGs of many sizes."""
    import gpuload as gl

    for number in range(NUM_SHORT if is_short else NUM_IMAGES):
        height, width = 120 + 13 * number % 160, 130 + 29 * number % 210
        gpu_parity.jpeg(number, height, width).tofile(folder / f"{number:04}.jpg")
    return gl.images(folder, labels=None)


def _loader(source: Any, ops: Sequence[Any], **arguments: Any) -> Any:
    import gpuload as gl

    return gl.Loader(source, BATCH, ops=ops, shuffle=True, seed=5, output="image", **arguments)


def _compared(source: Any, name: str, ops: Sequence[Any], lane: str, note: str = "") -> Result:
    """Return the row of two epochs of a lane beside the CPU's, and what is wrong."""
    arguments, is_nvjpeg = LANES[lane]
    difference, subject = Difference(), f"{name}, lane {lane}"
    try:
        with (
            _loader(source, ops, device="cpu") as expected,
            _loader(source, ops, device="gpu", **arguments) as loader,
        ):
            for epoch in range(2):
                note = note or _decoding(loader)
                for batch, meaning in zip(loader.epoch(epoch), expected.epoch(epoch), strict=True):
                    difference.add(_on_host(batch.output), meaning.output)
    except Exception as error:  # the page names it, and the others go on
        return [], [f"{subject}: {type(error).__name__}: {' '.join(str(error).split())[:400]}"]
    is_bytes = "Normalize" not in {type(op).__name__ for op in ops}
    problems = _wrong(subject, difference, is_nvjpeg=is_nvjpeg, is_bytes=is_bytes)
    return [difference.row(subject, "the CPU's batches", note)], problems


def _decoding(loader: Any) -> str:
    """Return where images are decoded, and by what, as the loader describes it; without the reason."""
    lines = [line for line in loader.describe().splitlines() if line.startswith("decoding:")]
    return "".join(lines).removeprefix("decoding:").rpartition(" (")[0].strip()


def _wrong(subject: str, difference: Difference, *, is_nvjpeg: bool, is_bytes: bool) -> list[str]:
    """Return what is wrong with a difference."""
    from gpuload.cli.demo_parity import MEAN_ON_GPU

    if is_nvjpeg:
        if is_bytes and difference.mean > MEAN_ON_GPU:
            return [f"{subject}: the mean is {difference.mean:.3f} levels, the bound {MEAN_ON_GPU:g}"]
        return []
    if difference.num_different:
        share = difference.num_different / difference.num_values
        return [f"{subject}: {share:.4%} of the values differ, the largest by {difference.largest:g}; none may"]
    return []


def _audited(loader: Any, subject: str) -> Result:
    """Return the row of an epoch in which every record is audited."""
    count = 0
    try:
        for batch in loader:
            count += len(batch.output)
    except Exception as error:
        return [], [f"{subject}, audited: {type(error).__name__}: {' '.join(str(error).split())[:400]}"]
    row = [subject, "the audit of every record", "none beyond its bound", "-", "-", f"{count:,} records"]
    return [row], []


@contextmanager
def filled_memory() -> Iterator[None]:
    """Have all memory that CuPy takes, and all that is page-locked, filled with a pattern before it is used."""
    cupy, pinned = devices.cupy(), devices.pinned
    pool = cupy.get_default_memory_pool()

    def allocate(num_bytes: int) -> Any:
        memory = pool.malloc(num_bytes)
        memory.memset_async(PATTERN, num_bytes, cupy.cuda.get_current_stream())
        return memory

    def allocate_pinned(num_bytes: int) -> NDArray[np.uint8]:
        memory = pinned(num_bytes)
        memory[...] = PATTERN
        return memory

    cupy.cuda.set_allocator(allocate)
    devices.pinned = allocate_pinned
    try:
        yield
    finally:
        devices.pinned = pinned
        cupy.cuda.set_allocator(pool.malloc)


def _stale(load: float, num_jpegs: int) -> Result:
    """Return the row of a decoder of DALI that has decoded other images just before."""
    files = [gpu_parity.jpeg(number) for number in range(num_jpegs)]
    others = [gpu_parity.jpeg(1000 + number) for number in range(num_jpegs)]
    difference = Difference()
    behind = gpu_parity.decode([*others, *files], "mixed", load, num_jpegs)[num_jpegs:]
    difference.add(behind, gpu_parity.decode(files, "mixed", load, num_jpegs))
    subject = f"nvJPEG, hw_decoder_load={load}, behind other images"
    is_ours = load in gpu_parity.LOADS_OF_GPULOAD
    problems = [f"{subject}: pixels differ from those of a new decoder"] if difference.num_different and is_ours else []
    return [difference.row(subject, "a new decoder")], problems


def _on_host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.get()


WHATS: dict[str, Callable[[bool], Iterator[Result]]] = {"lanes": lanes, "audit": audit, "poison": poison}


if __name__ == "__main__":
    sys.exit(main())

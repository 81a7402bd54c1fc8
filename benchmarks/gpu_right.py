"""Are the ways to a GPU right? `python -m benchmarks.gpu_right WHAT --result FILE`
(`make gpu-test`).

ways    JPEGs of many sizes through lists of ops, in each way beside the CPU's batches, two epochs:
        within the bounds that the ops state for who runs them. What the core does on the host must
        be equal to the last bit. Where nvJPEG decodes, the mean difference of the bytes of each
        image is bounded: an image that it skips is seen
audit   each way with every record audited: a difference is an error that names the record
poison  the memory that a way takes was filled with a pattern before: what a decoder does not write
        is seen. And decoders of DALI that had other images in their memory just before, for each
        share of the hardware decoder
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import gpu, gpu_parity
from benchmarks.gpu_parity import Difference, Result
from gpuload import device as devices
from gpuload.device import copies
from gpuload.executors.differences import axes_of, bounds_of, difference
from gpuload.graph.graph import compile_ops
from gpuload.ops.bounds import Bound

ABOUT = (
    "Batches of each way beside those of the CPU; differences are in units of the values, levels of 255 for bytes. "
    "array: the core decodes, CuPy does the rest. dali, host: the core decodes, DALI does the rest. dali: DALI decodes."
)
COLUMNS = ("what", "beside", "values that differ", "largest", "mean", "")

SIDE, BATCH, NUM_IMAGES, NUM_SHORT = 96, 16, 200, 24
MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
PATTERN = 0xA5
MEAN_OF_IMAGE = 4.0  # levels: nvJPEG rounds otherwise, by less than one in the mean; another image is 30 and more away
MOST_PROBLEMS = 20

WAYS = {  # arguments of a loader
    "array": {"executor": "array"},
    "dali, host": {"executor": "dali", "decode": "host"},
    "dali": {"executor": "dali"},
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
        "resized": [
            o.Decode(),
            o.Resize(SIDE + 16, SIDE + 16),
            o.RandomCrop(SIDE, SIDE),
            o.Erasing(),
        ],
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the rows; the exit status is 1 if something is wrong."""
    options = gpu.part_options("gpu_right", "what", WHATS, arguments)
    rows: list[list[str]] = []
    problems: list[str] = []
    results = WHATS[options.what](options.smoke)
    for more_rows, more_problems in itertools.chain(results, [(_absent_ways(), [])]):
        rows += more_rows
        problems += more_problems
        gpu.write_rows(options.result, rows, problems)
    print(*problems[:MOST_PROBLEMS], sep="\n")
    return 1 if problems else 0


def ways(is_short: bool) -> Iterator[Result]:
    """Compare each way with the CPU's batches."""
    for source, name, way in _cases(is_short, lists_of_ops()):
        yield _compared(source, name, way)


def audit(is_short: bool) -> Iterator[Result]:
    """Have every record of each way audited."""
    for source, name, way in _cases(is_short, ("bytes", "colour")):
        yield _audited(source, name, way)


def poison(is_short: bool) -> Iterator[Result]:
    """Compare batches whose memory was full of a pattern before, and decoders of other images."""
    for source, name, way in _cases(is_short, ("bytes", "colour")):
        with filled_memory():
            result = _compared(source, name, way, note=f"memory of {PATTERN:#x} before")
        yield result
    if "dali" in _present_ways():
        for load in gpu_parity.LOADS:
            yield _stale(load, 6 if is_short else gpu_parity.NUM_JPEGS)


def _cases(is_short: bool, names: Iterable[str]) -> Iterator[tuple[Any, str, str]]:
    """Yield a source of images, the name of a list of ops and a way, for each way of here."""
    with tempfile.TemporaryDirectory() as folder:
        source = _pictures(Path(folder), is_short)
        for way, name in itertools.product(_present_ways(), names):
            yield source, name, way


def _present_ways() -> list[str]:
    """Return the ways that can be tried here."""
    return [name for name in WAYS if name == "array" or not _why_no_dali()]


@cache
def _why_no_dali() -> str:
    return "; ".join(gpu.absent(["gpuload.executors.dali"]).values())


def _absent_ways() -> list[list[str]]:
    """Return a row for each way that cannot be tried here."""
    names = [name for name in WAYS if name != "array"] if _why_no_dali() else []
    return [[f"way {name}", "-", "-", "-", "-", _why_no_dali()] for name in names]


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


def _compared(source: Any, name: str, way: str, note: str = "") -> Result:
    """Return the row of two epochs of a way beside the CPU's, and the first problem."""
    distances, subject, problems = Difference(), f"{name}, way {way}", []
    ops = lists_of_ops()[name]
    bound = bound_of(source, ops, way)
    axes = "N" + axes_of(compile_ops(source.spec, ops).spec_out["image"])
    try:
        with (
            _loader(source, ops, device="cpu") as expected,
            _loader(source, ops, device="gpu", **WAYS[way]) as loader,
        ):
            note = note or _decoding(loader)
            for epoch in range(2):
                for batch, meaning in zip(loader.epoch(epoch), expected.epoch(epoch), strict=True):
                    values = _on_host(batch.output)
                    distances.add(values, meaning.output)
                    text = difference(values, meaning.output, bound, axes)
                    if way == "dali" and values.dtype == np.uint8:
                        text = text or far_image(values, meaning.output)
                    if text:
                        problems.append(f"{subject}, epoch {epoch}, step {batch.step}: {text}")
    except Exception as error:  # the page names it, and the others go on
        return [], [*problems[:1], f"{subject}: {_text(error)}"]
    return [distances.row(subject, "the CPU's batches", note)], problems[:1]


def far_image(values: NDArray[np.uint8], expected: NDArray[np.uint8]) -> str:
    """Return which image of a batch is another one than it should be, "" if none is."""
    means = np.abs(values.astype(np.int16) - expected).mean(axis=(1, 2, 3))
    row = int(means.argmax())
    if means[row] <= MEAN_OF_IMAGE:
        return ""
    return (
        f"image {row} differs by {means[row]:.1f} levels in the mean, and may by {MEAN_OF_IMAGE:g}"
    )


def bound_of(source: Any, ops: Sequence[Any], way: str) -> Bound:
    """Return how far images may be from the CPU's: as far as the ops state that are not done by the
    core."""
    graph = compile_ops(source.spec, ops)
    executor = WAYS[way]["executor"]
    on_host = graph.with_ops_before(graph.to_one_size) if way != "dali" else ()

    def party(place: int) -> str:
        return "array on cpu" if place in on_host else f"{executor} on gpu"

    return bounds_of(graph, ["image"], party)["image"]


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def _decoding(loader: Any) -> str:
    """Return where images are decoded, and by what, as the loader describes it; without the
    reason."""
    lines = [line for line in loader.describe().splitlines() if line.startswith("decoding:")]
    return "".join(lines).removeprefix("decoding:").rpartition(" (")[0].strip()


def _audited(source: Any, name: str, way: str) -> Result:
    """Return the row of an epoch in which every record is audited."""
    count, subject = 0, f"{name}, way {way}"
    try:
        with _loader(source, lists_of_ops()[name], device="gpu", audit=1.0, **WAYS[way]) as loader:
            for batch in loader:
                count += len(batch.output)
    except Exception as error:  # the page names it, and the others go on
        return [], [f"{subject}, audited: {_text(error)}"]
    row = [
        subject,
        "the audit of every record",
        "none beyond its bound",
        "-",
        "-",
        f"{count:,} records",
    ]
    return [row], []


@contextmanager
def filled_memory() -> Iterator[None]:
    """Have all memory that CuPy takes, and all that is page-locked, filled with a pattern before it
    is used."""
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
    for module in (devices, copies):
        module.pinned = allocate_pinned
    try:
        yield
    finally:
        for module in (devices, copies):
            module.pinned = pinned
        cupy.cuda.set_allocator(pool.malloc)


def _stale(load: float, num_jpegs: int) -> Result:
    """Return the row of a decoder of DALI that has decoded other images just before."""
    files = [gpu_parity.jpeg(number) for number in range(num_jpegs)]
    first_files = [gpu_parity.jpeg(1000 + number) for number in range(num_jpegs)]
    difference = Difference()
    behind = gpu_parity.decode([*first_files, *files], "mixed", load, num_jpegs)[num_jpegs:]
    difference.add(behind, gpu_parity.decode(files, "mixed", load, num_jpegs))
    subject = f"nvJPEG, hw_decoder_load={load}, behind other images"
    problems = []
    if difference.num_different and load in gpu_parity.LOADS_OF_GPULOAD:
        problems = [f"{subject}: pixels differ from those of a new decoder"]
    return [difference.row(subject, "a new decoder")], problems


def _on_host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.get()


WHATS: dict[str, Callable[[bool], Iterator[Result]]] = {
    "ways": ways,
    "audit": audit,
    "poison": poison,
}


if __name__ == "__main__":
    sys.exit(main())

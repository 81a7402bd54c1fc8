"""What does decoding on the host cost a machine, beside the loader for a CPU?
`python -m benchmarks.host_decode`.

Work    JPEGs of about 500 x 375, decoded, cropped at random, resized to 224 x 224, flipped, and
        what each row adds, in batches of 64, shuffled; or decoded alone, at sizes of their own
CPU     ``device="cpu"``: all ops on the host
GPU     ``device="gpu", executor="array"``: the core decodes up to the flip, bytes are uploaded,
        CuPy does the rest
Device  the real CuPy on the emulated GPU (`tests/emulated_gpu`), which copies nothing and runs no
        kernel here: what is measured is the time of the host. No card was there; what a card does
        is on the page of `make gpu-test`
Time    processor time of all threads of an epoch for an image, and wall time for a batch; both
        loaders in turns, the least of the rounds counts, as whatever else the machine does only
        adds to it
Calls   of CUDA for a batch, a mean over an epoch behind two that warm up
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import data, gpu_parity
from benchmarks.folders import RESULTS, save
from benchmarks.machine import cores, page_head
from benchmarks.measure import Settings
from benchmarks.question import missing
from tests import emulated_gpu

ROOT = Path(__file__).resolve().parent.parent
NUM_IMAGES, BATCH, SIDE, ROUNDS = 640, 64, 224, 4
SHORT_IMAGES, SHORT_BATCH = 16, 4
MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
CPU, GPU = {"device": "cpu"}, {"device": "gpu", "executor": "array"}
CALLS = {"launches": "cuLaunchKernel", "uploads": "uploads"}
PAGEABLE, BYTES = "pageable uploads", "uploaded bytes"


@dataclass(frozen=True)
class Costs:
    """What an epoch costs.

    Attributes:
        core_ms: processor time of all threads for an image, milliseconds.
        wall_ms: time of the clock for a batch, milliseconds.
    """

    core_ms: float
    wall_ms: float


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host_decode", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument(
        "--short", action="store_true", help="little data: does it work? Its times mean nothing"
    )
    options = parser.parse_args(arguments)
    if missing(("cupy",)):
        return in_emulated_environment(sys.argv[1:] if arguments is None else arguments)
    emulated_gpu.install(idle=True)
    folder = _jpegs(options.short)
    num_rounds = 1 if options.short else options.rounds
    rows = [row(folder, name, num_rounds, options.short) for name in lists_of_ops()]
    save(options.results, "host_decode.md", page(rows, folder, options))
    return 0


def in_emulated_environment(arguments: Sequence[str]) -> int:
    """Run this program by the Python that has CuPy, with the packages of this one beside its
    own."""
    python = emulated_gpu.ENVIRONMENT / "bin" / "python"
    if not python.exists():
        print(f"there is no {python}: `make emulated-gpu` makes it, with CuPy", file=sys.stderr)
        return 2
    paths = [
        str(ROOT),
        sysconfig.get_path("purelib"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [str(python), "-m", "benchmarks.host_decode", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _jpegs(is_short: bool) -> Path:
    """Return the folder of JPEGs: pieces of photographs; in short form smooth shapes, which need
    Pillow alone."""
    folder = Settings().data
    if not is_short:
        return data.jpegs(folder, NUM_IMAGES)

    def write(path: Path) -> None:
        path.mkdir()
        for number in range(SHORT_IMAGES):
            gpu_parity.jpeg(number).tofile(path / f"{number:02}.jpg")

    return data.once(folder / f"host_decode-{SHORT_IMAGES}", write)


def lists_of_ops() -> dict[str, list[Any]]:
    """Return the lists of ops by name."""
    import gpuload as gl

    cut = [gl.ops.Decode(), gl.ops.RandomResizedCrop(SIDE, SIDE), gl.ops.RandomFlip()]
    normalize, jitter = gl.ops.Normalize(MEAN, STD), gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1)
    return {
        "bytes": cut,
        "Normalize": [*cut, normalize],
        "ColorJitter, Normalize": [*cut, jitter, normalize],
        "RandAugment, Normalize": [*cut, gl.ops.RandAugment(), normalize],
        "Decode alone": [gl.ops.Decode()],
    }


def row(folder: Path, name: str, rounds: int, is_short: bool) -> list[str]:
    """Return the row of a list of ops: costs of both loaders, and the calls of that for the GPU."""
    with (
        _loader(folder, name, CPU, is_short) as of_cpu,
        _loader(folder, name, GPU, is_short) as on_gpu,
    ):
        for loader in (of_cpu, on_gpu, on_gpu):
            epoch(loader, 0)
        before = emulated_gpu.calls()
        epoch(on_gpu, 1)
        calls = emulated_gpu.since(before)
        pairs = [(epoch(of_cpu, number), epoch(on_gpu, number)) for number in range(2, 2 + rounds)]
        num_batches = len(on_gpu)
        decoding = _line(on_gpu, "decoding:")
    cpu, of_gpu = (
        Costs(min(costs.core_ms for costs in loops), min(costs.wall_ms for costs in loops))
        for loops in zip(*pairs, strict=True)
    )
    print(f"{name}: {cpu}, {of_gpu}; {decoding}", file=sys.stderr, flush=True)
    return [
        name, f"{cpu.core_ms:.3f}", f"{of_gpu.core_ms:.3f}", f"{of_gpu.core_ms / cpu.core_ms:.2f}",
        f"{cpu.wall_ms:.1f}", f"{of_gpu.wall_ms:.1f}",
        *(f"{calls.get(call, 0) / num_batches:.1f}" for call in CALLS.values()),
        f"{calls.get(PAGEABLE, 0) / num_batches:.1f}", f"{calls.get(BYTES, 0) / num_batches / 1e6:.2f}",
    ]  # fmt: skip


COLUMNS = (
    "what", "core-ms an image, CPU", "GPU", "GPU / CPU", "wall ms a batch, CPU", "GPU", *CALLS, "of them pageable",
    "MB uploaded",
)  # fmt: skip


def _loader(folder: Path, name: str, arguments: dict[str, str], is_short: bool) -> Any:
    import gpuload as gl

    batch_size, source = SHORT_BATCH if is_short else BATCH, gl.images(folder, labels=None)
    words: dict[str, Any] = {"shuffle": True, "seed": 1, "num_threads": cores(), **arguments}
    return gl.Loader(source, batch_size, ops=lists_of_ops()[name], **words)


def epoch(loader: Any, number: int) -> Costs:
    """Return what an epoch costs, whose batches are dropped as they come."""
    count, batches, begin, begin_core = 0, 0, time.perf_counter(), time.process_time()
    for batch in loader.epoch(number):
        count, batches = count + len(batch["image"]), batches + 1
        del batch
    core_s, wall_s = time.process_time() - begin_core, time.perf_counter() - begin
    return Costs(core_s / count * 1e3, wall_s / batches * 1e3)


def _line(loader: Any, name: str) -> str:
    """Return a line of what a loader says of itself."""
    return "".join(line for line in loader.describe().splitlines() if line.startswith(name))


def page(rows: Sequence[Sequence[str]], folder: Path, options: argparse.Namespace) -> str:
    """Return the page."""
    with _loader(folder, "Normalize", GPU, options.short) as loader:
        decoding = _line(loader, "decoding:").removeprefix("decoding:").strip()
    number = SHORT_IMAGES if options.short else NUM_IMAGES
    what = f"{number} images, {options.rounds} rounds{', in short form: its times mean nothing' * options.short}"
    head = page_head("What decoding on the host costs", __doc__, what, "host_decode", ROOT)
    table = [COLUMNS, ["---", *["---:"] * (len(COLUMNS) - 1)], *rows]
    return (
        "\n".join(
            [
                *head,
                f"For the GPU images are decoded {decoding}.",
                "",
                *(f"| {' | '.join(line)} |" for line in table),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())

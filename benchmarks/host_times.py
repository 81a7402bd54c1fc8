"""What an op costs the host before a GPU gets to work: `python -m benchmarks.host_times`.

The real CuPy runs on an emulated GPU that does nothing (`tests.emulated_gpu`, ``idle``), so that only the host's time
is left, which is spent under the interpreter's lock. The environment is that of `make emulated-gpu`. Processor time of
the calling thread, the least of many rounds, for a batch of 256 images of 224 x 224 x 3 bytes: the draw (`Op.draw`),
and the op in its form for a batch (`Op.array_batch`). ``--write`` writes `benchmarks/results/host_times.md`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine

RESULT = Path(__file__).parent / "results" / "host_times.md"
COUNT, SIDE, MOST_SIDE, ROUNDS = 256, 224, 500, 40
# Microseconds an image, draw and batch, of images of one size and of many, in 771a91a, on the machine of the results.
BEFORE = {
    "RandAugment()": (0.95, 11.5, 31.4), "TrivialAugmentWide()": (0.77, 7.1, 16.2), "AutoAugment()": (0.63, 10.1, 30.4),
    "TimmAugment('rand-m9-mstd0.5-inc1')": (0.40, 18.9, 38.4), "AugMix()": (0.27, 64.3, 136.4),
    "Resize(160, 160)": (0.00, 1.0, 3.1), "RandomResizedCrop(160, 160)": (0.55, 1.1, 2.6), "CLAHE()": (0.02, 5.8, 16.9),
    "ColorJitter(0.4, 0.4, 0.4, 0.1)": (0.09, 1.1, 6.9), "Erasing()": (0.54, 0.5, 6.0), "Rotate(30)": (0.16, 0.4, 5.2),
    "GaussianBlur(5)": (0.16, 0.9, 11.8),
}  # fmt: skip


def least_us(call: Callable[[], Any]) -> float:
    """Return the least processor time of a call in this thread, microseconds an image of its batch."""
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        result = call()
        times.append(time.thread_time() - start)
        del result
    return min(times) / COUNT * 1e6


def measure(op: Any, images: Any) -> tuple[float, float]:
    """Return the times of a draw and of an op, microseconds an image."""
    from gpuload import device

    xp = device.cupy()
    size = np.array([image.shape[:2] for image in images], np.int32)
    u = np.random.default_rng(0).random((COUNT, op.num_uniforms))
    draw = op.draw(u, size)
    of_field = op.of("image")
    return least_us(lambda: op.draw(u, size)), least_us(lambda: of_field.array_batch(xp, images, draw))


def batches() -> tuple[Any, Any]:
    """Return images of one size on the GPU, and of many sizes, as a step uploads them."""
    from gpuload import device
    from gpuload.pipeline.step import ArrayPack

    xp, random = device.cupy(), np.random.default_rng(1)
    arrays = [np.zeros((*size, 3), np.uint8) for size in random.integers(SIDE, MOST_SIDE, (COUNT, 2)).tolist()]
    pack = ArrayPack.of(arrays, lambda num_bytes: np.empty(num_bytes, np.uint8))
    return xp.zeros((COUNT, SIDE, SIDE, 3), np.uint8), pack.on_device(xp.asarray)


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_times", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args(arguments)
    from tests import emulated_gpu

    if (why := emulated_gpu.problem()) is not None:
        sys.exit(why)
    emulated_gpu.install(idle=True)
    import gpuload as gl

    same, many = batches()
    names = {name: eval(f"gl.ops.{name}", {"gl": gl}) for name in BEFORE}
    lines = [
        "| op | draw | before | one size | before | many sizes | before |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, op in names.items():
        (draw, alike), (_, varying), before = measure(op, same), measure(op, many), BEFORE[name]
        numbers = (f"{draw:.2f}", f"{before[0]:.2f}", f"{alike:.2f}", f"{before[1]}", f"{varying:.2f}", f"{before[2]}")
        lines.append(f"| `{name}` | {' | '.join(numbers)} |")
        print(lines[-1], flush=True)
    if options.write:
        RESULT.write_text(page("\n".join(lines)), encoding="utf-8")
    return 0


def page(table: str) -> str:
    """Return the text of the results file."""
    about = machine.machine(RESULT.parent)
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return f"""# What ops cost the host before a GPU gets to work

`python -m benchmarks.host_times --write`, {time.strftime("%Y-%m-%d")}, {commit.strip()}: microseconds of one thread for
an image of a batch of {COUNT}, under the interpreter's lock. The device is emulated and does nothing: what a real
card's driver takes for a launch is not in it, and a card decides. One size is {SIDE} x {SIDE} x 3 bytes. Many sizes are
{SIDE} to {MOST_SIDE - 1} pixels a side, in a list; a result of many sizes is a list, too, of views of some 1.2 us each.

- {about["cpu"]}, {about["cores"]} cores; other programs ran beside, so the least of {ROUNDS} rounds stands here
- before: 771a91a, on the same machine, less exactly

{table}
"""


if __name__ == "__main__":
    sys.exit(main())

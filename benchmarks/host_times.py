"""What an op costs the host before a GPU gets to work: `python -m benchmarks.host_times`.

The real CuPy runs on an emulated GPU that does nothing (`tests.emulated_gpu`, ``idle``), so that
only the host's time is left, which is spent under the interpreter's lock. The environment is that
of `make emulated-gpu`. Processor time of the calling thread, the least of many rounds, for a batch
of 256 images of 224 x 224 x 3 bytes: the draw (`Op.draw`), and the op in its form for a batch
(`Op.array_batch`). Of whole batches of many sizes it is all that the thread of batches and the
caller do: upload, ops, the hand-over. ``--write`` writes `benchmarks/results/host_times.md`.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from gpuload.pipeline.ring import aligned

RESULT = Path(__file__).parent / "results" / "host_times.md"
COUNT, SIDE, MOST_SIDE, ROUNDS = 256, 224, 500, 40
# Microseconds an image, draw and batch, of images of one size and of many, in 771a91a, on the
# machine of the results.
BEFORE = {
    "RandAugment()": (0.95, 11.5, 31.4), "TrivialAugmentWide()": (0.77, 7.1, 16.2), "AutoAugment()": (0.63, 10.1, 30.4),
    "TimmAugment('rand-m9-mstd0.5-inc1')": (0.40, 18.9, 38.4), "AugMix()": (0.27, 64.3, 136.4),
    "Resize(160, 160)": (0.00, 1.0, 3.1), "RandomResizedCrop(160, 160)": (0.55, 1.1, 2.6), "CLAHE()": (0.02, 5.8, 16.9),
    "ColorJitter(0.4, 0.4, 0.4, 0.1)": (0.09, 1.1, 6.9), "Erasing()": (0.54, 0.5, 6.0), "Rotate(30)": (0.16, 0.4, 5.2),
    "GaussianBlur(5)": (0.16, 0.9, 11.8),
}  # fmt: skip
BATCHES = (
    "[Resize(160, 160)]", "[ColorJitter(0.4, 0.4, 0.4), Resize(160, 160), Invert()]", "[ColorJitter(0.4, 0.4, 0.4)]",
)  # fmt: skip
ROOM_BYTES = 1 << 20  # for what kernels read beside the images


def least_us(call: Callable[[], Any]) -> float:
    """Return the least processor time of a call in this thread, microseconds an image of its
    batch."""
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
    return least_us(lambda: op.draw(u, size)), least_us(
        lambda: of_field.array_batch(xp, images, draw)
    )


def batches() -> tuple[Any, Any]:
    """Return images of one size on the GPU, and of many sizes, as a step uploads them."""
    from gpuload import device

    xp = device.cupy()
    return xp.zeros((COUNT, SIDE, SIDE, 3), np.uint8), many_sizes()[0].on_device(xp.asarray)


def many_sizes() -> tuple[Any, Any, int]:
    """Return images of many sizes as workers leave them in a slot, the slot, and how many of its
    bytes they take."""
    from gpuload import device
    from gpuload.pipeline.packing import ArrayPack

    shapes = [
        (*size, 3)
        for size in np.random.default_rng(1).integers(SIDE, MOST_SIDE, (COUNT, 2)).tolist()
    ]
    begins = np.cumsum([0, *(aligned(math.prod(shape)) for shape in shapes)]).tolist()
    slot = device.pinned(begins[-1] + ROOM_BYTES)
    places = [(slot, begin) for begin in begins[:-1]]
    arrays = [
        np.ndarray(shape, np.uint8, *place) for shape, place in zip(shapes, places, strict=True)
    ]
    return ArrayPack(arrays, places), slot, begins[-1]


def measure_batch(ops: Sequence[Any]) -> float:
    """Return the time of a whole batch of images of many sizes, from the slot to arrays,
    microseconds an image."""
    from gpuload import device
    from gpuload.executors.array.batches import ArrayBatchExecutor
    from gpuload.graph.graph import compile_ops
    from gpuload.pipeline.handover import lend
    from gpuload.spec import Field, Spec

    pack, slot, num_bytes = many_sizes()
    graph = compile_ops(
        Spec((Field("image", np.dtype(np.uint8), (None, None, 3), axes="HWC"),)), ops
    )
    size = np.array([array.shape[:2] for array in pack], np.int32)
    draws = graph.draw(seed=1, epoch=0, records=np.arange(COUNT), sizes={"image": size})
    lane, executor = device.Lane("gpu:0"), ArrayBatchExecutor(graph, device="gpu:0")

    def call() -> Any:
        with lane:
            lane.reclaim()
            with device.Bundle(lane) as bundle:
                bundle.hold(slot, num_bytes)
                executor.start({"image": pack.on_device(bundle.upload)}, draws)
                device.settle()
            return lend(lane, executor.finish()["image"])

    try:
        return least_us(call)
    finally:
        lane.close()


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host_times", description=__doc__.splitlines()[0]
    )
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
    for name, op in names.items() if not __import__("os").environ.get("Q") else []:
        (draw, alike), (_, varying), before = measure(op, same), measure(op, many), BEFORE[name]
        numbers = (
            f"{draw:.2f}",
            f"{before[0]:.2f}",
            f"{alike:.2f}",
            f"{before[1]}",
            f"{varying:.2f}",
            f"{before[2]}",
        )
        lines.append(f"| `{name}` | {' | '.join(numbers)} |")
        print(lines[-1], flush=True)
    lines += ["", "| ops of a whole batch of many sizes | |", "|---|---:|"]
    for text in BATCHES:
        lines.append(
            f"| `{text}` | {measure_batch(eval(text, {name: getattr(gl.ops, name) for name in gl.ops.__all__})):.2f} |"
        )
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
{SIDE} to {MOST_SIDE - 1} pixels a side, as a step uploads them. A batch whose images keep sizes of their own is handed
over as a list of arrays, which take some 1 us each to make.

- {about["cpu"]}, {about["cores"]} cores; other programs ran beside, so the least of {ROUNDS} rounds stands here
- before: 771a91a, on the same machine, less exactly

{table}
"""


if __name__ == "__main__":
    sys.exit(main())

"""How fast are batches of records that lie in the GPU's memory (``cache(device=True)``), beside those that stream?

Works     cifar         CIFAR-10's records as label and float32 HWC image: crop of 32 x 32 at a random place of the
                        image padded by 4, flip with p = 1/2, minus mean, over standard deviation; batches of 256
          pixels-160    images of 160 x 160 x 3 bytes and labels, as ImageNet is kept behind Decode, Resize and
                        CenterCrop: crop of 128 x 128 at a random place, flip, normalise; batches of 256
Forms     streams: records of an array in memory, uploaded for each batch; stays: all of them lie on the GPU since the
          epoch before. Both are shuffled, one after the other in turns, the best of `ROUNDS` epochs each.
Consumer  looks at each batch, two of them in flight; an epoch is over when the GPU has done all of it.
Result    rows of what, records/s, processor time of the host a batch.

`measure` is the work of a page; ``python -m benchmarks.gpu_cache cifar --result rows.json [--smoke]`` is a part of it.
"""

from __future__ import annotations

import json
import time
from collections import deque

import numpy as np

import gpuload as gl
from benchmarks import fixed_images, gpu
from gpuload import device

WORKS = ("cifar", "pixels-160")
BATCH_SIZE, ROUNDS, IN_FLIGHT = 256, 5, 2
NUM_RECORDS = {"cifar": 50_000, "pixels-160": 20_000}
SHAPES = {"cifar": (3, 32, 32), "pixels-160": (160, 160, 3)}
MEAN, STD = (124.0, 116.0, 104.0), (58.0, 57.0, 57.0)
SMOKE_PART = 50  # of the records


def main(arguments: list[str] | None = None) -> None:
    """Write the rows of a work."""
    options = gpu.part_options("gpu_cache", "work", WORKS, arguments)
    rows = measure(options.work, is_short=options.smoke)
    options.result.write_text(json.dumps({"rows": rows}), encoding="utf-8")


def measure(work: str, *, is_short: bool = False) -> list[list[str]]:
    """Return a row for each form: what, records/s, and microseconds of processor time a batch.

    Args:
        work: one of ``WORKS``.
        is_short: a fiftieth of the records, one round: for the emulated GPU, where rates mean nothing.
    """
    num_records = NUM_RECORDS[work] // (SMOKE_PART if is_short else 1)
    random = np.random.default_rng(0)
    source = gl.arrays(
        image=random.integers(0, 256, (num_records, *SHAPES[work]), np.uint8),
        label=random.integers(0, 10, num_records, np.int64),
    )
    streams = gl.Loader(source, BATCH_SIZE, ops=_ops(work), shuffle=True, seed=0, device="gpu", executor="array")
    with streams, streams.cache(device=True) as stays:
        forms = {"streams": streams, "stays on the GPU": stays}
        for loader in forms.values():
            _epoch(loader, 0)  # compiles kernels, and has the records come to the GPU
        if f"{num_records} of {num_records} records" not in stays.describe():
            raise RuntimeError(f"not all records lie on the GPU: {stays.describe()}")
        best = dict.fromkeys(forms, (np.inf, np.inf))
        for epoch in range(1, 2 if is_short else ROUNDS + 1):
            for name, loader in forms.items():
                best[name] = min(best[name], _epoch(loader, epoch))
        num_batches = len(streams)
    return [
        [f"{work}: {name}", f"{num_records / wall_s:,.0f}", f"{1e6 * cpu_s / num_batches:.0f}"]
        for name, (wall_s, cpu_s) in best.items()
    ]


def _ops(work: str) -> list[gl.ops.Op]:
    if work == "cifar":
        crop = gl.ops.RandomCrop(fixed_images.SIDE, fixed_images.SIDE, pad=fixed_images.PAD)
        normalize = gl.ops.Normalize(fixed_images.MEAN, fixed_images.STD)
        return [gl.ops.Transpose("HWC"), crop, gl.ops.RandomFlip(), normalize]
    return [gl.ops.RandomCrop(128, 128), gl.ops.RandomFlip(), gl.ops.Normalize(MEAN, STD)]


def _epoch(loader: gl.Loader, number: int) -> tuple[float, float]:
    """Return the seconds of an epoch, and those of processor time."""
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    in_flight: deque[gl.Batch] = deque(maxlen=IN_FLIGHT)
    for batch in loader.epoch(number):
        in_flight.append(batch)
    in_flight.clear()
    device.cupy().cuda.Device().synchronize()
    return time.perf_counter() - begin_s, time.process_time() - begin_cpu_s


if __name__ == "__main__":
    main()

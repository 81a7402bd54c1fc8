"""How many records a second come from the cache on the card?
`python -m benchmarks.gpu_cache --result FILE`.

Works   CIFAR-10 records, cropped, flipped, normalised, in batches of 256; and JPEGs, decoded and
        resized to 160 x 160 once, cropped at random to 144, flipped, normalised, in batches of 256
Ways    as the loader is, and with ``loader.cache(device=True)``: its first epoch, which streams
        while the card's memory is filled, and the epochs behind it
Right   batches of an epoch with the cache, beside those of the CPU without one: equal to the last
        bit
Beside  280,000 records/s: what a peer says of its loader whose data lies on the card, and which
        knows no exact resume
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import gpu, gpu_data, gpu_waiting
from benchmarks.gpu_parity import Difference
from benchmarks.question import missing
from gpuload import device as devices

ABOUT = (
    "`loader.cache(device=True)`: what comes before the first random op is made once and stays in the card's memory. "
    "The first epoch streams while it is filled. Records of batches on the GPU, no step."
)
COLUMNS = ("work", "way", "records/s", "first epoch s", "GB on the card", "")
PEER_PER_S = 280_000  # records/s
BATCH, SIDE, CROP = 256, 160, 144
TIMED_S = 2.0
NUM_COMPARED = 4  # batches


def main(arguments: list[str] | None = None) -> int:
    """Write the rows; the exit status is 1 if a batch differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_cache", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    rows: list[list[str]] = []
    problems: list[str] = []
    wrong: list[str] = []
    targets: list[gpu.Target] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in WORKS.items():
            if name == JPEG and missing(("PIL",)):
                problems.append(
                    f"{name}: left out, PIL is not installed, which JPEGs are made with"
                )
                continue
            with make(Path(folder), "gpu", options.smoke) as loader:
                rows.append(_row(name, "streamed", loader, loader, options.smoke))
                with loader.cache(device=True) as cached:
                    rows.append(_row(name, "cache on the card", cached, loader, options.smoke))
                    wrong += _wrong(name, cached, make(Path(folder), "cpu", options.smoke))
            if name == CIFAR:
                rate = float(rows[-1][2].replace(",", ""))
                targets.append(
                    gpu.Target(f"records/s from the cache on the card, {name}", rate, PEER_PER_S)
                )
            gpu.write_rows(options.result, rows, problems + wrong, targets)
    print(*problems, *wrong, sep="\n")
    return 1 if wrong else 0


def _row(name: str, way: str, loader: Any, plain: Any, is_short: bool) -> list[str]:
    """Return the row of a loader: its first epoch, then whole epochs for some time."""
    free_before = _free_bytes()
    first_s, count = _epoch(loader, 0)
    cached_bytes = max(0, free_before - _free_bytes())
    begin, num_records = perf_counter(), 0
    for epoch in itertools.count(1):
        num_records += _epoch(loader, epoch)[1]
        took_s = perf_counter() - begin
        if is_short or took_s > TIMED_S:
            break
    on_card = "-" if loader is plain else f"{cached_bytes / 1e9:.2f}"
    return [
        name,
        way,
        f"{num_records / took_s:,.0f}",
        f"{first_s:.2f}",
        on_card,
        f"{count:,} records an epoch",
    ]


def _epoch(loader: Any, epoch: int) -> tuple[float, int]:
    """Return the seconds of an epoch until all of it is there, and its records."""
    begin, count = perf_counter(), 0
    for batch in loader.epoch(epoch):
        count += len(batch.output)
        del batch
    devices.synchronize(loader.device)
    return perf_counter() - begin, count


def _free_bytes() -> int:
    return int(devices.cupy().cuda.runtime.memGetInfo()[0])


def _wrong(name: str, cached: Any, plain: Any) -> list[str]:
    """Return what differs between batches of a later epoch with the cache and those of the CPU
    without one."""
    difference = Difference()
    with plain:
        pairs = zip(cached.epoch(2), plain.epoch(2), strict=True)
        for batch, meaning in itertools.islice(pairs, NUM_COMPARED):
            difference.add(batch.output.get(), meaning.output)
    if not difference.num_different:
        return []
    return [
        f"{name}, cache on the card: {difference.num_different} of {difference.num_values} values differ"
    ]


def jpegs(folder: Path, device: str, is_short: bool) -> Any:
    """Return a loader of JPEGs whose first two ops draw nothing."""
    import gpuload as gl

    ops = [
        gl.ops.Decode(), gl.ops.Resize(SIDE, SIDE), gl.ops.RandomCrop(CROP, CROP), gl.ops.RandomFlip(),
        gl.ops.Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)),
    ]  # fmt: skip
    source = gl.images(gpu_data.jpegs(is_short), labels=None)
    batch_size = 32 if is_short else BATCH
    return gl.Loader(
        source, batch_size, shuffle=True, ops=ops, output="image", device=device, executor="array"
    )


CIFAR, JPEG = "CIFAR-10 chain", f"JPEG at {SIDE} pixels"
WORKS: dict[str, Callable[[Path, str, bool], Any]] = {CIFAR: gpu_waiting.cifar, JPEG: jpegs}


if __name__ == "__main__":
    sys.exit(main())

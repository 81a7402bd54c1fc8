"""Is the number of threads that gpuload chooses the right one?
`python -m benchmarks.tuning [--rounds 2]`.

    work       what the batches are made of, and what holds them up
    threads    a loop of `--seconds` over a loader with `num_threads=` of each of these, behind its
               first second
    best       the one of them with the most records a second
    left out   a loop of `--tuned` seconds without `num_threads=` and `prefetch=`: the records a
               second of its last third, and of all of it, from the first batch on; what it chose in
               the end

Loops take turns, each with a loader of its own, and take batches as fast as they come; the ratios
are the medians of the rounds. The store is a server on this machine behind a proxy that answers 20
ms later (`remoteserver.py`). Results go to `results/tuning.md`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import gpuload as gl
from benchmarks import data, machine, remote_rows, remoteserver
from benchmarks.folders import RESULTS, save

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "build" / "bench-data"
THREADS = (1, 2, 4, 8, 32)
SETTLING_S = 1.0
TURN_S, SLEEP_S = 0.002, 0.005
Batches = Callable[..., gl.Loader]


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the table, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tuned", type=float, default=24.0)
    parser.add_argument("--only", choices=WORKS, nargs="*")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.data.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.only or WORKS:
        work = WORKS[name](options.data)
        rounds = [measure(work, options.seconds, options.tuned) for _ in range(options.rounds)]
        rows.append((name, rounds))
    text = table(rows, options.rounds)
    save(options.results, "tuning.md", text)
    return 0


def rows_in_memory(folder: Path) -> Batches:
    """Return shuffled rows of a file that the system keeps in memory: the copy is the limit."""
    source = gl.npy(data.npy_rows(folder, 20_000))
    return lambda **setting: gl.Loader(source, 256, shuffle=True, device="cpu", **setting)


def jpeg_files(folder: Path) -> Batches:
    """Return crops of JPEG files: the cores are the limit."""
    source = gl.images(data.jpegs(folder, 500), labels=None)
    ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(224), gl.ops.RandomFlip()]
    return lambda **setting: gl.Loader(source, 64, ops=ops, shuffle=True, device="cpu", **setting)


def far_store(folder: Path) -> Batches:
    """Return shuffled rows of an object in a store that answers in 20 ms: requests at a time are
    the limit."""
    bucket = remote_rows.prepare(folder, 4_096)
    url = f"{remoteserver.serve(bucket, remoteserver.FAR)}/bucket/{remote_rows.NAME}"
    source = gl.npy(gl.Remote(url))
    return lambda **setting: gl.Loader(source, 32, shuffle=True, device="cpu", **setting)


def slow_reader(folder: Path) -> Batches:
    """Return rows that a function returns after a sleep of 5 ms a batch: threads that wait are the
    limit."""

    def read(numbers: np.ndarray) -> dict[str, np.ndarray]:
        time.sleep(SLEEP_S)
        return {"x": np.zeros((len(numbers), 16), np.float32)}

    source = gl.records(100_000, read)
    return lambda **setting: gl.Loader(source, 64, shuffle=True, device="cpu", **setting)


def python_op(folder: Path) -> Batches:
    """Return rows through an op that holds the lock of Python for 2 ms a batch: more threads are
    slower."""

    def spin(x: np.ndarray) -> np.ndarray:
        end_s = time.perf_counter() + TURN_S
        while time.perf_counter() < end_s:
            pass
        return x

    ops = [gl.ops.Python(spin, batch=True, out={})]
    source = gl.arrays(x=np.zeros((100_000, 16), np.float32))
    return lambda **setting: gl.Loader(source, 64, ops=ops, device="cpu", **setting)


WORKS: dict[str, Callable[[Path], Batches]] = {
    "rows in memory": rows_in_memory,
    "JPEG files": jpeg_files,
    "rows of a far store": far_store,
    "a reader that sleeps": slow_reader,
    "an op in Python": python_op,
}


def times_of(loader: gl.Loader, seconds: float) -> Iterator[float]:
    """Yield when each batch came, in seconds behind the beginning of the loop."""
    begin = time.perf_counter()
    for _ in chain.from_iterable(map(loader.epoch, count())):
        now = time.perf_counter() - begin
        yield now
        if now > seconds:
            return


def rate(times: list[float], begin_s: float, size: int) -> float:
    """Return the records a second of the batches that came behind a time."""
    late = [now for now in times if now >= begin_s]
    return size * (len(late) - 1) / (late[-1] - late[0]) if len(late) > 1 else 0.0


def measure(work: Batches, seconds: float, tuned_s: float) -> dict[str, Any]:
    """Return the records a second with each number of threads, and where it is left out."""
    fixed = {}
    for num_threads in THREADS:
        with work(num_threads=num_threads) as loader:
            fixed[num_threads] = rate(
                list(times_of(loader, seconds)), min(SETTLING_S, seconds / 2), loader.batch_size
            )
    with work() as loader:
        times = list(times_of(loader, tuned_s))
        late, whole = (
            rate(times, times[-1] * 2 / 3, loader.batch_size),
            loader.batch_size * len(times) / times[-1],
        )
        stats = loader.stats()
    return {
        "fixed": fixed,
        "late": late,
        "whole": whole,
        "chosen": (stats["num_threads"], stats["prefetch"]),
    }


def table(rows: list[tuple[str, list[dict[str, Any]]]], num_rounds: int) -> str:
    """Return the page."""
    title = "Is the number of threads that gpuload chooses the right one?"
    lines = [
        *machine.page_head(title, __doc__, f"{num_rounds} rounds", "tuning", ROOT),
        f"| work, records/s | {' | '.join(map(str, THREADS))} | left out: end, all | to the best | threads, ahead |",
        "|---" + "|---:" * (len(THREADS) + 3) + "|",
    ]
    for name, rounds in rows:
        fixed = {number: median(part["fixed"][number] for part in rounds) for number in THREADS}
        best = max(fixed, key=lambda number: fixed[number])
        late, whole = (median(part[key] for part in rounds) for key in ("late", "whole"))
        ratios = [
            median(part[key] / part["fixed"][best] for part in rounds) for key in ("late", "whole")
        ]
        chosen = "; ".join(
            f"{int(threads)}, {int(ahead)}"
            for threads, ahead in (part["chosen"] for part in rounds)
        )
        numbers = " | ".join(
            f"**{fixed[n]:,.0f}**" if n == best else f"{fixed[n]:,.0f}" for n in THREADS
        )
        lines.append(
            f"| {name} | {numbers} | {late:,.0f}, {whole:,.0f} | {ratios[0]:.2f}, {ratios[1]:.2f} | {chosen} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())

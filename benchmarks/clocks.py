"""What does it cost that a loader measures itself? `python -m benchmarks.clocks [--rounds 15] [--seconds 0.3]`.

    work       what a loop over batches does; tiny rows are the worst case: nothing is there but what each batch costs
    calls      how often the loop and the threads of the loader call each part of the measurement, for a batch
    counted    these calls times what one of them takes here, as a share of the processor time of a batch
    A/B        processor time of the same loop with the measurement, to that without it: neighbours take turns, and the
               measurement is switched off in this program alone, by functions that do nothing in the place of its own

The clocks of the core cannot be switched off: two reads for a piece of 256 KiB and for an image, of 25 ns each. The
clock that decides how many steps are done together stays on, too: it is no measurement. Results go to
`results/clocks.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

import gpuload as gl
from benchmarks import machine
from benchmarks.folders import RESULTS
from gpuload.pipeline import epoch
from gpuload.stats import Counters, Watch, stages

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 2  # rounds that do not count
DELIVERED, NUM_DELIVERED = "batch counted", 256
ADDED = "amount added"
BY_TIME = ("clock of the loop", "times of the loop counted", "thread asked")  # once in so many milliseconds
PARTS: dict[str, tuple[Any, str]] = {
    "clock of the loop": (epoch, "perf_counter"),
    "times of the loop counted": (epoch._Run, "count_times"),
    "stage begun": (Watch, "enter"),
    "amount counted": (Watch, "count"),
    "counters added": (Counters, "add_amounts"),
    "thread asked": (stages, "usage"),
}


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the table, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", choices=WORKS, nargs="*")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or WORKS:
            with WORKS[name](Path(folder)) as loader:
                rows.append(measure(name, loader, options.rounds, options.seconds))
    text = table(rows, options.rounds)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "clocks.md").write_text(text)
    print(text)
    return 0


def tiny_rows(folder: Path) -> gl.Loader:
    """Return a loader of batches of one row of 64 bytes."""
    np.save(folder / "tiny.npy", np.zeros((200_000, 16), np.float32))
    return gl.Loader(gl.npy(folder / "tiny.npy"), 1, device="cpu")


def rows(folder: Path) -> gl.Loader:
    """Return a loader of batches of 64 shuffled rows of 3 KiB."""
    np.save(folder / "rows.npy", np.zeros((60_000, 768), np.float32))
    return gl.Loader(gl.npy(folder / "rows.npy"), 64, shuffle=True, device="cpu")


def small_images(folder: Path) -> gl.Loader:
    """Return a loader of batches of 8 small images through compiled ops."""
    images = np.zeros((60_000, 32, 32, 3), np.uint8)
    ops = [gl.ops.RandomFlip(), gl.ops.Normalize(mean=(128.0,) * 3, std=(64.0,) * 3)]
    return gl.Loader(gl.arrays(image=images), 8, ops=ops, shuffle=True, device="cpu")


def python_op(folder: Path) -> gl.Loader:
    """Return a loader of batches of 8 rows through a Python function."""
    op = gl.ops.Python(lambda x: x, batch=True, out={})
    return gl.Loader(gl.arrays(x=np.zeros((100_000, 16), np.float32)), 8, ops=[op], device="cpu")


WORKS: dict[str, Callable[[Path], gl.Loader]] = {
    "tiny rows": tiny_rows,
    "rows": rows,
    "small images": small_images,
    "Python op": python_op,
}


@contextlib.contextmanager
def replaced(functions: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Put functions in the place of parts of the measurement, for a while."""
    before = {name: getattr(*PARTS[name]) for name in functions}
    try:
        for name, function in functions.items():
            owner, attribute = PARTS[name]
            setattr(owner, attribute, function)
        yield
    finally:
        for name, function in before.items():
            owner, attribute = PARTS[name]
            setattr(owner, attribute, function)


def no_measurement() -> dict[str, Callable[..., Any]]:
    """Return functions that do nothing; ``perf_counter`` becomes a call of C that is as short as can be."""
    nothing = dict.fromkeys(("stage begun", "amount counted", "counters added"), _nothing)
    return {**nothing, "clock of the loop": float, "times of the loop counted": _read_no_clock_again}


def _read_no_clock_again(run: Any, *arguments: object) -> None:
    run.timed_every = 1 << 60


def _nothing(*arguments: object, **amounts: object) -> str:
    return ""


def counted_calls(loader: gl.Loader, seconds: float) -> tuple[Counter[str], int, float]:
    """Return how often each part is called in a loop, for how many batches, and the processor time of one."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **amounts: Any) -> Any:
            calls[name] += 1
            if name == "counters added":
                calls[ADDED] += len(arguments[1])
            return function(*arguments, **amounts)

        return call

    with replaced({name: counting(name, getattr(*PARTS[name])) for name in PARTS}):
        num_batches, cpu_s = loop(loader, seconds)
    return calls, num_batches, cpu_s / num_batches


def costs() -> dict[str, float]:
    """Return the seconds of a call of each part, the best of some tries."""
    counters, watch = Counters(), Watch()
    names, amounts = ("read", "ops"), dict.fromkeys(("a", "b", "c", "d", "e", "f", "g", "h"), 1.0)
    row = (1, 64)
    run = epoch._Run.__new__(epoch._Run)
    run.num_untimed, run.end_s = 1, 0.0

    def begin_stages() -> None:
        watch.enter(names[0])
        watch.enter(names[1])

    def deliver_batches() -> None:
        for _ in range(NUM_DELIVERED):
            counters.deliver(row)
        counters._add_batches()

    def count_times() -> None:
        run.count_times(counters, 1.0, 2.0)
        counters._loops.clear()

    stages._thread.sample_s = float("inf")
    with watch:
        seconds = {
            "clock of the loop": best(time.perf_counter),
            "times of the loop counted": best(count_times),
            "stage begun": best(begin_stages) / 2,
            "amount counted": best(lambda: watch.count("read.bytes", 1.0)),
            "counters added": (added_s := best(lambda: counters.add_amounts({}))),
            ADDED: (best(lambda: counters.add_amounts(amounts)) - added_s) / len(amounts),
            "thread asked": best(stages.usage),
            DELIVERED: best(deliver_batches, 2_000) / NUM_DELIVERED,
        }
    stages._thread.sample_s = float("-inf")
    return seconds


def best(function: Callable[[], object], count: int = 20_000) -> float:
    """Return the seconds of a call."""
    return min(timeit.repeat(function, number=count, repeat=5)) / count


def loop(loader: gl.Loader, seconds: float) -> tuple[int, float]:
    """Return how many batches a loop of so many seconds takes, and the processor time of all threads."""
    number, count = 0, 0
    begin, begin_cpu = time.perf_counter(), time.process_time()
    while True:
        for _ in loader.epoch(number):
            count += 1
            if not count % 64 and time.perf_counter() - begin > seconds:
                return count, time.process_time() - begin_cpu
        number += 1


def measure(name: str, loader: gl.Loader, num_rounds: int, seconds: float) -> dict[str, Any]:
    """Return the figures of a work."""
    off = no_measurement()
    ratios, times = [], []
    for number in range(WARM_UP + num_rounds):
        pair = {}
        for is_on in (True, False) if number % 2 else (False, True):
            with contextlib.nullcontext() if is_on else replaced(off):
                count, cpu_s = loop(loader, seconds)
            pair[is_on] = cpu_s / count
        if number >= WARM_UP:
            ratios.append(pair[True] / pair[False])
            times.append(pair[True])
    calls, num_batches, slow_s = counted_calls(loader, seconds)
    calls[DELIVERED] = num_batches
    cost, batch_s = costs(), median(times)
    # Counting makes batches slower, so that there are more of the calls that come once in so many milliseconds.
    per_batch = {part: calls[part] / num_batches * (batch_s / slow_s if part in BY_TIME else 1) for part in cost}
    counted_s = sum(per_batch[part] * cost[part] for part in cost)
    return {
        "name": name, "batch_s": batch_s, "ratios": ratios, "counted": counted_s / batch_s,
        "calls": per_batch, "cost": cost,
    }  # fmt: skip


def table(rows: list[dict[str, Any]], num_rounds: int) -> str:
    """Return the page."""
    about, versions = machine.machine(ROOT), machine.versions(ROOT)
    lines = [
        "# What does it cost that a loader measures itself?",
        "",
        "```text",
        *(__doc__ or "").split("\n\n", 1)[1].rstrip().splitlines(),
        "```",
        "",
        f"- {num_rounds} rounds on {about['cores']} cores of {about['cpu']}, load {about['load_at_start'][0]}",
        f"- gpuload {versions['gpuload']}, Python {versions['python']}; made by `python -m benchmarks.clocks`",
        "",
        "| work | a batch, us | counted | A/B (quarters) |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        low, _, high = quantiles(row["ratios"], n=4)
        ratio = f"{median(row['ratios']):.3f} ({low:.3f} to {high:.3f})"
        lines.append(f"| {row['name']} | {1e6 * row['batch_s']:.1f} | {row['counted']:.2%} | {ratio} |")
    lines += [
        "",
        "| calls a batch | " + " | ".join(row["name"] for row in rows) + " |",
        "|---" + "|---:" * len(rows) + "|",
    ]
    for part in rows[0]["calls"]:
        lines.append(
            f"| {part} ({1e9 * rows[0]['cost'][part]:.0f} ns) | "
            + " | ".join(f"{row['calls'][part]:.3f}" for row in rows)
            + " |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())

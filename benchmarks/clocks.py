"""What does it cost that a loader measures itself?
`python -m benchmarks.clocks [--pairs 30] [--seconds 0.02]`.

    work       what a loop over batches does; tiny rows are the worst case: nothing is there but
               what each batch costs
    calls      how often the loop and the threads of the loader call each part of the measurement,
               for a batch
    counted    these calls times what one of them takes here, as a share of the processor time of a
               batch
    A/B        how much more processor time a batch takes with the measurement than without it: a
               loader, and one alike whose counters do nothing, which exists in this program alone,
               are asked in turns for the batches of so many seconds. Each such pair is one ratio,
               since two loaders that are alike differ, too, by where their memory lies; here are
               the median of all pairs, and between which values it lies with 95 % (bootstrap)
    A/A        the same for two loaders of which neither measures: what is not zero here is the
               error of A/B

Both loaders have as many threads and steps ahead as the first one chooses at its beginning. The
clocks of the core stay on: two reads for a piece of 256 KiB and for an image, of 25 ns each. So
does the clock that decides how many steps are done together: it is no measurement. Results go to
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
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import gpuload as gl
from benchmarks import machine
from benchmarks.folders import RESULTS, save
from gpuload import loader as loaders
from gpuload.pipeline import epoch
from gpuload.stats import Counters, Trace, Watch, stages, watch

Work = Callable[..., gl.Loader]
Kinds = tuple[type[Counters], type[Counters]]
ROOT = Path(__file__).resolve().parents[1]
WARM_UP, ROUNDS = (
    5,
    15,
)  # turns of each loader that do not count; rounds of turns with a pair of loaders
NUM_RESAMPLES = 2000  # of the bootstrap
COUNTED_S = 0.5  # of the loop whose calls are counted
DELIVERED, NUM_DELIVERED = "batch counted", 256
ADDED = "amount added"
BY_TIME = (
    "clock of the loop",
    "times of the loop counted",
    "thread asked",
)  # once in so many milliseconds
PARTS: dict[str, tuple[Any, str]] = {
    "clock of the loop": (epoch, "perf_counter"),
    "times of the loop counted": (epoch.EpochRun, "count_times"),
    "watch made": (Counters, "watch"),
    "stage begun": (Watch, "enter"),
    "amount counted": (Watch, "count"),
    "counters added": (Counters, "add"),
    "thread asked": (stages, "usage"),
}


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the table, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.02)
    parser.add_argument("--only", choices=WORKS, nargs="*")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or WORKS:
            rows.append(measure(name, WORKS[name](Path(folder)), options.pairs, options.seconds))
    text = table(rows, options.pairs)
    save(options.results, "clocks.md", text)
    return 0


def tiny_rows(folder: Path) -> Work:
    """Return batches of one row of 64 bytes."""
    np.save(folder / "tiny.npy", np.zeros((200_000, 16), np.float32))
    return partial(gl.Loader, gl.npy(folder / "tiny.npy"), 1, device="cpu")


def rows(folder: Path) -> Work:
    """Return batches of 64 shuffled rows of 3 KiB."""
    np.save(folder / "rows.npy", np.zeros((60_000, 768), np.float32))
    return partial(gl.Loader, gl.npy(folder / "rows.npy"), 64, shuffle=True, device="cpu")


def small_images(batch_size: int, folder: Path) -> Work:
    """Return batches of small images in memory through compiled ops."""
    images = np.zeros((60_000, 32, 32, 3), np.uint8)
    ops = [gl.ops.RandomFlip(), gl.ops.Normalize(mean=(128.0,) * 3, std=(64.0,) * 3)]
    return partial(
        gl.Loader, gl.arrays(image=images), batch_size, ops=ops, shuffle=True, device="cpu"
    )


def images(folder: Path) -> Work:
    """Return batches of 32 images in a file, cropped and flipped for training."""
    np.save(folder / "images.npy", np.zeros((2_000, 256, 256, 3), np.uint8))
    ops = [gl.ops.RandomResizedCrop(224), gl.ops.RandomFlip()]
    return partial(
        gl.Loader, gl.npy(folder / "images.npy"), 32, ops=ops, shuffle=True, device="cpu"
    )


def python_op(batch_size: int, folder: Path) -> Work:
    """Return batches of rows through a Python function that does nothing."""
    op = gl.ops.Python(lambda x: x, batch=True, out={})
    source = gl.arrays(x=np.zeros((100_000, 16), np.float32))
    return partial(gl.Loader, source, batch_size, ops=[op], device="cpu")


WORKS: dict[str, Callable[[Path], Work]] = {
    "1 tiny row": tiny_rows,
    "64 rows": rows,
    "8 small images": partial(small_images, 8),
    "128 small images": partial(small_images, 128),
    "32 images": images,
    "8 rows, Python op": partial(python_op, 8),
    "256 rows, Python op": partial(python_op, 256),
}


class QuietCounters(Counters):
    """Counters that measure and count nothing."""

    def __init__(self, trace: Trace | None = None) -> None:
        super().__init__(trace)
        self.deliver = self.add = self.trace_watch = self.loop = _nothing  # type: ignore

    def watch(self) -> Watch:
        """Return the watch of a thread that measures nothing."""
        return watch()


def _nothing(*arguments: object, **amounts: object) -> None:
    pass


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put another value in the place of an attribute, for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def counted_calls(loader: gl.Loader, seconds: float) -> tuple[Counter[str], int, float]:
    """Return how often each part is called in a loop, for how many batches, and the processor time
    of one."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **amounts: Any) -> Any:
            calls[name] += 1
            if name == "counters added":
                calls[ADDED] += len(arguments[1])
            return function(*arguments, **amounts)

        return call

    with contextlib.ExitStack() as stack:
        for name, (owner, attribute) in PARTS.items():
            stack.enter_context(
                replaced(owner, attribute, counting(name, getattr(owner, attribute)))
            )
        num_batches, cpu_s = loop(loader, seconds)
    return calls, num_batches, cpu_s / num_batches


def costs() -> dict[str, float]:
    """Return the seconds of a call of each part, the best of some tries."""
    counters, part = Counters(), Watch()
    names, amounts = ("read", "ops"), dict.fromkeys(("a", "b", "c", "d", "e", "f", "g", "h"), 1.0)
    row = (1, 64)
    run = epoch.EpochRun.__new__(epoch.EpochRun)
    run.num_untimed, run.end_s = 1, 0.0

    def begin_stages() -> None:
        part.enter(names[0])
        part.enter(names[1])

    def deliver_batches() -> None:
        for _ in range(NUM_DELIVERED):
            counters.deliver(row)
        counters._add_batches()

    def count_times() -> None:
        run.count_times(counters, 0, 0.0, 1.0, 2.0)
        counters._loops.clear()

    stages._thread.sample_s = float("inf")
    with part:
        seconds = {
            "clock of the loop": best(time.perf_counter),
            "times of the loop counted": best(count_times),
            "watch made": best(counters.watch),
            "stage begun": best(begin_stages) / 2,
            "amount counted": best(lambda: part.count("read.bytes", 1.0)),
            "counters added": (added_s := best(lambda: counters.add())),
            ADDED: (best(lambda: counters.add(**amounts)) - added_s) / len(amounts),
            "thread asked": best(stages.usage),
            DELIVERED: best(deliver_batches, 2_000) / NUM_DELIVERED,
        }
    stages._thread.sample_s = float("-inf")
    return seconds


def best(function: Callable[[], object], count: int = 20_000) -> float:
    """Return the seconds of a call."""
    return min(timeit.repeat(function, number=count, repeat=5)) / count


def loop(loader: gl.Loader, seconds: float) -> tuple[int, float]:
    """Return how many batches a loop of so many seconds takes, and the processor time of all
    threads."""
    number, count = 0, 0
    begin, begin_cpu = time.perf_counter(), time.process_time()
    while True:
        for _ in loader.epoch(number):
            count += 1
            if not count % 64 and time.perf_counter() - begin > seconds:
                return count, time.process_time() - begin_cpu
        number += 1


def measure(name: str, work: Work, num_pairs: int, seconds: float) -> dict[str, Any]:
    """Return the figures of a work."""
    ratios, times = compared(work, (Counters, QuietCounters), num_pairs, seconds)
    same, _ = compared(work, (QuietCounters, QuietCounters), num_pairs, seconds)
    with work() as loader:
        calls, num_batches, slow_s = counted_calls(loader, COUNTED_S)
    calls[DELIVERED] = num_batches
    cost, batch_s = costs(), median(times)
    # Counting makes batches slower, so that there are more of the calls that come once in so many
    # milliseconds.
    per_batch = {
        part: calls[part] / num_batches * (batch_s / slow_s if part in BY_TIME else 1)
        for part in cost
    }
    counted_s = sum(per_batch[part] * cost[part] for part in cost)
    return {
        "name": name, "batch_s": batch_s, "ratios": ratios, "same": same, "counted": counted_s / batch_s,
        "calls": per_batch, "cost": cost,
    }  # fmt: skip


def compared(
    work: Work, kinds: Kinds, num_pairs: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Return for each pair of loaders the time of one to that of the other, and the seconds of a
    batch of the first.

    Args:
        work: makes both.
        kinds: the counters of one, and of the other.
        num_pairs: how many pairs are made.
        seconds: of a turn, about.
    """
    with work() as first:
        setting = {"num_threads": first.num_threads, "prefetch": first.prefetch}
        num_batches, cpu_s = loop(first, 10 * seconds)
    size = max(1, round(num_batches * seconds / cpu_s))
    ratios, times = [], []
    for number in range(num_pairs):
        with contextlib.ExitStack() as stack:
            pair: dict[int, gl.Loader] = {}
            for place in (number % 2, 1 - number % 2):
                with replaced(loaders, "Counters", kinds[place]):
                    pair[place] = stack.enter_context(work(**setting))
            loops = {
                place: chain.from_iterable(map(loader.epoch, count()))
                for place, loader in pair.items()
            }
            spent: dict[int, list[float]] = {0: [], 1: []}
            for place in WARM_UP * [0, 1] + ROUNDS * [0, 1, 1, 0]:
                begin = time.process_time()
                for _ in islice(loops[place], size):
                    pass
                spent[place].append(time.process_time() - begin)
            one_s, other_s = (median(spent[place][WARM_UP:]) for place in (0, 1))
        ratios.append(one_s / other_s)
        times.append(one_s / size)
    return ratios, times


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return between which values the median lies with 95 %."""
    samples = np.random.default_rng(0).choice(ratios, (NUM_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(samples, axis=1), (0.025, 0.975))
    return float(low), float(high)


def shown(ratios: list[float]) -> str:
    """Return the median, and between which values it lies, as differences in percent."""
    low, high = interval(ratios)
    return f"{median(ratios) - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"


def table(rows: list[dict[str, Any]], num_pairs: int) -> str:
    """Return the page."""
    title = "What does it cost that a loader measures itself?"
    lines = [
        *machine.page_head(title, __doc__, f"{num_pairs} pairs of loaders", "clocks", ROOT),
        "| work | a batch, us | counted | A/B (95 %) | A/A (95 %) |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        ratios = " | ".join(map(shown, (row["ratios"], row["same"])))
        lines.append(
            f"| {row['name']} | {1e6 * row['batch_s']:.1f} | {row['counted']:.2%} | {ratios} |"
        )
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

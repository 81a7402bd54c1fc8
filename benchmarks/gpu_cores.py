"""How many images a second come to a GPU from so many cores?
`python -m benchmarks.gpu_cores --result FILE`.

Work    that of `gpu_jpeg`: JPEGs of about 500 x 375 to random-resized-crop 224, flip, normalised
        float32 on the GPU, in batches of 64; the next two batches are taken while the GPU is busy
        with one
Cores   2, 4, 8 and 16, as far as there are so many: all threads of the process may run on these
        alone (sched_setaffinity), and each loader has as many threads or workers
Peers   gpuload's three ways; the three pipelines of DALI that were the fastest in the part JPEG
        (``--jpeg``, its results), else three of them; torchcodec, simplejpeg and tf.data, where
        they are installed. Each in a process of its own, which begins with the most cores
Lines   `LINES`: what a training on an H100 eats. How many cores a loader needs for it is taken from
        the line between two measurements
Plot    ``--plot REPORT.json --result FILE.png`` draws them from a report of `make gpu-test`, which
        does so by itself where Matplotlib is installed
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import gpu, gpu_data, plot
from benchmarks.gpu_jpeg import QUESTION, SHUFFLED
from benchmarks.measure import PEERS_MALLOC, run_process
from benchmarks.question import Epoch, Work, missing
from benchmarks.run import partial_path

CORES = (2, 4, 8, 16)
LINES = {"a ResNet-50": 3_000, "a small ViT": 8_000}
PART = "images over cores"  # of `gpu_report`
ABOUT = (
    "JPEGs of about 500 x 375 to 224 x 224, normalised float32 on the GPU; images/s. The lines: on an H100 a ResNet-50 "
    "eats about 3,000 images/s, a small ViT about 8,000; how many cores a loader needs for each."
)
COLUMNS = (
    "loader", *(f"{count} cores" for count in CORES), *(f"cores for {rate:,}/s" for rate in LINES.values()), "form",
)  # fmt: skip

WAYS = ("gpuload_host", "gpuload", "gpuload_dali_host")
OF_DALI = ("dali", "dali_cuda", "dali_host")  # where no measurement says otherwise
LIBRARIES = ("torchcodec", "torch", "tfdata")
NUM_OF_DALI = 3

WARM_S, TIMED_S = 0.5, 1.2  # of a loader with so many cores
PEER_S, LEAST_S = 35.0, 15.0  # that a peer may take, with its imports, and that must be left for it
MARK = "rate: "


def main(arguments: list[str] | None = None) -> int:
    """Write a row for each peer as soon as it was measured; the exit status is 1 if one of
    gpuload's ways failed."""
    options = _parser().parse_args(arguments)
    if options.peer:
        measure(options.peer, options.cores, options.smoke)
        return 0
    if options.plot:
        outcomes = json.loads(options.plot.read_text(encoding="utf-8"))["outcomes"]
        draw(outcomes[PART]["rows"], options.result)
        return 0
    end = math.inf if options.smoke else perf_counter() + options.seconds
    counts = [count for count in CORES if count <= len(os.sched_getaffinity(0))]
    rates: dict[str, dict[int, float]] = {}
    problems: dict[str, str] = {}
    gpu_data.jpegs(options.smoke)
    for name in (*WAYS, *best_of_dali(options.jpeg), *LIBRARIES):
        rates[name] = {}
        left_s = end - perf_counter()
        if left_s < LEAST_S:
            problems[name] = f"not measured: {LEAST_S:.0f} s were not left"
        elif absent := missing(QUESTION.needs(SHUFFLED, QUESTION.peer(name))):
            problems[name] = f"absent: {', '.join(absent)} not installed"
        else:
            rates[name], problem = _in_process(name, counts, min(PEER_S, left_s), options.smoke)
            problems |= {name: f"failed: {problem}"} if problem else {}
        gpu.write_rows(options.result, *_table(rates, problems), _targets(rates))
        print(*rows(rates, problems)[-1], sep="  ", flush=True)
    return int(any(problems.get(name, "").startswith("failed") for name in WAYS))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_cores", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--result", type=Path, help="the rows, JSON")
    parser.add_argument(
        "--jpeg",
        type=Path,
        help="results of the question gpu_jpeg: which pipelines of DALI are fast",
    )
    parser.add_argument(
        "--seconds", type=float, default=150.0, help="no peer begins that could take longer"
    )
    parser.add_argument("--smoke", action="store_true", help="little data; the rates mean nothing")
    parser.add_argument(
        "--plot", type=Path, metavar="REPORT", help="draw the rates of a report of make gpu-test"
    )
    parser.add_argument("--peer", help="used by itself: measure this one, in this process")
    parser.add_argument("--cores", type=int, nargs="+", help="used by itself")
    return parser


def best_of_dali(path: Path | None) -> tuple[str, ...]:
    """Return the names of the three fastest pipelines of DALI in the results of `gpu_jpeg`; OF_DALI
    without them."""
    path = path if path is None or path.exists() else partial_path(path)
    if path is None or not path.exists():
        return OF_DALI
    rows = plot.variants(json.loads(path.read_text(encoding="utf-8"))).get(SHUFFLED, [])
    names = [
        row.peer for row in rows if row.peer.startswith("dali") and row.rates
    ]  # the fastest one first
    return tuple(dict.fromkeys((*names, *OF_DALI)))[:NUM_OF_DALI]


def _in_process(
    name: str, counts: Sequence[int], limit_s: float, is_short: bool
) -> tuple[dict[int, float], str]:
    """Return the rates of a peer by numbers of cores, and why there are no more of them."""
    words = ["--peer", name, "--cores", *map(str, sorted(counts, reverse=True))]
    if is_short:
        words.append("--smoke")
    command = [sys.executable, "-m", "benchmarks.gpu_cores", *words]
    variables = {} if name in WAYS else PEERS_MALLOC
    out, problem = run_process(command, variables, None if is_short else limit_s)
    lines = (line.removeprefix(MARK).split() for line in out.splitlines() if line.startswith(MARK))
    rates = {int(count): float(rate) for count, rate in lines}
    if len(rates) == len(counts):
        return rates, ""
    errors = [line for line in problem["errors"] if line.strip()]
    return rates, f"{problem['failed']}: {' '.join(errors[-1:])[:200]}"


def measure(name: str, counts: Sequence[int], is_short: bool) -> None:
    """Print a peer's rate for each number of cores, in this process."""
    peer, num_records = QUESTION.peer(name), QUESTION.num_records[is_short]
    work = Work(SHUFFLED, gpu_data.jpegs(is_short), num_records, QUESTION.batch_size)
    cores, times = sorted(os.sched_getaffinity(0)), (0.1, 0.2) if is_short else (WARM_S, TIMED_S)
    for count in counts:
        run_on(cores[:count])
        print(f"{MARK}{count} {rate(peer.build(work), *times)}", flush=True)
    os._exit(0)  # nothing that a peer has started may hold up the others


def run_on(cores: Sequence[int]) -> None:
    """Have all threads of this process, and those that they will start, run on these cores
    alone."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:  # it has just ended
            continue


def rate(epoch: Epoch, warm_s: float, timed_s: float) -> float:
    """Return the records/s of passes, one behind the other, without the first seconds."""
    batches = itertools.chain.from_iterable(epoch() for _ in itertools.count())
    for seconds in (warm_s, timed_s):
        begin, count = perf_counter(), len(next(batches))
        while perf_counter() - begin < seconds:
            count += len(next(batches))
        took_s = perf_counter() - begin
    return round(count / took_s, 1)


def rows(rates: dict[str, dict[int, float]], problems: dict[str, str]) -> list[list[str]]:
    """Return a row for each peer."""
    table = []
    for name, of_cores in rates.items():
        cells = [f"{of_cores[count]:,.0f}" if count in of_cores else "-" for count in CORES]
        needs = [cores_for(of_cores, line) for line in LINES.values()]
        peer = QUESTION.peer(name)
        form = "; ".join(filter(None, (peer.about, problems.get(name, ""))))
        table.append([f"**{name}**" if name in WAYS else name, *cells, *needs, form])
    return table


def _table(
    rates: dict[str, dict[int, float]], problems: dict[str, str]
) -> tuple[list[list[str]], list[str]]:
    return rows(rates, problems), [f"{name}: {why}" for name, why in problems.items()]


def draw(rows: Sequence[Sequence[str]], path: Path) -> None:
    """Draw the rates of rows over cores, with the lines of what trainings eat."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    panel: Any = figure.subplots()
    for name, *cells in rows:
        points = [
            (count, float(cell.replace(",", "")))
            for count, cell in zip(CORES, cells, strict=False)
            if cell != "-"
        ]
        if points:
            label = name.strip("*")
            style, width = ("o-", 2.4) if label in WAYS else ("o--", 1.2)
            panel.plot(*zip(*points, strict=True), style, lw=width, label=label)
    for training, line in LINES.items():
        panel.axhline(line, color="#555555", lw=0.8)
        panel.annotate(
            f"{training}: {line:,}/s",
            (CORES[-1], line),
            (0, 3),
            textcoords="offset points",
            ha="right",
        )
    panel.set_xscale("log", base=2)
    panel.set_xticks(CORES, [str(count) for count in CORES])
    panel.set(
        xlabel="cores",
        ylabel="images/s on the GPU",
        xlim=(CORES[0] * 0.9, CORES[-1] * 1.1),
        ylim=(0, None),
    )
    panel.legend(fontsize=9)
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def cores_for(rates: dict[int, float], line: float) -> str:
    """Return how many cores a rate takes, between two measurements on the line from the one to the
    other.

    {2: 1000, 4: 2000}    1,500: "3.0"    900: "at most 2"    3,000: "more than 4"
    """
    if not rates:
        return "-"
    counts = sorted(rates)
    if rates[counts[0]] >= line:
        return f"at most {counts[0]}"
    for low, high in itertools.pairwise(counts):
        if rates[low] < line <= rates[high]:
            return f"{low + (high - low) * (line - rates[low]) / (rates[high] - rates[low]):.1f}"
    return f"more than {counts[-1]}"


def _targets(rates: dict[str, dict[int, float]]) -> list[gpu.Target]:
    """Return what decoding on the host reaches with the most cores, beside the lines."""
    of_host = rates.get("gpuload_host")
    if not of_host:
        return []
    most = max(of_host)
    name = "images/s of decoding on the host from {} cores, for {}"
    return [gpu.Target(name.format(most, of), of_host[most], line) for of, line in LINES.items()]


if __name__ == "__main__":
    sys.exit(main())

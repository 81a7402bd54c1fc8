"""Run the benchmarks: `python -m benchmarks.run [--rounds 5] [--only npy_rows] [--cold | --large]
[--smoke]`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import gpu, plot
from benchmarks.folders import RESULTS
from benchmarks.measure import TIMES_MEMORY, Settings, measure
from benchmarks.question import BY_NAME, NAMES, find


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write JSON, tables and plots; the exit status is 1 if a peer that is installed
    failed."""
    options = _parser().parse_args(arguments)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # an exit, so that the process at work is ended too
    settings = Settings(
        data=options.data,
        rounds=1 if options.smoke else options.rounds,
        seconds=0.0 if options.smoke else options.seconds,
        smoke=options.smoke,
        cache=options.cache,
        peers=tuple(options.peers or ()),
        variants=tuple(options.variants or ()),
    )
    folder = options.results or (
        Path(tempfile.mkdtemp(prefix="benchmarks-")) if options.smoke else RESULTS
    )
    folder.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name in questions(options.only, settings):
        start = perf_counter()
        path = folder / f"{name}{'' if settings.cache == 'warm' else f'.{settings.cache}'}.json"
        results = measure(find(name), settings, _say, partial(write, partial_path(path)))
        if name in gpu.NAMES:
            results["versions"] |= gpu.versions()
        write(path, results)
        partial_path(path).unlink(missing_ok=True)
        plot.write(path)
        failures += _tell(path, results, perf_counter() - start)
    return 1 if failures else 0


def partial_path(path: Path) -> Path:
    """Return where the results of a run are that goes on, or was ended: ``NAME.partial.json``
    beside ``NAME.json``."""
    return path.with_suffix(".partial.json")


def write(path: Path, results: dict[str, Any]) -> None:
    """Write results, whole or not at all."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def questions(only: list[str] | None, settings: Settings) -> list[str]:
    """Return the questions to ask: those that can be asked, or those that were named; none about a
    GPU without one."""
    able = [name for name in NAMES if settings.cache != "large" or find(name).record_bytes]
    able += gpu.NAMES if settings.cache == "warm" else ()
    unable = set(only or ()).difference(able, BY_NAME if settings.cache == "warm" else ())
    if unable:
        names, conditions = (
            ", ".join(sorted(unable)),
            {"large": "data larger than memory", "cold": "a cold page cache"},
        )
        sys.exit(
            f"{names}: not asked of {conditions[settings.cache]}; those that are: {', '.join(able)}"
        )
    names = only or able
    on_gpu = [name for name in names if name in gpu.NAMES]
    if on_gpu and (problem := gpu.problem()):
        print(
            f"{', '.join(on_gpu)}: left out, as there is no GPU to measure: {problem.cause}",
            file=sys.stderr,
            flush=True,
        )
        names = [name for name in names if name not in on_gpu]
    return names


def _parser() -> argparse.ArgumentParser:
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Measure gpuload beside its peers."
    )
    parser.add_argument("--rounds", type=int, default=defaults.rounds)
    parser.add_argument(
        "--seconds",
        type=float,
        default=defaults.seconds,
        help="timed at least this long per process",
    )
    parser.add_argument(
        "--only", nargs="+", choices=(*NAMES, *BY_NAME, *gpu.NAMES), help="these questions only"
    )
    parser.add_argument("--peers", nargs="+", help="these peers only")
    parser.add_argument("--variants", nargs="+", help="these variants only")
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument("--cold", dest="cache", action="store_const", const="cold", default=defaults.cache,
                       help="drop the data from the page cache before each pass")  # fmt: skip
    cache.add_argument("--large", dest="cache", action="store_const", const="large",
                       help=f"the same with {TIMES_MEMORY} times as much data as there is memory")  # fmt: skip
    parser.add_argument(
        "--smoke", action="store_true", help="little data, one round: does it all work?"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=defaults.data,
        help="where the data is made ($GPULOAD_BENCH_DATA)",
    )
    parser.add_argument(
        "--results", type=Path, help="default benchmarks/results, a temporary folder for --smoke"
    )
    return parser


def _tell(path: Path, results: dict[str, Any], took_s: float) -> int:
    """Print the table and what is wrong; return how many samples failed."""
    print(path.with_suffix(".md").read_text(encoding="utf-8"))
    print(f"{path} written after {took_s:.0f} s\n", flush=True)
    return sum("failed" in sample for entry in results["entries"] for sample in entry["samples"])


if __name__ == "__main__":
    sys.exit(main())

"""What does training see of a loader beside its steady rate?
`python -m benchmarks.training [--only WORKS]`.

Start    a new process whose packages are imported and whose files are in the page cache: seconds
         until the batches 1, 10 and 100 (gpuload's own import counts), and which share of its
         steady rate a peer delivers in the first 2 s
Step     a loop with a step of 2 ms, which sleeps, or keeps a core busy: milliseconds a batch that
         next() takes
Memory   most that a peer adds while it makes whole passes
Peers    those of the questions, each as there, in turns; each figure is of a process of its own
         (`loops`, `measure`)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.folders import RESULTS
from benchmarks.loops import BATCHES, FIRST_S, MARK
from benchmarks.measure import PEERS_MALLOC, Settings, run_process
from benchmarks.measure import measure as measure_passes
from benchmarks.question import Peer, Question, find, missing

ROOT = Path(__file__).parents[1]
WORKS = ("npy_rows", "fixed_images", "jpeg_training")
VARIANT = "shuffled"
LOOPS = ("fresh", "steps")
STEPS = {"waits beside a sleeping step, ms": "sleeping", "waits beside a busy step, ms": "busy"}

Figures = dict[str, float]


def main(arguments: list[str] | None = None) -> int:
    """Measure, write JSON and tables, and print them; the exit status is 1 if a peer that is
    installed failed."""
    options = _parser().parse_args(arguments)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # an exit, so that the process at work is ended too
    settings = Settings(
        data=options.data, rounds=1 if options.smoke else options.rounds, seconds=0.0 if options.smoke else 1.0,
        smoke=options.smoke, peers=tuple(options.peers or ()), variants=(VARIANT,),
    )  # fmt: skip
    words = sys.argv[1:] if arguments is None else arguments
    results: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks.training", *words]),
        "versions": machine.versions(ROOT),
        "works": {},
    }
    for name in options.only or WORKS:
        question = find(name)
        path = question.prepare(settings.data, settings.records(question))
        results.setdefault("machine", machine.machine(path))
        results["works"][name] = measure(question, path, settings, _tell)
    results["machine"]["load_at_end"] = [round(load, 2) for load in os.getloadavg()]
    text = page(results)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "training.json").write_text(
        json.dumps(results, indent=1) + "\n", encoding="utf-8"
    )
    (options.results / "training.md").write_text(text, encoding="utf-8")
    print(text)
    return int(any(sample["failed"] for work in results["works"].values() for sample in work))


def measure(
    question: Question, path: Path, settings: Settings, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return the samples of a question: peer, round, its figures, and what failed."""
    peers = [
        peer
        for variant, peer in question.jobs(settings.cache)
        if variant == VARIANT
        and peer.role != "limit"
        and (not settings.peers or peer.name in settings.peers)
        if not missing(question.needs(variant, peer))
    ]
    machine.read_once(machine.files_of(path))
    samples = []
    for number in range(settings.rounds):
        for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
            figures, errors = _figures(question, peer, path, settings)
            samples.append(
                {
                    "peer": peer.name,
                    "role": peer.role,
                    "round": number,
                    "figures": figures,
                    "failed": errors,
                }
            )
            tell(
                f"{question.name} round {number + 1} of {settings.rounds}: {peer.name} {errors or json.dumps(figures)}"
            )
    return samples


def _figures(
    question: Question, peer: Peer, path: Path, settings: Settings
) -> tuple[Figures, list[str]]:
    """Return the figures of a peer in one round, and a line for each loop that failed."""
    figures: Figures = {}
    failures = []
    for loop in LOOPS:
        task = {
            "loop": loop, "folder": str(ROOT), "question": question.name, "variant": VARIANT, "path": str(path),
            "num_records": settings.records(question), "seconds": settings.seconds, "peer": peer.name,
        }  # fmt: skip
        malloc = {} if peer.role == "ours" else PEERS_MALLOC
        out, problem = run_process(
            [sys.executable, "-m", "benchmarks.loops", json.dumps(task)], malloc
        )
        lines = [line.removeprefix(MARK) for line in out.splitlines() if line.startswith(MARK)]
        if lines:
            figures |= json.loads(lines[0])
        else:
            failures.append(f"{loop}: {problem['failed']}")
    one_peer = Settings(**{**vars(settings), "rounds": 1, "peers": (peer.name,)})
    sample = measure_passes(question, one_peer)["entries"][0]["samples"][0]
    if "failed" in sample:
        failures.append(f"passes: {sample['failed']}")
    else:
        figures |= {"records/s": sample["records_per_s"], "added MB": sample["added_mb"]}
    return _derived(figures, question.batch_size), failures


def _derived(figures: Figures, batch_size: int) -> Figures:
    """Return the figures with what is computed from them."""
    figures_of_steps: Figures = {}
    for name, step in STEPS.items():
        share, rate = (
            figures.get(f"{figure} beside a {step} step")
            for figure in ("share of next()", "batches/s")
        )
        if share is not None and rate:
            figures_of_steps[name] = 1e3 * share / rate
    at_first, rate = figures.get(f"fresh, batches in {FIRST_S:g} s"), figures.get("records/s")
    if at_first is not None and rate:
        figures_of_steps[SHARE] = at_first * batch_size / (rate * FIRST_S)
    return figures | figures_of_steps


SHARE = f"share of the rate in the first {FIRST_S:g} s"
COLUMNS = {
    **{f"fresh, s to batch {number}": f"batch {number}, s" for number in BATCHES},
    SHARE: SHARE,
    **{name: name for name in STEPS},
    "added MB": "added MB",
}


def page(results: dict[str, Any]) -> str:
    """Return the tables, one for each work: medians, the lowest and the highest beside them."""
    about = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines = [
        f"`{results['command']}`: {about['cpu']}, {about['cores']} cores, load {about['load_at_start'][0]} to "
        f"{about['load_at_end'][0]}, {results['date'][:10]}; {versions}",
    ]
    for name, samples in results["works"].items():
        question = find(name)
        lines += ["", f"{question.asks} Batches of {question.batch_size}.", ""]
        lines += [f"| loader | {' | '.join(COLUMNS.values())} |", f"|---{'|---:' * len(COLUMNS)}|"]
        for peer in dict.fromkeys(sample["peer"] for sample in samples):
            peer_samples = [sample for sample in samples if sample["peer"] == peer]
            cells = [_cell([sample["figures"][column] for sample in peer_samples if column in sample["figures"]])
                     for column in COLUMNS]  # fmt: skip
            lines.append(
                f"| {f'**{peer}**' if peer_samples[0]['role'] == 'ours' else peer} | {' | '.join(cells)} |"
            )
        lines += [
            f"\n{sample['peer']} failed: {failure}"
            for sample in samples
            for failure in sample["failed"]
        ]
    return "\n".join([*lines, ""])


def _cell(numbers: list[float]) -> str:
    if not numbers:
        return ""
    middle, *ends = (f"{number:.3g}" for number in (median(numbers), min(numbers), max(numbers)))
    return middle if len(numbers) == 1 else f"{middle} ({ends[0]} to {ends[1]})"


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=WORKS, help="these works only")
    parser.add_argument("--peers", nargs="+", help="these peers only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--smoke", action="store_true", help="little data, one round: does it all work?"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=defaults.data,
        help="where the data is made ($GPULOAD_BENCH_DATA)",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

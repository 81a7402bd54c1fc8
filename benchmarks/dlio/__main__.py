"""How many accelerators does a loader feed? `python -m benchmarks.dlio [--only WORKLOADS] [--rounds
N] [--full]`.

Work     the trainings of `workloads.py`, by DLIO's own program: MPI, epochs, steps, a sleep in the
         place of each computation, and the accelerator utilisation (AU) that DLIO computes itself.
         A process for each loader and round (`train.py`)
Demand   one rank with a step that is k times as short asks for as many records a second as k
         accelerators do. So k is found to a tenth (`search.py`), also where a core feeds less than
         one accelerator
Loaders  gpuload, DLIO's own, and DLIO's synthetic one, which reads nothing: what DLIO and this
         machine can do at all
Turns    the loaders of a workload take turns in each round, beginning with another one; ratios are
         within a round
Results  of each workload, beside those of earlier runs for the others
Cache    the files are in the page cache: what is measured is what a loader costs the cores, not the
         storage
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from datetime import datetime, timezone
from importlib import metadata, util
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import data, machine
from benchmarks.dlio import page, workloads
from benchmarks.dlio.train import MARK, Task
from benchmarks.dlio.workloads import FULL, LOADERS, NAMES, Size, Workload
from benchmarks.measure import run_process

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
DATA = ROOT / "build" / "dlio-data"
TIMEOUT_S = 900  # of a loader in a round
PACKAGES = ("dlio-benchmark", "mpi4py", "mpich", "pydftracer")
BIN = Path(sys.executable).parent
TFRECORD2IDX = Path(__file__).resolve().parent / "bin" / "tfrecord2idx"


def main(arguments: list[str] | None = None) -> int:
    """Make the files, measure, write JSON and table, and print the table; 1 if a loader that DLIO
    has failed."""
    options = _parser().parse_args(arguments)
    if util.find_spec("dlio_benchmark") is None:
        sys.exit(
            "this Python has no dlio-benchmark: make dlio brings it, in an environment of its own"
        )
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # an exit, so that the process at work is ended too
    words = sys.argv[1:] if arguments is None else arguments
    failures = 0
    for name in options.only or NAMES:
        workload = workloads.find(name)
        size = FULL if options.full else workload.small
        folder = make_files(workload, size, options.data)
        start, computer = perf_counter(), machine.machine(folder)
        samples = [
            sample | {"round": number}
            for number in range(options.rounds)
            for sample in measure_round(
                workload, size, folder, options.loaders or LOADERS, number, options.ranks
            )
        ]
        result = _head(workload, size) | {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(["python -m benchmarks.dlio", *words]),
            "took_s": round(perf_counter() - start),
            "machine": computer | {"load_at_end": [round(load, 2) for load in os.getloadavg()]},
            "versions": machine.versions(ROOT)
            | {package: metadata.version(package) for package in PACKAGES},
            "settings": {"rounds": options.rounds, "epochs": size.epochs, "ranks": options.ranks},
            "samples": samples,
        }
        write_results(name, result, options.results)
        failures += sum("failed" in sample for sample in samples)
    print((options.results / "dlio.md").read_text(encoding="utf-8"))
    return int(failures > 0)


def write_results(name: str, result: dict[str, Any], folder: Path) -> None:
    """Write the result of a workload beside those of the others, and the page of all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dlio.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    results = dict(
        sorted((results | {name: result}).items(), key=lambda item: NAMES.index(item[0]))
    )
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page.page(results), encoding="utf-8")


def make_files(workload: Workload, size: Size, folder: Path) -> Path:
    """Return the folder of a workload's files, which DLIO writes where they are not there yet."""

    def write(path: Path) -> None:
        _tell(f"{workload.name}: DLIO writes {workload.files(size):,} files")
        _, problem = _run(Task(workload.name, size, path, None, 1), 1, None)
        if problem["failed"] != "exit status 0":
            sys.exit(
                "\n".join(
                    [*problem["errors"], f"DLIO did not write the files: {problem['failed']}"]
                )
            )

    whole = f"{workload.name}-{workload.files(size)}-{round(workload.record_length * size.record_share)}"
    path = data.once(folder / whole, write)
    if size != FULL:
        machine.read_once(machine.files_of(path))
    return path


def measure_round(
    workload: Workload, size: Size, folder: Path, loaders: tuple[str, ...], number: int, ranks: int
) -> list[dict[str, Any]]:
    """Return a sample of each loader that DLIO has for a workload: the loaders take turns, each
    round another first."""
    present = [name for name in loaders if name not in workload.absent]
    turn = number % len(present)
    return [
        _sample(workload, size, folder, name, ranks) for name in present[turn:] + present[:turn]
    ]


def _sample(
    workload: Workload, size: Size, folder: Path, loader: str, ranks: int
) -> dict[str, Any]:
    """Return how many accelerators a loader feeds, with all that was measured on the way."""
    task = Task(workload.name, size, folder, loader, max(1, machine.cores() // ranks))
    out, problem = _run(task, ranks, None if size == FULL else TIMEOUT_S)
    lines = [line.removeprefix(MARK) for line in out.splitlines() if line.startswith(MARK)]
    sample: dict[str, Any] = (
        json.loads(lines[0]) if lines else {"loader": loader, "tries": [], **problem}
    )
    if "failed" in sample:
        print(*problem["errors"], sep="\n", file=sys.stderr)
    for line in sample["tries"]:
        _tell(
            f"{workload.name} {loader}: AU {line['au_mean']:.3f} with {line['accelerators']:.3f} accelerators"
        )
    _tell(f"{workload.name} {loader}: {sample.get('failed') or sample['accelerators']}")
    return sample


def _run(task: Task, ranks: int, timeout_s: float | None) -> tuple[str, dict[str, Any]]:
    """Do a task with so many ranks; return its output, and what to say if something is missing
    there."""
    command = [sys.executable, "-m", "benchmarks.dlio.train", task.to_json()]
    if ranks > 1:
        command = [str(BIN / "mpiexec"), "-n", str(ranks), *command]
    variables = {
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join([str(TFRECORD2IDX.parent), str(BIN), os.environ["PATH"]]),
        "DFTRACER_ENABLE": "0",  # the tracer of DLIO's calls costs DLIO's own loaders more than gpuload
    }
    return run_process(command, variables, timeout_s)


def _head(workload: Workload, size: Size) -> dict[str, Any]:
    return {
        "title": workload.title,
        "origin": workload.origin,
        "required": workload.required,
        "files": workload.files(size),
        "batch_size": workload.batch(size),
        "record_share": size.record_share,
        "step_s": workload.step_s(size),
        "absent": workload.absent,
    }


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dlio", description="Emulated trainings, by DLIO."
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, help="these workloads only")
    parser.add_argument("--loaders", nargs="+", choices=LOADERS, help="these loaders only")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        help="processes of a training, by mpiexec; the cores are shared",
    )
    parser.add_argument(
        "--full", action="store_true", help="the sizes of the workloads' descriptions: terabytes"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="where DLIO's files are")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Is today's tree as fast as another revision?
`python -m benchmarks.compare REV [--only WORKS] [--rounds 5]`.

REV      a git revision, or a folder that holds a package gpuload which is ready for use
Turns    each work and each of its loops (`loops`) runs in a process with today's tree and directly
         after it in one with REV's; in every second round REV's comes first. A ratio is taken
         within a round
Code     today's `benchmarks` on both sides; a work that REV's gpuload cannot do fails there: leave
         it out by --only
Ratio    how many times as fast today's tree is, also where seconds are measured: less than 1 is
         slower
Places   `build/compare/COMMIT`, for the next call: `tree` has the files of REV; `tree/.venv` is
         made by REV's own `make setup` if it asks for other packages than today's (minutes; EXTRA
         in the environment as for make); `site` is made by pip if the packages are the same and
         something has to be compiled
Status   1 if a work fell by more than a tenth in any figure, by the median of the rounds, or if one
         failed
"""

from __future__ import annotations

import argparse
import importlib.machinery
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import data, gpu, machine, run
from benchmarks.loops import BETTER, MARK, PEER
from benchmarks.measure import Settings, run_process
from benchmarks.question import NAMES, Question, find

ROOT = Path(__file__).resolve().parents[1]
MAY_FALL = 0.1
TODAY = "today"

Sample = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """One of the two trees.

    Args:
        name: in tables.
        folder: holds the package gpuload.
        python: runs it.
        caches: a folder for what gpuload keeps, as the other side's may have another form.
    """

    name: str
    folder: Path
    python: str
    caches: Path

    def versions(self) -> dict[str, str]:
        """Return the versions of Python and of the packages that it runs with."""
        code = "import json, pathlib; from benchmarks import machine; "
        code += "print(json.dumps(machine.versions(pathlib.Path.cwd())))"
        out, problem = run_process([self.python, "-c", code], {})
        if not out:
            sys.exit(f"{self.python} does not work: {problem}")
        return {package: version for package, version in json.loads(out).items() if package != PEER}


def main(arguments: list[str] | None = None) -> int:
    """Measure both trees and print the table; return the exit status."""
    options = _parser().parse_args(arguments)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # an exit, so that the process at work is ended too
    settings = Settings(
        data=options.data,
        rounds=options.rounds,
        seconds=0.0 if options.smoke else options.seconds,
        smoke=options.smoke,
    )
    sides, works = (today(), other_side(options.revision)), works_of(options.only)
    for side in sides:  # as pip does; a tree whose modules Python has to translate first would be late in each process
        _do([side.python, "-m", "compileall", "-q", str(side.folder / PEER)])
    load, begin = round(os.getloadavg()[0], 2), perf_counter()
    samples = measure(
        sides, works, options.loops, settings, lambda line: print(line, file=sys.stderr, flush=True)
    )
    rows = table_rows(samples)
    print("\n".join(head(sides, options.rounds, load)), "", table(rows, sides[1].name), sep="\n")
    failures = [sample for sample in samples if "failed" in sample]
    for sample in failures:
        label = f"{sample['work']}, {sample['loop']}, {sample['side']}"
        print(f"\n{label}: {sample['failed']}", *sample["errors"], sep="\n  ")
    slower = [row for row in rows if row.fell]
    print(
        f"\n{len(slower)} of {len(rows)} figures fell by more than a tenth; {perf_counter() - begin:.0f} s"
    )
    return 1 if slower or failures else 0


def today() -> Side:
    """Return the side of this tree, with the Python that runs now."""
    check_core(ROOT, ROOT, "make core")
    return Side(TODAY, ROOT, sys.executable, _trees() / TODAY)


def other_side(revision: str) -> Side:
    """Return the side of a revision, ready to run, or that of a folder."""
    folder = Path(revision).resolve()
    if (folder / PEER).is_dir():
        check_core(folder, folder, "build it there")
        return Side(revision, folder, sys.executable, _trees() / f"folder-{folder.name}")
    commit = (
        _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        .decode()
        .strip()[:12]
    )
    place = _trees() / commit
    tree, python = data.once(place / "tree", lambda path: _extract(commit, path)), sys.executable
    folder = tree
    if packages(tree) != packages(ROOT):
        _do(["make", "-C", str(tree), "setup", f"PYTHON={sys.executable}"])
        python = str(tree / ".venv" / "bin" / "python")
    elif (tree / "setup.py").exists():
        install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target"]
        folder = data.once(place / "site", lambda path: _do([*install, str(path), str(tree)]))
    check_core(folder, tree, f"see the lines above, delete {place} and call again")
    return Side(revision, folder, python, place / "caches")


def _trees() -> Path:
    return ROOT / "build" / "compare"


def _extract(commit: str, path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
        archive.extractall(path, filter="data")


def packages(tree: Path) -> tuple[str, str]:
    """Return what an environment is made from: all of pyproject.toml before its settings of tools,
    and versions."""
    asks = (tree / "pyproject.toml").read_text(encoding="utf-8").partition("\n[tool.")[0]
    return asks, (tree / "constraints.txt").read_text(encoding="utf-8")


def check_core(folder: Path, tree: Path, remedy: str) -> None:
    """End the program if a tree has a core to compile and it is not compiled, or older than its
    files."""
    changed = [path.stat().st_mtime for path in (tree / PEER / "core" / "cpp").rglob("*.?pp")]
    names = [
        folder / PEER / "core" / f"_native{suffix}"
        for suffix in importlib.machinery.EXTENSION_SUFFIXES
    ]
    built = [path.stat().st_mtime for path in names if path.exists()]
    if changed and (not built or max(built) < max(changed)):
        problem = "is older than its C++ files" if built else "is not compiled"
        sys.exit(f"{folder}: the core {problem}, and its rates would not be gpuload's; {remedy}")


def _git(*command: str) -> bytes:
    process = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, check=False)
    if process.returncode:
        sys.exit(f"git {' '.join(command)}: {process.stderr.decode(errors='replace').strip()}")
    return process.stdout


def _do(command: list[str]) -> None:
    """Run a command that prepares a tree; what it prints goes to stderr, as stdout is for the
    table."""
    code = subprocess.run(command, stdout=2, check=False).returncode
    if code:
        sys.exit(f"{' '.join(command)}: exit status {code}")


def works_of(only: list[str] | None) -> list[tuple[Question, str]]:
    """Return the works, (question, variant): all, or those of these names, without those that need
    a GPU and have none.

    A name is a question's, npy_rows, or a work's as in the table, npy_rows/shuffled.
    """
    works = [
        (find(name), variant) for name in (*NAMES, *gpu.NAMES) for variant in find(name).variants
    ]
    known_names = {name for work in works for name in _names(*work)}
    if unknown := set(only or ()) - known_names:
        sys.exit(
            f"no such work: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known_names))}"
        )
    selection = [work for work in works if not only or _names(*work) & set(only)]
    able = run.questions(
        list(dict.fromkeys(question.name for question, _ in selection)), Settings()
    )
    return [(question, variant) for question, variant in selection if question.name in able]


def _names(question: Question, variant: str) -> set[str]:
    return {question.name, f"{question.name}/{variant}"}


def measure(
    sides: tuple[Side, Side],
    works: list[tuple[Question, str]],
    loops: list[str],
    settings: Settings,
    tell: Callable[[str], None],
) -> list[Sample]:
    """Return the samples of all rounds: work, loop, round, side, and figures or why there are
    none."""
    paths = {
        question.name: question.prepare(settings.data, settings.records(question))
        for question, _ in works
    }
    samples = []
    for number in range(settings.rounds):
        for question, variant in works:
            path = paths[question.name]
            machine.read_once(machine.files_of(path))
            for loop in sorted(
                loops, key=list(BETTER).index
            ):  # the last one leaves a cold page cache
                for side in sides if number % 2 == 0 else sides[::-1]:
                    task = {
                        "loop": loop,
                        "folder": str(side.folder),
                        "question": question.name,
                        "variant": variant,
                        "path": str(path),
                        "num_records": settings.records(question),
                        "seconds": settings.seconds,
                    }
                    result = run_loop(side, task)
                    about = {
                        "work": f"{question.name}/{variant}",
                        "loop": loop,
                        "side": side.name,
                        "round": number,
                    }
                    samples.append({**about, **result})
                    summary = result.get("failed") or json.dumps(result["figures"])
                    tell(
                        f"round {number + 1} of {settings.rounds}: {about['work']} {loop} {side.name} {summary}"
                    )
    return samples


def run_loop(side: Side, task: dict[str, Any]) -> Sample:
    """Run one loop in a process of its own."""
    with ExitStack() as stack:
        kernels = side.caches / "kernels"
        if task["loop"] == "fresh":
            kernels = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if task["loop"] == "cold":
            machine.drop(
                [*machine.files_of(Path(task["path"])), *machine.files_of(side.caches / "files")]
            )
        # Revisions before the compiled core keep in the first of these what they compile as they
        # run.
        folders = {"NUMBA_CACHE_DIR": str(kernels), "GPULOAD_CACHE": str(side.caches / "files")}
        out, problem = run_process(
            [side.python, "-m", "benchmarks.loops", json.dumps(task)], folders
        )
    lines = [line.removeprefix(MARK) for line in out.splitlines() if line.startswith(MARK)]
    return {"figures": json.loads(lines[0])} if lines else problem


@dataclass(frozen=True)
class Row:
    """What the table says of one figure of a work; a ratio is above 1 where today's tree is
    better."""

    work: str
    figure: str
    today: float
    other_rate: float
    ratios: tuple[float, ...]

    @property
    def fell(self) -> bool:
        """Whether today's tree is slower by more than a tenth."""
        return bool(self.ratios) and median(self.ratios) < 1 - MAY_FALL


def table_rows(samples: list[Sample]) -> list[Row]:
    """Return a row for each figure that both sides have in a round."""
    values: dict[tuple[str, str, str], dict[int, dict[bool, float]]] = {}
    for sample in samples:
        for figure, value in sample.get("figures", {}).items():
            rounds = values.setdefault((sample["work"], sample["loop"], figure), {})
            rounds.setdefault(sample["round"], {})[sample["side"] == TODAY] = value
    return [row for key, rounds in values.items() for row in _row(*key, [*rounds.values()])]


def _row(work: str, loop: str, figure: str, rounds: list[dict[bool, float]]) -> Iterator[Row]:
    pairs = [
        (values[True], values[False])
        for values in rounds
        if len(values) == 2 and all(values.values())
    ]
    if pairs:
        better = BETTER[loop][figure]
        ratios = (
            tuple(
                rate / other_rate if better == "more" else other_rate / rate
                for rate, other_rate in pairs
            )
            if better
            else ()
        )
        yield Row(
            work,
            figure,
            median(rate for rate, _ in pairs),
            median(other_rate for _, other_rate in pairs),
            ratios,
        )


def head(sides: tuple[Side, Side], rounds: int, load: float) -> list[str]:
    """Return the lines above the table: the machine, and what runs on each side."""
    about = machine.machine(ROOT)
    lines = [
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, load {load} to {os.getloadavg()[0]:.2f}",
        f"{rounds} rounds, ratios taken within a round: median (lowest to highest), above 1 where {TODAY} is faster",
        f"{TODAY} is {machine.versions(ROOT)[PEER]}",
    ]
    versions = [side.versions() for side in sides]
    for side, packages in zip(sides, versions, strict=True):
        lines.append(
            f"{side.name}: {', '.join(f'{package} {version}' for package, version in packages.items())}"
        )
    return [f"- {line}" for line in (lines if versions[0] != versions[1] else lines[:-1])]


def table(rows: list[Row], name: str) -> str:
    """Return the rows as Markdown."""
    lines = [f"| work | figure | {TODAY} | {name} | {TODAY}/{name} |", "|---|---|---:|---:|---:|"]
    for row in rows:
        cells = [row.work, row.figure, _digits(row.today), _digits(row.other_rate), _spread(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(row: Row) -> str:
    if not row.ratios:
        return ""
    middle = f"{median(row.ratios):.2f}"
    return f"{f'**{middle}**' if row.fell else middle} ({min(row.ratios):.2f} to {max(row.ratios):.2f})"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _parser() -> argparse.ArgumentParser:
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("revision", metavar="REV")
    names = ", ".join((*NAMES, *gpu.NAMES))
    parser.add_argument(
        "--only", nargs="+", metavar="WORK", help=f"npy_rows, or npy_rows/shuffled-tf; of {names}"
    )
    parser.add_argument(
        "--loops", nargs="+", choices=BETTER, default=list(BETTER), help="these loops only"
    )
    parser.add_argument(
        "--rounds", type=int, default=defaults.rounds, help="0 only prepares trees and data"
    )
    parser.add_argument(
        "--seconds", type=float, default=defaults.seconds, help="passes, and steps, last this long"
    )
    parser.add_argument("--smoke", action="store_true", help="little data: does it all work?")
    parser.add_argument(
        "--data",
        type=Path,
        default=defaults.data,
        help="where the data is made ($GPULOAD_BENCH_DATA)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

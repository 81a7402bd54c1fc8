"""Prove gpuload on a GPU, one report: `python -m benchmarks.gpu_report [--part NAME ...] [--fresh]` (`make gpu-test`).

Parts    Every test file with gpu tests (run with GPULOAD_REQUIRE_GPU=1, so that a skip is a failure) and every question
         about a GPU, in a short form: one round of the limit, the floor and gpuload.
Report   `report.json` and `report.md` in benchmarks/results/gpu: card, driver, versions, contracts, figures. Both are
         written anew after each part. Logs are in build/gpu-test.
Resumed  A second call goes on with the parts that are missing, as long as commit, files, machine and versions are the
         same; else it begins anew and says so. A part that failed is not missing: `--part NAME` runs it again.
Time     Each part has its own limit, and after ``BUDGET_S`` no part is begun: call again for the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

from benchmarks import gpu, machine, plot
from benchmarks.question import find

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "results" / "gpu"
LOGS = ROOT / "build" / "gpu-test"
CODE = ("gpuload/**/*.py", "tests/**/*.py", "benchmarks/*.py", "pyproject.toml", "constraints.txt")

BUDGET_S = 570.0  # under ten minutes
COLLECT_S = 120.0
TESTS_S = 150.0
QUESTION_S = {"gpu_rows": 270.0, "gpu_jpeg": 180.0}
SHORT = {
    "gpu_rows": ("link", "resident", "cupy", "gpuload"),
    "gpu_jpeg": ("dali", "resident", "dali_loop", "dali_cuda", "threads", "gpuload"),
}
STOP_S = 10.0  # for a part that is told to stop, to stop what it has started
LAST_LINES = 25  # of a part's output, where nothing else says why it failed
NO_TESTS = 5  # pytest's exit status

Outcome = dict[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """What is done in one piece.

    Args:
        name: of a test file, from the root, or of a question.
        command: does it.
        timeout_s: it is ended after this long, and has failed.
        result: what it writes: JUnit's XML, or the JSON of a question; None if its exit status says all.
    """

    name: str
    command: tuple[str, ...]
    timeout_s: float
    result: Path | None = None


def main(arguments: list[str] | None = None) -> int:
    """Do what is missing; the exit status is 0 if all passed, 1 if not or if parts are left, 2 without a GPU."""
    told = _parser().parse_args(arguments)
    if why := gpu.problem():
        print(
            f"there is no GPU to test on: {why}\nthis needs an NVIDIA GPU, its driver, and CuPy, DALI and TensorFlow "
            "for CUDA 12: make gpu-test EXTRA=cuda12",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit, so that the part at work is ended too
    start = time.monotonic()
    report = Report.open(FOLDER, about(), fresh=told.fresh, tell=_say)
    if not report.names:
        report.begin([part.name for part in _parts(collect())])
    unknown = set(told.part or ()).difference(report.names)
    if unknown:
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; those that there are:\n  " + "\n  ".join(report.names))
    parts = list(_parts([name for name in report.names if name not in gpu.NAMES]))
    return go(parts, report, only=told.part, budget_s=BUDGET_S - (time.monotonic() - start), tell=_say)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_report", description="Run the gpu tests and the questions about a GPU."
    )
    parser.add_argument("--part", nargs="+", metavar="NAME", help="these only, done again if they were done")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    return parser


def _say(line: str) -> None:
    print(line, flush=True)


def go(parts: Sequence[Part], report: Report, *, only: Sequence[str] | None, budget_s: float, tell: Tell) -> int:
    """Do the parts that are missing, or those named; say what failed and what is left, and return the exit status."""
    end = time.monotonic() + budget_s
    for part in parts:
        if part.name not in (only or report.left):
            continue
        limit_s = min(part.timeout_s, end - time.monotonic())
        outcome = do(part, limit_s) if limit_s > 0 else None
        if outcome is None or (outcome["timed_out"] and limit_s < part.timeout_s):
            tell(f"the {budget_s:.0f} s for one call are over")
            break
        report.add(part.name, outcome)
        tell(f"{outcome['status']:6}  {part.name}  {summary(outcome)}, {outcome['seconds']:.0f} s")
        for line in reasons(outcome):
            tell(f"        {line}")
    failed = [name for name, outcome in report.outcomes.items() if outcome["status"] != "passed"]
    tell(f"{report.path} and {report.path.with_suffix('.md').name} are written")
    if failed:
        tell(f"failed: {', '.join(failed)} (--part NAME runs one again; logs are in {LOGS})")
    if report.left:
        tell(f"left: {', '.join(report.left)} (call again to go on)")
    return 1 if failed or (report.left and not only) else 0


def about() -> dict[str, Any]:
    """Return what a report is about: results of anything else do not belong into it."""
    versions = machine.versions(ROOT)
    del versions["gpuload"]  # it says whether files differ from the commit, and the report is one of these
    told = machine.machine(ROOT)
    return {
        "commit": _commit(),
        "files": _digest(),
        "host": platform.node(),
        **{name: told[name] for name in ("cpu", "cores", "memory_gib", "kernel")},
        "versions": {**gpu.versions(), **versions},
    }


def _commit() -> str:
    try:
        told = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        done = subprocess.run(told, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _digest() -> str:
    """Return a digest of all code: what was changed since the commit counts, too."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in CODE for path in ROOT.glob(pattern)}):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def collect() -> list[str]:
    """Return the test files that have gpu tests, and those that cannot be collected, which have failed then."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=COLLECT_S)
    files = test_files(done.stdout)
    if not files:
        raise RuntimeError(f"pytest finds no gpu tests:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return files


def test_files(output: str) -> list[str]:
    """Return the files that `pytest --collect-only -q` names, with tests or with an error."""
    found = re.findall(r"^(?:ERROR )?(tests/\S+?\.py)(?=::|\s|$)", output, re.MULTILINE)
    return sorted(set(found))


def _parts(files: Sequence[str]) -> Iterator[Part]:
    """Return the parts: the test files, then the questions."""
    python = sys.executable
    for name in files:
        result = LOGS / f"{_plain(name)}.xml"
        pytest = (python, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={result}", name)
        yield Part(name, pytest, TESTS_S, result)
    for name in gpu.NAMES:
        run = (python, "-m", "benchmarks.run", "--only", name, "--rounds", "1", "--seconds", "0.5", "--peers")
        yield Part(name, (*run, *SHORT[name], "--results", str(FOLDER)), QUESTION_S[name], FOLDER / f"{name}.json")


def _plain(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


def _environment() -> dict[str, str]:
    return {**os.environ, "GPULOAD_REQUIRE_GPU": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}


def do(part: Part, limit_s: float) -> Outcome:
    """Do a part and return what came of it; nothing that it started outlives it."""
    LOGS.mkdir(parents=True, exist_ok=True)
    if part.result is not None:
        part.result.unlink(missing_ok=True)
    log, start = LOGS / f"{_plain(part.name)}.log", time.monotonic()
    with open(log, "wb") as file:
        process = subprocess.Popen(
            part.command, cwd=ROOT, env=_environment(), stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    outcome: Outcome = {"status": "passed" if status == 0 else "failed", "seconds": round(time.monotonic() - start, 1)}
    outcome |= {"timed_out": status is None, "why": _why(status, limit_s), "contracts": [], "figures": []}
    if part.result is not None:
        try:
            if part.result.suffix == ".xml":
                outcome["contracts"] = contracts(part.result, _plain(part.name))
            else:
                outcome["figures"] = figures(json.loads(part.result.read_text(encoding="utf-8")))
        except (OSError, ValueError, ElementTree.ParseError) as error:
            outcome["status"] = "failed"
            outcome["why"] = outcome["why"] or f"no result: {error}"
    if outcome["status"] == "failed":
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        outcome["output"] = lines[-LAST_LINES:]
    return outcome


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group; asked first, as what it started may be in other groups."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _why(status: int | None, limit_s: float) -> str:
    if status is None:
        return f"took longer than {limit_s:.0f} s"
    if status == NO_TESTS:
        return "pytest found no gpu test in it"
    return "" if status == 0 else f"exit status {status}"


def contracts(path: Path, module: str) -> list[dict[str, Any]]:
    """Return for each class of a test file (and for its functions) how many passed, and what did not, from JUnit XML.

    Args:
        path: the XML.
        module: of the file, ``"tests.test_lane"``.
    """
    found: dict[str, dict[str, Any]] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = case.get("classname", "").removeprefix(module).lstrip(".") or "functions"
        one = found.setdefault(name, {"class": name, "passed": 0, "failed": 0, "skipped": 0, "reasons": []})
        problems = [(kind, node) for kind in ("failure", "error", "skipped") for node in case.findall(kind)]
        if not problems:
            one["passed"] += 1
            continue
        kind, node = problems[0]
        outcome = "skipped" if kind == "skipped" else "failed"
        one[outcome] += 1
        message = (node.get("message") or node.text or "").strip()
        one["reasons"].append({"test": case.get("name"), "outcome": outcome, "reason": message[:500]})
    return list(found.values())


def figures(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a line for each variant and loader of a question, from its results."""
    question = find(results["workload"])
    link_bytes = question.link_bytes if isinstance(question, gpu.GpuQuestion) else {}
    found = []
    for variant, rows in plot.variants(results).items():
        for row in rows:
            rate = median(row.rates) if row.rates else None
            gb_per_s = round(rate * link_bytes[variant] / 1e9, 2) if rate and variant in link_bytes else None
            found.append({
                "variant": variant, "loader": row.peer, "role": row.role, "of_limit": round(row.ratio, 3),
                "records_per_s": rate, "first_ms": row.first_ms, "why_not": row.why_not,
                "gb_per_s": gb_per_s,
            })  # fmt: skip
    return found


def summary(outcome: Outcome) -> str:
    """Return what came of a part in some words."""
    if outcome["figures"]:
        ours = [one for one in outcome["figures"] if one["role"] == "ours" and one["records_per_s"]]
        shares = ", ".join(f"{one['variant']} {one['of_limit']:.2f}" for one in ours) or "no figure"
        return f"gpuload's share of the limit: {shares}"
    counts = {kind: sum(one[kind] for one in outcome["contracts"]) for kind in ("passed", "failed", "skipped")}
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return ", ".join(filter(None, (told, outcome["why"]))) or "done"


def reasons(outcome: Outcome) -> list[str]:
    """Return a line for each test that did not pass and each loader without a figure; else the end of the output."""
    tests = [
        f"{one['class']}: {each['test']} {each['outcome']}: {(each['reason'].splitlines() or [''])[0]}"
        for one in outcome["contracts"]
        for each in one["reasons"]
    ]
    loaders = [f"{one['variant']} {one['loader']}: {one['why_not']}" for one in outcome["figures"] if one["why_not"]]
    return tests + loaders or outcome.get("output", [])


class Report:
    """The report of one commit on one machine, on disk after every part.

    Attributes:
        path: of its JSON; the Markdown is beside it.
    """

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path, self._data = path, data

    @classmethod
    def open(cls, folder: Path, about: dict[str, Any], *, fresh: bool, tell: Tell) -> Report:
        """Return the report in a folder if it is about the same; else a new one, and say why."""
        path = folder / "report.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            other = [name for name, value in about.items() if data["about"].get(name) != value]
        except FileNotFoundError:
            other = ["there was none"]
        except (ValueError, KeyError):
            other = ["the last one cannot be read"]
        if not other and not fresh:
            tell(f"going on: {len(data['outcomes'])} of {len(data['names'])} parts are done")
            return cls(path, data)
        why = "as told" if fresh else f"not the same as last time: {', '.join(other)}" if path.exists() else other[0]
        tell(f"a new report ({why})")
        return cls(path, {"about": about, "names": [], "outcomes": {}})

    @property
    def names(self) -> list[str]:
        """The names of all parts, in order; none until ``begin``."""
        return list(self._data["names"])

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """What came of the parts that are done."""
        return dict(self._data["outcomes"])

    @property
    def left(self) -> list[str]:
        """The names of the parts that are not done."""
        return [name for name in self.names if name not in self.outcomes]

    def begin(self, names: Sequence[str]) -> None:
        """Set which parts there are."""
        self._data["names"] = list(names)
        self._write()

    def add(self, name: str, outcome: Outcome) -> None:
        """Add what came of a part, or put it in place of what came of it before."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._data["outcomes"][name] = {**outcome, "date": now}
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self._data, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(self.path)  # whoever is interrupted leaves the one or the other, and no half of one
        self.path.with_suffix(".md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """Return the report as Markdown."""
        about, outcomes = self._data["about"], self.outcomes
        versions = about["versions"]
        tests = [one for outcome in outcomes.values() for one in outcome["contracts"]]
        counts = ", ".join(f"{sum(one[kind] for one in tests)} {kind}" for kind in ("passed", "failed", "skipped"))
        lines = [
            f"# gpuload on {versions.get('GPU', 'a GPU')}", "",
            f"- tests: {counts}; {len(outcomes)} of {len(self.names)} parts are done",
            *(f"- {name}: {value}" for name, value in about.items() if name != "versions"),
            *(f"- {name}: {value}" for name, value in versions.items()),
            "- made by `make gpu-test`", "",
            "## Contracts", "",
            "| file | class | passed | failed | skipped | seconds |", "|---|---|---:|---:|---:|---:|",
        ]  # fmt: skip
        for name, outcome in outcomes.items():
            if outcome["figures"] or name in gpu.NAMES:
                continue
            nothing = {"class": outcome["why"] or "-", "passed": 0, "failed": 0, "skipped": 0}
            for one in outcome["contracts"] or [nothing]:
                cells = [name, one["class"], one["passed"], one["failed"], one["skipped"], outcome["seconds"]]
                lines.append(f"| {' | '.join(map(str, cells))} |")
        for name in gpu.NAMES:
            if name in outcomes:
                lines += ["", f"## {name}", "", find(name).asks, "", f"Limit: {find(name).limit}.", ""]
                lines += _figures(outcomes[name])
        failed = {name: outcome for name, outcome in outcomes.items() if outcome["status"] != "passed"}
        if failed:
            lines += ["", "## Failed", ""]
            for name, outcome in failed.items():
                lines += [f"{name}: {outcome['why']}", "", "```", *reasons(outcome), "```", ""]
        if self.left:
            lines += ["", "## Not done yet", "", *(f"- {name}" for name in self.left)]
        return "\n".join(lines).rstrip() + "\n"


def _figures(outcome: Outcome) -> list[str]:
    lines = [
        "| variant | loader | x limit | records/s | GB/s | first batch ms | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for one in outcome["figures"]:
        name = f"**{one['loader']}**" if one["role"] == "ours" else one["loader"]
        cells = [one["variant"], name, *["-"] * 4, one["why_not"]]
        if one["records_per_s"]:
            cells[2:5] = [f"{one['of_limit']:.3f}", f"{one['records_per_s']:,.0f}", str(one["gb_per_s"] or "-")]
            cells[5] = "-" if one["role"] == "limit" else f"{one['first_ms']:.1f}"
        lines.append(f"| {' | '.join(cells)} |")
    return lines if outcome["figures"] else [outcome["why"]]


if __name__ == "__main__":
    sys.exit(main())

"""Prove gpuload on a GPU, on one page: `python -m benchmarks.gpu_report [--part NAME ...] [--fresh]` (make gpu-test).

Parts    ``PARTS``, first what is worth most. Each runs in a process of its own, at most ``LIMIT_S``, and needs no
         network. A part whose packages are not installed, or do not see the GPU, is left out, and the page names it.
         Under GPULOAD_REQUIRE_GPU=1 a test that is skipped has failed.
Page     benchmarks/results/gpu.md: machine, versions, tests, parity, rates, waiting, what was left out or failed. It is
         written anew after each part. Logs and results are in build/gpu-test.
Resumed  A second call goes on with the missing parts, as long as commit, files, machine and versions are the same; else
         it begins anew and says so. A part that failed is not missing: `--part NAME` runs it again.
Lost GPU After a part that failed, the first part is run again. If the GPU no longer works, no further part begins.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

from benchmarks import gpu, gpu_parity, gpu_waiting, machine, plot
from benchmarks.question import find
from gpuload import core

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "results" / "gpu.md"
WORK = ROOT / "build" / "gpu-test"
CODE = (
    "gpuload/**/*.py",
    "gpuload/core/cpp/*",
    "tests/**/*.py",
    "benchmarks/*.py",
    "benchmarks/*.ini",
    "pyproject.toml",
)

LIMIT_S = 120.0  # for a part
STOP_S = 10.0  # for a part to stop what it has started, before it is killed
LAST_LINES = 25  # of a part's output, where nothing else says why it failed

# Before the test files of a part.
PYTEST = (
    "-m", "pytest", "-c", "benchmarks/gpu_pytest.ini", "--rootdir", ".", "-q", "-m", "gpu", "-p", "no:cacheprovider",
    "--maxfail=20", "--junitxml={folder}/tests.xml",
)  # fmt: skip
# Names of the tests that need kernels of DALI.
OF_DALI = "dali or decoded_on_the_gpu or health_is_good_on_a_gpu or nvjpeg"

TESTS = ("pytest", "hypothesis", "PIL")
ROWS = ("-m", "benchmarks.run", "--only", "gpu_rows", "--peers", "link", "resident", "gpuload", "--variants")
JPEG = (
    "-m", "benchmarks.run", "--only", "gpu_jpeg", "--peers", "resident", "dali_loop", "dali", "dali_cuda",
    "dali_hardware", "dali_whole", "dali_whole_loop", "dali_whole_cuda", "dali_whole_hardware", "gpuload",
    "gpuload_hardware", "--variants",
)  # fmt: skip
QUESTION = ("--rounds", "1", "--seconds", "1", "--results", "{folder}")

Outcome = dict[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Section:
    """A table of the page: its title, what it says, its columns."""

    title: str
    about: str
    columns: tuple[str, ...]


FIGURES = ("variant", "loader", "x limit", "records/s", "GB/s", "first batch ms", "")
SECTIONS = {
    "machine": Section("The GPU at work", "", ("what", "value")),
    "tests": Section("Tests", "", ("part", "passed", "failed", "skipped")),
    "parity": Section("Parity on this GPU", gpu_parity.ABOUT, gpu_parity.COLUMNS),
    "gpu_rows": Section("Rows against the link", "", FIGURES),
    "gpu_jpeg": Section("JPEG beside a pipeline of DALI", "", FIGURES),
    "waiting": Section("Waiting in a training step", gpu_waiting.ABOUT, gpu_waiting.COLUMNS),
}


@dataclass(frozen=True)
class Part:
    """What is done in one process.

    Args:
        name: on the page and for ``--part``.
        section: of the page; what it writes to its folder is ``tests.xml`` (tests), the JSON of a question, or
            ``rows.json``, rows of the section's table.
        command: arguments of Python; ``{folder}`` stands for the part's folder.
        needs: packages; without one of them it is left out.
        limit_s: it is ended after this long, and has failed.
    """

    name: str
    section: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    limit_s: float = LIMIT_S


def files(name: str, names: str, *paths: str, needs: tuple[str, ...] = ()) -> Part:
    """Return the part of the gpu tests in some files whose names match an expression of pytest."""
    return Part(f"tests: {name}", "tests", (*PYTEST, "-k", names, *paths), TESTS + needs)


def rows(section: str, name: str, *command: str, needs: tuple[str, ...] = ()) -> Part:
    """Return the part that writes rows of a section's table."""
    return Part(f"{section}: {name}", section, ("-m", *command, "--result", "{folder}/rows.json"), needs)


DALI, EXECUTOR = ("nvidia.dali",), ("gpuload.executors.dali",)
PARTS = (
    rows("machine", "link", "benchmarks.gpu"),
    files(
        "lane", f"not ({OF_DALI})", "tests/test_lane.py", "tests/test_device.py", "tests/test_rawdecode.py",
        "tests/pipeline/test_gpu.py", "tests/pipeline/test_varying.py", "tests/bridges/test_cupy.py",
        "tests/executors/test_array.py", "tests/executors/test_gpu_lane.py", "tests/executors/test_cuda_kernels.py",
    ),
    rows("parity", "arrays", "benchmarks.gpu_parity", "arrays", needs=TESTS),
    files("torch", "", "tests/bridges/test_torch.py", needs=("torch",)),
    rows("waiting", "torch", "benchmarks.gpu_waiting", "torch", needs=("torch",)),
    files("JAX", "", "tests/bridges/test_jax.py", needs=("jax",)),
    rows("waiting", "JAX", "benchmarks.gpu_waiting", "jax", needs=("jax",)),
    Part("rows", "gpu_rows", (*ROWS, "rows-256", "rows-4096", "fixed-256", *QUESTION)),
    Part("rows in a loop", "gpu_rows", (*ROWS, "rows-256-step", "rows-4096-step", "fixed-256-step", *QUESTION)),
    rows("waiting", "CuPy", "benchmarks.gpu_waiting", "cupy"),
    files("ops", f"not ({OF_DALI})", "tests/ops", needs=("cv2",)),
    files("loader", f"not ({OF_DALI})", "tests/test_gpu_loader.py", "tests/test_host_lane.py"),
    files("direct reads", "", "tests/emulated_gpu/test_direct.py", needs=("kvikio",)),
    rows("parity", "decoders", "benchmarks.gpu_parity", "decoders", needs=(*DALI, "PIL")),
    rows("parity", "DALI", "benchmarks.gpu_parity", "dali", needs=TESTS + EXECUTOR),
    Part("JPEG", "gpu_jpeg", (*JPEG, "shuffled", *QUESTION), (*DALI, "sklearn")),
    Part("JPEG in a loop", "gpu_jpeg", (*JPEG, "shuffled-step", *QUESTION), (*DALI, "sklearn")),
    files(
        "DALI", OF_DALI, "tests/executors/test_dali.py", "tests/test_gpu_loader.py", "tests/pipeline/test_damage.py",
        "tests/test_containers.py", needs=EXECUTOR,
    ),
    files("DALI ops", OF_DALI, "tests/ops", needs=("cv2", *EXECUTOR)),
    files("DALI bridge", "", "tests/bridges/test_dali.py", needs=EXECUTOR),
    files(
        "TensorFlow", "", "tests/bridges/test_tensorflow.py", "tests/bridges/test_memory.py", needs=("tensorflow",)
    ),
    rows("waiting", "TensorFlow", "benchmarks.gpu_waiting", "tensorflow", needs=("tensorflow",)),
    rows("parity", "regions", "benchmarks.gpu_parity", "regions", needs=(*DALI, "PIL")),  # last: it may end badly
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Do the missing parts; the exit status is 0 if all passed, 1 if not or if parts are left, 2 without a GPU."""
    options = _parser().parse_args(arguments)
    if problem := gpu.problem():
        print(
            f"there is no GPU to test on: {problem.cause}\n  remedy: {problem.remedy}\n  python: {sys.executable}; "
            "make setup EXTRA=cuda12 fills .venv (with a network), make gpu-test PYTHON=python3 takes another",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit, so that the part at work is ended too
    packages = [name for part in PARTS for name in part.needs]
    subject = about(absent=gpu.absent(packages), is_short=options.short)
    report = Report.open(options.work, options.page, subject, fresh=options.fresh, tell=_say)
    parts = [replace(part, limit_s=part.limit_s * options.patience) for part in PARTS]
    return go(parts, report, only=options.part, tell=_say)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_report", description="Run the gpu tests and the questions about a GPU."
    )
    names = [part.name for part in PARTS]
    parser.add_argument(
        "--part", nargs="+", metavar="NAME", choices=names, help=f"these only, again: {', '.join(names)}"
    )
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--short", action="store_true", help="little data: does it all work? Its rates mean nothing")
    parser.add_argument("--patience", type=float, default=1.0, metavar="N", help="N times the limit of each part")
    parser.add_argument("--work", type=Path, default=WORK, metavar="FOLDER", help="for logs and results")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="the page")
    return parser


def _say(line: str) -> None:
    print(line, flush=True)


def go(parts: Sequence[Part], report: Report, *, only: Sequence[str] | None, tell: Tell) -> int:
    """Do the missing parts, or those named; say what failed and what is left, and return the exit status."""
    for part in parts:
        if part.name not in (only or report.left(parts)):
            continue
        absent = {name: reason for name, reason in report.about["absent"].items() if name in part.needs}
        outcome = {"status": "left out", "why": "; ".join(absent.values())} if absent else do(part, report)
        report.add(part, outcome, parts)
        tell(f"{outcome['status']:8}  {part.name}  {outcome['why']}")
        for line in outcome.get("problems", ()):
            tell(f"          {line}")
        if outcome["status"] == "failed" and (part == parts[0] or do(parts[0], report)["status"] == "failed"):
            tell("the GPU no longer works: nvidia-smi and the kernel's log (dmesg, Xid) say how it is")
            break
    failures = [name for name, outcome in report.outcomes.items() if outcome["status"] == "failed"]
    left = report.left(parts)
    tell(f"{report.page} is written")
    if failures:
        tell(f"failed: {', '.join(failures)} (--part NAME runs one again; logs are in {report.work})")
    if left:
        tell(f"left: {', '.join(left)} (call again to go on)")
    return 1 if failures or (left and not only) else 0


def about(*, absent: dict[str, str], is_short: bool) -> dict[str, Any]:
    """Return what a report is about: results of anything else do not belong into it."""
    versions = machine.versions(ROOT)
    del versions["gpuload"]  # it says whether files differ from the commit, and the page is one of these
    host = machine.machine(ROOT)
    return {
        "commit": _commit(),
        "files": _digest(),
        "host": platform.node(),
        **{name: host[name] for name in ("cpu", "cores", "memory_gib", "kernel")},
        "core": core.how(),
        "versions": {**gpu.versions(), **versions},
        "absent": absent,
        "short": is_short,
    }


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        git = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return "unknown"
    return git.stdout.strip() or "unknown"


def _digest() -> str:
    """Return a digest of all code: what was changed since the commit counts, too."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in CODE for path in ROOT.glob(pattern)}):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def do(part: Part, report: Report) -> Outcome:
    """Do a part and return what came of it; nothing that it started outlives it."""
    folder = report.work / "".join(letter if letter.isalnum() else "-" for letter in part.name)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (*folder.glob("*.xml"), *folder.glob("*.json")):
        path.unlink()  # of an earlier call
    log, start = folder / "log", time.monotonic()
    command = [sys.executable, *(text.replace("{folder}", str(folder)) for text in part.command)]
    if report.about["short"] and "pytest" not in command:
        command.append("--smoke")
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(part.limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    outcome: Outcome = {"status": "passed", "seconds": round(time.monotonic() - start, 1), "why": "", "problems": []}
    try:
        outcome |= (read_tests if part.section == "tests" else read_rows)(folder, part)
    except (OSError, ValueError, KeyError, ElementTree.ParseError) as error:
        outcome |= {"status": "failed", "why": f"no result: {error}"}
    if status != 0:
        outcome |= {"status": "failed", "why": _reason(status, part.limit_s)}
    if outcome["status"] == "failed" and not outcome["problems"]:
        outcome["problems"] = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    return outcome


def _environment() -> dict[str, str]:
    frameworks = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    frameworks["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return {**os.environ, **frameworks, "GPULOAD_REQUIRE_GPU": "1", "PYTHONUNBUFFERED": "1"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group; asked first, as what it started may be in other groups."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reason(status: int | None, limit_s: float) -> str:
    if status is None:
        return f"took longer than {limit_s:.0f} s"
    if status == 5:
        return "pytest finds no gpu test in it"
    return f"exit status {status}" if status > 0 else f"ended by signal {signal.Signals(-status).name}"


def read_tests(folder: Path, part: Part) -> Outcome:
    """Return how many tests passed, failed and were skipped, and why, from the XML of JUnit."""
    counts, problems = {"passed": 0, "failed": 0, "skipped": 0}, []
    for case in ElementTree.parse(folder / "tests.xml").iter("testcase"):
        nodes = [(kind, node) for kind in ("failure", "error", "skipped") for node in case.findall(kind)]
        if not nodes:
            counts["passed"] += 1
            continue
        kind, node = nodes[0]
        outcome = "skipped" if kind == "skipped" else "failed"
        counts[outcome] += 1
        message = (node.get("message") or node.text or "").strip()
        place = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        problems.append(f"{outcome}: {place}: {' '.join(message.split())[:300]}")
    return {"rows": [[part.name.removeprefix("tests: "), *counts.values()]], "problems": problems}


def read_rows(folder: Path, part: Part) -> Outcome:
    """Return the rows of a table: those a part wrote, or those of a question's results."""
    if part.section not in gpu.NAMES:
        return dict(json.loads((folder / "rows.json").read_text(encoding="utf-8")))
    results = json.loads((folder / f"{part.section}.json").read_text(encoding="utf-8"))
    figures = [
        (variant, row, median(row.rates) if row.rates else None)
        for variant, loaders in plot.variants(results).items()
        for row in loaders
    ]
    problems = [f"{variant} {row.peer}: {row.why_not}" for variant, row, _ in figures if row.why_not]
    return {"rows": [_figures(part.section, *figure) for figure in figures], "problems": problems}


def _figures(name: str, variant: str, row: plot.Row, rate: float | None) -> list[str]:
    """Return a line of the table of a question."""
    loader = f"**{row.peer}**" if row.role == "ours" else row.peer
    if rate is None:
        return [variant, loader, *["-"] * 4, row.why_not]
    link_bytes = getattr(find(name), "link_bytes", {}).get(variant)
    gb_per_s = f"{rate * link_bytes / 1e9:.2f}" if link_bytes else "-"
    first_ms = "-" if row.role == "limit" else f"{row.first_ms:.1f}"
    return [variant, loader, f"{row.ratio:.3f}", f"{rate:,.0f}", gb_per_s, first_ms, row.about]


class Report:
    """The report of one commit on one machine, on disk after every part.

    Attributes:
        work: the folder of ``report.json``, and of a folder for each part.
        page: the Markdown.
        about: see ``about``.
        outcomes: what came of the parts that are done.
    """

    def __init__(self, work: Path, page: Path, about: dict[str, Any], outcomes: dict[str, Outcome]) -> None:
        self.work, self.page, self.about, self.outcomes = work, page, about, outcomes

    @classmethod
    def open(cls, work: Path, page: Path, about: dict[str, Any], *, fresh: bool, tell: Tell) -> Report:
        """Return the report in a folder if it is about the same; else a new one, and say why."""
        path = work / "report.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            changes = [name for name, value in about.items() if data["about"].get(name) != value]
            outcomes = dict(data["outcomes"])
        except FileNotFoundError:
            changes, outcomes = ["there was none"], {}
        except (ValueError, KeyError):
            changes, outcomes = ["the last one cannot be read"], {}
        if not changes and not fresh:
            tell(f"going on: {len(outcomes)} parts are done")
            return cls(work, page, about, outcomes)
        reason = "--fresh" if fresh else f"not the same as last time: {', '.join(changes)}" if outcomes else changes[0]
        tell(f"a new report ({reason})")
        return cls(work, page, about, {})

    def left(self, parts: Sequence[Part]) -> list[str]:
        """Return the names of the parts that are not done."""
        return [part.name for part in parts if part.name not in self.outcomes]

    def add(self, part: Part, outcome: Outcome, parts: Sequence[Part]) -> None:
        """Add what came of a part, or put it in place of what came of it before, and write the page."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.outcomes[part.name] = {**outcome, "date": now}
        self.work.mkdir(parents=True, exist_ok=True)
        self.page.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps({"about": self.about, "outcomes": self.outcomes}, indent=1) + "\n"
        for path, text in ((self.work / "report.json", data), (self.page, self.markdown(parts))):
            unfinished = path.with_name(path.name + ".unfinished")
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)  # whoever is interrupted leaves the one or the other, and no half of one

    def markdown(self, parts: Sequence[Part]) -> str:
        """Return the page."""
        outcomes = {part.name: self.outcomes[part.name] for part in parts if part.name in self.outcomes}
        statuses = [outcome["status"] for outcome in outcomes.values()]
        counts = [statuses.count(name) for name in ("passed", "failed", "left out")]
        versions = self.about["versions"]
        lines = [
            f"# gpuload on {versions.get('GPU', 'a GPU')}", "",
            f"Written by `make gpu-test`{', with little data: its rates mean nothing' if self.about['short'] else ''}.",
            f"Of {len(parts)} parts {counts[0]} passed, {counts[1]} failed, {counts[2]} were left out, "
            f"{len(self.left(parts))} are not done yet.", "",
            *_list({name: value for name, value in self.about.items() if name not in ("versions", "absent", "short")}),
            *_list(versions),
        ]  # fmt: skip
        for name, section in SECTIONS.items():
            rows = [
                row for part in parts if part.section == name and part.name in outcomes
                for row in outcomes[part.name].get("rows", ())
            ]  # fmt: skip
            if rows:
                about = f"{find(name).asks}\n\nLimit: {find(name).limit}." if name in gpu.NAMES else section.about
                lines += ["", f"## {section.title}", "", *([about, ""] if about else [])]
                lines += [_line(section.columns), _line(["---"] * len(section.columns)), *map(_line, rows)]
        left_out = {name: outcome["why"] for name, outcome in outcomes.items() if outcome["status"] == "left out"}
        lines += ["", "## Left out", "", *_list(left_out)] if left_out else []
        for name, outcome in outcomes.items():
            if outcome["status"] == "failed":
                lines += ["", f"## Failed: {name}", "", outcome["why"], "", "```", *outcome["problems"], "```"]
        lines += ["", "## Not done yet", "", *(f"- {name}" for name in self.left(parts))] if self.left(parts) else []
        return "\n".join(lines) + "\n"


def _list(values: dict[str, Any]) -> list[str]:
    return [f"- {name}: {value}" for name, value in values.items()]


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())

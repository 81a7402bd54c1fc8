"""Prove gpuload on a GPU, on one page:
`python -m benchmarks.gpu_report [--part NAME ...] [--fresh]` (make gpu-test).

Parts    ``PARTS``, first what is worth most. Each runs in a process of its own, at most as long as
         it states, and needs no network. Those that only say right or wrong run side by side, as
         many as there are cores; those that measure run one after the other. A part whose packages
         are not installed, or do not see the GPU, is left out, and the page names it. Under
         GPULOAD_REQUIRE_GPU=1 a test that is skipped has failed.
Time     ``BUDGET_S`` in all: a quarter of an hour without the start of a machine. A part that might
         not end within what is left is not begun, and the page names it: a second call does it.
         What a part has measured before it is ended stays.
Page     benchmarks/results/gpu.md: machine, versions, targets, tests, parity, rates, waiting, what
         was left out or failed. It is written anew after each part. Logs and results are in
         build/gpu-test.
Resumed  A second call goes on with the missing parts, as long as commit, files, machine and
         versions are the same; else it begins anew and says so. A part that failed is not missing:
         `--part NAME` runs it again.
Lost GPU After a part that failed, the first part is run again. If the GPU no longer works, no
further part begins.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

from benchmarks import (
    gpu,
    gpu_cache,
    gpu_cores,
    gpu_parity,
    gpu_right,
    gpu_rows,
    gpu_waiting,
    machine,
    plot,
)
from benchmarks.question import find, missing
from benchmarks.run import partial_path
from gpuload import core

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "results" / "gpu.md"
WORK = ROOT / "build" / "gpu-test"
CODE = (
    "gpuload/**/*.py",
    "gpuload/core/cpp/**/*.?pp",
    "gpuload/kernels/cu/*",
    "tests/**/*.py",
    "benchmarks/*.py",
    "benchmarks/*.ini",
    "pyproject.toml",
)

LIMIT_S = 60.0  # for a part that states none
START_S, SPARE_S = 60.0, 30.0  # until a machine is there, and for its return
BUDGET_S = 900.0 - START_S - SPARE_S
LOOK_S = 0.05  # between two looks at the parts at work
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
ROWS = (
    "-m",
    "benchmarks.run",
    "--only",
    "gpu_rows",
    "--peers",
    "link",
    "resident",
    "gpuload",
    "--variants",
)
OF_DALI_JPEG = (
    "dali", "dali_cuda", "dali_hardware", "dali_whole", "dali_whole_cuda", "dali_whole_hardware", "dali_host",
)  # fmt: skip
OURS_JPEG = ("gpuload_host", "gpuload", "gpuload_dali_host", "gpuload_hardware")
JPEG = ("-m", "benchmarks.run", "--only", "gpu_jpeg", "--peers")
QUESTION = ("--rounds", "1", "--seconds", "1", "--results", "{folder}")
CORES_S = 110.0  # of the part that measures over cores, which ends by itself

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
    "right": Section("Ways beside the CPU", gpu_right.ABOUT, gpu_right.COLUMNS),
    "gpu_cores": Section("Images over cores", gpu_cores.ABOUT, gpu_cores.COLUMNS),
    "tests": Section("Tests", "", ("part", "passed", "failed", "skipped")),
    "parity": Section("Parity on this GPU", gpu_parity.ABOUT, gpu_parity.COLUMNS),
    "gpu_rows": Section("Rows against the link", "", FIGURES),
    "gpu_jpeg": Section("JPEG beside a pipeline of DALI", "", FIGURES),
    "waiting": Section("Waiting in a training step", gpu_waiting.ABOUT, gpu_waiting.COLUMNS),
    "cache": Section("Data that stays on the card", gpu_cache.ABOUT, gpu_cache.COLUMNS),
}
TARGETS = Section("Targets", "", ("what", "target", "measured", ""))
ROWS_OF_LINK = 0.9  # of the pinned copy


@dataclass(frozen=True)
class Part:
    """What is done in one process.

    Args:
        name: on the page and for ``--part``.
        section: of the page; what it writes to its folder is ``tests.xml`` (tests), the JSON of a
            question, or ``rows.json``, rows of the section's table (`gpu.write_rows`).
        command: arguments of Python; ``{folder}`` stands for the part's folder, ``{work}`` for that
            of all parts.
        needs: packages; without one of them it is left out.
        limit_s: it is ended after this long, and has failed.
        is_alone: whether it measures, so that nothing may run beside it.
    """

    name: str
    section: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    limit_s: float = LIMIT_S
    is_alone: bool = True


def files(
    name: str, names: str, *paths: str, needs: tuple[str, ...] = (), limit_s: float = LIMIT_S
) -> Part:
    """Return the part of the gpu tests in some files whose names match an expression of pytest."""
    return Part(
        f"tests: {name}",
        "tests",
        (*PYTEST, "-k", names, *paths),
        TESTS + needs,
        limit_s,
        is_alone=False,
    )


def rows(
    section: str, name: str, *command: str, needs: tuple[str, ...] = (), limit_s: float = LIMIT_S
) -> Part:
    """Return the part that writes rows of a section's table; of parity and of right or wrong it
    runs beside others."""
    words = ("-m", *command, "--result", "{folder}/rows.json")
    return Part(
        f"{section}: {name}",
        section,
        words,
        needs,
        limit_s,
        is_alone=section not in ("parity", "right"),
    )


def waiting(name: str, framework: str, *needs: str, limit_s: float) -> Part:
    """Return the part about waiting in the steps of a framework, or of a training."""
    return rows("waiting", name, "benchmarks.gpu_waiting", framework, needs=needs, limit_s=limit_s)


DALI, EXECUTOR = ("nvidia.dali",), ("gpuload.executors.dali",)
OPS = (
    "tests/ops",
    "--ignore-glob=*_torch.py",
)  # what is left out compares with torchvision, on a CPU
RESULT = ("--result", "{folder}/rows.json")
PARTS = (
    rows("machine", "link", "benchmarks.gpu", limit_s=20),
    # Right or wrong, side by side: those that may take long begin first.
    Part("data", "machine", ("-m", "benchmarks.gpu_data", *RESULT), limit_s=60, is_alone=False),
    files(
        "lane", f"not ({OF_DALI})", "tests/test_lane.py", "tests/test_device.py", "tests/test_rawdecode.py",
        "tests/pipeline/test_gpu.py", "tests/pipeline/test_gpu_files.py", "tests/pipeline/test_varying.py",
        "tests/bridges/test_cupy.py",
        "tests/executors/test_array.py", "tests/executors/test_gpu_lane.py", "tests/executors/test_cuda_kernels.py",
        limit_s=100,
    ),
    rows("right", "ways", "benchmarks.gpu_right", "ways", needs=("PIL",)),
    rows("right", "audit", "benchmarks.gpu_right", "audit", needs=("PIL",)),
    rows("right", "poison", "benchmarks.gpu_right", "poison", needs=("PIL",)),
    rows("parity", "arrays", "benchmarks.gpu_parity", "arrays", needs=TESTS, limit_s=100),
    rows("parity", "decoders", "benchmarks.gpu_parity", "decoders", needs=(*DALI, "PIL")),
    rows("parity", "DALI", "benchmarks.gpu_parity", "dali", needs=TESTS + EXECUTOR, limit_s=100),
    files(
        "TensorFlow", "", "tests/bridges/test_tensorflow.py", "tests/bridges/test_memory.py", needs=("tensorflow",),
        limit_s=100,
    ),
    files("DALI ops", OF_DALI, *OPS, needs=("cv2", *EXECUTOR), limit_s=100),
    files("ops", f"not ({OF_DALI})", *OPS, needs=("cv2",), limit_s=100),
    files("torch", "", "tests/bridges/test_torch.py", needs=("torch",)),
    files("JAX", "", "tests/bridges/test_jax.py", needs=("jax",)),
    files(
        "loader", f"not ({OF_DALI})", "tests/test_gpu_loader.py", "tests/test_host_decode.py",
        "tests/cli/test_bench_ways.py",
    ),
    files("audit", f"not ({OF_DALI})", "tests/pipeline/test_audit.py"),
    files("cache", f"not ({OF_DALI})", "tests/test_card_cache.py"),
    files("direct reads", "", "tests/emulated_gpu/test_direct.py", needs=("kvikio",), limit_s=30),
    files(
        "DALI", OF_DALI, "tests/executors/test_dali.py", "tests/test_gpu_loader.py", "tests/pipeline/test_damage.py",
        "tests/test_containers.py", "tests/pipeline/test_audit.py", needs=EXECUTOR,
    ),
    files("DALI bridge", "", "tests/bridges/test_dali.py", needs=EXECUTOR),
    # Figures, one after the other.
    Part(
        "JPEG", "gpu_jpeg", (*JPEG, *OF_DALI_JPEG, *OURS_JPEG, "--variants", "shuffled", *QUESTION),
        (*DALI, "sklearn"), limit_s=80,
    ),
    Part(
        gpu_cores.PART, "gpu_cores",
        (
            "-m", "benchmarks.gpu_cores", "--jpeg", "{work}/JPEG/gpu_jpeg.json", "--seconds", str(CORES_S), *RESULT,
        ),
        ("PIL",), limit_s=CORES_S + 5,
    ),
    waiting("ResNet-50", "resnet50", "torch", "torchvision", "PIL", limit_s=40),
    waiting("ViT-S", "vit_s", "torch", "torchvision", "PIL", limit_s=80),
    waiting("Keras", "keras", "keras", "PIL", limit_s=45),
    Part("rows", "gpu_rows", (*ROWS, "rows-256", "rows-4096", "fixed-256", *QUESTION), limit_s=40),
    rows("cache", "on the card", "benchmarks.gpu_cache", limit_s=40),
    waiting("torch", "torch", "torch", limit_s=25),
    waiting("JAX", "jax", "jax", limit_s=25),
    waiting("CuPy", "cupy", limit_s=20),
    Part(
        "rows in a loop", "gpu_rows", (*ROWS, "rows-256-step", "rows-4096-step", "fixed-256-step", *QUESTION),
        limit_s=35,
    ),
    Part(
        "JPEG in a loop", "gpu_jpeg", (
            *JPEG, "resident", "dali_loop", "dali_whole_loop", *OURS_JPEG[:2], "--variants", "shuffled-step",
            *QUESTION,
        ),
        (*DALI, "sklearn"), limit_s=40,
    ),
    waiting("TensorFlow", "tensorflow", "tensorflow", limit_s=25),
    # Last, and alone: it may end badly.
    replace(
        rows("parity", "regions", "benchmarks.gpu_parity", "regions", needs=(*DALI, "PIL"), limit_s=25), is_alone=True
    ),
)  # fmt: skip


def most_s(parts: Sequence[Part], num_cores: int) -> float:
    """Return how long all parts take together if each takes as long as it may."""
    total_s = 0.0
    for group in groups(parts):
        free_at = [0.0] * (1 if group[0].is_alone else num_cores)
        for part in group:
            core = free_at.index(min(free_at))
            free_at[core] += part.limit_s
        total_s += max(free_at)
    return total_s


def groups(parts: Iterable[Part]) -> list[list[Part]]:
    """Return what is done at the same time, in the order of the parts: one that measures, or
    several that do not."""
    result: list[list[Part]] = []
    for is_alone, group in itertools.groupby(parts, lambda part: part.is_alone):
        members = list(group)
        result += [[part] for part in members] if is_alone else [members]
    return result


def main(arguments: list[str] | None = None) -> int:
    """Do the missing parts; the exit status is 0 if all passed, 1 if not or if parts are left, 2
    without a GPU."""
    options = _parser().parse_args(arguments)
    if problem := gpu.problem():
        print(
            f"there is no GPU to test on: {problem.cause}\n  remedy: {problem.remedy}\n  python: {sys.executable}; "
            "make setup EXTRA=cuda12 fills .venv (with a network), make gpu-test PYTHON=python3 takes another",
            file=sys.stderr,
        )
        return 2
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # an exit, so that the part at work is ended too
    end = time.monotonic() + (options.seconds or BUDGET_S * options.patience)
    packages = [name for part in PARTS for name in part.needs]
    subject = about(absent=gpu.absent(packages), is_short=options.short)
    report = Report.open(options.work, options.page, subject, fresh=options.fresh, tell=_say)
    parts = [replace(part, limit_s=part.limit_s * options.patience) for part in PARTS]
    return go(parts, report, only=options.part, tell=_say, end=end)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_report",
        description="Run the gpu tests and the questions about a GPU.",
    )
    names = [part.name for part in PARTS]
    parser.add_argument(
        "--part",
        nargs="+",
        metavar="NAME",
        choices=names,
        help=f"these only, again: {', '.join(names)}",
    )
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument(
        "--short", action="store_true", help="little data: does it all work? Its rates mean nothing"
    )
    parser.add_argument(
        "--patience", type=float, default=1.0, metavar="N", help="N times the limit of each part"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="S", help=f"in all, default {BUDGET_S:g} times N"
    )
    parser.add_argument(
        "--work", type=Path, default=WORK, metavar="FOLDER", help="for logs and results"
    )
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="the page")
    return parser


def _say(line: str) -> None:
    print(line, flush=True)


def go(
    parts: Sequence[Part],
    report: Report,
    *,
    only: Sequence[str] | None,
    tell: Tell,
    end: float = math.inf,
) -> int:
    """Do the missing parts, or those named; say what failed and what is left, and return the exit
    status.

    Args:
        parts: all parts, the one that says whether the GPU works first.
        report: takes what comes of them.
        only: names; None for those that are missing.
        tell: takes lines for people.
        end: on the clock `time.monotonic`: no part is begun that could take longer.
    """
    names = set(only or report.left(parts))
    for group in groups(part for part in parts if part.name in names):
        if not _do_group(group, parts, report, tell=tell, end=end):
            tell(
                "the GPU no longer works: nvidia-smi and the kernel's log (dmesg, Xid) say how it is"
            )
            break
    report.write(parts)
    report.draw()
    failures = [name for name, outcome in report.outcomes.items() if outcome["status"] == "failed"]
    left = report.left(parts)
    tell(f"{report.page} is written")
    if failures:
        tell(
            f"failed: {', '.join(failures)} (--part NAME runs one again; logs are in {report.work})"
        )
    if left:
        tell(f"left: {', '.join(left)} (call again to go on)")
    return 1 if failures or (left and not only) else 0


def _do_group(
    group: Sequence[Part], parts: Sequence[Part], report: Report, *, tell: Tell, end: float
) -> bool:
    """Do some parts at the same time, as many as there are cores; return False if the GPU is
    lost."""
    waiting_parts, running, is_lost = deque(group), [], False
    try:
        while running or (waiting_parts and not is_lost):
            while waiting_parts and not is_lost and len(running) < machine.cores():
                if (
                    attempt := _begin(waiting_parts.popleft(), parts, report, tell=tell, end=end)
                ) is not None:
                    running.append(attempt)
            for attempt in [attempt for attempt in running if attempt.is_over()]:
                running.remove(attempt)
                outcome = attempt.outcome()
                _add(attempt.part, outcome, parts, report, tell)
                is_lost |= outcome["status"] == "failed" and not _works(
                    attempt.part, parts[0], report
                )
            time.sleep(LOOK_S if running else 0)
    finally:
        for attempt in running:
            attempt.end()
    return not is_lost


def _works(failed: Part, probe: Part, report: Report) -> bool:
    """Return whether the GPU still works, where a part has failed."""
    return failed != probe and do(probe, report)["status"] != "failed"


def _begin(
    part: Part, parts: Sequence[Part], report: Report, *, tell: Tell, end: float
) -> PartProcess | None:
    """Begin a part; or say why not, where packages are missing or time is short."""
    absent = {name: reason for name, reason in report.about["absent"].items() if name in part.needs}
    if absent:
        _add(part, {"status": "left out", "why": "; ".join(absent.values())}, parts, report, tell)
        return None
    left_s = end - time.monotonic()
    if part.limit_s > left_s:
        why = f"may take {part.limit_s:.0f} s, and {max(0.0, left_s):.0f} s were left"
        report.postponed[part.name] = why
        tell(f"no time   {part.name}  {why}")
        return None
    return PartProcess(part, report)


def _add(part: Part, outcome: Outcome, parts: Sequence[Part], report: Report, tell: Tell) -> None:
    report.add(part, outcome, parts)
    tell(f"{outcome['status']:8}  {part.name}  {outcome['why']}")
    for line in outcome.get("problems", ()):
        tell(f"          {line}")


def about(*, absent: dict[str, str], is_short: bool) -> dict[str, Any]:
    """Return what a report is about: results of anything else do not belong into it."""
    versions = machine.versions(ROOT)
    del versions[
        "gpuload"
    ]  # it says whether files differ from the commit, and the page is one of these
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
    attempt = PartProcess(part, report)
    try:
        attempt.wait()
    finally:
        attempt.end()
    return attempt.outcome()


class PartProcess:
    """A part at work, in a process of its own.

    Args:
        part: what is done.
        report: in whose folder the part has its own.
    """

    def __init__(self, part: Part, report: Report) -> None:
        self.part = part
        self._folder = report.work / re.sub(r"[\W_]", "-", part.name)
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in (*self._folder.glob("*.xml"), *self._folder.glob("*.json")):
            path.unlink()  # of an earlier call
        self._start = time.monotonic()
        places = {"{folder}": str(self._folder), "{work}": str(report.work)}
        command = [sys.executable, *part.command]
        for name, place in places.items():
            command = [text.replace(name, place) for text in command]
        if report.about["short"] and "pytest" not in command:
            command.append("--smoke")
        with open(self._folder / "log", "wb") as file:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=_environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until the process has ended, or its time is over."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self.part.limit_s)

    def is_over(self) -> bool:
        """Return whether the process has ended, or its time is over."""
        return (
            self._process.poll() is not None or time.monotonic() - self._start > self.part.limit_s
        )

    def end(self) -> None:
        """End the process and all that it started."""
        _end(self._process)

    def outcome(self) -> Outcome:
        """Return what came of it; it ends here if it has not ended."""
        part, status = self.part, self._process.poll()
        seconds = round(time.monotonic() - self._start, 1)
        _end(self._process)
        outcome: Outcome = {"status": "passed", "seconds": seconds, "why": "", "problems": []}
        try:
            outcome |= (read_tests if part.section == "tests" else read_rows)(self._folder, part)
        except (OSError, ValueError, KeyError, ElementTree.ParseError) as error:
            outcome |= {"status": "failed", "why": f"no result: {error}"}
        if status != 0:
            outcome |= {"status": "failed", "why": _reason(status, part.limit_s)}
        if outcome["status"] == "failed" and not outcome["problems"]:
            text = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
            outcome["problems"] = text.splitlines()[-LAST_LINES:]
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
    return (
        f"exit status {status}" if status > 0 else f"ended by signal {signal.Signals(-status).name}"
    )


def read_tests(folder: Path, part: Part) -> Outcome:
    """Return how many tests passed, failed and were skipped, and why, from the XML of JUnit."""
    counts, problems = {"passed": 0, "failed": 0, "skipped": 0}, []
    for case in ElementTree.parse(folder / "tests.xml").iter("testcase"):
        nodes = [
            (kind, node) for kind in ("failure", "error", "skipped") for node in case.findall(kind)
        ]
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
    """Return the rows of a table: those a part wrote, or those of a question's results, as far as
    it came."""
    if part.section not in gpu.NAMES:
        return dict(json.loads((folder / "rows.json").read_text(encoding="utf-8")))
    path = folder / f"{part.section}.json"
    path = path if path.exists() else partial_path(path)
    results = json.loads(path.read_text(encoding="utf-8"))
    figures = [
        (variant, row, median(row.rates) if row.rates else None)
        for variant, loaders in plot.variants(results).items()
        for row in loaders
    ]
    problems = [
        f"{variant} {row.peer}: {row.why_not}" for variant, row, _ in figures if row.why_not
    ]
    targets = [
        gpu.Target(f"{variant} against the pinned copy", row.ratio, ROWS_OF_LINK, form=".2f").row()
        for variant, row, rate in figures
        if rate is not None and row.role == "ours" and variant in gpu_rows.LINK
    ]
    table = [_figures(part.section, *figure) for figure in figures]
    return {"rows": table, "problems": problems, "targets": targets}


def _figures(name: str, variant: str, row: plot.Row, rate: float | None) -> list[str]:
    """Return a line of the table of a question."""
    loader = f"**{row.peer}**" if row.peer.startswith("gpuload") else row.peer
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
        postponed: parts that this call had no time for, and why.
    """

    def __init__(
        self, work: Path, page: Path, about: dict[str, Any], outcomes: dict[str, Outcome]
    ) -> None:
        self.work, self.page, self.about, self.outcomes = work, page, about, outcomes
        self.postponed: dict[str, str] = {}

    @classmethod
    def open(
        cls, work: Path, page: Path, about: dict[str, Any], *, fresh: bool, tell: Tell
    ) -> Report:
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
        reason = (
            "--fresh"
            if fresh
            else f"not the same as last time: {', '.join(changes)}"
            if outcomes
            else changes[0]
        )
        tell(f"a new report ({reason})")
        return cls(work, page, about, {})

    def left(self, parts: Sequence[Part]) -> list[str]:
        """Return the names of the parts that are not done."""
        return [part.name for part in parts if part.name not in self.outcomes]

    def add(self, part: Part, outcome: Outcome, parts: Sequence[Part]) -> None:
        """Add what came of a part, or put it in place of what came of it before, and write the
        page."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.outcomes[part.name] = {**outcome, "date": now}
        self.write(parts)

    def write(self, parts: Sequence[Part]) -> None:
        """Write the report and its page."""
        self.work.mkdir(parents=True, exist_ok=True)
        self.page.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps({"about": self.about, "outcomes": self.outcomes}, indent=1) + "\n"
        for path, text in ((self.work / "report.json", data), (self.page, self.markdown(parts))):
            unfinished = path.with_name(path.name + ".unfinished")
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(
                path
            )  # whoever is interrupted leaves the one or the other, and no half of one

    def draw(self) -> None:
        """Draw images over cores beside the page, where they were measured and Matplotlib is
        installed."""
        rows = self.outcomes.get(gpu_cores.PART, {}).get("rows", ())
        if rows and not self.about["short"] and not missing(("matplotlib",)):
            gpu_cores.draw(rows, self.page.with_name("gpu_cores.png"))

    def markdown(self, parts: Sequence[Part]) -> str:
        """Return the page."""
        outcomes = {
            part.name: self.outcomes[part.name] for part in parts if part.name in self.outcomes
        }
        statuses = [outcome["status"] for outcome in outcomes.values()]
        counts = [statuses.count(name) for name in ("passed", "failed", "left out")]
        versions = self.about["versions"]
        lines = [
            f"# gpuload on {versions.get('GPU', 'a GPU')}", "",
            f"Written by `make gpu-test`{', with little data: its rates mean nothing' if self.about['short'] else ''}.",
            "`make gpu-test GPU_TEST='--part \"NAME\"'` does a part of it again; benchmarks/gpu_report.py has the "
            "command of each part.",
            f"Of {len(parts)} parts {counts[0]} passed, {counts[1]} failed, {counts[2]} were left out, "
            f"{len(self.left(parts))} are not done yet.", "",
            *_list({name: value for name, value in self.about.items() if name not in ("versions", "absent", "short")}),
            *_list(versions),
        ]  # fmt: skip
        is_short = self.about["short"]  # its rates mean nothing
        targets = [
            row
            for outcome in outcomes.values()
            if not is_short
            for row in outcome.get("targets", ())
        ]
        lines += _table(TARGETS, "", targets)
        for name, section in SECTIONS.items():
            rows = [
                row for part in parts if part.section == name and part.name in outcomes
                for row in outcomes[part.name].get("rows", ())
            ]  # fmt: skip
            about = section.about
            if name in gpu.NAMES:
                about = f"{find(name).asks}\n\nLimit: {find(name).limit}."
            lines += _table(section, about, rows)
        left_out = {
            name: outcome["why"]
            for name, outcome in outcomes.items()
            if outcome["status"] == "left out"
        }
        lines += ["", "## Left out", "", *_list(left_out)] if left_out else []
        for name, outcome in outcomes.items():
            if outcome["status"] == "failed":
                lines += [
                    "",
                    f"## Failed: {name}",
                    "",
                    outcome["why"],
                    "",
                    "```",
                    *outcome["problems"],
                    "```",
                ]
        left = self.left(parts)
        lines += ["", "## Not done yet", ""] if left else []
        for name in left:
            lines.append(
                f"- {name}: {self.postponed[name]}" if self.postponed.get(name) else f"- {name}"
            )
        return "\n".join(lines) + "\n"


def _table(section: Section, about: str, rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a section, none without rows."""
    if not rows:
        return []
    head = ["", f"## {section.title}", "", *([about, ""] if about else [])]
    return [*head, _line(section.columns), _line(["---"] * len(section.columns)), *map(_line, rows)]


def _list(values: dict[str, Any]) -> list[str]:
    return [f"- {name}: {value}" for name, value in values.items()]


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())

"""Run the attack: ``python -m tests.attack --minutes 60``; the status is 1 if anything was found.

Each part runs in a process of its own. A part that dies has found something: the process is made
anew with the next seed, for the rest of its time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.attack.hunt import FINDINGS_FOLDER, HANG_S, MOST_FINDINGS, Report, keep

ROOT = Path(__file__).parents[2]
# Each part with its share of the time.
PARTS = {
    "npy": 3, "fixed": 1, "tfrecord": 3, "tables": 2, "npz": 1, "idx": 1, "tars": 1, "archives": 1,
    "columns": 3, "arrowtypes": 2, "hdf5": 2, "zarr": 2, "options": 2,
    "heads": 2, "formats": 2, "pixels": 3, "damage": 2,
    "states": 1, "paths": 1, "manifests": 1, "parsers": 3, "natives": 3,
    "interrupts": 4, "bridges": 2, "kills": 2, "forks": 2, "changes": 3, "endings": 2, "derived": 3,
}  # fmt: skip
ADDRESS_BYTES = 12 << 30  # of each process, so that one that wants all memory does not get it
START_S = 300  # for imports, and to end; the part `natives` builds its program, too
ENDED = "it ended by itself"


def main(arguments: list[str] | None = None) -> int:
    """Run the parts one after the other and print what they did."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.attack", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--seconds", type=float, default=600, help="for all parts together; imports are not counted"
    )
    parser.add_argument("--minutes", type=float, help="the same in minutes")
    parser.add_argument(
        "--only",
        action="append",
        choices=[*PARTS, "planted"],
        help="a part; may be given more than once",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=int.from_bytes(os.urandom(4), "little"),
        help="a new one if left out",
    )
    parser.add_argument(
        "--report", type=Path, help=argparse.SUPPRESS
    )  # this is the process of one part
    value = parser.parse_args(arguments)
    names, all_seconds = (
        value.only or list(PARTS),
        60 * value.minutes if value.minutes else value.seconds,
    )
    if value.report is not None:
        resource.setrlimit(
            resource.RLIMIT_AS, (ADDRESS_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1])
        )
        importlib.import_module(f"tests.attack.{names[0]}").attack(value.seconds, value.seed).write(
            value.report
        )
        return 0
    print(f"seed {value.seed}", flush=True)
    reports = {}
    for name in names:
        seconds = all_seconds * PARTS.get(name, 1) / sum(PARTS.get(item, 1) for item in names)
        reports[name] = run_part(name, seconds, value.seed)
        print(_line(name, reports[name]), flush=True)
    return _say(reports, value.seed)


def run_part(name: str, seconds: float, seed: int) -> Report:
    """Return what a part did in processes of its own."""
    report, end = Report(), time.monotonic() + seconds
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"gpuload-attack-{name}-"))
        process, position = _run_once(name, max(end - time.monotonic(), 1), seed, folder)
        report.add(process)
        shutil.rmtree(folder, ignore_errors=True)
        if ENDED in report.outcomes:
            del report.outcomes[ENDED]
            return report
        seed = position + 1
        if time.monotonic() >= end or len(report.findings) >= MOST_FINDINGS:
            return report


def _run_once(name: str, seconds: float, seed: int, folder: Path) -> tuple[Report, int]:
    """Run a part until it ends or dies; returns the report and the seed that it came to."""
    content, errors = folder / "report.json", folder / "stderr.txt"
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "tests.attack",
        "--only",
        name,
        "--seconds",
        str(seconds),
        "--seed",
        str(seed),
    ]
    with open(errors, "wb") as stderr:
        child = subprocess.Popen(
            [*command, "--report", str(content)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(folder), "GPULOAD_CACHE": str(folder / "cache")},
            stderr=stderr,
            stdout=stderr,
        )
        try:
            status = child.wait(seconds + HANG_S + START_S)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)  # which shows the stack of every thread
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(START_S)
            child.kill()
            child.wait()
            status = None
    if status == 0:
        report = Report.read(content)
        report.outcomes[ENDED] += 1
        return report, seed
    report = Report.read(content) if content.exists() else Report()
    left = sorted(folder.glob("seed-*"))
    position = int(left[-1].name.split("-")[1]) if left else seed
    report.outcomes["died"] += max(1, position - seed)
    message = errors.read_text(errors="replace")[-6000:]
    finding_folder = keep(left[-1]) if left else FINDINGS_FOLDER
    report.findings.append(
        f"SEED={position}, input in {finding_folder}\nthe process {_end_of(status)}\n{message}"
    )
    return report, position


def _end_of(status: int | None) -> str:
    if status is None:
        return "did not end and was killed"
    return (
        f"was ended by {signal.Signals(-status).name}"
        if status < 0
        else f"ended with status {status}"
    )


def _line(name: str, report: Report) -> str:
    outcomes = ", ".join(f"{count} {subject}" for subject, count in report.outcomes.most_common())
    without = f"without: {report.without}" if report.without else ""
    return f"{name:<11}{report.tried:>10}{len(report.findings):>10}  {'; '.join(filter(None, [outcomes, without]))}"


def _say(reports: dict[str, Report], seed: int) -> int:
    for name, report in reports.items():
        for number, finding in enumerate(report.findings):
            print(f"\n{name}, finding {number}: PART={name} {finding}")
    print(f"\n{'part':<11}{'tried':>10}{'findings':>10}  what came of it (seed {seed})")
    for name, report in reports.items():
        print(_line(name, report))
    return int(any(report.findings for report in reports.values()))


if __name__ == "__main__":
    sys.exit(main())

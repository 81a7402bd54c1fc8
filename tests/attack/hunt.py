"""What all parts of the attack share: the loop that tries, watches and counts, and the report.

A finding  an exception that leaves a trial, whatever it is; a trial that hangs, or takes more
           memory than it may; the end of the process. The last ones are seen from outside, by
           `__main__.run_part`.
Left over  each trial has a folder of its own, named by its seed. It is removed where nothing was
           found, kept beside the finding otherwise, and found in TMPDIR by the process outside
           where this one has died.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.errors import GpuloadError

FINDINGS_FOLDER = Path(
    os.environ.get("GPULOAD_ATTACK_KEPT", Path(__file__).parents[2] / "build" / "attack")
)
HANG_S = 30  # for one trial; nearly all take milliseconds
IMPORTS_S = 120  # in the first trials, which import packages
MORE_BYTES = 1 << 29  # of memory during one trial, over what there was before
WARM = 3  # trials that are not held to this: packages are imported in them
MOST_FINDINGS = 10  # of one part; what is broken so often is found again with any seed

Trial = Callable[[np.random.Generator, Path], "str | Counter[str]"]


@dataclass
class Report:
    """What a part did.

    Attributes:
        outcomes: what came of it, and how often.
        findings: a text for each.
        without: why the part, or some of it, could not be tried.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    without: str = ""

    @property
    def tried(self) -> int:
        """How many things were tried."""
        return self.outcomes.total()

    def add(self, other: Report) -> None:
        """Add what another report of the same part says."""
        self.outcomes += other.outcomes
        self.findings += other.findings
        self.without = self.without or other.without

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(json.dumps([self.outcomes, self.findings, self.without]))

    @classmethod
    def read(cls, path: Path) -> Report:
        """Return the report that was written."""
        outcomes, findings, without = json.loads(path.read_text())
        return cls(Counter(outcomes), findings, without)


def hunt(
    seconds: float, seed: int, trial: Trial, *, hang_s: float = HANG_S, more_bytes: int = MORE_BYTES
) -> Report:
    """Try until the time is over, at least once.

    Args:
        seconds: how long.
        seed: of the first trial.
        trial: gets its random generator and an empty folder, and returns what came of it, or how
            often what.
        hang_s: a trial that takes longer ends the process, which shows the stack of every thread.
        more_bytes: of memory that a trial may take.
    """
    report, end = Report(), time.monotonic() + seconds
    for number in range(1 << 62):
        if number and (time.monotonic() >= end or len(report.findings) >= MOST_FINDINGS):
            break
        folder = Path(tempfile.mkdtemp(prefix=f"seed-{seed + number}-"))
        limit_s = hang_s if number >= WARM else max(hang_s, IMPORTS_S)
        faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__)
        before = _watch_memory()
        try:
            result = trial(np.random.default_rng(seed + number), folder)
            grown = _most_memory() - before
            assert number < WARM or grown <= more_bytes, (
                f"memory grew by {grown >> 20} MB, of {more_bytes >> 20}"
            )
        except Exception as error:
            result = "finding"
            report.findings.append(_finding_text(error, seed + number, keep(folder)))
        finally:
            faulthandler.cancel_dump_traceback_later()
        report.outcomes += result if isinstance(result, Counter) else Counter([result])
        shutil.rmtree(folder, ignore_errors=True)
    return report


def keep(folder: Path) -> Path:
    """Copy what a finding was made with to where it stays; returns where."""
    finding_folder = FINDINGS_FOLDER / folder.name
    shutil.copytree(folder, finding_folder, symlinks=True, dirs_exist_ok=True)
    return finding_folder


def outcome(function: Callable[..., Any], *arguments: Any, **names: Any) -> tuple[str, Any]:
    """Return "read" and what a call returns, or "refused" and the ``GpuloadError`` that it
    raises."""
    try:
        return "read", function(*arguments, **names)
    except GpuloadError as error:
        return "refused", error


def _finding_text(error: BaseException, seed: int, finding_folder: Path) -> str:
    notes = "\n".join(getattr(error, "__notes__", ()))
    place = "".join(traceback.format_exception(error))[-4000:]
    title = f"SEED={seed}, input in {finding_folder}"
    return f"{title}\n{type(error).__name__}: {str(error)[:2000]}\n{notes}\n{place}".strip()


def _watch_memory() -> int:
    """Forget the most memory that this process had; returns what it has."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # no Linux, or not allowed: the most of the whole run is taken
        return 0 if not os.path.exists("/proc/self/status") else _most_memory()
    return _memory("VmRSS")


def _most_memory() -> int:
    return _memory("VmHWM")


def _memory(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

"""A line of the report of ``gpuload doctor``, and the processes in which parts of it run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass

from gpuload.executors import trials

OK, ABSENT, PROBLEM = "ok", "-", "PROBLEM"
CHILD_S = 120  # seconds that a process may take: TensorFlow needs seconds on a cold disk
DRIVER = "/proc/driver/nvidia/version"


@dataclass(frozen=True)
class Diagnosis:
    """One line of the report.

    Attributes:
        section: of the report.
        subject: the part that was checked.
        state: "ok"; "-" where it is not there, which is no fault; "PROBLEM".
        about: the result of the check.
        remedy: the command to type, or the step to take; "" if none is needed.
    """

    section: str
    subject: str
    state: str
    about: str
    remedy: str = ""


def run_child(program: str, *arguments: str) -> tuple[int, str, str]:
    """Run a program in a Python of its own; return its exit status, stdout and stderr. None of them
    may hang."""
    # The last line of stderr is taken as the fault: nothing else may write there. Findings of an
    # earlier run are switched off, or an executor that failed then would not be tried now.
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONFAULTHANDLER": "",
        "GPULOAD_PROGRESS": "0",
        trials.SWITCH: "0",
    }
    command = [sys.executable, "-c", program, *arguments]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=CHILD_S, env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        out = expired.stdout or b""
        # `subprocess` has no status for that: this signal, which nothing here sends, stands for it.
        text = out.decode(errors="replace") if isinstance(out, bytes) else out
        return -signal.SIGALRM, text, ""
    return process.returncode, process.stdout, process.stderr


def read_fault(status: int, stderr: str) -> str:
    """Return the cause of a failed process, "" if it did not fail: the last line of its stderr."""
    if status == 0:
        return ""
    if status == -signal.SIGALRM:
        return f"it took more than {CHILD_S} s"
    if status < 0:
        return f"it ended the process ({signal.Signals(-status).name})"
    lines = [line for line in stderr.splitlines() if line.strip()]
    if lines:
        return " ".join(lines[-1].split())[:300]
    return f"exit status {status}"


def has_driver() -> bool:
    """Return True if a driver of NVIDIA is installed."""
    return os.path.exists(DRIVER) or shutil.which("nvidia-smi") is not None

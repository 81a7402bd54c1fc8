"""What holds for all tests holds however they are started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(sys.platform == "win32", reason="no shell that ignores signals for what it starts")
def test_ctrl_c_reaches_tests_that_were_started_in_the_background():
    code = "import signal, tests.conftest; print(signal.getsignal(signal.SIGINT).__name__)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what stands before an &
    try:
        process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        signal.signal(signal.SIGINT, before)

    assert process.stdout == "default_int_handler\n", process.stderr

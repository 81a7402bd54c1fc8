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


OUTCOMES = """
import re, threading
import pytest

@pytest.fixture
def broken():
    raise OSError("before")

@pytest.fixture
def breaking():
    yield
    raise OSError("behind")

def test_passes():
    pass

def test_fails():
    assert 1 + 1 == 3

def test_begins_with_an_error(broken):
    pass

def test_ends_with_an_error(breaking):
    pass

def test_is_skipped():
    pytest.skip("for no reason")

def wait_elsewhere():
    threading.Event().wait()

@pytest.mark.timeout(2, func_only=True)
def test_hangs_with_the_lock_of_the_interpreter():
    threading.Thread(target=wait_elsewhere, daemon=True).start()
    re.match("(a+)+b", "a" * 100)
"""


def test_every_outcome_is_reported_and_a_hang_is_ended_with_the_stack_of_each_thread(tmp_path):
    pytest.importorskip("xdist")
    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    options = ["-n", "1", "--max-worker-restart", "0", "--rootdir", tmp_path, "--basetemp", tmp_path / "temp"]
    process = subprocess.run(
        [*command, *options, tmp_path / "test_outcomes.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    # test_ends_with_an_error has passed, too.
    assert "2 failed, 2 passed, 1 skipped, 2 errors" in process.stdout, process.stdout + process.stderr
    assert "assert (1 + 1) == 3" in process.stdout
    assert "OSError: before" in process.stdout
    assert "OSError: behind" in process.stdout
    assert "crashed while running 'test_outcomes.py::test_hangs" in process.stdout
    assert "in test_hangs_with_the_lock_of_the_interpreter" in process.stderr
    assert "in wait_elsewhere" in process.stderr

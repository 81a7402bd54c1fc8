"""Threads that use the core at the same time: a C++ program, under ThreadSanitizer."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core import programs

SOURCE = Path(__file__).parent / "threads" / "threads.cpp"
NUM_ROUNDS = 10

# Older runtimes do not take all places where Linux may put a program; a sandbox may refuse to say
# where.
FIXED_PLACES = ["setarch", platform.machine(), "-R"]
if (
    shutil.which("setarch") is None
    or subprocess.run([*FIXED_PLACES, "true"], capture_output=True).returncode
):
    FIXED_PLACES = []

if sys.platform != "linux" or programs.compiler() is None:
    pytest.skip("this needs Linux and a C++ compiler", allow_module_level=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flags", [[], ["-fsanitize=thread"]], ids=["plain", "sanitized"])
def test_threads_that_use_the_core_at_the_same_time_do_not_race(tmp_path, flags):
    cxx = str(programs.compiler())
    if not programs.works(cxx, flags):
        pytest.skip(f"{cxx} has no ThreadSanitizer")
    program = programs.build("threads", [SOURCE], cxx, [*flags, "-pthread"], ["-Wl,--wrap=mmap"])
    command = [*FIXED_PLACES, str(program), str(tmp_path), str(NUM_ROUNDS)]

    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env=programs.environment(),
    )

    assert (process.returncode, process.stderr[-8000:]) == (0, "")
    assert process.stdout == "7 scenarios\n"

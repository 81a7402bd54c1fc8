"""A program that is forked from a process with gpuload does what it does in a new Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests import forkserver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is a new Python")
PROGRAMS = {
    "arguments": "import sys; print(sys.argv, __name__, sys.path[0]); import gpuload; print(gpuload.__file__)",
    "errors": "import sys; print('said', file=sys.stderr)",
    "a status": "raise SystemExit(3)",
    "a text as status": "import sys; sys.exit('why')",
    "Ctrl-C": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)",
    "a kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "the end of Python": "import atexit, threading, weakref\n"
    "atexit.register(print, 'at exit')\n"
    "class Owner: pass\n"
    "owner = Owner(); weakref.finalize(owner, print, 'finalized')\n"
    "threading.Thread(target=lambda: print('thread')).start()",
    "one thread": "import os; import gpuload; print(len(os.listdir('/proc/self/task')))",
    "place and environment": "import os; print(os.getcwd(), os.environ['GPULOAD_FORKED'], os.environ.get('HOME'))",
    "a warning": "import warnings; warnings.warn('of the test', stacklevel=1)",
    "an error of a name": "class A:\n    pass\nprint(A.__module__)\nA().b",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_what_a_new_python_makes_of_the_program(name, tmp_path, monkeypatch):
    monkeypatch.setenv("GPULOAD_FORKED", "yes")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(forkserver.ROOT))
    if name == "place and environment":
        monkeypatch.chdir(tmp_path)

    process = forkserver.run(PROGRAMS[name], 5, "x")

    expected = subprocess.run(
        [sys.executable, "-c", PROGRAMS[name], "5", "x"], capture_output=True, text=True
    )
    assert (process.returncode, process.stdout) == (expected.returncode, expected.stdout), (
        process.stderr
    )
    assert process.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_a_program_may_have_a_folder_and_no_gpuload(tmp_path):
    program = "import os, sys; print(os.getcwd(), 'numpy' in sys.modules, 'gpuload' in sys.modules)"

    assert (
        forkserver.run(program, folder=tmp_path, has_gpuload=False).stdout
        == f"{tmp_path} True False\n"
    )
    assert forkserver.run(program).stdout.split()[1:] == ["True", "True"]


def test_warnings_may_be_errors_or_nothing():
    program = PROGRAMS["a warning"]

    assert "UserWarning: of the test" in forkserver.run(program).stderr
    assert forkserver.run(program, warnings="ignore").stderr == ""
    assert forkserver.run(program, warnings="error").returncode == 1


def test_a_program_that_does_not_end_is_killed_and_the_next_one_runs(tmp_path):
    program = (
        "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )

    for timeout in (1, 10, 100):  # in which a busy machine begins the program
        with pytest.raises(subprocess.TimeoutExpired):
            forkserver.run(program, tmp_path / "number", timeout=timeout)
        if (tmp_path / "number").exists():
            break

    until = time.monotonic() + 60
    number = (tmp_path / "number").read_text()
    while os.path.exists(f"/proc/{number}") and time.monotonic() < until:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{number}")
    assert forkserver.run("raise SystemExit(7)").returncode == 7


def test_errors_go_to_a_descriptor_that_is_named(tmp_path):
    with open(tmp_path / "errors", "wb") as file:
        process = forkserver.run(
            "import os; os.write(2, b'said'); print('out')", stderr=file.fileno()
        )

    assert (process.stdout, process.stderr) == ("out\n", "")
    assert (tmp_path / "errors").read_bytes() == b"said"


def test_signals_are_handled_as_in_a_new_python():
    program = "from signal import *\nfor number in (SIGINT, SIGTERM, SIGPIPE, SIGBUS): print(getsignal(number))"

    expected = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert forkserver.run(program).stdout.split("at 0x")[0] == expected.stdout.split("at 0x")[0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

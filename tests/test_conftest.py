"""What holds for all tests holds however they are started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest, processes, temporary

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(
    sys.platform == "win32", reason="no shell that ignores signals for what it starts"
)
def test_ctrl_c_reaches_tests_that_were_started_in_the_background():
    code = "import signal, tests.conftest; print(signal.getsignal(signal.SIGINT).__name__)"
    before = signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # as a shell does for what stands before an &
    try:
        process = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
        )
    finally:
        signal.signal(signal.SIGINT, before)

    assert process.stdout == "default_int_handler\n", process.stderr


OUTCOMES = """
import ctypes, threading
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
    print("printed in the test")
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
    ctypes.PyDLL(None).sleep(100)

def test_behind_it():
    pass
"""


PROCESSES = """
import os, time
from pathlib import Path
import pytest
from tests import processes

@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.getbasetemp()

@pytest.mark.parametrize("number", range(2 * processes.GROUP_TESTS - 1))  # with the one below two groups
def test_of_the_first_process(number, folder, tmp_path, pytestconfig):
    assert tmp_path.parent == folder
    assert folder.parent == pytestconfig.stash[processes.SHARED_FOLDER]
    while number == 0 and not (folder.parent / "second").exists():  # which another process writes
        time.sleep(0.01)

def test_of_the_second_process(folder):
    (folder.parent / "second").touch()
"""


def run(folder, tests, *options):
    """Run files of tests beside our conftest.py in two processes, and return what that wrote."""
    for name, text in tests.items():
        (folder / f"{name}.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
    ]
    folders = ["--rootdir", folder, "--basetemp", folder / "temp"]
    command += [*folders, "--processes", "2", *options, folder]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_outcome_is_reported_and_a_hang_is_ended_with_the_stack_of_each_thread(tmp_path):
    process = run(tmp_path, {"test_a": PROCESSES, "test_b": OUTCOMES})

    # test_ends_with_an_error has passed, too; what stands behind the test that hangs did not run.
    assert "3 failed, 50 passed, 1 skipped, 2 errors" in process.stdout, (
        process.stdout + process.stderr
    )
    assert process.returncode == 1
    assert "assert (1 + 1) == 3" in process.stdout
    assert "OSError: before" in process.stdout
    assert "OSError: behind" in process.stdout
    assert "Captured stdout call" in process.stdout
    assert "printed in the test" in process.stdout
    assert (
        "test_hangs_with_the_lock_of_the_interpreter: its process ended with status 1 while"
        in process.stdout
    )
    assert (
        "test_behind_it: it did not run, because the process that was to run it has died"
        in process.stdout
    )
    assert "in test_hangs_with_the_lock_of_the_interpreter" in process.stderr
    assert "in wait_elsewhere" in process.stderr


def test_a_file_that_is_open_before_the_first_test_is_refused(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(b"123")

    with path.open("rb"):
        assert str(path) in processes._open_files()

    assert str(path) not in processes._open_files()


MANY_FAILURES = """
import pytest

@pytest.mark.parametrize("number", range(1000))
def test_fails(number):
    raise SystemExit("failed")
"""


def test_no_group_begins_behind_the_first_failure_with_x(tmp_path):
    process = run(tmp_path, {"test_a": MANY_FAILURES}, "-x")

    num_failed = int(re.search(r"(\d+) failed", process.stdout).group(1))
    assert 1 <= num_failed < 500, process.stdout + process.stderr
    assert "stopping after" in process.stdout
    assert process.returncode == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the files of tests lie on a disk")
def test_of_the_runs_that_are_over_the_last_one_keeps_its_files(tmp_path, monkeypatch):
    places = memory, disk = tmp_path / "memory", tmp_path / "disk"
    monkeypatch.setattr(temporary, "MEMORY", memory)
    monkeypatch.setattr(temporary, "LEAST_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    first, last, this_run, other_run = (
        f"{temporary.PREFIX}{n}" for n in (2**30 + 1, 2**30, os.getpid(), os.getppid())
    )
    for place in places:
        for age_s, name in enumerate((last, first, other_run)):
            (place / name / "of a test").mkdir(parents=True)
            os.utime(place / name, (time.time() - age_s,) * 2)

    assert temporary.new_folders() == [memory / this_run, disk / this_run]
    assert sorted(path.name for path in memory.iterdir()) == sorted([last, other_run])
    assert sorted(path.name for path in disk.iterdir()) == sorted([last, other_run, this_run])


@pytest.mark.parametrize(
    ("name", "value"), [("LEAST_BYTES", 1 << 60), ("cache_bytes", lambda: 1 << 30)]
)
def test_files_lie_on_a_disk_where_memory_is_short(monkeypatch, name, value):
    monkeypatch.setattr(temporary, name, value)

    assert temporary.new_folders() == []


@pytest.mark.parametrize(
    ("status", "stays"), [(pytest.ExitCode.OK, False), (pytest.ExitCode.TESTS_FAILED, True)]
)
def test_files_stay_behind_a_run_in_which_a_test_failed(tmp_path, status, stays):
    (tmp_path / "memory" / "of a test").mkdir(parents=True)
    session = SimpleNamespace(
        config=SimpleNamespace(stash={conftest.OWN_FOLDERS: [tmp_path / "memory"]})
    )

    conftest.pytest_sessionfinish(session, status)

    assert (tmp_path / "memory").exists() == stays


def test_files_that_are_about_a_disk_lie_on_one(disk_path):
    assert disk_path.is_dir()
    assert temporary.MEMORY not in disk_path.parents

"""What takes more than a second is one line on a terminal, nothing in a pipe, and always in the
log."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from gpuload import progress, threads
from tests import forkserver

pty = pytest.importorskip("pty")
fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

ROOT = Path(__file__).parents[1]


class Terminal:
    """A terminal that programs write to."""

    def __init__(self, num_columns: int = 0) -> None:
        self._own_end, self.program_end = pty.openpty()
        if num_columns:
            fcntl.ioctl(
                self.program_end,
                termios.TIOCSWINSZ,
                np.array([24, num_columns, 0, 0], np.uint16).tobytes(),
            )
        self._parts: list[bytes] = []
        (self._reader,) = threads.start(1, self._read, stop=lambda: None)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has it open any more
            while part := os.read(self._own_end, 65536):
                self._parts.append(part)

    def close(self) -> None:
        """Wait until all that was written is here."""
        os.close(self.program_end)
        threads.join([self._reader])
        os.close(self._own_end)

    @property
    def written(self) -> str:
        """All that was written to it."""
        return b"".join(self._parts).decode()

    @property
    def screen(self) -> str:
        """What is to be seen at the end, without the blanks at the ends of the lines."""
        lines = []
        for line in self.written.split("\n"):
            values = ""
            for text in line.split("\r"):
                values = text + values[len(text) :]
            lines.append(values.rstrip())
        return "\n".join(lines)


@pytest.fixture
def terminal():
    result = Terminal()
    yield result
    with contextlib.suppress(OSError):
        result.close()


PREPARE = """
import logging, os, sys
import numpy as np
import gpuload as gl
from gpuload import progress
logging.basicConfig(stream=sys.stdout, level="INFO", format="LOG %(message)s", force=True)
progress.AFTER_S = progress.EVERY_S = 0
"""


def run(code, *arguments, stderr=None, **settings):
    """Run a program that logs to its standard output, and prints there."""
    environment = {**os.environ, progress.SWITCH: "", **settings}
    process = forkserver.run(
        PREPARE + code, *arguments, stderr=stderr, warnings="error", environment=environment
    )
    assert process.returncode == 0, (process.stderr, process.stdout)
    return process


# --- headers

OPEN = """
source = gl.npy(sys.argv[1])
print(len(source))
"""
LOGGED = r"^LOG reading headers: 0 of 300 files\nLOG reading headers: done after \d+\.\d s\n300\n$"


@pytest.fixture
def shards(tmp_path):
    for number in range(300):
        np.save(tmp_path / f"{number:03}.npy", np.zeros((1, 2), np.float32))
    return tmp_path / "*.npy"


def test_on_a_terminal_the_line_of_headers_is_written_over_and_wiped(shards, terminal):
    process = run(OPEN, shards, stderr=terminal.program_end)
    terminal.close()

    lines = [text.rstrip() for text in terminal.written.split("\r") if text.strip()]
    assert lines[0] == f"gpuload: reading headers: 0 of 300 files [{'-' * 20}]"
    # A long rate takes from the length of the bar.
    assert_matches(
        lines[1], r"^gpuload: reading headers: 64 of 300 files, [\d,.]+/s, \d+:\d\d left \[##+-+\]$"
    )
    assert "\n" not in terminal.written
    assert terminal.screen == ""
    assert_matches(process.stdout, LOGGED)


def test_nothing_is_in_a_pipe_and_all_is_in_the_log(shards):
    process = run(OPEN, shards)

    assert process.stderr == ""
    assert_matches(process.stdout, LOGGED)


def test_the_line_can_be_switched_off_and_the_log_stays(shards, terminal):
    process = run(OPEN, shards, stderr=terminal.program_end, GPULOAD_PROGRESS="0")
    terminal.close()

    assert terminal.written == ""
    assert_matches(process.stdout, LOGGED)


def test_an_error_leaves_no_line_on_the_terminal(shards, terminal):
    (shards.parent / "200.npy").write_bytes(b"no NPY")
    code = """
try:
    gl.npy(sys.argv[1])
except gl.GpuloadError as error:
    print("refused")
"""
    process = run(code, shards, stderr=terminal.program_end)
    terminal.close()

    assert "reading headers: 64 of 300 files" in terminal.written
    assert terminal.screen == ""
    assert_matches(process.stdout, r"LOG reading headers: broken off after .*\nrefused\n$")


def test_images_are_listed_and_opened_under_a_line_of_their_own(tmp_path, terminal):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(b"not looked at")

    run("gl.images(sys.argv[1])", tmp_path, stderr=terminal.program_end)
    terminal.close()

    for text in ("listing folders: 2 of 2 folders", "opening files: 2 of 2 files"):
        assert f"gpuload: {text}" in terminal.written
    assert terminal.screen == ""


def test_a_job_in_the_background_of_its_shell_writes_nothing_to_the_terminal(shards, terminal):
    code = """
import fcntl, subprocess, termios
os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
opening = "import sys, gpuload as gl; gl.progress.AFTER_S = 0; gl.npy(sys.argv[1])"
for begin in (None, os.setpgrp):
    print(subprocess.run([sys.executable, "-c", opening, sys.argv[1]], preexec_fn=begin).returncode)
    os.write(2, b"end of one\\n")
"""
    process = run(code, shards, stderr=terminal.program_end)
    terminal.close()

    assert process.stdout == "0\n0\n"
    foreground, background, _ = terminal.written.split("end of one")
    assert "reading headers" in foreground
    assert background.strip() == ""


# --- the line


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still between two settings of its one number."""
    now = [100.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    return now


@contextlib.contextmanager
def stderr_on(terminal, monkeypatch):
    """Have the terminal as this process's stderr, and close it at the end."""
    with os.fdopen(os.dup(terminal.program_end), "w") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        patch.delenv(progress.SWITCH, raising=False)
        patch.setattr(progress, "_line_length", 0)
        yield
    terminal.close()


def test_the_first_second_is_silent_and_after_it_five_texts_a_second_are_shown(
    terminal, clock, caplog, monkeypatch
):
    caplog.set_level(logging.INFO, "gpuload")
    with stderr_on(terminal, monkeypatch), progress.Progress("counting") as counting:
        for number in range(192):  # 64 a second
            clock[0] = 100 + number / 64
            counting.show(number, 192, "things")
            if number == 63:
                assert caplog.messages == []

    lines = [text for text in terminal.written.split("\r") if text.strip()]
    texts = [
        f"gpuload: counting: {number} of 192 things, 64/s, 0:0" for number in range(64, 192, 13)
    ]
    assert [line[: len(text)] for line, text in zip(lines, texts, strict=True)] == texts
    assert lines[0].endswith(" of 192 things, 64/s, 0:02 left [######--------------]")
    assert caplog.messages == ["counting: 64 of 192 things", "counting: done after 3.0 s"]


def test_what_takes_less_than_a_second_is_not_told(terminal, clock, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "gpuload")
    with stderr_on(terminal, monkeypatch), progress.Progress("counting") as counting:
        counting.show(1, 2)
        clock[0] += 0.99
        counting.show(2, 2)

    assert (terminal.written, caplog.messages) == ("", [])


def test_a_line_is_cut_where_the_terminal_ends(monkeypatch):
    narrow = Terminal(num_columns=20)
    monkeypatch.setattr(progress, "AFTER_S", 0)
    with stderr_on(narrow, monkeypatch), progress.Progress("counting") as counting:
        counting.show(1, 1_000_000, "things")

    assert narrow.written == f"\r\rgpuload: counting: \r{' ' * 19}\r"


@pytest.mark.parametrize(
    ("num_columns", "line"),
    [
        (80, "gpuload: counting: 30 of 100 things, 3.0/s, 0:23 left [######--------------]"),
        (70, "gpuload: counting: 30 of 100 things, 3.0/s, 0:23 left [###----------]"),
        (60, "gpuload: counting: 30 of 100 things, 3.0/s, 0:23 left"),
        (50, "gpuload: counting: 30 of 100 th, 3.0/s, 0:23 left"),
        (40, "gpuload: counting: 30, 3.0/s, 0:23 left"),
        (30, "gpuload: counting: 3, 3.0/s, "),
    ],
)
def test_the_bar_takes_the_rest_of_a_line(num_columns, line, clock, monkeypatch):
    terminal = Terminal(num_columns)
    with stderr_on(terminal, monkeypatch):
        counting = progress.Progress("counting")
        counting.show(0, 100, "things")
        clock[0] += 10
        counting.show(30, 100, "things")

    assert terminal.written == f"\r\r{line}"
    assert len(line) < num_columns


@pytest.mark.parametrize(
    ("how_far", "of", "text"),
    [
        (1500, 0, "counting: 1,500 things, 150/s"),
        (0, 0, "counting"),
        (100, 720_000, "counting: 100 of 720,000 things, 10/s, 19:59:50 left"),
        (15, 15, "counting: 15 of 15 things, 1.5/s, 0:00 left"),
    ],
)
def test_rate_and_remaining_time_are_shown_as_far_as_they_are_known(
    how_far, of, text, clock, monkeypatch
):
    terminal = Terminal(num_columns=200)
    with stderr_on(terminal, monkeypatch):
        counting = progress.Progress("counting")
        counting.show(0, of, "things")
        clock[0] += 10
        counting.show(how_far, of, "things")

    assert terminal.written.removeprefix("\r\rgpuload: ").partition(" [")[0] == text


def test_work_that_goes_on_where_it_was_left_has_the_rate_of_this_time(clock, monkeypatch):
    terminal = Terminal(num_columns=200)
    with stderr_on(terminal, monkeypatch):
        counting = progress.Progress("counting")
        counting.show(900, 1000, "things")
        clock[0] += 10
        counting.show(950, 1000, "things")

    assert "950 of 1,000 things, 5.0/s, 0:10 left" in terminal.written


# --- a notebook


def test_in_a_notebook_it_is_html_below_the_cell_and_nothing_is_left_at_the_end(clock, monkeypatch):
    class OutStream:
        """As ipykernel.iostream.OutStream, which is no terminal."""

        __module__ = "ipykernel.iostream"

        def isatty(self):
            return False

    bundles = []

    class Handle:
        def update(self, bundle, raw):
            bundles.append(bundle)

    def display(bundle, raw, display_id):
        bundles.append(bundle)
        return Handle()

    monkeypatch.setattr(sys, "stderr", OutStream())
    monkeypatch.setitem(
        sys.modules,
        "IPython",
        types.SimpleNamespace(display=types.SimpleNamespace(display=display)),
    )

    with progress.Progress("counting <b>") as counting:
        counting.show(0, 100, "things")
        for number in (10, 20):
            clock[0] += 5
            counting.show(number, 100, "things")

    assert [bundle["text/plain"] for bundle in bundles] == [
        "gpuload: counting <b>: 10 of 100 things, 2.0/s, 0:45 left",
        "gpuload: counting <b>: 20 of 100 things, 2.0/s, 0:40 left",
        "",
    ]
    assert bundles[0]["text/html"] == (
        '<progress value="0.100" style="vertical-align:middle"></progress> '
        "gpuload: counting &lt;b&gt;: 10 of 100 things, 2.0/s, 0:45 left"
    )
    bundles.clear()
    monkeypatch.setenv("GPULOAD_PROGRESS", "0")
    with progress.Progress("counting") as counting:
        counting.show(0, 100, "things")
        clock[0] += 5
        counting.show(10, 100, "things")
    assert bundles == []


@pytest.mark.parametrize("stderr", ["none", "closed", "no file"])
def test_without_a_usable_stderr_the_log_is_still_written(stderr, monkeypatch, tmp_path, caplog):
    class NoFile:
        def fileno(self):
            raise OSError("no file")

    closed = (tmp_path / "closed").open("w")
    closed.close()
    monkeypatch.setattr(
        sys, "stderr", {"none": None, "closed": closed, "no file": NoFile()}[stderr]
    )
    monkeypatch.setattr(progress, "AFTER_S", 0)
    caplog.set_level(logging.INFO, "gpuload")

    with progress.Progress("counting") as counting:
        counting.show(1, 2)

    assert caplog.messages[0] == "counting: 1 of 2"


def test_who_finds_another_thread_at_it_does_not_wait(monkeypatch):
    monkeypatch.setattr(progress, "AFTER_S", 0)
    monkeypatch.setattr(progress, "EVERY_S", 0)
    inside, go_on, draws = threading.Event(), threading.Event(), []
    monkeypatch.setattr(
        progress,
        "_draw",
        lambda text, pace, share: (draws.append(text), inside.set(), go_on.wait(60)),
    )
    counting = progress.Progress("counting")
    (second,) = threads.start(1, counting.show, 1, 2, stop=go_on.set)
    inside.wait(60)

    counting.show(2, 2)  # returns, though the other is not done

    go_on.set()
    threads.join([second])
    assert draws == ["counting: 1 of 2"]


def assert_matches(text, pattern):
    assert re.search(pattern, text), text

"""Tests in several processes that are forked when the tests are collected:
``pytest --processes auto``.

    collect ──fork──┬──▶ process 0    takes a group of tests, runs each, sends its reports, takes
                    the next group ... └──▶ process 1    ...
    the first process shows the reports

pytest-xdist collects in each process, and each imports TensorFlow, JAX and DALI for that: half a
minute of processor time for 20,000 tests. Here it is spent once.

A fork is safe here: the libraries whose threads run by then (OpenBLAS and jemalloc) start them
again in a child, nothing has used a GPU before a test runs, and no file is open, whose place all
processes would share.

The queue is a pipe with the numbers of all groups. The kernel hands each number to one process, and
a reader finds the end of the pipe when no number is left. A group is a few tests of one file, in
their order. A process takes the next group before it runs the last test of a group: pytest then
knows which fixtures go on.

A process that dies fails the test that it ran, and the tests of its groups that did not run.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import os
import signal
import stat
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import pytest

GROUP_TESTS = 24
GROUP_BYTES = (
    4  # of a number in the queue; all numbers together must fit into a pipe, which holds 64 KiB
)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
SILENCE_S = (
    5  # then it is checked which processes live: what a dead one has forked may hold its pipe open
)
SHARED_FOLDER = pytest.StashKey[Path]()  # a folder of all processes of the run


@dataclass(eq=False)
class _Process:
    pid: int
    connection: Connection  # which it sends to: reports of the test before, and the place of a test that begins
    place: int | None = None  # of the test that it runs
    status: int | None = None  # when it has ended


def run_tests(session: pytest.Session, num_processes: int) -> bool:
    """Run the tests of a session, and return True.

    Raises:
        Failed: as many tests failed as ``--maxfail`` allows.
        Interrupted: a plugin ended the run.
        UsageError: a file of tests has opened a file.
    """
    if files := _open_files():
        raise pytest.UsageError(
            f"{files} are open since the tests were collected, and processes would share their places"
        )
    hook, items = session.config.hook, session.items
    groups = list(_groups(items))
    queue = _queue(len(groups))
    session.config.stash[SHARED_FOLDER] = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    missing = dict(enumerate(items))
    processes = list[_Process]()
    try:
        for number in range(num_processes):
            processes.append(_fork(session, number, groups, queue))
        for process, message in _messages(processes):
            reports, place = message or ([], None)
            for data in reports:
                report = hook.pytest_report_from_serializable(config=session.config, data=data)
                hook.pytest_runtest_logreport(report=report)
            if process.place is not None:
                item = missing.pop(process.place)
                if process.status:
                    _fail(
                        item, f"its process ended with status {process.status} while the test ran"
                    )
                hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            process.place = place
            if session.shouldfail or session.shouldstop:
                os.read(queue, 1 << 16)  # all numbers: each process ends after its group
    finally:
        os.close(queue)
        for process in processes:
            process.connection.close()
            if process.status is None:
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    for item in missing.values():
        _fail(item, "it did not run, because the process that was to run it has died")
    return True


def _open_files() -> list[str]:
    """Return the files that are open for reading; those that capture output have no name."""
    paths = []
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # the list itself, which is closed by now
            can_read = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
            if (
                number
                and can_read
                and stat.S_ISREG((status := os.fstat(number)).st_mode)
                and status.st_nlink
            ):
                paths.append(os.readlink(f"/dev/fd/{number}"))
    return paths


def _groups(items: Sequence[pytest.Item]) -> Iterator[Sequence[int]]:
    """Yield places of tests, a few of one file at a time.

    The groups of a file have about as many tests: two tests that were left over would make the
    file's fixtures again.
    """
    for _, places in itertools.groupby(range(len(items)), lambda place: items[place].path):
        rest = list(places)
        for num_groups in range(max(1, round(len(rest) / GROUP_TESTS)), 0, -1):
            num_tests = -(-len(rest) // num_groups)
            yield rest[:num_tests]
            rest = rest[num_tests:]


def _queue(num_groups: int) -> int:
    """Return the end of a pipe from which the numbers of groups are read."""
    queue, end = os.pipe()
    os.write(end, b"".join(number.to_bytes(GROUP_BYTES, "little") for number in range(num_groups)))
    os.close(end)
    return queue


def _messages(processes: Sequence[_Process]) -> Iterator[tuple[_Process, Any]]:
    """Yield what processes send, until all have ended; the message of an end is None."""
    while live := {process.connection: process for process in processes if process.status is None}:
        ready = wait(live, SILENCE_S)
        for connection, process in live.items():
            message, pid, status = None, 0, 0
            if connection in ready:
                try:
                    message = connection.recv()
                except (EOFError, OSError):  # OSError: it died before a message was complete
                    pid, status = os.waitpid(process.pid, 0)
            elif not ready:
                pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                process.status = os.waitstatus_to_exitcode(status)
            if pid or message is not None:
                yield process, message


def _fail(item: pytest.Item, reason: str) -> None:
    report = pytest.TestReport(
        item.nodeid, item.location, {}, "failed", f"{item.nodeid}: {reason}", "call"
    )
    item.config.hook.pytest_runtest_logreport(report=report)


def _fork(
    session: pytest.Session, number: int, groups: Sequence[Sequence[int]], queue: int
) -> _Process:
    connection, end = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # JAX and Python warn of a fork beside threads: see the text above
        pid = os.fork()
    if pid:
        end.close()
        return _Process(pid, connection)
    status = 1
    try:
        connection.close()
        reports = _prepare(session.config, number)
        places = itertools.chain.from_iterable(groups[group] for group in _group_numbers(queue))
        place = next(places, None)
        while place is not None:
            end.send((reports.take(), place))
            item, place = session.items[place], next(places, None)
            nextitem = None if place is None else session.items[place]
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        end.send((reports.take(), None))
        status = 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _group_numbers(queue: int) -> Iterator[int]:
    while number := os.read(queue, GROUP_BYTES):
        yield int.from_bytes(number, "little")


def _prepare(config: pytest.Config, number: int) -> _Reports:
    """Give a process what it must not share: files that capture output, a temporary folder; returns
    its reports."""
    _keep_memory()
    plugins = config.pluginmanager
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folder = config.stash[SHARED_FOLDER] / f"process-{number}"
    folder.mkdir()
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    for name in ("terminalreporter", "terminalprogress"):  # they would write to the terminal
        if plugins.hasplugin(name):
            plugins.unregister(name=name)
    reports = _Reports(config)
    plugins.register(reports)
    return reports


def _keep_memory() -> None:
    """Have malloc keep the memory of large arrays that are gone, for the next ones.

    By default it gives them back to the system, which fills each page with zeros when it gives it
    out again.
    """
    with contextlib.suppress(AttributeError, OSError):  # it is a function of glibc's
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 28)
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 29)


class _Reports:
    """Keeps reports until the test has ended; of a test that passed that of its call, none of its
    fixtures."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._reports.append(
                self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
            )

    def take(self) -> list[Any]:
        """Return the reports since the last call."""
        reports, self._reports = self._reports, []
        return reports

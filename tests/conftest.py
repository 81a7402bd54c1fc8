"""What holds for all tests: a gpu test without a GPU says why it did not run, and no test reaches a
network."""

from __future__ import annotations

import faulthandler
import gc
import ipaddress
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gpuload.threads import num_cores
from tests import environments, processes, remedies, samples, temporary

pytest.register_assert_rewrite("gpuload.testing")
remedies.note_errors()

# A shell has what it starts in the background (`make test &`) ignore Ctrl-C, and so do the
# processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Read by TensorFlow when it is first imported: say errors only, and leave GPU memory to DALI and
# CuPy.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

# The same examples in every run: what passed once passes again. `pytest --hypothesis-profile=deep`
# looks for new ones.
settings.register_profile(
    "ci",
    max_examples=50,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=25)  # of `make test`
settings.register_profile("deep", max_examples=2000, derandomize=False, deadline=None)
settings.load_profile("ci")


_num_folders = 0  # of tests
_file, _num_modules = (
    "",
    0,
)  # of the tests that run, and how many modules there were at the last freeze
_timer_end_s = (
    0.0  # when the timer of faulthandler ends the run, on the monotonic clock; 0 without one
)
ERROR_OUTPUT = pytest.StashKey[int]()
OWN_FOLDERS = pytest.StashKey[
    list[Path]
]()  # of this run, in memory and on a disk; none where pytest's is used
MANY_MODULES = 200  # a large package; its objects are in each collection until they are frozen, too


@pytest.fixture(scope="session", autouse=True)
def _cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Keep derived files out of the home folder, also those of the processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPULOAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _remedies() -> Any:
    """Have each error that a test meets name calls, arguments and commands that can be typed."""
    yield
    assert remedies.new_faults() == []


@pytest.fixture(scope="session")
def gpuload_wheel(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Return gpuload's wheel, which is built once for all processes of the run."""
    return environments.gpuload_wheel(
        pytestconfig.stash.get(processes.SHARED_FOLDER, tmp_path_factory.getbasetemp())
    )


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return a new folder; pytest's fixture reads the names of all folders before, which takes 3 ms
    after thousands."""
    return _new_folder(tmp_path_factory.getbasetemp(), request)


@pytest.fixture
def disk_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return a new folder that does not lie in memory."""
    own_folders = request.config.stash[OWN_FOLDERS]
    return _new_folder(own_folders[1] if own_folders else tmp_path_factory.getbasetemp(), request)


def _new_folder(folder: Path, request: pytest.FixtureRequest) -> Path:
    global _num_folders
    _num_folders += 1
    name = re.sub(r"\W+", "-", request.node.name)[:30]
    path = folder / f"{_num_folders}-{os.getpid()}-{name}"
    path.mkdir(mode=0o700)
    return path


@cache
def gpu_is_missing() -> str | None:
    """Return why there is no GPU to test on, None where there is one."""
    try:
        import cupy
    except ImportError:
        return _gpu_is_missing_for_dali()
    try:
        return None if cupy.cuda.runtime.getDeviceCount() else "CuPy finds no GPU"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy cannot use a GPU: {error}"


def _gpu_is_missing_for_dali() -> str | None:
    try:
        from nvidia.dali.backend import GetCUDADeviceCount
    except ImportError:
        return "neither CuPy nor DALI is installed"
    try:
        return None if GetCUDADeviceCount() else "CuPy is not installed and DALI finds no GPU"
    except RuntimeError as error:
        return f"CuPy is not installed and DALI cannot use a GPU: {error}"


def gpu_is_required() -> bool:
    """Return True if a gpu test may not be skipped."""
    return os.environ.get("GPULOAD_REQUIRE_GPU") == "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make test`."""
    parser.addoption(
        "--sample",
        action="store_true",
        help="of each test with several parameters run a sample of the cases",
    )
    parser.addoption(
        "--processes",
        type=_num_processes,
        default=0,
        help="run the tests in so many processes; auto: by the cores",
    )


def _num_processes(text: str) -> int:
    """Return a number of processes; "auto" is one more than the cores, at most 4: while a test
    waits, one runs."""
    return min(num_cores() + 1, 4) if text == "auto" else int(text)


@pytest.hookimpl(trylast=True)  # a sample of the cases that -m and -k leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that are in no sample."""
    if config.getoption("--sample"):
        sample = samples.sample_items(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in sample])
        items[:] = [item for item in items if item in sample]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write why tests were skipped, a line for each reason; pytest writes one for each place
    (``-rs``)."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(
        report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Collect without garbage collection: a third of the time would go into collections that find
    next to nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in several processes, where that is asked for."""
    num_processes = session.config.getoption("--processes")
    is_error = session.testsfailed and not session.config.option.continue_on_collection_errors
    if not num_processes or is_error or session.config.option.collectonly:
        return None
    _freeze_modules("")
    return processes.run_tests(session, num_processes)


@pytest.hookimpl(tryfirst=True)  # before pytest reads the option
def pytest_configure(config: pytest.Config) -> None:
    """Choose the folder for the files of tests.

    Keep the error output of the run, which no test captures, for the stacks of a test that hangs.
    """
    config.stash[ERROR_OUTPUT] = os.dup(2)
    config.stash[OWN_FOLDERS] = [] if config.option.basetemp else temporary.new_folders()
    if config.stash[OWN_FOLDERS]:
        config.option.basetemp = config.stash[OWN_FOLDERS][0]


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Have faulthandler end the run when the time is over, with the stack of every thread.

    It does so also while C code holds the interpreter's lock. Its timer is a thread, which takes
    time to start and to end. So one timer serves all tests of 10 s, and is up to 10 s of 120 late.
    """
    global _timer_end_s
    now_s, slack_s = time.monotonic(), settings.timeout / 12
    if not settings.timeout <= _timer_end_s - now_s <= settings.timeout + slack_s:
        _timer_end_s = now_s + settings.timeout + slack_s
        faulthandler.dump_traceback_later(
            settings.timeout + slack_s, exit=True, file=item.config.stash[ERROR_OUTPUT]
        )
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """Leave the timer to the next test, but for that of a test with a time of its own."""
    if item.get_closest_marker("timeout"):
        _stop_timer()
    return True


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Stop the timer behind the last test, and remove the files of all tests if none failed."""
    _stop_timer()
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        for folder in session.config.stash[OWN_FOLDERS]:
            shutil.rmtree(folder, ignore_errors=True)


def pytest_enter_pdb() -> None:
    """Stop the timer while somebody looks for a fault."""
    _stop_timer()


def _stop_timer() -> None:
    global _timer_end_s
    _timer_end_s = 0.0
    faulthandler.cancel_dump_traceback_later()


def _freeze_modules(file: str) -> None:
    """Before each file, leave out of garbage collection what is there: with all packages a
    collection takes 0.3 s.

    So is what a test before has imported.
    """
    global _file, _num_modules
    if file != _file or len(sys.modules) > _num_modules + MANY_MODULES:
        _file, _num_modules = file, len(sys.modules)
        gc.collect()  # what is garbage now would stay forever
        gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a gpu test where there is no GPU."""
    _freeze_modules(item.location[0])
    if item.get_closest_marker("gpu") and (reason := gpu_is_missing()):
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Make a skipped gpu test a failed one if the GPU is required, whatever it was skipped for."""
    report = yield
    return _refuse_skip(report) if item.get_closest_marker("gpu") else report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """Do the same for a whole file of which a part is marked gpu."""
    report = yield
    holds_gpu_tests = isinstance(
        collector, pytest.Module
    ) and "mark.gpu" in collector.path.read_text(encoding="utf-8")
    return _refuse_skip(report) if holds_gpu_tests else report


def _refuse_skip(report: Any) -> Any:
    if gpu_is_required() and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        if "not promised: " in str(reason):  # of a contract, whose subject has no such promise
            return report
        report.outcome = "failed"
        report.longrepr = f"a gpu test was skipped under GPULOAD_REQUIRE_GPU=1: {reason}"
    return report


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    if not _is_this_machine(host):
        raise RuntimeError(f"a test reached for the network: {host}")


def _is_this_machine(host: str | bytes | None) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    try:
        return name in (None, "", "localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


sys.addaudithook(_refuse_network)

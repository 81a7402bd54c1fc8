"""A signal handler that raises breaks off the caller and not the work, and the next call goes on
from there."""

from __future__ import annotations

import codecs
import functools
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from gpuload import signalsafe, threads
from gpuload.errors import FormatError, SpecError
from gpuload.formats.csv import columns
from gpuload.formats.zarr import metadata
from tests import forkserver

ROOT = Path(__file__).parents[1]
needs_timers = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="no timers that send signals"
)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


class Rang(Exception):
    """The alarm."""


@pytest.fixture
def alarm():
    """Have ``Rang`` raised in the main thread a moment later."""

    def ring(*_):
        raise Rang

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.02)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_the_work_of_the_main_thread_is_done_in_another_one():
    assert signalsafe.call(threading.current_thread).name == "gpuload-signalsafe-0"


def test_any_other_thread_does_its_work_itself():
    def work():
        used.append(signalsafe.call(threading.current_thread))

    used = []
    (worker,) = threads.start(1, work, stop=lambda: None)
    threads.join([worker])
    assert used == [worker]


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, StopIteration])
def test_an_error_of_the_work_reaches_the_caller_as_itself(kind):
    def fail():
        raise kind("of the test")

    with pytest.raises(kind, match="of the test"):
        signalsafe.call(fail)


def test_an_error_keeps_nothing_alive():
    class Held:
        pass

    held = []

    def fail():
        part = Held()
        held.append(weakref.ref(part))
        raise ValueError

    gc.disable()
    try:
        with pytest.raises(ValueError, match=r"^$"):
            signalsafe.call(fail)
        assert [item() for item in held] == [None]
    finally:
        gc.enable()


@needs_timers
def test_who_is_interrupted_hears_of_it_at_once_and_the_work_goes_on(alarm):
    go_on, process = threading.Event(), threading.Event()

    alarm()
    with pytest.raises(Rang):
        signalsafe.call(lambda: (go_on.wait(), process.set()))

    assert not process.is_set()
    go_on.set()
    assert process.wait(60)


def test_where_no_thread_is_to_be_had_the_caller_does_the_work(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert signalsafe.call(threading.current_thread) is threading.current_thread()


def test_when_python_ends_the_caller_does_the_work():
    registered = (
        "import atexit, threading\n"
        "atexit.register(lambda: print(signalsafe.call(threading.current_thread).name))\n"
    )
    script = [sys.executable, "-c", f"{registered}from gpuload import signalsafe"]

    process = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, timeout=60)

    assert (process.returncode, process.stdout) == (0, "MainThread\n"), process.stderr


# --- locks that the caller holds


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["of_a_user", "gpuload.bridges.of_a_user"])
def test_an_import_that_does_such_work_holds_up_nobody(tmp_path, monkeypatch, name):
    path = tmp_path / "imported.py"
    path.write_text(
        "import importlib, sys, threading\n"
        "from gpuload import signalsafe\n"
        "used = signalsafe.call(threading.current_thread)\n"
        f"name = {name!r}\n"
        "is_main = used is threading.main_thread()\n"
        "again = signalsafe.call(lambda: importlib.import_module(name)) if is_main else None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path.rename(tmp_path / f"{name.rpartition('.')[2]}.py")
    if "." in name:
        import gpuload.bridges

        monkeypatch.setattr(gpuload.bridges, "__path__", [str(tmp_path)])
    module = __import__(name, fromlist=["used"])
    monkeypatch.delitem(sys.modules, name)

    expected = "gpuload-signalsafe-0" if "." in name else "MainThread"
    assert module.used.name == expected


# --- fork

SCRIPT = """
import atexit, importlib, os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
import gpuload
from gpuload import signalsafe

def ring(*_):
    raise TimeoutError

signal.signal(signal.SIGALRM, ring)
"""


def run(code, *arguments, **environment):
    return forkserver.run(
        SCRIPT + code, *arguments, timeout=60, environment={**os.environ, **environment}
    )


@needs_fork
@needs_timers
def test_a_child_inherits_no_lock_of_work_that_was_under_way():
    process = run(
        """
lock, interrupted = threading.Lock(), threading.Event()

def work():
    with lock:
        signal.setitimer(signal.ITIMER_REAL, 0.2)  # by then the main thread waits
        interrupted.wait(60)
        time.sleep(0.2)  # for which the fork waits

try:
    signalsafe.call(work)
except TimeoutError:
    print("interrupted", lock.locked(), flush=True)
    interrupted.set()
child = os.fork()
if child == 0:
    os._exit(int(lock.locked()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert (process.returncode, process.stdout) == (0, "interrupted True\n0\n"), process.stderr


@needs_fork
def test_work_that_forks_does_not_wait_for_itself():
    process = run(
        """
def work():
    child = os.fork()
    if child == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

print(signalsafe.call(work))
"""
    )
    assert (process.returncode, process.stdout) == (0, "7\n"), process.stderr


# --- real packages

CODEC = """
from gpuload.images import decode

def use():
    return decode.codec()
"""
DALI = """
from gpuload.executors.dali import executor

def use():
    return executor.load("cpu").__name__
"""
SOURCES = """
import pathlib, tempfile
import numpy as np

def use():
    folder = pathlib.Path(tempfile.mkdtemp())
    values = gpuload.arrays(x=np.zeros((9, 4), "f4"))
    for name in ("x.npy", "x.npz", "x.tfrecord"):
        gpuload.convert(values, folder / name)
        gpuload.open(folder / name)
        gpuload.check(folder / name)
    (folder / "x.csv").write_bytes("a,b\\n1,\u00e9\\n".encode())
    (folder / "y.csv").write_bytes(b"a,b\\n1,\\xe9\\n")
    gpuload.csv(folder / "x.csv").read([0])
    gpuload.csv(folder / "y.csv", encoding="cp1252").read([0])
    gpuload.npz(folder / "x.npz").cache(path=folder / "cache")
    loader = gpuload.Loader(values, batch_size=4, shuffle=True, ops=[gpuload.ops.Python(lambda x, rng: x, on="x")])
    loader.batch_at(0)
    next(iter(loader))
"""
TENSORFLOW = """
def use():
    from gpuload.bridges.tensorflow import framework
    return framework.tf.__name__
"""
TENSORS = """
import importlib
import numpy as np
bridge = importlib.import_module("gpuload.bridges.{name}")
loader = gpuload.Loader(gpuload.arrays(x=np.arange(6, dtype="f4")), batch_size=6, device="cpu")

def use():
    return np.asarray(next(iter(bridge.tensors(loader)))["x"]).tolist()
"""
TRY = """
seconds, interrupts = float(sys.argv[1]), []
for i in range(200):
    signal.setitimer(signal.ITIMER_REAL, seconds if i < 150 else 0)
    try:
        made = use()
        signal.setitimer(signal.ITIMER_REAL, 0)
        break
    except TimeoutError:
        interrupts.append(i)
print(len(interrupts) > 0, made)
"""


@pytest.mark.parametrize(
    ("package", "first_use"),
    [
        pytest.param("PIL", CODEC, id="codec"),
        pytest.param("nvidia.dali", DALI, id="dali"),
        pytest.param("pyarrow", SOURCES, id="sources"),
    ],
)
def test_a_first_use_imports_nothing_in_the_main_thread(package, first_use):
    if not signalsafe.is_installed(package):
        pytest.skip(f"{package} is not installed")

    process = run(
        first_use
        + """
class Listener:
    def find_spec(self, name, path=None, target=None):  # of modules that are not loaded yet
        if threading.current_thread() is threading.main_thread():
            print(name)

sys.meta_path.insert(0, Listener())
use()
"""
    )
    assert (process.returncode, process.stdout) == (0, ""), process.stderr


@functools.cache
def run_undisturbed(first_use):
    return run(first_use + TRY, "0")


@needs_timers
@pytest.mark.parametrize(
    ("package", "first_use", "seconds"),
    [
        pytest.param("PIL", CODEC, 0.005, id="codec"),
        pytest.param("nvidia.dali", DALI, 0.005, id="dali, often"),
        pytest.param("nvidia.dali", DALI, 0.2, id="dali"),
        # Here the main thread has to import a module of ours itself. Few interrupts fall into that:
        # Python 3.11 leaves the lock of all imports locked for ever when one does so between two
        # lines of importlib._get_module_lock.
        pytest.param("tensorflow", TENSORFLOW, 0.4, id="tensorflow", marks=pytest.mark.slow),
        pytest.param(
            "tensorflow",
            TENSORS.format(name="tensorflow"),
            0.01,
            id="tensors",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "jax", TENSORS.format(name="jax"), 0.01, id="arrays of jax", marks=pytest.mark.slow
        ),
    ],
)
def test_the_import_of_a_large_package_may_be_interrupted_at_any_moment(
    package, first_use, seconds
):
    if (
        importlib.util.find_spec(package.partition(".")[0]) is None
        or importlib.util.find_spec(package) is None
    ):
        pytest.skip(f"{package} is not installed")

    process = run(first_use + TRY, str(seconds))
    undisturbed = run_undisturbed(first_use)

    assert process.returncode == 0, process.stderr
    assert process.stdout.partition(" ")[2] == undisturbed.stdout.partition(" ")[2] != ""


def test_an_error_of_a_library_becomes_ours_and_ours_are_passed_on():
    def fail(error):
        raise error

    for error, result in [
        (KeyError("k"), FormatError),
        (SpecError("s"), SpecError),
        (EOFError(), EOFError),
    ]:
        with pytest.raises(result):
            signalsafe.call_library(
                functools.partial(fail, error),
                lambda error: FormatError(str(error)),
                (LookupError, SpecError),
            )


@needs_timers
@pytest.mark.parametrize("kind", [TimeoutError, ValueError, Rang])
def test_what_a_handler_raises_during_a_call_of_a_library_is_not_of_the_library(kind):
    def ring(*_):
        raise kind("of the handler")

    before, release = signal.signal(signal.SIGALRM, ring), threading.Event()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(kind, match="of the handler"):
            signalsafe.call_library(lambda: release.wait(60), lambda error: FormatError(str(error)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        release.set()


@needs_timers
def test_an_except_around_a_library_passes_on_what_a_handler_raises():
    def ring(*_):
        raise TimeoutError("of the handler")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(TimeoutError, match="of the handler"):
            _read_as_damage(lambda: signal.raise_signal(signal.SIGALRM))
        with pytest.raises(FormatError):
            _read_as_damage(lambda: os.stat("/there/is/none"))
    finally:
        signal.signal(signal.SIGALRM, before)


@needs_timers
@pytest.mark.parametrize("kind", [ValueError, OSError, KeyError])
@pytest.mark.parametrize("place", ["folder", "encoding", "metadata"])
def test_where_a_file_is_looked_for_what_a_handler_raises_is_no_answer(monkeypatch, kind, place):
    def ring(*_):
        raise kind("of the handler")

    def wait(*_):
        release.wait(60)

    before, release = signal.signal(signal.SIGALRM, ring), threading.Event()
    module, name, function = {
        "folder": (os, "stat", lambda: signalsafe.is_folder("/")),
        "encoding": (codecs, "lookup", lambda: columns._codec("utf-8")),
        "metadata": (json, "loads", lambda: metadata._parse("a", b"{}")),
    }[place]
    monkeypatch.setattr(module, name, wait)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(kind, match="of the handler") as caught:
            function()
        assert type(caught.value) is kind  # errors of gpuload are subclasses of these
    finally:
        monkeypatch.undo()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        release.set()


def _read_as_damage(function):
    try:
        function()
    except OSError as error:
        signalsafe.pass_on(error)
        raise FormatError("damage") from None


def test_an_error_of_a_signal_handler_is_not_suppressed() -> None:
    with signalsafe.suppress(OSError):
        raise OSError("of the block")

    def handler(number: int, frame: object) -> None:
        raise OSError("of the handler")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(OSError, match="of the handler"), signalsafe.suppress(OSError):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)

"""Nobody waits for the compiler: what is not compiled yet is made by NumPy, equal bit for bit, and then by kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gpuload as gl
from gpuload import kernels, order, rng
from gpuload.kernels import making

if not kernels.compiled():
    pytest.skip("no compiled kernels on this system", allow_module_level=True)

ROOT = Path(__file__).parents[2]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
NORMALIZE = gl.ops.Normalize((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))


@pytest.fixture
def impatient(monkeypatch):
    """As a user's process begins: nobody waits for kernels, and none is there."""
    monkeypatch.setattr(making, "_patient", [])
    monkeypatch.setattr(kernels, "_loaded", {})
    yield
    kernels.wait()


@pytest.fixture
def held_up(impatient, monkeypatch):
    """The same with a compiler that does not go on before the event."""
    go_on, make = threading.Event(), making._make
    monkeypatch.setattr(making, "_make", lambda key: (go_on.wait(60), make(key)))
    yield go_on
    go_on.set()
    kernels.wait()


@pytest.fixture
def not_ready(impatient, monkeypatch):
    """The modules of kernels are there, and each kernel is still being compiled."""
    from gpuload.kernels import guard as of_extents

    class Compiling(ModuleType):
        guard = of_extents

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return self.call

        def call(self, *_, **__):
            raise kernels.NotReady

    monkeypatch.setattr(kernels, "load", Compiling)


def kernel(function):
    from gpuload.kernels import compile

    return compile.kernel(function)


# --- one kernel


def test_a_kernel_that_is_not_compiled_says_so_and_is_compiled_meanwhile(impatient):
    increased = kernel(lambda x: x + 1)

    with pytest.raises(kernels.NotReady):
        increased(1)

    kernels.wait()
    assert increased(1) == 2


def test_a_kernel_is_compiled_for_each_kind_of_arguments_by_itself(impatient):
    increased = kernel(lambda x: x + 1)
    for number in (1, 1.5):
        with pytest.raises(kernels.NotReady):
            increased(number)
        kernels.wait()
        assert increased(number) == number + 1


def test_who_is_patient_gets_the_compiled_form_from_the_first_call_on(impatient):
    with kernels.patient():
        assert kernel(lambda x: x + 1)(1) == 2


def test_an_error_of_the_compiler_reaches_who_calls_next(impatient):
    from numba.core.errors import TypingError

    wrong = kernel(lambda x: x.no_such_attribute)
    with pytest.raises(kernels.NotReady):
        wrong(1)
    kernels.wait()

    with pytest.raises(TypingError, match="no_such_attribute"):
        wrong(1)


def test_an_import_that_fails_reaches_who_needs_the_module_and_is_tried_again(impatient, monkeypatch):
    def fail(name):
        raise ImportError(f"no llvmlite for {name}")

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_import", fail)
        assert kernels.load("random") is None
        kernels.wait()
        with pytest.raises(ImportError, match="no llvmlite for random"):
            kernels.load("random")

    assert kernels.load("random") is None
    kernels.wait()
    assert kernels.load("random").__name__ == "gpuload.kernels.random"


def test_where_no_thread_is_to_be_had_the_caller_compiles(impatient, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    increased = kernel(lambda x: x + 1)

    with pytest.raises(kernels.NotReady):
        increased(1)

    assert increased(1) == 2


# --- whole loaders


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    image_module = pytest.importorskip("PIL.Image")
    folder, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(12):
        place = folder / str(number % 2)
        place.mkdir(exist_ok=True)
        size = tuple(int(length) for length in random.integers(30, 60, 2))
        image = image_module.fromarray(random.integers(0, 256, (7, 9, 3), np.uint8)).resize(size)
        image.save(place / f"{number}.{'png' if number % 5 == 0 else 'jpg'}")
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "x.npy"
    np.save(path, np.random.default_rng(1).integers(0, 256, (300, 3, 20, 24), np.uint8))
    return path


def of_rows(images, rows):
    return gl.npy(rows), []


def of_a_cast(images, rows):
    return gl.npy(rows), [gl.ops.Cast("float32", on="x")]


def of_vectors(images, rows):
    return gl.arrays(x=np.load(rows)[..., 0].astype(np.float32)), [gl.ops.Cast("float16", on="x")]


def of_crops(images, rows):
    return gl.npy(rows), [gl.ops.Transpose("HWC"), gl.ops.RandomCrop(16, 18, pad=2), gl.ops.RandomFlip(), NORMALIZE]


def of_planes(images, rows):
    ops = [gl.ops.Transpose("HWC"), gl.ops.RandomFlip(), NORMALIZE, gl.ops.Transpose("CHW"), gl.ops.Cast("float16")]
    return gl.npy(rows), ops


def of_resized(images, rows):
    return gl.images(images), [gl.ops.Decode(), gl.ops.Resize(24, 20), gl.ops.RandomFlip(), NORMALIZE]


def of_boxes(images, rows):
    ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(16, 18, interpolation="cubic"), gl.ops.RandomFlip()]
    return gl.images(images), [*ops, NORMALIZE, gl.ops.Transpose("CHW")]


def of_varying(images, rows):
    return gl.images(images), [gl.ops.Decode(), gl.ops.RandomFlip(), gl.ops.Resize(shorter=20), NORMALIZE]


def of_blocks(images, rows):
    return gl.npy(rows), [gl.ops.Transpose("HWC"), gl.ops.RandomFlip()]


CASES = [of_rows, of_a_cast, of_vectors, of_crops, of_planes, of_resized, of_boxes, of_varying, of_blocks]


def loader_of(case, images, rows):
    source, ops = case(images, rows)
    shuffle = gl.Blocks(16, 4) if case is of_blocks else True
    return gl.Loader(source, batch_size=8, shuffle=shuffle, seed=3, ops=ops, device="cpu", executor="array")


def contents(batch):
    return [batch.records, *(np.asarray(one) for values in batch.values() for one in listed(values))]


def listed(values):
    return values if isinstance(values, list) else [values]


def assert_equal(batches, others):
    assert len(batches) == len(others) > 0
    for one, other in zip(batches, others, strict=True):
        for array, its in zip(contents(one), contents(other), strict=True):
            np.testing.assert_array_equal(array, its, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_batches_are_delivered_while_the_compiler_is_held_up_and_are_the_same(case, images, rows, held_up):
    with loader_of(case, images, rows) as loader:
        first = list(loader.epoch(0))

        assert loader.stats()["batches_uncompiled"] == len(loader)
        assert "NumPy while Numba compiles" in loader.describe()

    with kernels.patient(), loader_of(case, images, rows) as loader:
        assert_equal(first, list(loader.epoch(0)))
        assert loader.stats()["batches_uncompiled"] == 0


@pytest.mark.parametrize("case", CASES)
def test_batches_are_the_same_where_kernels_are_still_being_compiled_when_they_are_called(
    case, images, rows, not_ready, monkeypatch
):
    with loader_of(case, images, rows) as loader:
        first = list(loader.epoch(0))

    monkeypatch.undo()
    with kernels.patient(), loader_of(case, images, rows) as loader:
        assert_equal(first, list(loader.epoch(0)))


def test_numbers_and_orders_are_the_same_where_kernels_are_still_being_compiled(not_ready, monkeypatch):
    def made():
        about = {"seed": 5, "epoch": 1, "records": np.arange(100), "stream": 2}
        places = order.Permutation(1000, ((1, 2), (3, 4), (5, 6), (7, 8))).at(np.arange(1000))
        return rng.uniform(3, **about), rng.bits(5, **about), places

    before = made()
    monkeypatch.undo()

    for one, other in zip(before, made(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_kernels_take_over_in_the_middle_of_an_epoch(rows, held_up):
    with loader_of(of_crops, None, rows) as loader:
        batches = iter(loader)
        first = next(batches)
        held_up.set()
        while loader.stats()["batches_uncompiled"] == loader.stats()["batches"]:
            kernels.wait()
            for _ in batches:
                pass
            batches = iter(loader)
        assert "compiled by Numba" in loader.describe()

        assert_equal([first], [loader.batch_at(0)])


def test_a_batch_that_is_made_again_counts_what_ran(rows, held_up):
    with loader_of(of_crops, None, rows) as loader:
        loader.batch_at(3)
        assert loader.stats()["batches_uncompiled"] == 1
        with kernels.patient():
            loader.batch_at(3)
        assert (loader.stats()["batches_uncompiled"], loader.stats()["batches"]) == (1, 2)


def test_a_step_that_misses_nothing_is_not_counted_though_something_else_is_being_compiled(impatient, monkeypatch):
    monkeypatch.setitem(making._wanted, "of another", lambda: None)
    source = gl.arrays(x=np.arange(20))
    with kernels.patient(), gl.Loader(source, batch_size=10, device="cpu") as loader:
        list(loader)
        assert loader.stats()["batches_uncompiled"] == 0


def test_many_loaders_at_once_switch_and_make_the_same(rows, held_up):
    def run(_):
        with loader_of(of_crops, None, rows) as loader:
            return list(loader)

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(run, number) for number in range(8)]
        held_up.set()
        first, *others = [one.result() for one in runs]

    for other in others:
        assert_equal(first, other)


# --- processes

PREPARE = """
import os, sys, threading
import numpy as np
import gpuload as gl
from gpuload import kernels, rng
from gpuload.kernels import making, threads

ABOUT = dict(seed=1, epoch=2, records=np.arange(5), stream=3)
making.DELAY_S = 0
passes, leave = threading.Semaphore(0), making.leave

def passed():
    passes.release()
    leave()

making.leave = passed

def empty_cache():
    "What the tests have compiled lies beside the modules."
    from gpuload.kernels import cache

    cache.folders = lambda: (os.environ["NUMBA_CACHE_DIR"],)

def begin():
    "Have a kernel compiled that takes seconds, and return in the middle of it."
    empty_cache()
    while kernels.load("resize") is None:
        kernels.wait()
    image, taps = np.zeros(300, np.uint8), (np.zeros(8, np.int32), np.zeros((2, 8), np.float32))
    try:
        kernels.load("resize").resize(image, (0, 30, 10, 10, 3), taps, taps, True, np.zeros(192, np.uint8), 8)
    except kernels.NotReady:
        for _ in range(30):
            passes.acquire()
"""


def run(code, folder, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PREPARE + code, *map(str, arguments)],
        capture_output=True, text=True, cwd=ROOT, timeout=100, env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
    )  # fmt: skip


def compiled_files(folder):
    return {path.name.partition("-")[0] for path in folder.rglob("*.nbc")}


def test_python_ends_in_the_middle_of_a_compilation(tmp_path):
    done = run("begin(); print(making.is_under_way())", tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert "resize.resize" not in compiled_files(tmp_path)


def test_ctrl_c_in_the_middle_of_a_compilation_is_ctrl_c(tmp_path):
    done = run("begin(); raise KeyboardInterrupt", tmp_path)

    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "resize.resize" not in compiled_files(tmp_path)


@needs_fork
def test_a_child_that_was_forked_in_the_middle_of_a_compilation_compiles_for_itself(tmp_path):
    code = """
begin()
child = os.fork()
if child == 0:
    from numba.core.compiler_lock import global_compiler_lock

    print(global_compiler_lock._lock.acquire(blocking=False), flush=True)
    with kernels.patient():
        print(rng.uniform(1, **ABOUT).tolist(), flush=True)
    os._exit(0)
print(making.is_under_way(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run(code, tmp_path)

    expected = f"{rng.uniform(1, seed=1, epoch=2, records=np.arange(5), stream=3).tolist()}\n"
    assert (done.returncode, done.stdout) == (0, f"True\n{expected}True 0\n"), done.stderr


@needs_fork
@pytest.mark.parametrize("module", ["aside", "making"])
def test_a_fork_holds_no_lock_that_the_thread_it_waits_for_wants(tmp_path, module):
    code = f"""
import concurrent.futures, logging, threading, time

begun, pool = threading.Event(), concurrent.futures.ThreadPoolExecutor(1)

def work():
    begun.set()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        logging.getLogger(f"{{time.monotonic()}}")
        pool.submit(int).result()
        making.leave()

if "{module}" == "making":
    making._hurry.put(None)
    making.ask("work", work)
else:
    from gpuload.kernels import aside, threads
    threads.start(1, work, name=aside.NAME, stop=lambda: None)
begun.wait()
if os.fork() == 0:
    os._exit(0)
print(os.wait()[1], end="", flush=True)
pool.shutdown()
os._exit(0)
"""
    done = run(code, tmp_path)

    assert (done.returncode, done.stdout) == (0, "0"), done.stderr


def test_numba_is_not_imported_before_the_first_batch_is_out(tmp_path):
    code = """
class Delay:
    def get(self, timeout):
        print("numba" in sys.modules, timeout)
        raise Empty

making.DELAY_S, making._hurry = 7, Delay()
making._hurry.put = lambda call: None
kernels.load("random")
kernels.wait()
print("numba" in sys.modules)
"""
    done = run("from queue import Empty\n" + code, tmp_path)

    assert (done.returncode, done.stdout) == (0, "False 7\nTrue\n"), done.stderr


def test_who_waits_does_not_wait_for_the_delay(tmp_path):
    code = """
making.DELAY_S = 1000
loader = gl.Loader(gl.arrays(x=np.arange(100)), batch_size=10, shuffle=True, device="cpu")
next(iter(loader))
print("numba" in sys.modules, kernels.how())
kernels.wait()
print("numba" in sys.modules)
"""
    done = run(code, tmp_path)

    assert (done.returncode, done.stdout) == (0, "False NumPy while Numba compiles\nTrue\n"), done.stderr


@pytest.mark.slow
def test_eight_processes_compile_into_one_empty_folder_and_a_ninth_finds_all(tmp_path):
    code = """
empty_cache()
with kernels.patient():
    print(rng.uniform(1, **ABOUT).tolist())
random = kernels.load("random")
print(sum(random.uniform.stats.cache_hits.values()))
"""
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: run(code, tmp_path), range(8)))
    ninth = run(code, tmp_path)

    expected = f"{rng.uniform(1, seed=1, epoch=2, records=np.arange(5), stream=3).tolist()}\n"
    for done in runs:
        assert (done.returncode, done.stdout.splitlines(keepends=True)[0]) == (0, expected), done.stderr
    assert (ninth.returncode, ninth.stdout, ninth.stderr) == (0, f"{expected}1\n", "")

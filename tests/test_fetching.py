"""A thread has storage read places in order, says how far it is, and ends when it should."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from gpuload import fetching, kernels
from gpuload.fetching import Fetcher
from gpuload.sources import maps
from gpuload.sources.places import Places, joined
from tests.threads import threads

if not maps.supported():
    pytest.skip("no compiled kernels on this system", allow_module_level=True)

storage = kernels.load("storage")
MIB = 1 << 20


@pytest.fixture
def place(tmp_path):
    """The address of a map of 64 MiB, whose file is not in memory."""
    path = tmp_path / "x"
    path.write_bytes(np.random.default_rng(1).bytes(64 * MIB))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as held:
            view = np.frombuffer(held, np.uint8)
            yield view.ctypes.data
            del view


def runs(*lines):
    return Places(np.array(lines, np.int64), ("an owner",))


def test_all_that_was_asked_for_comes_to_be_there(place):
    fetcher = Fetcher()
    fetcher.ask(runs([place, place + 20 * MIB, 70], [place + 30 * MIB, place + 31 * MIB, 100]), 100)
    fetcher.ask(Places(), 7)
    fetcher.ask(runs([place + 40 * MIB, place + 41 * MIB, 5]), 10)
    assert fetcher.fetched(0)
    for count in (1, 70, 100, 107, 117):
        fetcher.wait(count)
        assert fetcher.fetched(count)
    assert not fetcher.fetched(118)
    fetcher.close()


def test_records_are_there_piece_by_piece(place):
    fetcher, seen, done = Fetcher(), [], threading.Event()

    def watch():
        while not done.is_set():
            seen.append(int(fetcher._progress[storage.STATE, storage.COUNT]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    fetcher.ask(runs([place, place + 16 * MIB, 1600], [place + 16 * MIB, place + 64 * MIB, 6400]), 6400)
    fetcher.wait(6400)
    done.set()
    watcher.join()
    fetcher.close()
    assert seen == sorted(seen)
    assert {count % 100 for count in seen} == {0}  # a MiB at a time


@pytest.mark.skipif(
    ctypes.CDLL(None).madvise(None, 0, storage.MADV_POPULATE_READ) != 0, reason="nobody can wait on this system"
)
def test_who_waits_is_woken_for_each_piece(place):
    progress, posted = storage.progress(), ctypes.c_int()
    storage.fetch(runs([place, place + 64 * MIB, 6400]).runs, 6400, progress)
    ctypes.CDLL(None).sem_getvalue(ctypes.c_void_p(progress.ctypes.data), ctypes.byref(posted))
    assert posted.value == 64 + 1


def test_what_cannot_be_read_counts_as_read():
    fetcher = Fetcher()
    with mmap.mmap(-1, 16 * MIB) as held:
        address = np.frombuffer(held, np.uint8).ctypes.data
    fetcher.ask(runs([address, address + 16 * MIB, 5]), 5)  # nothing is mapped there any more
    fetcher.wait(5)
    assert fetcher.fetched(5)
    fetcher.close()


def test_closing_and_dropping_end_the_thread(place):
    before = threads()
    fetcher = Fetcher()
    for _ in range(100):
        fetcher.ask(runs([place, place + 64 * MIB, 1]), 1)
    fetcher.close()
    fetcher.close()
    assert threads() == before
    fetcher.wait(10**9)  # nobody waits for what does not come
    another = Fetcher()
    assert len(threads()) == len(before) + 1
    del another
    gc.collect()
    assert threads() == before


def test_closing_does_not_wait_for_all_that_was_asked_for(place, monkeypatch):
    fetcher = Fetcher()
    fetcher.ask(runs(*([place, place + 64 * MIB, 1] for _ in range(10**5))), 1)  # some minutes
    fetcher.close()
    assert threads() == []


def test_a_thread_that_has_nothing_to_do_keeps_no_map_alive(place):
    class Owner:
        pass

    owner = Owner()
    fetcher = Fetcher()
    fetcher.ask(Places(np.array([[place, place + MIB, 1]]), (owner,)), 1)
    fetcher.wait(1)
    until = time.monotonic() + 10
    while sys.getrefcount(owner) > 2 and time.monotonic() < until:
        time.sleep(0.001)
    assert sys.getrefcount(owner) == 2
    fetcher.close()


def test_nobody_waits_longer_than_asked():
    fetcher = Fetcher()
    fetcher.wait(1, time.monotonic() + 0.01)
    assert not fetcher.fetched(1)
    fetcher.close()


def test_ctrl_c_ends_waiting():
    fetcher = Fetcher()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            fetcher.wait(1)
    finally:
        signal.signal(signal.SIGALRM, before)
        fetcher.close()


def test_an_interpreter_ends_while_storage_is_read(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((1 << 15, 512)))
    program = (
        "import gpuload as gl, sys\n"
        "from gpuload import ahead\n"
        "ahead.Ahead._resident = lambda self, wanted: False\n"
        f"load = gl.Loader(gl.npy({str(path)!r}), batch_size=8, device='cpu')\n"
        "run = iter(load)\n"
        "print(next(run)['x'].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(8, 512)\n", "")


def test_a_fork_does_not_wait_for_a_thread_that_it_does_not_have():
    program = (
        "import os\n"
        "from gpuload.fetching import Fetcher\n"
        "fetcher = Fetcher()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    fetcher.wait(1)\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "fetcher.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "7\n")


def test_places_are_joined_and_moved():
    one, other = runs([0, 8, 2], [16, 24, 4]), runs([100, 200, 3])
    assert joined([]).runs.shape == (0, 3)
    both = joined([one.at_last(), other.after(5)])
    assert both.runs.tolist() == [[0, 8, 0], [16, 24, 0], [100, 200, 8]]
    assert both.owners == ("an owner", "an owner")
    assert fetching.resident(Places())

"""The guard takes the faults of our maps, and no others; maps are made, counted and given back."""

from __future__ import annotations

import ctypes
import os
import signal
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from gpuload import core
from gpuload.core import face
from gpuload.storage import maps
from tests import forkserver
from tests.storage.contract import all_maps_but, maps_of

if not maps.supported():
    pytest.skip("files cannot be mapped on this system", allow_module_level=True)

ROOT = Path(__file__).parents[2]
NUM_BYTES = 65536
PREPARE = """
    import faulthandler, mmap, os, signal, sys, threading
    import numpy as np
    from gpuload import core
    from gpuload.core import face
    from gpuload.storage.paths import PackedPaths

    def maps_of(paths):  # as in tests.storage.contract, which imports all that tests need
        stamps = [(status.st_size, status.st_mtime_ns, status.st_ino) for status in map(os.stat, paths)]
        return core.native.Maps(PackedPaths.of(paths).arrays, np.array(stamps, np.int64), 0, len(paths))

    path, other = sys.argv[1:]
    for name in (path, other):
        with open(name, "wb") as file:
            file.write(b"1" * 65536)
    with open(other, "r+b") as file:
        foreign = np.frombuffer(mmap.mmap(file.fileno(), 65536, prot=mmap.PROT_READ), np.uint8)
        file.truncate(5000)
    maps, out = maps_of([path]), np.zeros(8192, np.uint8)

    def copy(offset=0):
        zero = np.zeros(1, np.int64)
        return maps.copy(zero, zero + offset, zero + out.size, out, zero)[1]
"""


def run(tmp_path, code):
    script = textwrap.dedent(PREPARE) + textwrap.dedent(code)
    return forkserver.run(script, tmp_path / "file", tmp_path / "other", timeout=60)


def test_lost_pages_of_a_map_are_an_error_and_the_process_lives(tmp_path):
    process = run(
        tmp_path, "print(copy()); os.truncate(path, 5000); print(copy(), copy(16384), copy())"
    )

    assert (process.returncode, process.stdout) == (
        0,
        f"{face.COPIED}\n{' '.join([str(face.CHANGED)] * 3)}\n",
    ), process.stderr


@pytest.mark.parametrize(
    "before", ["copy()", "copy(); del maps", "copy(); os.truncate(path, 0); copy(16384)"]
)
def test_a_fault_that_is_not_ours_ends_the_process_as_ever(tmp_path, before):
    process = run(tmp_path, f"{before}\nprint(foreign.sum())")

    assert (process.returncode, process.stdout) == (-signal.SIGBUS, "")


@pytest.mark.parametrize(
    "before",
    [
        "faulthandler.enable(); copy()",
        "copy(); faulthandler.enable(); copy()",
        "copy(); faulthandler.enable()",
        "faulthandler.enable(); copy(); faulthandler.disable(); faulthandler.enable(); copy()",
    ],
)
def test_a_fault_that_is_not_ours_is_still_told_by_faulthandler(tmp_path, before):
    process = run(tmp_path, f"{before}\nprint(foreign.sum())")

    assert process.returncode == -signal.SIGBUS
    assert process.stderr.count("Fatal Python error: Bus error") == 1


def test_a_signal_that_was_sent_ends_the_process_as_ever(tmp_path):
    process = run(tmp_path, "copy(); os.kill(os.getpid(), signal.SIGBUS); print('alive')")

    assert (process.returncode, process.stdout) == (-signal.SIGBUS, "")


def test_a_handler_of_the_program_still_gets_what_was_sent(tmp_path):
    process = run(
        tmp_path,
        """
        signal.signal(signal.SIGBUS, lambda number, frame: print("got", number))
        copy()
        os.kill(os.getpid(), signal.SIGBUS)
        """,
    )

    assert (process.returncode, process.stdout.split()) == (0, ["got", str(int(signal.SIGBUS))])


def test_a_handler_that_replaced_the_guard_is_noticed(tmp_path):
    process = run(
        tmp_path, "copy(); faulthandler.enable(); os.truncate(path, 5000); print(copy(16384))"
    )

    assert (process.returncode, process.stdout) == (0, f"{face.CHANGED}\n"), process.stderr


def test_a_thread_that_blocks_the_signal_is_let_through(tmp_path):
    process = run(
        tmp_path,
        """
        copy()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGBUS})
        os.truncate(path, 5000)
        thread = threading.Thread(target=lambda: print(copy(16384)))
        thread.start()
        thread.join()
        """,
    )

    assert (process.returncode, process.stdout) == (0, f"{face.CHANGED}\n"), process.stderr


def test_a_program_that_replaces_the_guard_all_the_time_gets_its_bytes(tmp_path):
    maps, content = maps_of([file_of(tmp_path)]), np.arange(NUM_BYTES) % 251
    replaced, end = ctypes.CDLL(None).signal, threading.Event()

    def replace():
        while not end.is_set():
            replaced(int(signal.SIGBUS), 0)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for offset in range(0, 2000, 7):
            assert copy(maps, offset).tolist() == content[offset : offset + 100].tolist()
    finally:
        end.set()
        thread.join()


def test_threads_that_map_the_same_files_at_once_leave_one_map_of_each(tmp_path):
    before, path = core.native.num_free_maps(), file_of(tmp_path)

    for _ in range(50):
        maps, ready = maps_of([path] * 20), threading.Barrier(4)

        def work(maps=maps, ready=ready):
            ready.wait()
            for file in range(20):
                copy(maps, 5, file)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert core.native.num_free_maps() == before - 20
        del maps, work, thread, threads
        assert core.native.num_free_maps() == before


def test_ranges_run_out_and_are_given_back(tmp_path):
    before = core.native.num_free_maps()
    assert before <= 16384

    with all_maps_but(1, tmp_path):
        assert core.native.num_free_maps() == 1
        maps = maps_of([file_of(tmp_path)] * 2)
        assert copy(maps, 9, 0).tolist() == copy(maps, 9, 1).tolist()
        states = np.empty(2, np.int8)
        maps.states(np.arange(2), states)
        assert (states.tolist(), maps.any_refused) == ([face.MAPPED, face.UNTRIED], False)
        del maps

    assert core.native.num_free_maps() == before


def test_a_child_of_a_fork_has_the_maps(tmp_path):
    process = run(
        tmp_path,
        """
        copy()
        child = os.fork()
        if child == 0:
            out[:] = 0
            os._exit(0 if copy() == face.COPIED and (out == ord("1")).all() else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), copy())
        """,
    )

    assert (process.returncode, process.stdout) == (0, f"0 {face.COPIED}\n"), process.stderr


def file_of(tmp_path):
    path = tmp_path / "bytes"
    (np.arange(NUM_BYTES) % 251).astype(np.uint8).tofile(path)
    return os.fspath(path)


def copy(maps, offset, file=0):
    out, zero = np.zeros(100, np.uint8), np.zeros(1, np.int64)
    number, result = maps.copy(zero + file, zero + offset, zero + out.size, out, zero)
    assert (number, result) == (0, face.COPIED)
    return out

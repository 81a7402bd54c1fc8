"""The guard takes the faults of our maps, and no others."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from gpuload import kernels

guard = kernels.load("guard")
if guard is None or not guard.supported():
    pytest.skip("no compiled kernels on this system", allow_module_level=True)

ROOT = Path(__file__).parents[2]
PREPARE = """
    import faulthandler, mmap, os, signal, sys
    import numpy as np
    from gpuload import kernels
    from gpuload.kernels import guard

    patience = kernels.patient()
    patience.__enter__()

    def lost(path, num_bytes=65536):
        with open(path, "wb") as file:
            file.write(b"1" * num_bytes)
        with open(path, "r+b") as file:
            pages = np.frombuffer(mmap.mmap(file.fileno(), num_bytes, prot=mmap.PROT_READ), np.uint8)
            file.truncate(5000)
        return pages

    pages = lost(sys.argv[1])
"""


def run(tmp_path, code):
    script = textwrap.dedent(PREPARE) + textwrap.dedent(code)
    command = [sys.executable, "-c", script, str(tmp_path / "file")]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_lost_pages_read_as_zeros_and_the_range_is_broken(tmp_path):
    done = run(
        tmp_path,
        """
        guard.install()
        slot = guard.protect(pages.ctypes.data, pages.size)
        before = guard.broken(slot)
        print(before, np.count_nonzero(pages), guard.broken(slot))
        """,
    )

    assert (done.returncode, done.stdout) == (0, "False 5000 True\n")


@pytest.mark.parametrize(
    "before",
    [
        "guard.install()",
        "guard.install(); guard.protect(pages.ctypes.data + 2 * pages.size, 4096)",
        "guard.install(); guard.release(guard.protect(pages.ctypes.data, pages.size))",
    ],
)
def test_a_fault_that_is_not_ours_ends_the_process_as_ever(tmp_path, before):
    done = run(tmp_path, f"{before}\nprint(pages.sum())")

    assert done.returncode == -signal.SIGBUS
    assert done.stdout == ""


@pytest.mark.parametrize(
    "before",
    [
        "faulthandler.enable(); guard.install()",
        "guard.install(); faulthandler.enable(); guard.install()",
        "guard.install(); faulthandler.enable()",
        "faulthandler.enable(); guard.install(); faulthandler.disable(); faulthandler.enable(); guard.install()",
    ],
)
def test_a_fault_that_is_not_ours_is_still_told_by_faulthandler(tmp_path, before):
    done = run(tmp_path, f"{before}\nprint(pages.sum())")

    assert done.returncode == -signal.SIGBUS
    assert done.stderr.count("Fatal Python error: Bus error") == 1


def test_a_signal_that_was_sent_ends_the_process_as_ever(tmp_path):
    done = run(tmp_path, "guard.install(); os.kill(os.getpid(), signal.SIGBUS); print('alive')")

    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_a_handler_of_the_program_still_gets_what_was_sent(tmp_path):
    done = run(
        tmp_path,
        """
        signal.signal(signal.SIGBUS, lambda number, frame: print("got", number))
        guard.install()
        os.kill(os.getpid(), signal.SIGBUS)
        """,
    )

    assert (done.returncode, done.stdout.split()) == (0, ["got", str(int(signal.SIGBUS))])


def test_a_handler_that_replaced_the_guard_is_noticed_and_kept_behind_it(tmp_path):
    done = run(
        tmp_path,
        """
        scratch = np.zeros(32, np.int64)
        guard.install()
        faulthandler.enable()
        missed = guard.installed(scratch.ctypes.data)
        guard.install()
        slot = guard.protect(pages.ctypes.data, pages.size)
        print(missed, guard.installed(scratch.ctypes.data), np.count_nonzero(pages), guard.broken(slot))
        """,
    )

    assert (done.returncode, done.stdout) == (0, "False True 5000 True\n")


def test_a_thread_that_blocks_the_signal_is_let_through_when_it_asks(tmp_path):
    done = run(
        tmp_path,
        """
        import threading
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGBUS})
        guard.install()
        slot = guard.protect(pages.ctypes.data, pages.size)

        def work():
            scratch = np.zeros(32, np.int64)
            print(guard.installed(scratch.ctypes.data), np.count_nonzero(pages), guard.broken(slot))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """,
    )

    assert (done.returncode, done.stdout) == (0, "True 5000 True\n")


def test_threads_that_take_and_give_back_slots_never_share_one():
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    address = np.frombuffer(pages, np.uint8).ctypes.data
    before, held, shared = sorted(guard._free), set(), []

    def work():
        for _ in range(2000):
            slot = guard.protect(address, 10)
            if slot in held:
                shared.append(slot)
            held.add(slot)
            held.remove(slot)
            guard.release(slot)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert shared == []
    assert sorted(guard._free) == before


def test_nothing_here_waits_for_a_lock():
    """A finalizer releases slots, in any thread and at any line; and a child may have been forked at any line, too."""
    locks = (type(threading.Lock()), type(threading.RLock()), threading.Condition)

    assert not [name for name, value in vars(guard).items() if isinstance(value, locks)]


def test_slots_are_given_back_and_run_out():
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    address = np.frombuffer(pages, np.uint8).ctypes.data
    slots = []
    while (slot := guard.protect(address, 10)) is not None:
        slots.append(slot)
    for slot in slots:
        guard.release(slot)

    assert len(slots) == len(set(slots))
    assert 0 < len(slots) <= guard.SLOTS
    again = guard.protect(address, 10)
    assert again is not None
    guard.release(again)

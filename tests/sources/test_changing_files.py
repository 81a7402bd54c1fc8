"""A file that changes while it is open is an error that names it: never other data, never the end
of the process."""

from __future__ import annotations

import os
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from gpuload.errors import ChangedFileError, ClosedError, FileError
from gpuload.formats.npy.source import npy
from tests import forkserver
from tests.sources.npyfiles import write

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tmp_path(disk_path):
    """Return a new folder that lies on a disk: `tests.temporary` says why."""
    return disk_path


def _cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def _empty(path):
    os.truncate(path, 0)


def _grow(path):
    with open(path, "ab") as file:
        file.write(b"more")


def _modify(path):
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\xff" * 8)
    os.utime(path, (1, 1))


def _replace(path):
    second = Path(f"{path}.new")
    second.write_bytes(bytes(reversed(path.read_bytes())))
    second.replace(path)


def _cut_and_restore(path):
    whole = path.read_bytes()
    os.truncate(path, 100)
    path.write_bytes(whole)
    os.utime(path, (1, 1))


CHANGES = [_cut, _empty, _grow, _modify, _replace, _cut_and_restore, os.remove]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("read_before", [True, False])
def test_rows_of_a_file_that_changed_are_an_error(tmp_path, reader, change, order, read_before):
    for name in "ab":
        write(tmp_path / f"{name}.npy", np.asarray(np.ones((200, 50)), order=order))
    source = npy(f"{tmp_path}/*.npy")
    if read_before:
        source.read([0, 399])
    change(tmp_path / "b.npy")

    for _ in range(2):
        with pytest.raises(ChangedFileError, match=r"b\.npy"):
            source.read([0, 399])
    assert source.read([0])["x"].sum() == 50


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shapes", [[(30, 4), (30, 4)], [(20, 4), (30, 4)]])
def test_a_whole_file_that_changed_is_an_error(tmp_path, reader, change, shapes):
    for number, shape in enumerate(shapes):
        write(tmp_path / f"{number}.npy", np.ones(shape))
    source = npy(f"{tmp_path}/*.npy", record="file")
    change(tmp_path / "1.npy")

    with pytest.raises(ChangedFileError, match=r"1\.npy"):
        source.read([0, 1])
    assert source.read([0])["x"][0].sum() == 80 + 40 * (shapes[0][0] == 30)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_error_of_the_system_while_reading_is_told(tmp_path, reader):
    write(tmp_path / "a.npy", np.ones((3, 2)))
    source = npy(tmp_path / "a.npy")
    os.chmod(tmp_path, 0)
    try:
        with pytest.raises(FileError, match=r"a\.npy"):
            source.read([0])
    finally:
        os.chmod(tmp_path, 0o700)


@pytest.mark.parametrize("order", ["C", "F"])
def test_threads_that_come_first_at_the_same_time_all_read_the_data(tmp_path, reader, order):
    array = np.arange(100 * 6, dtype=np.float32).reshape(100, 6)
    for number in range(10):
        write(tmp_path / f"{number}.npy", np.asarray(array[number * 10 :][:10], order=order))
    for _ in range(100):
        source, wrong, ready = npy(f"{tmp_path}/*.npy"), [], threading.Barrier(4)

        def read(seed, source=source, wrong=wrong, ready=ready):
            indices = np.random.default_rng(seed).integers(0, 100, 30)
            ready.wait()
            if not np.array_equal(source.read(indices)["x"], array[indices]):
                wrong.append(seed)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_closing_takes_nothing_from_a_thread_that_reads(tmp_path, reader):
    array = np.arange(50_000 * 16, dtype=np.float32).reshape(-1, 16)
    write(tmp_path / "a.npy", array)
    indices = np.random.default_rng(0).integers(0, len(array), 20_000)
    for _ in range(20):
        source = npy(tmp_path / "a.npy")
        source.read([0])
        wrong = []

        def read(source=source, wrong=wrong):
            try:
                while True:
                    if not np.array_equal(source.read(indices)["x"], array[indices]):
                        wrong.append("data")
            except ClosedError:
                return
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        source.close()
        for thread in threads:
            thread.join()
        assert wrong == []


CUT_WHILE_READING = """
    import os, sys, threading
    import numpy as np
    from gpuload.errors import ChangedFileError
    from gpuload.formats.npy.source import npy

    folder, order = sys.argv[1:]
    path = f"{folder}/a.npy"
    np.save(path, np.asarray(np.ones((20_000, 512), np.float32), order=order))
    source = npy(path)
    source.read([0])
    started, outcomes = threading.Barrier(4), []

    def read(seed):
        rng = np.random.default_rng(seed)
        started.wait()
        try:
            while True:
                rows = source.read(rng.integers(0, len(source), 64))["x"]
                if not (rows == 1).all():
                    outcomes.append("wrong data")
                    return
        except ChangedFileError as error:
            outcomes.append("changed" if "a.npy" in str(error) else str(error))
        except BaseException as error:
            outcomes.append(repr(error))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    with open(path, "r+b") as file:
        while not outcomes:
            for length in (30_000_000, 10_000_000, 5_000, 0):
                file.truncate(length)
    for thread in threads:
        thread.join()
    print(outcomes)
"""


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_that_is_cut_while_threads_read_it_is_an_error_in_each(tmp_path, order):
    process = forkserver.run(textwrap.dedent(CUT_WHILE_READING), tmp_path, order)

    assert (process.returncode, process.stdout, process.stderr) == (
        0,
        "['changed', 'changed', 'changed']\n",
        "",
    )

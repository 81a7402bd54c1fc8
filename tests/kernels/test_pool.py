"""Threads that never ask for the interpreter's lock do every task of a board once, and the caller may do some of them.

A table of files for the kernels comes from the reader that makes it for the package, too.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from gpuload import kernels
from gpuload.sources import maps
from gpuload.sources.files import expand, look_at
from gpuload.sources.maps import Copier, MappedReader

if not maps.supported():
    pytest.skip("no compiled kernels on this system", allow_module_level=True)

pool, copy = kernels.load("pool"), kernels.load("copy")
RECORD_BYTES = 24


class Place:
    """Records in files, and memory for some jobs that copy them."""

    def __init__(self, folder, counts=(40,), num_jobs=3, most=50):
        self.records = np.random.default_rng(5).integers(0, 256, (sum(counts), RECORD_BYTES), np.uint8)
        ends = np.cumsum(counts)
        for number, part in enumerate(np.split(self.records, ends[:-1])):
            (folder / f"{number}").write_bytes(part.tobytes())
        found, _ = look_at(expand(f"{folder}/*"), 0, lambda *_: None)
        starts = np.concatenate([[0], ends]).astype(np.int64)
        mapped = np.ones(len(counts), np.bool_)
        self.reader = MappedReader(found, starts, np.zeros(len(counts), np.int64), mapped)
        self.reader.map_first(np.arange(len(self.records)))
        self.reader._guard.install()
        self.memory = np.zeros((num_jobs, most, RECORD_BYTES), np.uint8)
        arguments = Copier(self.reader, RECORD_BYTES, lambda records: records).arguments
        self.shared = (np.zeros((num_jobs, most), np.int64), np.arange(most), *arguments)

    def post(self, board, job, wanted, *, first_task, num_tasks):
        self.memory[job] = 0
        to = self.memory[job].ctypes.data
        board[pool.STOP, pool.NUM_POSTED] = first_task
        pool.post(board, self.shared[0], np.asarray(wanted, np.int64), job, to, num_tasks)

    def check(self, job, wanted):
        np.testing.assert_array_equal(self.memory[job, : len(wanted)], self.records[wanted])
        assert not self.memory[job, len(wanted) :].any()

    def threads(self, board, count):
        """Return started threads that serve a board."""
        threads = [threading.Thread(target=pool.serve, args=(board, *self.shared)) for _ in range(count)]
        for thread in threads:
            thread.start()
        return threads

    def wait(self, board, job):
        """Return the result of a job, waited for with the kernel."""
        deadline = time.monotonic() + 20
        while (result := pool.look(board, job)[0]) == pool.UNFINISHED and time.monotonic() < deadline:
            pool.wait(board, job, *self.shared)
        return result


def ended(board, threads):
    pool.stop(board, len(threads))
    for thread in threads:
        thread.join(20)
    return not any(thread.is_alive() for thread in threads)


def until(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    return condition()


@pytest.mark.parametrize(("num_jobs", "num_tasks"), [(1, 1), (2, 3), (10, 160)])
def test_every_job_and_task_has_a_cache_line_of_its_own(num_jobs, num_tasks):
    for _ in range(20):  # where memory begins is by chance
        board = pool.board(num_jobs, num_tasks)

        assert board.dtype == np.int64
        assert board.flags.c_contiguous
        assert board.strides == (pool.LINE, pool.WORD_BYTES)
        assert board.ctypes.data % pool.LINE == 0
        assert len(board) == pool.FIRST_JOB + num_jobs + num_tasks
        assert board[pool.STOP, pool.FIRST_TASK] == pool.FIRST_JOB + num_jobs


def test_a_board_belongs_to_nobody_else():
    first, second = pool.board(2, 4), pool.board(2, 4)

    assert not np.shares_memory(first, second)
    assert not first[pool.FIRST_JOB :].any()


def test_the_tasks_of_a_job_are_its_rows_each_once(tmp_path):
    place = Place(tmp_path)
    board = pool.board(3, 12)
    place.post(board, 1, np.arange(10), first_task=9, num_tasks=4)

    first_line = board[pool.STOP, pool.FIRST_TASK]
    lines = first_line + np.array([9, 10, 11, 0])  # the ring of tasks begins anew
    ranges = board[lines][:, [pool.JOB, pool.BEGIN, pool.END]]

    np.testing.assert_array_equal(ranges, [[1, 0, 2], [1, 2, 5], [1, 5, 7], [1, 7, 10]])


def test_who_waits_does_all_tasks_where_no_thread_is(tmp_path):
    place = Place(tmp_path)
    board = pool.board(3, 12)
    wanted = [39, 0, 1, 2, 7, 7, 20]
    place.post(board, 0, wanted, first_task=0, num_tasks=3)
    before = pool.look(board, 0)

    pool.wait(board, 0, *place.shared)
    result, took_ns = pool.look(board, 0)

    assert before == (pool.UNFINISHED, 0)
    assert result == pool.DONE
    assert took_ns > 0
    place.check(0, wanted)


def test_threads_do_the_tasks_where_nobody_waits(tmp_path):
    place = Place(tmp_path)
    board = pool.board(3, 12)
    threads = place.threads(board, 2)
    place.post(board, 2, np.arange(40), first_task=0, num_tasks=4)

    assert until(lambda: pool.look(board, 2)[0] != pool.UNFINISHED)
    assert pool.look(board, 2)[0] == pool.DONE
    place.check(2, np.arange(40))
    assert ended(board, threads)


@pytest.mark.parametrize("num_threads", [0, 1, 2, 4])
@pytest.mark.parametrize("num_jobs", [1, 2, 5])
def test_jobs_come_through_over_many_laps_of_both_rings(tmp_path, num_threads, num_jobs):
    place = Place(tmp_path, (13, 1, 26), num_jobs)
    board = pool.board(num_jobs, 7 * num_jobs)  # laps of tasks begin in the middle of jobs
    threads = place.threads(board, num_threads)
    rng = np.random.default_rng(1)
    first_task, waiting = 0, []
    for number in range(300):
        job = number % num_jobs
        if len(waiting) == num_jobs:
            oldest, asked = waiting.pop(0)
            assert place.wait(board, oldest) == pool.DONE
            place.check(oldest, asked)
        wanted, num_tasks = rng.integers(0, 40, rng.integers(0, 51)), int(rng.integers(1, 8))
        place.post(board, job, wanted, first_task=first_task, num_tasks=num_tasks)
        first_task += num_tasks
        waiting.append((job, wanted))
    for job, asked in waiting:
        assert place.wait(board, job) == pool.DONE
        place.check(job, asked)

    assert board[pool.TAKEN, 0] == first_task
    assert ended(board, threads)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_job_may_have_more_tasks_than_records(tmp_path, count):
    place = Place(tmp_path)
    board = pool.board(3, 48)
    threads = place.threads(board, 2)
    place.post(board, 0, np.arange(count), first_task=0, num_tasks=16)

    assert place.wait(board, 0) == pool.DONE
    place.check(0, np.arange(count))
    assert board[pool.TAKEN, 0] == 16
    assert ended(board, threads)


def test_a_later_job_may_be_waited_for_first(tmp_path):
    place = Place(tmp_path)
    board = pool.board(3, 12)
    for job in range(3):
        place.post(board, job, [job, 10 + job], first_task=2 * job, num_tasks=2)

    assert [place.wait(board, job) for job in (2, 0, 1)] == [pool.DONE] * 3
    for job in range(3):
        place.check(job, [job, 10 + job])


def test_waiting_ends_after_a_short_time_while_somebody_is_still_at_a_task(tmp_path):
    place = Place(tmp_path)
    board = pool.board(3, 12)
    place.post(board, 0, [1, 2, 3], first_task=0, num_tasks=2)
    board[pool.FIRST_JOB, pool.NUM_TASKS] = 3  # one that another thread has taken

    pool.wait(board, 0, *place.shared)

    assert pool.look(board, 0)[0] == pool.UNFINISHED
    place.check(0, [1, 2, 3])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_tasks_that_nobody_took_are_not_done_after_a_stop(tmp_path, num_threads):
    place = Place(tmp_path)
    board = pool.board(3, 12)
    for job in range(3):
        place.post(board, job, [1, 2, 3, 4], first_task=4 * job, num_tasks=4)
    pool.stop(board, num_threads)

    threads = place.threads(board, num_threads)
    for thread in threads:
        thread.join(20)

    assert not any(thread.is_alive() for thread in threads)
    assert [pool.look(board, job)[0] for job in range(3)] == [pool.UNFINISHED] * 3
    assert not place.memory.any()


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("num_tasks", [1, 5])
def test_a_task_that_fails_is_the_result_of_its_job_alone(tmp_path, num_threads, num_tasks):
    place = Place(tmp_path, (20, 20))
    with open(tmp_path / "1", "ab") as file:
        file.write(b"more")
    board = pool.board(3, 15)
    threads = place.threads(board, num_threads)
    for job, wanted in enumerate([[0, 1, 2, 3, 4], [0, 1, 20, 3, 4], [5, 6, 7, 8, 9]]):
        place.post(board, job, wanted, first_task=job * num_tasks, num_tasks=num_tasks)

    results = [place.wait(board, job) for job in range(3)]

    assert results == [pool.DONE, 8 * 1 + copy.CHANGED, pool.DONE]
    place.check(2, [5, 6, 7, 8, 9])
    assert ended(board, threads)


def test_the_job_after_a_failed_one_on_the_same_line_is_not_failed(tmp_path):
    place = Place(tmp_path, num_jobs=1)
    board = pool.board(1, 2)
    place.post(board, 0, [1, 40], first_task=0, num_tasks=2)
    failed = place.wait(board, 0)
    place.post(board, 0, [1, 39], first_task=2, num_tasks=2)

    assert failed % 8 == copy.OUTSIDE
    assert place.wait(board, 0) == pool.DONE
    place.check(0, [1, 39])


def test_a_file_that_was_not_mapped_yet_is_asked_for(tmp_path):
    place = Place(tmp_path, (20, 20))
    place.reader._table[1, copy.ADDRESS] = copy.UNTRIED
    board = pool.board(1, 2)
    place.post(board, 0, [1, 21], first_task=0, num_tasks=2)

    assert place.wait(board, 0) == 8 * 1 + copy.UNMAPPED

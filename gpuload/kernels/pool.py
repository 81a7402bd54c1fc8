"""Pool: threads that copy records while somebody else holds the interpreter's lock.

A thread of Python is in ``serve`` for as long as the pool lives. It takes tasks out of a queue in memory, so that
between two of them it waits for no lock: not while the caller makes the batch before, not while a model is trained.

    board      int64 words in lines of their own for what different threads write
    job        a step on its way: where its block lies, and of which records
    task       a range of the rows of a job, done by one thread; tasks are taken in the order of their posting
    QUEUED     a semaphore that counts the tasks which no thread has taken
    FINISHED   a semaphore that is posted when the last task of a job was done, so that who waits looks again
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuload.kernels import semaphore
from gpuload.kernels.compile import kernel, short_kernel
from gpuload.kernels.copy import DONE, copy_records
from gpuload.kernels.memory import WORD_BYTES, add_word, address_of, load_word, store_word

Int64s = NDArray[np.int64]
LINE = 64  # bytes of a cache line
QUEUED, FINISHED, TAKEN, STOP, FIRST_JOB = range(5)  # lines of a board; those of the jobs and the tasks follow
FIRST_TASK, NUM_POSTED = 1, 2  # in the line STOP: the line of the first task; tasks posted so far
TO, COUNT, NUM_TASKS, NUM_DONE, TOOK_NS, RESULT = range(6)  # in the line of a job
JOB, BEGIN, END = range(3)  # in the line of a task
UNFINISHED = -2  # in place of a result


def board(num_jobs: int, num_tasks: int) -> Int64s:
    """Return a board for so many jobs and tasks at a time, int64 ``[lines, 8]``, at the beginning of a cache line."""
    num_lines = FIRST_JOB + num_jobs + num_tasks
    memory = np.zeros(LINE // WORD_BYTES * (num_lines + 1), np.int64)
    begin = -memory.ctypes.data % LINE // WORD_BYTES
    lines = memory[begin : begin + LINE // WORD_BYTES * num_lines].reshape(num_lines, LINE // WORD_BYTES)
    lines[STOP, FIRST_TASK] = FIRST_JOB + num_jobs
    semaphore.create(lines[QUEUED].ctypes.data)
    semaphore.create(lines[FINISHED].ctypes.data)
    return lines


@short_kernel
def stop(board: Int64s, num_threads: int) -> None:
    """Let each thread end when it has done its task; tasks that nobody took are not done."""
    store_word(address_of(board, STOP, 0), 1)
    for _ in range(num_threads):
        semaphore.post(address_of(board, QUEUED, 0))


@short_kernel
def post(board: Int64s, records: Int64s, wanted: Int64s, job: int, to: int, num_tasks: int) -> None:
    """Queue a job: copy the records ``wanted`` to the address ``to``, in so many tasks."""
    count, line, first_line = wanted.size, FIRST_JOB + job, board[STOP, FIRST_TASK]
    records[job, :count] = wanted
    board[line, TO], board[line, COUNT], board[line, NUM_TASKS] = to, count, num_tasks
    board[line, NUM_DONE], board[line, TOOK_NS], board[line, RESULT] = 0, 0, DONE
    for part in range(num_tasks):
        task = first_line + (board[STOP, NUM_POSTED] + part) % (board.shape[0] - first_line)
        board[task, JOB] = job
        board[task, BEGIN], board[task, END] = count * part // num_tasks, count * (part + 1) // num_tasks
    board[STOP, NUM_POSTED] += num_tasks
    for _ in range(num_tasks):
        semaphore.post(address_of(board, QUEUED, 0))


@short_kernel
def look(board: Int64s, job: int) -> tuple[int, int]:
    """Return how the tasks of a job ended, UNFINISHED as long as not all have, and the nanoseconds they took."""
    semaphore.try_take(address_of(board, FINISHED, 0))  # so that posts which nobody waits for do not add up
    line = FIRST_JOB + job
    if load_word(address_of(board, line, NUM_DONE)) != board[line, NUM_TASKS]:
        return UNFINISHED, 0
    return board[line, RESULT], board[line, TOOK_NS]


@kernel
def serve(
    board: Int64s, records: Int64s, rows: Int64s, record_bytes: int, table: Int64s, paths: NDArray[np.uint8]
) -> None:
    """Do tasks until the board is stopped.

    Args:
        board: where jobs are posted.
        records: int64 ``[num_jobs, N]``, the records of each job.
        rows: int64 ``[N]``, 0 to N - 1.
        record_bytes: see ``copy_records``.
        table: the same.
        paths: the same.
    """
    time = np.empty(2, np.int64)
    while True:
        while semaphore.take(address_of(board, QUEUED, 0)) != 0:  # a signal came
            pass
        if load_word(address_of(board, STOP, 0)) != 0:
            return
        _do_task(board, records, rows, record_bytes, table, paths, time)


@kernel
def wait(
    board: Int64s, job: int, records: Int64s, rows: Int64s, record_bytes: int, table: Int64s, paths: NDArray[np.uint8]
) -> None:
    """Wait until all tasks of a job were done, a signal came, or WAIT_NS have passed; do tasks as long as there are.

    Who waits has a core that is free: to do a task takes no longer than to be woken when a thread has done it.
    """
    time = np.empty(2, np.int64)
    until = semaphore.now(semaphore.CLOCK_REALTIME, time) + semaphore.WAIT_NS
    line, result = FIRST_JOB + job, 0
    while result == 0 and load_word(address_of(board, line, NUM_DONE)) != board[line, NUM_TASKS]:
        if semaphore.try_take(address_of(board, QUEUED, 0)) == 0:
            _do_task(board, records, rows, record_bytes, table, paths, time)
        else:
            result = semaphore.wait_until(address_of(board, FINISHED, 0), until, time)


@kernel
def _do_task(
    board: Int64s, records: Int64s, rows: Int64s, record_bytes: int, table: Int64s, paths: NDArray[np.uint8],
    time: Int64s,
) -> None:  # fmt: skip
    first_line = board[STOP, FIRST_TASK]
    task = board[first_line + add_word(address_of(board, TAKEN, 0), 1) % (board.shape[0] - first_line)]
    job, begin, end = task[JOB], task[BEGIN], task[END]
    line = FIRST_JOB + job
    num_tasks = board[line, NUM_TASKS]
    began = semaphore.now(semaphore.CLOCK_MONOTONIC, time)
    to = (board[line, TO], record_bytes, board[line, COUNT])
    result = copy_records(records[job, begin:end], rows[begin:end], to, record_bytes, table, paths)
    if result != DONE:
        store_word(address_of(board, line, RESULT), result)
    add_word(address_of(board, line, TOOK_NS), semaphore.now(semaphore.CLOCK_MONOTONIC, time) - began)
    if add_word(address_of(board, line, NUM_DONE), 1) + 1 == num_tasks:  # from here on the line may be another job's
        semaphore.post(address_of(board, FINISHED, 0))

"""Copying: a pool of threads for steps that are nothing but copies of records.

The threads stay in a compiled loop (`kernels/pool.py`) and never ask for the interpreter's lock, so that the caller's
Python and their copies do not wait for one another. A step whose copy did not go through as it should - a file to be
mapped first, one that changed, one that cannot be read - is done again in the caller, which finds out why and says so.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuload.reading import Step, Workers, join, started
from gpuload.sources.maps import Copier
from gpuload.stats import Counters

SPARE_JOBS = 3  # one that is taken while another is begun, and two that Ctrl-C may have left behind


class CopyStep(Step, Protocol):
    """A step that copies records."""

    records: NDArray[np.int64]
    arrays: Any  # where they go
    address: int  # where the first record goes; the others follow side by side


class CopyPool:
    """Threads that copy.

    Args:
        copier: how.
        most_records: of a step.
        ahead: how many steps may be begun and not yet taken.
        num_threads: how many threads copy, among them the caller's while it waits.
        num_parts: into how many tasks a step is cut.
        slow_threads: how many threads, and tasks of a step, there are once storage must be waited for.
        counters: ``read_s`` is added to.
    """

    def __init__(
        self, copier: Copier, *, most_records: int, ahead: int, num_threads: int, num_parts: int, slow_threads: int,
        counters: Counters,
    ) -> None:  # fmt: skip
        self._copier, self._counters, self._kernels = copier, counters, copier.pool
        self._num_parts, self._slow_threads = num_parts, slow_threads
        self._num_jobs, self._num_begun = ahead + SPARE_JOBS, 0
        self._board = self._kernels.board(self._num_jobs, self._num_jobs * max(num_parts, slow_threads))
        records = np.zeros((self._num_jobs, most_records), np.int64)
        self._shared = (records, np.arange(most_records, dtype=np.int64), *copier.arguments)
        self._kept: list[object] = [None] * self._num_jobs  # what the threads write to, for each job
        self._threads: Workers = []
        copier.guard()
        self._start(max(1, num_threads - 1))

    def _start(self, num_threads: int) -> None:
        """Start what is missing to a number of threads."""
        kept = (self._kept, self._copier.reader)
        self._threads += started(
            num_threads - len(self._threads), _serve, self._kernels, self._board, self._shared, kept
        )

    def begin(self, step: CopyStep) -> _CopyJob:
        """Begin a step: its records are found out here, for that takes no longer than telling a thread to do it."""
        try:
            step.prepare()
            wanted = self._copier.wanted(step.records)
        except Exception as error:
            return _CopyJob(self, step, 0, error)
        num_parts = self._num_parts
        if self._copier.slow:
            num_parts = max(num_parts, self._slow_threads)
            self._start(self._slow_threads)
        job = self._num_begun % self._num_jobs
        self._num_begun += 1  # before it is posted: after Ctrl-C no other job may be written to its line
        self._kept[job] = step.arrays
        self._kernels.post(self._board, self._shared[0], wanted, job, step.address, num_parts)
        return _CopyJob(self, step, job)

    def stop(self) -> None:
        """Wait for the copies that are being made, forget the others and end the threads."""
        self._kernels.stop(self._board, len(self._threads))
        join(self._threads)


def _serve(kernels: Any, board: Any, shared: tuple[Any, ...], kept: object) -> None:
    """Be a thread; what it writes to and reads from, ``kept``, lives as long as it does, whoever else lets go of it."""
    kernels.serve(board, *shared)


class _CopyJob:
    """A step on its way through the threads."""

    def __init__(self, pool: CopyPool, step: CopyStep, job: int, error: Exception | None = None) -> None:
        self._pool, self._step, self._job, self._error = pool, step, job, error
        self._result, self._took_ns = pool._kernels.UNFINISHED, 0

    @property
    def finished(self) -> bool:
        pool = self._pool
        if self._result == pool._kernels.UNFINISHED and self._error is None:
            self._result, self._took_ns = pool._kernels.look(pool._board, self._job)
        return bool(self._result != pool._kernels.UNFINISHED or self._error is not None)

    def wait(self) -> None:
        pool = self._pool
        while not self.finished:  # it waits for so short a time that Python looks at signals
            try:
                pool._kernels.wait(pool._board, self._job, *pool._shared)
            except MemoryError as error:  # of a kernel's own arrays; a task is lost
                self._error = error
            if not all(thread.is_alive() for thread in pool._threads):
                self._error = RuntimeError("a thread that copies has ended")

    def settle(self) -> Exception | None:
        pool = self._pool
        if self._error is not None:
            return self._error
        pool._counters.add(read_s=self._took_ns * 1e-9)
        pool._kept[self._job] = None
        if self._result != pool._kernels.DONE:
            try:
                for part in range(self._step.num_parts):
                    self._step.do(part)
            except Exception as error:
                return error
        return None

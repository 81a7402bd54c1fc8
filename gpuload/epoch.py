"""Epoch: the batches of one epoch of a loader, one after the other."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import device as devices
from gpuload.batch import Batch
from gpuload.executors.base import Executor, RowError
from gpuload.order import Start
from gpuload.reading import Reading
from gpuload.stage import Work

if TYPE_CHECKING:
    from gpuload.loader import Loader


@dataclass
class Place:
    """Where an iterator is: ``step`` of ``epoch`` is the next to be delivered; ``start`` says how the epoch began."""

    epoch: int
    step: int
    start: Start


class Epoch:
    """An iterator over the batches of one epoch, from a place on.

    Dropping it stops its threads. Others of the same loader, alive at the same time, are independent of it.
    """

    def __init__(self, loader: Loader, place: Place) -> None:
        self._place = place
        self._loader = loader
        self._executor = loader._borrow_executor()
        self._started: deque[Work | BaseException] = deque()
        self._reading: Reading[Work] | None = Reading(
            loader._stage.works(loader._ring, place.epoch, place.start),
            num_threads=loader.num_threads,
            ahead=loader.prefetch,
            counters=loader._counters,
        )

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Batch:
        if self._reading is None:
            raise StopIteration
        while len(self._started) < self._executor.depth and self._start_one():
            pass
        if not self._started:
            self.close()
            raise StopIteration
        work = self._started.popleft()
        if isinstance(work, BaseException):
            raise work
        batch = finish(self._loader, work, self._executor)
        self._place.step = batch.step + 1
        return batch

    def _start_one(self) -> bool:
        """Take the next step from the threads and hand it to the executor; an error waits for its turn."""
        if self._reading is None:
            return False
        try:
            work = self._reading.take()
            if work is None:
                return False
            start(work, self._executor)
        except Exception as error:
            self._started.append(error)
            return True
        self._started.append(work)
        return True

    def close(self) -> None:
        """Stop the threads; the iterator is at its end afterwards."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()
            self._started.clear()
            self._loader._return_executor(self._executor)

    def __del__(self) -> None:
        if getattr(self, "_reading", None) is not None:
            self.close()


def start(work: Work, executor: Executor) -> None:
    """Hand a staged step to an executor that does not run on rows."""
    if work.stage.executor is None and work.stage.graph.ops:
        work.fields = work.inputs()
        touched = work.stage.graph.touched
        try:
            executor.start({name: work.fields[name] for name in touched}, work.merged_draws())
        except RowError as error:
            raise work.damaged(error) from None


def finish(loader: Loader, work: Work, executor: Executor) -> Batch:
    """Return the batch of a step that was started."""
    if work.stage.executor is not None or not work.stage.graph.ops:
        fields = _settled(loader, work) if work.stage.device == "cpu" else work.inputs()
    else:
        try:
            made = executor.finish()
        except RowError as error:
            raise work.damaged(error) from None
        fields = {**work.fields, **made}
    loader._counters.add(
        batches=1,
        records=int(np.count_nonzero(work.valid)),
        bytes=sum(_num_bytes(fields[name]) for name in loader._names),
    )
    return Batch(
        {name: fields[name] for name in loader._names},
        loader.output,
        records=work.records,
        valid=work.valid,
        epoch=work.epoch,
        step=work.step,
    )


def _settled(loader: Loader, work: Work) -> dict[str, Any]:
    """Return the arrays of a finished slot, or of a copy of it where too many slots are kept by the caller."""
    if not loader._ring.crowded:
        return {**work.arrays, **work.lists}
    copy = devices.page_aligned(work.root.size)
    copy[:] = work.root
    loader._counters.add(batches_copied=1)
    return {**work.stage.views(copy, work.records.size), **work.lists}


def _num_bytes(values: Any) -> int:
    return sum(one.nbytes for one in values) if isinstance(values, list) else int(values.nbytes)

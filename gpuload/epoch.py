"""Epoch: the batches of one epoch of a loader, one after the other."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload import reading
from gpuload.batch import ALIGN_BYTES, Batch
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
        self._due: deque[tuple[Work, int] | BaseException] = deque()  # works and steps, begun in the executor
        self._begin_later = False
        self._reading: Reading[Work] | None = loader._read(place)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Batch:
        if self._reading is None:
            raise StopIteration
        if self._begin_later:  # the caller has dropped the last batch of the work before, so its slot is free
            self._begin_later = False
            self._reading.begin()
        while len(self._due) < self._executor.depth and self._start_one():
            pass
        if not self._due:
            self.close()
            raise StopIteration
        due = self._due[0]
        try:
            if isinstance(due, BaseException):
                raise due
            work, step = due
            if work.failed:
                work = reading.run(work.alone(step))
            batch = finish(self._loader, work, step, self._executor)
        except Exception:
            self._due.popleft()
            raise
        self._due.popleft()  # only now, so that no step is lost where Ctrl-C comes
        self._place.step = step + 1
        return batch

    def _start_one(self) -> bool:
        """Take the next work from the threads and hand it to the executor; an error waits for its turn."""
        if self._reading is None:
            return False
        joined = self._loader._stage.num_steps > 1
        self._begin_later = joined
        try:
            work = self._reading.take(begin=not joined)
            if work is None:
                return False
            start(work, self._executor)
        except Exception as error:
            failed = self._reading.taken
            if failed is None or len(failed.steps) == 1:
                self._due.append(error)
                return True
            work, failed.failed = failed, True  # its steps are done anew, so that only the one at fault raises
        self._due.extend((work, step) for step in work.steps)
        return True

    def close(self) -> None:
        """Stop the threads; the iterator is at its end afterwards."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()
            self._due.clear()
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


def finish(loader: Loader, work: Work, step: int, executor: Executor) -> Batch:
    """Return the batch of a step whose work was started."""
    rows = work.rows(step) if len(work.steps) > 1 else None
    if work.stage.executor is not None or not work.stage.graph.ops:
        fields = _settled(loader, work, rows) if work.stage.device == "cpu" else work.inputs()
    else:
        try:
            made = executor.finish()
        except RowError as error:
            raise work.damaged(error) from None
        fields = {**work.fields, **made}
    records, valid = (work.records, work.valid) if rows is None else (work.records[rows], work.valid[rows])
    fields = {name: fields[name] for name in loader._names}
    num_bytes = sum(_num_bytes(values) for values in fields.values())
    loader._counters.add(batches=1, records=int(np.count_nonzero(valid)), bytes=num_bytes)
    return Batch(fields, loader.output, records=records, valid=valid, epoch=work.epoch, step=step)


def _settled(loader: Loader, work: Work, rows: slice | None) -> dict[str, Any]:
    """Return the arrays of a step in a finished slot, or copies of them where too many slots are kept by the caller."""
    crowded = loader._ring.crowded
    if crowded:
        loader._counters.add(batches_copied=1)
    elif rows is None:  # they begin where regions do
        return {**work.arrays, **work.lists}
    fields: dict[str, Any] = {
        name: _aligned(values if rows is None else values[rows], crowded) for name, values in work.arrays.items()
    }
    for name, values in work.lists.items():
        fields[name] = values if rows is None else values[rows]
    return fields


def _aligned(values: NDArray[Any], copy: bool) -> NDArray[Any]:
    """Return the array, or a copy of it if that is asked for or its memory does not begin where frameworks need it."""
    if not copy and values.__array_interface__["data"][0] % ALIGN_BYTES == 0:
        return values
    memory = devices.page_aligned(values.nbytes)
    made = memory.view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


def _num_bytes(values: Any) -> int:
    return sum(one.nbytes for one in values) if isinstance(values, list) else int(values.nbytes)

"""Batches: the thread that feeds an executor which runs whole batches, ahead of whoever takes them.

It takes finished steps from the workers in order, uploads them where the executor is on a GPU, and starts them in the
executor. Everything that touches DALI, the GPU and their queues happens in this one thread, where no signal handler
runs; whoever takes batches waits for this thread at most, never for a device. The rules of `workers.py` for waiting and
for endings hold here too.

On a GPU nothing here waits for the device either: upload, raw decode and ops are queued on a stream of our own, and
behind them an event. The slot of a step may be used again when the upload's event has passed; what the batch is made of
may be read by others on streams that wait for the event (``device.Lane``).
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from gpuload import device as devices
from gpuload import rawdecode, threads
from gpuload.errors import ClosedError
from gpuload.executors.base import BatchExecutor
from gpuload.ops.base import RowError
from gpuload.pipeline.joining import Joining
from gpuload.pipeline.recipe import Recipe, raw_region
from gpuload.pipeline.ring import ALIGN_BYTES
from gpuload.pipeline.step import Packed, Step
from gpuload.pipeline.tray import Tray
from gpuload.pipeline.workers import Workers
from gpuload.ragged import Ragged
from gpuload.spec import Layout
from gpuload.stats import Counters

CROWDED_BYTES = 1 << 28  # a consumer who keeps more device memory gets arrays that keep none but their own
STARTED = 2  # batches in the executor before the oldest is asked for, so that it always has the next one to do


@dataclass
class Made:
    """What became of a step, or of some short steps that were done together.

    Attributes:
        step: the step.
        fields: its fields after all ops, on the device.
        each: of steps that were done together: the fields of each of them.
        alone: of steps that were done together and of which one failed: what became of each, done anew by itself.
        event: on a GPU: when it has passed, the fields are there.
        error: what went wrong, in place of the fields.
        refused: why a row could not be used, as long as its batch may be made anew with another record in its place.
        is_started: True while the executor has it: from its start until its result was asked for.
        is_done: True once the executor has finished it.
    """

    step: Step
    fields: dict[str, Any]
    each: list[dict[str, Any]] = field(default_factory=list)
    alone: list[Made] = field(default_factory=list)
    event: Any = None
    error: BaseException | None = None
    refused: RowError | None = None
    is_started: bool = False
    is_done: bool = False


class Batches:
    """A thread that makes batches of the steps of an epoch, in order, some ahead.

    Args:
        workers: do the steps; closed with this.
        executor: runs whole batches, used by this thread alone until it ends; None where there are no ops.
        lane: of the GPU; None on a CPU.
        joining: which steps are done together.
        num_ahead: how many batches are begun beyond the one that is being taken, at most.
        give_back: takes the executor when the thread ends.
        counters: ``wait_s`` is added to.
    """

    def __init__(
        self, workers: Workers, executor: BatchExecutor | None, lane: devices.Lane | None, *, joining: Joining,
        num_ahead: int, give_back: Callable[[BatchExecutor | None], None], counters: Counters,
    ) -> None:  # fmt: skip
        self._workers = workers
        self._num_ahead, self._counters, self._asked = num_ahead, counters, num_ahead
        self._board = board = _Board(workers, executor, lane, joining, give_back)
        board.calls.put(num_ahead)
        board.dropped = weakref.ref(self, board.calls.put)
        self._threads = threads.start(1, _serve, board, name="gpuload-batches", stop=board.stop)

    def take(self, number: int) -> Made | None:
        """Return a batch once it is made (on a GPU: queued); it is kept until ``forget``. See ``Tray.take``."""
        until = number + 1 + self._num_ahead
        if until > self._asked:
            self._board.calls.put(until)
            self._asked = until
        return self._board.tray.take(number, self._counters)

    def num_ready(self) -> int:
        """Return how many are finished."""
        return sum(made.step.num_steps for made in self._board.tray.items())

    def forget(self, number: int) -> None:
        """Let go of a batch that was taken."""
        self._board.tray.forget(number)

    def close(self) -> None:
        """Stop the threads and wait for what each is just doing."""
        self._board.stop()
        self._workers.close()
        threads.join(self._threads)


class _Board:
    """What the thread and ``Batches`` share; see ``workers._Board``."""

    def __init__(
        self, workers: Workers, executor: BatchExecutor | None, lane: devices.Lane | None, joining: Joining,
        give_back: Callable[[BatchExecutor | None], None],
    ) -> None:  # fmt: skip
        self.workers, self.executor, self.lane, self.give_back = workers, executor, lane, give_back
        self.calls: SimpleQueue[object] = SimpleQueue()
        self.dropped: object = None
        self.tray: Tray[Made] = Tray()
        self._joining, self._next, self._allowed = joining, 0, 0
        self._started: deque[tuple[int, Made]] = deque()
        self._uploading: deque[Made] = deque()  # the device may read their slots until their events have passed

    def stop(self) -> None:
        """Let the thread end after what it is just doing; takes no lock, so that it may be called anywhere."""
        self.tray.stop()
        self.calls.put(None)
        self.workers.stop()  # it may be waiting for them

    def serve(self) -> None:
        """Be the thread: start what may be started, finish what was started, wait when there is neither."""
        while self._listen():
            if self._next < self._allowed and self._joining.steps(self._next)[1]:
                self._start(self._next)
                self._next += 1
            else:
                self._allowed = min(self._allowed, self._next)
            if len(self._started) > STARTED or (self._started and self._next >= self._allowed):
                number, made = self._started.popleft()
                self._finish(made)
                self.tray.put(number, self._settled(made))
                del made  # a thread that waits must not keep a batch alive

    def _listen(self) -> bool:
        """Hear how far to go, waiting only if there is nothing to do; return False if the thread should end."""
        while True:
            try:
                until = self.calls.get(block=self._next >= self._allowed and not self._started)
            except Empty:
                return not self.tray.stopped
            if not isinstance(until, int):
                return False
            self._allowed = max(self._allowed, min(until, self._joining.most_groups))

    def _start(self, number: int) -> None:
        """Take the next step from the workers, upload it and start it in the executor; an error waits for its turn."""
        step = self.workers.take(number)
        if step is None:
            raise RuntimeError("this thread alone takes steps from its workers")
        self.workers.forget(number)
        made = Made(step, {}, error=step.error)
        self._started.append((number, made))
        if step.error is not None or step.alone:
            return
        try:
            if self.lane is None:
                made.fields = step.fields
                self._run(made)
            else:
                self._release(self.lane)
                self._uploading.append(made)
                with self.lane:
                    made.fields = uploaded(step, self.lane)
                    self._run(made)
        except Exception as error:
            self._failed(made, error)

    def _run(self, made: Made) -> None:
        if self.executor is not None:
            start(made.step, made.fields, self.executor)
            made.is_started = True

    def _finish(self, made: Made) -> None:
        """Take the batch from the executor.

        An executor finishes batches in the order in which they were started. So what it makes of a batch that failed
        behind its start is taken, too, and dropped: the next batch would get it.
        """
        if made.is_done or made.step.alone:
            return
        made.is_done = True
        if made.error is None and made.refused is None:
            try:
                self._take_result(made)
            except Exception as error:
                self._failed(made, error)
        if made.is_started:
            with contextlib.suppress(Exception):  # the batch has an error already
                self._result(made)

    def _take_result(self, made: Made) -> None:
        if self.lane is None:
            made.fields |= self._result(made)
            return
        with self.lane:
            is_crowded = self.lane.bytes > CROWDED_BYTES
            fields = {**made.fields, **self._result(made)}
            made.fields = side_by_side(fields, made.step.recipe.names, copy=is_crowded)
            made.each = each_step(made.step, made.fields, copy=is_crowded)
            made.event = self.lane.mark()

    def _result(self, made: Made) -> dict[str, Any]:
        made.is_started = False
        return self.executor.finish() if self.executor is not None else {}

    def _failed(self, made: Made, error: Exception) -> None:
        """Keep an error for its turn; whatever of the step was queued before it may still read the slot."""
        if isinstance(error, RowError) and (made.step.mends or made.step.num_steps > 1):
            made.refused = error
        else:
            made.error = made.step.damaged(error) if isinstance(error, RowError) else error
        if self.lane is not None:
            made.event = _mark_or_wait(self.lane)

    def _settled(self, made: Made) -> Made:
        """Return a batch as it is handed out: one that was refused is made anew, with another record if that may be.

        Of steps that were done together only the one at fault should raise the error, so each is done anew by itself.
        The executor finishes batches in order, so those that were started behind this one are finished before.
        """
        together = made.step.num_steps > 1
        if made.refused is None and not made.step.alone and not (together and isinstance(made.error, Exception)):
            return made
        for _, other in self._started:
            self._finish(other)
        if not together and made.refused is not None:
            return mended(made.step, made.refused, self.executor, self.lane)
        steps = made.step.alone or made.step.separate()
        return Made(made.step, {}, alone=[made_alone(step, self.executor, self.lane) for step in steps])

    def _release(self, lane: devices.Lane) -> None:
        """Let go of the slots that the device has read, and free what consumers have done with."""
        while self._uploading and self._uploading[0].event is not None and self._uploading[0].event.done:
            self._uploading.popleft().step.release()
        lane.reclaim()

    def end(self) -> None:
        """Wait for the device, which may still read slots, and give the executor back."""
        try:
            if self.lane is not None:
                if self._uploading:
                    self.lane.stream.synchronize()  # all that was queued
                self._uploading.clear()
                self.lane.reclaim()
        finally:
            self._started.clear()
            self.give_back(self.executor)


def _mark_or_wait(lane: devices.Lane) -> devices.Event | None:
    """Return an event behind all that was queued; None where CUDA refuses, after waiting for the stream."""
    try:
        return lane.mark()
    except Exception:  # the batch has an error already; on a GPU that is gone nothing reads a slot any more
        with contextlib.suppress(Exception):
            lane.stream.synchronize()
        return None


def _serve(board: _Board) -> None:
    """Be the thread; what goes wrong outside of a batch ends it, and reaches who waits."""
    try:
        try:
            board.serve()
        except ClosedError:  # the workers were stopped while this thread waited for a step
            board.stop()
        finally:
            board.workers.stop()
            board.end()
    except BaseException as error:
        board.tray.stop(error)
        board.stop()


def start(step: Step, fields: dict[str, Any], executor: BatchExecutor) -> None:
    """Start a batch; RowError if it holds a record that the executor refused before, and refuses now."""
    own = {name: fields[name] for name in step.recipe.rest.touched}
    for row in step.suspected():
        if (error := executor.row_error(own, step.draws, row)) is not None:
            raise error.shift_rows(row)
    executor.start(own, step.draws)


def mended(step: Step, error: RowError, executor: BatchExecutor | None, lane: devices.Lane | None) -> Made:
    """Return what becomes of a step, of which the executor refused a row, with other records until all are sound."""
    while True:
        try:
            step = step.again(error)
            if step.error is not None:
                return Made(step, {}, error=step.error)
            return run_alone(step, executor, lane)
        except RowError as refused:
            error = refused
        except Exception as failure:
            return Made(step, {}, error=failure)


def made_alone(step: Step, executor: BatchExecutor | None, lane: devices.Lane | None) -> Made:
    """Return what becomes of a step that is done by itself, in the calling thread; its error is kept for its turn."""
    if step.error is not None:
        return Made(step, {}, error=step.error)
    try:
        return run_alone(step, executor, lane)
    except RowError as error:
        return mended(step, error, executor, lane) if step.mends else Made(step, {}, error=step.damaged(error))
    except Exception as error:
        return Made(step, {}, error=error)


def each_step(step: Step, fields: dict[str, Any], *, copy: bool) -> list[dict[str, Any]]:
    """Return the fields of each of some steps that were done together; nothing for a step that is a batch.

    They are slices, and copies where frameworks could not take them from where they lie; ``copy``: each has memory of
    its own, so that a batch which the consumer keeps does not keep that of its neighbours.
    """
    if step.is_batch:
        return []
    rows = [step.rows(step.position.step + i) for i in range(step.num_steps)]
    return [{name: _cut(values, part, copy=copy) for name, values in fields.items()} for part in rows]


def _cut(values: Any, rows: slice, *, copy: bool) -> Any:
    part = values[rows]
    is_view = not isinstance(part, np.ndarray) and (copy or part.data.ptr % ALIGN_BYTES)
    return part.copy() if is_view else part


def run_alone(step: Step, executor: BatchExecutor | None, lane: devices.Lane | None) -> Made:
    """Return what an executor of whole batches, which has no other one now, makes of a step, in the calling thread."""

    def run(fields: dict[str, Any]) -> dict[str, Any]:
        if executor is None:
            return {}
        start(step, fields, executor)
        return executor.finish()

    if lane is None:
        return Made(step, {**step.fields, **run(step.fields)})
    with lane:
        lane.reclaim()
        try:
            fields = uploaded(step, lane)
            fields = side_by_side({**fields, **run(fields)}, step.recipe.names)
            each = each_step(step, fields, copy=False)
        finally:
            event = lane.mark()
            event.synchronize()  # the step's slot is free afterwards, also where something went wrong
    return Made(step, fields, each, event=event)


def side_by_side(fields: dict[str, Any], names: tuple[str, ...], *, copy: bool = False) -> dict[str, Any]:
    """Return the named fields as frameworks take them from a GPU: in C order, a copy only where they are not.

    ``copy``: also of arrays that are a small part of a memory, which a consumer who keeps them would keep, too.
    """
    return {name: _in_c_order(fields[name], copy=copy) for name in names}


def _in_c_order(values: Any, *, copy: bool) -> Any:
    if isinstance(values, (np.ndarray, Ragged, list)):
        return values
    is_part = copy and 2 * values.nbytes < devices.memory_bytes(values)
    return values.copy(order="C") if is_part or not values.flags.c_contiguous else values


def uploaded(step: Step, lane: devices.Lane) -> dict[str, Any]:
    """Return the fields of a step on the GPU, their upload and decoding queued; host-only fields stay on the host.

    What is uploaded lies in page-locked slots of the step, which are kept until the event behind it has passed.
    """
    recipe, on_device = step.recipe, step.on_device(lane.upload)
    fields = {name: on_device.get(name, values) for name, values in step.arrays.items()}
    for route in recipe.routes:
        if route.layout is not None and (region := raw_region(route.group)) in fields:
            layout = _needed(route.layout, recipe, step.arrays)
            fields |= _decoded(step.arrays[region], fields.pop(region), layout)
    for name, values in step.varying.items():
        field = recipe.rest.spec_in[name]
        if isinstance(values, Ragged) and not field.encoded and not field.host_only:
            values = values.with_payload(lane.upload(values.flat))
        elif isinstance(values, np.ndarray) and not field.host_only:
            values = lane.upload(np.ascontiguousarray(values))
        elif isinstance(values, Packed):
            values = values.uploaded(lane.upload)
        fields[name] = values
    return fields


def _needed(layout: Layout, recipe: Recipe, decoded: Collection[str]) -> Layout:
    """Return the layout of a group, with the parts that the batch or an op there needs and the host has not decoded."""
    wanted = recipe.rest.touched.union(recipe.names) - recipe.host.touched - set(decoded)
    return replace(layout, parts=tuple(part for part in layout.parts if part.field.name in wanted))


def _decoded(raw: Any, on_device: Any, layout: Layout) -> dict[str, Any]:
    """Decode the fields of raw records on the GPU; host-only fields on the host, of the same records there."""
    host = tuple(part for part in layout.parts if part.field.host_only)
    numeric = tuple(part for part in layout.parts if not part.field.host_only)
    fields: dict[str, Any] = {}
    if host:
        decoded = rawdecode.decode(np, raw, replace(layout, parts=host))
        fields.update({name: np.array(values) for name, values in decoded.items()})
    if numeric:
        fields.update(rawdecode.decode(devices.cupy(), on_device, replace(layout, parts=numeric)))
    return fields

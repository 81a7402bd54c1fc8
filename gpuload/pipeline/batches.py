"""Batches: the thread that feeds an executor of whole batches, ahead of the consumer.

It takes finished steps from the workers in order, uploads them where the executor is on a GPU, and
starts them in the executor. Everything that touches DALI, the GPU and their queues happens in this
one thread, where no signal handler runs; the consumer waits for this thread at most, never for a
device. The rules of `workers.py` for waiting and for endings hold here too.

On a GPU nothing here waits for the device either: upload, raw decode and ops are queued on a stream
of our own, and behind them an event. The slot of a step may be used again when the upload's event
has passed; the arrays of the batch may be read on other streams that wait for the event
(``device.Lane``).
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np

from gpuload import device as devices
from gpuload import rawdecode, threads
from gpuload.errors import ClosedError, DeviceError, add_note
from gpuload.executors.base import BatchExecutor
from gpuload.kernels.addresses import RowAddresses
from gpuload.ops.base import VARYING, RowError
from gpuload.pipeline.joining import Joining
from gpuload.pipeline.recipe import Recipe, raw_region
from gpuload.pipeline.ring import ALIGN_BYTES
from gpuload.pipeline.step import ArrayPack, Step
from gpuload.pipeline.tray import Tray
from gpuload.pipeline.workers import Workers
from gpuload.ragged import Ragged, num_bytes
from gpuload.spec import Layout
from gpuload.stats import Counters, Watch

CROWDED_BYTES = (
    1 << 28
)  # a consumer that keeps more device memory gets arrays that keep none but their own
TIMED_EVERY = 8  # batches: the GPU notes the times of one, which stand for those of the others
QUEUE_DEPTH = 2  # batches in the executor before the oldest is asked for, so that it always has the next one to do


@dataclass
class Outcome:
    """The result of a step, or of some short steps that were done together: fields, or an error.

    Attributes:
        step: the step.
        fields: its fields after all ops, on the device.
        fields_of_steps: of steps that were done together: the fields of each of them.
        singles: of steps that were done together and of which one failed: the outcome of each, done
            anew by itself.
        event: on a GPU: when it has passed, the fields are there.
        error: raised in place of the fields.
        times: on a GPU, of some steps: events before the upload, behind it, and behind the ops, on
            the GPU's clock.
        row_error: why a row could not be used, as long as its batch may be made anew with another
            record in its place.
        is_started: True while the executor has it: from its start until its result was asked for.
        is_done: True once the executor has finished it.
    """

    step: Step
    fields: dict[str, Any]
    fields_of_steps: list[dict[str, Any]] = field(default_factory=list)
    singles: list[Outcome] = field(default_factory=list)
    event: Any = None
    times: list[devices.Event] = field(default_factory=list)
    error: BaseException | None = None
    row_error: RowError | None = None
    is_started: bool = False
    is_done: bool = False


def outcome_of(step: Step) -> Outcome:
    """Return the outcome of a step that its workers finished."""
    singles = [outcome_of(single) for single in step.singles]
    if step.is_failed or singles:
        fields = {}
    else:
        fields = step.fields
    return Outcome(step, fields, singles=singles, error=step.error)


class Batches:
    """A thread that makes batches of the steps of an epoch, in order, some ahead.

    Args:
        workers: do the steps; closed with this.
        executor: runs whole batches, used by this thread alone until it ends; None where there are
            no ops.
        lane: of the GPU; None on a CPU.
        joining: which steps are done together.
        num_ahead: how many batches are begun beyond the one that is being taken, at most.
        give_back: takes the executor when the thread ends.
        counters: of the loader.
        hands_out: True if the caller of the loader takes the batches, so that ``take`` adds to
            ``wait_s``.
    """

    def __init__(
        self, workers: Workers, executor: BatchExecutor | None, lane: devices.Lane | None, *, joining: Joining,
        num_ahead: int, give_back: Callable[[BatchExecutor | None], None], counters: Counters, hands_out: bool = True,
    ) -> None:  # fmt: skip
        self._workers = workers
        self._num_ahead, self._horizon = num_ahead, num_ahead
        self._counters = counters if hands_out else None
        self._board = board = _Board(workers, executor, lane, joining, give_back, counters)
        # Both before the thread starts: if this object is dropped at once, the thread finds the
        # reference among its calls.
        board.calls.put(num_ahead)
        board.owner_ref = weakref.ref(self, board.calls.put)
        self._threads = threads.start(
            1, serve_batches, board, name="gpuload-batches", stop=board.stop
        )

    def take(self, number: int) -> Outcome | None:
        """Return a batch once it is made (on a GPU: queued); it is kept until ``forget``. See
        ``Tray.take``."""
        horizon = number + 1 + self._num_ahead
        if horizon > self._horizon:  # the thread may now begin all batches before the new horizon
            self._board.calls.put(horizon)
            self._horizon = horizon
        return self._board.tray.take(number, self._counters)

    def num_ready(self) -> int:
        """Return how many are finished."""
        return sum(outcome.step.num_steps for outcome in self._board.tray.items())

    def forget(self, number: int) -> None:
        """Let go of a batch that was taken."""
        self._board.tray.forget(number)

    def stop(self) -> None:
        """Let each thread end after its current work."""
        self._board.stop()

    def close(self) -> None:
        """Stop the threads and wait for the current work of each."""
        self._board.stop()
        self._workers.close()
        threads.join(self._threads)


class _Board:
    """The state that the thread and ``Batches`` share; see ``workers._Board``."""

    def __init__(
        self, workers: Workers, executor: BatchExecutor | None, lane: devices.Lane | None, joining: Joining,
        give_back: Callable[[BatchExecutor | None], None], counters: Counters,
    ) -> None:  # fmt: skip
        self.workers, self.executor, self.lane, self.give_back = workers, executor, lane, give_back
        self._counters = counters
        self.calls: SimpleQueue[object] = SimpleQueue()
        self.owner_ref: object = None
        self.tray: Tray[Outcome] = Tray()
        self._joining, self._next, self._allowed = joining, 0, 0
        self._queue: deque[tuple[int, Outcome]] = deque()
        self._uploading: deque[Outcome] = (
            deque()
        )  # the device may read their slots until their events have passed

    def stop(self) -> None:
        """Let the thread end after its current batch; takes no lock, so that it may be called
        anywhere."""
        self.tray.stop()
        self.calls.put(None)
        self.workers.stop()  # it may be waiting for them

    def serve(self) -> None:
        """Be the thread: start the batches that are allowed, finish those that were started, wait
        if there are none."""
        while self._listen():
            if self._next < self._allowed and self._joining.steps(self._next)[1]:
                self._start(self._next)
                self._next += 1
            else:
                # Behind the last group there is nothing to start. Without this line `_listen` would
                # not block, and the thread would spin.
                self._allowed = min(self._allowed, self._next)
            if len(self._queue) > QUEUE_DEPTH or (self._queue and self._next >= self._allowed):
                number, outcome = self._queue.popleft()
                self._finish(outcome)
                self.tray.put(number, self._finalize(outcome))
                del outcome  # a thread that waits must not keep a batch alive

    def _listen(self) -> bool:
        """Hear how far to go, waiting only if there is nothing to do; return False if the thread
        should end."""
        while True:
            try:
                until = self.calls.get(block=self._next >= self._allowed and not self._queue)
            except Empty:
                return not self.tray.is_stopped
            # None comes from `stop`; the weak reference itself comes when ``Batches`` was dropped.
            if not isinstance(until, int):
                return False
            self._allowed = max(self._allowed, min(until, self._joining.most_groups))

    def _start(self, number: int) -> None:
        """Take the next step from the workers, upload it and start it in the executor; an error
        waits for its turn."""
        # Before ``take``, which waits: behind it all steps would look ready.
        num_ready = self.workers.num_ready()
        step = self.workers.take(number)
        if step is None:
            raise RuntimeError("this thread alone takes steps from its workers")
        self.workers.forget(number)
        outcome = Outcome(step, {}, error=step.error)
        # Also with an error: it is raised in the turn of its step, behind the batches before it.
        self._queue.append((number, outcome))
        if step.error is not None or step.singles:
            return
        watch = self._counters.watch()
        num_ahead = min(step.recipe.num_ahead, self._joining.most_groups - number) * step.num_steps
        watch.count("workers.steps_ahead", num_ahead)
        watch.count("workers.steps_ready", min(num_ready, num_ahead))
        try:
            if self.lane is None:
                outcome.fields = step.fields
                with watch:
                    watch.enter("ops")
                    self._run(outcome)
            else:
                self._release(self.lane)
                # Before the first byte is queued: if the upload fails half-way, the device may read
                # the slot all the same.
                self._uploading.append(outcome)
                is_timed = number % TIMED_EVERY == 0
                with self.lane, watch:
                    watch.enter("upload")
                    note_time = partial(self._note_time, outcome, self.lane, is_timed)
                    note_time()

                    def run(fields: dict[str, Any]) -> dict[str, Any]:
                        outcome.fields = fields
                        watch.count("upload.bytes", step.num_bytes)
                        watch.enter("ops")
                        self._run(outcome)
                        return {}

                    outcome.fields = queue_step(step, self.lane, run, note_time)
                    note_time()
        except Exception as error:
            self._record_error(outcome, error)
        self._add(watch, step)

    def _note_time(self, outcome: Outcome, lane: devices.Lane, is_timed: bool) -> None:
        if is_timed:
            outcome.times.append(lane.mark(timed=True))

    def _add(self, watch: Watch, step: Step) -> None:
        position = step.position
        self._counters.trace_watch(
            watch, epoch=position.epoch, step=position.step, num_steps=step.num_steps
        )

    def _run(self, outcome: Outcome) -> None:
        if self.executor is not None:
            start(outcome.step, outcome.fields, self.executor)
            outcome.is_started = True

    def _finish(self, outcome: Outcome) -> None:
        """Take the batch from the executor.

        An executor finishes batches in the order in which they were started. So the result of a
        batch that failed behind its start is taken, too, and dropped: the next batch would get it.
        """
        if outcome.is_done or outcome.step.singles:
            return
        outcome.is_done = True
        if outcome.error is None and outcome.row_error is None:
            with self._counters.watch() as watch:
                watch.enter("ops")
                try:
                    self._take_result(outcome, watch)
                except Exception as error:
                    self._record_error(outcome, error)
            self._add(watch, outcome.step)
        if outcome.is_started:
            with contextlib.suppress(Exception):  # the batch has an error already
                self._result(outcome)

    def _take_result(self, outcome: Outcome, watch: Watch) -> None:
        if self.lane is None:
            outcome.fields |= self._result(outcome, watch)
            return
        with self.lane:
            is_crowded = self.lane.bytes > CROWDED_BYTES
            fields = {**outcome.fields, **self._result(outcome, watch)}
            outcome.fields = side_by_side(fields, outcome.step.recipe.names, copy=is_crowded)
            outcome.fields_of_steps = each_step(outcome.step, outcome.fields, copy=is_crowded)
            # Behind the copies of the two lines above, which are queued on this stream: the event
            # covers them.
            outcome.event = self.lane.mark()

    def _result(self, outcome: Outcome, watch: Watch | None = None) -> dict[str, Any]:
        # Before ``finish``: an executor that raises has taken the batch off its queue, and
        # `_finish` must not ask again.
        outcome.is_started = False
        if self.executor is None:
            return {}
        results = self.executor.finish()
        if watch is not None:
            watch.count("ops.bytes", sum(map(num_bytes, results.values())))
        return results

    def _record_error(self, outcome: Outcome, error: Exception) -> None:
        """Keep an error for its turn; work of the step that was queued before it may still read the
        slot."""
        if isinstance(error, RowError) and (outcome.step.mends or outcome.step.num_steps > 1):
            outcome.row_error = error
        elif isinstance(error, RowError):
            outcome.error = outcome.step.record_error(error)
        else:
            outcome.error = explain(error, outcome.step)
        if self.lane is not None:
            outcome.event = _mark_or_wait(self.lane)

    def _finalize(self, outcome: Outcome) -> Outcome:
        """Return a batch as it is handed out: one with a bad row is made anew, if allowed with
        another record.

        Of steps that were done together only the one at fault should raise the error, so each is
        done anew by itself. The executor finishes batches in order, so those that were started
        behind this one are finished before.
        """
        is_group = outcome.step.num_steps > 1
        is_failed_group = is_group and isinstance(outcome.error, Exception)
        if outcome.row_error is None and not outcome.step.singles and not is_failed_group:
            return outcome
        for _, later in self._queue:
            self._finish(later)
        if not is_group and outcome.row_error is not None:
            return mend_step(outcome.step, outcome.row_error, self.executor, self.lane)
        steps = outcome.step.singles or outcome.step.separate()
        return Outcome(
            outcome.step, {}, singles=[try_step(step, self.executor, self.lane) for step in steps]
        )

    def _release(self, lane: devices.Lane) -> None:
        """Let go of the slots that the device has read, and free the memory that consumers have
        dropped."""
        # One stream: events pass in the order of the batches, so the first that has not passed ends
        # the search.
        while (
            self._uploading
            and self._uploading[0].event is not None
            and self._uploading[0].event.done
        ):
            outcome = self._uploading.popleft()
            outcome.step.release()
            self._count_times(outcome)
        lane.reclaim()

    def _count_times(self, outcome: Outcome) -> None:
        """Count the time of the GPU on a batch whose event has passed, if it was noted."""
        if len(outcome.times) == 3:
            begin, middle, end = outcome.times
            upload_s, ops_s = middle.seconds_since(begin), end.seconds_since(middle)
            self._counters.add(gpu_upload_s=TIMED_EVERY * upload_s, gpu_ops_s=TIMED_EVERY * ops_s)

    def end(self) -> None:
        """Stop the workers, wait for the device, which may still read slots, and give the executor
        back."""
        self.workers.stop()
        try:
            if self.lane is not None:
                if self._uploading:
                    self.lane.stream.synchronize()  # all that was queued
                while self._uploading:
                    self._count_times(self._uploading.popleft())
                self.lane.reclaim()
        finally:
            # In this order: another iterator may take the executor as soon as it is given back.
            self._queue.clear()
            self.give_back(self.executor)


def _mark_or_wait(lane: devices.Lane) -> devices.Event | None:
    """Return an event behind all that was queued; None where CUDA refuses, after waiting for the
    stream."""
    try:
        return lane.mark()
    except (
        Exception
    ):  # the batch has an error already; on a GPU that is gone nothing reads a slot any more
        with contextlib.suppress(Exception):
            lane.stream.synchronize()
        return None


class Board(Protocol):
    """What a thread that makes, or audits, the batches of an epoch shares with whoever started it.

    Attributes:
        tray: the finished batches.
    """

    tray: Tray[Outcome]

    def serve(self) -> None:
        """Work until the thread should end."""

    def stop(self) -> None:
        """Let the thread end after its current batch."""

    def end(self) -> None:
        """Stop those that it takes batches from, and give back what it had."""


def serve_batches(board: Board) -> None:
    """Be the thread; an error outside of a batch ends it, and reaches the thread that waits for
    it."""
    try:
        try:
            board.serve()
        except ClosedError:  # those before it were stopped while this thread waited for them
            board.stop()
        finally:
            board.end()
    except BaseException as error:
        board.tray.stop(error)
        board.stop()


def start(step: Step, fields: dict[str, Any], executor: BatchExecutor) -> None:
    """Start a batch; RowError if it holds a record that the executor refused before, and refuses
    now."""
    if not executor.bundles:
        devices.settle()
    inputs = {name: fields[name] for name in step.recipe.rest.touched}
    if executor.name != "array":  # the array executor reads rows and images where they lie
        inputs = {name: devices.as_list(values) for name, values in _as_arrays(inputs).items()}
    # By itself first: an error of the whole batch makes DALI build a new pipeline and look for the
    # row by halves.
    for row in step.refused_rows():
        if (error := executor.row_error(inputs, step.draws, row)) is not None:
            raise error.shift_rows(row)
    executor.start(inputs, step.draws)


def mend_step(
    step: Step, error: RowError, executor: BatchExecutor | None, lane: devices.Lane | None
) -> Outcome:
    """Return the outcome of a step with a bad row: other records take its place until the executor
    accepts them."""
    while True:
        try:
            step = step.again(error)
            if step.error is not None:
                return Outcome(step, {}, error=step.error)
            return run_step(step, executor, lane)
        except RowError as row_error:
            error = row_error
        except Exception as failure:
            return Outcome(step, {}, error=failure)


def try_step(step: Step, executor: BatchExecutor | None, lane: devices.Lane | None) -> Outcome:
    """Return the outcome of a step, run in the calling thread; an error is kept in it for its
    turn."""
    if step.error is not None:
        return Outcome(step, {}, error=step.error)
    try:
        return run_step(step, executor, lane)
    except RowError as error:
        if step.mends:
            return mend_step(step, error, executor, lane)
        return Outcome(step, {}, error=step.record_error(error))
    except Exception as error:
        return Outcome(step, {}, error=error)


def each_step(step: Step, fields: dict[str, Any], *, copy: bool) -> list[dict[str, Any]]:
    """Return the fields of each of some steps that were done together; nothing for a step that is a
    batch.

    They are slices, and copies where frameworks could not take them from where they lie; ``copy``:
    each has memory of its own, so that a batch which the consumer keeps does not keep that of its
    neighbours.
    """
    if step.is_batch:
        return []
    rows = [step.rows(step.position.step + i) for i in range(step.num_steps)]
    return [
        {name: _slice_rows(values, part, copy=copy) for name, values in fields.items()}
        for part in rows
    ]


def _slice_rows(values: Any, rows: slice, *, copy: bool) -> Any:
    part = values[rows]
    if isinstance(part, VARYING):
        return part
    is_view = not isinstance(part, np.ndarray) and (copy or part.data.ptr % ALIGN_BYTES)
    return part.copy() if is_view else part


def run_step(step: Step, executor: BatchExecutor | None, lane: devices.Lane | None) -> Outcome:
    """Return the outcome of a step, run in the calling thread by an executor that has no other
    batch now."""

    def run(fields: dict[str, Any]) -> dict[str, Any]:
        if executor is None:
            return {}
        start(step, fields, executor)
        return executor.finish()

    if lane is None:
        return Outcome(step, {**step.fields, **run(step.fields)})
    with lane:
        lane.reclaim()
        try:
            fields = side_by_side(queue_step(step, lane, run), step.recipe.names)
            fields_of_steps = each_step(step, fields, copy=False)
        except Exception as error:
            if (problem := explain(error, step)) is error:
                raise
            raise problem from error
        finally:
            event = lane.mark()
            event.synchronize()  # the step's slot is free afterwards, also where something went wrong
    return Outcome(step, fields, fields_of_steps, event=event)


def queue_step(
    step: Step, lane: devices.Lane, run: Callable[[dict[str, Any]], dict[str, Any]],
    on_upload: Callable[[], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Queue the upload of a step and what an executor does with it, and return its fields on the
    GPU.

    Args:
        step: the step.
        lane: its stream is the current one.
        run: gives the fields to the executor, and returns those that are finished, if any.
        on_upload: called once, behind the upload.
    """
    with devices.Bundle(lane, on_upload) as bundle:
        fields = upload_step(step, bundle, lane)
        results = run(fields)
        fields = {**_output_fields(step.recipe, fields), **results}
        devices.settle()
    step.keep_on_card(lane)
    step.note_parameters(bundle.parameter_bytes)
    return fields


def _output_fields(recipe: Recipe, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a batch that no op on whole batches acts on, as arrays; the others as
    they are."""
    if not recipe.on_card:
        return fields
    return fields | _as_arrays(
        {name: fields[name] for name in recipe.names if name not in recipe.rest.results}
    )


def _as_arrays(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with arrays in place of the addresses of their rows."""
    addresses = {
        name: values for name, values in fields.items() if isinstance(values, RowAddresses)
    }
    arrays = {name: values.gather(devices.cupy()) for name, values in addresses.items()}
    devices.settle()
    return fields | arrays


def explain(error: Exception, step: Step) -> Exception:
    """Return the error of a step on a GPU as it is raised: one of CUDA says at which step, and how
    to go on.

    The loader's position stays behind the batch before, so that nothing is lost.
    """
    problem = devices.failure(error)
    if problem is error or not isinstance(problem, DeviceError):
        return error
    position, num_records = step.position, step.records.size
    last = position.step + step.num_steps - 1
    if step.num_steps == 1:
        steps = f"step {last}"
    else:
        steps = f"steps {position.step} to {last}"
    if devices.is_out_of_memory(error):
        recipe = step.recipe
        batch_size, is_ahead = (
            recipe.plan.most_records,
            recipe.num_ahead > 1 or recipe.num_joined > 1,
        )
        changes = ["prefetch=1"] if is_ahead else []
        if batch_size > 1:
            changes = [f"a smaller batch_size, {batch_size // 2} or less", *changes]
        if changes:
            change = f"use {', or '.join(changes)}"
        else:
            change = "have the ops make smaller images"
        if step.card is not None and step.card.has_rows:
            change = f"write a smaller memory= in cache(device=True), so that more is left for batches; or {change}"
        problem = DeviceError(
            f"{problem.what} for {num_records} records of {steps}",
            cause=problem.cause,
            remedy=f"{change}; nvidia-smi shows which processes have the GPU's memory",
        )
        problem.__cause__ = error
    note = (
        f"epoch {position.epoch}, {steps}: the loader stays behind its last batch, and goes on there; "
        "so does one of a new process, by load_state_dict() of its state_dict()"
    )
    return add_note(problem, note)


def side_by_side(
    fields: dict[str, Any], names: tuple[str, ...], *, copy: bool = False
) -> dict[str, Any]:
    """Return the named fields as frameworks take them from a GPU: in C order, a copy only where
    they are not.

    ``copy``: also of arrays that are a small part of a memory, which a consumer that keeps them
    would keep, too.
    """
    return {name: _in_c_order(fields[name], copy=copy) for name in names}


def _in_c_order(values: Any, *, copy: bool) -> Any:
    """Return an array in C order; ``copy``: in memory of its own where it is less than half of a
    memory."""
    if isinstance(values, (np.ndarray, *VARYING)):
        return values
    is_part = copy and 2 * values.nbytes < devices.memory_bytes(values)
    if is_part or not values.flags.c_contiguous:
        return values.copy(order="C")
    return values


def upload_step(step: Step, bundle: devices.Bundle, lane: devices.Lane) -> dict[str, Any]:
    """Return the fields of a step on the GPU, their upload waiting in ``bundle``; host-only fields
    stay on the host.

    The source of the upload are page-locked slots of the step, which are kept until the event
    behind it has passed.
    """
    fields = _upload_slot(step, bundle, lane)
    if step.card is None:
        return fields
    return {**fields, **step.card.fields(fields, step.recipe, lane)}


def _upload_slot(step: Step, bundle: devices.Bundle, lane: devices.Lane) -> dict[str, Any]:
    """Return the fields of a step on the GPU; of those that may lie there already the rows that do
    not."""
    recipe, on_device = step.recipe, step.on_device(bundle)
    fields = {name: on_device.get(name, values) for name, values in step.arrays.items()}
    layouts = recipe.layouts_on_device
    if recipe.reader is not None:
        for route in recipe.routes:
            if route.layout is not None:
                raw = step.read_on_device(recipe.reader, route, route.layout, lane.unused)
                fields |= rawdecode.decode(devices.cupy(), raw, layouts[route.group][1])
        return fields
    for route in recipe.routes:
        if route.layout is not None and (region := raw_region(route.group)) in fields:
            if not len(step.arrays[region]):  # all of its rows lie on the GPU
                del fields[region]
                continue
            if not rawdecode.makes_views(layouts[route.group][1]):
                bundle.settle()
            fields |= _decode_on_device(
                step.arrays[region], fields.pop(region), *layouts[route.group]
            )
    for name, values in step.varying.items():
        field = recipe.rest.spec_in[name]
        if isinstance(values, Ragged) and not field.encoded and not field.host_only:
            values = values.with_payload(bundle.upload(values.flat))
        elif isinstance(values, np.ndarray) and not field.host_only:
            values = bundle.upload(np.ascontiguousarray(values))
        elif isinstance(values, ArrayPack):
            fields[name] = values.on_device(bundle.upload)
            continue
        fields[name] = values
    return fields


def _decode_on_device(
    raw: Any, on_device: Any, host_layout: Layout, layout: Layout
) -> dict[str, Any]:
    """Decode the fields of raw records on the GPU; host-only fields on the host, of the same
    records there."""
    fields: dict[str, Any] = {}
    if host_layout.parts:
        columns = rawdecode.decode(np, raw, host_layout)
        # Copies: decoded fields may be views of the raw records, whose slot is used again once
        # their upload has passed.
        fields.update({name: np.array(values) for name, values in columns.items()})
    if layout.parts:
        fields.update(rawdecode.decode(devices.cupy(), on_device, layout))
    return fields

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
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from gpuload import device as devices
from gpuload.errors import RowError
from gpuload.executors.base import BatchExecutor
from gpuload.pipeline.board import OrderBoard, OrderThread
from gpuload.pipeline.joining import Joining
from gpuload.pipeline.outcome import Outcome, explain, mend_step, start, try_step
from gpuload.pipeline.step import Step
from gpuload.pipeline.upload import each_step, queue_step, side_by_side
from gpuload.pipeline.workers import Workers
from gpuload.ragged import num_bytes
from gpuload.stats import Counters, Watch

CROWDED_BYTES = (
    1 << 28
)  # a consumer that keeps more device memory gets arrays that keep their own alone
TIMED_EVERY = 8  # batches: the GPU notes the times of one, which stand for those of the others
QUEUE_DEPTH = 2  # batches in the executor before the oldest is asked for: it always has a next one


class Batches(OrderThread[Outcome]):
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
        self,
        workers: Workers,
        executor: BatchExecutor | None,
        lane: devices.Lane | None,
        *,
        joining: Joining,
        num_ahead: int,
        give_back: Callable[[BatchExecutor | None], None],
        counters: Counters,
        hands_out: bool = True,
    ) -> None:
        board = BatchBoard(workers, executor, lane, joining, give_back, counters)
        super().__init__(board, "gpuload-batches", num_ahead, counters if hands_out else None)

    def num_ready(self) -> int:
        """Return how many are finished."""
        return sum(outcome.step.num_steps for outcome in self._board.tray.items())


class BatchBoard(OrderBoard[Outcome]):
    """The state that the thread and ``Batches`` share."""

    def __init__(
        self,
        workers: Workers,
        executor: BatchExecutor | None,
        lane: devices.Lane | None,
        joining: Joining,
        give_back: Callable[[BatchExecutor | None], None],
        counters: Counters,
    ) -> None:
        super().__init__(workers, joining)
        self.workers, self.executor, self.lane, self.give_back = workers, executor, lane, give_back
        self._counters = counters
        self._queue: deque[tuple[int, Outcome]] = deque()
        # The device may read their slots until their events have passed.
        self._uploading: deque[Outcome] = deque()

    @property
    def is_working(self) -> bool:
        """True if the executor has batches."""
        return bool(self._queue)

    def finish(self, *, is_waiting: bool) -> None:
        """Finish the oldest batch, if the executor has enough to do or no other may be started."""
        if len(self._queue) > QUEUE_DEPTH or (self._queue and is_waiting):
            number, outcome = self._queue.popleft()
            self._finish(outcome)
            self.tray.put(number, self._finalize(outcome))

    def begin(self, number: int) -> None:
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
                        watch.count("upload.bytes", step.rows.num_bytes)
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
        while self._uploading:
            event = self._uploading[0].event
            if event is None or not event.done:
                break
            outcome = self._uploading.popleft()
            outcome.step.release()
            self._count_times(outcome)
        lane.reclaim()

    def _count_times(self, outcome: Outcome) -> None:
        """Count the time of the GPU on a batch behind its event, if it was noted."""
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
    except Exception:  # the batch has an error; on a GPU that is gone nothing reads a slot any more
        with contextlib.suppress(Exception):
            lane.stream.synchronize()
        return None

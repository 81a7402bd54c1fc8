"""Epoch: the batches of one epoch, one after the other, from a position on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import perf_counter
from typing import Any, Literal, cast

import numpy as np

from gpuload import device as devices
from gpuload import signalsafe, threads
from gpuload.batch import Batch, Output
from gpuload.core.face import Copies
from gpuload.errors import SpecError
from gpuload.order import Plan, Position
from gpuload.pipeline.batches import Outcome, explain, outcome_of
from gpuload.pipeline.ring import aligned_copy, is_aligned
from gpuload.pipeline.session import Session
from gpuload.pipeline.step import Step
from gpuload.pipeline.tray import raisable
from gpuload.pipeline.workers import Workers
from gpuload.ragged import Ragged, num_bytes
from gpuload.stats import Counters
from gpuload.tracebacks import trim_frames

# A tiny batch takes a few microseconds, and reading the clock for each would take 5 % of them.
CLOCK_EVERY_S, MOST_UNTIMED = 1e-3, 64


class Cursor:
    """Where an iterator is. A thing of its own, so that a loader can ask it without keeping the
    iterator alive.

    Attributes:
        start: where it began.
        now: the position of the next batch, and the position that a state saves. They are the same,
            except after a step that raised an error: the iterator goes on behind it, a state begins
            with it again until a batch after it was delivered. Both change at once, by one
            assignment.
        origin: an object that all cursors share until a state is loaded. An iterator with another
            origin than its loader began before that.
        is_over: True once the iterator raised ``StopIteration``.
    """

    def __init__(self, position: Position, origin: object | None = None) -> None:
        self.start = position
        self.now = (position, position)
        if origin is None:
            self.origin = object()
        else:
            self.origin = origin
        self.is_over = False

    @property
    def position(self) -> Position:
        """The position of the next batch."""
        return self.now[0]

    @property
    def state_position(self) -> Position:
        """The position that a state saves."""
        return self.now[1]


class Place:
    """Where a loader is: where the iterator is that moved it last.

    Attributes:
        cursor: of that iterator.
    """

    def __init__(self, position: Position) -> None:
        self.cursor = Cursor(position)

    def begin(self, plan: Plan) -> Cursor:
        """Return the cursor of an iterator that begins now."""
        cursor = self.cursor
        return Cursor(plan.normalize(cursor.state_position), cursor.origin)

    def go_to(self, position: Position) -> None:
        """Move the loader; iterators go on where they are, and take it along when they are asked
        next."""
        self.cursor = Cursor(position, self.cursor.origin)


class _Run:
    """One run of an iterator: the steps from a position to the end of its epoch.

    Attributes:
        cursor: where the iterator is.
        loader_cursor: where it takes the loader, if not to ``cursor``.
        end: the number of steps of the epoch.
        joining: which steps are done together.
        batches: the threads that make them.
        latest: number and content of the step that was taken last, which may hold several steps,
            and the copies that have to be waited for, None if there are none. Set by one
            assignment, which no signal handler can break off.
        end_s: when the clock was read last, as a batch was handed out; at first when the first one
            was asked for.
        num_untimed: batches since then.
        timed_every: the clock is read at one batch in so many.
    """

    def __init__(self, session: Session, cursor: Cursor) -> None:
        self.cursor, self.end = cursor, session.recipe.plan.end(cursor.start)
        self.loader_cursor = Cursor(cursor.start, cursor.origin)
        self.joining = session.joining(cursor.start)
        self.batches = session.begin(cursor.start, self.joining)
        self.latest: tuple[int, Outcome | None, Copies | None] = (-1, None, None)
        self.end_s, self.num_untimed, self.timed_every = 0.0, 0, 1

    def count_times(self, counters: Counters, ready_s: float, end_s: float) -> None:
        """Count the seconds of the batches since the clock was read last, and decide when it is
        read next.

        The hand-over of this batch stands for those of the others.

        Args:
            counters: of the loader.
            ready_s: when this batch was ready, by ``perf_counter``.
            end_s: when it is handed out.
        """
        num_batches, loop_s = max(self.num_untimed, 1), end_s - self.end_s
        # The estimate is bounded: one slow hand-over of 64 would make training look shorter than
        # nothing.
        counters.loop(min(num_batches * (end_s - ready_s), loop_s), loop_s)
        self.timed_every = max(
            1, min(MOST_UNTIMED, int(CLOCK_EVERY_S * num_batches / max(loop_s, 1e-9)))
        )
        self.end_s, self.num_untimed = end_s, 0


Moves = Literal["each", "end", "first", "second", "manual"]


class Epoch:
    """An iterator over the batches of one epoch, from a position on.

    Args:
        session: of the loader.
        output: how batches are arranged.
        cursor: where it begins.
        place: of the loader, which moves along; None to move nothing.
        moves: ``"each"``: the place moves with each batch; ``"end"``: with the last one alone, to
            the next epoch; ``"first"``: with each batch; ``"second"``: with each from the second
            on; both for batches that may be read ahead; ``"manual"``: when and where ``move`` is
            called.
        num_between: for ``"first"`` and ``"second"``: so many batches stand between this iterator
            and the consumer. The place stays so many behind, and moves to the next epoch when this
            iterator ends. None: ``has_taken`` says it.

    The position changes in one place, and nothing is called between that and handing the batch out.
    So if an exception comes before, from a signal handler too, the next call delivers the same
    batch. Two threads that call ``next`` at once may both make the same batch ready, but one that
    finds the position changed meanwhile goes on with the next one. Dropping the iterator stops its
    threads. Other iterators of the same loader are independent of it.

    When a state was loaded into the loader since, the iterator goes on from there as one that is
    made now. Where its batches are read ahead of the training (all but ``"each"``) and some were
    delivered already, the next call is an error instead: it is unknown whether those were trained.
    """

    def __init__(
        self, session: Session, output: Output, cursor: Cursor, place: Place | None = None,
        moves: Moves = "each", num_between: int | None = 0,
    ) -> None:  # fmt: skip
        self._session, self._output, self._place, self._moves = session, output, place, moves
        self._num_between = num_between
        self._run = _Run(session, cursor)
        self._finish: Callable[[Batch], Any] | None = None

    def then(self, finish: Callable[[Batch], Any]) -> Epoch:
        """Hand out the result of ``finish`` for each batch, before the position moves; returns
        self.

        A signal handler's exception in it loses no step: the next call makes the same batch again.
        If ``finish`` itself fails, the iterator goes on behind that step, as behind any other.
        Which of the two it was, the iterator finds out by a second try: ``finish`` gets the batch
        again, and may be called twice for one batch.
        """
        self._finish = finish
        return self

    def take_along(self, place: Place) -> Epoch:
        """Move another loader, which is where this iterator begins and has as many steps; returns
        self."""
        self._place = place
        self._run.cursor.origin = self._run.loader_cursor.origin = place.cursor.origin
        return self

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Batch:
        place = self._place
        if self._run.cursor.is_over:
            raise StopIteration
        if place is not None and place.cursor.origin is not self._run.cursor.origin:
            self._go_along(place)
        run = self._run
        cursor = run.cursor
        trace, asked_s = self._session.counters.trace, 0.0
        if trace is not None or not run.end_s:
            asked_s = perf_counter()
            run.end_s = run.end_s or asked_s
        if place is not None and self._moves == "each":
            place.cursor = cursor  # the loader is where this iterator is, before and after the batch that comes now
        while (before := cursor.now)[0].step < run.end:
            # In a child of a fork there are no threads: waiting for one of them would never end.
            self._session.check()
            step = before[0].step
            try:
                outcome = self._take(run, step)
            except StopIteration as stop:  # of a signal handler
                raise raisable(stop)  # noqa: B904  it has it as its cause
            if outcome is None:  # another thread was faster
                continue
            pieces = outcome.step.pieces
            if pieces:
                after = pieces[step - outcome.step.position.step].after
            else:
                after = self._behind(cursor.start, step)
            if outcome.error is not None:
                error, after_error = raisable(outcome.error), (after, before[1])
                if cursor.now is before:
                    cursor.now = after_error
                    # Threads keep the step, which must not keep the error: its traceback would keep
                    # this iterator.
                    outcome.error = outcome.step.error = None
                    raise trim_frames(error)
                continue
            if (
                cursor.now is not before
            ):  # another thread was faster, and may have taken the error away
                continue
            run.num_untimed += 1
            is_timed = trace is not None or run.num_untimed >= run.timed_every
            if is_timed:
                ready_s = perf_counter()
            else:
                ready_s = 0.0
            try:
                batch, after_delivery = (
                    to_batch(self._session, outcome, step, self._output),
                    (after, after),
                )
            except Exception as error:
                raise raisable(explain(error, outcome.step))  # noqa: B904  it is the same error, or has it as its cause
            if self._finish is not None:
                batch = self._call_finish(self._finish, batch, before, after)
            # Computed here, because nothing may be called once `cursor.now` has changed.
            if place is None or self._moves == "each":
                arrived = None
            else:
                arrived = self._arrived(place, run, step + 1)
            if is_timed:
                before_s, end_s = run.end_s, perf_counter()
                run.count_times(self._session.counters, ready_s, end_s)
                if trace is not None:
                    position_words = {"epoch": cursor.start.epoch, "step": step}
                    trace.add("training", before_s, asked_s, **position_words)
                    trace.add("waiting", asked_s, ready_s, **position_words)
                    trace.add("hand-over", ready_s, end_s, **position_words)
            # From here to the return nothing is called: CPython runs signal handlers behind calls
            # and in loops alone.
            if cursor.now is before:
                cursor.now = after_delivery
                if arrived is not None and place is not None:
                    arrived[0].now = arrived[1]
                    place.cursor = arrived[0]
                return batch
        if run.num_untimed:
            end_s = perf_counter()
            run.count_times(self._session.counters, end_s, end_s)
        # All of these may be done twice: a call that is broken off here comes here again, as
        # `is_over` is set last.
        run.batches.forget(run.joining.group(run.end - 1 - cursor.start.step))
        run.latest = (-1, None, None)
        run.batches.close()
        if (
            place is not None
            and self._moves in ("first", "second")
            and self._num_between is not None
        ):
            self._end(place, run)
        cursor.is_over = True
        if trace is not None:
            trace.write()
        raise StopIteration

    @property
    def cursor(self) -> Cursor:
        """Where it is; tells that also when the iterator is gone."""
        return self._run.cursor

    @property
    def loader_cursor(self) -> Cursor:
        """Where it took the loader, for iterators that read ahead; tells that also when the
        iterator is gone."""
        return self._run.loader_cursor

    @property
    def position(self) -> Position:
        """The position of the next batch."""
        return self._run.cursor.position

    def move(self, position: Position) -> None:
        """Take the loader to a position that this iterator had: the training has come so far.

        Raises:
            SpecError: the loader is not where the last call left it: it was moved in between.
        """
        place, loader_cursor = self._place, self._run.loader_cursor
        if place is None:
            return
        # Positions are compared besides cursors: a loop that was begun and left meanwhile has moved
        # nothing.
        if place.cursor is not loader_cursor and not self._is_where_it_left(place):
            raise self._error_of_move(place)
        loader_cursor.now = (position, position)
        loader_cursor.origin = place.cursor.origin
        place.cursor = loader_cursor

    def _is_where_it_left(self, place: Place) -> bool:
        """Return True if the loader stands where this iterator moved it last: nothing else has
        moved it since."""
        normalize = self._session.recipe.plan.normalize
        return normalize(place.cursor.state_position) == normalize(
            self._run.loader_cursor.state_position
        )

    def _error_of_move(self, place: Place) -> SpecError:
        normalize = self._session.recipe.plan.normalize
        current, left = (
            normalize(place.cursor.state_position),
            normalize(self._run.loader_cursor.state_position),
        )
        return SpecError(
            f"the loader is at epoch {current.epoch}, step {current.step}, and this pipeline left it at epoch "
            f"{left.epoch}, step {left.step}",
            cause="a state was loaded, or another loop or pipeline read from the loader, after this one had begun",
            remedy="load states before the pipeline is made, or make a new iterator; give each pipeline a loader of "
            "its own (shard_id=, num_shards=), and look at batches with loader.peek() or loader.batch_at(step, epoch)",
        )

    def _go_along(self, place: Place) -> None:
        """Begin anew where a state was loaded; raises ``SpecError`` where batches may be on their
        way already."""
        run = self._run
        if self._moves != "each" and run.cursor.position != run.cursor.start:
            if self._moves == "manual" and self._is_where_it_left(place):
                run.cursor.origin = place.cursor.origin
                return
            raise self._error_of_move(place)
        run.batches.close()
        while (
            self._session.successor is not None
        ):  # images are decoded elsewhere from that state on
            self._session = self._session.successor
        self._run = _Run(self._session, place.begin(self._session.recipe.plan))

    def _call_finish(
        self,
        finish: Callable[[Batch], Any],
        batch: Batch,
        before: tuple[Position, Position],
        after: Position,
    ) -> Batch:
        """Return what ``finish`` makes of a batch; if it raises an error, the loop goes on behind
        the batch."""
        cursor = self._run.cursor
        try:
            return cast(Batch, finish(batch))
        except Exception as error:
            if self._is_error_of_finish(finish, batch, error) and cursor.now is before:
                cursor.now = after, before[1]
            raise raisable(error)  # noqa: B904  it is the same error, or has it as its cause

    def _is_error_of_finish(
        self, finish: Callable[[Batch], Any], batch: Batch, error: Exception
    ) -> bool:
        """Return True if ``finish`` itself raised an error, False if a signal handler did while it
        was called.

        The traceback shows the frame of a handler, unless the handler is no Python function or has
        deleted its arguments. So where it shows none, ``finish`` is tried again: an error that
        comes twice is its own.
        """
        if not threads.in_main():
            return True
        if signalsafe.is_of_handler(error):
            return False
        try:
            finish(batch)
        except Exception as again:
            if signalsafe.is_of_handler(again):
                raise
            return True
        return False

    def has_taken(self, num_batches: int) -> None:
        """Move the loader behind the first batches, where the consumer is known to have come so
        far.

        One more than there are is the end.
        """
        run, place = self._run, self._place
        step = run.cursor.start.step + num_batches
        if place is None:
            return
        if step > run.end:
            self._end(place, run)
        elif self._counts(run, num_batches):
            self._reach(place, run, step)

    def _counts(self, run: _Run, num_batches: int) -> bool:
        """Return whether the loader moves with so many batches: a single one may be to look at, if
        it is no epoch."""
        start = run.cursor.start.step
        return num_batches > 1 or (
            num_batches == 1 and (self._moves == "first" or (start, run.end) == (0, 1))
        )

    def _end(self, place: Place, run: _Run) -> None:
        """Move the loader to the next epoch, unless it is there, or another iterator has moved it
        since."""
        if run.loader_cursor.position.step < run.end and self._is_where_it_left(place):
            self._reach(place, run, run.end)

    def _reach(self, place: Place, run: _Run, step: int) -> None:
        """Take the loader behind the steps before ``step``, unless a state was loaded into it
        since."""
        position = self._session.recipe.plan.at(run.cursor.start, step)
        run.loader_cursor.now = (position, position)
        # A loaded state has another origin: what an older iterator reads ahead must not move the
        # loader away from it.
        if place.cursor.origin is run.loader_cursor.origin:
            place.cursor = run.loader_cursor

    def _arrived(
        self, place: Place, run: _Run, step: int
    ) -> tuple[Cursor, tuple[Position, Position]] | None:
        """Return where the loader is when the batch before a step is delivered, as a cursor and its
        position.

        None if that batch does not move it.
        """
        start, num_between = run.cursor.start, self._num_between
        if self._moves == "end":
            # Another iterator may have moved it before; a loop that is done leaves it at an epoch's
            # end.
            current = self._session.recipe.plan.normalize(place.cursor.state_position)
            if step == run.end and current.epoch == start.epoch:
                cursor = Cursor(Position(start.epoch + 1), place.cursor.origin)
                return cursor, cursor.now
        elif self._moves in ("first", "second") and num_between is not None:
            behind = step - num_between
            if place.cursor.origin is run.loader_cursor.origin and self._counts(
                run, behind - start.step
            ):
                position = self._session.recipe.plan.at(start, behind)
                return run.loader_cursor, (position, position)
        return None

    def _behind(self, start: Position, step: int) -> Position:
        """Return the position behind a step of the epoch."""
        return self._session.recipe.plan.later(start, step + 1)

    def _take(self, run: _Run, step: int) -> Outcome | None:
        """Wait for a step, or for those that it was done together with; None if another thread has
        taken it."""
        number, outcome, copies = run.latest
        if outcome is None or not 0 <= step - outcome.step.position.step < outcome.step.num_steps:
            number = run.joining.group(step - run.cursor.start.step)
            # Not when its last batch was handed out: a call that was broken off before the position
            # moved asks for it again.
            run.batches.forget(number - 1)
            num_ready = run.batches.num_ready()
            # `num_ready` is read before the wait; behind it all of them would look ready.
            item = run.batches.take(number)
            if item is None:
                return None
            self._count_ready(run, number, num_ready)
            if isinstance(item, Outcome):
                outcome = item
            else:
                outcome = outcome_of(item)
            copies = outcome.step.copies
            run.latest = number, outcome, copies
        if outcome is not None and outcome.singles:
            return outcome.singles[step - outcome.step.position.step]
        if outcome is None or copies is None or not isinstance(run.batches, Workers):
            return outcome
        if not run.batches.wait(number, outcome.step, copies, step):
            # A file cannot be read. A thread in which no signal handler runs reads it again and
            # raises the error.
            group = outcome.step
            return outcome_of(signalsafe.call(lambda: group.redo_single(step)))
        if copies.num_done == outcome.step.num_steps and step > outcome.step.position.step:
            run.latest = (
                number,
                outcome,
                None,
            )  # the later steps are copied, too: nothing to wait for or to begin
        return outcome

    def _count_ready(self, run: _Run, number: int, num_ready: int) -> None:
        """Count, for each batch of a group, how many steps could be ready when it is asked for and
        how many were.

        Before the group was taken, ``num_ready`` steps were ready. The batches behind its first are
        asked for at once: for them it counts the steps that are ready now, so that nothing is
        counted for each batch.
        """
        first, size = run.joining.steps(number)
        last, num_last = run.joining.steps(number + self._session.num_ahead - 1)
        ahead = (
            min(last + num_last, run.end - run.cursor.start.step) - first
        )  # for the first batch, itself included
        now, rest = run.batches.num_ready(), size - 1
        behind = rest * (rest + 1) // 2
        self._session.counters.add(
            steps_ahead=size * ahead - behind,
            steps_ready=min(num_ready, ahead) + max(0, rest * min(now, ahead) - behind),
        )

    def close(self) -> None:
        """Stop the threads; asking for another batch afterwards is a ``ClosedError``."""
        self._run.batches.close()


def to_batch(session: Session, outcome: Outcome, step: int, output: Output) -> Batch:
    """Return the batch of a step that was made."""
    group, names = outcome.step, session.names
    if group.pieces and names is session.recipe.names:
        return _of_piece(session, group, step)
    rows = None if group.is_batch else group.rows(step)
    if rows is None:
        records, valid = (group.records, group.valid)
    else:
        records, valid = (group.records[rows], group.valid[rows])
    if outcome.fields_of_steps:
        fields = outcome.fields_of_steps[step - group.position.step]
    else:
        fields = {name: outcome.fields[name] for name in names}
    if session.lane is not None:
        # Before the arrays are touched: from here on the caller's stream waits for the event, and
        # slices are queued there.
        session.lane.hand_over(outcome.event)
        fields = {name: lend(session.lane, values) for name, values in fields.items()}
    elif rows is not None:
        fields = {name: values[rows] for name, values in fields.items()}
        arrays = {name: values for name, values in fields.items() if _is_numeric(values)}
        # A slice begins anywhere in the slot, and TensorFlow ends the process below 64 bytes
        # (`ring.ALIGN_BYTES`).
        fields |= _copy_unaligned(
            session, arrays, [name for name, values in arrays.items() if not is_aligned(values)]
        )
    session.counters.deliver((int(np.count_nonzero(valid)), sum(map(num_bytes, fields.values()))))
    if group.attempts:
        if rows is not None:
            first, after = (rows.start, rows.stop)
        else:
            first, after = (0, records.size)
        num_bad = sum(first <= row < after for row in group.attempts)
        session.counters.add(**{"records_skipped" if group.skips else "records_replaced": num_bad})
    event = outcome.event
    draws = group.draws_of_records(slice(None) if rows is None else rows)
    epoch, spec = group.position.epoch, session.recipe.graph.spec_out
    return Batch(
        fields,
        output,
        records=records,
        valid=valid,
        epoch=epoch,
        step=step,
        event=event,
        drawn=draws,
        spec=spec,
    )


def _of_piece(session: Session, group: Step, step: int) -> Batch:
    """Return the batch of a step that its worker has cut out."""
    batch, amounts, after, unaligned = group.pieces[step - group.position.step]
    session.counters.deliver(amounts)
    # The usual way, and the one that the speed of tiny batches depends on: nothing is made anew
    # here.
    if not unaligned and (group.num_steps == 1 or not session.ring.crowded):
        return batch
    fields = _copy_unaligned(session, dict(batch.items()), unaligned)
    output, epoch, spec = session.recipe.output, after.epoch, session.recipe.graph.spec_out
    return Batch(
        fields, output, records=batch.records, valid=batch.valid, epoch=epoch, step=step, spec=spec
    )


def _is_numeric(values: Any) -> bool:
    """Return True for an array of numbers: not for texts, nor for values of varying length."""
    return isinstance(values, np.ndarray) and not values.dtype.hasobject


def _copy_unaligned(
    session: Session, fields: dict[str, Any], unaligned: Collection[str]
) -> dict[str, Any]:
    """Return the fields of one of some steps that were done together, as they are or as copies.

    Those are copied that do not begin where frameworks need it; all of them if the caller keeps so
    much that each batch it keeps should not hold the memory of its neighbours too.
    """
    if session.ring.crowded:
        session.counters.add(batches_copied=1)
        unaligned = fields
    if unaligned:
        return {**fields, **{name: aligned_copy(fields[name]) for name in unaligned}}
    return fields


def lend(lane: devices.Lane, values: Any) -> Any:
    """Return values on the GPU whose memory comes back to the lane; those on the host as they
    are."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, Ragged):
        if isinstance(values.payload, np.ndarray):
            return values
        return values.with_payload(lane.lend(values.flat))
    if isinstance(values, list):
        return [lend(lane, array) for array in values]
    if isinstance(
        values, devices.Views
    ):  # they are parts of one memory, which comes back when the last is gone
        return list(values.move(lane.lend(values.memory)))
    return lane.lend(values)

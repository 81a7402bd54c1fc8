"""Epoch: the batches of one epoch, one after the other, from a position on."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Literal, NamedTuple, cast

from gpuload import signalsafe, threads
from gpuload.batch import Batch, Output
from gpuload.core.face import Copies
from gpuload.errors import SpecError
from gpuload.order import Position
from gpuload.pipeline.cursor import Cursor, LoaderPosition
from gpuload.pipeline.handover import to_batch
from gpuload.pipeline.outcome import Outcome, explain, outcome_of
from gpuload.pipeline.session import Session
from gpuload.pipeline.tray import raisable
from gpuload.pipeline.workers import Workers
from gpuload.stats import Counters
from gpuload.tracebacks import trim_frames

# A tiny batch takes a few microseconds, and reading the clock for each would take 5 % of them.
CLOCK_EVERY_S, MOST_UNTIMED = 1e-3, 64


class EpochRun:
    """One run of an iterator: the steps from a position to the end of its epoch.

    Attributes:
        cursor: where the iterator is.
        loader_cursor: where it takes the loader, if not to ``cursor``.
        end: the number of steps of the epoch.
        joining: which steps are done together.
        batches: the threads that make them.
        takes_batches: True if batches that workers made are handed out as they are.
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
        self.batches, self.joining = session.begin(cursor.start)
        self.takes_batches = session.names is session.recipe.names
        self.latest: tuple[int, Outcome | None, Copies | None] = (-1, None, None)
        self.end_s, self.num_untimed, self.timed_every = 0.0, 0, 1

    def count_times(
        self, counters: Counters, step: int, asked_s: float, ready_s: float, end_s: float
    ) -> None:
        """Count the seconds of the batches since the clock was read last, and decide when it is
        read next.

        The hand-over of this batch stands for those of the others.

        Args:
            counters: of the loader.
            step: of this batch.
            asked_s: when it was asked for, by ``perf_counter``; only with a trace.
            ready_s: when it was ready.
            end_s: when it is handed out.
        """
        before_s = self.end_s
        self.count_loop(counters, ready_s, end_s)
        if (trace := counters.trace) is not None:
            words = {"epoch": self.cursor.start.epoch, "step": step}
            trace.add("training", before_s, asked_s, **words)
            trace.add("waiting", asked_s, ready_s, **words)
            trace.add("hand-over", ready_s, end_s, **words)

    def count_loop(self, counters: Counters, ready_s: float, end_s: float) -> None:
        """Count the seconds of a loop, of which this batch took its part from ``ready_s`` on."""
        num_batches, loop_s = max(self.num_untimed, 1), end_s - self.end_s
        # The estimate is bounded: one slow hand-over of 64 would make training look shorter than
        # nothing.
        counters.loop(min(num_batches * (end_s - ready_s), loop_s), loop_s)
        every = int(CLOCK_EVERY_S * num_batches / max(loop_s, 1e-9))
        self.timed_every = max(1, min(MOST_UNTIMED, every))
        self.end_s, self.num_untimed = end_s, 0


Moves = Literal["each", "end", "first", "second", "manual"]


class Arrival(NamedTuple):
    """Where a loader is once a batch is handed out.

    Attributes:
        place: of the loader.
        cursor: that it has then.
        now: of that cursor.
    """

    place: LoaderPosition
    cursor: Cursor
    now: tuple[Position, Position]


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
        self,
        session: Session,
        output: Output,
        cursor: Cursor,
        place: LoaderPosition | None = None,
        moves: Moves = "each",
        num_between: int | None = 0,
    ) -> None:
        self._session, self._output, self._place, self._moves = session, output, place, moves
        self._num_between = num_between
        # A place that moves later than each batch, or not with each.
        self._late_place = place
        if moves == "each":
            self._late_place = None
        self._run = EpochRun(session, cursor)
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

    def take_along(self, place: LoaderPosition) -> Epoch:
        """Move another loader, which is where this iterator begins and has as many steps; returns
        self."""
        self._place = self._late_place = place
        self._run.cursor.origin = self._run.loader_cursor.origin = place.cursor.origin
        return self

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Batch:
        run, late = self._run, self._late_place
        if run.cursor.is_over:
            raise StopIteration
        if self._place is not None:
            run = self._begin_with(self._place)
        session, cursor, asked_s = self._session, run.cursor, 0.0
        is_traced = session.counters.trace is not None
        if is_traced or not run.end_s:
            asked_s = perf_counter()
            run.end_s = run.end_s or asked_s
        while (before := cursor.now)[0].step < run.end:
            # In a child of a fork there are no threads: waiting for one of them would never end.
            session.check()
            step = before[0].step
            try:
                outcome = self._take(run, step)
            except StopIteration as stop:  # of a signal handler
                raise raisable(stop)  # noqa: B904  it has it as its cause
            if outcome is None:  # another thread was faster
                continue
            after = self._behind(outcome, step)
            if outcome.error is not None:
                error, after_error = raisable(outcome.error), (after, before[1])
                if cursor.now is before:
                    cursor.now = after_error
                    # Threads keep the step, which must not keep the error: its traceback would
                    # keep this iterator.
                    outcome.error = outcome.step.error = None
                    raise trim_frames(error)
            if cursor.now is not before:  # another thread was faster, perhaps with the error
                continue
            run.num_untimed += 1
            is_timed, ready_s = is_traced or run.num_untimed >= run.timed_every, 0.0
            if is_timed:
                ready_s = perf_counter()
            try:
                batch = to_batch(session, outcome, step, self._output)
            except Exception as error:
                raise raisable(explain(error, outcome.step))  # noqa: B904  the same, or its cause
            if self._finish is not None:
                batch = self._call_finish(self._finish, batch, before, after)
            # Computed here, because nothing may be called once `cursor.now` has changed.
            arrival, delivery = None, (after, after)
            if late is not None:
                arrival = self._arrival(late, run, step + 1)
            if is_timed:
                run.count_times(session.counters, step, asked_s, ready_s, perf_counter())
            # From here to the return nothing is called: CPython runs signal handlers behind calls
            # and in loops alone.
            if cursor.now is before:
                cursor.now = delivery
                if arrival is not None:
                    arrival.cursor.now, arrival.place.cursor = arrival.now, arrival.cursor
                return batch
        self._end_run(run)
        raise StopIteration

    def _begin_with(self, place: LoaderPosition) -> EpochRun:
        """Return the run that goes on: another one if a state was loaded into the loader."""
        if place.cursor.origin is not self._run.cursor.origin:
            self._go_along(place)
        run = self._run
        if self._moves == "each":
            # The loader is where this iterator is, before and after the batch that comes now.
            place.cursor = run.cursor
        return run

    def _behind(self, outcome: Outcome, step: int) -> Position:
        """Return the position behind a step."""
        batches = outcome.step.batches
        if batches:
            return batches[step - outcome.step.position.step].after
        return self._session.recipe.plan.later(self._run.cursor.start, step + 1)

    def _end_run(self, run: EpochRun) -> None:
        """End the threads; the loader goes to the next epoch, if it follows this iterator.

        All of this may be done twice: a call that is broken off here comes here again, as
        ``is_over`` is set last.
        """
        counters, place = self._session.counters, self._place
        if run.num_untimed:
            end_s = perf_counter()
            run.count_loop(counters, end_s, end_s)
        run.batches.forget(run.joining.group(run.end - 1 - run.cursor.start.step))
        run.latest = (-1, None, None)
        run.batches.close()
        follows = self._moves in ("first", "second") and self._num_between is not None
        if place is not None and follows:
            self._end(place, run)
        run.cursor.is_over = True
        if counters.trace is not None:
            counters.trace.write()

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

    def _is_where_it_left(self, place: LoaderPosition) -> bool:
        """Return True if the loader stands where this iterator moved it last: nothing else has
        moved it since."""
        normalize = self._session.recipe.plan.normalize
        return normalize(place.cursor.state_position) == normalize(
            self._run.loader_cursor.state_position
        )

    def _error_of_move(self, place: LoaderPosition) -> SpecError:
        normalize = self._session.recipe.plan.normalize
        current, left = (
            normalize(place.cursor.state_position),
            normalize(self._run.loader_cursor.state_position),
        )
        return SpecError(
            f"the loader is at epoch {current.epoch}, step {current.step}, and this pipeline left "
            f"it at epoch {left.epoch}, step {left.step}",
            cause="a state was loaded, or another loop or pipeline read from the loader, after "
            "this one had begun",
            remedy="load states before the pipeline is made, or make a new iterator; give each "
            "pipeline a loader of its own (shard_id=, num_shards=), and look at batches with "
            "loader.peek() or loader.batch_at(step, epoch)",
        )

    def _go_along(self, place: LoaderPosition) -> None:
        """Begin anew where a state was loaded; raises ``SpecError`` where batches may be on their
        way already."""
        run = self._run
        if self._moves != "each" and run.cursor.position != run.cursor.start:
            if self._moves == "manual" and self._is_where_it_left(place):
                run.cursor.origin = place.cursor.origin
                return
            raise self._error_of_move(place)
        run.batches.close()
        while self._session.successor is not None:
            # Images are decoded elsewhere from that state on.
            self._session = self._session.successor
        self._run = EpochRun(self._session, place.begin(self._session.recipe.plan))

    def _call_finish(
        self,
        finish: Callable[[Batch], Any],
        batch: Batch,
        before: tuple[Position, Position],
        after: Position,
    ) -> Batch:
        """Return the result of ``finish`` for a batch; if it raises an error, the loop goes on
        behind the batch."""
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

    def _counts(self, run: EpochRun, num_batches: int) -> bool:
        """Return whether the loader moves with so many batches: a single one may be to look at, if
        it is no epoch."""
        start = run.cursor.start.step
        return num_batches > 1 or (
            num_batches == 1 and (self._moves == "first" or (start, run.end) == (0, 1))
        )

    def _end(self, place: LoaderPosition, run: EpochRun) -> None:
        """Move the loader to the next epoch, unless it is there, or another iterator has moved it
        since."""
        if run.loader_cursor.position.step < run.end and self._is_where_it_left(place):
            self._reach(place, run, run.end)

    def _reach(self, place: LoaderPosition, run: EpochRun, step: int) -> None:
        """Take the loader behind the steps before ``step``, unless a state was loaded into it
        since."""
        position = self._session.recipe.plan.at(run.cursor.start, step)
        run.loader_cursor.now = (position, position)
        # A loaded state has another origin: an older iterator that reads ahead must not move the
        # loader away from it.
        if place.cursor.origin is run.loader_cursor.origin:
            place.cursor = run.loader_cursor

    def _arrival(self, place: LoaderPosition, run: EpochRun, step: int) -> Arrival | None:
        """Return where the loader is when the batch before a step is delivered; None if that batch
        does not move it."""
        start, num_between = run.cursor.start, self._num_between
        if self._moves == "end":
            # Another iterator may have moved it before; a loop that is done leaves it at an epoch's
            # end.
            current = self._session.recipe.plan.normalize(place.cursor.state_position)
            if step == run.end and current.epoch == start.epoch:
                cursor = Cursor(Position(start.epoch + 1), place.cursor.origin)
                return Arrival(place, cursor, cursor.now)
        elif self._moves in ("first", "second") and num_between is not None:
            is_here = place.cursor.origin is run.loader_cursor.origin
            if is_here and self._counts(run, step - num_between - start.step):
                position = self._session.recipe.plan.at(start, step - num_between)
                return Arrival(place, run.loader_cursor, (position, position))
        return None

    def _take(self, run: EpochRun, step: int) -> Outcome | None:
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
            elif item.batches and run.takes_batches:
                outcome = Outcome(item, {})
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
            # The later steps are copied, too: there is nothing to wait for or to begin.
            run.latest = number, outcome, None
        return outcome

    def _count_ready(self, run: EpochRun, number: int, num_ready: int) -> None:
        """Count, for each batch of a group, how many steps could be ready when it is asked for and
        how many were.

        Before the group was taken, ``num_ready`` steps were ready. The batches behind its first are
        asked for at once: for them it counts the steps that are ready now, so that nothing is
        counted for each batch.
        """
        first, size = run.joining.steps(number)
        last, num_last = run.joining.steps(number + self._session.num_ahead - 1)
        # For the first batch, itself included.
        ahead = min(last + num_last, run.end - run.cursor.start.step) - first
        now, rest = run.batches.num_ready(), size - 1
        behind = rest * (rest + 1) // 2
        self._session.counters.add(
            steps_ahead=size * ahead - behind,
            steps_ready=min(num_ready, ahead) + max(0, rest * min(now, ahead) - behind),
        )

    def close(self) -> None:
        """Stop the threads; asking for another batch afterwards is a ``ClosedError``."""
        self._run.batches.close()

"""Epoch: the batches of one epoch, one after the other, from a position on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, cast

import numpy as np

from gpuload import aside, threads
from gpuload import device as devices
from gpuload.batch import Batch, Output
from gpuload.core.face import Copies
from gpuload.errors import SpecError
from gpuload.order import Plan, Position
from gpuload.pipeline.batches import Outcome
from gpuload.pipeline.ring import aligned_copy, is_aligned
from gpuload.pipeline.session import Session
from gpuload.pipeline.step import Step
from gpuload.pipeline.tray import raisable
from gpuload.pipeline.workers import Workers
from gpuload.ragged import Ragged
from gpuload.tracebacks import trim_frames


class Cursor:
    """Where an iterator is. A thing of its own, so that a loader can ask it without keeping the iterator alive.

    Attributes:
        start: where it began.
        now: the position of the next batch, and the position that a state saves. They are the same, except after a step
            that raised an error: the iterator goes on behind it, a state begins with it again until a batch after it
            was delivered. Both change at once, by one assignment.
        origin: an object that all cursors share until a state is loaded. An iterator with another origin than its
            loader began before that.
        is_over: True once the iterator raised ``StopIteration``.
    """

    def __init__(self, position: Position, origin: object | None = None) -> None:
        self.start = position
        self.now = (position, position)
        self.origin = object() if origin is None else origin
        self.is_over = False

    @property
    def position(self) -> Position:
        """The position of the next batch."""
        return self.now[0]

    @property
    def saved(self) -> Position:
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
        return Cursor(plan.normalize(cursor.saved), cursor.origin)

    def go_to(self, position: Position) -> None:
        """Move the loader; iterators go on where they are, and take it along when they are asked next."""
        self.cursor = Cursor(position, self.cursor.origin)


class _Run:
    """What an iterator goes through: the steps from a position to the end of its epoch.

    Attributes:
        cursor: where the iterator is.
        reached: where it takes the loader, if not to ``cursor``.
        end: the number of steps of the epoch.
        joining: which steps are done together.
        batches: what makes them.
        latest: number and content of what was taken last, which may hold several steps, and what is to be waited for
            before each is there, if anything is.
    """

    def __init__(self, session: Session, cursor: Cursor) -> None:
        self.cursor, self.end = cursor, session.recipe.plan.end(cursor.start)
        self.reached = Cursor(cursor.start, cursor.origin)
        self.joining = session.joining(cursor.start)
        self.batches = session.begin(cursor.start, self.joining)
        self.latest: tuple[int, Outcome | None, Copies | None] = (-1, None, None)


Moves = Literal["each", "end", "first", "second", "told"]


class Epoch:
    """An iterator over the batches of one epoch, from a position on.

    Args:
        session: of the loader.
        output: how batches are arranged.
        cursor: where it begins.
        place: of the loader, which moves along; None to move nothing.
        moves: ``"each"``: the place moves with each batch; ``"end"``: with the last one alone, to the next epoch;
            ``"first"``: with each batch; ``"second"``: with each from the second on; both for batches that may be read
            ahead; ``"told"``: when and where ``move`` is called.
        num_between: for ``"first"`` and ``"second"``: so many batches stand between this iterator and who takes them.
            The place stays so many behind, and moves to the next epoch when this iterator ends. None: ``has_taken``
            says it.

    The position changes in one place, and nothing is called between that and handing the batch out. So whatever
    exception comes before, from a signal handler too, the next call delivers the same batch. Two threads that call
    ``next`` at once may both make the same batch ready, but whoever finds the position changed meanwhile goes on with
    the next one. Dropping the iterator stops its threads. Other iterators of the same loader are independent of it.

    When a state was loaded into the loader since, the iterator goes on from there as one that is made now. Where its
    batches are read ahead of the training (all but ``"each"``) and some were delivered already, the next call is an
    error instead: nobody knows what becomes of those.
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
        """Hand out what ``finish`` makes of each batch, before the position moves; returns self.

        What a signal handler raises in it loses no step: the next call makes the same batch again. If ``finish`` itself
        fails, the iterator goes on behind that step, as behind any other. Which of the two it was, the iterator finds
        out by a second try: ``finish`` gets the batch again, and may be called twice for one batch.
        """
        self._finish = finish
        return self

    def take_along(self, place: Place) -> Epoch:
        """Move another loader, which is where this iterator begins and has as many steps; returns self."""
        self._place = place
        self._run.cursor.origin = self._run.reached.origin = place.cursor.origin
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
        if place is not None and self._moves == "each":
            place.cursor = cursor  # the loader is where this iterator is, before and after the batch that comes now
        while (before := cursor.now)[0].step < run.end:
            self._session.check()
            step = before[0].step
            made = self._take(run, step)
            if made is None:  # another thread was faster
                continue
            pieces = made.step.pieces
            after = pieces[step - made.step.position.step].after if pieces else self._behind(cursor.start, step)
            if made.error is not None:
                error, failed = raisable(made.error), (after, before[1])
                if cursor.now is before:
                    cursor.now = failed
                    # Threads keep the step, which must not keep the error: its traceback would keep this iterator.
                    made.error = made.step.error = None
                    raise trim_frames(error)
                continue
            if cursor.now is not before:  # another thread was faster, and may have taken the error away
                continue
            try:
                batch, delivered = to_batch(self._session, made, step, self._output), (after, after)
            except Exception as error:
                raise devices.failure(error)  # noqa: B904  it is the same error, or has it as its cause
            if self._finish is not None:
                try:
                    batch = cast(Batch, self._finish(batch))
                except Exception as error:
                    if self._fails_itself(self._finish, batch, error) and cursor.now is before:
                        cursor.now = after, before[1]
                    raise
            arrived = None if place is None or self._moves == "each" else self._arrived(place, run, step + 1)
            # From here to the return nothing is called: CPython runs signal handlers behind calls and in loops alone.
            if cursor.now is before:
                cursor.now = delivered
                if arrived is not None and place is not None:
                    arrived[0].now = arrived[1]
                    place.cursor = arrived[0]
                return batch
        run.batches.forget(run.joining.group(run.end - 1 - cursor.start.step))
        run.latest = (-1, None, None)
        run.batches.close()
        if place is not None and self._moves in ("first", "second") and self._num_between is not None:
            self._end(place, run)
        cursor.is_over = True
        raise StopIteration

    @property
    def cursor(self) -> Cursor:
        """Where it is; tells that also when the iterator is gone."""
        return self._run.cursor

    @property
    def reached(self) -> Cursor:
        """Where it took the loader, for iterators that read ahead; tells that also when the iterator is gone."""
        return self._run.reached

    @property
    def position(self) -> Position:
        """The position of the next batch."""
        return self._run.cursor.position

    def move(self, position: Position) -> None:
        """Take the loader to a position that this iterator had: whoever reads ahead of the training has come so far.

        Raises:
            SpecError: the loader is not where the last call left it; somebody else has moved it.
        """
        place, reached = self._place, self._run.reached
        if place is None:
            return
        if place.cursor is not reached and not self._is_where_it_left(place):
            raise self._error_of_move(place)
        reached.now = (position, position)
        reached.origin = place.cursor.origin
        place.cursor = reached

    def _is_where_it_left(self, place: Place) -> bool:
        normalize = self._session.recipe.plan.normalize
        return normalize(place.cursor.saved) == normalize(self._run.reached.saved)

    def _error_of_move(self, place: Place) -> SpecError:
        normalize = self._session.recipe.plan.normalize
        here, left = normalize(place.cursor.saved), normalize(self._run.reached.saved)
        return SpecError(
            f"the loader is at epoch {here.epoch}, step {here.step}, and what reads ahead of it left it at epoch "
            f"{left.epoch}, step {left.step}",
            cause="a state was loaded, or another loop or pipeline read from the loader, after this one had begun",
            remedy="load states before the pipeline is made, or make a new iterator; give each pipeline a loader of "
            "its own (shard_id=, num_shards=), and look at batches with loader.peek() or loader.batch_at(step, epoch)",
        )

    def _go_along(self, place: Place) -> None:
        """Begin anew where a state was loaded; raises ``SpecError`` where batches may be on their way already."""
        run = self._run
        if self._moves != "each" and run.cursor.position != run.cursor.start:
            if self._moves == "told" and self._is_where_it_left(place):
                run.cursor.origin = place.cursor.origin
                return
            raise self._error_of_move(place)
        run.batches.close()
        self._run = _Run(self._session, place.begin(self._session.recipe.plan))

    def _fails_itself(self, finish: Callable[[Batch], Any], batch: Batch, error: Exception) -> bool:
        """Return True if ``finish`` itself raised an error, False if a signal handler did while it was called.

        The traceback shows the frame of a handler, unless the handler is no Python function or has deleted its
        arguments. So where it shows none, ``finish`` is tried again: what fails twice fails by itself.
        """
        if not threads.in_main():
            return True
        if aside.is_of_handler(error):
            return False
        try:
            finish(batch)
        except Exception as again:
            if aside.is_of_handler(again):
                raise
            return True
        return False

    def has_taken(self, num_batches: int) -> None:
        """Move the loader behind the first batches, where who takes them is known to have come so far.

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
        """Return whether the loader moves with so many batches: a single one may be to look at, if it is no epoch."""
        start = run.cursor.start.step
        return num_batches > 1 or (num_batches == 1 and (self._moves == "first" or (start, run.end) == (0, 1)))

    def _end(self, place: Place, run: _Run) -> None:
        """Move the loader to the next epoch, unless it is there, or another iterator has moved it since."""
        if run.reached.position.step < run.end and self._is_where_it_left(place):
            self._reach(place, run, run.end)

    def _reach(self, place: Place, run: _Run, step: int) -> None:
        position = self._session.recipe.plan.at(run.cursor.start, step)
        run.reached.now = (position, position)
        if place.cursor.origin is run.reached.origin:
            place.cursor = run.reached

    def _arrived(self, place: Place, run: _Run, step: int) -> tuple[Cursor, tuple[Position, Position]] | None:
        """Return where the loader is when the batch before a step is delivered, as a cursor and what it is set to.

        None if that batch does not move it.
        """
        start, num_between = run.cursor.start, self._num_between
        if self._moves == "end":
            # Another iterator may have moved it before; a loop that is done leaves it at an epoch's end.
            here = self._session.recipe.plan.normalize(place.cursor.saved)
            if step == run.end and here.epoch == start.epoch:
                cursor = Cursor(Position(start.epoch + 1), place.cursor.origin)
                return cursor, cursor.now
        elif self._moves in ("first", "second") and num_between is not None:
            behind = step - num_between
            if place.cursor.origin is run.reached.origin and self._counts(run, behind - start.step):
                position = self._session.recipe.plan.at(start, behind)
                return run.reached, (position, position)
        return None

    def _behind(self, start: Position, step: int) -> Position:
        """Return the position behind a step of the epoch."""
        return self._session.recipe.plan.later(start, step + 1)

    def _take(self, run: _Run, step: int) -> Outcome | None:
        """Wait for a step, or for those that it was done together with; None if another thread has taken it."""
        number, made, copies = run.latest
        if made is None or not 0 <= step - made.step.position.step < made.step.num_steps:
            number = run.joining.group(step - run.cursor.start.step)
            run.batches.forget(number - 1)
            num_ready = run.batches.num_ready()
            taken = run.batches.take(number)
            if taken is None:
                return None
            self._count_ready(run, number, num_ready)
            made = taken if isinstance(taken, Outcome) else _made(taken)
            copies = made.step.copies
            run.latest = number, made, copies
        if made is not None and made.singles:
            return made.singles[step - made.step.position.step]
        if made is None or copies is None or not isinstance(run.batches, Workers):
            return made
        if not run.batches.wait(number, made.step, copies, step):
            # Something is wrong with a file. A thread in which no signal handler runs reads it again and says what.
            group = made.step
            return _made(aside.call(lambda: group.again_alone(step)))
        if copies.num_done == made.step.num_steps and step > made.step.position.step:
            run.latest = number, made, None  # nothing is to be waited for, or to be begun, at the steps behind this one
        return made

    def _count_ready(self, run: _Run, number: int, num_ready: int) -> None:
        """Count, for each batch of a group, how many steps could be ready when it is asked for and how many were.

        Before the group was taken, ``num_ready`` steps were ready. The batches behind its first are asked for at once:
        for them it counts what is ready now, so that nothing is looked at for each batch.
        """
        first, size = run.joining.steps(number)
        last, more = run.joining.steps(number + self._session.num_ahead - 1)
        ahead = min(last + more, run.end - run.cursor.start.step) - first  # for the first batch, itself included
        now, rest = run.batches.num_ready(), size - 1
        behind = rest * (rest + 1) // 2
        self._session.counters.add(
            steps_ahead=size * ahead - behind,
            steps_ready=min(num_ready, ahead) + max(0, rest * min(now, ahead) - behind),
        )

    def close(self) -> None:
        """Stop the threads; asking for another batch afterwards is a ``ClosedError``."""
        self._run.batches.close()


def _made(step: Step) -> Outcome:
    """Return what became of a step that its workers finished."""
    singles = [_made(single) for single in step.singles]
    return Outcome(step, {} if step.failed or singles else step.fields, singles=singles, error=step.error)


def to_batch(session: Session, made: Outcome, step: int, output: Output) -> Batch:
    """Return the batch of a step that was made."""
    done, names = made.step, session.names
    if done.pieces and names is session.recipe.names:
        return _of_piece(session, done, step)
    rows = None if done.is_batch else done.rows(step)
    records, valid = (done.records, done.valid) if rows is None else (done.records[rows], done.valid[rows])
    fields = (
        made.fields_of_steps[step - done.position.step]
        if made.fields_of_steps
        else {name: made.fields[name] for name in names}
    )
    if session.lane is not None:
        session.lane.hand_over(made.event)
        fields = {name: _lent(session.lane, values) for name, values in fields.items()}
    elif rows is not None:
        fields = {name: values[rows] for name, values in fields.items()}
        fields = _apart(session, fields, [name for name, values in fields.items() if not is_aligned(values)])
    session.counters.deliver(int(np.count_nonzero(valid)), sum(_num_bytes(values) for values in fields.values()))
    if done.attempts:
        first, after = (rows.start, rows.stop) if rows is not None else (0, records.size)
        num_bad = sum(first <= row < after for row in done.attempts)
        session.counters.add(**{"records_skipped" if done.skips else "records_replaced": num_bad})
    event = made.event
    draws = done.draws_of_records(slice(None) if rows is None else rows)
    epoch = done.position.epoch
    return Batch(fields, output, records=records, valid=valid, epoch=epoch, step=step, event=event, drawn=draws)


def _of_piece(session: Session, done: Step, step: int) -> Batch:
    """Return the batch of a step that its worker has cut out."""
    batch, num_records, num_bytes, after, unaligned = done.pieces[step - done.position.step]
    session.counters.deliver(num_records, num_bytes)
    if not unaligned and (done.num_steps == 1 or not session.ring.crowded):
        return batch
    fields = _apart(session, dict(batch.items()), unaligned)
    output, epoch = session.recipe.output, after.epoch
    return Batch(fields, output, records=batch.records, valid=batch.valid, epoch=epoch, step=step)


def _apart(session: Session, fields: dict[str, Any], unaligned: Collection[str]) -> dict[str, Any]:
    """Return the fields of one of some steps that were done together, as they are or as copies.

    Those are copied that do not begin where frameworks need it; all of them if the caller keeps so much that each batch
    it keeps should not hold the memory of its neighbours too.
    """
    if session.ring.crowded:
        session.counters.add(batches_copied=1)
        unaligned = fields
    return {**fields, **{name: aligned_copy(fields[name]) for name in unaligned}} if unaligned else fields


def _lent(lane: devices.Lane, values: Any) -> Any:
    """Return values on the GPU whose memory comes back to the lane; those on the host as they are."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, Ragged):
        return values if isinstance(values.payload, np.ndarray) else values.with_payload(lane.lend(values.flat))
    if isinstance(values, list):
        return [_lent(lane, one) for one in values]
    return lane.lend(values)


def _num_bytes(values: Any) -> int:
    return sum(one.nbytes for one in values) if isinstance(values, list) else int(values.nbytes)

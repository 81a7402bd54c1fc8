"""Epoch: the batches of one epoch, one after the other, from a position on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload.batch import Batch, Output
from gpuload.errors import SpecError
from gpuload.order import Position
from gpuload.pipeline.batches import Made
from gpuload.pipeline.ring import ALIGN_BYTES
from gpuload.pipeline.session import Session
from gpuload.pipeline.step import Step
from gpuload.pipeline.tray import raisable
from gpuload.ragged import Ragged


class Cursor:
    """Where an iterator is. A thing of its own, so that a loader can ask it without keeping the iterator alive.

    Attributes:
        start: where it began.
        now: the position of the next batch, and the position that a state saves. They are the same, except after a step
            that raised an error: the iterator goes on behind it, a state begins with it again until a batch after it
            was delivered. Both change at once, by one assignment.
    """

    def __init__(self, position: Position) -> None:
        self.start = position
        self.now = (position, position)

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


class Epoch:
    """An iterator over the batches of one epoch, from a position on.

    Args:
        session: of the loader.
        output: how batches are arranged.
        position: of its first batch.
        place: of the loader, which moves along; None to move nothing.
        moves: ``"each"``: the place moves with each batch; ``"end"``: with the last one alone, to the next epoch;
            ``"told"``: when and where ``move`` is called.

    The position changes in one place, and nothing is called between that and handing the batch out. So whatever
    exception comes before, from a signal handler too, the next call delivers the same batch. Two threads that call
    ``next`` at once may both make the same batch ready, but whoever finds the position changed meanwhile goes on with
    the next one. Dropping the iterator stops its threads. Other iterators of the same loader are independent of it.
    """

    def __init__(
        self, session: Session, output: Output, position: Position, place: Place | None = None,
        moves: Literal["each", "end", "told"] = "each",
    ) -> None:  # fmt: skip
        self._session, self._output, self._place, self._moves = session, output, place, moves
        self._cursor, self._start, self._end = Cursor(position), position, session.recipe.plan.end(position)
        self._told = Cursor(position)
        self._joining = session.joining(position)
        self._made = session.begin(position, self._joining)
        self._latest: tuple[int, Made | None] = (-1, None)  # what was taken last, which may hold several steps
        self._finish: Callable[[Batch], Batch] | None = None

    def then(self, finish: Callable[[Batch], Batch]) -> Epoch:
        """Hand out what ``finish`` makes of each batch, before the position moves; returns self.

        So an interrupt in it loses no step. If it fails, the iterator goes on behind that step, as behind any other.
        """
        self._finish = finish
        return self

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Batch:
        cursor, place = self._cursor, self._place
        if place is not None and self._moves == "each":
            place.cursor = cursor  # the loader is where this iterator is, before and after the batch that comes now
        while (before := cursor.now)[0].step < self._end:
            self._session.check()
            step = before[0].step
            made = self._take(step)
            if made is None:  # another thread was faster
                continue
            after = self._session.recipe.plan.at(self._start, step + 1)
            if made.error is not None:
                error, failed = raisable(made.error), (after, before[1])
                if cursor.now is before:
                    cursor.now = failed
                    # Threads keep the step, which must not keep the error: its traceback would keep this iterator.
                    made.error = made.step.error = None
                    raise error
                continue
            if cursor.now is not before:  # another thread was faster, and may have taken the error away
                continue
            batch, delivered = to_batch(self._session, made, step, self._output), (after, after)
            if self._finish is not None:
                try:
                    batch = self._finish(batch)
                except Exception:
                    if cursor.now is before:
                        cursor.now = after, before[1]
                    raise
            if cursor.now is before:
                cursor.now = delivered
                if place is not None and self._moves == "end":
                    self._arrive(place)
                return batch
        self._made.forget(self._joining.group(self._end - 1 - self._start.step))
        self._latest = (-1, None)
        self._made.close()
        raise StopIteration

    @property
    def position(self) -> Position:
        """The position of the next batch."""
        return self._cursor.position

    def move(self, position: Position) -> None:
        """Take the loader to a position that this iterator had: whoever reads ahead of the training has come so far.

        Raises:
            SpecError: the loader is not where the last call left it; somebody else has moved it.
        """
        place, told, settled = self._place, self._told, self._session.recipe.plan.settled
        if place is None:
            return
        here, left = settled(place.cursor.saved), settled(told.saved)
        if place.cursor is not told and here != left:
            raise SpecError(
                f"the loader is at epoch {here.epoch}, step {here.step}, and what reads ahead of it left it at epoch "
                f"{left.epoch}, step {left.step}",
                cause="a state was loaded, or another loop or pipeline read from the loader, after this one had begun",
                remedy="load states before the pipeline is made, give each pipeline a loader of its own (shard_id=, "
                "num_shards=), and look at batches with loader.batch_at(step, epoch)",
            )
        told.now = (position, position)
        place.cursor = told

    def _arrive(self, place: Place) -> None:
        """Move the loader to the next epoch if this one was delivered, unless another iterator did so before."""
        here = self._session.recipe.plan.settled(place.cursor.saved)  # a loop that is done leaves it at an epoch's end
        if self._cursor.position.step == self._end and here.epoch == self._start.epoch:
            place.cursor = Cursor(Position(self._start.epoch + 1))

    def _take(self, step: int) -> Made | None:
        """Wait for a step, or for those that it was done together with; None if another thread has taken it."""
        number = self._joining.group(step - self._start.step)
        latest, made = self._latest
        if latest != number:
            self._made.forget(number - 1)
            taken = self._made.take(number)
            if taken is None:
                return None
            made = taken if isinstance(taken, Made) else _made(taken)
            self._latest = number, made
        if made is not None and made.step.alone:
            return _made(made.step.alone[step - made.step.position.step])
        return made

    def close(self) -> None:
        """Stop the threads; asking for another batch afterwards is a ``ClosedError``."""
        self._made.close()


def _made(step: Step) -> Made:
    """Return what became of a step that its workers finished."""
    return Made(step, {} if step.failed or step.alone else step.fields, error=step.error)


def to_batch(session: Session, made: Made, step: int, output: Output) -> Batch:
    """Return the batch of a step that was made."""
    done, names = made.step, session.names
    rows = done.rows(step) if done.num_steps > 1 else None
    records, valid = (done.records, done.valid) if rows is None else (done.records[rows], done.valid[rows])
    fields = {name: made.fields[name] for name in names}
    if session.lane is not None:
        session.lane.hand_over(made.event)
        fields = {name: _lent(session.lane, values) for name, values in fields.items()}
    elif rows is not None:
        crowded = session.ring.crowded
        if crowded:
            session.counters.add(batches_copied=1)
        fields = {name: _cut(values[rows], copy=crowded) for name, values in fields.items()}
    num_bytes = sum(_num_bytes(values) for values in fields.values())
    session.counters.add(
        batches=1, batches_uncompiled=int(done.uncompiled), records=int(np.count_nonzero(valid)), bytes=num_bytes
    )
    if done.attempts:
        first, after = (rows.start, rows.stop) if rows is not None else (0, records.size)
        num_bad = sum(first <= row < after for row in done.attempts)
        session.counters.add(**{"records_skipped" if done.skips else "records_replaced": num_bad})
    event = made.event
    return Batch(fields, output, records=records, valid=valid, epoch=done.position.epoch, step=step, event=event)


def _cut(values: NDArray[Any], *, copy: bool) -> NDArray[Any]:
    """Return some rows of steps that were done together, or a copy of them.

    A copy is made where their memory does not begin where frameworks need it, and where the caller keeps so much that
    each batch it keeps should not hold the memory of its neighbours too.
    """
    if not copy and values.__array_interface__["data"][0] % ALIGN_BYTES == 0:
        return values
    made = devices.page_aligned(values.nbytes).view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


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

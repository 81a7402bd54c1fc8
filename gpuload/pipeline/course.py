"""Course: where a loader is in its epochs, its states, and the iterators that read ahead of its
training.

An iterator that reads ahead (of ``tf.data``, of Keras) delivers batches that may not have been
trained yet. So the position of the loader does not follow it, and this history of the latest one
tells a batch that was only looked at from batches that come again. It holds cursors alone, which
outlive their iterators.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from gpuload import state
from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops
from gpuload.ops.base import Op
from gpuload.order import Position
from gpuload.pipeline.cursor import Cursor, LoaderPosition
from gpuload.pipeline.epoch import Epoch, Moves
from gpuload.pipeline.setup import Setup
from gpuload.sources.base import before_ops, ops_of
from gpuload.spec import is_whole

log = logging.getLogger("gpuload")


class Course:
    """The course of a loader: its position, and how the latest iterator took it there.

    Args:
        setup: of the loader; states are compared by its records and their order.
        ops: of the loader.

    Attributes:
        place: where the loader is.
    """

    def __init__(self, setup: Setup, ops: Sequence[Op]) -> None:
        self.place = LoaderPosition(Position())
        self._plan, self._source, self._ops = setup.plan, setup.source, ops
        # The latest iterator that reads ahead of the training. It lives as long as its reader, and
        # ends its threads when that is garbage.
        self._ahead: weakref.ref[Epoch] | None = None
        self._cursor = self._end = Cursor(Position())  # where it is, and where it takes the loader
        self._moves: Moves = "end"
        self._num_before, self._is_endless = 0, False
        self._warned = set[str]()

    @property
    def position(self) -> Position:
        """The position of the next batch; the end of an epoch is the beginning of the next one."""
        return self._plan.normalize(self.place.cursor.state_position)

    def begin(self) -> Cursor:
        """Return the cursor of an iterator that begins now; log once that an epoch begins with its
        second batch."""
        cursor, num_steps = self.place.cursor, self._plan.end()
        if (cursor.start.step, cursor.now[1].step) == (0, 1) and num_steps > 1:
            self._warn_once(
                "peek",
                "epoch %d goes on at step 1 of %d: one batch was taken from the loader before; "
                "remedy: if that was to look at it, as next(iter(loader)) does, write "
                "loader.peek(), which moves nothing",
                cursor.start.epoch,
                num_steps,
            )
        return self.place.begin(self._plan)

    # States

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """The fields that a state is compared by; computed at the first use, because the
        fingerprint reads data."""
        source, raw, before = self._source, before_ops(self._source), ops_of(self._source)
        ops, marks, label_mixers = (*before, *self._ops), "", list[int]()
        if any(field.is_marked for field in raw.spec):
            marks = compile_ops(raw.spec, ops).marks
        if any(op.traits.mixes for op in self._ops):
            graph = compile_ops(source.spec, self._ops, before=before)
            label_mixers = graph.label_mixers(self._ops, before=before)
        changed = [len(before) + place for place in label_mixers]
        return state.identity(raw.fingerprint(), ops, self._plan, marks, changed)

    def state_at(self, position: Position, decode: str) -> dict[str, Any]:
        """Return the state of a position; ``decode`` says where images are decoded."""
        return state.save(self._plan, check_position(position), self._identity, decode)

    def position_of(self, fields: dict[str, Any]) -> Position:
        """Return the position of a state; raises ``StateError`` if it is of other data, ops,
        shuffle or seed."""
        return state.load(fields, self._plan, self._identity)

    def begin_anew(self, position: Position) -> None:
        """Go to the position of a state that was loaded."""
        # A cursor with an origin of its own, by which iterators that began before notice that a
        # state was loaded.
        self.place.cursor = Cursor(position)

    def step_of(self, epoch: int, step: int) -> Position:
        """Return the position of a step; a run may have gone on in mid-epoch with another batch
        size.

        Raises:
            RecordIndexError: the epoch has no such step.
        """
        start = self.place.cursor.start
        is_other = start.offset != min(self._plan.length, start.step * self._plan.global_batch)
        if not is_other or start.epoch != epoch:
            start = Position(epoch)
        return self._plan.at(start, step)

    def after(self, position: Position, num_steps: int) -> Position:
        """Return the position so many steps behind another one, over any number of epochs.

        Raises:
            SpecError: this is no position, or no number of steps.
        """
        plan = self._plan
        if not is_whole(num_steps):
            raise SpecError(
                f"num_steps = {num_steps!r}",
                cause="it is how many steps were done, at least 0",
                remedy="pass 0 or more",
            )
        left, num_steps = plan.end(check_position(position)) - position.step, int(num_steps)
        if num_steps < left:
            return plan.at(position, position.step + num_steps)
        epochs, step = divmod(num_steps - left, max(plan.end(), 1))
        return plan.at(Position(position.epoch + 1 + epochs), step)

    # Iterators that read ahead

    @property
    def delivery_position(self) -> Position:
        """The position behind the batches that were delivered, also to an iterator that reads
        ahead."""
        ahead = None
        if self._ahead is not None:
            ahead = self._ahead()
        if ahead is None:
            return self.position
        return self._plan.normalize(ahead.position)

    def follow(self, batches: Epoch) -> None:
        """Take an iterator of a loader with the same steps for the one that reads ahead; it moves
        this one, too."""
        self._ahead = weakref.ref(batches.take_along(self.place))

    def begin_ahead(self, *, warns: bool, goes_on: bool) -> Cursor:
        """Return the cursor of an iterator that begins now and reads ahead.

        Args:
            warns: log once if batches come again that may have been trained, or the iterator begins
                in mid-epoch.
            goes_on: the loader moves with its batches.
        """
        cursor = self.begin()
        if warns:
            self._warn_of_history(cursor.start, goes_on=goes_on)
        return cursor

    def note(self, batches: Epoch, moves: Moves) -> None:
        """Take the iterator for the one that reads ahead."""
        self._ahead = weakref.ref(batches)
        self._num_before = self._num_peeks(batches.position)
        self._cursor, self._end, self._moves = batches.cursor, batches.loader_cursor, moves

    def begin_loop(self, *, is_endless: bool) -> bool:
        """Note whether the next iterator is an epoch of an endless loop; True if it follows another
        one of that."""
        follows = is_endless and self._is_endless and self._cursor.is_over and self._has_moved()
        self._is_endless = is_endless
        return follows

    def _has_moved(self) -> bool:
        """Return whether the latest iterator has taken the loader where it is."""
        return self.place.cursor is self._end

    def _num_repeated(self, position: Position) -> int:
        """Return how many batches the latest iterator delivered, if it was left and began at the
        same position."""
        start, num_delivered = (
            self._cursor.start,
            self._cursor.position.step - self._cursor.start.step,
        )
        if start != position or not num_delivered:
            return 0
        return (
            1 if self._moves == "second" else num_delivered
        )  # it has moved the loader behind more than one

    def _num_peeks(self, position: Position) -> int:
        """Return how many of the latest iterators, all from the same position, took a single
        batch."""
        if self._num_repeated(position) == 1:
            return self._num_before + 1
        return 0

    def warn_of_read_ahead(self) -> None:
        """Log that the state is where an iterator began that reads ahead, if one does."""
        position, last = self.position, self.delivery_position
        if last == position or last.epoch != position.epoch or self._has_moved():
            return
        log.warning(
            "the state is that of epoch %d, step %d, where its iterator began; cause: a dataset "
            "reads ahead of the training, so that the loader cannot know which of the next %d "
            "steps were trained; remedy: in Keras save states by "
            "model.fit(callbacks=[gltf.checkpoint(loader, path)]); in PyTorch by the state_dict() "
            "of gltorch.dataset(loader) itself; in a loop of your own by loader.state_dict(epoch, "
            "step) of the last step",
            position.epoch,
            position.step,
            last.step - position.step,
        )

    def _warn_of_history(self, position: Position, *, goes_on: bool) -> None:
        """Log once if a dataset goes on in mid-epoch, or if batches come again that were perhaps
        trained on."""
        text = "an iterator of the dataset begins at epoch %d, step %d of %d, "
        place = (position.epoch, position.step, self._plan.end())
        if goes_on and position.step and self._has_moved():
            self._warn_once(
                "goes on",
                text
                + "behind the batches that the one before was asked for, as steps_per_epoch= and "
                "take() need it; remedy: for the same batches each time, as validation_steps= has "
                "them, dataset(loader, restart=True)",
                *place,
            )
        elif self._num_repeated(position) > 1:
            self._warn_once(
                "again",
                text + "where the one before it began, that took %d batches and was left; cause: a "
                "stage between (prefetch, map, a strategy) may read ahead, so that it is unknown "
                "which were trained; remedy: pass dataset(loader) itself, or with take() or "
                "repeat() alone, for the loader reads ahead; or count the steps by "
                "callbacks=[gltf.checkpoint(loader, path)]; dataset(loader, restart=True) if it is "
                "meant",
                *place,
                self._num_repeated(position),
            )
        elif self._num_peeks(position) > 1:
            self._warn_once(
                "peeks",
                text
                + "for the third time: an iterator that takes a single batch counts as one that "
                "looks, and that batch comes again; remedy: train with more than one step for each "
                "call of fit or take, or look with loader.peek()",
                *place,
            )

    def _warn_once(self, key: str, text: str, *values: object) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning(text, *values)


def check_position(position: Position) -> Position:
    """Return a position; raises ``SpecError`` if it is something else."""
    if not isinstance(position, Position):
        raise SpecError(
            f"position = {position!r}"[:200],
            cause="it is the position of a loader: loader.position, or loader.port.after(...)",
            remedy="pass loader.position; loader.state_dict(epoch=0, step=3) is the state of any "
            "step",
        )
    return position

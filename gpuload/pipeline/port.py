"""Port: all that a bridge may ask of a loader beside its public face; ``loader.port``.

    ops              graph, feed_graph, asked_executor, most_records
    positions        after, batch_of, state_at, go_to, delivery_position
    iterators        ahead, stream, manual_epoch, follow, feed
    messages         count, tell

A loop over a loader moves its position with each batch. A framework that reads batches ahead of the
training needs an iterator that does not, and says itself how far the training has come: that is
``ahead``, ``stream`` or ``manual_epoch``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuload.batch import Batch
from gpuload.errors import SpecError
from gpuload.executors.base import BatchExecutor
from gpuload.graph.graph import Graph
from gpuload.order import Position
from gpuload.pipeline.course import Course, check_position
from gpuload.pipeline.epoch import Epoch, Moves
from gpuload.pipeline.handover import to_batch
from gpuload.pipeline.session import Session
from gpuload.pipeline.sessions import Sessions
from gpuload.pipeline.tray import raisable


class Port:
    """The port of a loader.

    Args:
        sessions: of the loader.
        course: of the loader.
        executor: the argument of the loader.
    """

    def __init__(self, sessions: Sessions, course: Course, executor: str) -> None:
        self._sessions, self._course, self._executor = sessions, course, executor

    # Ops

    @property
    def graph(self) -> Graph:
        """The ops with the fields that they act on, as far as the output needs them."""
        return self._sessions.current.graph

    @property
    def feed_graph(self) -> Graph:
        """The ops that ``feed`` leaves to be run elsewhere, on the device: those behind the ops on
        the host."""
        return self._sessions.feed_graph

    @property
    def asked_executor(self) -> str:
        """The argument ``executor=`` of the loader."""
        return self._executor

    @property
    def most_records(self) -> int:
        """The most records that a batch of this shard holds."""
        return self._sessions.setup.plan.most_records

    # Positions

    @property
    def delivery_position(self) -> Position:
        """The position behind the batches that were delivered, also to an iterator that reads
        ahead."""
        return self._course.delivery_position

    def after(self, position: Position, num_steps: int) -> Position:
        """Return where a run is that has gone so many steps from a position on, over any number of
        epochs.

        Args:
            position: of the loader, or one that this returned.
            num_steps: at least 0.

        Raises:
            SpecError: this is no position, or no number of steps.
        """
        return self._course.after(position, num_steps)

    def batch_of(self, position: Position) -> Batch:
        """Return the batch of a position, made anew as by ``batch_at``; no iterator moves."""
        session = self._sessions.current.session
        try:
            outcome = session.at(check_position(position))
            return to_batch(session, outcome, position.step, self._sessions.setup.output)
        except Exception as error:
            raise raisable(error)  # noqa: B904  it is the same error, or has it as its cause

    def state_at(self, position: Position) -> dict[str, Any]:
        """Return the state of a position, as ``state_dict`` does."""
        return self._course.state_at(position, self._sessions.place_to_decode)

    def go_to(self, position: Position) -> None:
        """Have the loader go on from a position; iterators that are there stay where they are."""
        self._course.place.go_to(check_position(position))

    # Iterators

    def ahead(self, feed: Session | None = None, *, warns: bool = False) -> Epoch:
        """Return an iterator from the position on, for a reader that runs ahead of the training, as
        ``tf.data`` may.

        The position stays where it is until the last batch of the epoch is delivered, and then
        moves to the next epoch. So an iterator that only looks at a batch costs nothing; but the
        state does not follow it, see ``state_dict``.

        Args:
            feed: the session of ``feed``, for batches that are not run here; ``batch.output`` is
                then a dict.
            warns: log once that batches come again which an iterator had that was left in
                mid-epoch.
        """
        self._course.begin_loop(is_endless=False)
        return self._read_ahead(feed, "end", warns=warns)

    def stream(
        self, feed: Session | None = None, *, num_between: int | None = 0, endless: bool = False
    ) -> Epoch:
        """Return an iterator from the position on, for a reader that takes a batch only to train on
        it.

        The position moves with each batch from the second on, so that the next iterator goes on
        behind them. An iterator that takes a single batch only looks: the position stays, unless
        that batch is the whole epoch.

        Args:
            feed: as of ``ahead``.
            num_between: so many batches are read ahead; the position stays so many behind. When the
                iterator ends, all of them count as taken. None: ``has_taken`` of the iterator is
                called with how many were taken.
            endless: epochs follow each other in one loop, in which only the very first batch may be
                one to look at. That the iterator goes on in mid-epoch is not logged.
        """
        moves: Moves = "second"
        if self._course.begin_loop(is_endless=endless):
            moves = "first"
        return self._read_ahead(feed, moves, num_between, warns=not endless)

    def _read_ahead(
        self, feed: Session | None, moves: Moves, num_between: int | None = 0, *, warns: bool
    ) -> Epoch:
        """Return an iterator for a framework that reads ahead; see `Epoch` for ``moves`` and
        ``num_between``."""
        cursor = self._course.begin_ahead(warns=warns, goes_on=moves == "second")
        session, output = feed, None
        if session is None:
            session, output = self._sessions.current.session, self._sessions.setup.output
        batches = Epoch(session, output, cursor, self._course.place, moves, num_between)
        self._course.note(batches, moves)
        return batches

    def manual_epoch(self) -> Epoch:
        """Return an iterator from the position on, for a reader that runs ahead and knows which
        batches were trained.

        The position changes only by ``move`` of the iterator, so that the state is always that of
        the training.
        """
        course, sessions = self._course, self._sessions
        cursor = course.place.begin(sessions.setup.plan)
        return Epoch(
            sessions.current.session, sessions.setup.output, cursor, course.place, "manual"
        )

    def follow(self, batches: Epoch) -> None:
        """Take an iterator of a loader with the same steps for the one that reads ahead of this; it
        moves both."""
        self._course.follow(batches)

    def feed(self, make: Callable[[], BatchExecutor], names: tuple[str, ...]) -> Session:
        """Return a session that makes batches ready on the host for ``feed_graph``, run elsewhere;
        see ``ahead``.

        The caller keeps it: a loader may be fed to something new in each epoch.

        Args:
            make: makes the object in the place of an executor, which returns the fields of these
                batches.
            names: these fields.

        Raises:
            SpecError: rows of this loader go straight to the GPU, or stay there, or are audited.
        """
        return self._sessions.feed(make, names)

    # Messages

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter of ``stats()``: ``"tensors_shared"``, ``"tensors_copied"``, or one of
        the bridge's own.

        Raises:
            SpecError: the name is no text, or the amount no number.
        """
        if not isinstance(name, str) or not isinstance(
            amount, (int, float, np.integer, np.floating)
        ):
            raise SpecError(
                f"count({name!r}, {amount!r})"[:200],
                cause="a counter has a name, and a number is added to it",
                remedy="write loader.port.count('tensors_copied', 1), say",
            )
        self._sessions.setup.counters.add(**{name: amount})

    def tell(self, name: str, line: str) -> None:
        """Add a line to ``describe()``: a bridge explains its choices there."""
        self._sessions.lines[name] = line

"""Cursor: where an iterator is, and where a loader is."""

from __future__ import annotations

from gpuload.order import Plan, Position


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


class LoaderPosition:
    """Where a loader is: where the iterator is that moved it last.

    Attributes:
        cursor: of that iterator.
    """

    def __init__(self, position: Position) -> None:
        self.cursor = Cursor(position)

    def begin(self, plan: Plan) -> Cursor:
        """Return the cursor of an iterator that begins now."""
        cursor = self.cursor
        return Cursor(plan.normalize(cursor.now[1]), cursor.origin)

    def go_to(self, position: Position) -> None:
        """Move the loader; iterators go on where they are, and take it along when they are asked
        next."""
        self.cursor = Cursor(position, self.cursor.origin)

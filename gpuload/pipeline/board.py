"""Board: the state that threads of an epoch share with the object that started them, and which
outlives that object.

Endings. The threads refer to the board, never to the object, so that garbage collection works. When
the object is dropped, a weak reference to it puts itself among the calls of the threads: its
callback is a method of C that may run in any thread at any moment, waits for nothing, and cannot be
broken off by a signal handler as a ``__del__`` could. The thread that gets it stops the others.
``close`` of the object also waits for the threads.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from gpuload import threads
from gpuload.errors import ClosedError
from gpuload.pipeline.joining import Joining
from gpuload.pipeline.tray import Tray
from gpuload.stats import Counters

Item = TypeVar("Item")


class Board(Generic[Item]):
    """The state of the threads of an epoch; a subclass defines in ``serve`` the work of a thread.

    Attributes:
        tray: the finished items.
        owner_ref: a weak reference to the object that started the threads; it puts itself among
            their calls.
    """

    def __init__(self) -> None:
        self.tray: Tray[Item] = Tray()
        self.owner_ref: object = None

    def stop(self) -> None:
        """Let each thread end after its current work; takes no lock, so that it may be called
        anywhere."""
        raise NotImplementedError

    def serve(self) -> None:
        """Be a thread: work until it should end."""
        raise NotImplementedError

    def end(self) -> None:
        """Be the end of a thread."""
        raise NotImplementedError

    def start(
        self, owner: object, end: Callable[[object], object], num_threads: int, **words: Any
    ) -> list[Any]:
        """Start threads, which end when the owner is dropped.

        Args:
            owner: starts them.
            end: called with anything, lets one thread end; a method of C.
            num_threads: how many.
            words: for ``threads.start``.
        """
        # Before the threads start: if the owner is dropped at once, by an exception of a signal
        # handler, they find the reference among their calls. The board holds it: a weak reference
        # that goes with its object calls nothing.
        self.owner_ref = weakref.ref(owner, end)
        return threads.start(num_threads, run_thread, self, stop=self.stop, **words)


def run_thread(board: Board[Any]) -> None:
    """Be a thread; an error outside of an item ends all of them, and reaches the thread that waits
    for an item."""
    try:
        try:
            board.serve()
        finally:
            board.end()
    except BaseException as error:
        board.tray.stop(error)
        board.stop()


class Threads(Protocol):
    """Threads that make items for the thread of a board."""

    def stop(self) -> None:
        """Let each of them end after its current work."""

    def close(self) -> None:
        """Stop them, and wait for the current work of each."""


class OrderBoard(Board[Item]):
    """The state of one thread that makes items in order, each of one that other threads make.

    Args:
        before: the other threads; stopped with this one.
        joining: which steps are done together: an item holds a group of them.
    """

    def __init__(self, before: Threads, joining: Joining) -> None:
        super().__init__()
        self.calls: SimpleQueue[object] = SimpleQueue()
        self.before, self._joining = before, joining
        self._next = self._allowed = 0

    def stop(self) -> None:
        """Let the thread end after its current item; takes no lock, so that it may be called
        anywhere."""
        self.tray.stop()
        self.calls.put(None)
        self.before.stop()  # it may be waiting for them

    def serve(self) -> None:
        """Be the thread: begin the items that are allowed, finish those that were begun, wait if
        there are none."""
        try:
            while self._listen():
                # Behind the last group there is nothing to begin. Without this bound `_listen`
                # would not block, and the thread would spin.
                if self._next >= self._allowed or not self._joining.steps(self._next)[1]:
                    self._allowed = min(self._allowed, self._next)
                else:
                    self.begin(self._next)
                    self._next += 1
                self.finish(is_waiting=self._next >= self._allowed)
        except ClosedError:  # the other threads were stopped while this one waited for them
            self.stop()

    def begin(self, number: int) -> None:
        """Begin an item."""
        raise NotImplementedError

    def finish(self, *, is_waiting: bool) -> None:
        """Finish the oldest item that was begun, if it is time; ``is_waiting``: no other may be
        begun now."""

    @property
    def is_working(self) -> bool:
        """True if items were begun and not finished."""
        return False

    def end(self) -> None:
        """Stop the other threads."""
        self.before.stop()

    def _listen(self) -> bool:
        """Hear how far to go, waiting only if there is nothing to do; return False if the thread
        should end."""
        while True:
            try:
                until = self.calls.get(block=self._next >= self._allowed and not self.is_working)
            except Empty:
                return not self.tray.is_stopped
            # None comes from `stop`; the weak reference itself comes when the owner was dropped.
            if not isinstance(until, int):
                return False
            self._allowed = max(self._allowed, min(until, self._joining.most_groups))


class OrderThread(Generic[Item]):
    """A thread that makes items in order, some ahead of the consumer.

    Args:
        board: of the thread.
        name: of the thread.
        num_ahead: how many items are begun beyond the one that is being taken, at most.
        counters: ``wait_s`` is added to; None if another thread takes the items.
    """

    def __init__(
        self, board: OrderBoard[Item], name: str, num_ahead: int, counters: Counters | None
    ) -> None:
        self._board, self._num_ahead, self._horizon, self._counters = (
            board,
            num_ahead,
            num_ahead,
            counters,
        )
        board.calls.put(num_ahead)
        self._threads = board.start(self, board.calls.put, 1, name=name)

    def take(self, number: int) -> Item | None:
        """Return an item once it is made; it is kept until ``forget``. See ``Tray.take``."""
        horizon = number + 1 + self._num_ahead
        if horizon > self._horizon:  # the thread may now begin all items before the new horizon
            self._board.calls.put(horizon)
            self._horizon = horizon
        return self._board.tray.take(number, self._counters)

    def forget(self, number: int) -> None:
        """Let go of an item that was taken."""
        self._board.tray.forget(number)

    def stop(self) -> None:
        """Let each thread end after its current work."""
        self._board.stop()

    def close(self) -> None:
        """Stop the threads, those before this one too, and wait for the current work of each."""
        self._board.stop()
        self._board.before.close()
        threads.join(self._threads)

"""Tray: where threads put what they have finished, by number, and one consumer takes it in order.

Who may do what. Threads put, the consumer takes. Python runs signal handlers in the main thread alone, and whatever a
handler raises there (Ctrl-C, the TimeoutError of a watchdog) may break off the consumer between any two instructions.
So nothing that the consumer does here would matter if it were broken off and done again: ``take`` looks, waits, and
looks again; what it took stays until ``forget``. Several consumers may take at once, too.

Waiting. A ``Lock`` waits inside one call of C and costs about a microsecond; a ``Condition`` of Python costs twenty, as
much as reading a small batch. The lock is released by whoever puts something, and acquired by whoever waits: so it says
"something happened since you last looked", and it does no harm to be told so once too often.
"""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

from gpuload import device as devices
from gpuload.errors import ClosedError
from gpuload.stats import Counters

Item = TypeVar("Item")
LOOK_AGAIN_S = 0.5  # where several consumers wait, one may have heard the news that was for another


class Tray(Generic[Item]):
    """Finished things by number.

    Attributes:
        stopped: True once nothing more will come, because somebody stopped the threads.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._items: dict[int, Item] = {}
        self._error: BaseException | None = None
        self._first = 0  # what comes before it was taken and forgotten
        self._news = threading.Lock()
        self._news.acquire()

    def put(self, number: int, item: Item) -> None:
        """Put something down and wake who waits."""
        self._items[number] = item
        self._tell()

    def take(self, number: int, counters: Counters | None = None) -> Item | None:
        """Return what has a number, once it is there; it stays there until ``forget``. None if it is forgotten already.

        Args:
            number: which.
            counters: ``wait_s`` is added to, if it had to be waited for.

        Raises:
            ClosedError: it will not come, since somebody stopped the threads.
            BaseException: it will not come, since a thread broke down with this.
        """
        item = self._items.get(number)
        if item is None:
            began = time.perf_counter()
            while (item := self._items.get(number)) is None and number >= self._first:
                self.check()
                self._news.acquire(timeout=LOOK_AGAIN_S)
            if counters is not None:
                counters.add(wait_s=time.perf_counter() - began)
        return item

    def check(self) -> None:
        """Raise the error of a thread that broke down, or ``ClosedError`` if somebody stopped the threads."""
        if self._error is not None:
            raise raisable(self._error)
        if self.stopped:
            raise ClosedError("the loader was closed", cause="close() was called", remedy="make a new one")

    def __len__(self) -> int:
        """How many things lie on it."""
        return len(self._items)

    def items(self) -> list[Item]:
        """Return the things that lie on it."""
        return list(self._items.values())  # one call of C: threads may put meanwhile

    def forget(self, number: int) -> Item | None:
        """Let go of what was taken; returns it, None if it is forgotten already."""
        self._first = max(self._first, number + 1)
        return self._items.pop(number, None)

    def stop(self, error: BaseException | None = None) -> None:
        """Say that nothing more will come, and why if that is a fault; takes no lock."""
        self._error, self.stopped = error or self._error, True
        self._tell()

    def _tell(self) -> None:
        try:
            self._news.release()
        except RuntimeError:  # it is released already: nobody has looked since the last time
            return


def raisable(error: BaseException) -> BaseException:
    """Return an error as it may leave ``next``, for which StopIteration means something else; see `device.failure`."""
    if not isinstance(error, StopIteration):
        return devices.failure(error)
    wrapped = RuntimeError("a source or an op raised StopIteration, which would end the epoch unseen")
    wrapped.__cause__ = error
    return wrapped

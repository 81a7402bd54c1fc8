"""Tray: threads put finished items on it, by number, and one consumer takes them in order.

Roles. Threads put, the consumer takes. Python runs signal handlers in the main thread alone, and an
exception that a handler raises there (Ctrl-C, the TimeoutError of a watchdog) may break off the
consumer between any two instructions. So nothing that the consumer does here would matter if it
were broken off and done again: ``take`` looks, waits, and looks again; an item that it took stays
until ``forget``. Several consumers may take at once, too.

Waiting. A ``Lock`` waits inside one call of C and costs about a microsecond; a ``Condition`` of
Python costs twenty, as much as reading a small batch. A thread that puts an item releases the lock,
and a thread that waits acquires it. So the lock means "something happened since you last looked",
and one such message too many does no harm.
"""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

from gpuload import device as devices
from gpuload.errors import ClosedError, of_function
from gpuload.stats import Counters

Item = TypeVar("Item")
LOOK_AGAIN_S = 0.5  # where several consumers wait, one may have heard the news that was for another


class Tray(Generic[Item]):
    """Finished things by number.

    Attributes:
        is_stopped: True once nothing more will come, because the threads were stopped.
    """

    def __init__(self) -> None:
        self.is_stopped = False
        self._items: dict[int, Item] = {}
        self._error: BaseException | None = None
        self._first = 0  # the items before it were taken and forgotten
        self._news = threading.Lock()
        self._news.acquire()

    def put(self, number: int, item: Item) -> None:
        """Put an item on the tray and wake a consumer that waits."""
        self._items[number] = item  # before the news: a consumer that hears them finds the item
        self._tell()

    def take(self, number: int, counters: Counters | None = None) -> Item | None:
        """Return the item with a number, once it is there; it stays until ``forget``. None if it is
        forgotten already.

        Args:
            number: which.
            counters: ``wait_s`` is added to, if it had to be waited for.

        Raises:
            ClosedError: it will not come, since the threads were stopped.
            BaseException: it will not come, since a thread broke down with this.
        """
        item = self._items.get(number)
        if item is None:
            start_time = time.perf_counter()
            while (item := self._items.get(number)) is None and number >= self._first:
                self.check()
                self._news.acquire(timeout=LOOK_AGAIN_S)
            if counters is not None:
                counters.add(wait_s=time.perf_counter() - start_time)
        return item

    def check(self) -> None:
        """Raise the error of a thread that broke down, or ``ClosedError`` if the threads were
        stopped."""
        is_stopped = (
            self.is_stopped
        )  # before the error, which `stop` sets first: so it is not taken for a close()
        if self._error is not None:
            raise raisable(self._error)
        if is_stopped:
            raise ClosedError(
                "the loader was closed", cause="close() was called", remedy="make a new one"
            )

    def __len__(self) -> int:
        """How many things lie on it."""
        return len(self._items)

    def items(self) -> list[Item]:
        """Return the things that lie on it."""
        return list(self._items.values())  # one call of C: threads may put meanwhile

    def forget(self, number: int) -> Item | None:
        """Let go of an item that was taken; returns it, None if it is forgotten already."""
        # The number first: another consumer that finds no item must know that it will not come.
        self._first = max(self._first, number + 1)
        return self._items.pop(number, None)

    def stop(self, error: BaseException | None = None) -> None:
        """Say that nothing more will come, and why if that is a fault; takes no lock."""
        if error is not None:
            self._error = error
        self.is_stopped = True
        self._tell()

    def _tell(self) -> None:
        try:
            self._news.release()
        except RuntimeError:  # it is released already: no consumer has looked since the last time
            return


def raisable(error: BaseException) -> BaseException:
    """Return an error as it may leave ``next``, in which StopIteration would end the epoch; see
    `device.failure`."""
    if isinstance(error, StopIteration):
        return of_function(error)
    return devices.failure(error)

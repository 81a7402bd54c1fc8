"""The threads of this package that are alive."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("gpuload")]


def until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait until a condition holds, and return whether it does."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@contextmanager
def none_left() -> Iterator[None]:
    """Assert that each thread that is begun in here ends, at the latest with a collection of
    garbage.

    Threads that other tests left are theirs: in one process they may be alive before, and may end
    meanwhile.
    """
    before = set(threads())

    def new() -> list[threading.Thread]:
        gc.collect()
        return [thread for thread in threads() if thread not in before]

    yield
    assert until(lambda: not new()), f"threads are left: {new()}"

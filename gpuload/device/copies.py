"""Copies of small arrays between the host and a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from numpy.typing import NDArray

from gpuload.device.hostmemory import pinned
from gpuload.device.library import cupy, number


def upload(host: NDArray[Any], device: str) -> Any:
    """Return a copy of a C-contiguous host array on a GPU; of pinned memory it is asynchronous."""
    with cupy().cuda.Device(number(device)):
        on_gpu = cupy().empty(host.shape, host.dtype)
        on_gpu.set(host, stream=cupy().cuda.get_current_stream())
        return on_gpu


def fetch(array: Any) -> tuple[NDArray[Any], Any]:
    """Queue the copy of a small array to the host on CuPy's current stream; the host does not wait.

    Returns:
        The host array, and CuPy's event behind the copy: once that has passed, the array holds the
        numbers. The memory is kept until then, also where the caller drops it.
    """
    host = pinned(array.nbytes).view(array.dtype).reshape(array.shape)
    stream = cupy().cuda.get_current_stream()
    array.get(stream=stream, out=host, blocking=False)
    copy = host, stream.record()
    _copies.append(copy)
    with suppress(IndexError):  # taken out before it is looked at: other threads do the same
        while (oldest := _copies.popleft())[1].done:
            pass
        _copies.appendleft(oldest)
    return copy


# Host memory that a GPU may still write to, and the event behind the copy.
_copies: deque[tuple[NDArray[Any], Any]] = deque()


def constant(make: Callable[[], NDArray[Any]]) -> Any:
    """Return the array that a function makes, on the current GPU; the first call uploads it.

    Args:
        make: makes the same array at each call.
    """
    return _constant(make, int(cupy().cuda.Device().id))


@cache
def _constant(make: Callable[[], NDArray[Any]], number: int) -> Any:
    array = cupy().asarray(make())
    cupy().cuda.get_current_stream().synchronize()  # work on other streams reads it, too
    return array

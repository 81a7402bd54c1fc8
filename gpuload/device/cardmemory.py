"""A GPU's memory: how much is free, and pieces of it beside CuPy's pool.

Source   https://docs.cupy.dev/en/stable/user_guide/memory.html: free memory is kept for a stream.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gpuload.device.library import cupy, number
from gpuload.device.problems import OUT_OF_MEMORY, failure


def card_bytes(device: str) -> tuple[int, int]:
    """Return how many bytes of a GPU's memory are free, and how many it has."""
    _free_dropped_memory()
    return _ask_card(device, lambda: cupy().cuda.runtime.memGetInfo())


def empty_pool(device: str) -> None:
    """Give the idle memory of CuPy's pool on a GPU back to CUDA, where no queued work uses it."""
    with suppress(Exception), cupy().cuda.Device(number(device)):  # a lost GPU fails later, too
        cupy().get_default_memory_pool().free_all_blocks()


def pool_bytes(device: str) -> tuple[int, int]:
    """Return how many bytes of CuPy's memory pool on a GPU are in use, and how many are idle."""
    pool = cupy().get_default_memory_pool()
    return _ask_card(device, lambda: (pool.used_bytes(), pool.free_bytes()))


def _ask_card(device: str, question: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Return two numbers that CUDA or CuPy has of a GPU; an error of CUDA is a ``DeviceError``."""
    try:
        with cupy().cuda.Device(number(device)):
            first, second = question()
            return int(first), int(second)
    except Exception as error:
        raise failure(error) from error


class CardMemory:
    """A piece of a GPU's memory, taken from CUDA itself: CuPy's pool would not give it back.

    Attributes:
        address: where it begins; a multiple of 256.
    """

    address = 0

    def __init__(self, address: int, number: int, pid: int) -> None:
        self.address, self._number, self._pid = address, number, pid

    @classmethod
    def take(cls, num_bytes: int, device: str) -> CardMemory | None:
        """Return so many bytes; None if the GPU has not so many.

        Raises:
            DeviceError: a call of CUDA failed.
        """
        runtime = cupy().cuda.runtime
        _free_dropped_memory()
        try:
            with cupy().cuda.Device(number(device)):
                return cls(int(runtime.malloc(num_bytes)), number(device), os.getpid())
        except runtime.CUDARuntimeError as error:
            if any(name in str(error) for name in OUT_OF_MEMORY):
                return None
            raise failure(error) from error

    def free(self) -> None:
        """Give it back, once or twice; CUDA waits until no kernel uses it. A GPU may be lost."""
        address, self.address = self.address, 0
        if address and self._pid == os.getpid():
            with suppress(Exception), cupy().cuda.Device(self._number):
                cupy().cuda.runtime.free(address)

    def __del__(self) -> None:
        # A finalizer waits for nothing, and CUDA may: the next call that takes memory frees it.
        if self.address:
            _dropped_memory.append((self.address, self._number, self._pid))


# Of `CardMemory` that was not freed: address, GPU, process.
_dropped_memory: deque[tuple[int, int, int]] = deque()


def _free_dropped_memory() -> None:
    """Free the memory of which only the finalizer was called."""
    with suppress(IndexError):
        while True:
            CardMemory(*_dropped_memory.popleft()).free()

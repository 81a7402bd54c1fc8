"""Host memory for copies to a GPU: it begins at a page, or its pages are locked."""

from __future__ import annotations

from collections import defaultdict, deque
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.device.library import cupy
from gpuload.errors import DeviceError

PAGE_BYTES = 4096
MOST_IDLE_PINNED_BYTES = 1 << 29  # of page-locked memory that waits for its next use


def page_aligned(num_bytes: int) -> NDArray[np.uint8]:
    """Return host memory that begins at a page, uint8 ``[num_bytes]``."""
    memory = np.empty(num_bytes + PAGE_BYTES, np.uint8)
    begin = -memory.ctypes.data % PAGE_BYTES
    return memory[begin : begin + num_bytes]


def offer(memory: NDArray[np.uint8]) -> bool:
    """Let the system take the pages of memory when it is short of it; bytes may become zeros.

    Memory that is written again before that costs nothing, while the system clears every page of
    new memory.

    Args:
        memory: begins at a page.

    Returns:
        False where the system does not do that.
    """
    return core.native is not None and core.native.offer_pages(memory)


def pinned(num_bytes: int) -> NDArray[np.uint8]:
    """Return page-locked host memory for fast copies to a GPU, uint8 ``[num_bytes]``.

    Memory that is dropped serves the next call for as many bytes: CUDA takes milliseconds to lock
    pages, and may wait for the GPU to unlock them. CuPy's pool is not used because it rounds the
    size up to a power of two.
    """
    size = max(num_bytes, 1)
    idle = _idle_pinned[size]
    try:
        # No look before it: another thread may take the last one in between, and no lock is held.
        memory = idle.pop()
    except IndexError:
        memory = _lock_pages(size)
    return np.asarray(_PinnedLoan(memory, idle))[:num_bytes]


class _PinnedLoan:
    """Lends page-locked memory to arrays; its finalizer takes no lock and frees nothing."""

    def __init__(self, memory: NDArray[np.uint8], idle: deque[NDArray[np.uint8]]) -> None:
        self._memory, self._idle = memory, idle
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._idle.append(self._memory)


def _lock_pages(size: int) -> NDArray[np.uint8]:
    """Return page-locked memory; if the system gives none, idle memory is unlocked first."""
    cuda = cupy().cuda
    _unlock_pages(MOST_IDLE_PINNED_BYTES)
    try:
        memory = cuda.PinnedMemory(size)
    except cuda.runtime.CUDARuntimeError:
        _unlock_pages(0)  # idle memory may be all that is missing
        try:
            memory = cuda.PinnedMemory(size)
        except cuda.runtime.CUDARuntimeError as error:
            if "MemoryAllocation" not in str(error):
                raise
            raise DeviceError(
                f"{size} bytes of page-locked host memory are not to be had",
                cause=str(error),
                remedy="give the process, or its container, more memory; ulimit -l may bound "
                "locked memory; a smaller batch_size or prefetch needs less",
            ) from error
    return np.frombuffer(cuda.PinnedMemoryPointer(memory, 0), np.uint8, size)


def _unlock_pages(most_bytes: int) -> None:
    """Free idle page-locked memory beyond so many bytes, the largest first.

    Other threads may take some meanwhile.
    """
    sizes = sorted(_idle_pinned, reverse=True)
    num_bytes = sum(size * len(_idle_pinned[size]) for size in sizes)
    for size in sizes:
        with suppress(IndexError):
            while num_bytes > most_bytes:
                _idle_pinned[size].popleft()
                num_bytes -= size


# Page-locked memory that is not in use, by its bytes.
_idle_pinned: defaultdict[int, deque[NDArray[np.uint8]]] = defaultdict(deque)

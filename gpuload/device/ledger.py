"""Ledger: how many bytes of a GPU's memory a lane has lent."""

from __future__ import annotations

import threading
from typing import Any


class Ledger:
    """Counts the device memory that is lent: arrays that share one memory count once."""

    def __init__(self) -> None:
        # The thread that lends and the one that takes back both count. No finalizer takes the lock.
        self._lock = threading.Lock()
        # Of each memory, by its address: how many loans, how many bytes.
        self._loans: dict[int, tuple[int, int]] = {}

    @property
    def bytes(self) -> int:
        """The sum over all memory."""
        with self._lock:
            return sum(num_bytes for _, num_bytes in self._loans.values())

    def add(self, array: Any) -> None:
        """Count an array that is lent."""
        with self._lock:
            loans, num_bytes = self._loans.get(array.data.mem.ptr, (0, memory_bytes(array)))
            self._loans[array.data.mem.ptr] = loans + 1, num_bytes

    def remove(self, array: Any) -> None:
        """Count an array that was reclaimed."""
        with self._lock:
            loans, num_bytes = self._loans.get(array.data.mem.ptr, (0, 0))
            if loans > 1:
                self._loans[array.data.mem.ptr] = loans - 1, num_bytes
            else:
                self._loans.pop(array.data.mem.ptr, None)


def memory_bytes(array: Any) -> int:
    """Return the bytes of the device memory that an array lies in, and that it keeps."""
    # CuPy 14 has too small a size for DLPack's memory.
    return max(int(array.data.mem.size), int(array.nbytes))

"""Scratch: memory that a thread uses again and again, so that intermediate results stay in its
cache.

Each thread has memory of its own, which ends with the thread: so it needs no lock.
"""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT_BYTES = 1 << 26  # for one purpose and thread; an image of 16 million pixels

_local = threading.local()


def scratch(key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return memory of this thread under a name, until its next call with that name; new memory
    beyond KEPT_BYTES."""
    buffers: dict[str, NDArray[np.uint8]] = _local.__dict__.setdefault("buffers", {})
    num_bytes = prod(shape) * dtype.itemsize
    if num_bytes > KEPT_BYTES:
        return np.empty(shape, dtype)
    if key not in buffers or buffers[key].size < num_bytes:
        buffers[key] = np.empty(num_bytes, np.uint8)
    return buffers[key][:num_bytes].view(dtype).reshape(shape)

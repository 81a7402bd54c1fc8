"""Memory for records that are read: new, or lent by the step that reads them.

    with lending(memory):        reads of this thread go to memory that ``memory`` gives
        step_room(num_bytes)     large: lent; small, or where nothing is lent: new
    room(shape, dtype)           always new: for values that outlive the step, as a block in a cache

Records that vary in length have no place in the slot of a step: its size is known before it is
read. New memory of megabytes comes from the system and goes back to it each time, and the system
clears every page of it: a third of the processor's time where records have megabytes. A step lends
memory that was used before instead (`pipeline/ring.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import TooLargeError

Bytes = NDArray[np.uint8]
Memory = Callable[[int], Bytes]

UINT8 = np.dtype(np.uint8)
LARGE_BYTES = 1 << 18  # below that the C library keeps memory for the next request itself


class _Lender(threading.local):
    """Memory that is lent to the calling thread.

    Attributes:
        memory: lends; None: nothing is lent.
        pieces: that were lent.
    """

    memory: Memory | None = None
    pieces: tuple[Bytes, ...] = ()


_lender = _Lender()


@contextmanager
def lending(memory: Memory) -> Iterator[None]:
    """Have `step_room` return memory that ``memory`` lends, in the calling thread and inside of the
    block.

    Args:
        memory: returns uint8 ``[num_bytes]``, and does not use it again while any view of it is
            there.
    """
    before = _lender.memory, _lender.pieces
    _lender.memory, _lender.pieces = memory, ()
    try:
        yield
    finally:
        _lender.memory, _lender.pieces = before


def step_room(num_bytes: int) -> Bytes:
    """Return memory, uint8 ``[num_bytes]``, for bytes that belong to the step that is read.

    Raises:
        TooLargeError: there is not so much.
    """
    if _lender.memory is None or num_bytes < LARGE_BYTES:
        return room((num_bytes,), UINT8)
    piece = _lender.memory(num_bytes)
    _lender.pieces += (piece,)
    return piece


def is_lent(values: NDArray[Any]) -> bool:
    """Return True if an array begins where a piece begins that was lent to the calling thread in
    the present block."""
    return any(values.ctypes.data == piece.ctypes.data for piece in _lender.pieces)


def room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return new memory for an array.

    Raises:
        TooLargeError: there is not so much.
    """
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:  # ValueError: more than NumPy can count
        signalsafe.pass_on(error)
        raise TooLargeError(
            f"an array of {dtype} {shape}",
            cause=f"there is not so much memory: {error}",
            remedy="read fewer records at once; a record that is too large has to be cut into "
            "several",
        ) from None

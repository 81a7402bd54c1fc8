"""Ring: the memory that steps live in, used again and bounded in bytes.

A slot is host memory for one step, page-aligned (page-locked where a GPU copies from it). Every
array of a batch is a view of its slot, and the slot lives as long as any view, slice, DLPack
capsule or tensor made of them. When the last of them is gone the memory comes back by itself. So a
batch does not change for as long as anything refers to it, and a loop that drops its batches
allocates nothing after its first laps. The memory kept for that is bounded, and where no iterator
is running the system may take all of it: a loader that waits for its next epoch keeps only memory
that no other program needs. Freed, it would be new memory in each epoch, which the system clears
and puts together at its first use: in short epochs of large steps that is a good part of the time.

Threads: ``take`` is called by threads that work on steps. A slot is dropped in any thread and at
any moment, also while that thread is inside ``take``, and a signal handler may run at any step of
the interpreter. So the memory comes back by a weak reference whose callback is a method of C,
``deque.append``: it needs no lock, and no handler can break it off as it could break off a
``__del__``. ``take`` takes in later the memory that came back.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.device import page_aligned
from gpuload.errors import TooLargeError
from gpuload.stats import Counters

ALIGN_BYTES = 256  # TensorFlow 2.21 ends the process below 64, GPUs like 256
CLASSES = 8  # sizes between a power of two and the next: memory is at most an eighth larger than requested


class Margin:
    """How many bytes a step needs behind the arrays of its slot: as many for a row as a step before
    it needed.

    Threads: any; where two note at once, the smaller number may stay until the next step notes the
    larger one.
    """

    def __init__(self) -> None:
        self._row_bytes = 0.0

    def note(self, num_bytes: int, num_rows: int) -> None:
        """Say how many bytes a step of so many rows needed."""
        self._row_bytes = max(self._row_bytes, num_bytes / max(num_rows, 1))

    def num_bytes(self, num_rows: int) -> int:
        """Return how many a step of so many rows may need."""
        if self._row_bytes:
            return aligned(int(self._row_bytes * num_rows) + 1)
        return 0


class Slot(np.ndarray[Any, np.dtype[np.uint8]]):
    """Memory for one step, uint8 ``[num_bytes]``, lent by a ring: each of its arrays keeps it, and
    so do their views.

    A view of NumPy keeps the array that it was made of, or the one that this is a view of itself,
    as far back as these have the type of the view. So arrays of type ``ndarray`` keep a slot, which
    is a view of the ring's memory, as long as that memory has another type than theirs: it is of
    this class, too.
    """

    __slots__ = ()

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return int(self.ctypes.data)

    def array(self, begin: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return an array over the bytes from ``begin`` on."""
        return np.ndarray(shape, dtype, self, begin)


class SlotLoan(weakref.ref[Slot]):
    """Stands for a slot that is lent, and appends itself to the returns when the slot is dropped.

    Attributes:
        size: bytes of the slot.
        memory: that comes back; None where it should be freed, which then happens as soon as the
            slot is dropped.
    """

    __slots__ = ("memory", "size")
    size: int
    memory: Slot | None


class Ring:
    """Reusable slots of any sizes.

    Args:
        idle_bytes: how many bytes are kept for the next steps at most; memory that comes back
            beyond that is freed.
        crowded_bytes: ``crowded`` is true while more bytes than that are lent.
        allocate: makes page-aligned (or page-locked) memory, uint8 ``[num_bytes]``.
        offer: lets the system take memory when it is short of it, and returns False where that is
            freed instead; None: all is.
        counters: counts slots made and used again.

    Attributes:
        values: the bytes of values of varying length that go to a GPU with their slot.
        parameters: of the tables that kernels read beside them.
    """

    def __init__(
        self,
        *,
        idle_bytes: int,
        crowded_bytes: int,
        allocate: Callable[[int], NDArray[np.uint8]],
        offer: Callable[[NDArray[np.uint8]], bool] | None = None,
        counters: Counters,
    ) -> None:
        self.idle_bytes, self.crowded_bytes = idle_bytes, crowded_bytes
        self.crowded = False
        self._allocate, self._offer, self._counters = allocate, offer, counters
        self._lock = threading.Lock()
        self._returns: deque[SlotLoan] = deque()
        self._loans: dict[
            int, SlotLoan
        ] = {}  # a weak reference calls back only while it lives itself
        self._idle: defaultdict[int, list[Slot]] = defaultdict(list)
        self._num_idle_bytes = self._num_lent_bytes = 0
        self._num_users, self._is_resting = 0, False
        self._num_steps = self._step_bytes = self._varying_bytes = 0
        self.values, self.parameters = Margin(), Margin()

    def resize(self, *, idle_bytes: int, crowded_bytes: int, num_steps: int) -> None:
        """Change the bounds; memory that is lent stays as it is.

        Args:
            idle_bytes: as of the ring.
            crowded_bytes: as of the ring.
            num_steps: that are in memory at a time; for each of them both bounds are larger by what
                `expect` was told.
        """
        self.idle_bytes, self.crowded_bytes, self._num_steps = idle_bytes, crowded_bytes, num_steps
        self._varying_bytes = num_steps * self._step_bytes

    def expect(self, step_bytes: int) -> None:
        """Say how many bytes a step took beside those that the bounds know of: its records vary in
        length."""
        with self._lock:
            self._step_bytes = max(self._step_bytes, step_bytes)
            self._varying_bytes = self._num_steps * self._step_bytes

    def begin(self) -> None:
        """Say that an iterator begins."""
        with self._lock:
            self._num_users, self._is_resting = self._num_users + 1, False

    def end(self) -> None:
        """Say that an iterator has ended; with the last one the system may take all memory that is
        kept."""
        with self._lock:
            self._num_users -= 1
            if self._num_users > 0:
                return
            self._is_resting = True
            self._sort()
            for slots in self._idle.values():
                slots[:] = [
                    memory for memory in slots if self._offer is not None and self._offer(memory)
                ]
            self._num_idle_bytes = sum(size * len(slots) for size, slots in self._idle.items())
            # A loan is freed when it is dropped: no step waits for it.
            for loan in self._loans.values():
                loan.memory = None

    def take(self, num_bytes: int) -> Slot:
        """Return a slot of at least ``num_bytes`` bytes; it comes back when it and all its arrays
        are gone."""
        size = size_class(num_bytes)
        with self._lock:
            self._sort()
            if not self._idle[size]:  # one that is larger, but not twice as large
                sizes = [
                    larger
                    for larger, slots in self._idle.items()
                    if slots and size < larger < 2 * size
                ]
                size = min(sizes, default=size)
            # the last one: it is still in the cache
            if self._idle[size]:
                memory = self._idle[size].pop()
            else:
                memory = None
            if memory is not None:
                self._num_idle_bytes -= size
                slot = self._lend(size, memory)
        if memory is None:
            # Not under the lock: the system may take milliseconds, for page-locked memory more, and
            # slots are dropped and taken meanwhile.
            memory = self._new(size)
            with self._lock:
                slot = self._lend(size, memory)
            self._counters.add(slots_made=1)
        else:
            self._counters.add(slots_reused=1)
        return slot

    def _lend(self, size: int, memory: Slot) -> Slot:
        """Return a slot of this memory; the caller holds the lock."""
        slot = memory.view(Slot)  # another object over the same memory
        loan = SlotLoan(slot, self._returns.append)
        self._loans[id(loan)] = loan
        self._num_lent_bytes += size
        loan.size, loan.memory = size, memory
        if self._is_resting or self._num_lent_bytes > self.idle_bytes + self._varying_bytes:
            loan.memory = None  # the ring would free it anyway: so it is freed when it is dropped, not at the next take
        self.crowded = self._num_lent_bytes > self.crowded_bytes + self._varying_bytes
        return slot

    def trim(self, idle_bytes: int | None = None) -> None:
        """Free the idle memory beyond ``idle_bytes``, by default beyond that of the ring."""
        with self._lock:
            self._sort(idle_bytes)

    @property
    def num_idle_bytes(self) -> int:
        """The bytes that wait for the next steps."""
        with self._lock:
            self._sort()
            return self._num_idle_bytes

    def _sort(self, idle_bytes: int | None = None) -> None:
        """Take in the memory that came back and free the excess; the caller holds the lock."""
        if idle_bytes is None:
            limit = self.idle_bytes + self._varying_bytes
        else:
            limit = idle_bytes
        while self._returns:
            loan = self._returns.popleft()
            if self._loans.pop(id(loan), None) is not None:
                self._num_lent_bytes -= loan.size
            if loan.memory is not None:
                self._idle[loan.size].append(loan.memory)
                self._num_idle_bytes += loan.size
        for size in sorted(self._idle, reverse=True) if self._num_idle_bytes > limit else ():
            while self._idle[size] and self._num_idle_bytes > limit:
                del self._idle[size][0]  # the one that came back first: it is in no cache any more
                self._num_idle_bytes -= size

    def _new(self, num_bytes: int) -> Slot:
        try:
            return self._allocate(num_bytes).view(Slot)
        except (MemoryError, ValueError) as error:  # ValueError: more than NumPy can count
            raise TooLargeError(
                f"{num_bytes} bytes for a step",
                cause=f"there is not so much memory: {error}",
                remedy="use a smaller batch_size, or a smaller prefetch",
            ) from None


def is_aligned(values: NDArray[Any]) -> bool:
    """Return True if an array begins where frameworks need it."""
    return bool(values.__array_interface__["data"][0] % ALIGN_BYTES == 0)


def aligned_copy(values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy that begins where frameworks need it."""
    copy = page_aligned(values.nbytes).view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def aligned(num_bytes: int) -> int:
    """Return ``num_bytes`` rounded up to where the next array of a slot may begin."""
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES


def size_class(num_bytes: int) -> int:
    """Return the size of the slot for so many bytes: one of eight sizes between each power of two
    and the next."""
    step = max(ALIGN_BYTES, (1 << max(num_bytes - 1, 1).bit_length()) // (2 * CLASSES))
    return max(-(-num_bytes // step) * step, ALIGN_BYTES)

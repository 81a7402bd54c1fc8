"""A slot goes back to the ring when nothing refers to it, and not before; what the ring keeps is
bounded in bytes."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from gpuload.device import PAGE_BYTES, offer, page_aligned
from gpuload.errors import TooLargeError
from gpuload.pipeline.ring import ALIGN_BYTES, Ring, size_class
from gpuload.stats import Counters


def ring(idle_bytes=4096, crowded_bytes=1 << 30, offer=None):
    return Ring(
        idle_bytes=idle_bytes,
        crowded_bytes=crowded_bytes,
        allocate=page_aligned,
        offer=offer,
        counters=Counters(),
    )


def whole(slot, num_bytes=1024):
    return slot.array(0, np.dtype(np.uint8), (num_bytes,))


def test_a_slot_begins_at_a_page():
    slot = ring().take(1024)
    assert slot.address % PAGE_BYTES == 0
    assert whole(slot).ctypes.data == slot.address


def test_a_dropped_slot_is_used_again():
    slots = ring()
    address = slots.take(1024).address
    assert slots.take(1024).address == address


@pytest.mark.parametrize("dtype", ["<f4", "?", "<c16", "<f2", "<M8[ns]", "<U3", "S5", "u1"])
def test_arrays_of_a_slot_have_their_place_dtype_and_shape(dtype):
    slot = ring().take(1024)
    array = slot.array(256, np.dtype(dtype), (3, 2))
    array[...] = np.ones((3, 2), "u1").astype(dtype)
    begin, num_bytes = array.ctypes.data - slot.address, array.nbytes
    assert (begin, array.dtype, array.shape, array.flags.c_contiguous) == (
        256,
        np.dtype(dtype),
        (3, 2),
        True,
    )
    assert array.flags.writeable
    assert whole(slot)[256 : 256 + num_bytes].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "keep",
    [
        lambda root: root[:8],
        lambda root: root[64:128].view(np.float32).reshape(4, 4)[1:, ::2],
        lambda root: memoryview(root[:16]),
        lambda root: np.from_dlpack(root[:32]),
        lambda root: root[:32].__dlpack__(),
    ],
)
def test_any_view_keeps_the_slot(keep):
    slots = ring()
    slot = slots.take(1024)
    address = slot.address
    view = keep(whole(slot))
    del slot
    gc.collect()

    assert slots.take(1024).address != address
    del view
    gc.collect()
    assert address in {slot.address for slot in [slots.take(1024), slots.take(1024)]}


def test_each_array_of_a_slot_keeps_it():
    slots = ring()
    slot = slots.take(1024)
    address = slot.address
    first, second = slot.array(0, np.dtype("f4"), (8,)), slot.array(512, np.dtype("i2"), (8,))
    del slot, first
    gc.collect()
    assert slots.take(1024).address != address
    del second
    gc.collect()
    assert address in {slot.address for slot in [slots.take(1024), slots.take(1024)]}


def test_what_comes_back_beyond_the_idle_bytes_is_freed():
    slots = ring(idle_bytes=2048)
    loans = [slots.take(1024) for _ in range(5)]
    assert len({slot.address for slot in loans}) == 5
    del loans
    assert slots.num_idle_bytes == 2048
    slots.trim(0)
    assert slots.num_idle_bytes == 0


def alive(memories):
    return sum(memory() is not None for memory in memories)


def counted(allocate, living):
    def counting(num_bytes):
        memory = allocate(num_bytes)
        living.append(weakref.ref(memory))
        return memory

    return counting


def test_of_many_slots_only_what_is_kept_between_steps_stays_in_memory_when_all_are_dropped():
    slots, living = ring(idle_bytes=4096), []
    slots._allocate = counted(slots._allocate, living)
    loans = [slots.take(1024) for _ in range(36)]
    assert alive(living) == 36
    loans.clear()
    assert alive(living) == 4  # nobody has called the ring


def test_with_the_last_iterator_the_memory_goes():
    slots, living = ring(idle_bytes=4096), []
    slots._allocate = counted(slots._allocate, living)
    slots.begin()
    slots.begin()
    held = slots.take(1024)
    slots.take(1024)
    slots.end()
    assert alive(living) == 2
    slots.end()
    assert alive(living) == 1
    del held
    assert alive(living) == 0
    slots.take(1024)
    assert alive(living) == 0  # also if it was taken afterwards, as by ``batch_at``
    slots.begin()
    slots.take(1024)
    assert alive(living) == 1  # kept for the next step


def lazily_freed_bytes():
    """Return how much memory of this process the system may take; None where it does not say it."""
    rollup = Path("/proc/self/smaps_rollup")
    lines = rollup.read_text().splitlines() if rollup.exists() else []
    return next(
        (int(line.split()[1]) << 10 for line in lines if line.startswith("LazyFree:")), None
    )


def test_with_the_last_iterator_the_system_may_take_the_memory():
    if (before := lazily_freed_bytes()) is None or not offer(page_aligned(PAGE_BYTES)):
        pytest.skip("a system, or a core, that offers no memory")
    slots, size = (
        Ring(
            idle_bytes=1 << 26,
            crowded_bytes=1 << 30,
            allocate=page_aligned,
            offer=offer,
            counters=Counters(),
        ),
        8 << 20,
    )
    slots.begin()
    slots.begin()
    address = slots.take(size).address
    whole(slots.take(size), size).fill(1)
    slots.end()
    assert lazily_freed_bytes() - before < size / 2
    slots.end()
    assert lazily_freed_bytes() - before > size / 2
    assert slots.num_idle_bytes == size
    slots.begin()
    slot = slots.take(size)
    assert slot.address == address  # and memory that is written is nobody else's again
    whole(slot, size).fill(2)
    assert lazily_freed_bytes() - before < size / 2
    assert (whole(slot, size) == 2).all()
    slots.end()
    del slot
    assert slots.num_idle_bytes == 0


def test_memory_that_cannot_be_offered_is_freed_with_the_last_iterator():
    slots = ring(offer=lambda memory: memory.size > 1024)
    slots.begin()
    loans = [slots.take(1024), slots.take(2048)]
    loans.clear()
    slots.end()
    assert slots.num_idle_bytes == 2048


def test_memory_that_is_not_there_is_an_error_with_a_remedy():
    def allocate(num_bytes):
        raise MemoryError("no memory")

    slots = ring()
    slots._allocate = allocate
    with pytest.raises(TooLargeError, match="remedy: use a smaller batch_size"):
        slots.take(1 << 40)


def test_idle_memory_of_another_size_is_freed_where_there_is_too_much():
    slots = ring(idle_bytes=4096)
    slots.take(4096)
    slots.take(1024)
    assert slots.num_idle_bytes <= 4096


def test_a_ring_is_crowded_while_much_is_lent():
    slots = ring(crowded_bytes=2048)
    loans = [slots.take(1024), slots.take(1024)]
    assert not slots.crowded
    loans.append(slots.take(1024))
    assert slots.crowded
    loans.clear()
    slots.take(1024)
    assert not slots.crowded


def test_steps_that_take_more_than_was_known_raise_both_bounds():
    slots, living = ring(idle_bytes=0, crowded_bytes=0), []
    slots._allocate = counted(slots._allocate, living)
    slots.resize(idle_bytes=1024, crowded_bytes=1024, num_steps=3)
    slots.begin()
    slots.expect(2048)
    slots.expect(1024)  # the largest of them counts
    loans = [slots.take(1024) for _ in range(7)]
    assert not slots.crowded
    loans.append(slots.take(1024))
    assert slots.crowded
    loans.clear()
    assert slots.num_idle_bytes == 7 * 1024
    slots.end()
    assert alive(living) == 0


def test_a_larger_slot_is_used_again_unless_it_is_twice_as_large():
    slots = ring(idle_bytes=1 << 20)
    address = slots.take(7168).address
    assert slots.take(4096).address == address
    held = slots.take(4096)
    assert held.address == address
    assert slots.num_idle_bytes == 0
    del held
    assert slots.num_idle_bytes == 7168
    assert slots.take(3584).address != address


def test_of_two_larger_slots_the_smaller_one_is_used():
    slots = ring(idle_bytes=1 << 20)
    loans = [slots.take(7168), slots.take(6144)]
    address = loans[1].address
    loans.clear()
    assert slots.take(5120).address == address


def test_more_bytes_than_can_be_counted_are_an_error_with_a_remedy():
    with pytest.raises(TooLargeError, match="remedy: use a smaller batch_size"):
        ring().take(1 << 62)


@pytest.mark.parametrize(
    "num_bytes", [0, 1, 255, 256, 257, 1000, 4096, 4097, 10**6, 3 << 20, (3 << 20) + 1, 10**9]
)
def test_a_slot_is_at_most_an_eighth_larger_than_what_was_asked_for(num_bytes):
    size = size_class(num_bytes)
    assert num_bytes <= size <= max(num_bytes * 9 // 8 + 1, num_bytes + ALIGN_BYTES)
    assert size % ALIGN_BYTES == 0


def test_a_collection_in_the_middle_of_taking_returns_slots_and_locks_nothing():
    slots = ring(idle_bytes=1 << 20)

    class Cycle:
        pass

    def allocate(num_bytes):
        cycle = Cycle()
        cycle.me, cycle.slot = cycle, slots.take(512) if num_bytes == 1024 else None
        del cycle
        gc.collect()  # runs Slot.__del__ in this thread
        return page_aligned(num_bytes)

    slots._allocate = allocate
    process = threading.Event()

    def take():
        slots.take(1024)
        process.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert process.wait(60)


def test_an_array_of_a_dtype_without_bytes_lies_inside_its_slot_or_nowhere():
    slot = ring().take(256)
    array = slot.array(0, np.dtype("S0"), (3,))
    assert array.shape == (3,)
    assert array.nbytes == 0


def test_arrays_in_a_slot_may_begin_every_256_bytes():
    assert ALIGN_BYTES % 64 == 0
    assert PAGE_BYTES % ALIGN_BYTES == 0

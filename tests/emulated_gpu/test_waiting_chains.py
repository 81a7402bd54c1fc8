"""Chains of ops whose kernels wait, on memory that is overwritten the moment it is freed.

A kernel that waits in a `device.Bundle` may know memory by its address alone. Were that memory
freed before the kernel runs, another array could take it, and what is written there at once would
be read in place of the images. Here each freed block is filled with a pattern at once, on its
stream, so that any such kernel makes wrong pixels. The right ones are made without a bundle, on
CuPy's own pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpuload import device
from gpuload.errors import RowError, SpecError
from gpuload.executors.array.batches import ArrayBatchExecutor
from gpuload.graph.graph import Graph, compile_ops
from gpuload.spec import Field, Spec
from tests import opexamples
from tests.emulated_gpu import opcounts

pytestmark = pytest.mark.gpu

PATTERN = 0xA5
COUNT = 4
ROOM_BYTES = 1 << 16, 64  # for parameters: for all, and for none
NAMES = [
    name
    for name in opexamples.NAMES
    if opcounts.runs_on_a_gpu(opexamples.example(name))
    and name not in ("OneHot", "PadTo", "CleanBoxes")
]
# The first op of each settles the bundle, so that the second has the address of memory that no
# launch refers to.
QUICK_CHAINS = [("OneOf", "ColorJitter", "Resize"), ("Shuffle", "Equalize", "Affine")]


class FreedBlock:
    """Memory of a pool, which is filled with the pattern when it is dropped."""

    def __init__(self, memory: Any, num_bytes: int) -> None:
        self._memory, self._num_bytes, self._stream = (
            memory,
            num_bytes,
            device.cupy().cuda.get_current_stream(),
        )

    def __del__(self) -> None:
        self._memory.memset_async(PATTERN, self._num_bytes, self._stream)


@pytest.fixture
def overwriting() -> Iterator[None]:
    """Fill memory with the pattern when it is taken, and when it is freed."""
    cuda = device.cupy().cuda
    pool = cuda.MemoryPool()

    def allocate(num_bytes: int) -> Any:
        memory = pool.malloc(num_bytes)
        memory.memset_async(PATTERN, num_bytes, cuda.get_current_stream())
        block = FreedBlock(memory, num_bytes)
        return cuda.MemoryPointer(cuda.UnownedMemory(memory.ptr, num_bytes, block, 0), 0)

    with cuda.using_allocator(allocate):
        yield


def graph_of(names: tuple[str, ...], dtype: str, *, are_alike: bool) -> Graph | None:
    """Return the graph of a chain of examples; None if they do not fit one another."""
    shape = (40, 36, 3) if are_alike else (None, None, 3)
    field = Field("image", np.dtype(dtype), shape, axes="HWC")
    ops = [opexamples.example(name) for name in names]
    try:
        graph = compile_ops(Spec((field,)), ops)
    except SpecError:
        return None
    return None if graph.for_numpy else graph


def draws_of(graph: Graph, images: list[Any]) -> Any:
    places = np.arange(COUNT, dtype=np.int32)[:, None]
    width = 3 if any(op.traits.mixes and op.traits.mixes.group == 4 for op in graph.ops) else 1
    partners = (places ^ np.arange(1, width + 1, dtype=np.int32)) - places
    sizes = np.array([image.shape[:2] for image in images], np.int32)
    return graph.draw(
        seed=1, epoch=0, records=np.arange(COUNT), sizes={"image": sizes}, partners=partners
    )


def values_of(values: Any) -> list[Any]:
    return [value.get() for value in values]


def run_chain(
    lane: device.Lane, graph: Graph, draws: Any, images: list[Any], *, are_alike: bool, room: int
) -> Any:
    """Return the pixels of a chain whose kernels wait; ``room``: bytes of the bundle beside no
    image."""
    executor = ArrayBatchExecutor(graph, device="gpu:0")
    with device.Bundle(lane) as bundle:
        bundle.hold(device.pinned(room), 0)
        rows: Any = [bundle.upload(image) for image in images]
        executor.start({"image": device.cupy().stack(rows) if are_alike else rows}, draws)
        del rows
        device.settle()
    return values_of(executor.finish()["image"])


def check_chain(names: tuple[str, ...], *, are_alike: bool, room: int = ROOM_BYTES[0]) -> bool:
    """Compare a chain with what it makes without a bundle; False if the ops do not fit one
    another."""
    is_done = False
    for dtype in ("uint8", "float32"):
        graph = graph_of(names, dtype, are_alike=are_alike)
        images = opexamples.images_of(dtype, COUNT, are_alike=are_alike)
        if graph is None:
            continue
        cuda, lane = device.cupy().cuda, device.Lane("gpu:0")
        try:
            draws = draws_of(graph, images)
            with lane, cuda.using_allocator(cuda.MemoryPool().malloc):
                executor, xp = ArrayBatchExecutor(graph, device="gpu:0"), device.cupy()
                on_device = [xp.asarray(image) for image in images]
                executor.start({"image": xp.stack(on_device) if are_alike else on_device}, draws)
                right = values_of(executor.finish()["image"])
                lane.mark().synchronize()
            with lane:
                values = run_chain(lane, graph, draws, images, are_alike=are_alike, room=room)
                again = run_chain(lane, graph, draws, images, are_alike=are_alike, room=room)
        except (SpecError, RowError):
            continue
        finally:
            lane.close()
        for image, other, meaning in zip(values, again, right, strict=True):
            np.testing.assert_array_equal(image, meaning, err_msg=f"{names} {dtype}")
            np.testing.assert_array_equal(other, meaning, err_msg=f"{names} {dtype}, again")
        is_done = True
    return is_done


@pytest.mark.parametrize("are_alike", [True, False], ids=["of one size", "of many sizes"])
@pytest.mark.parametrize("names", QUICK_CHAINS, ids="-".join)
@pytest.mark.usefixtures("overwriting")
def test_a_chain_that_waits_makes_the_same_pixels_where_freed_memory_is_overwritten(
    names, are_alike
):
    assert check_chain(names, are_alike=are_alike)


@pytest.mark.slow  # minutes: kernels of many dtypes and channels are compiled
@pytest.mark.parametrize("number", range(len(NAMES)))
@pytest.mark.usefixtures("overwriting")
def test_any_three_ops_that_wait_make_the_same_pixels_where_freed_memory_is_overwritten(number):
    for offset in range(3):
        places = number, number * 7 + offset * 5 + 3, number * 11 + offset * 3 + 5
        names = tuple(NAMES[place % len(NAMES)] for place in places)
        for are_alike in (True, False):
            for room in ROOM_BYTES:
                check_chain(names, are_alike=are_alike, room=room)

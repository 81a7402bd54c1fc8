"""Memory that a step lends is used for what is large, in the thread and the block that it was lent
for."""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import pytest

from gpuload.errors import TooLargeError
from gpuload.sources.memory import LARGE_BYTES, is_lent, lending, room, step_room


class Lender:
    def __init__(self) -> None:
        self.pieces: list[np.ndarray] = []

    def __call__(self, num_bytes: int) -> np.ndarray:
        self.pieces.append(np.empty(num_bytes, np.uint8))
        return self.pieces[-1]


def test_large_memory_is_lent_and_small_is_new() -> None:
    lender = Lender()
    with lending(lender):
        large, small = step_room(LARGE_BYTES), step_room(LARGE_BYTES - 1)
        assert (is_lent(large), is_lent(small), is_lent(large.view("i4")), is_lent(large[8:])) == (
            True,
            False,
            True,
            False,
        )
    assert [piece.size for piece in lender.pieces] == [LARGE_BYTES]
    assert (large.size, small.size) == (LARGE_BYTES, LARGE_BYTES - 1)


def test_outside_of_the_block_memory_is_new() -> None:
    lender = Lender()
    with lending(lender):
        lent = step_room(LARGE_BYTES)
    assert not is_lent(lent)
    assert step_room(LARGE_BYTES).size == LARGE_BYTES
    assert len(lender.pieces) == 1


def test_a_block_inside_of_another_one_has_its_own_lender() -> None:
    outer, inner = Lender(), Lender()
    with lending(outer):
        first = step_room(LARGE_BYTES)
        with suppress(KeyError), lending(inner):
            step_room(LARGE_BYTES)
            assert not is_lent(first)
            raise KeyError
        step_room(LARGE_BYTES)
        assert is_lent(first)
    assert (len(outer.pieces), len(inner.pieces)) == (2, 1)


def test_another_thread_gets_new_memory() -> None:
    lender, sizes = Lender(), list[int]()
    with lending(lender):
        thread = threading.Thread(target=lambda: sizes.append(step_room(LARGE_BYTES).size))
        thread.start()
        thread.join(60)
    assert (sizes, lender.pieces) == ([LARGE_BYTES], [])


def test_what_outlives_a_step_is_new() -> None:
    lender = Lender()
    with lending(lender):
        assert room((LARGE_BYTES, 2), np.dtype("i2")).shape == (LARGE_BYTES, 2)
    assert not lender.pieces


@pytest.mark.parametrize("num_bytes", [1 << 62, 1 << 46])
def test_more_memory_than_there_is_is_an_error_with_a_remedy(num_bytes: int) -> None:
    with pytest.raises(TooLargeError, match="remedy: read fewer records at once"):
        step_room(num_bytes)

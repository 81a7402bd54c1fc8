"""A slot goes back to the ring when nothing refers to it, and not before."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from gpuload.batch import ALIGN_BYTES, Batch, Ring, arranged, names_in
from gpuload.device import PAGE_BYTES, page_aligned
from gpuload.errors import SpecError, UnknownFieldError
from gpuload.spec import Field, Spec
from gpuload.stats import Counters

SPEC = Spec(tuple(Field(name, np.dtype("f4"), (2,)) for name in ("a", "b", "c")))


def ring(limit=4, num_bytes=1024):
    return Ring(num_bytes, limit=limit, allocate=page_aligned, counters=Counters())


def whole(slot, num_bytes=1024):
    return slot.array(0, np.dtype(np.uint8), (num_bytes,))


def test_a_slot_begins_at_a_page():
    slot = ring().take()
    assert slot.address % PAGE_BYTES == 0
    assert whole(slot).ctypes.data == slot.address


def test_a_dropped_slot_is_used_again():
    slots = ring()
    address = slots.take().address
    assert slots.take().address == address


@pytest.mark.parametrize("dtype", ["<f4", "?", "<c16", "<f2", "<M8[ns]", "<U3", "S5", "u1"])
def test_arrays_of_a_slot_have_their_place_dtype_and_shape(dtype):
    slot = ring().take()
    array = slot.array(256, np.dtype(dtype), (3, 2))
    array[...] = np.ones((3, 2), "u1").astype(dtype)
    begin, num_bytes = array.ctypes.data - slot.address, array.nbytes
    assert (begin, array.dtype, array.shape, array.flags.c_contiguous) == (256, np.dtype(dtype), (3, 2), True)
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
    slot = slots.take()
    address = slot.address
    kept = keep(whole(slot))
    del slot
    gc.collect()

    assert slots.take().address != address
    del kept
    gc.collect()
    assert address in {slot.address for slot in [slots.take(), slots.take()]}


def test_each_array_of_a_slot_keeps_it():
    slots = ring()
    slot = slots.take()
    address = slot.address
    first, second = slot.array(0, np.dtype("f4"), (8,)), slot.array(512, np.dtype("i2"), (8,))
    del slot, first
    gc.collect()
    assert slots.take().address != address
    del second
    gc.collect()
    assert address in {slot.address for slot in [slots.take(), slots.take()]}


def test_slots_beyond_the_limit_are_not_kept():
    slots = ring(limit=2)
    kept = [slots.take() for _ in range(5)]
    assert slots.crowded
    assert len({slot.address for slot in kept}) == 5
    del kept
    assert not slots.crowded
    assert len(slots._free) == 2


def test_arrays_in_a_slot_may_begin_every_256_bytes():
    assert ALIGN_BYTES % 64 == 0
    assert PAGE_BYTES % ALIGN_BYTES == 0


def batch(nest=None):
    fields = {"a": np.zeros(2), "b": np.ones(2)}
    return Batch(fields, nest, records=np.arange(2), valid=np.ones(2, bool), epoch=0, step=0)


def test_a_batch_is_a_mapping_of_its_fields():
    assert dict(batch().items()).keys() == {"a", "b"}
    assert list(batch()) == ["a", "b"]
    assert "a" in batch()
    assert "z" not in batch()


def test_a_batch_with_a_tuple_as_output_unpacks_like_it():
    first, second = batch(("b", "a"))
    assert first[0] == 1
    assert second[0] == 0


def test_output_nests_tuples_and_dicts():
    out = batch({"x": ("a", {"y": "b"})}).output
    assert out["x"][0][0] == 0
    assert out["x"][1]["y"][0] == 1


def test_an_unknown_field_is_a_key_error_that_names_the_fields():
    with pytest.raises(UnknownFieldError, match=r"fields are \['a', 'b'\]"):
        batch()["z"]
    with pytest.raises(KeyError):
        batch()["z"]


def test_names_in_a_nest_come_once_in_order():
    assert names_in(("c", {"k": ["a", "c"]}), SPEC) == ("c", "a")
    assert names_in(None, SPEC) == ("a", "b", "c")
    assert arranged(["a"], {"a": 3}) == [3]


@pytest.mark.parametrize(("nest", "error"), [(("a", 3), SpecError), (("a", "z"), UnknownFieldError)])
def test_a_nest_of_anything_else_is_refused(nest, error):
    with pytest.raises(error):
        names_in(nest, SPEC)

"""PadTo, and Ragged.to_dense: sequences of varying length as one array."""

from __future__ import annotations

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.errors import RecordError, SpecError
from gpuload.ops import PadTo
from gpuload.ragged import Ragged
from gpuload.spec import Field
from gpuload.testing.ops import OpContract, uniform
from tests import simdevice


def ragged(dtype, *shape):
    return Field("x", np.dtype(dtype), (None, *shape))


class TestPadTo(OpContract):
    cases = (
        (PadTo(60), ragged("f4")),
        (PadTo(80, value=7), ragged("u1")),
        (PadTo(50, truncate=True), ragged("i8")),
        (PadTo(90, value=-1), ragged("i4", 3)),
        (PadTo(90, value=0.5), ragged("f8", 2, 2)),
        (PadTo(64), ragged("f2")),
        (PadTo(64, value=1), ragged("?")),
        (PadTo(64, value=2**20), ragged("u4")),
        (PadTo(64, value=5), ragged("u2", 1)),
        (PadTo(64, value=5), ragged("u8")),
        (PadTo(9), uniform("f4", 5, name="x")),
        (PadTo(3, truncate=True), uniform("i2", 5, 2, name="x")),
    )
    neutral = ((PadTo(5), uniform("f4", 5, name="x")),)
    refused = (
        (PadTo(5), Field("x", np.dtype("u1"), (None,), encoded=True)),
        (PadTo(5), Field("x", np.dtype("u1"), (None, None, 3))),
        (PadTo(5), Field("x", np.dtype("u1"), ())),
        (PadTo(5, value=-1), ragged("u1")),
        (PadTo(5, value=0.5), ragged("i4")),
        (PadTo(5), ragged("U3")),
    )

    def values(self, field, count):
        if not field.ragged:
            return super().values(field, count)
        rng = np.random.default_rng(1)
        shapes = [(7 * row % 60, *(field.shape or ())[1:]) for row in range(count)]
        return Ragged.of(
            [rng.integers(0, 99, shape).astype(field.dtype) for shape in shapes], field.dtype
        )


WORDS = [["a"], [], ["b", "cde", "f"]]


@pytest.mark.parametrize("op", [PadTo(4), PadTo(2, truncate=True), PadTo(3, value=9)])
def test_behind_the_values_stands_the_value(op):
    lists = [[1, 2, 3], [], [4]]
    source = gl.records(
        3, lambda rows: {"x": [np.array(lists[row], "i4") for row in rows]}, fields=INTS
    )

    (batch,) = gl.Loader(source, 3, ops=[op], device="cpu")

    assert batch["x"].tolist() == [
        (values + [op.value] * op.length)[: op.length] for values in lists
    ]


INTS = {"x": ("i4", (None,))}


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_a_longer_record_is_an_error_that_names_it_and_the_remedy_works(executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    source = gl.records(
        9, lambda rows: {"x": [np.arange(row, dtype="i4") for row in rows]}, fields=INTS
    )

    def load(*chain):
        return gl.Loader(source, 4, ops=list(chain), device="cpu", executor=executor)

    with (
        load(PadTo(6)) as loader,
        pytest.raises(RecordError, match=r"record 7.*7 elements") as caught,
    ):
        list(loader)

    assert "PadTo(7)" in caught.value.remedy
    with load(ops.Cast("i8"), PadTo(6, truncate=True)) as loader:
        assert np.concatenate([batch["x"] for batch in loader])[8].tolist() == [0, 1, 2, 3, 4, 5]


def test_on_a_gpu_it_gives_what_the_cpu_gives(monkeypatch):
    simdevice.install(monkeypatch, seed=3)
    source = gl.records(
        9,
        lambda rows: {"x": [np.arange(row, dtype="f4") for row in rows]},
        fields={"x": ("f4", (None,))},
    )
    batches = {}
    for device in ("cpu", "gpu"):
        with gl.Loader(
            source, 4, ops=[PadTo(8, value=-1)], device=device, executor="array"
        ) as load:
            batches[device] = [
                np.asarray(rows.get() if hasattr(rows, "get") else rows)
                for rows in (b["x"] for b in load)
            ]

    for rows, other in zip(batches["cpu"], batches["gpu"], strict=True):
        np.testing.assert_array_equal(rows, other)


LISTS = Ragged.of([np.arange(3.0), np.arange(0.0), np.arange(2.0)], np.dtype("f8"))


def test_to_dense_fills_up_to_the_longest():
    assert LISTS.to_dense().tolist() == [[0, 1, 2], [0, 0, 0], [0, 1, 0]]
    assert LISTS[1:].to_dense(value=-1).tolist() == [[-1, -1], [0, 1]]
    assert LISTS[1:2].to_dense().shape == (1, 0)
    assert LISTS.to_dense(4, value=np.nan).dtype == np.float64
    assert np.isnan(LISTS.to_dense(4, value=np.nan)).sum() == 7


def test_to_dense_keeps_the_other_axes_and_does_text():
    pairs = Ragged.of([np.ones((2, 2), "i2"), np.ones((1, 2), "i2")], np.dtype("i2"))
    texts = Ragged.of([np.array(words, "U3") for words in WORDS], np.dtype("U3"))

    assert pairs.to_dense(3).tolist() == [[[1, 1], [1, 1], [0, 0]], [[1, 1], [0, 0], [0, 0]]]
    assert texts.to_dense(value="").tolist() == [["a", "", ""], ["", "", ""], ["b", "cde", "f"]]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"length": 2}, "value 0 has 3 elements"), ({"length": -1}, "length=-1"), ({"length": 2.0}, "length=2.0"),
     ({"value": "x"}, "does not hold"), ({"value": [1, 2]}, "does not hold")],
)  # fmt: skip
def test_to_dense_refuses_what_would_lose_something(arguments, text):
    with pytest.raises(SpecError, match=text) as caught:
        LISTS.to_dense(**arguments)

    assert caught.value.remedy
    assert LISTS.to_dense(2, truncate=True).tolist() == [[0, 1], [0, 0], [0, 1]]


def test_to_dense_is_made_by_the_library_of_the_payload():
    jnp = pytest.importorskip("jax.numpy")
    dense = LISTS.with_payload(jnp.asarray(LISTS.flat, jnp.float32)).to_dense(value=-1)

    assert isinstance(dense, jnp.ndarray)
    assert dense.tolist() == [[0, 1, 2], [-1, -1, -1], [0, 1, -1]]

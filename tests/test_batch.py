"""A batch has its fields by name, and the parts of ``output=`` in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from gpuload.batch import Batch, arranged, names_in
from gpuload.errors import SpecError, UnknownFieldError
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec

SPEC = Spec(tuple(Field(name, np.dtype("f4"), (2,)) for name in ("a", "b", "c")))


def batch(nest=None):
    fields = {"a": np.zeros(2), "b": np.ones(2)}
    return Batch(fields, nest, records=np.arange(2), valid=np.ones(2, bool), epoch=0, step=0)


class Pair(NamedTuple):
    first: str
    second: object


@dataclass(frozen=True)
class Sides:
    left: str
    right: str


NESTS = {
    "all": (None, ["a", "b"]),
    "a name": ("b", ["b"]),
    "a tuple": (("b", "a"), ["b", "a"]),
    "a list": (["b", "a"], ["b", "a"]),
    "a dict": ({"y": "b", "x": "a"}, ["b", "a"]),
    "a named tuple": (Pair("b", "a"), ["b", "a"]),
    "a dataclass": (Sides("b", "a"), ["b", "a"]),
}


@pytest.mark.parametrize(("nest", "names"), NESTS.values(), ids=NESTS)
def test_iterating_unpacking_places_and_length_are_of_the_parts_of_output_whatever_it_is(
    nest, names
):
    item = batch(nest)
    expected = [item[name] for name in names]
    assert len(item) == len(expected)
    assert [id(part) for part in item] == [id(part) for part in expected]
    first, *_ = item
    assert first is item[0] is expected[0]
    assert item[-1] is expected[-1]
    assert item[:1] == (first,)


@pytest.mark.parametrize("nest", [nest for nest, _ in NESTS.values()], ids=NESTS)
def test_fields_are_found_by_name_whatever_output_is(nest):
    item = batch(nest)
    assert dict(item).keys() == dict(**item).keys() == item.keys() == {"a", "b"}
    assert item["a"] is dict(item)["a"] is next(iter(item.values())) is dict(item.items())["a"]
    assert "a" in item
    assert "z" not in item
    assert 0 not in item


def test_a_part_of_a_nest_may_be_a_nest():
    first, second = batch(("a", {"x": ["b"]}))
    assert first[0] == 0
    assert second["x"][0][0] == 1


def test_named_tuples_and_dataclasses_are_made_anew_with_arrays_in_place_of_names():
    pair = batch(Pair("b", ("a",))).output
    assert isinstance(pair, Pair)
    assert (pair.first[0], pair.second[0][0]) == (1, 0)
    sides = batch(Sides("b", "a")).output
    assert isinstance(sides, Sides)
    assert (sides.left[0], sides.right[0]) == (1, 0)
    assert names_in(Pair("b", Sides("c", "a")), SPEC) == ("b", "c", "a")


@pytest.mark.parametrize("place", [2, -3, 1.5, None])
def test_a_place_that_is_none_is_an_index_error_that_says_what_there_is(place):
    with pytest.raises(IndexError, match=r"a batch has 2 parts, and the fields \['a', 'b'\]"):
        batch()[place]


def test_a_batch_with_other_arrays_is_the_same_batch():
    item = batch(("b", "a")).with_fields(lambda values: values + 5)
    assert [part[0] for part in item] == [6, 5]
    assert (item.epoch, item.step, item.records.tolist(), item.valid.all()) == (0, 0, [0, 1], True)


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


@pytest.mark.parametrize(
    ("nest", "error"),
    [
        (("a", 3), SpecError),
        (("a", "z"), UnknownFieldError),
        (Sides, SpecError),
        ({"a"}, SpecError),
    ],
)
def test_a_nest_of_anything_else_is_refused(nest, error):
    with pytest.raises(error):
        names_in(nest, SPEC)


def test_repr_says_what_each_field_is():
    ragged = Ragged(np.zeros(5, np.float32), np.array([0, 2, 5]))
    fields = {"x": np.zeros((2, 3)), "boxes": ragged, "image": [np.zeros((1, 2)), np.zeros((2, 2))]}
    batch = Batch(fields, None, records=np.arange(2), valid=np.ones(2, bool), epoch=1, step=3)
    assert repr(batch) == (
        "<gl.Batch: 2 records, epoch 1, step 3;\n  x: float64 (2, 3);\n  boxes: float32 (2, None), 5 elements;\n"
        "  image: list of 2 arrays>"
    )

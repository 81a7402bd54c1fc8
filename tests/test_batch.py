"""A batch is a mapping of its fields, arranged as ``output=`` says."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.batch import Batch, arranged, names_in
from gpuload.errors import SpecError, UnknownFieldError
from gpuload.spec import Field, Spec

SPEC = Spec(tuple(Field(name, np.dtype("f4"), (2,)) for name in ("a", "b", "c")))


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

"""Attributes that other libraries have are answered with our form, which exists; nothing else
changes."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import re

import numpy as np
import pytest

import gpuload as gl
from gpuload import synonyms

SOURCE = gl.arrays(x=np.arange(10, dtype=np.float32))


def make(kind):
    if kind == "loader":
        return gl.Loader(SOURCE, 4, device="cpu")
    return {"source": SOURCE, "gl": gl, "gl.ops": gl.ops}[kind]


TABLES = [
    ("loader", synonyms.LOADER), ("source", synonyms.SOURCE), ("gl", synonyms.PACKAGE), ("gl.ops", synonyms.OPS),
]  # fmt: skip
GUESSES = [(kind, name) for kind, forms in TABLES for name in forms]


@pytest.mark.parametrize(("kind", "name"), GUESSES)
def test_a_guess_is_an_attribute_error_that_names_our_form(kind, name):
    thing = make(kind)
    with pytest.raises(AttributeError, match=rf"{kind}\.{name}\n  cause:  .*\n  remedy: write "):
        getattr(thing, name)
    assert not hasattr(thing, name)


@pytest.mark.parametrize(("kind", "forms"), TABLES)
def test_the_forms_name_what_there_is(kind, forms):
    loader = make("loader")
    known_names = {"loader": loader, "source": SOURCE, "batch": loader.peek(), "gl": gl}
    for form in forms.values():
        for owner, name in re.findall(r"\b(loader|source|batch|gl)\.(\w+(?:\.\w+)?)", form):
            thing = known_names[owner]
            for part in name.split("."):
                thing = getattr(thing, part)


def test_the_ops_of_the_forms_can_be_made():
    for form in synonyms.OPS.values():
        for call in re.findall(r"gl\.ops\.\w+\((?:[^()]|\([^()]*\))*\)", form):
            eval(call, {"gl": gl, "function": np.negative})


def test_names_that_are_there_have_no_synonym():
    assert not set(synonyms.OPS) & set(gl.ops.__all__)
    assert not set(synonyms.PACKAGE) & set(gl.__all__)


def test_some_of_the_forms_do_what_was_asked_for():
    loader = make("loader")
    assert [batch.step for batch in itertools.islice(loader, 2)] == [0, 1]
    loader.load_state_dict(loader.state_dict(epoch=0, step=2))
    assert loader.peek()["x"].tolist() == [8, 9]
    assert SOURCE[:3].read(range(3))["x"].tolist() == [0, 1, 2]
    assert SOURCE.read(range(len(SOURCE))).keys() == {"x"}


@pytest.mark.parametrize("kind", ["loader", "source"])
def test_other_names_are_errors_of_python_and_what_looks_for_hooks_finds_none(kind):
    thing = make(kind)
    with pytest.raises(AttributeError, match="object has no attribute 'nothing'") as raised:
        _ = thing.nothing
    assert not isinstance(raised.value, gl.GpuloadError)
    assert not hasattr(thing, "__array__")
    assert len(pickle.loads(pickle.dumps(thing))) == len(copy.copy(thing)) == len(thing)


def test_an_error_in_a_property_of_a_source_of_the_users_is_that_error():
    class Broken(type(SOURCE)):
        @property
        def folder(self):
            return None.path

    part = object.__new__(Broken)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'path'"):
        _ = part.folder


def test_what_keras_says_of_a_loader_names_the_dataset():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"gpuload\.bridges\.tensorflow\.dataset\(loader\)"):
        model.fit(make("loader"))

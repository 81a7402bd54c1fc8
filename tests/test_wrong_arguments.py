"""What a user may give by mistake to a loader, a batch and what describes them: it is taken, or
refused with a remedy.

Every argument is given every value of VALUES. Each call says which of them it takes; of the others
it says why not and what to do instead, and what it says to type is typed here.
`sources/test_arguments.py` does the same for sources, and `ops/test_arguments.py` for ops. The name
of an argument that a function does not have is Python's own ``TypeError``.
"""

from __future__ import annotations

import ast
import io
import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), np.uint8)


def source():
    return gl.arrays(image=IMAGES, label=np.arange(10))


def loader_of(**arguments):
    return gl.Loader(**{"source": source(), "batch_size": 4, "device": "cpu", **arguments})


def batch_of(**arguments):
    return loader_of(**arguments).batch_at(0)


VALUES = {
    "None": None, "True": True, "0": 0, "-1": -1, "2": 2, "2.5": 2.5, "nan": float("nan"), "10**30": 10**30,
    "int64": np.int64(2), "float32": np.float32(2), "bool_": np.True_, "0-d": np.array(2), "1j": 1j,
    "text": "nonsense", "label": "label", "empty": "", "bytes": b"label", "path": Path("label"),
    "[]": [], "()": (), "{}": {}, "[None]": [None], "[label]": ["label"], "{label}": {"label"}, "[2]": [2],
    "slice": slice(0, 2), "range": range(3), "array": np.zeros(3), "texts": np.array(["label"]),
    "object": object(), "class": object, "function": len, "source": source(), "op": gl.ops.RandomFlip(),
}  # fmt: skip
if np.__version__.startswith("1."):  # where it still is an index, with a warning of NumPy's
    del VALUES["bool_"]
WHOLE = {"2", "int64"}  # whole numbers of at least 1
COUNTED = {"0", *WHOLE}  # of at least 0


def read_with(name):
    """Return a call that makes a loader with one argument, and takes an epoch of it."""
    return lambda value: list(loader_of(**{name: value}))


def changed_state(name):
    """Return a call that loads a state in which one entry is another."""

    def load(value):
        loader = loader_of()
        loader.load_state_dict({**loader.state_dict(), name: value})
        return list(loader)

    return load


def blocks_of(name):
    needs = {"lanes": {"chunk": 2}, "chunk": {"lanes": 2}}.get(name, {})
    return lambda value: list(
        loader_of(shuffle=gl.Blocks(**{"block_records": 2, **needs, name: value}))
    )


def field_of(name):
    def make(value):
        about = {"encoded": ("u1", (None,)), "axes": ("u1", (2, 2, 3))}.get(name, ("f4", (2,)))
        field = gl.Field(
            **{"name": "x", "dtype": np.dtype(about[0]), "shape": about[1], name: value}
        )
        assert gl.Spec((field,))["x" if name != "name" else value].with_() == field
        return str(field), hash(field), field.uniform, field.ragged, field.host_only

    return make


OFFSETS = np.array([0, 1, 3])
RAGGED = gl.Ragged(np.arange(3), OFFSETS)
SPEC = source().spec

# What is called, and which of VALUES it takes; the word behind the first comma is the argument.
CALLS = {
    "Loader, source": (read_with("source"), {"source"}),
    "Loader, batch_size": (read_with("batch_size"), {*WHOLE, "10**30"}),
    "Loader, ops": (read_with("ops"), {"[]", "()"}),
    "Loader, ops, one of them": (lambda argument: list(loader_of(ops=[argument])), {"op"}),
    "Loader, output": (read_with("output"), {"None", "label", "[label]"}),
    "Loader, output, one of them": (
        lambda argument: list(loader_of(output=("image", argument))),
        {"label", "[label]", "[]", "()", "{}"},
    ),
    "Loader, shuffle": (read_with("shuffle"), {"True", "bool_"}),
    "Loader, seed": (read_with("seed"), COUNTED),
    "Loader, shard_id": (
        lambda argument: list(loader_of(num_shards=3, shard_id=argument)),
        COUNTED,
    ),
    "Loader, num_shards": (read_with("num_shards"), {*WHOLE, "10**30"}),
    "Loader, last_batch": (read_with("last_batch"), set()),
    "Loader, device": (read_with("device"), set()),
    "Loader, executor": (read_with("executor"), set()),
    "Loader, num_threads": (read_with("num_threads"), {"None", *WHOLE}),
    "Loader, prefetch": (read_with("prefetch"), {"None", *WHOLE}),
    "Loader, drawn": (read_with("drawn"), {"True", "bool_"}),
    "Loader, on_error": (read_with("on_error"), set()),
    "Loader, max_bad": (read_with("max_bad"), {"0"}),
    "replace, batch_size": (
        lambda argument: loader_of().replace(batch_size=argument),
        {*WHOLE, "10**30"},
    ),
    "replace, ops": (lambda argument: loader_of().replace(ops=argument), {"[]", "()"}),
    "epoch, number": (lambda argument: list(loader_of().epoch(argument)), COUNTED),
    "batch_at, step": (lambda argument: loader_of().batch_at(argument), COUNTED),
    "batch_at, epoch": (lambda argument: loader_of().batch_at(0, argument), COUNTED),
    "state_dict, epoch": (lambda argument: loader_of().state_dict(argument), {"None", *COUNTED}),
    "state_dict, step": (lambda argument: json.dumps(loader_of().state_dict(0, argument)), COUNTED),
    "state_dict, step without epoch": (
        lambda argument: loader_of().state_dict(step=argument),
        {"0"},
    ),
    "load_state_dict": (lambda argument: loader_of().load_state_dict(argument), set()),
    "load_state_dict, version": (changed_state("version"), {*WHOLE, "float32", "0-d"}),
    "load_state_dict, epoch": (changed_state("epoch"), {*COUNTED, "0-d"}),
    "load_state_dict, position": (changed_state("position"), {*COUNTED, "0-d"}),
    "load_state_dict, source": (changed_state("source"), set()),
    "load_state_dict, records": (changed_state("records"), set()),
    "load_state_dict, seed": (changed_state("seed"), {"0"}),
    "load_state_dict, shuffle": (changed_state("shuffle"), set()),
    "load_state_dict, ops": (changed_state("ops"), {"[]", "()"}),
    "after, position": (lambda argument: loader_of().port.after(argument, 1), set()),
    "after, num_steps": (
        lambda argument: loader_of().port.after(loader_of().position, argument),
        {*COUNTED, "10**30"},
    ),
    "state_at, position": (lambda argument: loader_of().port.state_at(argument), set()),
    "count, name": (lambda argument: loader_of().port.count(argument), {"text", "label", "empty"}),
    "count, amount": (
        lambda argument: loader_of().port.count("batches", argument),
        {"True", "0", "-1", "2", "2.5", "nan", "10**30", "int64", "float32"},
    ),
    "batch[]": (lambda argument: batch_of()[argument], {"True", "0", "-1", "label", "slice"}),
    "batch[] of output": (
        lambda argument: batch_of(output=("image", "label"))[argument],
        {"True", "0", "-1", "label", "slice"},
    ),
    "Blocks, block_records": (blocks_of("block_records"), WHOLE),
    "Blocks, window_blocks": (blocks_of("window_blocks"), WHOLE),
    "Blocks, lanes": (blocks_of("lanes"), WHOLE),
    "Blocks, chunk": (blocks_of("chunk"), WHOLE),
    "Ragged, payload": (lambda argument: repr(gl.Ragged(argument, OFFSETS)), {"array"}),
    "Ragged, offsets": (lambda argument: gl.Ragged(np.arange(3), argument), set()),
    "Ragged.of": (
        lambda argument: gl.Ragged.of(argument, np.dtype("f4")),
        {"empty", "[]", "()", "{}"},
    ),
    "Ragged.of, one of them": (
        lambda argument: gl.Ragged.of([argument], np.dtype("f4")),
        {
            "array",
            "texts",
            "range",
            "source",
            "()",
            "[]",
            "[2]",
            "[None]",
            "[label]",
        },  # NumPy makes arrays of them
    ),
    "Ragged.of, dtype": (
        lambda argument: gl.Ragged.of([], argument),
        {"None", "[]", "{}", "class", "bool_", "int64", "float32"},  # NumPy makes dtypes of them
    ),
    "Ragged.of, shape": (
        lambda argument: gl.Ragged.of([], np.dtype("f4"), argument),
        {
            "()",
            "[]",
            "{}",
            "[2]",
            "empty",
            "bytes",
            "range",
        },  # they are empty, or hold whole numbers
    ),
    "with_payload": (lambda argument: RAGGED.with_payload(argument), {"array"}),
    "ragged[]": (lambda argument: RAGGED[argument], {"True", "0", "-1", "slice"}),
    "Field, name": (field_of("name"), {"text", "label"}),
    "Field, dtype": (field_of("dtype"), {"bool_", "int64", "float32"}),  # that of the value
    "Field, shape": (field_of("shape"), {"None", "()", "[]", "[None]", "[2]"}),
    "Field, encoded": (field_of("encoded"), {"True", "bool_"}),
    "Field, axes": (field_of("axes"), {"empty"}),
    "Spec": (lambda argument: gl.Spec(argument), {"()", "[]"}),
    "Spec, one of them": (lambda argument: gl.Spec((argument,)), set()),
    "spec[]": (lambda argument: SPEC[argument], {"label"}),
    "only": (
        lambda argument: SPEC.only(argument),
        {"label", "[label]", "{label}", "texts", "()", "[]", "{}"},
    ),
    "replacing": (lambda argument: SPEC.replacing(argument), set()),
    "check": (lambda argument: list(gl.check(argument)), {"source"}),
    "check, num_threads": (
        lambda argument: list(gl.check(source(), num_threads=argument)),
        {"None", *WHOLE},
    ),
    "zip, by": (lambda argument: gl.zip(source(), by=argument), {"None"}),
    "zip, missing": (lambda argument: gl.zip(source(), missing=argument), set()),
    "zip, by_file": (lambda argument: gl.zip(source(), by_file=argument), {"True", "bool_"}),
    "fixed, footer_bytes": (
        lambda argument: gl.fixed(__file__, "u1", footer_bytes=argument),
        COUNTED,
    ),
    "slice, start": (
        lambda argument: source()[argument:],
        {"None", "True", "0", "-1", "2", "10**30", "int64", "0-d"},
    ),
    "slice, step": (
        lambda argument: source()[::argument],
        {"None", "True", "-1", "2", "10**30", "int64", "0-d"},
    ),
    "filter, what it returns": (
        lambda argument: source().filter(lambda fields: argument, fields="label"),
        set(),
    ),
    "filter, one of the fields": (
        lambda argument: source().filter(lambda fields: np.ones(10, bool), fields=[argument]),
        {"label"},
    ),
    "resolve": (lambda argument: source().resolve(argument), set()),
}


@pytest.mark.parametrize(("call", "takes"), CALLS.values(), ids=CALLS)
def test_it_takes_a_value_or_says_why_not_and_what_to_do(call, takes, request):
    refused = {}

    for name, value in VALUES.items():
        try:
            call(value)
        except GpuloadError as error:
            refused[name] = error

    assert VALUES.keys() - refused.keys() == takes & VALUES.keys()
    assert [
        name for name, error in refused.items() if not (error.what and error.cause and error.remedy)
    ] == []
    argument = (*request.node.callspec.id.split(", "), "")[1]
    for remedy in {error.remedy for error in refused.values()}:
        check_what_it_says_to_type(remedy, argument, call)


CODE = r"\b(?:gl|numpy|loader|batch|ragged|source|field)(?:\.\w+|\[[^]]*\]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))+"
VALUE = r"'[^']*'|\([^)]*\)|\[[^]]*\]|\w+"


def check_what_it_says_to_type(remedy, argument, call):
    """Evaluate the code in a remedy, and call again with the values that it says an argument may
    have."""
    saved_state = json.dumps(loader_of().state_dict())
    names = {
        "gl": gl,
        "numpy": np,
        "json": json,
        "path": "state.json",
        "open": lambda path: io.StringIO(saved_state),
    }
    names |= {
        "source": source(),
        "loader": loader_of(),
        "batch": batch_of(),
        "ragged": RAGGED,
        "a": source(),
    }
    names |= {
        "array": np.zeros(3),
        "function": len,
        "field": SPEC["label"],
        "b": source().rename(image="x", label="y"),
    }
    names |= {"name": "label", "indices": [0, 1], "mask": np.ones(10, bool), "batch_size": 2}
    for code in re.findall(CODE, remedy):
        if "..." not in code:
            eval(code, names)
    value = re.findall(rf"\b{argument}=({VALUE})", remedy) if argument else []
    value += [
        repr(item)
        for part in re.findall(r"use one of (\(.*\))$", remedy)
        for item in ast.literal_eval(part)
    ]
    for text in value:
        if "..." not in text:
            call(eval(text, names))


# names that are not there

UNKNOWN = {
    "a field of a batch": lambda: batch_of()["nope"],
    "a field of a batch as an attribute": lambda: batch_of().label,
    "an attribute of a batch": lambda: batch_of().nope,
    "a field that output= leaves out": lambda: batch_of(output="label")["image"],
    "a field in output=": lambda: loader_of(output=("image", "nope")),
    "a field deep in output=": lambda: loader_of(output={"x": ["image", {"y": "nope"}]}),
    "a field that an op acts on": lambda: loader_of(ops=[gl.ops.RandomFlip(on="nope")]),
    "an argument of replace": lambda: loader_of().replace(nope=1),
    "a field of a spec": lambda: SPEC["nope"],
    "a field in only": lambda: SPEC.only(["image", "nope"]),
    "a field in replacing": lambda: SPEC.replacing(SPEC["label"].with_(name="nope")),
    "an attribute in with_": lambda: SPEC["label"].with_(nope=1),
    "a field to be renamed": lambda: source().rename(nope="x"),
    "a field to be marked": lambda: source().mark(nope="encoded"),
    "a mark": lambda: source().mark(image="nope"),
    "a field for a filter": lambda: source().filter(len, fields="nope"),
    "a field of a source": lambda: source()["nope"],
    "a way to end an epoch": lambda: loader_of(last_batch="nope"),
    "a device": lambda: loader_of(device="nope"),
    "an executor": lambda: loader_of(executor="nope"),
}


@pytest.mark.parametrize("use", UNKNOWN.values(), ids=UNKNOWN)
def test_a_name_that_is_not_there_is_told_with_those_that_are(use):
    with pytest.raises(GpuloadError) as caught:
        use()

    message = str(caught.value)
    assert re.search(r"nope|label|image", caught.value.what)
    assert caught.value.cause
    assert re.search(
        r"'image'|'label'|batch_size|'HWC'|encoded|'drop'|'cpu'|'array'|source\[0\]", message
    )


def test_a_batch_without_an_attribute_is_told_so_as_python_expects_it():
    batch = batch_of()

    assert not hasattr(batch, "shape")
    assert getattr(batch, "label", None) is None
    with pytest.raises(AttributeError, match=r"write batch\['label'\]"):
        _ = batch.label
    again = pickle.loads(pickle.dumps(batch))
    assert again["label"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [None, 3, "numpy.copy", [len]])
def test_fields_are_converted_by_a_function_alone(value):
    with pytest.raises(
        GpuloadError, match=r"remedy: pass one, as in batch\.with_fields\(numpy\.copy\)"
    ):
        batch_of().with_fields(value)


# what is taken does what it says


def test_numpy_numbers_are_numbers():
    plain, second = loader_of(batch_size=3, seed=5, num_threads=2, prefetch=3), loader_of(
        batch_size=np.int64(3), seed=np.uint8(5), num_threads=np.int32(2), prefetch=np.uint64(3)
    )  # fmt: skip

    assert json.dumps(second.state_dict(np.int64(1), np.int8(2))) == json.dumps(
        plain.state_dict(1, 2)
    )
    assert (second.batch_at(np.int64(2)).step, second.num_threads) == (2, 2)
    assert [batch["label"].tolist() for batch in second] == [
        batch["label"].tolist() for batch in plain
    ]


def test_a_state_of_numpy_values_and_tuples_is_the_same_state():
    loader = loader_of(ops=[gl.ops.RandomFlip()], shuffle=np.True_)
    state = loader.state_dict(2, 1)

    loader.load_state_dict(
        {**state, "epoch": np.int64(2), "position": np.array(4), "ops": tuple(state["ops"])}
    )

    assert (loader.position.epoch, loader.position.step, loader.position.offset) == (2, 1, 4)


def test_a_state_that_was_not_read_from_its_json_is_told_so():
    loader = loader_of()
    for value in (json.dumps(loader.state_dict()), Path("state.json"), b"{}"):
        with pytest.raises(GpuloadError, match=r"json\.load\(open\(path\)\)"):
            loader.load_state_dict(value)


def test_a_field_is_taken_in_the_forms_of_numpy():
    assert gl.Field("x", "f4", [np.int64(2), None]) == gl.Field("x", np.dtype("f4"), (2, None))
    assert gl.Spec([gl.Field("x", "f4", ())]) == gl.Spec((gl.Field("x", np.dtype("f4"), ()),))


@pytest.mark.parametrize(
    "about",
    [
        {"dtype": np.dtype("f4").newbyteorder("S")},
        {"dtype": np.dtype("f4,f4")},
        {"dtype": np.dtype("(2,)f4")},
        {"dtype": object},
        {"shape": (2, -1)},
        {"shape": (2, True)},
        {"encoded": True},
        {"dtype": "u1", "encoded": True},
        {"axes": "HWC"},
    ],
)
def test_a_field_that_contradicts_itself_is_refused(about):
    with pytest.raises(GpuloadError, match=r"gl\.Field\('x'\) with"):
        gl.Field(**{"name": "x", "dtype": np.dtype("f4"), "shape": (2,), **about})


def test_numbers_that_no_machine_can_do_are_refused_at_once():
    for arguments in ({"num_threads": 5000}, {"batch_size": 10**30, "last_batch": "pad"}):
        with pytest.raises(GpuloadError, match=r"num_threads = 5000|a batch of 10{30} records"):
            list(loader_of(**arguments))
    huge = gl.Blocks(block_records=2**60, window_blocks=2**60)
    assert sorted(loader_of(batch_size=10, shuffle=huge).batch_at(0)["label"]) == list(range(10))


# the bridge to TensorFlow, and the command line


def test_the_bridge_to_tensorflow_takes_loaders_alone():
    pytest.importorskip("tensorflow")
    from gpuload.bridges import tensorflow as gltf

    for use in (
        gltf.tensors,
        gltf.dataset,
        lambda argument: gltf.checkpoint(argument, "state.json"),
    ):
        for argument in (*VALUES.values(), batch_of(), SimpleNamespace(), gl.Loader):
            with pytest.raises(GpuloadError) as caught:
                use(argument)
            assert "batches come from a loader" in caught.value.cause
            assert "gl.Loader(source, batch_size=256)" in caught.value.remedy


def test_the_steps_between_two_states_are_a_number_of_steps():
    pytest.importorskip("tensorflow")
    from gpuload.bridges import tensorflow as gltf

    for name in VALUES.keys() - {"None", "2", "10**30", "int64"}:
        with pytest.raises(GpuloadError, match="every_steps") as caught:
            gltf.checkpoint(loader_of(), "state.json", every_steps=VALUES[name])
        assert caught.value.cause
        assert caught.value.remedy

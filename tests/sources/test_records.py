"""Records of the user's own reader."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import ClassVar

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError, SpecError
from gpuload.ragged import Ragged
from gpuload.sources.records import records
from gpuload.testing.sources import SourceContract, assert_same
from tests import simdevice

X = np.arange(40, dtype=np.float32).reshape(10, 4)
NAMES = np.array([f"record {number}" for number in range(10)])
LISTS = [np.arange(length, dtype=np.int16) for length in (3, 0, 5, 2, 7, 1, 1, 4, 6, 2)]
IMAGES = [np.full((2 + number, 5 - number % 3, 3), number, np.uint8) for number in range(10)]


def read_rows(indices):
    return {"x": X[indices], "name": NAMES[indices]}


def read_all(indices):
    return {
        "x": X.astype(">f4")[indices],
        "r": [LISTS[i] for i in indices],
        "image": [IMAGES[i] for i in indices],
    }


def read_bytes(indices):
    return {"data": [bytes(range(i)) for i in indices], "label": [int(i) for i in indices]}


class Table:
    """A reader that is a method."""

    def __init__(self, values):
        self.values = values

    def read(self, indices):
        return {"x": self.values[indices]}


class TestRows(SourceContract):
    def open(self, folder):
        return records(10, read_rows)

    def open_other(self, folder):
        return records(10, read_rows, version="2")

    def expected(self):
        return {"x": X, "name": NAMES}


class TestValuesOfEveryKind(SourceContract):
    def open(self, folder):
        return records(10, read_all)

    def open_other(self, folder):
        return records(9, read_all)

    def expected(self):
        return {"x": X, "r": LISTS, "image": IMAGES}


class TestBytes(SourceContract):
    def open(self, folder):
        return records(10, read_bytes)

    def open_other(self, folder):
        return records(10, read_bytes, fields={"data": ("u1", (None,)), "label": ("i8", (1,))})

    def expected(self):
        return {
            "data": [np.arange(number, dtype=np.uint8) for number in range(10)],
            "label": np.arange(10),
        }


class TestFieldsThatWereSaid(SourceContract):
    fields = {"image": ("u1", (None, None, 3)), "name": ("U40", ())}  # noqa: RUF012

    def read(self, indices):
        return {"name": [str(NAMES[i]) for i in indices], "image": [IMAGES[i] for i in indices]}

    def open(self, folder):
        return records(10, TestFieldsThatWereSaid().read, fields=self.fields)

    def open_other(self, folder):
        return records(10, TestFieldsThatWereSaid().read, fields=self.fields, version="of June")

    def expected(self):
        return {"image": IMAGES, "name": NAMES.astype("U40")}


class TestAMethodComposed(SourceContract):
    def open(self, folder):
        source = records(10, Table(X).read)
        return gl.concat(source[:3], gl.arrays(x=X[3:5]), source[5:]).rename(x="y")[1:]

    def open_other(self, folder):
        return records(10, Table(X).read)

    def expected(self):
        return {"y": X[1:]}


def test_fields_that_were_not_said_are_those_of_record_0():
    source = records(10, read_all)

    assert [str(field) for field in source.spec] == [
        "x: float32 (4,)",
        "r: int16 (None,)",
        "image: uint8 (None, None, None)",
    ]
    assert repr(source) == (
        "<gl.records: 10 records,\n  x: float32 (4,),\n  r: int16 (None,),\n  image: uint8 (None, None, None)>"
    )


def test_fields_that_were_said_are_not_read():
    def read(indices):
        raise AssertionError

    source = records(0, read, fields={"x": ("f4", 3)})

    assert source.spec["x"].shape == (3,)
    assert source.read([])["x"].shape == (0, 3)


@pytest.mark.parametrize("dtype", ["int64", np.int64, np.dtype(np.int64)], ids=str)
def test_a_dtype_alone_is_one_number_a_record(dtype):
    source = records(10, lambda indices: {"n": indices * 2}, fields={"n": dtype})

    assert source.spec["n"] == gl.Field("n", "i8", ())
    assert source.read([3, 1])["n"].tolist() == [6, 2]


def test_the_error_of_a_field_that_is_not_said_right_names_this_field_alone():
    with pytest.raises(SpecError, match="fields: 'x' is") as caught:
        records(10, read_rows, fields={"y": ("u1", (None, None, 3)), "x": ("f4",)})

    assert "'x'" in caught.value.what
    assert "'y'" not in caught.value.what


def test_one_call_reads_all_records_that_were_asked_for():
    requests = []

    def read(indices):
        requests.append(indices.tolist())
        assert indices.dtype == np.int64
        indices[:] = -1  # it is the function's own
        return {"x": X[requests[-1]]}

    source = records(10, read)
    values = source.read([4, 9, 4])

    assert requests == [[0], [4, 9, 4]]
    assert values["x"].tolist() == X[[4, 9, 4]].tolist()


def test_a_view_of_the_readers_own_data_is_copied():
    memory = X.copy()

    records(10, lambda indices: {"x": memory[: len(indices)]}).read([0, 1])["x"][...] = -1

    assert memory.tolist() == X.tolist()


def test_an_exception_of_the_function_reaches_the_caller_as_itself_and_says_for_which_records():
    class OutOfReach(Exception):
        pass

    def read(indices):
        if 7 in indices:
            raise OutOfReach("the table is gone")
        return {"x": X[indices]}

    source = records(10, read)
    with pytest.raises(OutOfReach) as caught:
        source.read([3, 7])
    with (
        gl.Loader(source, batch_size=4, device="cpu") as loader,
        pytest.raises(OutOfReach) as in_a_thread,
    ):
        list(loader)

    assert caught.value.__notes__ == ["gl.records: the function was asked for records 3, 7"]
    assert "records 4, 5, 6, 7" in in_a_thread.value.__notes__[0]


def wrong(result):
    """Return a reader that returns what it should for record 0 and then something else."""
    return lambda indices: {"x": X[indices]} if indices.tolist() == [0] else result(indices)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            lambda i: {"y": X[i]},
            r"(?s)records 3, 4: the function returned the fields \['y'\].*are \['x'\]",
        ),
        (lambda i: {"x": X[i], "y": X[i]}, r"the fields \['x', 'y'\]"),
        (lambda i: {}, "returned no field"),
        (lambda i: X[i], "the function returned ndarray"),
        (lambda i: None, "the function returned NoneType"),
        (
            lambda i: {"x": X[i].astype("f8")},
            r"(?s)'x' of record 3 has dtype float64.*float32 \(4,\).*astype\('<f4'\)",
        ),
        (
            lambda i: {"x": X[i][:, :3]},
            r"'x' of record 3 has shape \(3,\), the field is x: float32 \(4,\)",
        ),
        (lambda i: {"x": X}, r"(?s)'x' has 10 records.*asked for 2"),
        (lambda i: {"x": np.float32(3)}, "'x' has no axis of records"),
        (lambda i: {"x": [X[0], X[1][:2]]}, r"'x' of record 4 has shape \(2,\)"),
        (lambda i: {"x": [[1, 2], [3]]}, r"'x' of record 3 has shape \(2,\)"),
        (lambda i: {"x": [[1, 2, 3, 2**24 + 1]] * 2}, r"'x' of record 3 has dtype int64"),
        (lambda i: {"x": [[[1], [2, 3]], [3]]}, "a list cannot be made an array"),
        (lambda i: {"x": np.array([None, None])}, r"'x' of record 3 has dtype object"),
        (lambda i: {"x": []}, r"(?s)'x' has 0 records"),
    ],
)
def test_what_differs_from_the_fields_is_an_error_that_names_it(result, message):
    source = records(10, wrong(result))

    with pytest.raises(SpecError, match=message) as caught:
        source.read([3, 4])
    assert caught.value.cause
    assert caught.value.remedy


def test_a_longer_text_is_an_error_whose_remedy_works():
    def read(indices):
        return {"name": np.array(["x" * int(i + 1) for i in indices])}

    with pytest.raises(SpecError, match=r"fields=\{'name': \('<U8', \(\)\), \.\.\.\}"):
        records(10, read).read([3, 7])
    assert records(10, read, fields={"name": ("<U8", ())}).read([3])["name"].tolist() == ["xxxx"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, read_rows), "gl.records of length -1"),
        ((True, read_rows), "gl.records of length True"),
        (("10", read_rows), "gl.records of length '10'"),
        ((None, read_rows), "gl.records of length None"),
        ((2**70, read_rows), "gl.records of length"),
        ((0, read_rows), r"(?s)length 0.*fields="),
        ((10, X), "with read="),
        ((10, None), "with read=None"),
        ((10, lambda indices: {"a": np.array([None])}), "record 0: the dtype object"),
        ((10, lambda indices: {"a": np.float32(1)}), "'a' has no axis of records"),
        ((10, lambda indices: {"a": X}), "'a' has 10 records"),
        ((10, lambda indices: {"a": list(X)}), "'a' has 10 records"),
        ((10, lambda indices: {3: X[indices]}), "3 as the name of a field"),
        ((10, lambda indices: {"a": np.zeros(1, [("x", "u1")])}), "a field has one dtype"),
        ((10, lambda indices: [X[indices]]), "returned list"),
    ],
)
def test_arguments_that_are_none_are_refused(arguments, message):
    with pytest.raises(SpecError, match=message) as caught:
        records(*arguments)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "fields",
    [{}, ["x"], "x", {"x": "no"}, {"x": ("f4",)}, {"x": ("f4", "ab")}, {"x": ("f4", (-1,))}, {"x": ("f4", (1.5,))},
     {"x": ("f4", (True,))}, {"x": ("no", ())}, {"x": ("O", ())}, {"": ("f4", ())}, {3: ("f4", ())},
     {"x": ([("a", "u1")], ())}, {"x": ("f4", None)}, {"x": np.float32(2)}],
)  # fmt: skip
def test_fields_that_are_none_are_refused(fields):
    with pytest.raises(SpecError) as caught:
        records(10, read_rows, fields=fields)
    assert caught.value.remedy


def test_a_version_is_a_text():
    with pytest.raises(SpecError, match="version = 3"):
        records(10, read_rows, version=3)


def test_the_fingerprint_sees_length_fields_and_version_alone():
    fingerprint = records(10, read_rows).fingerprint()

    assert (
        records(10, lambda indices: {"x": -X[indices], "name": NAMES[indices]}).fingerprint()
        == fingerprint
    )
    assert records(9, read_rows).fingerprint() != fingerprint
    assert records(10, read_rows, version="b").fingerprint() != fingerprint
    assert records(10, lambda indices: {"x": X[indices]}).fingerprint() != fingerprint


def test_a_copy_does_not_read_record_0_again():
    source = records(10, read_rows, version="b")

    again = pickle.loads(pickle.dumps(source))

    assert again.fingerprint() == source.fingerprint()
    assert_same(again.read([3])["x"], X[[3]])


def test_threads_call_the_function_at_once():
    group = threading.Barrier(2, timeout=60)

    def read(indices):
        if 0 not in indices:  # record 0 is read when the source is made, and in the first step
            group.wait()
        return {"x": X[indices]}

    source = records(3, read, fields={"x": ("f4", (4,))})[1:]

    with gl.Loader(source, batch_size=1, num_threads=2, device="cpu") as loader:
        assert np.concatenate([batch["x"] for batch in loader]).tolist() == X[1:3].tolist()


def test_a_loader_asks_for_the_records_of_one_step_at_a_time():
    requests = []

    def read(numbers):
        requests.append(numbers.size)
        return {"x": numbers}

    source = gl.zip(
        gl.arrays(y=np.arange(1000)), records(1000, read, fields={"x": ("i8", ())}).rename(x="z")
    )
    assert [
        batch["z"].tolist() for batch in gl.Loader(source, 10, device="cpu", num_threads=1)
    ] == [list(range(first, first + 10)) for first in range(0, 1000, 10)]
    assert max(requests) == 10


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_batches_are_those_of_the_same_arrays(executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 9, 3), np.uint8)
    source = records(
        40, lambda indices: {"image": images[indices], "r": [np.arange(i) for i in indices]}
    )
    arguments = {
        "batch_size": 7, "shuffle": True, "seed": 3, "ops": [gl.ops.RandomFlip()], "executor": executor,
        "device": "cpu",
    }  # fmt: skip

    with (
        gl.Loader(source, **arguments) as loader,
        gl.Loader(gl.arrays(image=images), **arguments) as expected,
    ):
        for actual, want in zip(loader, expected, strict=True):
            assert np.array_equal(actual["image"], want["image"])
            assert isinstance(actual["r"], Ragged)
            assert [len(item) for item in actual["r"]] == actual.records.tolist()


def test_it_shuffles_splits_zips_and_resumes_as_any_source():
    source = gl.zip(records(10, read_rows), gl.arrays(y=np.arange(10)))
    train, _ = source.split(0.8, seed=1)
    loader = gl.Loader(train, batch_size=3, shuffle=True, seed=5, device="cpu")
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()

    rest = [batch["y"].tolist() for batch in batches]
    again = gl.Loader(train, batch_size=3, shuffle=True, seed=5, device="cpu")
    again.load_state_dict(state)

    assert [batch["y"].tolist() for batch in again] == rest
    second = gl.Loader(
        gl.zip(records(10, read_rows, version="2"), gl.arrays(y=np.arange(10))).split(0.8, seed=1)[0],
        batch_size=3, shuffle=True, seed=5, device="cpu",
    )  # fmt: skip
    with pytest.raises(GpuloadError):
        second.load_state_dict(state)


def test_values_reach_a_simulated_gpu(monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    source = records(10, lambda indices: {"x": X[indices], "r": [LISTS[i] for i in indices]})

    with gl.Loader(source, batch_size=3, shuffle=True, device="gpu", executor="array") as loader:
        for batch in loader:
            assert batch["x"].get().tolist() == X[batch.records].tolist()
            assert [item.get().tolist() for item in batch["r"]] == [
                LISTS[i].tolist() for i in batch.records
            ]
    del batch, loader
    gc.collect()
    sim.finish()


def test_a_dtype_of_none_is_no_float():
    with pytest.raises(SpecError, match="'x' has dtype None"):
        gl.records(3, lambda numbers: {"x": np.zeros(len(numbers))}, fields={"x": (None, ())})


def test_an_iterator_is_refused_with_what_takes_its_records():
    with pytest.raises(SpecError, match="an iterator gives each record once") as caught:
        gl.records(5, iter([np.arange(3), np.arange(3)]))

    assert "samples = list(iterator)" in caught.value.remedy


TEXTS = [f"text {number} größer" * (number * 40) for number in range(12)]


def read_texts(indices):
    return {
        "text": [TEXTS[i] for i in indices],
        "words": [TEXTS[i].split()[:i] for i in indices],
        "pair": np.array([[f"a{i}".encode(), b"\xff"] for i in indices], object),
    }


class TestTextsOfAnyLength(SourceContract):
    fields: ClassVar = {"text": (str, ()), "words": (str, (None,)), "pair": (bytes, (2,))}

    def open(self, folder):
        return records(len(TEXTS), read_texts, fields=self.fields)

    def open_other(self, folder):
        return records(5, read_texts, fields=self.fields)

    def expected(self):
        whole = read_texts(range(len(TEXTS)))
        objects = np.empty(len(TEXTS), object)
        objects[:] = TEXTS
        return {
            "text": objects,
            "words": [np.array(words, object) for words in whole["words"]],
            "pair": whole["pair"],
        }


def test_a_list_of_str_is_text_of_any_length_without_being_told():
    source = records(12, lambda indices: {"text": [TEXTS[i] for i in indices]})

    assert str(source.spec) == "text: str ()"
    assert [text for batch in gl.Loader(source, batch_size=5) for text in batch["text"]] == TEXTS


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda indices: {"text": [3] * len(indices)}, "has int 3"),
        (lambda indices: {"text": ["a"] * 9}, "has 9 records"),
        (lambda indices: {"text": 5}, "has no axis of records"),
        (lambda indices: {"text": [["a"]] * len(indices)}, r"has list \['a'\]"),
    ],
)
def test_what_is_no_text_is_refused_by_its_field(result, message):
    with pytest.raises(gl.GpuloadError, match=f"'text' {message}"):
        records(4, result, fields={"text": (str, ())}).read([0, 1])


def test_a_record_with_another_number_of_texts_is_named():
    source = records(
        4, lambda indices: {"x": [["a"] * i for i in indices]}, fields={"x": (str, (2,))}
    )

    with pytest.raises(gl.GpuloadError, match=r"record 1: field 'x' has texts of shape \(1,\)"):
        source.read([2, 1])


def test_lists_of_numbers_become_the_dtype_of_their_field():
    boxes, labels = [[], [[10, 20.5, 30, 40]], [[1, 2, 3, 4], [5, 6, 7, 8]]], [[], [3], [1, 2]]
    fields = {
        "boxes": ("float32", (None, 4)),
        "labels": ("int16", (None,)),
        "area": ("float32", ()),
    }

    def read(indices):
        return {
            "boxes": [boxes[n] for n in indices],
            "labels": [labels[n] for n in indices],
            "area": [1] * len(indices),
        }

    values = records(3, read, fields=fields).read([0, 1, 2])

    assert [rows.dtype for rows in values["boxes"]] == [np.float32] * 3
    assert [rows.shape for rows in values["boxes"]] == [(0, 4), (1, 4), (2, 4)]
    assert values["boxes"][1].tolist() == [[10, 20.5, 30, 40]]
    assert [rows.tolist() for rows in values["labels"]] == labels
    assert values["area"].dtype == np.float32


@pytest.mark.parametrize(
    "numbers", [[1.5], [40000], [2**70], [True], ["1"], [np.int64(3)], np.array([3])]
)
def test_lists_of_numbers_that_the_field_does_not_hold_are_refused(numbers):
    source = records(
        1, lambda indices: {"labels": [numbers]}, fields={"labels": ("int16", (None,))}
    )

    with pytest.raises(SpecError, match="'labels' of record 0 has dtype"):
        source.read([0])

"""Splits by class, and single fields of records; expected values by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload as gl
from gpuload.errors import ClosedError, RecordIndexError, SpecError, UnknownFieldError
from gpuload.order import Split


def labelled(labels):
    labels = np.asarray(labels)
    return gl.arrays(x=np.arange(len(labels)), label=labels)


def numbers(source):
    return source.read(range(len(source)), fields="x")["x"].tolist()


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.lists(st.integers(1, 9), min_size=2, max_size=5),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
def test_several_fractions_are_parts_that_share_all_records(labels, weights, seed, has_classes):
    fractions = [weight / sum(weights) for weight in weights]
    parts = labelled(labels).split(fractions, seed, by="label" if has_classes else None)

    ends = [round(float(end) * len(labels)) for end in np.cumsum(fractions)]
    assert np.cumsum([len(part) for part in parts]).tolist()[:-1] == ends[:-1]
    assert sorted(number for part in parts for number in numbers(part)) == list(range(len(labels)))
    assert all(numbers(part) == sorted(numbers(part)) for part in parts)
    if has_classes:
        for part, fraction in zip(parts, fractions, strict=True):
            for name in set(labels):
                count = np.count_nonzero(part.read(range(len(part)), "label")["label"] == name)
                assert abs(count - fraction * labels.count(name)) < 2


@pytest.mark.parametrize("by", [None, "label"])
def test_two_fractions_are_the_two_parts_of_the_first(by):
    source = labelled(np.arange(50) % 3)

    for first, second in zip(
        source.split((0.7, 0.3), 5, by), source.split(0.7, 5, by), strict=True
    ):
        assert first.fingerprint() == second.fingerprint()
    assert (
        source.split((0.7, 0.2, 0.1), 5, by)[0].fingerprint()
        == source.split(0.7, 5, by)[0].fingerprint()
    )


def test_further_parts_are_independent_splits_of_the_rest():
    source = labelled(np.zeros(100))
    rest = np.array(numbers(source.split(0.5, 7)[1]))

    _, second, third = source.split((0.5, 0.25, 0.25), 7)

    of_rest = Split(50, 25, 7, False, number=1)  # of another number than that of the first split
    assert numbers(second) == rest[of_rest.at(np.arange(25))].tolist()
    assert numbers(third) == sorted({*rest.tolist()} - {*numbers(second)})


@pytest.mark.parametrize(
    "fractions", [(0.7, 0.2), (7, 2, 1), (0.5, -0.5, 1), (1.0,), (), (float("nan"), 1), ("a", 1)]
)
def test_fractions_that_are_not_one_together_are_refused(fractions):
    with pytest.raises(SpecError, match="fraction"):
        labelled([0] * 10).split(fractions)


def test_fractions_side_by_side_are_answered_with_the_call_that_takes_them():
    source = labelled([0] * 10)

    with pytest.raises(SpecError) as caught:
        source.split(0.7, 0.2, 0.1)

    call = str(caught.value).rpartition("together: ")[2]
    assert [len(part) for part in eval(call, {"source": source})] == [7, 2, 1]


def counts(source):
    return np.bincount(source.read(range(len(source)), fields="label")["label"]).tolist()


def test_each_class_is_split_by_largest_remainders():
    source = labelled(
        [0] * 5 + [1] * 3 + [2] * 2
    )  # 2.5, 1.5 and 1: 5 records, and the tie goes to class 0

    first, second = source.split(0.5, seed=1, by="label")

    assert counts(first) == [3, 1, 1]
    assert counts(second) == [2, 2, 1]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=80),
    st.fractions(0, 1, max_denominator=40),
    st.integers(0, 2**64 - 1),
)
def test_the_parts_share_all_records_in_their_order_and_keep_proportions(labels, fraction, seed):
    source = labelled(labels)

    first, second = source.split(float(fraction), seed, by="label")

    assert len(first) == round(float(fraction) * len(labels))
    numbers = [part.read(range(len(part)))["x"] for part in (first, second)]
    assert sorted(np.concatenate(numbers)) == list(range(len(labels)))
    assert all((np.diff(part) > 0).all() for part in numbers)
    for label in set(labels):
        num_first = (np.asarray(labels)[numbers[0]] == label).sum()
        assert abs(num_first - fraction * labels.count(label)) < 1


def test_the_choice_is_the_same_each_time_and_another_for_another_seed():
    source = labelled(np.arange(200) % 4)

    def chosen(seed, by="label"):
        return source.split(0.5, seed, by=by)[0].read(range(100))["x"].tolist()

    assert (
        chosen(3)
        == chosen(3)
        == chosen(3, by=np.arange(200) % 4)
        == chosen(3, by=list("abcd" * 50))
    )
    assert chosen(3) != chosen(4)
    places = [
        np.array([number // 4 for number in chosen(3) if number % 4 == label]) for label in range(4)
    ]
    assert not all(
        np.array_equal(places[0], item) for item in places[1:]
    )  # classes of one size are drawn by themselves


def test_texts_and_bytes_are_classes_and_records_keep_their_fields():
    for labels in (np.array(["cat", "dog"] * 5), np.array([b"cat", b"dog"] * 5)):
        first, second = labelled(labels).split(0.6, by="label")

        assert sorted(first.read(range(6))["label"].tolist()) == sorted(labels[:6].tolist())
        assert len(second) == 4


def test_texts_of_any_length_are_classes():
    texts = ["cat", "a longer name"] * 5
    fields = {"label": ("u1", (None,))}
    source = gl.records(
        10, lambda numbers: {"label": [texts[i].encode() for i in numbers]}, fields=fields
    )

    for by in ("label", texts, np.array(texts, object)):
        first, _ = source.split(0.6, by=by)
        assert (
            sorted(bytes(item) for item in first.read(range(6))["label"])
            == [b"a longer name"] * 3 + [b"cat"] * 3
        )


def test_the_state_of_a_split_by_class_belongs_to_that_split():
    loaders = [
        gl.Loader(labelled(np.arange(40) % 2).split(0.5, seed, by="label")[0], 4)
        for seed in (1, 1, 2)
    ]

    loaders[1].load_state_dict(loaders[0].state_dict())
    with pytest.raises(gl.GpuloadError, match="another run"):
        loaders[2].load_state_dict(loaders[0].state_dict())


@pytest.mark.parametrize(
    ("by", "error", "message"),
    [
        ("lable", UnknownFieldError, "no field 'lable'"),
        ("score", SpecError, r"by field score: float64(.|\n)*by='label'"),
        ("two", SpecError, r"by field two: int64 \(2,\)"),
        ([1, 2], SpecError, r"the classes of 4 records by int64 \(2,\)"),
        (3, SpecError, r"by int64 \(\)"),
        ([0.5] * 4, SpecError, "by float64"),
    ],
)
def test_what_is_no_class_is_refused(by, error, message):
    source = gl.arrays(label=np.arange(4), score=np.ones(4), two=np.ones((4, 2), int))

    with pytest.raises(error, match=message):
        source.split(0.5, by=by)


def test_a_split_by_class_reads_no_image(tmp_path):
    for number in range(8):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(b"\xff\xd8\xff\xe0 no image")
    source = gl.images(tmp_path, labels="folder")
    for file in tmp_path.rglob("*.jpg"):
        file.unlink()  # so that reading one would be an error

    first, _ = source.split(0.5, by="label")

    assert sorted(first.read(range(4), fields="label")["label"].tolist()) == [0, 0, 1, 1]
    with pytest.raises(gl.GpuloadError):
        first.read([0])


def test_single_fields_are_read_in_the_order_in_which_they_are_named(tmp_path):
    np.save(tmp_path / "a.npy", np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")]))
    source = gl.zip(gl.npy(tmp_path / "a.npy"), gl.arrays(c=["x", "y"]))

    assert list(source.read([0], fields=["c", "a"])) == ["c", "a"]
    assert source.read([1, 0], fields="b")["b"].tolist() == [4.5, 2.5]
    assert list(source.read([1], fields="b")) == ["b"]
    assert list(source.read([1])) == ["a", "b", "c"]


def test_fields_behind_ops_are_read_without_the_others():
    def failing(x):
        raise ValueError("was called")

    source = gl.arrays(x=np.ones((4, 2, 2, 1)), label=np.arange(4))
    ops = [gl.ops.Python(failing, on="x", out={}), gl.ops.OneHot(4, on="label")]
    behind = gl.Loader(source, 2, ops=ops).to_source()

    assert behind.read([2], fields="label")["label"].tolist() == [[0, 0, 1, 0]]
    with pytest.raises(ValueError, match="was called"):
        behind.read([2])


@pytest.mark.parametrize(
    ("fields", "error"),
    [("y", UnknownFieldError), (["x", "y"], UnknownFieldError), ([], SpecError), (3, SpecError)],
)
def test_fields_that_are_not_there_are_refused(fields, error):
    source = gl.arrays(x=[1, 2])

    with pytest.raises(error, match=r"\['x'\]"):
        source.read([0], fields=fields)
    with pytest.raises(RecordIndexError):
        source.read([2], fields="x")
    source.close()
    with pytest.raises(ClosedError):
        source.read([0], fields="x")
    with pytest.raises(ClosedError):
        source.split(0.5, by="x")

"""Records that are kept by a mask or by a function of their fields."""

from __future__ import annotations

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import ClosedError, GpuloadError, SpecError, UnknownFieldError
from gpuload.ragged import Ragged
from gpuload.sources import filtering
from gpuload.sources.base import Selected
from gpuload.testing.sources import SourceContract
from tests import imagefiles

X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) * 3 % 7
NAMES = np.array(["cat", "dog", "ox"])[Y % 3]
LISTS = [np.arange(length, dtype=np.int16) for length in (3, 0, 5, 2, 7, 1, 1, 4, 6, 2)]


def table():
    return gl.arrays(x=X, y=Y, name=NAMES)


def with_lists(folder):
    for number, values in enumerate(LISTS):
        np.save(folder / f"{number}.npy", values)
    return gl.zip(gl.npy(f"{folder}/*.npy", field="r", record="file"), table())


class TestFiltered(SourceContract):
    def open(self, folder):
        return table().filter(lambda fields: fields["y"] > 2, fields="y")

    def open_other(self, folder):
        return table().filter(lambda fields: fields["y"] > 3, fields="y")

    def expected(self):
        return {"x": X[Y > 2], "y": Y[Y > 2], "name": NAMES[Y > 2]}


class TestFilteredByMaskOfAPart(SourceContract):
    mask = (True, False, True, True, True, False, False)

    def open(self, folder):
        return with_lists(folder)[3:].filter(list(self.mask))

    def open_other(self, folder):
        return with_lists(folder)[3:].filter(np.array(self.mask)[::-1])

    def expected(self):
        choice = (np.flatnonzero(self.mask) + 3).tolist()
        return {
            "r": [LISTS[i] for i in choice],
            "x": X[choice],
            "y": Y[choice],
            "name": NAMES[choice],
        }


def test_the_result_is_a_selection_that_stores_numbers():
    source = table().filter(Y > 2)[1:]

    assert isinstance(source, Selected)
    assert source._selection.tolist() == np.flatnonzero(Y > 2)[1:].tolist()
    assert source.fingerprint() == table().select(np.flatnonzero(Y > 2)[1:]).fingerprint()


def test_a_function_is_given_the_fields_that_were_named_and_no_others(tmp_path):
    value = []

    def keep(fields):
        value.append(fields)
        return np.array([len(values) > 2 for values in fields["r"]]) & (fields["name"] == "cat")

    source = with_lists(tmp_path).filter(keep, fields=("name", "r"))

    assert source.read(range(len(source)))["r"].lengths.tolist() == [
        len(values)
        for values, name in zip(LISTS, NAMES, strict=True)
        if len(values) > 2 and name == "cat"
    ]
    assert [list(fields) for fields in value] == [["name", "r"]]
    assert isinstance(value[0]["r"], Ragged)
    assert value[0]["name"].tolist() == NAMES.tolist()


def test_records_are_read_some_at_a_time_and_large_ones_fewer(tmp_path, monkeypatch):
    monkeypatch.setattr(filtering, "CHUNK_RECORDS", 4)
    monkeypatch.setattr(filtering, "CHUNK_VARYING", 3)
    counts = []

    def keep(fields):
        counts.append(len(next(iter(fields.values()))))
        return np.ones(counts[-1], np.bool_)

    assert len(table().filter(keep, fields="x")) == 10
    assert counts == [4, 4, 2]
    counts.clear()
    assert len(with_lists(tmp_path).filter(keep, fields="r")) == 10
    assert counts == [3, 3, 3, 1]
    counts.clear()
    monkeypatch.setattr(filtering, "CHUNK_RECORDS", 100)
    monkeypatch.setattr(filtering, "CHUNK_BYTES", 5 * 16)
    table().filter(keep, fields="x")
    assert sum(counts) == 10
    assert max(counts) <= 5
    counts.clear()
    monkeypatch.setattr(filtering, "CHUNK_BYTES", 1)
    table().filter(keep, fields="x")
    assert counts == [1] * 10


def test_image_files_are_not_read_for_their_labels(tmp_path, monkeypatch):
    for number in range(6):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(imagefiles.png(3, 4))
    source = gl.images(tmp_path)
    monkeypatch.setattr(type(source._leaves[0]), "read", None)

    assert len(source.filter(lambda fields: fields["label"] == 1, fields=["label"])) == 3


def test_a_source_without_records_is_filtered_without_a_call():
    assert len(table()[:0].filter(lambda fields: None, fields="x")) == 0
    assert len(table()[:0].filter([])) == 0


def test_an_exception_of_the_function_reaches_the_caller_and_says_for_which_records():
    with pytest.raises(ZeroDivisionError) as caught:
        table().filter(lambda fields: 1 // 0, fields="y")

    assert caught.value.__notes__ == ["source.filter: the function was given records 0 to 9"]


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (
            lambda fields: True,
            r"given records 0 to 9, got True(.|\n)*shape \(10,\)(.|\n)*compare whole arrays",
        ),
        (lambda fields: fields["y"][0] > 1, f"got {np.False_!r}"),
        (lambda fields: None, "got None"),
        (lambda fields: fields["y"], r"got int64 of shape \(10,\)(.|\n)*astype\(bool\)"),
        (lambda fields: fields["y"][:3] > 2, r"got bool of shape \(3,\)"),
        (lambda fields: np.ones((10, 1), bool), r"got bool of shape \(10, 1\)"),
        (lambda fields: [[1], [1, 2]], "a value that is no array"),
    ],
)
def test_a_function_that_returns_no_mask_is_refused(keep, message):
    with pytest.raises(SpecError, match=message) as caught:
        table().filter(keep, fields="y")
    assert caught.value.remedy


@pytest.mark.parametrize(
    "keep",
    [
        None,
        True,
        3,
        "yes",
        b"x",
        [True] * 9,
        [True] * 11,
        [0, 1],
        np.ones((10, 1), bool),
        Y,
        [[1], [1, 2]],
    ],
)
def test_what_is_no_mask_is_refused(keep):
    with pytest.raises(SpecError, match=r"source\.filter of a source of 10 records got") as caught:
        table().filter(keep)
    assert caught.value.remedy


@pytest.mark.parametrize("fields", [None, (), 3, {"y"}, np.array(["y"])])
def test_the_fields_of_a_function_are_named(fields):
    with pytest.raises(SpecError, match=r"fields=\('name',\)(.|\n)*\['x', 'y', 'name'\]"):
        table().filter(lambda value: value["y"] > 2, fields=fields)


def test_fields_that_are_not_there_and_fields_of_a_mask_are_refused():
    with pytest.raises(UnknownFieldError, match="no field 'z'"):
        table().filter(lambda fields: Y > 2, fields="z")
    with pytest.raises(SpecError, match="fields are for a function"):
        table().filter(Y > 2, fields="y")


def test_a_closed_source_is_not_filtered():
    source = table()
    source.close()

    with pytest.raises(ClosedError):
        source.filter(np.ones(10, bool))


def test_a_mask_is_no_list_of_numbers_and_the_remedy_says_filter():
    with pytest.raises(GpuloadError, match=r"source\.filter\(mask\)"):
        table().select(Y > 2)


def test_a_filtered_source_goes_through_a_loader():
    source = table().filter(lambda fields: fields["name"] == "cat", fields="name")

    with gl.Loader(source, batch_size=2, shuffle=True, device="cpu", output="y") as loader:
        values = np.concatenate([batch["y"] for batch in loader])

    assert sorted(values.tolist()) == sorted(Y[NAMES == "cat"].tolist())

"""Files of Python objects: which records they have, and what is refused; expected values are what
was pickled."""

from __future__ import annotations

import logging
import os
import re

import numpy as np
import pytest

import gpuload as gl
from gpuload import cli
from gpuload.errors import ChangedFileError, FormatError, SpecError
from gpuload.formats.npy import pickles


def save(path, content):
    array = np.empty((), object)
    array[()] = content
    np.save(path, array, allow_pickle=True)


def save_items(path, items):
    array = np.empty(len(items), object)
    for number, item in enumerate(items):
        array[number] = item
    np.save(path, array, allow_pickle=True)


def converted(folder, out="out.npz", **arguments):
    """Return the source of what the files of a folder were converted to."""
    result = gl.convert(f"{folder}/*.npy", folder / out, allow_pickle=True, **arguments)
    return eval(result.call, {"gl": gl})


LABELS = {
    "int": int,
    "NumPy scalar": np.int64,
    "array without axes": np.array,
    "bool": lambda i: i % 2 == 0,
}


@pytest.mark.parametrize("suffix", ["npz", "npy", "tfrecord"])
@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_each_file_with_a_dict_is_one_record(tmp_path, label, suffix):
    for i in range(6):  # the arrays have as many rows as each other, and are not cut
        save(
            tmp_path / f"{i}.npy",
            {"a": np.full((4, 5), i, "f4"), "b": np.zeros((4, 2), "f4"), "label": label(i)},
        )

    tensors = {"tensors": ["a", "b"]} if suffix == "tfrecord" else {}
    source = converted(tmp_path, f"out.{suffix}", **tensors)

    read = source.read(range(6))
    assert len(source) == 6
    np.testing.assert_array_equal(read["a"], np.stack([np.full((4, 5), i, "f4") for i in range(6)]))
    assert read["b"].shape == (6, 4, 2)
    assert read["label"].tolist() == [label(i) for i in range(6)]


def test_files_without_a_scalar_are_not_cut_into_rows(tmp_path):
    for i in range(6):
        save(tmp_path / f"{i}.npy", {"a": np.full((4, 5), i, "f4"), "b": np.full((4, 2), i)})

    source = converted(tmp_path)

    assert len(source) == 6
    assert source.read([5])["b"].tolist() == [[[5, 5]] * 4]


def test_a_single_dict_is_one_record_and_its_rows_are_asked_for(tmp_path, caplog):
    save(tmp_path / "a.npy", {"x": np.arange(6).reshape(3, 2), "y": [7, 8, 9]})

    with caplog.at_level(logging.WARNING, "gpuload"):
        assert len(converted(tmp_path, "one.npz")) == 1
    table = converted(tmp_path, "rows.npz", record="row")

    assert "record='row' (--record row) makes 3 records" in caplog.text
    assert table.read(range(3))["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert table.read(range(3))["y"].tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    "save_tuple",
    [save, save_items],
    ids=["tuple", "array of objects"],
)
def test_each_file_with_a_tuple_is_one_record(tmp_path, save_tuple):
    for i in range(3):
        save_tuple(
            tmp_path / f"{i}.npy", (np.full((2, 2), i, "u1"), np.full(3, i, "f8"), f"name {i}")
        )

    read = converted(tmp_path).read(range(3))

    assert read["x0"].tolist() == [[[i, i], [i, i]] for i in range(3)]
    assert read["x1"].tolist() == [[float(i)] * 3 for i in range(3)]
    assert read["x2"].tolist() == ["name 0", "name 1", "name 2"]


RECORDS = [(np.full((2, 3), i, "f4"), i) for i in range(4)]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ([{"a": a, "label": label} for a, label in RECORDS], ("a", "label")),
        (RECORDS, ("x0", "x1")),
        ([list(record) for record in RECORDS], ("x0", "x1")),
    ],
    ids=["dicts", "tuples", "lists"],
)
@pytest.mark.parametrize("num_files", [1, 2])
@pytest.mark.parametrize("form", [save, save_items], ids=["list", "array"])
def test_a_list_of_records_in_a_file_is_a_record_for_each(
    tmp_path, content, names, num_files, form
):
    for number in range(num_files):
        half = len(content) // num_files
        form(tmp_path / f"{number}.npy", content[half * number : half * (number + 1)])

    read = converted(tmp_path).read(range(4))

    assert tuple(read) == names
    assert read[names[0]].tolist() == [a.tolist() for a, _ in RECORDS]
    assert read[names[1]].tolist() == [0, 1, 2, 3]


def test_an_array_of_objects_with_two_axes_has_a_record_for_each_row(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1, "a"], [2, "bc"]], object), allow_pickle=True)

    read = converted(tmp_path).read(range(2))

    assert (read["x0"].tolist(), read["x1"].tolist()) == ([1, 2], ["a", "bc"])


def test_a_structured_array_with_objects_has_a_record_for_each_row(tmp_path):
    table = np.array([(1, "a"), (2, "bc")], [("number", "i4"), ("name", object)])
    np.save(tmp_path / "a.npy", table, allow_pickle=True)

    read = converted(tmp_path).read(range(2))

    assert (read["number"].tolist(), read["name"].tolist()) == ([1, 2], ["a", "bc"])


def test_an_archive_with_objects_is_a_dict(tmp_path):
    for i in range(3):
        np.savez(
            tmp_path / f"{i}.npz",
            image=np.full((2, 2), i),
            label=np.array({"cat": i}["cat"], object),
        )

    result = gl.convert(f"{tmp_path}/?.npz", tmp_path / "out.npz", allow_pickle=True)

    assert np.load(result.paths[0])["label"].tolist() == [0, 1, 2]


def test_values_of_one_kind_in_several_files_have_to_be_explained(tmp_path):
    for i in range(2):
        save_items(tmp_path / f"{i}.npy", [np.full(2, i), np.full(3, i)])

    with pytest.raises(
        SpecError, match=r"0\.npy holds 2 values of one kind(.|\n)*record='file'(.|\n)*record='row'"
    ):
        converted(tmp_path)

    by_file = converted(tmp_path, "a.npz", record="file").read(range(2))
    assert (by_file["x0"].tolist(), by_file["x1"].tolist()) == (
        [[0, 0], [1, 1]],
        [[0] * 3, [1] * 3],
    )
    by_row = converted(tmp_path, "a.tfrecord", record="row").read(range(4))
    assert [item.tolist() for item in by_row["x"]] == [[0, 0], [0, 0, 0], [1, 1], [1, 1, 1]]


def test_arrays_whose_first_axis_varies_become_ragged(tmp_path):
    for i in range(3):
        save(tmp_path / f"{i}.npy", {"x": np.arange(i + 1), "y": b"ab\0"[: i + 1]})

    read = converted(tmp_path, "out.tfrecord").read(range(3))

    assert [item.tolist() for item in read["x"]] == [[0], [0, 1], [0, 1, 2]]
    assert [item.tobytes() for item in read["y"]] == [b"a", b"ab", b"ab\0"]


def test_a_format_of_one_shape_names_the_whole_call_for_arrays_that_vary(tmp_path):
    for i in range(2):
        save(
            tmp_path / f"{i}.npy",
            {"x": np.ones((i + 1, i + 2), "f4"), "y": np.ones(2, "f8"), "z": np.ones(i + 1)},
        )

    with pytest.raises(SpecError, match=r"\.tfrecord(.|\n)*tensors=\['x', 'y', 'z'\]"):
        converted(tmp_path)

    read = converted(tmp_path, "out.tfrecord", tensors=["x", "y", "z"]).read(range(2))
    assert [item.shape for item in read["x"]] == [(1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2.5], "f8"),
        ([np.float32(1), np.float64(2)], "f8"),
        ([np.uint8(1), -1], "i8"),
        ([True, 2], "i8"),
        (["a", "bcd"], "U3"),
        ([1 + 2j, 3j], "c16"),
        ([np.datetime64("2020-01-01"), np.datetime64("2021-01-01")], "M8[D]"),
    ],
)
def test_a_field_has_the_smallest_dtype_that_holds_all_values(tmp_path, values, dtype):
    for number, value in enumerate(values):
        save(tmp_path / f"{number}.npy", {"x": value})

    read = converted(tmp_path).read(range(len(values)))["x"]

    assert read.dtype == dtype
    assert read.tolist() == [
        value.item() if isinstance(value, np.generic) else value for value in values
    ]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([{"x": 1, "y": 2}, {"x": 1}], r"1\.npy has no field 'y'(.|\n)*\['x', 'y'\]"),
        ([{"x": 1}, {"x": 1, "y": 2}], r"1\.npy has the field 'y'"),
        ([{"x": 1}, {"x": None}], r"field 'x' of .*1\.npy is None(.|\n)*-1 or NaN"),
        ([{"x": 1}, {"x": "a"}], r"field 'x' of .*1\.npy is text(.|\n)*0\.npy is a number"),
        ([{"x": 1}, {"x": b"a"}], r"field 'x' of .*1\.npy has 1 axes(.|\n)*0\.npy has 0"),
        ([{"x": np.ones(2)}, {"x": np.ones((2, 2))}], r"1\.npy has 2 axes(.|\n)*reshape"),
        ([{"x": {"y": 1}}], r"field 'x' of .*0\.npy is a dict(.|\n)*keys of their own"),
        ([{"x": {1, 2}}], r"field 'x' of .*0\.npy is a set"),
        ([{"x": [[1], [2, 3]]}], r"field 'x' of .*0\.npy is a list"),
        ([{"x": 2**70}], r"field 'x' of .*0\.npy is a int"),
        ([{"x": np.ma.masked_array([1, 2], [0, 1])}], r"is a MaskedArray"),
        ([{"x": 2**53 + 1}, {"x": 0.5}], r"0\.npy holds whole numbers that float64 cannot hold"),
        (
            [{"x": np.uint64(2**64 - 1)}, {"x": -1}],
            r"0\.npy holds whole numbers that float64 cannot hold",
        ),
        ([{"x": 1}, {}], r"1\.npy has no fields"),
        ([()], r"0\.npy has no fields"),
        ([{1: 2}], r"0\.npy: its key 1(.|\n)*which are texts"),
        ([{1, 2}], r"0\.npy holds one set"),
        ([3], r"0\.npy holds one int"),
        ([[{"x": 1}, {"y": 1}]], r"0\.npy, record 1 has no field 'x'"),
    ],
)
def test_what_is_no_record_is_refused_by_its_file_and_field(tmp_path, contents, message):
    for number, content in enumerate(contents):
        save(tmp_path / f"{number}.npy", content)

    with pytest.raises((FormatError, SpecError), match=message):
        converted(tmp_path)

    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    "content", [{"x": np.arange(3), "y": 1}, {"x": np.arange(3), "y": np.arange(2)}]
)
def test_a_dict_whose_values_have_other_lengths_has_no_rows(tmp_path, content):
    save(tmp_path / "a.npy", content)

    with pytest.raises(
        FormatError,
        match=r"a\.npy: its values have \{'x': 3, 'y': (None|2)\} items(.|\n)*leave record=",
    ):
        converted(tmp_path, record="row")


def test_single_values_of_different_kinds_in_one_file_name_the_way_to_one_record(tmp_path):
    save_items(tmp_path / "a.npy", [np.ones((2, 2)), 1, "cat"])

    with pytest.raises(FormatError, match=r"--record file"):
        converted(tmp_path)

    assert converted(tmp_path, record="file").read([0])["x2"].tolist() == ["cat"]


@pytest.mark.parametrize("opener", [gl.npy, gl.open])
def test_the_refusal_of_a_source_names_the_call_that_works(tmp_path, monkeypatch, opener, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my data").mkdir()
    save(tmp_path / "my data" / "a.npy", {"x": np.ones(2), "label": 3})

    with pytest.raises(FormatError) as refusal:
        opener("my data/a.npy")
    call = re.search(r"gl\.convert\(.*?allow_pickle=True\)", refusal.value.remedy)[0]
    command = re.search(r"gpuload convert .*", refusal.value.remedy)[0]

    assert eval(call, {"gl": gl}).num_records == 1
    os.unlink("records.npz")
    os.unlink("records.npz.convert.jsonl")
    import shlex

    assert cli.main(shlex.split(command)[1:]) == 0
    assert np.load("records.npz")["label"].tolist() == [3]


def test_the_refusal_of_a_wildcard_names_the_wildcard_and_that_of_a_list_none_of_its_files(
    tmp_path,
):
    for i in range(2):
        save(tmp_path / f"{i}.npy", {"x": i})

    with pytest.raises(
        FormatError, match=re.escape(f"gl.convert('{tmp_path}/*.npy', 'records.npz', allow_pickle")
    ):
        gl.npy(f"{tmp_path}/*.npy")
    with pytest.raises(
        FormatError, match=r"gl\.convert\(paths, 'records\.npz', allow_pickle=True\)"
    ):
        gl.npy([tmp_path / "0.npy", tmp_path / "1.npy"])


def test_an_archive_of_objects_names_the_call_that_works(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([1, None], object))

    with pytest.raises(
        FormatError, match=re.escape(f"gl.convert('{tmp_path}/a.npz', 'records.npz', allow_pickle")
    ):
        gl.npz(str(tmp_path / "a.npz"))


def test_record_is_for_pickles_alone(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.arange(3))

    with pytest.raises(
        SpecError, match=r"record='file' without allow_pickle=True(.|\n)*gl\.npy\(paths, record="
    ):
        gl.convert(tmp_path / "a.npy", tmp_path / "b.npz", record="file")
    with pytest.raises(SpecError, match=r"record = 'rows'"):
        gl.convert(tmp_path / "a.npy", tmp_path / "b.npz", record="rows", allow_pickle=True)
    assert (
        cli.main(["convert", "--record", "row", str(tmp_path / "a.npy"), str(tmp_path / "b.npz")])
        == 2
    )
    assert "--record row without --allow-pickle" in capsys.readouterr().err


def test_the_command_makes_records_of_files(tmp_path, capsys):
    for i in range(3):
        save(tmp_path / f"{i}.npy", {"x": np.full(2, i), "label": i})

    out = str(tmp_path / "out.npz")
    assert cli.main(["convert", "--allow-pickle", f"{tmp_path}/*.npy", out]) == 0
    assert "3 records" in capsys.readouterr().out
    assert (
        cli.main(
            [
                "convert",
                "--allow-pickle",
                "--overwrite",
                "--record",
                "row",
                f"{tmp_path}/*.npy",
                out,
            ]
        )
        == 2
    )
    assert "'label': None" in capsys.readouterr().err


def test_a_conversion_of_pickles_goes_on_and_other_pickles_are_other_records(tmp_path):
    for i in range(4):
        save(tmp_path / f"{i}.npy", {"x": i})
    out = tmp_path / "out-{shard}.npy"
    gl.convert(f"{tmp_path}/?.npy", out, num_shards=2, allow_pickle=True)
    os.unlink(tmp_path / "out-1.npy")

    again = gl.convert(f"{tmp_path}/?.npy", out, num_shards=2, allow_pickle=True)
    save(tmp_path / "3.npy", {"x": 9})

    assert again.num_kept == 1
    with pytest.raises(gl.GpuloadError, match="is there already"):
        gl.convert(f"{tmp_path}/?.npy", out, num_shards=2, allow_pickle=True)


def test_the_files_that_are_read_are_never_written_over(tmp_path):
    save(tmp_path / "a.npy", [{"x": 1}])

    with pytest.raises(SpecError, match="would be written over"):
        gl.convert(tmp_path / "a.npy", tmp_path / "a.npy", allow_pickle=True, overwrite=True)


def test_few_files_are_in_memory_at_a_time_and_one_that_changed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "CACHED_BYTES", 1)
    for i in range(4):
        save(tmp_path / f"{i}.npy", {"x": np.full(5, i)})
    source = pickles.trusted(f"{tmp_path}/*.npy")

    assert source.read([2, 0, 3, 2])["x"][:, 0].tolist() == [2, 0, 3, 2]
    assert len(source._objects._recent) == 1
    save(tmp_path / "1.npy", {"x": np.full(6, 1)})
    with pytest.raises(ChangedFileError, match=r"1\.npy"):
        source.read([1])


def test_an_error_of_a_record_names_its_file(tmp_path):
    save(tmp_path / "a.npy", {"x": "ab"})
    save(tmp_path / "b.npy", {"x": "\ud800"})

    with pytest.raises(gl.GpuloadError, match=r"b\.npy"):
        converted(tmp_path, "out.tfrecord")

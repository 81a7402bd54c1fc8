"""Folders of tables are opened as Spark, Hive, PyArrow and `datasets` mean them, or refused with
the form to write."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import MissingFileError, SpecError, UnknownFieldError
from gpuload.testing.sources import SourceContract

pa = pytest.importorskip("pyarrow", reason="gl.parquet needs PyArrow")
pq = pytest.importorskip("pyarrow.parquet")
dataset = pytest.importorskip("pyarrow.dataset")


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"x": pa.array(values, pa.int64())})
    if path.suffix == ".arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".csv":
        path.write_text("x,y\n" + "".join(f"{value},0.5\n" for value in values))
    else:
        pq.write_table(table, path)


def spark(folder, suffix, values=(1, 2, 3)):
    """Write a folder as Spark does."""
    for number, value in enumerate(values):
        write(folder / f"part-{number:05}-c000{suffix}", [value])
        (folder / f".part-{number:05}-c000{suffix}.crc").write_bytes(b"crc\0")
    for name in ("_SUCCESS", "_metadata", "_common_metadata", "._SUCCESS.crc"):
        (folder / name).write_bytes(b"")
    write(folder / "_temporary" / "0" / f"part-9{suffix}", [9])
    return folder


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    ("suffix", "call"), [(".parquet", gl.parquet), (".arrow", gl.arrow), (".csv", gl.csv)]
)
def test_a_folder_of_spark_is_its_part_files(tmp_path, caplog, suffix, call, parts):
    folder = spark(tmp_path / "out", suffix, range(parts))

    for opened in (call(folder), gl.open(folder), gl.open(str(folder)), call([folder])):
        assert opened.read(range(parts))["x"].tolist() == list(range(parts))
    assert list(gl.check(folder)) == []
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_damage_in_a_folder_of_spark_is_named_by_check(tmp_path):
    folder = spark(tmp_path / "out", ".parquet")
    (folder / "part-00001-c000.parquet").write_bytes(b"PAR1 cut")

    [finding] = gl.check(folder)

    assert finding.file.endswith("part-00001-c000.parquet")


def partitioned(folder):
    """Write a table of four records in folders of years and places, with PyArrow; one place is
    missing."""
    table = pa.table(
        {"x": [0, 1, 2, 3], "year": [2019, 2019, 2020, 2021], "place": ["a b", "c/d", None, "é=1"]}
    )
    dataset.write_dataset(
        table,
        folder,
        format="parquet",
        existing_data_behavior="overwrite_or_ignore",
        partitioning=dataset.partitioning(
            pa.schema([table.schema.field(1), table.schema.field(2)]), flavor="hive"
        ),
    )
    return folder


class TestPartitions(SourceContract):
    def open(self, folder):
        return gl.parquet(partitioned(folder / "data"), defaults={"place": "none"})

    def open_other(self, folder):
        (partitioned(folder / "data") / "year=2019").rename(folder / "data" / "year=2018")
        return gl.parquet(folder / "data", defaults={"place": "none"})

    def expected(self):
        places = np.array(["a b", "c/d", "none", "é=1"], object)
        return {"x": np.arange(4), "year": np.array([2019, 2019, 2020, 2021]), "place": places}


def test_partitions_are_columns_of_the_type_of_all_values(tmp_path):
    partitioned(tmp_path / "data")
    expected = dataset.dataset(tmp_path / "data", partitioning="hive").to_table().to_pydict()

    with gl.parquet(tmp_path / "data", defaults={"place": "none"}) as source:
        fields = source.read(range(4))
        assert [str(field) for field in source.spec] == [
            "x: int64 ()",
            "year: int64 ()",
            "place: str ()",
        ]
    assert fields["year"].tolist() == expected["year"]
    assert fields["place"].tolist() == [text or "none" for text in expected["place"]]
    assert fields["x"].tolist() == expected["x"]
    with pytest.raises(
        SpecError, match=r"the value of 'place' is missing(.|\n)*defaults=\{'place': '\?'\}"
    ):
        gl.parquet(tmp_path / "data")


@pytest.mark.parametrize(
    ("texts", "dtype"),
    [
        (["1", "-7"], "int64"),
        (["01", "2"], "str"),
        (["1.5", "2"], "str"),
        (["2020-01-01"], "str"),
        (["9" * 19], "str"),
    ],
)
def test_values_that_a_whole_number_would_change_are_text(tmp_path, texts, dtype):
    for text in texts:
        write(tmp_path / f"key={text}" / "a.parquet", [1])

    with gl.parquet(tmp_path) as source:
        assert f"key: {dtype} ()" in map(str, source.spec)
        assert sorted(map(str, source.read(range(len(texts)))["key"].tolist())) == sorted(texts)


def test_partitions_can_be_named_ordered_and_left_out(tmp_path):
    for year in (2019, 2020):
        write(tmp_path / "v=1" / f"year={year}" / "a.parquet", [year - 2000])
    files = sorted(tmp_path.rglob("*.parquet"))

    assert gl.parquet(tmp_path).spec.names == ("x", "v", "year")
    assert gl.parquet(tmp_path / "v=1" / "*" / "*.parquet").spec.names == ("x", "year")
    assert gl.parquet(tmp_path, partitions=[]).spec.names == ("x",)
    assert gl.parquet(files).spec.names == ("x",)
    assert gl.parquet(files, partitions=["year"]).read([1, 0])["year"].tolist() == [2020, 2019]
    source = gl.parquet(tmp_path, ["year", "x"])
    assert source.spec.names == ("year", "x")
    assert gl.parquet(tmp_path, ["year"]).read([0, 1])["year"].tolist() == [2019, 2020]
    for again in (
        pickle.loads(pickle.dumps(source)),
        gl.open(source.index(tmp_path / "all.manifest")),
    ):
        assert again.fingerprint() == source.fingerprint()
        assert again.read([1, 0])["year"].tolist() == [2020, 2019]


def test_partitions_go_through_a_loader_and_are_part_of_the_fingerprint(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name / "year=2020" / "a.parquet", [1, 2])
        write(tmp_path / name / f"year=202{1 + (name == 'b')}" / "a.parquet", [3])
    first, second = gl.parquet(tmp_path / "a"), gl.parquet(tmp_path / "b")

    with gl.Loader(first, 3, device="cpu") as loader:
        assert np.asarray(loader.batch_at(0)["year"]).tolist() == [2020, 2020, 2021]
    assert first.fingerprint() != second.fingerprint()


def test_a_column_of_the_files_stands_before_the_folder_of_its_name(tmp_path):
    (tmp_path / "year=2020").mkdir()
    pq.write_table(
        pa.table({"year": pa.array([2020], pa.int16())}), tmp_path / "year=2020" / "a.parquet"
    )

    assert gl.parquet(tmp_path).read([0])["year"].dtype == np.int16


def test_a_column_of_files_that_says_another_value_than_their_folder_is_refused(tmp_path):
    for year, values in ((2019, [2019]), (2020, [2020])):
        write(tmp_path / f"x={year}" / "place=a" / "a.parquet", values)
    assert gl.parquet(tmp_path).read([0, 1])["x"].tolist() == [2019, 2020]
    (tmp_path / "x=2019").rename(tmp_path / "x=2018")

    with pytest.raises(
        SpecError, match=r"'x' is 2019 in the file, and 2018 by its folder"
    ) as error:
        gl.parquet(tmp_path)

    [call] = re.findall(r"gl\.parquet\(.*\)", error.value.remedy)
    source = eval(call.replace("...", "tmp_path"))
    assert source.spec.names == ("x", "place")
    assert source.read([0, 1])["x"].tolist() == [2019, 2020]


@pytest.mark.parametrize("argument", ["fields", "defaults", "dtypes", "shapes"])
def test_an_unknown_column_is_told_beside_columns_and_folders(tmp_path, argument):
    write(tmp_path / "year=2019" / "a.parquet", [1])
    value = (
        ["y"] if argument == "fields" else {"y": {"dtypes": "i8", "shapes": (1,)}.get(argument, 0)}
    )

    with pytest.raises(UnknownFieldError, match=r"no column 'y'\n.*it has \['x', 'year'\]"):
        gl.parquet(tmp_path, **{argument: value})


def test_arguments_that_folders_do_not_take_are_refused(tmp_path):
    write(tmp_path / "year=2019" / "a.parquet", [1])

    for argument in ({"dtypes": {"year": "f4"}}, {"shapes": {"year": (1,)}}):
        with pytest.raises(SpecError, match="'year' is the name of a folder") as error:
            gl.parquet(tmp_path, **argument)
    [call] = re.findall(r"gl\.ops\.Cast\(.*?\)", error.value.remedy)
    loader = gl.Loader(gl.parquet(tmp_path), 1, ops=[eval(call)], device="cpu")
    assert loader.peek()["year"].dtype == np.float32


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_manifest_says_which_folders_are_columns(tmp_path, suffix):
    call = {".parquet": gl.parquet, ".arrow": gl.arrow}[suffix]
    for year in (2019, 2020):
        write(tmp_path / f"year={year}" / f"a{suffix}", [year - 2000])
    path = call(tmp_path).index(tmp_path / "a.manifest")

    for opened in (gl.open(path), call(path), call(path, ["x", "year"])):
        assert opened.read([1, 0])["year"].tolist() == [2020, 2019]
    assert call(path, ["year"]).spec.names == ("year",)
    assert call(path, partitions=[]).spec.names == ("x",)


def test_a_folder_with_an_empty_value_is_an_empty_text_as_in_pyarrow(tmp_path):
    write(tmp_path / "place=" / "a.parquet", [1])
    write(tmp_path / "place=b" / "a.parquet", [2])
    expected = dataset.dataset(tmp_path, partitioning="hive").to_table().to_pydict()

    assert gl.parquet(tmp_path).read([0, 1])["place"].tolist() == expected["place"] == ["", "b"]


def test_folders_in_another_order_have_one_order_of_fields(tmp_path):
    write(tmp_path / "year=1" / "place=a" / "a.parquet", [1])
    write(tmp_path / "place=b" / "year=2" / "a.parquet", [2])
    program = f"import gpuload as gl; print(gl.parquet({str(tmp_path)!r}).spec.names)"

    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2, 3, 4)
    }

    assert outputs == {b"('x', 'place', 'year')\n"}


def test_files_of_other_depths_are_refused(tmp_path):
    write(tmp_path / "year=2020" / "a.parquet", [1])
    write(tmp_path / "b.parquet", [1])

    with pytest.raises(
        SpecError, match=r"b\.parquet lies in no folder year=(.|\n)*partitions=\[\]"
    ):
        gl.parquet(tmp_path)
    assert len(gl.parquet(tmp_path, partitions=[])) == 2


@pytest.mark.parametrize("partitions", ["year", [1], ["a", "a"], {"a": 1}])
def test_wrong_partitions_are_refused(tmp_path, partitions):
    write(tmp_path / "a.parquet", [1])

    with pytest.raises(SpecError, match="partitions"):
        gl.parquet(tmp_path, partitions=partitions)


def test_partitions_of_csv_are_refused_with_a_form_that_reads_it(tmp_path):
    write(tmp_path / "year=2020" / "a.csv", [5])

    with pytest.raises(SpecError, match="not support") as error:
        gl.csv(tmp_path)

    pattern = re.search(r"gl\.csv\('(.*)'\)", error.value.remedy)[1]
    assert gl.csv(pattern).read([0])["x"].tolist() == [5]


def saved(folder, values=((1, 2), (3,)), **state):
    """Write a folder as ``Dataset.save_to_disk`` of `datasets` does."""
    names = [f"data-{number:05}-of-{len(values):05}.arrow" for number in range(len(values))]
    for name, part in zip(names, values, strict=True):
        write(folder / name, part)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names], **state})
    )
    return folder


def test_a_folder_that_datasets_saved_is_the_files_that_it_names(tmp_path, caplog):
    folder = saved(tmp_path / "saved")
    write(folder / "cache-0123456789abcdef.arrow", [7, 7])

    for call in (gl.arrow, gl.open):
        assert call(folder).read(range(3))["x"].tolist() == [1, 2, 3]
    assert list(gl.check(folder)) == []
    (folder / "data-00000-of-00002.arrow").unlink()
    with pytest.raises(MissingFileError, match="data-00000-of-00002"):
        gl.arrow(folder)


def test_a_folder_that_datasets_saved_with_indices_is_refused(tmp_path):
    folder = saved(tmp_path / "saved", _indices_data_files=[{"filename": "indices.arrow"}])

    with pytest.raises(SpecError, match=r"order of its own(.|\n)*load_from_disk"):
        gl.arrow(folder)


def typed_calls(error, call):
    return [call(pattern) for pattern in re.findall(r"gl\.\w+\('([^']*)'\)", error.value.remedy)]


def test_folders_of_splits_are_refused_with_the_forms_to_write(tmp_path):
    saved(tmp_path / "a" / "train")
    saved(tmp_path / "a" / "test", ((4,),))
    (tmp_path / "a" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    for split, values in (("train", [1, 2, 3]), ("test", [4])):
        write(tmp_path / "b" / split / "x.parquet", values)
        write(tmp_path / "c" / f"{split}-00000-of-00001.parquet", values)

    for name, call in (("a", gl.arrow), ("b", gl.parquet), ("c", gl.parquet)):
        for opening in (call, gl.open):
            with pytest.raises(SpecError, match="holds the splits") as error:
                opening(tmp_path / name)
            assert sorted(len(source) for source in typed_calls(error, call)) == [1, 3]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("_delta_log/0.json", "Delta Lake"),
        (".hoodie/x", "Hudi"),
        ("metadata/v1.metadata.json", "Ice"),
    ],
)
def test_tables_of_several_versions_are_refused(tmp_path, name, title):
    write(tmp_path / "t" / "a.parquet", [1])
    (tmp_path / "t" / name).parent.mkdir()
    (tmp_path / "t" / name).write_text("{}")

    for call in (gl.parquet, gl.open):
        with pytest.raises(SpecError, match=title):
            call(tmp_path / "t")


def test_files_of_hive_have_no_suffix(tmp_path):
    write(tmp_path / "a.parquet", [1])
    (tmp_path / "t").mkdir()
    (tmp_path / "a.parquet").rename(tmp_path / "t" / "000000_0")

    assert gl.parquet(tmp_path / "t").read([0])["x"].tolist() == [1]


def test_a_folder_without_parts_is_refused_and_other_files_are_told(tmp_path, caplog):
    write(tmp_path / "b.csv", [1])
    with pytest.raises(MissingFileError, match=r"holds no file of Parquet(.|\n)*b\.csv"):
        gl.parquet(tmp_path)

    write(tmp_path / "a.parquet", [1])
    (tmp_path / "README.md").write_text("about")
    assert len(gl.parquet(tmp_path)) == 1
    assert "1 of its files are no Parquet and are left out, b.csv for instance" in caplog.text


def test_the_remedy_for_a_folder_of_another_format_opens_it(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))

    with pytest.raises(MissingFileError, match="holds no file of CSV") as error:
        gl.csv(tmp_path)

    assert error.value.remedy.startswith(f"gl.open({str(tmp_path)!r})")
    assert len(gl.open(tmp_path)) == 3


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv"])
def test_a_shard_that_is_missing_in_a_folder_is_told_once(tmp_path, caplog, suffix):
    folder = tmp_path / "sales"
    for number in (0, 2):
        write(folder / f"part-{number:05}-of-00003{suffix}", [number])
    call = {".parquet": gl.parquet, ".arrow": gl.arrow, ".csv": gl.csv}[suffix]

    assert len(call(folder)) == 2
    assert caplog.text.count("1 of 3 shards are missing") == 1

    caplog.clear()
    write(folder / f"part-00001-of-00003{suffix}", [1])
    assert len(call(folder)) == 3
    assert "missing" not in caplog.text


def test_links_to_folders_above_are_told_and_not_followed(tmp_path, caplog):
    folder = tmp_path / "table"
    folder.mkdir()
    for path in (folder / "a.csv", tmp_path / "other.csv"):
        path.write_text("x\n1\n")
    for name, place in (("loop", "loop"), ("up", ".."), ("itself", ".")):
        (folder / name).symlink_to(place)

    assert len(gl.csv(folder)) == 1
    up, loop = [record.getMessage() for record in caplog.records]
    assert up.endswith("table: a link to a folder above it is not followed: up")
    assert loop.endswith("1 of its files are no CSV and are left out, loop for instance")
    (folder / "b.csv").symlink_to("gone")
    with pytest.raises(MissingFileError, match="is a link to gone, which is not there"):
        gl.csv(folder)

"""What a user may type by mistake: every public function of the sources answers with a cause and a
remedy."""

from __future__ import annotations

import contextlib
import gzip
import inspect
import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import FileError, FormatError, GpuloadError, MissingPackageError, SpecError
from gpuload.formats.fixed.source import fixed
from gpuload.formats.npy.source import npy

WRONG = [
    *(
        None,
        True,
        3,
        -1,
        2.5,
        10**30,
        np.int64(3),
        np.float32(2),
        slice(3),
        object,
        object(),
        len,
        range(3),
        iter("abc"),
    ),
    *(
        "",
        "abc",
        b"abc",
        "s3://bucket/a.npy",
        "https://127.0.0.1:1/*.npy",
        Path("gone"),
        np.array("a"),
    ),
    *([], (), {}, set(), [None], [3], [10**30], [[]], [""], [b"a"], {"a"}, {"a": 1}, [[1], [1, 2]]),
    *(np.zeros(3), np.zeros((2, 2)), np.array([None]), np.array(None)),
]


def source():
    return gl.arrays(x=np.zeros((10, 4)), y=np.arange(10), image=np.zeros((10, 5), np.uint8))


USES = {
    "npy": lambda argument: gl.npy(argument),
    "npy, field": lambda argument: gl.npy("one.npy", field=argument),
    "npy, record": lambda argument: gl.npy("one.npy", record=argument),
    "fixed": lambda argument: gl.fixed(argument, "u1"),
    "fixed, dtype": lambda argument: gl.fixed("one.npy", argument),
    "fixed, header": lambda argument: gl.fixed("one.npy", "u1", header_bytes=argument),
    "fixed, field": lambda argument: gl.fixed("one.npy", "u1", field=argument),
    "idx": lambda argument: gl.idx(argument),
    "idx, field": lambda argument: gl.idx(image=argument),
    "npz": lambda argument: gl.npz(argument),
    "npz, record": lambda argument: gl.npz("one.npz", record=argument),
    "npz, fields": lambda argument: gl.npz("one.npz", fields=argument),
    "images": lambda argument: gl.images(argument),
    "images, labels": lambda argument: gl.images("folder", labels=argument),
    "arrays": lambda argument: gl.arrays(x=argument),
    "zip": lambda argument: gl.zip(argument),
    "zip, two": lambda argument: gl.zip(source(), argument),
    "concat": lambda argument: gl.concat(argument),
    "concat, two": lambda argument: gl.concat(source(), argument),
    "select": lambda argument: source().select(argument),
    "split": lambda argument: source().split(argument),
    "split, seed": lambda argument: source().split(0.5, argument),
    "rename": lambda argument: source().rename(x=argument),
    "mark": lambda argument: source().mark(image=argument),
    "read": lambda argument: source().read(argument),
    "where": lambda argument: source().where(argument),
    "key": lambda argument: source()[argument],
    "filter": lambda argument: source().filter(argument),
    "filter, fields": lambda argument: source().filter(
        lambda fields: np.ones(10, bool), fields=argument
    ),
    "records": lambda argument: gl.records(argument, lambda numbers: {"x": numbers}),
    "records, read": lambda argument: gl.records(10, None if callable(argument) else argument),
    "records, made": lambda argument: gl.records(10, lambda numbers: argument),
    "records, field": lambda argument: gl.records(10, lambda numbers: {"x": argument}),
    "records, fields": lambda argument: gl.records(10, lambda numbers: {}, fields=argument),
    "records, version": lambda argument: gl.records(
        10, lambda numbers: {"x": numbers}, version=argument
    ),
}


LISTS_OF_NAMES = {
    "csv, columns": lambda names: gl.csv("a.csv", columns=names),
    "csv, header": lambda names: gl.csv("a.csv", header=names, skip_lines=1),
    "csv, columns of a vector": lambda names: gl.csv("a.csv", columns={"x": ("f4", names)}),
    "npz, fields": lambda names: gl.npz("a.npz", fields=names),
    "parquet, fields": lambda names: gl.parquet("a.parquet", fields=names),
    "arrow, fields": lambda names: gl.arrow("a.arrow", fields=names),
    "parquet, partitions": lambda names: gl.parquet("a.parquet", partitions=names),
    "hdf5, fields": lambda names: gl.hdf5("a.h5", fields=names),
    "zarr, fields": lambda names: gl.zarr("a.zarr", fields=names),
    "webdataset, fields": lambda names: gl.webdataset("a.tar", fields=names),
}
NO_LISTS = {
    "an iterator may have no end": [
        itertools.repeat("a"),
        itertools.count(),
        iter(["a"]),
        (name for name in "ab"),
    ],
    "a set has no order": [{"a", "b"}, frozenset("ab")],
    "a name stands there twice: 'a'": [["a", "a"], ("b", "a", "a"), np.array(["a", "a"])],
    "it is (a|True)|and a list": [
        [1],
        [None],
        [""],
        [["a"]],
        [b"a"],
        b"a",
        2.5,
        np.array("a"),
        np.arange(2),
        object(),
    ],
}


@pytest.mark.parametrize("use", LISTS_OF_NAMES.values(), ids=LISTS_OF_NAMES.keys())
def test_a_list_of_names_is_looked_at_in_the_same_way_wherever_it_is_taken(
    tmp_path, monkeypatch, use
):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("a,b\n1,2\n")

    for cause, values in NO_LISTS.items():
        for value in values:
            with pytest.raises(SpecError, match=cause) as error:
                use(value)
            assert error.value.remedy


@pytest.mark.parametrize(
    "names", [["b", "a"], ("b", "a"), np.array(["b", "a"]), {"b": 1, "a": 2}.keys()], ids=repr
)
def test_lists_of_names_are_taken_in_their_order(tmp_path, monkeypatch, names):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("a,b\n1,2\n")
    np.savez("a.npz", a=np.array([1]), b=np.array([2]))

    for source in (gl.csv("a.csv", names), gl.npz("a.npz", fields=names)):
        assert source.spec.names == ("b", "a")
        assert [type(name) for name in source.spec.names] == [str, str]
        assert pickle.loads(pickle.dumps(source))[0] == {"b": 2, "a": 1}


def test_texts_of_missing_values_in_a_set_have_one_fingerprint_in_all_processes(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n?,-\n")
    program = "import sys, gpuload as gl; print(gl.csv(sys.argv[1], na_values={'?', '-', '', 'x', 'y'}).fingerprint)"
    texts = {
        subprocess.run(
            [sys.executable, "-c", program, tmp_path / "a.csv"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(texts) == 1


@pytest.mark.usefixtures("unreachable_stores")
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_what_is_wrong_is_answered_with_a_cause_and_a_remedy_or_taken(tmp_path, monkeypatch, use):
    monkeypatch.chdir(tmp_path)
    np.save("one.npy", np.arange(3))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.png").write_bytes(b"something")
    refused = []

    for value in WRONG:
        try:
            use(value)
        except GpuloadError as error:
            refused.append((value, error))

    assert len(refused) > 5
    assert [value for value, error in refused if not error.cause or not error.remedy] == []


# Values that NumPy, the system or a library stumbles over before a reader has looked at them.
ODD = [
    np.array([1, 2]),
    np.array(None),
    "\0",
    "\ud800",
    [[1], [2, 3]],
    float("nan"),
    10**30,
    {"x": object},
]
FILES = {
    "csv": "a.csv", "text": "a.csv", "npy": "a.npy", "npz": "a.npz", "fixed": "a.npy", "tfrecord": "a.tfrecord",
    "parquet": "a.parquet", "hdf5": "a.h5", "open": "a.npy",
}  # fmt: skip


def odd_calls():
    """Return a call for each argument of each function that reads files, or makes a source of
    sources."""
    numbers = gl.arrays(x=np.arange(6), y=np.arange(6) % 2)
    owners = {name: (getattr(gl, name), (path,)) for name, path in FILES.items()}
    owners["fixed"] = (gl.fixed, ("a.npy", "u1"))
    owners |= {"mix": (gl.mix, ({numbers: 1.0},)), "convert": (gl.convert, (numbers, "out.npz"))}
    owners |= {"Buckets": (gl.Buckets, ("x", 4)), "Labels": (gl.Labels, ("a.csv", "x"))}
    owners |= {
        name: (getattr(numbers, name), base)
        for name, base in (("sample", (np.ones(6),)), ("split", (0.5,)))
    }
    for name, (function, base) in owners.items():
        parameters = [
            item
            for item in inspect.signature(function).parameters.values()
            if item.kind != item.VAR_KEYWORD
        ]
        for parameter in parameters:
            values = dict(zip([item.name for item in parameters], base, strict=False))
            yield (
                f"{name}, {parameter.name}",
                lambda value, f=function, v=values, n=parameter.name: f(**{**v, n: value}),
            )


@pytest.mark.parametrize("odd", ODD, ids=lambda value: ascii(value)[:20])
def test_no_argument_ends_in_an_error_of_another_library(tmp_path, monkeypatch, odd):
    monkeypatch.chdir(tmp_path)
    numbers = gl.arrays(x=np.arange(6))
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    for path in sorted({*FILES.values()} - {"a.csv"}):
        with contextlib.suppress(MissingPackageError):
            gl.convert(numbers, path)
    wrong = []

    for name, call in odd_calls():
        try:
            call(odd)
        except GpuloadError as error:
            wrong += [] if error.cause and error.remedy else [name]
        except Exception as error:
            wrong.append((name, error))

    assert wrong == [], wrong


def test_urls_of_other_schemes_are_refused_with_those_that_are_read():
    for path in (
        "file:///x.npy",
        "ftp://host/x.npy",
        "memory://x.npy",
        ["hdfs://a/b"],
        "s3:/bucket/x.npy",
    ):
        for use in (gl.npy, gl.images, lambda path: gl.fixed(path, "u1")):
            with pytest.raises(SpecError, match="of those s3, s3a, gs, "):
                use(path)


class TestPacked:
    def test_a_file_of_gzip_is_named_so_and_the_remedy_unpacks_it(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(3))
        (tmp_path / "a.npy.gz").write_bytes(gzip.compress((tmp_path / "a.npy").read_bytes()))
        (tmp_path / "b.npy").write_bytes(gzip.compress(b"something"))

        with pytest.raises(
            FormatError,
            match=r"gz is compressed with gzip(.|\n)*gunzip -c \S+a\.npy\.gz > \S+a\.npy$",
        ):
            npy(tmp_path / "a.npy.gz")
        with pytest.raises(
            FormatError, match=r"b\.npy is compressed with gzip(.|\n)*> \S+b\.npy\.unpacked$"
        ):
            npy(tmp_path / "b.npy")

    def test_fixed_records_in_a_file_of_gzip_are_refused_although_the_size_fits(self, tmp_path):
        (tmp_path / "a.bin.gz").write_bytes(gzip.compress(b"something"))
        (tmp_path / "b.gz").write_bytes(b"no gzip at all")

        with pytest.raises(FormatError, match=r"a\.bin\.gz is compressed with gzip"):
            fixed(tmp_path / "a.bin.gz", "u1")
        assert len(fixed(tmp_path / "b.gz", "u1")) == 14

    def test_the_remedy_for_an_archive_of_arrays_works(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(6).reshape(3, 2))

        with pytest.raises(FormatError, match="archive of arrays") as caught:
            npy(tmp_path / "a.npz")

        assert caught.value.remedy == f"open it with gl.npz({str(tmp_path / 'a.npz')!r})"
        assert gl.npz(tmp_path / "a.npz").read([2])["y"].tolist() == [[4, 5]]

    def test_other_archives_are_named_so(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=np.arange(3))
        (tmp_path / "a.npz").rename(tmp_path / "a.pt")

        with pytest.raises(FormatError, match="it begins with the bytes of a ZIP archive"):
            npy(tmp_path / "a.pt")


def test_a_pipe_is_not_waited_for(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "cat").mkdir()
    image.new("RGB", (2, 2)).save(tmp_path / "cat" / "a.png")
    for name in ("classes.json", "labels.csv"):
        os.mkfifo(tmp_path / name)

    for arguments in (
        {"classes": str(tmp_path / "classes.json")},
        {"labels": str(tmp_path / "labels.csv")},
    ):
        with pytest.raises(FileError, match="no regular file"):
            gl.images(tmp_path, **arguments)


def test_a_link_to_itself_is_no_part_of_a_folder_of_tables(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "loop").symlink_to("loop")

    assert len(gl.csv(tmp_path)) == 1


def test_an_epoch_has_a_number_of_records_that_a_computer_counts():
    with pytest.raises(SpecError, match="from 1 to"):
        gl.mix({source(): 1.0}, num_records=10**30)
    with pytest.raises(SpecError, match="from 1 to"):
        source().sample(np.ones(10), num_records=10**30)

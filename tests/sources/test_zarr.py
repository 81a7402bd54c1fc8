"""Zarr groups give what zarr says of them; damage, changes and pickles are refused by name."""

from __future__ import annotations

import base64
import functools
import gzip
import json
import os
import pickle
import signal
import struct
import sys
import tempfile
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.cli.inspect import inspect
from gpuload.errors import (
    ChangedFileError,
    DamagedBlockError,
    FormatError,
    MissingFileError,
    MissingPackageError,
    SpecError,
    UnknownFieldError,
)
from gpuload.formats.zarr import arrays as reader
from gpuload.formats.zarr import source as opening
from gpuload.sources.reading import record_origin
from gpuload.sources.rows import RowLeaf
from gpuload.testing.sources import SourceContract

zarr = pytest.importorskip("zarr", "3", reason="gl.zarr needs zarr 3, and so Python 3.11")
numcodecs = pytest.importorskip("numcodecs.pickles") and sys.modules["numcodecs"]
GOLDEN = Path(__file__).parents[1] / "golden" / "zarr"
COUNT = 25
RAW = {"compressors": None}


def arrays(factor=1):
    number = np.arange(COUNT) * factor
    return {
        "big": number.astype(">i2"),
        "cube": np.arange(COUNT * 24, dtype="u1").reshape(COUNT, 2, 3, 4),
        "flag": number % 3 == 0,
    }


def write(folder, content=None, *, version=3, rows=4, **options):
    group = zarr.open_group(str(folder), mode="w", zarr_format=version)
    for name, values in (arrays() if content is None else content).items():
        chunks = (min(rows, max(len(values), 1)), *values.shape[1:])
        group.create_array(name, shape=values.shape, chunks=chunks, dtype=values.dtype, **options)[
            ...
        ] = values
    return folder


@functools.cache
def content_of(factor, version):
    """Return the files of a group: zarr takes long to write them for each of the contract's
    tests."""
    with tempfile.TemporaryDirectory() as folder:
        root = write(
            Path(folder) / "a.zarr",
            arrays(factor),
            version=version,
            **(RAW if version == 2 else {}),
        )
        return {
            path.relative_to(folder): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }


def copy_group(folder, factor=1, version=3):
    for path, content in content_of(factor, version).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder / "a.zarr"


class TestChunks(SourceContract):
    def open(self, folder):
        return gl.zarr(copy_group(folder))

    def open_other(self, folder):
        return gl.zarr(copy_group(folder, factor=2))

    def expected(self):
        expected = arrays()
        return expected | {"big": expected["big"].astype("i2")}

    def test_it_says_how(self, source):
        assert "blocks of up to 4 rows, decoded by zarr" in source.describe()


class TestRowsWhereTheyLie(TestChunks):
    def open(self, folder):
        return gl.zarr(copy_group(folder, version=2))

    def test_it_says_how(self, source):
        assert "decoded" not in source.describe()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("chunk", [(1, 1), (3, 2), (25, 3), (7, 5)])
@pytest.mark.parametrize("options", [{}, RAW])
def test_chunks_of_any_shape_are_put_together(tmp_path, version, chunk, options):
    values = np.random.default_rng(1).integers(1, 9, (25, 5)).astype("f4")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    group.create_array("x", shape=values.shape, chunks=chunk, dtype="f4", **options)[...] = values

    with gl.open(tmp_path / "a.zarr") as source:
        np.testing.assert_array_equal(source.read([24, 3, 4, 0])["x"], values[[24, 3, 4, 0]])
        assert ("decoded" in source.describe()) == (chunk[1] != 5 or not options)


def test_shards_texts_bytes_orders_and_structures(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    values = np.arange(1, 41, dtype="f4").reshape(10, 4)
    group.create_array("shard", shape=(10, 4), chunks=(1, 4), shards=(5, 4), dtype="f4")[...] = (
        values
    )
    group.create_array("text", shape=(10,), chunks=(3,), dtype=str)[...] = np.array(
        [f"é{i}" for i in range(10)], object
    )
    big = zarr.codecs.BytesCodec(endian="big")
    group.create_array(
        "big", shape=(10,), chunks=(3,), dtype="i4", serializer=big, compressors=None
    )[...] = range(1, 11)
    old = zarr.open_group(tmp_path / "b.zarr", mode="w", zarr_format=2)
    pairs = np.array([(i, i / 2) for i in range(1, 11)], [("a", ">i4"), ("b", "f8")])
    old.create_array(
        "pair", shape=(10,), chunks=(3,), dtype=pairs.dtype, compressors=None, fill_value=None
    )[...] = pairs
    old.create_array(
        "order", shape=(10, 4), chunks=(3, 4), dtype="f4", order="F", compressors=None
    )[...] = values

    with gl.zarr(tmp_path / "a.zarr") as source:
        fields = source.read([9, 0])
        assert fields["text"].tolist() == ["é9", "é0"]
        np.testing.assert_array_equal(fields["shard"], values[[9, 0]])
        assert fields["big"].tolist() == [10, 1]
        assert "shard: blocks of up to 1 rows" in source.describe()
        assert isinstance(source.resolve(np.zeros(1, np.int64))[0].leaf, RowLeaf)  # of big
    with gl.zarr(tmp_path / "b.zarr") as source:
        fields = source.read([9, 0])
        assert fields["pair.a"].tolist() == [10, 1]
        assert fields["pair.b"].tolist() == [5.0, 0.5]
        np.testing.assert_array_equal(fields["order"], values[[9, 0]])


def test_chunks_that_are_not_there_have_the_fill_value(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("x", shape=(10,), chunks=(3,), dtype="i4", fill_value=7, **RAW)[3:5] = [1, 2]

    with gl.zarr(tmp_path / "a.zarr") as source:
        assert source.read(range(10))["x"].tolist() == [7, 7, 7, 1, 2, 7, 7, 7, 7, 7]


@pytest.mark.parametrize("version", [2, 3])
def test_golden_groups_hold_what_zarr_wrote(version):
    with gl.open(GOLDEN / f"zarr-{version}.zarr") as source:
        fields = source.read(range(7))

    assert fields["number"].tolist() == list(range(7))
    np.testing.assert_array_equal(fields["x"], np.linspace(-1, 1, 7))
    assert fields["word"].tolist() == [f"wörd {i}" for i in range(7)]
    np.testing.assert_array_equal(fields["image"], np.arange(168, dtype="u1").reshape(7, 2, 4, 3))
    inspection, _ = inspect(str(GOLDEN / f"zarr-{version}.zarr"))
    assert (inspection.format, inspection.call) == ("a folder of zarr", "gl.zarr")


def test_groups_are_one_behind_the_other_and_a_wildcard_is_sorted(tmp_path):
    values = np.arange(1, 41, dtype="f4").reshape(20, 2)
    write(tmp_path / "a.zarr", {"x": values[:7], "y": values[:7]}, **RAW)
    write(tmp_path / "b.zarr", {"x": values[7:9]}, version=2)
    write(tmp_path / "c.zarr", {"x": values[9:].astype(">f4")}, version=2, **RAW)

    with gl.zarr(tmp_path / "*.zarr", ["x"]) as source:
        assert source.where(7) == "b.zarr, record 0"
        np.testing.assert_array_equal(source.read(range(20))["x"], values)
    with pytest.raises(UnknownFieldError, match=r"b\.zarr has no array 'y'"):
        gl.zarr(tmp_path / "*.zarr")
    with pytest.raises(MissingFileError, match=r"no folder matches .*d\*"):
        gl.zarr(tmp_path / "d*")


def test_fields_are_named_by_a_list_a_dict_and_a_group(tmp_path):
    write(tmp_path / "a.zarr" / "train", {"x": np.arange(3.0), "z": np.arange(3.0)})
    write(tmp_path / "a.zarr" / "train" / "meta", {"y": np.arange(3)})
    (tmp_path / "a.zarr" / "zarr.json").write_text(
        '{"zarr_format": 3, "node_type": "group", "attributes": {}}'
    )

    with gl.zarr(tmp_path / "a.zarr", {"a": "meta/y", "b": "x"}, group="/train") as source:
        assert source.read([2])["a"].tolist() == [2]
        other = gl.zarr(tmp_path / "a.zarr", {"a": "meta/y", "b": "z"}, group="train")
        assert other.fingerprint() != source.fingerprint()
    assert gl.zarr(tmp_path / "a.zarr" / "train").spec.names == ("x", "z")
    assert gl.open(tmp_path / "a.zarr" / "train" / "x").spec.names == ("x",)
    with pytest.raises(SpecError, match=r"no array with an axis in the group /(.|\n)*\['train'\]"):
        gl.zarr(tmp_path / "a.zarr")
    with pytest.raises(UnknownFieldError, match="has no array 'w' with an axis"):
        gl.zarr(tmp_path / "a.zarr", ["w"], group="train")
    with pytest.raises(UnknownFieldError, match="has no group 'test'"):
        gl.zarr(tmp_path / "a.zarr", group="test")


def test_what_is_no_zarr_is_refused(tmp_path):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zip").write_bytes(b"PK")

    with pytest.raises(FormatError, match=r"a\.zarr is no Zarr group"):
        gl.zarr(tmp_path / "a.zarr")
    with pytest.raises(FormatError, match=r"a\.zip is no folder(.|\n)*how to unpack"):
        gl.zarr(tmp_path / "a.zip")
    with pytest.raises(MissingFileError, match=r"b\.zarr is missing"):
        gl.zarr(tmp_path / "b.zarr")
    zarr.create_array(str(tmp_path / "single.zarr"), shape=(), dtype="i4")
    with pytest.raises(
        SpecError, match=r"single\.zarr has no axis in the group /(.|\n)*a single value"
    ):
        gl.zarr(tmp_path / "single.zarr")
    write(tmp_path / "c.zarr", {"x": np.zeros(3), "y": np.zeros(4)})
    with pytest.raises(SpecError, match=r"c\.zarr has arrays of several lengths: x 3, y 4"):
        gl.zarr(tmp_path / "c.zarr")


@pytest.mark.parametrize("dtype", [str, "f8"])
@pytest.mark.parametrize("place", ["compressor", "filters"])
def test_codecs_that_unpickle_are_refused(tmp_path, dtype, place):
    """Some of these are refused by zarr itself."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    group.create_array("x", shape=(3,), chunks=(3,), dtype=dtype)
    about = tmp_path / "a.zarr" / "x" / ".zarray"
    settings, codec = json.loads(about.read_text()), {"id": "pickle", "protocol": 5}
    settings[place] = codec if place == "compressor" else [*(settings["filters"] or []), codec]
    about.write_text(json.dumps(settings))

    with pytest.raises((SpecError, FormatError), match=r"a\.zarr(.|\n)*pickle"):
        gl.zarr(tmp_path / "a.zarr")


@pytest.mark.parametrize("content", [b"", b"{", b'{"zarr_format": 3}', b"[]", b"\xff"])
def test_damaged_metadata_are_refused_and_reported_once(tmp_path, content):
    write(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / "cube" / "zarr.json").write_bytes(content)

    with pytest.raises(FormatError, match=r"a\.zarr"):
        gl.zarr(tmp_path / "a.zarr", ["cube"])
    (tmp_path / "a.zarr" / "zarr.json").write_bytes(content)
    [finding] = gl.check(tmp_path / "a.zarr")
    assert finding.where == str(tmp_path / "a.zarr")


def test_a_damaged_chunk_is_that_alone_and_a_changed_one_is_noticed(tmp_path):
    path = write(tmp_path / "a.zarr", {"x": np.arange(1, 31)}, rows=10)
    chunk = path / "x" / "c" / "1"
    chunk.write_bytes(bytes(9))

    with gl.zarr(path) as source:
        assert source.read([0, 9, 20, 29])["x"].tolist() == [1, 10, 21, 30]
        with pytest.raises(
            DamagedBlockError, match=r"a\.zarr, x, rows 10 to 19(.|\n)*zarr cannot decode it"
        ):
            source[10]
        assert record_origin(source, 10) == (str(chunk), 0)
        (path / "x" / "c" / "2").unlink()
        with gl.zarr(path, cache_bytes=0) as other:
            assert other[29]["x"] == 0  # the fill value: it is not there when the group is opened
    [finding] = gl.check(path)
    assert finding.where == f"{path}, x, rows 10 to 19"
    source = gl.zarr(path)
    (path / "x" / "c" / "0").unlink()
    with pytest.raises(ChangedFileError, match="c/0 changed"):
        source[0]


def test_a_manifest_is_inspected_and_checked_as_its_groups(tmp_path):
    path = write(tmp_path / "a.zarr", {"x": np.arange(1, 31)}, rows=10)
    (path / "x" / "c" / "1").write_bytes(bytes(9))
    with gl.open(path) as source:
        listing = source.index(tmp_path / "a.zarr.manifest")

    inspection, _ = inspect(listing)
    [finding] = gl.check(listing)

    assert (inspection.format, inspection.call) == ("a manifest of files of gl.zarr", "gl.zarr")
    assert [finding] == list(gl.check(path))
    assert (finding.where, finding.file) == (
        f"{path}, x, rows 10 to 19",
        str(path / "x" / "c" / "1"),
    )
    (path / "x" / "c" / "2").write_bytes(b"")
    assert any("changed" in str(finding) for finding in gl.check(listing))


def test_a_source_is_pickled_with_its_arguments(tmp_path):
    source = gl.zarr(write(tmp_path / "a.zarr"), {"number": "big"}, cache_bytes=0)

    copy = pickle.loads(pickle.dumps(source))

    assert copy.fingerprint() == source.fingerprint()
    assert copy.read([7])["number"].tolist() == [7]


def test_a_child_of_a_fork_reads_as_well(tmp_path):
    source = gl.zarr(write(tmp_path / "a.zarr"), cache_bytes=0)
    source.read(range(COUNT))

    child = os.fork()
    if child == 0:
        os._exit(0 if source[5]["big"] == 5 else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_zarr_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)

    with pytest.raises(MissingPackageError, match=r"gl\.zarr needs the package 'zarr'(.|\n)*zarr"):
        gl.zarr(tmp_path)
    monkeypatch.setattr(
        reader.signalsafe,
        "import_package",
        lambda name: type("zarr", (), {"__version__": "2.18.7"}),
    )
    with pytest.raises(MissingPackageError, match=r"gl\.zarr needs zarr 3(.|\n)*2\.18\.7"):
        gl.zarr(tmp_path)


def test_records_are_converted(tmp_path):
    gl.convert(write(tmp_path / "a.zarr"), tmp_path / "out.npz")

    with np.load(tmp_path / "out.npz") as archive:
        np.testing.assert_array_equal(archive["cube"], arrays()["cube"])


# --- metadata, codecs, gaps, packed numbers


def _v2(folder, **values):
    folder.mkdir(parents=True)
    about = {
        "zarr_format": 2,
        "shape": [2],
        "chunks": [2],
        "dtype": "<f4",
        "compressor": None,
        "fill_value": 0,
    }
    about |= {"order": "C", "filters": None, **values}
    (folder / ".zarray").write_text(json.dumps(about))
    (folder / "0").write_bytes(np.arange(2, dtype="f4").tobytes())
    return folder


UNSAFE = {
    "filter": {"dtype": "|O", "filters": [{"id": "vlen-bytes"}, {"id": "pickle", "protocol": 2}]},
    "compressor": {"compressor": {"id": "pickle"}},
    "unknown": {"compressor": {"id": "package_of_somebody"}},
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_codecs_that_are_not_known_are_refused_before_anything_is_decoded(
    tmp_path, monkeypatch, kind
):
    calls = []
    monkeypatch.setattr(numcodecs.registry, "get_codec", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(
        numcodecs.pickles.Pickle, "decode", lambda *arguments: calls.append(arguments)
    )

    with pytest.raises(SpecError, match="pickles" if kind != "unknown" else "package_of_somebody"):
        gl.zarr(_v2(tmp_path / "a.zarr", **UNSAFE[kind]))
    with pytest.raises(SpecError, match="pickles" if kind != "unknown" else "package_of_somebody"):
        gl.open(str(_v2(tmp_path / "group" / "x", **UNSAFE[kind])))
    assert calls == []


def test_codecs_in_shards_of_format_3_are_looked_through(tmp_path):
    root = tmp_path / "a.zarr"
    array = zarr.create_array(str(root), shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
    array[...] = np.arange(8)
    about = json.loads((root / "zarr.json").read_text())
    about["codecs"][0]["configuration"]["codecs"].append(
        {"name": "numcodecs.pickle", "configuration": {}}
    )
    (root / "zarr.json").write_text(json.dumps(about))

    with pytest.raises(SpecError, match="pickles"):
        gl.zarr(root)


IMPOSSIBLE = {
    "rows": ({"shape": [10**15], "chunks": [1]}, "1000000000000000 chunks"),
    "millions": (
        {"shape": [1 << 23], "chunks": [1]},
        "8388607 of its 8388608 chunks are not there",
    ),
    "chunk": ({"shape": [2], "chunks": [10**15]}, "unpack"),
    "chunk of many axes": ({"shape": [2, 2], "chunks": [1 << 40, 1 << 40]}, "elements"),
    "negative": ({"shape": [-1]}, "no list of lengths"),
    "text": ({"shape": "2"}, "no list"),
    "axes": ({"chunks": [2, 2]}, "its chunks are"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_sizes_that_cannot_be_are_refused_before_memory_is_taken(tmp_path, kind):
    values, message = IMPOSSIBLE[kind]
    folder = _v2(tmp_path / "a.zarr", **values)

    tracemalloc.start()
    with pytest.raises((SpecError, FormatError), match=message):
        gl.zarr(folder)
    assert tracemalloc.get_traced_memory()[1] < 1 << 25
    tracemalloc.stop()


def test_chunks_that_never_arrived_are_told_also_by_a_manifest(tmp_path, caplog):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    for name in ("x", "y"):
        group.create_array(name, shape=(8, 2), chunks=(2, 2), dtype="f4")[...] = np.arange(
            1, 17
        ).reshape(8, 2)
    path = gl.zarr(tmp_path / "a.zarr").index(tmp_path / "whole.manifest")
    for name in ("x", "y"):
        (tmp_path / "a.zarr" / name / "c" / "3" / "0").unlink()

    source = gl.zarr(tmp_path / "a.zarr")
    [record] = caplog.records
    assert "x: 1 of its 4 chunks are not there, and 1 more lack some" in record.getMessage()
    assert source.read([5, 7])["x"].tolist() == [[11, 12], [0, 0]]
    with pytest.raises(SpecError, match="fill=True"):
        gl.zarr(source.index(tmp_path / "x.manifest"), fill=False)
    caplog.clear()
    gl.zarr(tmp_path / "a.zarr", fill=True)
    assert caplog.records == []
    with pytest.raises(ChangedFileError, match="c/3/0"):
        gl.zarr(path).read([7])


SHARD_KINDS = {
    "end": {},
    "start": {"index_location": "start"},
    "no checksum, big-endian": {
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]
    },
}


@pytest.mark.filterwarnings("ignore:Combining")
@pytest.mark.parametrize("kind", SHARD_KINDS)
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("axes", [None, (1, 0)])
def test_chunks_that_a_shard_lacks_are_told_also_by_a_manifest(
    tmp_path, caplog, kind, is_nested, axes
):
    codecs = zarr.codecs
    inner = (
        [codecs.ShardingCodec(chunk_shape=(2, 2), **SHARD_KINDS[kind])]
        if is_nested
        else [codecs.GzipCodec()]
    )
    inner = inner if is_nested else [codecs.BytesCodec(), *inner]
    chunk = (4, 4) if is_nested else (2, 2)
    shards = codecs.ShardingCodec(chunk_shape=chunk, codecs=inner, **SHARD_KINDS[kind])
    before = [codecs.TransposeCodec(order=axes)] if axes else []
    values = np.arange(1, 64, dtype="i4").reshape(9, 7)
    values[2:4, :2] = values[8:, 4:6] = 0  # two chunks of 2 x 2; those beyond the edges are none
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    zarr.create(
        store=group.store, path="x", shape=(9, 7), chunks=(8, 8), dtype="i4", codecs=[*before, shards], fill_value=0,
        config={"write_empty_chunks": False}, zarr_format=3,
    )[...] = values  # fmt: skip
    message = "x: 2 of its 20 chunks are not there"

    source = gl.zarr(tmp_path / "a.zarr")
    [record] = caplog.records
    assert message in record.getMessage()
    assert "zarr leaves out such chunks" in record.getMessage()
    np.testing.assert_array_equal(source.read(range(9))["x"], values)
    with pytest.raises(SpecError, match=message):
        gl.zarr(tmp_path / "a.zarr", fill=False)
    caplog.clear()
    path = gl.zarr(tmp_path / "a.zarr", fill=True).index(tmp_path / "x.manifest")
    assert caplog.records == []
    with pytest.raises(SpecError, match=message):
        gl.zarr(path, fill=False)
    gl.zarr(path)
    assert message in caplog.text


@pytest.mark.parametrize("chunk", [[0, 2], [3, 3], [2], [2, 2, 2], [2**40, 2]])
def test_shards_in_shards_whose_shapes_cannot_be_are_damaged(tmp_path, chunk):
    codecs = zarr.codecs
    shards = codecs.ShardingCodec(
        chunk_shape=(4, 4), codecs=[codecs.ShardingCodec(chunk_shape=(2, 2))]
    )
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    zarr.create(
        store=group.store,
        path="x",
        shape=(8, 8),
        chunks=(8, 8),
        dtype="i4",
        codecs=[shards],
        zarr_format=3,
    )[...] = 1
    path = tmp_path / "a.zarr" / "x" / "zarr.json"
    metadata = json.loads(path.read_bytes())
    metadata["codecs"][0]["configuration"]["codecs"][0]["configuration"]["chunk_shape"] = chunk
    path.write_text(json.dumps(metadata))
    with pytest.raises(FormatError, match="metadata are damaged"):
        gl.zarr(tmp_path / "a.zarr")


def test_whole_shards_are_told_of_nothing(tmp_path, caplog):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    options = {"chunks": (2, 2), "shards": (4, 6), "dtype": "i4"}
    group.create_array("x", shape=(9, 7), **options)[...] = np.ones((9, 7))
    group.create_array("none", shape=(9, 0), **options)
    full = group.create_array("zeros", shape=(9, 7), config={"write_empty_chunks": True}, **options)
    full[...] = np.zeros((9, 7))  # with chunks beyond the edges
    group.create_array("word", shape=(9,), chunks=(2,), shards=(4,), dtype=str)[...] = np.array(
        ["a"] * 9
    )
    assert len(gl.zarr(tmp_path / "a.zarr")) == len(gl.zarr(tmp_path / "a.zarr", fill=False)) == 9
    assert caplog.records == []


@pytest.mark.filterwarnings("ignore:Combining")
def test_shards_behind_a_codec_that_hides_their_index_are_refused_by_fill(tmp_path, caplog):
    codecs = zarr.codecs
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    both = [codecs.ShardingCodec(chunk_shape=(2,)), codecs.GzipCodec()]
    zarr.create(
        store=group.store, path="x", shape=(8,), chunks=(4,), dtype="i4", codecs=both, zarr_format=3
    )[...] = 1
    assert gl.zarr(tmp_path / "a.zarr").read([7])["x"].tolist() == [1]
    with pytest.raises(SpecError, match="GzipCodec stands beside that of shards"):
        gl.zarr(tmp_path / "a.zarr", fill=False)


@pytest.mark.parametrize("version", [2, 3])
def test_packed_numbers_of_xarray_become_values_or_stay(tmp_path, version):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=version)
    array = group.create_array(
        "t", shape=(3,), chunks=(2,), dtype="i2", fill_value=-9 if version == 2 else 0
    )
    array[...] = [1, 2, -9]
    array.attrs.update(
        {"scale_factor": 0.5, "add_offset": 10.0, **({"_FillValue": -9} if version == 3 else {})}
    )

    with pytest.raises(
        SpecError, match=r"t: its numbers stand for others(.|\n)*mask_and_scale=True"
    ):
        gl.zarr(tmp_path / "a.zarr")
    assert gl.zarr(tmp_path / "a.zarr", mask_and_scale=False).read([0, 2])["t"].tolist() == [1, -9]
    source = gl.zarr(tmp_path / "a.zarr", mask_and_scale=True)
    np.testing.assert_array_equal(source.read([0, 1, 2])["t"], [10.5, 11.0, np.nan])
    again = gl.open(source.index(tmp_path / "x.manifest"))
    np.testing.assert_array_equal(again.read([0, 1, 2])["t"], [10.5, 11.0, np.nan])


def test_whole_numbers_that_float64_does_not_hold_are_refused(tmp_path):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    array = group.create_array("t", shape=(3,), chunks=(1,), dtype="i8")
    array[...] = [1, 2**60 + 1, -1]
    array.attrs["_FillValue"] = -1
    source = gl.zarr(tmp_path / "a.zarr", mask_and_scale=True)
    np.testing.assert_array_equal(source.read([0, 2])["t"], [1, np.nan])
    with pytest.raises(SpecError, match=f"a.zarr, t: {2**60 + 1} is no value of float64"):
        source.read([1])


def test_a_fill_value_of_floats_in_format_3_is_the_base64_of_a_double(tmp_path):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    for name, number in (("nan", np.nan), ("large", 1e20)):
        array = group.create_array(name, shape=(2,), dtype="f4")
        array[...] = [1, number]
        array.attrs["_FillValue"] = base64.b64encode(
            struct.pack("<d", number)
        ).decode()  # as xarray writes it

    with pytest.raises(SpecError, match="large: its numbers"):
        gl.zarr(tmp_path / "a.zarr")
    records = gl.zarr(tmp_path / "a.zarr", mask_and_scale=True).read([0, 1])
    np.testing.assert_array_equal(records["large"], np.array([1, np.nan], "f4"))
    np.testing.assert_array_equal(gl.zarr(tmp_path / "a.zarr", ["nan"]).read([1])["nan"], [np.nan])


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals")
def test_what_a_handler_raises_while_a_group_is_opened_comes_as_itself(tmp_path, monkeypatch):
    def ring(*_):
        raise TimeoutError("of the handler")

    zarr.create_array(str(tmp_path / "a.zarr"), data=np.arange(4))
    before, release = signal.signal(signal.SIGALRM, ring), threading.Event()
    monkeypatch.setattr(opening, "array_of", lambda *arguments: release.wait(60))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError, match="of the handler"):
            gl.zarr(tmp_path / "a.zarr")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        release.set()


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("dtype", ["texts", "bytes"])
@pytest.mark.parametrize("form", [2, 3, "shards", "gzip"])
def test_the_number_of_texts_that_a_chunk_states_is_not_believed(tmp_path, form, dtype):
    shards = (4,) if form == "shards" else None
    kind = str if dtype == "texts" else zarr.dtype.VariableLengthBytes()
    packer = zarr.codecs.GzipCodec() if form == "gzip" else None
    array = zarr.create_array(
        str(tmp_path / "a.zarr"),
        shape=(4,),
        chunks=(2,),
        shards=shards,
        dtype=kind,
        compressors=packer,
        zarr_format=2 if form == 2 else 3,
    )
    values = ["a", "bc", "", "d"] if dtype == "texts" else [b"a", b"bc", b"", b"d"]
    array[...] = np.array(values, object)
    assert len(gl.zarr(tmp_path / "a.zarr").read([1])) == 1
    path = next(path for path in (tmp_path / "a.zarr").rglob("*") if path.name == "0")
    sound = path.read_bytes()
    number, stated = struct.pack("<I", 2), struct.pack("<I", 1 << 22)
    text = (
        gzip.compress(gzip.decompress(sound).replace(number, stated, 1)) if form == "gzip" else b""
    )
    path.write_bytes(text or sound.replace(number, stated, 1))

    tracemalloc.start()
    with pytest.raises(DamagedBlockError, match="too short for the 4194304 values"):
        gl.zarr(tmp_path / "a.zarr").read([0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 8 << 20


@pytest.mark.parametrize("version", [2, 3])
def test_the_fill_value_of_unsigned_numbers_is_of_the_signed_type_in_json(tmp_path, version):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=version)
    array = group.create_array("x", data=np.array([-1, -2, 2], "i1"))
    array.attrs.update({"_Unsigned": "true", "_FillValue": -1, "scale_factor": -1})

    values = gl.zarr(tmp_path / "a.zarr", mask_and_scale=True).read([0, 1, 2])["x"]

    np.testing.assert_array_equal(values, [np.nan, -254, -2])


def test_an_attribute_that_is_no_number_is_named_with_its_array(tmp_path):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    group.create_array("x", data=np.arange(3), attributes={"scale_factor": "0.1"})

    with pytest.raises(
        SpecError, match=r"a\.zarr, x: its numbers(.|\n)*its attribute scale_factor is '0\.1'"
    ):
        gl.zarr(tmp_path / "a.zarr")
    source = gl.zarr(tmp_path / "a.zarr", mask_and_scale=False)  # as the remedy says
    assert source.read([2])["x"].tolist() == [2]
    path = source.index(tmp_path / "x.manifest")
    with pytest.raises(SpecError, match=r"its attribute scale_factor is '0\.1'"):
        gl.zarr(path, mask_and_scale=True)

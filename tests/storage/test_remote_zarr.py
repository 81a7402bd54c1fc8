"""Zarr groups in object stores: the records of the same folder, how they are listed, and what is
refused."""

from __future__ import annotations

import functools
import pickle
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import (
    ChangedFileError,
    DamagedBlockError,
    FormatError,
    MissingFileError,
    SpecError,
    UnknownFieldError,
    UnreadableFileError,
)
from tests.objectserver import ObjectServer

pytest.importorskip("obstore")
zarr = pytest.importorskip("zarr", "3", reason="gl.zarr needs zarr 3, and so Python 3.11")
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("clean_stores")]
COUNT = 25


def arrays() -> dict[str, np.ndarray]:
    return {
        "x": np.arange(1, COUNT * 6 + 1, dtype="i4").reshape(COUNT, 2, 3),
        "y": np.arange(COUNT, dtype="f8"),
    }


def write(folder: Path, version: int) -> None:
    """Write a group: of format 3 with shards, and rows where they lie; of format 2 with compressed
    chunks."""
    group = zarr.open_group(str(folder), mode="w", zarr_format=version)
    x, y = arrays().values()
    options = {"shards": (10, 2, 3)} if version == 3 else {}
    group.create_array("x", shape=x.shape, chunks=(5, 2, 3), dtype=x.dtype, **options)[...] = x
    group.create_array("y", shape=y.shape, chunks=(5,), dtype=y.dtype, compressors=None)[...] = y
    group.create_group("inner").create_array("z", shape=(3,), chunks=(3,), dtype="i4")[...] = [
        1,
        2,
        3,
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # format 3 does not specify them yet
        zarr.consolidate_metadata(str(folder))


@functools.cache
def content_of(version: int) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), version)
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in Path(folder).rglob("*")
            if path.is_file()
        }


def put(server: ObjectServer, version: int, root: str = "/data/sets/a.zarr") -> None:
    for name, content in content_of(version).items():
        server.objects[f"{root}/{name}"] = content


def remote(
    server: ObjectServer, url: str = "s3://data/sets/a.zarr", **settings: object
) -> gl.Remote:
    return gl.Remote(url, endpoint=server.url, anonymous=True, **settings)


def assert_same(source: gl.Source, expected: gl.Source) -> None:
    assert source.spec == expected.spec
    assert source.fingerprint() == expected.fingerprint()
    for name in expected.spec.names:
        np.testing.assert_array_equal(
            source.read([24, 3, 11])[name], expected.read([24, 3, 11])[name]
        )


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_records_are_those_of_the_folder(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, version: int
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    put(server, version)
    server.page_keys = 3
    write(tmp_path / "a.zarr", version)
    local = gl.zarr(tmp_path / "a.zarr")
    source = gl.zarr(remote(server, f"{scheme}://data/sets/a.zarr"))
    assert_same(source, local)
    assert_same(pickle.loads(pickle.dumps(source)), local)
    assert_same(gl.open(remote(server, f"{scheme}://data/sets/a.zarr/")), local)
    assert source.where(7) == "a.zarr, record 7"


def test_no_chunk_is_asked_for_its_stamp_and_each_read_is_a_range(server: ObjectServer) -> None:
    put(server, 3)
    source = gl.zarr(remote(server))
    ranges = [(path, text) for _, path, text in server.requests if "/c/" in path]
    assert len(ranges) == 3  # the indexes of the shards alone: whether they lack chunks
    assert all(
        "/x/c/" in path and text.endswith(f"-{len(server.objects[path]) - 1}")
        for path, text in ranges
    )
    server.requests.clear()
    gl.zarr(remote(server), fill=True)
    assert not any("/c/" in path for _, path, _ in server.requests)
    server.requests.clear()
    assert source.read([7], fields="y")["y"].tolist() == [7]
    assert [text for _, _, text in server.requests] == ["bytes=16-23"]
    server.requests.clear()
    np.testing.assert_array_equal(source.read([12], fields="x")["x"][0], arrays()["x"][12])
    index, chunk = (text for _, path, text in server.requests if path.endswith("x/c/1/0/0"))
    size = len(server.objects["/data/sets/a.zarr/x/c/1/0/0"])
    assert index == f"bytes={size - 36}-{size - 1}"  # two places of 16 bytes, and a checksum
    assert chunk != index


def test_chunks_that_a_shard_of_a_store_lacks_are_told(
    server: ObjectServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    array = group.create_array(
        "x", shape=(8,), chunks=(2,), shards=(8,), dtype="i4", compressors=None
    )
    array[...] = [1, 2, 0, 0, 5, 6, 7, 8]
    for path in (tmp_path / "a.zarr").rglob("*"):
        if path.is_file():
            server.objects[f"/data/sets/a.zarr/{path.relative_to(tmp_path / 'a.zarr')}"] = (
                path.read_bytes()
            )
    gl.zarr(remote(server))
    assert "x: 1 of its 4 chunks are not there" in caplog.text
    with pytest.raises(SpecError, match="1 of its 4 chunks"):
        gl.zarr(remote(server), fill=False)


def test_groups_are_found_by_a_wildcard(server: ObjectServer) -> None:
    for name in ("b", "a", ".c"):
        put(server, 2, f"/data/sets/{name}.zarr")
    server.objects["/data/sets/notes.txt"] = b"text"
    source = gl.zarr(remote(server, "s3://data/s*/?.zarr"))
    assert source.files.whole == (
        ["s3://data/sets/a.zarr", "s3://data/sets/b.zarr"],
        (COUNT, COUNT),
    )
    assert gl.zarr(remote(server, "s3://data/*/a.zarr"), ["z"], group="inner").read(range(3))[
        "z"
    ].tolist() == [1, 2, 3]
    with pytest.raises(MissingFileError, match=r"no folder matches s3://data/sets/d\*"):
        gl.zarr(remote(server, "s3://data/sets/d*"))


def test_a_cache_sends_no_request_again(server: ObjectServer, tmp_path: Path) -> None:
    put(server, 3)
    gl.zarr(remote(server, cache=tmp_path)).read(range(COUNT))
    again = gl.zarr(remote(server, cache=tmp_path))
    server.requests.clear()
    np.testing.assert_array_equal(again.read(range(COUNT))["x"], arrays()["x"])
    assert server.requests == []


@pytest.mark.parametrize("version", [2, 3])
def test_a_web_server_lists_nothing_and_is_asked_for_each_chunk(
    server: ObjectServer, version: int
) -> None:
    put(server, version)
    del server.objects[f"/data/sets/a.zarr/y/{'c/' if version == 3 else ''}0"]
    url = f"{server.url}/data/sets/a.zarr"
    for source in (
        gl.zarr(url),
        gl.zarr(url, ["x", "y"]),
    ):  # by consolidated metadata, and by names
        np.testing.assert_array_equal(source.read(range(COUNT))["x"], arrays()["x"])
        assert source.read(range(COUNT))["y"].tolist() == [0.0] * 5 + list(range(5, COUNT))
    del server.objects["/data/sets/a.zarr/" + (".zmetadata" if version == 2 else "zarr.json")]
    if version == 2:
        with pytest.raises(SpecError, match=r"does not say which files it has(.|\n)*fields="):
            gl.zarr(url)


@pytest.mark.parametrize("name", ["x/c/1/0/0", "y/c/1"])
@pytest.mark.parametrize("change", ["replaced", "gone", "shorter"])
def test_a_chunk_that_changed_is_refused(server: ObjectServer, name: str, change: str) -> None:
    put(server, 3)
    source, key = gl.zarr(remote(server)), f"/data/sets/a.zarr/{name}"
    content = server.objects.pop(key)
    if change != "gone":
        server.objects[key] = content[::-1] if change == "replaced" else content[:-1]
    field = name[0]
    assert len(source.read([0], fields=field)[field]) == 1
    with pytest.raises(ChangedFileError, match=name):
        source.read([10 if field == "x" else 5], fields=field)


def test_metadata_that_are_replaced_while_the_group_is_opened_are_refused(
    server: ObjectServer,
) -> None:
    put(server, 3)
    key = "/data/sets/a.zarr/x/zarr.json"
    server.stale[key] = server.objects[key] + b" "
    server.fault = lambda number, path: "stale" if path == key else ""
    with pytest.raises(
        ChangedFileError, match=r"x/zarr\.json changed(.|\n)*while the group was opened"
    ):
        gl.zarr(remote(server))


def test_what_was_not_there_stays_so(server: ObjectServer) -> None:
    put(server, 3)
    chunk = server.objects.pop("/data/sets/a.zarr/x/c/0/0/0")
    source = gl.zarr(remote(server))
    server.objects["/data/sets/a.zarr/x/c/0/0/0"] = chunk
    assert not source.read([0], fields="x")["x"].any()


def test_a_damaged_chunk_is_that_alone(server: ObjectServer) -> None:
    put(server, 2)
    server.objects["/data/sets/a.zarr/x/1.0.0"] = b"damage"
    source = gl.zarr(remote(server))
    np.testing.assert_array_equal(source.read([0], fields="x")["x"][0], arrays()["x"][0])
    with pytest.raises(
        DamagedBlockError, match=r"s3://data/sets/a\.zarr, x, rows 5 to 9(.|\n)*zarr cannot decode"
    ):
        source.read([5], fields="x")


@pytest.mark.parametrize("version", [2, 3])
def test_a_manifest_opens_groups_without_a_request(
    server: ObjectServer, tmp_path: Path, version: int
) -> None:
    put(server, version)
    source = gl.zarr(f"{server.url}/data/sets/a.zarr")
    path = source.index(tmp_path / "x.manifest")
    server.requests.clear()

    again = gl.open(path)

    assert (again.spec, again.fingerprint(), len(again)) == (
        source.spec,
        source.fingerprint(),
        COUNT,
    )
    assert server.requests == []
    assert again.read([7], fields="y")["y"].tolist() == [7]
    assert len(server.requests) == 1  # of eight bytes
    np.testing.assert_array_equal(again.read([12], fields="x")["x"][0], arrays()["x"][12])
    requests = server.requests[1:]
    assert [method for method, _, _ in requests].count(
        "GET"
    ) == version - 1  # of a chunk, and of the index of its shard
    assert (
        len(requests) == version
    )  # the metadata are not read, but have to be those that were listed
    assert_same(again, source)
    assert Path(again.index(tmp_path / "y.manifest")).read_bytes() == Path(path).read_bytes()


def test_a_manifest_in_the_store_takes_its_settings(server: ObjectServer, tmp_path: Path) -> None:
    put(server, 3)
    put(server, 3, "/data/sets/b.zarr")
    del server.objects[
        "/data/sets/b.zarr/x/c/0/0/0"
    ]  # the store is asked whether it is still not there
    source = gl.zarr(remote(server, "s3://data/sets/*.zarr"))
    content = Path(source.index(tmp_path / "x.manifest")).read_bytes()
    server.objects["/data/sets/x.manifest"] = content

    again = gl.zarr(remote(server, "s3://data/sets/x.manifest"))

    assert_same(again, source)
    assert again.where(COUNT) == source.where(COUNT) == "b.zarr, record 0"
    np.testing.assert_array_equal(
        again.read(range(2 * COUNT))["x"], source.read(range(2 * COUNT))["x"]
    )
    assert_same(pickle.loads(pickle.dumps(again)), source)


@pytest.mark.parametrize("name", ["x/zarr.json", "x/c/1/0/0", "y/c/1"])
def test_a_listed_object_that_changed_is_refused(
    server: ObjectServer, tmp_path: Path, name: str
) -> None:
    put(server, 3)
    del server.objects["/data/sets/a.zarr/x/c/0/0/0"]
    path = gl.zarr(f"{server.url}/data/sets/a.zarr").index(tmp_path / "x.manifest")
    server.objects[f"/data/sets/a.zarr/{name}"] = server.objects[f"/data/sets/a.zarr/{name}"][::-1]

    field = name[0]
    with pytest.raises(ChangedFileError, match=f"{name} changed") as error:
        gl.zarr(path).read([10 if field == "x" else 5], fields=field)
    assert path in error.value.remedy


def test_an_object_that_was_written_after_its_manifest_is_refused(
    server: ObjectServer, tmp_path: Path
) -> None:
    put(server, 3)
    chunk = server.objects.pop("/data/sets/a.zarr/x/c/0/0/0")
    path = gl.zarr(f"{server.url}/data/sets/a.zarr").index(tmp_path / "x.manifest")
    assert not gl.zarr(path).read([0], fields="x")["x"].any()
    server.objects["/data/sets/a.zarr/x/c/0/0/0"] = chunk

    with pytest.raises(ChangedFileError, match="it was not there when the manifest was written"):
        gl.zarr(path).read([0], fields="x")


@pytest.mark.parametrize("fault", ["503", "cut", "short"])
def test_a_fault_that_passes(server: ObjectServer, fault: str) -> None:
    put(server, 3)
    server.fault = lambda number, path: fault if number % 2 and path != "/data" else ""
    np.testing.assert_array_equal(gl.zarr(remote(server)).read(range(COUNT))["x"], arrays()["x"])


def test_what_is_no_group_is_refused(server: ObjectServer) -> None:
    put(server, 3)
    with pytest.raises(
        FormatError, match=r"s3://data/sets/b\.zarr is no Zarr group(.|\n)*no such object"
    ):
        gl.zarr(remote(server, "s3://data/sets/b.zarr"))
    with pytest.raises(FormatError, match="no such bucket"):
        gl.zarr(remote(server, "s3://none/a.zarr"))
    with pytest.raises(UnknownFieldError, match="has no group 'test'"):
        gl.zarr(remote(server), group="test")
    server.fault = lambda number, path: "403 AccessDenied"
    with pytest.raises(UnreadableFileError, match="may not be read"):
        gl.zarr(remote(server))

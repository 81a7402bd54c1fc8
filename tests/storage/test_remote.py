"""Remote files: the same batches as of the same local files, and what stores do on a bad day."""

from __future__ import annotations

import gzip
import io
import logging
import os
import pickle
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload import threads
from gpuload.cli.inspect import inspect
from gpuload.errors import (
    ChangedFileError,
    FileError,
    GpuloadError,
    MissingFileError,
    SpecError,
    UnreadableFileError,
)
from gpuload.storage import remote, retries, stores
from gpuload.storage.extents import Extents
from gpuload.storage.objects import names_of
from tests.objectserver import ObjectServer, npy_bytes

pytest.importorskip("obstore")
pa = pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("clean_stores")]
GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def rows(server: ObjectServer) -> list[np.ndarray]:
    """Three NPY files of rows on the server: a.npy, b.npy, c.npy."""
    arrays = [np.random.default_rng(i).integers(0, 255, (50 + i, 12), np.uint8) for i in range(3)]
    for name, array in zip("abc", arrays, strict=True):
        server.objects[f"/data/{name}.npy"] = npy_bytes(array)
    return arrays


def urls(server: ObjectServer) -> list[str]:
    return [f"{server.url}/data/{name}.npy" for name in "abc"]


def assert_batches_equal(first: gl.Source, second: gl.Source) -> None:
    loaders = [
        gl.Loader(source, batch_size=7, shuffle=True, seed=3, device="cpu")
        for source in (first, second)
    ]
    for batch, expected in zip(*loaders, strict=True):
        for name in first.spec.names:
            np.testing.assert_array_equal(batch[name], expected[name])


def serve_folder(server: ObjectServer, folder: Path) -> list[str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        server.objects[f"/{path.relative_to(folder)}"] = path.read_bytes()
    return [f"{server.url}/{path.relative_to(folder)}" for path in files]


def write_arrow(path: Path) -> None:
    with pa.ipc.new_file(path, pa.schema({"x": pa.int64(), "s": pa.string()})) as writer:
        writer.write_table(
            pa.table({"x": range(20), "s": [f"text {i}" for i in range(20)]}), max_chunksize=7
        )


def write_zarr(folder: Path) -> None:
    zarr = pytest.importorskip("zarr")
    array = zarr.open_group(str(folder), mode="w").create_array(
        "x", shape=(20, 3), chunks=(2, 3), shards=(8, 3), dtype="i4"
    )
    array[...] = np.arange(1, 61).reshape(20, 3)


def test_rows_are_those_of_the_files(
    server: ObjectServer, rows: list[np.ndarray], tmp_path: Path
) -> None:
    for name, array in zip("abc", rows, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    source, local = gl.npy(urls(server)), gl.npy(str(tmp_path / "*.npy"))
    assert source.fingerprint() == local.fingerprint()
    assert_batches_equal(source, local)
    assert "remote" in source.describe()
    mixed = gl.npy([urls(server)[0], str(tmp_path / "b.npy"), urls(server)[2]])
    assert_batches_equal(mixed, local)


def test_a_manifest_opens_objects_without_a_request(
    server: ObjectServer, rows: list[np.ndarray], tmp_path: Path
) -> None:
    source = gl.npy(urls(server))
    path = source.index(tmp_path / "rows.manifest")
    server.requests.clear()
    again = gl.npy(path)
    assert again.fingerprint() == source.fingerprint()
    assert server.requests == []
    np.testing.assert_array_equal(again.read(range(len(again)))["x"], np.concatenate(rows))
    assert_batches_equal(again, source)


def test_a_manifest_in_a_store_carries_the_settings_of_its_url_to_the_objects(
    server: ObjectServer, rows: list[np.ndarray], tmp_path: Path
) -> None:
    path = gl.npy(urls(server)).index(tmp_path / "rows.manifest")
    server.objects["/data/rows.manifest"] = Path(path).read_bytes()
    url = f"{server.url}/data/rows.manifest"
    for source in (
        gl.open(url),
        pickle.loads(pickle.dumps(gl.npy(url))),
        gl.npy(gl.Remote(url, cache=tmp_path / "c")),
    ):
        np.testing.assert_array_equal(source.read(range(len(source)))["x"], np.concatenate(rows))
    assert list((tmp_path / "c").rglob("*"))


def test_an_object_that_is_another_one_than_its_manifest_says_is_refused(
    server: ObjectServer, rows: list[np.ndarray], tmp_path: Path
) -> None:
    path = gl.npy(urls(server)).index(tmp_path / "rows.manifest")
    server.objects["/data/b.npy"] = npy_bytes(rows[1] ^ 1)
    source = gl.npy(path)
    source.read([0])
    with pytest.raises(
        ChangedFileError, match=r"b\.npy changed after .*rows\.manifest was written"
    ) as info:
        source.read([55])
    assert "gpuload index" in info.value.remedy
    for number in (55, 56):  # again, and by single requests
        with pytest.raises(ChangedFileError, match=r"rows\.manifest was written"):
            source.read([number, 59])
    with (
        pytest.raises(ChangedFileError, match=r"rows\.manifest was written"),
        source._files.open_binary(1) as file,
    ):
        file.read(10)


def test_every_format(server: ObjectServer, tmp_path: Path) -> None:
    count = 40
    arrays = {
        "x": np.arange(count * 6, dtype=np.int32).reshape(count, 6),
        "y": np.arange(count, dtype=np.float32),
    }
    source = gl.arrays(**arrays)
    gl.convert(source, str(tmp_path / "a.npz"))
    gl.convert(source, str(tmp_path / "a.tfrecord"))
    gl.convert(source, str(tmp_path / "a.parquet"))
    gl.convert(source, str(tmp_path / "a.bin"), format="fixed")
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{i / 2}\n" for i in range(count)))
    (tmp_path / "a.txt").write_text("".join(f"line {i}\n" for i in range(count)))
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress((tmp_path / "a.tfrecord").read_bytes()))
    (tmp_path / "a.idx").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, count, *range(count)]))
    np.save(tmp_path / "a.npy", arrays["x"])
    for name in ("a.tar", "a.tar.gz"):
        with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as archive:
            for number in range(count):
                member = tarfile.TarInfo(f"{number}.txt")
                member.size = number
                archive.addfile(member, io.BytesIO(b"x" * number))
    if find_spec("h5py"):
        gl.convert(source, str(tmp_path / "a.h5"))
    columns = {
        "x": pa.array(arrays["x"].tolist(), pa.list_(pa.int32(), 6)),
        "s": [f"text {i}" for i in range(count)],
    }
    for name, make in (("a.arrow", pa.ipc.new_file), ("a.stream", pa.ipc.new_stream)):
        with make(tmp_path / name, pa.table(columns).schema) as writer:
            writer.write_table(pa.table(columns), max_chunksize=7)
    serve_folder(server, tmp_path)
    dtype = [("x", "<i4", (6,)), ("y", "<f4")]
    openings: list[tuple[Callable[[Any], gl.Source], str]] = [
        (gl.npz, "a.npz"),
        (gl.npy, "a.npy"),
        (gl.tfrecord, "a.tfrecord"),
        (gl.tfrecord, "a.tfrecord.gz"),
        (lambda path: gl.fixed(path, dtype), "a.bin"),
        (gl.csv, "a.csv"),
        (gl.text, "a.txt"),
        (gl.idx, "a.idx"),
        (gl.parquet, "a.parquet"),
        (gl.arrow, "a.arrow"),
        (gl.arrow, "a.stream"),
        (gl.webdataset, "a.tar"),
        (gl.webdataset, "a.tar.gz"),
        *([(gl.hdf5, "a.h5")] if find_spec("h5py") else []),
        (gl.open, "a.npz"),
        (gl.open, "a.tfrecord"),
        (gl.open, "a.arrow"),
    ]
    for open_source, name in openings:
        local, far = open_source(str(tmp_path / name)), open_source(f"{server.url}/{name}")
        stored = open_source(gl.Remote(f"{server.url}/{name}", cache=tmp_path / "blocks"))
        assert len(stored) == len(far) == count
        assert far.spec == local.spec
        assert stored.fingerprint() == local.fingerprint()
        for source in (far, stored, pickle.loads(pickle.dumps(stored))):
            for field in far.spec.names:
                np.testing.assert_array_equal(
                    source.read([3, 1, 39])[field], local.read([3, 1, 39])[field]
                )
        server.requests.clear()
        stored.read(range(count))
        assert server.requests == []


def num_bytes(server: ObjectServer) -> int:
    ranges = [text.removeprefix("bytes=").split("-") for _, _, text in server.requests if text]
    return sum(int(last) + 1 - int(first) for first, last in ranges)


def test_a_fingerprint_asks_for_its_sample_alone(server: ObjectServer) -> None:
    server.objects["/a.npy"] = npy_bytes(np.zeros((1000, 1000), np.uint8))
    source = gl.npy(f"{server.url}/a.npy")
    server.requests.clear()
    source.fingerprint()
    assert num_bytes(server) == 64 * 4096


def test_metadata_of_hdf5_are_asked_for_in_small_pieces(
    server: ObjectServer, tmp_path: Path
) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", data=np.zeros((4000, 1000), np.uint8))
        file.create_dataset("number", data=np.arange(4000), chunks=(500,), compression="lzf")
    serve_folder(server, tmp_path)
    source = gl.hdf5(f"{server.url}/a.h5", ["number"])
    assert source.read([3000])["number"].tolist() == [3000]
    assert num_bytes(server) < 1 << 19 < len(server.objects["/a.h5"]) / 4


def test_remote_files_are_inspected_and_checked(
    server: ObjectServer, rows: list[np.ndarray], tmp_path: Path
) -> None:
    inspection, _ = inspect(urls(server))
    sizes = [len(server.objects[f"/data/{name}.npy"]) for name in "abc"]
    assert (inspection.num_files, inspection.num_bytes) == (3, sum(sizes))
    assert list(gl.check(urls(server))) == []
    write_arrow(tmp_path / "a.arrow")
    content = (tmp_path / "a.arrow").read_bytes()
    server.objects["/a.arrow"] = content.replace(b"text 3", b"\xff\xff\xff\xff\xff\xff")
    findings = [finding.where for finding in gl.check(f"{server.url}/a.arrow")]
    assert findings == [f"{server.url}/a.arrow, record batch 0"]
    with pytest.raises(MissingFileError, match=r"none\.npy is missing"):
        gl.check([*urls(server), f"{server.url}/none.npy"])


def test_images_of_a_folder(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = GOLDEN / "images"
    files = sorted(folder.rglob("*.jpg"))[:3]
    for number, path in enumerate(files):
        server.objects[f"/set/{'cat' if number else 'dog'}/{path.name}"] = path.read_bytes()
    paths = sorted(f"{server.url}{key}" for key in server.objects)
    source = gl.images(paths)
    assert source.classes == ("cat", "dog")
    for number, record in enumerate(source.read(range(len(paths)))["image"]):
        assert bytes(record) == server.objects[paths[number][len(server.url) :]]


@pytest.mark.parametrize("fault", ["503", "reset", "cut", "short", "429"])
def test_a_fault_that_passes(server: ObjectServer, rows: list[np.ndarray], fault: str) -> None:
    seen_paths: dict[str, int] = {}

    def fails(number: int, path: str) -> str:
        seen_paths[path] = seen_paths.get(path, 0) + 1
        return fault if seen_paths[path] in (1, 3) else ""

    server.fault = fails
    source = gl.npy(urls(server))
    np.testing.assert_array_equal(source.read(range(len(source)))["x"], np.concatenate(rows))
    assert max(seen_paths.values()) >= 3


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("403", UnreadableFileError, "everybody"),
        ("401", UnreadableFileError, "everybody"),
        ("404", ChangedFileError, "gone"),
        ("reset", FileError, "tries"),
        ("short", FileError, "tries"),
        ("cut", FileError, "tries"),
        ("whole", FileError, "ranges"),
    ],
)
def test_a_fault_that_stays(
    server: ObjectServer,
    rows: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    kind: type,
    words: str,
) -> None:
    monkeypatch.setattr(retries, "MOST_TRIES", 2)
    source = gl.npy(urls(server))
    server.fault = lambda number, path: fault if path.endswith("b.npy") else ""
    with pytest.raises(kind) as caught:
        source.read(range(len(source)))
    assert urls(server)[1] in str(caught.value)
    assert words in str(caught.value)
    server.fault = lambda number, path: ""
    np.testing.assert_array_equal(source.read([60])["x"][0], np.concatenate(rows)[60])


def test_no_request_is_sent_again_while_python_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = list[int]()

    def is_cut_off() -> None:
        tries.append(1)
        raise retries.ShortError("cut off")

    monkeypatch.setattr(threads, "_is_ending", True)
    with pytest.raises(FileError, match=r"a\.npy"):
        retries.request("http://127.0.0.1:9/a.npy", is_cut_off)
    assert len(tries) == 1


def test_a_refusal_has_the_credentials_read_anew_once(
    server: ObjectServer, rows: list[np.ndarray]
) -> None:
    source, refusals = gl.npy(urls(server)), list[str]()

    def refuses(number: int, path: str) -> str:
        if path.endswith("b.npy") and len(refusals) < 1:
            refusals.append(path)
            return "403"
        return ""

    server.fault = refuses
    clients = dict(stores._clients)
    np.testing.assert_array_equal(source.read([60])["x"][0], np.concatenate(rows)[60])
    assert refusals
    assert all(stores._clients[key] is not client for key, client in clients.items())


def test_a_refusal_of_the_last_try_is_an_error_too(
    server: ObjectServer, rows: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = gl.npy(urls(server))
    monkeypatch.setattr(retries, "MOST_TRIES", 1)
    server.fault = lambda number, path: "403"
    with pytest.raises(UnreadableFileError, match="everybody"):
        source.read([0])


def test_an_object_that_is_replaced(server: ObjectServer, rows: list[np.ndarray]) -> None:
    source = gl.npy(urls(server))
    server.objects["/data/b.npy"] = npy_bytes(rows[1] + 1)
    source.read([0])
    with pytest.raises(ChangedFileError, match=r"b\.npy changed"):
        source.read([60])
    server.objects["/data/b.npy"] = npy_bytes(rows[1][:-1])
    with pytest.raises(ChangedFileError, match=r"it had \d+ bytes"):
        source.read([60])


def test_a_pickled_source_is_opened_again(server: ObjectServer, rows: list[np.ndarray]) -> None:
    content = pickle.dumps(gl.npy(urls(server)))
    np.testing.assert_array_equal(
        pickle.loads(content).read([70])["x"][0], np.concatenate(rows)[70]
    )
    server.objects["/data/b.npy"] = npy_bytes(rows[1] + 1)
    with pytest.raises(ChangedFileError):
        pickle.loads(content)


def test_requests_are_under_way_together(server: ObjectServer, rows: list[np.ndarray]) -> None:
    num_rows = 2 * remote.objects.REQUESTS
    big = np.random.default_rng(0).integers(0, 255, (num_rows, 20_000), np.uint8)
    server.objects["/big.npy"] = npy_bytes(big)
    source = gl.npy(f"{server.url}/big.npy")
    together = threading.Barrier(remote.objects.REQUESTS)

    def waits_for_the_others(number: int, path: str) -> str:
        together.wait(60)
        return ""

    server.fault = waits_for_the_others
    server.requests.clear()
    numbers = np.arange(0, num_rows, 2)
    np.testing.assert_array_equal(source.read(numbers)["x"], big[::2])
    assert len(server.requests) == remote.objects.REQUESTS


def test_neighbours_are_one_request() -> None:
    def extents(*triples: tuple[int, int, int]) -> Extents:
        files, offsets, lengths = np.array(triples, np.int64).T.copy()
        return Extents(files, offsets, lengths)

    gap, piece = remote.GAP_BYTES, remote.PIECE_BYTES
    ranges = [
        (request.file, request.begin, request.end)
        for request in remote.requests_of(
            extents(
                (0, 0, 10),
                (0, 5, 2),
                (0, 10 + gap, 10),
                (0, 21 + 2 * gap, 10),
                (1, 0, 10),
                (2, 7, 2 * piece + 1),
            )
        )
    ]
    assert ranges == [
        (0, 0, 20 + gap),
        (0, 21 + 2 * gap, 31 + 2 * gap),
        (1, 0, 10),
        (2, 7, 7 + piece),
        (2, 7 + piece, 7 + 2 * piece),
        (2, 7 + 2 * piece, 8 + 2 * piece),
    ]
    many = extents(*((0, i * 1000, 1000) for i in range(3 * piece // 1000)))
    assert max(request.end - request.begin for request in remote.requests_of(many)) <= piece + 1000
    assert remote.requests_of(extents((0, 0, 1)).take(slice(0, 0))) == []


def test_a_whole_shuffle_says_what_it_costs(
    server: ObjectServer, rows: list[np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = gl.npy(urls(server))
    with caplog.at_level(logging.WARNING, "gpuload"):
        gl.Loader(source, batch_size=8, shuffle=gl.Blocks(16, 2), device="cpu")
        assert "requests" not in caplog.text
        gl.Loader(source, batch_size=8, shuffle=True, device="cpu")
    assert "153 requests an epoch" in caplog.text
    assert "gl.Blocks" in caplog.text
    assert "cache=" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "gpuload"):
        stored = gl.npy(gl.Remote(urls(server), cache=tmp_path / "cache"))
        gl.Loader(stored, batch_size=8, shuffle=True, device="cpu")
        a_file_a_record = gl.npy(urls(server)[:2], record="file")
        gl.Loader(a_file_a_record, batch_size=2, shuffle=True, device="cpu")
    assert "requests" not in caplog.text
    caplog.clear()
    gl.convert(gl.arrays(x=np.arange(90, dtype=np.int32)), str(tmp_path / "x.parquet"))
    server.objects["/data/x.parquet"] = (tmp_path / "x.parquet").read_bytes()
    blocks = gl.parquet(f"{server.url}/data/x.parquet")
    with caplog.at_level(logging.WARNING, "gpuload"):
        gl.Loader(blocks, batch_size=8, shuffle=True, device="cpu")
    assert "requests" not in caplog.text  # its row groups stay decoded


def test_a_whole_shuffle_of_what_was_read_whole_costs_no_requests(
    server: ObjectServer, rows: list[np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pyarrow")
    server.objects["/data/t.csv"] = b"a,b\n" + b"1,2\n" * 50
    table, cached = gl.csv(f"{server.url}/data/t.csv"), gl.npy(urls(server)).cache(memory="1MB")
    with caplog.at_level(logging.WARNING, "gpuload"):
        for source in (table, cached):
            gl.Loader(source, batch_size=8, shuffle=True, device="cpu")
    assert "requests" not in caplog.text


def test_urls_that_name_nothing(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="no object in it"):
        gl.npy("s3://bucket")
    with pytest.raises(SpecError, match="of those s3, "):
        gl.npy("ftp://server/a.npy")
    with pytest.raises(MissingFileError):
        gl.npy(f"{server.url}/nothing.npy")
    monkeypatch.setattr(retries, "MOST_TRIES", 1)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/a.npy"
    with pytest.raises(FileError, match="can be reached"):
        gl.npy(url)


def test_a_proxy_is_named(
    server: ObjectServer, rows: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    monkeypatch.setattr(retries, "MOST_TRIES", 1)
    with pytest.raises(FileError, match=r"HTTP_PROXY=http://127\.0\.0\.1:9") as caught:
        gl.npy(urls(server))
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_told(server: ObjectServer, rows: list[np.ndarray]) -> None:
    source = gl.npy(urls(server))
    source.read([0])
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            source.read([0])
            text = "no error"
        except GpuloadError as error:
            text = str(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    assert "forked" in text
    assert "spawn" in text


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[..., object]]]:
    """A bucket of a server that answers as S3 does, and its ``put_object``."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    boto3 = pytest.importorskip("boto3")
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="data")
    try:
        yield "s3://data", lambda key, body: client.put_object(Bucket="data", Key=key, Body=body)
    finally:
        server.stop()


def test_s3(bucket: tuple[str, Callable[..., object]], tmp_path: Path) -> None:
    url, put = bucket
    arrays = [np.random.default_rng(i).integers(0, 255, (20, 5), np.uint8) for i in range(3)]
    for name, array in zip(("x/a.npy", "x/b.npy", "x/deep/er/c.npy"), arrays, strict=True):
        put(name, npy_bytes(array))
    put("x/.hidden.npy", b"")
    put("x/notes.txt", b"text")
    assert names_of(f"{url}/x/*.npy") == [f"{url}/x/a.npy", f"{url}/x/b.npy"]
    assert names_of(f"{url}/x/[b-z].npy") == [f"{url}/x/b.npy"]
    assert names_of(f"{url}/x/**/*.npy") == [
        f"{url}/x/{name}.npy" for name in ("a", "b", "deep/er/c")
    ]
    assert len(names_of(f"{url}/x/**")) == 4
    source = gl.npy(f"{url}/x/**/*.npy")
    np.testing.assert_array_equal(
        source.read([0, 25, 59])["x"], np.concatenate(arrays)[[0, 25, 59]]
    )
    put("x/b.npy", npy_bytes(arrays[1] + 1))
    with pytest.raises(ChangedFileError):
        source.read([25])
    with pytest.raises(MissingFileError, match="no object matches"):
        gl.npy(f"{url}/y/*.npy")
    put("checked/a.npy", npy_bytes(arrays[0]))
    for name in (".git/b.npy", "@eaDir/c.npy", "d/.e.npy"):
        put(f"checked/{name}", b"no array")
    assert list(gl.check(f"{url}/checked/")) == []
    if find_spec("zarr"):
        write_zarr(tmp_path / "a.zarr")
        for path in filter(Path.is_file, tmp_path.rglob("*")):
            put(f"x/{path.relative_to(tmp_path)}", path.read_bytes())
        for groups in (gl.zarr(f"{url}/x/*.zarr"), gl.open(f"{url}/x/a.zarr/")):
            assert_batches_equal(groups, gl.zarr(tmp_path / "a.zarr"))
    with pytest.raises(MissingFileError):
        gl.npy("s3://no-such-bucket/a.npy")


def test_a_folder_of_images_in_s3(bucket: tuple[str, Callable[..., object]]) -> None:
    url, put = bucket
    files = sorted((GOLDEN / "images").rglob("*.jpg"))[:3]
    for number, path in enumerate(files):
        put(f"set/{'cat' if number else 'dog'}/{path.name}", path.read_bytes())
    put("set/readme.txt", b"text")
    for source in (gl.images(f"{url}/set/"), gl.open(f"{url}/set/")):
        assert source.classes == ("cat", "dog")
        assert list(gl.check(f"{url}/set/")) == []
        assert len(pickle.loads(pickle.dumps(source))) == len(files)
    put("classes.json", b'["dog", "emu", "cat"]')
    assert gl.images(f"{url}/set/", classes=f"{url}/classes.json").classes == ("dog", "emu", "cat")
    for name in (
        "data/train/cat/0.jpg",
        "data/val/cat/0.jpg",
        "n/10/0.jpg",
        "n/2/0.jpg",
        "n/__MACOSX/._0.jpg",
        "n/2/@eaDir/0.jpg",
    ):
        put(name, files[0].read_bytes())
    assert gl.images(f"{url}/n/").classes == ("2", "10")
    assert len(gl.images(f"{url}/n/")) == len(gl.images(f"{url}/n/*/*.jpg", labels=None)) == 2
    with pytest.raises(SpecError, match="parts of a data set") as error:
        gl.images(f"{url}/data/")
    calls = re.findall(r"gl\.images\('(.*?)'", error.value.remedy)
    assert [gl.images(call).classes for call in calls] == [("cat",), ("cat",)]


def test_nginx(rows: list[np.ndarray], tmp_path: Path) -> None:
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if nginx is None:
        pytest.skip("nginx is not installed")
    (tmp_path / "www").mkdir()
    for name, array in zip("abc", rows, strict=True):
        np.save(tmp_path / "www" / f"{name}.npy", array)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "nginx.conf").write_text(
        f"{'user root; ' if os.geteuid() == 0 else ''}daemon off; worker_processes 1; pid {tmp_path}/pid; "
        f"error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log off; server {{ listen 127.0.0.1:{port}; root {tmp_path}/www; }} }}\n"
    )
    process = subprocess.Popen(
        [nginx, "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log")]
    )
    try:
        for _ in range(1200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        far = gl.npy([f"http://127.0.0.1:{port}/{name}.npy" for name in "abc"])
        assert_batches_equal(far, gl.npy(str(tmp_path / "www" / "*.npy")))
        write_arrow(tmp_path / "www" / "a.arrow")
        far = gl.open(f"http://127.0.0.1:{port}/a.arrow")
        assert_batches_equal(far, gl.open(tmp_path / "www" / "a.arrow"))
        if find_spec("zarr"):
            write_zarr(tmp_path / "www" / "a.zarr")
            far = gl.zarr(f"http://127.0.0.1:{port}/a.zarr", ["x"])
            assert_batches_equal(far, gl.zarr(tmp_path / "www" / "a.zarr"))
    finally:
        process.terminate()
        process.wait(60)

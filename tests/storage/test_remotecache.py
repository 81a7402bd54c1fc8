"""Blocks of remote files on a local disk: a second epoch sends no requests, and no old byte is
taken."""

from __future__ import annotations

import logging
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import ChangedFileError, FileError, SpecError
from gpuload.storage import blockcache, objects, stores
from gpuload.storage.blockcache import BLOCK_BYTES
from tests import forkserver
from tests.objectserver import ObjectServer, npy_bytes

pytest.importorskip("obstore")
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("clean_stores")]
GOLDEN = Path(__file__).parent.parent / "golden"
NUM_ROWS, ROW_BYTES = 150, 40_000  # 6 blocks


@pytest.fixture
def rows(server: ObjectServer) -> np.ndarray:
    array = np.random.default_rng(0).integers(0, 255, (NUM_ROWS, ROW_BYTES), np.uint8)
    server.objects["/data/rows.npy"] = npy_bytes(array)
    return array


def remote(server: ObjectServer, folder: Path, **settings: object) -> gl.Remote:
    return gl.Remote(f"{server.url}/data/rows.npy", cache=folder / "cache", **settings)


def read_epoch(
    source: gl.Source, epoch: int = 0, shuffle: object = True, num_threads: int | None = None
) -> dict[int, bytes]:
    loader = gl.Loader(
        source, batch_size=16, shuffle=shuffle, seed=1, device="cpu", num_threads=num_threads
    )
    return {
        int(record): bytes(row)
        for batch in loader.epoch(epoch)
        for record, row in zip(batch.records, batch["x"], strict=True)
    }


def assert_all_rows(rows: np.ndarray, epoch: dict[int, bytes]) -> None:
    assert epoch == {number: bytes(row) for number, row in enumerate(rows)}


@pytest.mark.parametrize("shuffle", [False, True, gl.Blocks(16, 4)])
def test_a_second_epoch_sends_no_requests(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path, shuffle: object
) -> None:
    source = gl.npy(remote(server, tmp_path))
    assert str(tmp_path / "cache") in source.describe()
    assert_all_rows(rows, read_epoch(source, 0, shuffle))
    server.requests.clear()
    assert_all_rows(rows, read_epoch(source, 1, shuffle))
    assert server.requests == []


def test_a_block_is_asked_for_once(server: ObjectServer, rows: np.ndarray, tmp_path: Path) -> None:
    source = gl.npy(remote(server, tmp_path))
    server.requests.clear()
    source.read(range(0, NUM_ROWS, 3))
    source.read(range(1, NUM_ROWS, 3))
    ranges = [
        (0, 4 * BLOCK_BYTES - 1),
        (4 * BLOCK_BYTES, len(server.objects["/data/rows.npy"]) - 1),
    ]
    assert sorted(text for _, _, text in server.requests) == [
        f"bytes={first}-{last}" for first, last in ranges
    ]


def test_another_process_asks_for_no_block_again(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path
) -> None:
    source = gl.npy(remote(server, tmp_path))
    read_epoch(source)
    fingerprint = source.fingerprint()
    server.requests.clear()
    code = """
import pickle, sys
import gpuload as gl
source = pickle.loads(bytes.fromhex(sys.argv[1]))
sums = sum(int(batch["x"].sum(dtype="u8")) for batch in gl.Loader(source, batch_size=16, shuffle=True, device="cpu"))
print(sums, source.fingerprint())
"""
    process = forkserver.run(code, pickle.dumps(source).hex())
    assert process.stdout.split() == [str(int(rows.sum(dtype=np.uint64))), fingerprint], (
        process.stderr
    )
    assert [(method, text) for method, _, text in server.requests] == [
        ("GET", "bytes=0-1023")
    ]  # of the opening


def test_a_killed_process_leaves_whole_blocks(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path
) -> None:
    code = """
import os, signal, sys
import gpuload as gl
from gpuload.storage import blockcache
source = gl.npy(gl.Remote(sys.argv[1], cache=sys.argv[2]))
replace = os.replace
def replace_or_die(part, path):
    if path.endswith("-2" + blockcache.SUFFIX):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(part, path)
os.replace = replace_or_die
for record in range(len(source)):
    source.read([record])
"""
    process = forkserver.run(code, f"{server.url}/data/rows.npy", tmp_path / "cache")
    assert process.returncode == -signal.SIGKILL, process.stderr
    [part] = (tmp_path / "cache" / "blocks" / "parts").iterdir()
    server.requests.clear()
    source = gl.npy(remote(server, tmp_path))
    assert not part.exists()
    assert_all_rows(rows, read_epoch(source, 0, shuffle=False))
    first_bytes = [
        int(text.removeprefix("bytes=").partition("-")[0]) for _, _, text in server.requests[1:]
    ]
    assert min(first_bytes) == 2 * BLOCK_BYTES


def test_an_object_that_is_replaced_gives_no_old_bytes(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path
) -> None:
    source = gl.npy(remote(server, tmp_path))
    source.read([0])
    server.objects["/data/rows.npy"] = npy_bytes(
        rows + 1
    )  # same size, same time: the ETag alone is another one
    with pytest.raises(ChangedFileError, match=r"rows\.npy changed"):
        source.read([NUM_ROWS - 1])
    assert_all_rows(rows + 1, read_epoch(gl.npy(remote(server, tmp_path))))
    with pytest.raises(ChangedFileError):
        source.read([NUM_ROWS - 1])


def test_a_damaged_block_is_read_again(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = gl.npy(remote(server, tmp_path))
    read_epoch(source)
    [path] = (tmp_path / "cache" / "blocks").rglob(f"*-3{blockcache.SUFFIX}")
    raw = bytearray(path.read_bytes())
    raw[BLOCK_BYTES // 2] ^= 64
    path.write_bytes(raw)
    server.requests.clear()
    with caplog.at_level(logging.WARNING, "gpuload"):
        # One thread: two that meet the damage at the same time ask for the block twice.
        assert_all_rows(rows, read_epoch(source, num_threads=1))
        assert_all_rows(rows, read_epoch(source))
    assert caplog.text.count(str(path)) == 1
    assert [text for _, _, text in server.requests] == [
        f"bytes={3 * BLOCK_BYTES}-{4 * BLOCK_BYTES - 1}"
    ]


def test_the_limit_holds_over_epochs(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gpuload"):
        source = gl.npy(remote(server, tmp_path, cache_bytes=stores.LEAST_CACHE_BYTES))
    assert (
        f"holds {stores.LEAST_CACHE_BYTES} of the {len(server.objects['/data/rows.npy'])} bytes"
        in caplog.text
    )
    assert "gl.Blocks" in caplog.text
    for epoch in range(3):
        assert_all_rows(rows, read_epoch(source, epoch))
        sizes = [path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        assert sum(sizes) <= stores.LEAST_CACHE_BYTES + blockcache.SUM.size


def test_a_server_without_etags_is_read_without_a_cache(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.sends_tags = False
    objects._warn_of_tags.cache_clear()
    with caplog.at_level(logging.WARNING, "gpuload"):
        source = gl.npy(remote(server, tmp_path))
        np.testing.assert_array_equal(source.read([7])["x"][0], rows[7])
    assert caplog.text.count("no ETags") == 1
    assert str(tmp_path) not in source.describe()


def test_images_of_a_folder_cost_a_listing_and_a_request_each(
    server: ObjectServer, tmp_path: Path
) -> None:
    paths = sorted((GOLDEN / "images").rglob("*.jpg"))[:5]
    for number, path in enumerate(paths):
        server.objects[f"/data/set/{'cat' if number % 2 else 'dog'}/{number}.jpg"] = (
            path.read_bytes()
        )
    server.page_keys = 2
    remote = gl.Remote(
        "s3://data/set/", endpoint=server.url, anonymous=True, cache=tmp_path / "cache"
    )
    source = gl.images(remote)
    assert [path.partition("?")[0] for _, path, _ in server.requests] == ["/data"] * 3  # pages
    server.requests.clear()
    for _ in range(2):
        for number, image in enumerate(source.read(range(5))["image"]):
            key = source.files.paths[number].removeprefix("s3:/")
            assert bytes(image) == server.objects[key]
    assert sorted(path for _, path, _ in server.requests) == sorted(server.objects)
    server.requests.clear()
    again = pickle.loads(pickle.dumps(source))
    assert again.fingerprint() == source.fingerprint()
    again.read(range(5))
    assert {path.partition("?")[0] for _, path, _ in server.requests} == {"/data"}


def test_opening_costs_a_request_for_each_object(server: ObjectServer, rows: np.ndarray) -> None:
    server.objects["/data/empty.txt"] = b""
    server.objects["/data/short.txt"] = b"one line\n"
    gl.npy(f"{server.url}/data/rows.npy")
    assert [(method, text) for method, _, text in server.requests] == [("GET", "bytes=0-1023")]
    server.requests.clear()
    gl.npy(gl.Remote("s3://data/*.npy", endpoint=server.url, anonymous=True))
    assert [path.partition("?")[0] for _, path, _ in server.requests] == ["/data", "/data/rows.npy"]
    server.requests.clear()
    assert objects.look(f"{server.url}/data/short.txt", 1000)[1] == b"one line\n"
    assert objects.look(f"{server.url}/data/empty.txt", 1000)[1] == b""
    assert [method for method, _, _ in server.requests] == ["GET", "GET", "HEAD"]
    server.requests.clear()
    [listed] = objects.names_of(
        gl.Remote("s3://data/e*", endpoint=server.url, anonymous=True).object_urls()[0]
    )
    assert objects.look_at_listing(listed, 1000)[1] == b""
    # An empty object is asked for by its name: it might be the one that stands for a folder.
    assert [(method, path.partition("?")[0]) for method, path, _ in server.requests] == [
        ("GET", "/data"),
        ("HEAD", "/data/empty.txt"),
    ]


@pytest.mark.parametrize(
    ("urls", "settings", "words"),
    [
        ("rows.npy", {}, "no URL"),
        (3, {}, "no URL"),
        ("s3://b/a", {"cache_bytes": 10}, "cache_bytes = 10"),
        ("s3://b/a", {"cache_bytes": "10"}, "number of bytes"),
        ("s3://b/a", {"region": "eu central"}, "region"),
        ("s3://b/a", {"endpoint": "http://["}, "address of a server"),
        ("s3://b/a", {"endpoint": "minio"}, "address of a server"),
        ("gs://b/a", {"region": "eu"}, r"region=\.\.\.\) for gs://"),
        ("https://b/a", {"anonymous": True}, "for https://"),
        (["s3://b/a", "https://b/a"], {"requester_pays": True}, "for https://"),
        ("s3://b/a", {"credentials": "key"}, "function"),
        ("s3://b/a", {"requester_pays": True, "anonymous": True}, "who pays"),
        ("s3://b/a", {"credentials": print, "anonymous": True}, "function"),
    ],
)
def test_settings_that_are_wrong(urls: object, settings: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        gl.Remote(urls, **settings)


def test_a_cache_that_cannot_be_made_is_an_error_at_once(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(FileError, match=r"cache= ?|gl\.Remote\(\.\.\., cache"):
        gl.npy(remote(server, tmp_path))


def test_a_forked_child_reads_the_blocks_that_are_there(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path
) -> None:
    source = gl.npy(remote(server, tmp_path))
    read_epoch(source)
    child = os.fork()
    if not child:
        is_same = bytes(source.read([77])["x"][0]) == bytes(rows[77])
        os._exit(0 if is_same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

"""Web addresses with a query or a login: links that were signed, and servers with a password."""

from __future__ import annotations

import base64
import copy
import logging
import multiprocessing
import pickle
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError, SpecError
from gpuload.storage import objects, retries
from gpuload.storage.stores import path_of
from tests.objectserver import ObjectServer, npy_bytes

pytest.importorskip("obstore")
pytestmark = pytest.mark.usefixtures("clean_stores")

SECRET = "TOPSECRET99"
QUERY = f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA{SECRET}%2F2026%2Fs3&X-Amz-Signature={SECRET}"
OTHER_DAY = QUERY.replace(SECRET, "ANOTHERDAY7")


@pytest.fixture
def rows(server: ObjectServer) -> np.ndarray:
    rows = np.random.default_rng(0).integers(0, 255, (60, 3000), np.uint8)
    server.objects["/data/a.npy"] = npy_bytes(rows)
    return rows


def mean_of(source: gl.Source) -> float:
    return float(source.read(range(len(source)))["x"].mean())


def _mean_in_process(source: gl.Source, answers: multiprocessing.SimpleQueue) -> None:
    answers.put(mean_of(source))


def test_a_signed_link_is_read_as_it_was_signed(server: ObjectServer, rows: np.ndarray) -> None:
    source = gl.npy(f"{server.url}/data/a.npy?{QUERY}", field="x")
    np.testing.assert_array_equal(source.read(range(60))["x"], rows)
    assert {path for _, path, _ in server.requests} == {f"/data/a.npy?{QUERY}"}
    assert len(gl.open(f"{server.url}/data/a.npy?{QUERY}")) == 60


def test_two_links_of_two_days_are_one_object(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path
) -> None:
    plain = gl.npy(f"{server.url}/data/a.npy", field="x")
    first, second = (
        gl.npy(gl.Remote(f"{server.url}/data/a.npy?{query}", cache=tmp_path), field="x")
        for query in (QUERY, OTHER_DAY)
    )
    np.testing.assert_array_equal(first.read(range(60))["x"], rows)
    server.requests.clear()
    np.testing.assert_array_equal(second.read(range(60))["x"], rows)
    assert server.requests == []  # from the cache of the other day
    assert first.fingerprint() == second.fingerprint() == plain.fingerprint()
    with pytest.raises(SpecError, match="named twice"):
        gl.npy([f"{server.url}/data/a.npy?{QUERY}", f"{server.url}/data/a.npy?{OTHER_DAY}"])


def test_what_of_a_query_means_the_object_stays_in_its_name() -> None:
    url = f"https://user:pw@server/get?id=5&X-Amz-Signature={SECRET}&part=a%2Fb"
    assert path_of(url) == "https://server/get?id=5&part=a%2Fb"
    assert path_of(f"https://server/a.npy?{QUERY}") == "https://server/a.npy"
    assert path_of("s3://bucket/a?b=1") == "s3://bucket/a?b=1"
    assert path_of("/data/a?sig=1") == "/data/a?sig=1"


def test_a_password_is_sent_and_stands_nowhere(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.url.replace("://", f"://user:{SECRET}%40@")
    with caplog.at_level(logging.INFO):
        source = gl.npy(f"{url}/data/a.npy", field="x")
        assert mean_of(source) == rows.mean()
    login = base64.b64encode(f"user:{SECRET}@".encode()).decode()
    assert {header["authorization"] for header in server.headers} == {f"Basic {login}"}
    assert source.fingerprint() == gl.npy(f"{server.url}/data/a.npy", field="x").fingerprint()
    remote = gl.Remote(f"{url}/data/a.npy")
    loader = gl.Loader(source, batch_size=4)
    texts = [
        repr(source),
        repr(loader),
        source.describe(),
        str(loader.state_dict()),
        repr(remote),
        caplog.text,
    ]
    texts += [repr(source.files.paths), source._repr_html_()]
    for missing in ("none.npy", f"none.npy?{QUERY}"):
        with pytest.raises(FileNotFoundError) as caught:
            gl.npy(f"{url}/data/{missing}")
        texts += [str(caught.value), repr(caught.value), str(caught.value.__reduce__())]
    assert SECRET not in "".join(texts)
    assert SECRET.encode() not in pickle.dumps(source) + pickle.dumps(remote) + pickle.dumps(loader)


@pytest.mark.parametrize("query", ["", QUERY])
def test_a_manifest_of_secret_links_is_refused(
    server: ObjectServer, rows: np.ndarray, tmp_path: Path, query: str
) -> None:
    url = (
        f"{server.url}/data/a.npy?{query}"
        if query
        else server.url.replace("://", "://u:p@") + "/data/a.npy"
    )
    with pytest.raises(SpecError, match="no credentials"):
        gl.npy(url).index(tmp_path / "x.manifest")
    assert not list(tmp_path.iterdir())


def test_the_place_of_a_record_has_no_secret(server: ObjectServer, rows: np.ndarray) -> None:
    server.objects["/data/a.csv"] = b"a,b\n1,2\n3,4\n"
    place = f"/data/a.csv?password={SECRET}"
    server.objects[place] = server.objects["/data/a.csv"]
    source = gl.csv(f"{server.url}{place}")
    places = [
        part.where(1) for part in (source, source[:], gl.concat(source, source), gl.zip(source))
    ]
    assert all("a.csv?password=***, line 3" in text and SECRET not in text for text in places), (
        places
    )


def test_a_pickle_has_no_signature_and_says_so_where_it_is_opened(
    server: ObjectServer, rows: np.ndarray
) -> None:
    source = gl.npy(f"{server.url}/data/a.npy?{QUERY}", field="x")
    raw = pickle.dumps(source)
    assert SECRET.encode() not in raw
    with pytest.raises(GpuloadError, match="taken out"):
        pickle.loads(raw)
    # A copy in this process keeps its links.
    assert mean_of(copy.copy(source)) == mean_of(copy.deepcopy(source)) == rows.mean()


def test_a_process_that_is_started_gets_the_links(server: ObjectServer, rows: np.ndarray) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    source = gl.npy(f"{server.url}/data/a.npy?{QUERY}", field="x")
    process = context.Process(target=_mean_in_process, args=(source, answers))
    process.start()
    assert answers.get() == rows.mean()
    process.join()


@pytest.mark.parametrize("name", ["a b.npy", "100%.npy", "a+b&c=d;e.npy", "ä猫#?.npy", "%41.npy"])
def test_a_name_of_a_web_server_is_written_as_addresses_are(
    server: ObjectServer, rows: np.ndarray, name: str
) -> None:
    server.objects[f"/data/{name}"] = npy_bytes(rows + 1)
    source = gl.npy(f"{server.url}/data/{quote(name, safe='/+&=;')}", field="x")
    np.testing.assert_array_equal(source.read(range(60))["x"], rows + 1)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize(
    "name", ["a b.npy", "100%.npy", "a+b&c=d;e.npy", "%41.npy", "a#b.npy", "a?b=c.npy", "ä猫.npy"]
)
def test_a_key_of_a_store_is_written_as_it_is(
    server: ObjectServer, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch, scheme: str, name: str
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    server.objects[f"/data/{name}"] = npy_bytes(rows + 1)
    source = gl.npy(
        gl.Remote(f"{scheme}://data/{name}", endpoint=server.url, anonymous=True), field="x"
    )
    np.testing.assert_array_equal(source.read(range(60))["x"], rows + 1)


@pytest.mark.parametrize("root", ["s3://data", "gs://data", "az://data", "https://server/data"])
@pytest.mark.parametrize(
    "key", ["/a.npy", "b//a.npy", "../a.npy", "b/./a.npy", "b/..", "a\x01.npy", "a\n.npy"]
)
def test_a_key_that_would_be_another_one_is_refused(root: str, key: str) -> None:
    with pytest.raises(SpecError, match="not supported"):
        gl.npy(f"{root}/{key}")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://server/a#b.npy", "%23"),
        ("https://server/a%2Fb.npy", "not supported"),
        ("https://server/a%2Bb.npy", "not supported"),
        (f"https://server/a b.npy?sig={SECRET}", "blank"),
        (f"https://server/a.npy?X-Amz-\nSignature={SECRET}", "blank"),
        (f'https://server/a.npy?sig="{SECRET}"', "quotes"),
        (f"https://user:a '{SECRET}@server/a.npy", "%20"),
        (f"s3://key:{SECRET}@bucket/a.npy", "credentials"),
        (f"az://c/a.npy?sv=1&sig={SECRET}", "credentials"),
        ("https://server/a.npy?sig=***", "taken out"),
        ("https://***@server/a.npy", "taken out"),
    ],
)
def test_an_address_that_cannot_be_sent_as_it_stands_is_refused(url: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        gl.npy(url)
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_an_endpoint_with_a_login_is_refused_when_it_is_used() -> None:
    remote = gl.Remote("s3://bucket/a.npy", endpoint=f"http://u:{SECRET}@server")
    assert SECRET not in repr(remote)
    assert SECRET.encode() not in pickle.dumps(remote)
    with pytest.raises(SpecError, match="takes none") as caught:
        gl.npy(remote)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("fault", ["403", "404", "500", "503", "reset"])
def test_no_error_has_one_of_obstore_as_its_context(
    server: ObjectServer, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """They name the link as it was sent; Python does not show them, but whoever logs exceptions
    may."""
    monkeypatch.setattr(retries, "MOST_TRIES", 2)
    monkeypatch.setattr(retries, "BUSY_S", 0.1)
    source = gl.npy(f"{server.url}/data/a.npy?{QUERY}", field="x")
    server.fault = lambda number, path: fault
    for read in (lambda: source.read([0]), lambda: gl.npy(f"{server.url}/data/a.npy?{QUERY}")):
        with pytest.raises(GpuloadError) as caught:
            read()
        error: BaseException | None = caught.value
        while error is not None:
            assert SECRET not in repr(error)
            error = error.__context__


def test_a_folder_is_no_file(server: ObjectServer, rows: np.ndarray) -> None:
    server.objects["/data/b"] = server.objects["/data/a.npy"]  # obstore would read this one
    with pytest.raises(IsADirectoryError):
        objects.look(f"{server.url}/data/b/", 0)

"""Object stores as their servers answer: S3, Google and Azure; credentials, versions, regions, busy
days."""

from __future__ import annotations

import datetime
import itertools
import pickle
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import (
    ChangedFileError,
    FileError,
    MissingFileError,
    SpecError,
    UnreadableFileError,
)
from gpuload.storage import objects, retries, stores
from gpuload.storage.objects import names_of
from tests.objectserver import ObjectServer, npy_bytes

pytest.importorskip("obstore")
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("clean_stores")]
SCHEMES = ["s3", "gs", "az"]
ACCOUNT_KEY = "bm8ga2V5IGF0IGFsbA=="
VERSION_NAMES = {"s3": "versionId", "gs": "generation", "az": "versionid"}


@pytest.fixture
def rows(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Rows in three objects of a bucket, beside other ones."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    rows = np.random.default_rng(0).integers(0, 255, (60, 30), np.uint8)
    for number in range(3):
        server.objects[f"/data/x y/{number}.npy"] = npy_bytes(rows[20 * number : 20 * number + 20])
    server.objects["/data/x y/notes.txt"] = b"text"
    server.objects["/data/x y/deep/3.npy"] = b""
    return rows


def remote(server: ObjectServer, url: str, **settings: object) -> gl.Remote:
    if not {"anonymous", "credentials"} & settings.keys():
        settings["anonymous"] = True
    return gl.Remote(url, endpoint=server.url, **settings)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_listing_ranges_and_tags(server: ObjectServer, rows: np.ndarray, scheme: str) -> None:
    server.page_keys = 2
    url = f"{scheme}://data/x y"
    assert names_of(remote(server, f"{url}/*.npy").object_urls()[0]) == [
        f"{url}/{number}.npy" for number in range(3)
    ]
    listings = [path for _, path, _ in server.requests]
    assert len(listings) == 3  # of five objects, two on a page
    assert all("prefix=x%20y%2F" in path or "prefix=x+y%2F" in path for path in listings)
    source = gl.npy(remote(server, f"{url}/*.npy"))
    server.requests.clear()
    np.testing.assert_array_equal(source.read([41])["x"][0], rows[41])
    [(_, _, text)] = server.requests
    begin = len(server.objects["/data/x y/2.npy"]) - 20 * 30 + 30
    assert text == f"bytes={begin}-{begin + 29}"
    np.testing.assert_array_equal(source.read(range(60))["x"], rows)
    server.objects["/data/x y/1.npy"] = npy_bytes(rows[:20])
    source.read([0])
    with pytest.raises(ChangedFileError, match=r"1\.npy changed(.|\n)*ETag"):
        source.read([30])
    del server.objects["/data/x y/1.npy"]
    with pytest.raises(ChangedFileError, match="it is gone"):
        source.read([30])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_stamp_of_a_listing_is_that_of_an_answer(
    server: ObjectServer, rows: np.ndarray, scheme: str
) -> None:
    """An ETag in a listing of Azure has no quotes, and a listing of S3 has milliseconds."""
    urls = names_of(remote(server, f"{scheme}://data/x y/?.npy").object_urls()[0])
    stamps = [objects.look_at_listing(url, 0)[0] for url in urls]
    assert not any("HEAD" in request for request in server.requests)
    assert (
        stamps
        == [objects.look(url, 0)[0] for url in urls]
        == [objects.look(url, 9)[0] for url in urls]
    )
    assert [size for size, _, _ in stamps] == [
        len(server.objects[f"/data/x y/{number}.npy"]) for number in range(3)
    ]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_version_is_read(server: ObjectServer, rows: np.ndarray, scheme: str) -> None:
    server.versions["/data/x y/0.npy", "17"] = npy_bytes(rows[:20] + 1)
    source = gl.npy(remote(server, f"{scheme}://data/x y/0.npy?{VERSION_NAMES[scheme]}=17"))
    server.objects["/data/x y/0.npy"] = npy_bytes(rows[:20] + 2)
    for again in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_array_equal(again.read(range(20))["x"], rows[:20] + 1)
    with pytest.raises(MissingFileError):
        gl.npy(remote(server, f"{scheme}://data/x y/0.npy?{VERSION_NAMES[scheme]}=18"))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["a.npy", "*.npy"])
def test_a_bucket_that_is_not_there(
    server: ObjectServer, rows: np.ndarray, scheme: str, name: str
) -> None:
    with pytest.raises(
        MissingFileError,
        match=rf"{scheme}://nothing is missing(.|\n)*no such bucket(.|\n)*its name",
    ):
        gl.npy(remote(server, f"{scheme}://nothing/{name}"))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["0.npy", "*.npy"])
def test_no_rights(server: ObjectServer, rows: np.ndarray, scheme: str, name: str) -> None:
    server.fault = lambda number, path: "403 AccessDenied"
    with pytest.raises(
        UnreadableFileError, match=r"may not be read(.|\n)*AccessDenied(.|\n)*anonymous=True"
    ):
        gl.npy(remote(server, f"{scheme}://data/x y/{name}"))
    assert len(server.requests) == 2  # once more with new credentials


@pytest.mark.parametrize("fault", ["400 AuthorizationHeaderMalformed", "301 PermanentRedirect"])
def test_a_wrong_region(server: ObjectServer, rows: np.ndarray, fault: str) -> None:
    server.fault = lambda number, path: fault
    for name in ("0.npy", "*.npy"):
        with pytest.raises(FileError, match=r"in another region(.|\n)*region=") as caught:
            gl.npy(remote(server, f"s3://data/x y/{name}"))
        assert "AWS_REGION" in caught.value.remedy
    assert len(server.requests) == 2  # another try would not help


def test_the_requester_pays(server: ObjectServer, rows: np.ndarray) -> None:
    gl.npy(
        remote(server, "s3://data/x y/*.npy", credentials=Login(expires=False), requester_pays=True)
    ).read([0])
    assert {headers.get("x-amz-request-payer") for headers in server.headers} == {"requester"}
    server.headers.clear()
    gl.npy(remote(server, "s3://data/x y/*.npy")).read([0])
    assert {headers.get("x-amz-request-payer") for headers in server.headers} == {None}


def test_requests_are_signed_or_not(
    server: ObjectServer, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": server.url,
        "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
        "AZURE_STORAGE_ENDPOINT": server.url,
        "GOOGLE_BEARER_TOKEN": "token",
        "GOOGLE_BASE_URL": server.url,
    }.items():
        monkeypatch.setenv(name, value)
    for scheme, signature in (
        ("s3", "AWS4-HMAC-SHA256 Credential=key/"),
        ("az", "SharedKey account:"),
    ):
        server.headers.clear()
        gl.npy(
            gl.Remote(
                f"{scheme}://data/x y/0.npy", **({"endpoint": server.url} if scheme == "az" else {})
            )
        )
        assert server.headers[0]["authorization"].startswith(signature)
        server.headers.clear()
        gl.npy(remote(server, f"{scheme}://data/x y/0.npy"))
        assert "authorization" not in server.headers[0]
    server.headers.clear()
    gl.npy(gl.Remote("s3://data/x y/0.npy", region="eu-north-1"))
    assert "/eu-north-1/s3/" in server.headers[0]["authorization"]


@pytest.mark.parametrize("name", stores.ENDPOINTS)
def test_a_server_of_the_environment_may_speak_http(
    server: ObjectServer, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in stores.ENDPOINTS:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, server.url)
    assert len(gl.npy(gl.Remote("s3://data/x y/0.npy", anonymous=True))) == len(
        gl.npy(remote(server, "s3://data/x y/0.npy"))
    )


@dataclass
class Login:
    """Credentials that expire after some requests, and a server that notices.

    Attributes:
        expires: True for credentials whose time is over when they are given.
        number: of the credentials that are good now.
        num_calls: how often credentials were asked for.
    """

    expires: bool
    number: int = 0
    num_calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> dict[str, object]:
        with self.lock:
            self.num_calls += 1
            lifetime = datetime.timedelta(hours=-1 if self.expires else 1)
            expires_at = datetime.datetime.now(datetime.timezone.utc) + lifetime
            return {
                "access_key_id": f"key{self.number}",
                "secret_access_key": "secret",
                "expires_at": expires_at,
            }

    def refuse(self, server: ObjectServer, number: int) -> str:
        is_good = f"Credential=key{self.number}/" in server.headers[number]["authorization"]
        return "" if is_good else "403 ExpiredToken"


@pytest.mark.parametrize("expires", [False, True])
def test_credentials_that_expire_in_the_middle_of_an_epoch(
    server: ObjectServer, rows: np.ndarray, *, expires: bool
) -> None:
    """Those whose time is over are asked for anew by obstore; those that a server refuses before,
    by a new client."""
    login = Login(expires=expires)
    server.fault = lambda number, path: login.refuse(server, number)
    source = gl.npy(remote(server, "s3://data/x y/*.npy", credentials=login))
    batches = iter(gl.Loader(source, batch_size=6, shuffle=True, device="cpu", prefetch=1))
    records, numbers = [], []
    for step, batch in enumerate(batches):
        if step in (3, 6):
            login.number += 1
        records.append(np.array(batch["x"]))
        numbers.append(np.array(batch.records))
    np.testing.assert_array_equal(np.concatenate(records), rows[np.concatenate(numbers)])
    assert sorted(np.concatenate(numbers).tolist()) == list(range(60))
    refusals = [
        headers for headers in server.headers if "Credential=key0/" in headers["authorization"]
    ]
    assert len(refusals) < len(server.headers)


def test_credentials_that_stay_refused_are_an_error(server: ObjectServer, rows: np.ndarray) -> None:
    login = Login(expires=False)
    source = gl.npy(remote(server, "s3://data/x y/0.npy", credentials=login))
    server.fault = lambda number, path: "403 ExpiredToken"
    with pytest.raises(UnreadableFileError, match=r"have expired(.|\n)*log in again"):
        source.read([0])
    assert login.num_calls == 2


def test_credentials_that_no_function_gives(server: ObjectServer, rows: np.ndarray) -> None:
    def login() -> dict[str, object]:
        raise KeyError("no profile")

    with pytest.raises(UnreadableFileError, match="no profile"):
        gl.npy(remote(server, "s3://data/x y/0.npy", credentials=login))


def test_a_panic_is_an_error_as_any_other(server: ObjectServer, rows: np.ndarray) -> None:
    """Obstore 0.12 takes it for impossible that a key has a line end; its exception is no
    Exception."""

    def login() -> dict[str, object]:
        return {
            "access_key_id": "key",
            "secret_access_key": "secret",
            "token": "two\nlines",
            "expires_at": None,
        }

    with pytest.raises(
        FileError, match=r"0\.npy cannot be read(.|\n)*obstore gave up: .*InvalidHeaderValue"
    ):
        gl.npy(remote(server, "s3://data/x y/0.npy", credentials=login))


@pytest.mark.parametrize("fault", ["503 SlowDown", "429 TooManyRequests", "500 InternalError"])
def test_a_busy_store_is_asked_again(server: ObjectServer, rows: np.ndarray, fault: str) -> None:
    server.error_headers = {"Retry-After": "0"}
    server.fault = lambda number, path: fault if number % 3 != 2 else ""
    source = gl.npy(remote(server, "s3://data/x y/*.npy"))
    np.testing.assert_array_equal(source.read(range(60))["x"], rows)


def test_a_stale_answer_is_not_taken(server: ObjectServer, rows: np.ndarray) -> None:
    """A proxy between has an earlier version of an object, in one answer among others."""
    server.stale = {f"/data/x y/{number}.npy": npy_bytes(rows[:20] + 1) for number in range(3)}
    source = gl.npy(remote(server, "s3://data/x y/*.npy"))
    server.fault = lambda number, path: "stale" if path.endswith("1.npy") else ""
    with pytest.raises(ChangedFileError, match=r"1\.npy changed"):
        source.read(range(60))


class Clock:
    """A clock that time passes on only while somebody sleeps.

    Attributes:
        now_s: the time.
        waits_s: how long each sleep was.
    """

    def __init__(self) -> None:
        self.now_s, self.waits_s = 1000.0, list[float]()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        self.now_s += wait_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retries, "time", clock)
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.1)
    return clock


@pytest.mark.parametrize("jitter", [0.5, 1.0])
def test_waits_grow_and_are_random(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, jitter: float
) -> None:
    bounds = []

    def uniform(low: float, high: float) -> float:
        bounds.append((low, high))
        return jitter

    monkeypatch.setattr(retries.random, "uniform", uniform)

    def breaks() -> None:
        raise retries.ShortError("half")

    with pytest.raises(FileError, match="after 6 tries"):
        retries.request("https://server/a.npy", breaks)
    np.testing.assert_allclose(clock.waits_s, np.multiply([0.2, 0.4, 0.8, 1.6, 3.2], jitter))
    assert set(bounds) == {(0.5, 1.0)}


def test_no_wait_goes_beyond_the_deadline(clock: Clock) -> None:
    def takes_long() -> None:
        clock.now_s += 50
        raise OSError("connection reset")

    with pytest.raises(FileError, match="after 3 tries"):
        retries.request("https://server/a.npy", takes_long)
    assert len(clock.waits_s) == 2
    assert clock.now_s <= 1000 + 3 * 50 + 2


@pytest.mark.parametrize(
    ("status", "num_tries"),
    [
        (302, 1),
        (400, 1),
        (401, 2),
        (403, 2),
        (404, 1),
        (408, 6),
        (409, 1),
        (416, 1),
        (500, 6),
        (502, 6),
        (504, 6),
    ],
)
@pytest.mark.usefixtures("clock")
def test_how_often_a_request_is_sent_depends_on_the_status(status: int, num_tries: int) -> None:
    answers = []

    def fails() -> None:
        answers.append(status)
        raise OSError(f"Server returned non-2xx status code: {status}")

    with pytest.raises((FileError, retries.EmptyRangeError)):
        retries.request("https://server/a.npy", fails)
    assert len(answers) == num_tries


def test_a_request_that_cannot_be_mended_is_sent_once(clock: Clock) -> None:
    def refuses() -> None:
        raise ValueError("Server returned non-2xx status code: 400 Bad Request")

    with pytest.raises(FileError, match="after 1 tries"):
        retries.request("https://server/a.npy", refuses)
    assert clock.waits_s == []


def test_urls_carry_their_settings_along(server: ObjectServer, rows: np.ndarray) -> None:
    [url] = remote(server, "s3://data/x y/0.npy", region="eu-north-1").object_urls()
    copy = pickle.loads(pickle.dumps(url))
    assert copy == url == "s3://data/x y/0.npy"
    assert (
        stores.remote_of(copy)
        == stores.remote_of(url)
        == remote(server, "s3://b/c", region="eu-north-1").settings
    )
    assert stores.remote_of("s3://data/x y/0.npy") == stores.DEFAULT


def test_the_rest_of_an_answer_that_broke_off_is_asked_for(
    server: ObjectServer, rows: np.ndarray
) -> None:
    content = np.random.default_rng(1).integers(0, 255, 1 << 20, np.uint8)
    server.objects["/data/a.bin"] = content.tobytes()
    source = gl.fixed(f"{server.url}/data/a.bin", [("x", "u1", (1 << 20,))])
    server.requests.clear()
    server.fault = lambda number, path: "cut" if len(server.requests) < 5 else ""
    np.testing.assert_array_equal(source.read([0])["x"][0], content)
    begins = [int(text[len("bytes=") :].partition("-")[0]) for _, _, text in server.requests]
    # Each answer brings half of what was asked for, and whole chunks of it are kept.
    assert begins[0] == 0
    assert all(later > begin for begin, later in itertools.pairwise(begins))
    assert begins[1] >= (1 << 19) - objects.CHUNK_BYTES


def test_of_a_link_that_brings_little_each_time_small_parts_are_kept(
    server: ObjectServer, rows: np.ndarray
) -> None:
    content = np.random.default_rng(1).integers(0, 255, 100_000, np.uint8)
    server.objects["/data/a.bin"] = content.tobytes()
    source = gl.fixed(f"{server.url}/data/a.bin", [("x", "u1", (100_000,))])
    server.requests.clear()
    server.fault = lambda number, path: "cut" if len(server.requests) < 5 else ""
    np.testing.assert_array_equal(source.read([0])["x"][0], content)
    begins = [int(text[len("bytes=") :].partition("-")[0]) for _, _, text in server.requests]
    assert begins[:2] == [0, 0]  # 50,000 bytes came, fewer than a chunk of the first try
    assert begins[2] >= 50_000 - retries.LEAST_BYTES


@pytest.mark.parametrize(
    ("location", "words"), [("/data/a.npy", "following redirect"), (None, "answer is wrong")]
)
def test_a_redirection_that_leads_nowhere_is_an_error_at_once(
    server: ObjectServer, rows: np.ndarray, location: str | None, words: str
) -> None:
    source = gl.npy(f"{server.url}/data/x y/0.npy")
    server.fault = lambda number, path: "302"
    server.error_headers = {"Location": location} if location else {}
    server.requests.clear()
    with pytest.raises(FileError, match=words) as caught:
        source.read([0])
    assert "region=" not in str(caught.value)
    assert len(server.requests) <= 22  # obstore follows ten; then the object is looked at


def test_tries_count_from_the_last_one_that_brought_something(clock: Clock) -> None:
    num_bytes = 0

    def brings_little() -> str:
        nonlocal num_bytes
        num_bytes += retries.LEAST_BYTES
        clock.now_s += 50
        if num_bytes < 20 * retries.LEAST_BYTES:
            raise retries.ShortError("broke off")
        return "whole"

    assert retries.request("https://server/a.npy", brings_little, lambda: num_bytes) == "whole"


def test_a_slow_answer_is_no_silence(
    server: ObjectServer, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole answer takes three times as long as the server may say nothing."""
    monkeypatch.setattr(stores, "ANSWER_S", 0.4)
    content = bytes(range(256)) * 1024
    server.objects["/data/a.bin"] = content
    source = gl.fixed(f"{server.url}/data/a.bin", [("x", "u1", (len(content),))])
    server.drip_s = 0.1
    server.requests.clear()
    assert source.read([0])["x"][0].tobytes() == content
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_store_that_stays_busy_is_left_after_half_a_minute(clock: Clock, status: int) -> None:
    sent_s = []

    def refuses() -> None:
        sent_s.append(clock.now_s)
        raise OSError(f"Server returned non-2xx status code: {status}")

    with pytest.raises(FileError, match="busy for 30 s"):
        retries.request("https://server/a.npy", refuses)
    assert retries.BUSY_S <= clock.now_s - 1000 <= retries.BUSY_S + 1
    assert 8 <= len(sent_s) <= 14
    # Somebody who asks later is not refused without a request.
    clock.now_s += 60
    assert retries.request("https://server/a.npy", lambda: 7) == 7


def test_a_request_that_alone_is_refused_ends(clock: Clock) -> None:
    """The store answers another key all the time: so it is not busy, and only the request knows
    that it is hopeless."""
    sent_s = []

    def refuses() -> None:
        retries.request("https://server/b.npy", lambda: 0)
        sent_s.append(clock.now_s)
        raise OSError("Server returned non-2xx status code: 503")

    with pytest.raises(retries.StoreError, match="busy for 120 s"):
        retries.request("https://server/a.npy", refuses)
    assert (
        retries.DEADLINE_S <= clock.now_s - 1000 <= retries.DEADLINE_S + 2 * retries.LONGEST_WAIT_S
    )
    assert len(sent_s) <= 60
    assert sent_s[-1] - sent_s[-2] >= retries.LONGEST_WAIT_S / 2


def test_limits_do_not_multiply(server: ObjectServer, rows: np.ndarray) -> None:
    source = gl.npy(f"{server.url}/data/x y/0.npy")
    server.fault = lambda number, path: "500"
    server.requests.clear()
    with pytest.raises(retries.StoreError, match="after 6 tries"):
        source.read([0])
    assert len(server.requests) == retries.MOST_TRIES
    server.requests.clear()
    with pytest.raises(retries.StoreError):
        list(gl.check(source, num_threads=1))
    assert len(server.requests) == retries.MOST_TRIES
    with pytest.raises(retries.StoreError):
        list(gl.check(source.files.paths[0]))
    # Empty objects of a listing are asked for, whether they stand for folders.
    for number in range(300):
        server.objects[f"/data/empty/{number}"] = b""
    server.fault = lambda number, path: "" if path == "/data" else "500"
    server.requests.clear()
    with pytest.raises(retries.StoreError, match="after 6 tries"):
        gl.npy(remote(server, "s3://data/empty/*"))
    assert len(server.requests) <= 1 + objects.REQUESTS * retries.MOST_TRIES


def test_all_threads_together_leave_a_busy_store_alone(
    server: ObjectServer, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.objects["/data/a.bin"] = bytes(1 << 22)
    source = gl.fixed(f"{server.url}/data/a.bin", [("x", "u1", (1 << 10,))])
    monkeypatch.setattr(retries, "BUSY_S", 1.0)
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(retries, "LONGEST_WAIT_S", 0.2)
    server.requests.clear()
    server.fault = lambda number, path: "503 SlowDown"
    with pytest.raises(FileError, match="busy"):
        source.read(np.arange(0, 1 << 12, 64))
    assert len(server.requests) < 150  # 64 under way at once, then half as many, and so on
    server.fault = lambda number, path: "503 SlowDown" if number % 4 == 0 else ""
    assert not source.read(np.arange(0, 1 << 12, 64))["x"].any()


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Last-Modified": "Mon, 01 Jan 1601 00:00:00 GMT"}, ""),
        ({"Last-Modified": "Fri, 31 Dec 9999 23:59:59 GMT"}, ""),
        ({"Last-Modified": None, "ETag": None}, ""),
        ({"ETag": ""}, ""),
        ({"ETag": 'W/"1"'}, ""),
        ({"Last-Modified": "Sat, 01 Jan 0000 00:00:00 GMT"}, "year 0"),
        ({"Last-Modified": "yesterday"}, "yesterday"),
        ({"Last-Modified": "2015-10-21T07:28:00Z"}, "2015-10-21"),
        ({"ETag": "\xe9"}, "non-ASCII"),
        ({"Content-Range": "bytes 0-9/*"}, "bytes 0-9/*"),
        ({"Content-Range": f"bytes 0-1023/{2**63}"}, str(2**63)),
        ({"Content-Range": None}, "not present"),
    ],
)
def test_headers_that_cannot_be_used_are_named_at_once(
    server: ObjectServer, rows: np.ndarray, headers: dict[str, str | None], words: str
) -> None:
    server.objects["/data/a.npy"] = npy_bytes(rows)
    server.headers_instead = headers
    if not words:
        np.testing.assert_array_equal(
            gl.npy(f"{server.url}/data/a.npy", field="x").read(range(60))["x"], rows
        )
        return
    with pytest.raises(FileError, match="answer is wrong") as caught:
        gl.npy(f"{server.url}/data/a.npy")
    assert words in caught.value.cause
    assert len(server.requests) == 1


def test_an_array_of_no_axes_is_no_url():
    with pytest.raises(SpecError):
        gl.Remote(np.array(3))

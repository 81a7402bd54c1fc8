"""Buckets that hold keys which obstore cannot name, and objects that stand for folders."""

from __future__ import annotations

import http.client
import re
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import FileError, SpecError
from gpuload.storage import listing, objects, retries
from tests.objectserver import ObjectServer, npy_bytes

pytest.importorskip("obstore")
pytestmark = pytest.mark.usefixtures("clean_stores")

ODD = ["rows//old.log", "rows/../b.log", "rows/./c.log", "rows/d\x7f.log", "rows/sub//e/f.log"]


def fill(server: ObjectServer) -> None:
    for number in range(5):
        server.objects[f"/data/rows/{number} a.npy"] = npy_bytes(np.arange(3) + 3 * number)
    for key in ODD:
        server.objects[f"/data/{key}"] = b"text"


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_odd_keys_do_not_break_a_listing(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    fill(server)
    server.page_keys = 3
    source = gl.npy(
        gl.Remote(f"{scheme}://data/rows/*.npy", endpoint=server.url, anonymous=True), field="x"
    )
    assert source.read(range(15))["x"].tolist() == list(range(15))
    [folder] = gl.Remote(
        f"{scheme}://data/rows/", endpoint=server.url, anonymous=True
    ).object_urls()
    assert sorted(objects.names_in(folder)) == [
        *(f"{n} a.npy" for n in range(5)),
        "d\x7f.log",
        "sub",
    ]
    assert len(objects.names_below(folder)) == 5 + len(ODD)


@pytest.mark.parametrize(
    "key", [key for key in ODD if "/." not in key]
)  # ** enters no hidden folder
def test_an_odd_key_that_is_asked_for_is_refused_by_its_name(
    server: ObjectServer, key: str
) -> None:
    server.objects["/data/rows/a.npy"] = npy_bytes(np.arange(3))
    server.objects[f"/data/{key}"] = b"text"
    with pytest.raises(SpecError, match="not supported") as caught:
        gl.npy(gl.Remote("s3://data/rows/**", endpoint=server.url, anonymous=True))
    assert key in caught.value.what.encode().decode("unicode_escape")


@pytest.mark.parametrize("is_odd", [False, True])
def test_an_object_that_stands_for_a_folder_is_no_file(server: ObjectServer, is_odd: bool) -> None:
    fill(server)
    server.objects = {
        key: body for key, body in server.objects.items() if is_odd or key.endswith(".npy")
    }
    server.objects["/data/rows/"] = server.objects["/data/rows/sub/"] = b""
    [pattern] = gl.Remote("s3://data/rows/*", endpoint=server.url, anonymous=True).object_urls()
    names = [name for name in objects.names_of(pattern) if not name.endswith(".log")]
    assert names == [f"s3://data/rows/{number} a.npy" for number in range(5)]
    server.objects["/data/rows/sub"] = b""  # an empty object beside the folder of its name
    names = [name for name in objects.names_of(pattern) if not name.endswith(".log")]
    assert names == [
        *(f"s3://data/rows/{number} a.npy" for number in range(5)),
        "s3://data/rows/sub",
    ]


def test_without_credentials_that_can_be_used_the_key_is_named_at_once(
    server: ObjectServer,
) -> None:
    fill(server)
    remote = gl.Remote(
        "gs://data/rows/*.npy", endpoint=server.url, credentials=lambda: "no mapping"
    )
    [pattern] = remote.object_urls()
    with pytest.raises(FileError, match="cannot be listed") as caught:
        listing.entries_of(
            pattern, "rows/", "", 'Path "rows//old.log" contained empty path segment'
        )
    assert "rows//old.log" in caught.value.cause


def test_a_request_is_signed_as_botocore_signs_it(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth, awsrequest = (
        pytest.importorskip("botocore.auth"),
        pytest.importorskip("botocore.awsrequest"),
    )
    credentials = pytest.importorskip("botocore.credentials").Credentials(
        "AKIA1", "secret/+", "token="
    )
    fill(server)
    for name, value in (
        ("ACCESS_KEY_ID", "AKIA1"),
        ("SECRET_ACCESS_KEY", "secret/+"),
        ("SESSION_TOKEN", "token="),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    remote = gl.Remote(
        "s3://data/rows/*.npy", endpoint=server.url, region="eu-west-1", requester_pays=True
    )
    assert len(gl.npy(remote)) == 15
    [(path, headers)] = [
        (path, header)
        for (_, path, _), header in zip(server.requests, server.headers, strict=True)
        if "encoding-type" in path
    ]
    amazon_headers = {
        name: headers[name]
        for name in headers
        if name.startswith("x-amz-") and name != "x-amz-date"
    }
    request = awsrequest.AWSRequest("GET", server.url + path, headers=amazon_headers)
    request.context["timestamp"] = headers["x-amz-date"]
    signer = auth.S3SigV4Auth(credentials, "s3", "eu-west-1")
    del request.headers["x-amz-security-token"]
    request.headers["X-Amz-Date"] = headers["x-amz-date"]
    request.headers["X-Amz-Security-Token"] = "token="
    text = signer.string_to_sign(request, signer.canonical_request(request))
    signature = re.search("Signature=([0-9a-f]+)", headers["authorization"])
    assert signature is not None
    assert signature[1] == signer.signature(text, request)


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, object]]:
    pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("ENDPOINT_URL", url)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield url, boto3.client("s3", endpoint_url=url)
    server.stop()


def test_odd_keys_in_s3(moto: tuple[str, object]) -> None:
    _, client = moto
    client.create_bucket(Bucket="odd")  # type: ignore[attr-defined]
    for key in (*ODD, "rows/", "rows/a+b c%20.npy", "rows/sub/", "rows/é#?.npy"):
        body = (
            npy_bytes(np.arange(3))
            if key.endswith(".npy")
            else b""
            if key.endswith("/")
            else b"text"
        )
        client.put_object(Bucket="odd", Key=key, Body=body)  # type: ignore[attr-defined]
    source = gl.npy("s3://odd/rows/*.npy", field="x")
    assert source.files.paths == ("s3://odd/rows/a+b c%20.npy", "s3://odd/rows/é#?.npy")
    assert source.read(range(6))["x"].tolist() == [0, 1, 2, 0, 1, 2]
    link = client.generate_presigned_url(  # type: ignore[attr-defined]
        "get_object", Params={"Bucket": "odd", "Key": "rows/é#?.npy"}
    )
    assert gl.npy(link, field="x").read(range(3))["x"].tolist() == [0, 1, 2]


def test_a_key_that_ends_as_a_version_is_refused_where_it_is_listed(server: ObjectServer) -> None:
    """By its URL the version of another object would be read, here of a bucket without versions."""
    server.objects["/data/rows/a.npy"] = npy_bytes(np.arange(3))
    server.objects["/data/rows/a.npy?versionId=null"] = npy_bytes(np.arange(7))
    server.versions["/data/rows/a.npy", "null"] = npy_bytes(np.arange(3))
    with pytest.raises(SpecError, match="version of another object"):
        gl.npy(gl.Remote("s3://data/rows/*", endpoint=server.url, anonymous=True))


@pytest.mark.parametrize("answer", [b"", b"<a><Contents/></a>", b"no XML", b"\xff" * 50])
def test_a_listing_that_cannot_be_used_is_an_error_of_ours(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    fill(server)
    monkeypatch.setattr(retries, "MOST_TRIES", 2)
    answers = urllib.request.urlopen

    def cut(*arguments: object, **settings: object) -> object:
        page = answers(*arguments, **settings)  # type: ignore[arg-type]
        whole = page.read
        page.read = lambda size: (whole(size), answer)[1]
        return page

    monkeypatch.setattr(urllib.request, "urlopen", cut)
    with pytest.raises(FileError, match="cannot be read"):
        gl.npy(gl.Remote("s3://data/rows/*.npy", endpoint=server.url, anonymous=True))


@pytest.mark.parametrize(
    "error", [http.client.IncompleteRead(b"a"), http.client.BadStatusLine("x")]
)
def test_a_listing_that_breaks_off_is_asked_for_again(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fill(server)
    answers, errors = urllib.request.urlopen, [error]

    def breaks(*arguments: object, **settings: object) -> object:
        if errors:
            raise errors.pop()
        return answers(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(urllib.request, "urlopen", breaks)
    assert len(gl.npy(gl.Remote("s3://data/rows/*.npy", endpoint=server.url, anonymous=True))) == 15
    assert not errors

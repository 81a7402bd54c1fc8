"""A web server with ranges and ETags, whose faults a test plans: what object stores and proxies do
on a bad day.

It answers as stores do whose clients read and list objects:

S3, Google  ``/bucket/key``, ``?versionId=`` (``?generation=``), ``/bucket?list-type=2``:
            https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
            https://cloud.google.com/storage/docs/xml-api/get-bucket-list
Azure       ``/container/key``, ``?versionid=``, ``/container?restype=container&comp=list``:
            https://learn.microsoft.com/en-us/rest/api/storageservices/list-blobs
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np

TIME_S = 1_700_000_000
ISO_TIME = "2023-11-14T22:13:20.000Z"


def npy_bytes(array: np.ndarray) -> bytes:
    """Return an NPY file of an array."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@dataclass
class ObjectServer:
    """Objects by their path, and the faults of the server.

    Attributes:
        url: of the server.
        objects: the content of each path, which begins with a slash.
        versions: the content of earlier versions, by path and version.
        fault: called with the number of a request (from 0) and its path; returns "" for an honest
            answer, ``"503"`` or another status, also with the code that its body names,
            ``"503 SlowDown"``, ``"reset"`` (the connection breaks before the answer), ``"cut"`` (it
            breaks in the middle), ``"short"`` (fewer bytes than were asked for, in a whole answer),
            ``"whole"`` (the range is ignored), ``"stale"`` (the content of ``stale``).
        stale: what a proxy that keeps old answers has, by path.
        error_headers: of answers that are errors.
        delay_s: before each answer.
        drip_s: before each of 12 parts of an answer.
        headers_instead: of answers that are no errors, in place of others; None: the header is left
            out.
        page_keys: how many objects an answer to a listing has at most.
        sends_tags: False for a server without ETags.
        requests: method, path with its query, and range of each request.
        headers: of each request, with names in small letters.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    versions: dict[tuple[str, str], bytes] = field(default_factory=dict)
    fault: Callable[[int, str], str] = lambda number, path: ""
    stale: dict[str, bytes] = field(default_factory=dict)
    error_headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drip_s: float = 0.0
    headers_instead: dict[str, str | None] = field(default_factory=dict)
    page_keys: int = 1000
    sends_tags: bool = True
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def tag_of(content: bytes) -> str:
    """Return the ETag of some content, without its quotes."""
    return hashlib.md5(content).hexdigest()


def _handler(server: ObjectServer) -> type[BaseHTTPRequestHandler]:
    lock, numbers = threading.Lock(), itertools.count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each body waits 40 ms for an answer to its headers

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            parts = urlsplit(self.path)
            path, query = (
                unquote(parts.path),
                {name: values[0] for name, values in parse_qs(parts.query).items()},
            )
            range_header = self.headers.get("Range", "") or self.headers.get("x-ms-range", "")
            with lock:
                number = next(numbers)
                server.requests.append((self.command, self.path, range_header))
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
            time.sleep(server.delay_s)
            fault = server.fault(number, path)
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.close_connection = True
                self.connection.close()
                return
            is_listing = query.get("list-type") == "2" or query.get("comp") == "list"
            if is_listing and not fault:
                self._list(path, query)
                return
            content = server.stale[path] if fault == "stale" else server.objects.get(path)
            version = next(
                (query[name] for name in ("versionId", "generation", "versionid") if name in query),
                "",
            )
            if version:
                content = server.versions.get((path, version))
            status, _, code = fault.partition(" ")
            if status.isdigit() or content is None:
                bucket = "/".join(path.split("/")[:2]) + "/"
                has_bucket = any(name.startswith(bucket) for name in server.objects)
                code = code or ("NoSuchKey" if has_bucket else "NoSuchBucket")
                self._refuse(int(status) if status.isdigit() else 404, code)
                return
            first, last = 0, len(content) - 1
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", range_header)
            is_range = match is not None and fault != "whole"
            if match is not None and is_range:
                first, last = int(match[1]), min(int(match[2]), len(content) - 1)
                if first >= len(content):
                    self._refuse(416, "InvalidRange")
                    return
            if fault == "short" and is_range:
                last = (first + last) // 2
            self.send_response(206 if is_range else 200)
            headers: dict[str, str | None] = (
                {"ETag": f'"{tag_of(content)}"'} if server.sends_tags else {}
            )
            headers |= {
                "Last-Modified": formatdate(TIME_S, usegmt=True),
                "Content-Length": str(last + 1 - first),
            }
            if is_range:
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            for name, value in (headers | server.headers_instead).items():
                if value is not None:
                    self.send_header(name, value)
            self.end_headers()
            if with_body:
                body = content[first : last + 1]
                if fault == "cut":
                    self.wfile.write(body[: len(body) // 2])
                    self.close_connection = True
                    return
                step = len(body) // 12 + 1 if server.drip_s else len(body) or 1
                for begin in range(0, len(body), step):
                    time.sleep(server.drip_s)
                    self.wfile.write(body[begin : begin + step])

        def _refuse(self, status: int, code: str) -> None:
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            self.send_response(status)
            for name, value in server.error_headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _list(self, path: str, query: dict[str, str]) -> None:
            root = path.rstrip("/") + "/"
            keys = sorted(name[len(root) :] for name in server.objects if name.startswith(root))
            if not keys:
                is_azure = "comp" in query
                self._refuse(404, "ContainerNotFound" if is_azure else "NoSuchBucket")
                return
            keys = [key for key in keys if key.startswith(query.get("prefix", ""))]
            folders = list[str]()
            if "delimiter" in query:
                level = len(query.get("prefix", ""))
                folders = sorted(
                    {key[: key.index("/", level) + 1] for key in keys if "/" in key[level:]}
                )
                keys = [key for key in keys if "/" not in key[level:]]
            begin = int(query.get("continuation-token") or query.get("marker") or 0)
            page, after = keys[begin : begin + server.page_keys], begin + server.page_keys
            contents = [(escape(key), server.objects[root + key]) for key in page]
            texts = _azure_page if "comp" in query else _s3_page
            prefixes = [escape(folder) for folder in folders] if not begin else []
            body = texts(contents, prefixes, str(after) if after < len(keys) else "").encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _s3_page(contents: list[tuple[str, bytes]], folders: list[str], token: str) -> str:
    entries = "".join(
        f"<Contents><Key>{key}</Key><LastModified>{ISO_TIME}</LastModified><ETag>&quot;{tag_of(content)}&quot;</ETag>"
        f"<Size>{len(content)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for key, content in contents
    )
    entries += "".join(
        f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders
    )
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    is_truncated = "true" if token else "false"
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{is_truncated}</IsTruncated><KeyCount>{len(contents)}</KeyCount>{entries}{more}"
        "</ListBucketResult>"
    )


def _azure_page(contents: list[tuple[str, bytes]], folders: list[str], marker: str) -> str:
    entries = "".join(
        f"<Blob><Name>{key}</Name><Properties><Creation-Time>{formatdate(TIME_S, usegmt=True)}</Creation-Time>"
        f"<Last-Modified>{formatdate(TIME_S, usegmt=True)}</Last-Modified><Etag>{tag_of(content)}</Etag>"
        f"<Content-Length>{len(content)}</Content-Length><Content-Type>application/octet-stream</Content-Type>"
        "<BlobType>BlockBlob</BlobType></Properties></Blob>"
        for key, content in contents
    )
    entries += "".join(f"<BlobPrefix><Name>{folder}</Name></BlobPrefix>" for folder in folders)
    return (
        '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="http://server/" '
        f'ContainerName="data"><Blobs>{entries}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>'
    )


@contextlib.contextmanager
def running() -> Iterator[ObjectServer]:
    """Yield a server that answers until the end of the block."""
    server = ObjectServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join(60)

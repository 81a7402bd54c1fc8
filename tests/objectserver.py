"""A web server with ranges and ETags, whose faults a test plans: what object stores and proxies do on a bad day."""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class ObjectServer:
    """Objects by their path, and the faults of the server.

    Attributes:
        url: of the server.
        objects: the content of each path, which begins with a slash.
        fault: called with the number of a request (from 0) and its path; returns "" for an honest answer, ``"503"`` or
            another status, ``"reset"`` (the connection breaks before the answer), ``"cut"`` (it breaks in the middle),
            ``"short"`` (fewer bytes than were asked for, in a whole answer), ``"whole"`` (the range is ignored).
        delay_s: before each answer.
        requests: method, path and range of each request.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    fault: Callable[[int, str], str] = lambda number, path: ""
    delay_s: float = 0.0
    requests: list[tuple[str, str, str]] = field(default_factory=list)


def _handler(server: ObjectServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            range_header = self.headers.get("Range", "")
            server.requests.append((self.command, self.path, range_header))
            time.sleep(server.delay_s)
            fault = server.fault(len(server.requests) - 1, self.path)
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.close_connection = True
                self.connection.close()
                return
            content = server.objects.get(self.path)
            if fault.isdigit() or content is None:
                self.send_response(int(fault) if fault.isdigit() else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            first, last = 0, len(content) - 1
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", range_header)
            is_range = match is not None and fault != "whole"
            if match is not None and is_range:
                first, last = int(match[1]), min(int(match[2]), len(content) - 1)
            if fault == "short" and is_range:
                last = (first + last) // 2
            self.send_response(206 if is_range else 200)
            self.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
            self.send_header("Last-Modified", formatdate(1_700_000_000, usegmt=True))
            self.send_header("Content-Length", str(last + 1 - first))
            if is_range:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            self.end_headers()
            if with_body:
                body = content[first : last + 1]
                if fault == "cut":
                    self.wfile.write(body[: len(body) // 2])
                    self.close_connection = True
                    return
                self.wfile.write(body)

    return Handler


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
        thread.join(10)

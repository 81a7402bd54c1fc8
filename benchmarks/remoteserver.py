"""A store on this machine, and the clients that are measured beside each other: nginx, which
answers unsigned S3 GETs.

Far       the variant ``...-20ms`` goes through a proxy that sends each answer on 20 ms later, as a
          store in the same region does. It is written in Python and takes a tenth of a millisecond
          of processor time for a request.
Clients   a client is a function ``ranges(names, begins, ends)`` that returns the bytes of many
          ranges; each is used as its documentation says for many ranges at a time.
Cores     server, proxy and client share the cores of this machine.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FAR = "-20ms"
DELAY_S = 0.020
START_S = 60.0
Ranges = Callable[[Sequence[str], Sequence[int], Sequence[int]], list[bytes]]
Make = Callable[[str, int], Ranges]


def program() -> str | None:
    """Return the path of nginx, None if it is not installed."""
    return shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


def serve(folder: Path, variant: str) -> str:
    """Return the URL of a server of a folder, which runs until this process ends."""
    port, state = _free_port(), Path(tempfile.mkdtemp(prefix="benchmarks-nginx-"))
    (state / "nginx.conf").write_text(
        f"{'user root; ' if os.geteuid() == 0 else ''}daemon off; worker_processes 1; pid {state}/pid; "
        f"error_log {state}/error.log; events {{ worker_connections 1024; }}\n"
        f"http {{ access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000; "
        f"server {{ listen 127.0.0.1:{port} backlog=1024; location / {{ alias {folder}/; }} }} }}\n"
    )
    nginx = program()
    if nginx is None:
        raise RuntimeError("nginx is not installed: apt-get install nginx-light")
    _start([nginx, "-c", str(state / "nginx.conf"), "-e", str(state / "error.log")], port)
    if variant.endswith(FAR):
        near_port, port = port, _free_port()
        _start([sys.executable, "-m", __spec__.name, str(port), str(near_port)], port)
    return f"http://127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(command: list[str], port: int) -> None:
    process = subprocess.Popen(command)
    atexit.register(process.terminate)
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise RuntimeError(f"{command[0]} does not answer")


def threads_of(variant: str) -> int:
    """Return the number of threads that ask for ranges, the best of 32, 64 and 128."""
    return 128 if variant.endswith(FAR) else 32


def obstore_ranges(url: str, num_threads: int) -> Ranges:
    """obstore, a thread a range: requests alone, nothing of them is checked."""
    import obstore
    from obstore.store import from_url

    store = from_url(f"{url}/bucket", client_options={"allow_http": True})
    pool = ThreadPoolExecutor(num_threads)

    def get(name: str, begin: int, end: int) -> bytes:
        return bytes(obstore.get_range(store, name, start=begin, end=end))

    return lambda names, begins, ends: list(pool.map(get, names, begins, ends))


def s3fs_ranges(url: str, num_threads: int) -> Ranges:
    """s3fs, ``cat_ranges``: coroutines of aiobotocore, no threads."""
    import s3fs

    files = s3fs.S3FileSystem(
        anon=True, endpoint_url=url, client_kwargs={"region_name": "us-east-1"}
    )
    return lambda names, begins, ends: files.cat_ranges(
        [f"bucket/{name}" for name in names], list(begins), list(ends)
    )


def fsspec_ranges(url: str, num_threads: int) -> Ranges:
    """HTTP by fsspec, ``cat_ranges``: coroutines of aiohttp, no threads."""
    import fsspec

    files = fsspec.filesystem("http")
    return lambda names, begins, ends: files.cat_ranges(
        [f"{url}/bucket/{name}" for name in names], list(begins), list(ends)
    )


def pyarrow_ranges(url: str, num_threads: int) -> Ranges:
    """pyarrow.fs, the C++ SDK of Amazon: open files that are kept, ``read_at`` in threads."""
    import pyarrow
    from pyarrow import fs

    pyarrow.set_io_thread_count(num_threads)  # as many connections, too
    files = fs.S3FileSystem(
        anonymous=True,
        endpoint_override=url.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
    )
    pool, opened = ThreadPoolExecutor(num_threads), dict[str, Any]()

    def get(name: str, begin: int, end: int) -> bytes:
        if name not in opened:
            opened[name] = files.open_input_file(f"bucket/{name}")
        return bytes(opened[name].read_at(end - begin, begin))

    return lambda names, begins, ends: list(pool.map(get, names, begins, ends))


CLIENTS: tuple[tuple[str, Make, str, tuple[str, ...]], ...] = (
    (
        "obstore",
        obstore_ranges,
        "obstore, a range a thread, 32 threads, 128 at 20 ms; no checks",
        ("obstore",),
    ),
    ("pyarrow", pyarrow_ranges, "pyarrow.fs, read_at in 32 threads, 128 at 20 ms", ("pyarrow",)),
    (
        "fsspec",
        fsspec_ranges,
        "fsspec's HTTP, cat_ranges, two batches ahead",
        ("fsspec", "aiohttp"),
    ),
    ("s3fs", s3fs_ranges, "s3fs, cat_ranges, two batches ahead", ("s3fs",)),
)


async def _delay(port: int, near_port: int) -> None:
    """Send on what comes to a port, and the answers DELAY_S later."""

    async def relay(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 18):
                if delay_s:
                    loop.call_later(delay_s, writer.write, data)
                else:
                    writer.write(data)
        loop.call_later(delay_s, writer.close)

    async def connect(
        client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", near_port)
        for end in (client_writer, writer):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(
            relay(client_reader, writer, 0.0), relay(reader, client_writer, DELAY_S)
        )

    server = await asyncio.start_server(connect, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_delay(int(sys.argv[1]), int(sys.argv[2])))

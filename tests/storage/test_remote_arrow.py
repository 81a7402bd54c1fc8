"""Arrow files in object stores: how little is asked for, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import ChangedFileError, DamagedBlockError, FormatError
from gpuload.formats.arrow import messages
from tests.objectserver import ObjectServer

pytest.importorskip("obstore")
pa = pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("clean_stores")]
COUNT, ROWS, VALUE_BYTES = 60, 20, 14_000


def table(factor: int = 1) -> object:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "number": np.arange(COUNT) * factor,
            "raw": [rng.bytes(VALUE_BYTES - i) for i in range(COUNT)],
            "kind": pa.array([f"kind {i % 3}" for i in range(COUNT)]).dictionary_encode(),
            "tags": [[f"t{j}" for j in range(i % 3)] for i in range(COUNT)],
        }
    )


def put(
    server: ObjectServer,
    content: object,
    *,
    is_stream: bool = False,
    compression: str | None = None,
) -> str:
    sink = pa.BufferOutputStream()
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with make(
        sink, content.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_table(content, max_chunksize=ROWS)
    server.objects["/a.arrow"] = sink.getvalue().to_pybytes()
    return f"{server.url}/a.arrow"


def num_bytes(server: ObjectServer) -> int:
    ranges = [text.removeprefix("bytes=").split("-") for _, _, text in server.requests]
    return sum(int(last) + 1 - int(first) for first, last in ranges)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_column_is_asked_for_alone(server: ObjectServer, compression: str | None) -> None:
    source = gl.arrow(put(server, table(), compression=compression))
    size = len(server.objects["/a.arrow"])
    value = (
        ROWS * VALUE_BYTES if compression else messages.WINDOW_BYTES
    )  # of which the first one tells of images
    assert num_bytes(server) < 2 * messages.WINDOW_BYTES + value + 10_000 < size
    server.requests.clear()
    assert source.read([3, 41], fields="kind")["kind"].tolist() == ["kind 0", "kind 2"]
    assert source.read([59], fields="tags")["tags"][0].tolist() == ["t0", "t1"]
    assert num_bytes(server) < 10_000
    server.requests.clear()
    assert bytes(source.read([7], fields="raw")["raw"][0]) == table()["raw"][7].as_py()
    assert len(server.requests) == 1  # the metadata of the record batch, and this column behind it
    assert num_bytes(server) < size / 2


def test_a_row_of_numbers_is_a_request_of_its_bytes(server: ObjectServer) -> None:
    source = gl.arrow(put(server, table()), ["number"])
    server.requests.clear()
    assert source.read([41])["number"].tolist() == [41]
    assert num_bytes(server) == 8


def test_a_stream_is_read_in_steps_from_record_batch_to_record_batch(server: ObjectServer) -> None:
    url = put(server, table().drop_columns("kind"), is_stream=True)
    source = gl.arrow(url)
    assert num_bytes(server) < 5.1 * messages.WINDOW_BYTES
    assert (
        len(server.requests) <= 6
    )  # the beginning; each record batch, and the end behind it; a value
    assert bytes(source.read([59])["raw"][0]) == table()["raw"][59].as_py()


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_manifest_opens_a_file_without_a_request(
    server: ObjectServer, tmp_path: Path, *, is_stream: bool
) -> None:
    content = table().drop_columns("kind") if is_stream else table()
    source = gl.arrow(put(server, content, is_stream=is_stream))
    path = source.index(tmp_path / "x.manifest")
    server.requests.clear()
    again = gl.open(path)
    assert server.requests == []
    assert (again.spec, again.fingerprint()) == (source.spec, source.fingerprint())
    assert again.read([41], fields="number")["number"].tolist() == [41]
    assert num_bytes(server) == 8
    assert again.read([59], fields="tags")["tags"][0].tolist() == ["t0", "t1"]
    assert Path(again.index(tmp_path / "y.manifest")).read_bytes() == Path(path).read_bytes()
    put(server, table(factor=2), is_stream=is_stream)
    for field in ("number", "raw"):
        with pytest.raises(ChangedFileError, match=r"a\.arrow changed"):
            gl.arrow(path).read([5], fields=field)


def test_a_file_that_is_replaced_is_refused(server: ObjectServer) -> None:
    url = put(server, table())
    source = gl.arrow(url)
    put(server, table(factor=2))
    for field in ("number", "kind"):
        with pytest.raises(ChangedFileError, match=r"a\.arrow changed"):
            source.read([5], fields=field)


def test_a_file_that_is_replaced_while_it_is_opened_is_refused(server: ObjectServer) -> None:
    url, other = put(server, table()), server.objects["/a.arrow"][::-1]
    server.stale["/a.arrow"] = other
    server.fault = lambda number, path: "stale" if number == 1 else ""
    with pytest.raises(ChangedFileError, match=r"a\.arrow changed"):
        gl.arrow(url)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("keep", [0, 7, 300, -9])
def test_a_file_that_is_cut_short_is_refused(
    server: ObjectServer, keep: int, is_stream: bool
) -> None:
    url = put(server, table().drop_columns("kind"), is_stream=is_stream)
    server.objects["/a.arrow"] = server.objects["/a.arrow"][:keep]
    with pytest.raises((FormatError, DamagedBlockError), match=r"a\.arrow"):
        gl.arrow(url).read(range(COUNT))


@pytest.mark.parametrize("fault", ["503", "cut", "short"])
def test_a_fault_that_passes(server: ObjectServer, fault: str) -> None:
    url = put(server, table())
    server.fault = lambda number, path: fault if number % 2 == 0 else ""
    with gl.arrow(url) as source:
        assert source.read(range(COUNT))["number"].tolist() == list(range(COUNT))
        assert source.read([41])["kind"].tolist() == ["kind 2"]

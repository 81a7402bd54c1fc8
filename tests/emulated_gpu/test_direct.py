"""Rows straight from files to a GPU: the real kvikio; in front of the emulated GPU it is in its
compatibility mode."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload import device, threads
from gpuload.errors import ChangedFileError, FileError, SpecError
from gpuload.storage import direct

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not direct.is_installed(), reason="kvikio is not installed"),
]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for number, count in enumerate((70, 1, 129)):
        np.save(
            tmp_path / f"{number}.npy", rng.integers(-1000, 1000, (count, 5, 301)).astype(np.int16)
        )
    return tmp_path / "*.npy"


def assert_same_batches(source: gl.Source, batch_size: int, **arguments) -> gl.Loader:
    """Check that two epochs of a direct loader have the batches of the CPU, and return the direct
    one."""
    on_host = gl.Loader(source, batch_size, device="cpu", **arguments)
    on_gpu = gl.Loader(source, batch_size, device="gpu", direct=True, **arguments)
    count = 0
    for _ in range(2):
        for expected, batch in zip(on_host, on_gpu, strict=True):
            assert batch.records.tolist() == expected.records.tolist()
            for name, values in expected.items():
                assert batch[name].get().tobytes() == values.tobytes(), name
            count += 1
    assert count == 2 * len(on_host)
    return on_gpu


@pytest.mark.parametrize("shuffle", [False, True, gl.Blocks(16, 3)])
def test_rows_of_several_files_are_those_of_the_cpu(shards: Path, shuffle):
    loader = assert_same_batches(gl.npy(shards), 32, shuffle=shuffle, seed=5)

    lines = (
        "GPUDirect Storage, but for",
        "kvikio's compatibility mode, which reads by way of the host (",
    )  # the latter here
    assert any(f"direct:    {line}" in loader.describe() for line in lines)


def test_fields_are_cut_out_of_records_and_ops_run_behind(tmp_path: Path):
    record = np.dtype([("label", ">i4"), ("image", "u1", (9, 8, 3)), ("weight", "<f8")])
    values = np.zeros(200, record)
    rng = np.random.default_rng(2)
    values["label"], values["weight"] = rng.integers(0, 10, 200), rng.random(200)
    values["image"] = rng.integers(0, 256, (200, 9, 8, 3))
    values.tofile(tmp_path / "x.bin")
    source = gl.fixed(str(tmp_path / "x.bin"), record)

    assert_same_batches(source, 16, shuffle=True)
    assert_same_batches(
        source,
        16,
        ops=[gl.ops.RandomCrop(6, 6, on="image"), gl.ops.Normalize(3.0, 2.0, on="image")],
    )
    assert_same_batches(source, 64, output={"y": "label"})
    assert_same_batches(source[10:90], 7, last_batch="pad")


def test_no_work_that_was_queued_uses_memory_for_direct_reads():
    cupy, lane, gate, order = device.cupy(), device.Lane("gpu:0"), threading.Event(), []
    with lane:
        before = cupy.full(1 << 20, 7, np.uint8)
        lane.stream.launch_host_func(lambda _: gate.wait(60) and order.append("work"), None)
        copy = before.copy()
        address = before.data.ptr
        del before
    memory = []
    (asking,) = threads.start(
        1, lambda: (memory.append(lane.unused(1 << 20)), order.append("memory")), stop=gate.set
    )
    threads.join([asking], limit_s=0.3)  # it waits for the work, which waits for the gate
    gate.set()
    threads.join([asking])

    assert order == ["work", "memory"]
    assert memory[0].data.ptr == address  # the pool gives it again to the same stream
    assert copy.get().all()
    lane.close()


def test_a_file_that_changes_is_an_error(shards: Path):
    source = gl.npy(shards)
    path = shards.parent / "2.npy"
    with gl.Loader(source, 200, device="gpu", direct=True) as loader:
        assert loader.peek()["x"].shape == (200, 5, 301)
        os.truncate(path, 4000)
        with pytest.raises(ChangedFileError, match=r"2\.npy"):
            loader.peek()
    path.unlink()
    with (
        gl.Loader(source, 200, device="gpu", direct=True) as loader,
        pytest.raises(ChangedFileError),
    ):
        loader.peek()


def test_more_files_than_are_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct, "MOST_OPEN_FILES", 2)
    for number in range(9):
        np.save(tmp_path / f"{number}.npy", np.full((3, 1000), number, np.int32))

    assert_same_batches(gl.npy(tmp_path / "*.npy"), 9, shuffle=True)


def test_what_passes_the_host_is_logged_once_for_a_loader(
    shards: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "gpuload")
    with gl.Loader(gl.npy(shards), 50, device="gpu", direct=True) as loader:
        for _ in loader:
            pass

    (message,) = caplog.messages
    assert message.startswith("direct=True, but rows come by kvikio's compatibility mode")


def test_a_read_that_fails_names_the_file(shards: Path, monkeypatch: pytest.MonkeyPatch):
    with gl.Loader(gl.npy(shards), 200, device="gpu", direct=True) as loader:
        loader.peek()

        class Broken:
            def get(self):
                raise RuntimeError("POSIX error on pread: Input/output error\nmore")

        class File:
            def pread(self, out, length, offset):
                return Broken()

        monkeypatch.setattr(direct.DirectReader, "_open", lambda self, files, number: File())
        with pytest.raises(FileError, match=r"cannot be read to the GPU(.|\n)*Input/output error"):
            loader.peek()


def test_a_read_that_ends_early_is_an_error(shards: Path, monkeypatch: pytest.MonkeyPatch):
    class Short:
        def get(self):
            return 7

    class File:
        def pread(self, out, length, offset):
            return Short()

    with gl.Loader(gl.npy(shards), 200, device="gpu", direct=True) as loader:
        monkeypatch.setattr(direct.DirectReader, "_open", lambda self, files, number: File())
        with pytest.raises(FileError, match="it read 7 bytes"):
            loader.peek()


def test_reads_under_way_are_waited_for_where_a_later_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.zeros((1, 1000)))
    events = []

    class Answer:
        def get(self):
            events.append("waited")
            return 8000

    class File:
        def pread(self, out, length, offset):
            if len(events) == 2:
                raise RuntimeError("no memory for the thread pool")
            events.append("begun")
            return Answer()

    with gl.Loader(gl.npy(tmp_path / "*.npy"), 3, device="gpu", direct=True) as loader:
        monkeypatch.setattr(direct.DirectReader, "_open", lambda self, files, number: File())
        with pytest.raises(
            FileError, match=r"2\.npy cannot be read(.|\n)*no memory for the thread pool"
        ):
            loader.peek()

    assert events == ["begun", "begun", "waited", "waited"]


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (
            lambda folder: gl.Loader(gl.records(5, lambda i: {"x": np.zeros(i.size)}), 2),
            "comes from Python, or varies in size",
        ),
        (
            lambda folder: gl.Loader(gl.images(str(folder / "0.png")), 2),
            "comes from Python, or varies in size",
        ),
        (lambda folder: gl.Loader(gl.npy(folder / "columns.npy"), 2), "put together on the host"),
        (lambda folder: gl.Loader(gl.npy(folder / "text.npy"), 2), "stays on the host"),
        (
            lambda folder: gl.Loader(gl.npy(folder / "rows.npy"), 2, on_error="skip"),
            "damaged records",
        ),
        (
            lambda folder: gl.Loader(
                gl.npy(folder / "rows.npy"), 2, ops=[gl.ops.Python(lambda x: x, out={})]
            ),
            "runs on NumPy alone",
        ),
    ],
)
def test_what_needs_the_host_is_refused(make, cause: str, tmp_path: Path):
    (tmp_path / "0.png").write_bytes(b"an image, whatever is in it")
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.arange(12.0).reshape(4, 3)))
    np.save(tmp_path / "text.npy", np.array(["a", "bc"]))
    np.save(tmp_path / "rows.npy", np.zeros((4, 3)))
    plain = make(tmp_path)

    with pytest.raises(SpecError, match=cause):
        plain.replace(device="gpu", direct=True).peek()


def test_an_audit_reads_the_rows_again_by_way_of_the_host(shards: Path):
    with gl.Loader(
        gl.npy(shards), 32, shuffle=True, device="gpu", direct=True, audit=0.5
    ) as loader:
        num_records = sum(len(batch.records) for batch in loader)
        num_audited = loader.stats()["records_audited"]

    assert num_records == 200
    assert 60 < num_audited < 140

"""The bridge to Ray on a cluster of several nodes on this machine: reads, conversions, workers that
die."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # on a machine with other work
ray = pytest.importorskip("ray", reason="make test-ray brings Ray")
from ray.cluster_utils import Cluster  # noqa: E402

import gpuload as gl  # noqa: E402
from gpuload.bridges import ray as glray  # noqa: E402
from gpuload.errors import ChangedFileError, FileError, GpuloadError, MissingFileError, SpecError  # noqa: E402
from tests import codeblocks, objectserver  # noqa: E402

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
STORE_BYTES = 150 << 20


@pytest.fixture(scope="module")
def cluster() -> Any:
    """Start two nodes of one core each."""
    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE_BYTES}
    )
    nodes.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def rows(tmp_path: Path) -> gl.Source:
    for number in range(3):
        np.save(
            tmp_path / f"{number}.npy",
            np.arange(number * 100, number * 100 + 100)[:, None] * np.ones(4, "i8"),
        )
    return gl.npy(str(tmp_path / "*.npy"))


def test_a_dataset_has_each_record_once(cluster: Any, rows: gl.Source) -> None:
    data = ray.data.read_datasource(glray.datasource(rows), override_num_blocks=7)

    values = np.concatenate(
        [batch["x"] for batch in data.iter_batches(batch_size=50, batch_format="numpy")]
    )

    assert data.count() == 300
    assert values.dtype == np.int64
    assert values.shape == (300, 4)
    np.testing.assert_array_equal(np.sort(values[:, 0]), np.arange(300))


def ragged_rows(numbers: Any) -> dict[str, Any]:
    """Return rows of 2, 0 and 3 numbers."""
    return {"r": [np.arange([2, 0, 3][number], dtype=np.float32) for number in numbers]}


def test_fields_of_each_kind_become_columns(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("label,name\n1,abc\n2,\n3,xyz\n")
    source = gl.zip(gl.csv(tmp_path / "t.csv"), gl.records(3, ragged_rows, version="1"))

    records = ray.data.read_datasource(glray.datasource(source), override_num_blocks=1).take_all()

    assert [(record["label"], record["name"]) for record in records] == [
        (1, "abc"),
        (2, ""),
        (3, "xyz"),
    ]
    assert [np.asarray(record["r"]).tolist() for record in records] == [[0, 1], [], [0, 1, 2]]


def test_links_with_a_signature_are_refused_before_a_task_begins(
    cluster: Any, tmp_path: Path
) -> None:
    pytest.importorskip("obstore")
    with objectserver.running() as server:
        server.objects["/data/a.npy"] = objectserver.npy_bytes(np.arange(10))
        source = gl.npy(f"{server.url}/data/a.npy?X-Amz-Signature=TOPSECRET99")
        calls = (
            lambda: glray.datasource(source),
            lambda: glray.convert(source, tmp_path / "{shard}.npy", records_per_shard=5),
        )
        for call in calls:
            with pytest.raises(SpecError, match="s3://") as caught:
                call()
            assert "TOPSECRET99" not in str(caught.value)


def test_a_conversion_is_shared_and_goes_on(cluster: Any, rows: gl.Source, tmp_path: Path) -> None:
    out = tmp_path / "out" / "part-{shard:03d}.npy"
    first = glray.convert(rows, out, records_per_shard=70)
    stamps = {path: os.stat(path).st_mtime_ns for path in first.paths}
    os.unlink(first.paths[2])

    second = glray.convert(rows, out, records_per_shard=70)

    assert [len(np.load(path)) for path in second.paths] == [70, 70, 70, 70, 20]
    assert (first.num_kept, second.num_kept, second.num_records) == (0, 4, 300)
    assert [path for path in second.paths if os.stat(path).st_mtime_ns != stamps[path]] == [
        first.paths[2]
    ]
    np.testing.assert_array_equal(
        np.concatenate([np.load(path) for path in second.paths])[:, 0], np.arange(300)
    )
    assert len(eval(second.call, {"gl": gl})) == 300


class Killer:
    """Rows that kill the worker which reads record 120, the first times."""

    def __init__(self, folder: str, times: int) -> None:
        self.folder, self.times = folder, times

    def read(self, numbers: Any) -> dict[str, Any]:
        """Return the numbers of the records."""
        marks = len(os.listdir(self.folder))
        if 120 in numbers and marks < self.times:
            Path(self.folder, str(marks)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": np.asarray(numbers)}


def test_a_worker_that_is_killed_in_a_file_is_replaced(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    source = gl.records(
        300, Killer(str(tmp_path / "marks"), 2).read, fields={"x": ("i8", ())}, version="1"
    )

    result = glray.convert(source, tmp_path / "out" / "{shard}.npy", records_per_shard=100)

    assert len(os.listdir(tmp_path / "marks")) == 2
    np.testing.assert_array_equal(
        np.concatenate([np.load(path) for path in result.paths]), np.arange(300)
    )
    assert not [name for name in os.listdir(tmp_path / "out") if ".part-" in name]


ROW_NUMBERS = 1 << 16  # of a row, so that a file is read, and written, in several pieces


def wide_rows(numbers: Any) -> dict[str, Any]:
    """Return rows of half a megabyte."""
    return {"x": np.asarray(numbers)[:, None] + np.arange(ROW_NUMBERS)}


class Victim:
    """Rows whose reader on one node waits for its end when a part of its file is written; the
    others wait for it."""

    def __init__(self, mark: Path, node_id: str) -> None:
        self.mark, self.node_id = mark, node_id

    def read(self, numbers: Any) -> dict[str, Any]:
        """Return the rows of the records."""
        is_victim = ray.get_runtime_context().get_node_id() == self.node_id
        if is_victim and not numbers[0] % 40:  # the first piece of a file
            return wide_rows(numbers)
        while is_victim or not self.mark.exists():
            if is_victim:
                self.mark.touch()
            time.sleep(0.05)
        return wide_rows(numbers)


def test_the_files_of_a_node_that_dies_are_written_by_the_others(
    cluster: Any, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    mark, out, sizes = tmp_path / "mark", tmp_path / "out", list[int]()
    source = gl.records(
        160, Victim(mark, node.node_id).read, fields={"x": ("i8", (ROW_NUMBERS,))}, version="1"
    )

    def remove() -> None:
        while not mark.exists():
            time.sleep(0.05)
        sizes.extend(path.stat().st_size for path in out.glob("*.part-*"))
        cluster.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=remove, daemon=True)
    thread.start()
    result = glray.convert(source, out / "{shard}.npy", records_per_shard=40)
    thread.join()

    assert max(sizes) > 8 * ROW_NUMBERS  # a file was half-written when its node died
    assert len(result.paths) == 4
    for number, path in enumerate(result.paths):
        rows = np.arange(40 * number, 40 * number + 40)
        np.testing.assert_array_equal(np.load(path, mmap_mode="r"), wide_rows(rows)["x"])
    assert not list(out.glob("*.part-*"))


def test_a_file_that_a_lost_worker_still_writes_is_waited_for(
    cluster: Any, rows: gl.Source, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    journal = os.open(tmp_path / "out" / "1.npy.convert.jsonl", os.O_RDWR | os.O_CREAT)
    fcntl.flock(journal, fcntl.LOCK_EX)

    def release() -> None:
        while not {"0.npy", "2.npy"} <= set(os.listdir(tmp_path / "out")):
            time.sleep(0.05)
        os.close(journal)

    thread = threading.Thread(target=release, daemon=True)
    thread.start()
    result = glray.convert(rows, tmp_path / "out" / "{shard}.npy", records_per_shard=100)
    thread.join()

    np.testing.assert_array_equal(
        np.concatenate([np.load(path) for path in result.paths])[:, 0], np.arange(300)
    )


def test_workers_that_die_again_and_again_are_an_error(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    source = gl.records(
        300, Killer(str(tmp_path / "marks"), 99).read, fields={"x": ("i8", ())}, version="1"
    )

    with pytest.raises(
        GpuloadError, match=r"1\.npy was not written[\s\S]*died 4 times[\s\S]*convert again"
    ):
        glray.convert(source, tmp_path / "out" / "{shard}.npy", records_per_shard=100)


def test_files_that_are_others_on_the_node_are_refused_with_its_name(
    cluster: Any, rows: gl.Source, tmp_path: Path
) -> None:
    rows.fingerprint()
    np.save(tmp_path / "1.npy", np.zeros((100, 4), "i8"))  # what a worker finds under the path

    with pytest.raises((ChangedFileError, ray.exceptions.RayError)) as error:
        glray.convert(rows, tmp_path / "out" / "{shard}.npy", records_per_shard=100)

    assert f"on node {os.uname().nodename}" in str(error.value)
    assert "are others than where the source was made" in str(error.value)


def test_files_that_are_missing_on_the_node_are_named_with_it(
    cluster: Any, rows: gl.Source, tmp_path: Path
) -> None:
    rows.fingerprint()
    data = ray.data.read_datasource(glray.datasource(rows), override_num_blocks=2)
    for path in tmp_path.glob("*.npy"):
        path.unlink()

    with pytest.raises((MissingFileError, ray.exceptions.RayError)) as error:
        data.take_all()

    assert f"on node {os.uname().nodename}" in str(error.value)


def test_a_file_of_others_is_not_replaced(cluster: Any, rows: gl.Source, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "1.npy").write_bytes(b"mine")

    with pytest.raises(FileError, match=r"node .*1\.npy is there already"):
        glray.convert(rows, tmp_path / "out" / "{shard}.npy", records_per_shard=100)
    assert (tmp_path / "out" / "1.npy").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda rows: glray.datasource([1]), "pass the source"),
        (lambda rows: glray.convert(rows, "out.npy", records_per_shard=9), "named by its number"),
        (
            lambda rows: glray.convert(rows, "{field}-{shard}.npy", records_per_shard=9),
            "named by its number",
        ),
        (lambda rows: glray.convert(rows, "{shard}.npy", records_per_shard=0), "records_per_shard"),
        (
            lambda rows: glray.convert([1], "{shard}.npy", records_per_shard=1),
            "no record to convert",
        ),
    ],
)
def test_wrong_arguments_are_refused(cluster: Any, rows: gl.Source, call: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        call(rows)


def test_outside_of_ray_train_there_is_no_rank(cluster: Any) -> None:
    with pytest.raises(SpecError, match="no worker of Ray Train"):
        gl.shard("ray")


def test_the_page_about_ray_runs(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared").mkdir()
    for number in range(3):
        np.save(
            tmp_path / "shared" / f"rows-{number}.npy",
            np.arange(number * 100, number * 100 + 100)[:, None],
        )
    page = codeblocks.ROOT / "docs" / "ray.md"

    defined = codeblocks.run(page, codeblocks.blocks_of(page), {}, tmp_path)

    np.testing.assert_array_equal(defined["shards"].read(range(300))["x"][:, 0], np.arange(300))

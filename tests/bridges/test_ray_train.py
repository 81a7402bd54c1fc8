"""The example with Ray Train: killed, and gone on with on another number of workers; each record is
trained on once.

The checkpoint of model and loader also counts how often each record was trained on, so steps that
are lost with the model do not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # on a machine with other work
ray = pytest.importorskip("ray", reason="make test-ray brings Ray")
pytest.importorskip("torch")
from ray.cluster_utils import Cluster  # noqa: E402

from examples import ray_train  # noqa: E402
from tests.launchers import dying  # noqa: E402

pytestmark = [pytest.mark.timeout(1200), pytest.mark.filterwarnings("ignore")]
NODE = {"num_cpus": 1, "object_store_memory": 150 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start two nodes, of one worker each."""
    nodes = Cluster(initialize_head=True, head_node_args=NODE)
    nodes.add_node(**NODE)
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def train_and_die(config: dict[str, Any]) -> None:
    """Train as the example does; a worker is killed at a batch."""
    dying.die_at(Path(config["rows"]).with_name(config["mark"]), config["rank"], config["batch"])
    ray_train.train(config)


def test_killed_workers_go_on_as_fewer_and_as_more(cluster: Any, tmp_path: Path) -> None:
    def train(num_workers: int, mark: str, rank: int, batch: int, restarts: int = 0) -> Any:
        trainer = ray_train.trainer_of(tmp_path, num_workers, max_failures=restarts)
        trainer.train_loop_per_worker = train_and_die
        trainer.train_loop_config |= {"mark": mark, "rank": rank, "batch": batch}
        return trainer.fit()

    ray_train.write_rows(tmp_path)
    for num_workers, mark in [(2, "first"), (1, "second")]:
        with pytest.raises(ray.train.TrainingFailedError):
            train(num_workers, mark, rank=num_workers - 1, batch=8)
        assert (tmp_path / mark).exists()

    result = train(2, "third", rank=0, batch=9, restarts=1)

    assert (tmp_path / "third").exists()
    assert result.metrics["epoch"] == 2
    assert result.metrics["counts"] == [2]


def train_and_wait(config: dict[str, Any]) -> None:
    """Train as the example does; the first two workers wait until Ray ends them, and the first
    single one, too."""
    num_workers = ray.train.get_context().get_world_size()
    mark = Path(config["rows"]).with_name(f"{num_workers} waited")

    def wait() -> None:
        mark.touch()
        time.sleep(3600)

    if not mark.exists():
        dying.before_batch(8, wait)
    ray_train.train(config)


def test_a_training_whose_node_dies_goes_on_with_one_worker_and_with_two_when_a_node_comes(
    cluster: Any, tmp_path: Path
) -> None:
    ray_train.write_rows(tmp_path)
    (node,) = (node for node in cluster.worker_nodes)

    trainer = ray_train.trainer_of(tmp_path, (1, 2))
    trainer.scaling_config.elastic_resize_monitor_interval_s = 1.0
    trainer.train_loop_per_worker = train_and_wait
    with ThreadPoolExecutor(
        1
    ) as pool:  # nodes come and go in the main thread, where Ray wants them
        training = pool.submit(trainer.fit)
        wait_for(tmp_path / "2 waited", training)
        cluster.remove_node(node, allow_graceful=False)
        wait_for(tmp_path / "1 waited", training)
        cluster.add_node(**NODE)
        result = training.result()

    assert (tmp_path / "1 waited").exists()
    assert result.metrics["epoch"] == 2
    assert result.metrics["counts"] == [2]


def wait_for(path: Path, training: Future[Any]) -> None:
    """Wait until a worker wrote a file; an error of the training is raised."""
    while not path.exists() and not training.done():
        time.sleep(0.05)
    if training.done():
        training.result()

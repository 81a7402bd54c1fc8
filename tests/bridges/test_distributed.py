"""``distribute``: each replica gets its shard of each step, in one process and in several, also
after kills."""

from __future__ import annotations

import gc
import itertools
import json
import os
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")

import gpuload as gl  # noqa: E402
from gpuload.bridges import tensorflow as gltf  # noqa: E402
from gpuload.errors import SpecError  # noqa: E402

ROOT = Path(__file__).parents[2]

# A strategy of two replicas needs two devices, which TensorFlow makes when it is first used. So far
# it is imported.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
PREPARE = """
import json, os, signal, sys
import numpy as np
import tensorflow as tf
import gpuload as gl
from gpuload.bridges import tensorflow as gltf

def loader_of(batch_size=6, **changes):
    source = gl.arrays(x=np.arange(46, dtype=np.float32).reshape(23, 2), y=np.arange(23))
    return gl.Loader(source, batch_size, shuffle=True, seed=5, output=("x", "y"), device="cpu", **changes)

def numbers(strategy, values):
    return [np.asarray(one).tolist() for one in strategy.experimental_local_results(values)]
"""
MIRRORED = (
    PREPARE
    + """
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
"""
)


def run(code: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(folder), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


def test_each_step_is_that_of_the_loader_dealt_out_to_the_replicas():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    source = gl.arrays(x=np.arange(46, dtype=np.float32).reshape(23, 2), y=np.arange(23))
    loader = gl.Loader(source, 6, shuffle=True, seed=5, output=("x", "y"), device="cpu")
    expected = [[batch["y"].tolist() for batch in loader.epoch(number)] for number in range(2)]
    data = gltf.distribute(loader, strategy)
    for _ in range(2):
        next(iter(data))  # looks, as Keras does

    actual = [[[part.numpy().tolist() for part in y.values] for _, y in data] for _ in range(2)]

    assert [[[*item, *second] for item, second in run] for run in actual] == expected
    assert all(abs(len(item) - len(second)) <= 1 for run in actual for item, second in run)
    assert loader.position.epoch == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_keras_under_a_strategy_goes_on_where_it_was_ended(tmp_path):
    code = """
class Ended(Exception):
    pass

class EndAfter(tf.keras.callbacks.Callback):
    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Ended

def train(folder, *callbacks):
    loader = loader_of()
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.Adam(0.1), "mse")
    callbacks = [gltf.ResumeLoader(loader, folder, 1), *callbacks]
    try:
        model.fit(gltf.distribute(loader, strategy), epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    except Ended:
        pass
    return [np.asarray(value) for value in [*model.get_weights(), *model.optimizer.variables]], loader.position

expected, _ = train(sys.argv[1] + "/whole")
for steps in (2, 5):
    train(sys.argv[1] + "/run", EndAfter(steps))
got, position = train(sys.argv[1] + "/run")
print(json.dumps([[np.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(expected, got)], position.epoch]))
"""
    process = run(MIRRORED + code, folder=tmp_path)

    assert process.returncode == 0, process.stderr[-3000:]
    same, epoch = json.loads(process.stdout.splitlines()[-1])
    assert all(same)
    assert epoch == 3


WORKER = (
    PREPARE
    + """
folder, rank, ports, kill = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4] == "kill"
workers = [f"127.0.0.1:{port}" for port in ports]
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
strategy = tf.distribute.MultiWorkerMirroredStrategy()
loader, saved = loader_of(), folder + "/state.json"
if os.path.exists(saved):
    loader.load_state_dict(json.load(open(saved)))
begun = loader.position
with open(f"{folder}/{len(ports)}-{rank}.jsonl", "w") as log:
    for number, (_, y) in enumerate(gltf.distribute(loader, strategy)):
        print(json.dumps([begun.epoch, begun.step + number, *numbers(strategy, y)]), file=log, flush=True)
        if kill and number == 1:
            if rank == 0:
                with open(saved, "w") as file:
                    json.dump(loader.state_dict(begun.epoch, begun.step + 2), file)
            os.kill(os.getpid(), signal.SIGKILL)
os._exit(0)
"""
)


def ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    results = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return results


def run_workers(
    code: str, count: int, folder: Path, *arguments: str
) -> list[subprocess.CompletedProcess[str]]:
    """Run so many workers side by side to their ends."""
    free = json.dumps(ports(count))
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, str(folder), str(rank), free, *arguments],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(count)
    ]  # fmt: skip
    results = []
    try:
        for child in children:
            out, err = child.communicate(timeout=110)
            results.append(subprocess.CompletedProcess(child.args, child.returncode, out, err))
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return results


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_workers_that_were_killed_go_on_as_three_and_every_record_comes_once(tmp_path):
    killed = run_workers(WORKER, 2, tmp_path, "kill")
    gone_on = run_workers(WORKER, 3, tmp_path, "go on")

    assert [item.returncode for item in killed] == [-9, -9], killed[0].stderr[-3000:]
    assert [item.returncode for item in gone_on] == [0, 0, 0], gone_on[0].stderr[-3000:]
    steps: dict[int, list[int]] = {}
    for path in tmp_path.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            epoch, step, records = json.loads(line)
            assert epoch == 0
            steps.setdefault(step, []).extend(records)
    loader = gl.Loader(gl.arrays(y=list(range(23))), 6, shuffle=True, seed=5, device="cpu")
    assert sorted(itertools.chain(*steps.values())) == list(range(23))
    assert [sorted(steps[step]) for step in range(4)] == [
        sorted(batch["y"].tolist()) for batch in loader.epoch(0)
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tensorflow_does_not_shard_a_dataset_of_a_loader_by_itself(tmp_path):
    code = (
        WORKER[: WORKER.index("loader, saved")]
        + """
try:
    next(iter(strategy.experimental_distribute_dataset(gltf.dataset(loader_of()))))
except tf.errors.NotFoundError as error:
    print("Did not find a shardable source" in str(error))
os._exit(0)
"""
    )
    code = code.replace("os._exit", "sys.stdout.flush(); os._exit")

    process = run_workers(code, 2, tmp_path, "go on")

    assert [item.stdout for item in process] == ["True\n", "True\n"], process[0].stderr[-3000:]


def test_a_loader_is_kept_by_its_dataset_and_by_nothing_else():
    loader = loader_of()
    data, weak = gltf.distribute(loader, tf.distribute.get_strategy()), weakref.ref(loader)
    del loader
    assert len(list(data)) == 4

    del data
    gc.collect()

    assert weak() is None


def test_an_iterator_says_that_a_state_was_loaded_and_moves_nothing():
    loader = loader_of(batch_size=1)
    run = iter(gltf.distribute(loader, tf.distribute.get_strategy()))
    next(run)

    loader.load_state_dict(loader.state_dict(2, 4))

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"SpecError: the loader is at epoch 2, step 4"
    ):
        list(run)
    assert (loader.position.epoch, loader.position.step) == (2, 4)


def strategy_of(num_replicas: int) -> Any:
    return SimpleNamespace(
        distribute_datasets_from_function=None, num_replicas_in_sync=num_replicas
    )


def loader_of(batch_size: int = 6, **changes: Any) -> gl.Loader:
    return gl.Loader(gl.arrays(x=list(range(23))), batch_size, device="cpu", **changes)


def test_a_batch_that_cannot_be_divided_is_refused():
    with pytest.raises(SpecError, match=r"batches of 6, for 4 replicas[\s\S]*a multiple of 4"):
        gltf.distribute(loader_of(), strategy_of(4))


def test_a_loader_that_is_a_shard_already_is_refused():
    with pytest.raises(SpecError, match="without num_shards="):
        gltf.distribute(loader_of(num_shards=2), strategy_of(2))


@pytest.mark.parametrize("strategy", [None, "mirrored", 2])
def test_something_else_than_a_strategy_is_refused(strategy):
    with pytest.raises(SpecError, match=r"no strategy of tf\.distribute"):
        gltf.distribute(loader_of(), strategy)

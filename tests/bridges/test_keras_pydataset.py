"""A loader as a PyDataset of Keras: the batches of its own adapters, their order, and a run on JAX
that is resumed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import SpecError
from gpuload.testing.bridges import BridgeContract

pytest.importorskip("keras")

NUM_RECORDS, BATCH = 100, 8
STEPS = 13  # of an epoch


@pytest.fixture
def on_jax(monkeypatch: pytest.MonkeyPatch):
    """Keras says that it computes with JAX; its adapters are the same for all that compute."""
    import keras

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")


class TestPyDataset(BridgeContract):
    """An epoch of Keras is ``len(loader)`` batches, wherever the loader is when it begins."""

    module, package, extra = "gpuload.bridges.keras", "keras", "keras"
    ends_with_error = True

    @pytest.fixture(autouse=True)
    def backend(self, on_jax):
        """Keras computes with JAX."""

    def batches(self, loader):
        from gpuload.bridges.keras import PyDataset

        return Passes(PyDataset(loader))

    def test_behind_a_loop_that_was_left_the_next_one_goes_on(self):
        batches = self.batches(self.loader(shuffle=True, batch_size=2))
        begin = self.labels(itertools.islice(iter(batches), 2))

        rest = self.labels(batches)

        epochs = [
            step for number in range(2) for step in self.labels_of_epoch(number, batch_size=2)
        ]
        assert begin + rest == epochs[: 2 + 5]

    def test_a_loader_goes_on_from_a_state_of_any_step(self):
        loader = self.loader(shuffle=True)
        loader.load_state_dict(loader.state_dict(3, 1))

        steps = self.labels(self.batches(loader))

        assert steps == [*self.labels_of_epoch(3)[1:], self.labels_of_epoch(4)[0]]


class Passes:
    """Passes over a dataset, as Keras makes them."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return (self.dataset[step] for step in range(len(self.dataset)))


def make_loader(**changes) -> gl.Loader:
    x = np.arange(NUM_RECORDS * 3, dtype=np.float32).reshape(NUM_RECORDS, 3)
    source = gl.arrays(x=x, y=np.arange(NUM_RECORDS, dtype=np.int32))
    return gl.Loader(
        source,
        **{
            "batch_size": BATCH,
            "output": ("x", "y"),
            "shuffle": True,
            "seed": 3,
            "device": "cpu",
            **changes,
        },
    )


def adapter(loader: gl.Loader, **options):
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    from gpuload.bridges.keras import PyDataset

    return PyDatasetAdapter(PyDataset(loader), **options)


def targets_of(epoch: int, **changes) -> list[list[int]]:
    return [batch["y"].tolist() for batch in make_loader(**changes).epoch(epoch)]


def one_pass(batches) -> list[list[int]]:
    batches.on_epoch_begin()
    targets = [np.asarray(y).tolist() for _, y in batches.get_numpy_iterator()]
    batches.on_epoch_end()
    return targets


def test_each_epoch_of_keras_is_the_next_of_the_loader(on_jax):
    loader = make_loader()
    batches = adapter(loader)

    assert batches.num_batches == STEPS
    assert [one_pass(batches), one_pass(batches)] == [targets_of(0), targets_of(1)]
    assert (loader.position.epoch, loader.position.step) == (2, 0)


def test_a_run_goes_on_in_mid_epoch_with_epochs_of_full_length(on_jax):
    loader = make_loader()
    loader.load_state_dict(loader.state_dict(0, 5))
    whole = targets_of(0) + targets_of(1)

    assert one_pass(adapter(loader)) == whole[5 : 5 + STEPS]
    assert (loader.position.epoch, loader.position.step) == (1, 5)


def test_epochs_that_steps_per_epoch_cuts_follow_each_other(on_jax):
    batches = adapter(make_loader())
    iterator = iter(batches.get_numpy_iterator())
    targets = []
    for _ in range(2):
        batches.on_epoch_begin()
        targets += [next(iterator)[1].tolist() for _ in range(6)]
        batches.on_epoch_end()

    assert targets == targets_of(0)[:12]


def test_the_state_is_behind_the_batch_that_was_taken_last(on_jax):
    loader = make_loader()
    iterator = iter(adapter(loader).get_numpy_iterator())
    next(iterator)
    next(iterator)

    assert loader.state_dict() == make_loader().state_dict(0, 2)


def test_a_first_batch_that_was_looked_at_comes_again(on_jax):
    from gpuload.bridges.keras import PyDataset

    loader = make_loader()
    dataset = PyDataset(loader)
    first = dataset[0][1].tolist()

    assert [dataset[index][1].tolist() for index in range(STEPS)] == targets_of(0)
    assert first == targets_of(0)[0]
    dataset[0]
    loader.load_state_dict(loader.state_dict(3, 4))
    assert dataset[0][1].tolist() == targets_of(3)[4]


def test_epochs_of_one_batch(on_jax):
    batches = adapter(make_loader(batch_size=NUM_RECORDS))

    assert [one_pass(batches), one_pass(batches)] == [
        targets_of(epoch, batch_size=NUM_RECORDS) for epoch in (0, 1)
    ]


def test_weights_of_samples_and_dicts_of_inputs(on_jax):
    from gpuload.bridges.keras import PyDataset

    dataset = PyDataset(make_loader(output=({"a": "x"}, "y", "y")))

    inputs, y, weights = dataset[0]
    assert (inputs["a"].shape, y.tolist(), weights.tolist()) == (
        (BATCH, 3),
        *[targets_of(0)[0]] * 2,
    )


def test_the_order_of_batches_is_not_drawn_anew(on_jax):
    import random

    random.seed(1)
    batches = adapter(make_loader(), shuffle=True)
    batches.on_epoch_begin()

    with pytest.raises(SpecError, match=r"shuffle=False to fit\(\)"):
        list(batches.get_numpy_iterator())


def test_what_does_not_fit_is_refused(on_jax, monkeypatch: pytest.MonkeyPatch):
    import keras

    from gpuload.bridges.keras import PyDataset

    with pytest.raises(SpecError, match="make one: PyDataset"):
        PyDataset(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="tensors have no text"):
        PyDataset(gl.Loader(gl.arrays(t=np.array(["a", "b"])), 2, device="cpu"))
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    with pytest.raises(SpecError, match=r"bridges\.tensorflow import dataset"):
        PyDataset(make_loader())


TRAINING = """
import json, sys
import numpy as np
import keras
import gpuload as gl
from gpuload.bridges.keras import PyDataset

folder, stop = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
source = gl.arrays(x=rng.random((100, 3)).astype(np.float32), y=rng.random((100, 1)).astype(np.float32))
loader = gl.Loader(source, 8, output=("x", "y"), shuffle=True, seed=3, device="cpu")
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")

class Stop(keras.callbacks.Callback):
    num_steps = 0
    def on_train_batch_end(self, batch, logs=None):
        self.num_steps += 1
        if self.num_steps == stop:
            self.model.save_weights(folder + "/model.weights.h5")
            with open(folder + "/loader.json", "w") as file:
                json.dump(loader.state_dict(), file)
            self.model.stop_training = True
            raise KeyboardInterrupt

if stop < 0:
    model.load_weights(folder + "/model.weights.h5")
    with open(folder + "/loader.json") as file:
        loader.load_state_dict(json.load(file))
try:
    steps = 13 if stop > 0 else 5
    model.fit(PyDataset(loader), epochs=2, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[Stop()])
except KeyboardInterrupt:
    pass
print(json.dumps([np.asarray(w).tolist() for w in model.get_weights()]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_on_jax_that_was_broken_off_ends_with_the_weights_of_one_that_was_not(tmp_path: Path):
    pytest.importorskip("jax")

    def run(stop: int) -> list:
        environment = {**os.environ, "KERAS_BACKEND": "jax"}
        command = [sys.executable, "-c", TRAINING, str(tmp_path), str(stop)]
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    whole = run(1000)
    assert run(16) != whole  # stopped at step 3 of the second epoch
    assert run(-16) == whole  # 2 epochs of 5 steps: the 10 that are left

"""Callbacks of Keras: a run that was ended anywhere goes on where it was; what the loader did is
told."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")

import gpuload as gl  # noqa: E402
from gpuload.bridges import tensorflow as gltf  # noqa: E402
from gpuload.errors import FileError, SpecError, StateError  # noqa: E402
from gpuload.storage import privatefiles  # noqa: E402

ROOT = Path(__file__).parents[2]
X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
SOURCE = gl.arrays(x=X, y=X @ np.float32([1, 2, 3]))


def loader_of(**changes: Any) -> gl.Loader:
    """A loader of 6 steps an epoch."""
    return gl.Loader(
        SOURCE,
        **{
            "batch_size": 4,
            "shuffle": True,
            "seed": 1,
            "output": ("x", "y"),
            "device": "cpu",
            **changes,
        },
    )


def new_model(**options: Any) -> Any:
    tf.keras.utils.set_random_seed(3)
    model = tf.keras.Sequential(
        [tf.keras.Input((3,)), tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)]
    )
    model.compile(tf.keras.optimizers.Adam(0.01), "mse", **options)
    return model


_models: dict[str, tuple[Any, list[np.ndarray]]] = {}


def model_of(**options: Any) -> Any:
    """Return the one model with these options, as new: TensorFlow needs a second to trace the steps
    of each model."""
    if str(options) not in _models:
        model = new_model(**options)
        model.optimizer.build(model.trainable_variables)
        _models[str(options)] = model, [np.array(value) for value in variables(model)]
    model, first = _models[str(options)]
    for variable, value in zip(variables(model), first, strict=True):
        variable.assign(value)
    model._initial_epoch = None  # in which `fit` begins: Keras never forgets it
    tf.keras.utils.set_random_seed(3)
    return model


class Ended(Exception):
    """A run is ended here."""


class EndAfter(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Ends a run after some steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= self.model.steps_per_execution
        if self.left <= 0:
            raise Ended


def plain(loader: gl.Loader) -> Any:
    return gltf.dataset(loader)


def prefetched(loader: gl.Loader) -> Any:
    return gltf.dataset(loader).prefetch(3)


def run(folder: Path | None, epochs: int, *, ends: int | None = None, make: Any = plain, save_freq: Any = 1,
        more: Any = (), make_model: Any = model_of, **options: Any) -> tuple[Any, gl.Loader]:  # fmt: skip
    """Train until ``epochs``, or until the run is ended; returns the weights and the loader."""
    loader, model = loader_of(), make_model(**options)
    callbacks = [*more]
    if folder is not None:
        callbacks.append(gltf.ResumeLoader(loader, folder, save_freq))
    if ends is not None:
        callbacks.append(EndAfter(ends))
    try:
        model.fit(make(loader), epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    except Ended:
        assert ends is not None
    return weights(model), loader


def variables(model: Any) -> list[Any]:
    return [*model.weights, *model.optimizer.variables]


def weights(model: Any) -> list[np.ndarray]:
    return [np.array(value) for value in variables(model)]


def check_equal(item: list[np.ndarray], second: list[np.ndarray]) -> None:
    for left, right in zip(item, second, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.fixture(scope="module")
def whole() -> Any:
    """The weights that come of three epochs that nobody ends."""
    return run(None, 3)[0]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("ends", "make", "make_model"),
    [(2, prefetched, new_model), (6, plain, model_of), (11, plain, model_of)],
)
def test_a_run_that_was_ended_goes_on_and_its_weights_are_those_of_one_that_was_not(
    tmp_path, whole, ends, make, make_model
):
    run(tmp_path, 3, ends=ends, make=make, make_model=make_model)

    training, loader = run(tmp_path, 3, make=make, make_model=make_model)

    check_equal(training, whole)
    assert (loader.position.epoch, loader.position.step) == (3, 0)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_run_may_be_ended_many_times(tmp_path, whole):
    for _ in range(4):
        run(tmp_path, 3, ends=4)

    check_equal(run(tmp_path, 3)[0], whole)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_with_several_steps_an_execution_the_optimizer_counts(tmp_path):
    expected = run(None, 3, steps_per_execution=2)[0]
    run(tmp_path, 3, ends=8, steps_per_execution=2)

    check_equal(run(tmp_path, 3, steps_per_execution=2)[0], expected)


def test_saved_by_epochs_a_run_goes_on_at_the_end_of_the_last_one(tmp_path, whole):
    run(tmp_path, 3, ends=11, save_freq="epoch")
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-000001-step-000000000"]

    check_equal(run(tmp_path, 3, save_freq="epoch")[0], whole)


def test_a_run_that_is_complete_trains_nothing_more(tmp_path, whole):
    run(tmp_path, 3)

    training, loader = run(tmp_path, 3)

    check_equal(training, whole)
    assert loader.position.epoch == 3


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_behind_backup_and_restore_it_has_the_last_word(tmp_path, whole):
    def backup() -> Any:
        return tf.keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)

    run(tmp_path / "run", 3, ends=8, more=[backup()])

    check_equal(run(tmp_path / "run", 3, more=[backup()])[0], whole)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_before_another_callback_that_restores_weights_it_is_an_error(tmp_path):
    def callbacks(loader: gl.Loader) -> list[Any]:
        backup = tf.keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        return [gltf.ResumeLoader(loader, tmp_path / "run", 1), backup]

    loader, model = loader_of(), model_of()
    with pytest.raises(Ended):
        model.fit(
            plain(loader),
            epochs=3,
            shuffle=False,
            verbose=0,
            callbacks=[*callbacks(loader), EndAfter(8)],
        )

    loader, model = loader_of(), model_of()
    with pytest.raises(SpecError, match="put ResumeLoader behind it"):
        model.fit(plain(loader), epochs=3, shuffle=False, verbose=0, callbacks=callbacks(loader))


def test_a_save_that_was_broken_off_is_not_taken_up(tmp_path, whole, monkeypatch):
    run(tmp_path, 3, ends=8)
    draft = tmp_path / "draft-1"
    draft.mkdir()
    (draft / "model.weights.h5").write_bytes(b"half")

    with pytest.warns(UserWarning, match="ran out of data"):
        training, _ = run(tmp_path, 3)

    check_equal(training, whole)


def test_drafts_of_processes_that_are_gone_go_and_all_else_stays(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(60)
    here = privatefiles.machine()
    drafts = {
        "gone": tmp_path / f"draft-{here}-{gone.pid}",
        "this process": tmp_path / f"draft-{here}-{os.getpid()}",
        "old": tmp_path / "draft-00000000-7",
        "alive": tmp_path / f"draft-{here}-{os.getppid()}",
        "another machine": tmp_path / "draft-00000000-8",
        "no draft": tmp_path / f"draft-{here}-{gone.pid}-of-my-thesis",
    }
    for draft in drafts.values():
        draft.mkdir()
        (draft / "model.weights.h5").write_bytes(b"half")
    for path in (drafts["old"], drafts["old"] / "model.weights.h5"):
        os.utime(path, (0, 0))
    part = tmp_path / "draft-1"
    part.mkdir()
    (part / "thesis.txt").write_text("all of it")
    os.utime(part / "thesis.txt", (0, 0))
    os.utime(part, (0, 0))
    backup = tmp_path / "epoch-000007-step-000000000"
    backup.mkdir()
    (backup / "notes.txt").write_text("mine")

    run(tmp_path, 1)

    left = {name for name, draft in drafts.items() if draft.exists()}
    assert left == {"alive", "another machine", "no draft"}
    assert (part / "thesis.txt").read_text() == "all of it"
    assert (backup / "notes.txt").read_text() == "mine"


def test_a_folder_of_others_with_the_name_of_a_save_is_refused_and_stays(tmp_path):
    (tmp_path / "epoch-000001-step-000000000").mkdir()
    (tmp_path / "epoch-000001-step-000000000" / "thesis.txt").write_text("all of it")

    with pytest.raises(FileError, match="epoch-000001-step-000000000 is there already"):
        run(tmp_path, 1, save_freq="epoch")

    assert (tmp_path / "epoch-000001-step-000000000" / "thesis.txt").read_text() == "all of it"


def test_a_state_is_written_beside_the_drafts_of_others(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(60)
    left = tmp_path / f"state.json.{privatefiles.machine()}-{gone.pid}.tmp"
    left.write_text("half")
    link = tmp_path / f"state.json.{os.getpid()}.tmp"
    link.symlink_to(tmp_path / "victim")
    loader, model = loader_of(), model_of()

    model.fit(
        plain(loader),
        epochs=1,
        shuffle=False,
        verbose=0,
        callbacks=[gltf.checkpoint(loader, tmp_path / "state.json")],
    )

    assert sorted(os.listdir(tmp_path)) == ["state.json", link.name]


@pytest.mark.slow
def test_a_process_that_is_killed_at_any_moment_goes_on_exactly(tmp_path, whole):
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.bridges.test_keras import run
import numpy as np
print("begun", flush=True)
trained, loader = run(Path(sys.argv[1]) / "run", 3)
np.savez(Path(sys.argv[1]) / "weights.npz", *trained)
"""
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)]
    for seconds in (0.3, 1.1):
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as child:
            assert child.stdout is not None
            child.stdout.readline()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
            child.kill()
    process = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )

    assert process.returncode == 0, process.stderr[-3000:]
    with np.load(tmp_path / "weights.npz", allow_pickle=False) as state:
        check_equal([*state.values()], whole)


def test_a_state_of_other_data_is_refused(tmp_path):
    run(tmp_path, 1)
    loader = gl.Loader(gl.arrays(x=X + 1, y=X[:, 0]), 4, output=("x", "y"), device="cpu")

    with pytest.raises(StateError):
        model_of().fit(
            plain(loader), shuffle=False, verbose=0, callbacks=[gltf.ResumeLoader(loader, tmp_path)]
        )


def test_a_damaged_state_is_refused_by_name(tmp_path):
    run(tmp_path, 1)
    (state,) = tmp_path.glob("*/state.json")
    state.write_text("{")

    with pytest.raises(StateError, match=r"state\.json[\s\S]*remove the folder"):
        run(tmp_path, 2)


@pytest.mark.parametrize("save_freq", [0, -1, 1.5, True, "step", None])
def test_a_wrong_save_freq_is_refused(tmp_path, save_freq):
    with pytest.raises(SpecError, match="'epoch' or a number of steps"):
        gltf.ResumeLoader(loader_of(), tmp_path, save_freq)


# --- LoaderStats


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what was written for TensorBoard, by tag."""
    results: dict[str, list[tuple[int, float]]] = {}
    for path in folder.iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                results.setdefault(value.tag, []).append(
                    (event.step, float(tf.make_ndarray(value.tensor)))
                )
    return results


def test_the_rates_of_each_epoch_are_written_for_tensorboard(tmp_path):
    loader, model = loader_of(), model_of()
    stats = gltf.LoaderStats(loader, tmp_path)

    model.fit(plain(loader), epochs=2, shuffle=False, verbose=0, callbacks=[stats])

    content = scalars(tmp_path)
    shares = {name: values for name, values in content.items() if name.startswith("loader/share/")}
    of_stages = {name for name in content if name.count("/") == 2}
    assert set(content) - of_stages == {"loader/records_per_s", "loader/wait", "loader/fill"}
    assert {
        "loader/seconds/read",
        "loader/fill/read",
        "loader/bytes/read",
        "loader/bytes_per_s/read",
    } <= of_stages
    assert sum(values[1][1] for values in shares.values()) == pytest.approx(1)
    assert [step for step, _ in content["loader/records_per_s"]] == [0, 1]
    assert content["loader/records_per_s"][1][1] == pytest.approx(stats.latest["records_per_s"])
    assert 0 <= stats.latest["wait"] <= 1
    assert 0 <= stats.latest["fill"] <= 1


def test_a_training_that_waits_for_its_input_is_told_so_in_one_sentence(caplog):
    import threading
    import time

    class Pace(tf.keras.callbacks.Callback):  # type: ignore[misc]
        """How long the latest step took, without its waiting; not the first ones, which Keras
        compiles."""

        step_s = 0.0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begin = time.perf_counter() - loader.stats()["wait_s"]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch > 1:
                self.step_s = time.perf_counter() - loader.stats()["wait_s"] - self.begin

    pace, lock = Pace(), threading.Lock()

    def slow(x: Any) -> Any:
        with lock:  # as with Python's lock of the interpreter
            threading.Event().wait(
                max(0.01, 2 * pace.step_s)
            )  # a batch takes longer than a step on any machine
        return x

    loader, model = loader_of(ops=[gl.ops.Python(slow, on="x")], batch_size=2), model_of()

    with caplog.at_level(logging.WARNING, "gpuload"):
        model.fit(
            plain(loader),
            epochs=2,
            shuffle=False,
            verbose=0,
            callbacks=[gltf.LoaderStats(loader), pace],
        )

    *_, messages = [
        record.getMessage() for record in caplog.records if "bottleneck" in record.getMessage()
    ]
    assert "epoch 1" in messages  # in the first one Keras compiles, while the loader goes ahead
    assert "Python runs one thread at a time" in messages
    assert "batch=True" in messages
    assert "more cores (" not in messages


# --- tf.train.Checkpoint


def test_a_checkpoint_of_tensorflow_takes_the_loader_along(tmp_path):
    loader, counts = loader_of(), tf.Variable(0)
    state = tf.train.Checkpoint(counted=counts, loader=gltf.checkpointable(loader))
    batches = iter(gltf.tensors(loader))
    next(batches), next(batches)
    counts.assign(2)
    path = state.save(str(tmp_path / "run"))
    expected = [batch.records.tolist() for batch in batches]

    second, again = loader_of(), tf.Variable(0)
    tf.train.Checkpoint(counted=again, loader=gltf.checkpointable(second)).restore(
        path
    ).assert_consumed()

    assert again.numpy() == 2
    assert [batch.records.tolist() for batch in gltf.tensors(second)] == expected


def test_a_checkpoint_may_save_a_state_that_the_caller_counts(tmp_path):
    loader = loader_of()
    list(gltf.tensors(loader))
    part = gltf.checkpointable(loader, state=lambda: loader.state_dict(0, 3))
    path = tf.train.Checkpoint(loader=part).save(str(tmp_path / "run"))

    second = loader_of()
    tf.train.Checkpoint(loader=gltf.checkpointable(second)).restore(path)

    assert (second.position.epoch, second.position.step) == (0, 3)


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    path = tf.train.Checkpoint(loader=gltf.checkpointable(loader_of())).save(str(tmp_path / "run"))

    with pytest.raises(StateError):
        tf.train.Checkpoint(loader=gltf.checkpointable(loader_of(seed=2))).restore(path)
    with pytest.raises(StateError, match="no JSON"):
        gltf.checkpointable(loader_of()).deserialize("x")


def test_a_state_is_plain_json(tmp_path):
    run(tmp_path, 1, ends=3)
    (state,) = tmp_path.glob("*/state.json")

    saved_state = json.loads(state.read_text())

    assert saved_state["epoch"] == 0
    assert (saved_state["loader"]["epoch"], saved_state["loader"]["step"]) == (0, 3)


ON_A_BACKEND = """
import os, sys
import keras
import numpy as np
import gpuload as gl
from gpuload.bridges import tensorflow as gltf

backend, folder, per_execution = sys.argv[1], sys.argv[2], int(sys.argv[3])
assert keras.backend.backend() == backend
x = np.arange(60, dtype=np.float32)[:, None] / 60


def run(save, stop_at=None):
    keras.utils.set_random_seed(3)
    source = gl.arrays(x=x, y=2 * x + 1)
    loader = gl.Loader(source, batch_size=4, output=("x", "y"), shuffle=True, device="cpu")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", steps_per_execution=per_execution)

    class Stop(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = 0

        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1
            if self.seen == stop_at:
                raise KeyboardInterrupt

    callbacks = [gltf.ResumeLoader(loader, save, save_freq=3), gltf.LoaderStats(loader), Stop()]
    try:
        model.fit(gltf.dataset(loader), epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    except KeyboardInterrupt:
        pass
    evaluated = model.evaluate(gltf.dataset(loader.replace(shuffle=False)), verbose=0) if stop_at is None else None
    return [weight.tolist() for weight in model.get_weights()] if stop_at is None else None, evaluated


whole = run(os.path.join(folder, "whole"))
run(os.path.join(folder, "parts"), stop_at=22 // per_execution)
assert run(os.path.join(folder, "parts")) == whole
print("same")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "per_execution"), [("jax", 1), ("jax", 3), ("torch", 1)])
def test_a_run_on_another_backend_goes_on_where_it_was_left(
    tmp_path: Path, backend: str, per_execution: int
) -> None:
    pytest.importorskip(backend)
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        ON_A_BACKEND,
        backend,
        str(tmp_path),
        str(per_execution),
    ]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    process = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "same"


def test_padding_that_nothing_marks_is_told_of(caplog):
    source = gl.arrays(x=np.arange(10.0), y=np.arange(10))
    padded = gl.Loader(source, 4, output=("x", "y"), last_batch="pad", device="cpu")

    gltf.dataset(padded, weights=True)
    gltf.dataset(padded.replace(last_batch="partial"))
    assert "fill batches" not in caplog.text
    gltf.dataset(padded)
    gltf.distribute(padded, tf.distribute.get_strategy())
    assert caplog.text.count("12 rows an epoch for 10 records") == 2


def test_rows_in_place_of_damaged_records_that_nothing_marks_are_told_of(caplog):
    source = gl.arrays(x=np.arange(10.0), y=np.arange(10))
    skipping = gl.Loader(source, 5, output=("x", "y"), on_error="skip", device="cpu")

    gltf.dataset(skipping, weights=True)
    gltf.dataset(skipping.replace(on_error="replace"))
    gltf.tensors(skipping)
    assert 'of on_error="skip"' not in caplog.text
    gltf.dataset(skipping)
    gltf.distribute(skipping, tf.distribute.get_strategy())
    assert caplog.text.count('of on_error="skip"') == 2

"""Callbacks of Keras for ``model.fit(dataset(loader))``; on all of its backends.

Counting   Keras looks at batches before it trains, and the stages between (``prefetch``, a
           strategy) read ahead. So the callbacks count the steps that were trained, and the state
           that they save is the one behind the last. With ``steps_per_execution`` above 1 the
           model's optimizer counts.
Together   `ResumeLoader` writes the weights, those of the optimizer too, and the state into a new
           folder, which gets its name when it is complete. So weights and state of a folder belong
           together, whenever the process ended.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import signalsafe
from gpuload.bridges import common
from gpuload.bridges.tensorflow.framework import tf
from gpuload.errors import FileError, SpecError, StateError
from gpuload.order import check_count
from gpuload.spec import is_whole
from gpuload.storage import privatefiles

if TYPE_CHECKING:
    from gpuload.loader import Loader
    from gpuload.order import Position

keras: Any = signalsafe.import_package("keras")

WEIGHTS, STATE = "model.weights.h5", "state.json"
SAVE, DRAFT = re.compile(r"epoch-\d{6,}-step-\d{9,}"), re.compile(r"draft-(?:([0-9a-f]{8})-)?(\d+)")
SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class="DATA_CLASS_SCALAR",
)
BOTTLENECK = 0.1  # of the time that training waits: less is hardly worth a change
STAGE_SCALARS = ("seconds", "share", "fill", "bytes", "bytes_per_s")  # of `gpuload.stats.Stage`
log = logging.getLogger("gpuload")


class _Counting(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the steps of a loader that were trained."""

    def __init__(self, loader: Loader, save_freq: object) -> None:
        super().__init__()
        common.check_loader(type(self).__name__, loader, arguments=', "run"')
        by_steps = is_whole(save_freq, least=1)
        if not by_steps and not (isinstance(save_freq, str) and save_freq == "epoch"):
            raise SpecError(
                f"save_freq = {save_freq!r}"[:200],
                cause="it is 'epoch' or a number of steps",
                remedy="pass 1000, say",
            )
        self.loader = loader
        self._every: int | None = None
        if by_steps:
            self._every = int(save_freq)  # type: ignore[call-overload]
        self._start, self._epoch_begin = loader.position, 0
        self._num_trained = self._num_saved = 0
        self._epoch = self._first = 0
        self._is_over = False  # the epoch of Keras before ``_epoch``

    def state(self) -> dict[str, Any]:
        """Return the loader's state behind the last step that was trained.

        Raises:
            SpecError: more steps were trained than the loader has delivered.
        """
        loader = self.loader
        position, last_position = (
            loader.port.after(self._start, self._num_trained),
            loader.port.delivery_position,
        )
        if (last_position.epoch, last_position.step) < (position.epoch, position.step):
            raise SpecError(
                f"{self._num_trained} steps were trained since epoch {self._start.epoch}, step "
                f"{self._start.step}, but the loader has delivered only up to epoch "
                f"{last_position.epoch}, step {last_position.step}",
                cause="the dataset was cut or put together anew (take, batch ...), or is of "
                "another loader",
                remedy="fit on dataset(loader) as it is, prefetched or repeated, with "
                "steps_per_epoch= for less",
            )
        return loader.port.state_at(position)

    def save(self) -> None:
        """Write the state, and the weights where they belong to it."""
        raise NotImplementedError

    def on_train_begin(self, logs: Any = None) -> None:
        """Count from here on."""
        self._start, self._epoch_begin, self._num_trained, self._num_saved = (
            self.loader.position,
            0,
            0,
            0,
        )
        self._first = self._num_updates()
        # On JAX, to ask for ``self.model`` brings all weights into it, which is more work than a
        # short step. There the number of steps that are executed together does not change.
        self._single = keras.backend.backend() == "jax" and self._steps_per_call() == 1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note how much was trained before this epoch of Keras."""
        self._epoch_begin, self._epoch, self._is_over = self._num_trained, epoch, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count, and save if it is time."""
        single = self._single or self._steps_per_call() == 1
        if single:
            self._num_trained = self._epoch_begin + batch + 1
        else:
            self._num_trained = self._num_updates() - self._first
        if self._every is not None and self._num_trained - self._num_saved >= self._every:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save."""
        self._correct()
        self._epoch, self._is_over = epoch + 1, True
        self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Take the loader behind the last step that was trained, wherever stages that read ahead
        have taken it."""
        if self._num_trained and self.state() != self.loader.port.state_at(self.loader.position):
            self.loader.port.go_to(self.loader.port.after(self._start, self._num_trained))

    def _correct(self) -> None:
        """Take back the update that Keras 3.15 counts too much where the data end before the steps
        that it expects.

        It reads the next batch and counts the update side by side; the read fails then, and only
        the count is done.
        """
        if self._num_updates() - self._first > self._num_trained:
            self.model.optimizer.iterations.assign(self._first + self._num_trained)

    def _save(self) -> None:
        self.save()
        self._num_saved = self._num_trained

    def _steps_per_call(self) -> int:
        return int(getattr(self.model, "steps_per_execution", 1))

    def _num_updates(self) -> int:
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is None:
            return 0
        value = optimizer.iterations.value
        return int(
            value.numpy() if keras.backend.backend() == "tensorflow" else value
        )  # it may be a MirroredVariable


class Checkpoint(_Counting):
    """The callback of `checkpoint`."""

    def __init__(
        self, loader: Loader, path: str | os.PathLike[str], every_steps: int | None = None
    ) -> None:
        super().__init__(loader, "epoch" if every_steps is None else every_steps)
        self._path = _checked_path(path)

    def save(self) -> None:
        """Write the state; a reader sees the old one or the new one."""
        text, home = json.dumps(self.state()), Path(self._path).parent
        name = re.compile(re.escape(Path(self._path).name) + r"\.([0-9a-f]{8})-(\d+)\.tmp")
        for old in home.iterdir():
            owner = name.fullmatch(old.name)
            if (
                owner
                and privatefiles.is_left(old, *owner.groups())
                and old.is_file()
                and not old.is_symlink()
            ):
                old.unlink(missing_ok=True)
        draft = f"{self._path}.{privatefiles.machine()}-{os.getpid()}.tmp"
        # "x": a file or link that has this name already is not written to.
        with open(draft, "x", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(draft, self._path)


def checkpoint(
    loader: Loader, path: str | os.PathLike[str], *, every_steps: int | None = None
) -> Checkpoint:
    """Return a Keras callback that saves the loader's state after the last step that was trained.

    It counts the steps that ``model.fit`` trained on ``dataset(loader)``, however far that was read
    ahead, and writes the state as JSON at the end of each epoch of Keras, whole or not at all. To
    go on: ``loader.load_state_dict(json. load(open(path)))`` before ``fit``. ``callback.state()``
    is the state at any moment, to be saved beside the weights. `ResumeLoader` does all of this
    together with the model.

    Args:
        loader: that the dataset was made of; the dataset may be prefetched, repeated and
            distributed, not cut (``take``) nor put together anew (``batch``), which is noticed as
            far as it can be.
        path: of the JSON.
        every_steps: save after so many steps, too.
    """
    common.check_loader("checkpoint", loader, arguments=', "state.json"')
    return Checkpoint(
        loader, path, None if every_steps is None else check_count("every_steps", every_steps)
    )


def _checked_path(path: object) -> str:
    """Return the path after a check that a file can be written there: an error after an epoch would
    come too late."""
    if (
        not isinstance(path, (str, os.PathLike))
        or not isinstance(os.fspath(path), str)
        or not os.fspath(path)
    ):
        raise SpecError(
            f"path = {path!r}"[:200], cause="it is no path", remedy="pass 'state.json', say"
        )
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir():
        raise SpecError(
            f"path = {os.fspath(path)!r}",
            cause="it is a folder" if file.is_dir() else f"there is no folder {file.parent}",
            remedy="name a file in a folder that is there",
        )
    return os.fspath(file)


class ResumeLoader(_Counting):
    """A Keras callback: a run that was ended at any moment goes on where it was, model and loader
    together.

        model.fit(dataset(loader), epochs=20, callbacks=[ResumeLoader(loader, "run")])

    When training begins, it takes up the content of the folder, if there is any: the weights, the
    optimizer, the loader's position, and the epoch of Keras (``initial_epoch``). A run that was
    ended in mid-epoch trains the steps that were left of that epoch, each record once.

    Args:
        loader: that the dataset was made of; the dataset may be prefetched, repeated and
            distributed. With ``steps_per_epoch=`` the records go on exactly, too, but the first
            epoch of Keras has its full number of steps.
        folder: is made if it is not there. It holds the last save alone.
        save_freq: ``"epoch"``, or also after so many steps.

    It stands behind other callbacks that restore weights (``BackupAndRestore``), which is checked.

    Raises:
        SpecError: an argument is wrong; the model is not built; other weights were restored after
            these.
        StateError: the state in the folder is of other data, ops, shuffle or seed.
    """

    def __init__(
        self, loader: Loader, folder: str | os.PathLike[str], save_freq: str | int = "epoch"
    ) -> None:
        super().__init__(loader, save_freq)
        if (
            not isinstance(folder, (str, os.PathLike))
            or not isinstance(os.fspath(folder), str)
            or not os.fspath(folder)
        ):
            raise SpecError(
                f"folder = {folder!r}"[:200], cause="it is no path", remedy="pass 'run', say"
            )
        if Path(folder).exists() and not Path(folder).is_dir():
            raise SpecError(
                f"folder = {os.fspath(folder)!r}", cause="it is a file", remedy="name a folder"
            )
        self._folder, self._num_restored = Path(folder), -1

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the state in the folder, if there is one, and count from there on."""
        folder = self._latest()
        if folder is not None:
            self._restore(folder)
        super().on_train_begin(logs)
        if folder is None:
            self._num_restored = -1
        else:
            self._num_restored = self._first

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remember the number of trained steps, and check that the weights are still those that
        were restored."""
        if self._num_restored not in (-1, self._num_updates()):
            raise SpecError(
                f"the model has done {self._num_updates()} updates; those that ResumeLoader "
                f"restored had done {self._num_restored}",
                cause="another callback restored other weights after it",
                remedy="put ResumeLoader behind it in callbacks=[...]",
            )
        self._num_restored = -1
        super().on_epoch_begin(epoch, logs)

    def save(self) -> None:
        """Write model and state into a new folder, and remove the old one."""
        position = self.loader.port.after(self._start, self._num_trained)
        text = json.dumps({"epoch": self._next_epoch(position), "loader": self.state()})
        name = f"epoch-{position.epoch:06}-step-{position.step:09}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_drafts()
        draft = self._folder / f"draft-{privatefiles.machine()}-{os.getpid()}"
        for path in (draft, self._folder / name):
            if os.path.lexists(path) and not _is_save(path):
                raise FileError(
                    f"{path} is there already",
                    cause="ResumeLoader did not write it, and nothing of others is replaced",
                    remedy="move it away, or name another folder",
                )
        draft.mkdir()
        self.model.save_weights(str(draft / WEIGHTS))
        (draft / STATE).write_text(text + "\n", encoding="utf-8")
        for draft_file in (draft / WEIGHTS, draft / STATE):
            # Before the rename: after a crash a folder of this name has whole files, or there is
            # none.
            with open(draft_file, "rb+") as file:
                os.fsync(file.fileno())
        if not self._is_chief():  # all workers take part in saving, and one keeps the files
            shutil.rmtree(draft)
            return
        # Removed last: a process that ends anywhere before leaves the old save or the new one.
        olds = [old for old in self._saves() if old.name != name]
        if (self._folder / name).exists():  # nothing was trained since
            shutil.rmtree(draft)
        else:
            os.replace(draft, self._folder / name)
        for old in olds:
            shutil.rmtree(old, ignore_errors=True)

    def _next_epoch(self, position: Position) -> int:
        """Return the epoch of Keras in which the next step is: this one, unless the last step
        completed it."""
        if self._is_over:
            return self._epoch
        steps = (self.params or {}).get("steps")
        num_steps = self._num_trained - self._epoch_begin
        is_loader_epoch = position.step == 0 and steps in (None, len(self.loader))
        is_complete = num_steps > 0 and (num_steps == steps or is_loader_epoch)
        return self._epoch + int(is_complete)

    def _saves(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        names = self._folder.glob("epoch-*-step-*")
        return sorted(save for save in names if SAVE.fullmatch(save.name) and _is_save(save))

    def _remove_drafts(self) -> None:
        """Remove the drafts of processes that were killed while they saved."""
        for draft in self._folder.glob("draft-*"):
            owner = DRAFT.fullmatch(draft.name)
            if owner and _is_save(draft) and privatefiles.is_left(draft, *owner.groups()):
                shutil.rmtree(draft, ignore_errors=True)

    def _latest(self) -> Path | None:
        saves = self._saves()
        if saves:
            return saves[-1]
        return None

    def _restore(self, folder: Path) -> None:
        model = self.model
        if not model.built:
            raise SpecError(
                f"ResumeLoader with a model that is not built, and {folder} to restore",
                cause="Keras has no weights to load into yet",
                remedy="give the model its input shape, keras.Input(shape=...), or call it on a "
                "batch before fit",
            )
        try:
            content = json.loads((folder / STATE).read_text(encoding="utf-8"))
            epoch, state = int(content["epoch"]), content["loader"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{folder / STATE}: {error}",
                cause="ResumeLoader wrote something else",
                remedy="remove the folder to begin anew",
            ) from None
        # First, as it refuses a state of other data: the weights of another training must not be
        # loaded either.
        self.loader.load_state_dict(state)
        # Keras 3 loads into variables that are there; an optimizer has none before it is built.
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        model.load_weights(str(folder / WEIGHTS))
        model._initial_epoch = epoch  # as BackupAndRestore of Keras 3 does; fit() begins there
        log.info("training goes on from %s: epoch %d of Keras, %r", folder, epoch, self.loader)

    def _is_chief(self) -> bool:
        strategy = getattr(self.model, "distribute_strategy", None)
        return strategy is None or bool(strategy.extended.should_checkpoint)


def _is_save(folder: Path) -> bool:
    """Return True for a folder, and no link to one, that holds nothing but files of
    `ResumeLoader`."""
    try:
        return not folder.is_symlink() and {entry.name for entry in folder.iterdir()} <= {
            WEIGHTS,
            STATE,
        }
    except OSError:  # a file, or another process has just renamed it
        return False


class LoaderStats(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback: how fast the loader was in each epoch, and whether the training waited for
    it.

    It writes to TensorBoard, by epoch of Keras: ``loader/records_per_s``, ``loader/wait`` (the
    share of the time that the training waited for the loader) and ``loader/fill`` (the share of the
    steps made ahead that were ready when batches were asked for). For each stage of the loader's
    threads it writes ``loader/seconds/read``, ``loader/share/read`` (in the work of all stages),
    ``loader/fill/read`` (of the queue behind the stage), ``loader/bytes/read`` and
    ``loader/bytes_per_s/read`` (of one thread); see ``gpuload.stats.Stage``. At the end of each
    epoch one sentence in the log (INFO) names the bottleneck, and the change that helps most. Where
    the training waited for a tenth of the epoch or more, it is a warning.

    Args:
        loader: that the dataset was made of.
        log_dir: for TensorBoard; None writes the log alone.
    """

    def __init__(self, loader: Loader, log_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        common.check_loader("LoaderStats", loader)
        self.loader = loader
        if log_dir is None:
            self._writer = None
        else:
            self._writer = tf.summary.create_file_writer(os.fspath(log_dir))
        self.latest: dict[str, float] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin to measure."""
        self._start_s, self._before = time.perf_counter(), self.loader.stats()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the measurements."""
        seconds, spent = time.perf_counter() - self._start_s, self.loader.stats() - self._before
        self.latest = {
            "records_per_s": spent["records"] / seconds,
            "wait": spent["wait_s"] / seconds,
            "fill": spent["fill"],
            **{
                f"{name}/{stage.name}": getattr(stage, name)
                for stage in spent.stages
                for name in STAGE_SCALARS
            },
        }
        if self._writer is not None:
            with self._writer.as_default():
                for (
                    name,
                    value,
                ) in self.latest.items():  # tf.summary.scalar would need TensorBoard installed
                    tf.summary.write(
                        f"loader/{name}", np.float32(value), step=epoch, metadata=SCALAR
                    )
            self._writer.flush()
        if self.latest["wait"] >= BOTTLENECK:
            text = "input is the bottleneck: in epoch %d the training waited %.0f %% of the time for the loader. %s"
            log.warning(text, epoch, 100 * self.latest["wait"], spent.bottleneck())
        else:
            log.info("epoch %d: %s", epoch, spent.bottleneck())

    def on_train_end(self, logs: Any = None) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

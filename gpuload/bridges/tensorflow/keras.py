"""Callbacks of Keras for ``model.fit(dataset(loader))``."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from gpuload.bridges import common
from gpuload.bridges.tensorflow.framework import tf
from gpuload.errors import SpecError

if TYPE_CHECKING:
    from gpuload.loader import Loader


def checkpoint(loader: Loader, path: str | os.PathLike[str], *, every_steps: int | None = None) -> Any:
    """Return a Keras callback that saves the loader's state after the last step that was trained.

    It counts the steps that ``model.fit`` trained on ``dataset(loader)``, however far that was read ahead, and writes
    the state as JSON at the end of each epoch of Keras, whole or not at all. To go on: ``loader.load_state_dict(json.
    load(open(path)))`` before ``fit``. ``callback.state()`` is the state at any moment, to be saved beside the weights.

    With ``steps_per_execution`` above 1, steps are counted by the model's optimizer.

    Args:
        loader: what the dataset was made of; the dataset may be prefetched, repeated and distributed, not cut
            (``take``) nor put together anew (``batch``), which is noticed as far as it can be.
        path: of the JSON.
        every_steps: save after so many steps, too.
    """
    common.check_loader("checkpoint", loader)
    if every_steps is not None and (
        isinstance(every_steps, bool) or not isinstance(every_steps, int) or every_steps < 1
    ):
        raise SpecError(f"every_steps = {every_steps!r}", cause="it is a number of steps", remedy="pass 1000, say")

    class Checkpoint(tf.keras.callbacks.Callback):  # type: ignore[misc]
        """Counts what was trained, and saves the state."""

        def __init__(self) -> None:
            super().__init__()
            self._start, self._before, self._trained, self._saved = loader.position, 0, 0, 0

        def state(self) -> dict[str, Any]:
            """Return the state behind the last step that was trained."""
            position, delivered = loader.after(self._start, self._trained), loader.delivered()
            if (delivered.epoch, delivered.step) < (position.epoch, position.step):
                raise SpecError(
                    f"{self._trained} steps were trained since epoch {self._start.epoch}, step {self._start.step}, but "
                    f"the loader has delivered only up to epoch {delivered.epoch}, step {delivered.step}",
                    cause="the dataset was cut or put together anew (take, batch ...), or is of another loader",
                    remedy="fit on dataset(loader) as it is, prefetched or repeated, with steps_per_epoch= for less",
                )
            return loader.state_at(position)

        def save(self) -> None:
            """Write the state; a reader sees the old one or the new one."""
            text, draft = json.dumps(self.state()), f"{os.fspath(path)}.{os.getpid()}.tmp"
            with open(draft, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            os.replace(draft, path)
            self._saved = self._trained

        def on_train_begin(self, logs: Any = None) -> None:
            self._start, self._trained, self._saved = loader.position, 0, 0
            self._first = self._num_updates()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._before = self._trained

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            single = getattr(self.model, "steps_per_execution", 1) == 1
            self._trained = self._before + batch + 1 if single else self._num_updates() - self._first
            if every_steps is not None and self._trained - self._saved >= every_steps:
                self.save()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.save()

        def _num_updates(self) -> int:
            optimizer = getattr(self.model, "optimizer", None)
            return 0 if optimizer is None else int(optimizer.iterations.value.numpy())

    return Checkpoint()

"""checkpointable: a loader's position in a ``tf.train.Checkpoint``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuload.bridges import common
from gpuload.bridges.tensorflow.framework import tf
from gpuload.errors import StateError

if TYPE_CHECKING:
    from gpuload.loader import Loader


class Checkpointable(tf.train.experimental.PythonState):  # type: ignore[misc]
    """The trackable object of `checkpointable`."""

    def __init__(self, loader: Loader, state: Callable[[], dict[str, Any]]) -> None:
        self.loader, self._state = loader, state

    def serialize(self) -> str:
        """Return the state as TensorFlow saves it."""
        return json.dumps(self._state())

    def deserialize(self, string_value: str | bytes) -> None:
        """Load a saved state into the loader."""
        try:
            content = json.loads(string_value)
        except ValueError as error:
            raise StateError(
                f"the loader's part of the checkpoint is no JSON: {error}",
                cause="something else was saved under this name",
                remedy="restore a checkpoint that was saved with loader=checkpointable(loader)",
            ) from None
        self.loader.load_state_dict(content)


def checkpointable(
    loader: Loader, *, state: Callable[[], dict[str, Any]] | None = None
) -> Checkpointable:
    """Return the loader's position in the form that ``tf.train.Checkpoint`` saves and restores.

        saved = tf.train.Checkpoint(model=model, optimizer=optimizer, loader=checkpointable(loader))
        manager = tf.train.CheckpointManager(saved, "run", max_to_keep=3)
        saved.restore(manager.latest_checkpoint)                # the loader is where it was
        for images, labels in tensors(loader):
            train_step(images, labels)
            manager.save()

    It takes the place of ``tf.data.experimental.make_saveable_from_iterator`` of TensorFlow 1. A
    restore is done when ``restore`` returns, and the next loop over the loader begins there.

    Args:
        loader: its position is saved; with ``tensors`` that is the position of the training.
        state: returns another state where something reads ahead of the training:
            ``lambda: loader.state_dict(epoch, step)`` with your own counts, or the ``state`` of the
            callback that `checkpoint` returns.

    Raises:
        StateError: in ``restore``: the state is of other data, ops, shuffle or seed.
    """
    common.check_loader("checkpointable", loader)
    return Checkpointable(loader, state or loader.state_dict)

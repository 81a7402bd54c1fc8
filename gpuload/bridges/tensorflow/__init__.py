"""Batches as tf.Tensors: by DLPack for loops of one's own, as a ``tf.data.Dataset`` for
``model.fit``.

    for images, labels in tensors(loader):          from the loader's position to the end of the
        epoch train_step(images, labels)
    model.fit(dataset(loader), epochs=20, callbacks=[checkpoint(loader, "state.json")])

Position ``tensors`` takes the loader along, batch by batch. So does a dataset that is iterated
         itself, or by its ``take`` and ``repeat``, from the second batch of an iterator on: to look
         at one batch costs nothing. Other datasets that are made of it read ahead of the training
         (``prefetch``, ``map``, a strategy). Such an iterator begins at the loader's position, and
         that moves to the next epoch when the last batch of this one was delivered, and not before;
         `checkpoint` counts the steps that were trained. (An epoch with no more steps than are read
         ahead may be delivered to an iterator that only looks.)
Memory   ``tensors`` shares each array with TensorFlow; TensorFlow holds the array until the last
         tensor on it is gone, so stored tensors do not change. ``dataset`` hands aligned arrays
         over without a copy, too.
Copies   are made where sharing is not possible: text, empty arrays, arrays that are not aligned,
         contiguous or writable. ``loader.stats()`` counts them as ``tensors_copied``, the others as
         ``tensors_shared``.
GPU      ``tensors`` stays on the device; ``dataset`` goes through the host, as tf.data runs its
         generators there. TensorFlow returns an array when the kernel that reads it is queued, not
         when it has run; the loader's lane waits for the device before such memory is used again
         (``device.Lane``).
Text     bytes and text become tf.string (text as UTF-8) and stay on the host.
Ragged   a field of which only the first axis varies becomes a tf.RaggedTensor over the same
         payload.
"""

from __future__ import annotations

import importlib
from typing import Any

from gpuload.bridges.tensorflow.data import dataset
from gpuload.bridges.tensorflow.distributed import distribute
from gpuload.bridges.tensorflow.loops import tensors
from gpuload.bridges.tensorflow.memory import share_memory
from gpuload.bridges.tensorflow.saving import checkpointable
from gpuload.tracebacks import publish

_OF_KERAS = ("LoaderStats", "ResumeLoader", "checkpoint")
__all__ = [
    "LoaderStats",
    "ResumeLoader",
    "checkpoint",
    "checkpointable",
    "dataset",
    "distribute",
    "share_memory",
    "tensors",
]
publish(globals(), (name for name in __all__ if name not in _OF_KERAS))


def __getattr__(name: str) -> Any:
    """Return a callback of Keras, which is imported with the first of them: it takes a second."""
    if name not in _OF_KERAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("gpuload.bridges.tensorflow.keras"), name)

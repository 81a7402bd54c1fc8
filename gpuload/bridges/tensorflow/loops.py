"""tensors: batches of tf.Tensors for loops of one's own, by DLPack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.bridges import common
from gpuload.bridges.tensorflow.framework import check_gpu, fields_of, is_shareable, start, tf
from gpuload.ragged import Ragged

if TYPE_CHECKING:
    from gpuload.loader import Loader


def tensors(loader: Loader) -> common.Tensors:
    """Return the loader's batches with tf.Tensors on its device, shared by DLPack where that is
    possible.

    Args:
        loader: its ``output=`` is the nest that a batch unpacks to: ``images, labels = batch``.

    Returns:
        An iterable with a length. Each loop over it goes on from the loader's position and takes it
        along. It yields a
        `Batch` of tensors; ``batch.valid``, ``batch.records``, ``batch.epoch`` and
        ``batch.step`` are
        those of the loader's batch.

    Raises:
        SpecError: a field that is handed out has no tensor form (it varies in shape, or holds dates
            or objects).
        DeviceError: the loader is on a GPU that TensorFlow does not see.
    """
    common.check_loader("tensors", loader)
    fields_of(loader)
    if loader.device != "cpu":
        check_gpu(loader.device)

    def tensor(array: Any) -> Any:
        """Return the array as a tensor: the same memory if TensorFlow can take it, else a copy."""
        if common.is_bfloat16(array.dtype):
            # NumPy's DLPack does not know bfloat16: the same bits travel as uint16.
            return tf.bitcast(tensor(array.view(np.uint16)), tf.bfloat16)
        shared = is_shareable(array)
        common.count_tensor(loader, shared=shared)
        if isinstance(array, np.ndarray) and not shared:
            return tf.constant(array)
        # A capsule: TensorFlow 2.21 takes no object with ``__dlpack__``, and hands over no stream.
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def convert(values: Any) -> Any:
        if not isinstance(values, Ragged):
            return tensor(values)
        values = common.rebased(values)
        # Not validated: the offsets are ours, and TensorFlow would wait for the device to look at
        # them.
        return tf.RaggedTensor.from_row_splits(
            tensor(values.payload), values.offsets, validate=False
        )

    return common.Tensors(
        loader, convert, waits=True, start=start
    )  # its capsules carry no stream to wait on

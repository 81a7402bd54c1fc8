"""Batches as tf.Tensors: by DLPack for loops of one's own, as a ``tf.data.Dataset`` for ``model.fit``.

    for images, labels in tensors(loader):          each loop is one epoch of the loader
        train_step(images, labels)
    model.fit(dataset(loader), epochs=20)           each iterator of the dataset is one epoch of the loader

Memory   ``tensors`` shares each array with TensorFlow; TensorFlow holds the array until the last tensor on it is gone,
         so kept tensors stay what they were. ``dataset`` hands aligned arrays over without a copy, too.
Copies   are made where sharing is not possible: text, empty arrays, arrays that are not aligned, contiguous or
         writable. ``loader.stats()`` counts them as ``tensors_copied``, the others as ``tensors_shared``.
GPU      ``tensors`` stays on the device; ``dataset`` goes through the host, as tf.data runs its generators there.
         TensorFlow returns an array when the kernel that reads it is queued, not when it has run; the loader's lane
         waits for the device before such memory is used again (``device.Lane``).
Text     bytes and text become tf.string (text as UTF-8) and stay on the host.
Ragged   a field of which only the first axis varies becomes a tf.RaggedTensor over the same payload.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import device
from gpuload.batch import arranged, names_in
from gpuload.errors import DeviceError, SpecError, missing_package
from gpuload.kernels import aside
from gpuload.ragged import Ragged

if TYPE_CHECKING:
    from gpuload.batch import Batch
    from gpuload.loader import Loader
    from gpuload.spec import Field

try:
    tf: Any = aside.call(lambda: importlib.import_module("tensorflow"))
except ImportError as error:
    raise missing_package("tensorflow", needed_for="gpuload.bridges.tensorflow", extra="tensorflow") from error

ALIGNMENT_BYTES = 64  # TensorFlow 2.21 ends the process (Check failed: IsAligned()) at the first op on anything less
NUMERIC_KINDS, TEXT_KINDS = "biufc", "SU"

Nest = Any  # a field name, or a tuple, list or dict of nests; with tensors in place of names when handed out


def tensors(loader: Loader) -> Tensors:
    """Return the loader's batches as nests of tf.Tensors on its device, shared by DLPack where that is possible.

    Args:
        loader: its ``output=`` gives the structure; a dict of all fields without one.

    Returns:
        An iterable with a length; each loop over it is the loader's next epoch.

    Raises:
        SpecError: a field that is handed out has no tensor form (it varies in shape, or holds dates or objects).
        DeviceError: the loader is on a GPU that TensorFlow does not see.
    """
    return Tensors(loader)


def dataset(loader: Loader, *, weights: bool = False) -> Any:
    """Return the loader as a ``tf.data.Dataset`` whose every iterator is the loader's next epoch.

    Its cardinality is ``len(loader)``. Where a loader was put into mid-epoch by ``load_state_dict``, the first iterator
    gives what is left of that epoch (Keras then says once that the input ran out early, and goes on).

    Args:
        loader: its ``output=`` gives the structure, ``("image", "label")`` for ``model.fit``.
        weights: add float32 ``[batch]`` behind the fields, 1 for records and 0 for the padding of
            ``last_batch="pad"``: the sample weights of ``model.fit`` and ``model.evaluate``. With them the
            ``weighted_metrics`` of Keras are exact; it divides the loss of a batch by all records, padding included.

    Raises:
        SpecError: a field has no tensor form, or ``weights=True`` without a pair of ``output=``.
    """
    names, nest = _checked(loader)
    nest = _tuples(nest)
    if weights and not (isinstance(nest, tuple) and len(nest) == 2):
        raise SpecError(
            f"dataset(loader, weights=True) with output={loader.output!r}",
            cause="sample weights come third, behind inputs and targets",
            remedy='make the loader with a pair, output=("image", "label")',
        )

    def epoch() -> Iterator[Nest]:
        for batch in loader:
            arrays = arranged(nest, {name: _yielded(loader, batch[name]) for name in names})
            yield (*arrays, batch.valid.astype(np.float32)) if weights else arrays

    axis = None if loader.last_batch == "partial" else loader.batch_size
    signature = arranged(nest, {name: _signature(loader.spec_out[name], axis) for name in names})
    if weights:
        signature = (*signature, tf.TensorSpec((axis,), tf.float32))
    return _counted(tf.data.Dataset.from_generator(epoch, output_signature=signature), len(loader))


class Tensors:
    """What ``tensors`` returns: each loop over it is one epoch; ``len`` is the steps of an epoch."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._names, self._nest = _checked(loader)
        if loader.device != "cpu":
            _check_gpu(loader.device)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Nest]:
        for batch in self.loader:
            batch.synchronize()  # TensorFlow's capsules carry no stream to wait on; the batch was queued steps ago
            yield self._arranged(batch)

    def _arranged(self, batch: Batch) -> Nest:
        return arranged(self._nest, {name: self._one(batch[name]) for name in self._names})

    def _one(self, values: Any) -> Any:
        """Return the values of a field as a tensor, or as a ragged tensor."""
        if not isinstance(values, Ragged):
            return self._tensor(values)
        rebased = values.with_payload(values.flat)
        return tf.RaggedTensor.from_row_splits(self._tensor(rebased.payload), rebased.offsets, validate=False)

    def _tensor(self, array: Any) -> Any:
        """Return the array as a tensor: the same memory if TensorFlow can take it, else a copy."""
        shared = _shareable(array)
        self.loader.count("tensors_shared" if shared else "tensors_copied", 1)
        if isinstance(array, np.ndarray) and not shared:
            return tf.constant(array)
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _checked(loader: Loader) -> tuple[tuple[str, ...], Nest]:
    """Return the names of the fields to hand out and their nest; raises ``SpecError`` if one has no tensor form."""
    names = names_in(loader.output, loader.spec_out)
    for name in names:
        _check(loader.spec_out[name])
    return names, dict(zip(names, names, strict=True)) if loader.output is None else loader.output


def _check(field: Field) -> None:
    if field.encoded:
        _refuse(field, "its bytes are an encoded image", f"put gl.ops.Decode(on={field.name!r}) into ops=")
    if field.dtype.kind in "mM":
        _refuse(field, "TensorFlow has no dates", f"put gl.ops.Cast('int64', on={field.name!r}) into ops=")
    if field.dtype.kind not in NUMERIC_KINDS + TEXT_KINDS or field.dtype.char in "gG":
        _refuse(field, f"TensorFlow has no {field.dtype}", "leave it out with output=, or cast it with gl.ops.Cast")
    if not field.uniform and not field.ragged:
        _refuse(field, "its shape varies from record to record", "bring it to one shape, with gl.ops.Resize for images")


def _refuse(field: Field, cause: str, remedy: str) -> None:
    raise SpecError(f"field {field.name!r} ({field}) cannot be a tf.Tensor", cause=cause, remedy=remedy)


def _check_gpu(name: str) -> None:
    num_seen = len(tf.config.list_physical_devices("GPU"))
    if device.number(name) >= num_seen:
        built = tf.test.is_built_with_cuda()
        raise DeviceError(
            f"the loader is on {name}, and TensorFlow sees {num_seen} GPUs",
            cause="TensorFlow cannot load its CUDA libraries" if built else "this TensorFlow was built without CUDA",
            remedy='pip install "gpuload[cuda12]" without tensorflow-cpu, or make the loader with device="cpu"',
        )


def _shareable(array: Any) -> bool:
    """Return whether TensorFlow can take the memory of a NumPy or CuPy array as it is."""
    if array.dtype.kind not in NUMERIC_KINDS or array.size == 0 or not array.flags.c_contiguous:
        return False
    if isinstance(array, np.ndarray):
        return bool(array.ctypes.data % ALIGNMENT_BYTES == 0 and array.flags.writeable)
    return bool(array.data.ptr % ALIGNMENT_BYTES == 0)


def _yielded(loader: Loader, values: Any) -> Any:
    """Return the values of a field as a generator of tf.data yields them."""
    if not isinstance(values, Ragged):
        return _on_host(loader, values)
    rebased = values.with_payload(values.flat)
    return tf.RaggedTensor.from_row_splits(_on_host(loader, rebased.payload), rebased.offsets, validate=False)


def _on_host(loader: Loader, array: Any) -> Any:
    """Return the array on the host; tf.data takes shareable ones without a copy."""
    on_host = isinstance(array, np.ndarray)
    loader.count("tensors_shared" if on_host and _shareable(array) else "tensors_copied", 1)
    return array if on_host else array.get()


def _signature(field: Field, axis: int | None) -> Any:
    dtype = tf.string if field.dtype.kind in TEXT_KINDS else tf.as_dtype(field.dtype)
    if field.ragged:
        return tf.RaggedTensorSpec((axis, None, *(field.shape or ())[1:]), dtype, ragged_rank=1)
    return tf.TensorSpec((axis, *field.fixed_shape), dtype)


def _tuples(nest: Nest) -> Nest:
    """Return the nest with tuples in place of lists, which tf.data takes for tensors."""
    if isinstance(nest, dict):
        return {key: _tuples(inner) for key, inner in nest.items()}
    return tuple(map(_tuples, nest)) if isinstance(nest, (tuple, list)) else nest


def _counted(generated: Any, steps: int) -> Any:
    """Return the dataset with ``steps`` as its cardinality, and with nothing read ahead of what was asked for.

    ``assert_cardinality`` would make an error of a resumed epoch, which is shorter. A choice of which one input is
    endless counts as endless, and ends when the chosen input ends; ``take`` then gives it its length.
    """
    first = tf.data.Dataset.from_tensors(np.int64(0)).repeat()
    chosen = tf.data.Dataset.choose_from_datasets([generated, generated.repeat()], first, stop_on_empty_dataset=True)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # the loader reads ahead; its state is what was asked for
    return chosen.take(steps).with_options(options)

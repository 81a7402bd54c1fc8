"""Batches as tf.Tensors: by DLPack for loops of one's own, as a ``tf.data.Dataset`` for ``model.fit``.

    for images, labels in tensors(loader):          from the loader's position to the end of the epoch
        train_step(images, labels)
    model.fit(dataset(loader), epochs=20, callbacks=[checkpoint(loader, "state.json")])

Position ``tensors`` takes the loader along, batch by batch. A dataset is read ahead of the training, by ``prefetch``,
         by a distribution strategy, by Keras, which looks at a batch to build a model. So each iterator of it begins
         at the loader's position, and the position moves to the next epoch when the last batch of this one was
         delivered, and not before; what was trained, `checkpoint` counts. (An epoch with no more steps than are read
         ahead may be delivered to an iterator that only looks.)
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

import dataclasses
import importlib
import json
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import device
from gpuload.batch import arranged, names_in
from gpuload.errors import ClosedError, DeviceError, SpecError, missing_package
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
    """Return the loader's batches with tf.Tensors on its device, shared by DLPack where that is possible.

    Args:
        loader: its ``output=`` says what a batch unpacks to: ``images, labels = batch``.

    Returns:
        An iterable with a length. Each loop over it goes on from the loader's position and takes it along. It yields a
        `Batch` whose fields are tensors; ``batch.valid``, ``batch.records``, ``batch.epoch`` and ``batch.step`` are
        what they are in the loader's.

    Raises:
        SpecError: a field that is handed out has no tensor form (it varies in shape, or holds dates or objects).
        DeviceError: the loader is on a GPU that TensorFlow does not see.
    """
    _check_loader("tensors", loader)
    return Tensors(loader)


def dataset(loader: Loader, *, weights: bool = False) -> Any:
    """Return the loader as a ``tf.data.Dataset``, each of whose iterators goes from the loader's position to the end.

    The position moves when an epoch was delivered to its last batch, and then to the next epoch. The cardinality is
    ``len(loader)``. Where a loader was put into mid-epoch by ``load_state_dict``, the first epoch is what is left of it
    (Keras then says once that the input ran out early, and goes on).

    Args:
        loader: its ``output=`` gives the structure, ``("image", "label")`` for ``model.fit``.
        weights: add float32 ``[batch]`` behind the fields, 1 for records and 0 for the padding of
            ``last_batch="pad"``: the sample weights of ``model.fit`` and ``model.evaluate``. With them the
            ``weighted_metrics`` of Keras are exact; it divides the loss of a batch by all records, padding included.

    Raises:
        SpecError: a field has no tensor form, or ``weights=True`` without a pair of ``output=``.
    """
    _check_loader("dataset", loader)
    names, nest = _checked(loader)
    nest = _tuples(nest)
    if weights and not (isinstance(nest, tuple) and len(nest) == 2):
        raise SpecError(
            f"dataset(loader, weights=True) with output={loader.output!r}",
            cause="sample weights come third, behind inputs and targets",
            remedy='make the loader with a pair, output=("image", "label")',
        )

    weak = weakref.ref(loader)  # TensorFlow 2.21 keeps the generators of all datasets for ever

    def epoch() -> Iterator[Nest]:
        loader = weak()
        if loader is None:
            raise ClosedError("the loader of a dataset is gone", cause="nothing keeps it", remedy="keep the loader")
        for batch in loader.ahead():
            arrays = arranged(nest, {name: _yielded(loader, batch[name]) for name in names})
            yield (*arrays, batch.valid.astype(np.float32)) if weights else arrays

    axis = None if loader.last_batch == "partial" else loader.batch_size
    signature = arranged(nest, {name: _signature(loader.spec_out[name], axis) for name in names})
    if weights:
        signature = (*signature, tf.TensorSpec((axis,), tf.float32))
    made = _counted(tf.data.Dataset.from_generator(epoch, output_signature=signature), len(loader))
    made._gpuload_loader = loader  # the dataset, and those that are made of it, keep the loader
    return made


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
    _check_loader("checkpoint", loader)
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


class Tensors:
    """What ``tensors`` returns: each loop goes on from the loader's position; ``len`` is the steps of an epoch."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        _checked(loader)
        if loader.device != "cpu":
            _check_gpu(loader.device)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            batch.synchronize()  # TensorFlow's capsules carry no stream to wait on; the batch was queued steps ago
            yield batch.with_fields(self._one)

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


def _check_loader(name: str, loader: object) -> None:
    if not hasattr(loader, "spec_out"):
        raise SpecError(
            f"{name}() of a {type(loader).__name__}",
            cause="batches come from a loader",
            remedy=f"make one: {name}(gl.Loader(source, batch_size=256))",
        )


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
        _refuse(field, f"{field.dtype} is not handed to TensorFlow", "leave it out with output=, or use gl.ops.Cast")
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
            remedy='pip install ".[cuda12]" in a checkout, without tensorflow-cpu, or use device="cpu"',
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
    if hasattr(nest, "_fields"):
        return type(nest)(*map(_tuples, nest))
    if dataclasses.is_dataclass(nest):
        raise SpecError(
            f"dataset(loader) with output={nest!r}",
            cause="tf.data takes tuples, named tuples and dicts, and no dataclasses",
            remedy='name the fields in a tuple, output=("image", "label")',
        )
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

"""dataset: a loader as a ``tf.data.Dataset``."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.batch import arranged
from gpuload.bridges import common
from gpuload.bridges.common import Nest
from gpuload.bridges.tensorflow.framework import dtype_of, fields_of, is_shareable, tf
from gpuload.errors import ClosedError, SpecError
from gpuload.ragged import Ragged

if TYPE_CHECKING:
    from gpuload.loader import Loader
    from gpuload.spec import Field


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
    common.check_loader("dataset", loader)
    names, nest = fields_of(loader)
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


def _yielded(loader: Loader, values: Any) -> Any:
    """Return the values of a field as a generator of tf.data yields them."""
    if not isinstance(values, Ragged):
        return _on_host(loader, values)
    values = common.rebased(values)
    return tf.RaggedTensor.from_row_splits(_on_host(loader, values.payload), values.offsets, validate=False)


def _on_host(loader: Loader, array: Any) -> Any:
    """Return the array on the host; tf.data takes shareable ones without a copy."""
    on_host = isinstance(array, np.ndarray)
    loader.count("tensors_shared" if on_host and is_shareable(array) else "tensors_copied", 1)
    return array if on_host else array.get()


def _signature(field: Field, axis: int | None) -> Any:
    dtype = dtype_of(field)
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

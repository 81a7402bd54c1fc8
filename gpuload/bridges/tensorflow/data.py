"""dataset: a loader as a ``tf.data.Dataset``."""

from __future__ import annotations

import dataclasses
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuload import signalsafe
from gpuload.batch import arranged
from gpuload.bridges import common
from gpuload.bridges.common import Nest
from gpuload.bridges.tensorflow import plugin
from gpuload.bridges.tensorflow.framework import alive, dtype_of, fields_of, is_shareable, start, tf
from gpuload.errors import SpecError
from gpuload.order import check_flag
from gpuload.ragged import Ragged

if TYPE_CHECKING:
    from gpuload.loader import Loader
    from gpuload.pipeline.epoch import Epoch
    from gpuload.pipeline.session import Session
    from gpuload.spec import Field


VIAS = ("auto", "plugin", "generator")
PLUGIN = "DALI's TensorFlow plugin"
log = logging.getLogger("gpuload")


def dataset(
    loader: Loader,
    *,
    via: Literal["auto", "plugin", "generator"] = "auto",
    weights: bool = False,
    restart: bool = False,
) -> Any:
    """Return the loader as a ``tf.data.Dataset``, each of whose iterators goes from the loader's
    position to the end.

    The position moves with the batches that are taken, as that of the loader does:
    ``fit(steps_per_epoch=100)`` called again, a ``for`` that was left, and ``take(100)`` go on
    where the last one ended. An iterator that takes a single batch only looks, and moves nothing.
    This holds for the dataset itself, for its ``take`` and ``repeat``, and in Keras on TensorFlow.
    Datasets made of it (``prefetch``, ``map``, a strategy), and Keras on JAX or torch, may read
    ahead of the training: there the position moves when an epoch was delivered to its last batch,
    and where batches come again that may have been trained on, that is logged once. The callbacks
    of this package know better: with one of them in ``fit`` the loader is, when it ends, behind the
    last step that was trained.

    The cardinality is ``len(loader)``. Where a loader is in mid-epoch, the first epoch is the rest
    of that one (Keras then says once that the input ran out early, and goes on). For
    ``steps_per_epoch=`` write ``dataset(loader).repeat()``, which has no end.

    Args:
        loader: its ``output=`` gives the structure, ``("image", "label")`` for ``model.fit``.
        via: ``"plugin"``: DALI's TensorFlow plugin, with tensors on the loader's device.
            ``"generator"``: a Python generator, with tensors on the host. ``"auto"``: the
            plugin on a GPU, the generator on a CPU, where it is the faster one; where the plugin
            has no form for a field or an op, or is not installed, the generator, with a warning.
            ``loader.describe()`` says which. Ops run in DALI inside the plugin, with its
            tolerances.
        weights: add float32 ``[batch]`` behind the fields, 1 for records and 0 for the padding of
            ``last_batch="pad"``: the sample weights of ``model.fit`` and ``model.evaluate``. With
            them the ``weighted_metrics`` of Keras are exact; it divides the loss of a batch by all
            records, padding included.
        restart: an iterator that was left moves nothing: each begins where the last whole epoch
            ended, with the same batches. For ``validation_steps=``, which shall compare epochs.

    Raises:
        SpecError: a field has no tensor form, or ``weights=True`` without a pair of ``output=``.
    """
    common.check_loader("dataset", loader)
    weights, restart = check_flag("weights", weights), check_flag("restart", restart)
    if not isinstance(via, str) or via not in VIAS:
        raise SpecError(
            f"via = {via!r}"[:200], cause="it is not known", remedy=f"use one of {VIAS}"
        )
    names, nest = checked_nest(loader)
    if weights and not (isinstance(nest, tuple) and len(nest) == 2):
        raise SpecError(
            f"dataset(loader, weights=True) with output={loader.output!r}",
            cause="sample weights come third, behind inputs and targets",
            remedy='make the loader with a pair, output=("image", "label")',
        )

    if not weights:
        common.warn_of_padding(
            "dataset", loader, "; dataset(loader, weights=True) marks them for fit and evaluate"
        )
    signalsafe.call(start)  # to make a dataset does it
    by_plugin = _takes_plugin(loader, names, via, weights)

    def make(begin: plugin.Begin) -> Any:
        if by_plugin:
            counts = begin in (_stream, _endless)
            result = _finite(
                plugin.plugin_dataset(loader, names, nest, begin, counts=counts), loader
            )
        else:
            result = _generated(loader, names, nest, begin, weights=weights)
        result._gpuload_loader = (
            loader  # the dataset, and those that are made of it, keep the loader
        )
        return result

    if restart:
        return make(_restart)
    return _exact(make(_ahead), make, lambda exact: exact)


def _ahead(loader: Loader, feed: Session | None, num_between: int | None) -> Epoch:
    return loader.port.ahead(feed, warns=True)


def _restart(loader: Loader, feed: Session | None, num_between: int | None) -> Epoch:
    return loader.port.ahead(feed)


def _stream(loader: Loader, feed: Session | None, num_between: int | None) -> Epoch:
    return loader.port.stream(feed, num_between=num_between)


def _endless(loader: Loader, feed: Session | None, num_between: int | None) -> Epoch:
    return loader.port.stream(feed, num_between=num_between, endless=True)


def _exact(base: Any, make: Callable[[plugin.Begin], Any], change: Callable[[Any], Any]) -> Any:
    """Return a dataset that reads nothing ahead when it is iterated itself.

    A generator of tf.data cannot know whether its dataset or another one made of it is iterated. So
    there are two datasets: ``base``, of which others are made and which may be read ahead, and
    ``change(make(...))``, which only ``iter`` of this dataset begins.
    """
    base._gpuload_make, base._gpuload_change = make, change
    base.__class__ = _exact_class(base.__class__)
    return base


@cache
def _exact_class(kind: Any) -> Any:
    class Exact(kind):  # type: ignore[misc]
        """See ``_exact``."""

        def __iter__(self) -> Any:
            if not _asks_for_what_it_trains():
                return super().__iter__()
            if not hasattr(self, "_gpuload_exact"):
                with tf.init_scope():  # also where a tf.function asks for the iterator
                    self._gpuload_exact = self._gpuload_change(self._gpuload_make(_stream))
            return iter(self._gpuload_exact)

        def take(self, count: Any, name: str | None = None) -> Any:
            """See ``tf.data.Dataset``."""
            change = self._gpuload_change
            return _exact(
                super().take(count, name),
                self._gpuload_make,
                lambda exact: change(exact).take(count, name),
            )

        def repeat(self, count: Any = None, name: str | None = None) -> Any:
            """See ``tf.data.Dataset``."""
            make, change = self._gpuload_make, self._gpuload_change
            is_endless = count is None or (isinstance(count, int) and count < 0)
            return _exact(
                super().repeat(count, name),
                lambda begin: make(_endless if begin is _stream and is_endless else begin),
                lambda exact: change(exact).repeat(count, name),
            )

    Exact.__name__ = kind.__name__
    return Exact


def _asks_for_what_it_trains() -> bool:
    """Return True if a loop in Python takes batches when they are trained; a single batch to look
    at is known.

    Keras on JAX and on torch looks at as many batches as it executes together, and then begins
    anew.
    """
    keras = sys.modules.get("keras")
    return keras is None or keras.backend.backend() == "tensorflow"


def _generated(
    loader: Loader, names: tuple[str, ...], nest: Nest, begin: plugin.Begin, *, weights: bool
) -> Any:
    """Return the dataset of a Python generator."""
    weak = weakref.ref(loader)  # TensorFlow 2.21 keeps the generators of all datasets for ever

    def epoch() -> Iterator[Nest]:
        loader = alive(weak)
        for batch in begin(loader, None, 0):
            arrays = arranged(nest, {name: as_yielded(loader, batch[name]) for name in names})
            yield (*arrays, batch.valid.astype(np.float32)) if weights else arrays

    if loader.last_batch == "partial":
        axis = None
    else:
        axis = loader.batch_size
    signature = arranged(nest, {name: signature_of(loader.spec_out[name], axis) for name in names})
    if weights:
        signature = (*signature, tf.TensorSpec((axis,), tf.float32))
    return with_cardinality(
        tf.data.Dataset.from_generator(epoch, output_signature=signature), len(loader)
    )


def _takes_plugin(loader: Loader, names: tuple[str, ...], via: str, weights: bool) -> bool:
    """Return True if the plugin makes the dataset; tells ``describe`` which it is, and why."""
    if weights and via == "plugin":
        raise SpecError(
            "dataset(loader, via='plugin', weights=True)",
            cause="the weights come from the host",
            remedy="write via='generator', or leave weights= out",
        )
    if via != "auto":
        loader.port.tell(
            "dataset", f"by {PLUGIN if via == 'plugin' else 'a generator'} (asked for)"
        )
        return via == "plugin"
    if loader.device == "cpu":
        loader.port.tell("dataset", "by a generator (the faster one on a CPU)")
        return False
    problem: object = "the weights come from the host"
    if not weights:
        problem = plugin.why_not(loader, names)
    if problem is None:
        loader.port.tell("dataset", f"by {PLUGIN} (its tensors are on {loader.device})")
        return True
    log.warning(
        "tf.data copies the batches from %s to the host and back; cause: %s; a loader with "
        "device='cpu' has them copied to the GPU alone",
        loader.device,
        problem,
    )
    loader.port.tell(
        "dataset", f"by a generator, through the host ({str(problem).splitlines()[0]})"
    )
    return False


def _finite(plugin_data: Any, loader: Loader) -> Any:
    """Return the plugin's dataset, which says of itself that it never ends, with the number of its
    steps."""
    if loader.device == "cpu":
        return without_prefetch(plugin_data.take(len(loader)))
    plugin_data.cardinality = lambda: tf.constant(
        len(loader), tf.int64
    )  # no other dataset may follow one on a GPU
    return plugin_data


def checked_nest(loader: Loader) -> tuple[tuple[str, ...], Nest]:
    """Return the names of the fields to hand out, and their nest as tf.data has it."""
    names, nest = fields_of(loader)
    return names, _tuples(nest)


def as_yielded(loader: Loader, values: Any) -> Any:
    """Return the values of a field as a generator of tf.data yields them."""
    if not isinstance(values, Ragged):
        return _on_host(loader, values)
    values = common.rebased(values)
    return tf.RaggedTensor.from_row_splits(
        _on_host(loader, values.payload), values.offsets, validate=False
    )


def _on_host(loader: Loader, array: Any) -> Any:
    """Return the array on the host; tf.data takes shareable ones without a copy."""
    on_host = isinstance(array, np.ndarray)
    common.count_tensor(loader, shared=on_host and is_shareable(array))
    if on_host:
        return array
    return array.get()


def signature_of(field: Field, axis: int | None) -> Any:
    """Return the spec of a field's tensors; ``axis`` is the number of records, None where it
    varies."""
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
    if isinstance(nest, (tuple, list)):
        return tuple(map(_tuples, nest))
    return nest


def with_cardinality(data: Any, steps: int) -> Any:
    """Return the dataset with ``steps`` as its cardinality; nothing is read ahead of a request.

    ``assert_cardinality`` would make an error of a resumed epoch, which is shorter. A choice of
    which one input is endless counts as endless, and ends when the chosen input ends; ``take`` then
    gives it its length.
    """
    first = tf.data.Dataset.from_tensors(np.int64(0)).repeat()
    choice = tf.data.Dataset.choose_from_datasets(
        [data, data.repeat()], first, stop_on_empty_dataset=True
    )
    return without_prefetch(choice.take(steps))


def without_prefetch(data: Any) -> Any:
    """Return a dataset that reads nothing ahead of a request, and that cannot be sharded by
    TensorFlow.

    The loader reads ahead, and its state counts the requests. Of the policies of autosharding, FILE
    refuses a dataset without files; the others would read all records in every worker.
    """
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return data.with_options(options)

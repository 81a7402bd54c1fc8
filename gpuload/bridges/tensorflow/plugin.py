"""A loader as a ``tf.data.Dataset`` through DALI's TensorFlow plugin, whose tensors are made on the
device.

Way       Our threads read, decode raw bytes and draw on the host, in our order. A generator hands
          each batch over as one array of bytes (`executors.dali.feed`), a GPU gets it by one
          upload, and DALI's operators run behind it, in a pipeline inside TensorFlow. Raw bytes are
          decoded by NumPy here, not by CuPy: the inputs of tf.data are on the host. Where the
          loader decodes images on the host, they come here decoded.
Traps     of the plugin (2.4), and their remedies here. Garbage from operators that change no byte:
          a slice comes first. An iterator for each input: there is one input. No cardinality: it is
          that of the loader. Partial batches lost in sample mode: batch mode is used, with any
          number of rows. An end of the process for ragged inputs, refused dtypes: refused by name
          before.
Errors    come as TensorFlow's, with ours in their text, and up to two batches early, because the
          plugin reads ahead.
GPU       Other datasets of TensorFlow cannot follow one on a GPU, so there it is handed out as it
          is: ``prefetch``, ``map`` and ``repeat`` are for the CPU. The batches taken are those fed
          less those in the queue; an iterator that is left one step before the end of an epoch
          counts as one that came to the end.
Source    dali_dataset_op.cc of nvidia-dali-tf-plugin 2.4.0
"""

from __future__ import annotations

import importlib
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload import signalsafe
from gpuload.batch import arranged
from gpuload.bridges.common import Nest
from gpuload.bridges.tensorflow.framework import alive, check_gpu, dtype_of, tf
from gpuload.errors import DeviceError, MissingPackageError, SpecError
from gpuload.ops.base import has_dali_form

if TYPE_CHECKING:
    from gpuload.loader import Loader
    from gpuload.pipeline.epoch import Epoch
    from gpuload.pipeline.session import Session

Begin = Callable[
    ["Loader", "Session | None", "int | None"], "Epoch"
]  # loader, feed, how many batches stand between
DTYPES = (
    "bool",
    "float16",
    "float32",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
AHEAD = 2  # batches in the plugin's queue
DALIS = {
    "nvidia-dali-cuda130": "tf-plugin-cpu",
    "nvidia-dali-cuda120": "tf-plugin",
}  # the extra with the same build


def why_not(
    loader: Loader, names: tuple[str, ...]
) -> SpecError | DeviceError | MissingPackageError | None:
    """Return why a loader cannot go through the plugin; None if it can."""
    for name in names:
        field = loader.spec_out[name]
        if not field.uniform:
            return _no_form(
                f"field {name!r} ({field})",
                "its length varies, and the plugin has dense tensors alone",
            )
        if field.dtype.name not in DTYPES:
            return _no_form(f"field {name!r} ({field})", f"the plugin has no {field.dtype} tensors")
    graph = loader.port.feed_graph
    of_numpy = next((graph.ops[place] for place in graph.for_numpy), None)
    if of_numpy is not None:
        return _no_form(
            f"{of_numpy}", "the op has a form for NumPy alone, and the plugin runs DALI's"
        )
    of_arrays = next((op for op in graph.ops if not has_dali_form(op)), None)
    if of_arrays is not None:
        return _no_form(
            f"{of_arrays}", "the op has no lower(), and the plugin runs DALI's operators alone"
        )
    if loader.port.asked_executor == "array" and graph.ops:
        return DeviceError(
            "a loader with executor='array'",
            cause="the plugin runs the ops in DALI",
            remedy=f"{_in_place_of_array(loader)}, or write via='generator'",
        )
    if loader.on_error != "raise" and any(op.traits.codec for op in graph.ops):
        return _no_form(
            f"a loader that decodes images, with on_error={loader.on_error!r},",
            "damage that only the decoder finds would be an error inside TensorFlow, where no "
            "other record can be put",
        )
    if not signalsafe.is_installed("nvidia.dali_tf_plugin"):
        return _missing()
    try:
        _load()
    except MissingPackageError as error:
        return error
    return None


def _in_place_of_array(loader: Loader) -> str:
    decodes = any(op.traits.codec for op in loader.port.graph.ops)
    if decodes:
        return "write decode='host' in place of executor='array'"
    return "leave executor= out"


def plugin_dataset(
    loader: Loader, names: tuple[str, ...], nest: Nest, begin: Begin, *, counts: bool
) -> Any:
    """Return the dataset; see ``dataset``.

    Args:
        loader: of the dataset.
        names: the fields that it hands out.
        nest: how they are arranged.
        begin: returns an iterator over the batches that are fed, of which ``AHEAD`` are in the
            plugin's queue.
        counts: the dataset tells the iterator which batches were taken; on a GPU nothing can follow
            the plugin that would know it.
    """
    problem = why_not(loader, names)
    if problem is not None:
        raise problem
    if loader.device != "cpu":
        check_gpu(loader.device)
    plugin = _load()
    structure = arranged(nest, {name: _signature(loader, name) for name in names})
    outputs = tuple(tf.nest.flatten(nest))  # TensorFlow's order: the keys of a dict are sorted

    def make_feed() -> tuple[Any, Any]:
        feeds = importlib.import_module(
            "gpuload.executors.dali"
        )  # the package nvidia.dali is large
        feed = feeds.Feed(
            loader.port.feed_graph,
            outputs,
            device=loader.device,
            batch_size=loader.port.most_records,
        )
        return feed, feed.pipeline(loader.num_threads)

    feed, pipeline = signalsafe.call(
        make_feed
    )  # an exception of a signal handler is no refusal of DALI's
    session = loader.port.feed(feed.executor, feed.inputs)
    # TensorFlow 2.21 keeps the generators of all datasets for ever; the dataset keeps these two.
    weak, weak_session, weak_feed = weakref.ref(loader), weakref.ref(session), weakref.ref(feed)
    counts = counts and loader.device == "cpu"
    iterators: deque[Epoch] = deque(maxlen=1)  # its batches are counted next

    def packed_batches() -> Iterator[NDArray[np.uint8]]:
        loader, session, feed = alive(weak), alive(weak_session), alive(weak_feed)
        batches = begin(loader, session, None if counts else AHEAD)
        iterators.append(batches)
        for batch in batches:
            yield feed.pack(batch)

    def numbers() -> Iterator[int]:
        batches = iterators.pop()
        for number in itertools.count(1):
            batches.has_taken(number)
            yield number

    with tf.device("/cpu:0"):
        fed = tf.data.Dataset.from_generator(
            packed_batches, output_signature=tf.TensorSpec((None, None), tf.uint8)
        )
    if loader.device != "cpu":
        place = f"/{loader.device}"
    else:
        place = "/cpu:0"
    with tf.device(place):
        if loader.device != "cpu":
            # The plugin takes inputs of a pipeline on a GPU from the GPU alone (2.4).
            fed = fed.apply(tf.data.experimental.copy_to_device(place))
        dali_dataset = plugin.experimental.DALIDatasetWithInputs(
            pipeline,
            input_datasets={"packed": plugin.experimental.Input(fed, layout="X", batch=True)},
            output_dtypes=tuple(_signature(loader, name).dtype for name in outputs),
            output_shapes=tuple((None, *loader.spec_out[name].fixed_shape) for name in outputs),
            batch_size=loader.port.most_records,
            num_threads=loader.num_threads,
            device_id=None if loader.device == "cpu" else devices.number(loader.device),
            exec_dynamic=True,
            prefetch_queue_depth=AHEAD,
        )
        nested = tf.data.experimental.from_variant(dali_dataset._variant_tensor, structure)
    nested._gpuload_parts = (
        dali_dataset,
        fed,
        feed,
        session,
    )  # the variant tensor does not keep them
    if not counts:
        return nested
    # Both are asked once for each batch, this one first.
    counter = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.int64))
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False  # it would read ahead
    return (
        tf.data.Dataset.zip((nested, counter))
        .map(lambda batch, number: batch)
        .with_options(options)
    )


def _signature(loader: Loader, name: str) -> Any:
    field = loader.spec_out[name]
    if loader.last_batch == "partial":
        axis = None
    else:
        axis = loader.batch_size
    return tf.TensorSpec((axis, *field.fixed_shape), dtype_of(field))


def _load() -> Any:
    """Return the plugin's module."""
    return signalsafe.call(_import_plugin)


def _import_plugin() -> Any:
    """Import the plugin; called by `signalsafe`, so that an error caught here is the plugin's
    own."""
    try:
        return signalsafe.import_package("nvidia.dali.plugin.tf")
    except Exception as error:  # TensorFlow's where it cannot load a library, and the plugin's where one is missing
        message = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise MissingPackageError(
            "dataset(loader, via='plugin') needs DALI's TensorFlow plugin",
            cause="the one that is installed does not load: it was compiled for another "
            f"TensorFlow than {tf.__version__}, or for another DALI: {message}",
            remedy="pip uninstall nvidia-dali-tf-plugin-cuda120 (or -cuda130) and build it anew: "
            f"{_build()}; or write via='generator'",
        ) from error


def _build() -> str:
    """Return the commands that build the plugin for the DALI that is here: another extra would
    bring a second DALI."""
    metadata = signalsafe.import_package("importlib.metadata")
    names = {distribution.metadata["Name"] for distribution in metadata.distributions()}
    extra = next((extra for name, extra in DALIS.items() if name in names), "tf-plugin")
    return (
        "`make tf-plugin` in a checkout (without make: pip install setuptools wheel packaging "
        f"nanobind, then pip install --no-cache-dir --no-build-isolation '.[{extra}]')"
    )


def _no_form(subject: str, cause: str) -> SpecError:
    return SpecError(
        f"{subject} in DALI's TensorFlow plugin",
        cause=cause,
        remedy="leave it out with output=, or write via='generator'",
    )


def _missing() -> MissingPackageError:
    return MissingPackageError(
        "dataset(loader, via='plugin') needs DALI's TensorFlow plugin",
        cause="the package nvidia-dali-tf-plugin is not installed; it is compiled for the "
        "TensorFlow that is there",
        remedy=f"install g++ and build it: {_build()}; or write via='generator'",
    )

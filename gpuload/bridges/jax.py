"""Batches as jax.Arrays, by DLPack, for loops of one's own.

    for images, labels in tensors(loader):          from the loader's position to the end of the
        epoch state = train_step(state, images, labels)

A `Batch` is no pytree: its parts are (``*batch``, or ``batch.output`` as a whole).

Position ``tensors`` takes the loader along, batch by batch.
Memory   is shared: JAX holds each array until the last of its arrays on it is gone, so stored
         arrays do not change.
Copies   are made of arrays that are empty, not contiguous or writable, or do not begin at a
         multiple of 64 bytes. JAX 0.10 makes them by itself and does not say so; ``loader.stats()``
         counts them as ``tensors_copied``, the others as ``tensors_shared``.
64 bits  JAX 0.10 makes 32-bit arrays of 64-bit ones unless ``jax_enable_x64`` is set, also where
         the numbers do not fit. Such fields are refused by name.
GPU      A loader on a GPU gives arrays there. By DLPack JAX's stream is told to wait for the batch,
         while the host goes on. JAX does not say on which streams it reads: memory that it let go
         of is used again when the GPU has done all that was queued until then, on every stream, for
         which a thread of gpuload waits (``device.Lane``).
Ragged   JAX has no type for a field of which the first axis varies: it is a `gl.Ragged` with a
         jax.Array as its payload and its offsets on the host.
Devices  One process, one share of the records: ``shard="auto"`` divides by processes. ``sharding=``
         makes one array of the parts of all processes, over all of their devices.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import device, signalsafe
from gpuload.batch import names_in
from gpuload.bridges import common
from gpuload.errors import DeviceError, SpecError, missing_package
from gpuload.ragged import Ragged
from gpuload.tracebacks import public

if TYPE_CHECKING:
    from gpuload.loader import Loader
    from gpuload.spec import Field

try:
    jax: Any = signalsafe.import_package("jax")
except ImportError as error:
    raise missing_package(
        "jax", needed_for="gpuload.bridges.jax", extra="jax", error=error
    ) from error

ALIGNMENT_BYTES = 64  # JAX 0.10 copies an array that begins elsewhere
WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


@public
def tensors(loader: Loader, *, shard: common.Shard = None, sharding: Any = None) -> common.Tensors:
    """Return the loader's batches with jax.Arrays on its device, shared by DLPack.

    Args:
        loader: its ``output=`` is the nest that a batch unpacks to: ``images, labels = batch``.
        shard: ``"auto"`` takes the process's index and the number of processes from JAX (after
            ``jax.distributed.initialize()``, where there are several), a pair is (index, number);
            both for a loader that is made without ``shard_id=`` and ``num_shards=``. None leaves
            the loader as it is.
        sharding: a ``jax.sharding.Sharding`` of the global batch, which the loaders of all
            processes make together: each field is one array over its devices,
            ``[batch_size * num_shards, ...]``. The loader is on the CPU, and its steps have one
            size. ``batch.valid`` and ``batch.records`` are those of this process.

    Returns:
        An iterable with a length, ``state_dict`` and ``load_state_dict``. Each loop over it goes on
        from the position
        of its ``loader`` and takes it along. It yields a `Batch` of jax.Arrays;
        ``batch.valid``,
        ``batch.records``, ``batch.epoch`` and ``batch.step`` are those of the loader's batch.

    Raises:
        SpecError: a field that is handed out has no jax.Array (text, dates, 64 bits without
            ``jax_enable_x64``, a shape that varies in several axes), or ``shard`` or ``sharding``
            does not fit.
        DeviceError: the loader is on a GPU that JAX does not see.
    """
    common.check_loader("tensors", loader)
    common.handed_out(loader, _check_field)
    if loader.device != "cpu":
        check_gpu(loader.device)
    loader = common.sharded(loader, shard, lambda: (jax.process_index(), jax.process_count()))

    if sharding is not None:
        return common.Tensors(loader, _global_converter(loader, sharding), start=_start)

    def tensor(array: Any) -> Any:
        shared = common.shareable(array, align_bytes=ALIGNMENT_BYTES)
        common.count_tensor(loader, shared=shared)
        if isinstance(array, np.ndarray) and not shared:
            result = jax.numpy.array(array)
        else:  # of an array on a GPU with JAX's stream, which then waits for it
            result = jax.dlpack.from_dlpack(array if shared else array.copy())
        if result.dtype != array.dtype:  # it was set when the bridge was made, and is not any more
            raise _narrowing_error(f"an array of {array.dtype}", array.dtype)
        return result

    def convert(values: Any) -> Any:
        if isinstance(values, Ragged):
            return values.with_payload(tensor(values.flat))
        return tensor(values)

    return common.Tensors(loader, convert, start=_start)


def _global_converter(loader: Loader, sharding: Any) -> common.Convert:
    """Return a function that makes a global array of the values of this process, after checking
    that all steps fit.

    Raises:
        SpecError: it is no sharding, the loader is on a GPU, steps differ in size, or a field
            cannot be divided so.
    """
    if not isinstance(sharding, jax.sharding.Sharding):
        raise SpecError(
            f"sharding = {sharding!r}"[:200],
            cause="it says how the global batch lies on the devices",
            remedy='write jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")), '
            "say",
        )
    num_records = loader.batch_size * loader.num_shards
    if loader.device != "cpu":
        raise SpecError(
            f"sharding= of a loader on {loader.device}",
            cause="JAX lays out what is on the host, each device's part to that device",
            remedy='make the loader with device="cpu"',
        )
    if loader.last_batch == "partial" and len(loader.source) % num_records:
        raise SpecError(
            f"sharding= of a loader whose last step is smaller than {num_records} records",
            cause="a global array is divided evenly over its devices",
            remedy='pass last_batch="drop" or "pad" to the loader',
        )
    for name in names_in(loader.output, loader.spec_out):
        field = loader.spec_out[name]
        if not field.uniform:
            common.refuse(
                field,
                "a global array",
                "its shape varies from record to record",
                "leave it out with output=",
            )
        shape = (num_records, *field.fixed_shape)
        try:
            sharding.shard_shape(shape)
        except ValueError as error:
            raise SpecError(
                f"field {name!r}, {list(shape)} in a global batch, under {sharding}",
                cause=str(error).splitlines()[0],
                remedy="take a batch size that is a multiple of the devices of a process, or "
                "another sharding",
            ) from None

    def convert(values: Any) -> Any:
        loader.port.count("tensors_copied")
        shape = (num_records, *values.shape[1:])
        result = jax.make_array_from_process_local_data(sharding, values, shape)
        # JAX makes 32 bits of 64 in silence, unless jax_enable_x64 is set.
        if result.dtype != values.dtype:
            raise _narrowing_error(f"an array of {values.dtype}", values.dtype)
        return result

    return convert


def process_rank() -> tuple[int, int] | None:
    """Return the index of this process and the number of processes; None where JAX knows of no
    others.

    Before ``jax.distributed.initialize`` nothing is asked that would start JAX's devices, but for
    those of a TPU, which know each other without it.
    """
    # To start the devices before ``jax.distributed.initialize`` makes that call an error.
    if not jax.distributed.is_initialized() and "TPU_WORKER_HOSTNAMES" not in os.environ:
        return None
    count = jax.process_count()
    if count > 1 or jax.distributed.is_initialized():
        return (jax.process_index(), count)
    return None


@functools.cache
def _start() -> None:
    """Have JAX start its devices, once; not before a loop begins, for
    ``jax.distributed.initialize`` comes first."""
    jax.dlpack.from_dlpack(np.zeros(ALIGNMENT_BYTES, np.uint8))


def check_gpu(name: str) -> None:
    """Raise ``DeviceError`` if JAX does not see a GPU of ours."""
    try:
        num_seen = len(jax.local_devices(backend="cuda"))
    except RuntimeError:  # JAX has no such backend
        num_seen = 0
    if device.number(name) >= num_seen:
        raise DeviceError(
            f"the loader is on {name}, and JAX sees {num_seen} GPUs",
            cause="this JAX was installed without CUDA, or finds no driver",
            remedy='pip install "jax[cuda12]", or "jax[cuda13]", as CuPy is; or use device="cpu"',
        )


def _check_field(field: Field) -> None:
    common.check_field(field, "a jax.Array", text=False, ragged=True)
    if str(field.dtype) in WIDE and not jax.config.jax_enable_x64:
        raise _narrowing_error(
            f"field {field.name!r} ({field})", field.dtype, f", on={field.name!r}"
        )


def _narrowing_error(subject: str, dtype: np.dtype[Any], on: str = "") -> SpecError:
    narrow = WIDE.get(str(dtype), "int32")
    return SpecError(
        f"{subject} cannot be a jax.Array",
        cause=f"JAX would make {narrow} of it, as jax_enable_x64 is not set",
        remedy=f'put gl.ops.Cast("{narrow}"{on}) into ops=, or call '
        'jax.config.update("jax_enable_x64", True)',
    )

"""Batches as CuPy arrays: those of a loader on a GPU, after a check of the loader.

    for images, labels in tensors(loader):          from the loader's position to the end of the
        epoch train_step(images, labels)

A loader with ``device="gpu"`` hands out CuPy arrays by itself, and NumPy arrays for dtypes that a
GPU does not have (text, dates). Here these are refused by name, and so is a loader on the CPU: each
of its batches would cross to the GPU while the training waits, where ``device="gpu"`` has them
there ahead.

Memory   of a batch is the loader's; it does not change while an array, view or capsule of it is
         there. It is used again when the last of them is gone and two streams have done what was
         queued on them until then: the one that was current when the batch was handed out, and the
         one that is current in the thread that drops it.
Streams  the stream that is CuPy's current one when a batch is handed out waits for the work that
         makes it. On another stream, ``stream.wait_event(cupy.cuda.get_current_stream().record())``
         first, as with any array of CuPy, and
         ``cupy.cuda.get_current_stream().wait_event(stream.record())`` before the array is dropped.
Ragged   a field of which only the first axis varies is a `gl.Ragged` with a CuPy payload, its
         offsets on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from gpuload.bridges import common
from gpuload.errors import DeviceError, SpecError
from gpuload.tracebacks import public

if TYPE_CHECKING:
    from gpuload.loader import Loader
    from gpuload.spec import Field


@public
def tensors(loader: Loader, *, shard: common.Shard = None) -> common.Tensors:
    """Return the loader's batches, every field of which is a ``cupy.ndarray``, or a `Ragged` over
    one.

    Args:
        loader: on a GPU; its ``output=`` is the nest that a batch unpacks to:
            ``images, labels = batch``.
        shard: (rank, number of processes), for a loader that is made without ``shard_id=`` and
            ``num_shards=``.

    Returns:
        An iterable with a length. Each loop over it goes on from the loader's position and takes it
        along.

    Raises:
        SpecError: a field that is handed out has no dtype on a GPU, or varies in shape; or
            ``shard="auto"``.
        DeviceError: the loader is on the CPU.
    """
    common.check_loader("tensors", loader)
    common.handed_out(loader, _check)
    if loader.device == "cpu":
        raise DeviceError(
            "tensors(loader) of a loader on the CPU",
            cause="its batches are NumPy arrays, and to copy each to a GPU would keep the training "
            "waiting",
            remedy='make the loader with device="gpu"',
        )
    loader = common.sharded(loader, shard, _no_ranks)

    def convert(values: Any) -> Any:
        loader.port.count("tensors_shared")
        return values

    return common.Tensors(loader, convert)


def _check(field: Field) -> None:
    common.check_field(field, "a cupy.ndarray", text=False, ragged=True)


def _no_ranks() -> NoReturn:
    raise SpecError(
        'shard="auto"',
        cause="CuPy does not know which of several processes this is",
        remedy="pass shard=(rank, number of processes), as your launcher says them",
    )

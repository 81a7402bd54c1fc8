"""``source``: a loader as the function that ``fn.external_source`` calls, in worker processes
too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuload.bridges import common
from gpuload.bridges.dali.columns import Columns, layout_of
from gpuload.bridges.dali.framework import dali
from gpuload.errors import ClosedError, DeviceError, SpecError
from gpuload.executors.dali.program import DALI_DTYPES
from gpuload.ops.base import Op
from gpuload.ops.value.numbers import Numbers
from gpuload.order import Position

if TYPE_CHECKING:
    from gpuload.loader import Loader


def source(loader: Loader, *, draws: Mapping[str, Op | Numbers] | None = None) -> DaliBatches:
    """Return a source for ``fn.external_source``: a function of ``BatchInfo``, for processes and
    DALI's checkpoints.

        batches = source(loader)                                          outside of the pipeline's
        definition jpegs, labels = fn.external_source(batches, **batches.arguments, parallel=True)

    Epoch 0, iteration 0 of DALI is the position that the loader has now; the loader itself stays
    where it is, and ``loader.state_dict(epoch, step)`` is the state of any step. DaliBatches are
    made when they are asked for, where they are asked for: use `reader` unless you need worker
    processes. These start by ``py_start_method="spawn"``.

    Args:
        loader: on the CPU.
        draws: see `reader`; the draws of an op are several outputs, in the order in which it draws
            them.

    Raises:
        SpecError: DALI has no such field.
        DeviceError: the loader is on a GPU.
    """
    common.check_loader("source", loader)
    return DaliBatches(loader, draws)


class DaliBatches:
    """A loader as a source of ``fn.external_source``: each batch a function of its epoch and
    iteration alone.

    Attributes:
        loader: of the batches.
        arguments: the arguments of ``fn.external_source`` for them.
    """

    def __init__(self, loader: Loader, draws: Mapping[str, Op | Numbers] | None = None) -> None:
        if loader.device != "cpu":
            raise DeviceError(
                f"source(loader) of a loader on {loader.device}",
                cause="its batches are made in worker processes, which have no GPU of ours",
                remedy='make the loader with device="cpu"; reader(loader) may be on a GPU',
            )
        self.loader = loader
        self._draws, self._columns = draws, Columns(loader, draws)
        self._start, self._process = loader.position, os.getpid()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``fn.external_source``, but for the source itself and ``parallel``."""
        inputs = self._columns.inputs
        return {
            "num_outputs": len(inputs),
            "dtype": [getattr(dali.types, DALI_DTYPES[column.dtype.name]) for column in inputs],
            "ndim": [len(column.shape) for column in inputs],
            "layout": [layout_of(column) for column in inputs],
            "batch": True,
            "batch_info": True,
        }

    def __call__(self, info: Any) -> tuple[list[NDArray[Any]], ...]:
        """Return a batch: for each output a list of arrays, because DALI 2.4 loses dense batches on
        their way."""
        if not isinstance(info, dali.types.BatchInfo):
            raise SpecError(
                f"source(loader) was asked for {info!r}",
                cause="without batch=True, batch_info=True DALI does not say which batch of which "
                "epoch it wants",
                remedy="write fn.external_source(batches, **batches.arguments, parallel=True)",
            )
        if os.getpid() != self._process:
            raise ClosedError(
                "source(loader) in a process that was forked off",
                cause="the loader's threads and files are in the other process",
                remedy="start the workers anew: @pipeline_def(py_num_workers=2, "
                'py_start_method="spawn")',
            )
        if info.epoch_idx == 0:
            start = self._start
        else:
            start = Position(self._start.epoch + info.epoch_idx)
        position = self.loader.port.after(start, info.iteration)
        if position.epoch != start.epoch:
            raise StopIteration
        columns = self._columns.values(self.loader.port.batch_of(position))
        return tuple([np.asarray(value) for value in values] for values in columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return DaliBatches, (self.loader, self._draws)

    def __repr__(self) -> str:
        return f"source({self.loader!r})"

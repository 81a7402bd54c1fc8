"""Values of fields, as ops make them and as batches have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuload import device as devices
from gpuload.executors.base import Values
from gpuload.graph.graph import Graph
from gpuload.ops.base import VARYING, Draw
from gpuload.ragged import Ragged, offsets_of
from gpuload.spec import Field


def as_values(xp: Any, field: Field, x: Any) -> Values:
    """Return a batch as a field's values are: an array, a ``Ragged`` or a list; on a GPU
    `device.Views` for that."""
    if field.uniform:
        if not isinstance(x, VARYING):
            return x
        devices.settle()  # CuPy puts them together
        if not len(x):
            return xp.empty((0, *field.fixed_shape), field.dtype)
        return xp.stack(list(x))
    if field.ragged and not isinstance(x, Ragged):
        shape = tuple(length or 0 for length in (field.shape or ())[1:])
        if xp is np:
            return Ragged.of(list(x), field.dtype, shape)
        return _join_on_device(xp, x, field.dtype, shape)
    if field.ragged or isinstance(x, devices.Views):
        return x
    return list(x)


def _join_on_device(xp: Any, x: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Ragged:
    """Return values on a GPU as a ``Ragged``: those that lie one after the other without a copy."""
    if isinstance(x, devices.Views) and (rows := x.join()) is not None:
        return Ragged(rows, offsets_of(x.shapes[:, 0]))
    if not isinstance(x, VARYING) and x.size and x.flags.c_contiguous:
        return Ragged(
            x.reshape(-1, *x.shape[2:]), offsets_of(np.full(len(x), x.shape[1], np.int64))
        )
    values = list(x)
    devices.settle()
    if not values:
        return Ragged(xp.empty((0, *shape), dtype), offsets_of(np.empty(0, np.int64)))
    return Ragged(
        xp.concatenate(values), offsets_of(np.array([len(value) for value in values], np.int64))
    )


def run_joint(
    graph: Graph, place: int, xp: Any, fields: dict[str, Any], draw: Draw
) -> dict[str, Any]:
    """Return the fields that a joint op makes of some records, as the spec after it says."""
    op, after = graph.ops[place], graph.specs[place].only(graph.outputs[place])
    on = {name: fields[name] for name in graph.targets[place]}
    joint = op.traits.joint
    if joint is None:
        raise RuntimeError(f"{op} does not make several fields together")
    results = joint.array_fields(xp, on, draw, after)
    return {name: as_values(xp, after[name], values) for name, values in results.items()}

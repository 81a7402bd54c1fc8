"""Layouts: where the fields of a NumPy dtype lie in a record's bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuload.errors import SpecError
from gpuload.spec import Field, Layout, Part, element_strides

Ints = tuple[int, ...]
LARGEST_ALIGNMENT_BYTES = 16


def layout_of(dtype: np.dtype[Any], shape: Ints = (), *, field: str, fortran: bool = False) -> Layout:
    """Return the layout of records that are arrays of a dtype.

    The fields of a structured dtype become the record's fields, nested ones as ``"outer.inner"``; any other dtype makes
    one field.

    Args:
        dtype: the dtype as stored.
        shape: the shape of the array that a record is.
        field: the name of the one field of a dtype that is not structured.
        fortran: True if the array is in Fortran order.

    Raises:
        SpecError: a dtype that holds Python objects, or has no fields.
    """
    if dtype.hasobject:
        raise SpecError(
            f"the dtype {dtype}",
            cause="it holds Python objects, which are no bytes of a record",
            remedy="store numbers, bytes or text of fixed length",
        )
    steps = element_strides(shape, dtype.itemsize, fortran=fortran)
    parts = tuple(_parts(dtype, field if dtype.names is None else "", 0, shape, steps))
    if not parts:
        raise SpecError(f"the dtype {dtype}", cause="it has no fields", remedy="give it at least one")
    return Layout(math.prod(shape) * dtype.itemsize, parts)


def _parts(dtype: np.dtype[Any], name: str, offset: int, shape: Ints, steps: Ints) -> Iterator[Part]:
    if dtype.subdtype is not None:
        base, inner = dtype.subdtype
        yield from _parts(base, name, offset, (*shape, *inner), (*steps, *element_strides(inner, base.itemsize)))
    elif dtype.names is not None:
        for inner_name in dtype.names:
            inner_dtype, inner_offset = dtype.fields[inner_name][:2]  # type: ignore[index]
            path = f"{name}.{inner_name}" if name else inner_name
            yield from _parts(inner_dtype, path, offset + inner_offset, shape, steps)
    else:
        yield _part(Field(name, native(dtype), shape), dtype, offset, steps)


def _part(field: Field, dtype: np.dtype[Any], offset: int, steps: Ints) -> Part:
    shape = field.fixed_shape
    if 0 in shape or steps == element_strides(shape, dtype.itemsize):
        return Part(field, dtype, offset)
    if steps == element_strides(shape, dtype.itemsize, fortran=True):
        return Part(field, dtype, offset, fortran=True)
    return Part(field, dtype, offset, strides_bytes=steps)


def packed(layout: Layout) -> Layout:
    """Return the layout of the same fields in native byte order and C order, one after the other, each aligned."""
    parts, offset = [], 0
    for part in layout.parts:
        item_alignment = min(part.field.dtype.alignment, LARGEST_ALIGNMENT_BYTES)
        offset = -(-offset // item_alignment) * item_alignment
        parts.append(Part(part.field, part.field.dtype, offset))
        offset += parts[-1].num_bytes
    return Layout(offset, tuple(parts))


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in this machine's byte order."""
    return dtype.newbyteorder("=")

"""Layouts: where the fields of a NumPy dtype lie in a record's bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuload.errors import SpecError
from gpuload.spec import LARGEST_NDIM, Field, Layout, Part, element_strides

Ints = tuple[int, ...]
LARGEST_ALIGNMENT_BYTES = 16
MOST_AXES = LARGEST_NDIM - 1  # of a field in one record; a batch has one more
# the address space of a process, also where an axis of length 0 leaves no bytes at all
LARGEST_RECORD_BYTES = 1 << 48


def layout_of(
    dtype: np.dtype[Any], shape: Ints = (), *, field: str, fortran: bool = False
) -> Layout:
    """Return the layout of records that are arrays of a dtype.

    The fields of a structured dtype become the record's fields, nested ones as ``"outer.inner"``;
    any other dtype makes one field.

    Args:
        dtype: the dtype as stored.
        shape: the shape of the array that a record is.
        field: the name of the one field of a dtype that is not structured.
        fortran: True if the array is in Fortran order.

    Raises:
        SpecError: a dtype that holds Python objects or has no fields, a field of elements without
            bytes, or a record with more axes or bytes than an array can have.
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
        raise SpecError(
            f"the dtype {dtype}", cause="it has no fields", remedy="give it at least one"
        )
    return Layout(math.prod(shape) * dtype.itemsize, parts)


def _parts(
    dtype: np.dtype[Any], name: str, offset: int, shape: Ints, steps: Ints
) -> Iterator[Part]:
    if dtype.subdtype is not None:
        base, inner = dtype.subdtype
        yield from _parts(
            base, name, offset, (*shape, *inner), (*steps, *element_strides(inner, base.itemsize))
        )
    elif dtype.names is not None:
        for inner_name in dtype.names:
            inner_dtype, inner_offset = dtype.fields[inner_name][:2]  # type: ignore[index]
            if name:
                path = f"{name}.{inner_name}"
            else:
                path = inner_name
            yield from _parts(inner_dtype, path, offset + inner_offset, shape, steps)
    else:
        yield _part(Field(name, native(dtype), shape), dtype, offset, steps)


def _part(field: Field, dtype: np.dtype[Any], offset: int, steps: Ints) -> Part:
    """Return a field as a part of a record; raises ``SpecError`` for a field that no array can
    hold."""
    shape = field.fixed_shape
    if not dtype.itemsize:
        raise SpecError(
            f"field {field.name!r} of {dtype!r}",
            cause="its elements have no bytes, and NumPy makes arrays of such a dtype with one "
            "byte or character each",
            remedy="leave the field out, or give it a length of at least 1",
        )
    if len(shape) > MOST_AXES:
        raise SpecError(
            f"field {field.name!r} has {len(shape)} axes in a record",
            cause=f"a batch has one more, and an array has at most {LARGEST_NDIM}",
            remedy="store it with fewer axes",
        )
    if math.prod(max(length, 1) for length in shape) * dtype.itemsize > LARGEST_RECORD_BYTES:
        raise SpecError(
            f"field {field.name!r} of {dtype} {shape} in a record",
            cause=f"a record has at most {LARGEST_RECORD_BYTES} bytes, axes of length 0 not "
            "counted",
            remedy="cut records into smaller ones",
        )
    if 0 in shape or steps == element_strides(shape, dtype.itemsize):
        return Part(field, dtype, offset)
    if steps == element_strides(shape, dtype.itemsize, fortran=True):
        return Part(field, dtype, offset, fortran=True)
    return Part(field, dtype, offset, strides_bytes=steps)


def describe_layout(layout: Layout) -> list[Any]:
    """Return the names, dtypes, shapes and places of a layout's fields as plain values, for
    fingerprints."""
    return [
        (
            part.field.name,
            part.dtype.str,
            part.field.shape,
            part.offset_bytes,
            part.fortran,
            part.strides_bytes,
        )
        for part in layout.parts
    ]


def compact_layout(layout: Layout) -> Layout:
    """Return the layout of the same fields in native byte order and C order, one after the other,
    each aligned."""
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

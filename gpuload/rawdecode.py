"""Decode raw: the bytes of records to typed fields, the same on NumPy and CuPy.

In     uint8 ``[N, record_bytes]`` and the ``Layout`` that says where the fields lie in a record.
Out    for each field ``[N, *shape]``, native byte order, C order within a record.
Views  where the stored bytes are those of the result, no byte is copied: on NumPy at any alignment
       and stride, on CuPy (which has neither) where a field fills the record or its numbers are
       bytes. Anything else is one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gpuload.errors import RowError, SpecError
from gpuload.ragged import Ragged
from gpuload.spec import Layout, Part

Array = Any  # numpy.ndarray or cupy.ndarray
LAST_CHARACTER = 0x10FFFF  # Unicode 16, section 2.4


def decode(xp: ModuleType, raw: Array, layout: Layout) -> dict[str, Array]:
    """Return the fields of raw records.

    Args:
        xp: ``numpy``, or ``cupy`` with ``raw`` on the GPU.
        raw: uint8 ``[N, record_bytes]``; the last axis is contiguous.
        layout: of the fields in a record.

    Raises:
        SpecError: ``raw`` is no such array, or CuPy cannot hold a field, which is for the host
            alone.
    """
    _check(raw, layout)
    if xp is np:
        return {part.field.name: _on_host(xp, raw, part) for part in layout.parts}
    return {part.field.name: _by_bytes(xp, raw, part) for part in layout.parts}


def makes_views(layout: Layout) -> bool:
    """Return True if ``decode`` on CuPy makes views alone of records that lie side by side, and
    queues no work."""
    return all(
        part.dtype.itemsize == 1
        or (part.num_bytes == layout.record_bytes and part.is_native and part.is_c_order)
        for part in layout.parts
        if not part.field.host_only
    )


def decode_into(raw: NDArray[np.uint8], layout: Layout, out: Mapping[str, NDArray[Any]]) -> None:
    """Write the fields of raw records into arrays that are there already, in one pass; fields not
    in ``out`` are left.

    Args:
        raw: uint8 ``[N, record_bytes]``; the last axis is contiguous.
        layout: where the fields lie.
        out: for each wanted field a native ``[N, *shape]``.
    """
    _check(raw, layout)
    for part in layout.parts:
        if part.field.name in out:
            np.copyto(out[part.field.name], view_part(raw, part), casting="equiv")


def view_part(raw: NDArray[np.uint8], part: Part) -> NDArray[Any]:
    """Return a view of one field of raw records, ``[N, *shape]``, with its stored byte order and
    strides."""
    shape = (len(raw), *part.field.fixed_shape)
    if 0 in shape or not part.dtype.itemsize:
        return np.ndarray(shape, part.dtype)
    if part.is_c_order:
        return (
            raw[:, part.offset_bytes : part.offset_bytes + part.num_bytes]
            .view(part.dtype)
            .reshape(shape)
        )
    first = raw[:, part.offset_bytes : part.offset_bytes + part.dtype.itemsize].view(part.dtype)
    return as_strided(first, shape, (raw.strides[0], *part.strides), writeable=raw.flags.writeable)


def check_text(values: Any) -> None:
    """Raise ``RowError`` if a record holds text with a number that is no character; Python cannot
    make a str of it.

    Args:
        values: of dtype U, ``[N, ...]``, a ``Ragged`` or a list of arrays.
    """
    if isinstance(values, Ragged):
        at_once = values.payload
    else:
        at_once = values
    if not isinstance(at_once, list) and not _is_no_text(at_once):
        return
    rows = values
    if isinstance(values, np.ndarray):
        # Not values[row], where that is a single text: NumPy cannot make it.
        rows = np.split(values, len(values))
    for row, value in enumerate(rows):
        if _is_no_text(value):
            raise RowError(
                row,
                "its text holds a number that is no Unicode character",
                cause=f"characters are numbered 0 to {LAST_CHARACTER:#x}: the bytes are damaged, "
                "or are no UTF-32",
            )


def _is_no_text(values: Any) -> bool:
    array = np.asarray(values)
    if not array.size or not array.itemsize:
        return False
    characters = np.ascontiguousarray(array).view(array.dtype.byteorder.replace("|", "=") + "u4")
    return bool(characters.max() > LAST_CHARACTER)


def _on_host(xp: ModuleType, raw: NDArray[np.uint8], part: Part) -> NDArray[Any]:
    view = view_part(raw, part)
    if part.is_native:
        return view
    return view.astype(part.field.dtype, order="C", copy=True)


def _by_bytes(xp: ModuleType, raw: Array, part: Part) -> Array:
    """Return a field by copies of bytes, for libraries without big-endian and unaligned arrays;
    ``xp`` may be NumPy."""
    if part.field.host_only:
        raise SpecError(
            f"field {part.field.name!r} of {part.field.dtype} on the GPU",
            cause=f"{xp.__name__} has no arrays of this kind",
            remedy="decode it on the host, with NumPy",
        )
    shape, item_bytes = (len(raw), *part.field.fixed_shape), part.dtype.itemsize
    if 0 in shape:
        return xp.empty(shape, part.field.dtype)
    if item_bytes == 1:  # no order of bytes, and no alignment
        begin = raw[:, part.offset_bytes :]
        return xp.lib.stride_tricks.as_strided(begin, shape, (raw.strides[0], *part.strides)).view(
            part.field.dtype
        )
    steps = (raw.strides[0], *part.strides, 1)
    values = xp.lib.stride_tricks.as_strided(
        raw[:, part.offset_bytes :], (*shape, item_bytes), steps
    )
    if part.dtype != part.field.dtype:
        # real and imaginary part
        if part.dtype.kind == "c":
            number_bytes = item_bytes // 2
        else:
            number_bytes = item_bytes
        values = values.reshape(*shape, item_bytes // number_bytes, number_bytes)[..., ::-1]
    return xp.ascontiguousarray(values).reshape(-1).view(part.field.dtype).reshape(shape)


def _check(raw: Array, layout: Layout) -> None:
    fits = raw.ndim == 2 and raw.dtype == np.uint8 and raw.shape[1] == layout.record_bytes
    if not fits or (raw.size and raw.strides[1] != 1):
        raise SpecError(
            f"raw records of {raw.dtype} {raw.shape}",
            cause=f"the layout is of uint8 (N, {layout.record_bytes}) with bytes side by side",
            remedy="pass rows as sources.shares.fill writes them",
        )

"""Serialized tensors: ``TensorProto``, as ``tf.io.serialize_tensor`` and ``tf.make_tensor_proto``
write it.

    dtype = 1    tensor_shape = 2 (dim = 2: size = 1)    tensor_content = 4: the elements' bytes, little-endian
    or, for few elements, a list: half_val = 13, float_val = 5, double_val = 6, int_val = 7, scomplex_val = 9,
    int64_val = 10, bool_val = 11, dcomplex_val = 12, uint32_val = 16, uint64_val = 17; the last element is repeated

Limits   a tensor has the dtype that was asked for, and a shape that fits. Elements are repeated
         only up to a shape that the user stated: a few bytes may say that they are a tensor of any
         size.
Source   tensor.proto, tensor_shape.proto and types.proto of TensorFlow; ``Tensor::FromProto``
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload.formats.tfrecord.wire import (
    FIXED_32,
    FIXED_64,
    SPAN,
    VARINT,
    WireError,
    fields,
    varint,
)
from gpuload.spec import Shape

DTYPES = {
    1: "f4", 2: "f8", 3: "i4", 4: "u1", 5: "i2", 6: "i1", 8: "c8", 9: "i8", 10: "?", 17: "u2", 18: "c16", 19: "f2",
    22: "u4", 23: "u8",
}  # fmt: skip
NAMES = {7: "string", 14: "bfloat16", 20: "resource", 21: "variant"}
LISTS = {
    "f4": (5, "f"), "f8": (6, "d"), "c8": (9, "f"), "c16": (12, "d"), "i8": (10, ""), "?": (11, ""), "u4": (16, ""),
    "u8": (17, ""), "f2": (13, ""),
}  # fmt: skip
INT_LIST = (7, "")  # all other whole numbers
MOST_AXES = 254


class UnfitTensor(Exception):
    """A tensor of another dtype or shape."""


def tensor_of(data: bytes, dtype: np.dtype[Any], shape: Shape) -> NDArray[Any]:
    """Return a serialized tensor, of the dtype and a shape that fits.

    Raises:
        WireError: the bytes are no message.
        UnfitTensor: it is another tensor, or a cut one.
    """
    parts = _parts_of(data)
    dims, content = parts.dims, parts.content
    name, native_dtype = DTYPES.get(parts.code), dtype.newbyteorder("=")
    if name is None or np.dtype(name) != native_dtype:
        stored_dtype = str(np.dtype(name)) if name else _name_of(parts.code)
        raise UnfitTensor(f"it is a tensor of {stored_dtype}, not of {native_dtype}")
    fits = len(dims) == len(shape) and all(
        expected in (None, length) for expected, length in zip(shape, dims, strict=True)
    )
    if not fits:
        raise UnfitTensor(f"it is a tensor of shape {tuple(dims)[:8]}, not of {shape}")
    count = math.prod(dims)
    little = native_dtype.newbyteorder("<")
    # An empty `tensor_content` says nothing: the values may stand in the lists.
    if content is not None and (content or not count):
        num_bytes = count * native_dtype.itemsize
        if len(content) != num_bytes:
            raise UnfitTensor(
                f"it has {len(content)} bytes for a shape of {tuple(dims)}, which has {num_bytes}"
            )
        return _shaped(np.frombuffer(content, little).astype(native_dtype), dims)
    values = np.array(list(_list_elements(data, name, parts.lists)), little)
    if values.size > count or (values.size < count and None in shape):
        raise UnfitTensor(
            f"it has {values.size} elements for a shape of {tuple(dims)}, which has {count}"
        )
    whole = np.empty(count, native_dtype)
    whole[: values.size] = values
    # The short form of tensor.proto: the last value in a list stands for all behind it.
    whole[values.size :] = values[-1] if values.size else 0
    return _shaped(whole, dims)


def dtype_and_shape(data: bytes) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape that a serialized tensor says it has.

    Raises:
        WireError: the bytes are no message.
        UnfitTensor: it has another dtype than numbers, or its shape is unknown.
    """
    parts = _parts_of(data)
    if parts.code not in DTYPES:
        raise UnfitTensor(f"it is a tensor of {_name_of(parts.code)}, not of numbers")
    return DTYPES[parts.code], tuple(parts.dims)


def _name_of(code: int) -> str:
    return NAMES.get(code, f"type {code}")


class _Parts(NamedTuple):
    """The fields of a message: the number of its dtype, the lengths of its axes, and its values."""

    code: int
    dims: list[int]
    content: bytes | None
    lists: list[tuple[int, int, int, int]]


def _parts_of(data: bytes) -> _Parts:
    code, dims, content = 0, list[int](), None
    lists = list[tuple[int, int, int, int]]()
    for number, wire, first, after in fields(data, 0, len(data)):
        if (number, wire) == (1, VARINT):
            code = first
        elif (number, wire) == (2, SPAN):
            dims += _dims(data, first, after)
        elif (number, wire) == (4, SPAN):
            content = data[first:after]
        elif number >= 5:
            lists.append((number, wire, first, after))
    return _Parts(code, dims, content, lists)


def _shaped(values: NDArray[Any], dims: list[int]) -> NDArray[Any]:
    try:
        return values.reshape(dims)
    except ValueError as error:  # without elements an axis may say any length
        raise UnfitTensor(f"it is a tensor of shape {tuple(dims)[:8]}: {error}") from None


def _dims(data: bytes, begin: int, end: int) -> Iterator[int]:
    """Yield the lengths of the axes."""
    num_axes = 0
    for number, wire, first, after in fields(data, begin, end):
        if (number, wire) == (2, SPAN):
            size = 0
            for field, kind, value, _ in fields(data, first, after):
                if (field, kind) == (1, VARINT):
                    size = value
            num_axes += 1
            # A size of -1 is an int64 of 64 bits: it is unknown, and so is any shape with it.
            if size >> 62 or num_axes > MOST_AXES:
                raise UnfitTensor(
                    f"axis {num_axes - 1} of its shape is "
                    f"{size - (1 << 64) if size >> 63 else size}"
                )
            yield size
        elif (number, wire) == (3, VARINT) and first:
            raise UnfitTensor("its shape says that it is unknown")


def _list_elements(data: bytes, name: str, lists: list[tuple[int, int, int, int]]) -> Iterator[Any]:
    """Yield the elements of the list that a dtype has."""
    number, form = LISTS.get(name, INT_LIST)
    numbers = _numbers(data, number, form, lists)
    if name.startswith("c"):
        yield from (
            complex(real, imaginary) for real, imaginary in zip(numbers, numbers, strict=False)
        )
    elif name == "f2":
        yield from (np.uint16(value & 0xFFFF).view(np.float16) for value in numbers)
    elif name == "?":
        yield from (bool(value) for value in numbers)
    elif name.startswith("u"):
        yield from (value & ((1 << (8 * np.dtype(name).itemsize)) - 1) for value in numbers)
    elif name.startswith("i"):
        bits = 8 * np.dtype(name).itemsize
        yield from (
            ((value & ((1 << bits) - 1)) ^ (1 << (bits - 1))) - (1 << (bits - 1))
            for value in numbers
        )
    else:
        yield from numbers


def _numbers(
    data: bytes, number: int, form: str, lists: list[tuple[int, int, int, int]]
) -> Iterator[Any]:
    size = 0
    if form:
        size = struct.calcsize(f"<{form}")
    for field, wire, first, after in lists:
        if field != number:
            continue
        if not form and wire == VARINT:
            yield first
        elif not form and wire == SPAN:
            while first < after:
                value, first = varint(data, first, after)
                yield value
        elif form and (wire == SPAN or wire == (FIXED_32 if size == 4 else FIXED_64)):
            if (after - first) % size:
                raise WireError(
                    first, f"{after - first} bytes of numbers, which have {size} bytes each"
                )
            yield from struct.unpack(f"<{(after - first) // size}{form}", data[first:after])

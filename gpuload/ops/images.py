"""Which fields the image ops take: numbers in HWC order; and the exact error for those that are not.

An image is a field of three axes, height, width and channels. Where a field's axes are not known, it is an image
unless it looks like CHW: first axis of at most 4 and last axis longer than 4, or varying.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from gpuload.errors import SpecError
from gpuload.spec import Field

NUMBERS = "buif"  # kinds of dtype: boolean, unsigned, signed, floating
MOST_CHANNELS = 4


def image(op: Any, field: Field) -> tuple[int | None, int | None, int | None]:
    """Return height, width and channels of the images of a field, None for what varies.

    Raises:
        SpecError: the field holds no images, or not in HWC order.
    """
    numeric(op, field)
    shape = field.shape
    if shape is None or len(shape) != 3:
        raise SpecError(
            f"{op}: field {field.name!r} has shape {shape}",
            cause="an image has three axes: height, width, channels",
            remedy=_remedy(field),
        )
    if channels_first(field):
        raise SpecError(
            f"{op}: field {field.name!r} has shape {shape}, channels first",
            cause="ops act on HWC images, channels last",
            remedy=f"put gl.ops.Transpose('HWC', on={field.name!r}) before it",
        )
    return shape


def channels_first(field: Field) -> bool:
    """Return True if the axes of a field with three axes are CHW, or not known and its shape looks like it."""
    if field.axes or field.shape is None or len(field.shape) != 3:
        return field.axes == "CHW"
    first, _, last = field.shape
    return first is not None and first <= MOST_CHANNELS and (last is None or last > MOST_CHANNELS)


def numeric(op: Any, field: Field) -> None:
    """Raise ``SpecError`` unless the field holds decoded boolean, integer or floating-point numbers."""
    if field.encoded:
        raise SpecError(
            f"{op}: field {field.name!r} is an encoded image file",
            cause="the op acts on decoded pixels",
            remedy=f"put gl.ops.Decode(on={field.name!r}) before it",
        )
    if field.dtype.kind not in NUMBERS:
        raise SpecError(
            f"{op}: field {field.name!r} has dtype {field.dtype}",
            cause="the op acts on boolean, integer and floating-point numbers",
            remedy="name other fields with on=",
        )


RAW = {"bool": "UINT8", "float16": "INT16"}  # of the same width


def moved(
    dali: ModuleType, dtype: np.dtype[Any], unknown: tuple[str, ...], operator: Callable[[Any], Any], x: Any
) -> Any:
    """Return ``operator(x)``; as integers of the same width if the operator does not know the dtype."""
    if dtype.name not in unknown:
        return operator(x)
    types, fn = dali.types, dali.fn
    back = {"bool": types.BOOL, "float16": types.FLOAT16}[dtype.name]
    return fn.reinterpret(operator(fn.reinterpret(x, dtype=getattr(types, RAW[dtype.name]))), dtype=back)


def to_float16(dali: ModuleType, x: Any, device: str) -> Any:
    """Return a float32 DataNode as float16, halves to even.

    DALI's CPU rounds halves away from zero (2.4; its GPU to even), so there the 13 bits that float16 has not are
    rounded off first. Numbers below 6.1e-5, which float16 has with fewer bits, may still differ by 6e-8.
    """
    if device == "cpu":
        bits = dali.fn.reinterpret(x, dtype=dali.types.UINT32)
        one, last, keep = (dali.types.Constant(np.uint32(word)) for word in (1, 0xFFF, 0xFFFFE000))
        bits = (bits + ((bits >> dali.types.Constant(np.uint32(13))) & one) + last) & keep
        x = dali.fn.reinterpret(bits, dtype=dali.types.FLOAT)
    return dali.fn.cast(x, dtype=dali.types.FLOAT16)


def _remedy(field: Field) -> str:
    shape = field.shape
    if shape is not None and len(shape) == 2 and None not in shape:
        return f"put gl.ops.Reshape({(*shape, 1)}, on={field.name!r}) before it"
    return f"name the image field with on=, or give {field.name!r} three axes with gl.ops.Reshape"

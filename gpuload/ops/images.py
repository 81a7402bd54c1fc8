"""Which fields the image ops take: numbers in HWC order; and the exact error for those that are
not.

Some take volumes, too: slices of an image along a first axis, ``DHWC``, or ``DHW`` where it is
marked so.

An image is a field of three axes, height, width and channels. Where a field's axes are not known,
it is an image unless it looks like CHW (`spec.Field.is_channels_first`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import RowError, SpecError
from gpuload.ops import arguments
from gpuload.spec import MASK, NUMBERS, Field

LABELS = "'LABELS', "  # of a mask: its numbers are no colours
MANY_CHANNELS = 16  # an axis that is longer may be the width of slices
NO_PIXELS = "it is an image without pixels"


def image(op: Any, field: Field) -> tuple[int | None, int | None, int | None]:
    """Return height, width and channels of the images of a field, None for an axis that varies.

    Raises:
        SpecError: the field holds no images, or not in HWC order.
    """
    numeric(op, field)
    shape = field.shape
    if field.is_volume:
        raise SpecError(
            f"{op}: field {field.name!r} is {field}, slices of an image",
            cause="the op acts on images of three axes: height, width, channels",
            remedy="RandomCrop, CenterCrop, Pad, RandomFlip, Rotate90, Normalize and Cast act on slices; what changes "
            "them otherwise is a function in gl.ops.Python",
        )
    if shape is None or len(shape) != 3:
        raise SpecError(
            f"{op}: field {field.name!r} has shape {shape}",
            cause="an image has three axes: height, width, channels",
            remedy=_remedy(field),
        )
    if field.is_channels_first:
        raise SpecError(
            f"{op}: field {field.name!r} has shape {shape}, channels first",
            cause="ops act on HWC images, channels last",
            remedy=f"put gl.ops.Transpose('HWC', on={field.name!r}) before it",
        )
    _require_pixels(op, field)
    return shape


def sides(op: Any, field: Field) -> tuple[int | None, ...]:
    """Return height and width of the images of a field, of volumes also the number of slices; None
    where it varies.

    Raises:
        SpecError: the field holds neither images nor volumes of numbers.
    """
    if not field.is_volume or field.shape is None:
        return image(op, field)[:2]
    numeric(op, field)
    _require_pixels(op, field)
    slices, height, width = field.shape[:3]
    return height, width, slices


def _require_pixels(op: Any, field: Field) -> None:
    """Raise ``SpecError`` for images of no height, no width or no channels."""
    if 0 in (field.shape or ()):
        raise SpecError(
            f"{op}: field {field.name!r} has shape {field.shape}",
            cause=NO_PIXELS,
            remedy="name the field of the images with on=, or mend the source",
        )


def slices_hint(field: Field) -> str:
    """Return how to mark the slices of a field with a last axis long for channels; "" for other
    fields."""
    shape = field.shape or ()
    if len(shape) == 3 and not field.axes:
        channels = shape[-1]
    else:
        channels = None
    if channels is None or channels <= MANY_CHANNELS:
        return ""
    return f"source.mark({field.name}='DHW')"


def check_pixels(name: str, size: NDArray[np.int32]) -> None:
    """Raise ``RowError`` for the first image of a field that has no pixels; ``size`` is int32
    ``[N, 2 or 3]``."""
    if size.size and size.min() < 1:
        row = int(size.min(axis=1).argmin())
        shape = " x ".join(map(str, size[row].tolist()))
        reason, remedy = (
            f"field {name!r}: it has {shape} pixels",
            "mend the record, or leave it out: source.select(...)",
        )
        raise RowError(row, reason, cause=NO_PIXELS, remedy=remedy)


def with_sides(field: Field, sizes: Sequence[int | None]) -> Field:
    """Return a field of images or volumes that have another size, in the order of `sides`."""
    shape = field.shape or ()
    if not field.is_volume:
        return field.with_(shape=(*sizes, shape[2]), axes="HWC")
    height, width, slices = sizes
    return field.with_(shape=(slices, height, width, *shape[3:]), axes=field.axes or "DHWC")


def num_channels(field: Field) -> int | None:
    """Return the channels of images or volumes, None if they vary; 1 of volumes without them."""
    shape = field.shape or ()
    return 1 if field.axes == "DHW" else shape[-1]


def check_volume(op: Any, field: Field, name: str) -> None:
    """Raise ``SpecError`` for an argument, as ``depth``, that is for volumes, where a field holds
    none."""
    if not field.is_volume:
        raise SpecError(
            f"{op}: {name} of field {field}",
            cause="it is for slices of an image, and the field has none: its axes are not DHWC",
            remedy=f"leave {name} out; or say that there are slices: source.mark({field.name}='DHW')",
        )


def numeric(op: Any, field: Field) -> None:
    """Raise ``SpecError`` unless the field holds decoded boolean, integer or floating-point
    numbers."""
    if field.encoded:
        labels = ""
        if field.kind == MASK:
            labels = LABELS
        raise SpecError(
            f"{op}: field {field.name!r} is an encoded image file",
            cause="the op acts on decoded pixels",
            remedy=f"put gl.ops.Decode({labels}on={field.name!r}) before it",
        )
    if field.dtype.kind not in NUMBERS:
        raise SpecError(
            f"{op}: field {field.name!r} has dtype {field.dtype}",
            cause="the op acts on boolean, integer and floating-point numbers",
            remedy=_numbers_remedy(op, field),
        )


def _numbers_remedy(op: Any, field: Field) -> str:
    """Return a way out where an op of numbers acts on a field of something else."""
    if arguments.is_bfloat16(field.dtype):
        return f"put gl.ops.Cast('float32', on={field.name!r}) before it"
    names = (op.on,) if isinstance(op.on, str) else op.on or ()
    if field.name not in names:
        return "name the fields that it is for with on="
    if field.dtype.kind in "OSU":
        return (
            f"{field.name!r} is text: store numbers; of a CSV file with 2,5 or 1,000 "
            'gl.csv(path, delimiter=";", decimal=",") or gl.csv(path, thousands=",") reads them'
        )
    return f"leave {field.name!r} out of on="


def without_alpha(field: Field, remedy: str) -> str:
    """Return the remedy for images of a wrong number of channels: of four the last is left out;
    else ``remedy``."""
    if field.shape is None or field.shape[-1] != 4:
        return remedy
    return f"leave the fourth channel out: gl.ops.Python(lambda x: x[..., :3], on={field.name!r}) before it"


def bytes_or_floats(op: Any, field: Field, cause: str) -> None:
    """Raise ``SpecError`` with this cause unless a field is uint8 or float32."""
    check_dtype(op, field, ("uint8", "float32"), cause)


def check_dtype(
    op: Any, field: Field, names: Collection[str], cause: str, remedy: str | None = None
) -> None:
    """Raise ``SpecError`` with this cause unless a field has a dtype of one of these names."""
    numeric(op, field)
    if field.dtype.name not in names:
        raise SpecError(
            f"{op}: field {field.name!r} has dtype {field.dtype}",
            cause=cause,
            remedy=remedy or _to_floats(op, field),
        )


def to_parts(field: Field) -> str:
    """Return the op, as text, that makes 0 (black) to 1 (white) of whole numbers; int32 is taken
    for bytes."""
    info = np.iinfo(field.dtype if field.dtype.itemsize <= 2 else np.uint8)
    return f"gl.ops.Normalize({info.min}, {info.max - info.min}, on={field.name!r})"


def _to_floats(op: Any, field: Field) -> str:
    if not op.traits.arithmetic.takes_parts or field.dtype.kind not in "ui":
        return f"put gl.ops.Cast('float32', on={field.name!r}) before it"
    return f"put {to_parts(field)} before it, with your least value and range: it takes float32 from 0 to 1"


# DALI's names of dtypes, and of others that move the same bytes: of the same width, int64 as two
# floats side by side.
DALI_DTYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "uint16": "UINT16",
    "int32": "INT32",
}
DALI_DTYPES |= {"uint32": "UINT32", "int64": "INT64", "float16": "FLOAT16", "float32": "FLOAT"}
RAW = {
    "bool": "UINT8",
    "int8": "UINT8",
    "float16": "INT16",
    "int32": "FLOAT",
    "uint32": "FLOAT",
    "int64": "FLOAT",
}


def move_pixels(
    dali: ModuleType,
    dtype: np.dtype[Any],
    unknown: tuple[str, ...],
    operator: Callable[[Any], Any],
    x: Any,
) -> Any:
    """Return ``operator(x)`` for an operator that moves pixels; as another dtype if it does not
    know this one."""
    if dtype.name not in unknown:
        return operator(x)
    types, fn = dali.types, dali.fn
    raw, back = getattr(types, RAW[dtype.name]), getattr(types, DALI_DTYPES[dtype.name])
    return fn.reinterpret(operator(fn.reinterpret(x, dtype=raw)), dtype=back)


def moved_dtype(dtype: np.dtype[Any], unknown: tuple[str, ...]) -> str:
    """Return DALI's name of the dtype that the operator of ``move_pixels`` gets."""
    if dtype.name in unknown:
        return RAW[dtype.name]
    return DALI_DTYPES[dtype.name]


def to_float16(dali: ModuleType, x: Any, device: str) -> Any:
    """Return a float32 DataNode as float16, halves to even.

    DALI's CPU rounds halves away from zero (2.4; its GPU to even), so there the 13 bits that
    float16 has not are rounded off first. Numbers below 6.1e-5, which float16 has with fewer bits,
    may still differ by 6e-8.
    """
    if device == "cpu":
        bits = dali.fn.reinterpret(x, dtype=dali.types.UINT32)
        lowest_bit, last, keep = (
            dali.types.Constant(np.uint32(word)) for word in (1, 0xFFF, 0xFFFFE000)
        )
        bits = (bits + ((bits >> dali.types.Constant(np.uint32(13))) & lowest_bit) + last) & keep
        x = dali.fn.reinterpret(bits, dtype=dali.types.FLOAT)
    return dali.fn.cast(x, dtype=dali.types.FLOAT16)


def to_three_axes(field: Field) -> str:
    """Return the op, as text, that gives images of two axes one of a single channel."""
    if field.uniform:
        return f"gl.ops.Reshape({(*field.fixed_shape, 1)}, on={field.name!r})"
    out = "{'shape': (None, None, 1)}"
    return f"gl.ops.Python(lambda pixels: pixels[..., None], out={out}, on={field.name!r})"


def _remedy(field: Field) -> str:
    shape = field.shape
    if shape is not None and len(shape) == 2 and (shape == (None, None) or None not in shape):
        return f"put {to_three_axes(field)} before it"
    if shape is not None and (len(shape) == 1 or field.ragged):
        return (
            f"leave {field.name!r} out of on=; boxes and points that are marked, source.mark({field.name}='xyxy') say, "
            "go with their image; what else changes with it changes in gl.ops.Python, see docs/own-op.md"
        )
    return f"name the image field with on=, or give {field.name!r} three axes with gl.ops.Reshape"

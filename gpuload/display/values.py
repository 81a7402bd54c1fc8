"""Values: single values of a batch as cells of a table, a picture or a text, and fields of a batch
as a text.

Values may be arrays of NumPy, CuPy or any framework, on any device. The part to be shown is cut out
where the value is, and this part alone is copied to the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.display import markup
from gpuload.display.pictures import Pixels, enlarge, object_labels, rgb_pixels
from gpuload.errors import GpuloadError
from gpuload.images import decode
from gpuload.images import head as heads
from gpuload.ragged import Ragged
from gpuload.spec import INSTANCES, MASK, NUMBERS, Field, Spec

LEAST_SIDE, MOST_SIDE = 64, 112  # pixels of a picture
SAMPLES = 2  # along each side, that a pixel of a small picture is the mean of
LEAST_PLANE = 8  # pixels of each side of a matrix that is shown as a picture
MOST_FILE, MOST_PIXELS = 1 << 25, 1 << 26  # bytes and pixels of an encoded image that is decoded
MOST_OBJECTS = 64  # masks of objects in a picture
MOST_NUMBERS, MOST_TEXT = 6, 120  # numbers of an array, characters of a text


def field_of(name: str, values: Any, spec: Spec | None) -> Field:
    """Return a field of a batch: that of the spec, or one that is found by its values."""
    if spec is not None and name in spec:
        return spec[name]
    if hasattr(values, "shape"):
        shape = tuple(values.shape[1:])
    else:
        shape = None
    return Field(name, np.dtype(np.uint8), shape)


def field_text(values: Any, field: Field) -> str:
    """Return library, dtype, shape and axes of the values of a field:
    ``"uint8 (32, 224, 224, 3) NHWC"``."""
    if isinstance(values, Ragged):
        lengths = ", ".join(map(str, (len(values), None, *values.payload.shape[1:])))
        return f"{_library(values.payload)}{values.dtype} ({lengths}), {len(values.flat)} elements"
    if isinstance(values, (list, tuple)):
        return " ".join(filter(None, [f"list of {len(values)} arrays", field.axes, field.mark]))
    shape = getattr(values, "shape", None)
    if shape is None:
        return type(values).__name__
    dtype, text = values.dtype, str(values.dtype)
    # That of TensorFlow has a name; that of PyTorch is "torch.float32" as a text.
    if isinstance(dtype, np.dtype):
        title = text
    else:
        title = getattr(dtype, "name", text.rpartition(".")[2])
    if field.axes and len(field.axes) + 1 == len(shape):
        axes = f"N{field.axes}"
    else:
        axes = ""
    return " ".join(filter(None, [f"{_library(values)}{title} {tuple(shape)}", axes, field.mark]))


def _library(values: Any) -> str:
    """Return the name of the library of an array and a space; of NumPy, which is the usual one,
    nothing."""
    names = (base.__module__.partition(".")[0].removesuffix("lib") for base in type(values).__mro__)
    name = next(
        name for name in names if name != "gpuload"
    )  # which has arrays of CuPy that know their lane
    if name in ("numpy", "builtins"):
        return ""
    return f"{name} "


def cell(values: Any, row: int, field: Field) -> str:
    """Return the value of a record as HTML: a picture if it is an image, else a text; or why it
    cannot be shown."""
    try:
        value = values[row]
        if field.encoded:
            return _file_cell(value, field.name)
        picture = _picture(value, image_axes(value, field), is_mask=field.kind in (MASK, INSTANCES))
        if picture is None:
            return markup.escape(_text(value))
        return markup.image(picture, field.name)
    except Exception as error:  # of any library
        if isinstance(error, GpuloadError):
            cause = error.cause or error.what
        else:
            cause = str(error)
        return markup.escape(f"cannot be shown: {type(error).__name__}: {cause}"[:MOST_TEXT])


def _file_cell(value: Any, name: str) -> str:
    """Return an encoded image as a picture; a large one, which is not decoded for a look, as a
    text."""
    if len(value) > MOST_FILE:
        return f"image file of {len(value):,} bytes"
    data = np.ascontiguousarray(_to_host(value))
    head = heads.read(data)
    title = f"{heads.FORMATS[head.kind].title}, {head.height} x {head.width}"
    if head.height * head.width > MOST_PIXELS:
        return title
    picture = _picture(decode.decode(data, head, "RGB"), "HWC", is_mask=False)
    if picture is None:
        return title
    return markup.image(picture, name) + markup.lines([title])


def _picture(value: Any, axes: str, *, is_mask: bool) -> Pixels | None:
    """Return a value as a picture; None if it is no image.

    Args:
        value: on any device.
        axes: of the value, from `image_axes`; "" if it is no image.
        is_mask: its numbers are labels.
    """
    shape = dict(zip(axes, getattr(value, "shape", ()), strict=False))
    if not shape or 0 in shape.values():
        return None
    image = middle_plane(value, axes, max(1, max(shape["H"], shape["W"]) // (SAMPLES * MOST_SIDE)))
    if image.dtype.kind not in NUMBERS:
        return None
    step = max(1, -(-max(image.shape[:2]) // MOST_SIDE))
    return enlarge(rgb_pixels(image, step, is_mask=is_mask)[0], LEAST_SIDE)[0]


def middle_plane(value: Any, axes: str, step: int = 1) -> NDArray[Any]:
    """Return an image as it is shown, on the host, ``[height, width, channels]``.

    Args:
        value: on any device, with at least one pixel; of slices the middle one is shown, of masks
            of objects the first `MOST_OBJECTS` as labels, of other than 3 channels the first one.
        axes: of the value, from `image_axes`.
        step: 1 for all rows and columns, 2 for every second one, and so on.
    """
    shape, lines = dict(zip(axes, value.shape, strict=True)), slice(None, None, step)
    if shape.get("C") == 3:
        channels = slice(None)
    else:
        channels = slice(1)
    parts = {
        "H": lines,
        "W": lines,
        "C": channels,
        "D": middle_slice(shape.get("D", 0)),
        "N": slice(MOST_OBJECTS),
    }
    image = _to_host(value[tuple(parts[axis] for axis in axes)])
    if axes == "NHW":
        return object_labels(image)
    if "C" not in axes:
        return image[..., None]
    if axes == "CHW":
        return np.moveaxis(image, 0, -1)
    return image


def middle_slice(count: int) -> int:
    """Return the number of the slice that is shown of so many."""
    return count // 2


def image_axes(value: Any, field: Field) -> str:
    """Return the axes of a value that is an image, ``"HWC"`` say, of masks of objects ``"NHW"``; ""
    for any other."""
    shape = tuple(getattr(value, "shape", ()))
    if field.kind == INSTANCES:
        axes = "NHW"
    elif field.holds_boxes or field.holds_points or field.rows_of:
        axes = ""
    elif field.is_volume:
        axes = field.axes or "DHWC"
    elif len(shape) == 2:
        if min(shape) >= LEAST_PLANE and field.axes in ("", "HW"):
            axes = "HW"
        else:
            axes = ""
    else:
        axes = field.axes or ("CHW" if field.is_channels_first else "HWC")
    if len(axes) == len(shape) and {"H", "W"} <= set(axes) <= set("NDHWC"):
        return axes
    return ""


def _text(value: Any) -> str:
    """Return the beginning of a value, and its shape where it is longer."""
    if isinstance(value, (str, bytes)):
        text = repr(value[:MOST_TEXT])
        if len(value) <= MOST_TEXT:
            return text
        return f"{text} ... ({len(value):,} long)"
    shape = tuple(getattr(value, "shape", ()))
    if not shape:
        return str(_to_host(value)[()])[:MOST_TEXT]
    if 0 in shape:
        return f"empty {shape}"
    first = _to_host(value[(*(0,) * (len(shape) - 1), slice(MOST_NUMBERS))])
    text = " ".join(np.array2string(first, precision=4, separator=", ").split())[:MOST_TEXT]
    if len(shape) == 1 and shape[0] <= MOST_NUMBERS:
        return text
    return f"{text[:-1]}, ...] {shape}"


def _to_host(value: Any) -> NDArray[Any]:
    """Return an array of any library as one of NumPy."""
    if hasattr(value, "get"):  # of CuPy, which is copied by a call alone
        value = value.get()
    elif hasattr(value, "detach"):  # of PyTorch, too, where it is on a GPU or has a gradient
        value = value.detach().cpu()
    return np.asarray(value)

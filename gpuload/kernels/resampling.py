"""Resampling: DALI's ``fn.resize`` as arithmetic, so that every executor gives the same pixels.

Formula  Two passes, down the columns and along the rows, each a sum of ``support`` pixels times
         coefficients; float32 between the passes. Output pixel ``i`` is centred on
         ``(i + 0.5) * n_in / n_out - 0.5``; pixels outside the image are those of its edge. The
         filter is a table with linear interpolation between its entries (3 entries for linear, 129
         for cubic with a = -0.5, 193 for lanczos with a = 3), its coefficients divided by their
         sum. With ``antialias`` it is as many times wider as the image becomes smaller. uint8
         results are rounded to nearest, halves to even.
Passes   The order is the one with the smaller cost of DALI 2.4, because the sums are rounded in
         between: 3 per intermediate pixel, 1 per vertical and 1.4 per horizontal product;
         horizontal first where they are equal.
Nearest  Source row floor of 0.5 s + s + s + ... (float32 sums), source column floor of (i + 0.5) *
         s, with s = n_in / n_out: DALI's CPU form.
Source   Read in DALI (Apache-2.0), dali/kernels/imgproc/resample/: resampling_setup.cc,
         resampling_impl_cpu.{h,cc}, resampling_filters.cu, and written anew; the weight 1.4 was
         found by measurement with DALI 2.4.
Equals   DALI's CPU float32 results bit for bit, and its uint8 results but for exact halves in the
         last few pixels of a row, which DALI rounds away from zero: one level, on up to 0.006 % of
         the values of noise, and on up to 0.02 % of smooth images, which have more of these halves
         (measured with DALI 2.4, images of 120 x 160 and JPEGs).
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import core, device
from gpuload.core.face import Taps
from gpuload.errors import SpecError
from gpuload.kernels import cuda, pixels, walk

Box = tuple[int, int, int, int]  # top, left, height, width
Boxes = NDArray[np.integer[Any]]
IMAGE = np.dtype([  # an image for the kernel ``resize``: its address, the elements from row to row, ...
    ("address", "i8"), ("down", "i8"), ("across", "i8"), ("deep", "i8"), ("out", "i8"),
    ("channels", "i4"), ("vertical", "i4"), ("horizontal", "i4"), ("vertical_first", "i4"),
])  # fmt: skip
AXIS = np.dtype([  # of an axis: where its pixels and weights begin, pixels before and behind, and the filter's place
    ("first", "i8"), ("weights", "i8"), ("inside", "i4"), ("outside", "i4"), ("support", "i4"), ("vertical", "i4"),
    ("step", "f4"), ("base", "f4"), ("scale", "f4"), ("unused", "i4"),
])  # fmt: skip

SINE_COSINE = (  # the polynomials in x * x of sin(x) / x and cos(x), up to pi / 4; the highest power comes first
    ("-0x1.994eb3774cf24p-13", "0x1.1107605230bc4p-7", "-0x1.555545995a603p-3", "0x1p0"),
    (
        "0x1.99343027bf8c3p-16",
        "-0x1.6c087e89a359dp-10",
        "0x1.55553e1068f19p-5",
        "-0x1.ffffffd0c621cp-2",
        "0x1p0",
    ),
)

f32 = np.float32
HORIZONTAL_WEIGHT = float(f32(1.4))
SIZE_WEIGHT = 3.0
KEPT_TAPS, KEPT_NUMBERS = (
    2048,
    1 << 13,
)  # so many tables of at most so many numbers: 67 MB; 224 pixels take 1,000


class Resampling(NamedTuple):
    """A resize of boxes of images, one of each.

    Attributes:
        boxes: int32 ``[N, 4]``: top, left, height and width of the part to resize, pixels; others
            are not used.
        sizes: int32 ``[N, 2]``: height and width of the result, pixels.
        interpolation: ``"linear"``, ``"cubic"``, ``"lanczos"`` or ``"nearest"``.
        antialias: see ``filter_of``.
    """

    boxes: NDArray[np.int32]
    sizes: NDArray[np.int32]
    interpolation: str
    antialias: bool


def _cubic(entries: int = 129) -> NDArray[np.float32]:
    x = np.abs(
        f32(4) * (np.arange(entries, dtype=f32) - f32((entries - 1) * 0.5)) / f32(entries - 1)
    )
    square = x * x
    cube = square * x
    outer = f32(-0.5) * cube + f32(2.5) * square - f32(4) * x + f32(2)
    inner = f32(1.5) * cube - f32(2.5) * square + f32(1)
    return np.where(x >= 2, f32(0), np.where(x > 1, outer, inner)).astype(f32)


def _lanczos(entries: int = 193) -> NDArray[np.float32]:
    x = f32(6) * (np.arange(entries, dtype=f32) - f32((entries - 1) * 0.5)) / f32(entries - 1)
    return np.where(np.abs(x) >= 3, f32(0), _sinc(x) * _sinc(x / f32(3))).astype(f32)


def _sinc(x: NDArray[np.float32]) -> NDArray[np.float32]:
    angle = (x.astype(np.float64) * np.pi).astype(f32)
    is_small = np.abs(angle) < f32(1e-5)
    sine = _sine(angle.astype(np.float64)).astype(f32)
    return np.where(is_small, f32(1), sine / np.where(is_small, f32(1), angle)).astype(f32)


def _sine(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sine of numbers, to 2**-26, by the polynomials of glibc's ``sinf``: DALI's table
    has its last bits."""
    quarters = np.rint(x / (np.pi / 2))
    rest = x - quarters * (np.pi / 2)
    sine, cosine = (
        np.polyval([float.fromhex(number) for number in numbers], rest * rest)
        for numbers in SINE_COSINE
    )
    result = np.where(quarters % 2 == 0, rest * sine, cosine)
    return np.asarray(np.where(quarters % 4 < 2, result, -result))


TABLES: dict[str, NDArray[np.float32]] = {
    "linear": np.array([0, 1, 0], f32),
    "cubic": _cubic(),
    "lanczos": _lanczos(),
}
# Of the filter, in source pixels, where the image does not become smaller.
WIDTHS = {"linear": 2.0, "cubic": 4.0, "lanczos": 6.0}


def filter_of(n_in: Any, n_out: Any, interpolation: str, antialias: bool) -> tuple[Any, Any, Any]:
    """Return the filter's scale (table entries per pixel), its anchor (pixels) and its support
    (pixels).

    Args:
        n_in: pixels before; a number, or an array of them.
        n_out: pixels behind, likewise.
        interpolation: ``"linear"``, ``"cubic"`` or ``"lanczos"``.
        antialias: whether the filter becomes wider where the image becomes smaller.
    """
    before, behind = np.asarray(n_in, f32), np.asarray(n_out, f32)
    shrink = np.where((before > behind) & antialias, before / behind, f32(1))
    size = np.maximum(f32(1), f32(WIDTHS[interpolation]) * shrink)
    entries = f32(len(TABLES[interpolation]) - 1)
    scale = entries / size
    return scale, entries * f32(0.5) / scale, np.ceil(entries / scale).astype(np.int64)


def _begin(step: Any, anchor: Any) -> Any:
    """Return where the filter of the first output pixel begins, in source pixels."""
    return f32(0.5) * step - f32(0.5) - anchor


def _pad_table(interpolation: str) -> NDArray[np.float32]:
    """Return the table with one entry before it and two behind it, that are 0."""
    return np.concatenate([[f32(0)], TABLES[interpolation], [f32(0), f32(0)]]).astype(f32)


def taps(n_in: int, n_out: int, interpolation: str, antialias: bool) -> Taps:
    """Return for each output pixel its first source pixel ``[n_out]`` and its coefficients
    ``[n_out, support]``."""
    scale, anchor, support = filter_of(n_in, n_out, interpolation, antialias)
    table = TABLES[interpolation]
    step = f32(n_in) / f32(n_out)
    position = np.arange(n_out, dtype=f32) * step + _begin(step, anchor)
    first = np.ceil(position).astype(np.int32)
    place = ((first.astype(f32) - position)[:, None] + np.arange(support, dtype=f32)) * scale
    below = np.floor(place).astype(np.int32)
    entries = _pad_table(interpolation)
    at = (below + 1).clip(0, len(table) + 1)
    coefficients = entries[at] + (place - below.astype(f32)) * (entries[at + 1] - entries[at])
    coefficients = np.where((place > -1) & (place < len(table)), coefficients, f32(0))
    total = np.zeros(n_out, f32)
    # One by one, in DALI's order: ``sum`` adds in pairs.
    for k in range(support):
        total += coefficients[:, k]
    return first, np.asarray(coefficients / np.where(total == 0, f32(1), total)[:, None], f32)


def vertical_first(size: tuple[Any, Any], new: tuple[Any, Any], supports: tuple[Any, Any]) -> Any:
    """Return True if the vertical pass comes first; sizes and supports are (vertical,
    horizontal)."""
    vertical, horizontal, area = new[0] * size[1], size[0] * new[1], new[0] * new[1]
    cost_vertical = (
        SIZE_WEIGHT * vertical + vertical * supports[0] + HORIZONTAL_WEIGHT * area * supports[1]
    )
    cost_horizontal = (
        SIZE_WEIGHT * horizontal + HORIZONTAL_WEIGHT * horizontal * supports[1] + area * supports[0]
    )
    return cost_vertical < cost_horizontal


def nearest(n_in: int, n_out: int, axis: int) -> NDArray[np.int32]:
    """Return the source row (axis 0) or column (axis 1) of each output one."""
    step = f32(n_in) / f32(n_out)
    if axis == 0:
        # DALI's CPU form adds the step up row by row, with a rounding at each, but multiplies it
        # for columns.
        steps = np.full(n_out, step, f32)
        steps[0] = f32(0.5) * step
        position = np.add.accumulate(steps, dtype=f32)
    else:
        position = (np.arange(n_out, dtype=f32) + f32(0.5)) * step
    return np.floor(position).astype(np.int32).clip(0, n_in - 1)


def resize(
    xp: ModuleType, image: Any, new: tuple[int, int], interpolation: str, antialias: bool
) -> Any:
    """Return an image ``[height, width, channels]``, uint8 or float32, resized to ``new`` (height,
    width)."""
    size = image.shape[:2]
    if interpolation == "nearest":
        rows, columns = (xp.asarray(nearest(size[axis], new[axis], axis)) for axis in (0, 1))
        return image[rows[:, None], columns]
    filters = [_taps(size[axis], new[axis], interpolation, antialias) for axis in (0, 1)]
    supports = (filters[0][1].shape[1], filters[1][1].shape[1])
    result = image.astype(xp.float32)
    axes = (0, 1) if vertical_first(size, new, supports) else (1, 0)
    for axis in axes:
        result = _pass(xp, result, axis, *filters[axis])
    if image.dtype == np.uint8:
        return to_uint8(xp, result)
    return result


def _begins(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each of some pieces begins that lie one after the other."""
    return np.asarray(np.cumsum(lengths, dtype=np.int64) - lengths)


def to_uint8(xp: ModuleType, x: Any) -> Any:
    """Round float32 to uint8, halves to even, and bound it."""
    return xp.rint(x).clip(0, 255).astype(xp.uint8)


def _pass(
    xp: ModuleType, x: Any, axis: int, first: NDArray[np.int32], coefficients: NDArray[np.float32]
) -> Any:
    total: Any = None
    shape = [1, 1, 1]
    shape[axis] = -1
    for k in range(coefficients.shape[1]):
        source = xp.asarray((first + k).clip(0, x.shape[axis] - 1))
        weight = xp.asarray(coefficients[:, k]).reshape(shape)
        product = weight * x.take(source, axis=axis)
        if total is None:
            total = product
        else:
            total = total + product
    return total


def resize_batch(
    xp: ModuleType, images: Any, boxes: Boxes, new: Boxes, interpolation: str, antialias: bool
) -> Any:
    """Return boxes of images of any sizes, resized on a GPU: the same as ``resize`` of each, by two
    kernels.

    Args:
        xp: CuPy; the kernels are queued on its current stream.
        images: an array ``[N, height, width, channels]``, a ``Ragged`` or a list of N images; N at
            least 1.
        boxes: int ``[N, 4]``, top, left, height and width of each box, inside its image; pixels.
        new: int ``[N, 2]``, height and width of each result.
        interpolation: ``"linear"``, ``"cubic"``, ``"lanczos"`` or ``"nearest"``.
        antialias: see ``filter_of``.

    Returns:
        An array ``[N, new height, new width, channels]`` where all results have one size, else a
        list of arrays.
    """
    dtype = np.dtype(images[0].dtype)
    table, shapes = np.zeros(len(images), IMAGE), np.empty((len(images), 3), np.int64)
    for name, numbers in zip(
        ("address", "down", "across", "deep", "channels"), walk.strides_of(images), strict=True
    ):
        table[name] = numbers
    shapes[:, :2], shapes[:, 2] = new, table["channels"]
    table["address"] += (
        boxes[:, 0] * table["down"] + boxes[:, 1] * table["across"]
    ) * dtype.itemsize
    sizes = shapes.prod(axis=1)
    blocks_of_images = cuda.blocks(int(sizes.max()), len(table))
    table["out"] = _begins(sizes)
    before = boxes[:, 2:].astype(np.int64)
    axes, rows_of_axes = _axes(before, shapes[:, :2], interpolation, antialias)
    table["vertical"], table["horizontal"] = rows_of_axes
    supports = [axes["support"].astype(np.int64)[rows] for rows in rows_of_axes]
    size, new_size = ((length[:, 0], length[:, 1]) for length in (before, shapes))
    table["vertical_first"] = vertical_first(size, new_size, (supports[0], supports[1]))

    is_nearest = interpolation == "nearest"
    if is_nearest:
        filters = np.empty(0, f32)
    else:
        filters = _pad_table(interpolation)
    arguments = device.parameters(
        np.concatenate([part.view(np.uint8) for part in (table, axes, filters)])
    )
    on_axes = arguments[table.nbytes :]
    if is_nearest:
        on_filters, entries = 0, np.int32(0)
    else:
        on_filters, entries = on_axes[axes.nbytes :], np.int32(len(TABLES[interpolation]))
    first = xp.empty(int(axes["outside"].sum()), xp.int32)
    weights = xp.empty(int(axes["outside"].astype(np.int64) @ axes["support"]), xp.float32)
    out = xp.empty(int(sizes.sum()), dtype)
    source = cuda.resize(dtype, nearest=is_nearest)
    blocks = cuda.blocks(int(axes["outside"].max()), len(axes))
    device.kernel(source, "taps")(
        (blocks * len(axes),),
        (cuda.THREADS,),
        (on_axes, first, weights, on_filters, entries, np.int32(blocks)),
    )
    arguments_of_images = arguments, on_axes, first, weights, out, np.int32(blocks_of_images)
    device.kernel(source, "resize")(
        (blocks_of_images * len(table),), (cuda.THREADS,), arguments_of_images
    )
    return pixels.views(out, shapes)


def _axes(
    inside: NDArray[np.int64], outside: NDArray[np.int64], interpolation: str, antialias: bool
) -> Any:
    """Return the axes that a batch is resized along, each once, and which are the vertical and
    horizontal ones.

    Args:
        inside: ``[N, 2]``, height and width of each box.
        outside: ``[N, 2]``, of each result.
        interpolation: as of ``resize_batch``.
        antialias: likewise.

    Returns:
        ``AXIS`` ``[M]``; and for each image which of them is its vertical and which its horizontal
        one, int64 ``[N]``.
    """
    keys = [(inside[:, i] << 32) | (outside[:, i] << 1) | (i == 0) for i in (0, 1)]
    distinct, numbers = np.unique(np.concatenate(keys), return_inverse=True)
    axes = np.zeros(len(distinct), AXIS)
    axes["inside"], axes["outside"] = distinct >> 32, (distinct & 0xFFFFFFFF) >> 1
    axes["vertical"] = distinct & 1
    axes["step"] = axes["inside"].astype(f32) / axes["outside"].astype(f32)
    if interpolation == "nearest":
        axes["support"] = 1
    else:
        axes["scale"], anchor, axes["support"] = filter_of(
            axes["inside"], axes["outside"], interpolation, antialias
        )
        axes["base"] = _begin(axes["step"], anchor)
    axes["first"] = _begins(axes["outside"])
    axes["weights"] = _begins(axes["outside"].astype(np.int64) * axes["support"])
    return axes, np.split(numbers.reshape(-1), 2)


def resize_into(
    image: NDArray[Any], box: Box, interpolation: str, antialias: bool, out: NDArray[Any]
) -> None:
    """Write a box of an image, resized, to ``out``, by the core: the same as ``resize``, not for
    nearest.

    Args:
        image: uint8 or float32 ``[height, width, channels]``, C-contiguous.
        box: the part of the image that is resized; pixels outside of it are not used.
        interpolation: ``"linear"``, ``"cubic"`` or ``"lanczos"``.
        antialias: see ``filter_of``.
        out: of the image's dtype, ``[new height, new width, channels]``, C-contiguous.

    Raises:
        SpecError: the box does not lie in the image, or the arrays have other dtypes, shapes or
            orders.
        RuntimeError: there is no core.
    """
    _check(image, box, out)
    if core.native is None:
        raise RuntimeError(f"resize_into: {core.problem}")
    if not image.flags.aligned:  # a field of a record may begin at any byte
        image = image.copy()
    (top, left, height, width), (new_height, new_width, _) = box, out.shape
    vertical = _taps(height, new_height, interpolation, antialias)
    horizontal = _taps(width, new_width, interpolation, antialias)
    supports = (vertical[1].shape[1], horizontal[1].shape[1])
    first = vertical_first((height, width), (new_height, new_width), supports)
    pixels = image[top : top + height, left : left + width]
    core.native.resize(pixels, vertical, horizontal, first, out)


def _check(image: NDArray[Any], box: Box, out: NDArray[Any]) -> None:
    top, left, height, width = box
    inside = (
        image.ndim == 3
        and 0 <= top < top + height <= image.shape[0]
        and 0 <= left < left + width <= image.shape[1]
    )
    fits = image.dtype == out.dtype and image.dtype in (np.uint8, np.float32)
    fits = fits and out.ndim == 3 and out.size > 0 and image.shape[-1] == out.shape[-1]
    if not (inside and fits and image.flags.c_contiguous and out.flags.c_contiguous):
        raise SpecError(
            f"resize {height} x {width} pixels at {top}, {left} of an image {image.dtype} {image.shape} "
            f"to {out.dtype} {out.shape}",
            cause="the pixels do not lie in the image, or the two are not C-contiguous images of one kind",
            remedy="give a draw that was made for images of this size",
        )


def _taps(n_in: int, n_out: int, interpolation: str, antialias: bool) -> Taps:
    """Return ``taps``, cached for the next call unless they are large."""
    numbers = n_out * (
        WIDTHS[interpolation] * max(1.0, n_in / n_out) + 2
    )  # a few more than there are
    if numbers > KEPT_NUMBERS:
        return taps(n_in, n_out, interpolation, antialias)
    return _cached_taps(n_in, n_out, interpolation, antialias)


_cached_taps = lru_cache(maxsize=KEPT_TAPS)(taps)

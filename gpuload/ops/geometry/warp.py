"""Warp: pixels of an image taken at other places of it, by a matrix: the common part of geometric
ops.

Affine        Six numbers, a row each for x and y, map pixels of the result to the image; both count
              from their centres.
Perspective   Eight numbers a to h: x = (a x' + b y' + c) / (g x' + h y' + 1), y likewise by d, e,
              f; from the corner.
Arithmetic    float32, as torchvision computes it: of each place ``x' a`` is rounded, ``y' b`` is
              added in one rounding, then ``c``; it is divided by half the image's size, and scaled
              back to pixels in one rounding.
Nearest       The nearest pixel, halves to even; the fill where it lies outside.
Linear        Four pixels times their weights, each added in one rounding, those outside as 0; then
              the result is ``(sum - fill) * weight + fill``, with ``weight`` the sum of the weights
              of pixels inside. So pixels at the border are not a blend of image and fill: with fill
              0 they are darker, as torchvision's are. Integers are rounded to nearest, halves to
              even.
Source        torchvision 0.28 (BSD-3-Clause), `transforms.v2.functional`: affine, rotate,
              perspective on tensors; and `grid_sample` of PyTorch 2.13 with padding_mode="zeros",
              align_corners=False.
Equals        These on a CPU with fused multiply and add, every value of integers
              (`tests/ops/test_warp.py`). A sum in one rounding is made in float64 here, which
              differs from a fused one in fewer than one of 10**8 sums. On processors of AMD torch's
              product of matrices is not fused (2.13, MKL): there 7 of 10**6 values differ, of
              perspectives 2 of 10**4, by one level, or as another one of two pixels that are
              equally near.
Others        Pillow's (`kernels.pillow`), which timm's and torchvision's policies use on images of
              Pillow, moves pixels in fixed-point numbers and cuts fractions off. Keras'
              RandomRotation fills by reflection, Albumentations' Affine and DALI's warp_affine
              blend the border with the fill.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import core, device
from gpuload.errors import SpecError
from gpuload.kernels import cuda, pixels, walk
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Op, Points
from gpuload.ops.crop import window
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Geometric, Traits, once
from gpuload.spec import Field

INTERPOLATIONS = ("nearest", "linear")
LINEAR_DTYPES = (
    "uint8",
    "uint16",
    "float32",
)  # float32 has all of their values, and the sums between them
AFFINE, PERSPECTIVE = 6, 8  # numbers of a matrix
IDENTITY = {AFFINE: (1, 0, 0, 0, 1, 0), PERSPECTIVE: (1, 0, 0, 0, 1, 0, 0, 0)}

IMAGE = np.dtype([  # the kernel's description of an image: its address, the elements from row to row, ...
    ("address", "i8"), ("down", "i8"), ("across", "i8"), ("deep", "i8"), ("out", "i8"), ("height", "i4"),
    ("width", "i4"), ("new_height", "i4"), ("new_width", "i4"), ("channels", "i4"), ("is_same", "i4"),
    ("matrix", "f4", 8),
])  # fmt: skip

Interpolation = str | dict[str, str]  # one for all fields, or by the names of fields
Color = float | tuple[float, ...]
Fill = Color | dict[str, Color]
Matrix = NDArray[np.float32]

f32, f64 = np.float32, np.float64


@dataclass(frozen=True)
class Warp(Op):
    """An op that draws ``matrix``, float32 ``[N, 6]`` or ``[N, 8]``, and takes the pixels of its
    result there.

    Where the size of the result differs from the image's, it also draws ``size``: int32 ``[N, 2]``.
    """

    interpolation: Interpolation = field(default="nearest", hash=False, kw_only=True)
    fill: Fill = field(default=0, hash=False, kw_only=True)

    per_field: ClassVar[tuple[str, ...]] = ("interpolation", "fill")

    def __post_init__(self) -> None:
        super().__post_init__()

        def word(op: Op, name: str, value: object) -> str:
            return arguments.choice(op, name, value, INTERPOLATIONS)

        default = next(
            argument.default
            for argument in self.__dataclass_fields__.values()
            if argument.name == "interpolation"
        )
        arguments.keep(
            self,
            interpolation=arguments.by_field(
                self, "interpolation", self.interpolation, word, default
            ),
            fill=arguments.by_field(self, "fill", self.fill, arguments.numbers, 0.0),
        )

    @property
    @once
    def traits(self) -> Traits:
        """It moves pixels."""
        return Traits(geometric=Geometric(self._move_points))

    def forms(self, field: Field) -> Forms:
        """A form for single records is in the core."""
        if core.native is None:
            return Forms()
        return Forms(row=self._warp_into)

    def field_after(self, field: Field) -> Field:
        """Shape and dtype stay."""
        shape = images.image(self, field)
        self._check_dtype(field)
        window.check_colors(self, field, self._sampling[1], shape[2])
        return field.with_(shape=shape, axes="HWC")

    def _move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """Where the inverse of the matrix takes them."""
        return move_points(points, draw["matrix"], size, draw.get("size", size))

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, its pixels taken where the matrix says."""
        return warp(xp, x, draw["matrix"], self._size(x, draw), *self._sampling)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once, on a GPU by a kernel."""
        if not device.compiles(xp) or not len(x):
            return super().array_batch(xp, x, draw)
        return warp_batch(xp, x, draw["matrix"], draw.get("size"), *self._sampling)

    def _warp_into(self, x: NDArray[Any], draw: Draw, out: NDArray[Any]) -> None:
        warp_into(x, draw["matrix"], *self._sampling, out)

    @property
    def _sampling(self) -> tuple[str, Color]:
        """The interpolation and the fill of an op as it acts on one field."""
        if isinstance(self.interpolation, dict) or isinstance(self.fill, dict):
            raise RuntimeError(f"{self} is asked for one field without op.of(name)")
        return self.interpolation, self.fill

    def _size(self, x: Any, draw: Draw) -> tuple[int, int]:
        if "size" in draw:
            height, width = draw["size"].tolist()
        else:
            height, width = x.shape[:2]
        return height, width

    def _check_dtype(self, field: Field) -> None:
        if self._sampling[0] == "linear" and field.dtype.name not in LINEAR_DTYPES:
            raise SpecError(
                f"{self}: field {field.name!r} has dtype {field.dtype}",
                cause=f"pixels are blended as {', '.join(LINEAR_DTYPES)}; labels are taken by interpolation='nearest'",
                remedy=f"write interpolation={{{field.name!r}: 'nearest'}}, or put gl.ops.Cast('float32', "
                f"on={field.name!r}) before it",
            )


def warp(
    xp: ModuleType,
    x: Any,
    matrix: Matrix,
    size: tuple[int, int],
    interpolation: str = "nearest",
    fill: Color = 0,
) -> Any:
    """Return an image of pixels that are taken from ``x`` where a matrix says.

    Args:
        xp: NumPy or CuPy.
        x: ``[H, W, C]``; uint8, uint16 or float32 for ``"linear"``, else any dtype.
        matrix: float32 ``[6]`` or ``[8]``, on the host.
        size: height and width of the result, pixels.
        interpolation: ``"nearest"`` or ``"linear"``.
        fill: the value outside: a number, or one for each channel.

    Returns:
        ``[height, width, C]`` of the dtype of ``x``.
    """
    if _is_identity(matrix):
        return x
    return sample(xp, x, *places(xp, matrix, x.shape[:2], size), interpolation, fill)


def warp_batch(
    xp: ModuleType,
    x: Any,
    matrix: Matrix,
    size: NDArray[np.int32] | None,
    interpolation: str,
    fill: Color,
) -> Any:
    """Return images of any sizes warped on a GPU: the same as ``warp`` of each, by one kernel.

    Args:
        xp: CuPy; the kernel is queued on its current stream.
        x: an array ``[N, height, width, channels]``, a ``Ragged`` or a list of N images; N at least
            1.
        matrix: float32 ``[N, 6]`` or ``[N, 8]``, on the host.
        size: int32 ``[N, 2]``, height and width of each result; None: those of the images.
        interpolation: see ``warp``.
        fill: see ``warp``.

    Returns:
        An array ``[N, new height, new width, channels]`` where all results have one size, else a
        list of arrays.
    """
    dtype, is_nearest, count = np.dtype(x[0].dtype), interpolation == "nearest", matrix.shape[1]
    table = np.zeros(len(x), IMAGE)
    for name, numbers in zip(
        ("address", "down", "across", "deep", "channels"), walk.strides_of(x), strict=True
    ):
        table[name] = numbers
    before = walk.sizes(x)
    table["height"], table["width"] = before.T
    after = before if size is None else size
    table["new_height"], table["new_width"] = after.T
    table["matrix"][:, :count] = matrix
    table["is_same"] = (matrix == IDENTITY[count]).all(axis=1)
    shapes = np.stack([table["new_height"], table["new_width"], table["channels"]], axis=1).astype(
        np.int64
    )
    lengths = shapes.prod(axis=1)
    table["out"] = np.cumsum(lengths) - lengths
    fills = np.full(int(shapes[0, 2]), fill, f32)
    if is_nearest:
        fills = np.full(len(fills), fill, dtype)
    uploads = device.parameters(np.concatenate([table.view(np.uint8), fills.view(np.uint8)]))
    blocks = cuda.blocks(int(lengths.max()), len(table))
    out = xp.empty(int(lengths.sum()), dtype)
    device.kernel(cuda.warp(dtype, nearest=is_nearest), "warp")(
        (blocks * len(table),), (cuda.THREADS,),
        (uploads, uploads[table.nbytes :], out, np.int32(count == AFFINE), np.int32(blocks)),
    )  # fmt: skip
    return pixels.views(out, shapes)


def _is_identity(matrix: Matrix) -> bool:
    """Return True if nothing is to be done: float32 images stay as they are, where to sample them
    would round."""
    return tuple(matrix.tolist()) == IDENTITY[len(matrix)]


def places(
    xp: ModuleType, matrix: Matrix, before: tuple[int, int], after: tuple[int, int]
) -> tuple[Any, Any]:
    """Return the columns and the rows of an image at which the pixels of a result are taken,
    float32 ``[H, W]``.

    Args:
        xp: NumPy or CuPy.
        matrix: see ``warp``.
        before: height and width of the image.
        after: height and width of the result.
    """
    half = np.array([before[1], before[0]], f32) * f32(0.5)
    is_affine = len(matrix) == AFFINE
    begin = [f32(0.5), f32(0.5)]
    if is_affine:
        begin = [f32((1 - length) * 0.5) for length in after]
    down, across = (
        xp.arange(length, dtype=f32) + first for length, first in zip(after, begin, strict=True)
    )
    lines = np.asarray(matrix[:AFFINE], f32).reshape(2, 3) / half[:, None]
    grids = [_line(across, down, line) for line in lines]
    if not is_affine:
        divisor = _line(across, down, np.array([matrix[6], matrix[7], 1], f32))
        with np.errstate(divide="ignore", invalid="ignore"):  # a point on the horizon lies outside
            grids = [grid / divisor - f32(1) for grid in grids]
    columns, rows = (
        ((grid + f32(1)).astype(f64) * f64(length) - 0.5).astype(f32)
        for grid, length in zip(grids, half, strict=True)
    )
    return columns, rows


def _line(across: Any, down: Any, numbers: NDArray[np.float32]) -> Any:
    """Return ``across * a + down * b + c``: the first product is rounded, the second is not."""
    a, b, c = numbers
    first = (across * a).astype(f64)[None]
    return (first + (down.astype(f64) * f64(b))[:, None]).astype(f32) + c


def sample(xp: ModuleType, x: Any, columns: Any, rows: Any, interpolation: str, fill: Color) -> Any:
    """Return pixels of an image at places, float32 ``[H, W]`` each: see ``warp``."""
    height, width = x.shape[:2]
    if interpolation == "nearest":
        columns, rows = xp.rint(columns), xp.rint(rows)
        inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        columns, rows = (
            xp.where(inside, numbers, f32(0)).astype(xp.int64) for numbers in (columns, rows)
        )
        return xp.where(inside[..., None], x[rows, columns], xp.asarray(fill, x.dtype))
    # A place that is no number, or far away, has no pixel of the image beside it: -2 stands for it.
    near = (columns > -1) & (columns < width) & (rows > -1) & (rows < height)
    columns, rows = (xp.where(near, numbers, f32(-2)) for numbers in (columns, rows))
    left, top = xp.floor(columns), xp.floor(rows)
    right_part, lower_part = columns - left, rows - top
    left_part, upper_part = f32(1) - right_part, f32(1) - lower_part
    left, top = left.astype(xp.int64), top.astype(xp.int64)
    total: Any = None
    weight: Any = None
    for row, column, part in (
        (top, left, left_part * upper_part),
        (top, left + 1, right_part * upper_part),
        (top + 1, left, left_part * lower_part),
        (top + 1, left + 1, right_part * lower_part),
    ):
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        pixels = xp.where(
            inside[..., None], x[row.clip(0, height - 1), column.clip(0, width - 1)], 0
        ).astype(f32)
        present = xp.where(inside, part, f32(0))
        if total is None:
            total, weight = pixels * part[..., None], present
        else:
            total = (pixels.astype(f64) * part.astype(f64)[..., None] + total).astype(f32)
            weight = weight + present
    border = xp.asarray(fill, f32)
    return to_dtype(xp, (total - border) * weight[..., None] + border, x.dtype)


def to_dtype(xp: ModuleType, x: Any, dtype: np.dtype[Any]) -> Any:
    """Return float32 numbers in a dtype: integers rounded to nearest, halves to even, and
    bounded."""
    if dtype.kind == "f":
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    return xp.rint(x).clip(limits.min, limits.max).astype(dtype)


def warp_into(
    x: NDArray[Any], matrix: Matrix, interpolation: str, fill: Color, out: NDArray[Any]
) -> None:
    """Write the result of ``warp`` to ``out``, by the core; both are C-contiguous."""
    if core.native is None:
        raise RuntimeError(f"warp_into: {core.problem}")
    if _is_identity(matrix):
        np.copyto(out, x)
        return
    x = x if x.flags.aligned else x.copy()  # a field of a record may begin at any byte
    numbers = np.ascontiguousarray(matrix, f32)
    if interpolation == "nearest":  # pixels are moved as bytes
        core.native.warp_nearest(_bytes(x), numbers, _fill_bytes(fill, x), _bytes(out))
    else:
        core.native.warp_linear(x, numbers, np.full(x.shape[2], fill, f32), out)


def sample_into(
    x: NDArray[Any], columns: Any, rows: Any, interpolation: str, fill: Color, out: NDArray[Any]
) -> None:
    """Write the result of ``sample`` to ``out``, by the core; all are C-contiguous."""
    if core.native is None:
        raise RuntimeError(f"sample_into: {core.problem}")
    x = x if x.flags.aligned else x.copy()
    if interpolation == "nearest":
        core.native.sample_nearest(_bytes(x), columns, rows, _fill_bytes(fill, x), _bytes(out))
    else:
        core.native.sample_linear(x, columns, rows, np.full(x.shape[2], fill, f32), out)


def _fill_bytes(fill: Color, x: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of a pixel outside of an image."""
    return np.full(x.shape[2], fill, x.dtype).view(np.uint8)


def _bytes(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the pixels of an image as bytes side by side."""
    return x.reshape(*x.shape[:2], -1).view(np.uint8)


def move_points(
    points: Points, matrix: Matrix, before: NDArray[np.int32], after: NDArray[np.int32]
) -> Points:
    """Return where points of an image go when its pixels are taken by a matrix, float64 ``[M, 2]``.

    Args:
        points: float64 ``[M, 2]``, x and y in pixels from the upper left corner of the image.
        matrix: see ``warp``.
        before: int32 ``[2]``, height and width of the image, pixels.
        after: int32 ``[2]``, height and width of the result, pixels.
    """
    numbers = np.ones(9)
    if len(matrix) == AFFINE:
        numbers[:AFFINE], numbers[AFFINE:] = matrix, (0, 0, 1)
        begin, end = before[::-1] / 2, after[::-1] / 2
    else:
        numbers[:PERSPECTIVE] = matrix
        begin = end = np.zeros(2)
    inverse = np.linalg.inv(numbers.reshape(3, 3))
    homogeneous = (points - begin) @ inverse[:, :2].T + inverse[:, 2]
    return np.asarray(homogeneous[:, :2] / homogeneous[:, 2:] + end)

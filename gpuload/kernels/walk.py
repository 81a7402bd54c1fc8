"""Walk: crop, mirror, reorder axes and normalise in one pass over each image of a batch.

Ops that can be part of a walk extend it one after the other (``Forms.fold``); the core makes it
(``Walker``), or a kernel on a GPU (``walk_on_device``). It equals the array forms of these ops bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import core, device
from gpuload.core.face import Maker
from gpuload.errors import SpecError
from gpuload.kernels import cuda
from gpuload.kernels.addresses import RowAddresses
from gpuload.ragged import Ragged
from gpuload.spec import Field

Array = NDArray[Any]
Memory = Callable[[tuple[int, ...], np.dtype[Any]], Array]  # gives memory for an array, in C order
# Batches of records with shapes of their own; others are one array.
VARYING = (list, Ragged, device.Views)
DTYPES = (np.uint8, np.float32)  # that the core reads
UNKNOWN_PIXELS = 1 << 14  # stands for the sides of images of varying size


class Walk(NamedTuple):
    """One walk over each image of a batch that crops, mirrors, reorders axes and normalises at
    once.

    It reads pixel ``(top + y, left + x)`` of an image for pixel ``(y, x)`` of the window, ``fill``
    where that lies outside, mirrors the window, and writes ``(value - mean) * scale`` per channel
    if ``mean`` is given.

    Attributes:
        height, width, channels: of the input images, before the walk.
        in_axes: axes of the input, ``"HWC"`` or ``"CHW"``.
        in_dtype: dtype of the input, uint8 or float32.
        start: int32 ``[N, 2]``, top and left of each window, pixels; may be negative.
        window: height and width of the window, pixels.
        mirror: int32 ``[N, 2]``, 1 where the window is mirrored vertically, horizontally.
        out_axes: axes of the result.
        fill: the value outside the image, in units of the input.
        mean, scale: float32 ``[C]``, or None.
        dtype: dtype of the result: that of the input, float32 or float16.
        is_padded: True once a window may reach outside the image.
        colours: None: all channels have one fill. Else the fill of each, or none yet: for a step of
            the core's visit.
    """

    height: int
    width: int
    channels: int
    in_axes: str
    in_dtype: np.dtype[Any]
    start: NDArray[np.int32]
    window: tuple[int, int]
    mirror: NDArray[np.int32]
    out_axes: str
    fill: float
    mean: NDArray[np.float32] | None
    scale: NDArray[np.float32] | None
    dtype: np.dtype[Any]
    is_padded: bool = False
    colours: tuple[float, ...] | None = None

    def with_(self, **changes: Any) -> Walk:
        """Return this walk with some attributes changed."""
        return self._replace(**changes)

    @property
    def in_shape(self) -> tuple[int, int, int]:
        """The shape of one image before the walk."""
        return _shape(self.in_axes, self.height, self.width, self.channels)

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """The shape of one image after the walk."""
        return _shape(self.out_axes, *self.window, self.channels)


def begin(field: Field, count: int, shape: tuple[int, ...] | None = None) -> Walk | None:
    """Return the walk over ``count`` images of a field that changes nothing; None if the core
    cannot read them.

    Args:
        field: the field; without three axes its records are images of one row.
        count: how many images.
        shape: of these images, where that varies; without it a large number stands for an axis that
            varies.
    """
    if field.encoded or not field.shape or field.dtype not in DTYPES:
        return None
    if len(field.shape) == 3:
        sides = shape or tuple(
            UNKNOWN_PIXELS if length is None else length for length in field.shape
        )
        if field.is_channels_first:
            axes = "CHW"
        else:
            axes = "HWC"
        height, width, channels = (sides[axes.index(axis)] for axis in "HWC")
    elif field.uniform:
        sides = field.fixed_shape
        axes, height, width, channels = "HWC", 1, prod(sides[:-1]), sides[-1]
    else:
        return None
    still: NDArray[np.int32] = np.zeros((count, 2), np.int32)
    return Walk(
        height=height, width=width, channels=channels, in_axes=axes, in_dtype=field.dtype, start=still,
        window=(height, width), mirror=still, out_axes=axes, fill=0, mean=None, scale=None, dtype=field.dtype,
    )  # fmt: skip


class Walker:
    """Makes a walk, over all of its images or over some at a time.

    Args:
        walk: the walk to make.

    Raises:
        RuntimeError: there is no core.
    """

    def __init__(self, walk: Walk) -> None:
        if core.native is None:
            raise RuntimeError(f"a walk: {core.problem}")
        self._walk, self._in_shape, self._out_shape = walk, walk.in_shape, walk.out_shape
        if walk.mean is None or walk.scale is None:
            mean, scale = np.zeros(walk.channels, np.float32), np.ones(walk.channels, np.float32)
        else:
            mean, scale = walk.mean, walk.scale
        self._pixel_walk = core.native.PixelWalk(
            in_planes=walk.in_axes == "CHW",
            out_planes=walk.out_axes == "CHW",
            fill=walk.fill,
            mean=mean,
            scale=scale,
        )

    def __call__(
        self, x: Array, out: Array, rows: slice = slice(None), memory: Memory = np.empty
    ) -> None:
        """Write the windows of some images.

        Args:
            x: the images, ``[n, ...]``; read in place if each of them is C-contiguous, else copied
                first.
            out: the result, ``[n, ...]``, C-contiguous.
            rows: which n of the walk's images they are.
            memory: gives memory that the walk needs for a while, for float16.

        Raises:
            SpecError: the images or the result have not the shape or dtype that the walk says.
        """
        walk = self._walk
        start, mirror = (
            np.ascontiguousarray(array[rows], np.int32) for array in (walk.start, walk.mirror)
        )
        self._check(x, out, start, mirror)
        if not x.size:  # no records, or fields without elements
            return
        if out.dtype != np.float16:
            pixels = out
        else:
            pixels = memory(out.shape, np.dtype(np.float32))
        images = _readable(x).reshape(len(x), *self._in_shape)
        self._pixel_walk.run(images, start, mirror, pixels.reshape(len(x), *self._out_shape))
        if pixels is not out:
            # Beyond 65504 a float16 is infinite, in the array form as well; NumPy would warn in
            # each batch.
            with np.errstate(over="ignore"):
                np.copyto(out, pixels, casting="same_kind")

    def maker(self) -> Maker:
        """Return the walk as a plan of the core takes it: row i of the plan is image i.

        Raises:
            SpecError: the result is none that the core writes.
        """
        walk = self._walk
        if walk.dtype not in DTYPES:
            raise SpecError(
                f"a walk from {walk.in_dtype} to {walk.dtype}",
                cause="the core writes uint8 and float32",
                remedy="make it by calling the walker",
            )
        start, mirror = (
            np.ascontiguousarray(array, np.int32) for array in (walk.start, walk.mirror)
        )
        reads_floats, writes_floats = (dtype == np.float32 for dtype in (walk.in_dtype, walk.dtype))
        size = (walk.height, walk.width)
        return self._pixel_walk.maker(reads_floats, writes_floats, size, walk.window, start, mirror)

    def _check(self, x: Array, out: Array, start: Array, mirror: Array) -> None:
        walk, count = self._walk, len(x)
        if (
            start.shape == mirror.shape == (count, 2)
            and (x.dtype, out.dtype) == (walk.in_dtype, walk.dtype)
            and len(out) == count
            and _is(x, self._in_shape)
            and _is(out, self._out_shape)
            and out.flags.c_contiguous
        ):
            return
        raise SpecError(
            f"images {x.dtype} {x.shape} to {out.dtype} {out.shape}",
            cause=f"the walk is over {len(start)} of {walk.in_dtype} {self._in_shape}, "
            f"to {walk.dtype} {self._out_shape} in C order",
            remedy="give images and draws that belong together, and memory for the result",
        )


def walk_on_device(xp: ModuleType, walk: Walk, x: Any) -> Any:
    """Return the windows of images on a GPU, an array ``[N, ...]``, by one kernel: the same as
    ``Walker``.

    Args:
        xp: CuPy; the kernel is queued on its current stream.
        walk: the walk to make; of images of different sizes, ``height`` and ``width`` are those of
            any of them.
        x: the images, an array ``[N, ...]``, a ``Ragged`` or a list of arrays of three axes, or
            ``RowAddresses``.
    """
    count, planes = len(walk.start), walk.out_axes == "CHW"
    cuda.blocks(prod(walk.out_shape), count)  # refuses too large ones
    out = xp.empty((count, *walk.out_shape), walk.dtype)
    if not out.size:
        return out
    parts: list[Array] = [np.concatenate([walk.start, walk.mirror], axis=1, dtype=np.int32)]
    if walk.mean is not None and walk.scale is not None:
        parts += [walk.mean, walk.scale]
    first, strides, size, num_words = 0, (0, 0, 0, 0), (walk.height, walk.width), 0
    if isinstance(x, VARYING):
        table = tabulate(x)
        address, down, across, deep, _ = _strides_in(table, walk.in_dtype.itemsize, walk.in_axes)
        height, width = (table[:, 3 + walk.in_axes.index(axis)] for axis in "HW")
        parts.insert(0, np.stack([address, down, across, deep, height, width], axis=1))
        span, num_words = (
            int((abs(down) * height + abs(across) * width + abs(deep) * walk.channels).max()),
            6,
        )
    else:
        if isinstance(x, RowAddresses):
            strides, num_words = (0, *_side_by_side(walk)), 1
        else:
            if x.shape[1:] != walk.in_shape and not x.flags.c_contiguous:
                device.settle()  # CuPy may copy it, at once
            first = x.reshape(count, *walk.in_shape)
            strides = tuple(
                stride // first.itemsize
                for stride in (first.strides[0], *_strides(first, walk.in_axes))
            )
        span = sum(
            abs(stride) * side
            for stride, side in zip(strides[1:], (*size, walk.channels), strict=True)
        )
    ends: list[Any] = []
    on_device = device.parameters(
        np.concatenate([part.reshape(-1).view(np.int32) for part in parts])
    )
    for part in parts:
        ends.append(on_device)
        on_device = on_device[part.nbytes // 4 :]
    images: Any = 0
    if isinstance(x, VARYING):
        images = ends.pop(0)
    elif isinstance(x, RowAddresses):
        images = x.words
    if len(ends) == 3:
        draws, mean, scale = ends
    else:
        draws, mean, scale = (ends[0], 0, 0)
    blocks = -(-cuda.num_strips(out) // cuda.THREADS)
    if planes:
        lengths = (walk.window[1], walk.window[0])
    else:
        lengths = (walk.channels, walk.window[1])
    divisors = [number for length in (*lengths, blocks) for number in cuda.divisor(length)]
    is_wide = bool(span >> 31)
    place = np.int64 if is_wide else np.int32
    text = cuda.walk(
        walk.in_dtype.name, walk.dtype.name, walk.channels, planes=planes, normalizes=len(ends) == 3,
        words=num_words, wide=is_wide,
    )  # fmt: skip
    device.kernel(text, "walk")(
        (blocks * count,), (cuda.THREADS,),
        (first, np.int64(strides[0]), *map(place, strides[1:]), *map(np.int32, (*size, walk.channels)), images, draws,
         np.float32(walk.fill), mean, scale, out, *map(np.int32, walk.window), *divisors, np.int32(blocks)),
    )  # fmt: skip
    return out


def strides_of(images: Any, axes: str = "HWC") -> tuple[Any, Any, Any, Any, Any]:
    """Return the addresses and strides of images on a GPU: a number of each image, or one for all.

    Args:
        images: an array ``[N, ...]``, or N arrays of three axes, in a list, a `Ragged` or
            `device.Views`.
        axes: of an image.

    Returns:
        The addresses; the elements from row to row, from column to column, from channel to channel;
        the channels.
    """
    if isinstance(images, VARYING):
        return _strides_in(tabulate(images), images[0].itemsize, axes)
    device.hold(images)
    item, next_image = images.itemsize, images.strides[0]
    addresses = images.data.ptr + next_image * np.arange(len(images), dtype=np.int64)
    strides = (images.strides[1 + axes.index(axis)] // item for axis in "HWC")
    return addresses, *strides, images.shape[1 + axes.index("C")]


def _strides_in(
    table: NDArray[np.int64], item_bytes: int, axes: str
) -> tuple[Any, Any, Any, Any, Any]:
    """Return the same of a table of `tabulate`."""
    down, across, deep = (table[:, axes.index(axis)] // item_bytes for axis in "HWC")
    return table[:, 6], down, across, deep, table[:, 3 + axes.index("C")]


def sizes(images: Any) -> NDArray[np.int32]:
    """Return height and width of images ``[height, width, channels]``, int32 ``[N, 2]``; of an
    array a single row."""
    if isinstance(images, device.Views):
        return images.shapes[:, :2].astype(np.int32)
    if isinstance(images, Ragged):
        return np.stack(
            [images.lengths, np.full(len(images), images.payload.shape[1])], axis=1
        ).astype(np.int32)
    if isinstance(images, list):
        return np.array([image.shape[:2] for image in images], np.int32).reshape(len(images), 2)
    return np.array([images.shape[1:3]], np.int32)


def tabulate(images: Any) -> NDArray[np.int64]:
    """Return strides in bytes, shape and address of each of some arrays of three axes on a GPU,
    int64 ``[N, 7]``."""
    device.hold(images)
    if isinstance(images, device.Views):
        return images.table
    if isinstance(images, Ragged):  # to make an array of each takes longer
        payload, table = images.payload, np.empty((len(images), 7), np.int64)
        table[:, :3], table[:, 3], table[:, 4:6] = (
            payload.strides,
            images.lengths,
            payload.shape[1:],
        )
        table[:, 6] = payload.data.ptr + images.offsets[:-1] * payload.strides[0]
        return table
    rows = [(*image.strides, *image.shape, image.data.ptr) for image in images]
    return np.array(rows, np.int64).reshape(len(rows), 7)


def _strides(image: Any, axes: str) -> tuple[int, int, int]:
    """Return the bytes from row to row, from column to column and from channel to channel of
    images."""
    down, across, deep = (image.strides[axes.index(axis) - len(axes)] for axis in "HWC")
    return down, across, deep


def _side_by_side(walk: Walk) -> tuple[int, int, int]:
    """Return the elements from row to row, from column to column and from channel to channel of
    images in C order."""
    if walk.in_axes == "HWC":
        return walk.width * walk.channels, walk.channels, 1
    return walk.width, 1, walk.height * walk.width


def _is(batch: Array, shape: tuple[int, int, int]) -> bool:
    """Return True if a batch has records of a shape; a record without three axes is an image of one
    row."""
    record = batch.shape[1:]
    return record == shape or (len(record) != 3 and shape[0] == 1 and prod(record) == prod(shape))


def _shape(axes: str, height: int, width: int, channels: int) -> tuple[int, int, int]:
    if axes == "HWC":
        return (height, width, channels)
    return (channels, height, width)


def _readable(x: Array) -> Array:
    """Return images that the core can read: as they lie, a field of larger records too, or a copy."""
    if x.flags.aligned and x.strides[0] >= 0 and x[0].flags.c_contiguous:
        return x
    return np.array(x, order="C")

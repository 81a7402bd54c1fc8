"""Pixels: images of any sizes on a GPU, of which a kernel makes each pixel of a result by itself.

Launches  One for a batch of any number of images, and one more for each thing that an op
          must know of a whole image before. One upload has all that the kernels read beside the
          pixels.
Kernel    `cuda.change` and `cuda.gather` are the frames; an op gives the text of one pixel, which
          stands beside its array form and makes the same numbers.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import cuda, walk
from gpuload.ragged import Ragged

Array = NDArray[Any]
Boxes = NDArray[np.integer[Any]]
IMAGE = np.dtype([  # a kernel's description of an image: its address, the elements from row to row, ...
    ("address", "i8"), ("down", "i8"), ("across", "i8"), ("deep", "i8"), ("out", "i8"), ("height", "i4"),
    ("width", "i4"), ("new_height", "i4"), ("new_width", "i4"),
])  # fmt: skip
MOST_CHANNELS = 16  # that a kernel is compiled for
MOST_PIXELS = (1 << 31) - 1


def reads(xp: ModuleType, x: Any) -> bool:
    """Return True if kernels can read the images of a batch: it lies on a GPU and all have as many
    channels."""
    if not device.compiles(xp) or not len(x):
        return False
    if isinstance(x, device.Views):
        sizes = (
            x.shapes[:, 0] * x.shapes[:, 1]
        )  # the largest decides, and whether all have as many channels
        shapes = {
            (int(sizes.max()), 1, channels) for channels in np.unique(x.shapes[:, 2]).tolist()
        }
    elif isinstance(x, Ragged):
        shapes = {(length, *x.payload.shape[1:]) for length in set(x.lengths.tolist())}
    else:
        if isinstance(x, list):
            shapes = {image.shape for image in x}
        else:
            shapes = {x.shape[1:]}
    if any(len(shape) != 3 for shape in shapes) or len({shape[2] for shape in shapes}) != 1:
        return False
    is_known = x[0].dtype.name in cuda.TYPES and 1 <= next(iter(shapes))[2] <= MOST_CHANNELS
    return is_known and max(shape[0] * shape[1] for shape in shapes) <= MOST_PIXELS


class Places(NamedTuple):
    """Where images on a GPU lie.

    Attributes:
        address: of the first number of each, int64 ``[N]``.
        strides: bytes from row to row, from column to column and from channel to channel, int64
            ``[N, 3]``.
        size: height and width, int64 ``[N, 2]``.
        channels: of each.
        dtype: of the numbers.
    """

    address: NDArray[np.int64]
    strides: NDArray[np.int64]
    size: NDArray[np.int64]
    channels: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, x: Any) -> Places:
        """Return those of images of which ``reads`` is True."""
        first, count = x[0], len(x)
        if isinstance(x, walk.VARYING):
            table = walk.tabulate(x)
            return cls(
                table[:, 6], table[:, :3], table[:, 3:5], int(table[0, 5]), np.dtype(first.dtype)
            )
        device.hold(x)
        address = x.data.ptr + x.strides[0] * np.arange(count, dtype=np.int64)
        strides, size = (
            np.broadcast_to(np.array(row, np.int64), (count, len(row)))
            for row in (x.strides[1:], x.shape[1:3])
        )
        return cls(address, strides, size, x.shape[3], np.dtype(first.dtype))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The pixels of each image, int64 ``[N]``."""
        return np.asarray(self.size[:, 0] * self.size[:, 1])

    @property
    def shapes(self) -> NDArray[np.int64]:
        """The shape of each image, int64 ``[N, 3]``."""
        return np.pad(self.size, ((0, 0), (0, 1)), constant_values=self.channels)

    @property
    def num_pixels(self) -> int:
        """The pixels of all images."""
        return int(self.lengths.sum())

    def at(self, address: NDArray[np.int64], rows: NDArray[np.int64]) -> Places:
        """Return those of some of the images, with addresses of their own."""
        return self._replace(
            address=address[rows], strides=self.strides[rows], size=self.size[rows]
        )

    def pack(self) -> Places:
        """Return places of images of these sizes that lie one after the other; addresses count from
        the first."""
        item, width, channels = self.dtype.itemsize, self.size[:, 1], self.channels
        strides = np.empty((len(width), 3), np.int64)
        strides[:, 0], strides[:, 1], strides[:, 2] = (
            width * (channels * item),
            channels * item,
            item,
        )
        lengths = self.lengths * (channels * item)
        return self._replace(address=np.cumsum(lengths) - lengths, strides=strides)

    def table(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return descriptions of the images, and of results of the same sizes, in a dtype that
        begins with `IMAGE`."""
        table = np.zeros(len(self.address), dtype)
        table["address"] = self.address
        table["down"], table["across"], table["deep"] = (self.strides // self.dtype.itemsize).T
        table["height"], table["width"] = table["new_height"], table["new_width"] = self.size.T
        table["out"] = np.cumsum(self.lengths) - self.lengths
        return table


def views(out: Any, shapes: NDArray[np.int64]) -> Any:
    """Return images that lie in an array one after the other: an array ``[N, ...]`` if all have one
    shape, or `Views`.

    Args:
        out: the array on a GPU, of one axis.
        shapes: of the images, int64 ``[N, 3]``.
    """
    if (shapes == shapes[0]).all():
        return out.reshape(len(shapes), *shapes[0].tolist())
    lengths = shapes.prod(axis=1) * out.itemsize
    return device.Views(out, out.dtype, shapes, np.cumsum(lengths) - lengths)


def as_images(xp: ModuleType, x: Any) -> Any | None:
    """Return a batch as images that kernels can read; None if there is no such form.

    Records of other shapes become images of one row, ``[1, size, 1]``.
    """
    if not device.compiles(xp) or not len(x):
        return None
    if reads(xp, x):
        return x
    device.settle()  # a record that is not in C order is copied
    are_many = isinstance(x, walk.VARYING)
    if are_many:
        rows = [record.reshape(1, -1, 1) for record in x]
    else:
        rows = x.reshape(len(x), 1, -1, 1)
    if not reads(xp, rows):
        return None
    return rows


def row_of(xp: ModuleType, x: Any) -> Any | None:
    """Return numbers of any shape as an image of one row, ``[1, 1, size, 1]``; None if kernels
    cannot read it."""
    if not device.compiles(xp) or not x.size:
        return None
    if not x.flags.c_contiguous:
        device.settle()  # it is copied
    row = x.reshape(1, 1, -1, 1)
    if not reads(xp, row):
        return None
    return row


class Pixels:
    """The images of a batch, uploaded descriptions of them, and the kernels that make other images
    of them.

    Args:
        xp: CuPy; kernels are queued on its current stream.
        x: an array ``[N, height, width, channels]``, a ``Ragged`` or a list of N images of which
            ``reads`` is True.
        words: arrays of N rows, each a multiple of four bytes long, that kernels get side by side.
        boxes: int ``[N, 4]``, top, left, height and width of the part of each image that is read,
            pixels; all of it if left out.
        size: int ``[N, 2]``, height and width of each result, pixels; those of the images if left
            out.
        raw: move numbers as bytes of any meaning.
    """

    def __init__(
        self, xp: ModuleType, x: Any, *words: Array, boxes: Boxes | None = None, size: Boxes | None = None,
        raw: bool = False,
    ) -> None:  # fmt: skip
        self._xp, first = xp, x[0]
        self.count, self.channels, self.dtype = len(x), int(first.shape[2]), np.dtype(first.dtype)
        if raw:
            self._type = cuda.RAW_TYPES[self.dtype.itemsize]
        else:
            self._type = cuda.TYPES[self.dtype.name]
        places = Places.of(x)
        self._table = table = places.table(IMAGE)
        before: Boxes = places.size
        if boxes is not None:
            table["address"] += (
                boxes[:, 0] * table["down"] + boxes[:, 1] * table["across"]
            ) * self.dtype.itemsize
            before = boxes[:, 2:]
        table["height"], table["width"] = before.T
        after = before if size is None else size
        table["new_height"], table["new_width"] = after.T
        self._lengths = table["new_height"].astype(np.int64) * table["new_width"]
        table["out"] = np.cumsum(self._lengths) - self._lengths
        rows = [np.ascontiguousarray(part).reshape(self.count, -1).view(np.int32) for part in words]
        num_words = sum(row.shape[1] for row in rows)
        if num_words % 2:  # numbers of eight bytes begin at their multiples
            rows.append(np.zeros((self.count, 1), np.int32))
        parts = [table.view(np.uint8)]
        if rows:
            parts.append(np.concatenate(rows, axis=1).reshape(-1).view(np.uint8))
        # One copy to the GPU for all: each costs some microseconds, however few its bytes are.
        upload = device.parameters(np.concatenate(parts))
        self._inputs = upload, upload[table.nbytes :], np.int32(num_words + num_words % 2)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The pixels of each image, int64 ``[N]``."""
        return np.asarray(self._table["height"].astype(np.int64) * self._table["width"])

    def mark(self, test: str) -> Any:
        """Return in which images a number is wrong, boolean ``[N]``; see `cuda.mark`.

        Args:
            test: the text that tells of one number.
        """
        marks = device.zeros(self.count, bool)
        blocks = cuda.blocks(int(self._lengths.max()), self.count)
        if blocks:
            device.kernel(cuda.mark(self._type, self.channels, test), "mark")(
                (blocks * self.count,), (cuda.THREADS,), (*self._inputs, marks, np.int32(blocks))
            )
        return marks

    def gather(self, sums: str, num_bytes: int, before: Any = 0) -> Any:
        """Return ``Stats`` of each image, uint8 ``[N, PARTS * num_bytes]``; see `cuda.gather`.

        Args:
            sums: the text that sums up an image.
            num_bytes: of one ``Stats``.
            before: the result of the gathering before, for ``start``.
        """
        out = self._xp.empty((self.count, cuda.PARTS * num_bytes), np.uint8)
        device.kernel(cuda.gather(self._type, self.channels, sums), "gather")(
            (cuda.PARTS * self.count,), (cuda.THREADS,), (*self._inputs, before, out)
        )
        return out

    def change(
        self, pixel: str, *, stats: Any = 0, step: int = 0, table: Any = 0, channels: int | None = None,
        dtype: Any = None,
    ) -> Any:  # fmt: skip
        """Return the images that a kernel makes.

        Args:
            pixel: the text that makes a pixel, see `cuda.change`.
            stats: the numbers of each image that the text reads, on the GPU.
            step: how many elements it goes on from image to image.
            table: float32 numbers for all images, on the GPU.
            channels: of a result; those of the images if left out.
            dtype: likewise.

        Returns:
            An array ``[N, height, width, channels]`` where all results have one size, else a list
            of arrays.
        """
        after, channels = self._type, channels or self.channels
        if dtype is None:
            dtype = self.dtype
        else:
            after = cuda.TYPES[np.dtype(dtype).name]
        blocks = cuda.blocks(int(self._lengths.max()), self.count)
        out = self._xp.empty(int(self._lengths.sum()) * channels, dtype)
        device.kernel(cuda.change(self._type, after, (self.channels, channels), pixel), "change")(
            (blocks * self.count,), (cuda.THREADS,),
            (*self._inputs, stats, np.int64(step), table, out, *cuda.divisor(max(blocks, 1)), np.int32(blocks)),
        )  # fmt: skip
        shapes = np.full((self.count, 3), channels, np.int64)
        shapes[:, 0], shapes[:, 1] = self._table["new_height"], self._table["new_width"]
        return views(out, shapes)


def colors(
    values: float | tuple[float, ...], dtype: np.dtype[Any], channels: int, count: int
) -> Array:
    """Return a colour as ``words`` of ``count`` images: eight bytes a number, as a kernel with
    ``raw`` reads it."""
    numbers = np.zeros((channels, 8), np.uint8)
    numbers[:, : dtype.itemsize] = (
        np.full(channels, values, dtype).view(np.uint8).reshape(channels, -1)
    )
    return np.broadcast_to(numbers.reshape(1, -1), (count, numbers.size))


def constants(count: int, *numbers: float) -> NDArray[np.float32]:
    """Return float32 ``words`` that are the same for ``count`` images."""
    return np.broadcast_to(np.array(numbers, np.float32), (count, len(numbers)))


MOVE = '#include "move.cuh"\n'


def move(
    xp: ModuleType, x: Any, *, start: Any = (0, 0), mirror: Any = (0, 0), quarters: Any = 0, size: Boxes | None = None,
    fill: float | tuple[float, ...] = 0,
) -> Any:  # fmt: skip
    """Return windows of images, or images that are mirrored or turned, of any dtype, by one kernel.

    Args:
        xp: CuPy.
        x: images for which ``reads`` is True.
        start: int ``[N, 2]``, top and left of each window, pixels; may lie outside.
        mirror: int ``[N, 2]``, 1 where a window is mirrored vertically, horizontally.
        quarters: int ``[N]``, of a turn counter-clockwise, of images that are not cut or mirrored.
        size: int ``[N, 2]``, height and width of each result; those of the images if left out.
        fill: the colour outside of an image, a number or one for each channel.
    """
    places = np.zeros((len(x), 6), np.int32)
    places[:, :2], places[:, 2:4], places[:, 4] = start, mirror, quarters
    color = colors(fill, x[0].dtype, x[0].shape[2], len(x))
    return Pixels(xp, x, places, color, size=size, raw=True).change(MOVE)

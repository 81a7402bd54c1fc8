"""Fused: the array forms of ops in compiled kernels, equal to them bit for bit.

A run of ops that fold into one ``Walk`` is one pass over the images; a resize is one kernel call for each image.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gpuload import kernels
from gpuload.ops import images, resampling
from gpuload.ops.base import Draw, Op, Walk
from gpuload.ops.resize import RandomResizedCrop, Resize
from gpuload.spec import Field

Array = NDArray[Any]
DTYPES = (np.uint8, np.float32)  # that the kernels read
UNKNOWN_PIXELS = 1 << 14  # sides of an image of unknown size, to find out which ops fold
VECTOR_PIXELS = 4  # the horizontal pass makes whole vectors
KEPT_BYTES = 1 << 26  # of scratch memory for one purpose and thread; an image of 16 million pixels


@dataclass(frozen=True)
class Image:
    """What is known of the images before a walk: height, width, channels, axes and dtype."""

    height: int
    width: int
    channels: int
    axes: str
    dtype: np.dtype[Any]


def geometry(field: Field) -> Image | None:
    """Return the images of a field, None if kernels cannot read them; without three axes they are images of one row."""
    shape = field.shape
    if field.encoded or not shape or field.dtype not in DTYPES:
        return None
    if len(shape) != 3:
        known = field.fixed_shape if field.uniform else None
        return Image(1, prod(known[:-1]), known[-1], "HWC", field.dtype) if known else None
    sizes = [UNKNOWN_PIXELS if length is None else length for length in shape]
    if images.channels_first(field):
        return Image(sizes[1], sizes[2], sizes[0], "CHW", field.dtype)
    return Image(sizes[0], sizes[1], sizes[2], "HWC", field.dtype)


def num_folding(ops: Sequence[Op], field: Field) -> int:
    """Return how many of the ops, from the first on, fold into one walk over the images of a field."""
    image = geometry(field)
    if image is None:
        return 0
    size = np.array([[image.height, image.width]], np.int32)
    draws: list[Draw] = []
    for count, op in enumerate(ops):
        draws.append(op.draw(np.full((1, op.num_uniforms), 0.5), size))
        if fold(ops[: count + 1], draws, image, 1)[1] == count:
            return count
        size = op.size_after(size, draws[-1])
    return len(ops)


def fold_all(ops: Sequence[Op], draws: Sequence[Draw], image: Image | None, count: int) -> Walk:
    """Return the walk of ops of which ``num_folding`` said that they fold."""
    walk, folded = fold(ops, draws, image, count) if image is not None else (None, 0)
    if walk is None or folded != len(ops):
        raise RuntimeError(f"of {list(ops)} only {folded} fold over {image}")
    return walk


def fold(ops: Sequence[Op], draws: Sequence[Draw], image: Image, count: int) -> tuple[Walk, int]:
    """Return the walk of the first ops that fold, for ``count`` images, and how many ops these are."""
    walk = Walk(
        height=image.height, width=image.width, channels=image.channels, in_axes=image.axes,
        start=np.zeros((count, 2), np.int32), window=(image.height, image.width), mirror=np.zeros((count, 2), np.int32),
        out_axes=image.axes, fill=0, mean=None, scale=None, dtype=image.dtype,
    )  # fmt: skip
    for done, (op, draw) in enumerate(zip(ops, draws, strict=True)):
        longer = op.fold(walk, draw)
        if longer is None or (image.dtype == np.uint8 and longer.fill not in range(256)):
            return walk, done
        walk = longer
    return walk, len(ops)


def walk_into(walk: Walk, x: Array, out: Array, rows: slice = slice(None)) -> None:
    """Write the windows of images ``x`` ``[N, ...]``, rows ``rows`` of the walk, to ``out``, which is C-contiguous."""
    kernel = kernels.require("image")
    names = {"HWC": "pixels", "CHW": "planes"}
    run = getattr(kernel, f"{names[walk.in_axes]}_to_{names[walk.out_axes]}")
    memory, stride = flat(x)
    made = out if out.dtype != np.float16 else scratch("walk", out.shape, np.dtype(np.float32))
    none = np.zeros(walk.channels, np.float32)
    mean, scale = (none, none + 1) if walk.mean is None or walk.scale is None else (walk.mean, walk.scale)
    source = (memory, stride, walk.height, walk.width, walk.channels)
    moves = (walk.start[rows], walk.mirror[rows], np.float32(walk.fill))
    run(source, moves, (mean, scale), made.reshape(-1), walk.window)
    if made is not out:
        with np.errstate(over="ignore"):
            np.copyto(out, made, casting="same_kind")


def resize_into(op: Resize | RandomResizedCrop, x: Array, draw: Draw, out: Array) -> None:
    """Write one image, resized; ``x`` and ``out`` are C-contiguous HWC images of one dtype."""
    kernel = kernels.require("resize")
    height, width, channels = x.shape
    top, left = 0, 0
    stride = width * channels
    if isinstance(op, RandomResizedCrop):
        (top, left), (height, width) = draw["start"].tolist(), draw["shape"].tolist()
    vertical = tables(height, out.shape[0], op.interpolation, op.antialias, 1)
    horizontal = tables(width, out.shape[1], op.interpolation, op.antialias, VECTOR_PIXELS)
    supports = (len(vertical[1]), len(horizontal[1]))
    first = resampling.vertical_first((height, width), (out.shape[0], out.shape[1]), supports)
    box = (top * stride + left * channels, stride, height, width, channels)
    kernel.resize(x.reshape(-1), box, vertical, horizontal, first, out.reshape(-1), out.shape[1])


@lru_cache(maxsize=4096)
def tables(
    n_in: int, n_out: int, interpolation: str, antialias: bool, multiple: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return ``resampling.taps`` as the kernel wants them: taps first, output pixels up to a multiple of a number."""
    first, coefficients = resampling.taps(n_in, n_out, interpolation, antialias)
    more = -n_out % multiple
    padded = np.pad(coefficients, ((0, more), (0, 0)), mode="edge")
    return np.pad(first, (0, more), mode="edge"), np.ascontiguousarray(padded.T)


def flat(x: Array) -> tuple[Array, int]:
    """Return the memory of a batch as one dimension, and the elements from record to record; a copy only if need be."""
    item, size = x.itemsize, prod(x.shape[1:])
    regular = x.strides[0] >= size * item and x.strides[0] % item == 0 and x.flags.aligned
    if x.flags.c_contiguous or not len(x):
        return x.reshape(-1), size
    if not (regular and x[0].flags.c_contiguous):
        return np.ascontiguousarray(x).reshape(-1), size
    stride = x.strides[0] // item
    return as_strided(x, ((len(x) - 1) * stride + size,), (item,)), stride


_local = threading.local()


def scratch(key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return memory of this thread under a name, until the thread's next call with that name; much is not kept."""
    buffers: dict[str, Array] = _local.__dict__.setdefault("buffers", {})
    num_bytes = prod(shape) * dtype.itemsize
    if num_bytes > KEPT_BYTES:
        return np.empty(shape, dtype)
    if key not in buffers or buffers[key].size < num_bytes:
        buffers[key] = np.empty(num_bytes, np.uint8)
    return buffers[key][:num_bytes].view(dtype).reshape(shape)

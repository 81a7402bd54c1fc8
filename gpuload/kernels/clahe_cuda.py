"""CLAHE on a GPU of images of 16 bits, bit for bit as `ops.colour.clahe`.

Images of 8 bits are edits: `kernels.edits_cuda` counts levels, makes a table of each tile, and
blends them. Images of 16 bits have tables of 65536 levels, which a block of threads makes in the
memory of their counts. Both share the functions of tiles.cuh.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import cuda, walk
from gpuload.kernels.pixels import Pixels

LEVELS = 1 << 16
MOST_BYTES = 1 << 30  # of the tables of 16-bit images that are on the GPU at a time
IMAGE = np.dtype(
    [("height", "i4"), ("width", "i4"), ("rows", "i4"), ("columns", "i4"), ("limit", "f8")]
)
CONSTANTS = cuda.constants(LEVELS=LEVELS)
COUNT, BLEND = (f'{CONSTANTS}{case}#include "clahe16.cuh"\n' for case in ("#define COUNT\n", ""))


def equalize(
    xp: ModuleType, x: Any, apply: NDArray[np.int32], limit: NDArray[np.float32], grid: tuple[int, int]
) -> Any:  # fmt: skip
    """Return images of 16 bits; the tiles of those where ``apply`` is 1 get even histograms, each
    channel by itself.

    Three launches, and three more where the tables of all images take more than ``MOST_BYTES``.

    Args:
        xp: CuPy.
        x: uint16 images for which `pixels.reads` is True.
        apply: int32 ``[N]``.
        limit: float32 ``[N]``, on the host: see `CLAHE`.
        grid: tiles down and across.
    """
    sizes = np.broadcast_to(walk.sizes(x), (len(x), 2))
    num_tiles = count_tiles(sizes, grid)
    num_tables = int(x[0].shape[2]) * int(num_tiles.prod(axis=1).max())
    num_images = max(MOST_BYTES // (num_tables * LEVELS * 4), 1)
    if len(x) > num_images:
        groups = [slice(begin, begin + num_images) for begin in range(0, len(x), num_images)]
        parts = [equalize(xp, x[rows], apply[rows], limit[rows], grid) for rows in groups]
        has_lists = any(isinstance(part, walk.VARYING) for part in (x, *parts))
        device.settle()
        if has_lists:
            return [image for part in parts for image in part]
        return xp.concatenate(parts)
    words = np.zeros((len(x), 4), np.int32)
    words[:, :2], words[:, 2] = grid, apply
    counts = device.zeros((len(x), num_tables * LEVELS), np.int32)
    tiles = tile_sizes(sizes, grid)
    Pixels(xp, x, words, size=num_tiles * tiles).change(COUNT, stats=counts, step=counts.shape[1])
    images = np.zeros(len(x), IMAGE)
    images["height"], images["width"] = sizes.T
    images["rows"], images["columns"], images["limit"] = *grid, limit
    device.kernel(cuda.source("curves.cu", LEVELS=LEVELS, THREADS=cuda.THREADS), "curves")(
        (len(x) * num_tables,), (cuda.THREADS,),
        (device.parameters(images.view(np.uint8)), counts, np.int32(num_tables)),
    )  # fmt: skip
    return Pixels(xp, x, words).change(BLEND, stats=counts, step=counts.shape[1])


def tile_sizes(
    sizes: NDArray[np.integer[Any]], grid: NDArray[Any] | tuple[int, int]
) -> NDArray[np.int64]:
    """Return height and width of the tiles of each image, int64 ``[N, 2]``, pixels.

    Args:
        sizes: ``[N, 2]``, height and width of each image.
        grid: tiles down and across; of all, or of each image, ``[N, 2]``.
    """
    length, tiles = sizes.astype(np.int64), np.broadcast_to(np.asarray(grid, np.int64), sizes.shape)
    are_whole = (length % tiles == 0).all(axis=1, keepdims=True)
    return np.where(are_whole, length, length + tiles - length % tiles) // tiles


def count_tiles(
    sizes: NDArray[np.integer[Any]], grid: NDArray[Any] | tuple[int, int]
) -> NDArray[np.int64]:
    """Return how many tiles down and across are about pixels of each image, int64 ``[N, 2]``; see
    `tile_sizes`."""
    part = np.float32(1) / tile_sizes(sizes, grid).astype(np.float32)
    place = (sizes - 1).astype(np.float32) * part - np.float32(0.5)
    return np.minimum(np.floor(place).astype(np.int64) + 2, np.asarray(grid, np.int64))

"""Tables: the values of uint8 images are looked up, each in a table of 256.

Tables   ``[256]`` for all images, ``[N, 256]`` with one for each, ``[N, C, 256]`` or ``[C, 256]``
         with one for each of the channels, too.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

BYTES: NDArray[np.uint8] = np.arange(256, dtype=np.uint8)
# floor(x + this) rounds halves up, and only them.
ALMOST_HALF = float(np.nextafter(np.float32(0.5), np.float32(0)))


def look_up(xp: ModuleType, x: Any, tables: Any) -> Any:
    """Return images with their values looked up.

    Args:
        xp: NumPy or CuPy.
        x: uint8 ``[H, W, C]`` or ``[N, H, W, C]``.
        tables: uint8, arrays of ``xp`` or NumPy; see above.
    """
    tables, channels = xp.asarray(tables), x.shape[-1]
    if tables.ndim == 1:
        return tables.take(x)
    count = tables.size // 256
    begins = xp.arange(0, 256 * count, 256, dtype=xp.int32)
    has_channels = x.ndim == 3 or tables.ndim == 3
    begins = begins.reshape(-1, 1, 1, channels if has_channels else 1)
    return tables.reshape(-1).take((x + begins).reshape(x.shape))


def counts_up_to(xp: ModuleType, x: Any, levels: int = 256) -> Any:
    """Return of each channel how many values are at most 0, 1, ... levels - 1: integers
    ``[N, C, levels]``.

    Args:
        xp: NumPy or CuPy.
        x: uint8 ``[H, W, C]``, where the result is ``[C, levels]``, or ``[N, H, W, C]``; uint16 of
            65536 levels.
        levels: how many there are.
    """
    channels = x.shape[-1]
    of_images = x.reshape(-1, x.shape[-3] * x.shape[-2], channels)
    count = len(of_images) * channels
    if levels * count < 1 << 31:
        dtype = xp.int32
    else:
        dtype = xp.int64
    begins = xp.arange(0, levels * count, levels, dtype=dtype).reshape(-1, 1, channels)
    bins, shape = (of_images + begins).reshape(-1), (*x.shape[:-3], channels, levels)
    if xp is np:
        return sums_up_to(np, np.bincount(bins, minlength=levels * count).reshape(shape))
    counts = xp.zeros(levels * count, xp.int32)
    xp.add.at(
        counts, bins, xp.int32(1)
    )  # cupy.bincount would have the host wait for the largest bin
    return sums_up_to(xp, counts.reshape(shape))


def sums_up_to(xp: ModuleType, counts: Any) -> Any:
    """Return the sums of the first 1, 2, ... numbers along the last axis."""
    if xp is np:
        return counts.cumsum(axis=-1)
    up_to, step = counts, 1
    while step < counts.shape[-1]:  # sums of 2, 4, ... neighbours, for all tables at once
        up_to = up_to + xp.concatenate([up_to[..., :step] * 0, up_to[..., :-step]], axis=-1)
        step *= 2
    return up_to


def even_tables(xp: ModuleType, up_to: Any) -> Any:
    """Return the tables that make histograms even, uint8 ``[..., 256]``, as Pillow and torchvision
    make them.

    Args:
        xp: NumPy or CuPy.
        up_to: the result of `counts_up_to`.
    """
    count = up_to[..., 255:]
    step = (
        xp.where(up_to < count, up_to, 0).max(axis=-1, keepdims=True) // 255
    )  # of the values below the largest
    before = xp.concatenate([up_to[..., :1] * 0, up_to[..., :-1]], axis=-1)
    table = ((before + step // 2) // xp.maximum(step, 1)).clip(0, 255)
    return xp.where(step == 0, xp.arange(256), table).astype(xp.uint8)


def rounded(xp: ModuleType, x: Any) -> Any:
    """Return float32 values as uint8: the nearest, halves up, bounded."""
    return xp.floor(x.clip(0, 255) + np.float32(ALMOST_HALF)).astype(xp.uint8)

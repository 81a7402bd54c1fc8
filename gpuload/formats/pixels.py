"""Pixels: files of one array each that look like an image or a volume, and of which rows are taken
as records."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

CHANNELS = frozenset((1, 3, 4))
SHORTEST_SIDE, WIDEST = (
    8,
    4,
)  # pixels, and times the shorter side: rows of features are longer, or fewer
# Of two axes of numbers that are no bytes, which tables have, too: so many files, no more rows
# than columns, and few of them, or the form of a camera or a square, rare for shards of embeddings.
MANY_FILES, FEW_ROWS, FORMS_OF_IMAGES = 8, range(16, 256), ((1, 1), (3, 4), (9, 16))
WIDEST_OF_FLOATS = 2  # of three axes: features of words, of which a batch is stored, are wider
ROW_OR_FILE = 'record="file" takes each file as a record, record="row" its rows without this line'
log = logging.getLogger("gpuload")


def warn_of_images(
    call: str,
    num_files: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    remedy: str = ROW_OR_FILE,
) -> bool:
    """Warn of files of one shape that look like an image each, and of which rows are taken as
    records; True if so.

    Args:
        call: ``npy``, say.
        num_files: how many there are.
        dtype: of their arrays.
        shape: of the array of each.
        remedy: of the warning.
    """
    if not are_of_pixels(num_files, dtype, shape):
        return False
    log.warning(
        "gl.%s: %d files hold an array of shape %s each, which may be one image; record i is row i "
        "(%s), %d in all. %s",
        *(call, num_files, shape, shape[1:], num_files * shape[0], remedy),
    )
    return True


def are_of_pixels(num_files: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return True if the array of one of so many files looks like an image, HWC, CHW or HW, or a
    volume."""
    if num_files < 2 or dtype.kind not in "buif":
        return False
    if len(shape) == 3 and CHANNELS.intersection((shape[0], shape[-1])):
        if shape[-1] in CHANNELS:
            sides = shape[:2]
        else:
            sides = shape[1:]
    elif len(shape) == 3:
        return _is_volume(dtype, *shape)
    elif len(shape) == 2 and (dtype.itemsize == 1 or _is_unlike_a_table(num_files, *shape)):
        sides = shape
    else:
        return False
    return min(sides) >= SHORTEST_SIDE and max(sides) <= WIDEST * min(sides)


def _is_volume(dtype: np.dtype[Any], planes: int, height: int, width: int) -> bool:
    """Return True for an array of three axes that is rather a volume, or an image of many channels,
    than images.

    Shards have more images than an image has rows, and a last shard has another number of them.
    """
    if planes > max(height, width) or min(height, width) < SHORTEST_SIDE:
        return False
    _, shorter, longer = sorted((planes, height, width))
    return longer < WIDEST_OF_FLOATS * shorter or (dtype.kind != "f" and longer <= WIDEST * shorter)


def _is_unlike_a_table(num_files: int, rows: int, columns: int) -> bool:
    """Return True for arrays of two axes, in so many files, that are rather images than tables."""
    if num_files < MANY_FILES or rows < FEW_ROWS.start or not rows <= columns <= 2 * rows:
        return False
    return rows in FEW_ROWS or any(rows * wide == columns * high for high, wide in FORMS_OF_IMAGES)

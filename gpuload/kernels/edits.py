"""Edits: ops on uint8 images that keep their size, written as numbers for the core.

``Forms.edits`` returns the edits of an op, and ``Native.edit`` applies those of all ops to an
image while it lies in the cache. The result equals that of the array forms of the ops bit for bit.

Numbers  An edit is its code, the number of its arguments, and these. Those of N images are float64
         ``[N, L]``: the edits of an image fill its row, one after the other. `SKIP` does nothing,
         and takes any arguments: with it, images may have different numbers of edits.
Codes    ``edits.BRIGHTNESS`` and all others are those of `core/cpp/shared/edits.hpp`, the one table
         of them, which also names their arguments. It is read when a code is first needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.kernels import sources

Edits = NDArray[np.float64]

FILTERS = ("nearest", "linear", "cubic")
TABLE_NUMBERS = 32


def code(name: str) -> int:
    """Return the code of an edit by its name."""
    return sources.enumerators("edits.hpp", "Code")[name]


def __getattr__(name: str) -> int:
    """Return the code of an edit, ``edits.BRIGHTNESS``; the next time it lies in the module."""
    if not name.isupper() or name not in (codes := sources.enumerators("edits.hpp", "Code")):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(codes)
    return codes[name]


def of(count: int, code: int, *numbers: Any) -> Edits:
    """Return an edit of each of ``count`` images.

    Args:
        count: the number of images.
        code: the edit's code, the same for all images.
        numbers: each argument: one number for all images, or one for each, ``[count]``.
    """
    edits = np.empty((count, 2 + len(numbers)))
    edits[:, 0], edits[:, 1] = code, len(numbers)
    for column, argument in enumerate(numbers):
        edits[:, 2 + column] = argument
    return edits


def of_tables(tables: NDArray[np.uint8]) -> Edits:
    """Return a look-up of each image in its table, uint8 ``[N, 256]``."""
    edits = np.empty((len(tables), 2 + TABLE_NUMBERS))
    edits[:, 0], edits[:, 1] = code("TABLE"), TABLE_NUMBERS
    edits[:, 2:] = np.ascontiguousarray(tables).view(np.float64)
    return edits


def spread(edits: Edits, rows: NDArray[np.int64], count: int) -> Edits:
    """Return edits of ``count`` images, of which some rows have ``edits``, and the others stay as
    they are."""
    length = edits.shape[1]
    result = np.zeros((count, length))
    result[:, 0], result[:, 1] = code("SKIP"), length - 2
    result[rows] = edits
    return result


def keep_rows(edits: Edits, is_applied: NDArray[Any]) -> Edits:
    """Return the edits of the images for which ``is_applied``, ``[N]``, is True or 1; the others
    stay as they are."""
    rows = np.flatnonzero(is_applied)
    if rows.size == len(edits):
        return edits
    return spread(edits[rows], rows, len(edits))


def reorder(edits: Sequence[Edits], order: NDArray[np.int32]) -> Edits:
    """Return edits in an order of their own for each image.

    Args:
        edits: of some ops, float64 ``[N, L]`` each.
        order: int32 ``[N, number of ops]``: which op comes first, second, and so on.
    """
    length = max(part.shape[1] for part in edits) + 2
    slots = np.zeros((len(edits), len(order), length))
    for slot, part in zip(slots, edits, strict=True):
        end = part.shape[1]
        slot[:, :end] = part
        slot[:, end], slot[:, end + 1] = code("SKIP"), length - end - 2
    rows = np.arange(len(order))[:, None]
    return slots[order, rows].reshape(len(order), len(edits) * length)

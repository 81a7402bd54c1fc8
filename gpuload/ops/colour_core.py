"""Colour in the core: the functions of `ops.colour` for one uint8 image, bit for bit, written to memory that is there.

Each takes an image ``[H, W, C]`` in C order and a result of the same shape, which may be the same memory. They are
called only where there is a core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.core.face import Native
from gpuload.ops import colour, tables

Pixels = NDArray[np.uint8]
LEVELS: Pixels = tables.BYTES.reshape(256, 1, 1)  # every value, as an image


def look_up(x: Pixels, table: Pixels, out: Pixels) -> None:
    """Look up each value in a table ``[256]``, or in that of its channel, ``[C, 256]``."""
    _native().look_up(x[None], np.ascontiguousarray(table).reshape(1, -1, 256), out[None])


def counts_up_to(x: Pixels) -> NDArray[np.int64]:
    """Return the same as `tables.counts_up_to`."""
    counts = np.zeros((x.shape[2], 256), np.int64)
    _native().count_levels(x, counts)
    return counts.cumsum(axis=1)


def brightness(x: Pixels, factor: Any, out: Pixels) -> None:
    """See `colour.brightness`."""
    look_up(x, colour.brightness(np, LEVELS, factor), out)


def contrast(x: Pixels, factor: Any, out: Pixels) -> None:
    """See `colour.contrast`."""
    total = _native().sum_grays(x) if x.shape[2] == 3 else x.sum(dtype=np.int64)
    mean = np.float32(total) / np.float32(x.shape[0] * x.shape[1])
    look_up(x, colour.blend(np, LEVELS, np.asarray(mean), factor), out)


def saturation(x: Pixels, factor: Any, out: Pixels) -> None:
    """See `colour.saturation`."""
    if x.shape[2] == 1:
        np.copyto(out, x)
    else:
        _native().saturate(x, float(factor), float(colour.weight(factor)), out)


def hue(x: Pixels, shift: Any, out: Pixels) -> None:
    """See `colour.hue`."""
    if x.shape[2] == 1:
        np.copyto(out, x)
    else:
        _native().turn_hue(x, float(shift), out)


def sharpness(x: Pixels, factor: Any, out: Pixels) -> None:
    """See `colour.sharpness`; the result lies in other memory."""
    if min(x.shape[:2]) < 3:
        np.copyto(out, x)
    else:
        _native().sharpen(x, float(colour.weight(factor)), out)


def grayscale(x: Pixels, out: Pixels) -> None:
    """See `colour.grayscale`; the result has 1 or 3 channels."""
    if x.shape[2] == 1:
        np.copyto(out, x)
    else:
        _native().make_gray(x, out)


def autocontrast(x: Pixels, out: Pixels) -> None:
    """See `colour.autocontrast`."""
    occurs = np.diff(counts_up_to(x), axis=1, prepend=0) > 0
    low, high = occurs.argmax(axis=1), 255 - occurs[:, ::-1].argmax(axis=1)
    table = colour.stretch(np, tables.BYTES[:, None], low.astype(np.float32), high.astype(np.float32))
    look_up(x, table.T, out)


def equalize(x: Pixels, out: Pixels) -> None:
    """See `colour.equalize`."""
    look_up(x, tables.even_tables(np, counts_up_to(x)), out)


def _native() -> Native:
    if core.native is None:
        raise RuntimeError(f"colours: {core.problem}")
    return core.native

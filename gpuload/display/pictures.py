"""Pictures: images, masks and slices of numbers as RGB pixels, and as PNG files.

Source  PNG, https://www.w3.org/TR/png/
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
LABEL_STEP = 0.618033988749895  # of the hue from one label of a mask to the next


def rgb_pixels(image: NDArray[Any], step: int, *, is_mask: bool) -> tuple[Pixels, str]:
    """Return an image as it is shown, uint8 ``[height, width, 3]``, and a note about its values.

    Args:
        image: ``[height, width, channels]``, with at least one pixel and channel; of other than 3
            channels the first one is shown. Values that are no uint8 are stretched, from the least
            to the greatest that is finite.
        step: each pixel is the mean of a square of so many, of a mask its first label.
        is_mask: the numbers are labels, which are shown as colours.
    """
    if is_mask:
        labels = np.unique(image[..., 0])
        note = f", labels {', '.join(map(str, labels[:8].tolist()))}"
        if labels.size > 8:
            note += " ..."
        return np.rint(_label_colours(image[::step, ::step, 0])).astype(np.uint8), note
    if image.shape[2] != 3:
        image = np.repeat(image[..., :1], 3, axis=2)
    rgb = _shrink(image, step)
    if image.dtype == np.uint8:
        return np.rint(rgb).astype(np.uint8), ""
    values = rgb.astype(np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return np.zeros(rgb.shape, np.uint8), ", no finite value"
    low, high = float(finite.min()), float(finite.max())
    scale = max(high - low, 1e-12)
    stretched = np.nan_to_num((values - low) / scale, nan=0.0, posinf=1.0, neginf=0.0) * 255
    return np.rint(stretched).astype(np.uint8), f", {low:.4g} to {high:.4g}"


def enlarge(pixels: Pixels, least_side: int) -> tuple[Pixels, int]:
    """Return a picture with at least so many pixels along its longer side, and the number of times
    that each of its pixels is repeated."""
    times = max(1, -(-least_side // max(*pixels.shape[:2], 1)))
    return np.ascontiguousarray(pixels.repeat(times, 0).repeat(times, 1)), times


def object_labels(masks: NDArray[Any]) -> NDArray[Any]:
    """Return masks of objects, ``[number, height, width]``, as one of labels 1, 2, ...,
    ``[height, width, 1]``."""
    numbers = np.arange(1, len(masks) + 1)[:, None, None]
    labels: NDArray[Any] = (masks.astype(bool) * numbers).max(axis=0, initial=0)
    return labels[..., None]


def _shrink(image: NDArray[Any], step: int) -> NDArray[Any]:
    """Return the means of squares of ``step`` pixels; pixels that fill no square are left out."""
    if step == 1 or min(image.shape[:2]) < step:
        return image[::step, ::step]
    height, width = (side // step for side in image.shape[:2])
    squares = image[: height * step, : width * step].reshape(height, step, width, step, -1)
    means: NDArray[Any] = squares.mean(axis=(1, 3))
    return means


def _label_colours(labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return a colour for each label of a mask, black for 0, float64 ``[height, width, 3]``."""
    hue = (labels.astype(np.float64)[..., None] * LABEL_STEP + (0, 1 / 3, 2 / 3)) % 1
    colours = 255 * (0.5 + 0.5 * np.cos(2 * np.pi * hue))
    return np.where(labels[..., None] == 0, 0, colours)


def png(pixels: Pixels) -> bytes:
    """Return pixels, uint8 ``[height, width, 3]``, as a PNG file."""
    height, width = pixels.shape[:2]
    lines = np.zeros(
        (height, 1 + 3 * width), np.uint8
    )  # each line begins with its filter, 0 for none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )

"""Pillow's ``ImageEnhance``, ``ImageOps.autocontrast`` and colour spaces as arithmetic: the meaning
of policies.

Images   uint8 of 1 or 3 channels, ``[H, W, C]``, or ``[N, H, W, C]`` with a factor for each; as in
         `kernels.colour`.
Formula  ``base + factor * (x - base)`` in float32, each step rounded, bounded, then cut off. The
         base is 0 for brightness, the mean of the gray for contrast, the gray for saturation
         (``Color``), the smooth image for sharpness.
Gray     ``(19595 red + 38470 green + 7471 blue + 32768) >> 16``; its mean is rounded, halves up.
Others   ``ImageOps.equalize``, ``invert``, ``posterize`` and ``solarize`` are the functions of
         `kernels.colour`.
Source   Read in Pillow 13 (MIT-CMU), src/libImaging/Blend.c, Convert.c, Filter.c and ImageOps.py,
         and written anew.
Equals   Pillow's results on x86-64, every value (`tests/ops/test_colour_pillow.py`).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from gpuload.kernels import colour

GRAY = (19595, 38470, 7471)  # of 65536
YCBCR = (
    (0.299, 0.587, 0.114),
    (-0.16874, -0.33126, 0.5),
    (0.5, -0.41869, -0.08131),
)  # of red, green and blue


def brightness(xp: ModuleType, x: Any, factor: Any) -> Any:
    """Return the result of ``ImageEnhance.Brightness(x).enhance(factor)``."""
    return colour.brightness(xp, x, factor)


def contrast(xp: ModuleType, x: Any, factor: Any) -> Any:
    """Return the result of ``ImageEnhance.Contrast(x).enhance(factor)``."""
    total = gray(xp, x).astype(xp.float64).sum(axis=(-3, -2, -1), keepdims=True)
    return blend(xp, xp.floor(total / (x.shape[-3] * x.shape[-2]) + 0.5), x, factor)


def saturation(xp: ModuleType, x: Any, factor: Any) -> Any:
    """Return the result of ``ImageEnhance.Color(x).enhance(factor)``."""
    if x.shape[-1] == 1:
        return x
    return blend(xp, gray(xp, x), x, factor)


def sharpness(xp: ModuleType, x: Any, factor: Any) -> Any:
    """Return the result of ``ImageEnhance.Sharpness(x).enhance(factor)``."""
    if min(x.shape[-3:-1]) < 3:
        return x
    result = x.copy()
    result[..., 1:-1, 1:-1, :] = blend(xp, colour.smooth(xp, x), x[..., 1:-1, 1:-1, :], factor)
    return result


def autocontrast(xp: ModuleType, x: Any) -> Any:
    """Return the result of ``ImageOps.autocontrast(x)``."""
    values = x.astype(xp.float64)
    low, high = values.min(axis=(-3, -2), keepdims=True), values.max(axis=(-3, -2), keepdims=True)
    scale = 255 / xp.maximum(high - low, 1)
    stretched = (values * scale + -low * scale).clip(0, 255).astype(xp.uint8)
    return xp.where(low == high, x, stretched)


def gray(xp: ModuleType, x: Any) -> Any:
    """Return the result of ``x.convert("L")``, int32 with one channel."""
    if x.shape[-1] == 1:
        return x.astype(xp.int32)
    red, green, blue = (x[..., channel : channel + 1].astype(xp.int32) for channel in range(3))
    return (red * GRAY[0] + green * GRAY[1] + blue * GRAY[2] + 32768) >> 16


def ycbcr(xp: ModuleType, x: Any) -> Any:
    """Return the result of ``x.convert("YCbCr")``, by tables in units of 1/64."""
    parts, levels = [], np.arange(256)
    for number, weights in enumerate(YCBCR):
        tables = [xp.asarray((weight * levels * 64 + 0.5).astype(np.int32)) for weight in weights]
        total = sum(
            table.take(x[..., channel : channel + 1]) for channel, table in enumerate(tables)
        )
        parts.append((total >> 6) + (128 if number else 0))
    return xp.concatenate(parts, axis=-1).astype(xp.uint8)


def hsv(xp: ModuleType, x: Any) -> Any:
    """Return the result of ``x.convert("HSV")``: hue, saturation and value from 0 to 255."""
    red, green, blue = (x[..., channel : channel + 1].astype(xp.float32) for channel in range(3))
    high, low = xp.maximum(red, xp.maximum(green, blue)), xp.minimum(red, xp.minimum(green, blue))
    span = xp.maximum(high - low, np.float32(1))
    reds, greens, blues = ((high - part) / span for part in (red, green, blue))
    reds, greens, blues = (part.astype(xp.float64) for part in (reds, greens, blues))
    of_green, of_blue = 2 + reds - blues, 4 + greens - reds
    sextants = xp.where(
        high == red, blues - greens, xp.where(high == green, of_green, of_blue)
    ).astype(xp.float32)
    turns = sextants.astype(xp.float64) / 6 + 1
    turns = (turns - xp.floor(turns)).astype(xp.float32)
    saturations = (high - low) / xp.maximum(high, np.float32(1))
    hues, saturations = (part.astype(xp.float64) * 255 for part in (turns, saturations))
    return xp.concatenate([part.astype(xp.uint8) for part in (hues, saturations, high)], axis=-1)


def blend(xp: ModuleType, base: Any, x: Any, factor: Any) -> Any:
    """Return the result of ``Image.blend(base, x, factor)``; the base holds whole numbers of any
    dtype."""
    start = base.astype(xp.float32)
    return (
        (start + colour.across(xp, factor) * (x.astype(xp.float32) - start))
        .clip(0, 255)
        .astype(xp.uint8)
    )

"""Colour: torchvision's colour functions over NumPy and CuPy; the colour ops call these.

Images   ``x``: uint8, or float32 from 0 to 1, ``[H, W, C]``, or ``[N, H, W, C]`` for a batch.
         Channels are red, green, blue, or a single one.
Numbers  A parameter is one number, or a NumPy array ``[N]`` with one for each image of a batch. It
         lies on the host: on a GPU nothing here waits for the device.
Bits     uint8 results are those of torchvision on uint8 tensors (0.28, on x86-64 with AVX2 or
         AVX-512). They are cut off to whole numbers, not rounded. torch adds ``a + alpha * b`` with
         one rounding where it works on vectors, and with two for the last elements of a tensor, at
         most 31. Here it is one for all, by way of float64, which holds the sum: so one of 100,000
         values of very small images differs, by 1 level. float32 results may be 1e-6 off where
         torch sums over pixels in an order of its own.
Pillow   ``gpuload.kernels.colour_pillow`` has the same for 8-bit images of Pillow, where the two
differ.
Source   torchvision 0.28, ``torchvision/transforms/v2/functional/_color.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from gpuload.kernels import tables

GRAY = (0.2989, 0.587, 0.114)  # weights of red, green and blue
LEVELS = 255.999  # torchvision's, from 0 to 1 to bytes: 256 - 0.001, then cut off
RED, GREEN, BLUE = range(3)
Arguments = ParamSpec("Arguments")


def _quiet(function: Callable[Arguments, Any]) -> Callable[Arguments, Any]:
    """Return a function in which NumPy does not warn of nan and infinity: a float32 image may hold
    them."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return function(*args, **kwargs)

    return call


@_quiet
def brightness(xp: ModuleType, x: Any, factor: Any) -> Any:
    """Return ``x * factor``, bounded."""
    return _bounded(x.astype(xp.float32) * across(xp, factor), x.dtype)


def contrast(xp: ModuleType, x: Any, factor: Any) -> Any:
    """Return ``x * factor + mean * (1 - factor)``, bounded, with the mean of the image's `gray`."""
    return blend(xp, x, mean(xp, gray(xp, x)), factor)


@_quiet
def contrast_about(xp: ModuleType, x: Any, factor: Any, center: float) -> Any:
    """Return ``x * factor + (center - factor * center)``; uint8 is rounded, halves up, and float32
    not bounded."""
    middle, factor = np.float32(center), across(xp, factor)
    result = x.astype(xp.float32) * factor + (middle - factor * middle)
    if x.dtype == np.uint8:
        return tables.rounded(xp, result)
    return result


def saturation(xp: ModuleType, x: Any, factor: Any) -> Any:
    """Return ``x * factor + gray * (1 - factor)``, bounded; an image of one channel stays as it
    is."""
    if x.shape[-1] == 1:
        return x
    return blend(xp, x, gray(xp, x), factor)


@_quiet
def hue(xp: ModuleType, x: Any, shift: Any) -> Any:
    """Return images with their hue turned by ``shift`` of a full turn, -0.5 to 0.5; one of one
    channel stays as it is."""
    if x.shape[-1] == 1:
        return x
    turns, saturations, values = hsv(xp, unit(xp, x))
    turn = across(xp, shift)
    if turn.ndim:
        turn = turn[..., 0]
    turns = turns + turn
    turns = turns - _whole_part(xp, turns)
    turns = xp.where(turns < 0, turns + np.float32(1), turns)
    return to_dtype(xp, _rgb(xp, turns, saturations, values), x.dtype)


@_quiet
def gamma(xp: ModuleType, x: Any, exponent: Any, gain: float = 1) -> Any:
    """Return ``gain * x ** exponent`` of values from 0 to 1, bounded where ``gain`` is not 1."""
    if x.dtype == np.uint8:  # by a table of the host: powers of a GPU have other last bits
        exponents = np.asarray(exponent, np.float32).reshape(-1, 1)
        levels = tables.BYTES.astype(np.float32) * np.float32(1 / 255)
        powers = (levels.astype(np.float64) ** exponents).astype(np.float32)
        table = (_gained(powers, gain) * np.float32(LEVELS)).astype(np.uint8)
        if not np.ndim(exponent):
            table = table[0]
        return tables.look_up(xp, x, table)
    return _gained(x ** across(xp, exponent), gain)


def _gained(powers: Any, gain: float) -> Any:
    if gain == 1:
        return powers
    return (powers * np.float32(gain)).clip(0, 1)


def invert(xp: ModuleType, x: Any) -> Any:
    """Return ``255 - x``, of float32 ``1 - x``."""
    if x.dtype == np.uint8:
        return ~x
    return np.float32(1) - x


def posterize(xp: ModuleType, x: Any, bits: Any) -> Any:
    """Return images of which each value keeps its first ``bits`` bits, 0 to 8."""
    levels = 1 << np.asarray(bits, np.int32)
    if x.dtype == np.uint8:
        return x & _across(xp, (256 - 256 // levels).astype(np.uint8))
    steps = across(xp, levels)
    step = xp.maximum(xp.floor(x * steps), np.float32(0))
    return xp.minimum(step, steps - np.float32(1)) * across(xp, 1 / levels)


def solarize(xp: ModuleType, x: Any, threshold: Any) -> Any:
    """Return images of which the values at the threshold and above are inverted."""
    return xp.where(x >= across(xp, threshold), invert(xp, x), x)


def autocontrast(xp: ModuleType, x: Any) -> Any:
    """Return images of which each channel reaches from 0 to the largest value; a channel of one
    value stays."""
    values = x.astype(xp.float32)
    return stretch(
        xp, x, values.min(axis=(-3, -2), keepdims=True), values.max(axis=(-3, -2), keepdims=True)
    )


@_quiet
def stretch(xp: ModuleType, x: Any, low: Any, high: Any) -> Any:
    """Return ``x`` with the values from ``low`` to ``high``, float32, over the whole range; see
    `autocontrast`."""
    is_flat = low == high
    scale = (high - low) * np.float32(1 / _largest(x.dtype))
    low, scale = xp.where(is_flat, np.float32(0), low), xp.where(is_flat, np.float32(1), scale)
    return _bounded((x.astype(xp.float32) - low) / scale, x.dtype)


@_quiet
def equalize(xp: ModuleType, x: Any) -> Any:
    """Return images of which the histogram of each channel is as even as a table of 256 values can
    make it."""
    levels = to_dtype(xp, x, np.dtype(np.uint8))
    result = tables.look_up(xp, levels, tables.even_tables(xp, tables.counts_up_to(xp, levels)))
    if x.dtype == np.uint8:
        return result
    return unit(xp, result)


@_quiet
def sharpness(xp: ModuleType, x: Any, factor: Any) -> Any:
    """Return ``x * factor + smooth * (1 - factor)``, bounded; the pixels at the edge stay as they
    are.

    Smooth is the mean of 3 x 3 pixels with weight 5 in the middle, rounded for uint8. An image of
    less than 3 pixels in a direction stays as it is.
    """
    if min(x.shape[-3:-1]) < 3:
        return x
    middle = x[..., 1:-1, 1:-1, :].astype(xp.float32)
    difference = smooth(xp, x) - middle
    share = _across(xp, weight(factor))
    inside = (middle.astype(xp.float64) + difference.astype(xp.float64) * share).astype(xp.float32)
    result = x.clip(0, _largest(x.dtype))
    result[..., 1:-1, 1:-1, :] = _bounded(inside, x.dtype)
    return result


def smooth(xp: ModuleType, x: Any) -> Any:
    """Return the mean of the 3 x 3 pixels around each that is not at the edge, with weight 5 in the
    middle, float32."""
    height, width = x.shape[-3:-1]
    if x.dtype == np.uint8:  # (2 * sum + 13) // 26 rounds sum / 13, which has no halves
        pixels, scale = x.astype(xp.int32), None
    else:
        pixels, scale = x, (np.float32(1 / 13), np.float32(5 / 13))
    total: Any = None
    for top in range(3):
        for left in range(3):
            part = pixels[..., top : top + height - 2, left : left + width - 2, :]
            is_middle = top == left == 1
            if scale is None:
                part = part * (5 if is_middle else 1)
            else:
                part = part * scale[is_middle]
            if total is None:
                total = part
            else:
                total = total + part
    if scale is None:
        return ((2 * total + 13) // 26).astype(xp.float32)
    return total


@_quiet
def gray(xp: ModuleType, x: Any) -> Any:
    """Return the gray of images, float32 with one channel, cut off to whole numbers for uint8; see
    `grayscale`."""
    if x.shape[-1] == 1:
        return x.astype(xp.float32)
    red, green, blue = (x[..., channel : channel + 1] for channel in range(3))
    total = red.astype(xp.float32) * np.float32(GRAY[RED])
    # By way of float64: one rounding for product and sum, as torch's vectors have it (`Bits`,
    # above).
    for part, share in ((green, GRAY[GREEN]), (blue, GRAY[BLUE])):
        total = (
            total.astype(xp.float64) + part.astype(xp.float64) * np.float64(np.float32(share))
        ).astype(xp.float32)
    if x.dtype == np.uint8:
        return xp.floor(total)
    return total


def grayscale(xp: ModuleType, x: Any, channels: int) -> Any:
    """Return ``0.2989 * red + 0.587 * green + 0.114 * blue`` as images of 1 or 3 equal channels."""
    if x.shape[-1] == 1:
        single = x
    else:
        single = gray(xp, x).astype(x.dtype)
    if channels == 1:
        return single
    return xp.concatenate([single] * channels, axis=-1)


@_quiet
def blend(xp: ModuleType, x: Any, base: Any, factor: Any) -> Any:
    """Return ``x * factor + base * (1 - factor)``, bounded.

    Args:
        xp: NumPy or CuPy.
        x: the images.
        base: float32, of the same shape, or of a shape that is broadcast to it.
        factor: 0 gives ``base``, 1 gives ``x``, more goes on beyond ``x``.
    """
    # The sum by way of float64, as in `gray`.
    first = x.astype(xp.float32) * across(xp, factor)
    total = first.astype(xp.float64) + base.astype(xp.float64) * _across(xp, weight(factor))
    return _bounded(total.astype(xp.float32), x.dtype)


@_quiet
def mean(xp: ModuleType, x: Any) -> Any:
    """Return the mean of each image of one channel, float32 ``[..., 1, 1, 1]``."""
    # In float64, so that the order of the pixels, another one on each executor, does not show
    # behind the rounding.
    total = x.astype(xp.float64).sum(axis=(-3, -2, -1), keepdims=True).astype(xp.float32)
    return total / np.float32(x.shape[-3] * x.shape[-2])


def hsv(xp: ModuleType, x: Any) -> tuple[Any, Any, Any]:
    """Return hue (of a full turn), saturation and value of float32 images, 0 to 1, without the axis
    of channels."""
    red, green, blue = (x[..., channel] for channel in range(3))
    high, low = x.max(axis=-1), x.min(axis=-1)
    is_gray, span, unity = high == low, high - low, np.float32(1)
    saturations = span / xp.where(is_gray, unity, high)
    divisor = xp.where(is_gray, unity, span)
    reds, greens, blues = (high - red) / divisor, (high - green) / divisor, (high - blue) / divisor
    of_green, of_blue = (reds + np.float32(2)) - blues, (greens + np.float32(4)) - reds
    turns = xp.where(high == red, blues - greens, xp.where(high == green, of_green, of_blue))
    turns = turns * np.float32(1 / 6) + unity
    return turns - _whole_part(xp, turns), saturations, high


def _rgb(xp: ModuleType, turns: Any, saturations: Any, values: Any) -> Any:
    """Return the images of these, float32 with three channels."""
    unity, six = np.float32(1), turns * np.float32(6)
    sector = xp.floor(six)
    rest = six - sector
    # A hue of a whole turn, which rounding may give, is sector 6: the first again; as is one that
    # is no number.
    sector = xp.where((sector > 0) & (sector < 6), sector, np.float32(0)).astype(xp.int32)
    ramp, pale = saturations * rest, unity - saturations
    falling = ((unity - ramp) * values).clip(0, 1)
    rising = ((ramp + pale) * values).clip(0, 1)
    least = (pale * values).clip(0, 1)

    def channel(*of_sectors: Any) -> Any:
        result = of_sectors[5]
        for number in range(5):
            result = xp.where(sector == number, of_sectors[number], result)
        return result

    return xp.stack(
        [
            channel(values, falling, least, least, rising, values),
            channel(rising, values, values, falling, least, least),
            channel(least, least, rising, values, values, falling),
        ],
        axis=-1,
    )


def unit(xp: ModuleType, x: Any) -> Any:
    """Return images as float32 from 0 to 1."""
    if x.dtype == np.uint8:
        return x.astype(xp.float32) * np.float32(1 / 255)
    return x


def to_dtype(xp: ModuleType, x: Any, dtype: np.dtype[Any]) -> Any:
    """Return images, float32 from 0 to 1 or uint8, as one of the two; not a number becomes black as
    uint8."""
    if x.dtype == dtype:
        return x
    if dtype != np.uint8:
        return unit(xp, x)
    # Bounded first: processors differ in the uint8 that a number beyond 255, or none, becomes.
    return xp.where(
        x > 0, xp.minimum(x * np.float32(LEVELS), np.float32(255)), np.float32(0)
    ).astype(xp.uint8)


def across(xp: ModuleType, numbers: Any) -> Any:
    """Return one number as float32, or one for each image of a batch as an array ``[N, 1, 1, 1]``
    of ``xp``."""
    return _across(xp, np.asarray(numbers, np.float32))


def _across(xp: ModuleType, numbers: NDArray[Any]) -> Any:
    if numbers.ndim:
        return xp.asarray(numbers.reshape(-1, 1, 1, 1))
    return numbers[()]


def weight(factor: Any) -> NDArray[np.float64]:
    """Return the rest of ``factor``, ``1 - factor``, rounded to float32."""
    return np.asarray((1 - np.asarray(factor, np.float64)).astype(np.float32), np.float64)


def _whole_part(xp: ModuleType, x: Any) -> Any:
    """Return numbers without their fraction."""
    return xp.where(x < 0, xp.ceil(x), xp.floor(x))


def _largest(dtype: np.dtype[Any]) -> int:
    return 255 if dtype == np.uint8 else 1


def _bounded(x: Any, dtype: np.dtype[Any]) -> Any:
    """Return float32 values within the range of an image, cut off to whole numbers for uint8."""
    result = x.clip(0, _largest(dtype))
    if result.dtype == dtype:
        return result
    return result.astype(dtype)

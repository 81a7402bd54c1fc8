"""Colours on a GPU: the functions of `kernels.colour` for images of any sizes, by a few kernels.

They make the same numbers bit for bit, but for sums of float32 over an image, which have another
order. Each takes images for which `pixels.reads` is True, ``[N, H, W, C]`` or a list, and one
number for each image.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import colour, colour_pillow, cuda, tables
from gpuload.kernels.pixels import Pixels, constants
from gpuload.kernels.tables import ALMOST_HALF

Numbers = NDArray[Any]
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
NO_STEP, MOST_STEPS = -1, 4

STEPS = (
    cuda.constants(
        BRIGHTNESS=BRIGHTNESS,
        CONTRAST=CONTRAST,
        SATURATION=SATURATION,
        HUE=HUE,
        MOST_STEPS=MOST_STEPS,
    )
    + '#include "steps.cuh"\n'
)
EXTREMES, SHARPEN = '#include "extremes.cuh"\n', '#include "sharpen.cuh"\n'


def _case(name: str, file: str) -> str:
    """Return the text of one of the cases of a file."""
    return f'#define {name}\n#include "{file}"\n'


INVERT, SOLARIZE, POSTERIZE = (
    _case(name, "tones.cuh") for name in ("INVERT", "SOLARIZE", "POSTERIZE")
)
CONTRAST_ABOUT = f"#define ALMOST_HALF {ALMOST_HALF!r}f\n{_case('CONTRAST_ABOUT', 'tones.cuh')}"
POWER, LOOK_UP = _case("POWER", "tones.cuh"), _case("LOOK_UP", "tones.cuh")
COUNT_LEVELS, EQUALIZE = _case("COUNT_LEVELS", "tones.cuh"), _case("EQUALIZE", "tones.cuh")
GRAYSCALE, REORDER = _case("GRAYSCALE", "channels.cuh"), _case("REORDER", "channels.cuh")
YCBCR_WEIGHTS = ", ".join(repr(weight) for row in colour_pillow.YCBCR for weight in row)
PILLOW_YCBCR = f"#define YCBCR {{{YCBCR_WEIGHTS}}}\n{_case('PILLOW_YCBCR', 'channels.cuh')}"
PILLOW_HSV = _case("PILLOW_HSV", "channels.cuh")


def take_steps(xp: ModuleType, x: Any, steps: Numbers, amounts: Numbers) -> Any:
    """Return images behind up to four steps: two launches, one if no step is a contrast.

    Args:
        xp: CuPy.
        x: the images.
        steps: int32 ``[N, K]``, the numbers of the steps of each image in order; `NO_STEP` for
            none.
        amounts: float32 ``[N, K]``, the factor or the turn of each step.
    """
    missing = ((0, 0), (0, MOST_STEPS - steps.shape[1]))
    steps = np.pad(steps.astype(np.int32), missing, constant_values=NO_STEP)
    amounts = np.pad(amounts.astype(np.float32), missing)
    images = Pixels(xp, x, steps, amounts, colour.weight(amounts).astype(np.float32))
    if not (steps == CONTRAST).any():
        return images.change(STEPS)
    return images.change(STEPS, stats=images.gather(STEPS, 8), step=cuda.PARTS)


def take_step(xp: ModuleType, x: Any, step: int, amounts: Numbers) -> Any:
    """Return images behind one step, with a factor or a turn for each."""
    return take_steps(xp, x, np.full((len(x), 1), step), amounts[:, None])


def tone(xp: ModuleType, x: Any, pixel: str, apply: Numbers, *words: Numbers) -> Any:
    """Return images of which each value becomes another by itself, where ``apply`` is 1; one
    launch."""
    return Pixels(xp, x, apply.astype(np.int32), *words).change(pixel)


def gamma(xp: ModuleType, x: Any, exponent: Numbers, gain: float) -> Any:
    """See `colour.gamma`."""
    apply = np.ones(len(x), np.int32)
    if x[0].dtype == np.uint8:
        levels = np.broadcast_to(tables.BYTES[:, None, None], (len(x), 256, 1, 1))
        return tone(xp, x, LOOK_UP, apply, colour.gamma(np, levels, exponent, gain))
    return tone(xp, x, POWER, apply, exponent, constants(len(x), gain))


def autocontrast(xp: ModuleType, x: Any, apply: Numbers) -> Any:
    """See `colour.autocontrast`; two launches."""
    images = Pixels(xp, x, apply.astype(np.int32))
    extremes = images.gather(EXTREMES, 8 * images.channels)
    return images.change(EXTREMES, stats=extremes, step=cuda.PARTS)


def sharpness(xp: ModuleType, x: Any, factor: Numbers) -> Any:
    """See `colour.sharpness`; one launch."""
    return Pixels(xp, x, colour.weight(factor).astype(np.float32)).change(SHARPEN)


def equalize(xp: ModuleType, x: Any, apply: Numbers) -> Any:
    """See `colour.equalize`; three launches: histograms, tables, and the look-up."""
    images = Pixels(xp, x, apply.astype(np.int32))
    entries = 256 * images.channels
    counts = device.zeros((images.count, entries), np.int32)
    images.change(COUNT_LEVELS, stats=counts, step=entries)
    even_tables = xp.empty((images.count, entries), np.uint8)
    device.kernel(cuda.source("even.cu"), "even")(
        (images.count * images.channels,), (256,), (counts, even_tables)
    )
    return images.change(EQUALIZE, stats=even_tables, step=entries)

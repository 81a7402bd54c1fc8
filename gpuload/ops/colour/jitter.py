"""ColorJitter: brightness, contrast, saturation and hue, each by a random number, in a random
order.

`gpuload.kernels.colour` has the formulas, which are torchvision's, and says which of them are
exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.kernels import colour, colour_cuda, edits
from gpuload.kernels.edits import Edits
from gpuload.ops import arguments
from gpuload.ops.base import Draw, Sizes
from gpuload.ops.colour.adjust import ColourOp, uniform
from gpuload.ops.forms import Forms
from gpuload.spec import Field

Range = float | tuple[float, float]
STEPS = {
    "brightness": colour.brightness,
    "contrast": colour.contrast,
    "saturation": colour.saturation,
    "hue": colour.hue,
}
EDITS = ("BRIGHTNESS", "CONTRAST", "SATURATION", "HUE")
NEUTRAL = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
LIMITS = {
    "brightness": (0.0, np.inf),
    "contrast": (0.0, np.inf),
    "saturation": (0.0, np.inf),
    "hue": (-0.5, 0.5),
}


@dataclass(frozen=True)
class ColorJitter(ColourOp):
    """Change brightness, contrast, saturation and hue, in an order drawn for each image; uint8 or
    float32, HWC.

    As ``torchvision.transforms.v2.ColorJitter``, with its arguments; torchvision draws once for a
    batch, this for each image. Each step is that of `Brightness`, `Contrast`, `Saturation` or
    `Hue`: uint8 is cut off to whole numbers after each. timm and Albumentations have the same
    order, with Pillow's and OpenCV's steps; DALI's ``color_twist`` is one linear transform in a
    fixed order. Keras' RandomColorJitter is its four layers in a fixed order.

    Example:
        ``gl.ops.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)``

    Args:
        brightness: 0.4 is a factor from 0.6 to 1.4; or ``(low, high)``. 0 leaves the step out.
        contrast: likewise.
        saturation: likewise.
        hue: 0.1 is a part of a turn from -0.1 to 0.1, at most 0.5; or ``(low, high)``. 0 leaves the
            step out.
    """

    brightness: Range = 0.0
    contrast: Range = 0.0
    saturation: Range = 0.0
    hue: Range = 0.0

    num_uniforms: ClassVar[int] = 2 * len(STEPS)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in STEPS:
            arguments.keep(self, **{name: self._range(name, getattr(self, name))})
        if not self._steps:
            raise SpecError(
                "gl.ops.ColorJitter()",
                cause="brightness, contrast, saturation and hue are 0: it changes nothing",
                remedy="write gl.ops.ColorJitter(brightness=0.4), say, or leave the op out",
            )

    def forms(self, field: Field) -> Forms:
        """It is four edits."""
        return Forms(edits=self._edits)

    def _range(self, name: str, value: Any) -> Range:
        """Return the numbers between which a step's number is drawn, 0 where there is no step."""
        neutral, (least, limit) = NEUTRAL[name], LIMITS[name]
        pair = arguments.numbers(self, name, 0 if value is None else value)
        if not isinstance(pair, tuple):
            if pair < 0:
                raise arguments.refuse(self, name, value, "at least 0, or two numbers")
            pair = (neutral - pair, neutral + pair)
            if least == 0:
                pair = (max(pair[0], 0.0), pair[1])
        if len(pair) != 2 or not least <= pair[0] <= pair[1] <= limit:
            demand = f"a number, or two, low and high, with {least:g} <= low <= high"
            if limit != np.inf:
                demand += f" <= {limit:g}"
            raise arguments.refuse(self, name, value, demand)
        if pair == (neutral, neutral):
            return 0.0
        return pair

    @property
    def _steps(self) -> list[int]:
        """The numbers in STEPS of the changes with a range that is not empty; an image gets these,
        in a random order."""
        return [number for number, name in enumerate(STEPS) if getattr(self, name)]

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``order`` of the steps, int32 ``[N, 4]``, and ``amount`` of each, float32
        ``[N, 4]``."""
        ranges = [getattr(self, name) or (neutral, neutral) for name, neutral in NEUTRAL.items()]
        amounts = [uniform(u[:, number], low, high) for number, (low, high) in enumerate(ranges)]
        order = u[:, len(STEPS) :].argsort(axis=1, kind="stable")
        return {"order": order.astype(np.int32), "amount": np.stack(amounts, axis=1)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image."""
        functions, steps = list(STEPS.values()), self._steps
        for number in draw["order"].tolist():
            if number in steps:
                x = functions[number](xp, x, draw["amount"][number])
        return x

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return four edits, each with a number and, for those of a factor, its weight."""
        order = draw["order"]
        names = ["SKIP"] * len(EDITS)
        for number in self._steps:
            names[number] = EDITS[number]
        codes = np.array([edits.code(name) for name in names])
        amounts = np.take_along_axis(draw["amount"], order, axis=1)
        numbers = np.stack(
            [codes[order], np.full(order.shape, 2), amounts, colour.weight(amounts)], axis=2
        )
        return numbers.reshape(len(order), 4 * len(EDITS))

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        numbers = np.where(np.isin(draw["order"], self._steps), draw["order"], colour_cuda.NO_STEP)
        return colour_cuda.take_steps(
            xp, x, numbers, np.take_along_axis(draw["amount"], draw["order"], axis=1)
        )

    def change_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """See ``ColourOp``: the images that have the same step at a place of their order go
        together."""
        functions, steps = list(STEPS.values()), self._steps
        for numbers in draw["order"].T:
            parts = []
            for number in range(len(STEPS)):
                rows = np.flatnonzero(numbers == number)
                if rows.size:
                    part = x[xp.asarray(rows)]
                    amount = draw["amount"][rows, number]
                    if number in steps:
                        part = functions[number](xp, part, amount)
                    parts.append(part)
            back = numbers.argsort(kind="stable").argsort()
            x = xp.concatenate(parts)[xp.asarray(back)]
        return x

"""Erasing, Cutout and GridMask: parts of an image that are covered."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import cover_cuda
from gpuload.kernels.pixels import Pixels, colors, constants, reads
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Op, Sizes
from gpuload.ops.colour.noise import (
    KEY_WORDS,
    WHITE,
    keys,
    normal,
    quantiles_on_device,
    word_blocks,
)
from gpuload.ops.crop import window
from gpuload.ops.traits import Arithmetic, Traits, once
from gpuload.spec import Field

MODES = ("const", "rand", "pixel")
TRIES = 10  # as in torchvision and timm
MOST_BOXES = 1000  # of an image; the numbers of each are drawn


@dataclass(frozen=True)
class _Cover(Op):
    """An op that covers parts of images with ``fill``; where the parts differ in shape, so do the
    subclasses."""

    fill: float | tuple[float, ...] | dict[str, float | tuple[float, ...]] = field(
        default=0, hash=False, kw_only=True
    )

    per_field: ClassVar[tuple[str, ...]] = ("fill",)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self, fill=arguments.by_field(self, "fill", self.fill, arguments.numbers, 0.0)
        )

    def field_after(self, field: Field) -> Field:
        """Shape and dtype stay."""
        shape = images.image(self, field)
        window.check_colors(self, field, self._color, shape[2])
        return field.with_(shape=shape, axes="HWC")

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once, on a GPU by at most two kernels."""
        if reads(xp, x):
            return self.cover_on_device(xp, x, draw)
        return super().array_batch(xp, x, draw)

    def cover_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images of any sizes for which `pixels.reads` is True, by kernels."""
        raise NotImplementedError

    def _colors(self, x: Any) -> NDArray[np.uint8]:
        """Return the colour as words of a kernel."""
        return colors(self._color, x[0].dtype, x[0].shape[2], len(x))

    @property
    def _color(self) -> float | tuple[float, ...]:
        if isinstance(self.fill, dict):
            raise RuntimeError(f"{self} is asked for one field without op.of(name)")
        return self.fill


@dataclass(frozen=True)
class Erasing(_Cover):
    """Cover a random box of some of the images with a colour or with noise; HWC, any number of
    channels.

    The box has a random part of the area and a random ratio of height to width, uniform on a
    logarithmic scale; ten tries, then none. The same as torchvision's ``RandomErasing``, and timm's
    with its three modes; put it behind `Normalize` as they do, where noise has mean 0 and deviation
    1. Keras' RandomErasing draws height and width by themselves; Albumentations' Erasing draws one
    try alone. DALI's erase takes boxes that are drawn elsewhere.

    Example:
        ``gl.ops.Erasing(p=0.25)``

    Args:
        p: probability.
        scale: least and greatest part of the area.
        ratio: least and greatest height / width; timm's is ``(0.3, 1 / 0.3)``.
        mode: ``"const"``: all is ``fill``; ``"rand"``: each channel of a box has a normal number;
            ``"pixel"``: each value has one. ``fill`` is the mean of these numbers.
        std: standard deviation of the numbers.
        count: how many boxes; each has the area over ``count``.
        fill: a number, or one for each channel; or a dict from field names to these.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    mode: str = "const"
    std: float = 1.0
    count: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        std = arguments.number(self, "std", self.std)
        if std < 0:
            raise arguments.refuse(self, "std", self.std, "a number of at least 0")
        scale = arguments.interval(self, "scale", self.scale)
        if scale[1] > 1:
            raise arguments.refuse(
                self, "scale", self.scale, "parts of the area, more than 0 and at most 1"
            )
        arguments.keep(
            self,
            p=arguments.probability(self, "p", self.p),
            scale=scale,
            ratio=arguments.interval(self, "ratio", self.ratio),
            mode=arguments.choice(self, "mode", self.mode, MODES),
            std=std,
            count=arguments.whole(self, "count", self.count, largest=MOST_BOXES),
        )

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """One, those of the tries and of the place for each box, and the key of the noise."""
        return 1 + self.count * (2 * TRIES + 2) + KEY_WORDS

    def field_after(self, field: Field) -> Field:
        """Shape and dtype stay."""
        after = super().field_after(field)
        if self.mode != "const" and field.dtype.name not in WHITE:
            raise arguments.refuse(
                self, "mode", self.mode, f"'const' for {field.dtype}, which holds no normal numbers"
            )
        return after

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``boxes``, int32 ``[N, count, 4]``: top, left, height and width, 0 for none; and
        ``key``."""
        numbers = u[:, 1 : 1 + self.count * (2 * TRIES + 2)].reshape(
            len(u), self.count, 2 * TRIES + 2
        )
        sides = size[:, None, None].astype(np.float64)
        area = (
            sides[..., 0]
            * sides[..., 1]
            * arguments.between(self.scale, numbers[..., :TRIES])
            / self.count
        )
        ratio = np.exp(
            arguments.between(
                (math.log(self.ratio[0]), math.log(self.ratio[1])), numbers[..., TRIES : 2 * TRIES]
            )
        )
        tries = np.rint(np.sqrt(np.stack([area * ratio, area / ratio], axis=-1)))
        # As torchvision: a box as high or as wide as the image is not taken, and the first that
        # fits is.
        fits = (tries < sides).all(axis=-1)
        shape = np.take_along_axis(tries, fits.argmax(axis=-1)[..., None, None], axis=2)[:, :, 0]
        begin = np.floor(numbers[..., 2 * TRIES :] * (sides[:, :, 0] - shape + 1))
        boxes = np.concatenate([begin, shape], axis=-1)
        is_covered = fits.any(axis=-1) & (u[:, :1] < self.p)
        draw = {"boxes": np.where(is_covered[..., None], boxes, 0).astype(np.int32)}
        if self.mode == "const":
            return draw
        return draw | {"key": keys(u[:, -KEY_WORDS:])}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image ``[H, W, C]`` whose boxes are filled; the image itself if it has
        none."""
        boxes = [box for box in draw["boxes"].tolist() if box[2] and box[3]]
        if not boxes:
            return x
        result, channels = x.copy(), x.shape[2]
        shapes: list[tuple[int, ...]] = [(channels,)] * len(boxes)
        if self.mode == "pixel":
            shapes = [(height, width, channels) for _, _, height, width in boxes]
        values = self._values(xp, [math.prod(shape) for shape in shapes], draw, x.dtype)
        for (top, left, height, width), shape, value in zip(boxes, shapes, values, strict=True):
            if value is None:
                color = value
            else:
                color = value.reshape(shape)
            part = (slice(top, top + height), slice(left, left + width))
            if color is None:
                result[part] = xp.asarray(self._color, x.dtype)
            else:
                result[part] = color
        return result

    def cover_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """See ``_Cover``: noise is made by a kernel of its own."""
        boxes = draw["boxes"]
        if self.mode == "const":
            return Pixels(xp, x, boxes, self._colors(x), raw=True).change(
                cover_cuda.boxes(self.count)
            )
        channels, of_pixels = x[0].shape[2], self.mode == "pixel"
        if of_pixels:
            count = int(boxes[..., 2:].astype(np.int64).prod(axis=-1).sum(axis=1).max())
        else:
            count = self.count
        noise = word_blocks(xp, draw["key"], -(-max(count, 1) * channels // 4))
        mean = np.broadcast_to(np.asarray(self._color, np.float32), channels)
        numbers = constants(len(x), self.std, *mean.tolist())
        return Pixels(xp, x, boxes, numbers).change(
            cover_cuda.noise(self.count, of_pixels=of_pixels), stats=noise, step=4 * noise.shape[1],
            table=quantiles_on_device(),
        )  # fmt: skip

    def _values(
        self, xp: ModuleType, counts: list[int], draw: Draw, dtype: np.dtype[Any]
    ) -> list[Any]:
        """Return noise for boxes of so many values, one behind the other; None where there is a
        colour instead."""
        if self.mode == "const":
            return [None] * len(counts)
        if isinstance(self._color, tuple):
            color = self._color
        else:
            color = (self._color,)
        numbers = normal(xp, draw["key"][None], sum(counts))[0] * np.float32(self.std)
        values, begin = [], 0
        for count in counts:
            mean = xp.asarray(np.resize(np.array(color, np.float32), count))
            value = numbers[begin : begin + count] + mean
            if dtype.kind == "u":
                value = xp.rint(value).clip(0, np.iinfo(dtype).max)
            values.append(value.astype(dtype))
            begin += count
        return values


@dataclass(frozen=True)
class Cutout(_Cover):
    """Cover squares at random places of the images; HWC, any dtype.

    The centre is any pixel of the image, so that a part of the square may lie outside: DeVries and
    Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout", 2017,
    https://arxiv.org/abs/1708.04552. Albumentations' CoarseDropout keeps its boxes inside;
    torchvision's and timm's are `Erasing`. Keras' is RandomErasing; DALI's erase takes boxes that
    are drawn elsewhere.

    Example:
        ``gl.ops.Cutout(16)``

    Args:
        size: side of a square, pixels.
        count: how many squares.
        p: probability.
        fill: a number, or one for each channel; or a dict from field names to these.
    """

    size: int
    count: int = 1
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self,
            size=arguments.side(self, "size", self.size),
            count=arguments.whole(self, "count", self.count, largest=MOST_BOXES),
            p=arguments.probability(self, "p", self.p),
        )

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """One, and the place of each square."""
        return 1 + 2 * self.count

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``boxes``, int32 ``[N, count, 4]``: top, left, height and width of the part
        inside, 0 for none."""
        sides = size[:, None].astype(np.int64)
        first = (
            np.floor(u[:, 1:].reshape(len(u), self.count, 2) * sides).astype(np.int64)
            - self.size // 2
        )
        begin, end = first.clip(0, sides), (first + self.size).clip(0, sides)
        boxes = np.concatenate([begin, end - begin], axis=-1)
        return {"boxes": np.where((u[:, :1] < self.p)[..., None], boxes, 0).astype(np.int32)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image ``[H, W, C]`` whose boxes are filled; the image itself if it has
        none."""
        boxes = [box for box in draw["boxes"].tolist() if box[2] and box[3]]
        if not boxes:
            return x
        result, color = x.copy(), xp.asarray(self._color, x.dtype)
        for top, left, height, width in boxes:
            result[top : top + height, left : left + width] = color
        return result

    def cover_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU with their boxes covered, by kernels."""
        return Pixels(xp, x, draw["boxes"], self._colors(x), raw=True).change(
            cover_cuda.boxes(self.count)
        )


@dataclass(frozen=True)
class GridMask(_Cover):
    """Cover a grid of squares, at a random place; HWC, any dtype.

    The grid has units of a random side; of each the first ``ratio`` of the rows and of the columns
    stays: Chen, Liu, Zhao and Jia, "GridMask Data Augmentation", 2020,
    https://arxiv.org/abs/2001.04086, without a rotation, as their code's default. Albumentations'
    GridDropout covers ``ratio`` of the side. DALI's grid_mask covers the first ``ratio`` of a unit
    and can turn the grid; torchvision, timm and Keras have none.

    Example:
        ``gl.ops.GridMask((8, 16))``

    Args:
        unit: least and greatest side of a unit, pixels, at least 2.
        ratio: the part of a unit's rows and columns that stays, 0 to 1; at least one pixel stays
            and one is covered.
        p: probability.
        fill: a number, or one for each channel; or a dict from field names to these.
    """

    unit: tuple[int, int] = (96, 224)
    ratio: float = 0.6
    p: float = 1.0

    num_uniforms: ClassVar[int] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.unit, (tuple, list)):
            pair = self.unit
        else:
            pair = (self.unit, self.unit)
        unit = tuple(arguments.side(self, "unit", side, least=2) for side in pair)
        if len(unit) != 2 or unit[0] > unit[1]:
            raise arguments.refuse(
                self, "unit", self.unit, "two whole numbers, low and high, with 2 <= low <= high"
            )
        arguments.keep(
            self,
            unit=unit,
            ratio=arguments.probability(self, "ratio", self.ratio),
            p=arguments.probability(self, "p", self.p),
        )

    @property
    @once
    def traits(self) -> Traits:
        """One draw serves images of any size."""
        return Traits(arithmetic=Arithmetic(any_size=True))

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``grid``, int32 ``[N, 4]``: the unit, its part that stays, and its beginning, top
        and left; pixels.

        The unit is 0 for an image that stays as it is.
        """
        low, high = self.unit
        unit = low + np.floor(u[:, 1] * (high - low + 1))
        # Rounded and bounded as in the authors' code: min(max(int(d * ratio + 0.5), 1), d - 1).
        stays = np.floor(unit * self.ratio + 0.5).clip(1, unit - 1)
        begin = np.floor(u[:, 2:] * unit[:, None])
        grid = np.concatenate([unit[:, None], stays[:, None], begin], axis=1)
        return {"grid": np.where(u[:, :1] < self.p, grid, 0).astype(np.int32)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image."""
        unit, stays, top, left = draw["grid"].tolist()
        if not unit:
            return x
        rows = (xp.arange(x.shape[0]) + (unit - top)) % unit >= stays
        columns = (xp.arange(x.shape[1]) + (unit - left)) % unit >= stays
        return xp.where((rows[:, None] & columns)[..., None], xp.asarray(self._color, x.dtype), x)

    def cover_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU with their boxes covered, by kernels."""
        return Pixels(xp, x, draw["grid"], self._colors(x), raw=True).change(cover_cuda.GRID)

"""CLAHE: the histogram of each part of an image made even, as far as a limit allows.

Tiles      The image is cut into ``grid`` tiles, ``(rows, columns)``. Where its sides are no
           multiples of these, pixels are added at the bottom and right, mirrored in the last ones,
           so many that both sides are; where one of the sides is one already, as many as it has
           tiles.
Histogram  of each tile, 256 levels, of uint16 65536. All more than ``limit * pixels / levels``
           in a level, rounded down and at least 1, is cut off and given to all levels alike, the
           rest to every ``levels // rest``-th level, from 0 on.
Values     A level becomes ``(levels - 1) / pixels * (values up to it)`` in the tile; each pixel is
           the mean of its values in the four tiles about it, weighed by the distance from
           their middles. float32, rounded to nearest.
Source     Zuiderveld, "Contrast Limited Adaptive Histogram Equalization", Graphics Gems IV, 1994;
           OpenCV (Apache-2.0), ``modules/imgproc/src/clahe.cpp``, read and written anew.
Equals     ``cv2.createCLAHE(...).apply`` of OpenCV 5.0, every value; of red, green and blue that of
           its L of Lab.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.errors import SpecError
from gpuload.kernels import clahe_cuda, edits, edits_cuda, lab, tables
from gpuload.kernels.edits import Edits
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Sizes
from gpuload.ops.colour.tones import Chance
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Traits, once
from gpuload.spec import Field

f32 = np.float32
RGB = 3  # channels
MOST_TILES = 256  # down and across; each has a table of 256 levels


@dataclass(frozen=True)
class CLAHE(Chance):
    """Make the histogram of each tile of an image even, within a limit (CLAHE); uint8 or uint16,
    HWC.

    Of images of three channels L of Lab is changed, as by Albumentations' ``CLAHE``, which is for
    uint8 alone; of others, gray ones say, each channel by itself. Every value is OpenCV's:
    `ops.colour.clahe` has the formula. `Equalize` takes a whole image without a limit. DALI's clahe
    makes the same values (version 2.4, on a CPU), but has one limit for all images; Keras' and
    Kornia's work on floating point, torchvision and timm have none.

    Example:
        ``gl.ops.CLAHE(clip_limit=(1, 4), grid=(8, 8), p=0.5)``

    Args:
        clip_limit: how many times its share of the pixels a level may have, more than 0: 1 changes
            least. A number, or two, between which it is drawn for each image.
        grid: tiles down and across; one number for both. An image may be smaller.
        p: the probability that an image is changed.
    """

    clip_limit: float | tuple[float, float] = (1.0, 4.0)
    grid: int | tuple[int, int] = (8, 8)

    num_uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        limit = arguments.numbers(self, "clip_limit", self.clip_limit)
        if isinstance(limit, tuple):
            limits = limit
        else:
            limits = (limit, limit)
        if len(limits) != 2 or not 0 < limits[0] <= limits[1]:
            demand = "a number of more than 0, or two, low and high, with 0 < low <= high"
            raise arguments.refuse(self, "clip_limit", self.clip_limit, demand)
        if isinstance(self.grid, (tuple, list)):
            grid = self.grid
        else:
            grid = (self.grid, self.grid)
        tiles = tuple(arguments.whole(self, "grid", count, largest=MOST_TILES) for count in grid)
        if len(tiles) != 2:
            raise arguments.refuse(
                self, "grid", self.grid, "one whole number, or two: tiles down and across"
            )
        arguments.keep(self, clip_limit=limits, grid=tiles)

    @property
    @once
    def traits(self) -> Traits:
        """It is random where the limit is drawn, too."""
        low, high = self._limits
        is_drawn = self.p > 0 and low < high
        return super().traits._replace(is_random=super().traits.is_random or is_drawn)

    def forms(self, field: Field) -> Forms:
        """It is an edit of uint8, and has a form of its own in the core for uint16."""
        has_row = core.native is not None and field.dtype == np.uint16
        if not has_row:
            return Forms(edits=self._edits)
        return Forms(edits=self._edits, row=self._write)

    def field_after(self, field: Field) -> Field:
        """The shape and the dtype stay."""
        cause = "it counts the levels of uint8 or uint16 images"
        remedy = f"put gl.ops.Cast('uint8', on={field.name!r}) before it"
        images.check_dtype(self, field, ("uint8", "uint16"), cause, remedy)
        shape = images.image(self, field)
        if field.dtype == np.uint16 and shape[2] in (RGB, None):
            raise SpecError(
                f"{self}: field {field.name!r} is uint16 of {shape[2] or 'any number of'} channels",
                cause="of three channels L of Lab is changed, which OpenCV has for uint8 alone",
                remedy="make uint8 of it before it: "
                f"gl.ops.Python(lambda x: (x >> 8).astype('uint8'), out='uint8', on={field.name!r})",
            )
        return field.with_(shape=shape, axes="HWC")

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``apply``, int32 ``[N]``: 1 where an image is changed; and ``clip_limit``, float32
        ``[N]``."""
        return super().draw(u, size) | {
            "clip_limit": arguments.between(self._limits, u[:, 1]).astype(f32)
        }

    def change(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, or a batch of one size, with the draws of all its images."""
        batch = x if x.ndim == 4 else x[None]
        count, height, width, channels = batch.shape
        limits = np.broadcast_to(draw["clip_limit"], count)
        if channels == RGB:
            lightness, a, b = lab.to_lab(xp, batch)
            result = lab.from_lab(
                xp, equalize_tiles(xp, lightness.astype(xp.uint8), limits, self._tiles), a, b
            )
        else:
            planes = xp.moveaxis(batch, -1, 1).reshape(-1, height, width)
            planes = equalize_tiles(xp, planes, np.repeat(limits, channels), self._tiles)
            result = xp.moveaxis(planes.reshape(count, channels, height, width), 1, -1)
        return result.reshape(x.shape)

    def change_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU, made by kernels."""
        if x[0].dtype == np.uint16:
            return clahe_cuda.equalize(xp, x, draw["apply"], draw["clip_limit"], self._tiles)
        return edits_cuda.edit(
            xp, x, self._edits(draw, np.empty((len(x), 2), np.int32), x[0].shape[2])
        )

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits:
        """Return the edits of the images, one row for each."""
        return edits.keep_rows(
            edits.of(len(size), edits.CLAHE, draw["clip_limit"], *self._tiles), draw["apply"]
        )

    def _write(self, x: NDArray[Any], draw: Draw, out: NDArray[Any]) -> None:
        if core.native is None:
            raise RuntimeError(f"CLAHE: {core.problem}")
        if draw["apply"]:
            # A field of a record may begin at any byte, and the core reads whole numbers.
            if not x.flags.aligned:
                x = x.copy()
            core.native.clahe(x, float(draw["clip_limit"]), *self._tiles, out)
        else:
            np.copyto(out, x)

    @property
    def _limits(self) -> tuple[float, float]:
        limits: Any = self.clip_limit
        return limits  # type: ignore[no-any-return]  # a pair since __post_init__

    @property
    def _tiles(self) -> tuple[int, int]:
        tiles: Any = self.grid
        return tiles  # type: ignore[no-any-return]  # a pair since __post_init__


def equalize_tiles(
    xp: ModuleType, x: Any, clip_limit: NDArray[np.float32], grid: tuple[int, int]
) -> Any:
    """Return planes with even histograms in their tiles, ``[N, H, W]``, of the dtype of ``x``.

    Args:
        xp: NumPy or CuPy.
        x: uint8 or uint16 ``[N, H, W]``.
        clip_limit: float32 ``[N]``, on the host: see `CLAHE`.
        grid: tiles down and across.
    """
    levels = 256 if x.dtype == np.uint8 else 1 << 16
    if levels > 256 and len(x) > 1:  # one by one: tables of so many levels are large
        rows = (slice(row, row + 1) for row in range(len(x)))
        return xp.concatenate([equalize_tiles(xp, x[row], clip_limit[row], grid) for row in rows])
    count, sides = len(x), x.shape[1:]
    are_whole = all(side % tiles == 0 for side, tiles in zip(sides, grid, strict=True))
    added = [0, 0]
    if not are_whole:
        added = [tiles - side % tiles for side, tiles in zip(sides, grid, strict=True)]
    enlarged = x
    for axis, (side, extra) in enumerate(zip(sides, added, strict=True), 1):
        if extra:
            enlarged = enlarged.take(xp.asarray(_mirrored_places(side, side + extra)), axis=axis)
    height, width = (
        (side + extra) // tiles for side, extra, tiles in zip(sides, added, grid, strict=True)
    )
    pieces = (
        enlarged.reshape(count, grid[0], height, grid[1], width)
        .swapaxes(2, 3)
        .reshape(-1, height, width, 1)
    )
    up_to = tables.counts_up_to(xp, pieces, levels).reshape(count, -1, levels)
    curves = _curves(xp, up_to, height * width, clip_limit)
    return _blend(xp, x, curves, (height, width), grid)


def _mirrored_places(length: int, new_length: int) -> NDArray[np.int64]:
    """Return which of ``length`` places stand at ``new_length``, those behind the last mirrored in
    it."""
    period = max(2 * (length - 1), 1)
    places = np.arange(new_length) % period
    return np.where(places < length, places, period - places)


def _curves(xp: ModuleType, up_to: Any, pixels: int, clip_limit: NDArray[np.float32]) -> Any:
    """Return the new value of each level of a tile, float32 ``[N, tiles, levels]``.

    Args:
        xp: NumPy or CuPy.
        up_to: integers ``[N, tiles, levels]``: how many values of a tile are at most 0, 1, ...
        pixels: of a tile.
        clip_limit: float32 ``[N]``, on the host.
    """
    levels = up_to.shape[-1]
    counts = xp.concatenate([up_to[..., :1], up_to[..., 1:] - up_to[..., :-1]], axis=-1)
    largest = (clip_limit.astype(np.float64) * pixels / levels).clip(1, pixels).astype(np.int32)
    limit = xp.asarray(largest)[:, None, None]
    excess = xp.maximum(counts - limit, 0).sum(axis=-1, keepdims=True)
    rest, level = excess % levels, xp.arange(levels)
    step = levels // xp.maximum(rest, 1)
    has_one_more = (level % step == 0) & (level // step < rest)
    counts = xp.minimum(counts, limit) + excess // levels + has_one_more
    return xp.rint(tables.sums_up_to(xp, counts).astype(f32) * (f32(levels - 1) / f32(pixels)))


def _blend(
    xp: ModuleType, x: Any, curves: Any, tile: tuple[int, int], grid: tuple[int, int]
) -> Any:
    """Return planes in which each pixel is the mean of its values by the curves of the four tiles
    about it."""
    (top, bottom, lower_part), (left, right, right_part) = (
        _neighbours(*lengths) for lengths in zip(x.shape[1:], tile, grid, strict=True)
    )
    first = np.arange(len(x), dtype=np.int32)[:, None, None] * (grid[0] * grid[1])
    flat, values, levels = curves.reshape(-1), x.astype(xp.int32), curves.shape[-1]

    def become(rows: NDArray[np.int32], columns: NDArray[np.int32]) -> Any:
        begins = (first + rows[:, None] * grid[1] + columns) * levels
        return flat.take(values + xp.asarray(begins.astype(np.int32)))

    lower, after = xp.asarray(lower_part)[:, None], xp.asarray(right_part)
    upper, before = f32(1) - lower, f32(1) - after
    above = become(top, left) * before + become(top, right) * after
    below = become(bottom, left) * before + become(bottom, right) * after
    return xp.rint(above * upper + below * lower).astype(x.dtype)


def _neighbours(
    length: int, tile: int, tiles: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
    """Return for each place along an axis the tile before it and the one after it, and the share of
    the latter."""
    place = np.arange(length, dtype=f32) * (f32(1) / f32(tile)) - f32(0.5)
    before = np.floor(place)
    number = before.astype(np.int32)
    return np.maximum(number, 0), np.minimum(number + 1, tiles - 1), place - before

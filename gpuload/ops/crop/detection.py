"""RandomIoUCrop, RandomZoomOut, ScaleJitter: crops and sizes of recipes for detection, with the
boxes of an image.

Source  torchvision 0.28, ``transforms.v2``, which follows SSD (https://arxiv.org/abs/1512.02325,
        section 2.2, and its reference code) and "Simple Copy-Paste"
        (https://arxiv.org/abs/2012.07177, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import SpecError
from gpuload.kernels import pixels
from gpuload.ops import arguments, images
from gpuload.ops.base import Boxes, Draw, Op, Points, Sizes
from gpuload.ops.crop import window
from gpuload.ops.crop.randomresize import SizeJitter
from gpuload.ops.crop.resize import Interpolation
from gpuload.ops.crop.window import Color, Fill
from gpuload.ops.traits import Geometric, Marks, Regional, Traits, move_corners, once
from gpuload.spec import Field, Spec

OPTIONS = (
    0.0,
    0.1,
    0.3,
    0.5,
    0.7,
    0.9,
    1.0,
)  # of the least overlap, as in SSD; 1 leaves the image as it is
ROUNDS, TRIALS = 16, 40  # torchvision has any number of rounds
AT_ONCE = 64  # images of which crops are looked for together, as their numbers stay in the cache


@dataclass(frozen=True)
class Region(Op):
    """Take a region of each image: from ``start`` (top, left) on ``shape`` (height, width), both
    drawn, in pixels."""

    @property
    @once
    def traits(self) -> Traits:
        """It moves pixels."""
        return Traits(geometric=Geometric(self._move_points))

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the regions' sizes."""
        return draw["shape"]

    def field_after(self, field: Field) -> Field:
        """Height and width vary."""
        return field.with_(shape=(None, None, images.image(self, field)[2]), axes="HWC")

    def _move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """They are counted from the place where the region begins."""
        return points - draw["start"][::-1]

    @property
    def border(self) -> Color | None:
        """The colour of pixels outside of the image; None if there are none."""
        return None

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the region of one image."""
        (top, left), (height, width) = draw["start"].tolist(), draw["shape"].tolist()
        bottom, right = top + height, left + width
        inside = x[max(top, 0) : min(bottom, x.shape[0]), max(left, 0) : min(right, x.shape[1])]
        if self.border is None:
            return inside
        result = xp.empty((height, width, x.shape[2]), x.dtype)
        result[...] = xp.asarray(self.border, x.dtype)
        begin_y, begin_x = max(-top, 0), max(-left, 0)
        result[begin_y : begin_y + inside.shape[0], begin_x : begin_x + inside.shape[1]] = inside
        return result

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch, on a GPU by a kernel; a window inside of its image is a view of
        it."""
        if self.border is None and device.compiles(xp):
            return self._rows(xp, x, draw)
        if self.border is None or not pixels.reads(xp, x):
            return super().array_batch(xp, x, draw)
        return pixels.move(xp, x, start=draw["start"], size=draw["shape"], fill=self.border)

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``slice``; out of the image only if there is a border."""
        settings: dict[str, Any] = {"start": draw["start"], "shape": draw["shape"], "axes": [0, 1]}
        if self.border is not None:
            settings.update(out_of_bounds_policy="pad", fill_values=self.border)
        return images.move_pixels(
            dali, field.dtype, ("bool",), lambda raw: dali.fn.slice(raw, **settings), x
        )


@dataclass(frozen=True)
class RandomZoomOut(Region):
    """Put an image at a random place of a larger canvas, 1 to 4 times as wide and high; HWC, any
    dtype.

    With probability ``p`` a factor r is drawn from ``side_range``; the canvas has
    ``int(r * height)`` x ``int(r * width)`` pixels. It is torchvision's ``RandomZoomOut``. Marks
    boxes, points and masks go with the image. DALI's paste takes a ratio and a place that are drawn
    elsewhere; Keras' RandomZoom keeps the size of the image, and so does Albumentations' Affine;
    timm has none.

    Example:
        ``gl.ops.RandomZoomOut(fill=124)``

    Args:
        fill: colour of the added pixels, a number or one for each channel; or a dict from field
            names to these, ``{"mask": 255}``, the others being 0.
        side_range: least and greatest factor, 1 or more.
        p: the probability that an image is zoomed out.
    """

    fill: Fill = field(default=0, hash=False)
    side_range: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5

    per_field: ClassVar[tuple[str, ...]] = ("fill",)
    num_uniforms: ClassVar[int] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        side_range = arguments.interval(self, "side_range", self.side_range)
        if side_range[0] < 1:
            raise arguments.refuse(
                self, "side_range", self.side_range, "two numbers, low and high, of at least 1"
            )
        arguments.keep(self, side_range=side_range, fill=window.check_fill(self, self.fill))
        arguments.keep(self, p=arguments.probability(self, "p", self.p))

    def field_after(self, field: Field) -> Field:
        """Height and width vary."""
        window.check_colors(
            self, field, window.one_fill(self, self.fill), images.image(self, field)[2]
        )
        return super().field_after(field)

    @property
    def border(self) -> Color | None:
        """The colour of the added pixels."""
        return window.one_fill(self, self.fill)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``start``: where each canvas begins, not positive; and its ``shape``; int32
        ``[N, 2]``, pixels."""
        low, high = self.side_range
        factor = np.where(u[:, :1] < self.p, low + u[:, 1:2] * (high - low), 1.0)
        canvas = np.maximum(arguments.check_sides(self, size * factor).astype(np.int64), size)
        left, top = ((canvas - size)[:, ::-1] * u[:, 2:]).astype(np.int32).T
        return {"start": -np.stack([top, left], axis=1), "shape": canvas.astype(np.int32)}


@dataclass(frozen=True)
class RandomIoUCrop(Region):
    """Cut a random box that overlaps one of the image's boxes by so much, as SSD does; HWC, any
    dtype.

    An overlap (intersection over union) is drawn from ``options``; 1 or more leaves the image as it
    is. Else up to 40 boxes are drawn: width and height from ``scale`` of the image's, with a ratio
    within ``ratio``, at a random place; the first is taken in which the centre of a box lies, and
    that overlaps one of these boxes by no less. If none is, another overlap is drawn. It is
    torchvision's ``RandomIoUCrop``; only that one goes on beyond 16 rounds.

    Needs boxes that are marked: ``source.mark(boxes="xyxy")``. Those whose centres lie outside of
    the crop become zeros, which ``gl.ops.CleanBoxes`` drops; put it behind. DALI's random_bbox_crop
    has thresholds for the part of a box as well, and goes on for ever unless told; Albumentations'
    BBoxSafeRandomCrop keeps every box; Keras and timm have none.

    Example:
        ``gl.ops.RandomIoUCrop()``

    Args:
        scale: least and greatest part of the image's width, and of its height.
        ratio: least and greatest width / height of the crop.
        options: the least overlaps of which one is drawn.
    """

    scale: tuple[float, float] = (0.3, 1.0)
    ratio: tuple[float, float] = (0.5, 2.0)
    options: tuple[float, ...] = OPTIONS

    num_uniforms: ClassVar[int] = ROUNDS * (1 + 4 * TRIALS)

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "numbers of at least 0; 1 leaves the image as it is"
        if isinstance(self.options, (tuple, list)) and not self.options:
            raise arguments.refuse(self, "options", self.options, allowed)
        options = arguments.numbers(self, "options", self.options)
        if not isinstance(options, tuple):
            options = (options,)
        if min(options) < 0:
            raise arguments.refuse(self, "options", self.options, allowed)
        scale = arguments.interval(self, "scale", self.scale)
        if scale[1] > 1:
            raise arguments.refuse(
                self, "scale", self.scale, "two numbers, low and high, with 0 < low <= high <= 1"
            )
        arguments.keep(self, scale=scale, ratio=arguments.interval(self, "ratio", self.ratio))
        arguments.keep(self, options=options)

    @property
    @once
    def traits(self) -> Traits:
        """It draws by the marked boxes, and uses the crop of each image alone."""
        return super().traits._replace(
            geometric=Geometric(self._move_points, boxes=self._move_boxes),
            regional=Regional(self._region, self._within),
            marks=Marks(are_read=True, boxes=self._boxes_to_draw, draw=self.draw_by_boxes),
        )

    def _boxes_to_draw(self, before: Spec) -> tuple[str, ...]:
        """Return the marked boxes.

        Raises:
            SpecError: there are none.
        """
        names = tuple(field.name for field in before if field.holds_boxes)
        if not names:
            raise SpecError(
                f"{self}: no field is marked as boxes",
                cause=f"where it cuts depends on them; the fields are {'; '.join(map(str, before))}",
                remedy="say which they are: source.mark(boxes='xyxy')",
            )
        return names

    def spec_after(self, spec: Spec) -> Spec:
        """Height and width vary; there must be boxes."""
        self._boxes_to_draw(spec)
        return super().spec_after(spec)

    def draw_by_boxes(self, u: NDArray[np.float64], size: Sizes, corners: list[Boxes]) -> Draw:
        """Return ``start`` (top, left) and ``shape`` (height, width), int32 ``[N, 2]``, pixels."""
        start, shape = np.zeros((len(u), 2), np.int32), size.astype(np.int32)
        with_boxes = np.flatnonzero([len(boxes) for boxes in corners])
        for first in range(0, len(with_boxes), AT_ONCE):
            rows = with_boxes[first : first + AT_ONCE]
            crops = self._find_crops(u[rows], size[rows], [corners[row] for row in rows.tolist()])
            start[rows], shape[rows] = crops[:, 1::-1], crops[:, :1:-1] - crops[:, 1::-1]
        return {"start": start, "shape": shape}

    def _find_crops(
        self, u: NDArray[np.float64], size: Sizes, corners: list[Boxes]
    ) -> NDArray[np.int64]:
        """Return left, top, right and bottom of the crop of each image, int64 ``[N, 4]``; each has
        boxes."""
        result = np.pad(size[:, ::-1].astype(np.int64), ((0, 0), (2, 0)))
        rounds, options = (
            u.reshape(len(u), ROUNDS, 1 + 4 * TRIALS),
            np.array(self.options, np.float64),
        )
        rows = np.arange(len(u))  # of the images that have no crop yet
        for number in range(ROUNDS):
            least = options[(rounds[rows, number, 0] * len(options)).astype(np.int64)]
            rows, least = rows[least < 1], least[least < 1]
            if not rows.size:
                break
            crops, fits = self._try_crops(rounds[rows, number, 1:], size[rows, None, ::-1])
            fits = _have_overlap(crops, fits, [corners[row] for row in rows.tolist()], least)
            is_found = fits.any(axis=1)
            # The first that fits, as if they had been drawn one after the other.
            result[rows[is_found]] = crops[is_found, fits[is_found].argmax(axis=1)]
            rows = rows[~is_found]
        return result

    def _try_crops(
        self, u: NDArray[np.float64], size: Sizes
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the crops of a round, int64 ``[N, K, 4]``, and which of them have a side and ratio
        that may be.

        Args:
            u: float64 ``[N, 4 * K]``.
            size: width and height of each image, int32 ``[N, 1, 2]``.
        """
        scales, places = np.moveaxis(u.reshape(len(u), 2, TRIALS, 2), 1, 0)
        sides = ((self.scale[0] + (self.scale[1] - self.scale[0]) * scales) * size).astype(np.int64)
        begin = ((size - sides) * places).astype(np.int64)
        ratios = sides[..., 0] / np.maximum(sides[..., 1], 1)
        fits = (sides > 0).all(axis=2) & (ratios >= self.ratio[0]) & (ratios <= self.ratio[1])
        return np.concatenate([begin, begin + sides], axis=2), fits

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return a draw without boxes: the images stay as they are."""
        return self.draw_by_boxes(u, size, [np.empty((0, 4))] * len(u))

    def _region(self, draw: Draw, size: Sizes) -> Draw:
        """Return the crops."""
        return draw

    def _within(self, draw: Draw, region: Draw) -> Draw:
        """Return the crops as they lie in their regions."""
        return {"start": draw["start"] - region["start"], "shape": draw["shape"]}

    def _move_boxes(self, corners: Boxes, draw: Draw, size: NDArray[np.int32]) -> Boxes:
        """Boxes with centres outside of the crop become zeros."""
        begin, sides = draw["start"][::-1], draw["shape"][::-1]
        if tuple(draw["shape"].tolist()) == tuple(size.tolist()):
            return corners
        centres = (corners[:, :2] + corners[:, 2:]) / 2
        inside = np.logical_and.reduce(
            (begin < centres) & (centres < begin + sides), axis=1, keepdims=True
        )
        return np.where(inside, move_corners(self._move_points, corners, draw, size), 0.0)


@dataclass(frozen=True)
class ScaleJitter(SizeJitter):
    """Resize each image by a random factor of the largest size that fits into ``height`` x
    ``width`` pixels.

    The factor is drawn from ``scale``, and the sides are rounded down: large-scale jitter,
    torchvision's ``ScaleJitter`` (its ``target_size`` is width, height).
    ``gl.ops.RandomCrop(1024, pad_if_needed=True)`` behind it makes images of one size. Marks
    boxes, points and masks go with the image. Albumentations' RandomScale is relative to the
    image's own size, Keras' RandomZoom keeps its size; DALI's resize takes sizes that are drawn
    elsewhere; timm has none.

    Example:
        ``gl.ops.ScaleJitter(1024)``

    Args:
        height: pixels of the size that factor 1 fits into.
        width: pixels; ``height`` if left out.
        scale: least and greatest factor.
        interpolation: as of ``gl.ops.Resize``.
        antialias: as of ``gl.ops.Resize``.
    """

    height: int
    width: int | None = None
    scale: tuple[float, float] = (0.1, 2.0)
    interpolation: Interpolation = field(default="linear", hash=False)
    antialias: bool | str = True

    def __post_init__(self) -> None:
        super().__post_init__()
        height = arguments.side(self, "height", self.height)
        if self.width is None:
            width = height
        else:
            width = arguments.side(self, "width", self.width)
        arguments.keep(
            self, height=height, width=width, scale=arguments.interval(self, "scale", self.scale)
        )

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``size``: the new size of each image, float32 ``[N, 2]`` as DALI wants it."""
        window_size = np.array([self.height, self.width])
        fitting = (window_size / np.maximum(size, 1)).min(axis=1, keepdims=True)
        factor = fitting * (self.scale[0] + u * (self.scale[1] - self.scale[0]))
        sides = arguments.check_sides(self, size * factor)
        return {"size": np.maximum(sides.astype(np.int64), 1).astype(np.float32)}


def _have_overlap(
    crops: NDArray[np.int64],
    fits: NDArray[np.bool_],
    corners: list[Boxes],
    least: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return which crops overlap a box with its centre in them by so much at least, boolean
    ``[N, K]``.

    Args:
        crops: of each image, int64 ``[N, K, 4]``.
        fits: boolean ``[N, K]``, which of them count.
        corners: the boxes of each image.
        least: the intersection over union, float64 ``[N]``.
    """
    boxes, images = (
        np.concatenate(corners),
        np.repeat(np.arange(len(crops)), [len(rows) for rows in corners]),
    )
    (x, y), sides = ((boxes[:, :2] + boxes[:, 2:]) / 2).T[..., None], np.moveaxis(crops, 2, 0)
    left, top, right, bottom = (np.ascontiguousarray(side)[images] for side in sides)
    inside = (left < x) & (x < right) & (top < y) & (y < bottom) & fits[images]
    numbers, trials = np.nonzero(inside)
    rows = images[numbers]
    is_enough = _overlaps(sides[:, rows, trials], boxes[numbers].T) >= least[rows]
    result = np.zeros_like(fits)
    result[rows[is_enough], trials[is_enough]] = True
    return result


def _overlaps(crops: NDArray[np.int64], boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the intersection over union of crops with a box each, both ``[4, M]``; float64
    ``[M]``."""
    sides = (np.minimum(crops[2:], boxes[2:]) - np.maximum(crops[:2], boxes[:2])).clip(0)
    common = sides[0] * sides[1]
    areas = (boxes[2] - boxes[0]) * (boxes[3] - boxes[1])
    union = (crops[2] - crops[0]) * (crops[3] - crops[1]) + areas - common
    return np.asarray(common / np.maximum(union, 1e-12))

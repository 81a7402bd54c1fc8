"""Mosaic: four images of the epoch's order in one, with their masks, boxes and points, as YOLO's
detectors are trained.

Group    The record at position p of the epoch's order has its own image at the upper left, and
         those at p xor 1, 2 and 3 at the upper right, lower left and lower right: 0 to 3 are a
         group, 4 to 7, and so on. The order is that of the whole epoch (`order.py`), so the pixels
         are the same with any batch size and on any number of ranks. Where a batch ends inside a
         group, the others of it are read and transformed besides: six at most. Where the last group
         of an epoch is not full, the record itself stands in the places of missing ones.
Places   The corner at which the four meet is drawn; each image has one of its own corners there,
         and pixels outside of the result are cut off. Resize images before:
         ``Resize(longer=640)``, then ``Mosaic(1280)``.
Rows     Boxes are moved and clipped; those that are too small then are dropped, by the rule of
         `CleanBoxes`, with the rows that go with them. Those of the four images follow one another.
         Points without boxes all stay. Other fields, a label of the image say, stay those of the
         record itself.
Draw     is that of the record itself.
Source   Bochkovskiy et al., "YOLOv4: Optimal Speed and Accuracy of Object Detection",
         https://arxiv.org/abs/2004.10934; the places are those of YOLOv5's ``load_mosaic``, whose
         other three images are drawn from the whole data set.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import SpecError
from gpuload.kernels import cuda, walk
from gpuload.ops import arguments, boxes, follow, images
from gpuload.ops.base import PARTNER, Draw, Op, Sizes
from gpuload.ops.crop import window
from gpuload.ops.crop.cleanboxes import are_large, check_length, check_rows
from gpuload.ops.follow import BEFORE, Follower
from gpuload.ops.geometry.warp import Color, Fill
from gpuload.ops.traits import Geometric, Joint, Marks, Mixes, Traits, once
from gpuload.spec import INSTANCES, Field, Spec

GROUP = 4
PIECE = np.dtype([  # a piece, for the kernel: where pixel (0, 0) of the result would lie in its image, ...
    ("address", "i8"), ("down", "i8"), ("across", "i8"), ("deep", "i8"),
    ("top", "i4"), ("left", "i4"), ("bottom", "i4"), ("right", "i4"),
])  # fmt: skip


class MosaicPiece(NamedTuple):
    """An image of a mosaic: which row of the batch, and where its upper left corner lies in the
    result, pixels."""

    row: int
    top: int
    left: int


@dataclass(frozen=True)
class Mosaic(Op):
    """Put four images of the epoch's order about a random point of one image of ``height`` x
    ``width`` pixels.

    HWC, any dtype. Marks masks, boxes and points of all four go along: see `ops.mix.mosaic`, also
    for batches that are no multiple of four. Albumentations' ``Mosaic`` crops and resizes each
    image to its cell; its other images are handed over by the user. torchvision, timm, Keras and
    DALI have no such op.

    Example:
        ``gl.ops.Mosaic(48, fill=114)``

    Args:
        height: pixels of the result; YOLO takes twice the size of its images, and cuts it down
            behind.
        width: pixels of the result; ``height`` if left out.
        center: least and greatest place of the point where the images meet, in parts of height and
            width.
        fill: the value where no image lies: a number, or one for each channel; or a dict from field
            names to these.
        p: the share of records that become mosaics; others lie alone in the middle of the result.
        min_size: the least width and height that a box must have to stay, pixels.
        min_area: the least area that a box must have to stay, pixels.
    """

    height: int
    width: int | None = None
    center: tuple[float, float] = (0.25, 0.75)
    fill: Fill = field(default=0, hash=False)
    p: float = field(default=1.0, kw_only=True)
    min_size: float = field(default=1.0, kw_only=True)
    min_area: float = field(default=1.0, kw_only=True)

    per_field: ClassVar[tuple[str, ...]] = ("fill",)
    num_uniforms: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        height = arguments.side(self, "height", self.height)
        center = arguments.numbers(self, "center", self.center)
        if not isinstance(center, tuple):
            center = (center, center)
        if len(center) != 2 or not 0 <= center[0] <= center[1] <= 1:
            demand = "two numbers, low and high, with 0 <= low <= high <= 1"
            raise arguments.refuse(self, "center", self.center, demand)
        for name in ("min_size", "min_area"):
            value = arguments.number(self, name, getattr(self, name))
            if value < 0:
                raise arguments.refuse(self, name, value, "a number of at least 0")
            arguments.keep(self, **{name: value})
        width = height
        if self.width is not None:
            width = arguments.side(self, "width", self.width)
        arguments.keep(
            self,
            height=height,
            width=width,
            center=center,
            fill=arguments.by_field(self, "fill", self.fill, arguments.numbers, 0),
            p=arguments.probability(self, "p", self.p),
        )

    @property
    @once
    def traits(self) -> Traits:
        """It makes one record of several, and an op of its own joins the marked fields."""
        return Traits(
            geometric=Geometric(mover=self._mover),
            joint=Joint(self._join_fields),
            mixes=Mixes(GROUP),
            marks=Marks(drops_rows=True),
        )

    @property
    def canvas(self) -> tuple[int, int]:
        """Height and width of the result, pixels."""
        return self.height, int(self.width or self.height)

    def field_after(self, field: Field) -> Field:
        """Height and width become those of the result."""
        shape = images.image(self, field)
        if shape[2] is None:
            raise SpecError(
                f"{self}: field {field.name!r} has shape {field.shape}",
                cause="the four images of a mosaic have one number of channels, and here it varies",
                remedy="bring them to one: gl.ops.Decode('RGB') does for files",
            )
        window.check_colors(self, field, self._color, shape[2])
        return field.with_(shape=(*self.canvas, shape[2]), axes="HWC")

    @property
    def _color(self) -> Color:
        """The fill of an op as it acts on one field."""
        if isinstance(self.fill, dict):
            raise RuntimeError(f"{self} is asked for one field without op.of(name)")
        return self.fill

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the size of the result for every image."""
        return np.broadcast_to(np.array(self.canvas, np.int32), size.shape)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``point``, int32 ``[N, 2]``, row and column at which the images meet; and
        ``apply``, 1 or 0."""
        places = arguments.between(self.center, u[:, :2]) * self.canvas
        return {"point": places.astype(np.int32), "apply": (u[:, 2] < self.p).astype(np.int32)}

    def _mover(
        self, image: str, annotations: Sequence[Field], spec: Spec, changed: Collection[str]
    ) -> Op:
        """Return the op that joins the marked fields beside the images."""
        names = [field.name for field in annotations]
        box_names = [field.name for field in annotations if field.holds_boxes]
        names += [
            field.name for field in spec if field.rows_of in box_names and field.name not in names
        ]
        is_first = tuple(name for name in box_names if name not in changed)
        return JoinObjects(self, image, is_first, on=tuple(names))

    def pieces(self, draw: Draw, sizes: NDArray[np.integer[Any]]) -> Iterator[list[MosaicPiece]]:
        """Give the images of each mosaic of a batch, see `tabulate`."""
        for is_mosaic, rows, begins in zip(draw["apply"], *self.tabulate(draw, sizes), strict=True):
            count = GROUP if is_mosaic else 1
            yield [
                MosaicPiece(row, *begin)
                for row, begin in zip(rows[:count].tolist(), begins.tolist(), strict=False)
            ]

    def tabulate(
        self, draw: Draw, sizes: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the four images of each mosaic; of those of a single image the first counts.

        Args:
            draw: of the batch.
            sizes: height and width of each image of it, ``[N, 2]``, pixels.

        Returns:
            The rows of the images in the batch, int64 ``[N, 4]``, and where the upper left corner
            of each lies in the
            result, int64 ``[N, 4, 2]``, pixels.
        """
        corner, is_mosaic, sizes = (
            np.arange(GROUP),
            draw["apply"][:, None] != 0,
            sizes.astype(np.int64),
        )
        rows = np.repeat(np.arange(len(sizes))[:, None], GROUP, axis=1)
        rows[:, 1:] += draw[PARTNER] * is_mosaic
        sides = np.stack([corner < 2, corner % 2 == 0], axis=1)  # above the point, left of it
        begins = draw["point"][:, None] - sizes[rows] * sides
        middle = (np.array(self.canvas) - sizes[rows]) // 2
        return rows, np.where(is_mosaic[..., None], begins, middle)

    @device.waits
    def _join_fields(
        self, xp: ModuleType, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """Return the mosaics; see ``Op``."""
        return {name: self._join(xp, values, draw, after[name]) for name, values in fields.items()}

    def _join(self, xp: ModuleType, x: Any, draw: Draw, after: Field) -> Any:
        """Return the mosaics of one field, ``[N, height, width, channels]``."""
        op, shape = self.of(after.name), after.fixed_shape
        color = np.broadcast_to(np.asarray(op.fill, after.dtype), shape[2])  # type: ignore[attr-defined]
        if device.compiles(xp) and len(x):
            return self._join_on_device(xp, x, draw, color)
        device.settle()
        sizes = np.array([image.shape[:2] for image in x], np.int64).reshape(len(x), 2)
        result = xp.empty((len(x), *shape), after.dtype)
        result[...] = xp.asarray(color)
        for row, pieces in enumerate(self.pieces(draw, sizes)):
            for piece in pieces:
                inside, outside = _overlap(piece, sizes[piece.row], self.canvas)
                result[row][outside] = x[piece.row][inside]
        return result

    def _join_on_device(self, xp: ModuleType, x: Any, draw: Draw, color: NDArray[Any]) -> Any:
        """The same on a GPU, by one kernel."""
        dtype, table = np.dtype(x[0].dtype), np.zeros((len(x), GROUP), PIECE)
        sizes = np.broadcast_to(walk.sizes(x), (len(x), 2))
        rows, begins = self.tabulate(draw, sizes)
        lows = begins.clip(0)
        highs = np.maximum(np.minimum(begins + sizes[rows], self.canvas), lows)
        highs[:, 1:] = np.where(draw["apply"][:, None, None], highs, lows)[
            :, 1:
        ]  # a single image has no others
        table["top"], table["left"] = lows[..., 0], lows[..., 1]
        table["bottom"], table["right"] = highs[..., 0], highs[..., 1]
        for name, numbers in zip(
            ("address", "down", "across", "deep"), walk.strides_of(x), strict=False
        ):
            table[name] = np.broadcast_to(numbers, len(x))[rows]
        # Where row 0 and column 0 of the result would lie in the image, maybe before its first
        # byte: the kernel counts from there, and reads only between the rows and columns that
        # follow.
        table["address"] -= (
            begins[..., 0] * table["down"] + begins[..., 1] * table["across"]
        ) * dtype.itemsize
        blocks = cuda.blocks(math.prod(self.canvas) * len(color), len(x))
        out = xp.empty((len(x), *self.canvas, len(color)), dtype)
        # One copy to the GPU for both. The colour is copied, for a broadcast array cannot be viewed
        # as bytes.
        uploads = device.parameters(
            np.concatenate([table.reshape(-1).view(np.uint8), color.copy().view(np.uint8)])
        )
        device.kernel(cuda.mosaic(dtype), "mosaic")(
            (blocks * len(x),), (cuda.THREADS,),
            (uploads, uploads[table.nbytes :], out, *map(np.int32, out.shape[1:]), np.int32(blocks)),
        )  # fmt: skip
        return out


def _overlap(
    piece: MosaicPiece, size: Any, canvas: tuple[int, int]
) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return which rows and columns of an image lie in the result, and where they lie there."""
    inside, outside = [], []
    for begin, length, canvas_length in zip(piece[1:], size, canvas, strict=True):
        # An image wholly outside the result gives empty slices, never an end before the begin.
        low, high = max(begin, 0), max(min(begin + int(length), canvas_length), max(begin, 0))
        inside.append(slice(low - begin, high - begin))
        outside.append(slice(low, high))
    return (inside[0], inside[1]), (outside[0], outside[1])


@dataclass(frozen=True)
class JoinObjects(Follower):
    """Join the marked boxes, points and masks of objects of the images of each mosaic, and their
    rows; on the host.

    Args:
        is_first: the fields of boxes that are as the source has them, so that their numbers are
            checked.
    """

    is_first: tuple[str, ...] = ()

    @property
    @once
    def traits(self) -> Traits:
        """It joins the rows of several records."""
        return super().traits._replace(joint=Joint(self._join_fields), mixes=Mixes(GROUP))

    @property
    def mosaic(self) -> Mosaic:
        """The op that moves the pixels."""
        if not isinstance(self.op, Mosaic):
            raise TypeError(f"{self.op} is no Mosaic")
        return self.op

    def spec_after(self, spec: Spec) -> Spec:
        """Masks of objects get the size of the result; narrow integers of places become wider; the
        rest stays.

        Raises:
            SpecError: a field has as many rows in each record, so that those of four cannot be
                joined.
        """
        changes = []
        for field_name in self.targets(spec):
            field = spec[field_name]
            check_length(self.op, field)
            if field.kind == INSTANCES:
                changes.append(field.with_(shape=(None, *self.mosaic.canvas)))
            elif field.holds_boxes or field.holds_points:
                changes.append(field.with_(dtype=boxes.moved_dtype(field.dtype)))
        return spec.replacing(*changes)

    def _join_fields(
        self, xp: ModuleType, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """Return the rows of each mosaic; see ``Op``."""
        result: dict[str, list[Any]] = {name: [] for name in fields}
        for pieces in self.mosaic.pieces(draw, draw[BEFORE]):
            parts = [self._piece(piece, fields, draw, after) for piece in pieces]
            for name, rows in result.items():
                rows.append(np.concatenate([part[name] for part in parts]))
        return dict(result)

    def _piece(
        self, piece: MosaicPiece, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, NDArray[Any]]:
        """Return the rows of one image that stay in a mosaic."""
        size, canvas = draw[BEFORE][piece.row], np.array(self.mosaic.canvas, np.int32)
        shift = np.array([piece.left, piece.top])
        rows = {name: np.asarray(values[piece.row]) for name, values in fields.items()}
        stays: dict[str, NDArray[np.bool_]] = {}
        for target in after:
            values = rows[target.name]
            if target.holds_boxes or target.holds_points:
                numbers = values.reshape(-1, values.shape[-1])
            else:
                numbers = values
            sizes, canvases = (
                np.broadcast_to(sides, (len(numbers), 2)) for sides in (size, canvas)
            )
            if target.holds_boxes:
                corners = boxes.to_corners(numbers, target.kind, sizes)
                if target.name in self.is_first:
                    lengths = np.array([len(corners)])
                    follow.check_boxes(
                        target.name, target.kind, corners, lengths, sizes, first_row=piece.row
                    )
                corners = boxes.clip(corners + np.tile(shift, 2), canvases)
                stays[target.name] = are_large(
                    corners, canvases, self.mosaic.min_size, self.mosaic.min_area
                )
                rows[target.name] = boxes.from_corners(
                    corners, target.kind, canvases, values.dtype
                ).reshape(values.shape)
            elif target.holds_points:
                points = boxes.to_pixels(numbers, target.kind, sizes) + shift
                rows[target.name] = boxes.from_pixels(
                    points, target.kind, canvases, numbers
                ).reshape(values.shape)
            elif target.kind == INSTANCES:
                rows[target.name] = self._masks(piece, target.name, values, size)
        for target in after:
            if target.rows_of in stays:
                boxes_name = target.rows_of
                check_rows(
                    piece.row,
                    boxes_name,
                    len(stays[boxes_name]),
                    target.name,
                    len(rows[target.name]),
                )
                rows[target.name] = rows[target.name][stays[boxes_name]]
        return rows | {name: rows[name][is_left] for name, is_left in stays.items()}

    def _masks(
        self, piece: MosaicPiece, name: str, masks: NDArray[Any], size: NDArray[np.int32]
    ) -> NDArray[Any]:
        """Return masks of objects, ``[number, height, width]``, as they lie in the result."""
        follow.check_mask_size(name, masks, size, row=piece.row)
        inside, outside = _overlap(piece, size.tolist(), self.mosaic.canvas)
        result = np.zeros((len(masks), *self.mosaic.canvas), masks.dtype)
        result[(slice(None), *outside)] = masks[(slice(None), *inside)]
        return result

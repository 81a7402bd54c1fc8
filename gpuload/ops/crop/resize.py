"""Resize and RandomResizedCrop: images of one size; the formula is that of `resampling`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import core, device
from gpuload.errors import SpecError
from gpuload.kernels import pillow, pixels, resampling, walk
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Op, Points, Sizes
from gpuload.ops.bounds import HALVES, Bound
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Execution, Geometric, Regional, Traits, once
from gpuload.spec import Field, is_whole

INTERPOLATIONS = ("linear", "nearest", "cubic", "lanczos")
ROUNDINGS = ("nearest", "down")
DALI_FILTERS = {
    "linear": "INTERP_LINEAR", "nearest": "INTERP_NN", "cubic": "INTERP_CUBIC", "lanczos": "INTERP_LANCZOS3",
}  # fmt: skip
PIL = "pil"  # the antialias that is Pillow's
Interpolation = str | dict[str, str]  # one for all fields, or by the names of fields
NEAREST_DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float16",
    "float32",
)
NOT_IN_DALI = (
    "bool",
    "int8",
    "int32",
    "uint32",
    "int64",
    "float16",
)  # DALI 2.4; moved as other dtypes of their width
TRIES = 10  # as in torchvision
RESIZE_BOUNDS: Mapping[str, Bound] = {"dali": HALVES, "gpu": HALVES}


@dataclass(frozen=True)
class Resize(Op):
    """Resize images to ``height`` x ``width``, or so that the shorter or the longer side has a
    length.

    ``Resize(height, width, fit=True)`` keeps the proportions; with `Pad` behind it, images are
    boxed in: ``Resize(640, 640, fit=True), Pad(640, 640, fill=114)``. torchvision (tensors) and
    DALI average where an image becomes smaller, as here; Keras and Albumentations (OpenCV) do not
    unless asked, and timm has Pillow's resize: ``antialias="pil"``.

    Example:
        ``gl.ops.Resize(256, 256)``

    Args:
        height: pixels; together with ``width``.
        width: pixels.
        shorter: pixels; the longer side keeps the proportions, rounded as ``rounding`` says.
        interpolation: ``"linear"``, ``"cubic"``, ``"lanczos"`` or ``"nearest"``; or a dict from
            field names to these, as ``{"mask": "nearest"}``, the others being linear. Only
            ``"nearest"`` makes no new values between labels.
        antialias: average over all source pixels where the image becomes smaller (all but nearest).
            ``"pil"``: as Pillow up to 12 does, every value; Pillow 13 sums some sizes, as of tall
            images, down the columns first, which rounds otherwise, see `kernels.pillow`. DALI has
            no such form.
        longer: pixels, in place of the shorter side; with ``shorter``, the longer side has at most
            so many, as with torchvision's ``max_size``.
        fit: make the image as large as fits into ``height`` x ``width``, and keep its proportions.
        rounding: of a side that keeps the proportions: ``"nearest"``, halves up; or ``"down"``, as
            torchvision does.
    """

    height: int | None = None
    width: int | None = None
    shorter: int | None = None
    interpolation: Interpolation = field(default="linear", hash=False)
    antialias: bool | str = True
    longer: int | None = field(default=None, kw_only=True)
    fit: bool = field(default=False, kw_only=True)
    rounding: str = field(default="nearest", kw_only=True)

    per_field: ClassVar[tuple[str, ...]] = ("interpolation",)

    def __post_init__(self) -> None:
        super().__post_init__()
        num_lengths = (self.height is not None) + (self.width is not None)
        has_side = self.shorter is not None or self.longer is not None
        if num_lengths != (0 if has_side else 2) or (has_side and self.fit is True):
            raise SpecError(
                f"{self}",
                cause="the new size is height and width, or the length of the shorter side, or of the longer one",
                remedy=self._forms(),
            )
        for name in ("height", "width", "shorter", "longer"):
            if getattr(self, name) is not None:
                arguments.keep(self, **{name: arguments.side(self, name, getattr(self, name))})
        arguments.keep(self, fit=arguments.flag(self, "fit", self.fit))
        arguments.choice(self, "rounding", self.rounding, ROUNDINGS)
        _check_filter(self)

    @property
    @once
    def traits(self) -> Traits:
        """It moves pixels; DALI has no antialias as Pillow's."""
        return Traits(
            execution=Execution(has_dali_form=self.antialias != PIL),
            geometric=Geometric(self._move_points),
            bounds=RESIZE_BOUNDS,
        )

    def forms(self, field: Field) -> Forms:
        """It resizes whole images; a form for single records is in the core."""
        return Forms(
            resample=self._resample, row=self._resize_into if _is_in_core(self, field) else None
        )

    def _forms(self) -> str:
        """Return a call to write, with the user's own numbers."""
        if isinstance(self.height, (tuple, list)) and len(self.height) == 2:
            sides = self.height
        else:
            sides = None
        if sides is not None:
            return f"write Resize({sides[0]!r}, {sides[1]!r})"
        side = next(
            (n for n in (self.height, self.width, self.shorter, self.longer) if is_whole(n, 1)), 224
        )
        return (
            f"write Resize({side}, {side}), Resize({side}, {side}, fit=True), Resize(shorter={side}) or "
            f"Resize(longer={side})"
        )

    def field_after(self, field: Field) -> Field:
        """Height and width become the new ones."""
        height, width, channels = image_shape(self, field)
        if self._is_fixed:
            return field.with_(shape=(self.height, self.width, channels), axes="HWC")
        if height is None or width is None:
            return field.with_(shape=(None, None, channels), axes="HWC")
        size = self.size_after(np.array([[height, width]], np.int32), {})[0]
        return field.with_(shape=(int(size[0]), int(size[1]), channels), axes="HWC")

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the new sizes."""
        if self._is_fixed:
            return np.broadcast_to(np.array([self.height, self.width], np.int32), size.shape)
        sides = size.astype(np.int64).clip(1)
        # In whole numbers: a quotient of floats may lie just beside a half, and round to the other
        # side.
        before, after = self._scale(sides)
        half = before if self.rounding == "nearest" else 0
        return np.asarray(
            arguments.check_sides(self, (2 * sides * after + half) // (2 * before)), np.int32
        ).clip(1)

    @property
    def _is_fixed(self) -> bool:
        """True if all images get the same size."""
        return self.height is not None and not self.fit

    def _scale(self, sides: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a length of each image and its new value, pixels, int64 ``[N, 1]``: the factor of
        both sides."""
        shortest, longest = sides.min(axis=1, keepdims=True), sides.max(axis=1, keepdims=True)
        if self.fit:
            height, width, new_height, new_width = (
                sides[:, :1],
                sides[:, 1:],
                self.height or 0,
                self.width or 0,
            )
            is_high = new_height * width <= new_width * height
            return np.where(is_high, height, width), np.where(is_high, new_height, new_width)
        if self.shorter is None or self.longer is None:
            if self.longer is None:
                length = shortest
            else:
                length = longest
            return length, np.full_like(length, self.longer or self.shorter or 0)
        is_long = longest * self.shorter > self.longer * shortest
        return np.where(is_long, longest, shortest), np.where(is_long, self.longer, self.shorter)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``size``: the new size of each image where they differ, float32 ``[N, 2]`` as DALI
        wants it."""
        if self._is_fixed:
            return {}
        return {"size": self.size_after(size, {}).astype(np.float32)}

    def new_size(self, draw: Draw) -> tuple[int, int]:
        """Return the new height and width for one row of a draw."""
        if self._is_fixed:
            return int(self.height or 0), int(self.width or 0)
        return int(draw["size"][0]), int(draw["size"][1])

    def _move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """They keep their place in parts of width and height."""
        return points * (np.array(self.new_size(draw)) / size)[::-1]

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, resized."""
        return _resize(xp, self, x, self.new_size(draw))

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once, on a GPU by kernels."""
        if not _has_kernels(xp, self, x):
            return super().array_batch(xp, x, draw)
        size = np.broadcast_to(walk.sizes(x), (len(x), 2))
        boxes = np.concatenate([np.zeros_like(size), size], axis=1)
        if self._is_fixed:
            new = self.size_after(size, draw)
        else:
            new = draw["size"].astype(np.int32)
        return _resize_batch(xp, self, x, boxes, new)

    def _resample(self, draw: Draw, size: Sizes) -> resampling.Resampling | None:
        """Of all of each image."""
        if _is_pillow(self):
            return None
        if self._is_fixed:
            sizes = self.size_after(size, draw)
        else:
            sizes = draw["size"].astype(np.int32)
        return resampling.Resampling(
            np.pad(size, ((0, 0), (2, 0))), sizes, _interpolation(self), self.antialias is True
        )

    def _resize_into(self, x: NDArray[Any], draw: Draw, out: NDArray[Any]) -> None:
        """Write the resized image to ``out``, by the core."""
        _resize_box(self, x, (0, 0, *x.shape[:2]), out)

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``resize`` to sizes that were computed on the host."""
        if self._is_fixed:
            size = [self.height, self.width]
        else:
            size = draw["size"]
        return _lower_resize(self, dali, x, size, field)


@dataclass(frozen=True)
class RandomResizedCrop(Op):
    """Cut a random box and resize it to ``height`` x ``width``; the pixels of the box alone are
    used.

    The box has a random part of the image's area and a random ratio of width to height (uniform on
    a logarithmic scale), as in Inception and torchvision: ten tries, then the largest central box
    within ``ratio``. One pair of numbers is drawn for each try and one pair for the place,
    whichever try fits. torchvision's on tensors is the same, timm's may draw linear or cubic for
    each image, and both are Pillow's resize on images of Pillow: ``antialias="pil"``. DALI's draws
    by tries of its own; Albumentations resizes by OpenCV without antialias; Keras has no such
    layer.

    Example:
        ``gl.ops.RandomResizedCrop(224, 224)``

    Args:
        height: pixels of the result.
        width: pixels of the result; ``height`` if left out.
        scale: least and greatest part of the area, more than 0; parts above 1 never fit, which a
            loader warns of.
        ratio: least and greatest width / height.
        interpolation: ``"linear"``, ``"cubic"``, ``"lanczos"`` or ``"nearest"``; or a dict from
            field names to these, as ``{"mask": "nearest"}``, the others being linear. Only
            ``"nearest"`` makes no new values between labels.
        antialias: average over all source pixels where the box becomes smaller (all but nearest).
            ``"pil"``: as Pillow up to 12 does, every value, see ``Resize``; DALI has no such form.
    """

    height: int
    width: int | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = field(default="linear", hash=False)
    antialias: bool | str = True

    per_field: ClassVar[tuple[str, ...]] = ("interpolation",)
    num_uniforms: ClassVar[int] = 2 * TRIES + 2

    def __post_init__(self) -> None:
        super().__post_init__()
        height = arguments.side(self, "height", self.height)
        width = height
        if self.width is not None:
            width = arguments.side(self, "width", self.width)
        arguments.keep(
            self,
            height=height,
            width=width,
            scale=arguments.interval(self, "scale", self.scale),
            ratio=arguments.interval(self, "ratio", self.ratio),
        )
        _check_filter(self)

    @property
    @once
    def traits(self) -> Traits:
        """It uses a box of each image alone; DALI has no antialias as Pillow's."""
        return Traits(
            execution=Execution(has_dali_form=self.antialias != PIL),
            geometric=Geometric(self._move_points),
            regional=Regional(self._region, self._within),
            bounds=RESIZE_BOUNDS,
            advice=self._advice,
        )

    def forms(self, field: Field) -> Forms:
        """It resizes boxes; a form for single records is in the core."""
        return Forms(
            resample=self._resample, row=self._resize_into if _is_in_core(self, field) else None
        )

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the result, pixels."""
        return self.height, int(self.width or self.height)

    def _advice(self, field: Field) -> str | None:
        """Warn of parts of the area that no box has."""
        if self.scale[1] <= 1 or field.is_marked:
            return None
        return (
            f"{self}; cause: scale is the part of the area that is cut out, and no box is larger than the image: more "
            "images than meant are cut in the middle, as large as can be; remedy: "
            f"scale={(min(self.scale[0], 1.0), 1.0)}, or gl.ops.RandomZoomOut before it, which makes images smaller"
        )

    def field_after(self, field: Field) -> Field:
        """Height and width become the result's."""
        return field.with_(shape=(*self.window, image_shape(self, field)[2]), axes="HWC")

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the result's size for every image."""
        return np.broadcast_to(np.array(self.window, np.int32), size.shape)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return the boxes: ``start`` (top, left) and ``shape`` (height, width), int32 ``[N, 2]``,
        pixels."""
        image = size.astype(np.float64)[:, None, :]
        area = (
            image[..., 0]
            * image[..., 1]
            * (self.scale[0] + u[:, :TRIES] * (self.scale[1] - self.scale[0]))
        )
        # By logarithms, as torchvision: 3 / 4 is as likely as 4 / 3.
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = np.exp(low + u[:, TRIES : 2 * TRIES] * (high - low))
        tries = np.rint(np.sqrt(np.stack([area / ratio, area * ratio], axis=-1)))
        fits = np.logical_and.reduce((tries >= 1) & (tries <= image), axis=2)
        # The first that fits, as in torchvision's loop.
        boxes = tries[np.arange(len(u)), fits.argmax(axis=1)]
        any_fits = np.logical_or.reduce(fits, axis=1, keepdims=True)
        shape = np.where(any_fits, boxes, self._central(size)).astype(np.int32)
        start = np.floor(u[:, 2 * TRIES :] * (size - shape + 1)).astype(np.int32)
        return {"start": np.where(any_fits, start, (size - shape) // 2), "shape": shape}

    def _region(self, draw: Draw, size: Sizes) -> Draw:
        """Return the boxes."""
        return draw

    def _within(self, draw: Draw, region: Draw) -> Draw:
        """Return the boxes as they lie in their regions."""
        return {"start": draw["start"] - region["start"], "shape": draw["shape"]}

    def _move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """They keep their place in parts of width and height of the box."""
        return (points - draw["start"][::-1]) * (np.array(self.window) / draw["shape"])[::-1]

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the box of one image, resized."""
        top, left, height, width = _box(draw)
        box = x[top : top + height, left : left + width]
        return _resize(xp, self, box, self.window)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once, on a GPU by kernels."""
        if not _has_kernels(xp, self, x):
            return super().array_batch(xp, x, draw)
        boxes = np.concatenate([draw["start"], draw["shape"]], axis=1)
        new = np.broadcast_to(np.array(self.window), (len(x), 2))
        return _resize_batch(xp, self, x, boxes, new)

    def _resample(self, draw: Draw, size: Sizes) -> resampling.Resampling | None:
        """Of the boxes."""
        if _is_pillow(self):
            return None
        boxes = np.concatenate([draw["start"], draw["shape"]], axis=1)
        return resampling.Resampling(
            boxes, self.size_after(size, draw), _interpolation(self), self.antialias is True
        )

    def _resize_into(self, x: NDArray[Any], draw: Draw, out: NDArray[Any]) -> None:
        _resize_box(self, x, _box(draw), out)

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``slice``, then ``resize``: its own region of interest would read pixels outside the
        box."""
        box = dali.fn.slice(x, start=draw["start"], shape=draw["shape"], axes=[0, 1])
        return _lower_resize(self, dali, box, list(self.window), field)

    def _central(self, size: Sizes) -> NDArray[np.int64]:
        """Return the largest boxes with width / height within ``ratio``, int64 ``[N, 2]``."""
        height, width = size[:, 0].astype(np.float64), size[:, 1].astype(np.float64)
        # Rounded as Python's round() does, which torchvision calls.
        lower, upper = np.rint(width / self.ratio[0]), np.rint(height * self.ratio[1])
        box = np.stack([np.minimum(height, lower), np.minimum(width, upper)], axis=1)
        return box.clip(1, size.clip(1)).astype(np.int64)


def _box(draw: Draw) -> resampling.Box:
    (top, left), (height, width) = draw["start"].tolist(), draw["shape"].tolist()
    return top, left, height, width


def _is_pillow(op: Resize | RandomResizedCrop) -> bool:
    return op.antialias == PIL and op.interpolation != "nearest"


def _is_in_core(op: Resize | RandomResizedCrop, field: Field) -> bool:
    if _is_pillow(op) and field.dtype != np.uint8:
        return False
    return op.interpolation != "nearest" and core.native is not None


def _resize(
    xp: ModuleType, op: Resize | RandomResizedCrop, image: Any, size: tuple[int, int]
) -> Any:
    if _is_pillow(op):
        return pillow.resize(xp, image, size, _interpolation(op))
    return resampling.resize(xp, image, size, _interpolation(op), op.antialias is True)


def _has_kernels(xp: ModuleType, op: Resize | RandomResizedCrop, x: Any) -> bool:
    if _is_pillow(op):
        return pixels.reads(xp, x)
    return device.compiles(xp) and len(x) > 0


def _resize_batch(
    xp: ModuleType, op: Resize | RandomResizedCrop, x: Any, boxes: pixels.Boxes, new: pixels.Boxes
) -> Any:  # fmt: skip
    if _is_pillow(op):
        return pillow.resize_batch(xp, x, boxes, new, _interpolation(op))
    return resampling.resize_batch(xp, x, boxes, new, _interpolation(op), op.antialias is True)


def _resize_box(
    op: Resize | RandomResizedCrop, image: NDArray[Any], box: resampling.Box, out: NDArray[Any]
) -> None:
    if _is_pillow(op):
        pillow.resize_into(image, box, _interpolation(op), out)
    else:
        resampling.resize_into(image, box, _interpolation(op), op.antialias is True, out)


def _interpolation(op: Resize | RandomResizedCrop) -> str:
    """Return the interpolation of an op as it acts on one field."""
    if isinstance(op.interpolation, dict):
        raise RuntimeError(f"{op} is asked for one field without op.of(name)")
    return op.interpolation


def _check_filter(op: Resize | RandomResizedCrop) -> None:
    def check_name(op: Op, name: str, value: object) -> str:
        return arguments.choice(
            op, name, value, INTERPOLATIONS, beside=", or a dict from field names to these"
        )

    interpolation = arguments.by_field(op, "interpolation", op.interpolation, check_name, "linear")
    is_pillow = isinstance(op.antialias, str) and op.antialias == PIL
    if not is_pillow and not isinstance(op.antialias, (bool, np.bool_)):
        raise arguments.refuse(op, "antialias", op.antialias, f"True, False or {PIL!r}")
    antialias: bool | str = PIL
    if not is_pillow:
        antialias = bool(op.antialias)
    arguments.keep(op, interpolation=interpolation, antialias=antialias)


def image_shape(op: Any, field: Field) -> tuple[int | None, int | None, int | None]:
    """Return height, width and channels of a field that an op with ``interpolation`` resizes; None:
    it varies.

    Raises:
        SpecError: the field holds no images, or its dtype cannot be resized so.
    """
    shape = images.image(op, field)
    if op.interpolation != "nearest":
        images.bytes_or_floats(
            op, field, "images are resized as uint8 or float32; labels by interpolation='nearest'"
        )
    elif field.dtype.name not in NEAREST_DTYPES:
        raise SpecError(
            f"{op}: field {field.name!r} has dtype {field.dtype}",
            cause=f"pixels are taken by nearest from {', '.join(NEAREST_DTYPES)}",
            remedy=f"put gl.ops.Cast({_near(field.dtype)!r}, on={field.name!r}) before it",
        )
    return shape


def _near(dtype: np.dtype[Any]) -> str:
    return "float32" if dtype.kind == "f" else "int64"


def _lower_resize(
    op: Resize | RandomResizedCrop, dali: ModuleType, x: Any, size: Any, field: Field
) -> Any:
    types = dali.types
    kind = getattr(types, DALI_FILTERS[_interpolation(op)])
    dtype = getattr(types, images.moved_dtype(field.dtype, NOT_IN_DALI))

    def resize(raw: Any) -> Any:
        return dali.fn.resize(raw, size=size, interp_type=kind, antialias=op.antialias, dtype=dtype)

    return images.move_pixels(dali, field.dtype, NOT_IN_DALI, resize, x)

"""CleanBoxes: boxes of which too little is left are dropped, and with them the rows that go with
them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import RowError, SpecError
from gpuload.ops import arguments, boxes, follow
from gpuload.ops.base import Boxes, Draw, Op, Sizes
from gpuload.ops.traits import Arithmetic, Execution, Joint, Marks, Traits, once
from gpuload.spec import NORMALIZED, Field, Spec

log = logging.getLogger("gpuload")
OUTSIDE = (
    1e-3  # pixels by which a box may be outside: of float32 numbers, by way of width and height
)


@dataclass(frozen=True)
class CleanBoxes(Op):
    """Drop marked boxes that are too small, or that lie outside of their image, with all rows that
    go with them.

    A box stays if its sides have ``min_size`` pixels or more, its area is ``min_area`` or more, and
    it lies inside of the image. Crops cut off the part of a box outside, so that a box that lies
    outside has no area. It is torchvision's ``SanitizeBoundingBoxes``, but for labels of a value
    that it drops. Put it behind all ops that move pixels.

        source = source.mark(boxes="xyxy", labels="with boxes")
        ops = [gl.ops.RandomCrop(300, 300), gl.ops.CleanBoxes(min_size=4)]
    Albumentations' BboxParams do that behind all ops, also by the part of a box that is left;
    DALI's random_bbox_crop drops boxes of its own crop; Keras' layers mark them by -1; timm has no
    boxes.

    Example:
        ``gl.ops.CleanBoxes(min_size=4)``

    Args:
        min_size: the least width and height that a box may have, pixels.
        min_area: the least area that a box may have, pixels.
        on: the fields of boxes; all that are marked if left out. Fields that are marked
            ``"with boxes"`` come along.
    """

    min_size: float = 1.0
    min_area: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("min_size", "min_area"):
            value = arguments.number(self, name, getattr(self, name))
            if value < 0:
                raise arguments.refuse(self, name, value, "a number of at least 0")
            arguments.keep(self, **{name: value})

    @property
    @once
    def traits(self) -> Traits:
        """It drops rows of the marked boxes and of fields beside them, on NumPy."""
        return Traits(
            arithmetic=Arithmetic(any_size=True),
            execution=Execution(needs_numpy=True),
            joint=Joint(self._drop_boxes),
            marks=Marks(are_read=True, drops_rows=True, image=self._image_name),
        )

    def targets(self, spec: Spec) -> tuple[str, ...]:
        """Return the fields of boxes, and those with rows that go with them.

        Raises:
            UnknownFieldError: a name in ``on`` is not a field.
            SpecError: no boxes are marked, or ``on`` names something else.
        """
        if self.on is None:
            names = tuple(field.name for field in spec if field.holds_boxes)
        else:
            names = super().targets(spec)
        wrong = [name for name in names if not spec[name].holds_boxes]
        if wrong or not names:
            subject = "no field"
            if names:
                subject = f"the fields {wrong}"
            raise SpecError(
                f"{self}: {subject} marked as boxes",
                cause=f"the fields are {'; '.join(map(str, spec))}",
                remedy="say which are boxes: source.mark(boxes='xyxy')",
            )
        return (*names, *(field.name for field in spec if field.rows_of in names))

    def spec_after(self, spec: Spec) -> Spec:
        """Dtypes and shapes stay.

        Raises:
            SpecError: a field has as many rows in each record, so that none can be dropped.
        """
        for name in self.targets(spec):
            check_length(self, spec[name])
        self._image_name(spec)
        return spec

    def _image_name(self, before: Spec) -> str:
        """Return the field of the images to which the boxes belong."""
        return follow.image_of(self, before, self.targets(before)[0])

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``size``: height and width of the image of each record, int32 ``[N, 2]``,
        pixels."""
        return {"size": size}

    def _drop_boxes(
        self, xp: ModuleType, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """Return the rows that stay."""
        result: dict[str, Any] = {}
        for boxes_field in [field for field in after if field.holds_boxes]:
            companions = [field.name for field in after if field.rows_of == boxes_field.name]
            result |= {name: [] for name in (boxes_field.name, *companions)}
            for row, values in enumerate(fields[boxes_field.name]):
                is_left = self._are_left(boxes_field, values, draw["size"][row], row)
                result[boxes_field.name].append(values[is_left])
                for name in companions:
                    check_rows(row, boxes_field.name, len(values), name, len(fields[name][row]))
                    result[name].append(np.asarray(fields[name][row])[is_left])
        return result

    def _are_left(
        self, field: Field, values: NDArray[Any], size: NDArray[np.int32], row: int
    ) -> NDArray[np.bool_]:
        """Return which boxes of a record stay, bool ``[M]``."""
        sizes = np.broadcast_to(size, (len(values), 2))
        corners = boxes.to_corners(values, field.kind, sizes)
        follow.check_units(field.name, field.kind, corners, sizes, row=row)
        is_left = are_large(corners, sizes, self.min_size, self.min_area)
        if not is_left.any() and follow.look_like_parts(field.kind, corners):
            self._tell_of_parts(field)
        return is_left

    def _tell_of_parts(self, field: Field) -> None:
        """Log, once for each field, that all boxes of a record are dropped, and look like parts."""
        token = object()
        # Several threads come here at once; `setdefault` is one step, so that one of them tells it.
        if self.__dict__.setdefault(f"parts in {field.name}", token) is token:
            log.warning(
                "%s drops all boxes of a record: they lie in the first pixel of the image, and look like "
                "parts of its width and height; remedy: source.mark(%s=%r), if they are",
                *(self, field.name, f"{NORMALIZED}{field.kind}"),
            )


def are_large(corners: Boxes, size: Sizes, min_size: float, min_area: float) -> NDArray[np.bool_]:
    """Return which boxes lie inside of their image, and have sides and an area of so many pixels or
    more, bool ``[M]``.

    Args:
        corners: float64 ``[M, 4]``, left, top, right, bottom in pixels.
        size: int32 ``[M, 2]``, height and width of the image of each.
        min_size: the least width and height.
        min_area: the least area.
    """
    sides = corners[:, 2:] - corners[:, :2]
    inside = (corners[:, :2] >= -OUTSIDE).all(axis=1) & (
        corners[:, 2:] <= size[:, ::-1] + OUTSIDE
    ).all(axis=1)
    # A box with a NaN goes: each comparison with it is false.
    large: NDArray[np.bool_] = (
        inside & (sides >= min_size).all(axis=1) & (sides.prod(axis=1) >= min_area)
    )
    return large


def check_length(op: Op, field: Field) -> None:
    """Raise ``SpecError`` for a field that has as many rows in each record, for an op that drops or
    joins rows."""
    if not field.shape or field.shape[0] is not None:
        raise SpecError(
            f"{op}: field {field.name!r} has shape {field.shape}",
            cause="its rows do not stay as many as they are, and each record has as many",
            remedy="have the source give as many rows as there are, a shape of (None, 4), and put gl.ops.PadTo(50, "
            f"on={field.name!r}) behind {type(op).__name__}",
        )


def check_rows(row: int, boxes_name: str, num_boxes: int, name: str, num_rows: int) -> None:
    """Raise ``RowError`` if a field that is marked as having a row for each box has more of them,
    or fewer."""
    if num_boxes != num_rows:
        raise RowError(
            row,
            f"field {boxes_name!r} has {num_boxes} boxes, and field {name!r} {num_rows} rows",
            cause=f"{name!r} is marked as 'with {boxes_name}': a row for each box",
            remedy="mend the record, or leave that mark out",
        )

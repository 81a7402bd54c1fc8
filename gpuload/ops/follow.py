"""Follow: the masks, boxes and points that are marked beside an image go where its pixels go, by
the same draw.

Mask    A mask becomes a field that the op acts on itself (`including`), on any executor.
Masks   of objects, ``[number, height, width]``, are moved by ``MoveMasks`` as one mask of so many
        channels; see below.
Boxes   and points are moved by ``MoveAnnotations``, an op of its own that the graph puts before the
        op that moves the image. It draws nothing: it gets the draw of that op, and the size of the
        image before it. It runs on the host, where both are, so that nothing waits for a GPU.

Labels  that ``OneHot`` made are mixed with the image that they belong to (``with_labels``).

They belong to the field ``image``, or to the only unmarked field that may be an image
(`ops.beside`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import RowError, SpecError
from gpuload.ops import beside, boxes
from gpuload.ops.base import VARYING, Boxes, Draw, Op, Sizes
from gpuload.ops.traits import Arithmetic, Execution, Follows, Geometric, Marks, Move, Traits, once
from gpuload.ragged import Ragged
from gpuload.spec import INSTANCES, MASK, NORMALIZED, Field, Spec

BEFORE, AFTER = (
    "size before",
    "size after",
)  # in the draw: of the image of each record, int32 [N, 2]
EXTRA = 1.0  # pixels by which annotated boxes may lie beside the image
FARTHEST = 2.0  # parts of an image's width and height; a box farther in it is in pixels
SAME_SIZE = "fields that share one draw must have the same size"
SIZE_REMEDY = "bring them to one size first, or give each an op of its own with on="


def image_of(op: Op, spec: Spec, annotation: str) -> str:
    """Return the name of the image to which a marked field belongs.

    Raises:
        SpecError: the image is not known.
    """
    name = beside.image_name(spec)
    if name is None:
        raise SpecError(
            f"{op}: which image the field {annotation!r} belongs to",
            cause=f"none of the fields {list(spec.names)} is named 'image', and not exactly one may be an image",
            remedy="name it so: source.rename(photo='image')",
        )
    return name


def with_masks(op: Op, spec: Spec) -> Op:
    """Return an op that moves pixels of an image acting on the marked masks beside it, too; else
    the op itself.

    Raises:
        SpecError: the image that a mask belongs to is not known; or the op cannot act on masks.
    """
    masks = tuple(field.name for field in spec if field.kind == MASK)
    if not op.traits.geometric or not masks:
        return op
    targets = op.targets(spec)
    if all(spec[name].is_marked for name in targets) or image_of(op, spec, masks[0]) not in targets:
        return op
    masks = tuple(name for name in masks if name not in targets)
    if masks:
        return including(op, masks, targets)
    return op


def including(op: Op, masks: tuple[str, ...], targets: tuple[str, ...]) -> Op:
    """Return an op acting on masks, too: their pixels are taken by nearest, and new pixels are 0.

    A dict that names a mask, ``fill={"mask": 255}``, gives another value for it.

    Args:
        op: one that moves pixels.
        masks: the names of the masks.
        targets: the fields that the op acts on without them.
    """
    geometric = op.traits.geometric
    if geometric is not None and geometric.masks is not None:
        result: Op = geometric.masks(masks, targets)
        return result
    changes: dict[str, Any] = {}
    for argument in op.per_field:
        value = getattr(op, argument)
        by_name = dict(value) if isinstance(value, dict) else dict.fromkeys(targets, value)
        if argument == "interpolation":
            by_name = {**dict.fromkeys(masks, "nearest"), **by_name}
        changes[argument] = by_name
    return replace(op, on=(*targets, *masks), **changes)


def with_labels(op: Op, spec: Spec, roles: Mapping[str, str]) -> Op:
    """Return an op that mixes records, acting on the labels that ``OneHot`` made, too; else the op
    itself.

    Args:
        op: the op.
        spec: the fields before it.
        roles: of fields as ops made them, by their names, see `beside.roles_behind`.
    """
    if not op.traits.mixes or op.traits.geometric or op.on is not None:
        return op
    targets = op.targets(spec)
    vectors = [
        field.name
        for field in spec
        if roles.get(field.name) == beside.LABEL and len(field.shape or ()) == 1
    ]
    labels = tuple(name for name in vectors if name not in targets and not spec[name].is_marked)
    if labels:
        return replace(op, on=(*targets, *labels))
    return op


def with_slices_of_masks(spec: Spec) -> Spec:
    """Return the spec with the axes of masks beside slices: a mask of three axes is one of each
    slice."""
    name = beside.image_name(spec)
    if name is None or not spec[name].is_volume:
        return spec
    masks = [field for field in spec if field.kind == MASK and not field.axes and not field.encoded]
    return spec.replacing(
        *(field.with_(axes="DHW") for field in masks if len(field.shape or ()) == 3)
    )


def _is_annotation(field: Field) -> bool:
    return field.holds_boxes or field.holds_points or field.kind == INSTANCES


def followers(op: Op, spec: Spec, changed: set[str]) -> Iterator[Op]:
    """Give the ops that move the marked boxes, points and masks of objects beside an image that an
    op moves.

    Args:
        op: the op.
        spec: the fields before it.
        changed: the fields that were changed before; those that are moved here are added.

    Raises:
        SpecError: the image that they belong to is not known; or where the op moves points.
    """
    annotations = list(filter(_is_annotation, spec))
    geometric = op.traits.geometric
    if geometric is None or not annotations:
        return
    targets = op.targets(spec)
    if all(spec[name].is_marked for name in targets):
        return
    image = image_of(op, spec, annotations[0].name)
    if image not in targets:
        return
    places = next((field for field in annotations if field.kind != INSTANCES), None)
    if spec[image].is_volume:
        raise SpecError(
            f"{op} beside the field {annotations[0].name!r}, {annotations[0].mark}",
            cause=f"the image, {spec[image]}, has slices, and the field lies in an image of two axes",
            remedy="leave that mark out, and change the field in gl.ops.Python, see docs/own-op.md",
        )
    mover: Op | None = None
    if geometric.mover is not None:
        mover = geometric.mover(image, annotations, spec, changed)
    if mover is None and places is not None and geometric.points is None:
        raise SpecError(
            f"{op} beside the field {places.name!r}, {places.mark}",
            cause="the op moves pixels, and its Geometric has no points, which says where points go",
            remedy="give it one, see docs/own-op.md, or leave the op out",
        )
    for field in annotations:
        if field.name in targets:
            raise SpecError(
                f"{op}: on= names the field {field.name!r}, {field.mark}",
                cause="boxes, points and masks of objects that are marked go with their image without being named",
                remedy=f"leave {field.name!r} out of on=",
            )
    if mover is not None:
        yield mover
    else:
        yield from _movers(op, image, annotations, changed)
    changed.update(field.name for field in annotations)


def _movers(op: Op, image: str, fields: Sequence[Field], changed: set[str]) -> Iterator[Op]:
    """Give an op for each marked field beside an image; arguments as of `followers`."""
    for field in fields:
        if field.kind == INSTANCES:
            yield MoveMasks(op, image, on=field.name)
        else:
            is_first = field.name not in changed
            yield MoveAnnotations(op, image, field.kind, is_first=is_first, on=field.name)


def corners_of_records(fields: Sequence[tuple[Field, Any]], size: Sizes) -> list[Boxes]:
    """Return the boxes of some fields, for each record float64 ``[M, 4]``: left, top, right, bottom
    in pixels.

    Args:
        fields: fields of boxes, each with its values, the records along the first axis.
        size: int32 ``[N, 2]``, height and width of the image of each record, pixels.
    """
    records = []
    for row, image_size in enumerate(size):
        corners = [np.empty((0, 4))]
        for field, values in fields:
            rows = np.asarray(values[row]).reshape(-1, 4)
            corners.append(
                boxes.to_corners(rows, field.kind, np.broadcast_to(image_size, (len(rows), 2)))
            )
        records.append(np.concatenate(corners))
    return records


@dataclass(frozen=True)
class Follower(Op):
    """The base of ops that move one field as another op moves the pixels of an image.

    Args:
        op: that moves the pixels.
        image: the field of the image.
    """

    op: Op
    image: str

    @property
    @once
    def traits(self) -> Traits:
        """It has the draw of the op that it follows, on the host."""
        return Traits(
            arithmetic=Arithmetic(any_size=True),
            execution=Execution(needs_numpy=True),
            marks=Marks(image=lambda before: self.image),
            follows=Follows(self.op, self._complete),
        )

    def __str__(self) -> str:
        return f"{self.op} of {self.on!r}"

    def _complete(self, draw: Draw, size: Sizes) -> Draw:
        """Return the draw of the leader with the sizes of the images before and behind it."""
        return {**draw, BEFORE: size, AFTER: self.op.size_after(size, draw)}


@dataclass(frozen=True)
class MoveMasks(Follower):
    """Move the masks of objects of one field, ``[number, height, width]``, as an op moves the
    pixels of their image.

    As for a mask of the image, pixels are taken by nearest, and new ones are 0.
    """

    @cached_property
    def _of_masks(self) -> Op:
        """The op as it acts on a mask of several channels."""
        field = Field(str(self.on), np.dtype(np.uint8), (None, None, None), axes="HWC", kind=MASK)
        return including(self.op, (field.name,), (self.image,)).of(field.name, field)

    def spec_after(self, spec: Spec) -> Spec:
        """Height and width become those of the image.

        Raises:
            SpecError: the masks are known to have another size than the image, or the op cannot act
                on them.
        """
        (name,) = self.targets(spec)
        field, image = spec[name], spec[self.image]
        shape = field.shape or ()
        if field.encoded or len(shape) != 3 or field.dtype.kind not in "buif":
            raise _contradicts_mark(self.op, field, "[number, height, width]")
        size, mask_size = (image.shape or ())[:2], shape[1:]
        if not image.encoded and None not in (*size, *mask_size) and size != mask_size:
            raise SpecError(f"{self.op}: {image} and {field}", cause=SAME_SIZE, remedy=SIZE_REMEDY)
        after = self._of_masks.field_after(
            field.with_(shape=(*mask_size, None), axes="HWC", kind=MASK, rows_of="")
        )
        return spec.replacing(field.with_(shape=(shape[0], *(after.shape or ())[:2])))

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the masks of one record, ``[number, height, width]``."""
        check_mask_size(self.on, x, draw[BEFORE])
        if not len(x):
            return np.zeros((0, *draw[AFTER].tolist()), x.dtype)
        of_op = {name: values for name, values in draw.items() if name not in (BEFORE, AFTER)}
        return np.ascontiguousarray(
            self._of_masks.array(xp, x.transpose(1, 2, 0), of_op).transpose(2, 0, 1)
        )


@dataclass(frozen=True)
class MoveAnnotations(Follower):
    """Move the boxes or points of one field as an op moves the pixels of their image.

    Args:
        op: that moves the pixels.
        image: the field of the image.
        kind: that of the field.
        is_first: True if they are as the source has them, so that their numbers are checked.
    """

    kind: str
    is_first: bool = False

    @property
    @once
    def traits(self) -> Traits:
        """A ``Ragged`` is moved at once."""
        return super().traits.with_arithmetic(takes_ragged=True)

    def field_after(self, field: Field) -> Field:
        """The shape stays, and the dtype but for narrow integers, see `boxes.moved_dtype`.

        Raises:
            SpecError: an op has brought the field into another form than its mark says.
        """
        length = ((field.shape or ())[-1:] or (0,))[0] or 0
        if field.holds_boxes:
            has_form = length == 4
        else:
            has_form = length >= 2
        if field.encoded or field.dtype.kind not in "iuf" or not has_form:
            raise _contradicts_mark(self.op, field, "these numbers along its last axis")
        return field.with_(dtype=boxes.moved_dtype(field.dtype))

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the boxes or points of one record."""
        return self.array_batch(xp, x[None], {name: values[None] for name, values in draw.items()})[
            0
        ]

    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch: numbers are turned into pixels at once, and moved record by
        record."""
        if isinstance(x, Ragged):
            return x.with_payload(self._move(x.flat, x.lengths, draw))
        if isinstance(x, VARYING):
            return super().array_batch(xp, x, draw)
        lengths = np.ones(len(x), np.int64)
        if x.ndim > 2:
            lengths[:] = x.shape[1]
        return self._move(x.reshape(-1, *x.shape[min(2, x.ndim - 1) :]), lengths, draw).reshape(
            x.shape
        )

    def _move(self, values: NDArray[Any], lengths: NDArray[np.int64], draw: Draw) -> NDArray[Any]:
        """Return the values of some records, one after the other.

        Args:
            values: ``[M, ..., 4]`` of boxes, ``[M, ..., 2 or more]`` of points.
            lengths: how many of the M each record has.
            draw: rows of the draws, one a record.
        """
        rows = values.reshape(-1, values.shape[-1])
        # A value may be several points, `[M, K, 2]`: from here on rows count.
        lengths = lengths * (len(rows) // max(len(values), 1))
        before, after = (np.repeat(draw[key], lengths, axis=0) for key in (BEFORE, AFTER))
        is_points = self.kind.endswith("xy") and not self.kind.endswith("xyxy")
        geometric: Geometric | None = self.op.traits.geometric
        if geometric is None:
            raise RuntimeError(f"{self.op} does not move pixels")
        move: Move
        if is_points:
            numbers, move = boxes.to_pixels(rows, self.kind, before), geometric.move_keypoints
            if self.is_first:
                check_points(self.on, self.kind, numbers, lengths, before)
        else:
            numbers, move = boxes.to_corners(rows, self.kind, before), geometric.move_boxes
            if self.is_first:
                check_boxes(self.on, self.kind, numbers, lengths, before)
        ends = np.cumsum(lengths).tolist()
        result, leader_draw = (
            np.empty_like(numbers),
            {key: draw[key] for key in draw if key not in (BEFORE, AFTER)},
        )
        for row, (count, end) in enumerate(zip(lengths.tolist(), ends, strict=True)):
            if count:
                row_draw = {key: values[row] for key, values in leader_draw.items()}
                result[end - count : end] = move(
                    numbers[end - count : end], row_draw, draw[BEFORE][row]
                )
        if is_points:
            return boxes.from_pixels(result, self.kind, after, rows).reshape(values.shape)
        corners = boxes.clip(result, after)
        return boxes.from_corners(corners, self.kind, after, values.dtype).reshape(values.shape)


def check_boxes(
    name: Any,
    kind: str,
    corners: Boxes,
    lengths: NDArray[np.int64],
    size: Sizes,
    *,
    first_row: int = 0,
) -> None:
    """Raise ``RowError`` for the first box that is not one, or lies outside of its image.

    Args:
        name: of the field.
        kind: of the field.
        corners: the boxes of some records, one after the other, see `boxes.to_corners`.
        lengths: how many each record has.
        size: int32 ``[M, 2]``, of the image of each box.
        first_row: the row of the first record.
    """
    width, height = size[:, 1], size[:, 0]
    left, top, right, bottom = corners.T
    # Boxes with nan are found by `is_finite`; the comparisons need not warn of them.
    with np.errstate(invalid="ignore"):
        is_finite: NDArray[np.bool_] = np.asarray(np.isfinite(corners).all(axis=1))
        is_ordered = (right >= left) & (bottom >= top)
        is_inside = (
            (left < width + EXTRA) & (top < height + EXTRA) & (right > -EXTRA) & (bottom > -EXTRA)
        )
        is_flat: NDArray[np.bool_] = (left == right) | (
            top == bottom
        )  # rows that fill up an array, zeros or -1
        is_inside |= is_flat
        is_in_first_pixel = ~is_flat & ((corners >= 0) & (corners <= 1)).all(axis=1)
        is_part = is_in_first_pixel & (corners % 1 != 0).any(axis=1)
    are_pixels = look_like_pixels(kind, corners, size) & ~is_flat
    bad: NDArray[np.bool_] = np.asarray(~(is_finite & is_ordered & is_inside) | are_pixels)
    if is_part.any() and not kind.startswith(NORMALIZED):
        records = np.repeat(np.arange(len(lengths)), lengths)
        num_others = np.bincount(records[~is_flat & ~is_in_first_pixel], minlength=len(lengths))
        bad |= is_part & (
            num_others[records] == 0
        )  # all boxes of the record lie in its first pixel
    if not bad.any():
        return
    place = int(bad.argmax())
    record = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
    number = place - int(lengths[:record].sum())
    form = "xywh" if kind.endswith("xyxy") else "xyxy"
    remedy = f"mend the record; or its form is another one, source.mark({name}={form!r}) say"
    if not is_finite[place]:
        cause = "it holds nan or inf"
        remedy = "mend the record; gl.ops.CleanBoxes() in front of all ops that move boxes drops such ones"
    elif are_pixels[place]:
        cause, remedy = _pixels_by_mark(name, kind)
    elif not is_ordered[place]:
        cause = f"as {kind!r} it ends before it begins"
    elif is_part[place]:
        cause = "all boxes of the record lie in the first pixel, and look like parts of its width and height"
        remedy = (
            f"write source.mark({name}={NORMALIZED + kind!r}); if they are pixels, gl.ops.CleanBoxes() in front of all "
            "ops that move boxes drops such ones"
        )
    else:
        cause = f"it lies outside of its image of {height[place]} x {width[place]} pixels"
    raise RowError(
        first_row + record,
        f"field {name!r}: box {number} is {corners[place].round(3).tolist()} in pixels (xyxy)",
        cause=cause,
        remedy=remedy,
    )


def look_like_pixels(kind: str, places: NDArray[np.float64], size: Sizes) -> NDArray[np.bool_]:
    """Return which boxes or points, in parts of an image by their kind, can only be pixels, bool
    ``[M]``.

    Args:
        kind: of the field.
        places: pixels, as the kind says it, float64 ``[M, 4 or 2]``.
        size: int32 ``[M, 2]``, of the image of each.
    """
    if not kind.startswith(NORMALIZED):
        return np.zeros(len(places), np.bool_)
    parts = places / np.tile(size[:, ::-1].clip(1), places.shape[1] // 2)
    with np.errstate(invalid="ignore"):
        is_far: NDArray[np.bool_] = np.asarray((parts > FARTHEST).any(axis=1))
        are_whole: NDArray[np.bool_] = np.asarray(
            (np.abs(parts - np.rint(parts)) < 1e-9).all(axis=1)
        )
        is_beyond: NDArray[np.bool_] = np.asarray((parts > 1).any(axis=1))
    return is_far | (are_whole & is_beyond)


def check_units(name: Any, kind: str, corners: Boxes, size: Sizes, *, row: int) -> None:
    """Raise ``RowError`` if all boxes of one record are marked as parts of the image, and look like
    pixels."""
    are_pixels = look_like_pixels(kind, corners, size)
    if len(corners) and are_pixels.all():
        cause, remedy = _pixels_by_mark(name, kind)
        parts = (corners[0] / np.tile(size[0, ::-1].clip(1), 2)).round(3).tolist()
        raise RowError(
            row,
            f"field {name!r}: box 0 is {parts} in parts of its image (xyxy)",
            cause=cause,
            remedy=remedy,
        )


def look_like_parts(kind: str, corners: Boxes) -> bool:
    """Return True for several boxes of a record, in pixels by kind, that lie in its first pixel.

    Args:
        kind: of the field.
        corners: pixels, as the kind says it, float64 ``[M, 4]``.
    """
    boxes_of_area = corners[(corners[:, 0] < corners[:, 2]) & (corners[:, 1] < corners[:, 3])]
    if kind.startswith(NORMALIZED) or len(boxes_of_area) < 2:
        return False
    are_inside = ((boxes_of_area >= 0) & (boxes_of_area <= 1)).all()
    return bool(are_inside and (boxes_of_area % 1 != 0).any())


def _pixels_by_mark(name: Any, kind: str) -> tuple[str, str]:
    """Return cause and remedy of pixels that are marked as parts."""
    pixels = kind.removeprefix(NORMALIZED)
    cause = f"as {kind!r} its numbers are parts of the image's width and height, 0 to 1, and they look like pixels"
    return cause, f"write source.mark({name}={pixels!r}), or mend the record"


def check_points(
    name: Any, kind: str, points: NDArray[np.float64], lengths: NDArray[np.int64], size: Sizes
) -> None:
    """Raise ``RowError`` for the first point that lies at infinity, or is in other units than its
    mark says.

    A point of nan, or at (0, 0), is one that is not there.

    Args:
        name: of the field.
        kind: of the field.
        points: those of some records, one after the other, float64 ``[M, 2]``, pixels.
        lengths: how many each record has.
        size: int32 ``[M, 2]``, of the image of each point.
    """
    is_infinite: NDArray[np.bool_] = np.asarray(np.isinf(points).any(axis=1))
    are_pixels = look_like_pixels(kind, points, size)
    with np.errstate(invalid="ignore"):
        is_absent = np.isnan(points).any(axis=1) | (points == 0).all(axis=1)
        is_part = ~is_absent & ((points >= 0) & (points <= 1)).all(axis=1)
        are_fractions = is_part & (points % 1 != 0).any(axis=1)
    is_part &= not kind.startswith(NORMALIZED)
    if are_fractions.any():
        records = np.repeat(np.arange(len(lengths)), lengths)
        num_others = np.bincount(records[~is_absent & ~is_part], minlength=len(lengths))
        # All points of the record lie in its first pixel.
        is_part = are_fractions & is_part & (num_others[records] == 0)
    else:
        is_part[:] = False
    bad: NDArray[np.bool_] = np.asarray(is_infinite | are_pixels | is_part)
    if not bad.any():
        return
    place = int(bad.argmax())
    record = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
    cause, remedy = "it holds inf", "mend the record; nan stands for a point that is not there"
    if not is_infinite[place]:
        cause, remedy = _pixels_by_mark(name, kind)
    if is_part[place]:
        cause = "all points of the record lie in the first pixel, and look like parts of its width and height"
        remedy = f"write source.mark({name}={NORMALIZED + kind!r}), or mend the record"
    raise RowError(
        record,
        f"field {name!r}: point {place - int(lengths[:record].sum())} is {points[place].tolist()} in pixels",
        cause=cause,
        remedy=remedy,
    )


def check_mask_size(
    name: Any, masks: NDArray[Any], size: NDArray[np.int32], *, row: int = 0
) -> None:
    """Raise ``RowError`` for masks of objects, ``[number, height, width]``, that have another size
    than their image."""
    if tuple(masks.shape[1:]) != tuple(size.tolist()):
        mask_size, image_size = f"{masks.shape[1]} x {masks.shape[2]}", f"{size[0]} x {size[1]}"
        raise RowError(
            row,
            f"field {name!r}: the masks have {mask_size} pixels, the image {image_size}",
            cause=SAME_SIZE,
            remedy="mend the record",
        )


def _contradicts_mark(op: Op, field: Field, form: str) -> SpecError:
    return SpecError(
        f"{op}: field {field}",
        cause=f"it is marked {field.kind!r}, and does not have {form} any more",
        remedy=f"put the op that changed it behind {type(op).__name__}",
    )

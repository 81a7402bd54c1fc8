"""Traits: all that an op may have beside its draw and its array form, each of them a small value.

``op.traits`` is a ``Traits``. Its defaults claim nothing, so that an op with an array form alone has
none of its own; an op with more says so in one place:

    traits = Traits(arithmetic=Arithmetic(pointwise=True))      of a class
    @property                                                   of an op, by its arguments
    def traits(self): return Traits(geometric=Geometric(self._move_points))

Graph, executors and loader ask these values, and never for the class of an op. They are named tuples:
a dozen dataclasses would take 5 ms of each start of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import RowError
from gpuload.ops.bounds import Bound
from gpuload.spec import Field, Spec

# Per argument one int32 or float32 array, records along the first axis.
Draw: TypeAlias = dict[str, NDArray[Any]]
Sizes: TypeAlias = NDArray[np.int32]  # [N, 2], height and width in pixels
Points: TypeAlias = NDArray[np.float64]  # [M, 2], x and y in pixels
Boxes: TypeAlias = NDArray[np.float64]  # [M, 4], left, top, right, bottom in pixels
AnyOp: TypeAlias = Any  # an `ops.base.Op`, which has traits itself
Move: TypeAlias = Callable[[NDArray[np.float64], Draw, NDArray[np.int32]], NDArray[np.float64]]
Result = TypeVar("Result")
NO_BOUNDS: Mapping[str, Bound] = MappingProxyType({})


def once(method: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Return a method that makes its result once for each object, and keeps it there.

    The key is the method and not its name, so that ``super().traits`` of a subclass never meets the
    subclass's value, nor another thread the base's. Two threads may both make a value; they are equal.
    """
    key = f"{method.__module__}.{method.__qualname__}"

    @wraps(method)
    def result_of(self: Any) -> Result:
        values = vars(self)
        if key not in values:
            values[key] = method(self)
        result: Result = values[key]
        return result

    return result_of


class Geometric(NamedTuple):
    """The op moves pixels of an image, so that masks, boxes and points beside it go the same way.

    Those that are marked do (`ops.follow`). Where ``on`` is left out, a loader logs which others stay.

    Attributes:
        points: returns where points of one image go, float64 ``[M, 2]``, x and y in pixels; outside
            of the result, too. The upper left corner of an image is (0, 0), and the lower right one
            (width, height): the pixel of row r and column c covers the square from (c, r) to
            (c + 1, r + 1). Its arguments are the points, which it does not write to; the record's
            row of each draw; and the size of the image before the op, int32 ``[2]``, height and
            width. Without it the op is refused where boxes or points are marked.
        keypoints: the same for points of which (c, r) names the pixel in column c and row r, as
            torchvision's; without it they go as ``points``.
        boxes: the same for boxes, ``[M, 4]``; without it the bounding boxes of where their corners
            go. Boxes are cut off at the border of the image behind the op afterwards.
        masks: returns the op acting on masks, too, of their names and the fields that it acts on
            without them; without it see `follow.including`.
        mover: returns an op that moves all marked fields beside an image, where they cannot go
            field by field. Its arguments are the name of the image; the marked boxes, points and
            masks of objects; the fields before the op; and those that were changed before.
    """

    points: Move | None = None
    keypoints: Move | None = None
    boxes: Move | None = None
    masks: Callable[[tuple[str, ...], tuple[str, ...]], AnyOp] | None = None
    mover: Callable[[str, Sequence[Field], Spec, Collection[str]], AnyOp] | None = None

    def move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """Return where points of one image go, see ``points``."""
        if self.points is None:
            raise NotImplementedError("the op does not say where points go")
        return self.points(points, draw, size)

    def move_keypoints(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """Return where keypoints of one image go, see ``keypoints``."""
        return (self.keypoints or self.move_points)(points, draw, size)

    def move_boxes(self, corners: Boxes, draw: Draw, size: NDArray[np.int32]) -> Boxes:
        """Return the bounding boxes of where boxes of one image go, see ``boxes``."""
        if self.boxes is not None:
            return self.boxes(corners, draw, size)
        return move_corners(self.move_points, corners, draw, size)


def move_corners(move: Move, corners: Boxes, draw: Draw, size: NDArray[np.int32]) -> Boxes:
    """Return the bounding boxes of where the corners of boxes go, float64 ``[M, 4]``.

    Args:
        move: as ``Geometric.points``.
        corners: the boxes of one image, float64 ``[M, 4]``, left, top, right, bottom in pixels.
        draw: as for ``move``.
        size: as for ``move``.
    """
    left, top, right, bottom = corners.T
    points = np.stack([left, top, right, top, right, bottom, left, bottom], axis=1)
    places = move(points.reshape(-1, 2), draw, size).reshape(-1, 4, 2)
    return np.concatenate([places.min(axis=1), places.max(axis=1)], axis=1)


class Joint(NamedTuple):
    """The op makes its fields together, of all that it acts on, and not by ``array``.

    Attributes:
        array_fields: returns for each field that the op makes an array ``[N, ...]`` or a list of
            arrays, which may share memory with its arguments; a field that is not in the result
            stays as it was. Its arguments are NumPy or CuPy; the fields that the op acts on, each
            with the records along its first axis, which are not written to; rows of the draws; and
            the spec after the op. It raises ``RowError`` where a record cannot be used.
        lower_fields: the same in DALI, of the module, DataNodes of the fields, DataNodes of the
            draws, and the spec after the op; None if there is no such form.
        copies: the new fields that begin as copies of the field that the op acts on.
    """

    array_fields: Callable[[ModuleType, dict[str, Any], Draw, Spec], dict[str, Any]]
    lower_fields: Callable[[ModuleType, dict[str, Any], Draw, Spec], dict[str, Any]] | None = None
    copies: tuple[str, ...] = ()


class Mixes(NamedTuple):
    """The op is joint and makes a record of several: itself and its partners in the epoch's order.

    Attributes:
        group: of how many records (`order.Groups`), 2 or 4: those at p xor 0, 1 (2 and 3) for
            position p. Two have one draw, that of the first of them.
    """

    group: int = 2


class ValueCheck(NamedTuple):
    """There are values that the op cannot take. Executors ask before they run the op.

    DALI has no error for values: ``OneHot`` of a label that is no class would be all zeros.

    Attributes:
        rows: returns which rows of a batch hold such values, boolean ``[N]``, of ``(xp, x)``. It is
            an array of ``xp``, or of NumPy where the host knows without a look at values on a GPU.
            On a GPU nothing in it may wait for the device.
        error: returns the error for the value of a row that ``rows`` found; its row is 0.
    """

    rows: Callable[[ModuleType, Any], Any]
    error: Callable[[Any], RowError]


class Regional(NamedTuple):
    """The op uses a region of its images alone; the op before it need not make the rest.

    Attributes:
        part: returns the region of each image, of the draw and the sizes before the op (int32
            ``[N, 2]``, height and width in pixels): ``start`` (top, left) and ``shape`` (height,
            width), int32 ``[N, 2]``, pixels; inside the image, not empty.
        within: returns the draw by which the op does to the region alone the same as by its draw to
            the whole image, of the draw and the region.
    """

    part: Callable[[Draw, Sizes], Draw]
    within: Callable[[Draw, Draw], Draw]


class FileCodec(NamedTuple):
    """The op decodes image files: NumPy has a codec for that, DALI has its own, CuPy has none.

    Attributes:
        check_heads: raises ``RowError`` for an image that the op refuses, before any is decoded, by
            any executor; of int32 ``[N, 3]``, height and width in pixels and the number of scans.
        covering: returns the region to make where ``Regional.part`` is needed, that or one around
            it, of the region and the sizes of the images (int32 ``[N, 2]``). ``start`` and ``shape``
            in the draw say then which region it is. None if the op makes whole images alone.
        makes_bytes: True if the op makes uint8 as the core can: RGB, gray of these colours, or
            RGBA.
        is_upright: True if images are turned as their files say.
    """

    check_heads: Callable[[NDArray[np.int32]], None]
    covering: Callable[[Draw, Sizes], Draw] | None = None
    makes_bytes: bool = False
    is_upright: bool = True


class Marks(NamedTuple):
    """The part of marks in the op, and of the image that marked fields belong to.

    Attributes:
        are_read: True if the result depends on marks, so that saved states hold these.
        drops_rows: True if the op drops boxes, so that fields with a row for each of them must be
            marked to stay together with them.
        image: returns the field of the images that the op draws for by their sizes, of the spec
            before it; None for the fields that it acts on.
        boxes: returns the fields of boxes that must be there before anything is drawn, of the spec
            before the op; then ``draw`` draws.
        draw: returns the same as ``Op.draw``, of its arguments and the boxes of each record before
            the op: float64 ``[M, 4]``, left, top, right, bottom in pixels.
    """

    are_read: bool = False
    drops_rows: bool = False
    image: Callable[[Spec], str] | None = None
    boxes: Callable[[Spec], tuple[str, ...]] | None = None
    draw: Callable[[NDArray[np.float64], Sizes, list[Boxes]], Draw] | None = None


class Follows(NamedTuple):
    """The op draws nothing: it moves fields of an image as another op moves the pixels.

    Attributes:
        leader: the op that draws.
        complete: returns the draw of the leader with the further values that this op needs, of that
            draw and the sizes of the images before the leader.
    """

    leader: AnyOp
    complete: Callable[[Draw, Sizes], Draw]


class Arithmetic(NamedTuple):
    """The work of the op on the numbers of a field.

    Attributes:
        pointwise: True if each value of a uint8 image becomes another by itself, at any place and
            in any channel. Such ops that follow one another are one look-up on a CPU: ``array_batch``
            of all 256 values makes the table.
        elementwise: True if the op does the same to each element (or each last axis) of a field, so
            that ``array`` takes a whole batch, and the payload of a ``Ragged``, as it takes one
            record; it draws nothing.
        takes_ragged: True if ``array_batch`` takes the values of a ``Ragged`` at once, though the op
            is not elementwise.
        any_size: True if one draw serves images of any size, so that the fields that the op acts on
            may differ in theirs.
        takes_parts: True if the op takes 0 of floating-point values for black and 1 for white.
        centers: True if the op makes values about 0, which are no longer those of an image from
            black to white.
    """

    pointwise: bool = False
    elementwise: bool = False
    takes_ragged: bool = False
    any_size: bool = False
    takes_parts: bool = False
    centers: bool = False


class Execution(NamedTuple):
    """The executors and devices that can run the op.

    Attributes:
        needs_numpy: True if the op has no form but that for NumPy: it runs on the host, before ops
            of any executor.
        needs_dali: True if the op has no array form: only DALI runs it.
        stays_on_host: returns True for fields, a spec before the op of those that it acts on, for
            which it has no form but that for NumPy; None if that does not depend on the fields.
        calls_python: True if a function of the user makes the values. Of an op of the user's own
            nothing needs to be said, see `base.calls_python`.
        has_dali_form: False if ``lower`` cannot be used with these arguments; see
            `base.has_dali_form`.
        mirror: the name of the draw that says which images are mirrored left to right, where the op
            does nothing else.
        lower_mirror: the same as ``lower`` of images that are mirrored left to right before, in
            one pass over them; a DataNode, int32, 1 for an image that is mirrored, is its argument
            behind ``x``. An op that has this form does the work of an op with ``mirror`` that
            stands directly before it.
    """

    needs_numpy: bool = False
    needs_dali: bool = False
    stays_on_host: Callable[[Spec], bool] | None = None
    calls_python: bool = False
    has_dali_form: bool = True
    mirror: str | None = None
    lower_mirror: Callable[..., Any] | None = None


class Traits(NamedTuple):
    """All that an op may have beside its draw and its array form; None is for a part that it has
    not.

    Attributes:
        arithmetic: its work on the numbers of a field.
        execution: the executors and devices that can run it.
        geometric: it moves the pixels of images.
        joint: it makes several fields together.
        mixes: it makes a record of several.
        check: there are values that it cannot take.
        regional: it uses a region of its images.
        codec: it decodes files.
        marks: their part in it.
        follows: it moves fields of an image.
        ways: the ops that it is made of, in lists of which a record gets one.
        bounds: how far results of other executors than the array one on a CPU may be from
            ``array``, see `ops.bounds`; without an entry they are equal.
        is_random: False if the op needs uniform numbers and makes the same of a record in each
            epoch all the same; None if that depends on ``num_uniforms`` alone.
        keeps_size: True if images keep their sizes although the op has a ``size_after``.
        meaning: a number that grows when the same arguments come to mean something else; saved
            states have it, from 2 on.
        advice: returns the text that a loader logs as a warning, once, about the op on a field
            like this before it; None if nothing. It is for uses that are allowed and rarely meant;
            those that the op cannot serve are an error of ``field_after``.
    """

    arithmetic: Arithmetic = Arithmetic()
    execution: Execution = Execution()
    geometric: Geometric | None = None
    joint: Joint | None = None
    mixes: Mixes | None = None
    check: ValueCheck | None = None
    regional: Regional | None = None
    codec: FileCodec | None = None
    marks: Marks = Marks()
    follows: Follows | None = None
    ways: tuple[tuple[AnyOp, ...], ...] = ()
    bounds: Mapping[str, Bound] = NO_BOUNDS
    is_random: bool | None = None
    keeps_size: bool = False
    meaning: int = 1
    advice: Callable[[Field], str | None] | None = None

    def with_arithmetic(self, **changes: bool) -> Traits:
        """Return these traits with other values in ``arithmetic``."""
        return self._replace(arithmetic=self.arithmetic._replace(**changes))

"""Op: one transform, with three faces: its draw, its array form (its meaning) and its DALI form.

A subclass is a frozen dataclass in a file of its own. It gives the field behind it
(``field_after``), how many uniform numbers a record needs (``num_uniforms``), and then ``draw``,
``array`` and ``lower`` stand one under another. The other methods make an op faster or safer, and
each has a default: ``array_batch``, ``fold``, ``resample``, ``row_form`` and ``edit_form`` are its
array form in other words, ``check`` looks at values, ``region`` says which part of an image it
uses. An argument that may differ from field to field (``per_field``) does not change the draws: the
draw is made by the op, and everything else is asked of ``op.of(name)``, which is the op as it acts
on one field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import RowError as RowError
from gpuload.errors import SpecError, UnknownFieldError
from gpuload.kernels import edits
from gpuload.kernels.resampling import Resampling
from gpuload.kernels.walk import VARYING as VARYING
from gpuload.kernels.walk import Walk
from gpuload.ops import arguments
from gpuload.ops.bounds import Bound
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec

Draw = dict[
    str, NDArray[Any]
]  # per argument one int32 or float32 array, records along the first axis
Sizes = NDArray[np.int32]  # [N, 2], height and width in pixels
Points = NDArray[np.float64]  # [M, 2], x and y in pixels
Boxes = NDArray[np.float64]  # [M, 4], left, top, right, bottom in pixels
RowForm = Callable[[NDArray[Any], Draw, NDArray[Any]], None]  # row_form(x, draw, out)
HEADS = "heads"  # in the draw of an op that decodes: `images.head.read_heads` of its field; DALI does not get it
PARTNER = "partner"  # in the draw of an op that mixes: how many rows further the partner of each row is, 0 for none
WITHOUT_ON = "without on= an op acts on the field 'image' alone, or on the only field that there is"


@dataclass(frozen=True)
class Op:
    """One transform of the fields it acts on.

    Args:
        on: the field or fields. Without it an op acts on the field ``"image"`` alone (``OneHot`` on
            ``"label"``), or on the only field that there is. A mask beside the image is not flipped
            with it unless both are named, ``on=("image", "mask")``: then one draw serves both, so
            that they stay together. Several views of an image that shall differ need ops of their
            own: ``gl.ops.repeat``.
    """

    on: str | tuple[str, ...] | None = field(default=None, kw_only=True)

    per_field: ClassVar[tuple[str, ...]] = ()
    """The arguments that may also be a dict from field names to values,
    ``interpolation={"mask": "nearest"}``; the fields that it does not name take the argument's
    default."""

    num_uniforms: ClassVar[int] = 0
    """How many uniform numbers ``draw`` needs for one record."""

    codec: ClassVar[bool] = False
    """True if the op decodes image files: NumPy has a codec for that, DALI has its own, CuPy has
    none."""

    needs_numpy: ClassVar[bool] = False
    """True if the op has no form but that for NumPy: it runs on the host, before ops of any
    executor."""

    needs_dali: ClassVar[bool] = False
    """True if the op has no array form: only DALI runs it."""

    any_size: ClassVar[bool] = False
    """True if one draw serves images of any size, so that the fields that the op acts on may differ
    in theirs."""

    moves_pixels: ClassVar[bool] = False
    """True if pixels of an image come to lie elsewhere, so that a mask and boxes beside it must go
    the same way: those that are marked do (`ops.follow`). Where ``on`` is left out, a loader tells
    of others that stay."""

    reads_marks: ClassVar[bool] = False
    """True if the result depends on the marks of the fields, so that states hold these marks."""

    elementwise: ClassVar[bool] = False
    """True if the op does the same to each element (or each last axis) of a field, so that
    ``array`` takes a whole batch, and the payload of a ``Ragged``, as it takes one record; it draws
    nothing."""

    takes_ragged: ClassVar[bool] = False
    """True if ``array_batch`` takes the values of a ``Ragged`` at once, though the op is not
    elementwise."""

    drops_rows: ClassVar[bool] = False
    """True if the op drops boxes, so that fields with a row for each of them must be marked to stay
    together with them.
    """

    checks: ClassVar[bool] = False
    """True if there are values that the op cannot take: ``check`` finds them."""

    mixes: ClassVar[bool] = False
    """True if the op is joint and makes a record of several: itself and its partners in the epoch's
    order (``order.Groups``), ``group`` of them. Two have one draw, that of the first of them."""

    group: ClassVar[int] = 2
    """Of how many records an op that ``mixes`` makes each, 2 or 4: those at p xor 0, 1 (2 and 3)
    for position p."""

    gives_region: ClassVar[bool] = False
    """True if the op uses a region of its images alone, ``region``; the op before it need not make
    the rest."""

    bounds: ClassVar[Mapping[str, Bound]] = {}
    """How far results of other executors than the array one on a CPU may be from ``array``, see
    `ops.bounds`; without an entry they are equal."""

    @property
    def is_random(self) -> bool:
        """True if the op draws random numbers, so that a record may become another one in each
        epoch."""
        return self.num_uniforms > 0

    def __post_init__(self) -> None:
        """Check ``on``; a subclass checks its own arguments after this."""
        arguments.keep(self, on=arguments.field_names(self, "on", self.on))

    @property
    def calls_python(self) -> bool:
        """True if code of the user makes the values: a function, or an op of the user's own."""
        return not type(self).__module__.startswith("gpuload.")

    @property
    def pointwise(self) -> bool:
        """True if each value of a uint8 image becomes another by itself, at any place and in any
        channel.

        Such ops that follow one another are one look-up on a CPU: ``array_batch`` of all 256 values
        makes the table.
        """
        return False

    @property
    def meaning(self) -> int:
        """A number that grows when the same arguments come to mean something else; saved states
        have it, from 2 on."""
        return 1

    @property
    def takes_parts(self) -> bool:
        """True if the op takes 0 of floating-point values for black and 1 for white."""
        return False

    @property
    def centers(self) -> bool:
        """True if the op makes values about 0, which are no longer those of an image from black to
        white."""
        return False

    @property
    def has_dali_form(self) -> bool:
        """True if DALI can run the op: it has ``lower``, or ``lower_fields`` if it is joint."""
        kind = type(self)
        return not self.needs_numpy and (
            kind.lower_fields is not Op.lower_fields if self.joint else kind.lower is not Op.lower
        )

    @property
    def keeps_size(self) -> bool:
        """True if images keep their sizes: the op has no ``size_after``."""
        return type(self).size_after is Op.size_after

    @property
    def moves_points(self) -> bool:
        """True if the op says where the points of an image go: it has ``move_points``."""
        return type(self).move_points is not Op.move_points

    @property
    def leader(self) -> Op:
        """The op that draws for this one: itself, but for an op that moves boxes beside an image as
        another op does."""
        return self

    def sized_by(self, before: Spec) -> str | None:
        """Return the field of the images whose sizes ``draw`` gets; None for the fields that the op
        acts on.

        Args:
            before: the spec before the op.
        """
        return None

    @property
    def takes_region(self) -> bool:
        """True if the op can make a region of its images alone: ``start`` and ``shape`` in its draw
        say which."""
        return False

    @property
    def makes_bytes(self) -> bool:
        """True if the op decodes image files to uint8 as the core can: to RGB, gray of these
        colours, or RGBA."""
        return False

    @property
    def joint(self) -> bool:
        """True if the op makes its fields together, of all that it acts on: by ``array_fields``,
        not by ``array``."""
        return False

    def stays_on_host(self, before: Spec) -> bool:
        """Return True if the op has no form but that for NumPy, for fields like these.

        Args:
            before: the fields that it acts on, before it.
        """
        return self.needs_numpy

    def of(self, name: str, after: Field | None = None) -> Op:
        """Return the op as it acts on one field: with that field's values of the arguments that are
        ``per_field``.

        Args:
            name: of the field.
            after: the field after the op, once that is known.
        """
        defaults = {argument.name: argument.default for argument in fields(self)}
        by_field = {
            argument: value
            for argument in self.per_field
            if isinstance(value := getattr(self, argument), dict)
        }
        changes = {
            argument: values.get(name, defaults[argument]) for argument, values in by_field.items()
        }
        if changes:
            return replace(self, **changes)
        return self

    def targets(self, spec: Spec) -> tuple[str, ...]:
        """Return the names of the fields that the op acts on.

        Raises:
            UnknownFieldError: a name in ``on`` is not a field.
            SpecError: ``on`` was left out and neither is there an ``"image"`` nor just one field.
        """
        if self.on is not None:
            names = (self.on,) if isinstance(self.on, str) else self.on
            for name in names:
                if name not in spec:
                    raise UnknownFieldError(
                        f"{self}: there is no field {name!r} for it to act on",
                        cause=f"the fields are {list(spec.names)}; {WITHOUT_ON}",
                        remedy="name one of these in on=",
                    )
            return names
        if "image" in spec:
            return ("image",)
        unmarked = tuple(field.name for field in spec if not field.is_marked)
        if len(unmarked) == 1:
            return unmarked
        likely = next(
            (field.name for field in spec if not field.is_marked and field.may_be_image),
            spec.names[0],
        )
        raise SpecError(
            f"{self}: which of the fields {list(spec.names)} it acts on",
            cause=f"{WITHOUT_ON}; here none is named 'image', and there is more than one",
            remedy=f"say it: gl.ops.{type(self).__name__}(..., on={likely!r})",
        )

    def original(self, name: str, targets: Sequence[str]) -> str:
        """Return the field whose value a new field begins with, and whose size it has; the field
        itself if none.

        Args:
            name: of a field after the op.
            targets: the fields that the op acts on.
        """
        return name

    def spec_after(self, spec: Spec) -> Spec:
        """Return the spec of the records after this op.

        Raises:
            SpecError: the op cannot act on a field, or an argument names a field that the op does
                not act on.
        """
        names = self.targets(spec)
        for argument in self.per_field:
            value = getattr(self, argument)
            if isinstance(value, dict):
                extra = sorted(set(value) - set(names))
            else:
                extra = []
            if extra:
                raise SpecError(
                    f"{self}: {argument} names the fields {extra}",
                    cause=f"the op acts on {list(names)}; {WITHOUT_ON}",
                    remedy=f"name them in on= too, on={(*names, *extra)}, or leave them out of {argument}",
                )
        return spec.replacing(*(self.of(name).field_after(spec[name]) for name in names))

    def field_after(self, field: Field) -> Field:
        """Return the field behind the op; raises ``SpecError`` where the op cannot act on it."""
        raise NotImplementedError

    def advice(self, field: Field) -> str | None:
        """Return what a loader logs as a warning, once, about the op on a field like this before
        it; None if nothing.

        It is for what is allowed and rarely meant; what the op cannot do is an error of
        ``field_after``.
        """
        return None

    def fields_to_draw(self, before: Spec) -> tuple[str, ...]:
        """Return the fields of boxes that must be there before anything is drawn; then
        ``draw_beside`` draws.

        Args:
            before: the spec before the op.
        """
        return ()

    def draw_beside(self, u: NDArray[np.float64], size: Sizes, corners: list[Boxes]) -> Draw:
        """Return the same as ``draw``, for an op that looks at boxes, see ``fields_to_draw``.

        Args:
            u: as for ``draw``.
            size: as for ``draw``.
            corners: the boxes of each record before the op: float64 ``[M, 4]``, left, top, right,
                bottom in pixels.
        """
        raise NotImplementedError

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the images' sizes after the op, int32 ``[N, 2]``, height and width in pixels."""
        return size

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return the random (or size-dependent) parameters of a batch, on the host.

        Args:
            u: float64 ``[N, num_uniforms]`` in [0, 1); N may be 0.
            size: int32 ``[N, 2]``, height and width of each image before the op, pixels; zeros for
                fields that are not images.

        Returns:
            A dict of int32 or float32 arrays with the records along the first axis; empty if there
            is nothing to draw.
        """
        return {}

    def complete_draw(self, draw: Draw, size: Sizes) -> Draw:
        """Return the draw of ``leader`` with the further values that this op needs.

        Args:
            draw: the result of ``draw`` of the leader.
            size: as for ``draw``.
        """
        return draw

    def move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """Return where points of one image go, float64 ``[M, 2]``, x and y in pixels; outside of
        the result, too.

        The upper left corner of an image is (0, 0), and the lower right one (width, height): the
        pixel of row r and column c covers the square from (c, r) to (c + 1, r + 1). An op with
        ``moves_pixels`` has this method, or it is refused where boxes or points are marked.

        Args:
            points: float64 ``[M, 2]``, x and y in pixels, before the op; they are not written to.
            draw: the record's row of each draw.
            size: int32 ``[2]``, height and width of the image before the op, pixels.
        """
        raise NotImplementedError

    def move_keypoints(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """Return where keypoints go: those of which (c, r) names the pixel in column c and row r,
        as torchvision's.

        An op defines it where it is not ``move_points``: torchvision mirrors keypoints in
        ``width - 1``.
        """
        return self.move_points(points, draw, size)

    def move_boxes(self, corners: Boxes, draw: Draw, size: NDArray[np.int32]) -> Boxes:
        """Return the bounding boxes of where boxes of one image go, float64 ``[M, 4]``: left, top,
        right, bottom.

        Boxes are cut off at the border of the image behind the op afterwards. See ``move_points``
        for the arguments.
        """
        left, top, right, bottom = corners.T
        points = np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(
            -1, 2
        )
        places = self.move_points(points, draw, size).reshape(-1, 4, 2)
        return np.concatenate([places.min(axis=1), places.max(axis=1)], axis=1)

    def mover(
        self, image: str, annotations: Sequence[Field], spec: Spec, changed: Collection[str]
    ) -> Op | None:
        """Return an op that moves all that is marked beside an image, where it cannot go field by
        field; else None.

        Args:
            image: the field of the image.
            annotations: the marked boxes, points and masks of objects.
            spec: the fields before the op.
            changed: the fields that were changed before.
        """
        return None

    def including(self, masks: tuple[str, ...], targets: tuple[str, ...]) -> Op:
        """Return the op acting on masks, too: their pixels are taken by nearest, and new pixels are
        0.

        A dict that names a mask, ``fill={"mask": 255}``, gives another value for it.

        Args:
            masks: the names of the masks.
            targets: the fields that the op acts on without them.
        """
        changes: dict[str, Any] = {}
        for argument in self.per_field:
            value = getattr(self, argument)
            if isinstance(value, dict):
                by_name = dict(value)
            else:
                by_name = dict.fromkeys(targets, value)
            if argument == "interpolation":
                by_name = {**dict.fromkeys(masks, "nearest"), **by_name}
            changes[argument] = by_name
        return replace(self, on=(*targets, *masks), **changes)

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one record after the op: ``x`` is an array of ``xp`` (NumPy or CuPy), ``draw`` its
        row of each draw.

        Every executor must equal this. The result may be a view of ``x``, which is not written to.

        Raises:
            RowError: the record cannot be used; its row is 0.
        """
        raise NotImplementedError

    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The array form for a batch: an array ``[N, ...]``, a ``Ragged`` or a list of arrays.

        One that is marked by `device.waits` may get `device.Views` in place of a list.

        It equals ``array`` record by record, and gives an array for an array, a ``Ragged`` for a
        ``Ragged`` if the op is elementwise, else a list.
        """
        device.settle()
        if self.elementwise and isinstance(x, Ragged):
            return x.with_payload(self.array(xp, x.flat, draw))
        if self.elementwise and not isinstance(x, VARYING):
            return self.array(xp, x, draw)
        results = self._rows(xp, x, draw)
        are_alike = len({(result.shape, result.dtype) for result in results}) == 1
        if are_alike and not isinstance(x, VARYING):
            return xp.stack(results)
        return results

    def _rows(self, xp: ModuleType, x: Any, draw: Draw) -> list[Any]:
        """Return the array form of each row; a ``RowError`` counts from the first row of the
        batch."""
        records = device.as_list(x)
        return [self._row(xp, records, draw, row) for row in range(len(x))]

    def _row(self, xp: ModuleType, x: Any, draw: Draw, row: int) -> Any:
        """Return the array form of one row; a ``RowError`` counts from the first row of the
        batch."""
        try:
            return self.array(xp, x[row], {name: values[row] for name, values in draw.items()})
        except RowError as error:
            raise error.shift_rows(row) from None

    def array_fields(
        self, xp: ModuleType, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """The array form of an op that is ``joint``, for some records.

        Args:
            xp: NumPy or CuPy.
            fields: those that the op acts on, each with the records along its first axis; they are
                not written to.
            draw: rows of the draws.
            after: the spec after the op.

        Returns:
            For each field that it makes an array ``[N, ...]`` or a list of arrays, which may share
            memory with
            ``fields``; a field that is not in the result stays as it was.

        Raises:
            RowError: a record cannot be used.
        """
        raise NotImplementedError

    def check_heads(self, heads: NDArray[np.int32]) -> None:
        """Check the headers of encoded images before any of them is decoded, by whichever executor.

        Args:
            heads: int32 ``[N, 3]``, height and width in pixels and the number of scans, from
                ``image_sizes``.

        Raises:
            RowError: the op refuses an image.
        """

    def check(self, xp: ModuleType, x: Any) -> Any:
        """Return which rows of a batch hold values that the op cannot take, boolean ``[N]``.

        It is an array of ``xp``, or of NumPy where the host knows without a look at values on a
        GPU.

        Executors ask before they run the op where ``checks`` is True, because DALI has no error for
        values (``OneHot`` of a label that is no class would be all zeros). On a GPU nothing here
        may wait for the device.
        """
        raise NotImplementedError

    def complaint(self, value: Any) -> RowError:
        """Return the error for the value of a row that ``check`` found; the row of the error is
        0."""
        raise NotImplementedError

    def covering(self, region: Draw, size: Sizes) -> Draw:
        """Return the region to make where ``region`` is needed and ``takes_region`` is True: that
        or one around it.

        Args:
            region: see ``region``.
            size: int32 ``[N, 2]``, height and width of each image after the op, pixels.
        """
        return region

    def region(self, draw: Draw, size: Sizes) -> Draw:
        """Return the part of each image that the op uses, where ``gives_region`` is True.

        Args:
            draw: the result of ``draw``.
            size: int32 ``[N, 2]``, height and width of each image before the op, pixels.

        Returns:
            ``start`` (top, left) and ``shape`` (height, width), int32 ``[N, 2]``, pixels; inside
            the image, not empty.
        """
        raise NotImplementedError

    def within(self, draw: Draw, region: Draw) -> Draw:
        """Return the draw by which the op does to the region alone the same as by ``draw`` to the
        whole image."""
        raise NotImplementedError

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """The same in DALI. An op without this form, and all behind it, run in their array forms
        behind DALI.

        Args:
            dali: the module ``nvidia.dali``.
            x: DataNode of the field.
            draw: DataNodes of the draws, on the CPU for any device, as DALI wants its arguments.
            field: the field before the op; DALI's graph does not know dtypes and shapes when it is
                built.
            device: ``"cpu"`` or ``"gpu"``; encoded images come on the CPU all the same.
        """
        raise NotImplementedError

    def lower_fields(
        self, dali: ModuleType, nodes: dict[str, Any], draw: Draw, *, after: Spec
    ) -> dict[str, Any]:
        """The same as ``array_fields`` in DALI, for an op that is joint.

        Args:
            dali: as in ``lower``.
            nodes: DataNodes of the fields that the op acts on, by name.
            draw: DataNodes of the draws.
            after: the spec after the op.

        Returns:
            The DataNode of each field that it makes.
        """
        raise NotImplementedError

    @property
    def mirror(self) -> str | None:
        """The name of the draw that says which images are mirrored left to right, where the op does
        nothing else."""
        return None

    def lower_with_mirror(
        self,
        dali: ModuleType,
        x: Any,
        mirror: Any,
        draw: dict[str, Any],
        *,
        field: Field,
        device: str,
    ) -> Any:
        """The same in DALI of images that are mirrored left to right before, in one pass over them.

        An op that has this form does the work of an op with ``mirror`` that stands directly before
        it.

        Args:
            dali: as in ``lower``.
            x: DataNode of the field, not mirrored.
            mirror: DataNode, int32: 1 for an image that is mirrored, else 0.
            draw: as in ``lower``.
            field: as in ``lower``.
            device: as in ``lower``.
        """
        raise NotImplementedError

    def fold(self, walk: Walk, draw: Draw) -> Walk | None:
        """Return ``walk`` with this op added, or None if the op cannot become part of one walk over
        the image.

        Whether it can may depend on the walk, but not on the numbers in ``draw``: a draw of no rows
        must tell.
        """
        return None

    def resample(self, draw: Draw, size: Sizes) -> Resampling | None:
        """Return the op as a resize of boxes in images of these sizes, or None if it is none, or
        one as Pillow's.

        Whether it is one does not depend on the numbers: a draw and sizes of no rows must tell.
        """
        return None

    def edit_form(self, draw: Draw, size: Sizes, channels: int) -> edits.Edits | None:
        """Return the op as edits of uint8 images whose shape stays (`kernels.edits`), or None if it
        is none.

        Whether it is does not depend on the numbers: a draw and sizes of no rows must tell.

        Args:
            draw: of N images.
            size: int32 ``[N, 2]``, height and width of each, pixels.
            channels: of the images.
        """
        if not self.pointwise:
            return None
        levels = np.arange(256, dtype=np.uint8)[:, None, None]
        if not len(size):
            return edits.of_tables(np.empty((0, 256), np.uint8))
        tables = self.array_batch(np, np.broadcast_to(levels, (len(size), *levels.shape)), draw)
        return edits.of_tables(np.reshape(tables, (len(size), 256)))

    def row_form(self, field: Field) -> RowForm | None:
        """Return the compiled form of the op for single records of a field, or None if there is
        none.

        ``row_form(x, draw, out)`` does as ``array`` does with ``x``, a C-contiguous record, and its
        row of each draw, and writes the result to ``out``. For images of different sizes ``out``
        has the size of ``size_after``.
        """
        return None


def streams(ops: Sequence[Op]) -> list[int]:
    """Return the random stream of each op: of its class and its occurrence, so that other ops do
    not change its draws.

    The stream is the first 8 bytes, little-endian, of SHA-256 of the op's label.
    """
    return [
        int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "little")
        for label in labels(ops)
    ]


def labels(ops: Sequence[Op]) -> list[str]:
    """Return a label of each op, of its class and its occurrence: ``"RandomFlip/0"``."""
    occurrences: dict[str, int] = {}
    texts = []
    for op in ops:
        name = type(op).__name__
        occurrences[name] = occurrences.get(name, -1) + 1
        texts.append(f"{name}/{occurrences[name]}")
    return texts

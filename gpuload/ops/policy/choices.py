"""OneOf, Sometimes and Shuffle: which of some ops are applied to a record, or in which order, is
drawn for each record.

Draws    An op in a list like these has numbers of its own beside those of the others, in the stream
         of the whole. It is drawn for the records that it is applied to, and for no others.
Fields   ``on=`` of the whole holds for all ops in it. All ways must lead to the same dtype and
         shape.
Devices  The array form is that of the ops; on a GPU each is run once for all records that it is
         applied to. DALI has no such choice for each record, so they run behind DALI.
Boxes    and masks that are marked beside an image move with it, as they do for the ops by
         themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import RowError, SpecError
from gpuload.kernels import edits, edits_cuda, pixels
from gpuload.kernels.edits import Edits
from gpuload.ops import arguments, follow
from gpuload.ops.base import (
    PARTNER,
    VARYING,
    Draw,
    Op,
    RowForm,
    Sizes,
    calls_python,
    keeps_size,
    stays_on_host,
)
from gpuload.ops.bounds import EXACT, Bound, join_bounds, loosen_bound, stated_bound
from gpuload.ops.forms import EditForm, Forms
from gpuload.ops.traits import Arithmetic, Execution, Geometric, Joint, Mixes, Move, Traits, once
from gpuload.spec import MASK, Field, Spec

Way = tuple[Op, ...]  # ops that are applied one after the other
Rows = NDArray[np.int64]
CHOICE, ORDER = "choice", "order"  # in the draw
BYTES = Field("image", np.dtype(np.uint8), (None, None, None), axes="HWC")


@dataclass(frozen=True)
class _Nest(Op):
    """An op made of other ops. The draw of op number ``n`` is under ``"n.name"``."""

    @property
    @once
    def traits(self) -> Traits:
        """From the traits of its ops."""
        traits = [op.traits for op in self.inner]
        moving = [part.geometric for part in traits if part.geometric is not None]
        geometric = None
        if moving:
            geometric = Geometric(masks=self._including)
            if all(part.points is not None for part in moving):
                geometric = Geometric(
                    points=self._mover(Geometric.move_points),
                    keypoints=self._mover(Geometric.move_keypoints),
                    boxes=self._mover(Geometric.move_boxes),
                    masks=self._including,
                )
        is_joint = any(part.joint is not None for part in traits)
        advice: Callable[[Field], str | None] | None = self._advice
        if is_joint:
            advice = None
        return Traits(
            arithmetic=Arithmetic(
                any_size=all(part.arithmetic.any_size for part in traits),
                takes_parts=any(part.arithmetic.takes_parts for part in traits),
            ),
            execution=Execution(
                needs_numpy=any(part.execution.needs_numpy for part in traits),
                stays_on_host=self._stays_on_host,
                calls_python=any(map(calls_python, self.inner)),
                has_dali_form=False,
            ),
            geometric=geometric,
            joint=Joint(self._make_fields) if is_joint else None,
            mixes=Mixes() if any(part.mixes is not None for part in traits) else None,
            ways=self.ways,
            bounds=self._bounds(),
            advice=advice,
        )

    def _bounds(self) -> dict[str, Bound]:
        """Return the bounds of all ops, whichever are applied."""
        stated = [op.traits.bounds for op in self.inner]
        bounds = dict.fromkeys((party for of_op in stated for party in of_op), EXACT)
        for of_op in stated:
            for party, bound in bounds.items():
                bounds[party] = join_bounds(loosen_bound(bound), stated_bound(of_op, party))
        return bounds

    def forms(self, field: Field) -> Forms:
        """Edits, and a form for single records, where its ops have these."""
        return Forms(edits=self._edits, row=self._row_form(field))

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of images, see ``Forms.edits``."""
        raise NotImplementedError

    @property
    @once
    def _edit_forms(self) -> list[EditForm]:
        """The edits of each op: those of bytes, of any image."""
        return [op.forms(BYTES).edits for op in self.inner]

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ops that may be applied, in lists of which a record gets one."""
        raise NotImplementedError

    @property
    def inner(self) -> Way:
        """All ops, one list after the other."""
        return tuple(op for way in self.ways for op in way)

    def with_inner(self, change: Callable[[Op], Op]) -> _Nest:
        """Return this op with other ops in the places of those that it is made of."""
        raise NotImplementedError

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """How many numbers the choice needs, and all ops."""
        return self._num_own + sum(op.num_uniforms for op in self.inner)

    @property
    def _num_own(self) -> int:
        """How many uniform numbers the choice itself needs."""
        return 1

    def _stays_on_host(self, before: Spec) -> bool:
        """Return True if one of its ops has no form but that for NumPy."""
        return any(stays_on_host(op, before) for op in self.inner)

    def of(self, name: str, after: Field | None = None) -> Op:
        """Return the op with its ops as they act on one field: on a mask those alone that move
        pixels."""
        if self.traits.joint:
            return self
        return self.with_inner(lambda op: _inner_of(op, name, after))

    def _including(self, masks: tuple[str, ...], targets: tuple[str, ...]) -> Op:
        """Return the op acting on masks, too; those of its ops that move pixels do."""

        def include(op: Op) -> Op:
            if op.traits.geometric:
                return replace(follow.including(op, masks, targets), on=None)
            return op

        return replace(self.with_inner(include), on=(*targets, *masks))

    def _advice(self, field: Field) -> str | None:
        """The first advice of one of its ops, on the field as that op gets it."""
        for way in self.ways:
            before = field
            for op in way:
                advice = op.traits.advice
                line = None if advice is None else advice(before)
                if line is not None:
                    return line
                before = op.field_after(before)
        return None

    def targets(self, spec: Spec) -> tuple[str, ...]:
        """Return the fields that its ops act on, unless ``on`` says it."""
        first = next((op for op in self.inner if op.traits.joint), None)
        if first is None or self.on is not None:
            return super().targets(spec)
        return first.targets(spec)

    def spec_after(self, spec: Spec) -> Spec:
        """The field behind each of the ways, which must be the same."""
        self._check_ops()
        if not self.traits.joint:
            return super().spec_after(spec)
        names = self.targets(spec)
        after = self._agree([_through(way, spec, names) for way in self.ways], names)
        if any(
            field.name not in spec or _form(field) != _form(spec[field.name]) for field in after
        ):
            raise SpecError(
                f"{self}: the fields {spec.only(names)} become {after}",
                cause="an op that makes several fields together leaves dtypes and shapes as they are here",
                remedy="put it before or behind it",
            )
        return after

    def field_after(self, field: Field) -> Field:
        """The field behind each of the ways, which must be the same."""
        names = (field.name,)
        return self._agree([_through(way, Spec((field,)), names) for way in self.ways], names)[
            field.name
        ]

    def _check_ops(self) -> None:
        """Raise ``SpecError`` for an op that cannot be in such a list."""
        for op in self.inner:
            group = op.traits.mixes.group if op.traits.mixes else 1
            joins_records = group > 2
            if (
                op.traits.codec
                or op.traits.check
                or op.traits.execution.needs_dali
                or joins_records
            ):
                if op.traits.execution.needs_dali:
                    reason = "DALI alone runs it"
                else:
                    reason = "it is for all records"
                if joins_records:
                    reason = f"it takes {group} records, and has p= for some of them"
                raise SpecError(
                    f"{type(self).__name__} of {op}",
                    cause=f"{reason}, and this is a choice for each record",
                    remedy=f"put {type(op).__name__} before {type(self).__name__}",
                )

        if self.traits.mixes and not all(op.traits.mixes for op in self.inner):
            raise SpecError(
                f"{self}",
                cause="ops that mix two records have one draw for both, and the others have one for each",
                remedy="put the others before it or behind it",
            )

    def _agree(self, ends: list[Spec], names: tuple[str, ...]) -> Spec:
        """Return the one spec of the records behind all ways; an axis that varies behind one of
        them varies."""
        first, *rest = ends
        fields = []
        for name in names:
            field = first[name]
            for end in rest:
                common = _merge(field, end[name])
                if common is None:
                    raise SpecError(
                        f"{self}: field {name!r} becomes {field} or {end[name]}",
                        cause="records of a batch have one dtype and one shape",
                        remedy="choose between ops that lead to the same, or put the op that changes it elsewhere",
                    )
                field = common
            fields.append(field)
        return first.replacing(*fields)

    # Draws

    def _columns(self) -> list[slice]:
        """Return which of the uniform numbers each op has."""
        # Chosen or not, each op has numbers of its own: its draws do not depend on which
        # others are applied.
        ends = list(accumulate((op.num_uniforms for op in self.inner), initial=self._num_own))
        return [slice(begin, end) for begin, end in pairwise(ends)]

    def _draw_of(self, number: int, u: NDArray[np.float64], size: Sizes, rows: Rows) -> Draw:
        """Return the draw of an op for some rows, with zeros for the others."""
        op, columns = self.inner[number], self._columns()[number]
        try:
            draw_rows = op.draw(u[rows, columns], size[rows])
        except RowError as error:
            # The op counts the rows that it was given, the caller those of the batch.
            raise error.shift_rows(int(rows[error.row]) - error.row) from None
        draw = {}
        for name, values in draw_rows.items():
            draw[f"{number}.{name}"] = np.zeros((len(u), *values.shape[1:]), values.dtype)
            draw[f"{number}.{name}"][rows] = values
        return draw

    def of_op(self, number: int, draw: Draw) -> Draw:
        """Return the draw of one of the ops from that of all; values without a number are for each
        of them."""
        prefix = f"{number}."
        of_number = {
            name.removeprefix(prefix): values
            for name, values in draw.items()
            if name.startswith(prefix)
        }
        shared = {
            name: draw[name]
            for name in draw
            if not name[0].isdigit() and name not in (CHOICE, ORDER)
        }
        return {**shared, **of_number}

    def plan(self, draw: Draw) -> Sequence[int]:
        """Return the numbers of the ops that are applied to one record, in order; ``draw`` is its
        row of each draw."""
        raise NotImplementedError

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the images' sizes behind the ops that are drawn for them."""
        after = size.copy()
        for numbers, rows in self._passes(draw):
            for number in numbers:
                draw_rows = {
                    name: values[rows] for name, values in self.of_op(number, draw).items()
                }
                after[rows] = self.inner[number].size_after(after[rows], draw_rows)
        return after

    def _passes(self, draw: Draw) -> Iterator[tuple[Sequence[int], Rows]]:
        """Give ops by their numbers, and the rows that they are applied to, in the order in which
        they are."""
        raise NotImplementedError

    # Array form

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one record behind the ops that were drawn for it."""
        for number in self.plan(draw):
            x = self.inner[number].array(xp, x, self.of_op(number, draw))
        return x

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch: each op once for all records that it is applied to; on a GPU as
        edits, if they are."""
        result = edits_cuda.edit_batch(
            xp, x, lambda size, channels: self._edits(draw, size, channels)
        )
        if result is None and not isinstance(x, VARYING):
            if pixels.reads(xp, x):
                result = self._views(xp, x, draw)
            else:
                result = self._batch(xp, x, draw)
        if result is None and device.compiles(xp):
            result = self._list(xp, list(x), draw)
        if result is None:
            return super().array_batch(xp, x, draw)
        return result

    def _list(self, xp: ModuleType, values: list[Any], draw: Draw) -> list[Any]:
        """Return records of different shapes behind the ops, each op once for all records that it
        is applied to."""
        for numbers, rows in self._passes(draw):
            if not rows.size:
                continue
            part: Any = [values[row] for row in rows.tolist()]
            for number in numbers:
                draw_rows = {name: array[rows] for name, array in self.of_op(number, draw).items()}
                try:
                    part = _apply(self.inner[number], xp, part, draw_rows)
                except RowError as error:
                    raise error.shift_rows(int(rows[error.row]) - error.row) from None
            for row, value in zip(rows.tolist(), part, strict=True):
                values[row] = value
        return values

    def _views(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return a batch of images on a GPU behind the ops: they act on views of its rows, which
        are not copied.

        One more kernel brings the results together, unless they have shapes of their own.
        """
        images = self._list(xp, list(x), draw)
        are_alike = len({(image.shape, image.dtype) for image in images}) == 1
        if are_alike and pixels.reads(xp, images):
            return pixels.move(xp, images)
        return images

    def _batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any | None:
        """Return a batch of one shape behind the ops; None where the results have shapes of their
        own."""
        raise NotImplementedError

    def _through(
        self, xp: ModuleType, x: Any, numbers: Sequence[int], draw: Draw, rows: Rows
    ) -> Any:
        """Return some rows of a batch behind some ops."""
        device.settle()
        if rows.size != len(x):
            x = x[_indices(xp, rows)]
        for number in numbers:
            draw_rows = {name: values[rows] for name, values in self.of_op(number, draw).items()}
            x = _apply(self.inner[number], xp, x, draw_rows)
        device.settle()  # CuPy puts the rows together
        return x

    @device.waits
    def _make_fields(
        self, xp: ModuleType, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """The same for ops that are joint."""
        if self.traits.mixes and device.compiles(xp):
            return self._mix(xp, fields, draw, after)
        device.settle()
        fields = dict(fields)
        for numbers, rows in self._passes(draw):
            if not rows.size:
                continue
            for number in numbers:
                op, draw_rows = self.inner[number], self.of_op(number, draw)
                draw_rows = {name: values[rows] for name, values in draw_rows.items()}
                take = _indices(xp, rows)
                rows_of_fields = {name: values[take] for name, values in fields.items()}
                parts = _joint(op).array_fields(xp, rows_of_fields, draw_rows, after)
                fields |= {
                    name: _replace_rows(xp, fields[name], rows, part)
                    for name, part in parts.items()
                }
        return fields

    def _mix(
        self, xp: ModuleType, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """Return the fields behind ops that mix records: in each op those stay for which it was not
        drawn."""
        for numbers, rows in self._passes(draw):
            if not rows.size:
                continue
            is_drawn = np.zeros(len(draw[PARTNER]), np.int32)
            is_drawn[rows] = 1
            for number in numbers:
                make_fields = _joint(self.inner[number]).array_fields
                op_draw = self.of_op(number, draw) | {PARTNER: draw[PARTNER] * is_drawn}
                device.begin(make_fields)
                fields = {**fields, **make_fields(xp, fields, op_draw, after)}
        return fields

    def _row_form(self, field: Field) -> RowForm | None:
        """The compiled form of the op that was chosen, where each way is one op and some of them
        have one."""
        is_single = all(len(way) <= 1 for way in self.ways)
        if not field.uniform or not is_single:
            return None
        forms = [op.forms(field).row for op in self.inner]
        if not any(forms) or not all(op.field_after(field).uniform for op in self.inner):
            return None

        def write(x: NDArray[Any], draw: Draw, out: NDArray[Any]) -> None:
            numbers = self.plan(draw)
            form = forms[numbers[0]] if numbers else None
            if form is None:
                np.copyto(out, self.array(np, x, draw))
            else:
                form(x, self.of_op(numbers[0], draw), out)

        return write

    def _mover(self, method: Callable[..., NDArray[np.float64]]) -> Move:
        """Return how points, keypoints or boxes of an image go: as the ops drawn for it move them.

        Args:
            method: of ``Geometric``, ``Geometric.move_boxes`` say.
        """
        movers = [op.traits.geometric for op in self.inner]

        def move(
            places: NDArray[np.float64], draw: Draw, size: NDArray[np.int32]
        ) -> NDArray[np.float64]:
            for number in self.plan(draw):
                op, draw_rows = self.inner[number], self.of_op(number, draw)
                if movers[number] is not None:
                    places = method(movers[number], places, draw_rows, size)
                one_row = {name: np.asarray(values)[None] for name, values in draw_rows.items()}
                size = op.size_after(size[None], one_row)[0]
            return places

        return move


class _Still(Op):
    """In place of an op that does not move pixels, where it stands among others that act on a
    mask."""

    def field_after(self, field: Field) -> Field:
        """The field stays the same."""
        return field

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the record as it is."""
        return x

    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the batch as it is."""
        return x


@dataclass(frozen=True)
class _Choice(_Nest):
    """One of some lists of ops for each record."""

    def choose(self, u: NDArray[np.float64]) -> NDArray[np.int32]:
        """Return the number of a list for each uniform number, int32 ``[N]``."""
        raise NotImplementedError

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``choice``, int32 ``[N]``: the number of the list; and its draws, zeros where not
        chosen."""
        draw = {CHOICE: self.choose(u[:, 0])}
        sizes = size.copy()
        for numbers, rows in self._passes(draw):
            for number in numbers:
                draw |= self._draw_of(number, u, sizes, rows)
                draw_rows = {
                    name: values[rows] for name, values in self.of_op(number, draw).items()
                }
                sizes[rows] = self.inner[number].size_after(sizes[rows], draw_rows)
        return draw

    def plan(self, draw: Draw) -> Sequence[int]:
        """Return the numbers of the ops that are applied to one record, in order."""
        begins = list(accumulate(map(len, self.ways), initial=0))
        choice = int(draw[CHOICE])
        return range(begins[choice], begins[choice + 1])

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of all ways, of which an image has those of its own."""
        parts = []
        for numbers, rows in self._passes(draw):
            for number in numbers:
                draw_rows = {
                    name: values[rows] for name, values in self.of_op(number, draw).items()
                }
                part = self._edit_forms[number](draw_rows, size[rows], channels)
                if part is None:
                    return None
                parts.append(edits.spread(part, rows, len(size)))
        return np.concatenate(parts, axis=1)

    def _passes(self, draw: Draw) -> Iterator[tuple[Sequence[int], Rows]]:
        begins = list(accumulate(map(len, self.ways), initial=0))
        for choice in range(len(self.ways)):
            yield range(begins[choice], begins[choice + 1]), np.flatnonzero(draw[CHOICE] == choice)

    def _batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any | None:
        passes = [(numbers, rows) for numbers, rows in self._passes(draw) if rows.size]
        parts = [self._through(xp, x, numbers, draw, rows) for numbers, rows in passes]
        if not parts or any(isinstance(part, VARYING) for part in parts):
            return None
        if len(parts) == 1:
            return parts[0]
        # They lie in the order of the lists: this brings them back into that of the batch.
        order = np.argsort(np.concatenate([rows for _, rows in passes]))
        return xp.concatenate(parts)[_indices(xp, order)]


@dataclass(frozen=True)
class OneOf(_Choice):
    """Apply one of some ops to each record, or one of some lists of ops; which, is drawn.

    torchvision's RandomChoice is the same; in Albumentations' OneOf the ``p`` of each op is its
    weight, and half of the images stay as they are unless told otherwise; Keras, DALI and timm have
    none.

    Example:
        ``gl.ops.OneOf([gl.ops.Brightness(0.6, 1.4), gl.ops.RandomFlip(p=1.0)])``

    Args:
        ops: the ops to choose from, without ``on=``; in place of an op a list of ops that are all
            applied.
        weights: how likely each is, relative to the others; all are as likely if left out.
        on: the fields that the ops act on.
    """

    ops: Sequence[Op | Sequence[Op]]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.ops, (list, tuple)):
            entries = self.ops
        else:
            entries = ()
        if not entries:
            raise arguments.refuse(self, "ops", self.ops, "a list of ops", _REMEDY)
        ops = tuple(
            _checked_ops(self, [entry])[0] if isinstance(entry, Op) else _checked_ops(self, entry)
            for entry in entries
        )
        arguments.keep(self, ops=ops)
        if self.weights is None:
            return
        weights = arguments.numbers(self, "weights", self.weights)
        if (
            not isinstance(weights, tuple)
            or len(weights) != len(ops)
            or min(weights) < 0
            or not sum(weights)
        ):
            raise arguments.refuse(
                self,
                "weights",
                self.weights,
                f"{len(ops)} numbers, at least 0 and not all of them 0",
            )
        arguments.keep(self, weights=weights)

    @property
    def ways(self) -> tuple[Way, ...]:
        """The choices."""
        return tuple((entry,) if isinstance(entry, Op) else tuple(entry) for entry in self.ops)

    def with_inner(self, change: Callable[[Op], Op]) -> OneOf:
        """Return this op with other ops in the places of those that it is made of."""
        ops = [
            change(entry) if isinstance(entry, Op) else tuple(map(change, entry))
            for entry in self.ops
        ]
        return replace(self, ops=tuple(ops))

    def choose(self, u: NDArray[np.float64]) -> NDArray[np.int32]:
        """Return the number of a list for each uniform number, int32 ``[N]``."""
        weights = np.asarray(self.weights or (1.0,) * len(self.ops))
        # Without the last end: rounding could put it below a number that is nearly 1, and there
        # would be a choice too many.
        ends = np.cumsum(weights)[:-1] / weights.sum()
        return np.searchsorted(ends, u, side="right").astype(np.int32)


@dataclass(frozen=True)
class Sometimes(_Choice):
    """Apply all of some ops to a record with a probability, or none; dtype and shape of the fields
    stay.

    torchvision's RandomApply and Albumentations' Sequential with ``p`` are the same; Keras, DALI
    and timm have none.

    Example:
        ``gl.ops.Sometimes(0.3, [gl.ops.Brightness(0.6, 1.4)])``

    Args:
        p: the probability.
        ops: the ops, one or several, without ``on=``.
        on: the fields that the ops act on.
    """

    p: float
    ops: Sequence[Op]

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self, p=arguments.probability(self, "p", self.p), ops=_checked_ops(self, self.ops)
        )

    @property
    def ways(self) -> tuple[Way, ...]:
        """Nothing, or all."""
        return (), tuple(self.ops)

    def with_inner(self, change: Callable[[Op], Op]) -> Sometimes:
        """Return this op with other ops in the places of those that it is made of."""
        return replace(self, ops=tuple(map(change, self.ops)))

    def choose(self, u: NDArray[np.float64]) -> NDArray[np.int32]:
        """Return the number of a list for each uniform number, int32 ``[N]``."""
        return (u < self.p).astype(np.int32)


@dataclass(frozen=True)
class Shuffle(_Nest):
    """Apply all of some ops to each record, in an order that is drawn; each of them leaves dtype
    and shape as they are.

    torchvision's RandomOrder is the same, Albumentations' takes ``n`` of the ops; Keras, DALI and
    timm have none.

    Example:
        ``gl.ops.Shuffle([gl.ops.Brightness(0.6, 1.4), gl.ops.Contrast(0.6, 1.4)])``

    Args:
        ops: the ops, without ``on=``.
        on: the fields that the ops act on.
    """

    ops: Sequence[Op]

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(self, ops=_checked_ops(self, self.ops))

    def forms(self, field: Field) -> Forms:
        """Edits, where its ops are edits."""
        return Forms(edits=self._edits)

    @property
    def ways(self) -> tuple[Way, ...]:
        """Each op by itself: they are checked one by one."""
        return tuple((op,) for op in self.ops)

    @property
    def _num_own(self) -> int:
        return len(self.ops)

    def with_inner(self, change: Callable[[Op], Op]) -> Shuffle:
        """Return this op with other ops in the places of those that it is made of."""
        return replace(self, ops=tuple(map(change, self.ops)))

    def field_after(self, field: Field) -> Field:
        """The field does not change."""
        for op in self.ops:
            after = _inner_of(op, field.name, field).field_after(field)
            if _form(after) != _form(field) or (not field.uniform and not keeps_size(op)):
                raise SpecError(
                    f"{self}: field {field} becomes {after} by {op}",
                    cause="in another order an op would get another dtype or size",
                    remedy=f"put {type(op).__name__} before or behind it",
                )
        return super().field_after(field)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``order``, int32 ``[N, number of ops]``: the numbers of the ops in order; and
        their draws."""
        # Stable: equal numbers, too, give one order on every machine.
        draw = {ORDER: np.argsort(u[:, : len(self.ops)], axis=1, kind="stable").astype(np.int32)}
        rows = np.arange(len(u))
        for number in range(len(self.ops)):
            draw |= self._draw_of(number, u, size, rows)
        return draw

    def plan(self, draw: Draw) -> Sequence[int]:
        """Return the numbers of the ops that are applied to one record, in order."""
        return [int(number) for number in draw[ORDER]]

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """The sizes stay."""
        return size

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of all ops, in the order of each image."""
        parts = [
            edits_of(self.of_op(number, draw), size, channels)
            for number, edits_of in enumerate(self._edit_forms)
        ]
        known_parts = [part for part in parts if part is not None]
        if len(known_parts) == len(parts):
            return edits.reorder(known_parts, draw[ORDER])
        return None

    def _batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any | None:
        for numbers, rows in self._passes(draw):
            if rows.size:
                part = self._through(xp, x, numbers, draw, rows)
                if rows.size == len(x):
                    x = part
                else:
                    x = _replace_rows(xp, x, rows, part)
        return x

    def _passes(self, draw: Draw) -> Iterator[tuple[Sequence[int], Rows]]:
        for turn in range(len(self.ops)):
            for number in range(len(self.ops)):
                yield [number], np.flatnonzero(draw[ORDER][:, turn] == number)


_REMEDY = "write [gl.ops.Brightness(0.6, 1.4), gl.ops.RandomFlip()], say"


def _checked_ops(op: Op, ops: Any) -> Way:
    """Return ops that are checked as far as that needs no fields."""
    if isinstance(ops, (list, tuple)):
        way = tuple(ops)
    else:
        way = (ops,)
    for inner in way:
        if not isinstance(inner, Op):
            raise arguments.refuse(op, "ops", ops, "a list of ops", _REMEDY)
        if inner.on is not None:
            raise SpecError(
                f"gl.ops.{type(op).__name__} of {inner}",
                cause="on= is for all ops in it, so that one draw serves the same fields",
                remedy=f"leave on= out there, and write gl.ops.{type(op).__name__}(..., on={inner.on!r})",
            )
    if not way:
        raise arguments.refuse(op, "ops", ops, "a list of ops", _REMEDY)
    return way


def _through(way: Way, spec: Spec, names: tuple[str, ...]) -> Spec:
    """Return the spec behind ops that act on some fields."""
    for op in way:
        if op.traits.joint:
            if len(names) > 1:
                op = replace(op, on=names)
            else:
                op = replace(op, on=names[0])
            spec = op.spec_after(spec)
        else:
            spec = spec.replacing(
                *(_inner_of(op, name, spec[name]).field_after(spec[name]) for name in names)
            )
    return spec


def _inner_of(op: Op, name: str, field: Field | None) -> Op:
    """Return one of several ops as it acts on one field: on a mask not at all, unless it moves
    pixels."""
    if field is not None and field.kind == MASK and not op.traits.geometric:
        return _Still()
    if isinstance(op, _Nest):
        return op.of(name, field)
    return op.of(name)


def _joint(op: Op) -> Joint:
    """Return how an op that is joint makes its fields."""
    joint = op.traits.joint
    if joint is None:
        raise RuntimeError(f"{op} stands beside an op that makes several fields together")
    return joint


def _form(field: Field) -> tuple[Any, ...]:
    return field.dtype, field.shape, field.encoded, field.text


def _merge(field: Field, second: Field) -> Field | None:
    """Return the field that holds the records of both; None if their dtypes, ranks or fixed lengths
    differ."""
    if (field.dtype, field.encoded, field.text) != (second.dtype, second.encoded, second.text):
        return None
    axes = field.axes or second.axes
    if field.shape is None or second.shape is None or len(field.shape) != len(second.shape):
        if field.shape == second.shape:
            return field.with_(axes=axes)
        return None
    pairs = list(zip(field.shape, second.shape, strict=True))
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        return None
    return field.with_(shape=tuple(None if None in pair else pair[0] for pair in pairs), axes=axes)


def _apply(op: Op, xp: ModuleType, x: Any, draw: Draw) -> Any:
    """Return some records behind one of the ops."""
    if not device.begin(op.array_batch):
        x = device.as_list(x)
    return op.array_batch(xp, x, draw)


def _replace_rows(xp: ModuleType, x: Any, rows: Rows, part: Any) -> Any:
    """Return a batch with other values in some rows."""
    if isinstance(x, VARYING):
        values = list(x)
        for row, value in zip(rows.tolist(), part, strict=True):
            values[row] = value
        return values
    if xp is np:
        result = x.copy()
        result[rows] = part
        return result
    places = np.arange(len(x))
    places[rows] = len(x) + np.arange(rows.size)
    return xp.concatenate([x, part])[xp.asarray(places)]


def _indices(xp: ModuleType, rows: Rows) -> Any:
    return rows if xp is np else xp.asarray(rows)

"""Op: one transform, with three faces: its draw, its array form (its meaning) and its DALI form.

A subclass is a frozen dataclass in a file of its own. It gives the field behind it
(``field_after``), how many uniform numbers a record needs (``num_uniforms``), and then ``draw``,
``array`` and ``lower`` stand one under another. All else that an op may have is a value in
``traits`` (`ops.traits`), and its compiled forms are those of ``forms`` (`ops.forms`). An argument
that may differ from field to field (``per_field``) does not change the draws: the draw is made by
the op, and everything else is asked of ``op.of(name)``, which is the op as it acts on one field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import RowError as RowError
from gpuload.errors import SpecError, UnknownFieldError
from gpuload.kernels import edits
from gpuload.kernels.walk import VARYING as VARYING
from gpuload.ops import arguments, places
from gpuload.ops.forms import Forms
from gpuload.ops.forms import RowForm as RowForm
from gpuload.ops.traits import Boxes as Boxes
from gpuload.ops.traits import Draw as Draw
from gpuload.ops.traits import Points as Points
from gpuload.ops.traits import Sizes as Sizes
from gpuload.ops.traits import Traits
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec

# In the draw of an op that decodes: `images.head.read_heads` of its field; DALI does not get it.
HEADS = "heads"
# In the draw of an op that mixes: how many rows further the partner of each row is, 0 for none.
PARTNER = "partner"
WITHOUT_ON = "without on= an op acts on the field 'image' alone, or on the only field that there is"
NO_TRAITS, NO_FORMS = Traits(), Forms()


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

    @property
    def traits(self) -> Traits:
        """All that the op has beside its draw and its array form."""
        return NO_TRAITS

    def __post_init__(self) -> None:
        """Check ``on``; a subclass checks its own arguments after this."""
        arguments.keep(self, on=arguments.field_names(self, "on", self.on))

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
        elementwise = self.traits.arithmetic.elementwise
        if elementwise and isinstance(x, Ragged):
            return x.with_payload(self.array(xp, x.flat, draw))
        if elementwise and not isinstance(x, VARYING):
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

    def forms(self, field: Field) -> Forms:
        """Return the compiled forms of the op on a field; where it is pointwise, edits by a table.

        Args:
            field: before the op.
        """
        if self.traits.arithmetic.pointwise:
            return Forms(edits=self._table_edits)
        return NO_FORMS

    def _table_edits(self, draw: Draw, size: Sizes, channels: int) -> edits.Edits:
        """Return edits that look each value up: the array form of all 256 makes the table."""
        levels = np.arange(256, dtype=np.uint8)[:, None, None]
        if not len(size):
            return edits.of_tables(np.empty((0, 256), np.uint8))
        tables = self.array_batch(np, np.broadcast_to(levels, (len(size), *levels.shape)), draw)
        return edits.of_tables(np.reshape(tables, (len(size), 256)))

    def __init_subclass__(cls) -> None:
        """Refuse a member that does nothing, see `ops.places`, and keep the inherited text:
        ``dataclass`` makes one with all arguments where there is none."""
        super().__init_subclass__()
        places.check(cls, Op)
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return the call that makes the op, with the arguments that differ from their defaults.

        Those that must be given, and height and width, stand first and without their names.
        """
        texts: list[str] = []
        by_place = True
        for argument in sorted(fields(self), key=lambda argument: argument.kw_only is True):
            value = getattr(self, argument.name)
            is_default = argument.default is not MISSING and _are_equal(value, argument.default)
            is_first = argument.default is MISSING or argument.name in ("height", "width")
            by_place = by_place and is_first and not is_default and not argument.kw_only
            if not is_default:
                texts.append(repr(value) if by_place else f"{argument.name}={value!r}")
        return f"{type(self).__name__}({', '.join(texts)})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments: values made of them once, see `traits.once`, are made anew."""
        return {name: value for name, value in vars(self).items() if "." not in name}


def _are_equal(value: Any, default: Any) -> bool:
    """Return True if two arguments are the same, arrays too."""
    return value is default or bool(np.all(value == default))


def is_random(op: Op) -> bool:
    """Return True if an op draws random numbers, so that a record may become another one in each
    epoch."""
    stated = op.traits.is_random
    return op.num_uniforms > 0 if stated is None else stated


def calls_python(op: Op) -> bool:
    """Return True if code of the user makes the values: a function, or an op of the user's own."""
    is_foreign = not type(op).__module__.startswith("gpuload.")
    return is_foreign or op.traits.execution.calls_python


def has_dali_form(op: Op) -> bool:
    """Return True if DALI can run an op: it has ``lower``, or ``lower_fields`` if it is joint."""
    traits = op.traits
    if traits.execution.needs_numpy or not traits.execution.has_dali_form:
        return False
    if traits.joint is not None:
        return traits.joint.lower_fields is not None
    return type(op).lower is not Op.lower


def stays_on_host(op: Op, before: Spec) -> bool:
    """Return True if an op has no form but that for NumPy, for fields like these.

    Args:
        op: the op.
        before: the fields that it acts on, before it.
    """
    execution = op.traits.execution
    if execution.needs_numpy or execution.stays_on_host is None:
        return execution.needs_numpy
    return execution.stays_on_host(before)


def takes_any_size(op: Op) -> bool:
    """Return True if one draw of an op serves images of any size; so where nothing is drawn."""
    return op.traits.arithmetic.any_size or type(op).draw is Op.draw


def keeps_size(op: Op) -> bool:
    """Return True if images keep their sizes."""
    return op.traits.keeps_size or type(op).size_after is Op.size_after


def original(op: Op, name: str, targets: Sequence[str]) -> str:
    """Return the field that a new field begins as a copy of, and shares its size with; the field
    itself if it is no copy.

    Args:
        op: the op.
        name: of a field after the op.
        targets: the fields that the op acts on.
    """
    joint = op.traits.joint
    if joint is not None and name in joint.copies:
        return targets[0]
    return name


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

"""Copy: several views of one image, each with ops and draws of its own; and ``repeat``, which
writes these ops down.

    views = ("view_0", "view_1")
    ops = [gl.ops.Decode(), gl.ops.Copy("image", to=views),
           *gl.ops.repeat([gl.ops.RandomResizedCrop(224, 224), gl.ops.RandomFlip()], on=views)]

A record is read once, and behind ``Decode`` decoded once. Draws belong to an op's place among those
of its class in the list (``gpuload.ops.base.streams``), so that two crops in one list cut different
boxes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from gpuload import device
from gpuload.errors import SpecError
from gpuload.ops import arguments
from gpuload.ops.base import Draw, Op
from gpuload.ops.traits import Arithmetic, Joint, Traits, once
from gpuload.spec import Spec


@dataclass(frozen=True)
class Copy(Op):
    """Give the value of a field to new fields, so that each can have ops of its own; any field,
    encoded files too.

    The field itself stays. Memory is copied where a batch hands out both, not where ops follow. One
    op on several of these fields, ``RandomResizedCrop(224, on=("view_0", "view_1"))``, draws once
    and makes the same of all; for views that differ write
    ``*gl.ops.repeat([gl.ops.RandomResizedCrop(224)], on=("view_0", "view_1"))``.

    Example:
        ``gl.ops.Copy("image", to=("view_0", "view_1"))``

    Args:
        on: the field.
        to: the name of a new field, or a tuple of them.
    """

    on: str | tuple[str, ...] | None = None
    to: str | tuple[str, ...] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.on is None or isinstance(self.on, str)):
            raise arguments.refuse(
                self, "on", self.on, "one field", "write gl.ops.Copy('image', to='view')"
            )
        names = arguments.field_names(self, "to", self.to)
        if names is None:
            raise arguments.refuse(
                self, "to", self.to, "the name of a new field, or a tuple of them"
            )
        arguments.keep(self, to=(names,) if isinstance(names, str) else names)

    @property
    @once
    def traits(self) -> Traits:
        """It makes copies of one field."""
        return Traits(
            arithmetic=Arithmetic(any_size=True),
            joint=Joint(self._copy, self._copy_nodes, copies=tuple(self.to)),
        )

    def spec_after(self, spec: Spec) -> Spec:
        """The new fields behind those that there are."""
        (name,) = self.targets(spec)
        for new in self.to:
            if new in spec:
                raise SpecError(
                    f"{self}: there is a field {new!r} already",
                    cause="a copy is a new field",
                    remedy=f"choose another name in to=, {'view_' + new!r} say",
                )
        return spec.including(*(spec[name].with_(name=new) for new in self.to))

    @device.waits
    def _copy(
        self, xp: ModuleType, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """Return the same values under the new names."""
        (values,) = fields.values()
        return dict.fromkeys(self.to, values)

    def _copy_nodes(
        self, dali: ModuleType, nodes: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """The same node under the new names."""
        (node,) = nodes.values()
        return dict.fromkeys(self.to, node)


def repeat(ops: Sequence[Op], on: Iterable[str]) -> list[Op]:
    """Return the ops again for each of some fields: all of them on the first field, then all on the
    second.

    Each op is one of its own in the list, with draws of its own; an op with ``on=`` for all fields
    has one draw.

    Args:
        ops: applied to each of the fields; without ``on=``.
        on: the fields.

    Raises:
        SpecError: these are no ops or no names, or an op names fields already.
    """
    if not isinstance(ops, (list, tuple)) or not all(
        isinstance(op, Op) and op.on is None for op in ops
    ):
        raise SpecError(
            f"gl.ops.repeat({ops!r})"[:200],
            cause="it takes a list of ops without on=, and acts with them on each of the fields",
            remedy="write gl.ops.repeat([gl.ops.RandomFlip()], on=('view_0', 'view_1'))",
        )
    if isinstance(on, Iterable) and not isinstance(on, (str, bytes)):
        names = tuple(on)
    else:
        names = ()
    if (
        not names
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise SpecError(
            f"gl.ops.repeat(..., on={on!r})"[:200],
            cause="on is a tuple of field names, each once",
            remedy="write gl.ops.repeat([gl.ops.RandomFlip()], on=('view_0', 'view_1'))",
        )
    return [_onto(op, name) for name in names for op in ops]


def _onto(op: Op, name: str) -> Op:
    """Return an op on another field; its arguments, which were checked, are the same."""
    twin = copy.copy(op)
    arguments.keep(twin, on=name)
    return twin

"""Levels: images of floating-point numbers that go to 255, before an op that takes 1 for white.

Such an op would make nearly all of the image white. Where the numbers come from the source or from a function, only
they themselves tell their levels: ``with_checks`` puts a ``CheckLevels`` before the first such op, whose question
executors ask as any other (`executors.checks`), on a GPU without a wait. Where ops of gpuload made the numbers, they
are known to end at 1, or a loader tells of it (`ops.advice`), and nothing is asked.

Dark    An image whose largest level is 2 or less may be nearly black, or an image from 0 to 1: it
        passes. The first brighter record of such data ends the run, or is counted as a bad one.
Cost    one comparison with each value of such images: 15 us of one of 224 x 224 x 3, for which ``Brightness`` takes
        80 us. Of uint8 nothing is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from gpuload.errors import RowError
from gpuload.ops.base import VARYING, Draw, Op, streams
from gpuload.ops.graph import Graph
from gpuload.spec import Field, Spec

# Beyond 1 lie overshoots of a filter and highlights of a camera, which such an op cuts off as it should.
LARGEST = 2.0


@dataclass(frozen=True)
class CheckLevels(Op):
    """Refuse images of floating-point numbers beyond white, and leave the others as they are.

    Args:
        op: the op behind it, which takes 0 for black and 1 for white.
    """

    op: Op

    any_size: ClassVar[bool] = True
    checks: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    @property
    def has_dali_form(self) -> bool:
        """True where the op behind it has one: the question is asked where that op runs."""
        return self.op.has_dali_form

    def __str__(self) -> str:
        return f"levels before {type(self.op).__name__}"

    def field_after(self, field: Field) -> Field:
        """The field stays."""
        return field

    def check(self, xp: ModuleType, x: Any) -> Any:
        """Return the rows with a level beyond white; a level that is not a number is none."""
        if not len(x):
            return xp.zeros(0, bool)
        if isinstance(x, VARYING):
            return xp.stack([(x[row] > LARGEST).any() for row in range(len(x))])
        return (x > LARGEST).reshape(len(x), -1).any(axis=1)

    def complaint(self, value: Any) -> RowError:
        """Return the error that says how far the levels go."""
        levels = value if isinstance(value, np.ndarray) else value.get()
        largest = float(np.nanmax(levels))
        white = 255 if largest <= 255 else 65535
        name = self.on if isinstance(self.on, str) else "image"
        return RowError(
            0,
            f"{self.op}: the image of floating-point numbers has levels up to {largest:g}",
            cause="the op takes 0 for black and 1 for white, and would make white of all that is beyond",
            remedy=f"put gl.ops.Normalize(0, {white}, on={name!r}) before it, which divides by white; if 1 is white, "
            f"gl.ops.Python(lambda x: x.clip(0, 1), on={name!r})",
        )

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the images as they are."""
        return x

    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the images as they are."""
        return x

    def lower(self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str) -> Any:
        """Nothing."""
        return x


STREAM = streams([CheckLevels(Op())])[0]  # it draws nothing


def with_checks(graph: Graph) -> Graph:
    """Return a graph with a ``CheckLevels`` before each op that needs one; the other ops and their draws stay."""
    entries: list[tuple[Op, tuple[str, ...], Spec, int, bool]] = []
    places: dict[int | None, int | None] = {None: None}  # of the ops, by those in the graph
    names: set[str] = set()  # the fields of which nothing is to be asked
    columns = zip(graph.ops, graph.targets, graph.specs, graph.streams, graph.choices, strict=True)
    for place, (op, on, after, stream, is_choice) in enumerate(columns):
        before = graph.before(place)
        fields = [before[name] for name in on if name not in names] if _takes_parts(op) else []
        floats = tuple(field.name for field in fields if field.dtype.kind == "f" and not field.is_marked)
        if floats:
            name = floats[0] if len(floats) == 1 else floats
            entries.append((CheckLevels(op, on=name), floats, before, STREAM, True))
        names = _names_behind(op, on, before, after, names.union(floats))
        places[place] = len(entries)
        entries.append((op, on, after, stream, is_choice))
    if len(entries) == len(graph.ops):
        return graph
    crops = dict(zip(places.values(), (None, *(places[crop] for crop in graph.crops)), strict=True))
    ops, targets, specs, all_streams, choices = zip(*entries, strict=True)
    return replace(
        graph,
        ops=ops,
        targets=targets,
        specs=specs,
        streams=all_streams,
        crops=tuple(crops.get(place) for place in range(len(entries))),
        choices=choices,
    )


def _names_behind(op: Op, on: Sequence[str], before: Spec, after: Spec, names: set[str]) -> set[str]:
    """Return the fields behind an op of which nothing is to be asked.

    Args:
        op: the op.
        on: the fields that it acts on.
        before: the fields before it.
        after: the fields behind it.
        names: the result for the fields before it.
    """
    copies = {field.name for field in after if field.name not in before and op.original(field.name, on) in names}
    result = names | copies
    for name in on:
        has_white = type(op).__name__ == "Normalize" and not op.centers
        is_known = name in names
        if op.calls_python or op.needs_dali or after[name].dtype.kind != "f":
            is_known = False
        elif has_white:
            is_known = _white(op, before[name]) <= LARGEST
        elif op.centers or (type(op).__name__ == "Cast" and before[name].dtype.kind in "uib"):
            is_known = True  # a loader tells of it, see `advice`
        result = result | {name} if is_known else result - {name}
    return result


def _takes_parts(op: Op) -> bool:
    """Return True if an op takes 1 for white of the values that it gets, or one of its ops does."""
    ways: Sequence[Sequence[Op]] = getattr(op, "ways", ())
    if not ways:
        return op.takes_parts
    for way in ways:
        first = next((part for part in way if _takes_parts(part) or _scales(part)), None)
        if first is not None and not _scales(first):
            return True
    return False


def _scales(op: Op) -> bool:
    return op.centers or op.calls_python or type(op).__name__ in ("Normalize", "Cast")


def _white(op: Op, field: Field) -> float:
    """Return what ``Normalize`` makes of the largest whole number of a field; infinity if it is not known."""
    if field.dtype.kind not in "ui" or field.dtype.itemsize > 2:
        return np.inf
    mean, std = (np.asarray(getattr(op, name), np.float64) for name in ("mean", "std"))
    return float(((np.iinfo(field.dtype).max - mean) / std).max())

"""Levels: images of floating-point numbers not from 0 to 1, before an op that takes 1 for white.

Such an op would make white of nearly all of an image that goes to 255, and black of all below 0.
 Where the numbers come from the source or from a function, only they tell their levels:
``with_checks`` puts a ``CheckLevels`` before the first such op: executors ask it as they ask any
other (`executors.checks`), on a GPU without a wait. Where ops of gpuload made the numbers, they are
known to be from 0 to 1, or a loader tells of it (`graph.advice`), and nothing is asked.

Bounds  0 and 1, with a rounding's tolerance. Filters with negative weights overshoot both at edges:
        behind those of gpuload an image may go as far beyond as they can take it, and the op cuts
        that off, as torchvision's does.
nan     A level that is not a number is refused, as inf is: AutoContrast would make all of the image
        nan.
Cost    one look at each value of such images: 13 us of one of 224 x 224 x 3, for which
        ``Brightness`` takes 80 us; 50 us if one of them is below 0. Of uint8 nothing is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from gpuload import device
from gpuload.errors import RowError
from gpuload.graph.graph import Graph
from gpuload.kernels import pixels
from gpuload.kernels.pixels import Pixels
from gpuload.ops.base import VARYING, Draw, Op, calls_python, has_dali_form, original, streams
from gpuload.ops.traits import Arithmetic, Execution, Traits, ValueCheck, once
from gpuload.spec import Field, Spec

TOLERANCE = 1e-3  # more than a step of float16 beside 1
# What one filter adds at most beyond 0 and 1: Lanczos, 6 values wide, in both directions.
OVERSHOOT = 0.7
OVERSHOOTING = ("cubic", "lanczos")
# `words` has the bounds as float64.
BEYOND = """
__device__ inline bool is_wrong(In value, const int* words) {
    const double* bounds = (const double*)words;
    return !((double)value >= bounds[0] && (double)value <= bounds[1]);
}
"""
UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}  # by the bytes of a number


@dataclass(frozen=True)
class CheckLevels(Op):
    """Refuse images of floating-point numbers beyond black or white, and leave others as they are.

    Args:
        op: the op behind it, which takes 0 for black and 1 for white.
        tolerance: how far levels may lie below 0 and above 1.
    """

    op: Op
    tolerance: float = TOLERANCE

    @property
    @once
    def traits(self) -> Traits:
        """It checks values; DALI runs it where it runs the op behind it."""
        return Traits(
            arithmetic=Arithmetic(elementwise=True, any_size=True),
            execution=Execution(has_dali_form=has_dali_form(self.op)),
            check=ValueCheck(self._find_beyond, self._error),
        )

    def __str__(self) -> str:
        return f"levels before {type(self.op).__name__}"

    def field_after(self, field: Field) -> Field:
        """The field stays."""
        return field

    @device.waits
    def _find_beyond(self, xp: ModuleType, x: Any) -> Any:
        """Return the rows with a level beyond black or white, or one that is not a number."""
        if not len(x):
            return xp.empty(0, bool)
        if (images := pixels.as_images(xp, x)) is not None:
            bounds = np.array([-self.tolerance, 1 + self.tolerance], images[0].dtype).astype(
                np.float64
            )
            return Pixels(xp, images, np.broadcast_to(bounds, (len(x), 2))).mark(BEYOND)
        device.settle()
        if isinstance(x, VARYING):
            return xp.concatenate([self._are_beyond(xp, x[row][None]) for row in range(len(x))])
        return self._are_beyond(xp, x)

    def _are_beyond(self, xp: ModuleType, x: Any) -> Any:
        """Return the same of images of one size."""
        least, greatest = -self.tolerance, 1 + self.tolerance
        axes = tuple(range(1, x.ndim))
        if not x.size or (xp is np and _are_between_0_and(greatest, x)):
            return xp.zeros(len(x), bool)
        if xp is np:  # its extremes are nan where a number is
            return ~((x.min(axis=axes) >= least) & (x.max(axis=axes) <= greatest))
        return ~((x >= least) & (x <= greatest)).all(axis=axes)

    def _error(self, value: Any) -> RowError:
        """Return the error that says how far the levels go."""
        if isinstance(value, np.ndarray):
            levels = value
        else:
            levels = value.get()
        if isinstance(self.on, str):
            name = self.on
        else:
            name = "image"
        numbers = levels[~np.isnan(levels)]
        has_nan = numbers.size < levels.size
        least = float(numbers.min(initial=np.inf))
        greatest = float(numbers.max(initial=-np.inf))
        if numbers.size:
            extent = f"levels from {least:g} to {greatest:g}"
        else:
            extent = "no levels"
        if has_nan:
            extent += ", and nan"
        return RowError(
            0,
            f"{self.op}: the image of floating-point numbers, field {name!r}, has {extent}",
            cause="the op takes 0 for black and 1 for white, and would cut off what lies beyond",
            remedy=self._remedy(name, least, greatest, has_nan),
        )

    def _remedy(self, name: str, least: float, greatest: float, has_nan: bool) -> str:
        """Return the lines to write for an image with such levels."""
        clip = f"gl.ops.Python(lambda x: x.clip(0, 1), on={name!r})"
        if has_nan or not np.isfinite([least, greatest]).all():
            numbers = f"gl.ops.Python(lambda x: numpy.nan_to_num(x).clip(0, 1), on={name!r})"
            return f"mend the record, or put {numbers} before it, which makes black of nan"
        if least < -self.tolerance:
            remedy = f"put {type(self.op).__name__} before what normalises the image"
            if getattr(self.op, "clip", False):
                remedy += "; or write clip=False"
            if least >= -1 - TOLERANCE and greatest <= 1 + TOLERANCE:
                scaled = f"gl.ops.Python(lambda x: (x + 1) / 2, on={name!r})"
                remedy += f"; if -1 is black, put {scaled} before it"
            return f"{remedy}; if 0 is black and 1 is white, {clip}"
        white = next((number for number in (2, 255, 65535) if greatest <= number), 65535)
        divided = f"gl.ops.Normalize(0, {white}, on={name!r})"
        return f"put {divided} before it, which divides by white; if 1 is white, {clip}"

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the images as they are."""
        return x

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the images as they are."""
        return x

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """Nothing."""
        return x


STREAM = streams([CheckLevels(Op())])[0]  # it draws nothing


def with_checks(graph: Graph) -> Graph:
    """Return a graph with a ``CheckLevels`` before each op that needs one; the other ops and their
    draws stay."""
    entries: list[tuple[Op, tuple[str, ...], Spec, int, bool]] = []
    places: dict[int | None, int | None] = {None: None}  # of the ops, by those in the graph
    names: set[str] = set()  # the fields of which nothing is to be asked
    overshoots: dict[str, float] = {}  # of fields, how far ops take them beyond 0 and 1
    columns = zip(graph.ops, graph.targets, graph.specs, graph.streams, graph.choices, strict=True)
    for place, (op, on, after, stream, is_choice) in enumerate(columns):
        before = graph.before(place)
        if _takes_parts(op):
            fields = [before[name] for name in on if name not in names]
        else:
            fields = []
        floats = tuple(
            field.name for field in fields if field.dtype.kind == "f" and not field.is_marked
        )
        for name in floats:  # one for each, so that the error names the field
            check = CheckLevels(op, TOLERANCE + overshoots.get(name, 0.0), on=name)
            entries.append((check, (name,), before, STREAM, True))
        names = _names_behind(op, on, before, after, names.union(floats))
        overshoots = _overshoots_behind(op, on, after, overshoots)
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


def _names_behind(
    op: Op, on: Sequence[str], before: Spec, after: Spec, names: set[str]
) -> set[str]:
    """Return the fields behind an op of which nothing is to be asked.

    Args:
        op: the op.
        on: the fields that it acts on.
        before: the fields before it.
        after: the fields behind it.
        names: the result for the fields before it.
    """
    copies = {
        field.name
        for field in after
        if field.name not in before and original(op, field.name, on) in names
    }
    result = names | copies
    for name in on:
        has_white = type(op).__name__ == "Normalize" and not op.traits.arithmetic.centers
        is_known = name in names
        if calls_python(op) or op.traits.execution.needs_dali or after[name].dtype.kind != "f":
            is_known = False
        elif has_white:
            is_known = _makes_parts(op, before[name])
        elif op.traits.arithmetic.centers or (
            type(op).__name__ == "Cast" and before[name].dtype.kind in "uib"
        ):
            is_known = True  # a loader tells of it, see `advice`
        if is_known:
            result = result | {name}
        else:
            result = result - {name}
    return result


def _overshoots_behind(
    op: Op,
    on: Sequence[str],
    after: Spec,
    overshoots: dict[str, float],
) -> dict[str, float]:
    """Return how far fields may lie beyond 0 and 1 behind an op, by filters alone.

    Args:
        op: the op.
        on: the fields that it acts on.
        after: the fields behind it.
        overshoots: the result for the fields before it.
    """
    origins = {field.name: original(op, field.name, on) for field in after}
    result = {name: overshoots[first] for name, first in origins.items() if first in overshoots}
    for name in on:
        if calls_python(op) or op.traits.execution.needs_dali:
            result.pop(name, None)
        elif _overshoots(op):
            result[name] = result.get(name, 0.0) + OVERSHOOT
    return result


def _overshoots(op: Op) -> bool:
    """Return True if an op resizes by a filter with negative weights, or one of its ops does."""
    inner: Sequence[Op] = getattr(op, "inner", ())
    interpolation = getattr(op, "interpolation", None)
    filters = interpolation.values() if isinstance(interpolation, dict) else (interpolation,)
    return any(name in OVERSHOOTING for name in filters) or any(map(_overshoots, inner))


def _are_between_0_and(greatest: float, x: Any) -> bool:
    """Return True if all numbers are from 0 to a bound; False also if that takes longer to know.

    Of numbers that are not negative the bits, as a whole number, grow with the number. Those of
    negative numbers and of nan are greater. So one maximum answers, in a third of the time that the
    least and the greatest level take.
    """
    if x.dtype.itemsize not in UNSIGNED:
        return False
    unsigned: Any = UNSIGNED[x.dtype.itemsize]
    return bool(x.view(unsigned).max() <= np.array(greatest, x.dtype).view(unsigned))


def _takes_parts(op: Op) -> bool:
    """Return True if an op takes 1 for white of the values that it gets, or one of its ops does."""
    if not op.traits.ways:
        return op.traits.arithmetic.takes_parts
    for way in op.traits.ways:
        first = next((part for part in way if _takes_parts(part) or _scales(part)), None)
        if first is not None and not _scales(first):
            return True
    return False


def _scales(op: Op) -> bool:
    return (
        op.traits.arithmetic.centers
        or calls_python(op)
        or type(op).__name__ in ("Normalize", "Cast")
    )


def _makes_parts(op: Op, field: Field) -> bool:
    """Return True if ``Normalize`` is known to make 0 to 1 of the whole numbers of a field."""
    if field.dtype.kind not in "ui" or field.dtype.itemsize > 2:
        return False
    mean, std = (np.asarray(getattr(op, name), np.float64) for name in ("mean", "std"))
    limits = np.iinfo(field.dtype)
    least, greatest = (limits.min - mean) / std, (limits.max - mean) / std
    return bool(least.min() >= -TOLERANCE and greatest.max() <= 1 + TOLERANCE)

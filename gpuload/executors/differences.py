"""Differences: results of an executor, beside those of the ops' array forms on the CPU.

    Oracle(graph, names)        makes records again, op by op and record by record
    bounds_of(graph, ...)       how far the fields of a batch may be from that
    difference(x, y, bound)     where they are further apart, in words

The oracle has none of the compiled stages that the array executor has on a CPU: no fused pass, no
tiles, no threads of the core, no regions of images. So it can audit that executor, too. An op with
an array form is one call of the core, as a resize, is that call there as well; tests hold these
calls to NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.executors.array.values import as_values, run_joint
from gpuload.executors.checks import Checks
from gpuload.graph.graph import Graph
from gpuload.kernels import walk
from gpuload.ops.base import Draw, Op, calls_python, original
from gpuload.ops.bounds import (
    EXACT,
    MILD,
    RECORD_MEAN,
    STRETCH,
    STRETCHING,
    Bound,
    Growth,
    join_bounds,
    loosen_bound,
    scale_bound,
    stated_bound,
)
from gpuload.spec import MOST_CHANNELS, Field

TEXTS = "OSU"  # kinds of dtypes that hold texts
TINY = {
    "f2": 6e-8,
    "f4": 1.2e-38,
    "f8": 0.0,
}  # of a float: so far another device may differ
WIDE = 257  # of uint16: one level of 255
HALF_STEP = 2.0**-10  # of a float16, as a part of it
MOST_CHARACTERS = 60  # of a value in a message


class Oracle:
    """Makes the fields of records again by the array forms of the ops on NumPy.

    Args:
        graph: the ops, as the loader has them.
        names: the fields of a batch.

    Attributes:
        names: those of them that can be made again.
        refusals: the others, each with the op of DALI that has no array form.
        graph: the ops of ``names``; whole images are decoded.
    """

    def __init__(self, graph: Graph, names: Sequence[str]) -> None:
        self.refusals: dict[str, Op] = {}
        for name in names:
            op = next((op for op in graph.only([name]).ops if op.traits.execution.needs_dali), None)
            if op is not None:
                self.refusals[name] = op
        self.names = tuple(name for name in names if name not in self.refusals)
        self.graph = graph.only(self.names).without_regions

    def run(self, fields: dict[str, Any], draws: Sequence[Draw]) -> dict[str, Any]:
        """Return the fields of ``names`` after all ops.

        Args:
            fields: of some records, as a source reads them, with those that no op touches.
            draws: of every op, for these records.

        Raises:
            RowError: an op cannot take a record.
        """
        graph, now = self.graph, dict(fields)
        for place, (op, draw) in enumerate(zip(graph.ops, draws, strict=True)):
            if op.traits.joint:
                on = {name: self._column(place, name, now[name]) for name in graph.targets[place]}
                now |= run_joint(graph, place, np, on, draw)
                continue
            for name in graph.targets[place]:
                op_on_field = graph.op_on(place, name)
                if op.traits.check:
                    checks = Checks(np)
                    checks.ask(op_on_field, self._column(place, name, now[name]))
                    checks.answer()
                now[name] = [
                    _make(op_on_field, value, draw, row) for row, value in enumerate(now[name])
                ]
        return {name: now[name] for name in self.names}

    def _column(self, place: int, name: str, values: Any) -> Any:
        """Return the values of a field before an op as a batch has them."""
        return as_values(np, self.graph.before(place)[name], values)


def _make(op: Op, value: Any, draw: Draw, row: int) -> Any:
    """Return one record after an op."""
    return np.asarray(
        op.array(np, np.asarray(value), {name: values[row] for name, values in draw.items()})
    )


def bounds_of(
    graph: Graph, names: Collection[str], party_of: Callable[[int], str]
) -> dict[str, Bound]:
    """Return how far the fields of a batch may be from the array forms of the ops.

    A difference that an op may make is carried through the ops behind it. Those that move values,
    or multiply them (crop, flip, Normalize: ops that fold into a walk), keep it, or multiply it,
    too. A resize makes means of values. Others may make more of a difference.

    Args:
        graph: the ops.
        names: the fields.
        party_of: returns the executor and device of the op at a place, ``"dali on gpu"``.
    """
    now = dict.fromkeys(graph.spec_in.names, EXACT)
    for place, op in enumerate(graph.ops):
        before, on = dict(now), graph.targets[place]
        copies = any(original(op, name, on) != name for name in graph.outputs[place])
        for name in graph.outputs[place]:
            if copies:
                now[name] = before.get(original(op, name, on), EXACT)
            elif op.traits.joint:
                now[name] = _worst([loosen_bound(before[target], _growth(op)) for target in on])
            else:
                now[name] = _carried(graph, place, name, before[name])
            bound = stated_bound(op.traits.bounds, party_of(place))
            if op.traits.codec and graph.specs[place][name].dtype == np.uint16:
                bound = scale_bound(bound, WIDE)
            now[name] = join_bounds(now[name], _of_record(bound, graph.specs[place][name]))
    return {name: now[name] for name in names}


def _worst(bounds: Sequence[Bound]) -> Bound:
    result = EXACT
    for bound in bounds:
        result = join_bounds(result, bound)
    return result


def _of_record(bound: Bound, field: Field) -> Bound:
    """Return a bound for the values of a single record; levels are no unit of floating-point
    numbers.

    How many values may differ is true of many images: of one that is smooth, half of all sums may
    be halves. Whole numbers differ by one or not at all: a bound of rounding of floating-point
    numbers is none of theirs, however ops in a choice loosen it.
    """
    if bound == EXACT or (field.dtype.kind in "iu" and bound.largest < 1):
        return EXACT
    if field.dtype.kind == "f" and bound.relative:
        return bound._replace(largest=0.0, share=1, shift=inf)
    return bound._replace(share=1, mean=RECORD_MEAN * bound.mean)


def _carried(graph: Graph, place: int, name: str, bound: Bound) -> Bound:
    """Return the bound of a field behind an op that makes no difference of its own."""
    if bound == EXACT:
        return bound
    op, draw, begin = (
        graph.op_on(place, name),
        graph.empty_draws[place],
        walk.begin(graph.before(place)[name], 0),
    )
    forms = op.forms(graph.before(place)[name])
    # Means of values, which are rounded.
    if forms.resample(draw, np.empty((0, 2), np.int32)) is not None:
        if graph.specs[place][name].dtype.kind in "iu":
            rounding = 1
        else:
            rounding = 0
        return bound._replace(largest=bound.largest + rounding, share=1, gains=())
    if begin is None:
        path = None
    else:
        path = forms.fold(begin, draw)
    if path is None:
        return loosen_bound(bound, _growth(op))
    if path.scale is None:
        return bound
    return scale_bound(bound, path.scale)


def _growth(op: Op) -> Growth:
    """Return how an op may enlarge differences; of an op of the user's nothing is known."""
    inner = [part for way in op.traits.ways for part in way]
    if (
        calls_python(op)
        or type(op).__name__ in STRETCHING
        or any(_growth(part) is STRETCH for part in inner)
    ):
        return STRETCH
    return MILD


def difference(actual: Any, expected: Any, bound: Bound, axes: str = "") -> str:
    """Return where a value differs by more than a bound, in words; "" if it does not.

    Args:
        actual: of a record, as the executor made it, on the host.
        expected: the same, as the array forms make it.
        bound: the largest difference.
        axes: the letter of each axis, ``"HWC"``, ``"NHWC"`` of several records: means are those of
            a channel of a record. "" where that is not known: those of all values.
    """
    x, y = np.asarray(actual), np.asarray(expected)
    if (
        x.dtype.kind in TEXTS and y.dtype.kind in TEXTS and x.shape == y.shape
    ):  # of lengths of their own
        x, y = x.astype(object), y.astype(object)
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return f"it is {x.dtype} {x.shape}, and should be {y.dtype} {y.shape}"
    if not x.size:
        return ""
    if x.dtype.kind not in "biufc":
        wrong = _differs(x, y)
        if wrong.any():
            return _sentence(x, y, wrong, "")
        return ""
    distance = _distance(x, y)
    if len(axes) != x.ndim:
        axes = ""
    gains = _gains(bound, axes, x.shape)
    limit, about = _limit(y, bound, gains), ""
    beyond, differing = distance > limit, distance > 0
    if float(beyond.mean()) > bound.beyond:
        wrong = beyond
    elif float(differing.mean()) > bound.share and bound != EXACT:
        wrong, about = differing, f"; at most {bound.share:.3g} of the values may differ"
    else:
        about = _mean_sentence(distance, y < x, bound, axes, gains, limit)
        wrong = differing
        if not about:
            return ""
    return _sentence(x, y, wrong, f"; the largest difference is {distance.max():.6g}{about}")


def _mean_sentence(
    distance: NDArray[np.float64],
    is_larger: NDArray[np.bool_],
    bound: Bound,
    axes: str,
    gains: Any,
    limit: Any,
) -> str:
    """Return in words how far a channel of a record is away in the mean; "" if no further than it
    may."""
    if bound.mean == bound.shift == inf:
        return ""
    inner = tuple(place for place, axis in enumerate(axes) if axis not in "NC") or None
    rounding = np.max(limit - bound.largest * gains)  # of floating-point numbers
    parts = [
        ("difference", distance, bound.mean),
        (
            "difference of a channel, with its sign,",
            np.where(is_larger, distance, -distance),
            bound.shift,
        ),
    ]
    for subject, values, limit_of_mean in parts:
        with np.errstate(
            invalid="ignore"
        ):  # infinities of both signs, among the few values that may be anything
            means = np.abs(np.mean(values / gains, axis=inner))
        if limit_of_mean < inf and float(means.max()) > limit_of_mean + rounding:
            if np.ndim(gains) == 0:
                unit = ""
            else:
                unit = ", in units of the channel that may differ most"
            return f"; the mean {subject} is {float(means.max()):.3g}, and may be {limit_of_mean:.3g}{unit}"
    return ""


def _gains(bound: Bound, axes: str, shape: tuple[int, ...]) -> Any:
    """Return the largest factor of the differences of each value: 1, or a number for each
    channel."""
    place = axes.find("C")
    if place < 0 or len(bound.gains) != shape[place] or min(bound.gains) <= 0:
        return 1.0
    lengths = [1] * len(shape)
    lengths[place] = -1
    return np.reshape(bound.gains, lengths)


def _distance(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return how far numbers are apart; NaN is no distance from NaN, and a long one from a
    number."""
    with np.errstate(all="ignore"):
        if x.dtype.kind == "c":
            distance = np.abs(x - y).astype(np.float64)
        elif x.dtype.itemsize > 4 and x.dtype.kind in "iu":  # float64 does not hold them
            distance = np.where(x > y, x - y, y - x).astype(np.float64)
        else:
            distance = np.abs(x.astype(np.float64) - y.astype(np.float64))
        is_equal = (x == y) | ((x != x) & (y != y))
    return np.where(is_equal, 0.0, np.where(np.isnan(distance), np.inf, distance))


def axes_of(field: Field) -> str:
    """Return the letters of the axes of a field's values; "" where they are not known and nothing
    shows it."""
    if field.axes or field.shape is None or len(field.shape) != 3:
        return field.axes
    if field.is_channels_first:
        return "CHW"
    if field.shape[2] is not None and field.shape[2] <= MOST_CHANNELS:
        return "HWC"
    return ""


def _limit(y: NDArray[Any], bound: Bound, gains: Any) -> Any:
    """Return the largest difference that a bound allows for such values: a number, or one for each
    channel."""
    if y.dtype.kind not in "fc":
        return bound.largest * gains
    if y.dtype.kind == "f":
        tiny = TINY.get(f"f{y.dtype.itemsize}", 0.0)
    else:
        tiny = 0.0
    relative = bound.relative
    if y.dtype == np.float16 and bound != EXACT:
        relative += HALF_STEP
    finite = y[np.isfinite(y)]
    if y.dtype.kind == "f":
        scale = max(1.0, float(np.abs(finite.astype(np.float64)).max(initial=0)))
    else:
        scale = 1.0
    return np.maximum(bound.largest * gains + relative * scale, tiny)


def _differs(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values, of a dtype that holds no plain numbers, differ."""
    if x.dtype.hasobject:
        pairs = zip(x.ravel(), y.ravel(), strict=True)
        return np.array([not (a is b or a == b) for a, b in pairs], np.bool_).reshape(x.shape)
    sides = [
        np.frombuffer(np.ascontiguousarray(z).tobytes(), np.uint8).reshape(z.size, -1)
        for z in (x, y)
    ]
    wrong: NDArray[np.bool_] = (sides[0] != sides[1]).any(axis=1).reshape(x.shape)
    return wrong


def _sentence(x: NDArray[Any], y: NDArray[Any], wrong: NDArray[np.bool_], about: str) -> str:
    """Return how many values are wrong, and the first of them with its expected value."""
    first = tuple(int(axis) for axis in np.unravel_index(int(wrong.argmax()), wrong.shape))
    place = f"the one at {list(first)}" if first else "it"
    values = [z[first] for z in (x, y)]
    if x.dtype.kind in "biufc":
        values = [value.item() for value in values]
    actual, expected = (repr(value)[:MOST_CHARACTERS] for value in values)
    counts = f"{int(np.count_nonzero(wrong)):,} of {wrong.size:,} values differ"
    return f"{counts}: {place} is {actual}, and should be {expected}{about}"

"""Chain: the ops of one field, cut into stages that each run on all rows that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from gpuload import imagehead
from gpuload.executors import codec, fused
from gpuload.executors.base import Graph
from gpuload.ops import images
from gpuload.ops.base import Draw, Op, RowError
from gpuload.ops.decode import Decode
from gpuload.ops.resize import RandomResizedCrop, Resize
from gpuload.spec import Field

Values = Any  # an array [N, ...], or a list of arrays


@dataclass(frozen=True)
class Chain:
    """The stages of one field, in order; runs them one after the other."""

    stages: tuple[Stage, ...]
    field: Field

    def plan(self, draws: Sequence[Draw], count: int) -> list[Any]:
        """Return what the stages make of the draws of ``count`` rows; ``run_rows`` may then do them bit by bit."""
        return [stage.plan([draws[place] for place in stage.places], count) for stage in self.stages]

    def run(self, xp: ModuleType, x: Values, draws: Sequence[Draw], out: Any) -> Values:
        """Return the field after all ops, in ``out`` if that is given."""
        return self.run_rows(xp, x, self.plan(draws, len(x)), slice(0, len(x)), out)

    def run_rows(self, xp: ModuleType, x: Values, plan: Sequence[Any], rows: slice, out: Any) -> Values:
        """Return the field after all ops for some of the rows that were planned: ``x`` and ``out`` have just these."""
        to = out if out is not None and out.flags.c_contiguous else None
        for stage, planned in zip(self.stages, plan, strict=True):
            last = stage is self.stages[-1]
            x = stage.run(xp, x, planned, rows, to if last else None)
        if isinstance(x, list) and x and self.field.uniform:
            x = xp.stack(x)
        if out is not None and x is not out and len(out):
            np.copyto(out, x)
        return x if out is None else out

    def __str__(self) -> str:
        return ", ".join(map(str, self.stages))


@dataclass(frozen=True)
class Stage:
    """Some ops that follow one another on a field.

    Attributes:
        ops: the ops.
        places: their places in the graph, for their draws.
        fields: the field before the first op and after each.
    """

    ops: tuple[Op, ...]
    places: tuple[int, ...]
    fields: tuple[Field, ...]

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """Return what is made of the draws of ``count`` rows, once for all of them."""
        return draws

    def run(self, xp: ModuleType, x: Values, plan: Any, rows: slice, out: Any) -> Values:
        """Return ``x``, the rows ``rows`` of those that were planned, after the ops; in ``out`` or not."""
        raise NotImplementedError

    def new(self, count: int) -> Any:
        """Return memory for the results of some rows, or None if their shapes vary."""
        after = self.fields[-1]
        return np.empty((count, *after.fixed_shape), after.dtype) if after.uniform else None

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()} of {' '.join(type(op).__name__ for op in self.ops)}"


class Arrays(Stage):
    """One op after the other in its array form."""

    def run(self, xp: ModuleType, x: Values, plan: Any, rows: slice, out: Any) -> Values:
        """See ``Stage``."""
        for op, draw in zip(self.ops, _rows(plan, rows), strict=True):
            wrong = op.check(xp, x)
            if wrong is not None:
                raise RowError(*wrong)
            if isinstance(op, Decode):
                x = [_decode(op, row, data, keep=True) for row, data in enumerate(x)]
            else:
                x = op.array_batch(xp, x, draw)
        return x


class Walk(Stage):
    """All ops in one pass over the batch."""

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """See ``Stage``."""
        return fused.fold_all(self.ops, draws, fused.geometry(self.fields[0]), count) if count else None

    def run(self, xp: ModuleType, x: Values, plan: Any, rows: slice, out: Any) -> Values:
        """See ``Stage``."""
        out = self.new(len(x)) if out is None else out
        if len(x):
            fused.walk_into(plan, x, out, rows)
        return out


class Images(Stage):
    """Decode, resize and walk over one image after the other."""

    def run(self, xp: ModuleType, x: Values, plan: Any, rows: slice, out: Any) -> Values:
        """See ``Stage``."""
        draws, out = _rows(plan, rows), self.new(len(x)) if out is None else out
        done = isinstance(self.ops[0], Decode) + any(map(_is_resize, self.ops[:2]))
        walk = None  # of all rows at once, if their sizes are the same
        if done < len(self.ops) and self.fields[done].uniform:
            walk = fused.fold_all(self.ops[done:], draws[done:], fused.geometry(self.fields[done]), len(x))
        made = []
        for row in range(len(x)):
            to: Any = None if out is None else out[row : row + 1]
            one = self._pixels(row, x[row], draws, to if done == len(self.ops) else None)
            if walk is not None:
                fused.walk_into(walk, one[None], to, slice(row, row + 1))
            elif done < len(self.ops):
                one = self._walked(one, done, [_row(draw, row) for draw in draws], to)
            made.append(one)
        return made if out is None else out

    def _pixels(self, row: int, x: Any, draws: Sequence[Draw], out: Any) -> Any:
        """Return an image decoded and resized: in ``out``, in new memory, or in this thread's if it is walked over."""
        op, place = self.ops[0], 0
        if isinstance(op, Decode):
            x, place = _decode(op, row, x, keep=len(self.ops) == 1), 1
        resize = self.ops[place] if place < len(self.ops) else None
        if isinstance(resize, (Resize, RandomResizedCrop)):
            draw = {name: values[row] for name, values in draws[place].items()}
            return _resized(resize, np.ascontiguousarray(x), draw, out, keep=place + 1 == len(self.ops))
        if out is not None:
            np.copyto(out[0], x)
        return x

    def _walked(self, x: Any, done: int, draws: list[Draw], out: Any) -> Any:
        """Return one image of a size of its own, walked over."""
        height, width, channels = x.shape
        axes = "CHW" if images.channels_first(self.fields[done]) else "HWC"
        if axes == "CHW":
            channels, height, width = x.shape
        image = fused.Image(height, width, channels, axes, x.dtype)
        walk = fused.fold_all(self.ops[done:], draws[done:], image, 1)
        if out is None:
            sizes = {"H": walk.window[0], "W": walk.window[1], "C": walk.channels}
            out = np.empty([1, *(sizes[axis] for axis in walk.out_axes)], walk.dtype)
        fused.walk_into(walk, x[None], out)
        return out[0]


def make_chain(graph: Graph, name: str, compiled: bool) -> Chain:
    """Return the stages of a field of a graph."""
    places = [place for place, on in enumerate(graph.targets) if name in on]
    fields = [graph.spec_in[name], *(graph.specs[place][name] for place in places)]
    ops = [graph.ops[place] for place in places]
    stages: list[Stage] = []
    begin = 0
    while begin < len(ops):
        kind, count = _next_stage(ops[begin:], fields[begin:]) if compiled else (Arrays, 1)
        end = begin + count
        stages.append(kind(tuple(ops[begin:end]), tuple(places[begin:end]), tuple(fields[begin : end + 1])))
        begin = end
    return Chain(tuple(stages), fields[-1])


def _next_stage(ops: list[Op], fields: list[Field]) -> tuple[type[Stage], int]:
    """Return the kind of the stage that begins with the first op, and how many ops it takes."""
    done = int(isinstance(ops[0], Decode))
    done += done < len(ops) and _is_resize(ops[done])
    folded = fused.num_folding(ops[done:], fields[done])
    if done + folded == 0:
        return Arrays, 1
    return (Images if done or not fields[0].uniform else Walk), done + folded


def _is_resize(op: Op) -> bool:
    return isinstance(op, (Resize, RandomResizedCrop)) and op.interpolation != "nearest"


def _rows(draws: Sequence[Draw], rows: slice) -> list[Draw]:
    return [{name: values[rows] for name, values in draw.items()} for draw in draws]


def _row(draw: Draw, row: int) -> Draw:
    return {name: values[row : row + 1] for name, values in draw.items()}


def _decode(op: Decode, row: int, data: Any, *, keep: bool) -> Any:
    """Return the pixels of an image; in memory of this thread unless they are kept."""
    try:
        head = imagehead.read(data)
        num_bytes = head.height * head.width * 4
        memory = None if keep else fused.scratch("decode", (num_bytes,), np.dtype(np.uint8))
        return codec.decode(data, head, op.mode, memory)
    except (imagehead.HeadError, codec.ImageError) as error:
        raise RowError(row, str(error)) from None


def _resized(op: Resize | RandomResizedCrop, x: Any, draw: Draw, out: Any, *, keep: bool) -> Any:
    """Return an image, resized: into ``out``, or else into new memory if it is kept, or memory of this thread."""
    shape = (*(op.new_size(draw) if isinstance(op, Resize) else op.window), x.shape[2])
    memory = np.empty if keep else partial(fused.scratch, "resize")
    made = memory(shape, x.dtype) if out is None else out[0]
    fused.resize_into(op, x, draw, made)
    return made

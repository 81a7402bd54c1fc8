"""Stages: the ops of one field, cut into the passes that are made over a tile of rows.

    image     files, or images, through ops that the core does in one visit of each image, some of
              them in one call
    walk      a run of ops that crop, mirror, reorder and normalise, in one pass of the core, or one
              kernel on a GPU
    edit      a run of ops that change uint8 images whose shape stays, an image after the other, in
              one call of the core
    kernel    one op in the core, for single records, as resizing
    array     one op in its array form, equal bit for bit to the others: all of them where there is
              no core

The forms that an op has decide (`ops.forms`), and whether the core decodes as it does
(``FileCodec.makes_bytes``); no code here asks for its class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import core, stats
from gpuload import device as devices
from gpuload.core.face import Maker, Visit
from gpuload.errors import RowError, SpecError
from gpuload.executors.array.scratch import scratch
from gpuload.executors.base import Values
from gpuload.executors.checks import Checks
from gpuload.graph.graph import Graph
from gpuload.images import native
from gpuload.images.head import read_heads, without_orientation
from gpuload.kernels import resampling, walk
from gpuload.kernels.edits import Edits
from gpuload.kernels.walk import Memory, Walk, Walker
from gpuload.ops.base import HEADS, VARYING, Draw, Op, RowForm, Sizes, calls_python
from gpuload.ops.forms import Forms
from gpuload.ragged import Ragged, offsets_of
from gpuload.spec import Field
from gpuload.stats import Watch

Array = NDArray[Any]
RGB = 3  # channels
NO_REGIONS = np.empty((0, 4), np.int32)  # no regions
NO_PLACES, NEAREST = np.empty((0, 2), np.int32), np.empty(0, np.float32)  # no sizes; no filter


@dataclass(frozen=True)
class Stage(ABC):
    """Some ops that follow one another on a field.

    Attributes:
        ops: the ops.
        places: their places in the graph, for their draws.
        before, after: the field before the first op and after the last.
        forms: the compiled forms of the ops.
    """

    word: ClassVar[str]
    writes: ClassVar[bool] = True
    """True if the result is written to memory that is given; else it comes in memory of its own, or
    as a view."""

    takes_list: ClassVar[bool] = False
    """True if a tile is any number of values, whatever their sizes: a ``Ragged``, a list or an
    array."""

    calls_codec: ClassVar[bool] = False
    """True if the core decodes files."""

    ops: tuple[Op, ...]
    places: tuple[int, ...]
    before: Field
    after: Field
    forms: tuple[Forms, ...]

    @cached_property
    def label(self) -> str:
        """The name of its time among the stages of `stats`."""
        if any(op.traits.codec for op in self.ops):
            return "decode_images"
        return "ops"

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """Return values that are the same for all rows of a call, made once; ``draws`` are those of
        the ops."""
        return draws

    def can_join(self, empty_draws: Sequence[Draw]) -> bool:
        """Return True if the core can do the ops as a step of its visit of an image: here a resize.

        Args:
            empty_draws: of all ops of the graph.
        """
        resamples = self.forms[0].resample(empty_draws[self.places[0]], NO_PLACES) is not None
        return resamples and _are_bytes(self.before)

    def add_step(self, visit: Visit, draws: Sequence[Draw], size: Sizes) -> Sizes:
        """Add the ops to the steps of a visit, and return the sizes of the images behind them.

        Args:
            visit: of N images.
            draws: of the ops.
            size: int32 ``[N, 2]``, height and width of each image before the ops.
        """
        resample = self.forms[0].resample(draws[0], size)
        if resample is None:
            raise RuntimeError(f"{self} resizes without records and does not with them")
        sizes, kind = np.ascontiguousarray(resample.sizes), resample.interpolation
        table, width = resampling.TABLES.get(kind, NEAREST), resampling.WIDTHS.get(kind, 1.0)
        visit.resize(np.ascontiguousarray(resample.boxes), sizes, table, width, resample.antialias)
        return resample.sizes

    @property
    def has_maker(self) -> bool:
        """True if ``maker`` can be called."""
        return False

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """Return the ops as threads of the core do them while they read, for ``count`` rows.

        Args:
            draws: of the ops, for all rows.
            count: how many there are.
        """
        raise NotImplementedError(f"{type(self).__name__} has no form that reads")

    @abstractmethod
    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """Return a tile after the ops.

        Args:
            x: an array ``[n, ...]``, or a ``Ragged`` of n values where all ops of the field are
                elementwise.
            plan: from ``plan``.
            rows: which n of the planned rows they are.
            memory: gives memory for the result.
        """

    def __str__(self) -> str:
        return f"{self.word} of {' '.join(type(op).__name__ for op in self.ops)}"


class WalkStage(Stage):
    """All ops in one pass."""

    word = "walk"

    def can_join(self, empty_draws: Sequence[Draw]) -> bool:
        """See ``Stage``."""
        return _are_bytes(self.before) and self.after.dtype in walk.DTYPES

    def add_step(self, visit: Visit, draws: Sequence[Draw], size: Sizes) -> Sizes:
        """See ``Stage``."""
        path, windows = _add_walk(
            visit,
            self.before,
            size,
            lambda begin, rows: _fold_ops(begin, self.forms, _rows(draws, rows)),
        )
        if path.mean is not None and path.scale is not None:
            visit.finish(path.mean, path.scale, path.out_axes == "CHW")
        elif path.out_axes == "CHW":
            zeros = np.zeros(path.channels, np.float32)
            visit.finish(zeros, zeros + 1, True)
        return np.broadcast_to(windows, size.shape)

    @property
    def has_maker(self) -> bool:
        """See ``Stage``; float16 is made of the core's float32 by NumPy."""
        fields = self.before, self.after
        return _have_values(*fields) and all(field.dtype in walk.DTYPES for field in fields)

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """See ``Stage``."""
        return Walker(_fold_ops(walk.begin(self.before, count), self.forms, draws)).maker()

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """See ``Stage``: the walk over all images if they have one size, else the draws."""
        if self.before.uniform:
            return Walker(_fold_ops(walk.begin(self.before, count), self.forms, draws))
        return draws

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``."""
        if self.before.uniform:
            out = memory((len(x), *self.after.fixed_shape), self.after.dtype)
            plan(x, out, rows, _walk_memory)
            return out
        # Images of sizes of their own come one at a time, and each has a walk of its own.
        path = _fold_ops(
            walk.begin(self.before, len(x), x.shape[1:]), self.forms, _rows(plan, rows)
        )
        out = memory((len(x), *path.out_shape), path.dtype)
        Walker(path)(x, out, memory=_walk_memory)
        return out


@dataclass(frozen=True)
class ImageStage(Stage):
    """Files, or images, through steps that the core does to each of them while it lies in the
    cache, in one call.

    A row that the core declines goes through the stages one by one, which makes its pixels or
    raises the error. Files that it does not decode are decoded by the op's array form, and their
    images go through the core's steps.

    Attributes:
        decoding: of files; None for images.
        steps: the stages behind it, in their order.
    """

    word = "image"
    takes_list = True

    decoding: Stage | None
    steps: tuple[Stage, ...]

    @cached_property
    def label(self) -> str:
        """See ``Stage``: the core says how much of the time is decoding."""
        return "ops"

    @property
    def calls_codec(self) -> bool:  # type: ignore[override]  # a constant of other stages
        """See ``Stage``."""
        return self.decoding is not None and _makes_bytes(self.decoding.ops[0])

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``; images of sizes of their own are a list, ``memory`` is asked for that of
        each."""
        draws, out = _rows(plan, rows), None
        if self.after.uniform:
            out = memory((len(x), *self.after.fixed_shape), self.after.dtype)
        if self.decoding is not None:
            if isinstance(x, Ragged):
                x = x
            else:
                x = Ragged.of(x, self.before.dtype)
        elif isinstance(x, np.ndarray):
            # The core reads rows without gaps; an op before may have given a view of a larger
            # image.
            x = np.ascontiguousarray(x)
        else:
            x = [np.ascontiguousarray(image) for image in x]
        images, declined = self._write_rows(x, draws, out, memory)
        # The core only says no; Python's forms decode what it cannot, or find the words of the
        # error.
        for row in declined:
            try:
                images[row] = self._single(x[row], _rows(draws, slice(row, row + 1)))
            except RowError as error:
                raise error.shift_rows(row) from None
        return images

    @property
    def has_maker(self) -> bool:
        """See ``Stage``: where nothing is decoded."""
        return (
            self.decoding is None
            and core.native is not None
            and _have_values(self.before, self.after)
        )

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """See ``Stage``."""
        if core.native is None:
            raise RuntimeError(f"rows of images: {core.problem}")
        height, width, _ = self.before.fixed_shape
        visit, size = self._visit(
            np.broadcast_to(np.array([height, width], np.int32), (count, 2)), draws
        )
        writes_floats = self.after.dtype == np.float32
        return visit.maker(writes_floats, height, width, *size[0].tolist())

    def _write_rows(
        self, x: Any, draws: Sequence[Draw], out: Array | None, memory: Memory
    ) -> tuple[Any, Sequence[int]]:
        """Return the rows of the result, and the numbers of those that were not made.

        Args:
            x: files or images.
            draws: of the ops.
            out: the rows; None where their images have sizes of their own, and are a list.
            memory: gives memory for these.
        """
        if self.calls_codec:
            codec = native.codec()
        else:
            codec = None
        if core.native is None or (self.decoding is not None and codec is None):
            return [None] * len(x) if out is None else out, range(len(x))
        source: tuple[Any, ...] = ()
        if isinstance(x, np.ndarray):
            size = np.broadcast_to(np.array(x.shape[1:3], np.int32), (len(x), 2))
        elif codec is None or self.decoding is None:
            size = np.array([image.shape[:2] for image in x], np.int32)
        else:
            source, size = _files(self.ops[0], x, self._draws_of(self.decoding, draws)[0])
            count_images(stats.watch(), size)
        visit, size_after = self._visit(size, draws)
        images: Any = out
        if out is None:
            # Memory is taken here, with the interpreter's lock: the core makes no arrays while it
            # works without it.
            images = [memory(self._shape(pixels), self.after.dtype) for pixels in size_after]
        declined = np.empty(len(x), np.int8)
        if codec is None:
            visit.make_rows(x, images, declined)
        else:
            make_rows: Callable[..., float] = codec.make_rows
            stats.watch().move("decode_images", make_rows(*source, visit, images, declined))
        return images, np.flatnonzero(declined).tolist()

    def _visit(self, size: Sizes, draws: Sequence[Draw]) -> tuple[Visit, Sizes]:
        """Return what becomes of images of these sizes, and their sizes behind it."""
        if core.native is None:
            raise RuntimeError(f"rows of images: {core.problem}")
        if self.decoding is None:
            first = self.before
        else:
            first = self.decoding.after
        visit = core.native.Visit(len(size), _channels(first))
        for step in self.steps:
            size = step.add_step(visit, self._draws_of(step, draws), size)
        return visit, size

    def _draws_of(self, part: Stage, draws: Sequence[Draw]) -> Sequence[Draw]:
        """Return the draws of the ops of a part."""
        begin = self.places.index(part.places[0])
        return draws[begin : begin + len(part.ops)]

    def _single(self, x: Array, draws: Sequence[Draw]) -> Array:
        """Return a file or an image after the ops; ``draws`` are of its row alone."""
        now = np.asarray(x)[None]
        if self.decoding is not None:
            now = self._run_part(self.decoding, now, draws)
            if (row := self._step_through(now[0], draws)) is not None:
                return row
        for step in self.steps:
            now = self._run_part(step, now, draws)
        last: Array = now[0]
        return last

    def _step_through(self, image: Array, draws: Sequence[Draw]) -> Array | None:
        """Return an image that was decoded by Python after the steps of the core; None if it
        declines them."""
        if core.native is None or not self.steps:
            return None
        stats.watch().enter(self.label)
        visit, size = self._visit(np.array([image.shape[:2]], np.int32), draws)
        out, declined = np.empty(self._shape(size[0]), self.after.dtype), np.zeros(1, np.int8)
        visit.make_rows([np.ascontiguousarray(image)], [out], declined)
        return None if declined[0] else out

    def _shape(self, size: NDArray[np.int32]) -> tuple[int, ...]:
        """Return the shape of an image behind the ops, of a size."""
        if self.after.uniform:
            return self.after.fixed_shape
        height, width = size.tolist()
        channels = _channels(self.after)
        if self.after.is_channels_first:
            return channels, height, width
        return height, width, channels

    def _run_part(self, part: Stage, x: Any, draws: Sequence[Draw]) -> Any:
        """Return an image, ``[1, ...]``, after one of the stages."""
        stats.watch().enter(part.label)
        return part.run(x, part.plan(self._draws_of(part, draws), 1), slice(0, 1), np.empty)


@dataclass(frozen=True)
class KernelStage(Stage):
    """One op, record by record, in its compiled form."""

    word = "kernel"

    form: RowForm

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``."""
        draw = _rows(plan, rows)[0]
        out = memory((len(x), *self._shape_after(x, draw)), self.after.dtype)
        for row in range(len(x)):
            self.form(
                np.ascontiguousarray(x[row]),
                {name: values[row] for name, values in draw.items()},
                out[row],
            )
        return out

    def _shape_after(self, x: Array, draw: Draw) -> tuple[int, ...]:
        if self.after.uniform:
            return self.after.fixed_shape
        size: Sizes = np.array([image.shape[:2] for image in x], np.int32)
        height, width = self.ops[0].size_after(size, draw)[0].tolist()
        return height, width, x.shape[3]


class EditStage(Stage):
    """Ops that change uint8 images whose shape stays: all of them on one image after the other."""

    word = "edit"

    def can_join(self, empty_draws: Sequence[Draw]) -> bool:
        """See ``Stage``."""
        return _are_bytes(self.before)

    def add_step(self, visit: Visit, draws: Sequence[Draw], size: Sizes) -> Sizes:
        """See ``Stage``."""
        visit.edit(self._edits(draws, size))
        return size

    @property
    def has_maker(self) -> bool:
        """See ``Stage``."""
        return core.native is not None and _have_values(self.before)

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """See ``Stage``."""
        if core.native is None:
            raise RuntimeError(f"edits: {core.problem}")
        height, width, channels = self.before.fixed_shape
        return core.native.edit_maker(height, width, channels, self.plan(draws, count))

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """See ``Stage``: the edits of all images if they have one size, else the draws."""
        if not self.before.uniform:
            return draws
        size = np.array(self.before.fixed_shape[:2], np.int32)
        return self._edits(draws, np.broadcast_to(size, (count, 2)))

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``."""
        if core.native is None:
            raise RuntimeError(f"edits: {core.problem}")
        if self.before.uniform:
            edits = plan[rows]
        else:
            edits = self._edits(
                _rows(plan, rows), np.array([image.shape[:2] for image in x], np.int32)
            )
        out = memory(x.shape, self.after.dtype)
        core.native.edit(np.ascontiguousarray(x), edits, out)
        return out

    def _edits(self, draws: Sequence[Draw], size: Sizes) -> Edits:
        channels = (self.before.shape or (0, 0, 0))[2] or 0
        parts = [
            form.edits(draw, size, channels) for form, draw in zip(self.forms, draws, strict=True)
        ]
        return np.concatenate([part for part in parts if part is not None], axis=1)


class ArrayStage(Stage):
    """One op in its array form."""

    word = "array"
    writes = False

    def can_join(self, empty_draws: Sequence[Draw]) -> bool:
        """See ``Stage``; or a walk whose channels have fills of their own."""
        if super().can_join(empty_draws):
            return True
        if not _are_bytes(self.before):
            return False
        path = self._walk(walk.begin(self.before, 0), empty_draws[self.places[0]])
        if path is not None and path.dtype == np.uint8:
            colours = path.colours
        else:
            colours = None
        return (
            bool(colours)
            and len(colours or ()) == _channels(self.before)
            and set(colours or ()) <= set(range(256))
        )

    def add_step(self, visit: Visit, draws: Sequence[Draw], size: Sizes) -> Sizes:
        """See ``Stage``."""
        if self.forms[0].resample(draws[0], size) is not None:
            return super().add_step(visit, draws, size)
        _, windows = _add_walk(
            visit, self.before, size, lambda begin, rows: self._walk(begin, _rows(draws, rows)[0])
        )
        return np.broadcast_to(windows, size.shape)

    def _walk(self, begin: Walk | None, draw: Draw) -> Walk | None:
        """Return the walk that the op is by itself, whose channels may have fills of their own."""
        if begin is None:
            return None
        return self.forms[0].fold(begin.with_(colours=()), draw)

    @cached_property
    def label(self) -> str:
        """See ``Stage``."""
        if calls_python(self.ops[0]):
            return "python_ops"
        return super().label

    @cached_property
    def checks(self) -> bool:
        """True if there are values that the op cannot take."""
        return self.ops[0].traits.check is not None

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``."""
        (op,), (draw,) = self.ops, _rows(plan, rows)
        if self.checks:
            checks = Checks(np)
            checks.ask(op, x)
            checks.answer()
        if len(x) == 1 and not isinstance(
            x, Ragged
        ):  # may be a view, where the form for many makes a copy
            result = np.asarray(
                op.array(np, x[0], {name: values[0] for name, values in draw.items()})
            )[None]
        else:
            result = op.array_batch(np, x, draw)
        if result.dtype != self.after.dtype or (
            self.after.uniform and result.shape[1:] != self.after.fixed_shape
        ):
            raise SpecError(
                f"{op}: array() makes {result.dtype} {result.shape[1:]}",
                cause=f"its field_after() says {self.after}",
                remedy="the two must agree",
            )
        return result


@dataclass(frozen=True)
class Piece:
    """Some ops that follow one another on a field, which are done together.

    Attributes:
        ops: the ops.
        places: their places in the graph.
        before, after: the field before the first op and after the last.
        forms: the compiled forms of the ops.
        is_walk: True if the ops make one walk; else it is a single op.
    """

    ops: tuple[Op, ...]
    places: tuple[int, ...]
    before: Field
    after: Field
    forms: tuple[Forms, ...]
    is_walk: bool

    def walk_batch(self, xp: ModuleType, x: Any, draws: Sequence[Draw]) -> Any:
        """Return a whole batch on a GPU after the ops of a walk, made by one kernel."""
        if self.before.uniform:
            shape = None
        else:
            shape = x[0].shape
        images = walk.walk_on_device(
            xp, _fold_ops(walk.begin(self.before, len(x), shape), self.forms, draws), x
        )
        return images.reshape(len(x), *self.after.fixed_shape)


def make_stages(graph: Graph, name: str, places: Sequence[int] | None = None) -> tuple[Stage, ...]:
    """Return the stages of a field of a graph: of all ops that act on it, or of those at some
    places, in a row."""
    if places is None:
        places = [place for place, on in enumerate(graph.targets) if name in on]
    stages: list[Stage] = []
    folded_pieces = pieces(graph, name, places, folds=lambda before, after: core.native is not None)
    for is_edit, group in groupby(
        folded_pieces, key=lambda piece: _is_edit(piece, graph.empty_draws)
    ):
        run = list(group)
        if is_edit:
            ops, op_places = (piece.ops[0] for piece in run), (piece.places[0] for piece in run)
            forms = tuple(piece.forms[0] for piece in run)
            stages.append(
                EditStage(tuple(ops), tuple(op_places), run[0].before, run[-1].after, forms)
            )
        else:
            stages += map(_stage, run)
    return _with_images(stages, graph.empty_draws)


def _is_edit(piece: Piece, empty_draws: Sequence[Draw]) -> bool:
    """Return True if a piece is an op on bytes that the core can do as an edit."""
    before, shape = piece.before, piece.before.shape or ()
    are_bytes = before.dtype == piece.after.dtype == np.uint8 and not before.encoded
    if core.native is None or piece.is_walk or not are_bytes or before.shape != piece.after.shape:
        return False
    if len(shape) != 3 or shape[2] is None:
        return False
    return piece.forms[0].edits(empty_draws[piece.places[0]], NO_PLACES, shape[2]) is not None


def _stage(piece: Piece) -> Stage:
    """Return the stage of a piece by itself."""
    arguments = piece.ops, piece.places, piece.before, piece.after, piece.forms
    form = piece.forms[0].row
    if piece.is_walk:
        return WalkStage(*arguments)
    if form is None:
        return ArrayStage(*arguments)
    return KernelStage(*arguments, form)


def batch_pieces(graph: Graph, xp: ModuleType) -> list[int | tuple[str, Piece]]:
    """Return how a graph is run on whole batches, in order: the places of joint ops, and pieces of
    single fields.

    Images of different sizes make a walk on a GPU if its first op brings them to one size: the
    draws and arguments of later ops are then the same for all.
    """

    def folds(before: Field, after: Field) -> bool:
        return devices.compiles(xp) and (before.uniform or after.uniform)

    runs: list[int | tuple[str, Piece]] = []
    for run in field_runs(graph):
        if isinstance(run, int):
            runs.append(run)
        else:
            name, places, _ = run
            runs += [(name, piece) for piece in pieces(graph, name, places, folds=folds)]
    return runs


def field_runs(graph: Graph) -> list[int | tuple[str, list[int], bool]]:
    """Return the runs in their order: the fields one by one, up to each op that makes several
    together.

    Returns:
        For an op that is joint its place; for a field its name, the places of ops, and whether no
        later op acts on it.
    """
    runs: list[int | tuple[str, list[int], bool]] = []
    waiting: dict[str, list[int]] = {
        name: [] for name in graph.spec_in.names if name in graph.touched
    }
    for place, op in enumerate(graph.ops):
        if not op.traits.joint:
            for name in graph.targets[place]:
                waiting.setdefault(name, []).append(place)
            continue
        for name in graph.targets[place]:
            if places := waiting.pop(name, []):
                runs.append((name, places, False))
        runs.append(place)
    return [*runs, *((name, places, True) for name, places in waiting.items() if places)]


def pieces(
    graph: Graph, name: str, places: Sequence[int], *, folds: Callable[[Field, Field], bool]
) -> Iterator[Piece]:  # fmt: skip
    """Cut ops that act on a field one after the other.

    Args:
        graph: the graph.
        name: of the field.
        places: of the ops.
        folds: whether a walk may begin with an op, of the field before it and after it.
    """
    fields = [graph.before(places[0])[name], *(graph.specs[place][name] for place in places)]
    ops, draws = (
        [graph.op_on(place, name) for place in places],
        [graph.empty_draws[place] for place in places],
    )
    forms = [op.forms(before) for op, before in zip(ops, fields, strict=False)]
    begin = 0
    while begin < len(ops):
        if folds(*fields[begin : begin + 2]):
            folding = _num_folding(forms[begin:], draws[begin:], fields[begin])
        else:
            folding = 0
        end = begin + max(folding, 1)
        yield Piece(
            tuple(ops[begin:end]),
            tuple(places[begin:end]),
            fields[begin],
            fields[end],
            tuple(forms[begin:end]),
            folding > 0,
        )
        begin = end


def as_values(xp: Any, field: Field, x: Any) -> Values:
    """Return a batch as a field's values are: an array, a ``Ragged`` or a list; on a GPU
    `device.Views` for that."""
    if field.uniform:
        if not isinstance(x, VARYING):
            return x
        devices.settle()  # CuPy puts them together
        if len(x):
            return xp.stack(list(x))
        return xp.empty((0, *field.fixed_shape), field.dtype)
    if field.ragged and not isinstance(x, Ragged):
        shape = tuple(length or 0 for length in (field.shape or ())[1:])
        if xp is np:
            return Ragged.of(list(x), field.dtype, shape)
        return _join_on_device(xp, x, field.dtype, shape)
    if field.ragged or isinstance(x, devices.Views):
        return x
    return list(x)


def _join_on_device(xp: Any, x: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Ragged:
    """Return values on a GPU as a ``Ragged``: those that lie one after the other without a copy."""
    if isinstance(x, devices.Views) and (rows := x.join()) is not None:
        return Ragged(rows, offsets_of(x.shapes[:, 0]))
    if not isinstance(x, VARYING) and x.size and x.flags.c_contiguous:
        return Ragged(
            x.reshape(-1, *x.shape[2:]), offsets_of(np.full(len(x), x.shape[1], np.int64))
        )
    values = list(x)
    devices.settle()
    if values:
        payload = xp.concatenate(values)
    else:
        payload = xp.empty((0, *shape), dtype)
    return Ragged(payload, offsets_of(np.array([len(value) for value in values], np.int64)))


def count_images(watch: Watch, size: Any) -> None:
    """Count images that were decoded, of which ``size`` has height and width."""
    if len(size):
        num_pixels = float(np.prod(size, axis=1, dtype=np.float64).sum())
    else:
        num_pixels = 0.0
    watch.count("decode_images.images", len(size))
    watch.count("decode_images.pixels", num_pixels)
    watch.count("decode_images.bytes", RGB * num_pixels)


def run_joint(
    graph: Graph, place: int, xp: Any, fields: dict[str, Any], draw: Draw
) -> dict[str, Any]:
    """Return the fields that a joint op makes of some records, as the spec after it says."""
    op, after = graph.ops[place], graph.specs[place].only(graph.outputs[place])
    on = {name: fields[name] for name in graph.targets[place]}
    joint = op.traits.joint
    if joint is None:
        raise RuntimeError(f"{op} does not make several fields together")
    results = joint.array_fields(xp, on, draw, after)
    return {name: as_values(xp, after[name], values) for name, values in results.items()}


def last_outputs(graph: Graph) -> list[frozenset[str]]:
    """Return for each op the fields that it makes, or acts on, and no later op acts on."""
    last = {name: place for place, names in enumerate(graph.outputs) for name in names}
    return [
        frozenset(name for name in names if last[name] == place)
        for place, names in enumerate(graph.outputs)
    ]


def _with_images(
    stages: Sequence[Stage], empty_draws: Sequence[Draw], *, are_first: bool = True
) -> tuple[Stage, ...]:
    """Return the stages with those that follow one another, and can be one visit of the core, as
    one `ImageStage`.

    Where the first takes files, or images of sizes of their own, as a list, those behind it take
    images of one size.
    """
    if not stages:
        return ()
    # The longest first: each stage more in the one visit spares a pass over the images.
    for count in range(_num_joining(stages, empty_draws), 0, -1):
        joined_stage = _image_stage(stages[:count])
        if joined_stage is None:
            continue
        rest = _with_images(stages[count:], empty_draws, are_first=False)
        is_last = are_first and not rest
        has_size = joined_stage.after.uniform and (
            not are_first or all(stage.after.uniform for stage in rest)
        )
        if has_size or is_last:
            return joined_stage, *rest
    return stages[0], *_with_images(stages[1:], empty_draws, are_first=False)


def _num_joining(stages: Sequence[Stage], empty_draws: Sequence[Draw]) -> int:
    """Return how many stages, from the first on, can be one visit of the core; the first may
    decode."""
    if core.native is None:
        return 0
    count = int(_decodes(stages[0]))
    while count < len(stages) and stages[count].can_join(empty_draws):
        count += 1
    return count


def _decodes(stage: Stage) -> bool:
    """Return True if a stage decodes files."""
    return stage.before.ragged and stage.ops[0].traits.codec is not None


def _image_stage(stages: Sequence[Stage]) -> ImageStage | None:
    """Return stages as one, or None where that spares nothing: a walk, or edits, alone are one pass
    already."""
    first, last = stages[0], stages[-1]
    decoding = first if _decodes(first) else None
    steps = tuple(stages if decoding is None else stages[1:])
    is_one_pass = isinstance(first, WalkStage | EditStage)
    if decoding is not None:
        is_one_pass = not _makes_bytes(first.ops[0])
    if len(stages) == 1 and is_one_pass:
        return None
    ops: tuple[Op, ...] = sum((stage.ops for stage in stages), ())
    places: tuple[int, ...] = sum((stage.places for stage in stages), ())
    forms: tuple[Forms, ...] = sum((stage.forms for stage in stages), ())
    return ImageStage(ops, places, first.before, last.after, forms, decoding, steps)


def _makes_bytes(op: Op) -> bool:
    """Return True if an op decodes as the core can."""
    codec = op.traits.codec
    return codec is not None and codec.makes_bytes


def _are_bytes(field: Field) -> bool:
    """Return True if a field has images of bytes whose channels, so many for all, lie side by
    side."""
    shape = field.shape or ()
    are_pixels = (
        field.dtype == np.uint8 and not field.encoded and len(shape) == 3 and bool(shape[2])
    )
    return are_pixels and not field.is_channels_first


def _channels(field: Field) -> int:
    """Return the channels of images of ``_are_bytes``, or of a walk over them."""
    shape = field.shape or ()
    if field.is_channels_first:
        channels = shape[0]
    else:
        channels = shape[2]
    if channels is None:
        raise RuntimeError(f"{field} has images of varying channels")
    return channels


def _add_walk(
    visit: Visit, before: Field, size: Sizes, fold: Callable[[Walk | None, Any], Walk | None]
) -> tuple[Walk, NDArray[np.int32]]:
    """Add a walk to a visit; return the walk over the images of one size, and the windows of all,
    ``[N or 1, 2]``.

    Where sizes vary the walk over the images of each size is folded by itself: a window may begin
    at the far end of its image. All else is the same for all images.

    Args:
        visit: of N images.
        before: the field before the walk.
        size: of the images.
        fold: returns the walk of some rows, for one that changes nothing.
    """
    paths = []
    for shape, rows, count in _by_size(size):
        begin = walk.begin(before, count, (*shape, _channels(before)))
        if (path := fold(begin, rows)) is None:
            raise RuntimeError(
                f"a walk over {before} folded without records and does not with them"
            )
        paths.append((rows, path))
    path = paths[0][1]
    if len(paths) == 1:
        start, mirror = (
            np.ascontiguousarray(numbers, np.int32) for numbers in (path.start, path.mirror)
        )
        windows = np.array([path.window], np.int32)
    else:
        start, mirror, windows = (np.empty((len(size), 2), np.int32) for _ in range(3))
        for rows, part in paths:
            start[rows], mirror[rows], windows[rows] = part.start, part.mirror, part.window
        if (windows == windows[0]).all():
            windows = windows[:1]
    visit.walk(
        start, mirror, windows, np.array(path.colours or (path.fill,) * path.channels, np.uint8)
    )
    return path, windows


def _by_size(size: Sizes) -> Iterator[tuple[tuple[int, int], Any, int]]:
    """Yield each height and width, the rows that have it, and how many they are."""
    if size.strides[0] == 0 or len(size) == 1:  # one for all
        height, width = size[0].tolist()
        yield (height, width), slice(None), len(size)
        return
    groups: dict[tuple[int, int], list[int]] = {}
    for row, (height, width) in enumerate(size.tolist()):
        groups.setdefault((height, width), []).append(row)
    for shape, rows in groups.items():
        yield shape, slice(None) if len(rows) == len(size) else np.array(rows), len(rows)


def _have_values(*fields: Field) -> bool:
    """Return True if the records of fields have one size each, which is not nothing."""
    return all(field.uniform and 0 not in field.fixed_shape for field in fields)


def _num_folding(forms: Sequence[Forms], draws: Sequence[Draw], field: Field) -> int:
    """Return how many of the ops, from the first on, fold into one walk over the images of a
    field."""
    now, count = walk.begin(field, 0), 0
    while now is not None and count < len(forms):
        now = _fold(now, forms[count], draws[count])
        count += now is not None
    return count


def _fold_ops(now: Walk | None, forms: Sequence[Forms], draws: Sequence[Draw]) -> Walk:
    """Return the walk of ops, by their forms, of which ``_num_folding`` said that they fold."""
    for form, draw in zip(forms, draws, strict=True):
        if now is not None:
            now = _fold(now, form, draw)
    if now is None:
        # A fault of an op: whether it folds must not depend on what is drawn, because stages are
        # made once.
        raise RuntimeError(f"{list(forms)} folded without records and do not with them")
    return now


def _fold(now: Walk, forms: Forms, draw: Draw) -> Walk | None:
    longer = forms.fold(now, draw)
    # A walk over bytes fills with a byte, and any other number has to be refused, or cut, as the op
    # itself does it.
    if longer is not None and now.in_dtype == np.uint8 and longer.fill not in range(256):
        return None
    return longer


def _files(op: Op, files: Ragged, draw: Draw) -> tuple[tuple[Any, ...], Sizes]:
    """Return files as the core takes them, and the sizes of what an op decodes of each."""
    if HEADS in draw:
        # Each head is read once: where sizes were needed to draw, `Graph.draw` has put the heads
        # among the draws.
        heads = draw[HEADS]
    else:
        heads = read_heads(files)
        codec = op.traits.codec
        if codec is None:
            raise RuntimeError(f"{op} does not decode")
        if not codec.is_upright:
            heads = without_orientation(heads)
        codec.check_heads(heads[:, :3])
    regions, size = NO_REGIONS, heads[:, :2]
    if "start" in draw:
        regions, size = np.concatenate([draw["start"], draw["shape"]], axis=1), draw["shape"]
    return (
        np.ascontiguousarray(files.payload),
        files.offsets[:-1],
        files.offsets[1:],
        heads,
        regions,
    ), size


def _rows(draws: Sequence[Draw], rows: Any) -> list[Draw]:
    return [{name: values[rows] for name, values in draw.items()} for draw in draws]


def _walk_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return scratch("walk", shape, dtype)

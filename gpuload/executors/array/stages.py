"""Stages: the ops of one field, cut into the passes that are made over a tile of rows.

    decode    files to images of sizes of their own, some of them in one call of the core
    image     files, or images, to one size and through the ops behind that, in one call of the core
    walk      a run of ops that crop, mirror, reorder and normalise, in one pass of the core, or one kernel on a GPU
    edit      a run of ops that change uint8 images whose shape stays, an image after the other, in one call of the core
    kernel    one op in the core, for single records, as resizing
    array     one op in its array form, equal bit for bit to the others: all of them where there is no core

The forms that an op has decide (``Op.makes_rgb``, ``Op.resample``, ``Op.fold``, ``Op.edit_form``, ``Op.row_form``,
``Op.array``); no code here asks for its class.
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
from gpuload.core.face import Maker
from gpuload.errors import RowError, SpecError
from gpuload.executors.array.scratch import scratch
from gpuload.executors.base import Values
from gpuload.executors.checks import Checks
from gpuload.images import native
from gpuload.images.head import read_heads, without_orientation
from gpuload.ops import resampling, walk
from gpuload.ops.base import HEADS, Draw, Op, RowForm, Sizes
from gpuload.ops.edits import Edits
from gpuload.ops.graph import Graph
from gpuload.ops.images import turns_upright
from gpuload.ops.walk import Memory, Walk, Walker
from gpuload.ragged import Ragged, offsets_of
from gpuload.spec import Field
from gpuload.stats import Watch

Array = NDArray[Any]
RGB = 3  # channels
MOST_PARTS = 5  # of an `ImageStage`
# Arguments of the core that mean nothing: no boxes, no places, no filter, no edits; and a mean that changes no value.
NO_BOXES, NO_PLACES, NO_TABLE = np.empty((0, 4), np.int32), np.empty((0, 2), np.int32), np.empty(0, np.float32)
NO_WALK = (NO_PLACES, NO_PLACES, 0)
NO_RESIZING, NO_EDITING = (NO_BOXES, NO_PLACES, NO_TABLE, 1.0, False), (np.empty((0, 0)), *NO_WALK, 0, 0)
NO_CHANGE = np.zeros(RGB, np.float32)
NO_PIXELS = np.empty((0, 0, RGB), np.uint8)


@dataclass(frozen=True)
class Stage(ABC):
    """Some ops that follow one another on a field.

    Attributes:
        ops: the ops.
        places: their places in the graph, for their draws.
        before, after: the field before the first op and after the last.
    """

    word: ClassVar[str]
    writes: ClassVar[bool] = True
    """True if the result is written to memory that is given; else it comes in memory of its own, or as a view."""

    takes_list: ClassVar[bool] = False
    """True if a tile is any number of values, whatever their sizes: a ``Ragged``, a list or an array."""

    ops: tuple[Op, ...]
    places: tuple[int, ...]
    before: Field
    after: Field

    @cached_property
    def label(self) -> str:
        """The name of its time among the stages of `stats`."""
        return "decode_images" if any(op.codec for op in self.ops) else "ops"

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """Return values that are the same for all rows of a call, made once; ``draws`` are those of the ops."""
        return draws

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
            x: an array ``[n, ...]``, or a ``Ragged`` of n values where all ops of the field are elementwise.
            plan: from ``plan``.
            rows: which n of the planned rows they are.
            memory: gives memory for the result.
        """

    def __str__(self) -> str:
        return f"{self.word} of {' '.join(type(op).__name__ for op in self.ops)}"


class WalkStage(Stage):
    """All ops in one pass."""

    word = "walk"

    @property
    def has_maker(self) -> bool:
        """See ``Stage``; float16 is made of the core's float32 by NumPy."""
        fields = self.before, self.after
        return _have_values(*fields) and all(field.dtype in walk.DTYPES for field in fields)

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """See ``Stage``."""
        return Walker(_fold_ops(walk.begin(self.before, count), self.ops, draws)).maker()

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """See ``Stage``: the walk over all images if they have one size, else the draws."""
        return Walker(_fold_ops(walk.begin(self.before, count), self.ops, draws)) if self.before.uniform else draws

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``."""
        if self.before.uniform:
            out = memory((len(x), *self.after.fixed_shape), self.after.dtype)
            plan(x, out, rows, _walk_memory)
            return out
        # Images of sizes of their own come one at a time, and each has a walk of its own.
        path = _fold_ops(walk.begin(self.before, len(x), x.shape[1:]), self.ops, _rows(plan, rows))
        out = memory((len(x), *path.out_shape), path.dtype)
        Walker(path)(x, out, memory=_walk_memory)
        return out


class DecodeStage(Stage):
    """Files to images of sizes of their own, in one call of the core.

    A file that the core declines is decoded by the op's array form, which raises the error.
    """

    word = "decode"
    takes_list = True

    @cached_property
    def label(self) -> str:
        """See ``Stage``: the core says how much of the time is decoding."""
        return "ops"

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``; the images are a list, ``memory`` is asked for that of each."""
        (draw,), codec, files = _rows(plan, rows), native.codec(), x
        if not isinstance(files, Ragged):
            files = Ragged.of(files, self.before.dtype)
        # Ones: without a codec the core is not called, and each file goes through the array form.
        declined = np.ones(len(files), np.int8)
        images: list[Array] = [NO_PIXELS] * len(files)
        if codec is not None:
            source, size = _files(self.ops[0], files, draw)
            count_images(stats.watch(), size)
            # Memory is taken here, with the interpreter's lock, because the core makes no arrays while it works without
            # it.
            images = [memory((height, width, RGB), np.dtype(np.uint8)) for height, width in size.tolist()]
            decode: Callable[..., float] = codec.decode
            stats.watch().move("decode_images", decode(*source, images, declined))
        for row in np.flatnonzero(declined).tolist():
            try:
                images[row] = self.ops[0].array(np, files[row], {name: values[row] for name, values in draw.items()})
            except RowError as error:
                raise error.shift_rows(row) from None
        return images


@dataclass(frozen=True)
class ImageStage(Stage):
    """Files, or images, to images of one size in one call of the core: each of them goes all the way at once.

    The parts are stages of their own, None where there is no such, and are done in this order. A row that the core
    declines goes through them one by one, which makes its pixels or raises the error.

    Attributes:
        decoding: of files; None for images of bytes in red, green and blue.
        resizing: of all of each, or of a box.
        window: a walk before the edits.
        editing: the edits.
        walking: a walk, the last.
    """

    word = "image"
    takes_list = True

    decoding: Stage | None
    resizing: Stage | None
    window: WalkStage | None
    editing: EditStage | None
    walking: WalkStage | None

    @cached_property
    def label(self) -> str:
        """See ``Stage``: the core says how much of the time is decoding."""
        return "ops"

    @property
    def parts(self) -> list[Stage]:
        """Those that there are, in their order."""
        parts = (self.decoding, self.resizing, self.window, self.editing, self.walking)
        return [part for part in parts if part is not None]

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``."""
        draws = _rows(plan, rows)
        out = memory((len(x), *self.after.fixed_shape), self.after.dtype)
        if self.decoding is None:
            # The core reads rows without gaps; an op before may have given a view of a larger image.
            x = [np.ascontiguousarray(image) for image in x]
        elif not isinstance(x, Ragged):
            x = Ragged.of(x, self.before.dtype)
        # The core only says no; Python's forms decode what it cannot, or find the words of the error.
        for row in self._write_rows(x, draws, out):
            try:
                out[row] = self._single(x[row], _rows(draws, slice(row, row + 1)))
            except RowError as error:
                raise error.shift_rows(row) from None
        return out

    @property
    def has_maker(self) -> bool:
        """See ``Stage``: where nothing is decoded."""
        return self.decoding is None and core.native is not None and _have_values(self.before, self.after)

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """See ``Stage``."""
        if core.native is None:
            raise RuntimeError(f"rows of images: {core.problem}")
        height, width, _ = self.before.fixed_shape
        arguments = self._arguments(np.broadcast_to(np.array([height, width], np.int32), (count, 2)), draws)
        return core.native.image_maker(self.after.dtype == np.float32, count, height, width, *arguments)

    def _write_rows(self, x: Any, draws: Sequence[Draw], out: Array) -> Sequence[int]:
        """Write the rows of the result; return those that were not made."""
        if core.native is None:
            raise RuntimeError(f"rows of images: {core.problem}")
        declined, source = np.empty(len(x), np.int8), (x,)
        make_rows: Callable[..., float | None] = core.native.make_rows
        if self.decoding is None:
            size = np.array([image.shape[:2] for image in x], np.int32)
        else:
            codec = native.codec()
            # Every row goes through the parts: Pillow decodes there.
            if codec is None:
                return range(len(x))
            make_rows = codec.make_rows
            source, size = _files(self.ops[0], x, self._draws_of(self.decoding, draws)[0])
            count_images(stats.watch(), size)
        arguments = *source, *self._arguments(size, draws), out.reshape(-1), declined
        if (decoding_s := make_rows(*arguments)) is not None:
            stats.watch().move("decode_images", decoding_s)
        return np.flatnonzero(declined).tolist()

    def _arguments(self, size: Sizes, draws: Sequence[Draw]) -> tuple[Any, ...]:
        """Return the arguments of the core that say what becomes of images; ``size`` is height and width of each."""
        resizing, count = NO_RESIZING, len(size)
        if self.resizing is not None:
            resample = self.resizing.ops[0].resample(self._draws_of(self.resizing, draws)[0], size)
            if resample is None:
                raise RuntimeError(f"{self.resizing} resizes without records and does not with them")
            size = np.ascontiguousarray(resample.sizes)
            table, width = resampling.TABLES[resample.interpolation], resampling.WIDTHS[resample.interpolation]
            resizing = (resample.boxes, size, table, width, resample.antialias)
        editing = NO_EDITING
        if self.editing is not None:
            window, _ = self._windows(self.window, size, draws)
            size = np.broadcast_to(np.array(self.editing.before.fixed_shape[:2], np.int32), (count, 2))
            edits = self.editing.plan(self._draws_of(self.editing, draws), count)
            editing = (edits, *window, *self.editing.before.fixed_shape[:2])
        window, path = self._windows(self.walking, size, draws)
        is_planar, mean, scale = path is not None and path.out_axes == "CHW", NO_CHANGE, NO_CHANGE + 1
        if path is not None and path.mean is not None and path.scale is not None:
            mean, scale = path.mean, path.scale
        shape = self.after.fixed_shape
        size_after = shape[1:] if is_planar else shape[:2]
        return *resizing, *editing, *window, mean, scale, is_planar, *size_after

    def _draws_of(self, part: Stage, draws: Sequence[Draw]) -> Sequence[Draw]:
        """Return the draws of the ops of a part."""
        begin = self.places.index(part.places[0])
        return draws[begin : begin + len(part.ops)]

    def _windows(
        self, stage: WalkStage | None, size: Sizes, draws: Sequence[Draw]
    ) -> tuple[tuple[Array, Array, int], Walk | None]:
        """Return where each window of a walk begins, whether it is mirrored, and the fill; and the walk.

        The walk is else the same for all images. Where sizes vary the walk over each image is folded by itself: a
        window may begin at the far end of its image.
        """
        if stage is None:
            return NO_WALK, None
        draws = self._draws_of(stage, draws)
        if stage.before.uniform:
            paths = [_fold_ops(walk.begin(stage.before, len(size)), stage.ops, draws)]
        else:
            shapes = [(height, width, RGB) for height, width in size.tolist()]
            begins = ((walk.begin(stage.before, 1, shape), slice(row, row + 1)) for row, shape in enumerate(shapes))
            paths = [_fold_ops(begin, stage.ops, _rows(draws, row)) for begin, row in begins]
        start, mirror = (
            np.concatenate(numbers).astype(np.int32)
            for numbers in ([path.start for path in paths], [path.mirror for path in paths])
        )
        return (start, mirror, int(paths[0].fill)), paths[0]

    def _single(self, x: Array, draws: Sequence[Draw]) -> Array:
        """Return a file or an image after the ops, one after the other; ``draws`` are of its row alone."""
        now = np.asarray(x)[None]
        for part in self.parts:
            stats.watch().enter(part.label)
            now = part.run(now, part.plan(self._draws_of(part, draws), 1), slice(0, 1), np.empty)
        row: Array = now[0]
        return row


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
            self.form(np.ascontiguousarray(x[row]), {name: values[row] for name, values in draw.items()}, out[row])
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
            edits = self._edits(_rows(plan, rows), np.array([image.shape[:2] for image in x], np.int32))
        out = memory(x.shape, self.after.dtype)
        core.native.edit(np.ascontiguousarray(x), edits, out)
        return out

    def _edits(self, draws: Sequence[Draw], size: Sizes) -> Edits:
        channels = (self.before.shape or (0, 0, 0))[2] or 0
        parts = [op.edit_form(draw, size, channels) for op, draw in zip(self.ops, draws, strict=True)]
        return np.concatenate([part for part in parts if part is not None], axis=1)


class ArrayStage(Stage):
    """One op in its array form."""

    word = "array"
    writes = False

    @cached_property
    def label(self) -> str:
        """See ``Stage``."""
        return "python_ops" if self.ops[0].calls_python else super().label

    def run(self, x: Any, plan: Any, rows: slice, memory: Memory) -> Any:
        """See ``Stage``."""
        (op,), (draw,) = self.ops, _rows(plan, rows)
        if op.checks:
            checks = Checks(np)
            checks.ask(op, x)
            checks.answer()
        if len(x) == 1 and not isinstance(x, Ragged):  # may be a view, where the form for many makes a copy
            result = np.asarray(op.array(np, x[0], {name: values[0] for name, values in draw.items()}))[None]
        else:
            result = op.array_batch(np, x, draw)
        if result.dtype != self.after.dtype or (self.after.uniform and result.shape[1:] != self.after.fixed_shape):
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
        is_walk: True if the ops make one walk; else it is a single op.
    """

    ops: tuple[Op, ...]
    places: tuple[int, ...]
    before: Field
    after: Field
    is_walk: bool

    def walk_batch(self, xp: ModuleType, x: Any, draws: Sequence[Draw]) -> Any:
        """Return a whole batch on a GPU after the ops of a walk, made by one kernel."""
        shape = None if self.before.uniform else x[0].shape
        images = walk.walk_on_device(xp, _fold_ops(walk.begin(self.before, len(x), shape), self.ops, draws), x)
        return images.reshape(len(x), *self.after.fixed_shape)


def make_stages(graph: Graph, name: str, places: Sequence[int] | None = None) -> tuple[Stage, ...]:
    """Return the stages of a field of a graph: of all ops that act on it, or of those at some places, in a row."""
    places = [place for place, on in enumerate(graph.targets) if name in on] if places is None else places
    stages: list[Stage] = []
    folded_pieces = pieces(graph, name, places, folds=lambda before, after: core.native is not None)
    for is_edit, group in groupby(folded_pieces, key=lambda piece: _is_edit(piece, graph.empty_draws)):
        run = list(group)
        if is_edit:
            ops, op_places = (piece.ops[0] for piece in run), (piece.places[0] for piece in run)
            stages.append(EditStage(tuple(ops), tuple(op_places), run[0].before, run[-1].after))
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
    return piece.ops[0].edit_form(empty_draws[piece.places[0]], NO_PLACES, shape[2]) is not None


def _stage(piece: Piece) -> Stage:
    """Return the stage of a piece by itself."""
    arguments, form = (piece.ops, piece.places, piece.before, piece.after), piece.ops[0].row_form(piece.before)
    if piece.is_walk:
        return WalkStage(*arguments)
    return ArrayStage(*arguments) if form is None else KernelStage(*arguments, form)


def batch_pieces(graph: Graph, xp: ModuleType) -> list[int | tuple[str, Piece]]:
    """Return how a graph is run on whole batches, in order: the places of joint ops, and pieces of single fields.

    Images of different sizes make a walk on a GPU if its first op brings them to one size: the draws and arguments of
    later ops are then the same for all.
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
    """Return the runs in their order: the fields one by one, up to each op that makes several together.

    Returns:
        For an op that is joint its place; for a field its name, the places of ops, and whether no later op acts on it.
    """
    runs: list[int | tuple[str, list[int], bool]] = []
    waiting: dict[str, list[int]] = {name: [] for name in graph.spec_in.names if name in graph.touched}
    for place, op in enumerate(graph.ops):
        if not op.joint:
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
    ops, draws = [graph.op_on(place, name) for place in places], [graph.empty_draws[place] for place in places]
    begin = 0
    while begin < len(ops):
        folding = _num_folding(ops[begin:], draws[begin:], fields[begin]) if folds(*fields[begin : begin + 2]) else 0
        end = begin + max(folding, 1)
        yield Piece(tuple(ops[begin:end]), tuple(places[begin:end]), fields[begin], fields[end], folding > 0)
        begin = end


def as_values(xp: Any, field: Field, x: Any) -> Values:
    """Return a batch as a field's values are: an array, a ``Ragged`` or a list."""
    if field.uniform:
        if isinstance(x, list):
            return xp.stack(x) if x else xp.empty((0, *field.fixed_shape), field.dtype)
        return x
    if field.ragged and not isinstance(x, Ragged):
        values, shape = list(x), tuple(length or 0 for length in (field.shape or ())[1:])
        if xp is np:
            return Ragged.of(values, field.dtype, shape)
        lengths = np.array([len(value) for value in values], np.int64)
        return Ragged(xp.concatenate(values) if values else xp.empty((0, *shape), field.dtype), offsets_of(lengths))
    return x if field.ragged or isinstance(x, devices.Views) else list(x)


def count_images(watch: Watch, size: Any) -> None:
    """Count images that were decoded, of which ``size`` has height and width."""
    num_pixels = float(np.prod(size, axis=1, dtype=np.float64).sum()) if len(size) else 0.0
    watch.count("decode_images.images", len(size))
    watch.count("decode_images.pixels", num_pixels)
    watch.count("decode_images.bytes", RGB * num_pixels)


def run_joint(graph: Graph, place: int, xp: Any, fields: dict[str, Any], draw: Draw) -> dict[str, Any]:
    """Return the fields that a joint op makes of some records, as the spec after it says."""
    op, after = graph.ops[place], graph.specs[place].only(graph.outputs[place])
    on = {name: fields[name] for name in graph.targets[place]}
    results = op.array_fields(xp, on, draw, after)
    return {name: as_values(xp, after[name], values) for name, values in results.items()}


def last_outputs(graph: Graph) -> list[frozenset[str]]:
    """Return for each op the fields that it makes, or acts on, and no later op acts on."""
    last = {name: place for place, names in enumerate(graph.outputs) for name in names}
    return [frozenset(name for name in names if last[name] == place) for place, names in enumerate(graph.outputs)]


def _with_images(stages: Sequence[Stage], empty_draws: Sequence[Draw]) -> tuple[Stage, ...]:
    """Return the stages with the first ones as one `ImageStage`: as many as can be, where one size follows."""
    # The longest first: each stage more in the one call spares a pass over the images.
    for count in range(min(len(stages), MOST_PARTS), 0, -1):
        joined_stage, rest = _image_stage(stages[:count], empty_draws), stages[count:]
        if joined_stage is not None and all(stage.after.uniform for stage in (joined_stage, *rest)):
            return joined_stage, *rest
    if len(stages) == 1 and core.native is not None and _decodes_to_rgb(stages[0]) and not stages[0].after.uniform:
        (first,) = stages
        return (DecodeStage(first.ops, first.places, first.before, first.after),)
    return tuple(stages)


def _decodes_to_rgb(stage: Stage) -> bool:
    """Return True if a stage decodes files to RGB pixels of uint8."""
    return stage.before.ragged and stage.before.dtype == np.uint8 and stage.ops[0].makes_rgb


def _image_stage(stages: Sequence[Stage], empty_draws: Sequence[Draw]) -> ImageStage | None:
    """Return stages as one, or None where the core cannot do them in one call, or does so without that."""
    first, rest = stages[0], list(stages)
    decoding = resizing = window = editing = walking = None
    if _decodes_to_rgb(first):
        decoding = rest.pop(0)
    elif not _is_rgb(first.before):
        return None
    if rest and rest[0].ops[0].resample(empty_draws[rest[0].places[0]], NO_PLACES) is not None:
        resizing = rest.pop(0)
    if rest and isinstance(rest[0], WalkStage):
        walking = rest.pop(0)
    if rest and isinstance(rest[0], EditStage) and rest[0].before.uniform and _is_rgb(rest[0].before):
        window, editing, walking = walking, rest.pop(0), None
        if rest and isinstance(rest[0], WalkStage):
            walking = rest.pop(0)
    is_single = len(stages) == 1 and (walking is not None or editing is not None)
    # A walk alone, or edits alone, are one pass in their own stages already.
    if core.native is None or rest or is_single or stages[-1].after.dtype not in walk.DTYPES:
        return None
    ops, places = sum((stage.ops for stage in stages), ()), sum((stage.places for stage in stages), ())
    parts = (decoding, resizing, window, editing, walking)
    return ImageStage(ops, places, first.before, stages[-1].after, *parts)  # type: ignore[arg-type]  # of their kinds


def _is_rgb(field: Field) -> bool:
    """Return True if a field has images of bytes in three channels, which lie side by side."""
    shape = field.shape or ()
    are_pixels = field.dtype == np.uint8 and not field.encoded and len(shape) == 3 and shape[2] == RGB
    return are_pixels and not field.is_channels_first


def _have_values(*fields: Field) -> bool:
    """Return True if the records of fields have one size each, which is not nothing."""
    return all(field.uniform and 0 not in field.fixed_shape for field in fields)


def _num_folding(ops: Sequence[Op], draws: Sequence[Draw], field: Field) -> int:
    """Return how many of the ops, from the first on, fold into one walk over the images of a field."""
    now, count = walk.begin(field, 0), 0
    while now is not None and count < len(ops):
        now = _fold(now, ops[count], draws[count])
        count += now is not None
    return count


def _fold_ops(now: Walk | None, ops: Sequence[Op], draws: Sequence[Draw]) -> Walk:
    """Return the walk of ops of which ``_num_folding`` said that they fold."""
    for op, draw in zip(ops, draws, strict=True):
        now = _fold(now, op, draw) if now is not None else None
    if now is None:
        # A fault of an op: whether it folds must not depend on what is drawn, because stages are made once.
        raise RuntimeError(f"{list(ops)} folded without records and do not with them")
    return now


def _fold(now: Walk, op: Op, draw: Draw) -> Walk | None:
    longer = op.fold(now, draw)
    # A walk over bytes fills with a byte, and any other number has to be refused, or cut, as the op itself does it.
    return None if longer is not None and now.in_dtype == np.uint8 and longer.fill not in range(256) else longer


def _files(op: Op, files: Ragged, draw: Draw) -> tuple[tuple[Any, ...], Sizes]:
    """Return files as the core takes them, and the sizes of what an op decodes of each."""
    if HEADS in draw:
        # Each head is read once: where sizes were needed to draw, `Graph.draw` has put the heads among the draws.
        heads = draw[HEADS]
    else:
        heads = read_heads(files)
        heads = heads if turns_upright(op) else without_orientation(heads)
        op.check_heads(heads[:, :3])
    regions, size = NO_BOXES, heads[:, :2]
    if "start" in draw:
        regions, size = np.concatenate([draw["start"], draw["shape"]], axis=1), draw["shape"]
    return (np.ascontiguousarray(files.payload), files.offsets[:-1], files.offsets[1:], heads, regions), size


def _rows(draws: Sequence[Draw], rows: slice) -> list[Draw]:
    return [{name: values[rows] for name, values in draw.items()} for draw in draws]


def _walk_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return scratch("walk", shape, dtype)

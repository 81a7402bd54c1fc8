"""A stage: ops that follow one another on a field, done in one pass over a tile of rows, or as one
step of a visit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.core.face import Maker, Visit
from gpuload.kernels import resampling, walk
from gpuload.kernels.walk import Memory, Walk
from gpuload.ops.base import Draw, Op, Sizes
from gpuload.ops.forms import Forms
from gpuload.spec import Field

Array = NDArray[Any]
EVERY_ROW = slice(None)
NO_SIZES, NEAREST = np.empty((0, 2), np.int32), np.empty(0, np.float32)


@dataclass(frozen=True)
class FieldStage(ABC):
    """Some ops that follow one another on a field.

    Attributes:
        ops: the ops.
        places: their places in the graph, for their draws.
        before, after: the field before the first op and after the last.
        forms: the compiled forms of the ops.
    """

    word: ClassVar[str]
    writes: ClassVar[bool] = True
    """True if the result is written to memory that is given; else it has memory of its own, or is a
    view."""

    takes_list: ClassVar[bool] = False
    """True if a tile is any number of values of any sizes: a ``Ragged``, a list or an
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
        return "decode_images" if any(op.traits.codec for op in self.ops) else "ops"

    @cached_property
    def channels(self) -> int:
        """The channels of the images before the ops, the same for all."""
        return channels_of(self.before)

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """Return values that are the same for all rows of a call, made once; ``draws`` are those of
        the ops."""
        return draws

    def can_join(self, empty_draws: Sequence[Draw]) -> bool:
        """Return True if the core can do the ops as a step of its visit of an image: here a resize.

        Args:
            empty_draws: of all ops of the graph.
        """
        resamples = self.forms[0].resample(empty_draws[self.places[0]], NO_SIZES) is not None
        return resamples and are_bytes(self.before)

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

    def add_walk(
        self,
        visit: Visit,
        draws: Sequence[Draw],
        size: Sizes,
        fold: Callable[[Walk | None, Sequence[Draw]], Walk],
    ) -> tuple[Walk, Sizes]:
        """Add a walk to a visit; return the walk over the images of one size, and the sizes of all
        windows.

        Where sizes vary the walk over the images of each size is folded by itself: a window may
        begin at the far end of its image. All else is the same for all images.

        Args:
            visit: of N images.
            draws: of the ops.
            size: int32 ``[N, 2]``, of the images.
            fold: returns the walk of the ops behind one that changes nothing, for their draws of
                some rows.
        """
        if (size == size[0]).all():
            path = fold(
                walk.begin(self.before, len(size), (*size[0].tolist(), self.channels)), draws
            )
            start, mirror = (
                np.ascontiguousarray(draw, np.int32) for draw in (path.start, path.mirror)
            )
            windows = np.array([path.window], np.int32)
        else:
            start, mirror, windows = (np.empty((len(size), 2), np.int32) for _ in range(3))
            for rows in _rows_by_size(size):
                path = fold(
                    walk.begin(self.before, len(rows), (*size[rows[0]].tolist(), self.channels)),
                    rows_of(draws, rows),
                )
                start[rows], mirror[rows], windows[rows] = path.start, path.mirror, path.window
            if (windows == windows[0]).all():
                windows = windows[:1]
        fill = np.array(path.colours or (path.fill,) * path.channels, np.uint8)
        visit.walk(start, mirror, windows, fill)
        return path, np.broadcast_to(windows, size.shape)

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
    def run(self, x: Any, plan: Any, rows: slice, out: Array | None, memory: Memory) -> Any:
        """Return a tile after the ops.

        Args:
            x: an array ``[n, ...]``, or a ``Ragged`` of n values where all ops of the field are
                elementwise.
            plan: from ``plan``.
            rows: which n of the planned rows they are.
            out: memory for the result, of its shape and dtype and in C order; None: ``memory``
                gives it.
            memory: gives memory for the result.
        """

    def __str__(self) -> str:
        return f"{self.word} of {' '.join(type(op).__name__ for op in self.ops)}"


def are_bytes(field: Field) -> bool:
    """Return True if a field has images of bytes with as many channels each, that lie side by
    side."""
    shape = field.shape or ()
    are_pixels = (
        field.dtype == np.uint8 and not field.encoded and len(shape) == 3 and bool(shape[2])
    )
    return are_pixels and not field.is_channels_first


def channels_of(field: Field) -> int:
    """Return the channels of images of ``are_bytes``, or of a walk over them."""
    shape = field.shape or ()
    channels = shape[0] if field.is_channels_first else shape[2]
    if channels is None:
        raise RuntimeError(f"{field} has images of varying channels")
    return channels


def have_values(*fields: Field) -> bool:
    """Return True if the records of fields have one size each, and no record is empty."""
    return all(field.uniform and 0 not in field.fixed_shape for field in fields)


def rows_of(draws: Sequence[Draw], rows: Any) -> list[Draw]:
    """Return the draws of some rows."""
    return [{name: values[rows] for name, values in draw.items()} for draw in draws]


def _rows_by_size(size: Sizes) -> list[list[int]]:
    """Return the rows of each height and width."""
    groups: dict[tuple[int, int], list[int]] = {}
    for row, (height, width) in enumerate(size.tolist()):
        groups.setdefault((height, width), []).append(row)
    return list(groups.values())

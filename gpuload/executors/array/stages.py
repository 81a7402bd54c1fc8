"""The stages that are a pass over a tile of rows of a field.

    walk      a run of ops that crop, mirror, reorder and normalise, in one pass of the core
    edit      a run of ops that change uint8 images of the same shape, an image after the other, in
              one call of the core
    kernel    one op in the core, for single records, as resizing
    array     one op in its array form, equal bit for bit to the others: all of them where there is
              no core

Several of them may be one `imagestage.ImageStage`. The forms that an op has decide which it is
(`assembly`); no code here asks for its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpuload import core
from gpuload.core.face import Maker, Visit
from gpuload.errors import SpecError
from gpuload.executors.array.folding import fold_ops
from gpuload.executors.array.scratch import scratch
from gpuload.executors.array.stage import Array, FieldStage, are_bytes, have_values, rows_of
from gpuload.executors.checks import Checks
from gpuload.kernels import walk
from gpuload.kernels.edits import Edits
from gpuload.kernels.walk import Memory, Walk, Walker
from gpuload.ops.base import Draw, RowForm, Sizes, calls_python
from gpuload.ragged import Ragged


class WalkStage(FieldStage):
    """All ops in one pass."""

    word = "walk"

    def can_join(self, empty_draws: Sequence[Draw]) -> bool:
        """Return True if images of bytes become numbers that the core writes."""
        return are_bytes(self.before) and self.after.dtype in walk.DTYPES

    def add_step(self, visit: Visit, draws: Sequence[Draw], size: Sizes) -> Sizes:
        """Add the walk to a visit, with its arithmetic on values; return the sizes of the
        windows."""
        path, windows = self.add_walk(
            visit, draws, size, lambda begin, part: fold_ops(begin, self.forms, part)
        )
        if path.mean is not None and path.scale is not None:
            visit.finish(path.mean, path.scale, path.out_axes == "CHW")
        elif path.out_axes == "CHW":
            zeros = np.zeros(path.channels, np.float32)
            visit.finish(zeros, zeros + 1, True)
        return windows

    @property
    def has_maker(self) -> bool:
        """True if the core reads and writes the dtypes; float16 is made of the core's float32 by
        NumPy."""
        fields = self.before, self.after
        return have_values(*fields) and all(field.dtype in walk.DTYPES for field in fields)

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """Return the walk as threads of the core do it while they read."""
        return Walker(fold_ops(walk.begin(self.before, count), self.forms, draws)).maker()

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """Return the walk over all images if they have one size, else the draws."""
        if not self.before.uniform:
            return draws
        return Walker(fold_ops(walk.begin(self.before, count), self.forms, draws))

    def run(self, x: Any, plan: Any, rows: slice, out: Array | None, memory: Memory) -> Any:
        """Return a tile after the walk."""
        if self.before.uniform:
            if out is None:
                out = memory((len(x), *self.after.fixed_shape), self.after.dtype)
            plan(x, out, rows, _walk_memory)
            return out
        # Images of sizes of their own come one at a time, and each has a walk of its own.
        path = fold_ops(
            walk.begin(self.before, len(x), x.shape[1:]), self.forms, rows_of(plan, rows)
        )
        if out is None:
            out = memory((len(x), *path.out_shape), path.dtype)
        Walker(path)(x, out, memory=_walk_memory)
        return out


@dataclass(frozen=True)
class KernelStage(FieldStage):
    """One op, record by record, in its compiled form."""

    word = "kernel"

    form: RowForm

    def run(self, x: Any, plan: Any, rows: slice, out: Array | None, memory: Memory) -> Any:
        """Return a tile after the op."""
        draw = rows_of(plan, rows)[0]
        if out is None:
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


class EditStage(FieldStage):
    """Ops that change uint8 images and keep their shape: all of them on one image after the
    other."""

    word = "edit"

    def can_join(self, empty_draws: Sequence[Draw]) -> bool:
        """Return True for images of bytes."""
        return are_bytes(self.before)

    def add_step(self, visit: Visit, draws: Sequence[Draw], size: Sizes) -> Sizes:
        """Add the edits to a visit; sizes stay."""
        visit.edit(self._edits(draws, size))
        return size

    @property
    def has_maker(self) -> bool:
        """True where there is a core, for images of one size."""
        return core.native is not None and have_values(self.before)

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """Return the edits as threads of the core do them while they read."""
        if core.native is None:
            raise RuntimeError(f"edits: {core.problem}")
        return core.native.edit_maker(self.before.fixed_shape, self.plan(draws, count))

    def plan(self, draws: Sequence[Draw], count: int) -> Any:
        """Return the edits of all images if they have one size, else the draws."""
        if not self.before.uniform:
            return draws
        size = np.array(self.before.fixed_shape[:2], np.int32)
        return self._edits(draws, np.broadcast_to(size, (count, 2)))

    def run(self, x: Any, plan: Any, rows: slice, out: Array | None, memory: Memory) -> Any:
        """Return a tile after the edits."""
        if core.native is None:
            raise RuntimeError(f"edits: {core.problem}")
        if self.before.uniform:
            edits = plan[rows]
        else:
            edits = self._edits(
                rows_of(plan, rows), np.array([image.shape[:2] for image in x], np.int32)
            )
        if out is None:
            out = memory(x.shape, self.after.dtype)
        core.native.edit(np.ascontiguousarray(x), edits, out)
        return out

    def _edits(self, draws: Sequence[Draw], size: Sizes) -> Edits:
        channels = (self.before.shape or (0, 0, 0))[2] or 0
        parts = [
            form.edits(draw, size, channels) for form, draw in zip(self.forms, draws, strict=True)
        ]
        return np.concatenate([part for part in parts if part is not None], axis=1)


class ArrayStage(FieldStage):
    """One op in its array form."""

    word = "array"
    writes = False

    def can_join(self, empty_draws: Sequence[Draw]) -> bool:
        """Return True for a resize, and for a walk with a fill for each channel."""
        if super().can_join(empty_draws):
            return True
        if not are_bytes(self.before):
            return False
        path = self._walk(walk.begin(self.before, 0), empty_draws[self.places[0]])
        if path is None or path.dtype != np.uint8 or not path.colours:
            return False
        return len(path.colours) == self.channels and set(path.colours) <= set(range(256))

    def add_step(self, visit: Visit, draws: Sequence[Draw], size: Sizes) -> Sizes:
        """Add the resize or the walk to a visit; return the sizes behind it."""
        if self.forms[0].resample(draws[0], size) is not None:
            return super().add_step(visit, draws, size)
        return self.add_walk(visit, draws, size, self._fold)[1]

    def _fold(self, begin: Walk | None, draws: Sequence[Draw]) -> Walk:
        """Return the walk of the op, which ``can_join`` found to be one."""
        path = self._walk(begin, draws[0])
        if path is None:
            raise RuntimeError(
                f"a walk over {self.before} folded without records and does not with them"
            )
        return path

    def _walk(self, begin: Walk | None, draw: Draw) -> Walk | None:
        """Return the walk that the op is by itself, with a fill for each channel;
        None if it is not."""
        if begin is None:
            return None
        return self.forms[0].fold(begin.with_(colours=()), draw)

    @cached_property
    def label(self) -> str:
        """The name of its time among the stages of `stats`."""
        if calls_python(self.ops[0]):
            return "python_ops"
        return super().label

    @cached_property
    def checks_values(self) -> bool:
        """True if there are values that the op cannot take."""
        return self.ops[0].traits.check is not None

    def run(self, x: Any, plan: Any, rows: slice, out: Array | None, memory: Memory) -> Any:
        """Return a tile after the op, which may be a view of ``x``; ``out`` is not written to."""
        (op,), (draw,) = self.ops, rows_of(plan, rows)
        if self.checks_values:
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


def _walk_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return scratch("walk", shape, dtype)

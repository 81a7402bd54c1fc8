"""The stage of images that the core visits once: files, or images, through several ops at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import core, stats
from gpuload.core.face import JpegFiles, Maker, Native, Visit
from gpuload.errors import RowError
from gpuload.executors.array.stage import (
    EVERY_ROW,
    Array,
    FieldStage,
    channels_of,
    have_values,
    rows_of,
)
from gpuload.images import native
from gpuload.images.head import read_heads, without_orientation
from gpuload.kernels.walk import Memory
from gpuload.ops.base import HEADS, Draw, Op, Sizes
from gpuload.ragged import Ragged
from gpuload.stats import Watch

RGB = 3  # channels
NO_REGIONS = np.empty((0, 4), np.int32)


@dataclass(frozen=True)
class ImageStage(FieldStage):
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

    decoding: FieldStage | None
    steps: tuple[FieldStage, ...]

    @cached_property
    def label(self) -> str:
        """The name of its time among the stages of `stats`; the core says how much of it is
        decoding."""
        return "ops"

    @cached_property
    def calls_codec(self) -> bool:  # type: ignore[override]  # a constant of other stages
        """True if the core decodes files."""
        return self.decoding is not None and makes_bytes(self.decoding.ops[0])

    @cached_property
    def channels(self) -> int:
        """The channels of the images before the steps."""
        if self.decoding is None:
            return channels_of(self.before)
        return channels_of(self.decoding.after)

    def run(self, x: Any, plan: Any, rows: slice, out: Array | None, memory: Memory) -> Any:
        """Return a tile after the ops; for images of sizes of their own a list, ``memory`` is asked
        for each."""
        draws = plan
        if rows is not EVERY_ROW:
            draws = rows_of(plan, rows)
        if out is None and self.after.uniform:
            out = memory((len(x), *self.after.fixed_shape), self.after.dtype)
        if self.decoding is not None:
            if not isinstance(x, Ragged):
                x = Ragged.of(x, self.before.dtype)
        elif isinstance(x, np.ndarray):
            # The core reads rows without gaps; an op before may have given a view of a larger
            # image.
            x = np.ascontiguousarray(x)
        else:
            x = [np.ascontiguousarray(image) for image in x]
        images, declined = self._write_rows(x, draws, out, memory)
        # The core only says no; Python's forms decode the row, or find the words of the
        # error.
        for row in declined:
            try:
                images[row] = self._single(x[row], rows_of(draws, slice(row, row + 1)))
            except RowError as error:
                raise error.shift_rows(row) from None
        return images

    @property
    def has_maker(self) -> bool:
        """True where the core makes images of images, of one size."""
        return (
            self.decoding is None
            and core.native is not None
            and have_values(self.before, self.after)
        )

    def maker(self, draws: Sequence[Draw], count: int) -> Maker:
        """Return the visit as threads of the core make it while they read."""
        height, width, _ = self.before.fixed_shape
        visit, size = self._visit(
            np.broadcast_to(np.array([height, width], np.int32), (count, 2)), draws
        )
        writes_floats = self.after.dtype == np.float32
        return visit.maker(writes_floats, (height, width), tuple(size[0].tolist()))

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
        codec = native.codec() if self.calls_codec else None
        if core.native is None or (self.decoding is not None and codec is None):
            images: Any = [None] * len(x)
            if out is not None:
                images = out
            return images, range(len(x))
        files: JpegFiles | None = None
        if isinstance(x, np.ndarray):
            size = np.broadcast_to(np.array(x.shape[1:3], np.int32), (len(x), 2))
        elif codec is None:
            size = np.array([image.shape[:2] for image in x], np.int32)
        else:
            files, size = _files(core.native, self.ops[0], x, draws[0])
            count_images(stats.watch(), size)
        visit, size_after = self._visit(size, draws)
        images = out
        if out is None:
            # Memory is taken here, with the interpreter's lock: the core makes no arrays while it
            # works without it.
            images = [memory(self._shape(pixels), self.after.dtype) for pixels in size_after]
        declined = np.empty(len(x), np.int8)
        if codec is None or files is None:
            visit.make_rows(x, images, declined)
        else:
            seconds = visit.decode_rows(codec, files, images, declined)
            stats.watch().move("decode_images", seconds)
        return images, np.flatnonzero(declined).tolist()

    def _visit(self, size: Sizes, draws: Sequence[Draw]) -> tuple[Visit, Sizes]:
        """Return the visit of images of these sizes, and their sizes behind it."""
        if core.native is None:
            raise RuntimeError(f"rows of images: {core.problem}")
        visit = core.native.Visit(len(size), self.channels)
        for step, part in self._step_ops:
            size = step.add_step(visit, draws[part], size)
        return visit, size

    @cached_property
    def _step_ops(self) -> list[tuple[FieldStage, slice]]:
        """The steps, each with its part of the ops."""
        parts, begin = [], len(self.ops) - sum(len(step.ops) for step in self.steps)
        for step in self.steps:
            parts.append((step, slice(begin, begin + len(step.ops))))
            begin += len(step.ops)
        return parts

    def _single(self, x: Array, draws: Sequence[Draw]) -> Array:
        """Return a file or an image after the ops; ``draws`` are of its row alone."""
        image = np.asarray(x)
        if self.decoding is not None:
            image = _run_stage(self.decoding, image, draws[: len(self.decoding.ops)])
            if (row := self._step_through(image, draws)) is not None:
                return row
        for step, part in self._step_ops:
            image = _run_stage(step, image, draws[part])
        return image

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
        channels = channels_of(self.after)
        if self.after.is_channels_first:
            return channels, height, width
        return height, width, channels


def _run_stage(stage: FieldStage, image: Array, draws: Sequence[Draw]) -> Array:
    """Return an image after a stage, without the images beside it."""
    stats.watch().enter(stage.label)
    result: Array = stage.run(image[None], stage.plan(draws, 1), EVERY_ROW, None, np.empty)[0]
    return result


def _files(native: Native, op: Op, files: Ragged, draw: Draw) -> tuple[JpegFiles, Sizes]:
    """Return files as the core takes them, and the size of the part that an op decodes of each."""
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
    jpegs = native.JpegFiles(
        raw=np.ascontiguousarray(files.payload),
        begins=files.offsets[:-1],
        ends=files.offsets[1:],
        heads=heads,
        regions=regions,
    )
    return jpegs, size


def count_images(watch: Watch, size: Any) -> None:
    """Count images that were decoded, of which ``size`` has height and width."""
    if not len(size):
        return
    num_pixels = float(np.prod(size, axis=1, dtype=np.float64).sum())
    watch.count("decode_images.images", len(size))
    watch.count("decode_images.pixels", num_pixels)
    watch.count("decode_images.bytes", RGB * num_pixels)


def makes_bytes(op: Op) -> bool:
    """Return True if an op decodes as the core can."""
    codec = op.traits.codec
    return codec is not None and codec.makes_bytes

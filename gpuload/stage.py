"""Stage: what the reading threads do with a step: read its records, decode raw bytes, draw, and run ops on rows.

Where the array executor runs on the CPU, a step is finished here, part by part, in the slot that becomes the batch. For
any other executor the slot holds what the executor is fed: fields on the host for a CPU, raw blocks for a GPU, where
they are uploaded once and decoded there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload import rawdecode
from gpuload.ahead import Ahead
from gpuload.batch import ALIGN_BYTES, Ring, Slot, aligned
from gpuload.chunk import Chunk
from gpuload.errors import RecordError
from gpuload.executors.base import Executor, Graph, RowError, image_sizes
from gpuload.ops.base import Draw
from gpuload.order import Plan, Start
from gpuload.sources.base import Source
from gpuload.spec import Layout
from gpuload.stats import Counters

Array = NDArray[Any]
CHUNK_RECORDS = 4096  # records whose order and draws are found out at once
SMALL_BYTES = 4096  # arrays up to this size are copied to where they are aligned; larger ones must lie so
Regions = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


@dataclass(frozen=True)
class BlockPlan:
    """What becomes of one raw block: it goes ``direct`` to a region as it is, or its parts are decoded.

    Attributes:
        direct: the region that takes the bytes as they are, or None.
        to_slot: the parts that are decoded into regions.
        to_ops: the parts that are handed to the ops.
    """

    direct: str | None
    to_slot: Layout
    to_ops: Layout


@dataclass(frozen=True)
class Stage:
    """All that a part of a step needs to know; shared by the threads, and only read.

    Attributes:
        source, graph, plan: what is read and made, and in which order.
        executor: runs on rows in the threads if it has ``run``; else None, and the batch is run after it was staged.
        needed: the fields of the source that the batch or an op needs.
        regions: for each array in the slot its dtype and its shape without the first axis.
        device: ``"cpu"``, or ``"gpu:N"`` where blocks stay raw.
        blocks: what becomes of each raw block of the source.
        copies: True if a step is nothing but copies of records, which ``source.copier()`` makes.
        num_parts: into how many parts a work is cut.
        num_steps: how many steps are one work.
    """

    source: Source
    graph: Graph
    plan: Plan
    executor: Any
    needed: frozenset[str]
    regions: Regions
    device: str
    counters: Counters
    blocks: tuple[BlockPlan, ...] = ()
    copies: bool = False
    num_parts: int = 1
    num_steps: int = 1

    def slot_bytes(self) -> int:
        """Return the bytes of a slot."""
        return sum(aligned(_region_bytes(region, self.num_rows)) for region in self.regions.values())

    def can_join_steps(self) -> bool:
        """Return True if several steps can be done as one: cheap records, finished here, whose arrays stay aligned."""
        finished = self.device == "cpu" and (self.executor is not None or not self.graph.ops)
        sizes = [_region_bytes(region, self.plan.batch_size) for region in self.regions.values()]
        return bool(self.source.blocks) and finished and all(n % ALIGN_BYTES == 0 or n <= SMALL_BYTES for n in sizes)

    def draw(self, records: NDArray[np.int64], epoch: int, fields: Mapping[str, Any] | None = None) -> list[Draw]:
        """Return the draws of all ops for some records; ``fields`` has those whose shape varies."""
        spec, known = self.graph.spec_in, fields or {}
        sizes = {name: image_sizes(spec[name], known.get(name), records.size) for name in self.graph.touched}
        return self.graph.draw(seed=self.plan.seed, epoch=epoch, records=records, sizes=sizes)

    @property
    def num_rows(self) -> int:
        """The records of a work, at most."""
        return self.plan.batch_size * self.num_steps

    def views(self, slot: Slot, count: int) -> dict[str, Array]:
        """Return the arrays of a slot, ``[count, ...]`` each, every one aligned."""
        return {
            name: slot.array(self._begins[name], dtype, (count, *shape))
            for name, (dtype, shape) in self.regions.items()
        }

    @cached_property
    def _begins(self) -> dict[str, int]:
        """The byte of a slot where each region begins."""
        sizes = [aligned(_region_bytes(region, self.num_rows)) for region in self.regions.values()]
        return dict(zip(self.regions, accumulate(sizes, initial=0), strict=False))


class Works:
    """The works of an epoch from ``start`` on: ``Steps`` of `reading.py`, which an exception leaves where they were."""

    def __init__(self, stage: Stage, ring: Ring, epoch: int, start: Start) -> None:
        self._stage, self._ring, self._epoch, self._start = stage, ring, epoch, start
        self._step, self._end = start.step, stage.plan.end(start)
        chunked = stage.copies or stage.can_join_steps()
        self._many = -(-CHUNK_RECORDS // stage.num_rows) * stage.num_steps if chunked else 0
        self._chunk: Chunk | None = None
        self._ahead = Ahead(stage.source, stage.plan, epoch, start)

    def __next__(self) -> Work:
        if self._step >= self._end:
            raise StopIteration
        steps = self._next_steps
        self._ahead.wait(steps.stop - 1)
        if self._many and (self._chunk is None or self._step == self._chunk.steps.stop):
            some = range(self._step, min(self._step + self._many, self._end))
            chunk = Chunk(self._stage, some, self._epoch, self._start)
            chunk.draw(self._stage, self._epoch)
            self._chunk = chunk
        work = Work(self._stage, self._ring, steps, self._epoch, self._start, self._chunk)
        self._step = steps.stop
        return work

    @property
    def _next_steps(self) -> range:
        """The steps of the next work."""
        return range(self._step, min(self._step + self._stage.num_steps, self._end))

    def ready(self) -> bool:
        """Return False if the next work would have to wait for storage."""
        return self._step >= self._end or self._ahead.ready(self._next_steps.stop - 1)

    def close(self) -> None:
        """Have storage read nothing more."""
        self._ahead.close()


def make_stage(
    source: Source, graph: Graph, plan: Plan, executor: Executor, names: tuple[str, ...], counters: Counters
) -> Stage:
    """Return the stage for an executor: the slot holds its results, what it is fed, or raw blocks for a GPU."""
    needed = frozenset(name for name in source.spec.names if name in names or name in graph.touched)
    on_rows = executor if hasattr(executor, "run") and executor.device == "cpu" else None
    if executor.device != "cpu" and source.blocks:
        regions: Regions = {_block(i): (np.dtype(np.uint8), (one.record_bytes,)) for i, one in enumerate(source.blocks)}
    else:
        spec = graph.spec_out if on_rows else source.spec
        held = [spec[name] for name in spec.names if name in (names if on_rows else needed)]
        regions = {field.name: (field.dtype, field.fixed_shape) for field in held if field.uniform}
    stage = Stage(source, graph, plan, on_rows, needed, regions, executor.device, counters)
    stage = replace(stage, blocks=tuple(_block_plan(stage, i) for i in range(len(source.blocks))))
    direct = len(stage.blocks) == 1 and stage.blocks[0].direct is not None and not graph.ops
    return replace(stage, copies=direct and source.copier() is not None)


class Work:
    """One step, or some short ones, on their way through the threads; see ``reading.Step``.

    Attributes:
        steps: the steps.
        records, valid: of all of them.
        arrays: by name, in the slot, which begins at ``address``.
        lists: fields whose shape varies, by name.
        draws: for each part the draws of every op, where the ops run later.
        fields: what an executor was fed, until its batch is finished.
        chunk: what is known of these steps, and maybe of others; None until it is prepared where nobody asked before.
        failed: True if not all of its parts could be done.
    """

    def __init__(
        self, stage: Stage, ring: Ring, steps: range, epoch: int, start: Start, chunk: Chunk | None = None
    ) -> None:
        self.stage, self.ring = stage, ring
        self.steps, self.epoch, self.start, self.chunk = steps, epoch, start, chunk
        self.failed = False
        self.num_parts = stage.num_parts
        self.lists: dict[str, list[Array]] = {}
        self.fields: dict[str, Any] = {}
        self.draws: list[list[Draw]] = [[] for _ in range(self.num_parts)]

    def prepare(self) -> None:
        """Find out the records, if they are not known, and take a slot."""
        self.chunk = self.chunk or Chunk(self.stage, self.steps, self.epoch, self.start)
        rows = self.chunk.rows(self.steps)
        self.records, self.valid, self._first_row = self.chunk.records[rows], self.chunk.valid[rows], rows.start
        slot = self.ring.take()
        self.address = slot.address
        self.arrays = self.stage.views(slot, self.records.size)

    def rows(self, step: int) -> slice:
        """Return the rows of one of the steps."""
        assert self.chunk is not None  # it is prepared
        rows = self.chunk.rows(range(step, step + 1))
        return slice(rows.start - self._first_row, rows.stop - self._first_row)

    def alone(self, step: int) -> Work:
        """Return a work of just this step, not done yet."""
        return Work(self.stage, self.ring, range(step, step + 1), self.epoch, self.start)

    def do(self, part: int) -> None:
        """Read, decode and run the ops on the rows of one part."""
        count = self.records.size
        a, b = count * part // self.num_parts, count * (part + 1) // self.num_parts
        if a < b:
            began = time.perf_counter()
            try:
                fields = self._read(a, b)
                read = time.perf_counter()
                self._run(part, a, b, fields)
            except RowError as error:
                raise self.damaged(error, a) from None
            self.stage.counters.add(read_s=read - began, ops_s=time.perf_counter() - read)

    def damaged(self, error: RowError, begin: int = 0) -> RecordError:
        """Return the error for a row that cannot be used; rows are counted from row ``begin`` of the step."""
        place = self.stage.source.where(int(self.records[begin + error.row]))
        return RecordError(
            f"{place}: {error.reason}",
            cause=error.cause or "the record is damaged, or holds something else than the ops are for",
            remedy=error.remedy or "repair it, or leave it out with source.select(...)",
        )

    def _read(self, a: int, b: int) -> dict[str, Any]:
        """Return the fields that the ops need, and put those that stay in the slot into their rows."""
        source, records = self.stage.source, self.records[a:b]
        if not source.blocks:
            return self._place(source.read(records), a, b)
        raws = [self._raw(i, a, b) for i in range(len(source.blocks))]
        source.fill(records, np.arange(b - a, dtype=np.int64), raws)
        fields: dict[str, Any] = {}
        for raw, plan in zip(raws, self.stage.blocks, strict=True):
            if plan.to_slot.parts:
                out = {part.field.name: self.arrays[part.field.name][a:b] for part in plan.to_slot.parts}
                rawdecode.decode_into(raw, plan.to_slot, out)
            if plan.to_ops.parts:
                fields.update(rawdecode.decode(np, raw, plan.to_ops))
        return fields

    def _raw(self, block: int, a: int, b: int) -> NDArray[np.uint8]:
        """Return where the raw bytes of a block go: into the slot where they stay there, else into scratch memory."""
        layout = self.stage.source.blocks[block]
        direct = self.stage.blocks[block].direct
        if direct is not None:
            return self.arrays[direct][a:b].view(np.uint8).reshape(b - a, layout.record_bytes)
        return _scratch(block, (b - a) * layout.record_bytes).reshape(b - a, layout.record_bytes)

    def _place(self, values: Mapping[str, Any], a: int, b: int) -> dict[str, Any]:
        fields = {}
        for name in self.stage.needed:
            touched_here = name in self.stage.graph.touched and self.stage.executor is not None
            if touched_here:
                fields[name] = values[name]
            elif name in self.arrays:
                np.copyto(self.arrays[name][a:b], values[name])
            else:
                self._list(name)[a:b] = values[name]
        return fields

    def _run(self, part: int, a: int, b: int, fields: dict[str, Any]) -> None:
        graph = self.stage.graph
        if not graph.ops:
            return
        out = {name: self.arrays[name][a:b] for name in graph.touched if name in self.arrays}
        if self.chunk is not None and self.chunk.planned is not None:
            rows = slice(self._first_row + a, self._first_row + b)
            made = self.stage.executor.run_rows(fields, self.chunk.planned, rows, out)
        else:
            varying = {name: fields[name] if name in fields else self.lists[name][a:b] for name in self._varying}
            draws = self.stage.draw(self.records[a:b], self.epoch, varying)
            if self.stage.executor is None:
                self.draws[part] = draws
                return
            made = self.stage.executor.run(fields, draws, out)
        for name in graph.touched - out.keys():
            self._list(name)[a:b] = made[name]

    @property
    def _varying(self) -> list[str]:
        graph = self.stage.graph
        return [name for name in graph.touched if not graph.spec_in[name].uniform]

    def _list(self, name: str) -> list[Array]:
        return self.lists.setdefault(name, [np.empty(0)] * self.records.size)

    def merged_draws(self) -> list[Draw]:
        """Return the draws of the whole step, in the order of its rows."""
        parts = [draws for draws in self.draws if draws]
        return [
            {key: np.concatenate([draws[op][key] for draws in parts]) for key in parts[0][op]}
            for op in range(len(parts[0]) if parts else 0)
        ]

    def inputs(self) -> dict[str, Any]:
        """Return the needed fields of a staged step, on its device; host-only fields stay on the host."""
        if self.stage.device == "cpu":
            return {**self.arrays, **self.lists}
        fields: dict[str, Any] = dict(self.lists)
        for i, layout in enumerate(self.stage.source.blocks):
            fields.update(_upload_block(self.arrays[_block(i)], self._needed(layout), self.stage.device))
        if not self.stage.source.blocks:
            for name, values in self.arrays.items():
                host_only = self.stage.source.spec[name].host_only
                fields[name] = values.copy() if host_only else devices.upload(values, self.stage.device)
        devices.synchronize(self.stage.device)  # the slot is free again when this step is dropped
        return fields

    def _needed(self, layout: Layout) -> Layout:
        return replace(layout, parts=tuple(part for part in layout.parts if part.field.name in self.stage.needed))


def _upload_block(raw: NDArray[np.uint8], layout: Layout, device: str) -> dict[str, Any]:
    """Upload a raw block once and decode its fields on the GPU; host-only fields are decoded on the host."""
    host = tuple(part for part in layout.parts if part.field.host_only)
    numeric = tuple(part for part in layout.parts if not part.field.host_only)
    fields: dict[str, Any] = {}
    if host:
        decoded = rawdecode.decode(np, raw, replace(layout, parts=host))
        fields.update({name: np.array(values) for name, values in decoded.items()})
    if numeric:
        on_gpu = devices.upload(raw, device)
        fields.update(rawdecode.decode(devices.xp(device), on_gpu, replace(layout, parts=numeric)))
    return fields


def _block(number: int) -> str:
    return f"block {number}"


def _region_bytes(region: tuple[np.dtype[Any], tuple[int, ...]], count: int) -> int:
    return count * region[0].itemsize * prod(region[1])


def _block_plan(stage: Stage, block: int) -> BlockPlan:
    layout, direct = stage.source.blocks[block], _direct_region(stage, block)
    by_ops = stage.graph.touched if stage.executor is not None else frozenset()
    to_ops = tuple(part for part in layout.parts if part.field.name in by_ops)
    held = stage.regions.keys() - by_ops if direct is None else frozenset()
    to_slot = tuple(part for part in layout.parts if part.field.name in held)
    return BlockPlan(direct, replace(layout, parts=to_slot), replace(layout, parts=to_ops))


def _direct_region(stage: Stage, block: int) -> str | None:
    """Return the region that the raw bytes of a block go to as they are, or None where they must be decoded."""
    if _block(block) in stage.regions:
        return _block(block)
    layout = stage.source.blocks[block]
    if not layout.is_direct:
        return None
    name = layout.parts[0].field.name
    made_by_ops = stage.executor is not None and name in stage.graph.touched
    return name if name in stage.regions and not made_by_ops else None


_local = threading.local()


def _scratch(key: int, num_bytes: int) -> NDArray[np.uint8]:
    """Return memory of this thread for raw bytes; it holds until the thread's next part."""
    buffers: dict[int, NDArray[np.uint8]] = _local.__dict__.setdefault("buffers", {})
    if key not in buffers or buffers[key].size < num_bytes:
        buffers[key] = np.empty(num_bytes, np.uint8)
    return buffers[key][:num_bytes]

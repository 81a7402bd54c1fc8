"""Step: one step on its way, from record numbers to arrays in a slot. Done by workers, in one or several parts.

    prepare()     memory, and which records these are if nobody has found out        once
    do(part)      read, decode raw bytes, draw, run ops: some of the rows            once a part, in any threads
    fields, draws what the finished step holds                                       for whoever takes the step

Short steps are done several at a time: then a ``Step`` is some steps that follow one another, which share a slot.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuload import kernels, rawdecode
from gpuload.errors import RecordError, RowError
from gpuload.ops.base import Draw
from gpuload.order import Position
from gpuload.pipeline.recipe import Recipe, Route
from gpuload.pipeline.ring import Ring
from gpuload.pipeline.stretch import Stretch, draw
from gpuload.ragged import Ragged, joined
from gpuload.sources.leaf import Share, Values, fill, values
from gpuload.spec import Layout
from gpuload.stats import Counters

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


class Step:
    """One step, or some short ones that follow one another.

    Args:
        recipe: what becomes of it.
        ring: where its memory comes from.
        counters: ``read_s`` and ``ops_s`` are added to.
        position: of the first of the steps.
        num_steps: how many there are.
        stretch: in which these steps are; None to find it out for them alone.

    Attributes:
        records: int64 ``[n]``, the records of all its steps.
        valid: bool ``[n]``, False where a record only pads a batch.
        error: what its work raised, None if all is well; whoever raises it takes it away.
        failed: True if its work raised something, so that it holds no fields.
        alone: for some short steps of which one failed: each by itself.
        uncompiled: True if NumPy did something for it that a kernel will do once it is compiled.
    """

    def __init__(
        self,
        recipe: Recipe,
        ring: Ring,
        counters: Counters,
        position: Position,
        num_steps: int = 1,
        stretch: Stretch | None = None,
    ) -> None:
        self.recipe, self.position, self.num_steps = recipe, position, num_steps
        self.error: BaseException | None = None
        self.failed = False
        self.alone: list[Step] = []
        self._ring, self._counters, self._stretch = ring, counters, stretch
        self._varying: dict[str, list[Any]] = {}  # values of fields that are in no region, a list entry a part
        self._draws: list[list[Draw]] = [[] for _ in range(recipe.num_parts)]
        self._errors: dict[int, BaseException] = {}
        self._prepared = False
        self.uncompiled = stretch is not None and stretch.uncompiled
        self._preparing = threading.Lock()
        self._num_done = itertools.count(1)  # next() is one call of C: each part gets a number of its own

    @property
    def num_parts(self) -> int:
        """Into how many parts the work is cut."""
        return self.recipe.num_parts

    def work(self, part: int) -> bool:
        """Do a part; return True to whoever did the last one. What goes wrong is kept in ``error``."""
        missed = kernels.num_missed()
        try:
            with self._preparing:
                if not self._prepared and not self._errors:
                    self.prepare()
                    self._prepared = True
            if self._prepared:
                self.do(part)
        except BaseException as error:
            self._errors[part] = error
        if kernels.num_missed() > missed:
            self.uncompiled = True
        if next(self._num_done) < self.num_parts:
            return False
        if self._errors:
            errors, self._errors = self._errors, {}
            self._fail(errors[min(errors)])
        return True

    def run(self) -> Step:
        """Do all of it in the calling thread, and return it."""
        for part in range(self.num_parts):
            self.work(part)
        return self

    def _fail(self, error: BaseException) -> None:
        """Keep an error; of several steps only the one at fault should raise it, so each is done anew by itself."""
        if self.num_steps == 1 or not isinstance(error, Exception):
            self.error, self.failed = error, True
            return
        plan = self.recipe.plan
        positions = [plan.at(self.position, self.position.step + i) for i in range(self.num_steps)]
        self.alone = [Step(self.recipe, self._ring, self._counters, position).run() for position in positions]

    def prepare(self) -> None:
        """Find out the records and take memory for them."""
        self.recipe.source.check_open()
        self._stretch = self._stretch or Stretch(self.recipe, self.position, self.num_steps)
        self._first, end = self._stretch.rows(self.position.step, self.num_steps)
        self.records, self.valid = self._stretch.records[self._first : end], self._stretch.valid[self._first : end]
        self._slot = self._ring.take(self.recipe.slot_bytes)
        self.arrays = self.recipe.arrays(self._slot, self.records.size)

    def do(self, part: int) -> None:
        """Read, decode and run the ops on the rows of one part."""
        count = self.records.size
        begin, end = count * part // self.num_parts, count * (part + 1) // self.num_parts
        if begin == end:
            return
        began = time.perf_counter()
        try:
            fields = self._read(part, begin, end)
            read = time.perf_counter()
            self._run(part, begin, end, fields)
        except RowError as error:
            raise self.damaged(error, begin) from None
        self._counters.add(read_s=read - began, ops_s=time.perf_counter() - read)

    def damaged(self, error: RowError, begin: int = 0) -> RecordError:
        """Return the error for a row that cannot be used; its rows are counted from row ``begin`` of the step."""
        return error.of_record(self.recipe.source.where(int(self.records[begin + error.row])))

    def _read(self, part: int, begin: int, end: int) -> dict[str, Any]:
        """Put the fields that stay as they are in their places, and return those that the ops are run on here."""
        shares = self._known.shares(self._first + begin, self._first + end)
        fields: dict[str, Any] = {}
        for route in self.recipe.routes:
            if route.layout is None:
                fields.update(self._read_varying(route, shares, part, end - begin))
            else:
                fields.update(self._read_fixed(route, route.layout, shares, begin, end))
        return fields

    def _read_fixed(self, route: Route, layout: Layout, shares: list[Share], begin: int, end: int) -> dict[str, Any]:
        record_bytes = layout.record_bytes
        if route.direct is not None:
            raw = _as_raw(self.arrays[route.direct][begin:end], record_bytes)
        else:
            raw = _scratch(route.group, (end - begin) * record_bytes).reshape(end - begin, record_bytes)
        fill(shares, route.group, layout, raw)
        if route.to_slot.parts:
            names = [part.field.name for part in route.to_slot.parts]
            rawdecode.decode_into(raw, route.to_slot, {name: self.arrays[name][begin:end] for name in names})
        return rawdecode.decode(np, raw, route.to_ops) if route.to_ops.parts else {}

    def _read_varying(self, route: Route, shares: list[Share], part: int, count: int) -> dict[str, Any]:
        recipe, ops_here = self.recipe, self.recipe.executor is not None
        memory = self._payload if recipe.device != "cpu" else None
        fields = {}
        read = values(shares, route.group, route.spec, count, memory=memory)
        for name, one in zip(route.spec.names, read, strict=True):
            if ops_here and name in recipe.graph.touched:
                fields[name] = one
            elif name in self.arrays:
                begin = self.records.size * part // self.num_parts
                np.copyto(self.arrays[name][begin : begin + count], cast(Array, one))  # its field is uniform
            elif name in recipe.names or name in recipe.graph.touched:
                self._keep(part, name, one)
        return fields

    def _run(self, part: int, begin: int, end: int, fields: dict[str, Any]) -> None:
        """Draw, and run the ops where they run on rows."""
        recipe, graph = self.recipe, self.recipe.graph
        if not graph.ops:
            return
        draws = self._known.draws(self._first + begin, self._first + end)
        if draws is None:
            known = {name: fields[name] if name in fields else self._varying[name][part] for name in self._drawn_from}
            draws = draw(recipe, self.position.epoch, self.records[begin:end], known)
        if recipe.executor is None:
            self._draws[part] = draws
            return
        out = {name: self.arrays[name][begin:end] for name in graph.touched if name in self.arrays}
        made = recipe.executor.run(fields, draws, out)
        for name in graph.touched - out.keys():
            self._keep(part, name, made[name])

    @property
    def _known(self) -> Stretch:
        if self._stretch is None:
            raise RuntimeError("a step is prepared before it is done")
        return self._stretch

    @property
    def _drawn_from(self) -> list[str]:
        """The fields whose values must be looked at before anything is drawn: their sizes vary."""
        graph = self.recipe.graph
        return [name for name in graph.touched if not graph.spec_in[name].uniform]

    def _keep(self, part: int, name: str, one: Any) -> None:
        self._varying.setdefault(name, [None] * self.num_parts)[part] = one

    def _payload(self, num_bytes: int) -> Bytes:
        """Return memory for values of varying length that a GPU will copy from: page-locked, and used again."""
        return self._ring.take(num_bytes).array(0, np.dtype(np.uint8), (num_bytes,))

    # What the finished step holds

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that the step holds: arrays in the slot, and what is in no region."""
        return {**self.arrays, **self.varying}

    @property
    def varying(self) -> dict[str, Values]:
        """The fields that are in no region of the slot."""
        return {name: _together(parts) for name, parts in self._varying.items()}

    def release(self) -> None:
        """Let go of the step's memory; what it was, records and all, is still known."""
        self.arrays, self._varying = {}, {}
        del self._slot

    @property
    def draws(self) -> list[Draw]:
        """The draws of every op for all rows."""
        parts = [draws for draws in self._draws if draws]
        if len(parts) == 1:
            return parts[0]
        return [
            {key: np.concatenate([draws[op][key] for draws in parts]) for key in parts[0][op]}
            for op in range(len(parts[0]) if parts else 0)
        ]

    def rows(self, step: int) -> slice:
        """Return the rows of one of the steps."""
        begin, end = self._known.rows(step)
        return slice(begin - self._first, end - self._first)


def _as_raw(rows: Array, record_bytes: int) -> Bytes:
    """Return the bytes of rows that lie side by side, uint8 ``[n, record_bytes]``, in the same memory."""
    return rows.reshape(-1).view(np.uint8).reshape(len(rows), record_bytes)


def _together(parts: list[Values | None]) -> Values:
    """Return what the parts of a step made of a field that varies, in the order of the rows."""
    some = [part for part in parts if part is not None]
    if len(some) == 1:
        return some[0]
    ragged = [part for part in some if isinstance(part, Ragged)]
    return joined(ragged) if len(ragged) == len(some) else [value for part in some for value in part]


_local = threading.local()


def _scratch(key: int, num_bytes: int) -> Bytes:
    """Return memory of this thread for raw bytes; it holds until the thread's next part."""
    buffers: dict[int, Bytes] = _local.__dict__.setdefault("buffers", {})
    if key not in buffers or buffers[key].size < num_bytes:
        buffers[key] = np.empty(num_bytes, np.uint8)
    return buffers[key][:num_bytes]

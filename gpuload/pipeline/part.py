"""Part: some rows of a step, done by a worker: read, decoded, drawn for, and run through the ops
that act on rows."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuload import rawdecode
from gpuload.errors import RowError, TooLargeError
from gpuload.graph.graph import image_sizes
from gpuload.ops.base import Draw
from gpuload.pipeline.packing import Array, Bytes, ValuePacking
from gpuload.pipeline.recipe import Route
from gpuload.pipeline.ring import aligned
from gpuload.pipeline.rows import UINT8, StepRows
from gpuload.pipeline.stretch import Stretch, draw
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Share
from gpuload.sources.memory import lending
from gpuload.sources.shares import fill, values
from gpuload.spec import Field, Layout
from gpuload.stats import Counters, Watch


class StepPart:
    """One part of the rows of a step; used by one thread at a time.

    Args:
        rows: of the step.
        number: of the part.
        checks_heads: True if the heads of images that no op decodes are read, as they alone show
            damage.

    Attributes:
        begin, end: its first row, and the one behind it.
        varying: its values of fields that are in no region of the slot.
        draws: of each op that is run on whole batches.
        draws_of_images: of each op, for whole images, where batches carry their draws.
        taken_bytes: of memory beside the slot.
        value_bytes: of values that go to a GPU with the slot, behind its arrays.
        ops_s: seconds that the ops took.
    """

    def __init__(self, rows: StepRows, number: int, *, checks_heads: bool) -> None:
        self.rows, self.number, self._checks_heads = rows, number, checks_heads
        self.begin, self.end = rows.bounds(number)
        self.varying: dict[str, Any] = {}
        self.draws: list[Draw] = []
        self.draws_of_images: list[Draw] = []
        self.taken_bytes = self.value_bytes = 0
        self.ops_s = 0.0

    def make(self, counters: Counters) -> None:
        """Do all rows.

        Raises:
            RowError, RecordError: a record cannot be used.
            TooLargeError: the memory is too small.
        """
        rows = self.rows
        try:
            self.make_rows(self.begin, self.end, rows.stretch, rows.first + self.begin, counters)
        except MemoryError as error:
            if isinstance(error, TooLargeError):
                raise
            place = rows.recipe.source.where(int(rows.records[self.begin]))
            raise TooLargeError(
                f"the ops of {self.end - self.begin} records, the first of them {place}",
                cause=f"there is not so much memory: {error}",
                remedy="have the ops make smaller images, or use a smaller batch_size",
            ) from None

    def make_rows(
        self, begin: int, end: int, stretch: Stretch, first: int, counters: Counters
    ) -> None:
        """Do some of the rows; row ``begin`` is row ``first`` of the stretch."""
        rows, after = self.rows, first + end - begin
        with counters.watch() as watch:
            watch.enter("draw")
            shares, draws = stretch.shares(first, after), stretch.draws(first, after)
            fields = self._read(begin, end, shares, watch)
            begin_s = time.perf_counter()
            if rows.recipe.graph.ops:
                partners = None
                if stretch.partners is not None:
                    partners = stretch.partners[first:after]
                self._run(begin, end, fields, draws, partners, watch)
            self.ops_s += time.perf_counter() - begin_s
        if watch.spans:
            counters.trace_watch(
                watch, epoch=rows.position.epoch, step=rows.position.step, num_steps=rows.num_steps
            )

    # Reading

    def _read(self, begin: int, end: int, shares: list[Share], watch: Watch) -> dict[str, Any]:
        """Put the fields that stay as they are in their places, and return those that the ops are
        run on here."""
        fields: dict[str, Any] = {}
        for route in self.rows.recipe.routes:
            watch.enter("read")
            if route.is_direct:  # read when the step goes to the GPU
                continue
            if route.card_fields and self.rows.card is not None:
                self._read_missing(route, self.rows.card.uploads, begin, end, watch)
            elif route.layout is None:
                fields.update(self._read_varying(route, shares, begin, end))
            else:
                fields.update(self._read_fixed(route, route.layout, shares, begin, end, watch))
        return fields

    def _read_missing(
        self, route: Route, uploads: NDArray[np.int64], begin: int, end: int, watch: Watch
    ) -> None:
        """Read the rows that do not lie on the GPU, to where they stand among all that do not."""
        first, after = np.searchsorted(uploads, [begin, end]).tolist()
        if first == after:
            return
        shares = self.rows.recipe.source.resolve(self.rows.records[uploads[first:after]])
        try:
            if route.layout is None:
                self._read_varying(route, shares, first, after)
            else:
                self._read_fixed(route, route.layout, shares, first, after, watch)
        except RowError as error:
            raise error.shift_rows(int(uploads[first + error.row]) - begin - error.row) from None

    def _read_fixed(
        self, route: Route, layout: Layout, shares: list[Share], begin: int, end: int, watch: Watch
    ) -> dict[str, Any]:
        """Read records of fixed size: fields of the slot go to their rows there, those of the ops
        are returned.

        The raw bytes themselves go to the slot if the batch, or a GPU, takes them as they are; else
        to scratch memory.
        """
        arrays, record_bytes = self.rows.arrays, layout.record_bytes
        if route.direct is not None:
            region = arrays[route.direct][begin:end]
            raw = region.reshape(-1).view(np.uint8).reshape(len(region), record_bytes)
        else:
            raw = _scratch(route.group, (end - begin) * record_bytes).reshape(
                end - begin, record_bytes
            )
        fill(shares, route.group, layout, raw)
        watch.count("read.bytes", raw.nbytes)
        if route.to_slot.parts or route.to_ops.parts:
            watch.enter("decode_raw")
            watch.count("decode_raw.bytes", raw.nbytes)
        if route.to_slot.parts:
            names = [part.field.name for part in route.to_slot.parts]
            rawdecode.decode_into(
                raw, route.to_slot, {name: arrays[name][begin:end] for name in names}
            )
        if route.to_ops.parts:
            return rawdecode.decode(np, raw, route.to_ops)
        return {}

    def _read_varying(
        self, route: Route, shares: list[Share], begin: int, end: int
    ) -> dict[str, Any]:
        recipe, arrays, fields, memory = self.rows.recipe, self.rows.arrays, {}, None
        if recipe.device != "cpu":
            memory = self._payload
            # Values of several parts are copied when all are there.
            if recipe.num_parts == 1 and all(
                field.text or recipe.goes_up(field) for field in route.spec
            ):
                memory = self._beside_arrays
        with lending(self._payload):
            read = values(shares, route.group, route.spec, end - begin, memory=memory)
        for name, value in zip(route.spec.names, read, strict=True):
            if name in recipe.host.touched:
                fields[name] = value
            elif name in arrays:
                np.copyto(arrays[name][begin:end], cast(Array, value))  # its field is uniform
            elif name in recipe.names or name in recipe.rest.touched:
                if self._checks_heads and name not in recipe.graph.touched:
                    image_sizes(route.spec[name], value, end - begin)
                if recipe.device != "cpu" and not isinstance(value, Ragged):
                    value = self._pack(value, route.spec[name], self.packing(end - begin))
                self.varying[name] = value
        return fields

    # Ops

    def _run(
        self,
        begin: int,
        end: int,
        fields: dict[str, Any],
        draws: list[Draw] | None,
        partners: NDArray[np.int32] | None,
        watch: Watch,
    ) -> None:
        """Draw, and run the ops where they run on rows."""
        rows, recipe = self.rows, self.rows.recipe
        graph, host = recipe.graph, recipe.host
        if draws is None or recipe.labels is not None:
            watch.enter("draw")
            field_values = self._values_to_draw({**self.varying, **fields})
            words = recipe, rows.position.epoch, rows.records[begin:end], field_values, partners
            if draws is None:
                draws = draw(graph, *words)
            if recipe.labels is not None:
                self.draws_of_images = draw(graph.without_regions, *words)
        if recipe.rest.ops:
            self.draws = [
                op_draw for place, op_draw in enumerate(draws) if place not in recipe.on_host
            ]
            draws = [draws[place] for place in recipe.on_host]
        if recipe.executor is None:
            return
        watch.enter("ops")
        out = {name: rows.arrays[name][begin:end] for name in host.results if name in rows.arrays}
        result_names = (host.results - out.keys()).intersection(
            (*recipe.names, *recipe.rest.touched)
        )
        packing = None
        if recipe.device != "cpu":
            packing = self.packing(end - begin)
        results = recipe.executor.run(fields, draws, out, result_names, packing)
        watch.count(f"{watch.stage}.bytes", sum(array.nbytes for array in out.values()))
        for name in result_names:
            value = results[name]
            if packing is not None:
                value = self._pack(value, host.spec_out[name], packing)
            self.varying[name] = value

    def _values_to_draw(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that draws depend on: their sizes vary, or draws need their values."""
        graph = self.rows.recipe.graph
        return {
            name: fields[name]
            for name in graph.touched
            if not graph.spec_in[name].uniform or name in graph.fields_to_draw
        }

    # Memory for values that vary in size

    def packing(self, num_rows: int) -> ValuePacking:
        """Return the memory from which a GPU gets the values of some rows."""
        return ValuePacking(self._behind, self._payload, num_rows)

    def _pack(self, value: Any, field: Field, packing: ValuePacking) -> Any:
        """Return values that a GPU will get in its memory; those of several parts are copied when
        all are there."""
        is_joined = self.rows.recipe.num_parts > 1 and not isinstance(value, list)
        if field.host_only or is_joined:
            return value
        return packing.pack(value)

    def _behind(self, num_bytes: int) -> tuple[Bytes, int] | None:
        """Return the slot and the place of so many bytes behind its arrays; None if there is no
        room for them."""
        self.value_bytes += aligned(num_bytes)
        return self.rows.place_behind(num_bytes)

    def _beside_arrays(self, num_bytes: int) -> Bytes:
        """Return memory for values of varying length that a GPU gets: behind the arrays of the slot
        if they fit."""
        if (place := self._behind(num_bytes)) is None:
            return self._payload(num_bytes)
        slot, begin = place
        return np.ndarray((num_bytes,), UINT8, slot, begin)

    def _payload(self, num_bytes: int) -> Bytes:
        """Return memory for values of varying length, used again; page-locked where a GPU will copy
        from it."""
        self.taken_bytes += num_bytes
        return self.rows.ring.take(num_bytes).array(0, UINT8, (num_bytes,))


_local = threading.local()


def _scratch(key: int, num_bytes: int) -> Bytes:
    """Return memory of this thread for raw bytes; it holds until the thread's next part."""
    buffers: dict[int, Bytes] = _local.__dict__.setdefault("buffers", {})
    if key not in buffers or buffers[key].size < num_bytes:
        buffers[key] = np.empty(num_bytes, np.uint8)
    return buffers[key][:num_bytes]

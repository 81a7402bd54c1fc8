"""Step: one step on its way, from record numbers to arrays in a slot. Done by workers, in one or
several parts.

    prepare()     memory, and which records these are, if not known yet              once
    do(part)      read, decode raw bytes, draw, run ops: some of the rows            once a part, in any threads
    fields, draws the content of the finished step                                   for the consumer

Short steps are done several at a time: then a ``Step`` is some steps that follow one another, which
share a slot.

Damage  Where other records are to stand for damaged ones (`damage.py`), a part that fails is done
        again in pieces, which finds the rows at fault; each gets its substitute, and then the part
        is done once more. Records that have failed before are tried by themselves first, so that no
        work of others is lost by them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from gpuload import rawdecode
from gpuload.batch import Batch
from gpuload.core.face import Copies, Queue
from gpuload.device import Bundle, Lane, Views, view_at
from gpuload.errors import RecordError, RowError, TooLargeError
from gpuload.graph.graph import image_sizes
from gpuload.ops.base import HEADS, PARTNER, Draw
from gpuload.order import Position
from gpuload.pipeline.card import CardPlaces, CardShare, card_shares, find_rows
from gpuload.pipeline.damage import Damage, is_damage
from gpuload.pipeline.recipe import Recipe, Route
from gpuload.pipeline.ring import ALIGN_BYTES, Ring, aligned, aligned_copy
from gpuload.pipeline.stretch import Stretch, draw
from gpuload.ragged import Ragged, concatenate, offsets_of
from gpuload.sources.leaf import Share, Values, fill, places, values
from gpuload.sources.memory import Memory, lending
from gpuload.sources.reading import record_error
from gpuload.spec import Field, Layout
from gpuload.stats import Counters, Watch
from gpuload.storage.direct import DirectReader

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

UINT8 = np.dtype(np.uint8)
VALUES_BYTES = 1 << 22  # of a piece of memory for values that the slot has no room for


class CardRowError(Exception):
    """Another record is needed in a row that lies on the GPU: the step is done anew, and reads that
    row."""


class Piece(NamedTuple):
    """One of some steps that were done together, cut out by the worker, so that the consumer has
    little to do.

    Attributes:
        batch: the batch, unless some of its fields have to be copied before it is handed out.
        amounts: how many rows are valid, and the bytes of its fields.
        after: the position behind it.
        unaligned: the names of its fields that do not begin where frameworks need it.
    """

    batch: Batch
    amounts: tuple[int, int]
    after: Position
    unaligned: list[str]


class Step:
    """One step, or some short ones that follow one another.

    Args:
        recipe: how it becomes a batch.
        ring: where its memory comes from.
        counters: the times of its stages are added to.
        position: of the first of the steps.
        num_steps: how many there are.
        stretch: in which these steps are; None to find it out for them alone.
        damage: the treatment of damaged records; None to raise an error for each.
        attempts: for rows whose record is known to be damaged: which attempt at another one to
            begin with.
        queue: threads of the core that do the step if it is only copied; None to do all in Python's
            threads.

    Attributes:
        records: int64 ``[n]``, the records of all its steps.
        valid: bool ``[n]``, False where a record only pads a batch, or stands for one that is
            skipped.
        attempts: for each row in which another record stands for a damaged one, how many were
            tried.
        error: raised by its work, None if all is well; the code that raises it again takes it away.
        is_failed: True if its work raised an error, so that it holds no fields.
        singles: for some short steps of which one failed: each by itself.
        ops_s: seconds that the ops of its parts took, once it is done; 0.0 before.
        copies: the part of these steps that the queue does; None if they are done without it.
        pieces: each of the steps, if the slot holds all that a batch has; else nothing.
        card: where rows lie that are in the GPU's memory already; None where the source keeps none
            there.
    """

    def __init__(
        self,
        recipe: Recipe,
        ring: Ring,
        counters: Counters,
        position: Position,
        num_steps: int = 1,
        stretch: Stretch | None = None,
        *,
        damage: Damage | None = None,
        attempts: Mapping[int, int] | None = None,
        queue: Queue | None = None,
    ) -> None:
        self.recipe, self.position, self.num_steps = recipe, position, num_steps
        self.error: BaseException | None = None
        self.is_failed, self.ops_s = False, 0.0
        self.singles: list[Step] = []
        self.pieces: list[Piece] = []
        self.card: CardPlaces | None = None
        self.attempts = dict(attempts or {})
        self._ring, self._counters, self._stretch, self._damage = ring, counters, stretch, damage
        self._varying: dict[
            str, list[Any]
        ] = {}  # values of fields that are in no region, a list entry a part
        self._taken_bytes = [0] * recipe.num_parts  # beside the slot
        self._value_bytes = [
            0
        ] * recipe.num_parts  # of values that go to a GPU with the slot, behind its arrays
        self._draws: list[list[Draw]] = [[] for _ in range(recipe.num_parts)]
        self._draws_of_images: list[list[Draw]] = [
            [] for _ in range(recipe.num_parts)
        ]  # whole ones, for ``drawn``
        self._errors: dict[int, BaseException] = {}
        self.copies: Copies | None = None
        self._queue = queue
        self._prepared = False
        self._preparing = threading.Lock()
        self._num_done = itertools.count(
            1
        )  # next() is one call of C: each part gets a number of its own

    @property
    def num_done(self) -> int:
        """How many of the steps are done."""
        if self.copies is None:
            return self.num_steps
        return self.copies.num_done

    @property
    def num_bytes(self) -> int:
        """The bytes of its arrays in the slot."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def num_read_bytes(self) -> int:
        """The bytes of its records of fixed size."""
        return self.recipe.record_bytes * self.records.size

    @property
    def num_parts(self) -> int:
        """Into how many parts the work is cut."""
        return self.recipe.num_parts

    def work(self, part: int) -> bool:
        """Do a part; return True to the thread that did the last one. An error is kept in
        ``error``."""
        try:
            with (
                self._preparing
            ):  # parts run in several threads: the first prepares the step, the others wait for it
                if not self._prepared and not self._errors:
                    self.prepare()
                    self._prepared = True
            if self._prepared and (self._queue is None or not self._enqueue(self._queue)):
                self.do(part)
        # Whatever it is: the thread that takes the step raises it, and no worker ends by it.
        except BaseException as error:
            self._errors[part] = error
        if next(self._num_done) < self.num_parts:
            return False
        if not self._errors and self.num_parts > 1 and self.recipe.device != "cpu":
            self._join_values(part)
        if any(self._taken_bytes) or any(self._value_bytes):
            self._ring.expect(sum(self._taken_bytes) + sum(self._value_bytes))
            if (
                not self.attempts
            ):  # with other records in place of damaged ones, some values were made several times
                self._ring.values.note(sum(self._value_bytes), self.records.size)
        if self._errors:
            errors, self._errors = self._errors, {}
            # That of the first part: which part failed first is chance.
            self._fail(errors[min(errors)])
        elif self.recipe.is_cut and self._damage is None and self.recipe.labels is None:
            self.pieces = self._make_pieces()
        return True

    def _join_values(self, part: int) -> None:
        """Copy the values of all parts to one piece of memory, from which a GPU gets them; an error
        is kept."""
        try:
            for name, parts in self._varying.items():
                field, values = (
                    self.recipe.rest.spec_in[name],
                    [values for values in parts if values is not None],
                )
                if not field.encoded and not field.host_only:
                    self._varying[name] = self._packing(part, self.records.size).join(values)
        except Exception as error:
            self._errors[part] = error

    def _make_pieces(self) -> list[Piece]:
        """Return the batch of each of the steps."""
        recipe, stretch, first, epoch = (
            self.recipe,
            self._ready_stretch,
            self._first,
            self.position.epoch,
        )
        arrays, later = [(name, self.arrays[name]) for name in recipe.names], recipe.plan.later
        row_bytes = sum(num_bytes for _, num_bytes in recipe.row_bytes)
        all_valid = np.count_nonzero(self.valid) == self.valid.size
        pieces, output, spec = [], recipe.output, recipe.graph.spec_out
        for step in range(self.position.step, self.position.step + self.num_steps):
            begin, end = stretch.batch(step)
            begin, count, rows = begin - first, end - begin, slice(begin - first, end - first)
            fields, valid = {name: values[rows] for name, values in arrays}, self.valid[rows]
            unaligned = [
                name for name, num_bytes in recipe.row_bytes if num_bytes * begin % ALIGN_BYTES
            ]
            if self.copies is None:  # the values are there, and a copy costs the caller no time
                fields |= {name: aligned_copy(fields[name]) for name in unaligned}
                unaligned = []
            batch = Batch(
                fields,
                output,
                records=self.records[rows],
                valid=valid,
                epoch=epoch,
                step=step,
                spec=spec,
            )
            if all_valid:
                num_records = count
            else:
                num_records = int(np.count_nonzero(valid))
            pieces.append(
                Piece(
                    batch,
                    (num_records, count * row_bytes),
                    later(self.position, step + 1),
                    unaligned,
                )
            )
        return pieces

    def run(self) -> Step:
        """Do all of it in the calling thread, and return it."""
        for part in range(self.num_parts):
            self.work(part)
        return self

    def _fail(self, error: BaseException) -> None:
        """Keep an error; of several steps only the one at fault should raise it, so each is done
        anew by itself."""
        is_single = self.num_steps == 1 and not isinstance(error, CardRowError)
        if is_single or not isinstance(error, Exception):
            self.error, self.is_failed = error, True
            return
        self.singles = self.separate()

    def redo_single(self, step: int) -> Step:
        """Return one of the steps, done anew by itself in the calling thread."""
        return self._step(self.recipe.plan.at(self.position, step)).run()

    def _step(self, position: Position, attempts: Mapping[int, int] | None = None) -> Step:
        """Return one step, not done yet, that shares everything with this one."""
        return Step(
            self.recipe,
            self._ring,
            self._counters,
            position,
            damage=self._damage,
            attempts=attempts,
        )

    def prepare(self) -> None:
        """Find out the records and take memory for them."""
        self.recipe.source.check_open()
        self._stretch = self._stretch or Stretch(self.recipe, self.position, self.num_steps)
        self._first, end = self._stretch.rows(self.position.step, self.num_steps)
        self.records, self.valid = (
            self._stretch.records[self._first : end],
            self._stretch.valid[self._first : end],
        )
        if self._damage is not None:
            # Copies: mending writes to them, and those of the stretch belong to other steps, too.
            self._planned_records, self.records, self.valid = (
                self.records,
                self.records.copy(),
                self.valid.copy(),
            )
        recipe, num_rows, num_uploads = self.recipe, self.records.size, None
        slot_bytes, self._room_bytes, self._end = recipe.slot_bytes, 0, 0
        if recipe.on_card:
            shares = self._stretch.shares(self._first, self._first + num_rows)
            # Rows of damaged records get others, which may lie anywhere.
            if self._damage is None:
                streams = []
            else:
                streams = self._suspect_rows(self._damage, 0, num_rows)
            self.card = find_rows(
                recipe.routes, shares, num_rows, np.array(streams, np.int64), recipe.device
            )
            num_uploads = self.card.uploads.size
            slot_bytes = recipe.end(num_rows, num_uploads)
        if (
            recipe.device != "cpu"
        ):  # with room behind the arrays, for what goes to the GPU in the same upload
            self._end = recipe.end(num_rows, num_uploads)
            self._room_bytes = self._ring.parameters.num_bytes(num_rows)
            slot_bytes += self._ring.values.num_bytes(num_rows) + self._room_bytes
        self._slot = self._ring.take(slot_bytes)
        self.arrays = recipe.arrays(self._slot, num_rows, num_uploads)

    def _enqueue(self, queue: Queue) -> bool:
        """Have the queue copy all records to their rows; False if the files cannot be read by
        it."""
        begins = self.recipe.begins(self.records.size)
        blocks = [
            self._slot.array(begins[name], UINT8, (array.nbytes,))
            for name, array in self.arrays.items()
        ]
        self.copies = self._ready_stretch.copies(queue, self.position.step, self.num_steps, blocks)
        return self.copies is not None

    def do(self, part: int) -> None:
        """Read, decode and run the ops on the rows of one part."""
        begin, end = self._bounds(part)
        if begin == end:
            return
        if self._damage is not None and (rows := self._suspect_rows(self._damage, begin, end)):
            self._mend(self._damage, part, begin, end, rows)
            return
        try:
            self._make(part, begin, end, self._ready_stretch, self._first + begin)
        except (RowError, RecordError) as error:
            if self._damage is not None and is_damage(error):
                self._mend(self._damage, part, begin, end, [], error)
            elif isinstance(error, RowError):
                raise self.record_error(error, begin) from None
            else:
                raise
        except MemoryError as error:
            if isinstance(error, TooLargeError):
                raise
            place = self.recipe.source.where(int(self.records[begin]))
            raise TooLargeError(
                f"the ops of {end - begin} records, the first of them {place}",
                cause=f"there is not so much memory: {error}",
                remedy="have the ops make smaller images, or use a smaller batch_size",
            ) from None

    def _bounds(self, part: int) -> tuple[int, int]:
        """Return the first row of a part and the one behind it; records that are mixed are in one
        part."""
        begin, end = (self.records.size * number // self.num_parts for number in (part, part + 1))
        partners = self._ready_stretch.partners
        if partners is not None:
            begin, end = (
                # Partners of its first row may stand before it: a part begins where they do.
                row
                + (0 < row < self.records.size and min(0, int(partners[self._first + row].min())))
                for row in (begin, end)
            )
        return begin, end

    def record_error(self, error: RowError, begin: int = 0) -> RecordError:
        """Return the error for a row that cannot be used; its rows are counted from row ``begin``
        of the step."""
        return record_error(self.recipe.source, int(self.records[begin + error.row]), error)

    def _make(self, part: int, begin: int, end: int, stretch: Stretch, first: int) -> None:
        """Read, decode and run the ops on some rows of a part; row ``begin`` is row ``first`` of
        the stretch."""
        after = first + end - begin
        with self._counters.watch() as watch:
            watch.enter("draw")
            shares, draws = stretch.shares(first, after), stretch.draws(first, after)
            fields = self._read(part, begin, end, shares, watch)
            begin_s = time.perf_counter()
            if stretch.partners is None:
                partners = None
            else:
                partners = stretch.partners[first:after]
            self._run(part, begin, end, fields, draws, partners, watch)
            self.ops_s += time.perf_counter() - begin_s
        if watch.spans:
            place = self.position
            self._counters.trace_watch(
                watch, epoch=place.epoch, step=place.step, num_steps=self.num_steps
            )

    # Damaged records

    @property
    def mends(self) -> bool:
        """True if the loader puts other records in the place of damaged ones, and raises no error
        for them."""
        return self._damage is not None

    @property
    def skips(self) -> bool:
        """True if a row of a damaged record is not valid, although another record stands in it."""
        return self._damage is not None and self._damage.skips

    def again(self, error: RowError) -> Step:
        """Return this step, one, done anew in the calling thread: another record stands for one of
        its rows.

        Args:
            error: for which row, why an executor of whole batches cannot use its record.
        """
        damage = self._damage
        if damage is None or not is_damage(error):
            raise self.record_error(error) from None
        row, attempts = error.row, dict(self.attempts)
        self._note(damage, row, error, by_executor=True)
        attempts[row] = attempts.get(row, 0) + 1
        return self._step(self.position, attempts).run()

    def refused_rows(self) -> list[int]:
        """Return the rows whose records an executor of whole batches refused before."""
        damage = self._damage
        if (
            damage is None
            or self.is_failed
            or not damage.refusals
            or damage.refusals.isdisjoint(self.records.tolist())
        ):
            return []
        return [
            row for row, record in enumerate(self.records.tolist()) if record in damage.refusals
        ]

    def _suspect_rows(self, damage: Damage, begin: int, end: int) -> list[int]:
        """Return the rows of a part to try by themselves first: those that failed before, here or
        in another step."""
        if not self.attempts and not damage.suspects:
            return []
        records = self.records[begin:end].tolist()
        if not self.attempts and damage.suspects.isdisjoint(records):
            return []
        return [
            row
            for row, record in enumerate(records, begin)
            if row in self.attempts or record in damage.suspects
        ]

    def _mend(
        self,
        damage: Damage,
        part: int,
        begin: int,
        end: int,
        rows: list[int],
        error: RowError | RecordError | None = None,
    ) -> None:
        """Do a part with other records in the place of damaged ones.

        Args:
            damage: gives the other records.
            part: which part.
            begin: its first row.
            end: behind its last row.
            rows: those to try by themselves first.
            error: raised by the part as a whole.
        """
        for row in rows:
            self._settle(damage, part, row)
        error = error or self._try_rows(part, begin, end)
        while error is not None:
            bad = self._find_bad_rows(part, begin, end, error)
            if not bad:
                # Each row is sound by itself: the fault is not that of one record, too little
                # memory for all say.
                if isinstance(error, RowError):
                    raise self.record_error(error, begin)
                raise error
            for row, row_error in bad:
                self._note(damage, row, row_error)
                self._replace(damage, row)
                self._settle(damage, part, row)
            error = self._try_rows(part, begin, end)

    def _settle(self, damage: Damage, part: int, row: int) -> None:
        """Put other records into a row until one is sound."""
        if row in self.attempts:
            self._put_record(damage, row)
        while (error := self._try_rows(part, row, row + 1)) is not None:
            self._note(damage, row, error)
            self._replace(damage, row)

    def _replace(self, damage: Damage, row: int) -> None:
        """Make the next attempt at another record for a row."""
        self.attempts[row] = self.attempts.get(row, 0) + 1
        self._put_record(damage, row)

    def _put_record(self, damage: Damage, row: int) -> None:
        """Put the record of the present attempt into a row."""
        if self.card is not None and row not in self.card.uploads:
            raise CardRowError
        planned_record, attempt = int(self._planned_records[row]), self.attempts[row] - 1
        # By the record that the plan has there, not by the last attempt: all runs and shards agree
        # then.
        number = np.array(
            [damage.substitute(planned_record, self.position.epoch, attempt)], np.int64
        )
        (self.records[row],) = self.recipe.numbered(number, self.position.epoch)
        if damage.skips:
            self.valid[row] = False

    def _find_bad_rows(
        self, part: int, begin: int, end: int, error: RowError | RecordError
    ) -> list[tuple[int, Any]]:
        """Return the rows that cannot be used by themselves, each with its error; ``error`` is that
        of all together."""
        bad: list[tuple[int, Any]] = []
        ranges = [(begin, end, error)]
        while ranges:
            begin, end, error = ranges.pop()
            if end - begin == 1:
                bad.append((begin, error))
                continue
            # the row that it names is tried alone
            if isinstance(error, RowError):
                middle = begin + error.row
            else:
                middle = end
            if (
                begin <= middle < end
                and (row_error := self._try_rows(part, middle, middle + 1)) is not None
            ):
                bad.append((middle, row_error))
                pieces = [(begin, middle), (middle + 1, end)]
            else:
                pieces = [(begin, (begin + end) // 2), ((begin + end) // 2, end)]
            for first, after in pieces:
                if (
                    first < after
                    and (range_error := self._try_rows(part, first, after)) is not None
                ):
                    ranges.append((first, after, range_error))
        return sorted(bad, key=lambda entry: entry[0])

    def _try_rows(self, part: int, begin: int, end: int) -> RowError | RecordError | None:
        """Do some rows of a part, with the records that stand in them now; returns their error."""
        partners = self._ready_stretch.partners
        if (
            partners is not None
        ):  # a row by itself is tried without its partner, which has an error of its own
            is_part = (begin, end) == self._bounds(part)
            partners = partners[self._first + begin : self._first + end] * is_part
        stretch = Stretch.of(self.recipe, self.position, self.records[begin:end], partners)
        try:
            self._make(part, begin, end, stretch, 0)
        except (RowError, RecordError) as error:
            if not is_damage(error):
                raise (
                    self.record_error(error, begin) if isinstance(error, RowError) else error
                ) from None
            return error
        return None

    def _note(
        self, damage: Damage, row: int, error: RowError | RecordError, *, by_executor: bool = False
    ) -> None:
        step = self.position.step
        while self.num_steps > 1 and row >= self._ready_stretch.rows(step)[1] - self._first:
            step += 1
        damage.note(
            int(self.records[row]),
            error,
            epoch=self.position.epoch,
            step=step,
            by_executor=by_executor,
        )

    def _read(
        self, part: int, begin: int, end: int, shares: list[Share], watch: Watch
    ) -> dict[str, Any]:
        """Put the fields that stay as they are in their places, and return those that the ops are
        run on here."""
        fields: dict[str, Any] = {}
        for route in self.recipe.routes:
            watch.enter("read")
            if route.is_direct:  # read when the step goes to the GPU
                continue
            if route.on_card and self.card is not None:
                self._read_missing(route, self.card.uploads, part, begin, end, watch)
            elif route.layout is None:
                fields.update(self._read_varying(route, shares, part, begin, end))
            else:
                fields.update(self._read_fixed(route, route.layout, shares, begin, end, watch))
        return fields

    def _read_missing(
        self,
        route: Route,
        uploads: NDArray[np.int64],
        part: int,
        begin: int,
        end: int,
        watch: Watch,
    ) -> None:
        """Read the rows of a part that do not lie on the GPU, to where they stand among all that do
        not."""
        first, after = np.searchsorted(uploads, [begin, end]).tolist()
        if first == after:
            return
        shares = self.recipe.source.resolve(self.records[uploads[first:after]])
        try:
            if route.layout is None:
                self._read_varying(route, shares, part, first, after)
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
        record_bytes = layout.record_bytes
        if route.direct is not None:
            raw = _as_raw(self.arrays[route.direct][begin:end], record_bytes)
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
                raw, route.to_slot, {name: self.arrays[name][begin:end] for name in names}
            )
        if route.to_ops.parts:
            return rawdecode.decode(np, raw, route.to_ops)
        return {}

    def _read_varying(
        self, route: Route, shares: list[Share], part: int, begin: int, end: int
    ) -> dict[str, Any]:
        recipe, fields, memory = self.recipe, {}, None
        if recipe.device != "cpu":
            # Values of several parts are copied when all are there.
            goes_up = self.num_parts == 1 and all(
                field.text or recipe.goes_up(field) for field in route.spec
            )
            memory = partial(self._beside_arrays if goes_up else self._payload, part)
        with lending(partial(self._payload, part)):
            read = values(shares, route.group, route.spec, end - begin, memory=memory)
        for name, value in zip(route.spec.names, read, strict=True):
            if name in recipe.host.touched:
                fields[name] = value
            elif name in self.arrays:
                np.copyto(self.arrays[name][begin:end], cast(Array, value))  # its field is uniform
            elif name in recipe.names or name in recipe.rest.touched:
                if self._damage is not None and name not in recipe.graph.touched:
                    # No op decodes these images: their heads alone show damage.
                    image_sizes(route.spec[name], value, end - begin)
                if recipe.device != "cpu" and not isinstance(value, Ragged):
                    value = self._pack(value, route.spec[name], self._packing(part, end - begin))
                self._keep(part, name, value)
        return fields

    def _run(
        self,
        part: int,
        begin: int,
        end: int,
        fields: dict[str, Any],
        draws: list[Draw] | None,
        partners: NDArray[np.int32] | None,
        watch: Watch,
    ) -> None:
        """Draw, and run the ops where they run on rows."""
        recipe, graph = self.recipe, self.recipe.graph
        if not graph.ops:
            return
        if draws is None or recipe.labels is not None:
            watch.enter("draw")
            field_values = {
                name: fields[name] if name in fields else self._varying[name][part]
                for name in self._drawn_from
            }
            words = recipe, self.position.epoch, self.records[begin:end], field_values, partners
            if draws is None:
                draws = draw(graph, *words)
            if recipe.labels is not None:
                self._draws_of_images[part] = draw(graph.without_regions, *words)
        host = recipe.host
        if recipe.rest.ops:
            self._draws[part] = [
                op_draw for place, op_draw in enumerate(draws) if place not in recipe.on_host
            ]
            draws = [draws[place] for place in recipe.on_host]
        if recipe.executor is None:
            return
        watch.enter("ops")
        out = {name: self.arrays[name][begin:end] for name in host.results if name in self.arrays}
        names = (host.results - out.keys()).intersection((*recipe.names, *recipe.rest.touched))
        if recipe.device == "cpu":
            packing = None
        else:
            packing = self._packing(part, end - begin)
        results = recipe.executor.run(fields, draws, out, names, packing)
        watch.count(f"{watch.stage}.bytes", sum(array.nbytes for array in out.values()))
        for name in names:
            value = results[name]
            if packing is not None:
                value = self._pack(value, host.spec_out[name], packing)
            self._keep(part, name, value)

    @property
    def _ready_stretch(self) -> Stretch:
        if self._stretch is None:
            raise RuntimeError("a step is prepared before it is done")
        return self._stretch

    @property
    def _drawn_from(self) -> list[str]:
        """The fields whose values must be looked at before anything is drawn: their sizes vary, or
        draws need them."""
        graph = self.recipe.graph
        return [
            name
            for name in graph.touched
            if not graph.spec_in[name].uniform or name in graph.fields_to_draw
        ]

    def _keep(self, part: int, name: str, value: Any) -> None:
        # `setdefault` is one step of the interpreter: threads of several parts get the same list
        # without a lock.
        self._varying.setdefault(name, [None] * self.num_parts)[part] = value

    def _pack(self, value: Any, field: Field, packing: _Packing) -> Any:
        """Return values that a GPU will get in its memory; those of several parts are copied when
        all are there."""
        is_joined = self.num_parts > 1 and not isinstance(value, list)
        if field.host_only or is_joined:
            return value
        return packing.pack(value)

    def _packing(self, part: int, num_rows: int) -> _Packing:
        return _Packing(partial(self._behind, part), partial(self._payload, part), num_rows)

    def _behind(self, part: int, num_bytes: int) -> tuple[Bytes, int] | None:
        """Return the slot and the place of so many bytes behind its arrays; None if there is no
        room for them."""
        self._value_bytes[part] += aligned(num_bytes)
        with self._preparing:  # threads of several parts take room
            begin, end = self._end, self._end + aligned(num_bytes)
            if end + self._room_bytes > self._slot.size:
                return None
            self._end = end
        return self._slot, begin

    def _beside_arrays(self, part: int, num_bytes: int) -> Bytes:
        """Return memory for values of varying length that a GPU gets: behind the arrays of the slot
        if they fit."""
        if (place := self._behind(part, num_bytes)) is None:
            return self._payload(part, num_bytes)
        slot, begin = place
        return np.ndarray((num_bytes,), UINT8, slot, begin)

    def _payload(self, part: int, num_bytes: int) -> Bytes:
        """Return memory for values of varying length, used again; page-locked where a GPU will copy
        from it."""
        # An entry for each part: threads of several parts count without a lock.
        self._taken_bytes[part] += num_bytes
        return self._ring.take(num_bytes).array(0, UINT8, (num_bytes,))

    # The content of the finished step

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that the step holds: arrays in the slot, and values that are in no region."""
        return {**self.arrays, **self.varying}

    @property
    def varying(self) -> dict[str, Values]:
        """The fields that are in no region of the slot."""
        return {name: _join_parts(parts) for name, parts in self._varying.items()}

    def on_device(self, bundle: Bundle) -> dict[str, Any]:
        """Return the regions of the slot that a GPU can hold as arrays there, which ``bundle``
        uploads."""
        recipe, spec = self.recipe, self.recipe.host.spec_out
        num_bytes = min(self._end + self._room_bytes, self._slot.size)
        bundle.hold(self._slot.array(0, UINT8, (num_bytes,)), self._end)
        names = [name for name in self.arrays if name not in spec or not spec[name].host_only]
        if not names:
            return {}
        if self.card is None:
            num_uploads = None
        else:
            num_uploads = self.card.uploads.size
        begins = recipe.begins(self.records.size, num_uploads)
        end = max(begins[name] + self.arrays[name].nbytes for name in names)
        memory = bundle.upload(self._slot.array(0, UINT8, (end,)))
        return {name: _view_as(memory, begins[name], self.arrays[name]) for name in names}

    def keep_on_card(self, lane: Lane) -> None:
        """Copy the rows that were uploaded to where they stay on the GPU; a lane queues it behind
        the upload."""
        if self.card is not None and self.card.uploads.size:
            self.card.keep(self.card_shares(), lane)

    def note_parameters(self, num_bytes: int) -> None:
        """Say how many bytes kernels read beside its arrays: slots of later steps have room for so
        many."""
        if num_bytes:
            self._ring.parameters.note(num_bytes, self.records.size)

    def read_on_device(
        self, reader: DirectReader, route: Route, layout: Layout, empty: Callable[[int], Any]
    ) -> Any:
        """Return the raw records of a route, uint8 ``[n, record_bytes]`` on a GPU, read straight
        from their files.

        Args:
            reader: reads them.
            route: which.
            layout: of its records.
            empty: returns uint8 ``[num_bytes]`` on the GPU, which no work that was queued uses.
        """
        first, count = self._first, self.records.size
        memory = empty(count * layout.record_bytes)
        shares = self._ready_stretch.shares(first, first + count)
        for files, extents, rows in places(shares, route.group, layout, count):
            reader.read(files, extents, memory, rows * layout.record_bytes)
        self._counters.add(**{"read.bytes": memory.nbytes})
        return memory.reshape(count, layout.record_bytes)

    def card_shares(self) -> list[CardShare]:
        """Return the rows that can lie on the GPU, of the records that stand in them now."""
        shares = self._ready_stretch.shares(self._first, self._first + self.records.size)
        if self.attempts:
            shares = self.recipe.source.resolve(self.records)
        return card_shares(self.recipe.routes, shares, self.recipe.device)

    def separate(self) -> list[Step]:
        """Return steps that were done together each by itself, done anew in the calling thread."""
        return [self.redo_single(self.position.step + i) for i in range(self.num_steps)]

    def release(self) -> None:
        """Let go of the step's memory; its records and position stay known."""
        self.arrays, self._varying = {}, {}
        del self._slot

    @property
    def draws(self) -> list[Draw]:
        """The draws for all rows, of every op that is run on whole batches."""
        parts = [draws for draws in self._draws if draws]
        if len(parts) == 1:
            return parts[0]
        return [
            {key: np.concatenate([draws[op][key] for draws in parts]) for key in parts[0][op]}
            for op in range(len(parts[0]) if parts else 0)
        ]

    def draws_of_records(self, rows: slice) -> dict[str, Draw] | None:
        """Return the draws of the ops for some rows, by the labels of the ops; None where they are
        not recorded."""
        recipe = self.recipe
        if recipe.labels is None:
            return None
        parts = [draws for draws in self._draws_of_images if draws]
        result: dict[str, Draw] = {}
        for place, (op, stream) in enumerate(
            zip(recipe.graph.ops, recipe.graph.streams, strict=True)
        ):
            if op.leader is op:
                draw_parts = [draws[place] for draws in parts]
                names = [
                    name
                    for name in (draw_parts[0] if parts else ())
                    if name not in (HEADS, PARTNER)
                ]
                draw_rows = {
                    name: np.concatenate([part[name] for part in draw_parts])[rows]
                    for name in names
                }
                if draw_rows:
                    result |= {recipe.labels[stream]: draw_rows}
                else:
                    result |= {}
        return result

    @property
    def partners(self) -> NDArray[np.int32] | None:
        """How many rows further the partners of each row are, int32 ``[n, ...]``; None where no op
        mixes records."""
        partners, first = self._ready_stretch.partners, self._first
        if partners is None:
            return None
        return partners[first : first + self.records.size]

    def rows(self, step: int) -> slice:
        """Return the rows of one of the steps that its batch has."""
        begin, end = self._ready_stretch.batch(step)
        return slice(begin - self._first, end - self._first)

    @property
    def is_batch(self) -> bool:
        """True if its rows are those of one batch."""
        return self.num_steps == 1 and not self.recipe.graph.mixes


class _Packing:
    """Puts values that vary in size where a GPU copies from them: behind the arrays of the step's
    slot, if they fit.

    It is a ``Memory`` for images, which are decoded there; other values are copied. What does not
    fit goes to pieces of memory of its own, and each piece is an upload: so it is until a first
    step has shown how much its values need.

    Args:
        behind: returns the slot and the place of so many bytes in it; None if there is no room for
            them.
        memory: gives a piece.
        num_rows: how many values there may be.
    """

    def __init__(
        self, behind: Callable[[int], tuple[Bytes, int] | None], memory: Memory, num_rows: int
    ) -> None:
        self._behind, self._memory, self._num_rows = behind, memory, num_rows
        self._places: dict[
            int, tuple[Bytes, int, int]
        ] = {}  # of arrays, by their address: piece, first byte, bytes
        self._piece: Bytes = np.empty(0, np.uint8)
        self._end = 0  # of what is in use there

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return memory for an array, in C order."""
        num_bytes = prod(shape) * dtype.itemsize
        piece, begin = self._behind(num_bytes) or self._beside(num_bytes)
        array: Array = np.ndarray(shape, dtype, piece, begin)
        self._places[array.ctypes.data] = piece, begin, num_bytes
        return array

    def _beside(self, num_bytes: int) -> tuple[Bytes, int]:
        if self._end + num_bytes > self._piece.size:
            size = max(num_bytes, min(VALUES_BYTES, self._num_rows * aligned(num_bytes)))
            self._piece, self._end = self._memory(size), 0
        begin, self._end = self._end, self._end + aligned(num_bytes)
        return self._piece, begin

    def pack(self, values: Values) -> Values:
        """Return values in such memory; those that were made there are not copied."""
        if isinstance(values, list):
            if values:
                arrays, places = zip(*map(self._in_place, values), strict=True)
            else:
                arrays, places = ((), ())
            return ArrayPack(arrays, places)
        if isinstance(values, Ragged):
            return values.with_payload(self._copy(values.flat))
        return self._copy(values)

    def join(self, parts: list[Any]) -> list[Values]:
        """Return the values of several parts as one, copied to such memory; lists of arrays as they
        are."""
        ragged = [values for values in parts if isinstance(values, Ragged)]
        arrays = [values.flat for values in ragged] or [
            values for values in parts if isinstance(values, np.ndarray)
        ]
        if not arrays or len(arrays) < len(parts):
            return parts
        copy = self((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
        np.concatenate(arrays, out=copy)
        if not ragged:
            return [copy]
        return [Ragged(copy, offsets_of(np.concatenate([values.lengths for values in ragged])))]

    def _in_place(self, array: Array) -> tuple[Array, tuple[Bytes, int]]:
        """Return an array in such memory, and its place there."""
        place = self._places.get(array.ctypes.data)
        if place is None or not array.flags.c_contiguous or not 0 < array.nbytes == place[2]:
            array = self._copy(array)
            place = self._places[array.ctypes.data]
        return array, place[:2]

    def _copy(self, array: Array) -> Array:
        copy = self(array.shape, array.dtype)
        np.copyto(copy, array)
        return copy


class ArrayPack(list[Array]):
    """Arrays of different shapes that lie in a few pieces of memory, so that a GPU gets them by as
    many uploads.

    Args:
        arrays: the arrays, each in C order.
        places: of each array, the piece of memory, uint8, and its first byte there.
    """

    def __init__(self, arrays: Iterable[Array], places: Iterable[tuple[Bytes, int]]) -> None:
        super().__init__(arrays)
        entries = list(places)
        self._pieces, self._begins = (
            [piece for piece, _ in entries],
            [begin for _, begin in entries],
        )

    @classmethod
    def concatenate(cls, parts: list[ArrayPack]) -> ArrayPack:
        """Return the arrays of several."""
        places = (place for part in parts for place in zip(part._pieces, part._begins, strict=True))
        return cls((array for part in parts for array in part), places)

    def on_device(self, upload: Callable[[Bytes], Any]) -> list[Any] | Views:
        """Return the arrays on a GPU, images in one piece of memory as `Views`; ``upload`` copies a
        piece there."""
        shapes = [array.shape for array in self]
        if len(set(map(id, self._pieces))) == 1 and set(map(len, shapes)) == {3}:
            piece, first = self._pieces[0], self[0]
            table = np.fromiter(chain.from_iterable(shapes), np.int64, 3 * len(self)).reshape(-1, 3)
            begins = np.array(self._begins, np.int64)
            end = (begins + table.prod(axis=1) * first.itemsize).max()
            return Views(upload(piece[:end]), first.dtype, table, begins)
        pieces = {id(piece): piece for piece in self._pieces}
        ends = dict.fromkeys(pieces, 0)
        for array, piece, begin in zip(self, self._pieces, self._begins, strict=True):
            ends[id(piece)] = max(ends[id(piece)], begin + array.nbytes)
        memory = {key: upload(piece[: ends[key]]) for key, piece in pieces.items()}
        return [
            view_at(memory[id(piece)], begin, array.dtype, array.shape)
            for array, piece, begin in zip(self, self._pieces, self._begins, strict=True)
        ]


def _view_as(memory: Any, begin: int, like: Array) -> Any:
    """Return the bytes from ``begin`` on as an array of the dtype and shape of another one."""
    return memory[begin : begin + like.nbytes].view(like.dtype).reshape(like.shape)


def _as_raw(rows: Array, record_bytes: int) -> Bytes:
    """Return the bytes of rows that lie side by side, uint8 ``[n, record_bytes]``, in the same
    memory."""
    return rows.reshape(-1).view(np.uint8).reshape(len(rows), record_bytes)


def _join_parts(parts: list[Values | None]) -> Values:
    """Return the values of a field that varies, joined from the parts of a step, in the order of
    the rows."""
    present = [part for part in parts if part is not None]
    if len(present) == 1:
        return present[0]
    texts = [part for part in present if isinstance(part, np.ndarray)]
    if len(texts) == len(present):
        return np.concatenate(texts)
    ragged = [part for part in present if isinstance(part, Ragged)]
    packs = [part for part in present if isinstance(part, ArrayPack)]
    if len(packs) == len(present):
        return ArrayPack.concatenate(packs)
    if len(ragged) == len(present):
        return concatenate(ragged)
    return [value for part in present for value in part]


_local = threading.local()


def _scratch(key: int, num_bytes: int) -> Bytes:
    """Return memory of this thread for raw bytes; it holds until the thread's next part."""
    buffers: dict[int, Bytes] = _local.__dict__.setdefault("buffers", {})
    if key not in buffers or buffers[key].size < num_bytes:
        buffers[key] = np.empty(num_bytes, np.uint8)
    return buffers[key][:num_bytes]

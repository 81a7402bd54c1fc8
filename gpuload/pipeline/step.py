"""Step: one step on its way, from record numbers to arrays in a slot. Done by workers, in one or
several parts.

    work(part)      the first worker finds out the records and takes memory (`rows.py`); then each
                    does a part (`part.py`)
    fields, draws   the content of the finished step                                    for the consumer

Short steps are done several at a time: then a ``Step`` is some steps that follow one another, which
share a slot. If one of them fails, each is done anew by itself, so that only the one at fault
raises the error. Where other records stand for damaged ones, `mend.py` does the parts.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload.batch import Batch
from gpuload.core.face import Copies, Queue
from gpuload.errors import RecordError, RowError
from gpuload.ops.base import HEADS, PARTNER, Draw
from gpuload.order import Position
from gpuload.pipeline.damage import Damage, is_damage
from gpuload.pipeline.mend import CardRowError, Mender
from gpuload.pipeline.packing import join_parts
from gpuload.pipeline.part import StepPart
from gpuload.pipeline.recipe import Recipe
from gpuload.pipeline.ring import ALIGN_BYTES, Ring, aligned_copy
from gpuload.pipeline.rows import StepRows
from gpuload.pipeline.stretch import Stretch
from gpuload.sources.leaf import Values
from gpuload.stats import Counters


class StepBatch(NamedTuple):
    """The batch of one of some steps that were done together, made by the worker, so that the
    consumer has little to do.

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
        attempts: for rows of records that are known to be damaged: which attempt at another one to
            begin with.
        queue: threads of the core that do the step if it is only copied; None to do all in Python's
            threads.

    Attributes:
        rows: its records and its memory, once a worker has begun it.
        error: raised by its work, None if all is well; the code that raises it again takes it away.
        is_failed: True if its work raised an error, so that it holds no fields.
        singles: for some short steps of which one failed: each by itself.
        copies: the part of these steps that the queue does; None if they are done without it.
        batches: of each of the steps, if the slot holds all that a batch has; else nothing.
    """

    rows: StepRows

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
        self.num_parts = recipe.num_parts
        self.error: BaseException | None = None
        self.is_failed = False
        self.singles: list[Step] = []
        self.batches: list[StepBatch] = []
        self.copies: Copies | None = None
        self._ring, self._counters, self._stretch, self._damage = ring, counters, stretch, damage
        self._attempts, self._queue = attempts or {}, queue
        self._parts: list[StepPart | None] = [None] * recipe.num_parts
        self._values: dict[str, Values] = {}  # of fields that are in no region of the slot
        self._errors: dict[int, BaseException] = {}
        self._is_ready = False
        self._preparing = threading.Lock()
        self._num_done = itertools.count(
            1
        )  # next() is one call of C: each part gets a number of its own

    def work(self, part: int) -> bool:
        """Do a part; return True to the thread that did the last one. An error is kept in
        ``error``."""
        try:
            with (
                self._preparing
            ):  # parts run in several threads: the first prepares the step, the others wait for it
                if not self._is_ready and not self._errors:
                    self._prepare()
                    self._is_ready = True
            if self._is_ready and self.copies is None:
                self._do(part)
        # Any error: the thread that takes the step raises it, and no worker ends by it.
        except BaseException as error:
            self._errors[part] = error
        if next(self._num_done) < self.num_parts:
            return False
        if not self._errors and self.copies is None:
            try:
                self._join_values()
            except Exception as error:
                self._errors[part] = error
        if self._errors:
            errors, self._errors = self._errors, {}
            # That of the first part: which part failed first is chance.
            self._fail(errors[min(errors)])
        elif self.recipe.is_cut and self._damage is None and self.recipe.labels is None:
            self.batches = self._make_batches()
        return True

    def run(self) -> Step:
        """Do all of it in the calling thread, and return it."""
        for part in range(self.num_parts):
            self.work(part)
        return self

    def _prepare(self) -> None:
        """Find out the records and take memory for them; have the queue copy them, if it can read
        their files."""
        self.rows = rows = StepRows(
            self.recipe,
            self._ring,
            self.position,
            self.num_steps,
            self._stretch,
            self._damage,
            self._attempts,
        )
        if self._queue is not None:
            self.copies = rows.stretch.copies(
                self._queue, self.position.step, self.num_steps, rows.blocks()
            )

    def _do(self, number: int) -> None:
        """Read, decode and run the ops on the rows of one part."""
        part = StepPart(self.rows, number, checks_heads=self._damage is not None)
        self._parts[number] = part
        if part.begin == part.end:
            return
        if self._damage is not None:
            Mender(part, self._damage, self._counters).run()
            return
        try:
            part.make(self._counters)
        except RowError as error:
            raise self.rows.record_error(error, part.begin) from None

    def _join_values(self) -> None:
        """Join the values of all parts; those that a GPU gets are copied to one piece of memory."""
        parts = [part for part in self._parts if part is not None and part.begin < part.end]
        recipe, is_on_gpu = self.recipe, self.recipe.device != "cpu"
        for name in dict.fromkeys(name for part in parts for name in part.varying):
            values = [part.varying[name] for part in parts if name in part.varying]
            if is_on_gpu and self.num_parts > 1:
                field = recipe.rest.spec_in[name]
                if not field.encoded and not field.host_only:
                    values = parts[-1].packing(self.rows.records.size).join(values)
            self._values[name] = join_parts(values)
        for part in parts:
            part.varying = {}
        value_bytes = sum(part.value_bytes for part in parts)
        if num_bytes := value_bytes + sum(part.taken_bytes for part in parts):
            self._ring.expect(num_bytes)
            if (
                not self.rows.attempts
            ):  # with other records in place of damaged ones, some values were made again
                self._ring.values.note(value_bytes, self.rows.records.size)

    def _make_batches(self) -> list[StepBatch]:
        """Return the batch of each of the steps."""
        recipe, rows, epoch = self.recipe, self.rows, self.position.epoch
        arrays, later = [(name, rows.arrays[name]) for name in recipe.names], recipe.plan.later
        row_bytes = sum(num_bytes for _, num_bytes in recipe.row_bytes)
        all_valid = np.count_nonzero(rows.valid) == rows.valid.size
        batches, output, spec = [], recipe.output, recipe.graph.spec_out
        for step in range(self.position.step, self.position.step + self.num_steps):
            begin, end = rows.stretch.batch(step)
            begin, count, part = (
                begin - rows.first,
                end - begin,
                slice(begin - rows.first, end - rows.first),
            )
            fields, valid = {name: values[part] for name, values in arrays}, rows.valid[part]
            unaligned = [
                name for name, num_bytes in recipe.row_bytes if num_bytes * begin % ALIGN_BYTES
            ]
            if self.copies is None:  # the values are there, and a copy costs the caller no time
                fields |= {name: aligned_copy(fields[name]) for name in unaligned}
                unaligned = []
            records, num_records = rows.records[part], count
            batch = Batch(
                fields, output, records=records, valid=valid, epoch=epoch, step=step, spec=spec
            )
            if not all_valid:
                num_records = int(np.count_nonzero(valid))
            after = later(self.position, step + 1)
            batches.append(StepBatch(batch, (num_records, count * row_bytes), after, unaligned))
        return batches

    # Errors, and other records in the place of damaged ones

    def _fail(self, error: BaseException) -> None:
        """Keep an error; of several steps only the one at fault should raise it, so each is done
        anew by itself."""
        is_single = self.num_steps == 1 and not isinstance(error, CardRowError)
        if is_single or not isinstance(error, Exception):
            self.error, self.is_failed = error, True
            return
        self.singles = self.separate()

    def separate(self) -> list[Step]:
        """Return steps that were done together each by itself, done anew in the calling thread."""
        return [self.redo_single(self.position.step + i) for i in range(self.num_steps)]

    def redo_single(self, step: int) -> Step:
        """Return one of the steps, done anew by itself in the calling thread."""
        return self._single(self.recipe.plan.at(self.position, step), {}).run()

    def _single(self, position: Position, attempts: Mapping[int, int]) -> Step:
        """Return one step, not done yet, that shares everything with this one."""
        return Step(
            self.recipe,
            self._ring,
            self._counters,
            position,
            damage=self._damage,
            attempts=attempts,
        )

    @property
    def mends(self) -> bool:
        """True if the loader puts other records in the place of damaged ones, and raises no error
        for them."""
        return self._damage is not None

    @property
    def skips(self) -> bool:
        """True if a row of a damaged record is not valid, although another record stands in it."""
        return self._damage is not None and self._damage.skips

    def record_error(self, error: RowError) -> RecordError:
        """Return the error for a row that cannot be used."""
        return self.rows.record_error(error)

    def again(self, error: RowError) -> Step:
        """Return this step, one, done anew in the calling thread: another record stands for one of
        its rows.

        Args:
            error: for which row, why an executor of whole batches cannot use its record.
        """
        damage, rows, row = self._damage, self.rows, error.row
        if damage is None or not is_damage(error):
            raise rows.record_error(error) from None
        position, attempts = self.position, dict(rows.attempts)
        damage.note(
            int(rows.records[row]),
            error,
            epoch=position.epoch,
            step=position.step,
            by_executor=True,
        )
        attempts[row] = attempts.get(row, 0) + 1
        return self._single(position, attempts).run()

    def refused_rows(self) -> list[int]:
        """Return the rows of records that an executor of whole batches refused before."""
        damage = self._damage
        if damage is None or self.is_failed or not damage.refusals:
            return []
        return [
            row
            for row, record in enumerate(self.rows.records.tolist())
            if record in damage.refusals
        ]

    # The content of the finished step

    @property
    def records(self) -> NDArray[np.int64]:
        """The records of all its steps, int64 ``[n]``."""
        return self.rows.records

    @property
    def num_done(self) -> int:
        """How many of the steps are done."""
        if self.copies is None:
            return self.num_steps
        return self.copies.num_done

    @property
    def ops_s(self) -> float:
        """Seconds that the ops of its parts took, once it is done; 0.0 before."""
        return sum(part.ops_s for part in self._parts if part is not None)

    @property
    def varying(self) -> dict[str, Values]:
        """The fields that are in no region of the slot."""
        return self._values

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that the step holds: arrays in the slot, and values that are in no region."""
        return {**self.rows.arrays, **self._values}

    def note_parameters(self, num_bytes: int) -> None:
        """Say how many bytes kernels read beside its arrays: slots of later steps have room for so
        many."""
        if num_bytes:
            self._ring.parameters.note(num_bytes, self.rows.records.size)

    def count_read(self, num_bytes: int) -> None:
        """Count bytes that were read straight to a GPU."""
        self._counters.add(**{"read.bytes": num_bytes})

    def release(self) -> None:
        """Let go of the step's memory; its records and position stay known."""
        self.rows.release()
        self._values = {}

    @property
    def draws(self) -> list[Draw]:
        """The draws for all rows, of every op that is run on whole batches."""
        parts = [part.draws for part in self._parts if part is not None and part.draws]
        if len(parts) < 2:
            return [op_draw for draws in parts for op_draw in draws]
        return [
            {key: np.concatenate([draws[op][key] for draws in parts]) for key in parts[0][op]}
            for op in range(len(parts[0]))
        ]

    def draws_of_records(self, rows: slice) -> dict[str, Draw] | None:
        """Return the draws of the ops for some rows, by the labels of the ops; None where they are
        not recorded."""
        recipe = self.recipe
        if recipe.labels is None:
            return None
        parts = [
            part.draws_of_images
            for part in self._parts
            if part is not None and part.draws_of_images
        ]
        result: dict[str, Draw] = {}
        for place, (op, stream) in enumerate(
            zip(recipe.graph.ops, recipe.graph.streams, strict=True)
        ):
            if op.traits.follows is None:
                draw_parts = [draws[place] for draws in parts]
                names = dict.fromkeys(name for part in draw_parts for name in part)
                draw_rows = {
                    name: np.concatenate([part[name] for part in draw_parts])[rows]
                    for name in names
                    if name not in (HEADS, PARTNER)
                }
                if draw_rows:
                    result[recipe.labels[stream]] = draw_rows
        return result

    @property
    def is_batch(self) -> bool:
        """True if its rows are those of one batch."""
        return self.num_steps == 1 and not self.recipe.graph.mixes

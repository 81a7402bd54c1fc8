"""Audit: records of finished batches are made again on the CPU, and compared, before their batches
are handed out.

Choice   A record is audited if the number that is drawn for (seed, epoch, record), in a stream that
         no op has, is less than the share. So batch size, shards, threads and resuming change
         nothing. Rows that are not valid are not.
Oracle   makes the record anew from the source, by the array forms of the ops
         (`executors.differences`).
Flow     `Audits` stands between the threads that make batches and the caller. Its thread takes
         finished batches in their order, one group of steps ahead of the caller, and puts each on a
         tray of its own when the records in it are compared. So no record that differs is handed
         out, and the error comes at the step that holds it.
Waiting  No audit is left out. Where they take longer than training, the loader waits for them;
         ``audit_s`` of the stats says how long they take.
GPU      The rows are copied to the host on a stream of the auditor's own, behind the event of the
         batch. This thread waits for these copies; neither the lane nor the caller does.
First    Where images are decoded on a GPU by a decoder that is not known there, the first batches
         are audited whole, for any share. The result is kept as the verdict on decoder,
         card, driver and versions (`executors.trials`), and spares later runs this.
Memory   New memory for steps is filled with a pattern before it is used, so that rows which no
         thread has written show: slots on the host, and the memory that CuPy has for a lane's first
         batches. DALI's own memory is not.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload import rng, threads
from gpuload.errors import (
    ClosedError,
    DeviceError,
    FileError,
    PixelError,
    RecordError,
    RowError,
    SpecError,
)
from gpuload.executors import trials
from gpuload.executors.differences import Oracle, axes_of, bounds_of, difference
from gpuload.ops.base import VARYING, Op, calls_python
from gpuload.ops.bounds import EXACT
from gpuload.ops.value.decode import decoder_on_gpu
from gpuload.pipeline.batches import Batches
from gpuload.pipeline.board import OrderBoard, OrderThread
from gpuload.pipeline.joining import Joining
from gpuload.pipeline.outcome import Outcome, outcome_of
from gpuload.pipeline.recipe import Recipe, SlotRegion
from gpuload.pipeline.step import Step
from gpuload.pipeline.stretch import draw
from gpuload.pipeline.workers import Workers
from gpuload.ragged import Ragged
from gpuload.sources.reading import read_groups
from gpuload.stats import Counters

SHARE = 1e-3  # of the records, where only "count" is said
RAISE, COUNT = "raise", "count"
PATTERN, FILLED_BATCHES = 0xA5, 4
TRIAL_BATCHES = 2  # that are audited whole where the decoder is not known
MOST_LINES = 10  # in the log, about records that differ
STREAM = int.from_bytes(
    hashlib.sha256(b"audit:record").digest()[:8], "little"
)  # those of ops have no colon
REMEDY = (
    'pass audit=0.001 for one record in a thousand, audit="count" to count differences, '
    'audit=(0.01, "count"), or None'
)
log = logging.getLogger("gpuload")


@dataclass(frozen=True)
class AuditSetting:
    """The argument ``audit=`` of a loader.

    Attributes:
        share: of the records that are audited.
        counts: True if differences are counted, and raise no error.
    """

    share: float
    counts: bool

    def __str__(self) -> str:
        if self.counts:
            effect = "a difference is counted in stats()"
        else:
            effect = "a difference is a PixelError"
        return f"{100 * self.share:.4g} % of the records are made again on the CPU and compared; {effect}"


def setting_of(value: Any) -> AuditSetting:
    """Return the setting that the argument ``audit=`` means.

    Raises:
        SpecError: it means none.
    """
    if isinstance(value, (tuple, list)) and len(value) == 2:
        share, way = value
    else:
        share, way = (value, RAISE)
    if isinstance(value, str) and value == COUNT:
        share, way = SHARE, COUNT
    is_number = isinstance(share, (int, float, np.integer, np.floating)) and not isinstance(
        share, bool
    )
    is_way = isinstance(way, str) and way in (RAISE, COUNT)
    if not is_number or not is_way or not 0 <= share <= 1:
        raise SpecError(
            f"audit = {value!r}"[:200],
            cause="it is a share of the records, from 0 to 1, and what a difference does, "
            f"{RAISE!r} or {COUNT!r}",
            remedy=REMEDY,
        )
    return AuditSetting(float(share), way == COUNT)


def auditor_of(
    recipe: Recipe, names: Sequence[str], setting: AuditSetting | None, **words: Any
) -> Auditor | None:
    """Return the auditor of a loader; None if it audits nothing.

    Args:
        recipe: how steps become batches.
        names: the fields of a batch.
        setting: of the loader; None where it says nothing: then only a decoder that is not known is
            audited.
        words: for `Auditor`.

    Raises:
        SpecError: no field can be made again.
        DeviceError: the decoder is known to be bad.
    """
    if setting is not None and not setting.share:
        trial = None
    else:
        trial = _trial_of(recipe, setting)
    if trial is None and (setting is None or not setting.share):
        return None
    oracle = Oracle(recipe.graph, names)
    if oracle.names:
        return Auditor(
            recipe, oracle, setting or AuditSetting(0.0, counts=False), trial=trial, **words
        )
    if setting is None:
        return None
    name, op = next(iter(oracle.refusals.items()))
    raise SpecError(
        f"audit={setting.share:g} of {list(names)}",
        cause=f"{op}, on {name!r}, is an operator of DALI: nothing else makes its values, to be "
        "compared with",
        remedy="leave audit= out, or use ops of gl.ops in its place",
    )


class DecoderTrial:
    """The first batches of a place with a decoder that is not known.

    Args:
        decoder: its name.
        card: the name of the GPU.
    """

    def __init__(self, decoder: str, card: str) -> None:
        self.decoder, self.card = decoder, card
        self._num_left, self._num_images, self._lock = TRIAL_BATCHES, 0, threading.Lock()

    @property
    def is_open(self) -> bool:
        """True while batches are audited whole."""
        return self._num_left > 0

    def end(self) -> None:
        """End it without a verdict."""
        self._num_left = 0

    def note(self, num_images: int, problem: str) -> None:
        """Take the result of a batch that was audited whole; the last one, or a problem, decides.

        Args:
            num_images: that were compared.
            problem: how one differs; "" if none does.
        """
        with self._lock:
            if not self._num_left:
                return
            if problem:
                self._num_left = 0
            else:
                self._num_left = self._num_left - 1
            self._num_images += num_images
            is_over = not self._num_left
        if is_over:
            about = problem or f"{self._num_images} images had the pixels of the CPU"
            try:
                trials.save_verdict(self.decoder, self.card, trials.Verdict(not problem, about))
            except FileError as error:
                log.warning("%s; the next run audits its first batches again", error.what)

    def __str__(self) -> str:
        return f"the first {TRIAL_BATCHES} batches are audited whole, for the decoder is not known on {self.card}"


def _trial_of(recipe: Recipe, setting: AuditSetting | None) -> DecoderTrial | None:
    """Return the trial of a decoder that is not known; None if there is none, or it is known to be
    good."""
    if (
        recipe.device == "cpu"
        or not any(op.traits.codec for op in recipe.rest.ops)
        or trials.is_off()
    ):
        return None
    decoder, card = decoder_on_gpu(recipe.rest.ops), devices.card_name(recipe.device)
    verdict = trials.load_verdict(decoder, card)
    if verdict is None:
        return DecoderTrial(decoder, card)
    if verdict.is_good:
        return None
    error = DeviceError(
        f"images are decoded on {recipe.device}, {card}, by {decoder}",
        cause=f"it makes other pixels there than the CPU: {verdict.about}",
        remedy='decode="host" decodes on the host; after another driver or DALI was installed '
        "nothing is known of "
        "it; `gpuload doctor` tries it again; audit=0 uses it all the same",
    )
    if setting is None or not setting.counts:
        raise error
    log.warning("%s; cause: %s; remedy: %s", error.what, error.cause, error.remedy)
    return None


@dataclass
class _Row:
    """A row to audit: where it stands, and its values on the host by field."""

    row: int
    step: int
    values: dict[str, Any] = field(default_factory=dict)


class _Result(NamedTuple):
    """The comparison of a row.

    Attributes:
        field: that differs; "" if none does.
        text: how.
        is_refusal: True if the CPU refuses the record.
        changes: True if the ops made something else of the record when it was made a second time.
        expected: the value of the field, as the CPU makes it.
    """

    field: str
    text: str
    is_refusal: bool = False
    changes: bool = False
    expected: Any = None


class Auditor:
    """Audits finished batches of a loader; used by the threads of all its iterators.

    Args:
        recipe: how steps become batches.
        oracle: makes records again.
        setting: which records, and the effect of a difference.
        executor: the name of the executor of the ops.
        num_threads: that make records again, where a batch has several to audit.
        counters: of the loader.
        trial: of the decoder, where it is not known.
    """

    def __init__(
        self, recipe: Recipe, oracle: Oracle, setting: AuditSetting, *, executor: str, num_threads: int,
        counters: Counters, trial: DecoderTrial | None = None,
    ) -> None:  # fmt: skip
        self._oracle, self._trial = oracle, trial
        self._recipe, self._setting, self._executor, self._counters = (
            recipe,
            setting,
            executor,
            counters,
        )
        self._num_threads, self._num_lines, self._is_lane_filled = num_threads, 0, False
        self._bounds = bounds_of(recipe.graph, self._oracle.names, self._party)
        graph = self._oracle.graph
        self._inputs = graph.touched.union(self._oracle.names, graph.fields_to_draw) & set(
            recipe.source.spec.names
        )
        self._local = threading.local()

    @property
    def _place(self) -> str:
        return self._recipe.device.partition(":")[0]

    def _party(self, place: int) -> str:
        """Return the executor that runs the op at a place."""
        if place in self._recipe.on_host or self._recipe.on_rows:
            return "array on cpu"
        return f"{self._executor} on {self._place}"

    def describe(self) -> str:
        """Return one line for ``Loader.describe``."""
        refusals = self._oracle.refusals.items()
        if self._setting.share:
            texts = [str(self._setting)]
        else:
            texts = []
        if self._trial is not None:
            texts += [str(self._trial)]
        else:
            texts += []
        texts += [
            f"{name} is not, for {type(op).__name__} has no array form" for name, op in refusals
        ]
        return "; ".join(texts)

    @property
    def is_active(self) -> bool:
        """True while there is something to audit."""
        return self._setting.share > 0 or (self._trial is not None and self._trial.is_open)

    def guard(self, batches: Workers | Batches, joining: Joining) -> Audits:
        """Return the thread that audits the batches of an epoch before they are handed out."""
        return Audits(batches, self, joining=joining, counters=self._counters)

    def fill(
        self, allocate: Callable[[int], NDArray[np.uint8]]
    ) -> Callable[[int], NDArray[np.uint8]]:
        """Return the function with memory that is filled with a pattern, which shows where no
        thread writes to it."""

        def allocate_pattern(num_bytes: int) -> NDArray[np.uint8]:
            memory = allocate(num_bytes)
            memory[...] = PATTERN
            return memory

        return allocate_pattern

    def fill_lane(self, lane: devices.Lane) -> None:
        """Fill the memory of a lane's first batches, once, with the same pattern: the memory that
        CuPy allocates for them."""
        if not self._is_lane_filled:
            self._is_lane_filled = True
            recipe = self._recipe
            fields = [recipe.graph.spec_out[name] for name in recipe.names]
            regions = [
                SlotRegion(field.dtype, field.fixed_shape) for field in fields if field.has_rows
            ]
            sizes = [recipe.slot_bytes, *(region.num_bytes(recipe.num_rows) for region in regions)]
            lane.fill_free_memory(FILLED_BATCHES * [size for size in sizes if size], PATTERN)

    def audit(self, outcome: Outcome, is_stopped: Callable[[], bool] = lambda: False) -> Outcome:
        """Return an outcome with the errors of records that differ.

        Args:
            outcome: of a step, or of some that were done together.
            is_stopped: returns True once no thread waits for it any more.

        Raises:
            ClosedError: no thread waits for it any more.
        """
        if outcome.error is not None:
            return outcome
        if outcome.singles:
            return replace(
                outcome, singles=[self.audit(single, is_stopped) for single in outcome.singles]
            )
        is_whole = self._trial is not None and self._trial.is_open
        rows = self._rows(outcome.step, 1.0 if is_whole else self._setting.share)
        if not rows:
            return outcome
        begin_s = time.perf_counter()
        try:
            self._fetch(outcome, rows)

            def compare(row: _Row) -> _Result:
                if is_stopped():
                    raise ClosedError(
                        "an audit", cause="the loader was closed", remedy="make a new one"
                    )
                return self._compare(outcome.step, row)

            results = threads.parallel_map(compare, rows, self._num_threads)
            if self._trial is not None and is_whole:
                results = self._try_decoder(self._trial, outcome.step, rows, results)
            errors = self._settle(outcome.step, rows, results)
        except (
            Exception
        ) as error:  # of the source, of the GPU, of a user's function: it comes at the step
            if is_stopped():
                raise
            errors = self._failures(error, rows[0].step)
        end_s = time.perf_counter()
        self._counters.add(audit_s=end_s - begin_s, records_audited=len(rows))
        first = outcome.step.position
        if (trace := self._counters.trace) is not None:
            trace.add(
                "audit",
                begin_s,
                end_s,
                epoch=first.epoch,
                step=first.step,
                num_steps=outcome.step.num_steps,
            )
        if errors:
            return _with_errors(outcome, errors)
        return outcome

    def _try_decoder(
        self, trial: DecoderTrial, step: Step, rows: Sequence[_Row], results: list[_Result]
    ) -> list[_Result]:  # fmt: skip
        """Have the trial take the results of a batch that was audited whole, and return those that
        are differences.

        That the CPU refuses a file which is damaged says nothing about the decoder of a GPU. It is
        a difference all the same where the user asked for an audit.
        """
        pairs = zip(rows, results, strict=True)
        problems = [
            f"{self._recipe.source.where(int(step.records[row.row]))}: {result.text}"
            for row, result in pairs
            if result.field
            and not result.is_refusal
            and any(op.traits.codec for op in self._ops_of(result.field))
        ]
        trial.note(len(rows), next(iter(problems), ""))
        if self._setting.share:
            return results
        return [_Result("", "") if result.is_refusal else result for result in results]

    def _failures(self, error: Exception, step: int) -> dict[int, Exception]:
        """Return the error of a record that could not be made again; none where only a decoder was
        tried."""
        if self._trial is None or self._setting.share:
            return {step: error}
        self._trial.end()
        log.warning("%s could not be tried; cause: %s", self._trial.decoder, error)
        return {}

    def _rows(self, step: Step, share: float) -> list[_Row]:
        """Return the rows of a step, or of some that were done together, that are audited."""
        words = rng.uniform(
            1,
            seed=self._recipe.plan.seed,
            epoch=step.position.epoch,
            records=step.records,
            stream=STREAM,
        )
        is_chosen = (words[:, 0] < share) & step.rows.valid
        if not is_chosen.any():
            return []
        rows = []
        for number in range(step.position.step, step.position.step + step.num_steps):
            span = step.rows.batch_rows(number)
            rows += [
                _Row(row, number) for row in (span.start + np.flatnonzero(is_chosen[span])).tolist()
            ]
        return rows

    def _fetch(self, outcome: Outcome, rows: Sequence[_Row]) -> None:
        """Have the values of rows on the host."""
        fields = {name: outcome.fields[name] for name in self._oracle.names}
        is_on_host = self._recipe.device == "cpu"
        # A copy for each field, and not for each row, where most rows are audited.
        if not is_on_host and 2 * len(rows) > outcome.step.records.size:
            with self._lane() as lane:
                outcome.event.hold_back(lane.stream)
                fields = {name: _column_to_host(values) for name, values in fields.items()}
                lane.mark().synchronize()
            is_on_host = True
        if is_on_host:
            for row in rows:
                row.values = {name: values[row.row] for name, values in fields.items()}
            return
        with self._lane() as lane:
            outcome.event.hold_back(lane.stream)
            for row in rows:
                row.values = {name: _to_host(values[row.row]) for name, values in fields.items()}
            lane.mark().synchronize()

    def _lane(self) -> devices.Lane:
        """Return the lane of the calling thread, which `close` gives back."""
        lane: devices.Lane | None = getattr(self._local, "lane", None)
        if lane is None:
            lane = self._local.lane = devices.Lane(self._recipe.device)
        return lane

    def close(self) -> None:
        """Give back the lane of the calling thread."""
        lane: devices.Lane | None = self._local.__dict__.pop("lane", None)
        if lane is not None:
            lane.close()

    def _compare(self, step: Step, row: _Row) -> _Result:
        """Return how a row differs from the row that the CPU makes of its record."""
        try:
            expected = self._make(step, row.row)
        except (RowError, RecordError) as error:
            if isinstance(error, RowError):
                reason = error.reason
            else:
                reason = error.what
            text = f"the record has values, and the CPU refuses it: {reason}"
            return _Result(self._oracle.names[0], text, is_refusal=True)
        for name in self._oracle.names:
            axes = axes_of(self._recipe.graph.spec_out[name])
            text = difference(row.values[name], expected[name], self._bounds[name], axes)
            if text:
                changes = self._changes(step, row, name, expected[name])
                return _Result(name, text, changes=changes, expected=expected[name])
        return _Result("", "")

    def _changes(self, step: Step, row: _Row, name: str, expected: Any) -> bool:
        """Return True if functions of the user's make other values of the same record at another
        call."""
        if not any(calls_python(op) for op in self._ops_of(name)):
            return False
        try:
            again = self._make(step, row.row)[name]
        except (RowError, RecordError):
            return True
        return bool(difference(again, expected, EXACT))

    def _make(self, step: Step, row: int) -> dict[str, Any]:
        """Return the values of a row, made anew."""
        recipe, graph, rows, partners = self._recipe, self._oracle.graph, np.array([row]), None
        if graph.mixes and step.rows.partners is not None:
            # A group of records is closed: the partners of a partner are the same records.
            rows = np.unique(np.append(row + step.rows.partners[row], row))
            places = rows[:, None] + step.rows.partners[rows].reshape(rows.size, -1)
            partners = (np.searchsorted(rows, places) - np.arange(rows.size)[:, None]).astype(
                np.int32
            )
        records = step.records[rows]
        try:
            values = self._run(recipe, graph, step.position.epoch, records, partners)
        except RowError:
            if all(crop is None for crop in recipe.graph.crops):
                raise
            # A file that is damaged beyond the region that the batch has of it.
            graph = recipe.graph.only(self._oracle.names)
            values = self._run(recipe, graph, step.position.epoch, records, partners)
        place = int(np.searchsorted(rows, row))
        return {name: column[place] for name, column in values.items()}

    def _run(
        self,
        recipe: Recipe,
        graph: Any,
        epoch: int,
        records: NDArray[np.int64],
        partners: NDArray[np.int32] | None,
    ) -> dict[str, Any]:
        """Return the fields of some records, read and run again."""
        fields = read_groups(recipe.source, records, self._inputs)
        draws = draw(graph, recipe, epoch, records, fields, partners)
        return self._oracle.run(fields, draws)

    def _ops_of(self, name: str) -> tuple[Op, ...]:
        """Return the ops that make a field."""
        return self._recipe.graph.only([name]).ops

    def _settle(
        self, step: Step, rows: Sequence[_Row], results: Sequence[_Result]
    ) -> dict[int, Exception]:
        """Return the error of each step with a record that differs; none where differences are only
        counted."""
        errors: dict[int, Exception] = {}
        for row, result in zip(rows, results, strict=True):
            if not result.field:
                continue
            self._counters.add(records_differing=1)
            error = self._error(step, row, result)
            if not self._setting.counts:
                errors.setdefault(row.step, error)
            elif self._num_lines < MOST_LINES:
                self._num_lines += 1
                if self._num_lines == MOST_LINES:
                    last = "; further ones are only counted"
                else:
                    last = ""
                log.warning(
                    "%s; cause: %s; remedy: %s%s", error.what, error.cause, error.remedy, last
                )
        return errors

    def _error(self, step: Step, row: _Row, result: _Result) -> PixelError:
        """Return the error for a field of a row that differs."""
        name, text = result.field, result.text
        recipe, epoch = self._recipe, step.position.epoch
        ops = self._ops_of(name)
        words = " ".join(type(op).__name__ for op in ops) or "no op, as it was read"
        python_ops = ", ".join(_function_name(op) for op in ops if calls_python(op))
        if (bound := self._bounds[name]) != EXACT:
            reason = f"; small differences are allowed: {bound.reason}"
        else:
            reason = ""
        cause = (
            f"executor {self._executor!r} on {recipe.device} made it by {words}; it should be what "
            f"the array forms of these ops make on the CPU{reason}"
        )
        if result.changes:
            cause = (
                f"{python_ops} calls a function of yours, which gave other values when it was "
                f"called again with the same record; executor {self._executor!r} on "
                f"{recipe.device} made it by {words}, and may be right"
            )
        elif python_ops:
            cause += f". {python_ops} calls a function of yours: it must make the same of the same record"
        look = f"loader.replace(audit=0).batch_at({row.step}, {epoch}) has the batch, to look at it"
        if recipe.on_rows:
            alternative = ""
        else:
            alternative = '; device="cpu" makes other batches right'
        if any(op.traits.codec for op in recipe.rest.ops) and any(op.traits.codec for op in ops):
            if recipe.device != "cpu":
                word = 'decode="host"'
            else:
                word = 'executor="array"'
            alternative = f"; {word} has the core decode on the host"
        record = int(step.records[row.row])
        place, number = recipe.source.where(record), f"record {record}"
        if not place.endswith(number):
            place = f"{place} ({number} of the source)"
        if result.changes:
            alternative = "; write def f(x, rng): rng is a generator of the record's own, in place of np.random"
        error = PixelError(
            f"{place}, epoch {epoch}, step {row.step}: field {name!r} on {recipe.device}: {text}",
            cause=cause,
            remedy=f'{look}{alternative}; audit="count" goes on and counts',
        )
        error.record, error.epoch, error.step, error.field = record, epoch, row.step, name
        error.ops = tuple(type(op).__name__ for op in ops)
        error.device, error.executor = recipe.device, self._executor
        # Copies: a row on the host lies in memory of the loader.
        error.value, error.expected = copy.copy(row.values[name]), copy.copy(result.expected)
        return error


def _function_name(op: Op) -> str:
    """Return the name of an op that calls a function of the user's, with that of the function."""
    function = getattr(getattr(op, "fn", None), "__qualname__", "")
    if function:
        return f"{type(op).__name__}({function})"
    return type(op).__name__


def _with_errors(outcome: Outcome, errors: dict[int, Exception]) -> Outcome:
    """Return an outcome of which some steps raise an error."""
    first, num_steps = outcome.step.position.step, outcome.step.num_steps
    if num_steps == 1:
        return replace(outcome, error=errors[first])
    singles = [replace(outcome, error=errors.get(step)) for step in range(first, first + num_steps)]
    return replace(outcome, singles=singles)


def _to_host(values: Any) -> Any:
    """Return the values of a record on the host; of those on a GPU the copy is queued on the
    current stream."""
    if hasattr(values, "__cuda_array_interface__"):
        return devices.fetch(values)[0]
    return values


def _column_to_host(values: Any) -> Any:
    """Return the values of a batch on the host, as `_to_host`."""
    if isinstance(values, Ragged):
        return values.with_payload(_to_host(values.flat))
    if isinstance(values, VARYING):
        return [_to_host(value) for value in values]
    return _to_host(values)


class Audits(OrderThread[Outcome]):
    """A thread that audits the batches of an epoch in order, one group of steps ahead of the
    caller.

    It stands in the place of the threads that make the batches.

    Args:
        batches: makes them; closed with this.
        auditor: audits them.
        joining: which steps are done together.
        counters: ``wait_s`` is added to.
    """

    def __init__(
        self, batches: Workers | Batches, auditor: Auditor, *, joining: Joining, counters: Counters
    ) -> None:
        super().__init__(AuditBoard(batches, auditor, joining), "gpuload-audit", 1, counters)
        self._batches = batches

    def num_ready(self) -> int:
        """Return how many steps are made; those that are audited lie on the tray of the workers,
        too."""
        num_ready = self._batches.num_ready()
        if isinstance(self._batches, Workers):
            return num_ready
        return num_ready + sum(outcome.step.num_steps for outcome in self._board.tray.items())

    def forget(self, number: int) -> None:
        """Let go of a group that was taken."""
        super().forget(number)
        self._batches.forget(number)


class AuditBoard(OrderBoard[Outcome]):
    """The state that the thread and ``Audits`` share."""

    def __init__(self, batches: Workers | Batches, auditor: Auditor, joining: Joining) -> None:
        super().__init__(batches, joining)
        self._batches, self._auditor = batches, auditor

    def begin(self, number: int) -> None:
        """Audit a group of steps."""
        outcome = self._auditor.audit(self._take(number), lambda: self.tray.is_stopped)
        self.tray.put(number, outcome)

    def end(self) -> None:
        """Stop the threads that make batches, and give back the lane of this one."""
        super().end()
        self._auditor.close()

    def _take(self, number: int) -> Outcome:
        """Return a group of steps that is whole: all its records are copied."""
        item = self._batches.take(number)
        if item is None:
            raise RuntimeError("this thread alone takes what it audits")
        if isinstance(item, Outcome):
            self._batches.forget(number)
            return item
        outcome, copies = outcome_of(item), item.copies
        if copies is None or not isinstance(self._batches, Workers) or outcome.singles:
            return outcome
        steps = range(item.position.step, item.position.step + item.num_steps)
        if all(self._batches.wait(number, item, copies, step) for step in steps):
            return outcome
        # A file cannot be read by the core: each step by itself, of which one raises the error.
        return replace(outcome, singles=[outcome_of(single) for single in item.separate()])

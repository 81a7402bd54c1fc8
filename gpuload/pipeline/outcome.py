"""Outcome: the result of a step, and how a step is run by an executor of whole batches in the
calling thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpuload import device as devices
from gpuload.errors import DeviceError, RowError, add_note
from gpuload.executors.base import BatchExecutor
from gpuload.pipeline.step import Step
from gpuload.pipeline.upload import as_arrays, each_step, queue_step, side_by_side


@dataclass
class Outcome:
    """The result of a step, or of some short steps that were done together: fields, or an error.

    Attributes:
        step: the step.
        fields: its fields after all ops, on the device.
        fields_of_steps: of steps that were done together: the fields of each of them.
        singles: of steps that were done together and of which one failed: the outcome of each, done
            anew by itself.
        event: on a GPU: when it has passed, the fields are there.
        error: raised in place of the fields.
        times: on a GPU, of some steps: events before the upload, behind it, and behind the ops, on
            the GPU's clock.
        row_error: why a row could not be used, as long as its batch may be made anew with another
            record in its place.
        is_started: True while the executor has it: from its start until its result was asked for.
        is_done: True once the executor has finished it.
    """

    step: Step
    fields: dict[str, Any]
    fields_of_steps: list[dict[str, Any]] = field(default_factory=list)
    singles: list[Outcome] = field(default_factory=list)
    event: Any = None
    times: list[devices.Event] = field(default_factory=list)
    error: BaseException | None = None
    row_error: RowError | None = None
    is_started: bool = False
    is_done: bool = False


def outcome_of(step: Step) -> Outcome:
    """Return the outcome of a step that its workers finished."""
    singles = [outcome_of(single) for single in step.singles]
    if step.is_failed or singles:
        fields = {}
    else:
        fields = step.fields
    return Outcome(step, fields, singles=singles, error=step.error)


def run_step(step: Step, executor: BatchExecutor | None, lane: devices.Lane | None) -> Outcome:
    """Return the outcome of a step, run in the calling thread by an executor that has no other
    batch now."""

    def run(fields: dict[str, Any]) -> dict[str, Any]:
        if executor is None:
            return {}
        start(step, fields, executor)
        return executor.finish()

    if lane is None:
        return Outcome(step, {**step.fields, **run(step.fields)})
    with lane:
        lane.reclaim()
        try:
            fields = side_by_side(queue_step(step, lane, run), step.recipe.names)
            fields_of_steps = each_step(step, fields, copy=False)
        except Exception as error:
            if (problem := explain(error, step)) is error:
                raise
            raise problem from error
        finally:
            event = lane.mark()
            event.synchronize()  # the step's slot is free afterwards, also where something went wrong
    return Outcome(step, fields, fields_of_steps, event=event)


def start(step: Step, fields: dict[str, Any], executor: BatchExecutor) -> None:
    """Start a batch; RowError if it holds a record that the executor refused before, and refuses
    now."""
    if not executor.bundles:
        devices.settle()
    inputs = {name: fields[name] for name in step.recipe.rest.touched}
    if executor.name != "array":  # the array executor reads rows and images where they lie
        inputs = {name: devices.as_list(values) for name, values in as_arrays(inputs).items()}
    # By itself first: an error of the whole batch makes DALI build a new pipeline and look for the
    # row by halves.
    for row in step.refused_rows():
        if (error := executor.row_error(inputs, step.draws, row)) is not None:
            raise error.shift_rows(row)
    executor.start(inputs, step.draws)


def try_step(step: Step, executor: BatchExecutor | None, lane: devices.Lane | None) -> Outcome:
    """Return the outcome of a step, run in the calling thread; an error is kept in it for its
    turn."""
    if step.error is not None:
        return Outcome(step, {}, error=step.error)
    try:
        return run_step(step, executor, lane)
    except RowError as error:
        if step.mends:
            return mend_step(step, error, executor, lane)
        return Outcome(step, {}, error=step.record_error(error))
    except Exception as error:
        return Outcome(step, {}, error=error)


def mend_step(
    step: Step, error: RowError, executor: BatchExecutor | None, lane: devices.Lane | None
) -> Outcome:
    """Return the outcome of a step with a bad row: other records take its place until the executor
    accepts them."""
    while True:
        try:
            step = step.again(error)
            if step.error is not None:
                return Outcome(step, {}, error=step.error)
            return run_step(step, executor, lane)
        except RowError as row_error:
            error = row_error
        except Exception as failure:
            return Outcome(step, {}, error=failure)


def explain(error: Exception, step: Step) -> Exception:
    """Return the error of a step on a GPU as it is raised: one of CUDA says at which step, and how
    to go on.

    The loader's position stays behind the batch before, so that nothing is lost.
    """
    problem = devices.failure(error)
    if problem is error or not isinstance(problem, DeviceError):
        return error
    position, num_records = step.position, step.records.size
    last = position.step + step.num_steps - 1
    if step.num_steps == 1:
        steps = f"step {last}"
    else:
        steps = f"steps {position.step} to {last}"
    if devices.is_out_of_memory(error):
        recipe = step.recipe
        batch_size, is_ahead = (
            recipe.plan.most_records,
            recipe.num_ahead > 1 or recipe.num_joined > 1,
        )
        changes = []
        if is_ahead:
            changes = ["prefetch=1"]
        if batch_size > 1:
            changes = [f"a smaller batch_size, {batch_size // 2} or less", *changes]
        if changes:
            change = f"use {', or '.join(changes)}"
        else:
            change = "have the ops make smaller images"
        if step.rows.card is not None and step.rows.card.has_rows:
            change = f"write a smaller memory= in cache(device=True), so that more is left for batches; or {change}"
        problem = DeviceError(
            f"{problem.what} for {num_records} records of {steps}",
            cause=problem.cause,
            remedy=f"{change}; nvidia-smi shows which processes have the GPU's memory",
        )
        problem.__cause__ = error
    note = (
        f"epoch {position.epoch}, {steps}: the loader stays behind its last batch, and goes on "
        "there; so does one of a new process, by load_state_dict() of its state_dict()"
    )
    return add_note(problem, note)

"""Hand-over: the batch of a finished step, as the caller of a loader gets it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from gpuload import device as devices
from gpuload.batch import Batch, Output
from gpuload.pipeline.outcome import Outcome
from gpuload.pipeline.ring import aligned_copy, is_aligned
from gpuload.pipeline.session import Session
from gpuload.pipeline.step import Step
from gpuload.ragged import Ragged, num_bytes


def to_batch(session: Session, outcome: Outcome, step: int, output: Output) -> Batch:
    """Return the batch of a step that was made."""
    group, names = outcome.step, session.names
    if group.batches and names is session.recipe.names:
        return _of_group(session, group, step)
    records, valid, rows = group.records, group.rows.valid, None
    if not group.is_batch:
        rows = group.rows.batch_rows(step)
        records, valid = records[rows], valid[rows]
    if outcome.fields_of_steps:
        fields = outcome.fields_of_steps[step - group.position.step]
    else:
        fields = {name: outcome.fields[name] for name in names}
    if session.lane is not None:
        # Before the arrays are touched: from here on the caller's stream waits for the event, and
        # slices are queued there.
        session.lane.hand_over(outcome.event)
        fields = {name: lend(session.lane, values) for name, values in fields.items()}
    elif rows is not None:
        fields = {name: values[rows] for name, values in fields.items()}
        arrays = {name: values for name, values in fields.items() if _is_numeric(values)}
        # A slice begins anywhere in the slot, and TensorFlow ends the process below 64 bytes
        # (`ring.ALIGN_BYTES`).
        fields |= _copy_unaligned(
            session, arrays, [name for name, values in arrays.items() if not is_aligned(values)]
        )
    session.counters.deliver((int(np.count_nonzero(valid)), sum(map(num_bytes, fields.values()))))
    if attempts := group.rows.attempts:
        num_bad = sum(row in attempts for row in range(group.records.size)[rows or slice(None)])
        session.counters.add(**{"records_skipped" if group.skips else "records_replaced": num_bad})
    draws = group.draws_of_records(rows or slice(None))
    epoch, spec = group.position.epoch, session.recipe.graph.spec_out
    return Batch(
        fields,
        output,
        records=records,
        valid=valid,
        epoch=epoch,
        step=step,
        event=outcome.event,
        drawn=draws,
        spec=spec,
    )


def _of_group(session: Session, group: Step, step: int) -> Batch:
    """Return the batch of a step that its worker has made."""
    batch, amounts, after, unaligned = group.batches[step - group.position.step]
    session.counters.deliver(amounts)
    # The usual way, and the one that the speed of tiny batches depends on: nothing is made anew
    # here.
    if not unaligned and (group.num_steps == 1 or not session.ring.crowded):
        return batch
    fields = _copy_unaligned(session, dict(batch.items()), unaligned)
    output, epoch, spec = session.recipe.output, after.epoch, session.recipe.graph.spec_out
    return Batch(
        fields, output, records=batch.records, valid=batch.valid, epoch=epoch, step=step, spec=spec
    )


def _is_numeric(values: Any) -> bool:
    """Return True for an array of numbers: not for texts, nor for values of varying length."""
    return isinstance(values, np.ndarray) and not values.dtype.hasobject


def _copy_unaligned(
    session: Session, fields: dict[str, Any], unaligned: Collection[str]
) -> dict[str, Any]:
    """Return the fields of one of some steps that were done together, as they are or as copies.

    Those are copied that do not begin where frameworks need it; all of them if the caller keeps so
    much that each batch it keeps should not hold the memory of its neighbours too.
    """
    if session.ring.crowded:
        session.counters.add(batches_copied=1)
        unaligned = fields
    if unaligned:
        return {**fields, **{name: aligned_copy(fields[name]) for name in unaligned}}
    return fields


def lend(lane: devices.Lane, values: Any) -> Any:
    """Return values on the GPU in memory that comes back to the lane; those on the host as they
    are."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, Ragged):
        if isinstance(values.payload, np.ndarray):
            return values
        return values.with_payload(lane.lend(values.flat))
    if isinstance(values, list):
        return [lend(lane, array) for array in values]
    if isinstance(values, devices.Views):
        # They are parts of one memory, which comes back when the last is gone.
        return list(values.move(lane.lend(values.memory)))
    return lane.lend(values)

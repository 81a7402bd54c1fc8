"""Upload: the fields of a finished step come to a GPU, and those of a batch are as frameworks take
them from there.

Nothing here waits for the device: copies, raw decode and the work of an executor are queued on the
stream of a lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuload import device as devices
from gpuload import rawdecode
from gpuload.kernels.addresses import RowAddresses
from gpuload.ops.base import VARYING
from gpuload.pipeline.packing import ArrayPack
from gpuload.pipeline.recipe import Recipe, Route, raw_region
from gpuload.pipeline.ring import ALIGN_BYTES
from gpuload.pipeline.rows import UINT8, StepRows
from gpuload.pipeline.step import Step
from gpuload.ragged import Ragged
from gpuload.sources.shares import places
from gpuload.spec import Layout
from gpuload.storage.direct import DirectReader


def queue_step(
    step: Step, lane: devices.Lane, run: Callable[[dict[str, Any]], dict[str, Any]],
    on_upload: Callable[[], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Queue the upload of a step and the work of an executor on it, and return its fields on the
    GPU.

    Args:
        step: the step.
        lane: its stream is the current one.
        run: gives the fields to the executor, and returns those that are finished, if any.
        on_upload: called once, behind the upload.
    """
    with devices.Bundle(lane, on_upload) as bundle:
        fields = upload_step(step, bundle, lane)
        results = run(fields)
        fields = {**_output_fields(step.recipe, fields), **results}
        devices.settle()
    keep_on_card(step.rows, lane)
    step.note_parameters(bundle.parameter_bytes)
    return fields


def keep_on_card(rows: StepRows, lane: devices.Lane) -> None:
    """Copy the rows that were uploaded to where they stay on the GPU; a lane queues it behind the
    upload."""
    if rows.card is not None and rows.card.uploads.size:
        rows.card.keep(rows.card_shares(), lane)


def upload_step(step: Step, bundle: devices.Bundle, lane: devices.Lane) -> dict[str, Any]:
    """Return the fields of a step on the GPU, their upload waiting in ``bundle``; host-only fields
    stay on the host.

    The source of the upload are page-locked slots of the step, which are kept until the event
    behind it has passed.
    """
    fields = _upload_slot(step, bundle, lane)
    if step.rows.card is None:
        return fields
    return {**fields, **step.rows.card.fields(fields, step.recipe, lane)}


def _upload_slot(step: Step, bundle: devices.Bundle, lane: devices.Lane) -> dict[str, Any]:
    """Return the fields of a step on the GPU; of those that may lie there already the rows that do
    not."""
    recipe, arrays, on_device = step.recipe, step.rows.arrays, _upload_arrays(step.rows, bundle)
    fields = {name: on_device.get(name, values) for name, values in arrays.items()}
    layouts = recipe.layouts_on_device
    if recipe.reader is not None:
        for route in recipe.routes:
            if route.layout is not None:
                raw = _read_on_device(step, recipe.reader, route, route.layout, lane.unused)
                fields |= rawdecode.decode(devices.cupy(), raw, layouts[route.group][1])
        return fields
    for route in recipe.routes:
        if route.layout is not None and (region := raw_region(route.group)) in fields:
            if not len(arrays[region]):  # all of its rows lie on the GPU
                del fields[region]
                continue
            if not rawdecode.makes_views(layouts[route.group][1]):
                bundle.settle()
            fields |= _decode_on_device(arrays[region], fields.pop(region), *layouts[route.group])
    for name, values in step.varying.items():
        field = recipe.rest.spec_in[name]
        if isinstance(values, Ragged) and not field.encoded and not field.host_only:
            values = values.with_payload(bundle.upload(values.flat))
        elif isinstance(values, np.ndarray) and not field.host_only:
            values = bundle.upload(np.ascontiguousarray(values))
        elif isinstance(values, ArrayPack):
            fields[name] = values.on_device(bundle.upload)
            continue
        fields[name] = values
    return fields


def _upload_arrays(rows: StepRows, bundle: devices.Bundle) -> dict[str, Any]:
    """Return the regions of the slot that a GPU can hold as arrays there, which ``bundle``
    uploads."""
    recipe, slot, spec = rows.recipe, rows.slot, rows.recipe.host.spec_out
    num_bytes = min(rows.end + rows.room_bytes, slot.size)
    bundle.hold(slot.array(0, UINT8, (num_bytes,)), rows.end)
    names = [name for name in rows.arrays if name not in spec or not spec[name].host_only]
    if not names:
        return {}
    num_uploads = None
    if rows.card is not None:
        num_uploads = rows.card.uploads.size
    begins = recipe.begins(rows.records.size, num_uploads)
    end = max(begins[name] + rows.arrays[name].nbytes for name in names)
    memory = bundle.upload(slot.array(0, UINT8, (end,)))
    return {name: _view_as(memory, begins[name], rows.arrays[name]) for name in names}


def _view_as(memory: Any, begin: int, like: Any) -> Any:
    """Return the bytes from ``begin`` on as an array of the dtype and shape of another one."""
    return memory[begin : begin + like.nbytes].view(like.dtype).reshape(like.shape)


def _read_on_device(
    step: Step, reader: DirectReader, route: Route, layout: Layout, empty: Callable[[int], Any]
) -> Any:
    """Return the raw records of a route, uint8 ``[n, record_bytes]`` on a GPU, read straight from
    their files.

    Args:
        step: of which records.
        reader: reads them.
        route: which.
        layout: of its records.
        empty: returns uint8 ``[num_bytes]`` on the GPU, which no work that was queued uses.
    """
    rows, count = step.rows, step.rows.records.size
    memory = empty(count * layout.record_bytes)
    shares = rows.stretch.shares(rows.first, rows.first + count)
    for files, extents, numbers in places(shares, route.group, layout, count):
        reader.read(files, extents, memory, numbers * layout.record_bytes)
    step.count_read(memory.nbytes)
    return memory.reshape(count, layout.record_bytes)


def _decode_on_device(
    raw: Any, on_device: Any, host_layout: Layout, layout: Layout
) -> dict[str, Any]:
    """Decode the fields of raw records on the GPU; host-only fields on the host, of the same
    records there."""
    fields: dict[str, Any] = {}
    if host_layout.parts:
        columns = rawdecode.decode(np, raw, host_layout)
        # Copies: decoded fields may be views of the raw records, and their slot is used again once
        # their upload has passed.
        fields.update({name: np.array(values) for name, values in columns.items()})
    if layout.parts:
        fields.update(rawdecode.decode(devices.cupy(), on_device, layout))
    return fields


def _output_fields(recipe: Recipe, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a batch that no op on whole batches acts on, as arrays; the others as
    they are."""
    if not recipe.on_card:
        return fields
    return fields | as_arrays(
        {name: fields[name] for name in recipe.names if name not in recipe.rest.results}
    )


def as_arrays(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with arrays in place of the addresses of their rows."""
    addresses = {
        name: values for name, values in fields.items() if isinstance(values, RowAddresses)
    }
    arrays = {name: values.gather(devices.cupy()) for name, values in addresses.items()}
    devices.settle()
    return fields | arrays


def side_by_side(
    fields: dict[str, Any], names: tuple[str, ...], *, copy: bool = False
) -> dict[str, Any]:
    """Return the named fields as frameworks take them from a GPU: in C order, a copy only where
    they are not.

    ``copy``: also of arrays that are a small part of a memory, which a consumer that keeps them
    would keep, too.
    """
    return {name: _in_c_order(fields[name], copy=copy) for name in names}


def _in_c_order(values: Any, *, copy: bool) -> Any:
    """Return an array in C order; ``copy``: in memory of its own where it is less than half of a
    memory."""
    if isinstance(values, (np.ndarray, *VARYING)):
        return values
    is_part = copy and 2 * values.nbytes < devices.memory_bytes(values)
    if is_part or not values.flags.c_contiguous:
        return values.copy(order="C")
    return values


def each_step(step: Step, fields: dict[str, Any], *, copy: bool) -> list[dict[str, Any]]:
    """Return the fields of each of some steps that were done together; nothing for a step that is a
    batch.

    They are slices, and copies where frameworks could not take them from where they lie; ``copy``:
    each has memory of its own, so that a batch which the consumer keeps does not keep that of its
    neighbours.
    """
    if step.is_batch:
        return []
    rows = [step.rows.batch_rows(step.position.step + i) for i in range(step.num_steps)]
    return [
        {name: _slice_rows(values, part, copy=copy) for name, values in fields.items()}
        for part in rows
    ]


def _slice_rows(values: Any, rows: slice, *, copy: bool) -> Any:
    part = values[rows]
    if isinstance(part, VARYING):
        return part
    is_view = not isinstance(part, np.ndarray) and (copy or part.data.ptr % ALIGN_BYTES)
    if is_view:
        return part.copy()
    return part

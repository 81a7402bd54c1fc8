"""Shares: the records of all leaves that a source names, as rows or as values.

shares = source.resolve(numbers)     of each group and each leaf: which of the records it holds
fill(shares, group, layout, out)     raw records of a group of fixed size, a row of ``out`` each
values(shares, group, spec, count)   the fields of a group of records that vary in length
add_to(plan, shares, ...)            the work of ``fill`` as copies that the core makes
places(shares, group, ...)           the files and the bytes that ``fill`` would read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuload import rawdecode, stats, strings
from gpuload.core.face import CopyPlan, PlanPart
from gpuload.errors import RecordIndexError, RowError, SpecError, TooLargeError
from gpuload.ragged import Ragged, offsets_of
from gpuload.sources.dtypes import holds
from gpuload.sources.leaf import (
    UINT8,
    Bytes,
    Indices,
    Share,
    Values,
    check_numbers,
    element_bytes,
    element_shape,
    elements_of,
    of_elements,
    plain,
)
from gpuload.sources.memory import Memory, is_lent, room, step_room
from gpuload.spec import Field, Layout, Part, Spec
from gpuload.storage.extents import Extents
from gpuload.storage.files import Files

# records that are converted are read so many bytes at a time, which stay in the cache
SCRATCH_BYTES = 1 << 18


def fill(shares: Sequence[Share], group: int, layout: Layout, out: Bytes) -> None:
    """Write the raw records of a group of fixed size into rows, in the layout of the group.

    Leaves that store the bytes of another layout (byte order, padding, order of elements) are
    converted.

    Args:
        shares: from ``Source.resolve``.
        group: which of ``source.groups``.
        layout: that group's.
        out: uint8 ``[n, record_bytes]``, contiguous and writeable; a row for each record that was
            asked for.

    Raises:
        SpecError: ``out`` is no such array.
        RecordIndexError: there is no such record.
        FileError: a file changed, disappeared or cannot be read.
        RowError: a record holds text that is none.
    """
    group_shares = _shares_of(shares, group, len(out) if out.ndim else 0)
    if (
        out.dtype != UINT8
        or out.ndim != 2
        or out.shape[1] != layout.record_bytes
        or not out.flags.carray
    ):
        raise SpecError(
            f"rows of {out.dtype} {out.shape}",
            cause="the records of this group go into contiguous, writeable uint8 (records, "
            f"{layout.record_bytes})",
            remedy="make it as Source.groups says, with a row for each record",
        )
    for share in group_shares:
        if _is_copied(share, layout):
            share.leaf.read(share.numbers, out.reshape(-1), _begins(share, layout.record_bytes))
        else:
            _convert(share, layout, out)
    for part in layout.texts:
        rawdecode.check_text(rawdecode.view_part(out, part))


def add_to(
    plan: CopyPlan,
    shares: Sequence[Share],
    group: int,
    layout: Layout,
    count: int,
    parts: Sequence[PlanPart],
) -> bool:
    """Add the work of ``fill`` for ``count`` records to a plan of the core; returns False if only
    ``fill`` can do it.

    Args:
        plan: where records lie.
        shares: from ``Source.resolve``.
        group: which of ``source.groups``.
        layout: that group's.
        count: how many records were asked for.
        parts: of each record, where they go.
    """
    group_shares = _shares_of(shares, group, count)
    # Text is checked behind the copy, which the core does not do.
    if layout.texts or not all(_is_copied(share, layout) for share in group_shares):
        return False
    return all(share.leaf.add_to(plan, share.numbers, share.rows, parts) for share in group_shares)


def places(
    shares: Sequence[Share], group: int, layout: Layout, count: int
) -> list[tuple[Files, Extents, Indices]]:
    """Return where the bytes lie that `fill` would copy: for each leaf the files, the extents, and
    the row of each.

    Args:
        shares: from ``Source.resolve``.
        group: which of ``source.groups``.
        layout: that group's.
        count: how many records were asked for.

    Raises:
        SpecError: some of the records do not lie in one piece in a file of this machine, as the
            layout has them.
    """
    results = list[tuple[Files, Extents, Indices]]()
    for share in _shares_of(shares, group, count):
        check_numbers(share.numbers, share.leaf.num_records)
        if _is_copied(share, layout):
            leaf_places = share.leaf.places(plain(share.numbers))
        else:
            leaf_places = None
        if leaf_places is None:
            raise SpecError(
                f"the bytes of {', '.join(layout.spec.names)} cannot go straight from files to a "
                "GPU",
                cause="they are converted, unpacked or put together on the host before: only "
                "records that lie in one piece in files of this machine need nothing of that "
                f"(they come by {share.leaf.how or 'Python'})",
                remedy="leave direct=True out; or convert the files once with gl.convert",
            )
        results.append((*leaf_places, _rows(share)))
    return results


def values(
    shares: Sequence[Share], group: int, spec: Spec, count: int, memory: Memory | None = None
) -> list[Values]:
    """Return the fields of a group of varying length, in the order of ``spec``.

    An array ``[count, *shape]`` where a field is uniform, a `Ragged` where it is ragged, else a
    list of arrays. Text comes as objects.

    Args:
        shares: from ``Source.resolve``.
        group: which of ``source.groups``.
        spec: that group's.
        count: how many records were asked for.
        memory: gives uint8 ``[num_bytes]``, page-locked memory for instance; called once for each
            ragged field but text, so that its payload lies there, unless it lies in memory that was
            lent (`lending`) already. By default that memory, or NumPy's.

    Raises:
        RecordError, FileError: a record or its file cannot be read.
        RowError: a record holds text that is none, or needs more memory than there is.
    """
    group_shares = _shares_of(shares, group, count)
    if not count:
        return [_no_values(field) for field in spec]
    stats.watch().enter("read")
    columns: list[Values]
    if all(
        share.leaf.is_direct and _leaf_fields(share)[0].dtype == spec.fields[0].dtype
        for share in group_shares
    ):
        field = spec.fields[0]
        columns = [
            # Text becomes objects on the host: page-locked memory would be of no use to it.
            of_elements(
                field.stored,
                _side_by_side(group_shares, count, (not field.text and memory) or step_room),
            )
        ]
    else:
        columns_of_shares = [_promoted(share, spec, _of_share(share)) for share in group_shares]
        columns = []
        for number, field in enumerate(spec):
            parts = [
                (share, fields[number])
                for share, fields in zip(group_shares, columns_of_shares, strict=True)
            ]
            columns.append(_merge(field.stored, parts, count, None if field.text else memory))
    for number, (field, column) in enumerate(zip(spec, columns, strict=True)):
        if field.text:
            columns[number] = strings.unpack(field, column)
        elif field.dtype.kind == "U":
            rawdecode.check_text(column)
    return columns


def _shares_of(shares: Sequence[Share], group: int, count: int) -> list[Share]:
    """Return the shares of a group, which together must have ``count`` records."""
    group_shares = [share for share in shares if share.group == group]
    for share in group_shares:
        if (
            share.rows is not None
            and share.rows.size
            and int(plain(share.rows).view(np.uint64).max()) >= count
        ):
            raise RecordIndexError(
                f"a record to row {int(share.rows.max())} of {count}",
                cause="there is no such row",
                remedy="make a row for each record that was asked for",
            )
    num_records = sum(share.numbers.size for share in group_shares)
    if num_records != count:
        raise SpecError(
            f"{num_records} records of group {group} to {count} rows",
            cause="the shares of a group are all the records that were asked for, each with a row "
            "of its own",
            remedy="pass the result of Source.resolve, and a row for each of its numbers",
        )
    return group_shares


def _is_copied(share: Share, layout: Layout) -> bool:
    """Return True if the leaf has the bytes of records just as the layout says."""
    return (
        share.picks is None
        and share.leaf.layout is not None
        and share.leaf.layout.same_bytes(layout)
    )


def _rows(share: Share) -> Indices:
    if share.rows is None:
        return np.arange(share.numbers.size, dtype=np.int64)
    return share.rows


def _begins(share: Share, record_bytes: int) -> Indices:
    return _rows(share) * record_bytes


def _convert(share: Share, layout: Layout, out: Bytes) -> None:
    """Read records in the layout of their leaf and write them in another."""
    leaf, stored_layout = share.leaf, share.leaf.layout
    parts = () if stored_layout is None else stored_layout.parts
    if share.picks is not None:
        parts = tuple(parts[pick] for pick in share.picks)
    fits = len(parts) == len(layout.parts) and all(map(_holds, layout.parts, parts))
    if stored_layout is None or not fits:
        raise SpecError(
            f"records of {leaf.spec} in rows of {layout.spec}",
            cause="the fields of a group have the dtypes and shapes of those that come out of its "
            "leaves",
            remedy="pass the layout of the group; `values` is for records that vary in length",
        )
    rows, at_once = _rows(share), max(1, SCRATCH_BYTES // max(stored_layout.record_bytes, 1))
    scratch = room((min(at_once, rows.size), stored_layout.record_bytes), UINT8)
    for first in range(0, rows.size, at_once):
        numbers, to = share.numbers[first : first + at_once], rows[first : first + at_once]
        raw = scratch[: numbers.size]
        leaf.read(
            numbers,
            raw.reshape(-1),
            np.arange(numbers.size, dtype=np.int64) * stored_layout.record_bytes,
        )
        for target, part in zip(layout.parts, parts, strict=True):
            rawdecode.view_part(out, target)[to] = rawdecode.view_part(raw, part)


def _holds(target: Part, part: Part) -> bool:
    """Return True if a field holds all values of another one: of the same dtype, or of one with
    fewer values."""
    field, leaf_field = target.field, part.field
    return field.shape == leaf_field.shape and holds(field.dtype, leaf_field.dtype)


def _of_share(share: Share) -> list[Values]:
    """Return the fields of the group of the records of one share, in their order there."""
    leaf, columns, watch = share.leaf, list[Values](), stats.watch()
    watch.enter("read")
    try:
        if leaf.layout is None:
            raw_records = _side_by_side([replace(share, rows=None)], share.numbers.size, step_room)
            if not leaf.calls_python:  # the function reads
                watch.enter("decode_raw")
                watch.count("decode_raw.bytes", raw_records.payload.nbytes)
            columns = leaf.unpack(share.numbers, raw_records)
        else:
            raw = room((share.numbers.size, leaf.layout.record_bytes), UINT8)
            fill([Share(leaf, 0, share.numbers)], 0, leaf.layout, raw)
            columns += rawdecode.decode(np, raw, leaf.layout).values()
    except RowError as error:
        # The leaf counts its own records; the caller, all that were asked for.
        raise error.shift_rows(int(_rows(share)[error.row]) - error.row) from None
    if share.picks is None:
        return columns
    return [columns[pick] for pick in share.picks]


def _leaf_fields(share: Share) -> Sequence[Field]:
    """Return the fields of a share as its leaf has them, in the order of its group."""
    fields = share.leaf.spec.fields
    if share.picks is None:
        return fields
    return [fields[pick] for pick in share.picks]


def _promoted(share: Share, spec: Spec, columns: list[Values]) -> list[Values]:
    """Return the fields of a share in the dtypes of its group, which hold all values of the
    leaf's."""
    for number, (field, leaf_field) in enumerate(zip(spec, _leaf_fields(share), strict=True)):
        column = columns[number]
        if field.dtype == leaf_field.dtype:
            continue
        if isinstance(column, Ragged):
            columns[number] = column.with_payload(column.flat.astype(field.dtype))
        elif isinstance(column, list):
            columns[number] = [value.astype(field.dtype) for value in column]
        else:
            columns[number] = column.astype(field.dtype)
    return columns


def _side_by_side(shares: Sequence[Share], count: int, memory: Memory) -> Ragged:
    """Return the raw bytes of all records, in the order in which they were asked for, from however
    many leaves."""
    lengths = np.empty(count, np.int64)
    for share in shares:
        lengths[_rows(share)] = share.leaf.num_bytes(share.numbers)
    offsets = offsets_of(lengths)
    try:
        payload = memory(int(offsets[-1]))
    except TooLargeError as error:
        row = int(lengths.argmax())
        raise RowError(
            row,
            f"its {int(lengths[row])} bytes are too many",
            cause=f"{count} records that are read together have {int(offsets[-1])} bytes; "
            f"{error.cause}",
            remedy="use a smaller batch_size; a record that is too large has to be cut into "
            "several",
        ) from None
    for share in shares:
        share.leaf.read(share.numbers, payload, offsets[:-1][share.index])
    stats.watch().count("read.bytes", payload.nbytes)
    return Ragged(payload, offsets)


def _merge(
    field: Field, parts: Sequence[tuple[Share, Values]], count: int, memory: Memory | None
) -> Values:
    """Return the values of a field that shares have, each at its row; of a whole share as they
    are."""
    share, part_values = parts[0]
    if share.rows is None and (memory is None or not field.ragged):
        return part_values
    if share.rows is None and memory is not None and isinstance(part_values, Ragged):
        # It lies already where a GPU copies from.
        if is_lent(part_values.payload):
            return part_values
        total = len(part_values.flat)
        elements = elements_of(field, memory(total * element_bytes(field)), total)
        elements[...] = part_values.flat
        return part_values.with_payload(elements)
    if field.uniform:
        array = room((count, *field.fixed_shape), field.dtype)
        for share, part_values in parts:
            array[share.index] = part_values
        return array
    by_row: list[Any] = [None] * count
    for share, part_values in parts:
        for row, value in zip(_rows(share).tolist(), part_values, strict=True):
            by_row[row] = value
    if not field.ragged:
        return by_row
    offsets = offsets_of(np.array([len(value) for value in by_row], np.int64))
    total = int(offsets[-1])
    payload = elements_of(field, (memory or step_room)(total * element_bytes(field)), total)
    np.concatenate(by_row, out=payload)
    return Ragged(payload, offsets)


def _no_values(field: Field) -> Values:
    if field.text:
        return strings.unpack(field, Ragged.of([], UINT8))
    if field.uniform:
        return np.empty((0, *field.fixed_shape), field.dtype)
    if field.ragged:
        return Ragged.of([], field.dtype, element_shape(field))
    return []

"""Leaves: where raw records lie. Every source, however composed, says of its records which leaf
holds them.

    shares = source.resolve(numbers)     for each group of fields and each leaf: which of the
                                         records it holds
    fill(shares, group, layout, out)     the raw records of a group of fixed size, one in each row
                                         of ``out``
    values(shares, group, spec, count)   the fields of a group whose records vary in length

A leaf is one kind of place: files of one layout, whole files, one array. It does not know its
number in a source, nor the names that fields have there, so it serves slices, splits, renamed,
zipped and concatenated sources alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gpuload import core, rawdecode, stats, strings
from gpuload.core.face import CopyPlan, PlanPart
from gpuload.errors import RecordIndexError, RowError, SpecError, TooLargeError
from gpuload.order import MAX_LENGTH
from gpuload.ragged import Ragged, offsets_of
from gpuload.sources.dtypes import holds
from gpuload.sources.memory import Memory, is_lent, room, step_room
from gpuload.spec import Field, Layout, Part, Spec
from gpuload.storage.extents import Extents
from gpuload.storage.files import Files

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]
Values = Array | Ragged | list[Array]
Fields = dict[str, Values]

INT64, UINT8 = np.dtype(np.int64), np.dtype(np.uint8)
# records that are converted are read so many bytes at a time, which stay in the cache
SCRATCH_BYTES = 1 << 18


class Leaf(ABC):
    """Records whose raw bytes lie in one kind of place; safe to read from several threads at once.

    Attributes:
        spec: the fields that the bytes of a record become.
        layout: where the fields lie in a record; None where records vary in length.
        num_records: how many records it has.
        how: one line about how it is read, for people.
        is_direct: True if records vary in length and their bytes are the elements of the one field,
            native and in C order, so that raw bytes are handed out as they are.
        calls_python: True if a Python function makes the records, so that threads wait for each
            other.
        block_records: how many records are decoded together, at most, for each of them that is
            read; 0 if each is read alone, or if what was decoded stays in memory.
        asks_once: True if no record is asked of a store a second time: it lies in memory or in a
            cache, or it stays in memory once it was decoded.
    """

    spec: Spec
    layout: Layout | None = None
    num_records: int
    how: str = ""
    is_direct: bool = False
    calls_python: bool = False
    block_records: int = 0
    asks_once: bool = False

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many raw bytes each record has, int64 ``[n]``; those of varying length say it
        themselves."""
        if self.layout is None:
            raise NotImplementedError(
                f"{type(self).__name__} does not say how long its records are"
            )
        return np.full(numbers.size, self.layout.record_bytes, np.int64)

    def value_bytes(self, numbers: Indices) -> Indices:
        """Return about how many bytes the values of each record take, int64 ``[n]``, to size pieces
        of work."""
        return self.num_bytes(numbers)

    def read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        """Copy the bytes of record ``numbers[i]`` to ``out[begins[i]:]``. All is checked before the
        first is copied.

        Args:
            numbers: int64 ``[n]``, from 0 to ``num_records - 1``.
            out: uint8 ``[total]``, contiguous and writeable.
            begins: int64 ``[n]``; the records do not overlap there.

        Raises:
            RecordIndexError: there is no such record, or it does not fit into ``out`` there.
            SpecError: ``out`` is no such array.
            FileError: a file changed, disappeared or cannot be read.
        """
        numbers, begins = plain(numbers), plain(begins)
        check_numbers(numbers, self.num_records)
        fits = out.dtype == UINT8 and out.ndim == 1 and out.flags.carray
        if not fits or begins.shape != numbers.shape:
            raise SpecError(
                f"{numbers.size} records to {begins.shape} places in {out.dtype} {out.shape}",
                cause="records are read into one piece of writeable uint8, each to a place of its own",
                remedy="pass one axis of bytes, and where in it each record begins",
            )
        if numbers.size:
            self._read(numbers, out, begins)

    @property
    def is_mapped(self) -> bool:
        """True if threads of the core can copy its records from maps of files just as ``read``
        does."""
        return False

    def add_to(
        self, plan: CopyPlan, numbers: Indices, rows: Indices | None, parts: Sequence[PlanPart]
    ) -> bool:
        """Add the copies of ``read`` to a plan of the core; returns False if the leaf is not
        mapped, or no more.

        A class that defines ``_read`` defines this, too, or its base class does not.

        Args:
            plan: where records lie; each belongs to a row of it.
            numbers: as for ``read``.
            rows: int64 ``[n]``, the row of each, in ascending order; None: record i is row i.
            parts: of each record, where they go.
        """
        del plan, numbers, rows, parts
        return False

    def places(self, numbers: Indices) -> tuple[Files, Extents] | None:
        """Return the files and where in them the bytes of each record lie in one piece; None where
        they do not.

        Args:
            numbers: as for ``read``.
        """
        del numbers
        return None

    @abstractmethod
    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        """Copy the bytes, after a check that each record fits to where it should go.

        The arrays are of the right kind, the numbers are those of records, and there is at least
        one.
        """

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the fields of records of varying length as they are stored (`Field.stored`), in
        the order of ``spec``.

        Args:
            numbers: int64 ``[n]``, which records these are.
            raw: their bytes.
        """
        del numbers
        if not self.is_direct:
            raise NotImplementedError(
                f"{type(self).__name__} does not define unpack: its bytes have no meaning"
            )
        return [_of_elements(self.spec.fields[0].stored, raw)]

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file that holds a record and the byte where it begins; None where no file is
        known."""
        del number
        return None

    def advise(self, numbers: Indices) -> None:  # noqa: B027 - most leaves have nothing to ask for
        """Ask the system to have these records in memory soon; returns at once."""


@dataclass(frozen=True)
class Group:
    """Fields of a source that come out of one raw record.

    Attributes:
        spec: the fields.
        layout: where they lie in the record; None where records vary in length.
        is_quick: True if records of varying length take microseconds each, so that short steps may
            be done together. Those of fixed size do.
    """

    spec: Spec
    layout: Layout | None
    is_quick: bool = False

    @classmethod
    def of(cls, layout: Layout) -> Group:
        """Return the group of the fields of records of a layout."""
        return cls(layout.spec, layout)


@dataclass(frozen=True)
class Share:
    """Some of the records that were asked for, as one leaf holds them, for one group of fields.

    Attributes:
        leaf: it holds the records.
        group: which of ``source.groups``.
        numbers: int64 ``[n]``, their numbers in the leaf.
        rows: int64 ``[n]``, which of the asked records these are; None: all of them, in order.
        picks: which of the leaf's fields are the group's, in the group's order; None: all.
    """

    leaf: Leaf
    group: int
    numbers: Indices
    rows: Indices | None = None
    picks: tuple[int, ...] | None = None


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
            cause=f"the records of this group go into contiguous, writeable uint8 (records, {layout.record_bytes})",
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
                f"the bytes of {', '.join(layout.spec.names)} cannot go straight from files to a GPU",
                cause="they are converted, unpacked or put together on the host before: only records that lie in one "
                f"piece in files of this machine need nothing of that (they come by {share.leaf.how or 'Python'})",
                remedy="leave direct=True out; or convert the files once with gl.convert",
            )
        results.append((*leaf_places, _rows(share)))
    return results


def values(
    shares: Sequence[Share], group: int, spec: Spec, count: int, memory: Memory | None = None
) -> list[Values]:
    """Return the fields of a group whose records vary in length, in the order of ``spec``.

    An array ``[count, *shape]`` where a field is uniform, a `Ragged` where it is ragged, else a
    list of arrays. Text comes as objects.

    Args:
        shares: from ``Source.resolve``.
        group: which of ``source.groups``.
        spec: that group's.
        count: how many records were asked for.
        memory: gives uint8 ``[num_bytes]``, page-locked memory for instance; called once for each
            ragged field but text, whose payload then lies there, unless it lies in memory that was
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
            _of_elements(
                field.stored,
                _side_by_side(group_shares, count, (not field.text and memory) or step_room),
            )
        ]
    else:
        columns_of_shares = [_promoted(share, spec, _of_share(share)) for share in group_shares]
        columns = [
            _merge(
                field.stored,
                [
                    (share.rows, fields[number])
                    for share, fields in zip(group_shares, columns_of_shares, strict=True)
                ],
                count,
                None if field.text else memory,
            )
            for number, field in enumerate(spec)
        ]
    for number, (field, column) in enumerate(zip(spec, columns, strict=True)):
        if field.text:
            columns[number] = strings.unpack(field, column)
        elif field.dtype.kind == "U":
            rawdecode.check_text(column)
    return columns


def plain(numbers: Indices) -> Indices:
    """Return numbers as an array of the one kind that the core takes: int64, contiguous; a copy
    only if need be.

    Raises:
        SpecError: they are no array of whole numbers on one axis.
    """
    if isinstance(numbers, np.ndarray) and numbers.ndim == 1:
        # some microseconds less than numpy.require
        if numbers.dtype == INT64 and numbers.flags.c_contiguous:
            return numbers
        if numbers.dtype.kind in "iu" or not numbers.size:
            return np.array(numbers, np.int64)
    raise SpecError(
        f"numbers = {numbers!r}"[:200],
        cause="record numbers come as an array of whole numbers, of one axis",
        remedy="pass numpy.array([3, 1, 4]), say; source.read takes lists, too",
    )


def check_places(numbers: Indices, lengths: Indices | int, num_bytes: int, begins: Indices) -> None:
    """Raise ``RecordIndexError`` if a record of ``lengths[i]`` bytes at ``begins[i]`` ends outside
    ``num_bytes``."""
    wrong = (begins < 0) | (begins > num_bytes - lengths)
    if wrong.any():
        bad = int(np.flatnonzero(wrong)[0])
        raise RecordIndexError(
            f"record {int(numbers[bad])} to byte {int(begins[bad])} of {num_bytes}",
            cause="it does not fit there",
            remedy="make room for each record, Leaf.num_bytes says how much",
        )


def put_rows(rows: Array, out: Bytes, begins: Indices) -> None:
    """Copy the bytes of ``rows[i]``, of two axes, to ``out[begins[i]:]``; `check_places` says
    whether they fit."""
    raw = np.ascontiguousarray(rows).view(UINT8)
    # A view of the bytes from each byte on, so that NumPy writes all rows at once.
    as_strided(out, (out.size - raw.shape[1] + 1, raw.shape[1]), (1, 1))[begins] = raw


def gather_rows(rows: Bytes, numbers: Indices, out: Bytes, begins: Indices) -> None:
    """Copy row ``numbers[i]`` of ``rows``, uint8 ``[num_rows, size]``, to ``out[begins[i]:]``."""
    if core.native is not None and core.native.gather_rows(rows, numbers, out, begins) < 0:
        return
    check_places(numbers, rows.shape[1], out.size, begins)
    put_rows(np.take(rows, numbers, axis=0), out, begins)


def gather_pieces(
    raw: Bytes, offsets: Indices, lengths: Indices, out: Bytes, begins: Indices
) -> None:
    """Copy ``lengths[i]`` bytes at ``offsets[i]`` of ``raw`` to ``out[begins[i]:]``; all lie
    inside."""
    if core.native is not None:
        core.native.gather_pieces(raw, offsets, lengths, out, begins)
        return
    for offset, length, begin in zip(
        offsets.tolist(), lengths.tolist(), begins.tolist(), strict=True
    ):
        out[begin : begin + length] = raw[offset : offset + length]


def check_numbers(numbers: Indices, length: int) -> None:
    """Raise ``RecordIndexError`` if one of the numbers lies outside ``0 .. length - 1``."""
    # negative ones are the largest unsigned ones
    if numbers.size and int(numbers.view(np.uint64).max()) >= length:
        bad = numbers[(numbers < 0) | (numbers >= length)][0]
        raise RecordIndexError(
            f"record {int(bad)} of a source of {length} records",
            cause=f"records are numbered 0 to {length - 1}" if length else "it has none",
            remedy="ask for records in that range",
        )


def starts_of(counts: Sequence[int]) -> Indices:
    """Return where the records of each part begin and the last ends, int64 ``[num_parts + 1]``.

    Raises:
        SpecError: there are more records than can be numbered.
    """
    if sum(counts) > MAX_LENGTH:
        raise SpecError(
            f"{sum(counts)} records",
            cause=f"a source has at most {MAX_LENGTH}",
            remedy="use fewer files or sources",
        )
    return offsets_of(np.array(counts, np.int64))


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
            cause="the shares of a group are all the records that were asked for, each with a row of its own",
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
            cause="the fields of a group have the dtypes and shapes of those that come out of its leaves",
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
            cause=f"{count} records that are read together have {int(offsets[-1])} bytes; {error.cause}",
            remedy="use a smaller batch_size; a record that is too large has to be cut into several",
        ) from None
    for share in shares:
        share.leaf.read(
            share.numbers, payload, offsets[:-1] if share.rows is None else offsets[:-1][share.rows]
        )
    stats.watch().count("read.bytes", payload.nbytes)
    return Ragged(payload, offsets)


def _merge(
    field: Field, parts: Sequence[tuple[Indices | None, Values]], count: int, memory: Memory | None
) -> Values:
    """Return the values of a field that several shares have, each at its row; of a single share as
    they are."""
    rows, part_values = parts[0]
    if rows is None and (memory is None or not field.ragged):
        return part_values
    if rows is None and memory is not None and isinstance(part_values, Ragged):
        # It lies already where a GPU copies from.
        if is_lent(part_values.payload):
            return part_values
        total = len(part_values.flat)
        elements = _elements(field, memory(total * _element_bytes(field)), total)
        elements[...] = part_values.flat
        return part_values.with_payload(elements)
    if field.uniform:
        array = room((count, *field.fixed_shape), field.dtype)
        for rows, part_values in parts:
            array[... if rows is None else rows] = part_values
        return array
    by_row: list[Any] = [None] * count
    for rows, part_values in parts:
        for row, value in zip(
            range(count) if rows is None else rows.tolist(), part_values, strict=True
        ):
            by_row[row] = value
    if not field.ragged:
        return by_row
    offsets = offsets_of(np.array([len(value) for value in by_row], np.int64))
    total = int(offsets[-1])
    payload = _elements(field, (memory or step_room)(total * _element_bytes(field)), total)
    np.concatenate(by_row, out=payload)
    return Ragged(payload, offsets)


def _of_elements(field: Field, raw: Ragged) -> Ragged:
    """Return records whose bytes are the elements of a ragged field as values of that field."""
    element_bytes = _element_bytes(field)
    if field.dtype == UINT8 and not _element_shape(field):
        return raw
    offsets = raw.offsets // element_bytes
    return Ragged(_elements(field, raw.payload[: int(raw.offsets[-1])], int(offsets[-1])), offsets)


def _elements(field: Field, payload: Bytes, total: int) -> Array:
    """Return bytes as ``total`` elements of a ragged field, as its first axis counts them."""
    return payload.view(field.dtype).reshape(total, *_element_shape(field))


def _element_shape(field: Field) -> tuple[int, ...]:
    return tuple(length for length in (field.shape or ())[1:] if length is not None)


def _element_bytes(field: Field) -> int:
    return field.dtype.itemsize * math.prod(_element_shape(field))


def _no_values(field: Field) -> Values:
    if field.text:
        return strings.unpack(field, Ragged.of([], UINT8))
    if field.uniform:
        return np.empty((0, *field.fixed_shape), field.dtype)
    if field.ragged:
        return Ragged.of([], field.dtype, _element_shape(field))
    return []

"""Rows become fields: the bytes of a row that are a field of the source, or to which a field
refers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.formats.csv.columns import CsvColumn, FieldColumns
from gpuload.formats.csv.kinds import REFERENCE, Form, is_measured, is_referred, is_text, row_dtype
from gpuload.formats.csv.parse import TEXT
from gpuload.sources.layouts import layout_of
from gpuload.sources.leaf import (
    Bytes,
    Indices,
    Leaf,
    check_places,
    gather_pieces,
    put_rows,
    starts_of,
)
from gpuload.sources.rows import RecordForm, RowLeaf
from gpuload.sources.shares import SCRATCH_BYTES
from gpuload.spec import Field, Layout, Spec
from gpuload.storage.extents import Extents, Storage


@dataclass(frozen=True)
class Reference:
    """A field of bytes that lie elsewhere.

    Attributes:
        field: it.
        place: the byte of a row that says where they lie.
    """

    field: Field
    place: int


@dataclass(frozen=True)
class FieldRun:
    """Fields of fixed size that are neighbours.

    Attributes:
        stored_dtype: dtype of a whole row, with these fields where they lie in it.
        field_dtype: dtype of a record with these fields as they come out; the same where no text
            has to be spread.
    """

    stored_dtype: np.dtype[Any]
    field_dtype: np.dtype[Any]

    @property
    def is_direct(self) -> bool:
        """True if fields come out as they lie in a row."""
        return self.stored_dtype == self.field_dtype

    @property
    def layout(self) -> Layout:
        """The layout of the fields in a record."""
        return layout_of(self.field_dtype, field="")


def groups_of(
    columns: Sequence[CsvColumn], fields: Sequence[FieldColumns], form: Form, longest: Sequence[int]
) -> list[FieldRun | Reference]:
    """Return the fields in their order: runs of fields of fixed size, and references.

    Args:
        columns: that are read.
        fields: that they become.
        form: of the rows.
        longest: of each column the longest text; a row may have room for longer ones.
    """
    rows = row_dtype(columns, form)
    groups: list[FieldRun | Reference] = []
    run: list[tuple[str, Any, int, Any]] = []

    def end_run() -> None:
        if run:
            names, formats, offsets, field_dtypes = zip(*run, strict=True)
            about: Any = {
                "names": names,
                "formats": formats,
                "offsets": offsets,
                "itemsize": rows.itemsize,
            }
            stored_dtype = field_dtype = np.dtype(about)
            if formats != field_dtypes:
                pairs = list(zip(names, field_dtypes, strict=True))
                field_dtype = np.dtype(pairs, align=True)
            groups.append(FieldRun(stored_dtype, field_dtype))
            run.clear()

    for field in fields:
        place = field.columns[0]
        column, dtype, offset = columns[place], rows[place], int(rows.fields[str(place)][1])  # type: ignore[index]
        field_dtype: Any = dtype
        if is_referred(column, form[place]):
            end_run()
            text = Field(field.name, np.dtype(object), (), text="str")
            value = text if is_text(column, form[place]) else text.stored
            groups.append(Reference(value, offset))
            continue
        if form[place].read == TEXT and is_measured(column):
            field_dtype = np.dtype(f"U{max(1, longest[place], len(column.default or ''))}")
        elif form[place].read == TEXT:
            field_dtype = np.dtype(column.dtype)
        if field.is_vector:
            dtype = field_dtype = np.dtype((dtype, (len(field.columns),)))
        run.append((field.name, dtype, offset, field_dtype))
    end_run()
    return groups


def spread(rows: Bytes, run: FieldRun, out: Bytes) -> None:
    """Write rows as records: characters of one or two bytes become those of NumPy, which have four.

    Args:
        rows: uint8 ``[n, row_bytes]``.
        run: the fields.
        out: uint8 ``[n, record_bytes]``.
    """
    stored_fields: Mapping[str, Any] = run.stored_dtype.fields or {}
    fields: Mapping[str, Any] = run.field_dtype.fields or {}
    for name in run.field_dtype.names or ():
        (dtype, begin), (field_dtype, to) = stored_fields[name][:2], fields[name][:2]
        source, target = (
            rows[:, begin : begin + dtype.itemsize],
            out[:, to : to + field_dtype.itemsize],
        )
        if field_dtype.base.kind == "U" and dtype.base.kind == "u":
            characters = target.view(np.uint32)
            np.copyto(characters, source.view(dtype.base)[:, : characters.shape[1]])
        else:
            target.view(dtype.base)[...] = source.view(dtype.base)


class TableLeaf(RowLeaf):
    """Rows of tables. Their files are not the user's: messages name the line of the CSV file
    instead."""

    asks_once = True  # the tables lie in the cache folder

    def __init__(self, layout: Layout, storage: Storage, counts: Indices) -> None:
        tables = np.arange(counts.size, dtype=np.int64)
        super().__init__(RecordForm(layout), storage, tables, counts, np.zeros_like(counts))

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return None: the file is a table, and not the user's."""
        del number
        return None


class SpreadLeaf(Leaf):
    """Rows of tables in which text takes less room than NumPy's.

    Args:
        run: the fields.
        storage: of the tables.
        counts: int64 ``[num_tables]``, their rows.
    """

    asks_once = True

    def __init__(self, run: FieldRun, storage: Storage, counts: Indices) -> None:
        self._run, self._rows = (
            run,
            TableLeaf(layout_of(run.stored_dtype, field=""), storage, counts),
        )
        self.layout: Layout = run.layout
        self.spec, self.how, self.num_records = (
            self.layout.spec,
            storage.how,
            self._rows.num_records,
        )

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        record_bytes, row_bytes = self.layout.record_bytes, self._run.stored_dtype.itemsize
        check_places(numbers, record_bytes, out.size, begins)
        at_once = max(1, SCRATCH_BYTES // max(row_bytes, record_bytes))
        for first in range(0, numbers.size, at_once):
            chunk = numbers[first : first + at_once]
            rows, records = (
                np.empty((chunk.size, row_bytes), np.uint8),
                np.zeros((chunk.size, record_bytes), np.uint8),
            )
            self._rows.read(
                chunk, rows.reshape(-1), np.arange(chunk.size, dtype=np.int64) * row_bytes
            )
            spread(rows, self._run, records)
            put_rows(records, out, begins[first : first + at_once])

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        self._rows.advise(numbers)


class PayloadLeaf(Leaf):
    """Bytes of varying length in memory, that rows there refer to.

    Args:
        reference: the field, and where a row says where its bytes are.
        rows: uint8 ``[num_records, row_bytes]``.
        payload: uint8 ``[num_bytes]``.
    """

    is_direct = True
    how, asks_once = "arrays in memory", True

    def __init__(self, reference: Reference, rows: Bytes, payload: Bytes) -> None:
        self.spec, self.num_records, self._payload = Spec((reference.field,)), len(rows), payload
        spans = np.ascontiguousarray(
            rows[:, reference.place : reference.place + REFERENCE.itemsize]
        ).view(REFERENCE)
        self._offsets, self._lengths = (
            spans["offset"].reshape(-1).copy(),
            spans["length"].reshape(-1).copy(),
        )

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many bytes each record has, int64 ``[n]``."""
        return self._lengths[numbers]

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        check_places(numbers, self._lengths[numbers], out.size, begins)
        gather_pieces(self._payload, self._offsets[numbers], self._lengths[numbers], out, begins)


class ReferredLeaf(Leaf):
    """Bytes of varying length that the rows of tables refer to.

    Args:
        reference: the field, and where a row says where its bytes are.
        storage: of the tables.
        counts: int64 ``[num_tables]``, their rows.
        payloads: int64 ``[num_tables]``, the byte where their payload begins.
        row_bytes: of a row.
    """

    is_direct = asks_once = True

    def __init__(
        self,
        reference: Reference,
        storage: Storage,
        counts: Indices,
        payloads: Indices,
        row_bytes: int,
    ) -> None:
        self.spec, self.how, self.num_records = (
            Spec((reference.field,)),
            storage.how,
            int(counts.sum()),
        )
        self._storage, self._starts, self._payloads = storage, starts_of(counts.tolist()), payloads
        self._row_bytes, self._place = row_bytes, reference.place

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many bytes each record has, int64 ``[n]``."""
        return self._extents(numbers).lengths

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        self._storage.read(self._extents(numbers), out, begins)

    def _extents(self, numbers: Indices) -> Extents:
        """Return where the values lie in the tables: each row holds a reference, offset and length
        in the payload."""
        files = np.searchsorted(self._starts, numbers, side="right") - 1
        references, size = np.zeros(numbers.size, REFERENCE), REFERENCE.itemsize
        rows = (numbers - self._starts[files]) * self._row_bytes + self._place
        lengths, begins = (
            np.full(numbers.size, size, np.int64),
            np.arange(numbers.size, dtype=np.int64) * size,
        )
        self._storage.read(Extents(files, rows, lengths), references.view(np.uint8), begins)
        # References that a damaged table holds lie outside of it, which the storage refuses.
        return Extents(
            files, references["offset"] + self._payloads[files], references["length"].copy()
        )

"""Leaves: where raw records lie. Every source, however composed, says which leaf holds its records.

A leaf is one kind of place: files of one layout, whole files, one array. It does not know its
number in a source, nor the names that fields have there, so it serves slices, splits, renamed,
zipped and concatenated sources alike. `shares.py` reads the records of several leaves.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gpuload import core
from gpuload.core.face import CopyPlan, PlanPart
from gpuload.errors import RecordIndexError, SpecError
from gpuload.order import MAX_LENGTH
from gpuload.ragged import Ragged, offsets_of
from gpuload.spec import Field, Layout, Spec
from gpuload.storage.extents import Extents
from gpuload.storage.files import Files

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]
Values = Array | Ragged | list[Array]
Fields = dict[str, Values]
INT64, UINT8 = np.dtype(np.int64), np.dtype(np.uint8)


class Leaf(ABC):
    """Records with raw bytes in one kind of place; safe to read from several threads at once.

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
            read; 0 if each is read alone, or if decoded records stay in memory.
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
                cause="records are read into one piece of writeable uint8, each to a place of its "
                "own",
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
        return [of_elements(self.spec.fields[0].stored, raw)]

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

    @property
    def index(self) -> slice | Indices:
        """The rows as an index of an array that has a row for each of the asked records."""
        return slice(None) if self.rows is None else self.rows


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
        cause = f"records are numbered 0 to {length - 1}" if length else "it has none"
        raise RecordIndexError(
            f"record {int(bad)} of a source of {length} records",
            cause=cause,
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


def of_elements(field: Field, raw: Ragged) -> Ragged:
    """Return raw records, the elements of a ragged field, as values of that field."""
    if field.dtype == UINT8 and not element_shape(field):
        return raw
    offsets = raw.offsets // element_bytes(field)
    payload = raw.payload[: int(raw.offsets[-1])]
    return Ragged(elements_of(field, payload, int(offsets[-1])), offsets)


def elements_of(field: Field, payload: Bytes, total: int) -> Array:
    """Return bytes as ``total`` elements of a ragged field, as its first axis counts them."""
    return payload.view(field.dtype).reshape(total, *element_shape(field))


def element_shape(field: Field) -> tuple[int, ...]:
    """Return the shape of one element of a ragged field, as its first axis counts them."""
    return tuple(length for length in (field.shape or ())[1:] if length is not None)


def element_bytes(field: Field) -> int:
    """Return the bytes of one element of a ragged field."""
    return field.dtype.itemsize * math.prod(element_shape(field))

"""Reading: the records of any source as values, and the places of records, by its shares alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from gpuload import rawdecode, signalsafe
from gpuload.errors import RecordError, RowError, SpecError
from gpuload.order import MAX_LENGTH
from gpuload.sources.leaf import Fields, Group, Indices, Share, check_numbers
from gpuload.sources.memory import room
from gpuload.sources.shares import fill, values
from gpuload.spec import Spec


class Readable(Protocol):
    """Records by number, as `gpuload.sources.base.Source` has them; the methods are described
    there."""

    groups: tuple[Group, ...]
    spec: Spec
    endless: bool
    _has_card: bool

    def __len__(self) -> int:
        """The number of records."""

    def resolve(self, numbers: Indices) -> list[Share]:
        """Return which leaf holds which of the records."""

    def where(self, index: int) -> str:
        """Return the place of a record, for messages."""

    def _line(self) -> str:
        """Return the source in one line, without its fields, for errors."""

    def fingerprint(self) -> str:
        """Return a short text that differs for other data."""


def read_groups(source: Readable, numbers: Indices, names: Collection[str]) -> Fields:
    """Return records as a dict of these fields and of all others in the same groups.

    Raises:
        RecordIndexError: there is no such record.
        RecordError, FileError: a record or its file cannot be read.
    """
    shares = source.resolve(numbers)
    fields: Fields = {}
    try:
        for number, group in enumerate(source.groups):
            if not any(name in names for name in group.spec.names):
                continue
            if group.layout is None:
                group_values = values(shares, number, group.spec, numbers.size)
                fields.update(zip(group.spec.names, group_values, strict=True))
            else:
                raw = room((numbers.size, group.layout.record_bytes), np.dtype(np.uint8))
                fill(shares, number, group.layout, raw)
                fields.update(rawdecode.decode(np, raw, group.layout))
    except RowError as error:
        raise record_error(source, int(numbers[error.row]), error) from None
    return fields


def record_error(source: Readable, number: int, error: RowError) -> RecordError:
    """Return the error for a record that cannot be used: it names the record and its first byte."""
    location, origin = source.where(number), record_origin(source, number)
    if origin is not None and origin[1]:
        location += f", byte {origin[1]}"
    return error.of_record(location)


def record_origin(source: Readable, number: int) -> tuple[str, int] | None:
    """Return the file of a record and the byte where it begins; None if it lies in no file or in
    several.

    If its fields lie at several places of one file, it is the first of these bytes.

    Raises:
        RecordIndexError: there is no such record.
    """
    shares = source.resolve(record_numbers(source, [number]))
    origins = [share.leaf.origin(int(share.numbers[0])) for share in shares]
    places = [place for place in origins if place is not None]
    if len({file for file, _ in places}) == 1:
        return min(places)
    return None


def record_numbers(source: Readable, indices: ArrayLike) -> Indices:
    """Return indices of records as int64 ``[N]``.

    Raises:
        SpecError: the indices are not one axis of whole numbers.
        RecordIndexError: one lies outside ``0 .. len - 1``.
    """
    try:
        array = np.asarray(indices)
    except (TypeError, ValueError) as error:
        signalsafe.pass_on(error)
        raise SpecError(
            "indices that are no array",
            cause=str(error),
            remedy="pass a list or a 1-d integer array",
        ) from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        mask = "; source.filter(mask) takes a mask" * (array.dtype.kind == "b")
        raise SpecError(
            f"indices of shape {array.shape} and dtype {array.dtype}",
            cause="records are chosen by one axis of whole numbers",
            remedy=f"pass a list or a 1-d integer array; source[i] gives one record{mask}",
        )
    numbers = array.astype(np.int64)
    check_numbers(numbers, num_numbers(source))
    return numbers


def num_numbers(source: Readable) -> int:
    """Return how many numbers name a record; those of an endless source go on over its epochs."""
    return MAX_LENGTH if source.endless else len(source)


def field_names(spec: Spec, fields: object) -> tuple[str, ...]:
    """Return the names of the fields that ``source.read`` was asked for.

    Raises:
        UnknownFieldError: there is no such field.
        SpecError: these are no names.
    """
    names = (fields,) if isinstance(fields, str) else fields
    is_list = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    if not isinstance(names, Sequence) or not names or not is_list:
        raise SpecError(
            f"fields = {fields!r}"[:200],
            cause=f"it is the name of a field, or a list of names; there are {list(spec.names)}",
            remedy=f"pass fields={spec.names[-1]!r}, or leave it out for all fields",
        )
    return tuple(spec[name].name for name in names)

"""Lengths of the values of a field in all records, without reading their bytes if possible."""

from __future__ import annotations

from math import prod

import numpy as np

from gpuload.errors import SpecError
from gpuload.sources.base import Source
from gpuload.sources.leaf import Indices
from gpuload.spec import Field

LOOKED_AT = 64  # records that are read, to find out whether the bytes of a record tell its length
READ_RECORDS = 4096  # at a time


def lengths_of(source: Source, name: str) -> Indices:
    """Return the length of a field's first axis in each record, int64 ``[len(source)]``.

    Of a text it is the number of characters; of bytes, if the records that are looked at hold ASCII
    alone.

    Where the field lies alone in its records, and its length is the number of their bytes, but for
    a head of one size, in some records that are read, then it is computed from the bytes of all
    records. Else the field is read once.

    Raises:
        UnknownFieldError: there is no such field.
        SpecError: its records have one length, or no number of axes that is known.
        RecordError, FileError: a record cannot be read.
    """
    field = source.spec[name]
    is_text = bool(field.text) and field.shape == ()
    if not (field.ragged or is_text) or field.encoded:
        raise SpecError(
            f"the lengths of field {name!r} ({field})",
            cause="it is no field of which the first axis alone varies, so there is nothing to "
            "bring together",
            remedy="name another field, or pass the lengths: gl.Buckets(numpy.array([3, 5, 4]), "
            "chunk=64)",
        )
    count = len(source)
    sample = np.unique(np.linspace(0, max(count - 1, 0), min(count, LOOKED_AT)).astype(np.int64))
    exact = _read(source, name, sample)
    if field.text:
        row_bytes = 1
    else:
        row_bytes = field.dtype.itemsize * prod(length or 1 for length in (field.shape or ())[1:])
    num_bytes = _num_bytes(source, field)
    if num_bytes is not None and sample.size:
        # Bytes and values differ by one number in all records that are read, the head of each: it
        # is taken to be so in all records.
        heads = num_bytes[sample] - exact * row_bytes
        if (heads == heads[0]).all() and exact.any():
            return np.asarray((num_bytes - heads[0]) // row_bytes, np.int64)
    parts = [
        _read(source, name, numbers)
        for numbers in np.array_split(np.arange(count), -(-count // READ_RECORDS))
    ]
    if parts:
        return np.concatenate(parts)
    return exact


def _read(source: Source, name: str, numbers: Indices) -> Indices:
    """Return the lengths of the values of a field, from the values themselves."""
    if not numbers.size:
        return np.empty(0, np.int64)
    values = source.read(numbers, fields=name)[name]
    return np.fromiter((len(value) for value in values), np.int64, numbers.size)


def _num_bytes(source: Source, field: Field) -> Indices | None:
    """Return how many bytes each record has in which the field lies alone; None where it does
    not."""
    group = next(number for number, group in enumerate(source.groups) if field.name in group.spec)
    if source.groups[group].layout is not None or len(source.groups[group].spec) > 1:
        return None
    num_bytes = np.zeros(len(source), np.int64)
    for share in source.resolve(np.arange(len(source), dtype=np.int64)):
        if share.group == group:
            num_bytes[share.index] = share.leaf.num_bytes(share.numbers)
    return num_bytes

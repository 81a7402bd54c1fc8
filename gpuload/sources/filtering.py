"""Filter: which records to keep, by a mask or by a function of their fields.

Memory  records are read some thousand at a time, and at most CHUNK_BYTES of them; a boolean a
        record is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuload.errors import SpecError
from gpuload.functions import call_function
from gpuload.sources.leaf import Indices
from gpuload.sources.reading import Readable, read_groups

Mask = NDArray[np.bool_]
# of records that are read at once; a single larger record is read all the same
CHUNK_BYTES = 1 << 24
# fewer where it is not known before how large they are
CHUNK_RECORDS, CHUNK_VARYING = 1 << 14, 1 << 10


def matching_records(
    source: Readable, keep: Callable[[dict[str, Any]], ArrayLike] | ArrayLike, fields: Any
) -> Indices:
    """Return the numbers of the records to keep, int64; see ``Source.filter``."""
    if not callable(keep):
        if fields is not None:
            raise SpecError(
                f"filter of a mask, with fields={fields!r}",
                cause="fields are for a function",
                remedy="leave fields out, or pass a function: source.filter(lambda fields: ..., "
                "fields=...)",
            )
        return np.flatnonzero(
            _mask(keep, len(source), f"source.filter of a source of {len(source)} records")
        )
    names = _names(source, fields)
    # An empty one first: a source without records gives no masks, and np.concatenate refuses an
    # empty list.
    masks = [np.zeros(0, np.bool_)]
    for numbers in chunks(source, names):
        read = read_groups(source, numbers, names)
        range_text = f"records {int(numbers[0])} to {int(numbers[-1])}"
        note = partial("source.filter: the function was given {}".format, range_text)
        result = call_function(keep, {name: read[name] for name in names}, note=note)
        masks.append(
            _mask(result, numbers.size, f"source.filter: the function, given {range_text},")
        )
    return np.flatnonzero(np.concatenate(masks))


def _names(source: Readable, fields: Any) -> tuple[str, ...]:
    """Return the names of the fields that a function needs; raises ``SpecError`` without any."""
    if isinstance(fields, str):
        names = (fields,)
    else:
        names = fields
    if not isinstance(names, Sequence) or not names:
        raise SpecError(
            f"source.filter of a function, with fields={fields!r}",
            cause="the fields that the function needs are read, and no others",
            remedy=f"name them: source.filter(function, fields={(source.spec.names[-1],)!r}); "
            f"there are {list(source.spec.names)}",
        )
    return tuple(source.spec[name].name for name in names)


def chunks(
    source: Readable, names: tuple[str, ...], begin: int = 0, end: int | None = None
) -> Iterator[Indices]:
    """Yield the numbers of all records, or of those from ``begin`` to ``end``, in chunks."""
    groups = [group for group in source.groups if any(name in names for name in group.spec.names)]
    if all(group.layout is not None for group in groups):
        chunk_records = CHUNK_RECORDS
    else:
        chunk_records = CHUNK_VARYING
    end = len(source) if end is None else end
    for first in range(begin, end, chunk_records):
        numbers = np.arange(first, min(first + chunk_records, end), dtype=np.int64)
        before = np.cumsum(_num_bytes(source, names, numbers)) // CHUNK_BYTES
        yield from np.split(numbers, np.flatnonzero(np.diff(before)) + 1)


def _num_bytes(source: Readable, names: tuple[str, ...], numbers: Indices) -> Indices:
    """Return the number of bytes to read of each record, int64 ``[n]``, as far as it is known
    before."""
    group_numbers = {
        number
        for number, group in enumerate(source.groups)
        if any(name in names for name in group.spec.names)
    }
    fixed = sum(
        prod(field.fixed_shape) * field.dtype.itemsize
        for number in group_numbers
        for field in source.groups[number].spec
        if field.uniform
    )
    total = np.full(numbers.size, fixed, np.int64)
    for share in source.resolve(numbers):
        if share.group in group_numbers and source.groups[share.group].layout is None:
            total[share.index] += share.leaf.value_bytes(share.numbers)
    return total


def _mask(value: Any, count: int, subject: str) -> Mask:
    """Return the mask after checking its dtype and its shape ``[count]``."""
    try:
        mask = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{subject} got a value that is no array",
            cause=str(error),
            remedy="pass an array of booleans",
        ) from None
    if mask.shape == (count,) and (mask.dtype.kind == "b" or not count):
        return mask.astype(np.bool_)
    if mask.ndim == 0:
        description = repr(value)[:80]
    else:
        description = f"{mask.dtype} of shape {mask.shape}"
    if mask.ndim == 1 and mask.dtype.kind in "iu":
        remedy = "source.select(indices) takes record numbers; values.astype(bool) makes booleans of 0 and 1"
    else:
        remedy = 'compare whole arrays, as in lambda fields: fields["label"] < 10, or use numpy.array([... for ...])'
    raise SpecError(
        f"{subject} got {description}",
        cause=f"it is a boolean for each record, shape ({count},)",
        remedy=remedy,
    )

"""Classes: the class of each record, by which a source is split or balanced.

    classes_of(source, "label")       from a field; only the files that hold it are read
    classes_of(source, labels)        from an array with a class for each record

A class is a whole number or a text. Memory: two int64 a record.
"""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuload.errors import SpecError
from gpuload.order import Split
from gpuload.sources import filtering
from gpuload.sources.leaf import Indices
from gpuload.sources.readable import Readable

KINDS = "biuSU"
FORM = "write source.split(0.9, seed=0, by='label')"


def split_by_class(source: Readable, fraction: float, seed: int, by: str | ArrayLike) -> tuple[Indices, Indices]:
    """Return the numbers of the records of both parts of a split that keeps proportions, in ascending order.

    The first part has ``round(fraction * len(source))`` records. Of a class of n records it has ``fraction * n``,
    rounded down, or one more: one more of the classes that lost most by rounding, the first where they lost as much.

        fraction 0.5, classes of 5, 3 and 2 records     exact 2.5 1.5 1.0     rounded down 2 1 1     first part 3 1 1

    Which records of a class these are depends on seed, class and the class's number of records alone (`order.Split`).

    Args:
        source: the records.
        fraction: of the records, for the first part; 0 to 1.
        seed: 0 to 2**64 - 1.
        by: the name of a field of numbers or texts, or the class of each record; see `classes_of`.
    """
    classes, counts = classes_of(source, by)
    exact = [float(fraction) * count for count in counts.tolist()]
    shares = [floor(share) for share in exact]
    by_loss = sorted(range(len(exact)), key=lambda number: (shares[number] - exact[number], number))
    for number in by_loss[: round(float(fraction) * len(source)) - sum(shares)]:
        shares[number] += 1
    is_first = np.zeros(len(source), np.bool_)
    order, begins = np.argsort(classes, kind="stable"), np.cumsum(counts) - counts
    for number, (begin, count, share) in enumerate(zip(begins.tolist(), counts.tolist(), shares, strict=True)):
        part = Split(count, share, seed, second=False, number=number)
        is_first[order[begin + part.at(np.arange(share, dtype=np.int64))]] = True
    return np.flatnonzero(is_first), np.flatnonzero(~is_first)


def classes_of(source: Readable, by: str | ArrayLike) -> tuple[Indices, Indices]:
    """Return the class of each record, int64 ``[n]``, and the number of records of each, int64 ``[num_classes]``.

    Classes are numbered in ascending order.

    Raises:
        SpecError: there is no such field, it is not one whole number or text a record, or there are other classes than
            records.
    """
    try:
        values = _of_field(source, by) if isinstance(by, str) else _texts(np.asarray(by))
    except ValueError as error:  # NumPy makes no array of lists of several lengths
        raise SpecError(f"split(by={by!r})"[:200], cause=str(error)[:200], remedy=f"{FORM}, or pass an array") from None
    if values.shape != (len(source),) or values.dtype.kind not in KINDS:
        subject = f"field {source.spec[by]}" if isinstance(by, str) else f"{values.dtype} {values.shape}"
        raise SpecError(
            f"the classes of {len(source)} records by {subject}",
            cause="the class of a record is one whole number or one text",
            remedy=f"{FORM}, or pass an array with a class for each record",
        )
    _, classes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return classes.astype(np.int64).reshape(-1), counts.astype(np.int64)


def _of_field(source: Readable, name: str) -> NDArray[Any]:
    """Return a field of all records; one of records that have several values each as an array without records."""
    field = source.spec[name]
    is_text = field.ragged and field.shape == (None,) and field.dtype == np.uint8 and not field.encoded
    if field.shape != () and not is_text:
        return np.empty((0,), field.dtype)
    pieces = [source.read_groups(numbers, (name,))[name] for numbers in filtering.chunks(source, (name,))]
    if is_text:  # bytes of any length, as TFRecords hold texts
        return np.array([value.tobytes() for piece in pieces for value in piece] or [b""])[: len(source)]
    return _texts(np.concatenate([np.empty((0,), field.dtype), *(np.asarray(piece) for piece in pieces)]))


def _texts(values: NDArray[Any]) -> NDArray[Any]:
    """Return texts that are Python objects, or of NumPy's StringDType, as an array of texts of one length."""
    if values.dtype.kind == "T" or (values.dtype.kind == "O" and all(isinstance(text, str) for text in values.flat)):
        return np.array(values.tolist() or [""], np.str_)[: values.size].reshape(values.shape)
    return values

"""Classes: the class of each record, by which a source is split or balanced.

    classes_of(source, "label")       from a field; only the files that hold it are read
    classes_of(source, labels)        from an array with a class for each record

A class is a whole number or a text. Memory: two int64 a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from math import floor, isclose, isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuload.errors import SpecError
from gpuload.order import Split
from gpuload.sources import filtering
from gpuload.sources.leaf import Indices
from gpuload.sources.reading import Readable, read_groups

KINDS = "biuSU"
FORM = "write source.split(0.9, seed=0, by='label')"


def split_by_class(
    source: Readable,
    fractions: Sequence[float],
    ends: Sequence[int],
    seed: int,
    by: str | ArrayLike,
) -> list[Indices]:
    """Return the numbers of the records of all parts of a split that keeps proportions, in
    ascending order.

    Of a class of n records the first part has ``fraction * n``, rounded down, or one more: one more
    of the classes that lost most by rounding, the first where they lost as much. Further parts are
    made of the rest in the same way.

        fraction 0.5, classes of 5, 3 and 2 records     exact 2.5 1.5 1.0     rounded down 2 1 1     first part 3 1 1

    Which records of a class these are depends on seed, class and the class's number of records
    alone (`order.Split`).

    Args:
        source: the records.
        fractions: of the records, for each part; of one fraction the second part is the rest.
        ends: the number of records of the first k parts together.
        seed: 0 to 2**64 - 1.
        by: the name of a field of numbers or texts, or the class of each record; see `classes_of`.
    """
    classes, counts = classes_of(source, by)
    rest, begin, parts = np.arange(len(source), dtype=np.int64), 0, list[Indices]()
    for stage, end in enumerate(ends[: max(1, len(ends) - 1)]):
        if stage == 0:
            fraction = float(fractions[0])
        else:
            fraction = (end - begin) / max(rest.size, 1)
        of_rest = classes[rest]
        shares = _shares(np.bincount(of_rest, minlength=counts.size), fraction, end - begin)
        is_first = _first_part(of_rest, shares, seed, first_number=stage * counts.size)
        parts.append(rest[is_first])
        rest, begin = rest[~is_first], end
    return [*parts, rest]


def _shares(counts: Indices, fraction: float, total: int) -> list[int]:
    """Return how many records of each class a part of ``total`` records has."""
    exact = [fraction * count for count in counts.tolist()]
    shares = [floor(share) for share in exact]
    by_loss = sorted(range(len(exact)), key=lambda number: (shares[number] - exact[number], number))
    for number in by_loss[: total - sum(shares)]:
        shares[number] += 1
    return shares


def _first_part(
    classes: Indices, shares: Sequence[int], seed: int, first_number: int
) -> NDArray[np.bool_]:
    """Return which records a part has, of each class as many as its share; ``first_number`` is that
    of its `Split`."""
    is_first = np.zeros(classes.size, np.bool_)
    counts = np.bincount(classes, minlength=len(shares))
    order, begins = np.argsort(classes, kind="stable"), np.cumsum(counts) - counts
    for number, (begin, count, share) in enumerate(
        zip(begins.tolist(), counts.tolist(), shares, strict=True)
    ):
        part = Split(count, share, seed, second=False, number=first_number + number)
        is_first[order[begin + part.at(np.arange(share, dtype=np.int64))]] = True
    return is_first


def check_fractions(fraction: Any, seed: Any, by: Any) -> tuple[float, ...]:
    """Return the fractions of ``source.split``.

    Raises:
        SpecError: one does not lie between 0 and 1, or several are not 1 together.
    """
    is_float = [isinstance(value, (float, np.floating)) for value in (fraction, seed, by)]
    numbers = [float(value) for value in compress((fraction, seed, by), is_float)]
    if len(numbers) > 1 and is_float[1]:
        raise SpecError(
            f"split({', '.join(map(str, numbers))})",
            cause="the second argument is the seed, a whole number",
            remedy="pass the fractions of two, three or more parts together: "
            f"source.split(({_line(numbers)}))",
        )
    is_array = isinstance(fraction, np.ndarray) and fraction.ndim == 1
    if not is_array and not isinstance(fraction, (list, tuple)):
        if not _is_number(fraction) or not 0 <= fraction <= 1:
            raise _fraction_error(fraction)
        return (float(fraction),)
    if not all(map(_is_number, fraction)):
        raise _fraction_error(fraction)
    fractions = tuple(map(float, fraction))
    total = sum(fractions)
    if len(fractions) < 2 or min(fractions) < 0 or not isclose(total, 1, abs_tol=1e-6):
        raise SpecError(
            f"split({fraction!r})"[:200],
            cause=f"the fractions of all parts are 1 together, and these are {total:g}",
            remedy=f"pass source.split(({_line(_sound_fractions(fractions))})), say",
        )
    return fractions


def _fraction_error(fraction: Any) -> SpecError:
    return SpecError(
        f"split({fraction!r})"[:200],
        cause="a fraction lies between 0 and 1",
        remedy="pass 0.9 for nine tenths",
    )


def _sound_fractions(fractions: Sequence[float]) -> list[float]:
    """Return fractions that are 1 together, near to some that are not."""
    total = sum(fractions)
    if fractions and min(fractions) >= 0 and 0 < total < 1:
        return [*fractions, round(1 - total, 6)]
    if len(fractions) > 1 and min(fractions) >= 0 and total > 1:
        return [value / total for value in fractions]
    return [0.7, 0.2, 0.1]


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    return is_number and not isinstance(value, bool) and isfinite(value)


def _line(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def classes_of(source: Readable, by: str | ArrayLike) -> tuple[Indices, Indices]:
    """Return the class of each record, int64 ``[n]``, and the number of records of each, int64
    ``[num_classes]``.

    Classes are numbered in ascending order.

    Raises:
        SpecError: there is no such field, it is not one whole number or text a record, or there are
            other classes than records.
    """
    try:
        if isinstance(by, str):
            values = _of_field(source, by)
        else:
            values = _texts(np.asarray(by))
    except ValueError as error:  # NumPy makes no array of lists of several lengths
        raise SpecError(
            f"split(by={by!r})"[:200], cause=str(error)[:200], remedy=f"{FORM}, or pass an array"
        ) from None
    if values.shape != (len(source),) or values.dtype.kind not in KINDS:
        if isinstance(by, str):
            subject = f"field {source.spec[by]}"
        else:
            subject = f"{values.dtype} {values.shape}"
        raise SpecError(
            f"the classes of {len(source)} records by {subject}",
            cause="the class of a record is one whole number or one text",
            remedy=f"{FORM}, or pass an array with a class for each record",
        )
    _, classes, counts = np.unique(values, return_inverse=True, return_counts=True)
    return classes.astype(np.int64).reshape(-1), counts.astype(np.int64)


def _of_field(source: Readable, name: str) -> NDArray[Any]:
    """Return a field of all records; one of records that have several values each as an array
    without records."""
    field = source.spec[name]
    is_text = (
        field.ragged and field.shape == (None,) and field.dtype == np.uint8 and not field.encoded
    )
    if field.shape != () and not is_text:
        return np.empty((0,), field.dtype)
    pieces = [
        read_groups(source, numbers, (name,))[name] for numbers in filtering.chunks(source, (name,))
    ]
    if is_text:  # bytes of any length, as TFRecords hold texts
        return np.array([value.tobytes() for piece in pieces for value in piece] or [b""])[
            : len(source)
        ]
    return _texts(
        np.concatenate([np.empty((0,), field.dtype), *(np.asarray(piece) for piece in pieces)])
    )


def _texts(values: NDArray[Any]) -> NDArray[Any]:
    """Return texts that are Python objects, or of NumPy's StringDType, as an array of texts of one
    length."""
    if values.dtype.kind == "T" or (
        values.dtype.kind == "O" and all(isinstance(text, str) for text in values.flat)
    ):
        return np.array(values.tolist() or [""], np.str_)[: values.size].reshape(values.shape)
    return values

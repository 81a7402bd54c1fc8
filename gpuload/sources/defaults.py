"""Defaults: values that stand for missing ones, in the dtype of their column.

    convert_default(0, int32)          0
    convert_default(0.1, float32)      0.1       the float32 nearest to it, as the text 0.1 in a file
    convert_default(1.5, int32)        an error: it would become 1
    convert_default(1e40, float32)     an error: it would become infinite

A default has exactly its value in the column, or it is refused. The rule is one for all formats:
whole numbers, booleans, dates and times must come back from the dtype as they were; a fraction
becomes the nearest one of the dtype, and neither infinite nor zero.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.sources.dtypes import are_same

# of dtypes, and which kinds of values they take; others take numbers and booleans
KINDS = {"M": "M", "m": "m"}


class UnfitDefault(ValueError):
    """A column cannot hold a default; the text says why."""


def plain_default(value: Any) -> Any:
    """Return a default without NumPy's types of numbers and without Python's dates, which have
    several texts.

    Dates become those of NumPy, with a time zone in UTC, as in the columns.
    """
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufUS":
        return value.tolist()
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        return np.datetime64(value)
    if isinstance(value, datetime.date):
        return np.datetime64(value)
    if isinstance(value, datetime.timedelta):
        return np.timedelta64(value)
    if isinstance(value, datetime.time) and value.tzinfo is None:
        time_of_day = datetime.datetime.combine(datetime.date.min, value) - datetime.datetime.min
        return np.timedelta64(time_of_day)
    if isinstance(value, (list, tuple)):
        if type(value) in (list, tuple):
            return type(value)(map(plain_default, value))
        return value
    return value


def convert_default(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a default, one value or an array of them, in a dtype of numbers, booleans, dates or
    times.

    Raises:
        UnfitDefault: the dtype does not hold it.
    """
    try:
        array = np.asarray(plain_default(value))
    except (ValueError, TypeError, OverflowError) as error:
        raise UnfitDefault(f"it is no value of {dtype}: {error}") from None
    if array.dtype.kind not in KINDS.get(dtype.kind, "biuf"):
        if not array.size and array.dtype.kind == "f":  # an empty list
            return array.astype(dtype)
        raise UnfitDefault(f"it is no value of {dtype}")
    if array.dtype.kind == "m" and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise UnfitDefault("months and years have no length in other units")
    with np.errstate(all="ignore"):
        try:
            result = array.astype(dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise UnfitDefault(f"it is no value of {dtype}: {error}") from None
        is_same = _is_same(array, result)
    if not is_same.all():
        worst = np.unravel_index(int(is_same.argmin()), is_same.shape)
        raise UnfitDefault(f"{dtype} does not hold it: it would become {result[worst]}")
    return result


def _is_same(array: NDArray[Any], result: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where values are the same in another dtype, or the nearest fraction."""
    if array.dtype.kind == "f" and result.dtype.kind == "f":
        is_lost = (np.isfinite(array) & ~np.isfinite(result)) | ((array != 0) & (result == 0))
        return np.asarray(~is_lost)
    return are_same(array, result)


def example_default(dtype: np.dtype[Any]) -> str:
    """Return a value that such a column holds, as Python writes it."""
    examples = {"b": "False", "M": "numpy.datetime64('NaT')", "m": "numpy.timedelta64(0)"}
    return examples.get(dtype.kind, "0")

"""Dtypes: one dtype for values of several, exactly.

    common_dtype([int32, int64])       int64
    common_dtype([float32, float64])   float64
    common_dtype([int64, uint64])      None: no dtype holds the values of both
    common_dtype([int32, float64])     None: a whole number is another kind of value; `convert_values` makes it one

Kinds  Whole numbers stay whole numbers, floating-point numbers floating-point numbers, texts of a length texts of a
       length. Dates and times of different units have no common one: far dates run over in the finer unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

FAMILIES = ("iu", "f", "c", "U", "S")  # kinds of dtypes that may have a common one


class UnfitValue(ValueError):
    """A dtype does not hold a value; the text says which value, and where it stands."""


def common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return the smallest dtype of the same kind that holds all values of all dtypes; None if there is none."""
    family = next((kinds for kinds in FAMILIES if dtypes[0].kind in kinds), "")
    if len(set(dtypes)) == 1:
        return dtypes[0]
    if any(dtype.kind not in family or not dtype.itemsize for dtype in dtypes):
        return None
    dtype = reduce(np.promote_types, dtypes)
    return dtype if dtype.kind in family else None


def joining(call: str, name: str, first: np.dtype[Any], second: np.dtype[Any]) -> str:
    """Return the remedy for two files that cannot be one source, because their dtypes differ in a field.

    Args:
        call: the reader, ``"gl.npy"``.
        name: of the field.
        first: its dtype in one file.
        second: its dtype in the other file.
    """
    common = common_dtype([first, second])
    if common is not None:
        return f"open them one by one: gl.concat({call}(first), {call}(second), promote=True) has {common} for both"
    if first.kind in "iuf" and second.kind in "iuf":
        floats = [dtype for dtype in (first, second) if dtype.kind == "f"]
        dtype = floats[0] if floats else np.dtype(np.float64)
        return (
            f"no dtype holds the values of both; if those of the other file fit {dtype}, write them anew: "
            f"{rewriting(f'{call}(path)', name, dtype)}"
        )
    return "make a source of each, and a loader of each"


def rewriting(source: str, name: str, dtype: np.dtype[Any]) -> str:
    """Return the call that writes a source with another dtype of a field."""
    return f"gl.convert(gl.Loader({source}, 1000, ops=[gl.ops.Cast({dtype.name!r}, on={name!r})]), 'new.npz')"


def holds(dtype: np.dtype[Any], smaller: np.dtype[Any]) -> bool:
    """Return True if a dtype holds all values of another one of its kind."""
    if smaller == dtype:  # nearly always, for each leaf of each batch
        return True
    common = common_dtype([smaller, dtype])
    # Not only compared: NumPy takes None for float64 there.
    return common is not None and common == dtype


def convert_values(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values in another dtype that holds each of them exactly.

    Raises:
        UnfitValue: it does not hold one.
    """
    if holds(dtype, values.dtype):
        return np.ascontiguousarray(values, dtype)
    with np.errstate(all="ignore"):
        result = values.astype(dtype)
        fits = are_same(values, result)
    if not fits.all():
        place = int(np.flatnonzero(~fits.reshape(-1))[0])
        raise UnfitValue(f"value {place} of it is {values.reshape(-1)[place]}")
    return np.ascontiguousarray(result)


def are_same(values: NDArray[Any], result: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where values are the same in another dtype."""
    # There and back: NumPy compares dates of two units in the finer one, in which far ones run over.
    back = result.astype(values.dtype)
    if values.dtype.kind in "mM":
        return np.asarray((back == values) | (np.isnat(values) & np.isnat(result)))
    is_same = (back == values) | ((back != back) & (values != values))
    kinds = values.dtype.kind, result.dtype.kind
    if kinds[0] in "iu" and kinds[1] in "iu":
        return np.asarray(is_same & ((result < 0) == (values < 0)))
    numbers, whole = (result, values.dtype) if kinds[1] == "f" else (values, result.dtype)
    if numbers.dtype.kind == "f" and whole.kind in "iu":
        # What becomes of a number outside of these limits differs between processors. The upper limit plus 1 is a power
        # of two, which a floating-point number holds; the limit itself need not be one.
        limits = np.iinfo(whole)
        is_same &= (numbers >= float(limits.min)) & (numbers < float(limits.max + 1))
    return np.asarray(is_same)

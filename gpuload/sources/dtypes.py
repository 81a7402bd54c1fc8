"""Dtypes: one dtype for values of several, exactly.

    common_dtype([int32, int64])       int64
    common_dtype([float32, float64])   float64
    common_dtype([int64, uint64])      None: no dtype holds the values of both
    common_dtype([int32, float64])     None: a whole number is another kind of value; `convert_values` makes it one

Kinds  Whole numbers stay whole numbers, floating-point numbers floating-point numbers, texts of a
       length texts of a length. Dates and times of different units have no common one: far dates
       run over in the finer unit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

FAMILIES = ("iu", "f", "c", "U", "S")  # kinds of dtypes that may have a common one
SUFFIXES = {"gl.npy": ".npy", "gl.hdf5": ".h5"}  # of files to be written anew; else .npz


class UnfitValue(ValueError):
    """A dtype does not hold a value; the text says which value, and where it stands."""


def common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return the smallest dtype of the same kind that holds all values of all dtypes; None if there
    is none."""
    family = next((kinds for kinds in FAMILIES if dtypes[0].kind in kinds), "")
    if len(set(dtypes)) == 1:
        return dtypes[0]
    if any(dtype.kind not in family or not dtype.itemsize for dtype in dtypes):
        return None
    dtype = reduce(np.promote_types, dtypes)
    if dtype.kind in family:
        return dtype
    return None


def joining(call: str, name: str, first: np.dtype[Any], second: np.dtype[Any]) -> str:
    """Return the remedy for two files that cannot be one source, because their dtypes differ in a
    field.

    Args:
        call: the reader, ``"gl.npy"``.
        name: of the field.
        first: its dtype in one file.
        second: its dtype in the other file.
    """
    common = common_dtype([first, second])
    if common is not None:
        return f"open them one by one: gl.concat({call}(first), {call}(second), promote=True) has {common} for both"
    sources = f"{call}(first)", f"{call}(second)"
    remedy = rewriting("gl.concat", sources, name, (first, second), SUFFIXES.get(call, ".npz"))
    return remedy or "make a source of each, and a loader of each"


def joining_call(call: str, first: str, second: str, *, promote: bool) -> str:
    """Return the call that joins two sources: ``"gl.concat(a, b, promote=True)"``."""
    if call == "gl.concat":
        return f"gl.concat({first}, {second}{', promote=True' * promote})"
    if promote:  # a source of its own records, with the dtype of both
        pair = (first, second), (second, first)
        first, second = (f"gl.concat({part}, {rival}[:0], promote=True)" for part, rival in pair)
    return f"gl.mix([({first}, 0.5), ({second}, 0.5)])"


def rewriting(
    call: str,
    sources: tuple[str, str],
    name: str,
    dtypes: tuple[np.dtype[Any], np.dtype[Any]],
    suffix: str,
) -> str:
    """Return the remedy for two sources without a common dtype of a field; "" without one.

    Args:
        call: that joins them, ``"gl.concat"`` or ``"gl.mix"``.
        sources: expressions of both: ``("a", "b")``.
        name: of the field.
        dtypes: its, in each of them.
        suffix: of the file to be written.
    """
    for number, rival in ((0, 1), (1, 0)):  # the source to be written anew, and the one that stays
        target = _target(dtypes[number], dtypes[rival])
        if target is None:
            continue
        dtype, condition = target
        source = sources[number]
        if dtype.kind in "mM":
            values = f"values = {source}.read(range(len({source})))"
            column = f"values[{name!r}].astype({dtype.str[1:]!r})"
            return (
                f"give {source} ({dtypes[number]}) the unit of {sources[rival]}{condition}: "
                f"{values}; gl.arrays(**{{**values, {name!r}: {column}}})"
            )
        ops = f"[gl.ops.Cast({dtype.name!r}, on={name!r})]"
        reader = {".npy": "gl.npy", ".h5": "gl.hdf5"}.get(suffix, "gl.npz")
        pair = list(sources)
        pair[number] = f"{reader}('new{suffix}')"
        join = joining_call(call, *pair, promote=dtype != dtypes[rival])
        return (
            "no dtype of one kind holds the values of both; "
            f"write {source} ({dtypes[number]}) anew{condition}: "
            f"gl.convert(gl.Loader({source}, 1000, ops={ops}), 'new{suffix}'); then {join}"
        )
    return ""


def _target(dtype: np.dtype[Any], rival: np.dtype[Any]) -> tuple[np.dtype[Any], str] | None:
    """Return the dtype that a field gets to fit another one, and the condition; None if none
    does."""
    kinds = dtype.kind + rival.kind
    if kinds in ("bi", "bu", "bf"):
        return rival, ""
    if kinds in ("if", "uf"):
        # float64 holds the whole numbers of up to 32 bits, and float32 and float16 some of them.
        exact = ", if no number of it is beyond 2**53" * (dtype.itemsize > 4)
        return np.promote_types(dtype, rival), exact
    if kinds == "ui" and dtype.itemsize == 8:
        return np.dtype(np.int64), ", if no number of it is above 2**63 - 1"
    if kinds in ("MM", "mm"):
        with contextlib.suppress(TypeError):  # months have no number of days
            finer = np.promote_types(dtype, rival)
            unit = np.datetime_data(finer)[0]
            limits = {
                "MM": ", if all are within 292 years of 1970",
                "mm": ", if none is beyond 292 years",
            }
            if finer == rival and unit not in ("ps", "fs", "as"):
                return finer, limits[kinds] * (unit == "ns")
    return None


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
    # There and back: NumPy compares dates of two units in the finer one, in which far ones run
    # over.
    back = result.astype(values.dtype)
    if values.dtype.kind in "mM":
        return np.asarray((back == values) | (np.isnat(values) & np.isnat(result)))
    is_same = (back == values) | ((back != back) & (values != values))
    kinds = values.dtype.kind, result.dtype.kind
    if kinds[0] in "iu" and kinds[1] in "iu":
        return np.asarray(is_same & ((result < 0) == (values < 0)))
    if kinds[1] == "f":
        numbers, whole = (result, values.dtype)
    else:
        numbers, whole = (values, result.dtype)
    if numbers.dtype.kind == "f" and whole.kind in "iu":
        # Processors make different numbers of one outside of these limits. The upper
        # limit plus 1 is a power of two, which a floating-point number holds; the limit itself need
        # not be one.
        limits = np.iinfo(whole)
        is_same &= (numbers >= float(limits.min)) & (numbers < float(limits.max + 1))
    return np.asarray(is_same)
